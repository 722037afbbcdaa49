//! Scoring: log-probabilities of tokens that are given, nothing drawn.
//!
//! A text that is scored is a [`Sequence`] like any other: it shares steps, blocks and prefixes. Its logits
//! are reduced to one number a token in the step that computes them.

use rayon::prelude::*;
use tokio::sync::oneshot;

use super::EngineHandle;
use super::sequence::{Caller, Reply, Sequence, Task};
use crate::generate::{GenerateError, Prompt, Sampling, TokenLogprob};

/// Rows of logits that scoring may ask of one step, all texts together: a row is as long as the vocabulary.
pub(super) const ROWS_A_STEP: usize = 64;

/// Log-probabilities (natural logarithm) of one text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextScore {
    /// Of each given id, given those before it.
    pub logprobs: Vec<f64>,
    /// The likeliest ids after the last, likeliest first (lowest id first on ties), as many as were asked for.
    pub next: Vec<(u32, f64)>,
    /// Tokens whose keys and values were found in the cache.
    pub cached_tokens: usize,
}

impl EngineHandle {
    /// Log-probability (natural logarithm) of each id of `continuation`, given the prompt and the ids before it.
    ///
    /// The values have the same bits whatever else is computed, and whether or not the prompt is in the cache.
    /// Dropping the future cancels it.
    ///
    /// # Errors
    /// When the prompt is empty, an id is not in the vocabulary, or the text does not fit the context.
    pub async fn score(&self, prompt: &Prompt, continuation: &[u32]) -> Result<Vec<f64>, GenerateError> {
        Ok(self.score_after(self.prompt_ids(prompt)?, continuation, 0).await?.logprobs)
    }

    /// Log-probability of each id of a text after the first, given those before it, and the `next` likeliest
    /// ids after the last.
    ///
    /// # Errors
    /// When the text is empty, an id is not in the vocabulary, or the text does not fit the context.
    pub async fn score_text(&self, ids: &[u32], next: usize) -> Result<TextScore, GenerateError> {
        let (first, rest) = ids.split_at(ids.len().min(1));
        self.score_after(first.to_vec(), rest, next).await
    }

    /// The same for a continuation of `tokens`, which are not scored themselves.
    ///
    /// # Errors
    /// As [`score_text`](Self::score_text).
    pub async fn score_after(
        &self,
        mut tokens: Vec<u32>,
        continuation: &[u32],
        next: usize,
    ) -> Result<TextScore, GenerateError> {
        if tokens.is_empty() {
            return Err(GenerateError::Invalid { what: "0 tokens; scoring needs one to begin with".into() });
        }
        let given = tokens.len();
        tokens.extend_from_slice(continuation);
        self.check_ids(&tokens)?;
        if next == 0 {
            // What follows the last token is not wanted, so it need not be computed.
            tokens.pop();
        }
        if tokens.len() > self.context {
            let (tokens, context) = (tokens.len(), self.context);
            return Err(GenerateError::Invalid { what: format!("{tokens} tokens; the context holds 1 to {context}") });
        }
        if tokens.len() < given {
            return Ok(TextScore::default());
        }
        let (reply, answer) = oneshot::channel();
        let scoring = Scoring { reply, given, targets: continuation.to_vec(), next, score: TextScore::default() };
        let task = Task {
            prompt: tokens,
            max_tokens: 0,
            sampling: Sampling::GREEDY,
            seed: 0,
            stop: Vec::new(),
            logprobs: None,
            grammar: None,
        };
        let caller = Caller { reply: Reply::Score(scoring), stream: None };
        self.send(Sequence::new(task, caller, self.text.stream()))?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }
}

/// A text on its way to its score, and who waits for it.
pub struct Scoring {
    pub(super) reply: oneshot::Sender<Result<TextScore, GenerateError>>,
    /// Tokens that are not scored.
    given: usize,
    /// Those that are.
    targets: Vec<u32>,
    next: usize,
    score: TextScore,
}

impl Scoring {
    /// The position of the first row whose logits are still wanted. Rows before it may come from the cache.
    pub(super) fn first_row(&self) -> usize {
        self.given - 1 + self.score.logprobs.len()
    }

    /// Reduces the next rows of logits; all of one step.
    pub(super) fn read(&self, rows: &[Vec<f32>]) -> Result<Vec<TokenLogprob>, GenerateError> {
        let done = self.score.logprobs.len();
        let of_row = |(row, logits): (usize, &Vec<f32>)| match self.targets.get(done + row) {
            Some(&id) => token_logprob(logits, Some(id), 0, done + row),
            None => token_logprob(logits, None, self.next, done + row),
        };
        rows.par_iter().enumerate().map(of_row).collect()
    }

    /// Takes in what was read; true when nothing is left to be computed.
    pub(super) fn add(&mut self, read: Vec<TokenLogprob>) -> bool {
        for token in read {
            if self.score.logprobs.len() < self.targets.len() {
                self.score.logprobs.push(token.logprob);
            } else {
                self.score.next = token.top;
            }
        }
        self.score.logprobs.len() == self.targets.len() && (self.next == 0 || !self.score.next.is_empty())
    }

    /// Answers the caller.
    pub(super) fn finish(mut self, cached_tokens: usize) {
        self.score.cached_tokens = cached_tokens;
        // The caller may have gone: then there is nobody to tell.
        let _ = self.reply.send(Ok(self.score));
    }
}

/// Log-probability of one token and the `top` likeliest ones, from the model's logits as they are: before
/// temperature, filters and masks. Without a token, its log-probability is 0.
///
/// # Errors
/// When the logits hold a NaN or +∞; `index` names the place.
pub(super) fn token_logprob(
    logits: &[f32],
    id: Option<u32>,
    top: usize,
    index: usize,
) -> Result<TokenLogprob, GenerateError> {
    let log_sum = log_sum_exp(logits);
    if !log_sum.is_finite() {
        return Err(GenerateError::NotANumber { index });
    }
    let logprob = |id: u32| f64::from(logits[id as usize]) - log_sum;
    let top = likeliest(logits, top).into_iter().map(|id| (id, logprob(id))).collect();
    Ok(TokenLogprob { id: id.unwrap_or(0), logprob: id.map_or(0.0, logprob), top })
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().fold(f64::NEG_INFINITY, |m, &l| m.max(f64::from(l)));
    max + logits.iter().map(|&l| (f64::from(l) - max).exp()).sum::<f64>().ln()
}

/// The ids of the `count` largest logits, largest first, lowest id first on ties.
fn likeliest(logits: &[f32], count: usize) -> Vec<u32> {
    if count == 0 {
        return Vec::new();
    }
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if ids.len() > count {
        ids.select_nth_unstable_by(count - 1, order);
        ids.truncate(count);
    }
    ids.sort_by(order);
    ids
}
