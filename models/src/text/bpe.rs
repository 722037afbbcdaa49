//! Byte-level BPE and everything else that a `tokenizer.json` describes, on top
//! of the `tokenizers` crate.

use tokenizers::models::bpe::{BPE, Vocab as BpeVocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer, PreTokenizerWrapper, SplitDelimiterBehavior, Token,
};

use super::added::Found;
use super::error::{TextProblem, one_line};
use super::vocab::Kind;

/// Normalizer, pre-tokenizer and merges.
pub(super) struct Bpe {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    model: BPE,
}

/// A token that no vocabulary has, put in place of characters without a token:
/// the library would leave them out in silence.
const INEXPRESSIBLE: (&str, u32) = ("\0no token\0", u32::MAX);

/// The pre-tokenizers of byte-level BPE that are known by name.
///
/// The patterns are those of the models' own tokenizer.json files.
pub(super) struct PreTokenizerSpec {
    names: &'static [&'static str],
    /// Applied one after the other, each to the pieces of the one before.
    patterns: &'static [&'static str],
    /// Whether text is composed (Unicode NFC) first.
    compose: bool,
    /// Whether a piece that is a token as a whole is not taken apart.
    pub(super) whole_pieces: bool,
    /// Whether a BOS token is added where the file does not say.
    pub(super) adds_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const KNOWN: [PreTokenizerSpec; 5] = [
    PreTokenizerSpec {
        names: &["smollm"],
        patterns: &[r"\p{N}", GPT2],
        compose: false,
        whole_pieces: false,
        adds_bos: false,
    },
    PreTokenizerSpec { names: &["gpt-2"], patterns: &[GPT2], compose: false, whole_pieces: false, adds_bos: false },
    PreTokenizerSpec {
        names: &["qwen2", "deepseek-r1-qwen"],
        patterns: &[QWEN2],
        compose: true,
        whole_pieces: false,
        adds_bos: false,
    },
    PreTokenizerSpec {
        names: &["llama-bpe", "llama3", "llama-v3"],
        patterns: &[LLAMA3],
        compose: false,
        whole_pieces: true,
        adds_bos: true,
    },
    PreTokenizerSpec {
        names: &["smaug-bpe"],
        patterns: &[LLAMA3],
        compose: false,
        whole_pieces: false,
        adds_bos: false,
    },
];

impl PreTokenizerSpec {
    pub(super) fn by_name(name: Option<&str>) -> Result<&'static Self, TextProblem> {
        let known = || KNOWN.iter().flat_map(|spec| spec.names).copied().collect::<Vec<_>>().join(", ");
        let name = name.ok_or_else(|| TextProblem::PreMissing { known: known() })?;
        KNOWN
            .iter()
            .find(|spec| spec.names.contains(&name))
            .ok_or_else(|| TextProblem::PreUnknown { name: name.to_owned(), known: known() })
    }

    fn pre_tokenizer(&self) -> Result<PreTokenizerWrapper, TextProblem> {
        let mut steps = Vec::new();
        for &pattern in self.patterns {
            let pattern = SplitPattern::Regex(pattern.to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(library)?;
            steps.push(PreTokenizerWrapper::Split(split));
        }
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)));
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }
}

/// What the merges are built from.
pub(super) struct Parts<'a> {
    /// Tokens by id.
    pub(super) tokens: &'a [(&'a str, Kind)],
    /// Merges in order of rank.
    pub(super) merges: Vec<(String, String)>,
    /// Token for text that has none.
    pub(super) unknown: Option<String>,
    pub(super) fuse_unknown: bool,
    pub(super) byte_fallback: bool,
    /// See [`PreTokenizerSpec::whole_pieces`].
    pub(super) whole_pieces: bool,
}

impl Bpe {
    pub(super) fn byte_level(spec: &PreTokenizerSpec, parts: Parts<'_>) -> Result<Self, TextProblem> {
        let normalizer = spec.compose.then_some(NormalizerWrapper::NFC(NFC));
        Self::new(normalizer, Some(spec.pre_tokenizer()?), parts)
    }

    pub(super) fn new(
        normalizer: Option<NormalizerWrapper>,
        pre_tokenizer: Option<PreTokenizerWrapper>,
        parts: Parts<'_>,
    ) -> Result<Self, TextProblem> {
        let mut vocab = BpeVocab::default();
        let mut control = std::collections::HashSet::new();
        for (id, &(name, kind)) in parts.tokens.iter().enumerate() {
            // Tokens that are found as a whole take no part in merging, so no
            // text can be merged into a control token.
            if matches!(kind, Kind::Control) && parts.unknown.as_deref() != Some(name) {
                control.insert(name);
            } else if !name.is_empty() {
                vocab.insert(name.to_owned(), id as u32);
            }
        }
        vocab.insert(INEXPRESSIBLE.0.to_owned(), INEXPRESSIBLE.1);
        let mut merges = Vec::with_capacity(parts.merges.len());
        let mut joined = String::new();
        for (index, (left, right)) in parts.merges.into_iter().enumerate() {
            joined.clear();
            joined.push_str(&left);
            joined.push_str(&right);
            if [left.as_str(), &right, &joined].iter().any(|part| control.contains(part)) {
                continue;
            }
            // The library panics or fails on these, so they are named here.
            let reason = if left.is_empty() || right.is_empty() {
                "is not a pair of tokens"
            } else if !vocab.contains_key(&left) || !vocab.contains_key(&right) {
                "is of tokens that the vocabulary lacks"
            } else if !vocab.contains_key(&joined) {
                "makes a token that the vocabulary lacks"
            } else {
                merges.push((left, right));
                continue;
            };
            return Err(TextProblem::Merge { index, merge: format!("{left} {right}"), reason });
        }
        if let Some(unknown) = parts.unknown.as_ref().filter(|u| !vocab.contains_key(u.as_str())) {
            return Err(TextProblem::Token { key: "unk_token", token: unknown.clone() });
        }
        let model = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .unk_token(parts.unknown.unwrap_or_else(|| INEXPRESSIBLE.0.to_owned()))
            .fuse_unk(parts.fuse_unknown)
            .byte_fallback(parts.byte_fallback)
            .ignore_merges(parts.whole_pieces)
            .build()
            .map_err(library)?;
        Ok(Self { normalizer, pre_tokenizer, model })
    }

    /// The tokens of `text` with those in `found` where they were found.
    pub(super) fn encode(&self, text: &str, found: &[Found]) -> Result<Vec<u32>, TextProblem> {
        let mut pieces = PreTokenizedString::from(text);
        pieces.split(|_, whole| cut(&whole, found)).map_err(library)?;
        if let Some(normalizer) = &self.normalizer {
            pieces.normalize(|piece| normalizer.normalize(piece)).map_err(library)?;
        }
        if let Some(pre_tokenizer) = &self.pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(library)?;
        }
        pieces.tokenize(|piece| self.model.tokenize(piece.get())).map_err(library)?;
        let mut ids = Vec::new();
        for (piece, _, tokens) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            for token in tokens.iter().flatten() {
                if token.id == INEXPRESSIBLE.1 {
                    return Err(TextProblem::Inexpressible(piece.to_owned()));
                }
                ids.push(token.id);
            }
        }
        Ok(ids)
    }
}

type Piece = (NormalizedString, Option<Vec<Token>>);

/// Cuts the whole text at the tokens found in it.
fn cut(whole: &NormalizedString, found: &[Found]) -> tokenizers::Result<Vec<Piece>> {
    let slice = |range: std::ops::Range<usize>| {
        whole.slice(tokenizers::normalizer::Range::Normalized(range)).ok_or("a token was found between characters")
    };
    let mut pieces = Vec::new();
    let mut start = 0;
    for token in found {
        if start < token.range.start {
            pieces.push((slice(start..token.range.start)?, None));
        }
        let text = slice(token.range.clone())?;
        let value = Token::new(token.id, text.get().to_owned(), (0, text.get().len()));
        pieces.push((text, Some(vec![value])));
        start = token.range.end;
    }
    if start < whole.len() {
        pieces.push((slice(start..whole.len())?, None));
    }
    Ok(pieces)
}

fn library(error: tokenizers::Error) -> TextProblem {
    TextProblem::Tokenizer(one_line(&error))
}
