//! The steps of attention to one chunk of keys: score, weigh, accumulate, for `R` rows at a time.
//!
//! However many rows a step takes, each row's arithmetic is the same: rows share loads, nothing else.
#![allow(clippy::needless_range_loop, reason = "rows, keys and vectors index several arrays at once")]

use std::ops::Range;

use crate::isa::{Floats, LANES, Simd};
use crate::math::exp;

/// Groups of 16 positions in a chunk.
pub(super) const GROUPS: usize = 4;

/// Positions that a row scores before it weighs and accumulates them; the first is a multiple of this.
pub(super) const CHUNK: usize = GROUPS * LANES;

/// What K and V are read from: the cache, or a widened copy.
pub(super) trait Element: Copy + Sync {
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F;
}

/// Bit patterns of f16.
impl Element for u16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[u16; LANES]) -> S::F {
        s.load_f16(x)
    }
}

impl Element for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[f32; LANES]) -> S::F {
        s.load(x)
    }
}

/// Keys and values of one head: group g of 16 positions begins at `starts[g]`, K as `[head_dim][16]` and
/// V as `[16][vectors]`, vectors of 16.
#[derive(Clone, Copy)]
pub(super) struct Chunk<'a, T> {
    pub k: &'a [[T; LANES]],
    pub v: &'a [[T; LANES]],
    pub starts: [usize; GROUPS],
}

/// Asks for all of `halves`, which a later step will read.
#[inline(always)]
pub(super) fn fetch_ahead<S: Simd>(s: S, halves: &[u16]) {
    const LINE: usize = 64 / size_of::<u16>();
    halves.iter().step_by(LINE).for_each(|half| s.prefetch(half));
}

/// Scores of `R` rows for `groups` of keys: `scores[row][group]`, 16 keys a vector.
#[inline(always)]
pub(super) fn score<S: Simd, T: Element, const R: usize>(
    s: S,
    q: [&[f32]; R],
    chunk: &Chunk<'_, T>,
    groups: Range<usize>,
    scores: &mut [[Floats; GROUPS]; R],
) {
    let dim = q[0].len();
    let k = |group: usize| &chunk.k[chunk.starts[group]..][..dim];
    let mut group = groups.start;
    while group < groups.end {
        // As many at a time as the registers hold running sums for.
        if S::PANELS == 2 && group + 2 <= groups.end {
            score_some::<S, T, R, 2>(s, q, [k(group), k(group + 1)], scores, group);
            group += 2;
        } else if S::PANELS == 2 || R <= 3 {
            score_some::<S, T, R, 1>(s, q, [k(group)], scores, group);
            group += 1;
        } else {
            for r in (0..R).step_by(3) {
                let q = q[r..].first_chunk().expect("more than three rows are a multiple of three");
                let scores = scores[r..].first_chunk_mut().expect("more than three rows are a multiple of three");
                score_some::<S, T, 3, 1>(s, *q, [k(group)], scores, group);
            }
            group += 1;
        }
    }
}

/// [`score`] for `B` groups.
///
/// Even and odd elements of the head have a sum each, which halves the chains of additions and their errors.
#[inline(always)]
fn score_some<S: Simd, T: Element, const R: usize, const B: usize>(
    s: S,
    q: [&[f32]; R],
    k: [&[[T; LANES]]; B],
    scores: &mut [[Floats; GROUPS]; R],
    first: usize,
) {
    let dim = q[0].len();
    let q_pairs: [&[[f32; 2]]; R] = std::array::from_fn(|r| &q[r].as_chunks().0[..dim / 2]);
    let k_pairs: [&[[[T; LANES]; 2]]; B] = std::array::from_fn(|b| &k[b].as_chunks().0[..dim / 2]);
    let mut sums = [[[s.splat(0.0); 2]; B]; R];
    for i in 0..dim / 2 {
        for half in 0..2 {
            let mut keys = [s.splat(0.0); B];
            for b in 0..B {
                keys[b] = T::load(s, &k_pairs[b][i][half]);
            }
            for r in 0..R {
                let q = s.splat(q_pairs[r][i][half]);
                for b in 0..B {
                    sums[r][b][half] = s.fma(q, keys[b], sums[r][b][half]);
                }
            }
        }
    }
    if !dim.is_multiple_of(2) {
        for b in 0..B {
            let keys = T::load(s, &k[b][dim - 1]);
            for r in 0..R {
                sums[r][b][0] = s.fma(s.splat(q[r][dim - 1]), keys, sums[r][b][0]);
            }
        }
    }
    for r in 0..R {
        for b in 0..B {
            s.store(s.add(sums[r][b][0], sums[r][b][1]), &mut scores[r][first + b].0);
        }
    }
}

/// Turns the scores of `R` rows into weights relative to the largest score so far and adds them to the totals;
/// returns what earlier sums are to be multiplied by.
///
/// Positions out of sight are −∞ and get the weight 0. NaN, or nothing but −∞, makes weights NaN, and the total.
#[inline(always)]
pub(super) fn weigh<S: Simd, const R: usize>(
    s: S,
    scores: &mut [[Floats; GROUPS]; R],
    groups: Range<usize>,
    largest: &mut [f32; R],
    totals: &mut [Floats; R],
) -> [f32; R] {
    // Each part for all rows before the next: their latencies overlap.
    let mut max = [0.0; R];
    for r in 0..R {
        let mut row = s.splat(largest[r]);
        for scores in &scores[r][groups.clone()] {
            row = s.max(s.load(&scores.0), row);
        }
        max[r] = s.max_lane(row);
    }
    let mut fades = [0.0; LANES];
    for r in 0..R {
        fades[r] = largest[r] - max[r];
    }
    s.store(exp(s, s.load(&fades)), &mut fades);
    *largest = max;
    for r in 0..R {
        let mut sum = s.mul(s.load(&totals[r].0), s.splat(fades[r]));
        for scores in &mut scores[r][groups.clone()] {
            let weights = exp(s, s.sub(s.load(&scores.0), s.splat(max[r])));
            s.store(weights, &mut scores.0);
            sum = s.add(sum, weights);
        }
        s.store(sum, &mut totals[r].0);
    }
    *fades.first_chunk().expect("at most as many rows as lanes")
}

#[inline(always)]
pub(super) fn exp_of<S: Simd>(s: S, x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(exp(s, s.splat(x)), &mut lanes);
    lanes[0]
}

/// `sums = fade · sums + Σ weight · v` over `keys` of the chunk, for `R` rows.
#[inline(always)]
pub(super) fn accumulate<S: Simd, T: Element, const R: usize>(
    s: S,
    weights: [&[f32; CHUNK]; R],
    fades: [f32; R],
    keys: Range<usize>,
    chunk: &Chunk<'_, T>,
    mut sums: [&mut [Floats]; R],
) {
    let vectors = sums[0].len();
    let mut first = 0;
    // As many vectors at a time as the registers hold running sums for.
    while S::PANELS == 2 && first + 4 <= vectors {
        accumulate_some::<S, T, R, 4>(s, weights, fades, keys.clone(), chunk, first, &mut sums);
        first += 4;
    }
    while (S::PANELS == 2 || R <= 2) && first + 2 <= vectors {
        accumulate_some::<S, T, R, 2>(s, weights, fades, keys.clone(), chunk, first, &mut sums);
        first += 2;
    }
    while first < vectors {
        accumulate_some::<S, T, R, 1>(s, weights, fades, keys.clone(), chunk, first, &mut sums);
        first += 1;
    }
}

/// [`accumulate`] for the `N` vectors of a head from `first` on.
#[inline(always)]
fn accumulate_some<S: Simd, T: Element, const R: usize, const N: usize>(
    s: S,
    weights: [&[f32; CHUNK]; R],
    fades: [f32; R],
    keys: Range<usize>,
    chunk: &Chunk<'_, T>,
    first: usize,
    sums: &mut [&mut [Floats]; R],
) {
    let vectors = sums[0].len();
    let mut running = [[s.splat(0.0); N]; R];
    for r in 0..R {
        for n in 0..N {
            running[r][n] = s.mul(s.load(&sums[r][first + n].0), s.splat(fades[r]));
        }
    }
    for group in keys.start / LANES..keys.end.div_ceil(LANES) {
        let at = group * LANES;
        let (low, high) = (keys.start.max(at) - at, keys.end.min(at + LANES) - at);
        let v = &chunk.v[chunk.starts[group] + low * vectors..chunk.starts[group] + high * vectors];
        let w: [&[f32]; R] = std::array::from_fn(|r| &weights[r][at + low..at + high]);
        for (key, v) in v.chunks_exact(vectors).enumerate() {
            let v: &[[T; LANES]; N] = v[first..].first_chunk().expect("a head has these vectors");
            let mut values = [s.splat(0.0); N];
            for n in 0..N {
                values[n] = T::load(s, &v[n]);
            }
            for r in 0..R {
                let weight = s.splat(w[r][key]);
                for n in 0..N {
                    running[r][n] = s.fma(weight, values[n], running[r][n]);
                }
            }
        }
    }
    for r in 0..R {
        for n in 0..N {
            s.store(running[r][n], &mut sums[r][first + n].0);
        }
    }
}
