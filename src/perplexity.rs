//! Perplexity of a text, as llama.cpp's `llama-perplexity` defines it.
//!
//! The text's tokens are cut into chunks of n that do not overlap; what is left over at the end is not used.
//! In each chunk the tokens from n/2 + 1 on are scored, each given all before it in its chunk; where the model
//! asks for a start token, it takes the place of the chunk's first. Perplexity is the exponential of the mean
//! negative log-probability of the m scored tokens; its standard error is that of the mean, times the perplexity:
//! √((mean of squares − square of mean) / (m − 1)) · perplexity.

use anyhow::{bail, ensure};

use crate::engine::EngineHandle;
use crate::in_order::InOrder;

/// The smallest chunk: three tokens given and one scored.
pub const MIN_CHUNK: usize = 4;

/// Running sums over the scored tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// Tokens scored.
    pub count: usize,
    /// Sum of negative log-probabilities.
    pub nll: f64,
    /// Sum of their squares.
    pub squares: f64,
}

impl Sums {
    /// Adds a token.
    pub fn add(&mut self, logprob: f64) {
        self.count += 1;
        self.nll -= logprob;
        self.squares += logprob * logprob;
    }

    /// The perplexity; `None` where nothing was scored.
    pub fn perplexity(&self) -> Option<f64> {
        (self.count > 0).then(|| (self.nll / self.count as f64).exp())
    }

    /// Its standard error; `None` for fewer than two tokens, or where rounding leaves no variance.
    pub fn error(&self) -> Option<f64> {
        if self.count < 2 {
            return None;
        }
        let (count, mean) = (self.count as f64, self.nll / self.count as f64);
        let variance = self.squares / count - mean * mean;
        (variance > 0.0).then(|| (variance / (count - 1.0)).sqrt() * mean.exp())
    }
}

/// The chunks of a text's tokens, each ready to be scored.
///
/// `tokens` are those of the whole text, the start token `bos` not among them; where there is one, it stands
/// before the text and in the place of every chunk's first token.
///
/// # Errors
/// When `chunk` is smaller than [`MIN_CHUNK`], or the text does not fill two chunks.
pub fn chunks(tokens: &[u32], bos: Option<u32>, chunk: usize) -> anyhow::Result<Vec<Vec<u32>>> {
    ensure!(chunk >= MIN_CHUNK, "--chunk is {chunk}: at least {MIN_CHUNK} tokens make a chunk");
    let all: Vec<u32> = bos.into_iter().chain(tokens.iter().copied()).collect();
    if all.len() / 2 < chunk {
        bail!(
            "the text has {} tokens, and two chunks of {chunk} need {}: lower --chunk or give more text",
            all.len(),
            chunk.saturating_mul(2)
        );
    }
    let mut chunks: Vec<Vec<u32>> = all.chunks_exact(chunk).map(<[u32]>::to_vec).collect();
    if let Some(bos) = bos {
        chunks.iter_mut().for_each(|chunk| chunk[0] = bos);
    }
    Ok(chunks)
}

/// Scores the chunks, `at_once` of them at a time; `report` sees the sums after each, in their order.
///
/// # Errors
/// When a chunk does not fit the engine's context or the model gives no numbers.
pub async fn measure(
    engine: &EngineHandle,
    chunks: Vec<Vec<u32>>,
    at_once: usize,
    mut report: impl FnMut(&Sums),
) -> anyhow::Result<Sums> {
    let mut sums = Sums::default();
    let mut waiting = chunks.into_iter();
    let mut scored = InOrder::new();
    loop {
        while scored.len() < at_once.max(1)
            && let Some(mut chunk) = waiting.next()
        {
            let engine = engine.clone();
            let rest = chunk.split_off(chunk.len() / 2 + 1);
            scored.begin(async move { engine.score_after(chunk, &rest, 0).await });
        }
        let Some(score) = scored.next().await else { return Ok(sums) };
        score?.logprobs.into_iter().for_each(|logprob| sums.add(logprob));
        report(&sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_begin_with_the_start_token_and_leave_the_rest_out() {
        let tokens: Vec<u32> = (10..21).collect();
        let cut = |bos, chunk| chunks(&tokens, bos, chunk).map_err(|e| e.to_string());
        assert_eq!(cut(None, 4), Ok(vec![vec![10, 11, 12, 13], vec![14, 15, 16, 17]]));
        assert_eq!(cut(Some(1), 4), Ok(vec![vec![1, 10, 11, 12], vec![1, 14, 15, 16], vec![1, 18, 19, 20]]));
        assert!(cut(None, 6).unwrap_err().contains("11 tokens"));
        assert!(cut(None, 3).unwrap_err().contains("--chunk is 3"));
        assert!(cut(None, usize::MAX).is_err());
    }

    #[test]
    fn the_sums_give_mean_and_error() {
        let mut sums = Sums::default();
        assert_eq!((sums.perplexity(), sums.error()), (None, None));
        [-1.0, -2.0, -4.5].into_iter().for_each(|logprob| sums.add(logprob));
        // numpy: x = [1, 2, 4.5]; exp(mean), and std(x) / sqrt(2) · exp(mean)
        assert!((sums.perplexity().unwrap() - 12.182_493_960_703_473).abs() < 1e-12);
        assert!((sums.error().unwrap() - 12.182_493_960_703_473 * 1.471_960_144_387_974_3 / 2f64.sqrt()).abs() < 1e-9);
    }
}
