//! [`Scorer`]: log-probabilities of given tokens, nothing drawn.

use anyhow::bail;
use weaklink_models::batch::{Batch, Logits};
use weaklink_models::decoder::Decoder;
use weaklink_models::kv::{BLOCK_SIZE, KvCache};

use super::load::OpenModel;

/// Tokens scored in one step; bounds the logits held at once.
const PIECE: usize = 64;

/// How many of the likeliest next tokens are reported.
const NEXT: usize = 10;

/// A decoder with a cache for one text at a time.
pub struct Scorer {
    decoder: Decoder,
    cache: KvCache,
    workers: rayon::ThreadPool,
}

/// Log-probabilities (natural logarithm) of one text.
pub struct TextScore {
    /// Of each id after the first, given those before it.
    pub logprobs: Vec<f64>,
    /// The ten likeliest ids after the last, likeliest first.
    pub next: Vec<(u32, f64)>,
}

impl Scorer {
    /// Loads the weights. The cache grows with the longest text.
    pub fn new(model: &OpenModel, threads: usize) -> anyhow::Result<Self> {
        let decoder = model.load_decoder()?;
        let cache = KvCache::new(decoder.config(), 0, decoder.device())?;
        let workers = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        Ok(Self { decoder, cache, workers })
    }

    /// Scores one text.
    pub fn score(&mut self, ids: &[u32]) -> anyhow::Result<TextScore> {
        let context = self.decoder.config().context;
        if ids.is_empty() || ids.len() > context {
            bail!("{} tokens; this model takes 1 to {context}", ids.len());
        }
        let needed = ids.len().div_ceil(BLOCK_SIZE);
        if needed > self.cache.blocks() {
            self.cache = KvCache::new(self.decoder.config(), needed, self.decoder.device())?;
        }
        let blocks: Vec<u32> = (0..needed as u32).collect();
        let mut score = TextScore { logprobs: Vec::with_capacity(ids.len()), next: Vec::new() };
        for (index, piece) in ids.chunks(PIECE).enumerate() {
            let computed = index * PIECE;
            let mut batch = Batch::default();
            batch.push(piece, computed, &blocks, BLOCK_SIZE, Logits::All);
            let (decoder, cache) = (&self.decoder, &mut self.cache);
            let rows = self.workers.install(|| decoder.forward(&batch, cache))?;
            for (position, logits) in (computed..).zip(&rows) {
                let log_sum = log_sum_exp(logits);
                match ids.get(position + 1) {
                    Some(&id) => score.logprobs.push(f64::from(logits[id as usize]) - log_sum),
                    None => score.next = likeliest(logits, log_sum),
                }
            }
        }
        if score.logprobs.iter().any(|p| p.is_nan()) || score.next.iter().any(|(_, p)| p.is_nan()) {
            bail!("the model's logits are not numbers");
        }
        Ok(score)
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().fold(f64::NEG_INFINITY, |m, &l| m.max(f64::from(l)));
    max + logits.iter().map(|&l| (f64::from(l) - max).exp()).sum::<f64>().ln()
}

fn likeliest(logits: &[f32], log_sum: f64) -> Vec<(u32, f64)> {
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if ids.len() > NEXT {
        ids.select_nth_unstable_by(NEXT - 1, order);
        ids.truncate(NEXT);
    }
    ids.sort_by(order);
    ids.into_iter().map(|id| (id, f64::from(logits[id as usize]) - log_sum)).collect()
}
