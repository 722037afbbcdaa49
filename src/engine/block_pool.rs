//! [`BlockPool`]: which cache blocks are in use, by how many sequences, and which hold a past worth keeping.
//! Integers only; the keys and values themselves are the decoder's.

use std::collections::{BTreeSet, HashMap};

use weaklink_models::kv::BLOCK_SIZE;

/// Identity of a sealed block: of its tokens and of all tokens before it. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seal(u64);

impl Seal {
    /// What stands before a sequence's first block.
    pub const ROOT: Seal = Seal(0);
}

/// A full block is found by what came before it and by its own tokens. The map compares
/// the tokens themselves, so two different pasts can never be taken for one another.
type Key = (Seal, [u32; BLOCK_SIZE]);

#[derive(Default)]
struct Block {
    references: u32,
    /// Set while the block's K/V can be found by [`BlockPool::lookup_prefix`].
    sealed: Option<(Seal, Key)>,
}

/// Counts references to blocks and finds blocks that hold a given past.
pub struct BlockPool {
    blocks: Vec<Block>,
    by_content: HashMap<Key, u32>,
    /// Blocks without references, in the order in which they are given out again.
    free: BTreeSet<(u64, u32)>,
    /// When each block was freed: its place in `free`.
    freed_at: Vec<u64>,
    clock: u64,
}

impl BlockPool {
    /// A pool of `count` free blocks.
    pub fn new(count: usize) -> Self {
        Self {
            blocks: (0..count).map(|_| Block::default()).collect(),
            by_content: HashMap::new(),
            free: (0..count as u32).map(|b| (0, b)).collect(),
            freed_at: vec![0; count],
            clock: 0,
        }
    }

    /// Blocks in the pool.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the pool has no blocks at all.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Blocks that no sequence uses.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// The longest run of sealed blocks that hold the beginning of `tokens`, with one
    /// reference taken to each, and the seal of the last. At least one token is left
    /// out, since a step must compute something to give logits.
    pub fn lookup_prefix(&mut self, tokens: &[u32]) -> (Vec<u32>, Seal) {
        let (mut found, mut seal) = (Vec::new(), Seal::ROOT);
        for piece in tokens[..tokens.len().saturating_sub(1)].chunks_exact(BLOCK_SIZE) {
            let Some(&block) = self.by_content.get(&key(seal, piece)) else { break };
            let sealed = self.blocks[block as usize].sealed.as_ref().expect("a block found by content is sealed");
            seal = sealed.0;
            self.take(block);
            found.push(block);
        }
        (found, seal)
    }

    /// Forgets what the blocks hold; references stay.
    pub fn forget(&mut self) {
        self.by_content.clear();
        self.blocks.iter_mut().for_each(|block| block.sealed = None);
    }

    /// Appends free blocks to `blocks` until they hold `tokens` tokens. Takes none and
    /// returns false when there are not enough.
    pub fn grow(&mut self, blocks: &mut Vec<u32>, tokens: usize) -> bool {
        let missing = tokens.div_ceil(BLOCK_SIZE).saturating_sub(blocks.len());
        if missing > self.free.len() {
            return false;
        }
        for _ in 0..missing {
            let (_, block) = *self.free.first().expect("counted above");
            if let Some((_, key)) = self.blocks[block as usize].sealed.take() {
                self.by_content.remove(&key);
            }
            self.take(block);
            blocks.push(block);
        }
        true
    }

    /// Declares that `block` holds the K/V of `tokens` after the past that `parent`
    /// names, at the latest when the next step reads it, and returns the seal of the whole. Where another block holds the same
    /// already, that one stays the one that is found.
    pub fn seal(&mut self, block: u32, parent: Seal, tokens: &[u32]) -> Seal {
        let key = key(parent, tokens);
        if let Some(&same) = self.by_content.get(&key) {
            return self.blocks[same as usize].sealed.as_ref().expect("a block found by content is sealed").0;
        }
        self.clock += 1;
        let seal = Seal(self.clock);
        self.blocks[block as usize].sealed = Some((seal, key));
        self.by_content.insert(key, block);
        seal
    }

    /// Gives up one reference to each block.
    pub fn release(&mut self, blocks: &mut Vec<u32>) {
        self.release_after(blocks, 0);
    }

    /// Gives up one reference to each block but the first `keep`. A past is given out again from
    /// its end: its beginning is what other sequences are likeliest to share. Of pasts that end
    /// differently, the one that was used last stays longest.
    pub fn release_after(&mut self, blocks: &mut Vec<u32>, keep: usize) {
        while blocks.len() > keep {
            let block = blocks.pop().expect("there is one more than is kept");
            let state = &mut self.blocks[block as usize];
            assert!(state.references > 0, "block {block} released more often than taken");
            state.references -= 1;
            if state.references == 0 {
                // Blocks without content go first.
                self.clock += 1;
                let at = if state.sealed.is_some() { self.clock } else { 0 };
                self.freed_at[block as usize] = at;
                self.free.insert((at, block));
            }
        }
    }

    /// Checks that references are those of `tables`, one for each time a block stands in one, and
    /// that free blocks and contents agree with the blocks.
    #[cfg(test)]
    pub fn check<'a>(&self, tables: impl Iterator<Item = &'a [u32]>) {
        let mut references = vec![0; self.blocks.len()];
        tables.flatten().for_each(|&block| references[block as usize] += 1);
        for (block, state) in self.blocks.iter().enumerate() {
            assert_eq!(state.references, references[block], "references to block {block}");
            let free = self.free.contains(&(self.freed_at[block], block as u32));
            assert_eq!(free, state.references == 0, "block {block}");
        }
        assert_eq!(self.free.len(), references.iter().filter(|&&count| count == 0).count());
        let sealed = self.blocks.iter().filter(|block| block.sealed.is_some()).count();
        assert_eq!(self.by_content.len(), sealed, "contents can be found in as many blocks as are sealed");
        for (key, &block) in &self.by_content {
            assert_eq!(self.blocks[block as usize].sealed.map(|(_, key)| key), Some(*key), "content of block {block}");
        }
    }

    fn take(&mut self, block: u32) {
        let state = &mut self.blocks[block as usize];
        if state.references == 0 {
            self.free.remove(&(self.freed_at[block as usize], block));
        }
        state.references += 1;
    }
}

fn key(parent: Seal, tokens: &[u32]) -> Key {
    (parent, tokens.try_into().expect("only full blocks are sealed or looked up"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(n: usize) -> Vec<u32> {
        (0..n as u32).collect()
    }

    fn sealed_run(pool: &mut BlockPool, tokens: &[u32]) -> Vec<u32> {
        let mut blocks = Vec::new();
        assert!(pool.grow(&mut blocks, tokens.len()));
        let mut seal = Seal::ROOT;
        for (block, piece) in blocks.iter().zip(tokens.chunks_exact(BLOCK_SIZE)) {
            seal = pool.seal(*block, seal, piece);
        }
        blocks
    }

    #[test]
    fn a_released_past_is_found_again_but_never_the_last_token() {
        let mut pool = BlockPool::new(8);
        let text = tokens(3 * BLOCK_SIZE);
        let mut blocks = sealed_run(&mut pool, &text);
        let expected = blocks.clone();
        pool.release(&mut blocks);
        assert_eq!(pool.free(), 8);
        let (mut found, _) = pool.lookup_prefix(&text);
        assert_eq!(found, expected[..2], "the last block would leave no token to compute");
        let (mut longer, _) = pool.lookup_prefix(&tokens(3 * BLOCK_SIZE + 1));
        assert_eq!(longer, expected);
        assert_eq!(pool.free(), 5);
        pool.release(&mut found);
        pool.release(&mut longer);
        assert_eq!(pool.free(), 8);
    }

    #[test]
    fn the_same_tokens_after_another_past_are_not_found() {
        let mut pool = BlockPool::new(8);
        let mut text = tokens(2 * BLOCK_SIZE);
        let _held = sealed_run(&mut pool, &text);
        text.push(0);
        text[0] = 99;
        assert_eq!(pool.lookup_prefix(&text).0, Vec::<u32>::new());
    }

    #[test]
    fn a_past_is_evicted_from_its_end_and_cannot_be_found_in_part_after_its_start_is_gone() {
        let mut pool = BlockPool::new(3);
        let text = tokens(3 * BLOCK_SIZE + 1);
        let mut blocks = sealed_run(&mut pool, &text[..3 * BLOCK_SIZE]);
        let order = blocks.clone();
        pool.release(&mut blocks);
        let mut other = Vec::new();
        assert!(pool.grow(&mut other, 1));
        assert_eq!(other, [order[2]]);
        let (mut found, _) = pool.lookup_prefix(&text);
        assert_eq!(found, order[..2]);
        pool.release(&mut found);
        assert!(pool.grow(&mut other, 3 * BLOCK_SIZE));
        pool.release(&mut other);
        assert_eq!(pool.lookup_prefix(&text).0, Vec::<u32>::new());
    }

    #[test]
    fn two_sequences_that_computed_the_same_past_share_one_identity() {
        let mut pool = BlockPool::new(8);
        let text = tokens(2 * BLOCK_SIZE);
        let (first, second) = (sealed_run(&mut pool, &text), sealed_run(&mut pool, &text));
        assert_ne!(first, second);
        let mut longer = text.clone();
        longer.push(7);
        assert_eq!(pool.lookup_prefix(&longer).0, first);
    }

    #[test]
    fn growing_beyond_the_pool_takes_nothing() {
        let mut pool = BlockPool::new(2);
        let mut blocks = Vec::new();
        assert!(!pool.grow(&mut blocks, 2 * BLOCK_SIZE + 1));
        assert_eq!((blocks.len(), pool.free()), (0, 2));
        assert!(pool.grow(&mut blocks, 2 * BLOCK_SIZE));
        assert_eq!((blocks.len(), pool.free()), (2, 0));
    }
}
