//! Multi-hop agent relays on small local language models, in one process, and
//! the measurement of what gets lost on the way.
//!
//! [`engine`] batches many sequences through one model; [`generate`] is what
//! studies see of it; [`studies`] plan trials and drive them; [`store`] keeps
//! every hop the moment it is done; [`score`] and [`stats`] read the store.
#![forbid(unsafe_code)]

pub mod bench;
pub mod cli;
pub mod engine;
pub mod generate;
mod hash;
mod memory;
pub mod score;
pub mod selfcheck;
pub mod stats;
pub mod store;
pub mod studies;
mod terminal;
