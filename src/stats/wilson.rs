//! Wilson's score interval for a proportion.

use super::{Bounds, Method, NoInterval};

/// Wilson's interval for `successes` of `n`, at `level` (0.95): the proportions that a score test does not reject.
/// (E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22, 1927.)
pub fn wilson(successes: usize, n: usize, level: f64) -> Bounds {
    if n == 0 {
        return NoInterval::NoItems.into();
    }
    if !(level > 0.0 && level < 1.0) || successes > n {
        return NoInterval::BadSettings.into();
    }
    let z2 = normal_quantile(0.5 + level / 2.0).powi(2);
    let (n, share) = (n as f64, successes as f64 / n as f64);
    let middle = (share + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt() * z2.sqrt() / (1.0 + z2 / n);
    // Rounding must not leave a hair between the interval and the share that it surely holds.
    let lo = if successes == 0 { 0.0 } else { middle - half };
    let hi = if share == 1.0 { 1.0 } else { middle + half };
    Bounds::Interval { lo, hi, method: Method::Wilson }
}

/// The quantile of the standard normal distribution, for `p` in (0, 1): −∞ and ∞ at and beyond the ends.
/// Bisection over the distribution function; the error is below 1e-12 for p between 1e-9 and 1 − 1e-9.
pub fn normal_quantile(p: f64) -> f64 {
    if p <= 0.0 || p.is_nan() {
        return f64::NEG_INFINITY;
    }
    if p >= 1.0 {
        return f64::INFINITY;
    }
    if p < 0.5 {
        return -upper_quantile(p);
    }
    if p == 0.5 { 0.0 } else { upper_quantile(1.0 - p) }
}

/// `x > 0` with `tail` of the distribution above it.
fn upper_quantile(tail: f64) -> f64 {
    let (mut lo, mut hi) = (0.0f64, 8.5f64);
    for _ in 0..60 {
        let middle = (lo + hi) / 2.0;
        if 0.5 - area_from_zero(middle) > tail { lo = middle } else { hi = middle }
    }
    (lo + hi) / 2.0
}

/// The normal distribution between 0 and `x`: φ(x) (x + x³/3 + x⁵/15 + …)
/// (G. Marsaglia, "Evaluating the normal distribution", Journal of Statistical Software 11, 2004).
fn area_from_zero(x: f64) -> f64 {
    let (mut term, mut sum, mut k) = (x, x, 1.0);
    while term > sum * 1e-17 {
        k += 2.0;
        term *= x * x / k;
        sum += term;
    }
    sum * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}
