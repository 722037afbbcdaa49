//! Attention over a paged K/V cache on the CPU.
//!
//! The cache of one layer is `[block][kv head]` in f16, and within a head, for each group of 16
//! positions, K as `[head_dim][16]` and V as `[16][head_dim]`: a vector then holds an element of 16
//! keys, and scores need no sums across lanes. Slot `s` is position `s % block_size` of block
//! `s / block_size`.
//!
//! Every query reads its keys and values back from the cache, chunk by chunk in order, with an online
//! softmax (Milakov and Gimelshein, 2018) over each segment of 256 positions; segments are joined in
//! order at the end. Chunks and segments begin at fixed positions, so a result depends on its keys,
//! their positions and the instruction set, but not on how queries were cut into calls, spans or
//! threads. Queries that share a K/V head share its loads, those of other sequences too where their
//! tables name the same blocks.

mod plan;
mod run;
mod steps;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use crate::KernelError;
use crate::error::{area, check_at_least, check_len, check_range};
use crate::isa::{Isa, LANES};
use crate::output::SharedRows;
use plan::Plan;
use run::{Attend, Inputs, Partials, Scratch};

/// Positions whose results are joined at the end, so that tasks can share out a long context; a multiple of a chunk.
const SEGMENT: usize = 256;

/// Multiply-adds below which attention stays on the calling thread: about the time it takes to wake another.
const SERIAL: usize = 1 << 17;

/// What all layers of a kind have in common.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Positions in a cache block, a multiple of 16.
    pub block_size: usize,
    /// Factor of the scores, usually 1/√head_dim.
    pub scale: f32,
    /// `Some(n)`: a query sees the last `n` positions including its own.
    pub window: Option<usize>,
}

/// The queries of one sequence in a batch.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    /// First row of the queries in the batch.
    pub query_start: usize,
    /// Rows; query i is at position `context_len − query_len + i`.
    pub query_len: usize,
    /// Positions in the cache, those of the queries included.
    pub context_len: usize,
    /// Cache blocks of the sequence, in order of positions.
    pub blocks: &'a [u32],
}

impl AttentionShape {
    /// Elements of K (or of V) in one cache block.
    fn block_len(&self) -> Result<usize, KernelError> {
        let positions = area("attention: block", self.kv_heads, self.block_size)?;
        area("attention: block", positions, self.head_dim)
    }

    fn check(&self) -> Result<(), KernelError> {
        for (what, found) in [
            ("attention: kv_heads", self.kv_heads),
            ("attention: head_dim", self.head_dim),
            ("attention: block_size", self.block_size),
        ] {
            check_at_least(what, 1, found)?;
        }
        check_len(
            "attention: heads as a multiple of kv_heads",
            self.heads / self.kv_heads * self.kv_heads,
            self.heads,
        )?;
        check_len("attention: block_size as a multiple of 16", self.block_size.next_multiple_of(LANES), self.block_size)
    }

    /// Keys that a query at `position` sees.
    fn visible(&self, position: usize) -> Range<usize> {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        first..position + 1
    }
}

/// Which of the two caches of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvSide {
    /// What queries are compared with.
    Keys,
    /// What is averaged.
    Values,
}

/// Rounds keys or values to f16 and stores row r of `values`, columns `offset ..` of rows of `stride`, at `slots[r]`.
///
/// # Errors
/// If the rows are too short or a slot lies outside the cache.
pub fn write_kv(
    shape: &AttentionShape,
    side: KvSide,
    cache: &mut [f16],
    values: &[f32],
    stride: usize,
    offset: usize,
    slots: &[u32],
) -> Result<(), KernelError> {
    shape.check()?;
    let width = area("write_kv: columns", shape.kv_heads, shape.head_dim)?;
    check_range("write_kv: end of the heads in a row", stride, offset.saturating_add(width))?;
    check_len("write_kv: values against rows of slots", area("write_kv: values", slots.len(), stride)?, values.len())?;
    let block_len = shape.block_len()?;
    let capacity = cache.len() / block_len * shape.block_size;
    let group_len = shape.head_dim * LANES;
    let mut halves = vec![f16::ZERO; width];
    for (slot, row) in slots.iter().zip(values.chunks_exact(stride.max(1))) {
        let slot = *slot as usize;
        check_range("write_kv: slot + 1", capacity, slot.saturating_add(1))?;
        halves.convert_from_f32_slice(&row[offset..offset + width]);
        let block = &mut cache[slot / shape.block_size * block_len..][..block_len];
        let heads = block.chunks_exact_mut(shape.block_size * shape.head_dim);
        for (head, halves) in heads.zip(halves.chunks_exact(shape.head_dim)) {
            let position = slot % shape.block_size;
            let group = &mut head[position / LANES * group_len..][..group_len];
            let lane = position % LANES;
            match side {
                KvSide::Keys => {
                    group.iter_mut().skip(lane).step_by(LANES).zip(halves).for_each(|(to, from)| *to = *from)
                }
                KvSide::Values => group[lane * shape.head_dim..][..shape.head_dim].copy_from_slice(halves),
            }
        }
    }
    Ok(())
}

/// Causal attention of all `spans`: `out[row] = Σ softmax(scale · q · k) v` for every head.
///
/// `q` holds the heads of row r at `[r · q_stride + q_offset ..][.. heads · head_dim]`; `out` has rows of
/// `heads · head_dim`. Rows in no span are left alone.
///
/// # Errors
/// If a buffer does not fit the shape, spans overlap, or a span's blocks are too few or outside the cache.
#[allow(clippy::too_many_arguments, reason = "one strided input, two caches and their description")]
pub fn attention(
    isa: Isa,
    shape: &AttentionShape,
    q: &[f32],
    q_stride: usize,
    q_offset: usize,
    k: &[f16],
    v: &[f16],
    spans: &[Span<'_>],
    out: &mut [f32],
) -> Result<(), KernelError> {
    shape.check()?;
    let width = area("attention: columns", shape.heads, shape.head_dim)?;
    check_range("attention: end of the heads in a row", q_stride, q_offset.saturating_add(width))?;
    check_len("attention: values against keys in the cache", k.len(), v.len())?;
    let rows = out.len().checked_div(width).unwrap_or(0);
    check_len("attention: q against rows of out", area("attention: q", rows, q_stride)?, q.len())?;
    check_len("attention: whole rows of out", rows * width, out.len())?;
    let block_len = shape.block_len()?;
    check_spans(shape, spans, rows, k.len() / block_len)?;

    let threads = rayon::current_num_threads();
    let plan = Plan::new(shape, spans, threads);
    let (mut buffer, starts, waiting) = partials(shape, &plan);
    let inputs = Inputs {
        shape,
        plan: &plan,
        q: &q[q_offset.min(q.len())..],
        q_stride,
        k: k.reinterpret_cast(),
        v: v.reinterpret_cast(),
        block_len,
        out: SharedRows::new(out, width),
        partials: Partials { results: SharedRows::new(&mut buffer, partial_len(shape)), starts, waiting },
    };
    let next = AtomicUsize::new(0);
    let run = |_| {
        SCRATCH.with_borrow_mut(|scratch| {
            while let Some(task) = plan.tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                isa.run(Attend { inputs: &inputs, task, scratch });
            }
        });
    };
    if threads.min(plan.tasks.len()) < 2 || plan.pairs().saturating_mul(2 * shape.head_dim) < SERIAL {
        run(0);
    } else {
        (0..threads).into_par_iter().with_max_len(1).for_each(run);
    }
    Ok(())
}

/// Elements of a row's result over a segment.
fn partial_len(shape: &AttentionShape) -> usize {
    (2 + shape.head_dim.div_ceil(LANES)) * LANES
}

/// Room for the results of clusters whose segments several tasks share; see [`Partials`].
fn partials(shape: &AttentionShape, plan: &Plan<'_>) -> (Vec<f32>, Vec<Option<usize>>, Vec<AtomicUsize>) {
    let mut starts = vec![None; plan.clusters.len()];
    let mut waiting: Vec<AtomicUsize> = Vec::new();
    waiting.resize_with(plan.clusters.len() * shape.kv_heads, AtomicUsize::default);
    let mut rows = 0;
    for task in &plan.tasks {
        let cluster = &plan.clusters[task.cluster];
        if task.segments.len() == cluster.segments.len() {
            continue;
        }
        *waiting[task.cluster * shape.kv_heads + task.kv_head].get_mut() += task.segments.len();
        if starts[task.cluster].is_none() {
            starts[task.cluster] = Some(rows);
            let queries: usize = plan.items[cluster.items.clone()].iter().map(|item| item.queries.len()).sum();
            rows += queries * shape.heads * cluster.segments.len();
        }
    }
    (vec![0.0; rows * partial_len(shape)], starts, waiting)
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

fn check_spans(
    shape: &AttentionShape,
    spans: &[Span<'_>],
    rows: usize,
    cache_blocks: usize,
) -> Result<(), KernelError> {
    let mut queries: Vec<Range<usize>> = Vec::with_capacity(spans.len());
    for span in spans {
        let end = span.query_start.saturating_add(span.query_len);
        check_range("attention: end of a span's queries", rows, end)?;
        check_range("attention: queries of a span against its context", span.context_len, span.query_len)?;
        let needed = span.context_len.div_ceil(shape.block_size);
        check_at_least("attention: blocks of a span", needed, span.blocks.len())?;
        if let Some(last) = span.blocks[..needed].iter().max() {
            check_range("attention: block + 1", cache_blocks, *last as usize + 1)?;
        }
        queries.push(span.query_start..end);
    }
    queries.retain(|queries| !queries.is_empty());
    queries.sort_by_key(|queries| queries.start);
    for pair in queries.windows(2) {
        check_range("attention: end of one span against the start of the next", pair[1].start, pair[0].end)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
