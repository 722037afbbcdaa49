//! What can be wrong with a tokenizer or a chat template, in one line.

use std::path::{Path, PathBuf};

use crate::gguf::GgufError;

/// A tokenizer or template that cannot be used, or a text that it cannot take.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The metadata of the GGUF file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Anything else, with the file or folder the tokenizer came from.
    #[error("{}: {problem}", path.display())]
    Text {
        /// File or folder of the tokenizer.
        path: PathBuf,
        /// What is wrong.
        problem: TextProblem,
    },
}

impl TextError {
    pub(super) fn new(path: &Path, problem: TextProblem) -> Self {
        Self::Text { path: path.to_owned(), problem }
    }
}

/// What is wrong with a tokenizer, a template or a text.
#[derive(Debug, thiserror::Error)]
pub enum TextProblem {
    /// A file that cannot be read or parsed.
    #[error("{file}: {message}")]
    File {
        /// Name inside the folder.
        file: String,
        /// The reader's message.
        message: String,
    },
    /// A tokenizer model other than byte-level BPE and SentencePiece BPE.
    #[error("tokenizer model {name:?} is not supported; supported: {supported}; a folder with tokenizer.json may do")]
    Model {
        /// The name found.
        name: String,
        /// The names supported.
        supported: &'static str,
    },
    /// No pre-tokenizer is named.
    #[error(
        "tokenizer.ggml.pre is missing: how text is split before merging is unknown, and a guess gives other tokens; use a newer file of the model, one that names one of {known}"
    )]
    PreMissing {
        /// The names known.
        known: String,
    },
    /// A pre-tokenizer that is not known.
    #[error(
        "pre-tokenizer {name:?} (tokenizer.ggml.pre) is not known; known: {known}; a folder with tokenizer.json may do"
    )]
    PreUnknown {
        /// The name found.
        name: String,
        /// The names known.
        known: String,
    },
    /// Two arrays that belong together differ in length.
    #[error("{key} has {found} entries, tokenizer.ggml.tokens has {expected}")]
    Length {
        /// The array.
        key: &'static str,
        /// Its length.
        found: usize,
        /// The number of tokens.
        expected: usize,
    },
    /// An end token that the model is said to have.
    #[error("no control token {name:?}, which the model's card names as an end; card and file do not belong together")]
    NoStop {
        /// Its name.
        name: String,
    },
    /// A vocabulary without tokens or with more than any known one.
    #[error("the vocabulary has {found} tokens, 1 to {limit} are accepted")]
    Size {
        /// The number of tokens.
        found: usize,
        /// The most accepted.
        limit: usize,
    },
    /// Two ids for one token.
    #[error("token {token:?} has two ids, {first} and {second}")]
    Duplicate {
        /// The token.
        token: String,
        /// Its first id.
        first: u32,
        /// Its second id.
        second: u32,
    },
    /// A token type that the format does not define.
    #[error("token {id} has type {found}, types 0 to 6 are defined")]
    TokenType {
        /// The token.
        id: usize,
        /// The type found.
        found: i32,
    },
    /// A score that orders nothing.
    #[error("token {id} has the score {found}, which is not a finite number")]
    Score {
        /// The token.
        id: usize,
        /// The score found.
        found: f32,
    },
    /// A merge that is no pair of tokens.
    #[error("merge {index} ({merge:?}) {reason}")]
    Merge {
        /// Its place in the list.
        index: usize,
        /// The merge as stored.
        merge: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A special token's id beyond the vocabulary.
    #[error("{key} is {id}, but the vocabulary has {size} tokens")]
    Id {
        /// Where the id is stored.
        key: String,
        /// The id.
        id: u64,
        /// The number of tokens.
        size: usize,
    },
    /// A special token that is not in the vocabulary.
    #[error("{key} names the token {token:?}, which the vocabulary lacks")]
    Token {
        /// Where the token is named.
        key: &'static str,
        /// The token.
        token: String,
    },
    /// A BOS token is asked for and not named.
    #[error("a BOS token is asked for ({0}), but none is named")]
    NoBos(&'static str),
    /// A part of tokenizer.json that is not understood.
    #[error("tokenizer.json: {0}")]
    Unsupported(String),
    /// A character without a token.
    #[error("the vocabulary has no token for a part of the text {0:?}")]
    Inexpressible(String),
    /// An error of the tokenizer library.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// There is no chat template.
    #[error("there is no chat template: give the prompt as text or token ids")]
    NoTemplate,
    /// The template does not parse, runs away or refuses the messages.
    #[error("chat template: {0}")]
    Template(String),
    /// The template does not show every message once and whole.
    #[error(
        "chat template: it does not show message {index} ({role}) once and whole, but drops, doubles or takes apart what it says"
    )]
    ContentLost {
        /// The message, counted from 0 after folding.
        index: usize,
        /// Its role.
        role: String,
    },
    /// A role that could be mistaken for template text.
    #[error("role {0:?} is not a word of ASCII letters, digits, '_' and '-'")]
    Role(String),
    /// Nothing to render.
    #[error("there are no messages")]
    NoMessages,
}

/// Puts a message of another library on one line.
pub(super) fn one_line(error: &dyn std::fmt::Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
