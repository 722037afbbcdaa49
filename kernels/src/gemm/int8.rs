//! Quantized weights times quantized activations.
//!
//! With weights `w = scale · (code − centre)` or `w = scale · code + min` and
//! activations `x = xscale · xcode`, a unit of 32 inputs adds
//!
//! `xscale · Σ_sub ( scale · (Σ code · xcode − centre · Σ xcode) + min · Σ xcode )`
//!
//! where all sums of codes are exact integers: |Σ| ≤ 32 · 255 · 127 < 2²⁰, which f32
//! holds exactly too. The centre or minimum costs no pass over the codes, as Σ xcode
//! is known from quantizing.
#![allow(clippy::needless_range_loop, reason = "row r and panel p index several arrays at once")]

use std::ops::Range;

use super::{Product, Scratch, row_tiles};
use crate::format::{Layout, Scales};
use crate::gemm::Activations;
use crate::gemm::activations::XUnit;
use crate::isa::{Bytes, Floats, Simd, SimdOp};
use crate::matrix::planes::{self, Codes, GROUPS};
use crate::matrix::{Data, Quant, QuantMatrix};

/// Units in a slab, at most: 9 KiB of codes a panel, so that two panels, their scales and four rows of activations stay
/// in a first-level cache of 32 KiB.
const SLAB: usize = 18;

/// What each row adds to a sub-block apart from the products of codes, `[row][unit][sub]`:
/// −centre · Σ xcode as i32 bits, or Σ xcode as f32 bits for formats with minima. Empty for dense weights.
pub(super) fn terms(w: &QuantMatrix, x: &Activations<'_>) -> Vec<u32> {
    let Data::Quant(q) = &w.data else { return Vec::new() };
    let term = |sum: i32| match q.layout.center {
        Some(center) => (-center * sum) as u32,
        None => (sum as f32).to_bits(),
    };
    match q.layout.subs {
        1 => x.sums.iter().map(|[a, b]| term(a + b)).collect(),
        _ => x.sums.as_flattened().iter().map(|sum| term(*sum)).collect(),
    }
}

/// Adds the product of a task to the sums in `scratch`.
#[inline(always)]
pub(super) fn group<S: Simd, const NP: usize>(s: S, product: Product<'_>, q: &Quant, scratch: &mut Scratch) {
    let Layout { bits, subs, center, .. } = q.layout;
    match (bits, subs, center.is_none()) {
        (2, 2, true) => slabs::<S, NP, 2, 2, true>(s, product, q, scratch),
        (3, 2, false) => slabs::<S, NP, 3, 2, false>(s, product, q, scratch),
        (4, 1, false) => slabs::<S, NP, 4, 1, false>(s, product, q, scratch),
        (4, 1, true) => slabs::<S, NP, 4, 1, true>(s, product, q, scratch),
        (5, 1, false) => slabs::<S, NP, 5, 1, false>(s, product, q, scratch),
        (5, 1, true) => slabs::<S, NP, 5, 1, true>(s, product, q, scratch),
        (6, 2, false) => slabs::<S, NP, 6, 2, false>(s, product, q, scratch),
        (8, 1, false) => slabs::<S, NP, 8, 1, false>(s, product, q, scratch),
        other => unreachable!("no format has the layout {other:?}"),
    }
}

#[inline(always)]
fn slabs<S: Simd, const NP: usize, const BITS: u32, const SUBS: usize, const MIN: bool>(
    s: S,
    product: Product<'_>,
    q: &Quant,
    scratch: &mut Scratch,
) {
    let Product { x, task, .. } = product;
    scratch.codes.resize(NP * SLAB, [Bytes::ZERO; GROUPS]);
    scratch.scales.resize(NP * SLAB * SUBS, Floats::ZERO);
    scratch.mins.resize(NP * SLAB * SUBS, Floats::ZERO);
    let terms = product.terms.as_chunks::<SUBS>().0;
    // slabs of about the same size: a short last one would be mostly overhead
    let slab = q.units.div_ceil(q.units.div_ceil(SLAB).max(1));
    for first in (0..q.units).step_by(slab.max(1)) {
        let units = slab.min(q.units - first);
        for (p, panel) in task.panels.clone().enumerate() {
            s.enter(Unpack::<BITS, SUBS, MIN> {
                q,
                panel,
                first,
                codes: &mut scratch.codes[p * SLAB..][..units],
                scales: &mut scratch.scales.as_chunks_mut().0[p * SLAB..][..units],
                mins: &mut scratch.mins.as_chunks_mut().0[p * SLAB..][..units],
            });
        }
        let codes: [&[Codes]; NP] = std::array::from_fn(|p| match BITS {
            // whole bytes need no unpacking
            8 => &q.planes.as_chunks().0[(task.panels.start + p) * q.units + first..][..units],
            _ => &scratch.codes[p * SLAB..][..units],
        });
        let (scales, mins) = (scratch.scales.as_chunks::<SUBS>().0, scratch.mins.as_chunks::<SUBS>().0);
        let sums = scratch.sums.as_chunks_mut::<NP>().0;
        let next = next_slabs::<NP>(q, task.panels.start, first + units, slab);
        row_tiles!(task.rows.len(), |row, HEIGHT| {
            let at = |r: usize| (task.rows.start + row + r) * q.units + first;
            s.enter(Tile::<HEIGHT, NP, BITS, SUBS, MIN> {
                units,
                codes,
                scales: std::array::from_fn(|p| &scales[p * SLAB..][..units]),
                mins: std::array::from_fn(|p| &mins[p * SLAB..][..units]),
                x: std::array::from_fn(|r| &x.codes[at(r)..][..units]),
                x_scales: std::array::from_fn(|r| &x.scales[at(r)..][..units]),
                x_terms: std::array::from_fn(|r| &terms[at(r)..][..units]),
                sums: sums[row..].first_chunk_mut().expect("tiles stay inside the task's rows"),
                ahead: next.map(|planes| share(planes, row..row + HEIGHT, task.rows.len())),
            })
        });
    }
}

/// The codes that will be unpacked next: of the same panels from unit `first` on, or of the next panels.
fn next_slabs<const NP: usize>(q: &Quant, panel: usize, first: usize, slab: usize) -> [&[Bytes]; NP] {
    let (panel, first) = if first < q.units { (panel, first) } else { (panel + NP, 0) };
    std::array::from_fn(|p| {
        let bits = q.layout.bits as usize;
        let start = ((panel + p) * q.units + first) * bits;
        q.planes.get(start..start + slab.min(q.units - first) * bits).unwrap_or_default()
    })
}

/// The part of `all` that falls to `rows` when all `of` rows get equal parts.
fn share(all: &[Bytes], rows: Range<usize>, of: usize) -> &[Bytes] {
    &all[all.len() * rows.start / of..all.len() * rows.end / of]
}

/// Unpacks units `first ..` of a panel.
struct Unpack<'a, const BITS: u32, const SUBS: usize, const MIN: bool> {
    q: &'a Quant,
    panel: usize,
    first: usize,
    codes: &'a mut [Codes],
    scales: &'a mut [[Floats; SUBS]],
    mins: &'a mut [[Floats; SUBS]],
}

impl<const BITS: u32, const SUBS: usize, const MIN: bool> SimdOp for Unpack<'_, BITS, SUBS, MIN> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let Self { q, panel, first, codes, scales, mins } = self;
        let zero = s.splat(0.0);
        let per_block = q.units_per_block();
        let at = panel * q.units + first;
        let planes = q.planes[at * BITS as usize..].chunks_exact(BITS as usize);
        for (u, (codes, planes)) in codes.iter_mut().zip(planes).enumerate() {
            if BITS < 8 {
                planes::unpack::<S, BITS>(s, planes, codes);
            }
            let block = panel * (q.units / per_block) + (first + u) / per_block;
            let d = s.load_f16(&q.d[block].0);
            let m = if MIN { s.load_f16(&q.m[block].0) } else { zero };
            for sub in 0..SUBS {
                let byte = (at + u) * SUBS + sub;
                let (scale, min) = match q.layout.scales {
                    Scales::Block => (d, m),
                    Scales::Super => {
                        let scale = s.mul(d, s.to_float(s.load_i8(&q.sub[byte])));
                        let min = if MIN { s.mul(m, s.to_float(s.load_i8(&q.sub_min[byte]))) } else { zero };
                        (scale, s.sub(zero, min))
                    }
                    Scales::SuperNibbles => {
                        let both = s.load_i8(&q.sub[byte]);
                        let scale = s.mul(d, s.to_float(s.and_i(both, 15)));
                        let min = s.mul(m, s.to_float(s.and_i(s.shr4_i(both), 15)));
                        (scale, s.sub(zero, min))
                    }
                };
                s.store(scale, &mut scales[u][sub].0);
                if MIN {
                    s.store(min, &mut mins[u][sub].0);
                }
            }
        }
    }
}

/// `HEIGHT` rows times `NP` panels over the units of a slab.
struct Tile<'a, const HEIGHT: usize, const NP: usize, const BITS: u32, const SUBS: usize, const MIN: bool> {
    units: usize,
    codes: [&'a [Codes]; NP],
    scales: [&'a [[Floats; SUBS]]; NP],
    mins: [&'a [[Floats; SUBS]]; NP],
    x: [&'a [XUnit]; HEIGHT],
    x_scales: [&'a [f32]; HEIGHT],
    x_terms: [&'a [[u32; SUBS]]; HEIGHT],
    sums: &'a mut [[Floats; NP]; HEIGHT],
    /// Fetched from memory meanwhile.
    ahead: [&'a [Bytes]; NP],
}

impl<const HEIGHT: usize, const NP: usize, const BITS: u32, const SUBS: usize, const MIN: bool> SimdOp
    for Tile<'_, HEIGHT, NP, BITS, SUBS, MIN>
{
    type Output = ();

    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let tile = self.equal_lengths();
        let zero = s.splat(0.0);
        let mut sums = [[zero; NP]; HEIGHT];
        for r in 0..HEIGHT {
            for p in 0..NP {
                sums[r][p] = s.load(&tile.sums[r][p].0);
            }
        }
        let lines = tile.ahead.map(|ahead| ahead.len().div_ceil(tile.units));
        for u in 0..tile.units {
            for p in 0..NP {
                for line in tile.ahead[p].iter().skip(u * lines[p]).take(lines[p]) {
                    s.prefetch(line);
                }
            }
            let mut unit = [[zero; NP]; HEIGHT];
            for sub in 0..SUBS {
                let dots = tile.dots(s, u, sub);
                for p in 0..NP {
                    let scale = s.load(&tile.scales[p][u][sub].0);
                    for r in 0..HEIGHT {
                        let dot = s.to_float(dots[r][p]);
                        unit[r][p] = if sub == 0 { s.mul(dot, scale) } else { s.fma(dot, scale, unit[r][p]) };
                    }
                    if MIN {
                        let min = s.load(&tile.mins[p][u][sub].0);
                        for r in 0..HEIGHT {
                            let term = s.splat(f32::from_bits(tile.x_terms[r][u][sub]));
                            unit[r][p] = s.fma(term, min, unit[r][p]);
                        }
                    }
                }
            }
            for r in 0..HEIGHT {
                let scale = s.splat(tile.x_scales[r][u]);
                for p in 0..NP {
                    sums[r][p] = s.fma(unit[r][p], scale, sums[r][p]);
                }
            }
        }
        for r in 0..HEIGHT {
            for p in 0..NP {
                s.store(sums[r][p], &mut tile.sums[r][p].0);
            }
        }
    }
}

impl<const HEIGHT: usize, const NP: usize, const BITS: u32, const SUBS: usize, const MIN: bool>
    Tile<'_, HEIGHT, NP, BITS, SUBS, MIN>
{
    /// The same tile, in a form that lets the compiler see that all slices hold `units` elements.
    #[inline(always)]
    fn equal_lengths(mut self) -> Self {
        for p in 0..NP {
            self.codes[p] = &self.codes[p][..self.units];
            self.scales[p] = &self.scales[p][..self.units];
            self.mins[p] = &self.mins[p][..self.units];
        }
        for r in 0..HEIGHT {
            self.x[r] = &self.x[r][..self.units];
            self.x_scales[r] = &self.x_scales[r][..self.units];
            self.x_terms[r] = &self.x_terms[r][..self.units];
        }
        self
    }

    /// Integer dot products of sub-block `sub` of unit `u`, less the centre's share.
    #[inline(always)]
    fn dots<S: Simd>(&self, s: S, u: usize, sub: usize) -> [[S::I; NP]; HEIGHT] {
        let mut dots = [[s.splat_i(0); NP]; HEIGHT];
        if !(MIN || BITS == 8 && S::SIGNED_BYTES) {
            for r in 0..HEIGHT {
                dots[r] = [s.splat_i(self.x_terms[r][u][sub] as i32); NP];
            }
        }
        let groups = GROUPS / SUBS;
        let chain = S::chain(BITS).min(groups);
        for c in 0..groups / chain {
            let mut running = [[s.start(dots[0][0]); NP]; HEIGHT];
            for r in 0..HEIGHT {
                for p in 0..NP {
                    running[r][p] = s.start(dots[r][p]);
                }
            }
            for i in 0..chain {
                let g = sub * groups + c * chain + i;
                for p in 0..NP {
                    let w = s.load_w(&self.codes[p][u][g]);
                    for r in 0..HEIGHT {
                        running[r][p] = s.dot::<BITS>(running[r][p], w, self.x[r][u][g]);
                    }
                }
            }
            for r in 0..HEIGHT {
                for p in 0..NP {
                    dots[r][p] = s.finish(dots[r][p], running[r][p]);
                }
            }
        }
        dots
    }
}
