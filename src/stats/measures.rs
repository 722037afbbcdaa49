//! The measures of the relay study, from per-item recall at the first and the last hop.

use serde::{Deserialize, Serialize};

use super::{Bootstrap, Estimate, NoInterval, mean, standard_deviation};

/// How far apart the formats are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispersion {
    /// Sample standard deviation of the format means (divisor: formats − 1).
    pub sd: f64,
    /// Largest minus smallest format mean.
    pub range: f64,
}

/// The dispersion of format means; `None` below two formats or with a value that is not finite.
pub fn dispersion(means: &[f64]) -> Option<Dispersion> {
    if !means.iter().all(|x| x.is_finite()) {
        return None;
    }
    let (max, min) = (means.iter().copied().reduce(f64::max)?, means.iter().copied().reduce(f64::min)?);
    let sd = if max == min && means.len() > 1 { 0.0 } else { standard_deviation(means)? };
    Some(Dispersion { sd, range: max - min })
}

impl Bootstrap {
    /// Encoding toll: 1 − recall at hop 1.
    pub fn toll(&self, first: &[f64]) -> Estimate {
        let recall = self.share(first);
        Estimate { value: recall.value.map(|x| 1.0 - x), bounds: recall.bounds.of_complement(), ..recall }
    }

    /// Drift: recall at the first hop − recall at the last, paired by item. Positive is loss.
    pub fn drift(&self, first: &[f64], last: &[f64]) -> Estimate {
        self.share_difference(first, last)
    }

    /// Retention of the facts that were right at the first hop: the share still right at the last, pooled over items.
    /// `first[i]` and `last[i]` hold the facts of item `i`, in one order.
    pub fn retention(&self, first: &[Vec<bool>], last: &[Vec<bool>]) -> Estimate {
        match retained(first, last) {
            Some((kept, eligible)) => self.ratio(&kept, &eligible),
            None => Estimate { value: None, n: first.len(), bounds: NoInterval::Unmatched.into() },
        }
    }

    /// Dispersion of two runs over matched items: the standard deviation of the format means of `a` by that of `b`.
    /// `a[f][i]` is item `i` in format `f`; both runs have the same formats and items, resampled together.
    pub fn sd_ratio(&self, a: &[Vec<f64>], b: &[Vec<f64>]) -> Estimate {
        let n = a.first().map_or(0, Vec::len);
        if a.len() != b.len() || a.iter().chain(b).any(|values| values.len() != n) {
            return Estimate { value: None, n, bounds: NoInterval::Unmatched.into() };
        }
        if !a.iter().chain(b).flatten().all(|x| x.is_finite()) {
            return Estimate { value: None, n, bounds: NoInterval::NotFinite.into() };
        }
        let sd = |run: &[Vec<f64>], items: &[u32]| {
            let format = |values: &Vec<f64>| mean(&items.iter().map(|&i| values[i as usize]).collect::<Vec<f64>>());
            let means = run.iter().map(format).collect::<Option<Vec<f64>>>()?;
            dispersion(&means).map(|d| d.sd)
        };
        // Below this the format means are equal but for rounding.
        let ratio = |items: &[u32]| sd(b, items).filter(|s| *s > 1e-12).and_then(|below| Some(sd(a, items)? / below));
        let everything: Vec<u32> = (0..n as u32).collect();
        self.statistic(n, ratio(&everything), ratio)
    }
}

/// Per item, how many of the facts right at first are right at last, and how many were right at first; `None` if the
/// facts are not matched. Also what [`Bootstrap::paired_ratio_differences`] takes.
pub fn retained(first: &[Vec<bool>], last: &[Vec<bool>]) -> Option<(Vec<f64>, Vec<f64>)> {
    let matched = first.len() == last.len() && first.iter().zip(last).all(|(a, b)| a.len() == b.len());
    let eligible = |item: &Vec<bool>| item.iter().filter(|right| **right).count() as f64;
    let kept = |(a, b): (&Vec<bool>, &Vec<bool>)| a.iter().zip(b).filter(|(a, b)| **a && **b).count() as f64;
    matched.then(|| (first.iter().zip(last).map(kept).collect(), first.iter().map(eligible).collect()))
}
