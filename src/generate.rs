//! What a study sees of a language model: a [`Request`] goes in, a
//! [`Completion`] or a typed [`GenerateError`] comes out.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::engine::EngineHandle;

pub use crate::engine::grammar::Grammar;

/// Who speaks in a chat message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions that stand before the conversation.
    System,
    /// The one who asks.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The name that chat templates use.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// One message of a conversation. The content is text, never markup: control
/// tokens spelled out in it stay text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of `role` saying `content`.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

/// What the model is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// A conversation, rendered by the model's chat template.
    Messages(Vec<Message>),
    /// Token ids, taken as they are.
    Tokens(Vec<u32>),
}

/// How the next token is drawn. The order is fixed: temperature, then top-k,
/// then top-p, then the draw; temperature 0 is the arg max (lowest id on ties).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// Keep the k likeliest tokens; `None` keeps all.
    pub top_k: Option<usize>,
    /// Keep the likeliest tokens whose probabilities add up to this; `None` keeps all.
    pub top_p: Option<f32>,
}

impl Sampling {
    /// Always the likeliest token.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: None, top_p: None };
}

/// One completion to make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// What the model is given.
    pub prompt: Prompt,
    /// At most this many tokens are generated.
    pub max_tokens: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Generation ends before the first of these strings.
    pub stop: Vec<String>,
    /// What the text must follow: other tokens are taken away before temperature and filters see them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grammar: Option<Grammar>,
    /// Root of every draw: the draw of output token `i` depends on (seed, i) alone.
    pub seed: u64,
    /// Report the log-probability of every drawn token, and of so many of the likeliest; `None` reports nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<usize>,
}

impl Request {
    /// A request for the likeliest tokens: greedy, no stop strings, seed 0, nothing reported.
    pub fn new(prompt: Prompt, max_tokens: usize) -> Self {
        Self {
            prompt,
            max_tokens,
            sampling: Sampling::GREEDY,
            stop: Vec::new(),
            seed: 0,
            logprobs: None,
            grammar: None,
        }
    }
}

/// What the model thought of one token: natural logarithms of probabilities, from its logits as they are,
/// before temperature and filters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token that was drawn.
    pub id: u32,
    /// Its log-probability.
    pub logprob: f64,
    /// The likeliest tokens in its place, likeliest first.
    pub top: Vec<(u32, f64)>,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model ended it, or a stop string was met.
    Stop,
    /// The token limit was reached: the text is cut.
    Length,
    /// The grammar is complete and allows nothing more.
    GrammarEnd,
}

/// What the model answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The text, without end tokens and stop strings; always valid UTF-8.
    pub text: String,
    /// Generated ids, the end token not included.
    pub token_ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// The limit fell inside a character, whose bytes are left out of `text`.
    pub cut_in_char: bool,
    /// One entry for each of `token_ids`, where the request asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens whose keys and values were found in the cache.
    pub cached_tokens: usize,
    /// Tokens drawn (the end token included).
    pub generated_tokens: usize,
    /// Tokens that were guessed ahead of being drawn (see [`crate::engine::draft`]).
    #[serde(default)]
    pub drafted_tokens: usize,
    /// Of these, tokens that were then drawn: each saved a step.
    #[serde(default)]
    pub accepted_tokens: usize,
    /// Wall time from submission to the last token, in seconds.
    pub seconds: f64,
}

/// Why there is no completion. None of these is a wrong answer: each is an
/// outcome with a count of its own.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum GenerateError {
    /// Prompt and room for the answer exceed the context.
    #[error(
        "the prompt has {prompt} tokens and the answer may have {max_tokens}, but the context holds {context}: shorten the prompt or lower --max-tokens"
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// The token limit of the answer.
        max_tokens: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// The request itself is unusable.
    #[error("bad request: {what}")]
    Invalid {
        /// What is wrong with it.
        what: String,
    },
    /// The model produced a logit that is not a number.
    #[error("the model's logits at output token {index} are not numbers")]
    NotANumber {
        /// Index of the output token.
        index: usize,
    },
    /// The grammar is not complete, and no token of the vocabulary continues the text.
    #[error("grammar dead end: no token continues the text at output token {index}")]
    GrammarDeadEnd {
        /// Index of the output token.
        index: usize,
    },
    /// Following the grammar took more than the limits allow.
    #[error("the grammar is too hard to follow at output token {index}: {what}")]
    GrammarTooHard {
        /// Index of the output token.
        index: usize,
        /// Which limit.
        what: String,
    },
    /// The model, or a filter before or behind it, declined to answer.
    #[error("refused: {what}")]
    Refused {
        /// What it said instead.
        what: String,
    },
    /// An answer without text, such as one of hidden reasoning alone.
    #[error("an answer without text: {what}")]
    Empty {
        /// What there was in place of text.
        what: String,
    },
    /// The backend answered with an error, or is gone.
    #[error("backend: {what}")]
    Backend {
        /// What it said.
        what: String,
    },
}

impl GenerateError {
    /// The kind of [`GenerateError::Backend`], the one that may not come again.
    pub const BACKEND: &str = "backend";

    /// The name under which the outcome is stored and counted.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::TooLong { .. } => "too_long",
            Self::Invalid { .. } => "invalid",
            Self::NotANumber { .. } => "not_a_number",
            Self::GrammarDeadEnd { .. } => "grammar_dead_end",
            Self::GrammarTooHard { .. } => "grammar_too_hard",
            Self::Refused { .. } => "refused",
            Self::Empty { .. } => "empty",
            Self::Backend { .. } => Self::BACKEND,
        }
    }
}

/// A program that answers instead of a model.
pub type Program = dyn Fn(&Request) -> Result<Completion, GenerateError> + Send + Sync;

/// Where completions come from.
#[derive(Clone)]
pub enum Backend {
    /// The engine in this process.
    Local(EngineHandle),
    /// A deterministic function in place of a model: controls and tests.
    Program(Arc<Program>),
}

impl Backend {
    /// Makes one completion. Dropping the future cancels it.
    pub async fn generate(&self, request: Request) -> Result<Completion, GenerateError> {
        match self {
            Backend::Local(engine) => engine.generate(request).await,
            Backend::Program(program) => program(&request),
        }
    }
}
