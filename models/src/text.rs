//! Text to tokens and back: tokenizer, chat template and stop tokens of a model.
//!
//! [`Text`] comes from the metadata of a GGUF file or from a folder with
//! tokenizer.json. Encoding knows two ways: with control tokens (a prompt that
//! spells them out on purpose) and without (anything that people or models
//! wrote). [`Text::render`] combines them: control tokens count where the chat
//! template wrote them and nowhere else, so no message can become a turn.

mod added;
mod bpe;
mod error;
mod folder;
mod metadata;
mod spm;
mod stream;
mod template;
#[cfg(test)]
mod tests;
mod vocab;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::gguf::Gguf;

use added::{AddedTokens, Found};
use bpe::Bpe;
use spm::Spm;
use template::{SpecialNames, Template};
use vocab::{Kind, Vocab};

pub use error::{TextError, TextProblem};
pub use stream::TextStream;

/// Tokens that bound a turn in known chat formats. They are control tokens even
/// where a file calls them ordinary text.
const TURN_TOKENS: [&str; 16] = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<｜end▁of▁sentence｜>",
];

/// Tokens that end a turn or a text wherever they are control tokens.
const STOP_TOKENS: [&str; 11] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
    "<|end|>",
    "<｜end▁of▁sentence｜>",
];

/// One message of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatMessage<'a> {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: &'a str,
    /// What is said. Never read as anything but text.
    pub content: &'a str,
}

/// The two ways of cutting text into tokens.
enum Pieces {
    Bpe(Box<Bpe>),
    Spm(Box<Spm>),
}

impl Pieces {
    fn encode(&self, text: &str, found: &[Found]) -> Result<Vec<u32>, TextProblem> {
        match self {
            Self::Bpe(bpe) => bpe.encode(text, found),
            Self::Spm(spm) => spm.encode(text, found),
        }
    }
}

/// What a file or folder says about text, before the template is tried out.
struct Source {
    vocab: Vocab,
    pieces: Pieces,
    added: AddedTokens,
    bos_id: Option<u32>,
    adds_bos: bool,
    stops: Vec<u32>,
    template: Option<String>,
    names: SpecialNames,
}

/// Tokenizer, chat template and stop tokens of one model.
pub struct Text {
    path: PathBuf,
    vocab: Arc<Vocab>,
    pieces: Pieces,
    added: AddedTokens,
    bos_id: Option<u32>,
    adds_bos: bool,
    /// End tokens apart from the template's.
    ends: Vec<u32>,
    stops: Vec<u32>,
    turn_end: Option<u32>,
    names: SpecialNames,
    template_hash: Option<String>,
    /// A template that does not work is an error when it is used, not before:
    /// the tokenizer is of use without it.
    template: Option<Result<Template, String>>,
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text")
            .field("path", &self.path)
            .field("vocab_size", &self.vocab.len())
            .field("bos", &self.bos())
            .field("stops", &self.stops)
            .field("template_hash", &self.template_hash)
            .finish_non_exhaustive()
    }
}

impl Text {
    /// From the `tokenizer.*` metadata of a GGUF file: byte-level BPE (`gpt2`)
    /// with a known pre-tokenizer, or SentencePiece BPE (`llama`).
    ///
    /// # Errors
    /// When the metadata is missing, inconsistent or of an unsupported kind.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TextError> {
        Ok(Self::new(gguf.path(), metadata::read(gguf)?))
    }

    /// From a folder with tokenizer.json, and tokenizer_config.json,
    /// chat_template.jinja, config.json and generation_config.json where present.
    ///
    /// # Errors
    /// When a file is missing, damaged, inconsistent or of an unsupported kind.
    pub fn from_folder(folder: &Path) -> Result<Self, TextError> {
        let source = folder::read(folder).map_err(|problem| TextError::new(folder, problem))?;
        Ok(Self::new(folder, source))
    }

    fn new(path: &Path, source: Source) -> Self {
        let Source { vocab, pieces, added, bos_id, adds_bos, stops: mut ends, template, names } = source;
        ends.extend(STOP_TOKENS.iter().filter_map(|name| added.get(name)).filter(|a| a.control).map(|a| a.id));
        let mut text = Self {
            path: path.to_owned(),
            vocab: Arc::new(vocab),
            pieces,
            added,
            bos_id,
            adds_bos,
            ends,
            stops: Vec::new(),
            turn_end: None,
            names,
            template_hash: None,
            template: None,
        };
        text.use_template(template.as_deref());
        text
    }

    /// Replaces the chat template, for a file that has none or a wrong one. The
    /// hash and the stop set follow.
    ///
    /// # Errors
    /// When the template does not parse or does not take a user message.
    pub fn set_template(&mut self, source: &str) -> Result<(), TextError> {
        self.use_template(Some(source));
        self.check_template()
    }

    fn use_template(&mut self, source: Option<&str>) {
        self.template_hash = source.map(template::hash);
        self.template = source.map(|source| Template::new(source, self.names.clone()).map_err(|e| e.to_string()));
        let after = self.template.as_ref().and_then(|t| t.as_ref().ok()?.after_assistant.as_deref());
        self.turn_end = after.and_then(|text| {
            let first = self.added.find(text, |_| true).into_iter().next().filter(|found| found.range.start == 0)?;
            self.is_control(first.id).then_some(first.id)
        });
        self.join_stops();
    }

    fn join_stops(&mut self) {
        self.stops = self.ends.iter().copied().chain(self.turn_end).collect();
        self.stops.sort_unstable();
        self.stops.dedup();
    }

    /// Adds control tokens that end a completion, by their names, to those that the file gives.
    ///
    /// # Errors
    /// When the vocabulary has no control token of such a name.
    pub fn add_stops<S: AsRef<str>>(&mut self, names: &[S]) -> Result<(), TextError> {
        for name in names.iter().map(AsRef::as_ref) {
            let found = self.added.find(name, |_| true);
            let id = found.first().filter(|found| found.range == (0..name.len()) && self.is_control(found.id));
            let id =
                id.map(|found| found.id).ok_or_else(|| self.error(TextProblem::NoStop { name: name.to_owned() }))?;
            self.ends.push(id);
        }
        self.join_stops();
        Ok(())
    }

    /// The tokens of `text`. User-defined tokens are always recognised, control
    /// tokens only with `parse_special`. A BOS token is never added.
    ///
    /// # Errors
    /// When a part of the text has no token.
    pub fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TextError> {
        let found = self.added.find(text, |_| parse_special);
        self.pieces.encode(text, &found).map_err(|problem| self.error(problem))
    }

    /// The token to put before a text, when the model asks for one.
    /// [`render`](Self::render) sees to it itself.
    pub fn bos(&self) -> Option<u32> {
        self.bos_id.filter(|_| self.adds_bos)
    }

    /// The tokens of a conversation as the model's chat template writes it,
    /// ready for the model's answer.
    ///
    /// Control tokens are recognised in what the template writes and never in
    /// what a message says; for messages that spell out no control token the
    /// result is that of the model's own tokenizer. There is one BOS token if the
    /// model or the template asks for one, never two. Where the template takes no
    /// system message ([`folds_system`](Self::folds_system)), it goes in front of
    /// the first user message with an empty line between.
    ///
    /// # Errors
    /// When there is no template, when it fails or refuses the messages, and when
    /// it does not show every message once and whole.
    pub fn render(&self, messages: &[ChatMessage<'_>]) -> Result<Vec<u32>, TextError> {
        let rendered = self.template()?.render(messages).map_err(|problem| self.error(problem))?;
        let contents = &rendered.contents;
        let by_template = |range: &Range<usize>| {
            // The first content that ends behind the start of the range.
            let next = contents.partition_point(|c| c.end <= range.start);
            contents.get(next).is_none_or(|c| c.start >= range.end)
        };
        let found = self.added.find(&rendered.text, by_template);
        let mut ids = self.pieces.encode(&rendered.text, &found).map_err(|problem| self.error(problem))?;
        if let Some(bos) = self.bos_id {
            let printed = ids.iter().take_while(|&&id| id == bos).count();
            ids.drain(..printed.saturating_sub(1));
            if printed == 0 && self.adds_bos {
                ids.insert(0, bos);
            }
        }
        Ok(ids)
    }

    fn template(&self) -> Result<&Template, TextError> {
        match &self.template {
            None => Err(self.error(TextProblem::NoTemplate)),
            Some(Ok(template)) => Ok(template),
            Some(Err(message)) => {
                let message = message.strip_prefix("chat template: ").unwrap_or(message);
                Err(self.error(TextProblem::Template(message.to_owned())))
            }
        }
    }

    fn error(&self, problem: TextProblem) -> TextError {
        TextError::new(&self.path, problem)
    }

    /// Whether the model has a chat template, working or not.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Checks that the chat template is there and works.
    ///
    /// # Errors
    /// Those that [`render`](Self::render) would give for any conversation.
    pub fn check_template(&self) -> Result<(), TextError> {
        self.template().map(|_| ())
    }

    /// SHA-256 of the template's source in hexadecimal; `none` without one.
    pub fn template_hash(&self) -> String {
        self.template_hash.clone().unwrap_or_else(|| "none".to_owned())
    }

    /// Whether the template refuses or ignores a system message, so that one is
    /// put in front of the first user message instead. Part of a run's record.
    pub fn folds_system(&self) -> bool {
        matches!(&self.template, Some(Ok(template)) if template.folds_system)
    }

    /// The control token that the template writes after an assistant's message.
    pub fn turn_end(&self) -> Option<u32> {
        self.turn_end
    }

    /// All tokens that end a generation, in ascending order: what the metadata
    /// or configuration files name, known end tokens, and
    /// [`turn_end`](Self::turn_end).
    pub fn stop_ids(&self) -> &[u32] {
        &self.stops
    }

    /// Number of tokens; ids are smaller.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The name of a token as the vocabulary spells it, such as `<|im_end|>` or
    /// `Ġthe`.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocab.name(id)
    }

    /// The bytes that a token adds to the text: none for control tokens.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocab.bytes(id)
    }

    /// Whether a token is structure (a turn boundary, an end) and not text.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.kind(id) == Some(Kind::Control)
    }

    /// The text of `ids`. Control tokens give nothing, user-defined tokens their
    /// text. Invalid bytes give U+FFFD; an unfinished character at the end is
    /// left out, which a [`stream`](Self::stream) reports. For valid text this
    /// inverts [`encode`](Self::encode) without control tokens, but for what the
    /// model itself cannot tell apart: SentencePiece reads `▁` as a space, and
    /// Qwen's tokenizer composes characters (NFC).
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut stream = self.stream();
        ids.iter().map(|&id| stream.push(id)).collect()
    }

    /// Decodes token by token.
    pub fn stream(&self) -> TextStream {
        TextStream::new(Arc::clone(&self.vocab))
    }
}
