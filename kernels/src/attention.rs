//! Attention over a paged K/V cache on the CPU.
//!
//! The cache of one layer is `[block][kv head][block_size][head_dim]` in f16; slot
//! `s` is position `s % block_size` of block `s / block_size`. Every query reads its
//! keys and values back from the cache, block by block in order, with an online
//! softmax (Milakov and Gimelshein, 2018): its result depends on its keys, their
//! places in the blocks and the instruction set, but not on how queries were cut
//! into calls, spans or threads. Queries that share a K/V head share its loads.

mod steps;

use std::cell::RefCell;
use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use crate::KernelError;
use crate::error::{area, check_at_least, check_len, check_range};
use crate::isa::{Floats, Isa, LANES, Simd, SimdOp};
use crate::output::SharedRows;
use steps::{KEYS, accumulate, fetch_ahead, score, weigh, widen};

/// Positions of one span that share the loads of a task.
const TILE: usize = 16;

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
    /// Positions in a cache block.
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
        check_len("attention: heads as a multiple of kv_heads", self.heads / self.kv_heads * self.kv_heads, self.heads)
    }

    /// Keys that a query at `position` sees.
    fn visible(&self, position: usize) -> Range<usize> {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        first..position + 1
    }
}

/// Rounds keys or values to f16 and stores row r of `values`, columns `offset ..` of rows of `stride`, at `slots[r]`.
///
/// # Errors
/// If the rows are too short or a slot lies outside the cache.
pub fn write_kv(
    shape: &AttentionShape,
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
    for (slot, row) in slots.iter().zip(values.chunks_exact(stride.max(1))) {
        let slot = *slot as usize;
        check_range("write_kv: slot + 1", capacity, slot.saturating_add(1))?;
        let block = &mut cache[slot / shape.block_size * block_len..][..block_len];
        for (head, values) in row[offset..offset + width].chunks_exact(shape.head_dim).enumerate() {
            let at = (head * shape.block_size + slot % shape.block_size) * shape.head_dim;
            block[at..at + shape.head_dim].convert_from_f32_slice(values);
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

    let tasks = tasks(shape, spans);
    let inputs = Inputs {
        shape,
        q: &q[q_offset.min(q.len())..],
        q_stride,
        k: k.reinterpret_cast(),
        v: v.reinterpret_cast(),
        block_len,
        out: SharedRows::new(out, width),
    };
    let run = |task: &Task<'_>| {
        SCRATCH.with_borrow_mut(|scratch| isa.run(Attend { inputs: &inputs, task, scratch }));
    };
    let work = tasks.iter().map(Task::pairs).fold(0, usize::saturating_add).saturating_mul(2 * shape.head_dim);
    if tasks.len() < 2 || work < SERIAL {
        tasks.iter().for_each(run);
    } else {
        tasks.par_iter().with_max_len(1).for_each(run);
    }
    Ok(())
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

/// Some queries of a span and some query heads of one K/V head.
struct Task<'a> {
    span: &'a Span<'a>,
    queries: Range<usize>,
    kv_head: usize,
    heads: Range<usize>,
}

/// Cuts spans into tasks, the longest first; how they are cut has no influence on any bit.
fn tasks<'a>(shape: &AttentionShape, spans: &'a [Span<'a>]) -> Vec<Task<'a>> {
    let group = shape.heads / shape.kv_heads;
    let tiles: usize = spans.iter().map(|span| span.query_len.div_ceil(TILE)).sum();
    // With fewer tasks than threads, the heads of a group are shared out, and each part loads the keys for itself.
    let parts = rayon::current_num_threads().div_ceil((tiles * shape.kv_heads).max(1)).clamp(1, group.max(1));
    let mut tasks = Vec::with_capacity(tiles * shape.kv_heads * parts);
    for span in spans {
        for first in (0..span.query_len).step_by(TILE) {
            for kv_head in 0..shape.kv_heads {
                for part in 0..parts {
                    let heads = kv_head * group + group * part / parts..kv_head * group + group * (part + 1) / parts;
                    tasks.push(Task { span, queries: first..span.query_len.min(first + TILE), kv_head, heads });
                }
            }
        }
    }
    tasks.sort_by_key(|task| std::cmp::Reverse(task.pairs()));
    tasks
}

impl Task<'_> {
    fn position(&self, query: usize) -> usize {
        self.span.context_len - self.span.query_len + query
    }

    /// About how many queries meet a key, windows aside.
    fn pairs(&self) -> usize {
        self.queries.len() * self.heads.len() * (self.last_position() + 1)
    }

    fn last_position(&self) -> usize {
        self.position(self.queries.end) - 1
    }
}

struct Inputs<'a> {
    shape: &'a AttentionShape,
    /// From the first head of the first row on.
    q: &'a [f32],
    q_stride: usize,
    k: &'a [u16],
    v: &'a [u16],
    block_len: usize,
    out: SharedRows<'a>,
}

/// Buffers of one thread, kept between calls. Head vectors are padded with zeros to whole vectors.
#[derive(Default)]
struct Scratch {
    /// `[query][head]` of scaled queries.
    q: Vec<Floats>,
    /// `[query][head]` of weighted values so far.
    sums: Vec<Floats>,
    /// `[query][head]`: largest score and sum of weights so far.
    state: Vec<(f32, f32)>,
    /// One block of one head: `[position]`.
    k: Vec<Floats>,
    v: Vec<Floats>,
    /// `[query][head][position]`: scores of a block, then weights; positions out of sight are −∞, then zero.
    scores: Vec<[f32; LANES]>,
    /// `[query][head]`: what the sums are to be multiplied by as the largest score grew.
    fades: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

struct Attend<'a> {
    inputs: &'a Inputs<'a>,
    task: &'a Task<'a>,
    scratch: &'a mut Scratch,
}

impl SimdOp for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let Self { inputs, task, scratch } = self;
        let shape = inputs.shape;
        let (size, vectors) = (shape.block_size, shape.head_dim.div_ceil(LANES));
        scratch.start(inputs, task, vectors);

        let needed = shape.visible(task.position(task.queries.start)).start..task.last_position() + 1;
        for block in needed.start / size..needed.end.div_ceil(size) {
            let in_block = |keys: Range<usize>| {
                let first = block * size;
                keys.start.clamp(first, first + size) - first..keys.end.clamp(first, first + size) - first
            };
            let head_of = |block: usize| {
                let id = task.span.blocks[block] as usize;
                id * inputs.block_len + task.kv_head * size * shape.head_dim
            };
            if (block + 1) * size < needed.end {
                // Blocks lie anywhere in the cache: the hardware cannot guess the next one.
                let next = head_of(block + 1)..head_of(block + 1) + size * shape.head_dim;
                fetch_ahead(s, &inputs.k[next.clone()]);
                fetch_ahead(s, &inputs.v[next]);
            }
            let head = head_of(block);
            let keys = in_block(needed.clone());
            widen(s, &inputs.k[head..], shape.head_dim, keys.clone(), &mut scratch.k);
            widen(s, &inputs.v[head..], shape.head_dim, keys, &mut scratch.v);
            // Each step runs over all queries before the next: their latencies overlap.
            let visible = |query: usize| in_block(shape.visible(task.position(task.queries.start + query)));
            // (first row, rows, keys they see): heads of one query, two at a time where the registers hold two
            let heads = task.heads.len();
            let rows = (0..task.queries.len()).flat_map(|query| {
                let keys = visible(query);
                let starts = (0..heads).step_by(S::PANELS).filter(move |_| !keys.is_empty());
                starts.map(move |head| (query * heads + head, S::PANELS.min(heads - head), visible(query)))
            });
            let width = size.div_ceil(LANES);
            for (row, n, keys) in rows.clone() {
                let (q, scores) = (&scratch.q[row * vectors..], &mut scratch.scores[row * width..]);
                match n {
                    2 => score::<S, 2>(s, q, vectors, &scratch.k, keys, scores, width),
                    _ => score::<S, 1>(s, q, vectors, &scratch.k, keys, scores, width),
                }
            }
            for row in rows.clone().flat_map(|(row, n, _)| row..row + n) {
                let scores = &mut scratch.scores[row * width..][..width];
                scratch.fades[row] = weigh(s, scores, &mut scratch.state[row]);
            }
            for (row, n, keys) in rows {
                let (weights, fades) = (&scratch.scores[row * width..], &scratch.fades[row..]);
                let sums = &mut scratch.sums[row * vectors..];
                match n {
                    2 => accumulate::<S, 2>(s, weights, width, fades, keys, &scratch.v, vectors, sums),
                    _ => accumulate::<S, 1>(s, weights, width, fades, keys, &scratch.v, vectors, sums),
                }
            }
        }
        scratch.finish(inputs, task, vectors);
    }
}

impl Scratch {
    /// Takes the task's queries in and clears its sums.
    fn start(&mut self, inputs: &Inputs<'_>, task: &Task<'_>, vectors: usize) {
        let shape = inputs.shape;
        let rows = task.queries.len() * task.heads.len();
        self.q.clear();
        self.q.resize(rows * vectors, Floats::ZERO);
        self.sums.clear();
        self.sums.resize(rows * vectors, Floats::ZERO);
        self.state.clear();
        self.state.resize(rows, (f32::NEG_INFINITY, 0.0));
        for buffer in [&mut self.k, &mut self.v] {
            // `widen` does not write the padding between head_dim and whole vectors: it must be zero
            if !shape.head_dim.is_multiple_of(LANES) {
                buffer.clear();
            }
            buffer.resize(shape.block_size.next_multiple_of(KEYS) * vectors, Floats::ZERO);
        }
        self.scores.resize(rows * shape.block_size.div_ceil(LANES), [0.0; LANES]);
        self.fades.resize(rows, 1.0);
        let mut to = self.q.chunks_exact_mut(vectors);
        for query in task.queries.clone() {
            let row = &inputs.q[(task.span.query_start + query) * inputs.q_stride..];
            for head in task.heads.clone() {
                let q = &row[head * shape.head_dim..][..shape.head_dim];
                let to = to.next().expect("one vector a query and head");
                for (to, q) in to.iter_mut().flat_map(|to| &mut to.0).zip(q) {
                    *to = q * shape.scale;
                }
            }
        }
    }

    /// Writes weighted means.
    fn finish(&self, inputs: &Inputs<'_>, task: &Task<'_>, vectors: usize) {
        let dim = inputs.shape.head_dim;
        let mut results = self.sums.chunks_exact(vectors).zip(&self.state);
        for query in task.queries.clone() {
            for head in task.heads.clone() {
                let (sums, (_, total)) = results.next().expect("one result a query and head");
                // SAFETY: spans were checked to be disjoint, and tasks partition their queries and heads.
                let out = unsafe { inputs.out.row(task.span.query_start + query, head * dim, dim) };
                for (out, sum) in out.iter_mut().zip(sums.iter().flat_map(|sums| sums.0)) {
                    *out = sum / total;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
