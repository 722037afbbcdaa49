//! Reads the tokenizer from the metadata of a GGUF file.

use std::collections::HashMap;

use crate::gguf::{Gguf, ValueType};

use super::added::{Added, AddedTokens};
use super::bpe::{Bpe, Parts, PreTokenizerSpec};
use super::error::{TextError, TextProblem};
use super::spm::Spm;
use super::template::SpecialNames;
use super::vocab::{Kind, MAX_TOKENS, Scheme, Vocab, byte_token};
use super::{Pieces, Source, TURN_TOKENS};

/// Reads everything that makes up the text side of a GGUF file.
pub(super) fn read(gguf: &Gguf) -> Result<Source, TextError> {
    let fail = |problem| TextError::new(gguf.path(), problem);
    let model = gguf.need("tokenizer.ggml.model", gguf.get_str("tokenizer.ggml.model")?)?;
    let sentence_piece = match model {
        "gpt2" => false,
        "llama" => true,
        name => return Err(fail(TextProblem::Model { name: name.to_owned(), supported: "gpt2, llama" })),
    };
    let names = gguf.need("tokenizer.ggml.tokens", gguf.get_strings("tokenizer.ggml.tokens")?)?;
    let size = names.len();
    if size == 0 || size > MAX_TOKENS {
        return Err(fail(TextProblem::Size { found: size, limit: MAX_TOKENS }));
    }
    let id = |key: &str| -> Result<Option<u32>, TextError> {
        match gguf.get_u32(key)? {
            Some(id) if id as usize >= size => Err(fail(TextProblem::Id { key: key.to_owned(), id: id.into(), size })),
            id => Ok(id),
        }
    };
    let bos_id = id("tokenizer.ggml.bos_token_id")?;
    let eos_id = id("tokenizer.ggml.eos_token_id")?;
    let unknown = id("tokenizer.ggml.unknown_token_id")?;
    // Only templates could print it, and files with a padding id beyond the
    // vocabulary are about.
    let padding = gguf.get_u32("tokenizer.ggml.padding_token_id")?.filter(|&id| (id as usize) < size);
    let mut stops: Vec<u32> = eos_id.into_iter().collect();
    for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        stops.extend(id(key)?);
    }

    let kinds = kinds(gguf, size)?;
    let mut tokens: Vec<(&str, Kind)> = names.zip(kinds).collect();
    // A turn boundary that the file calls ordinary text would be found in what
    // a message says; so would an end token.
    for (name, kind) in &mut tokens {
        if matches!(kind, Kind::Normal | Kind::UserDefined) && TURN_TOKENS.contains(name) {
            *kind = Kind::Control;
        }
    }
    for &special in stops.iter().chain(&bos_id) {
        tokens[special as usize].1 = Kind::Control;
    }
    let added = added(&tokens).map_err(fail)?;

    let space_prefix = sentence_piece && gguf.get_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let (pieces, default_bos) = if sentence_piece {
        let scores = gguf.get_array("tokenizer.ggml.scores", ValueType::F32)?;
        let scores = gguf.need("tokenizer.ggml.scores", scores)?;
        check_length("tokenizer.ggml.scores", scores.len(), size).map_err(fail)?;
        let scores = scores.iter().map(|v| if let crate::gguf::Value::F32(score) = v { score } else { f32::NAN });
        let named = tokens.iter().position(|(_, kind)| *kind == Kind::Unknown).map(|id| id as u32);
        (Pieces::Spm(Box::new(Spm::new(&tokens, scores, unknown.or(named), space_prefix).map_err(fail)?)), true)
    } else {
        let spec = PreTokenizerSpec::by_name(gguf.get_str("tokenizer.ggml.pre")?).map_err(fail)?;
        let parts = Parts {
            tokens: &tokens,
            merges: merges(gguf)?,
            unknown: None,
            fuse_unknown: false,
            byte_fallback: false,
            whole_pieces: spec.whole_pieces,
        };
        (Pieces::Bpe(Box::new(Bpe::byte_level(spec, parts).map_err(fail)?)), spec.adds_bos)
    };

    let scheme = if sentence_piece { Scheme::SentencePiece } else { Scheme::ByteLevel };
    let vocab = Vocab::new(&tokens, scheme, space_prefix).map_err(fail)?;
    let adds_bos = match gguf.get_bool("tokenizer.ggml.add_bos_token")? {
        Some(true) if bos_id.is_none() => return Err(fail(TextProblem::NoBos("tokenizer.ggml.add_bos_token"))),
        Some(asked) => asked,
        None => default_bos && bos_id.is_some(),
    };
    let name = |id: Option<u32>| id.map(|id| tokens[id as usize].0.to_owned());
    let names = SpecialNames { bos: name(bos_id), eos: name(eos_id), unknown: name(unknown), padding: name(padding) };
    let template = gguf.get_str("tokenizer.chat_template")?.map(str::to_owned);
    Ok(Source { vocab, pieces, added, bos_id, adds_bos, stops, template, names })
}

/// Token types; where the file has none, byte tokens are known by their names.
fn kinds(gguf: &Gguf, size: usize) -> Result<Vec<Kind>, TextError> {
    const KEY: &str = "tokenizer.ggml.token_type";
    let fail = |problem| TextError::new(gguf.path(), problem);
    let Some(types) = gguf.get_array(KEY, ValueType::I32)? else {
        let names = gguf.get_strings("tokenizer.ggml.tokens")?.into_iter().flatten();
        return Ok(names.map(|n| if byte_token(n).is_some() { Kind::Byte } else { Kind::Normal }).collect());
    };
    check_length(KEY, types.len(), size).map_err(fail)?;
    let number = |v| if let crate::gguf::Value::I32(n) = v { n } else { -1 };
    types.iter().enumerate().map(|(i, v)| Kind::from_gguf(i, number(v)).map_err(fail)).collect()
}

/// The tokens to be found as a whole; refuses a token that has two ids.
fn added(tokens: &[(&str, Kind)]) -> Result<AddedTokens, TextProblem> {
    let mut seen = HashMap::with_capacity(tokens.len());
    let mut added = AddedTokens::default();
    for (id, &(name, kind)) in tokens.iter().enumerate() {
        let id = id as u32;
        // Nameless tokens fill gaps and stand for no text.
        if let Some(first) = seen.insert(name, id).filter(|_| !name.is_empty()) {
            return Err(TextProblem::Duplicate { token: name.to_owned(), first, second: id });
        }
        if matches!(kind, Kind::Control | Kind::UserDefined) {
            let control = kind == Kind::Control;
            added.insert(name, Added { id, control, lstrip: false, rstrip: false, single_word: false });
        }
    }
    Ok(added)
}

fn merges(gguf: &Gguf) -> Result<Vec<(String, String)>, TextError> {
    let lines = gguf.need("tokenizer.ggml.merges", gguf.get_strings("tokenizer.ggml.merges")?)?;
    let pair = |(index, line): (usize, &str)| match line.split_once(' ') {
        Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
        None => {
            let problem = TextProblem::Merge { index, merge: line.to_owned(), reason: "is not a pair of tokens" };
            Err(TextError::new(gguf.path(), problem))
        }
    };
    lines.enumerate().map(pair).collect()
}

fn check_length(key: &'static str, found: usize, expected: usize) -> Result<(), TextProblem> {
    if found == expected { Ok(()) } else { Err(TextProblem::Length { key, found, expected }) }
}
