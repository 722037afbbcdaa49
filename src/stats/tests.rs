use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde_json::Value;

use super::draw::below;
use super::*;

fn golden() -> Value {
    serde_json::from_str(include_str!("../../tests/golden/stats.json")).expect("the golden file is JSON")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn vector(value: &Value) -> Vec<f64> {
    list(value).iter().map(number).collect()
}

fn vectors(value: &Value) -> Vec<Vec<f64>> {
    list(value).iter().map(vector).collect()
}

fn ends(estimate: &Estimate) -> [f64; 2] {
    estimate.bounds.ends().unwrap_or_else(|| panic!("no interval: {estimate:?}"))
}

fn reason(bounds: Bounds) -> NoInterval {
    match bounds {
        Bounds::None { reason } => reason,
        interval => panic!("{interval:?} should not be"),
    }
}

#[track_caller]
fn close(got: f64, expected: f64, tolerance: f64) {
    assert!((got - expected).abs() <= tolerance, "got {got}, expected {expected} within {tolerance}");
}

#[track_caller]
fn agrees(estimate: &Estimate, case: &Value, value: &str) {
    close(estimate.value.expect("a value"), number(&case[value]), 1e-12);
    let ([lo, hi], tolerance) = (ends(estimate), number(&case["tolerance"]));
    close(lo, number(&case["lo"]), tolerance);
    close(hi, number(&case["hi"]), tolerance);
}

#[test]
fn means_agree_with_scipy() {
    for case in list(&golden()["means"]) {
        let values = vector(&case["values"]);
        let estimate = Bootstrap::default().share(&values);
        agrees(&estimate, case, "mean");
        assert_eq!(estimate.n, values.len());
        close(standard_deviation(&values).expect("two values"), number(&case["sd"]), 1e-12);
        let toll = Bootstrap::default().toll(&values);
        close(toll.value.expect("a value"), 1.0 - number(&case["mean"]), 1e-12);
        assert_eq!(ends(&toll), [1.0 - ends(&estimate)[1], 1.0 - ends(&estimate)[0]]);
    }
}

#[test]
fn ratios_agree_with_scipy() {
    for case in list(&golden()["ratios"]) {
        let (mut parts, mut wholes) = (vector(&case["parts"]), vector(&case["wholes"]));
        let estimate = Bootstrap::default().ratio(&parts, &wholes);
        agrees(&estimate, case, "value");
        parts.push(0.0);
        wholes.push(0.0);
        assert_eq!(Bootstrap::default().ratio(&parts, &wholes), estimate, "an item with nothing eligible says nothing");
    }
}

#[test]
fn paired_differences_agree_with_scipy() {
    let case = &golden()["differences"];
    let found = Bootstrap::default().paired_differences(&vectors(&case["formats"]));
    assert_eq!(found.len(), 10);
    for (pair, expected) in found.iter().zip(list(&case["pairs"])) {
        assert_eq!((pair.a, pair.b), (number(&expected["a"]) as usize, number(&expected["b"]) as usize));
        agrees(&pair.difference, expected, "value");
    }
    // With equal wholes a difference of ratios is the difference of means.
    let ratios: Vec<_> = vectors(&case["formats"]).into_iter().map(|parts| (parts, vec![1.0; 24])).collect();
    for (pair, mean) in Bootstrap::default().paired_ratio_differences(&ratios).iter().zip(&found) {
        close(ends(&pair.difference)[0], ends(&mean.difference)[0], 1e-12);
        close(ends(&pair.difference)[1], ends(&mean.difference)[1], 1e-12);
    }
}

#[test]
fn joint_bounds_agree_with_numpy() {
    let case = &golden()["max_t"];
    let (means, errors) = (vector(&case["means"]), vector(&case["errors"]));
    let joint = Bootstrap::default().joint(&vectors(&case["formats"]));
    for ((estimate, mean), error) in joint.iter().zip(means).zip(errors) {
        let [lo, hi] = ends(estimate);
        close((lo + hi) / 2.0, mean, 1e-12);
        // The 95 % quantile of the maximum, from 10,000 resamples: its standard error is about 0.012.
        close((hi - lo) / 2.0 / error, number(&case["critical"]), 0.05);
    }
    let single = Bootstrap::default().joint(&vectors(&case["formats"])[..1]);
    assert!(ends(&single[0])[0] > ends(&joint[0])[0], "joint bounds are wider than single ones");
}

#[test]
fn dispersion_agrees_with_numpy() {
    let case = &golden()["sd_ratio"];
    let (a, b) = (vectors(&case["a"]), vectors(&case["b"]));
    agrees(&Bootstrap::default().sd_ratio(&a, &b), case, "value");
    let means: Vec<f64> = a.iter().map(|values| mean(values).expect("values")).collect();
    let found = dispersion(&means).expect("five means");
    close(found.sd, number(&case["sd"]), 1e-12);
    close(found.range, number(&case["range"]), 1e-12);
    assert_eq!(dispersion(&[0.3, 0.3]), Some(Dispersion { sd: 0.0, range: 0.0 }));
    assert_eq!((dispersion(&[]), dispersion(&[0.3]), dispersion(&[0.3, f64::NAN])), (None, None, None));
}

#[test]
fn wilson_agrees_with_statsmodels() {
    for case in list(&golden()["wilson"]) {
        let found = wilson(number(&case["successes"]) as usize, number(&case["n"]) as usize, number(&case["level"]));
        let [lo, hi] = found.ends().expect("an interval");
        close(lo, number(&case["lo"]), 1e-12);
        close(hi, number(&case["hi"]), 1e-12);
    }
    assert_eq!(reason(wilson(0, 0, 0.95)), NoInterval::NoItems);
    assert_eq!(reason(wilson(3, 2, 0.95)), NoInterval::BadSettings);
    assert_eq!(reason(wilson(1, 2, 1.0)), NoInterval::BadSettings);
}

#[test]
fn quantiles_agree_with_numpy_and_scipy() {
    let golden = golden();
    let sorted = vector(&golden["quantiles"]["sorted"]);
    for pair in vectors(&golden["quantiles"]["at"]) {
        close(quantile(&sorted, pair[0]).expect("a quantile"), pair[1], 1e-12);
    }
    for pair in vectors(&golden["normal"]) {
        close(normal_quantile(pair[0]), pair[1], 1e-9);
    }
    assert_eq!((quantile(&[], 0.5), quantile(&sorted, 1.5), quantile(&[3.0], 0.2)), (None, None, Some(3.0)));
}

#[test]
fn ranks_agree_with_scipy() {
    for case in list(&golden()["ranks"]) {
        let values = vector(&case["values"]);
        let competition: Vec<f64> = competition_ranks(&values).into_iter().map(|r| r.expect("a rank") as f64).collect();
        let average: Vec<f64> = average_ranks(&values).into_iter().map(|r| r.expect("a rank")).collect();
        assert_eq!((competition, average), (vector(&case["competition"]), vector(&case["average"])));
    }
    for case in list(&golden()["spearman"]) {
        close(spearman(&vector(&case["a"]), &vector(&case["b"])).expect("a correlation"), number(&case["rho"]), 1e-12);
    }
    assert_eq!(competition_ranks(&[0.1 + 0.2, 0.3, f64::NAN, 0.9]), [Some(2), Some(2), None, Some(1)]);
    assert_eq!(spearman(&[], &[]), Err(NoInterval::NoItems));
    assert_eq!(spearman(&[1.0], &[1.0]), Err(NoInterval::OneItem));
    assert_eq!(spearman(&[1.0, 1.0], &[1.0, 2.0]), Err(NoInterval::NoSpread));
    assert_eq!(spearman(&[1.0, 2.0], &[1.0]), Err(NoInterval::Unmatched));
    assert_eq!(spearman(&[1.0, 2.0], &[1.0, f64::INFINITY]), Err(NoInterval::NotFinite));
}

#[test]
fn few_or_equal_values_have_a_reason() {
    let b = Bootstrap::default();
    let got = |values: &[f64]| (b.share(values).value, reason(b.share(values).bounds));
    assert_eq!(got(&[]), (None, NoInterval::NoItems));
    assert_eq!(got(&[0.5]), (Some(0.5), NoInterval::OneItem));
    assert_eq!(got(&[1.0]), (Some(1.0), NoInterval::OneItem));
    assert_eq!(got(&[0.5, 0.5]), (Some(0.5), NoInterval::NoSpread));
    assert_eq!(got(&[0.5, f64::NAN]), (None, NoInterval::NotFinite));
    assert_eq!(got(&[f64::MAX, f64::MAX]), (None, NoInterval::NotFinite));
    assert_eq!(ends(&b.share(&[0.0, 1.0])), [0.0, 1.0]);
    assert_eq!(b.share(&[1.0; 24]).bounds, wilson(24, 24, 0.95));
    assert_eq!(b.share(&[0.0; 24]).bounds, wilson(0, 24, 0.95));
    assert_eq!(b.toll(&[1.0; 24]).bounds.ends().expect("Wilson")[0], 0.0);
    assert_eq!(reason(b.mean(&[1.0; 24]).bounds), NoInterval::NoSpread, "a mean of any size has no ends");
    assert_eq!(reason(b.drift(&[0.5, 0.7], &[0.5]).bounds), NoInterval::Unmatched);
    assert_eq!(reason(b.difference(&[0.5, 0.7], &[0.5, 0.7]).bounds), NoInterval::NoSpread);
    assert_eq!(reason(b.drift(&[0.5, 0.5], &[0.25, 0.25]).bounds), NoInterval::NoSpread);
    let unmoved = b.drift(&[0.5; 24], &[0.5; 24]);
    let bound = wilson(0, 24, 0.95).ends().expect("an interval")[1];
    assert_eq!((unmoved.value, ends(&unmoved)), (Some(0.0), [-bound, bound]));
    assert_eq!(reason(b.drift(&[0.5], &[0.5]).bounds), NoInterval::OneItem);
    assert_eq!(reason(b.ratio(&[1.0], &[]).bounds), NoInterval::Unmatched);
    assert_eq!(reason(b.ratio(&[0.0, 0.0], &[0.0, 0.0]).bounds), NoInterval::NoItems);
    assert_eq!(reason(b.ratio(&[1.0, 0.0], &[2.0, 0.0]).bounds), NoInterval::OneItem);
    assert_eq!(b.ratio(&[2.0, 3.0], &[2.0, 3.0]).bounds, wilson(2, 2, 0.95));
    assert_eq!(reason(Bootstrap { resamples: 0, ..b }.share(&[0.1, 0.2]).bounds), NoInterval::BadSettings);
    assert_eq!(reason(Bootstrap { level: f64::NAN, ..b }.share(&[0.1, 0.2]).bounds), NoInterval::BadSettings);
    assert_eq!((mean(&[]), standard_deviation(&[1.0])), (None, None));
}

#[test]
fn comparisons_of_few_or_equal_values_have_a_reason() {
    let b = Bootstrap::default();
    assert!(b.paired_differences(&[]).is_empty() && b.joint(&[]).is_empty());
    for n in 0..3 {
        let same = vec![vec![0.5; n]; 3];
        let differences = b.paired_differences(&same);
        assert!(differences.iter().all(|pair| pair.difference.bounds.ends().is_some() == (n > 1)), "{differences:?}");
        assert!(b.joint(&same).iter().all(|estimate| estimate.bounds.ends().is_none()));
        assert!(b.sd_ratio(&same, &same).bounds.ends().is_none());
    }
    let mixed = b.joint(&[vec![0.5; 4], vec![0.1, 0.2, 0.3, 0.4]]);
    assert_eq!(reason(mixed[0].bounds), NoInterval::NoSpread);
    assert!(mixed[1].bounds.ends().is_some());
    let (a, flat) = (vec![vec![0.1, 0.3], vec![0.5, 0.9]], vec![vec![0.5, 0.7]; 2]);
    assert_eq!(reason(b.sd_ratio(&a, &flat).bounds), NoInterval::Undefined);
    assert_eq!(b.sd_ratio(&a, &flat).value, None);
    let (none, some) = ((vec![0.0; 2], vec![0.0; 2]), (vec![1.0; 2], vec![2.0; 2]));
    assert_eq!(reason(b.paired_ratio_differences(&[none, some])[0].difference.bounds), NoInterval::Undefined);
}

#[test]
fn retention_counts_facts_right_at_first() {
    let (t, f) = (true, false);
    let first = [vec![t, t, f], vec![t, f, f], vec![f, f, f]];
    let last = [vec![t, f, t], vec![t, t, f], vec![t, t, t]];
    assert_eq!(retained(&first, &last), Some((vec![1.0, 1.0, 0.0], vec![2.0, 1.0, 0.0])));
    let estimate = Bootstrap::default().retention(&first, &last);
    close(estimate.value.expect("a value"), 2.0 / 3.0, 1e-15);
    assert_eq!(estimate.n, 2);
    assert_eq!(reason(Bootstrap::default().retention(&first, &last[..2]).bounds), NoInterval::Unmatched);
}

/// Seed and values alone decide: the same bits today, tomorrow and elsewhere.
#[test]
fn draws_never_change() {
    let mut rng = ChaCha8Rng::from_seed([7; 32]);
    let draws: Vec<u32> = (0..8).map(|_| below(&mut rng, 10)).collect();
    assert_eq!(draws, [3, 2, 8, 8, 0, 2, 1, 3]);
    let values = [0.25, 0.5, 0.75, 1.0];
    let b = Bootstrap { resamples: 200, ..Bootstrap::default() };
    assert_eq!(b.share(&values), b.share(&values));
    let other = Bootstrap { seed: 1, ..b };
    assert!((0..20).any(|i| Bootstrap { seed: i, ..b }.share(&values) != other.share(&values)));
}

#[test]
fn draws_are_uniform() {
    let mut rng = ChaCha8Rng::from_seed([1; 32]);
    let mut counts = [0u32; 7];
    (0..70_000).for_each(|_| counts[below(&mut rng, 7) as usize] += 1);
    // Six degrees of freedom: 22.5 is exceeded by chance in one of a thousand.
    let chi: f64 = counts.iter().map(|&c| (f64::from(c) - 10_000.0).powi(2) / 10_000.0).sum();
    assert!(chi < 22.5, "{counts:?}");
}

/// Simulated studies with a known mean: shares of twelve facts whose chance varies from item to item.
#[test]
fn intervals_cover_the_truth() {
    const STUDIES: usize = 2_000;
    for n in [24, 60] {
        let mut rng = ChaCha8Rng::from_seed([n as u8; 32]);
        let mut covered = 0;
        for study in 0..STUDIES {
            let mut item = || {
                let chance = 30 + below(&mut rng, 61);
                f64::from((0..12).filter(|_| below(&mut rng, 100) < chance).count() as u32) / 12.0
            };
            let values: Vec<f64> = (0..n).map(|_| item()).collect();
            let b = Bootstrap { resamples: 1_000, seed: study as u64, level: 0.95 };
            let [lo, hi] = ends(&b.share(&values));
            covered += usize::from(lo <= 0.6 && 0.6 <= hi);
        }
        let share = covered as f64 / STUDIES as f64;
        println!("{n} items: {share}");
        assert!((0.93..=0.97).contains(&share), "{n} items: {share}");
    }
}
