//! Matrix products: shapes, tasks and threads. The arithmetic is in `int8` and `dense`.
//!
//! A task is a group of neighbouring panels times a chunk of rows. It walks the inputs
//! in slabs that fit the first-level cache: unpack the weights of a slab once, then
//! multiply them with every row of the chunk. So weights stream from memory once for
//! up to [`ROW_CHUNK`] rows. Each output element is summed over the inputs in order,
//! by one thread, with arithmetic that does not know of other rows: its bits depend
//! on its row, its weights and the instruction set alone.

mod activations;
mod dense;
mod int8;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;

use rayon::prelude::*;

pub use activations::Activations;
use activations::GROUP;

use crate::error::{area, check_at_least, check_len, check_range};
use crate::isa::{Floats, LANES, Simd, SimdOp};
use crate::matrix::{Data, QuantMatrix, planes::Codes};
use crate::output::SharedRows;
use crate::{Format, KernelError};

/// Rows that share one unpacking of the weights, at most.
const ROW_CHUNK: usize = 128;

/// Activations of a chunk (a byte each, four for dense weights), unless that leaves fewer than 32 rows: they stream once for
/// each group of panels, which is cheaper than to unpack the weights again.
const CHUNK_BYTES: usize = 1 << 20;

/// Multiply-adds below which a product stays on the calling thread: about the time it takes to wake another.
const SERIAL: usize = 1 << 19;

/// `out[r · stride + offset + j] = Σₖ w[j, k] · x[r, k]`, in the current rayon pool.
///
/// Other elements of `out` are left alone.
///
/// # Errors
/// If inputs and columns differ, the outputs do not fit in a row of `stride`, or `out` is too short.
pub fn matmul(
    w: &QuantMatrix,
    x: &Activations<'_>,
    out: &mut [f32],
    stride: usize,
    offset: usize,
) -> Result<(), KernelError> {
    matmul_parts(&[(w, offset)], x, out, stride)
}

/// Several products of the same activations in one parallel region: `parts` are weights and their offsets.
///
/// The result is that of calling [`matmul`] for each.
///
/// # Errors
/// As [`matmul`], or if two parts overlap.
pub fn matmul_parts(
    parts: &[(&QuantMatrix, usize)],
    x: &Activations<'_>,
    out: &mut [f32],
    stride: usize,
) -> Result<(), KernelError> {
    let rows = x.rows();
    check_parts(parts, x, out.len(), stride)?;
    if rows == 0 {
        return Ok(());
    }
    let terms: Vec<_> = parts.iter().map(|(w, _)| int8::terms(w, x)).collect();
    let work: usize = parts.iter().map(|(w, _)| w.rows() * w.cols()).sum::<usize>().saturating_mul(rows);
    let serial = work < SERIAL || rayon::current_num_threads() == 1;
    let tasks = tasks(parts, rows, if serial { 1 } else { rayon::current_num_threads() });
    let out = SharedRows::new(out, stride);
    let run = |task: &Task| {
        let (w, offset) = parts[task.part];
        let product = Product { w, x, terms: &terms[task.part], task, out: &out, offset };
        SCRATCH.with_borrow_mut(|scratch| w.isa().run(GroupOp { product, scratch }));
    };
    if serial {
        tasks.iter().for_each(run)
    } else {
        tasks.par_iter().for_each(run)
    }
    Ok(())
}

fn check_parts(
    parts: &[(&QuantMatrix, usize)],
    x: &Activations<'_>,
    out_len: usize,
    stride: usize,
) -> Result<(), KernelError> {
    let mut spans: Vec<Range<usize>> = Vec::with_capacity(parts.len());
    for (w, offset) in parts {
        check_len("matmul: columns of the weights against those of the activations", w.cols(), x.cols())?;
        check_range("matmul: end of the outputs in a row", stride, offset.saturating_add(w.rows()))?;
        spans.push(*offset..offset + w.rows());
        if x.rows() > 0 {
            let needed = area("matmul: out", x.rows() - 1, stride)?.saturating_add(offset + w.rows());
            check_at_least("matmul: out", needed, out_len)?;
        }
    }
    spans.retain(|span| !span.is_empty());
    spans.sort_by_key(|span| span.start);
    for pair in spans.windows(2) {
        check_range("matmul: end of one part against the start of the next", pair[1].start, pair[0].end)?;
    }
    Ok(())
}

/// A group of panels of one part times a range of rows.
struct Task {
    part: usize,
    panels: Range<usize>,
    rows: Range<usize>,
}

impl Task {
    /// The panels to multiply with each other's loads shared. The last group of an odd number
    /// of panels has its panel twice; only one of the results is used.
    fn group<const NP: usize>(&self) -> [usize; NP] {
        std::array::from_fn(|p| (self.panels.start + p).min(self.panels.end - 1))
    }
}

/// Cuts the parts into tasks; how they are cut has no influence on any bit.
fn tasks(parts: &[(&QuantMatrix, usize)], rows: usize, threads: usize) -> Vec<Task> {
    let groups: usize = parts.iter().map(|(w, _)| w.rows().div_ceil(LANES).div_ceil(w.isa().panels())).sum();
    let widest = parts.iter().map(|(w, _)| w.cols()).max().unwrap_or(0).max(1);
    // Chunks are whole groups of rows, as activations are.
    let size = if parts.iter().any(|(w, _)| matches!(w.data, Data::Quant(_))) { 1 } else { size_of::<f32>() };
    let mut chunk = (CHUNK_BYTES / (widest * size)).clamp(32, ROW_CHUNK).min(rows).next_multiple_of(GROUP);
    // Few outputs and many rows: cut rows until there is work for all threads.
    while threads > 1 && chunk > GROUP && groups * rows.div_ceil(chunk) < 4 * threads {
        chunk = (chunk / 2).next_multiple_of(GROUP);
    }
    let mut tasks = Vec::with_capacity(groups * rows.div_ceil(chunk));
    for (part, (w, _)) in parts.iter().enumerate() {
        let panels = w.rows().div_ceil(LANES);
        for panel in (0..panels).step_by(w.isa().panels()) {
            for row in (0..rows).step_by(chunk) {
                tasks.push(Task {
                    part,
                    panels: panel..panels.min(panel + w.isa().panels()),
                    rows: row..rows.min(row + chunk),
                });
            }
        }
    }
    tasks
}

/// What a task computes.
#[derive(Clone, Copy)]
struct Product<'a> {
    w: &'a QuantMatrix,
    x: &'a Activations<'a>,
    /// See [`int8::terms`].
    terms: &'a [int8::Terms],
    task: &'a Task,
    out: &'a SharedRows<'a>,
    offset: usize,
}

/// Buffers of one thread, kept between calls.
#[derive(Default)]
struct Scratch {
    /// Unpacked codes of a slab.
    codes: Vec<Codes>,
    /// Scales of a slab, or its dense weights.
    scales: Vec<Floats>,
    mins: Vec<Floats>,
    /// Sums so far, `[row][panel]`.
    sums: Vec<Floats>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

struct GroupOp<'a> {
    product: Product<'a>,
    scratch: &'a mut Scratch,
}

impl SimdOp for GroupOp<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        match S::PANELS {
            1 => group::<S, 1>(s, self.product, self.scratch),
            _ => group::<S, 2>(s, self.product, self.scratch),
        }
    }
}

/// Runs a task of `NP` panels.
#[inline(always)]
fn group<S: Simd, const NP: usize>(s: S, product: Product<'_>, scratch: &mut Scratch) {
    let Product { w, task, .. } = product;
    scratch.sums.clear();
    scratch.sums.resize(NP * task.rows.len(), Floats::ZERO);
    match &w.data {
        Data::Full(weights) => dense::group::<S, NP>(s, product, dense::Source::Full(weights), scratch),
        Data::Half(weights) if w.format() == Format::BF16 => {
            dense::group::<S, NP>(s, product, dense::Source::Bf16(weights), scratch)
        }
        Data::Half(weights) => dense::group::<S, NP>(s, product, dense::Source::F16(weights), scratch),
        Data::Quant(q) => int8::group::<S, NP>(s, product, q, scratch),
    }
    for (r, sums) in task.rows.clone().zip(scratch.sums.as_chunks::<NP>().0) {
        for (panel, sums) in task.panels.clone().zip(sums) {
            let first = panel * LANES;
            let len = LANES.min(w.rows() - first);
            // SAFETY: tasks partition panels and rows, and parts were checked to be disjoint.
            let out = unsafe { product.out.row(r, product.offset + first, len) };
            match out.first_chunk_mut() {
                Some(whole) => *whole = sums.0,
                None => out.copy_from_slice(&sums.0[..len]),
            }
        }
    }
}

/// Rows cut into tiles of about the same height.
///
/// A row is computed in the same way in a tile of any height.
#[derive(Clone, Copy)]
struct Tiles {
    rows: usize,
    count: usize,
}

impl Tiles {
    /// As few tiles as can be, of `most` rows at most.
    fn new(rows: usize, most: usize) -> Self {
        Self { rows, count: rows.div_ceil(most) }
    }

    /// First row and height of each tile, the higher ones first.
    fn spans(self) -> impl Iterator<Item = (usize, usize)> {
        let (low, higher) = (self.rows / self.count.max(1), self.rows % self.count.max(1));
        (0..self.count).map(move |i| (i * low + i.min(higher), low + usize::from(i < higher)))
    }
}

/// Runs the body for each tile, with its first row and, as a constant, its height of 6 rows at most.
macro_rules! for_tiles {
    ($tiles:expr, |$row:ident, $height:ident| $body:expr) => {
        for ($row, height) in $tiles.spans() {
            for_tiles!(@match height, $height, $body, 1 2 3 4 5 6)
        }
    };
    (@match $found:ident, $height:ident, $body:expr, $($n:literal)*) => {
        match $found {
            $($n => {
                const $height: usize = $n;
                $body
            })*
            other => unreachable!("tiles have 1 to 6 rows, not {other}"),
        }
    };
}
use for_tiles;
