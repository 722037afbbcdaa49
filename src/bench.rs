//! Speed of prefill and decode on fixed work: what `weaklink bench` prints.
//!
//! The decoder is driven by hand, without an engine: rows, block tables and nothing drawn, so that the numbers are
//! those of the arithmetic and do not depend on what a model says.

use std::time::Instant;

use anyhow::bail;
use weaklink_models::batch::{Batch, Logits};
use weaklink_models::config::DecoderConfig;
use weaklink_models::decoder::Decoder;
use weaklink_models::kv::{BLOCK_SIZE, KvCache};

use crate::memory::Memory;
use crate::stats::{mean, standard_deviation};

/// Rows of a prefill step at most.
const STEP_ROWS: usize = 512;

/// More sequences than any engine computes at once.
const MOST_SEQUENCES: usize = 4096;

/// One measurement: what is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Prompt tokens of each sequence.
    pub prompt: usize,
    /// Tokens decoded for each sequence, one a step.
    pub decode: usize,
    /// Sequences.
    pub batch: usize,
    /// All sequences have the same prompt: it is computed once, and its full blocks are shared.
    pub shared_prefix: bool,
}

/// Speeds in tokens a second over the repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Mean.
    pub mean: f64,
    /// Standard deviation of the sample; `None` of one repeat.
    pub sd: Option<f64>,
}

impl Speed {
    /// Of the speeds measured; `None` of none.
    pub fn of(speeds: &[f64]) -> Option<Self> {
        Some(Self { mean: mean(speeds)?, sd: standard_deviation(speeds) })
    }
}

/// What was measured of a [`Workload`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Prompt rows computed a second.
    pub prefill: Option<Speed>,
    /// Tokens decoded a second, of all sequences together; `None` where none are.
    pub decode: Option<Speed>,
}

impl Workload {
    /// Refuses what the model cannot take or the memory cannot hold.
    pub fn check(&self, config: &DecoderConfig) -> anyhow::Result<()> {
        if self.prompt == 0 || self.batch == 0 {
            bail!("a batch of {} and a prompt of {} tokens: both must be 1 or more", self.batch, self.prompt);
        }
        if self.batch > MOST_SEQUENCES {
            bail!("a batch of {}: at most {MOST_SEQUENCES}", self.batch);
        }
        let tokens = self.prompt.saturating_add(self.decode);
        if tokens > config.context {
            bail!(
                "{} prompt and {} generated tokens exceed the model's context of {}; lower --pp or --tg",
                self.prompt,
                self.decode,
                config.context
            );
        }
        let cache = self.blocks().saturating_mul(KvCache::block_bytes(config));
        // The head's product and its copy as rows.
        let logits = self.batch.saturating_mul(2 * size_of::<f32>() * config.vocab);
        let needed = cache.saturating_add(logits) as u64;
        if let Some(available) = Memory::read().available
            && needed > available
        {
            bail!(
                "a batch of {} with {tokens} tokens each takes {} MiB, and {} MiB are free; lower --batch, --pp or --tg",
                self.batch,
                needed >> 20,
                available >> 20
            );
        }
        Ok(())
    }

    /// Prompt tokens that all sequences have in common and find in shared blocks.
    fn shared(&self) -> usize {
        if self.shared_prefix { self.prompt / BLOCK_SIZE * BLOCK_SIZE } else { 0 }
    }

    fn blocks(&self) -> usize {
        let shared = self.shared();
        let own = (self.prompt + self.decode - shared).div_ceil(BLOCK_SIZE);
        (shared / BLOCK_SIZE).saturating_add(own.saturating_mul(self.batch))
    }

    /// Each sequence's block table: the shared blocks, then its own.
    fn tables(&self) -> Vec<Vec<u32>> {
        let shared = (self.shared() / BLOCK_SIZE) as u32;
        let own = (self.prompt + self.decode - self.shared()).div_ceil(BLOCK_SIZE) as u32;
        (0..self.batch as u32).map(|s| (0..shared).chain(shared + s * own..shared + (s + 1) * own).collect()).collect()
    }

    /// The prompts as (sequence, first position, end) in the order of their computation: sequence after sequence.
    /// Under a shared prefix the later ones compute only what does not fill a block.
    fn prompts(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let shared = self.shared();
        let from = move |sequence: usize| if sequence == 0 { 0 } else { shared };
        let prompt = self.prompt;
        (0..self.batch).map(move |s| (s, from(s), prompt)).filter(|(_, from, to)| from < to)
    }

    /// Measures it `repeats` times, in the current rayon pool.
    pub fn measure(&self, decoder: &Decoder, repeats: usize) -> anyhow::Result<Measured> {
        let mut cache = KvCache::new(decoder.config(), self.blocks(), decoder.device())?;
        let tables = self.tables();
        let (mut prefill, mut decode) = (Vec::new(), Vec::new());
        for _ in 0..repeats {
            let begun = Instant::now();
            let rows = self.prefill(decoder, &mut cache, &tables)?;
            prefill.push(rows as f64 / begun.elapsed().as_secs_f64());
            if self.decode == 0 {
                continue;
            }
            let begun = Instant::now();
            for position in self.prompt..self.prompt + self.decode {
                let mut batch = Batch::default();
                for (s, table) in tables.iter().enumerate() {
                    let token = token(s + position - self.prompt, decoder.config().vocab);
                    batch.push(&[token], position, table, BLOCK_SIZE, Logits::Last);
                }
                std::hint::black_box(decoder.forward(&batch, &mut cache)?);
            }
            decode.push((self.batch * self.decode) as f64 / begun.elapsed().as_secs_f64());
        }
        Ok(Measured { prefill: Speed::of(&prefill), decode: Speed::of(&decode) })
    }

    /// Computes all prompts in steps that are full wherever rows are left; returns the rows computed.
    fn prefill(&self, decoder: &Decoder, cache: &mut KvCache, tables: &[Vec<u32>]) -> anyhow::Result<usize> {
        let vocab = decoder.config().vocab;
        let mut batch = Batch::default();
        let mut computed = 0;
        for (sequence, from, to) in self.prompts() {
            let mut at = from;
            while at < to {
                let end = to.min(at + STEP_ROWS - batch.rows());
                let tokens: Vec<u32> = (at..end).map(|i| token(sequence * self.prompt + i, vocab)).collect();
                let logits = if end == to { Logits::Last } else { Logits::None };
                batch.push(&tokens, at, &tables[sequence], BLOCK_SIZE, logits);
                at = end;
                if batch.rows() == STEP_ROWS {
                    computed += batch.rows();
                    std::hint::black_box(decoder.forward(&std::mem::take(&mut batch), cache)?);
                }
            }
        }
        if batch.rows() > 0 {
            computed += batch.rows();
            std::hint::black_box(decoder.forward(&batch, cache)?);
        }
        Ok(computed)
    }
}

/// Some token; which one makes no difference to the speed.
fn token(i: usize, vocab: usize) -> u32 {
    // The lowest ids are often control tokens.
    let first = if vocab > 40 { 20 } else { 0 };
    (first + i.wrapping_mul(7919) % (vocab - 2 * first).min(40_000)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Workload = Workload { prompt: 40, decode: 9, batch: 3, shared_prefix: false };

    #[test]
    fn speeds_have_the_mean_and_the_deviation_of_the_sample() {
        assert_eq!(Speed::of(&[]), None);
        assert_eq!(Speed::of(&[7.0]), Some(Speed { mean: 7.0, sd: None }));
        // Deviations −2, 0, 2: variance 8 / 2.
        assert_eq!(Speed::of(&[3.0, 5.0, 7.0]), Some(Speed { mean: 5.0, sd: Some(2.0) }));
    }

    #[test]
    fn sequences_have_blocks_of_their_own_and_a_shared_prefix_the_full_ones_in_common() {
        // 49 tokens take four blocks.
        assert_eq!(WORK.tables(), [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9, 10, 11]]);
        assert_eq!(WORK.blocks(), 12);
        // 32 of the 40 prompt tokens fill two blocks; 17 more take two.
        let shared = Workload { shared_prefix: true, ..WORK };
        assert_eq!(shared.tables(), [vec![0, 1, 2, 3], vec![0, 1, 4, 5], vec![0, 1, 6, 7]]);
        assert_eq!(shared.blocks(), 8);
        assert_eq!(shared.prompts().collect::<Vec<_>>(), [(0, 0, 40), (1, 32, 40), (2, 32, 40)]);
        let whole = Workload { prompt: 32, ..shared };
        assert_eq!(whole.prompts().collect::<Vec<_>>(), [(0, 0, 32)]);
    }

    #[test]
    fn tokens_are_within_any_vocabulary() {
        for vocab in [1, 2, 40, 41, 300, 200_000] {
            assert!((0..1000).all(|i| (token(i, vocab) as usize) < vocab), "{vocab}");
        }
    }
}
