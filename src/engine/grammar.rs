//! Constrained decoding: which tokens may come next, so that the text follows a [`Grammar`].
//!
//! The mask is made first and the draw is made once, among the allowed tokens alone. A state depends on the grammar
//! and the output tokens and on nothing else: not on other sequences, and it outlives a preemption as it is. Parsing
//! is the `llguidance` crate's; this module hands it the tokens, bounds it, and names what can go wrong.

mod vocabulary;

use std::panic::AssertUnwindSafe;

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::SimpleVob;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use vocabulary::Vocabulary;

/// What the text of a completion must follow, from its first byte to its last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grammar {
    /// JSON that this schema describes, properties in the schema's order, on one line: a space may stand after each
    /// comma and colon, and no other white space anywhere. An `x-guidance` object in the schema overrides that.
    JsonSchema(Value),
    /// Text that this regular expression matches as a whole. The syntax is that of the regex crate, without
    /// look-around.
    Regex(String),
    /// Text that this grammar derives from its rule `start`, in llguidance's dialect of Lark.
    Lark(String),
}

/// Why a text cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// No token of the vocabulary continues the text, and it is not complete.
    DeadEnd,
    /// The parser met one of its limits; what it said.
    GaveUp(String),
}

/// The tokens that are allowed at one place.
#[derive(Clone, Debug)]
pub struct TokenSet(SimpleVob);

impl TokenSet {
    /// Whether `id` is in the set; ids beyond the vocabulary are not.
    pub fn contains(&self, id: u32) -> bool {
        (id as usize) < self.0.len() && self.0.is_allowed(id)
    }

    /// Sets the logits of all other tokens to −∞. Those that are no numbers stay, for the draw to refuse.
    pub fn forbid_others(&self, logits: &mut [f32]) {
        let words = self.0.as_slice().iter().copied().chain(std::iter::repeat(0));
        for (mut word, logits) in words.zip(logits.chunks_mut(u32::BITS as usize)) {
            for logit in logits {
                // NaN is not less than anything.
                if word & 1 == 0 && *logit < f32::INFINITY {
                    *logit = f32::NEG_INFINITY;
                }
                word >>= 1;
            }
        }
    }
}

/// How far a text is in its grammar. Made by [`Vocabulary::compile`].
///
/// A clone goes on by itself: it shares nothing that changes, so tokens can be tried on it and thrown away.
pub struct GrammarState {
    parser: TokenParser,
    /// What may come next, once it was asked for.
    next: Option<Result<TokenSet, Stuck>>,
}

impl Clone for GrammarState {
    fn clone(&self) -> Self {
        // A plain clone of the parser shares the states that its lexer finds on the way, and with them the limit on
        // their number: one sequence could then fail because of another.
        Self { parser: self.parser.deep_clone(), next: self.next.clone() }
    }
}

impl GrammarState {
    fn new(mut parser: TokenParser) -> Self {
        parser.start_without_prompt();
        Self { parser, next: None }
    }

    /// Finds the tokens that may come next, unless they are known already.
    pub fn prepare(&mut self) {
        if self.next.is_none() {
            let parser = &mut self.parser;
            let mask = catch_unwind(AssertUnwindSafe(|| parser.compute_mask()));
            self.next = Some(mask.map(TokenSet).map_err(|error| self.stuck(&error)));
        }
    }

    /// What [`prepare`](Self::prepare) found; `None` before it.
    pub fn prepared(&self) -> Option<Result<&TokenSet, &Stuck>> {
        self.next.as_ref().map(Result::as_ref)
    }

    /// The tokens that may come next. End tokens are among them where the text is complete. Never empty.
    ///
    /// # Errors
    /// When there is none, or the parser gave up, now or in an [`advance`](Self::advance).
    pub fn allowed(&mut self) -> Result<&TokenSet, &Stuck> {
        self.prepare();
        self.prepared().expect("just prepared")
    }

    /// Takes in a token that was allowed and is no end token. True when the text is complete and nothing can follow
    /// it; nothing may be asked of the state after that.
    pub fn advance(&mut self, id: u32) -> bool {
        self.next = None;
        let parser = &mut self.parser;
        let ended = catch_unwind(AssertUnwindSafe(|| {
            parser.consume_token(id)?;
            parser.check_stop()
        }));
        ended.unwrap_or_else(|error| {
            self.next = Some(Err(self.stuck(&error)));
            false
        })
    }

    fn stuck(&self, error: &anyhow::Error) -> Stuck {
        match self.parser.stop_reason() {
            StopReason::NoExtensionBias => Stuck::DeadEnd,
            _ => Stuck::GaveUp(one_line(error)),
        }
    }
}

/// An error and its causes without the excerpts, states and backtraces that follow their first lines.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(|cause| brief(&cause.to_string())) {
        if !line.contains(&cause) {
            line += if line.is_empty() { "" } else { ": " };
            line += &cause;
        }
    }
    line
}

/// Characters of a message that are kept: it may quote a grammar.
const MAX_QUOTE: usize = 200;

/// The first line of a message. Where an expression is drawn with a mark below it, and the reason below that, they
/// are put into words.
fn brief(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default().trim();
    let mut line: String = first.chars().take(MAX_QUOTE).collect();
    if line.len() < first.len() {
        line.push('…');
    }
    if let Some(reason) = message.lines().find_map(|line| line.strip_prefix("error: ")) {
        line += &format!(" {reason}");
        let mark = message.lines().find(|line| line.contains('^') && line.trim_matches([' ', '^']).is_empty());
        // The drawing is indented by four.
        if let Some(column) = mark.and_then(|mark| mark.find('^')?.checked_sub(3)) {
            line += &format!(" at character {column}");
        }
    }
    line
}

#[cfg(test)]
mod tests;
