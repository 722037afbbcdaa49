//! [`Sequence`]: one completion on its way, its tokens, its blocks and who waits for it.

use std::time::Instant;

use tokio::sync::{mpsc, oneshot};
use weaklink_models::text::TextStream;

use super::block_pool::Seal;
use super::grammar::{GrammarState, Stuck};
use crate::generate::{Completion, Finish, GenerateError, Sampling};

/// What is fixed when a sequence is submitted.
pub struct Task {
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// At most this many tokens are generated.
    pub max_tokens: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Root of the draws.
    pub seed: u64,
    /// Strings that end the text.
    pub stop: Vec<String>,
    /// What the text must follow, and how far it is.
    pub grammar: Option<GrammarState>,
}

/// Where results go. Dropping the other end cancels the sequence.
pub struct Caller {
    /// Takes the result.
    pub reply: oneshot::Sender<Result<Completion, GenerateError>>,
    /// Takes text as it grows, for whoever wants to watch.
    pub stream: Option<mpsc::UnboundedSender<String>>,
}

/// One completion on its way. Work left is `tokens.len() - computed`; a decode step is
/// work of one. Nothing else tells prefill from decode.
pub struct Sequence {
    /// Prompt, then generated tokens.
    pub tokens: Vec<u32>,
    /// Tokens whose K/V is in the cache.
    pub computed: usize,
    /// The block table.
    pub blocks: Vec<u32>,
    /// Blocks at the table's start that are sealed, and the seal of the last.
    pub sealed: (usize, Seal),
    prompt_len: usize,
    cached: Option<usize>,
    task: Task,
    caller: Caller,
    text: Output,
    submitted: Instant,
}

impl Sequence {
    /// A sequence that waits for its first step. `stream` decodes its output.
    pub fn new(mut task: Task, caller: Caller, stream: TextStream) -> Self {
        let tokens = std::mem::take(&mut task.prompt);
        let longest_stop = task.stop.iter().map(String::len).max().unwrap_or(0);
        Self {
            prompt_len: tokens.len(),
            tokens,
            computed: 0,
            blocks: Vec::new(),
            sealed: (0, Seal::ROOT),
            cached: None,
            task,
            caller,
            text: Output { decoder: stream, text: String::new(), sent: 0, hold: longest_stop.saturating_sub(1) },
            submitted: Instant::now(),
        }
    }

    /// Tokens whose K/V is still to be computed.
    pub fn work(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether nobody waits for the result any more.
    pub fn abandoned(&self) -> bool {
        self.caller.reply.is_closed()
    }

    /// Notes how much of the prompt was found in the cache; the first admission counts.
    pub fn note_cached(&mut self, tokens: usize) {
        self.cached.get_or_insert(tokens.min(self.prompt_len));
    }

    /// Finds the tokens that the grammar allows next, if there is one.
    pub fn prepare_mask(&mut self) {
        if let Some(grammar) = &mut self.task.grammar {
            grammar.prepare();
        }
    }

    /// Takes away the tokens that the grammar forbids, so that the draw is among the others.
    pub fn mask(&self, logits: &mut [f32]) -> Result<(), GenerateError> {
        let index = self.tokens.len() - self.prompt_len;
        match self.task.grammar.as_ref().and_then(GrammarState::prepared) {
            None => Ok(()),
            Some(Ok(allowed)) => {
                allowed.forbid_others(logits);
                Ok(())
            }
            Some(Err(Stuck::DeadEnd)) => Err(GenerateError::GrammarDeadEnd { index }),
            Some(Err(Stuck::GaveUp(what))) => Err(GenerateError::GrammarTooHard { index, what: what.clone() }),
        }
    }

    /// Draws the next token from the logits of the last one.
    pub fn draw(&self, logits: &[f32]) -> Result<u32, GenerateError> {
        let index = self.tokens.len() - self.prompt_len;
        super::sampler::draw(logits, &self.task.sampling, self.task.seed, index)
    }

    /// Takes in the token that was drawn; `Some` if the sequence ends with it.
    pub fn push(&mut self, id: u32, stop_ids: &[u32]) -> Option<Finish> {
        self.tokens.push(id);
        if stop_ids.contains(&id) || self.text.push(id, &self.task.stop) {
            return Some(Finish::Stop);
        }
        if self.task.grammar.as_mut().is_some_and(|grammar| grammar.advance(id)) {
            return Some(Finish::GrammarEnd);
        }
        self.text.send(&self.caller.stream, false);
        (self.tokens.len() - self.prompt_len == self.task.max_tokens).then_some(Finish::Length)
    }

    /// Answers the caller with what was generated.
    pub fn finish(mut self, finish: Finish, stop_ids: &[u32]) {
        let generated = &self.tokens[self.prompt_len..];
        let cut_in_char = self.text.decoder.finish();
        self.text.send(&self.caller.stream, true);
        let ended_by_token = generated.last().is_some_and(|id| stop_ids.contains(id));
        let kept = generated.len() - usize::from(finish == Finish::Stop && ended_by_token);
        let completion = Completion {
            text: self.text.text,
            token_ids: generated[..kept].to_vec(),
            finish,
            cut_in_char,
            prompt_tokens: self.prompt_len,
            cached_tokens: self.cached.unwrap_or(0),
            generated_tokens: generated.len(),
            seconds: self.submitted.elapsed().as_secs_f64(),
        };
        // The caller may have gone: then there is nobody to tell.
        let _ = self.caller.reply.send(Ok(completion));
    }

    /// Answers the caller with an error.
    pub fn fail(self, error: GenerateError) {
        let _ = self.caller.reply.send(Err(error));
    }
}

/// The text of a sequence so far.
struct Output {
    decoder: TextStream,
    text: String,
    /// Bytes of `text` that were streamed.
    sent: usize,
    /// Bytes held back from streaming, since a stop string may begin in them.
    hold: usize,
}

impl Output {
    /// Adds a token; true if a stop string was met, at which the text is cut.
    fn push(&mut self, id: u32, stop: &[String]) -> bool {
        let before = self.text.len();
        self.text.push_str(&self.decoder.push(id));
        let mut from = before.saturating_sub(self.hold);
        while !self.text.is_char_boundary(from) {
            from -= 1;
        }
        let met = stop.iter().filter_map(|s| self.text[from..].find(s.as_str())).min();
        if let Some(at) = met {
            self.text.truncate(from + at);
        }
        met.is_some()
    }

    fn send(&mut self, stream: &Option<mpsc::UnboundedSender<String>>, all: bool) {
        let Some(stream) = stream else { return };
        let mut to = if all { self.text.len() } else { self.text.len().saturating_sub(self.hold) };
        while !self.text.is_char_boundary(to) {
            to -= 1;
        }
        if to > self.sent {
            // The watcher may have gone; the reply decides whether the sequence goes on.
            let _ = stream.send(self.text[self.sent..to].to_owned());
            self.sent = to;
        }
    }
}
