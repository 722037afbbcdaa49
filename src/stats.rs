//! Statistics over per-item values: pure functions, the item is the cluster, never a NaN.
//!
//! Every value that goes in belongs to one item (its replicates and facts already averaged or counted), and vectors of
//! several formats or conditions are matched: index `i` is the same item in each. Resampling draws items with
//! replacement; as the draws depend on (seed, number of items) alone, all vectors of one length are resampled alike,
//! which keeps the pairing.
//!
//! - Intervals: percentile cluster bootstrap (Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993, ch. 13;
//!   Cameron, Gelbach and Miller, 2008, for clusters), quantiles interpolated linearly (Hyndman and Fan's type 7).
//! - A share of 0 or 1 in every item has no spread to resample: Wilson's score interval over items (Wilson, 1927).
//! - Many comparisons: Bonferroni for pairs, maximal t-statistic for joint bounds (Romano and Wolf, 2005).
//!
//! Where something cannot be computed there is a [`NoInterval`] reason, or `None`, in its place.

use serde::{Deserialize, Serialize};

mod bootstrap;
pub mod draw;
mod measures;
mod rank;
mod wilson;

pub use bootstrap::{Bootstrap, PairedDifference, quantile};
pub use measures::{Dispersion, dispersion, retained};
pub use rank::{average_ranks, competition_ranks, spearman};
pub use wilson::{normal_quantile, wilson};

/// How an interval was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Percentiles of the means of resampled items.
    ClusterBootstrap,
    /// Wilson's score interval over items.
    Wilson,
    /// Joint bounds by the maximal t-statistic.
    MaxT,
}

/// Why there is no interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoInterval {
    /// No item has a value.
    #[error("no items")]
    NoItems,
    /// One item says nothing about the spread between items.
    #[error("only one item")]
    OneItem,
    /// All items have the same value, and it is no share of 0 or 1.
    #[error("all items have the same value")]
    NoSpread,
    /// In too many resamples the statistic has no value, such as a ratio to zero.
    #[error("undefined in too many resamples")]
    Undefined,
    /// A value is not a finite number.
    #[error("a value is not a finite number")]
    NotFinite,
    /// Two vectors that should be matched differ in length.
    #[error("the values are not matched item by item")]
    Unmatched,
    /// The number of resamples is 0, or the level is not between 0 and 1.
    #[error("the bootstrap needs resamples and a level between 0 and 1")]
    BadSettings,
}

/// An interval, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Bounds {
    /// `lo <= hi`, both finite.
    Interval {
        /// Lower end.
        lo: f64,
        /// Upper end.
        hi: f64,
        /// How it was made.
        method: Method,
    },
    /// There is none.
    None {
        /// Why.
        reason: NoInterval,
    },
}

impl Bounds {
    /// `[lo, hi]`, if there is an interval.
    pub fn ends(&self) -> Option<[f64; 2]> {
        match *self {
            Bounds::Interval { lo, hi, .. } => Some([lo, hi]),
            Bounds::None { .. } => None,
        }
    }

    /// Half the width, if there is an interval.
    pub fn half_width(&self) -> Option<f64> {
        self.ends().map(|[lo, hi]| (hi - lo) / 2.0)
    }

    /// Whether the interval leaves zero out; `None` without an interval.
    pub fn excludes_zero(&self) -> Option<bool> {
        self.ends().map(|[lo, hi]| lo > 0.0 || hi < 0.0)
    }

    /// The interval of `1 - x`.
    fn of_complement(self) -> Self {
        match self {
            Bounds::Interval { lo, hi, method } => Bounds::Interval { lo: 1.0 - hi, hi: 1.0 - lo, method },
            none => none,
        }
    }
}

impl From<NoInterval> for Bounds {
    fn from(reason: NoInterval) -> Self {
        Bounds::None { reason }
    }
}

/// A value with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The value; `None` where it does not exist.
    pub value: Option<f64>,
    /// Number of items that it rests on.
    pub n: usize,
    /// Its interval.
    pub bounds: Bounds,
}

impl Estimate {
    fn none(n: usize, reason: NoInterval) -> Self {
        Self { value: None, n, bounds: reason.into() }
    }
}

/// The mean; `None` of nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The sample standard deviation (divisor n − 1); `None` below two values.
pub fn standard_deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt())
}

#[cfg(test)]
mod tests;
