//! Attention over a paged K/V cache on the CPU.
//!
//! The cache of one layer is `[block][kv head][block_size][head_dim]` in f16; slot
//! `s` is position `s % block_size` of block `s / block_size`. Every query reads its
//! keys and values back from the cache, block by block in order, with an online
//! softmax (Milakov and Gimelshein, 2018): its result depends on its keys, their
//! places in the blocks and the instruction set, but not on how queries were cut
//! into calls, spans or threads. Queries that share a K/V head share its loads.
#![allow(clippy::needless_range_loop, reason = "heads, keys and vectors index several arrays at once")]

use std::cell::RefCell;
use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use crate::KernelError;
use crate::error::{area, check_at_least, check_len, check_range};
use crate::isa::{Floats, Isa, LANES, Simd, SimdOp};
use crate::math::exp;
use crate::output::SharedRows;

/// Positions of one span that share the loads of a task.
const TILE: usize = 16;

/// Multiply-adds below which attention stays on the calling thread: about the time it takes to wake another.
const SERIAL: usize = 1 << 17;

/// Keys scored at a time.
const KEYS: usize = 4;

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
            let id = task.span.blocks[block] as usize;
            let head = id * inputs.block_len + task.kv_head * size * shape.head_dim;
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

/// Positions `keys` of one head of a block as floats, each padded to whole vectors.
#[inline(always)]
fn widen<S: Simd>(s: S, from: &[u16], head_dim: usize, keys: Range<usize>, to: &mut [Floats]) {
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
fn score<S: Simd, const H: usize>(
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
fn weigh<S: Simd>(s: S, scores: &mut [[f32; LANES]], state: &mut (f32, f32)) -> f32 {
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
fn accumulate<S: Simd, const H: usize>(
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

#[cfg(test)]
mod tests;
