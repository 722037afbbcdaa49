//! The steps of attention to one cache block: widen K and V, score, weigh, accumulate.
#![allow(clippy::needless_range_loop, reason = "heads, keys and vectors index several arrays at once")]

use std::ops::Range;

use crate::isa::{Floats, LANES, Simd};
use crate::math::exp;

/// Keys scored at a time.
pub(super) const KEYS: usize = 4;

/// Asks for all of `halves`, which the next block's steps will read.
#[inline(always)]
pub(super) fn fetch_ahead<S: Simd>(s: S, halves: &[u16]) {
    const LINE: usize = 64 / size_of::<u16>();
    halves.iter().step_by(LINE).for_each(|half| s.prefetch(half));
}

/// Positions `keys` of one head of a block as floats, each padded to whole vectors.
#[inline(always)]
pub(super) fn widen<S: Simd>(s: S, from: &[u16], head_dim: usize, keys: Range<usize>, to: &mut [Floats]) {
    let vectors = head_dim.div_ceil(LANES);
    if head_dim.is_multiple_of(LANES) {
        let from = from[keys.start * head_dim..keys.end * head_dim].as_chunks::<LANES>().0;
        for (to, from) in to[keys.start * vectors..].iter_mut().zip(from) {
            s.store(s.load_f16(from), &mut to.0);
        }
        return;
    }
    for key in keys {
        let (whole, rest) = from[key * head_dim..][..head_dim].as_chunks::<LANES>();
        let to = &mut to[key * vectors..][..vectors];
        for (to, from) in to.iter_mut().zip(whole) {
            s.store(s.load_f16(from), &mut to.0);
        }
        if !rest.is_empty() {
            let mut padded = [0; LANES];
            padded[..rest.len()].copy_from_slice(rest);
            s.store(s.load_f16(&padded), &mut to[vectors - 1].0);
        }
    }
}

/// Scores of `keys` for `H` heads, from `q[head][vector]` to `scores[head][width]`; −∞ elsewhere.
#[inline(always)]
pub(super) fn score<S: Simd, const H: usize>(
    s: S,
    q: &[Floats],
    vectors: usize,
    k: &[Floats],
    keys: Range<usize>,
    scores: &mut [[f32; LANES]],
    width: usize,
) {
    let q: [&[Floats]; H] = std::array::from_fn(|h| &q[h * vectors..][..vectors]);
    for group in keys.start / KEYS..keys.end.div_ceil(KEYS) {
        let k: [&[Floats]; KEYS] = std::array::from_fn(|i| &k[(group * KEYS + i) * vectors..][..vectors]);
        let mut dots = [[s.splat(0.0); KEYS]; H];
        for i in 0..vectors {
            for key in 0..KEYS {
                let k = s.load(&k[key][i].0);
                for h in 0..H {
                    dots[h][key] = s.fma(s.load(&q[h][i].0), k, dots[h][key]);
                }
            }
        }
        for h in 0..H {
            // keys of the group out of sight may hold anything: overwritten below
            let scores = scores[h * width..][..width].as_flattened_mut();
            scores[group * KEYS..][..KEYS].copy_from_slice(&s.sum4(dots[h]));
        }
    }
    for h in 0..H {
        let scores = scores[h * width..][..width].as_flattened_mut();
        scores[..keys.start].fill(f32::NEG_INFINITY);
        scores[keys.end..].fill(f32::NEG_INFINITY);
    }
}

/// Turns scores into weights relative to the largest score so far; returns what earlier sums are to be multiplied by.
///
/// NaN, or nothing but −∞, makes the weights NaN, and the sums with them.
#[inline(always)]
pub(super) fn weigh<S: Simd>(s: S, scores: &mut [[f32; LANES]], state: &mut (f32, f32)) -> f32 {
    let mut largest = s.splat(state.0);
    for scores in scores.iter() {
        largest = s.max(s.load(scores), largest);
    }
    let largest = s.max_lane(largest);
    let fade = match largest == state.0 {
        true => 1.0, // as `exp` says, at no cost
        false => {
            let mut lanes = [0.0; LANES];
            s.store(exp(s, s.splat(state.0 - largest)), &mut lanes);
            lanes[0]
        }
    };
    let mut total = s.splat(0.0);
    for scores in scores.iter_mut() {
        let weight = exp(s, s.sub(s.load(scores), s.splat(largest)));
        s.store(weight, scores);
        total = s.add(total, weight);
    }
    *state = (largest, state.1 * fade + s.sum(total));
    fade
}

/// `sums = fade · sums + Σ weight · v` for `H` heads, keys in order.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "arrays of two heads and their strides, read in one place")]
pub(super) fn accumulate<S: Simd, const H: usize>(
    s: S,
    weights: &[[f32; LANES]],
    width: usize,
    fades: &[f32],
    keys: Range<usize>,
    v: &[Floats],
    vectors: usize,
    sums: &mut [Floats],
) {
    let weights: [&[f32]; H] = std::array::from_fn(|h| &weights[h * width..].as_flattened()[keys.clone()]);
    let v = &v[keys.start * vectors..keys.end * vectors];
    let fours = vectors / 4 * 4;
    for first in (0..fours).step_by(4) {
        accumulate_some::<S, H, 4>(s, weights, fades, v, vectors, first, sums);
    }
    for first in fours..vectors {
        accumulate_some::<S, H, 1>(s, weights, fades, v, vectors, first, sums);
    }
}

/// [`accumulate`] for the `N` vectors of a head from `first` on.
#[inline(always)]
fn accumulate_some<S: Simd, const H: usize, const N: usize>(
    s: S,
    weights: [&[f32]; H],
    fades: &[f32],
    v: &[Floats],
    vectors: usize,
    first: usize,
    sums: &mut [Floats],
) {
    let mut running = [[s.splat(0.0); N]; H];
    for h in 0..H {
        for n in 0..N {
            running[h][n] = s.mul(s.load(&sums[h * vectors + first + n].0), s.splat(fades[h]));
        }
    }
    for (key, v) in v.chunks_exact(vectors).enumerate() {
        let v: &[Floats; N] = v[first..].first_chunk().expect("a head has these vectors");
        for h in 0..H {
            let weight = s.splat(weights[h][key]);
            for n in 0..N {
                running[h][n] = s.fma(weight, s.load(&v[n].0), running[h][n]);
            }
        }
    }
    for h in 0..H {
        for n in 0..N {
            s.store(running[h][n], &mut sums[h * vectors + first + n].0);
        }
    }
}
