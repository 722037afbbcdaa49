//! Reads the tokenizer of a model folder: tokenizer.json with its companions.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use super::added::{Added, AddedTokens};
use super::bpe::{Bpe, Parts};
use super::error::{TextProblem, one_line};
use super::template::SpecialNames;
use super::vocab::{Kind, MAX_TOKENS, Scheme, Vocab, byte_token};
use super::{Pieces, Source, TURN_TOKENS};

/// The largest tokenizer.json accepted; the largest known has 35 MB.
const MAX_FILE: u64 = 256 << 20;

#[derive(Deserialize)]
struct Head {
    model: HeadModel,
}

#[derive(Deserialize)]
struct HeadModel {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<AddedFile>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    model: ModelFile,
}

#[derive(Deserialize)]
struct AddedFile {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct ModelFile {
    vocab: HashMap<String, u32>,
    merges: Vec<MergeFile>,
    unk_token: Option<String>,
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum MergeFile {
    Pair(String, String),
    Line(String),
}

/// Reads everything that makes up the text side of a model folder.
pub(super) fn read(folder: &Path) -> Result<Source, TextProblem> {
    let bytes = read_file(folder, "tokenizer.json")?
        .ok_or_else(|| file_problem("tokenizer.json", &"there is no such file in the folder"))?;
    let head: Head = parse("tokenizer.json", &bytes)?;
    if let Some(name) = head.model.kind.filter(|k| k != "BPE") {
        return Err(TextProblem::Model { name, supported: "BPE" });
    }
    let file: TokenizerFile = parse("tokenizer.json", &bytes)?;
    drop(bytes);
    let config = read_json(folder, "tokenizer_config.json")?;

    let (scheme, strip_first_space) = decoding(file.decoder.as_ref())?;
    let tokens = tokens(&file)?;
    let named: Vec<(&str, Kind)> = tokens.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
    let vocab = Vocab::new(&named, scheme, strip_first_space)?;
    let mut added = AddedTokens::default();
    for token in &file.added_tokens {
        added.insert(
            &token.content,
            Added {
                id: token.id,
                control: named.get(token.id as usize).is_some_and(|(_, kind)| *kind == Kind::Control),
                lstrip: token.lstrip,
                rstrip: token.rstrip,
                single_word: token.single_word,
            },
        );
    }

    let id_of: HashMap<&str, u32> = named.iter().enumerate().map(|(i, &(name, _))| (name, i as u32)).collect();
    let lookup = |key: &'static str, name: Option<&str>| match name {
        None => Ok(None),
        Some(name) => match id_of.get(name) {
            Some(&id) => Ok(Some(id)),
            None => Err(TextProblem::Token { key, token: name.to_owned() }),
        },
    };
    let names = SpecialNames {
        bos: token_name(&config, "bos_token"),
        eos: token_name(&config, "eos_token"),
        unknown: token_name(&config, "unk_token"),
        padding: token_name(&config, "pad_token"),
    };
    let bos_id = lookup("bos_token", names.bos.as_deref())?;
    let mut stops: Vec<u32> = lookup("eos_token", names.eos.as_deref())?.into_iter().collect();
    for name in ["config.json", "generation_config.json"] {
        stops.extend(eos_ids(name, &read_json(folder, name)?, named.len())?);
    }
    let adds_bos = match config.get("add_bos_token") {
        Some(Value::Bool(asked)) => *asked,
        _ => file.post_processor.as_ref().is_some_and(|p| prepends(p, names.bos.as_deref())),
    };
    if adds_bos && bos_id.is_none() {
        return Err(TextProblem::NoBos("add_bos_token of tokenizer_config.json"));
    }
    let template = template(folder, &config)?;

    let model = file.model;
    refuse_unsupported(&model)?;
    let merges =
        model.merges.into_iter().enumerate().map(|(index, merge)| pair(index, merge)).collect::<Result<_, _>>();
    let parts = Parts {
        tokens: &named,
        merges: merges?,
        unknown: model.unk_token,
        fuse_unknown: model.fuse_unk,
        byte_fallback: model.byte_fallback,
        whole_pieces: model.ignore_merges,
    };
    let pieces = Pieces::Bpe(Box::new(Bpe::new(file.normalizer, file.pre_tokenizer, parts)?));
    Ok(Source { vocab, pieces, added, bos_id, adds_bos, stops, template, names })
}

fn refuse_unsupported(model: &ModelFile) -> Result<(), TextProblem> {
    let affix = |a: &Option<String>| a.as_ref().is_some_and(|a| !a.is_empty());
    if model.dropout.is_some_and(|p| p != 0.0) {
        return Err(TextProblem::Unsupported("dropout makes tokens random".to_owned()));
    }
    if affix(&model.continuing_subword_prefix) || affix(&model.end_of_word_suffix) {
        return Err(TextProblem::Unsupported("subword prefixes and suffixes are not supported".to_owned()));
    }
    Ok(())
}

/// All tokens by id; ids that the file leaves out are nameless.
fn tokens(file: &TokenizerFile) -> Result<Vec<(String, Kind)>, TextProblem> {
    let ids = file.model.vocab.values().copied().chain(file.added_tokens.iter().map(|t| t.id));
    let size = ids.max().map_or(0, |id| id as usize + 1);
    if size == 0 || size > MAX_TOKENS {
        return Err(TextProblem::Size { found: size, limit: MAX_TOKENS });
    }
    let mut tokens = vec![(String::new(), Kind::Unused); size];
    let mut put = |name: &str, id: u32, kind: Kind| {
        let slot = &mut tokens[id as usize];
        if !slot.0.is_empty() && slot.0 != name {
            return Err(TextProblem::Unsupported(format!("id {id} belongs to both {:?} and {name:?}", slot.0)));
        }
        *slot = (name.to_owned(), kind);
        Ok(())
    };
    for (name, &id) in &file.model.vocab {
        let byte = file.model.byte_fallback && byte_token(name).is_some();
        put(name, id, if byte { Kind::Byte } else { Kind::Normal })?;
    }
    for token in &file.added_tokens {
        if let Some(&first) = file.model.vocab.get(&token.content).filter(|&&id| id != token.id) {
            return Err(TextProblem::Duplicate { token: token.content.clone(), first, second: token.id });
        }
        let control = token.special || TURN_TOKENS.contains(&token.content.as_str());
        put(&token.content, token.id, if control { Kind::Control } else { Kind::UserDefined })?;
    }
    Ok(tokens)
}

fn pair(index: usize, merge: MergeFile) -> Result<(String, String), TextProblem> {
    match merge {
        MergeFile::Pair(left, right) => Ok((left, right)),
        MergeFile::Line(line) => match line.split_once(' ') {
            Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
            None => Err(TextProblem::Merge { index, merge: line, reason: "is not a pair of tokens" }),
        },
    }
}

/// How names stand for bytes, by the decoder the file asks for.
fn decoding(decoder: Option<&Value>) -> Result<(Scheme, bool), TextProblem> {
    let kind = |v: &Value| v.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let Some(decoder) = decoder.filter(|d| !d.is_null()) else {
        return Err(TextProblem::Unsupported("there is no decoder".to_owned()));
    };
    let steps = match decoder.get("decoders").and_then(Value::as_array) {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(decoder),
    };
    let kinds: Vec<String> = steps.iter().map(kind).collect();
    let has = |name: &str| kinds.iter().any(|k| k == name);
    if has("ByteLevel") {
        Ok((Scheme::ByteLevel, false))
    } else if has("ByteFallback") {
        Ok((Scheme::SentencePiece, has("Strip")))
    } else if let Some(metaspace) = steps.iter().find(|s| kind(s) == "Metaspace") {
        let never = metaspace.get("prepend_scheme").and_then(Value::as_str) == Some("never");
        Ok((Scheme::SentencePiece, !never))
    } else {
        Err(TextProblem::Unsupported(format!("decoder {} is not supported", kinds.join(" + "))))
    }
}

/// A special token's text: a string, or an object with `content`.
fn token_name(config: &Value, key: &str) -> Option<String> {
    let value = config.get(key)?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// `eos_token_id`, a number or a list of numbers.
fn eos_ids(name: &str, config: &Value, size: usize) -> Result<Vec<u32>, TextProblem> {
    let Some(value) = config.get("eos_token_id").filter(|v| !v.is_null()) else { return Ok(Vec::new()) };
    let listed = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let id = |v: &Value| {
        let id = v.as_u64().ok_or_else(|| file_problem(name, &format!("eos_token_id holds {v}, which is no id")))?;
        match u32::try_from(id) {
            Ok(small) if (small as usize) < size => Ok(small),
            _ => Err(TextProblem::Id { key: format!("eos_token_id of {name}"), id, size }),
        }
    };
    listed.iter().map(id).collect()
}

/// Whether a post-processor puts the BOS token before a single text.
fn prepends(processor: &Value, bos: Option<&str>) -> bool {
    let Some(bos) = bos else { return false };
    if let Some(steps) = processor.get("processors").and_then(Value::as_array) {
        return steps.iter().any(|step| prepends(step, Some(bos)));
    }
    let first = processor.get("single").and_then(|single| single.get(0));
    let id = first.and_then(|f| f.get("SpecialToken")).and_then(|s| s.get("id")).and_then(Value::as_str);
    id == Some(bos)
}

/// chat_template.jinja, or `chat_template` of the configuration: a string, or a
/// list in which the one named "default" counts.
fn template(folder: &Path, config: &Value) -> Result<Option<String>, TextProblem> {
    const FILE: &str = "chat_template.jinja";
    if let Some(bytes) = read_file(folder, FILE)? {
        return String::from_utf8(bytes).map(Some).map_err(|e| file_problem(FILE, &e));
    }
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(source)) => Ok(Some(source.clone())),
        Some(Value::Array(listed)) => {
            let default = listed.iter().find(|t| t.get("name").and_then(Value::as_str) == Some("default"));
            match default.and_then(|t| t.get("template")).and_then(Value::as_str) {
                Some(source) => Ok(Some(source.to_owned())),
                None => Err(file_problem("tokenizer_config.json", &"no chat template is named \"default\"")),
            }
        }
        Some(_) => Err(file_problem("tokenizer_config.json", &"chat_template is neither a string nor a list")),
    }
}

fn read_file(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, TextProblem> {
    let path = folder.join(name);
    match std::fs::metadata(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(file_problem(name, &e)),
        Ok(kind) if !kind.is_file() => return Err(file_problem(name, &"not a regular file")),
        Ok(kind) if kind.len() > MAX_FILE => {
            return Err(file_problem(name, &format!("{} bytes, at most {MAX_FILE} are accepted", kind.len())));
        }
        Ok(_) => {}
    }
    std::fs::read(&path).map(Some).map_err(|e| file_problem(name, &e))
}

/// A configuration file; `null` when there is none.
fn read_json(folder: &Path, name: &str) -> Result<Value, TextProblem> {
    match read_file(folder, name)? {
        Some(bytes) => parse(name, &bytes),
        None => Ok(Value::Null),
    }
}

fn parse<T: for<'de> Deserialize<'de>>(name: &str, bytes: &[u8]) -> Result<T, TextProblem> {
    serde_json::from_slice(bytes).map_err(|e| file_problem(name, &e))
}

fn file_problem(file: &str, message: &dyn std::fmt::Display) -> TextProblem {
    TextProblem::File { file: file.to_owned(), message: one_line(message) }
}
