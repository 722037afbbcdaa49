//! A byte-level BPE vocabulary that works: all bytes, common English words, ChatML's tokens, and filler up to size.

use std::collections::HashSet;

use crate::gguf::{GgufWriter, MetaValue};

use super::Preset;

/// The special tokens, in the order of their ids: end of text, start and end of a turn.
const SPECIALS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Words with the space before them (`Ġ` in byte-level BPE), then pieces of other words: in order of rank, so that
/// pieces do not take words apart. Each is merged from the left.
const WORDS: &str = "Ġthe Ġof Ġand Ġto Ġa Ġin Ġis Ġthat Ġfor Ġit Ġas Ġwith Ġwas Ġbe Ġby Ġon Ġnot Ġhe Ġthis Ġare Ġor \
    Ġhis Ġfrom Ġat Ġwhich Ġbut Ġhave Ġan Ġhad Ġthey Ġyou Ġwere Ġtheir Ġone Ġall Ġwe Ġcan Ġher Ġhas Ġthere Ġbeen Ġif \
    Ġmore Ġwhen Ġwill Ġwould Ġwho Ġso Ġno Ġmust Ġmessage Ġserver Ġdate Ġtime Ġname Ġnumber Ġbefore Ġafter Ġowner \
    Ġport Ġdeploy Ġteam Ġreport Ġplan Ġservice Ġeach Ġevery The You ing ion ent in on er at or an en re es st all";

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// Adds the tokenizer and the chat template to a file's metadata.
pub(super) fn describe(preset: &Preset, writer: GgufWriter) -> GgufWriter {
    let (merges, mut ordinary) = merges();
    let first = preset.first_special;
    let special = first..first + SPECIALS.len();
    // Highest ids last: what is left when the words are used up is filler, which no text is cut into.
    ordinary.reverse();
    let mut tokens = Vec::with_capacity(preset.vocab);
    for id in 0..preset.vocab {
        tokens.push(match special.contains(&id) {
            true => SPECIALS[id - first].to_owned(),
            false => ordinary.pop().unwrap_or_else(|| format!("Ġw{id}")),
        });
    }
    let types = (0..preset.vocab).map(|id| if special.contains(&id) { CONTROL } else { NORMAL });
    let id = |offset: usize| (first + offset) as u32;
    writer
        .meta("tokenizer.ggml.model", "gpt2")
        .meta("tokenizer.ggml.pre", preset.pre)
        .meta("tokenizer.ggml.tokens", MetaValue::strings(tokens))
        .meta("tokenizer.ggml.token_type", MetaValue::i32s(types))
        .meta("tokenizer.ggml.merges", MetaValue::strings(merges))
        .meta("tokenizer.ggml.bos_token_id", id(0))
        .meta("tokenizer.ggml.eos_token_id", id(2))
        .meta("tokenizer.ggml.padding_token_id", id(0))
        .meta("tokenizer.ggml.add_bos_token", false)
        .meta("tokenizer.chat_template", CHATML)
}

/// Merges by rank, and the tokens that they start from and make.
fn merges() -> (Vec<String>, Vec<String>) {
    let mut tokens: Vec<String> = byte_characters().map(String::from).collect();
    let mut known: HashSet<String> = tokens.iter().cloned().collect();
    let mut merges = Vec::new();
    for word in WORDS.split_whitespace() {
        let mut left = String::new();
        for right in word.chars() {
            let joined = format!("{left}{right}");
            if !left.is_empty() && known.insert(joined.clone()) {
                merges.push(format!("{left} {right}"));
                tokens.push(joined.clone());
            }
            left = joined;
        }
    }
    (merges, tokens)
}

/// The printable character that stands for each byte: itself where it is printable, else one from 256 on
/// (as GPT-2's encoder has it).
fn byte_characters() -> impl Iterator<Item = char> {
    let mut next = 256;
    (0..=255_u8).map(move |byte| match byte {
        b'!'..=b'~' | 161..=172 | 174..=255 => char::from(byte),
        _ => {
            next += 1;
            char::from_u32(next - 1).expect("these are Latin letters")
        }
    })
}
