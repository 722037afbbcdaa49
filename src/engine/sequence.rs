//! [`Sequence`]: one completion on its way, its tokens, its blocks and who waits for it.

use std::time::Instant;

use tokio::sync::{mpsc, oneshot};
use weaklink_models::text::TextStream;

use super::block_pool::Seal;
use super::grammar::{GrammarState, Stuck};
use super::score::{Scoring, token_logprob};
use super::{draft, sampler};
use crate::generate::{Completion, Finish, GenerateError, Sampling, TokenLogprob};

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
    /// How many of the likeliest tokens to report with each drawn one; `None` reports nothing.
    pub logprobs: Option<usize>,
    /// What the text must follow, and how far it is.
    pub grammar: Option<GrammarState>,
}

/// What a caller waits for. Dropping the other end cancels the sequence.
pub enum Reply {
    /// Tokens to be drawn.
    Completion(oneshot::Sender<Result<Completion, GenerateError>>),
    /// Given tokens to be scored; nothing is drawn.
    Score(Scoring),
}

/// Where results go.
pub struct Caller {
    /// Takes the result.
    pub reply: Reply,
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
    /// Tokens guessed to come next, computed in the step that is planned.
    pub draft: Vec<u32>,
    /// Tokens that the next draft may have.
    reach: usize,
    drafted: usize,
    accepted: usize,
    prompt_len: usize,
    cached: Option<usize>,
    task: Task,
    caller: Caller,
    text: Output,
    logprobs: Vec<TokenLogprob>,
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
            draft: Vec::new(),
            reach: draft::FIRST,
            drafted: 0,
            accepted: 0,
            cached: None,
            task,
            caller,
            text: Output { decoder: stream, text: String::new(), sent: 0, hold: longest_stop.saturating_sub(1) },
            logprobs: Vec::new(),
            submitted: Instant::now(),
        }
    }

    /// Tokens whose K/V is still to be computed.
    pub fn work(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether nobody waits for the result any more.
    pub fn abandoned(&self) -> bool {
        match &self.caller.reply {
            Reply::Completion(reply) => reply.is_closed(),
            Reply::Score(scoring) => scoring.reply.is_closed(),
        }
    }

    /// Tokens at the beginning whose K/V may come from the cache: of a text that is scored, rows that are
    /// still to give a score must be computed.
    pub fn findable(&self) -> &[u32] {
        match &self.caller.reply {
            Reply::Completion(_) => &self.tokens,
            Reply::Score(scoring) => &self.tokens[..scoring.first_row() + 1],
        }
    }

    /// At most how many of the next `len` tokens may be computed where `rows` rows of logits are left for scoring.
    pub fn affordable(&self, len: usize, rows: usize) -> usize {
        match &self.caller.reply {
            Reply::Completion(_) => len,
            Reply::Score(scoring) => len.min(scoring.first_row() - self.computed + rows),
        }
    }

    /// Of the next `len` tokens, how many at their end must give logits.
    pub fn wanted_rows(&self, len: usize) -> usize {
        match &self.caller.reply {
            Reply::Completion(_) => usize::from(len == self.work()),
            Reply::Score(scoring) => (self.computed + len).saturating_sub(scoring.first_row()),
        }
    }

    /// Whether its logits are to be scored, all of them, and nothing drawn.
    pub fn is_scored(&self) -> bool {
        matches!(self.caller.reply, Reply::Score(_))
    }

    /// Of the next `len` tokens, how many are scored.
    pub fn scored_rows(&self, len: usize) -> usize {
        if self.is_scored() { self.wanted_rows(len) } else { 0 }
    }

    /// Root of its draws.
    #[cfg(test)]
    pub fn seed(&self) -> u64 {
        self.task.seed
    }

    /// Notes how much of the prompt was found in the cache; the first admission counts.
    pub fn note_cached(&mut self, tokens: usize) {
        self.cached.get_or_insert(tokens.min(self.prompt_len));
    }

    /// Guesses the tokens that come after the known ones, at most `room`; returns how many. What is
    /// drawn with them computed never goes beyond the token limit.
    pub fn propose(&mut self, room: usize) -> usize {
        let generated = self.tokens.len() - self.prompt_len;
        let room = room.min(self.reach).min(self.task.max_tokens - generated - 1);
        self.draft = draft::continuation(&self.tokens, room);
        self.draft.len()
    }

    /// Tokens that were guessed, and how many of them were drawn.
    pub fn drafts(&self) -> (usize, usize) {
        (self.drafted, self.accepted)
    }

    /// Takes in the rows of logits of a step: scores them, or draws from them. `Some` if the sequence ends.
    pub fn advance(&mut self, rows: &[Vec<f32>], stop_ids: &[u32]) -> Result<Option<Finish>, GenerateError> {
        match &mut self.caller.reply {
            Reply::Score(scoring) => {
                let read = scoring.read(rows)?;
                Ok(scoring.add(read).then_some(Finish::Stop))
            }
            Reply::Completion(_) => self.draw(rows, stop_ids),
        }
    }

    /// Draws from the logits after the last known token and after each drafted one, for as long as
    /// the draws are the drafted tokens: just the draws that steps of one token would make.
    fn draw(&mut self, rows: &[Vec<f32>], stop_ids: &[u32]) -> Result<Option<Finish>, GenerateError> {
        let draft = std::mem::take(&mut self.draft);
        let accepted = self.accepted;
        self.drafted += draft.len();
        for (logits, drafted) in rows.iter().zip(draft.iter().map(Some).chain([None])) {
            let index = self.tokens.len() - self.prompt_len;
            let id = self.choose(logits, index)?;
            if let Some(top) = self.task.logprobs {
                self.logprobs.push(token_logprob(logits, Some(id), top, index)?);
            }
            let finish = self.push(id, stop_ids);
            if drafted == Some(&id) {
                self.accepted += 1;
            }
            if finish.is_some() {
                return Ok(finish);
            }
            if drafted != Some(&id) {
                break;
            }
            self.computed += 1;
        }
        if !draft.is_empty() {
            self.reach = draft::next_reach(self.reach, draft.len(), self.accepted - accepted);
        }
        Ok(None)
    }

    /// Draws output token `index`, among those that the grammar allows if there is one.
    fn choose(&mut self, logits: &[f32], index: usize) -> Result<u32, GenerateError> {
        let Task { sampling, seed, grammar, .. } = &mut self.task;
        let Some(grammar) = grammar else { return sampler::draw(logits, sampling, *seed, index) };
        let allowed = grammar.allowed().map_err(|stuck| match stuck {
            Stuck::DeadEnd => GenerateError::GrammarDeadEnd { index },
            Stuck::GaveUp(what) => GenerateError::GrammarTooHard { index, what: what.clone() },
        })?;
        let mut masked = logits.to_vec();
        allowed.forbid_others(&mut masked);
        sampler::draw(&masked, sampling, *seed, index)
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

    /// Answers the caller with what was generated, or scored.
    pub fn finish(mut self, finish: Finish, stop_ids: &[u32]) {
        let reply = match self.caller.reply {
            Reply::Completion(reply) => reply,
            Reply::Score(scoring) => return scoring.finish(self.cached.unwrap_or(0)),
        };
        let generated = &self.tokens[self.prompt_len..];
        let cut_in_char = self.text.decoder.finish();
        self.text.send(&self.caller.stream, true);
        let ended_by_token = generated.last().is_some_and(|id| stop_ids.contains(id));
        let kept = generated.len() - usize::from(finish == Finish::Stop && ended_by_token);
        self.logprobs.truncate(kept);
        let completion = Completion {
            text: self.text.text,
            token_ids: generated[..kept].to_vec(),
            finish,
            cut_in_char,
            logprobs: self.task.logprobs.map(|_| self.logprobs),
            prompt_tokens: self.prompt_len,
            cached_tokens: self.cached.unwrap_or(0),
            generated_tokens: generated.len(),
            drafted_tokens: self.drafted,
            accepted_tokens: self.accepted,
            seconds: self.submitted.elapsed().as_secs_f64(),
        };
        // The caller may have gone: then there is nobody to tell.
        let _ = reply.send(Ok(completion));
    }

    /// Answers the caller with an error.
    pub fn fail(self, error: GenerateError) {
        match self.caller.reply {
            Reply::Completion(reply) => drop(reply.send(Err(error))),
            Reply::Score(scoring) => drop(scoring.reply.send(Err(error))),
        }
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
