//! Small vocabularies made by hand, with answers worked out by hand.

mod chat;
mod decoding;
mod files;
mod tokens;

use std::io::Write;

use super::*;
use crate::gguf::{GgufWriter, MetaValue};

/// Ids of the tokens behind the 256 bytes of [`byte_level`].
const HI: u32 = 256; // "hi"
const SPACE_HI: u32 = 257; // "Ġhi"
const TWELVE: u32 = 258; // "12"
const START: u32 = 259; // control
const END: u32 = 260; // control
const THINK: u32 = 261; // user-defined "<think>"
const BOS: u32 = 262; // control "<s>"
const EOT: u32 = 263; // control "<|eot_id|>"

/// GPT-2's printable character of a byte.
fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) {
        return byte as char;
    }
    let rank = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(256 + rank).expect("below the surrogates")
}

fn byte_level_tokens() -> Vec<String> {
    let bytes = (0..=255).map(|b| byte_char(b).to_string());
    let rest = ["hi", "Ġhi", "12", "<|im_start|>", "<|im_end|>", "<think>", "<s>", "<|eot_id|>"];
    bytes.chain(rest.map(str::to_owned)).collect()
}

/// 256 byte tokens, three merged ones and five special ones.
fn byte_level() -> GgufWriter {
    let types = [1; 259].into_iter().chain([3, 3, 4, 3, 3]);
    GgufWriter::new()
        .meta("tokenizer.ggml.model", "gpt2")
        .meta("tokenizer.ggml.pre", "gpt-2")
        .meta("tokenizer.ggml.tokens", MetaValue::strings(byte_level_tokens()))
        .meta("tokenizer.ggml.token_type", MetaValue::i32s(types))
        .meta("tokenizer.ggml.merges", MetaValue::strings(["h i", "Ġ hi", "1 2"]))
        .meta("tokenizer.ggml.bos_token_id", BOS)
        .meta("tokenizer.ggml.eos_token_id", END)
}

fn load(writer: &GgufWriter) -> Result<Text, TextError> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(&writer.to_bytes()).expect("writing a temporary file");
    Text::from_gguf(&Gguf::open(file.path())?)
}

fn text(writer: &GgufWriter) -> Text {
    load(writer).expect("a valid tokenizer")
}

/// Ids of a text of which every byte is its own token.
fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn message<'a>(role: &'a str, content: &'a str) -> ChatMessage<'a> {
    ChatMessage { role, content }
}

#[test]
fn text_is_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Text>();
    shared::<Gguf>();
    shared::<TextStream>();
}
