//! Drawing the next token. A draw depends on (seed, output index) and the logits
//! alone: not on other sequences, nor on how often a sequence was interrupted.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::generate::{GenerateError, Sampling};

/// Checks a sampling for values that cannot be drawn with.
pub fn check(sampling: &Sampling) -> Result<(), GenerateError> {
    let Sampling { temperature, top_k, top_p } = *sampling;
    let bad = |what: String| Err(GenerateError::Invalid { what });
    if !temperature.is_finite() || temperature < 0.0 {
        return bad(format!("temperature {temperature} is not a number of 0 or more"));
    }
    if top_k == Some(0) {
        return bad("top-k 0 keeps no token; leave it out to keep all".into());
    }
    if let Some(p) = top_p
        && !(p > 0.0 && p <= 1.0)
    {
        return bad(format!("top-p {p} is not above 0 and at most 1"));
    }
    Ok(())
}

/// Draws output token `index` from its logits.
///
/// Temperature 0 takes the likeliest token, the lowest id on ties. Otherwise: divide
/// by the temperature, keep the top k, of these the likeliest whose probabilities
/// reach top p, draw. A logit that is NaN or +∞ is an error; −∞ is never drawn.
pub fn draw(logits: &[f32], sampling: &Sampling, seed: u64, index: usize) -> Result<u32, GenerateError> {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(GenerateError::NotANumber { index });
        }
        if logit > logits[best] {
            best = id;
        }
    }
    let max = logits.get(best).copied().unwrap_or(f32::NEG_INFINITY);
    if max == f32::NEG_INFINITY {
        return Err(GenerateError::NotANumber { index });
    }
    if sampling.temperature == 0.0 {
        return Ok(best as u32);
    }
    // f64: a temperature as low as f32 allows still divides without overflow to NaN.
    let weight = |logit: f32| ((f64::from(logit) - f64::from(max)) / f64::from(sampling.temperature)).exp();
    let unit = uniform(seed, index);
    if sampling.top_k.is_none() && sampling.top_p.is_none() {
        // Kept: an exponential costs more than writing and reading it.
        let weights: Vec<f64> = logits.iter().map(|&l| weight(l)).collect();
        let total: f64 = weights.iter().sum();
        return Ok(pick(weights.into_iter().enumerate(), unit * total));
    }
    let mut ranked: Vec<(usize, f64)> = logits.iter().map(|&l| weight(l)).enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked.truncate(sampling.top_k.unwrap_or(usize::MAX));
    if let Some(p) = sampling.top_p {
        let goal = f64::from(p) * ranked.iter().map(|r| r.1).sum::<f64>();
        let mut sum = 0.0;
        let keep = ranked.iter().position(|r| {
            sum += r.1;
            sum >= goal
        });
        ranked.truncate(keep.map_or(usize::MAX, |last| last + 1));
    }
    let total: f64 = ranked.iter().map(|r| r.1).sum();
    Ok(pick(ranked.into_iter(), unit * total))
}

/// The first token at which the running sum exceeds `goal`; where rounding leaves the
/// sum short of it, the last token that has any weight.
fn pick(weights: impl Iterator<Item = (usize, f64)>, goal: f64) -> u32 {
    let (mut sum, mut last) = (0.0, 0);
    for (id, weight) in weights {
        if weight > 0.0 {
            sum += weight;
            last = id;
            if sum > goal {
                break;
            }
        }
    }
    last as u32
}

/// A number in [0, 1) that depends on (seed, index) alone: ChaCha8 keyed by the seed,
/// its stream chosen by the index, 53 bits of the first word.
fn uniform(seed: u64, index: usize) -> f64 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(index as u64);
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(temperature: f32) -> Sampling {
        Sampling { temperature, top_k: None, top_p: None }
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_the_likeliest() {
        assert_eq!(draw(&[0.0, 3.0, 3.0, -1.0], &Sampling::GREEDY, 7, 0), Ok(1));
    }

    #[test]
    fn a_logit_that_is_no_number_is_an_error_and_not_token_0() {
        for bad in [f32::NAN, f32::INFINITY] {
            for place in 0..3 {
                let mut logits = [0.5; 3];
                logits[place] = bad;
                for t in [0.0, 0.7] {
                    assert_eq!(draw(&logits, &sampling(t), 1, 4), Err(GenerateError::NotANumber { index: 4 }));
                }
            }
        }
        let nothing = [f32::NEG_INFINITY; 3];
        assert_eq!(draw(&nothing, &sampling(0.7), 1, 0), Err(GenerateError::NotANumber { index: 0 }));
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        // softmax([1, 2, 3] / 0.7), computed with Python's math.exp.
        let expected = [0.044_278_27, 0.184_761_43, 0.770_960_30];
        let n = 20_000;
        let mut counts = [0usize; 3];
        for index in 0..n {
            counts[draw(&[1.0, 2.0, 3.0], &sampling(0.7), 42, index).expect("finite") as usize] += 1;
        }
        for (count, p) in counts.iter().zip(expected) {
            let sd = (p * (1.0 - p) / n as f64).sqrt();
            let got = *count as f64 / n as f64;
            assert!((got - p).abs() < 4.0 * sd, "drawn {got}, expected {p}");
        }
    }

    #[test]
    fn draws_are_keyed_by_seed_and_index() {
        let logits: Vec<f32> = (0..50).map(|i| (i % 7) as f32 * 0.1).collect();
        let run = |seed| (0..40).map(|i| draw(&logits, &sampling(1.0), seed, i).expect("finite")).collect::<Vec<_>>();
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert!(run(1).windows(2).any(|w| w[0] != w[1]), "the index must matter");
    }

    #[test]
    fn minus_infinity_is_never_drawn_and_extreme_temperatures_hold() {
        let logits = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 0.5];
        for t in [1e-30, 0.7, 1e30] {
            for i in 0..200 {
                assert!([1, 3].contains(&draw(&logits, &sampling(t), 3, i).expect("finite")));
            }
        }
        assert_eq!(draw(&logits, &sampling(1e-30), 3, 0), Ok(1));
    }

    #[test]
    fn filters_keep_what_they_say() {
        let logits = [0.0, 4.0, 3.0, 2.0];
        let k2 = Sampling { temperature: 5.0, top_k: Some(2), top_p: None };
        // Probabilities at temperature 1: 0.012, 0.657, 0.242, 0.089: two tokens reach 0.7.
        let p70 = Sampling { temperature: 1.0, top_k: None, top_p: Some(0.7) };
        for rule in [k2, p70] {
            let seen: std::collections::BTreeSet<u32> =
                (0..400).map(|i| draw(&logits, &rule, 9, i).expect("finite")).collect();
            assert_eq!(seen.into_iter().collect::<Vec<_>>(), [1, 2]);
        }
    }

    #[test]
    fn unusable_settings_are_refused_by_name() {
        for (t, k, p, word) in [
            (f32::NAN, None, None, "temperature"),
            (-1.0, None, None, "temperature"),
            (f32::INFINITY, None, None, "temperature"),
            (1.0, Some(0), None, "top-k"),
            (1.0, None, Some(0.0), "top-p"),
            (1.0, None, Some(f32::NAN), "top-p"),
            (1.0, None, Some(1.5), "top-p"),
        ] {
            let error = check(&Sampling { temperature: t, top_k: k, top_p: p }).expect_err("must be refused");
            assert!(error.to_string().contains(word), "{error}");
        }
        assert_eq!(check(&Sampling { temperature: 0.7, top_k: Some(1), top_p: Some(1.0) }), Ok(()));
    }
}
