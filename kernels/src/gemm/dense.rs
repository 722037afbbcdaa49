//! F32, F16 and BF16 weights: f32 products summed over the inputs in order.
#![allow(clippy::needless_range_loop, reason = "row r and panel p index several arrays at once")]

use super::{Product, Scratch, Tiles, for_tiles};
use crate::isa::{Floats, Halves, Simd, SimdOp};

/// Inputs in a slab: 8 KiB of floats a panel.
const SLAB: usize = 128;

/// Rows of a tile, at most: 12 running sums hide the latency of a multiply-add and fit in 16 registers.
const TILE_ROWS: usize = 6;

/// The panels of a dense matrix.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Full(&'a [Floats]),
    F16(&'a [Halves]),
    Bf16(&'a [Halves]),
}

/// Adds the product of a task to the sums in `scratch`.
#[inline(always)]
pub(super) fn group<S: Simd, const NP: usize>(s: S, product: Product<'_>, source: Source<'_>, scratch: &mut Scratch) {
    let Product { w, x, task, .. } = product;
    let cols = w.cols();
    scratch.scales.resize(NP * SLAB, Floats::ZERO);
    for first in (0..cols).step_by(SLAB) {
        let len = SLAB.min(cols - first);
        for (p, panel) in task.group::<NP>().into_iter().enumerate() {
            let to = &mut scratch.scales[p * SLAB..][..len];
            s.enter(Widen { source, at: panel * cols + first, to });
        }
        let sums = scratch.sums.as_chunks_mut::<NP>().0;
        for_tiles!(Tiles::new(task.rows.len(), TILE_ROWS), |row, HEIGHT| {
            s.enter(Tile::<HEIGHT, NP> {
                len,
                w: std::array::from_fn(|p| &scratch.scales[p * SLAB..][..len]),
                x: std::array::from_fn(|r| &x.floats[(task.rows.start + row + r) * cols + first..][..len]),
                sums: sums[row..].first_chunk_mut().expect("tiles stay inside the task's rows"),
            })
        });
    }
}

/// Weights of a slab as floats.
struct Widen<'a> {
    source: Source<'a>,
    at: usize,
    to: &'a mut [Floats],
}

impl SimdOp for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        match self.source {
            Source::Full(w) => self.to.copy_from_slice(&w[self.at..][..self.to.len()]),
            Source::F16(w) => {
                for (to, w) in self.to.iter_mut().zip(&w[self.at..]) {
                    s.store(s.load_f16(&w.0), &mut to.0);
                }
            }
            Source::Bf16(w) => {
                for (to, w) in self.to.iter_mut().zip(&w[self.at..]) {
                    s.store(s.load_bf16(&w.0), &mut to.0);
                }
            }
        }
    }
}

/// `HEIGHT` rows times `NP` panels over a slab.
struct Tile<'a, const HEIGHT: usize, const NP: usize> {
    len: usize,
    w: [&'a [Floats]; NP],
    x: [&'a [f32]; HEIGHT],
    sums: &'a mut [[Floats; NP]; HEIGHT],
}

impl<const HEIGHT: usize, const NP: usize> SimdOp for Tile<'_, HEIGHT, NP> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        // the same slices, in a form that lets the compiler see that all hold `len` elements
        let (w, x) = (self.w.map(|w| &w[..self.len]), self.x.map(|x| &x[..self.len]));
        let mut sums = [[s.splat(0.0); NP]; HEIGHT];
        for r in 0..HEIGHT {
            for p in 0..NP {
                sums[r][p] = s.load(&self.sums[r][p].0);
            }
        }
        for k in 0..self.len {
            for p in 0..NP {
                let w = s.load(&w[p][k].0);
                for r in 0..HEIGHT {
                    sums[r][p] = s.fma(s.splat(x[r][k]), w, sums[r][p]);
                }
            }
        }
        for r in 0..HEIGHT {
            for p in 0..NP {
                s.store(sums[r][p], &mut self.sums[r][p].0);
            }
        }
    }
}
