//! Ranks with ties, and their correlation.

use super::NoInterval;

/// Values closer than this share a rank: means of the same shares, added in another order, differ in their last bits.
const TIE: f64 = 1e-9;

/// Ranks from 1 for the largest value; equal values share the best rank of their group, and the next rank is left out
/// (1, 2, 2, 4). A value that is not a number has no rank.
pub fn competition_ranks(values: &[f64]) -> Vec<Option<usize>> {
    groups(values, |first, _| first + 1)
}

/// Ranks from 1 for the largest value; equal values share the mean of their ranks (1, 2.5, 2.5, 4).
pub fn average_ranks(values: &[f64]) -> Vec<Option<f64>> {
    groups(values, |first, last| (first + last) as f64 / 2.0 + 1.0)
}

/// Spearman's rank correlation: Pearson's of the average ranks, so ties are right.
pub fn spearman(a: &[f64], b: &[f64]) -> Result<f64, NoInterval> {
    if a.len() != b.len() {
        return Err(NoInterval::Unmatched);
    }
    let ranks = |values: &[f64]| average_ranks(values).into_iter().collect::<Option<Vec<f64>>>();
    let (Some(a), Some(b)) = (ranks(a), ranks(b)) else { return Err(NoInterval::NotFinite) };
    match a.len() {
        0 => return Err(NoInterval::NoItems),
        1 => return Err(NoInterval::OneItem),
        _ => {}
    }
    let middle = (a.len() as f64 + 1.0) / 2.0;
    let product = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - middle) * (y - middle)).sum::<f64>();
    let spread = (product(&a, &a) * product(&b, &b)).sqrt();
    if spread == 0.0 {
        return Err(NoInterval::NoSpread);
    }
    Ok((product(&a, &b) / spread).clamp(-1.0, 1.0))
}

/// Gives every value what `rank` says of the first and last place of its group of equals, largest first.
fn groups<R: Copy>(values: &[f64], rank: impl Fn(usize, usize) -> R) -> Vec<Option<R>> {
    let mut order: Vec<usize> = (0..values.len()).filter(|&i| values[i].is_finite()).collect();
    order.sort_by(|&i, &k| values[k].total_cmp(&values[i]));
    let mut ranks = vec![None; values.len()];
    let mut first = 0;
    for group in order.chunk_by(|&i, &k| values[i] - values[k] <= TIE) {
        let last = first + group.len() - 1;
        group.iter().for_each(|&i| ranks[i] = Some(rank(first, last)));
        first = last + 1;
    }
    ranks
}
