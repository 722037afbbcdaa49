//! The cluster bootstrap: items are drawn with replacement, statistics recomputed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::{Deserialize, Serialize};

use super::draw::below;
use super::{Bounds, Estimate, Method, NoInterval, mean, standard_deviation, wilson};

/// More resamples than this share without a value, and there is no interval.
const MAX_UNDEFINED: f64 = 0.01;

/// Settings of every interval of a report.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bootstrap {
    /// How often the items are resampled.
    pub resamples: u32,
    /// Root of all draws.
    pub seed: u64,
    /// Coverage, such as 0.95.
    pub level: f64,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self { resamples: 10_000, seed: 0, level: 0.95 }
    }
}

/// The difference of two formats, one pair of several compared at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedDifference {
    /// Index of the first.
    pub a: usize,
    /// Index of the second.
    pub b: usize,
    /// First minus second, its interval corrected for all pairs.
    pub difference: Estimate,
}

impl Bootstrap {
    /// The mean of per-item values of any size.
    pub fn mean(&self, values: &[f64]) -> Estimate {
        let Some(value) = mean(values) else { return Estimate::none(0, NoInterval::NoItems) };
        if !values.iter().all(|x| x.is_finite()) || !value.is_finite() {
            return Estimate::none(values.len(), NoInterval::NotFinite);
        }
        let n = values.len();
        let bounds = if n == 1 {
            NoInterval::OneItem.into()
        } else if values.iter().all(|x| *x == values[0]) {
            NoInterval::NoSpread.into()
        } else {
            self.percentiles(n, |items| Some(items.iter().map(|&i| values[i as usize]).sum::<f64>() / n as f64))
        };
        Estimate { value: Some(value), n, bounds }
    }

    /// The mean of per-item shares between 0 and 1; with all at one end, Wilson's interval over items.
    pub fn share(&self, values: &[f64]) -> Estimate {
        let estimate = self.mean(values);
        self.wilson_at_the_ends(estimate)
    }

    /// A share pooled over items, such as kept of eligible facts: sum of `parts` by sum of `wholes`. Items with nothing
    /// eligible say nothing and are not counted in `n`.
    pub fn ratio(&self, parts: &[f64], wholes: &[f64]) -> Estimate {
        if parts.len() != wholes.len() {
            return Estimate::none(parts.len(), NoInterval::Unmatched);
        }
        let items: Vec<(f64, f64)> =
            parts.iter().copied().zip(wholes.iter().copied()).filter(|&(_, w)| w != 0.0).collect();
        let n = items.len();
        if !items.iter().all(|(part, whole)| part.is_finite() && whole.is_finite()) {
            return Estimate::none(n, NoInterval::NotFinite);
        }
        let over = |sums: (f64, f64)| (sums.1 != 0.0).then(|| sums.0 / sums.1).filter(|ratio| ratio.is_finite());
        let add = |sums: (f64, f64), item: (f64, f64)| (sums.0 + item.0, sums.1 + item.1);
        let value = over(items.iter().copied().fold((0.0, 0.0), add));
        let bounds = match n {
            0 => return Estimate::none(0, NoInterval::NoItems),
            1 => NoInterval::OneItem.into(),
            _ if items.iter().all(|(part, whole)| Some(part / whole) == value) => NoInterval::NoSpread.into(),
            _ => self.percentiles(n, |draw| over(draw.iter().map(|&i| items[i as usize]).fold((0.0, 0.0), add))),
        };
        self.wilson_at_the_ends(Estimate { value, n, bounds })
    }

    /// The mean of `a − b`, item by item.
    pub fn difference(&self, a: &[f64], b: &[f64]) -> Estimate {
        if a.len() != b.len() {
            return Estimate::none(a.len().min(b.len()), NoInterval::Unmatched);
        }
        self.mean(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<f64>>())
    }

    /// As [`Bootstrap::difference`], of shares between 0 and 1. If no item differs there is nothing to resample, yet the
    /// difference is not known to be zero: it is at most the share of items that would differ, which Wilson's interval
    /// for 0 of n bounds. The interval is then that bound to both sides.
    pub fn share_difference(&self, a: &[f64], b: &[f64]) -> Estimate {
        let estimate = self.difference(a, b);
        let shares = a.iter().chain(b).all(|x| (0.0..=1.0).contains(x));
        let equal = estimate.value == Some(0.0) && estimate.bounds == NoInterval::NoSpread.into();
        match wilson(0, estimate.n, self.level) {
            Bounds::Interval { hi, method, .. } if shares && equal => {
                Estimate { bounds: Bounds::Interval { lo: -hi, hi, method }, ..estimate }
            }
            _ => estimate,
        }
    }

    /// The difference of every two of several formats' shares, intervals at level 1 − (1 − level) / pairs (Bonferroni).
    pub fn paired_differences(&self, formats: &[Vec<f64>]) -> Vec<PairedDifference> {
        let corrected = self.bonferroni(formats.len());
        let pair = |(a, b): (usize, usize)| PairedDifference {
            a,
            b,
            difference: corrected.difference(&formats[a], &formats[b]),
        };
        pairs(formats.len()).map(pair).collect()
    }

    /// As [`Bootstrap::paired_differences`], of pooled shares: each format has its parts and its wholes per item.
    pub fn paired_ratio_differences(&self, formats: &[(Vec<f64>, Vec<f64>)]) -> Vec<PairedDifference> {
        let corrected = self.bonferroni(formats.len());
        let pair = |(a, b): (usize, usize)| PairedDifference {
            a,
            b,
            difference: corrected.ratio_difference(&formats[a], &formats[b]),
        };
        pairs(formats.len()).map(pair).collect()
    }

    fn ratio_difference(&self, a: &(Vec<f64>, Vec<f64>), b: &(Vec<f64>, Vec<f64>)) -> Estimate {
        let n = a.0.len();
        if [a.1.len(), b.0.len(), b.1.len()] != [n; 3] {
            return Estimate::none(n, NoInterval::Unmatched);
        }
        if ![&a.0, &a.1, &b.0, &b.1].into_iter().flatten().all(|x| x.is_finite()) {
            return Estimate::none(n, NoInterval::NotFinite);
        }
        let ratio = |(parts, wholes): &(Vec<f64>, Vec<f64>), items: &[u32]| {
            let sum = |values: &[f64]| items.iter().map(|&i| values[i as usize]).sum::<f64>();
            let whole = sum(wholes);
            (whole != 0.0).then(|| sum(parts) / whole)
        };
        let difference = |items: &[u32]| Some(ratio(a, items)? - ratio(b, items)?);
        let everything: Vec<u32> = (0..n as u32).collect();
        self.statistic(n, difference(&everything), difference)
    }

    /// Any statistic of a draw of items (indices below `n`); `value` is the statistic of the items as they are.
    /// A draw without a value is left out; more than 1 % of them, and there is no interval.
    pub fn statistic(&self, n: usize, value: Option<f64>, of: impl FnMut(&[u32]) -> Option<f64>) -> Estimate {
        let value = value.filter(|x| x.is_finite());
        let bounds = match (n, value) {
            (0, _) => NoInterval::NoItems.into(),
            (_, None) => NoInterval::Undefined.into(),
            (1, _) => NoInterval::OneItem.into(),
            _ => match self.percentiles(n, of) {
                Bounds::Interval { lo, hi, .. } if lo == hi => NoInterval::NoSpread.into(),
                bounds => bounds,
            },
        };
        Estimate { value, n, bounds }
    }

    /// Joint bounds for the means of several formats: with probability `level` all hold at once.
    ///
    /// Bounds are mean ± c · s / √n with one c for all: the `level` quantile, over resamples, of the largest
    /// |resampled mean − mean| / (s / √n), with s the sample standard deviation (single-step max-t; Romano and Wolf,
    /// "Exact and approximate stepdown methods for multiple hypothesis testing", JASA 100, 2005). Formats without
    /// spread have no bound and no part in the maximum.
    pub fn joint(&self, formats: &[Vec<f64>]) -> Vec<Estimate> {
        let n = formats.first().map_or(0, Vec::len);
        if formats.iter().any(|values| values.len() != n) {
            return formats.iter().map(|values| Estimate::none(values.len(), NoInterval::Unmatched)).collect();
        }
        let singly: Vec<Estimate> = formats.iter().map(|values| without_bounds(values)).collect();
        let errors: Vec<Option<f64>> =
            formats.iter().zip(&singly).map(|(values, e)| standard_error(values, e)).collect();
        let parts = || formats.iter().zip(&singly).zip(&errors);
        let critical = self.draws(n, |items| {
            let t = parts().filter_map(|((values, estimate), error)| {
                let resampled = items.iter().map(|&i| values[i as usize]).sum::<f64>() / n as f64;
                Some((resampled - estimate.value?).abs() / (*error)?)
            });
            t.reduce(f64::max)
        });
        let critical = critical.and_then(|t| quantile(&t, self.level).ok_or(NoInterval::NoSpread));
        let bound = |((_, estimate), error): ((&Vec<f64>, &Estimate), &Option<f64>)| {
            let bounds = match (estimate.value, error, critical) {
                (Some(mean), Some(error), Ok(c)) => {
                    Bounds::Interval { lo: mean - c * error, hi: mean + c * error, method: Method::MaxT }
                }
                (Some(_), Some(_), Err(reason)) => reason.into(),
                _ => estimate.bounds,
            };
            Estimate { bounds, ..*estimate }
        };
        parts().map(bound).collect()
    }

    fn bonferroni(&self, formats: usize) -> Bootstrap {
        let pairs = pairs(formats).count().max(1) as f64;
        Bootstrap { level: 1.0 - (1.0 - self.level) / pairs, ..*self }
    }

    fn wilson_at_the_ends(&self, estimate: Estimate) -> Estimate {
        let bounds = match estimate.value {
            Some(0.0) if estimate.n > 1 => wilson(0, estimate.n, self.level),
            Some(1.0) if estimate.n > 1 => wilson(estimate.n, estimate.n, self.level),
            _ => estimate.bounds,
        };
        Estimate { bounds, ..estimate }
    }

    fn percentiles(&self, n: usize, of: impl FnMut(&[u32]) -> Option<f64>) -> Bounds {
        let values = match self.draws(n, of) {
            Ok(values) => values,
            Err(reason) => return reason.into(),
        };
        let tail = (1.0 - self.level) / 2.0;
        match (quantile(&values, tail), quantile(&values, 1.0 - tail)) {
            (Some(lo), Some(hi)) => Bounds::Interval { lo, hi, method: Method::ClusterBootstrap },
            _ => NoInterval::Undefined.into(),
        }
    }

    /// The statistic of every resample, sorted; without those where it has no value, of which there are few.
    fn draws(&self, n: usize, mut of: impl FnMut(&[u32]) -> Option<f64>) -> Result<Vec<f64>, NoInterval> {
        if self.resamples == 0 || !(self.level > 0.0 && self.level < 1.0) {
            return Err(NoInterval::BadSettings);
        }
        let count = u32::try_from(n).map_err(|_| NoInterval::BadSettings)?;
        if count == 0 {
            return Err(NoInterval::NoItems);
        }
        let mut rng = generator(self.seed);
        let mut items = vec![0; n];
        let mut values = Vec::with_capacity(self.resamples as usize);
        for _ in 0..self.resamples {
            items.iter_mut().for_each(|item| *item = below(&mut rng, count));
            values.extend(of(&items).filter(|value| value.is_finite()));
        }
        if ((self.resamples as usize - values.len()) as f64) > MAX_UNDEFINED * f64::from(self.resamples) {
            return Err(NoInterval::Undefined);
        }
        values.sort_by(f64::total_cmp);
        Ok(values)
    }
}

/// The generator of all draws from this seed; its key names its purpose, so that no other use of the seed shares them.
fn generator(seed: u64) -> ChaCha8Rng {
    let mut key = *b"weaklink cluster bootstrap......";
    key[24..].copy_from_slice(&seed.to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

fn pairs(formats: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..formats).flat_map(move |a| (a + 1..formats).map(move |b| (a, b)))
}

fn without_bounds(values: &[f64]) -> Estimate {
    let n = values.len();
    match mean(values) {
        None => Estimate::none(0, NoInterval::NoItems),
        Some(_) if !values.iter().all(|x| x.is_finite()) => Estimate::none(n, NoInterval::NotFinite),
        value => Estimate { value, n, bounds: if n == 1 { NoInterval::OneItem } else { NoInterval::NoSpread }.into() },
    }
}

/// Of the mean; `None` where there is no spread.
fn standard_error(values: &[f64], estimate: &Estimate) -> Option<f64> {
    estimate.value?;
    let spread = values.iter().any(|x| *x != values[0]);
    standard_deviation(values).filter(|s| spread && *s > 0.0).map(|s| s / (values.len() as f64).sqrt())
}

/// The quantile of sorted values, interpolated linearly between order statistics (type 7 of Hyndman and Fan, "Sample
/// quantiles in statistical packages", 1996; numpy's default). `None` of nothing, or for `q` outside 0 to 1.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    if !(0.0..=1.0).contains(&q) {
        return None;
    }
    let last = sorted.len().checked_sub(1)?;
    let at = q * last as f64;
    let below = (at.floor() as usize).min(last);
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64))
}
