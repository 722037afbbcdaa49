//! [`Scheduler`]: which sequences are computed in the next step, and how far.

use std::collections::VecDeque;

use weaklink_models::kv::BLOCK_SIZE;

use super::block_pool::{BlockPool, Seal};
use super::score::ROWS_A_STEP;
use super::sequence::Sequence;

/// Part of a step. The pieces of a step belong to the first running sequences, in order, one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// How many of the sequence's tokens that are still to be computed.
    pub len: usize,
    /// Whether its known tokens end with this piece, so that the next one can be drawn.
    pub completes: bool,
    /// Rows of logits, at its end: after its last known token and each drafted one, or those that are scored.
    pub logit_rows: usize,
}

/// Sequences that run, sequences that wait, and the pool both draw on.
///
/// Running sequences stand in the order in which they were submitted, and before all that wait:
/// places are given to the first in the queue or to nobody, so that no sequence is overtaken.
pub struct Scheduler {
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    pool: BlockPool,
    max_running: usize,
    token_budget: usize,
    draft_rows: usize,
}

impl Scheduler {
    /// At most `max_running` sequences share a step of at most `token_budget` tokens. Steps of
    /// fewer than `draft_rows` tokens are filled up to that with drafted ones.
    pub fn new(pool: BlockPool, max_running: usize, token_budget: usize, draft_rows: usize) -> Self {
        assert!(max_running > 0, "somebody must be able to run");
        assert!(token_budget >= max_running, "every running sequence must get a token in a step");
        Self { waiting: VecDeque::new(), running: Vec::new(), pool, max_running, token_budget, draft_rows }
    }

    /// Queues a sequence.
    pub fn submit(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Sequences that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sequences that run, in the order of their pieces.
    pub fn running(&self) -> &[Sequence] {
        &self.running
    }

    /// The same, to be advanced.
    pub fn running_mut(&mut self) -> &mut [Sequence] {
        &mut self.running
    }

    /// Plans a step: first the running sequences in order, then waiting ones while
    /// places, tokens and blocks last. When blocks run out, the youngest running
    /// sequence gives up its own and waits to be computed again, to the same bits.
    pub fn schedule(&mut self) -> Vec<Piece> {
        self.drop_abandoned();
        let mut pieces = Vec::new();
        let mut budget = self.token_budget;
        let mut rows = ROWS_A_STEP;
        let mut preempted = false;
        // Every running sequence gets a piece; those for which nothing is left, an empty one. Only a prompt or a
        // text that is scored can take more than a token, and the older goes first.
        while pieces.len() < self.running.len() {
            let sequence = &mut self.running[pieces.len()];
            let len = sequence.affordable(sequence.work().min(budget), rows);
            if !self.pool.grow(&mut sequence.blocks, sequence.computed + len) {
                self.preempt_youngest();
                preempted = true;
                continue;
            }
            rows -= sequence.scored_rows(len);
            pieces.push(plan(&mut self.pool, sequence, len));
            budget -= len;
        }
        while !preempted && budget > 0 && self.running.len() < self.max_running {
            let Some(len) = self.admit(budget, rows) else { break };
            let sequence = self.running.last_mut().expect("just admitted");
            rows -= sequence.scored_rows(len);
            pieces.push(plan(&mut self.pool, sequence, len));
            budget -= len;
        }
        self.draft(&mut pieces, budget);
        pieces
    }

    /// Moves the first waiting sequence among the running ones, if its blocks can be had,
    /// and returns how many of its tokens are computed in this step.
    fn admit(&mut self, budget: usize, rows: usize) -> Option<usize> {
        let sequence = self.waiting.front_mut()?;
        let (mut blocks, seal) = self.pool.lookup_prefix(sequence.findable());
        let cached = blocks.len() * BLOCK_SIZE;
        // Room for all its known tokens and the next one: to admit it for less would
        // only have it preempted a few steps later.
        let needed = (sequence.tokens.len() + 1).div_ceil(BLOCK_SIZE) - blocks.len();
        sequence.computed = cached;
        let len = sequence.affordable(sequence.work().min(budget), rows);
        if len == 0
            || needed > self.pool.free() && !self.running.is_empty()
            || !self.pool.grow(&mut blocks, cached + len)
        {
            sequence.computed = 0;
            self.pool.release(&mut blocks);
            return None;
        }
        let mut sequence = self.waiting.pop_front().expect("looked at above");
        sequence.sealed = (cached / BLOCK_SIZE, seal);
        sequence.blocks = blocks;
        sequence.note_cached(cached);
        self.running.push(sequence);
        Some(len)
    }

    /// Fills a small step up with drafted tokens, as many for each sequence as for any other
    /// that has so many. They never take another's place: neither its blocks nor its budget.
    fn draft(&mut self, pieces: &mut [Piece], budget: usize) {
        let rows: usize = pieces.iter().map(|piece| piece.len).sum();
        let mut spare = self.draft_rows.saturating_sub(rows).min(budget);
        let drawn = |(piece, sequence): &(&mut Piece, &mut Sequence)| piece.completes && !sequence.is_scored();
        let mut left = pieces.iter_mut().zip(&mut self.running).filter(drawn).count();
        for (piece, sequence) in pieces.iter_mut().zip(&mut self.running).filter(drawn) {
            let drafted = sequence.propose(spare / left);
            if self.pool.grow(&mut sequence.blocks, sequence.tokens.len() + drafted) {
                piece.logit_rows += drafted;
                spare -= drafted;
            } else {
                sequence.draft.clear();
            }
            left -= 1;
        }
    }

    /// Notes that a step's keys and values are in the cache, those of its drafts aside.
    pub fn computed(&mut self, pieces: &[Piece]) {
        for (piece, sequence) in pieces.iter().zip(&mut self.running) {
            sequence.computed += piece.len;
        }
    }

    /// Gives back blocks that hold nothing but drafted tokens that were not drawn.
    pub fn trim(&mut self) {
        for sequence in &mut self.running {
            self.pool.release_after(&mut sequence.blocks, sequence.computed.div_ceil(BLOCK_SIZE));
        }
    }

    /// Takes a sequence out; its blocks are free for others, its past can be found again.
    /// The sequences after it move up by one.
    pub fn remove(&mut self, index: usize) -> Sequence {
        let mut sequence = self.running.remove(index);
        self.pool.release(&mut sequence.blocks);
        sequence
    }

    /// Takes everything out, to be failed, and forgets what the cache holds: after a step that
    /// failed, nobody knows.
    pub fn drain(&mut self) -> Vec<Sequence> {
        let mut all: Vec<Sequence> = self.running.drain(..).chain(self.waiting.drain(..)).collect();
        all.iter_mut().for_each(|sequence| self.pool.release(&mut sequence.blocks));
        self.pool.forget();
        all
    }

    /// Blocks that no sequence uses, and blocks in all.
    pub fn free_blocks(&self) -> (usize, usize) {
        (self.pool.free(), self.pool.len())
    }

    /// Checks that the pool counts what the running sequences hold, and that they hold what they need.
    #[cfg(test)]
    pub fn check(&self) {
        self.pool.check(self.running.iter().map(|sequence| &sequence.blocks[..]));
        for sequence in &self.running {
            assert_eq!(sequence.blocks.len(), sequence.computed.div_ceil(BLOCK_SIZE));
        }
        let order: Vec<u64> = self.running.iter().chain(&self.waiting).map(Sequence::seed).collect();
        assert!(order.is_sorted(), "nobody is overtaken: {order:?}");
    }

    fn preempt_youngest(&mut self) {
        let mut sequence = self.remove(self.running.len() - 1);
        sequence.computed = 0;
        sequence.sealed = (0, Seal::ROOT);
        self.waiting.push_front(sequence);
    }

    fn drop_abandoned(&mut self) {
        self.waiting.retain(|sequence| !sequence.abandoned());
        for index in (0..self.running.len()).rev() {
            if self.running[index].abandoned() {
                self.remove(index);
            }
        }
    }
}

/// The piece of `len` tokens with which `sequence` goes on. The blocks that it fills are sealed
/// before they are computed: a step writes the keys and values of all its rows before it reads
/// any, so that a sequence admitted after this one shares them within the same step.
fn plan(pool: &mut BlockPool, sequence: &mut Sequence, len: usize) -> Piece {
    let (mut count, mut seal) = sequence.sealed;
    while (count + 1) * BLOCK_SIZE <= sequence.computed + len {
        let tokens = &sequence.tokens[count * BLOCK_SIZE..(count + 1) * BLOCK_SIZE];
        seal = pool.seal(sequence.blocks[count], seal, tokens);
        count += 1;
    }
    sequence.sealed = (count, seal);
    Piece { len, completes: len == sequence.work(), logit_rows: sequence.wanted_rows(len) }
}
