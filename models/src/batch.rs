//! [`Batch`]: the ragged work of one step, prefill pieces and decode tokens of different sequences side by side.

use crate::error::ModelError;
use crate::kv::KvCache;

/// One sequence's part of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanOf {
    /// First row of this sequence in the batch.
    pub query_start: usize,
    /// Rows of this sequence.
    pub query_len: usize,
    /// Tokens of the sequence after this step: rows sit at positions `context_len - query_len ..`.
    pub context_len: usize,
    /// Start of its block table in [`Batch::block_tables`].
    pub table_start: usize,
    /// Blocks in its table; they hold at least `context_len` tokens.
    pub table_len: usize,
}

/// Flat arrays, one entry a row (token), and one span a sequence.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Position of each token in its sequence.
    pub positions: Vec<u32>,
    /// Cache slot (block · block size + offset) that each token's K/V is written to.
    pub slots: Vec<u32>,
    /// The sequences.
    pub spans: Vec<SpanOf>,
    /// All block tables, one after the other.
    pub block_tables: Vec<u32>,
    /// Rows whose logits are wanted, in the order they come back.
    pub logit_rows: Vec<u32>,
}

impl Batch {
    /// Adds the next `tokens` of a sequence that has `computed` tokens in the cache already.
    /// `blocks` is its whole block table; `logits` says for which of the new tokens they are wanted.
    pub fn push(&mut self, tokens: &[u32], computed: usize, blocks: &[u32], block_size: usize, logits: Logits) {
        let start = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        for position in computed..computed + tokens.len() {
            self.positions.push(position as u32);
            self.slots.push(blocks[position / block_size] * block_size as u32 + (position % block_size) as u32);
        }
        self.spans.push(SpanOf {
            query_start: start,
            query_len: tokens.len(),
            context_len: computed + tokens.len(),
            table_start: self.block_tables.len(),
            table_len: blocks.len(),
        });
        self.block_tables.extend_from_slice(blocks);
        let end = start + tokens.len();
        match logits {
            Logits::None => {}
            Logits::Last => self.logit_rows.push(end as u32 - 1),
            Logits::Tail(count) => self.logit_rows.extend((end - count) as u32..end as u32),
            Logits::All => self.logit_rows.extend(start as u32..end as u32),
        }
    }

    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Checks every index against vocabulary and cache, so that the kernels need not.
    pub(crate) fn check(&self, vocab: usize, cache: &KvCache) -> Result<(), ModelError> {
        let bad = |what: String| Err(ModelError::Batch(what));
        if self.positions.len() != self.rows() || self.slots.len() != self.rows() {
            return bad(format!(
                "{} tokens, {} positions, {} slots",
                self.rows(),
                self.positions.len(),
                self.slots.len()
            ));
        }
        if let Some(&id) = self.tokens.iter().find(|&&id| id as usize >= vocab) {
            return bad(format!("token id {id} in a vocabulary of {vocab}"));
        }
        if let Some(&slot) = self.slots.iter().find(|&&slot| slot as usize >= cache.blocks() * cache.block_size()) {
            return bad(format!("slot {slot} in a cache of {} blocks of {}", cache.blocks(), cache.block_size()));
        }
        if let Some(&block) = self.block_tables.iter().find(|&&block| block as usize >= cache.blocks()) {
            return bad(format!("block {block} in a cache of {} blocks", cache.blocks()));
        }
        if let Some(&row) = self.logit_rows.iter().find(|&&row| row as usize >= self.rows()) {
            return bad(format!("logits of row {row} in a batch of {}", self.rows()));
        }
        let mut next = 0;
        for span in &self.spans {
            let holds = span.table_len * cache.block_size();
            if span.query_start != next || span.query_len == 0 || span.query_len > span.context_len {
                return bad(format!("spans do not follow each other: {span:?} where row {next} is next"));
            }
            if span.context_len > holds || span.table_start + span.table_len > self.block_tables.len() {
                return bad(format!("a context of {} tokens in blocks for {holds}", span.context_len));
            }
            next += span.query_len;
        }
        if next != self.rows() {
            return bad(format!("spans cover {next} of {} rows", self.rows()));
        }
        Ok(())
    }
}

/// For which of the pushed tokens logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// None: more of the prompt is to come.
    None,
    /// The last one, to draw the next token.
    Last,
    /// All, to score a given text.
    All,
    /// So many at the end, at most all.
    Tail(usize),
}
