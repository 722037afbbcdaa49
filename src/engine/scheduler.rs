//! [`Scheduler`]: which sequences are computed in the next step, and how far.

use std::collections::VecDeque;

use rayon::prelude::*;
use weaklink_models::kv::BLOCK_SIZE;

use super::block_pool::{BlockPool, Seal};
use super::sequence::Sequence;

/// Part of a step: the next `len` tokens of the running sequence at `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which running sequence.
    pub index: usize,
    /// How many of its tokens.
    pub len: usize,
    /// Whether its known tokens end with this piece, so that the next one can be drawn.
    pub completes: bool,
}

/// Sequences that run, sequences that wait, and the pool both draw on.
pub struct Scheduler {
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    pool: BlockPool,
    max_running: usize,
    token_budget: usize,
}

impl Scheduler {
    /// At most `max_running` sequences share a step of at most `token_budget` tokens.
    pub fn new(pool: BlockPool, max_running: usize, token_budget: usize) -> Self {
        assert!(token_budget >= max_running, "every running sequence must get a token in a step");
        Self { waiting: VecDeque::new(), running: Vec::new(), pool, max_running, token_budget }
    }

    /// Queues a sequence.
    pub fn submit(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// A running sequence.
    pub fn running(&self, index: usize) -> &Sequence {
        &self.running[index]
    }

    /// A running sequence, to be advanced.
    pub fn running_mut(&mut self, index: usize) -> &mut Sequence {
        &mut self.running[index]
    }

    /// Finds the tokens that may come next in each running sequence with a grammar.
    pub fn prepare_masks(&mut self) {
        self.running.par_iter_mut().for_each(Sequence::prepare_mask);
    }

    /// Plans a step: first the running sequences in order, then waiting ones while
    /// places, tokens and blocks last. When blocks run out, the youngest running
    /// sequence gives up its own and waits to be computed again, to the same bits.
    pub fn schedule(&mut self) -> Vec<Piece> {
        self.drop_abandoned();
        let mut pieces = Vec::new();
        let mut budget = self.token_budget;
        let mut preempted = false;
        let mut index = 0;
        while index < self.running.len() && budget > 0 {
            let sequence = &mut self.running[index];
            let len = sequence.work().min(budget);
            if !self.pool.grow(&mut sequence.blocks, sequence.computed + len) {
                self.preempt_youngest();
                preempted = true;
                continue;
            }
            pieces.push(Piece { index, len, completes: len == sequence.work() });
            budget -= len;
            index += 1;
        }
        while !preempted && budget > 0 && self.running.len() < self.max_running {
            let Some(sequence) = self.waiting.front_mut() else { break };
            let (mut blocks, seal) = self.pool.lookup_prefix(&sequence.tokens);
            let cached = blocks.len() * BLOCK_SIZE;
            // Room for all its known tokens and the next one: to admit it for less would
            // only have it preempted a few steps later.
            let needed = (sequence.tokens.len() + 1).div_ceil(BLOCK_SIZE) - blocks.len();
            let len = (sequence.tokens.len() - cached).min(budget);
            if needed > self.pool.free() && !self.running.is_empty() || !self.pool.grow(&mut blocks, cached + len) {
                self.pool.release(&mut blocks);
                break;
            }
            let mut sequence = self.waiting.pop_front().expect("looked at above");
            sequence.sealed = (cached / BLOCK_SIZE, seal);
            sequence.computed = cached;
            sequence.blocks = blocks;
            sequence.note_cached(cached);
            pieces.push(Piece { index: self.running.len(), len, completes: len == sequence.work() });
            budget -= len;
            self.running.push(sequence);
        }
        pieces
    }

    /// Notes that a piece's K/V is in the cache, and seals the blocks that it filled.
    pub fn computed(&mut self, piece: Piece) {
        let sequence = &mut self.running[piece.index];
        sequence.computed += piece.len;
        let (mut count, mut seal) = sequence.sealed;
        while (count + 1) * BLOCK_SIZE <= sequence.computed {
            let tokens = &sequence.tokens[count * BLOCK_SIZE..(count + 1) * BLOCK_SIZE];
            seal = self.pool.seal(sequence.blocks[count], seal, tokens);
            count += 1;
        }
        sequence.sealed = (count, seal);
    }

    /// Takes a sequence out; its blocks are free for others, its past can be found again.
    /// The sequences after it move up by one.
    pub fn remove(&mut self, index: usize) -> Sequence {
        let mut sequence = self.running.remove(index);
        self.pool.release(&mut sequence.blocks);
        sequence
    }

    /// Takes everything out, to be failed.
    pub fn drain(&mut self) -> Vec<Sequence> {
        let mut all: Vec<Sequence> = self.running.drain(..).chain(self.waiting.drain(..)).collect();
        all.iter_mut().for_each(|sequence| self.pool.release(&mut sequence.blocks));
        all
    }

    /// Blocks that no sequence uses, and blocks in all.
    pub fn free_blocks(&self) -> (usize, usize) {
        (self.pool.free(), self.pool.len())
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
