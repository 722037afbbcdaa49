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
//!
//! Sums start from the bits of [`MAGIC`], so that their own bits, read as a float, are
//! `MAGIC + Σ`: `fma(MAGIC + Σ, scale, −MAGIC · scale)` is `scale · Σ`, rounded once, and
//! saves the conversion. It is exact because `MAGIC · scale` is: a scale is an f16 (11
//! bits) times a sub-scale of 7 bits at most, and MAGIC has two.
#![allow(clippy::needless_range_loop, reason = "row r and panel p index several arrays at once")]

use std::ops::Range;

use super::{Product, Scratch, Tiles, for_tiles};
use crate::format::{Layout, Scales};
use crate::gemm::Activations;
use crate::gemm::activations::{GROUP, XGroup, XUnit};
use crate::isa::{Bytes, Floats, MAGIC, Simd, SimdOp};
use crate::matrix::planes::{self, Codes, GROUPS};
use crate::matrix::{Data, Quant, QuantMatrix};

/// Units in a slab, at most: 9 KiB of codes a panel, so that two panels, their scales and four rows of activations stay
/// in a first-level cache of 32 KiB.
const SLAB: usize = 18;

/// One value a row of a group.
pub(super) type Terms = [u32; GROUP];

/// What each row adds to a sub-block apart from the products of codes, `[group][unit][sub][row]`: the bits of
/// MAGIC − centre · Σ xcode, or Σ xcode as f32 bits for formats with minima. Empty for dense weights.
pub(super) fn terms(w: &QuantMatrix, x: &Activations<'_>) -> Vec<Terms> {
    let Data::Quant(q) = &w.data else { return Vec::new() };
    let term = |sum: i32| match q.layout.center {
        Some(center) => (MAGIC - (center * sum) as f32).to_bits(),
        None => (sum as f32).to_bits(),
    };
    match q.layout.subs {
        1 => x.sums.iter().map(|[a, b]| std::array::from_fn(|row| term(a[row] + b[row]))).collect(),
        _ => x.sums.as_flattened().iter().map(|sums| sums.map(term)).collect(),
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
    let panels = task.group::<NP>();
    // slabs of about the same size: a short last one would be mostly overhead
    let slab = q.units.div_ceil(q.units.div_ceil(SLAB).max(1));
    for first in (0..q.units).step_by(slab.max(1)) {
        let units = slab.min(q.units - first);
        for (p, panel) in panels.into_iter().enumerate() {
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
            8 => &q.planes.as_chunks().0[panels[p] * q.units + first..][..units],
            _ => &scratch.codes[p * SLAB..][..units],
        });
        let (scales, mins) = (scratch.scales.as_chunks::<SUBS>().0, scratch.mins.as_chunks::<SUBS>().0);
        let sums = scratch.sums.as_chunks_mut::<NP>().0;
        let next = next_slabs::<NP>(q, task.panels.start, first + units, slab);
        let mut ahead = Ahead::new(next, task.rows.len(), units);
        for rows in groups(task.rows.clone()) {
            let at = rows.start / GROUP * q.units + first;
            let inputs = Inputs::<NP, SUBS> {
                codes,
                scales: std::array::from_fn(|p| &scales[p * SLAB..][..units]),
                mins: std::array::from_fn(|p| &mins[p * SLAB..][..units]),
                x: &x.codes[at..][..units],
                x_scales: &x.scales[at..][..units],
                x_terms: &terms[at..][..units],
            };
            let sums = &mut sums[rows.start - task.rows.start..];
            for_tiles!(Tiles::new(rows.len(), S::TILE_ROWS), |row, HEIGHT| {
                s.enter(Tile::<HEIGHT, NP, BITS, SUBS, MIN> {
                    inputs,
                    row,
                    sums: sums[row..].first_chunk_mut().expect("sums are there for all rows"),
                    ahead: ahead.take(HEIGHT),
                })
            });
        }
    }
}

/// Cuts rows at multiples of 16.
fn groups(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    rows.clone().step_by(GROUP).map(move |start| start..rows.end.min(start + GROUP))
}

/// What all tiles of a group of rows read of a slab.
#[derive(Clone, Copy)]
struct Inputs<'a, const NP: usize, const SUBS: usize> {
    codes: [&'a [Codes]; NP],
    scales: [&'a [[Floats; SUBS]]; NP],
    mins: [&'a [[Floats; SUBS]]; NP],
    x: &'a [XGroup],
    x_scales: &'a [[f32; GROUP]],
    x_terms: &'a [[Terms; SUBS]],
}

impl<const NP: usize, const SUBS: usize> Inputs<'_, NP, SUBS> {
    /// The same, in a form that lets the compiler see that all slices are as long as `x`.
    #[inline(always)]
    fn equal_lengths(mut self) -> Self {
        let units = self.x.len();
        for p in 0..NP {
            self.codes[p] = &self.codes[p][..units];
            self.scales[p] = &self.scales[p][..units];
            self.mins[p] = &self.mins[p][..units];
        }
        self.x_scales = &self.x_scales[..units];
        self.x_terms = &self.x_terms[..units];
        self
    }
}

/// Codes that will be unpacked next, shared out among the tiles to be fetched from memory meanwhile.
struct Ahead<'a, const NP: usize> {
    planes: [&'a [Bytes]; NP],
    /// Vectors a row.
    per_row: [usize; NP],
    units: usize,
}

impl<'a, const NP: usize> Ahead<'a, NP> {
    fn new(planes: [&'a [Bytes]; NP], rows: usize, units: usize) -> Self {
        Self { planes, per_row: planes.map(|planes| planes.len().div_ceil(rows)), units }
    }

    /// The share of a tile of so many rows, and how many vectors to fetch in each unit.
    fn take(&mut self, rows: usize) -> [(&'a [Bytes], usize); NP] {
        std::array::from_fn(|p| {
            let share = self.planes[p].len().min(rows * self.per_row[p]);
            let share = self.planes[p].split_off(..share).expect("no longer than what is left");
            (share, share.len().div_ceil(self.units))
        })
    }
}

/// Fetches the part of a tile's share that falls to unit `u`.
#[inline(always)]
fn fetch<S: Simd, const NP: usize>(s: S, ahead: &[(&[Bytes], usize); NP], u: usize) {
    for (planes, lines) in ahead {
        let start = planes.len().min(u * lines);
        planes[start..planes.len().min(start + lines)].iter().for_each(|line| s.prefetch(line));
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
    inputs: Inputs<'a, NP, SUBS>,
    /// First row in the group.
    row: usize,
    sums: &'a mut [[Floats; NP]; HEIGHT],
    ahead: [(&'a [Bytes], usize); NP],
}

impl<const HEIGHT: usize, const NP: usize, const BITS: u32, const SUBS: usize, const MIN: bool> SimdOp
    for Tile<'_, HEIGHT, NP, BITS, SUBS, MIN>
{
    type Output = ();

    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let inputs = self.inputs.equal_lengths();
        let rows = self.row..self.row + HEIGHT;
        let mut sums = [[s.splat(0.0); NP]; HEIGHT];
        for r in 0..HEIGHT {
            for p in 0..NP {
                sums[r][p] = s.load(&self.sums[r][p].0);
            }
        }
        let minus_magic = s.splat(-MAGIC);
        for u in 0..inputs.x.len() {
            fetch(s, &self.ahead, u);
            let x: &[XUnit; HEIGHT] = inputs.x[u].0[rows.clone()].try_into().expect("as long as its range");
            let x_scales: &[f32; HEIGHT] = inputs.x_scales[u][rows.clone()].try_into().expect("as long as its range");
            for sub in 0..SUBS {
                let terms = &inputs.x_terms[u][sub][rows.clone()];
                let terms: &[u32; HEIGHT] = terms.try_into().expect("as long as its range");
                let codes: [&Codes; NP] = std::array::from_fn(|p| &inputs.codes[p][u]);
                let dots = dots::<S, HEIGHT, NP, BITS, SUBS, MIN>(s, codes, x, sub, terms);
                for p in 0..NP {
                    let scale = s.load(&inputs.scales[p][u][sub].0);
                    let bias = s.mul(scale, minus_magic);
                    for r in 0..HEIGHT {
                        let mut product = s.scale_magic(dots[r][p], scale, bias);
                        if MIN {
                            let min = s.load(&inputs.mins[p][u][sub].0);
                            product = s.fma(s.splat(f32::from_bits(terms[r])), min, product);
                        }
                        sums[r][p] = s.fma(product, s.splat(x_scales[r]), sums[r][p]);
                    }
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

/// Integer dot products of sub-block `sub` of a unit, less the centre's share, on top of the bits of MAGIC.
#[inline(always)]
fn dots<S: Simd, const HEIGHT: usize, const NP: usize, const BITS: u32, const SUBS: usize, const MIN: bool>(
    s: S,
    codes: [&Codes; NP],
    x: &[XUnit; HEIGHT],
    sub: usize,
    terms: &[u32; HEIGHT],
) -> [[S::I; NP]; HEIGHT] {
    let mut dots = [[s.splat_i(MAGIC.to_bits() as i32); NP]; HEIGHT];
    if !(MIN || BITS == 8 && S::SIGNED_BYTES) {
        for r in 0..HEIGHT {
            dots[r] = [s.splat_i(terms[r] as i32); NP];
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
                let w = s.load_w(&codes[p][g]);
                for r in 0..HEIGHT {
                    running[r][p] = s.dot::<BITS>(running[r][p], w, x[r][g]);
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
