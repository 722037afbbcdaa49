//! Model files for weaklink: cards and downloads, GGUF and safetensors,
//! tokenizer and chat template, and one decoder for four families.
//!
//! Data flows one way: a card or a path is resolved to local files
//! ([`fetch`]), the files are checked and mapped ([`gguf`]), and from them come
//! the tokenizer with its template ([`text`]) and the decoder ([`decoder`]),
//! which computes one ragged [`batch`] over a paged cache ([`kv`]).

pub mod batch;
pub mod card;
pub mod config;
pub mod decoder;
pub mod error;
pub mod fetch;
pub mod gguf;
pub mod kv;
mod ops;
pub mod synth;
pub mod text;
pub mod weights;
