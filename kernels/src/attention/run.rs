//! One task of attention: some rows of a K/V head over some segments of their keys.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::plan::{Cluster, Item, Plan, Task};
use super::steps::{CHUNK, Chunk, Element, GROUPS, accumulate, exp_of, fetch_ahead, score, weigh};
use super::{AttentionShape, SEGMENT};
use crate::isa::{Floats, LANES, Simd, SimdOp};
use crate::output::SharedRows;

/// Rows from which on it pays to widen a chunk once instead of in every step.
const WIDEN: usize = 18;

/// What all tasks of a call read and write.
pub(super) struct Inputs<'a> {
    pub shape: &'a AttentionShape,
    pub plan: &'a Plan<'a>,
    /// From the first head of the first row on.
    pub q: &'a [f32],
    pub q_stride: usize,
    pub k: &'a [u16],
    pub v: &'a [u16],
    pub block_len: usize,
    pub out: SharedRows<'a>,
    pub partials: Partials<'a>,
}

/// Results of segments that several tasks computed; the task that ends last merges them.
pub(super) struct Partials<'a> {
    /// `[row][largest score, weights, sums]`, in vectors; a row for each cluster, head, segment and query head.
    pub results: SharedRows<'a>,
    /// First row of each cluster's results, if its work was split.
    pub starts: Vec<Option<usize>>,
    /// `[cluster][K/V head]`: segments yet to be computed.
    pub waiting: Vec<AtomicUsize>,
}

/// Running softmax of rows: relative to the largest score so far, the weights and the weighted values.
#[derive(Default)]
struct Softmax {
    largest: Vec<f32>,
    totals: Vec<Floats>,
    /// `[row][vector]`
    sums: Vec<Floats>,
}

impl Softmax {
    fn clear(&mut self, rows: usize, vectors: usize) {
        self.largest.clear();
        self.largest.resize(rows, f32::NEG_INFINITY);
        self.totals.clear();
        self.totals.resize(rows, Floats::ZERO);
        self.sums.clear();
        self.sums.resize(rows * vectors, Floats::ZERO);
    }

    /// Joins a row with the same row over later keys.
    #[inline(always)]
    fn merge<S: Simd>(&mut self, s: S, row: usize, largest: f32, total: &Floats, sums: &[Floats]) {
        let vectors = sums.len();
        let max = if largest > self.largest[row] { largest } else { self.largest[row] };
        let (old, new) = (s.splat(exp_of(s, self.largest[row] - max)), s.splat(exp_of(s, largest - max)));
        self.largest[row] = max;
        add_scaled(s, &mut self.totals[row], old, total, new);
        for (to, from) in self.sums[row * vectors..][..vectors].iter_mut().zip(sums) {
            add_scaled(s, to, old, from, new);
        }
    }
}

/// `to = to · old + from · new`
#[inline(always)]
fn add_scaled<S: Simd>(s: S, to: &mut Floats, old: S::F, from: &Floats, new: S::F) {
    s.store(s.fma(s.load(&from.0), new, s.mul(s.load(&to.0), old)), &mut to.0);
}

/// Buffers of one thread, kept between calls. Rows are `[item][query][head]`; head vectors are padded with zeros.
#[derive(Default)]
pub(super) struct Scratch {
    /// `[row][vector]` of scaled queries.
    q: Vec<Floats>,
    /// Positions that each row sees.
    visible: Vec<Range<usize>>,
    /// Rows of each item.
    rows: Vec<Range<usize>>,
    /// This segment's.
    softmax: Softmax,
    /// All segments' so far.
    merged: Softmax,
    /// A chunk in f32.
    k: Vec<Floats>,
    v: Vec<Floats>,
}

pub(super) struct Attend<'a> {
    pub inputs: &'a Inputs<'a>,
    pub task: &'a Task,
    pub scratch: &'a mut Scratch,
}

impl SimdOp for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let Self { inputs, task, scratch } = self;
        let cluster = &inputs.plan.clusters[task.cluster];
        let vectors = inputs.shape.head_dim.div_ceil(LANES);
        scratch.start(inputs, cluster, task.kv_head, vectors);
        let rows = scratch.visible.len();
        scratch.merged.clear(rows, vectors);
        let split = inputs.partials.starts[task.cluster];
        let results = &inputs.partials.results;
        let first_result = |start: usize, segment: usize| {
            start + (task.kv_head * cluster.segments.len() + segment - cluster.segments.start) * rows
        };
        for segment in task.segments.clone() {
            scratch.softmax.clear(rows, vectors);
            for first in (segment * SEGMENT..(segment + 1) * SEGMENT).step_by(CHUNK) {
                attend_to_chunk(s, inputs, cluster, task.kv_head, first, scratch, vectors);
            }
            match split {
                None => scratch.merge_segment(s, segment, vectors),
                // SAFETY: clusters, heads and segments have rows of their own; each segment is computed by one task,
                // and read only when none is waited for any more.
                Some(start) => unsafe { scratch.hand_in(results, first_result(start, segment), vectors) },
            }
        }
        if let Some(start) = split {
            let waiting = &inputs.partials.waiting[task.cluster * inputs.shape.kv_heads + task.kv_head];
            // Releases this task's results, acquires those of the others.
            if waiting.fetch_sub(task.segments.len(), Ordering::AcqRel) != task.segments.len() {
                return;
            }
            for segment in cluster.segments.clone() {
                // SAFETY: all tasks of this cluster and head are done with their rows: none of them waits any more.
                unsafe { scratch.take_over(results, first_result(start, segment), vectors) };
                scratch.merge_segment(s, segment, vectors);
            }
        }
        scratch.finish(s, inputs, cluster, task.kv_head, vectors);
    }
}

/// The positions of `keys` in the chunk from `first` on, counted from there.
fn in_chunk(keys: &Range<usize>, first: usize) -> Range<usize> {
    keys.start.clamp(first, first + CHUNK) - first..keys.end.clamp(first, first + CHUNK) - first
}

/// The blocks of a chunk up to the last position that an item sees; none if it sees none of them.
fn table<'a>(shape: &AttentionShape, item: &Item<'a>, first: usize) -> &'a [u32] {
    let keys = in_chunk(&item.visible(shape), first);
    if keys.is_empty() {
        return &[];
    }
    &item.span.blocks[first / shape.block_size..(first + keys.end).div_ceil(shape.block_size)]
}

/// Where the groups of a chunk begin in the caches, as far as its `blocks` reach.
#[inline(always)]
fn starts(inputs: &Inputs<'_>, blocks: &[u32], kv_head: usize, first: usize) -> [Option<usize>; GROUPS] {
    let AttentionShape { block_size, head_dim, .. } = *inputs.shape;
    std::array::from_fn(|group| {
        let position = first + group * LANES;
        let block = blocks.get(position / block_size - first / block_size)?;
        let head = *block as usize * inputs.block_len + kv_head * block_size * head_dim;
        Some(head + position % block_size * head_dim)
    })
}

/// All rows of the task, those that share the chunk's blocks together.
#[inline(always)]
fn attend_to_chunk<S: Simd>(
    s: S,
    inputs: &Inputs<'_>,
    cluster: &Cluster,
    kv_head: usize,
    first: usize,
    scratch: &mut Scratch,
    vectors: usize,
) {
    let shape = inputs.shape;
    let items = &inputs.plan.items[cluster.items.clone()];
    let mut next = 0;
    while next < items.len() {
        let begin = next;
        let mut blocks = table(shape, &items[begin], first);
        next += 1;
        if blocks.is_empty() {
            continue;
        }
        while next < items.len() {
            let others = table(shape, &items[next], first);
            let both = blocks.len().min(others.len());
            if both == 0 || blocks[..both] != others[..both] {
                break;
            }
            blocks = if others.len() > both { others } else { blocks };
            next += 1;
        }
        // Blocks lie anywhere in the cache: the hardware cannot guess the next ones.
        let mut fetched: &[u32] = &[];
        for item in &items[begin..next] {
            let ahead = table(shape, item, first + CHUNK);
            if ahead != fetched {
                for start in starts(inputs, ahead, kv_head, first + CHUNK).into_iter().flatten() {
                    fetch_ahead(s, &inputs.k[start..start + LANES * shape.head_dim]);
                    fetch_ahead(s, &inputs.v[start..start + LANES * shape.head_dim]);
                }
                fetched = ahead;
            }
        }
        let rows = scratch.rows[begin].start..scratch.rows[next - 1].end;
        let starts = starts(inputs, blocks, kv_head, first);
        let Scratch { q, visible, softmax, k, v, .. } = &mut *scratch;
        let mut pass = Pass { q, visible, softmax, first, dim: shape.head_dim };
        if rows.len() < WIDEN && shape.head_dim.is_multiple_of(LANES) {
            let chunk = Chunk {
                k: inputs.k.as_chunks().0,
                v: inputs.v.as_chunks().0,
                starts: starts.map(|start| start.unwrap_or(0) / LANES),
            };
            pass.rows(s, rows, &chunk);
        } else {
            let stride = vectors * LANES;
            k.resize(GROUPS * stride, Floats::ZERO);
            v.resize(GROUPS * stride, Floats::ZERO);
            for (group, start) in starts.iter().enumerate() {
                let Some(start) = *start else { break };
                let len = shape.head_dim * LANES;
                widen(s, &inputs.k[start..start + len], LANES, &mut k[group * stride..]);
                widen(s, &inputs.v[start..start + len], shape.head_dim, &mut v[group * stride..]);
            }
            let chunk = Chunk { k: as_arrays(k), v: as_arrays(v), starts: std::array::from_fn(|group| group * stride) };
            pass.rows(s, rows, &chunk);
        }
    }
}

fn as_arrays(floats: &[Floats]) -> &[[f32; LANES]] {
    // SAFETY: `Floats` is `repr(C)` around one array and has its size: 16 floats are 64 bytes, its alignment.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), floats.len()) }
}

/// Rows of `width` halves as floats, each row in whole vectors; what pads them is left alone.
#[inline(always)]
fn widen<S: Simd>(s: S, from: &[u16], width: usize, to: &mut [Floats]) {
    let vectors = width.div_ceil(LANES);
    for (from, to) in from.chunks_exact(width).zip(to.chunks_exact_mut(vectors)) {
        let (whole, rest) = from.as_chunks::<LANES>();
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

/// What it takes to attend to one chunk, from `first` on: parts of the scratch, borrowed differently.
struct Pass<'a> {
    q: &'a [Floats],
    visible: &'a [Range<usize>],
    softmax: &'a mut Softmax,
    first: usize,
    dim: usize,
}

impl Pass<'_> {
    #[inline(always)]
    fn rows<S: Simd, T: Element>(&mut self, s: S, rows: Range<usize>, chunk: &Chunk<'_, T>) {
        let mut row = rows.start;
        while row < rows.end {
            row += match rows.end - row {
                6.. => self.tile::<S, T, 6>(s, row, chunk),
                3 | 5.. => self.tile::<S, T, 3>(s, row, chunk),
                2.. => self.tile::<S, T, 2>(s, row, chunk),
                _ => self.tile::<S, T, 1>(s, row, chunk),
            };
        }
    }

    /// `R` rows from `row` on; returns `R`.
    #[inline(always)]
    fn tile<S: Simd, T: Element, const R: usize>(&mut self, s: S, row: usize, chunk: &Chunk<'_, T>) -> usize {
        let (first, dim) = (self.first, self.dim);
        let vectors = dim.div_ceil(LANES);
        let keys: [Range<usize>; R] = std::array::from_fn(|r| in_chunk(&self.visible[row + r], first));
        // Keys from the first to the last that some row sees, and keys that all of them see.
        let seen = || keys.iter().filter(|keys| !keys.is_empty());
        let any_start = seen().map(|keys| keys.start).min().unwrap_or(0);
        let any = any_start..seen().map(|keys| keys.end).max().unwrap_or(0);
        let mut all = 0..CHUNK;
        for keys in &keys {
            all = all.start.max(keys.start)..all.end.min(keys.end);
        }
        if any.is_empty() {
            return R;
        }

        let q: [&[f32]; R] =
            std::array::from_fn(|r| &as_arrays(&self.q[(row + r) * vectors..][..vectors]).as_flattened()[..dim]);
        let mut scores = [[Floats::ZERO; GROUPS]; R];
        let groups = any.start / LANES..any.end.div_ceil(LANES);
        score(s, q, chunk, groups.clone(), &mut scores);
        for r in 0..R {
            if keys[r].start > groups.start * LANES || keys[r].end < groups.end * LANES {
                for (i, scores) in scores[r].iter_mut().flat_map(|scores| &mut scores.0).enumerate() {
                    if i < keys[r].start || i >= keys[r].end {
                        *scores = f32::NEG_INFINITY;
                    }
                }
            }
        }
        let mut largest: [f32; R] = *self.softmax.largest[row..].first_chunk().expect("R rows");
        let mut totals: [Floats; R] = *self.softmax.totals[row..].first_chunk().expect("R rows");
        let mut fades = weigh(s, &mut scores, groups, &mut largest, &mut totals);
        for r in 0..R {
            // A row that sees none of these keys keeps its state.
            if keys[r].is_empty() {
                fades[r] = 1.0;
            } else {
                self.softmax.largest[row + r] = largest[r];
                self.softmax.totals[row + r] = totals[r];
            }
        }
        let mut parts = self.softmax.sums[row * vectors..][..R * vectors].chunks_exact_mut(vectors);
        let mut sums: [&mut [Floats]; R] = std::array::from_fn(|_| parts.next().expect("a part for each row"));
        let weights: [&[f32; CHUNK]; R] = std::array::from_fn(|r| {
            as_arrays(&scores[r]).as_flattened().first_chunk().expect("a row has a weight for each key")
        });
        if all.is_empty() {
            all = CHUNK..CHUNK;
        }
        for r in 0..R {
            let before = keys[r].start..keys[r].end.min(all.start);
            if !before.is_empty() {
                accumulate(s, [weights[r]], [fades[r]], before, chunk, [&mut *sums[r]]);
                fades[r] = 1.0;
            }
        }
        if !all.is_empty() {
            accumulate(s, weights, fades, all.clone(), chunk, sums.each_mut().map(|sums| &mut **sums));
            for r in 0..R {
                let after = all.end..keys[r].end;
                if !after.is_empty() {
                    accumulate(s, [weights[r]], [1.0], after, chunk, [&mut *sums[r]]);
                }
            }
        }
        R
    }
}

impl Scratch {
    /// Takes the queries of a cluster in.
    fn start(&mut self, inputs: &Inputs<'_>, cluster: &Cluster, kv_head: usize, vectors: usize) {
        let shape = inputs.shape;
        let group = shape.heads / shape.kv_heads;
        self.q.clear();
        self.visible.clear();
        self.rows.clear();
        for item in &inputs.plan.items[cluster.items.clone()] {
            let first = self.visible.len();
            for query in item.queries.clone() {
                let row = &inputs.q[(item.span.query_start + query) * inputs.q_stride..];
                for q in row[kv_head * group * shape.head_dim..][..group * shape.head_dim].chunks_exact(shape.head_dim)
                {
                    for q in q.chunks(LANES) {
                        let mut scaled = Floats::ZERO;
                        scaled.0.iter_mut().zip(q).for_each(|(to, q)| *to = q * shape.scale);
                        self.q.push(scaled);
                    }
                    self.visible.push(shape.visible(item.position(query)));
                }
            }
            self.rows.push(first..self.visible.len());
        }
        debug_assert_eq!(self.q.len(), self.visible.len() * vectors);
    }

    /// Whether a row sees a key of a segment.
    fn sees(&self, row: usize, segment: usize) -> bool {
        let keys = &self.visible[row];
        keys.start < (segment + 1) * SEGMENT && segment * SEGMENT < keys.end
    }

    #[inline(always)]
    fn merge_segment<S: Simd>(&mut self, s: S, segment: usize, vectors: usize) {
        for row in 0..self.visible.len() {
            if self.sees(row, segment) {
                let of = &self.softmax;
                let sums = &of.sums[row * vectors..][..vectors];
                self.merged.merge(s, row, of.largest[row], &of.totals[row], sums);
            }
        }
    }

    /// Copies a segment's results to rows `first ..` of `results`, where the last task will find them.
    ///
    /// # Safety
    /// No other task reads or writes these rows meanwhile.
    unsafe fn hand_in(&self, results: &SharedRows<'_>, first: usize, vectors: usize) {
        for row in 0..self.visible.len() {
            // SAFETY: the caller's promise.
            let to = unsafe { results.row(first + row, 0, (2 + vectors) * LANES) };
            let (largest, to) = to.split_at_mut(LANES);
            let (total, sums) = to.split_at_mut(LANES);
            largest[0] = self.softmax.largest[row];
            total.copy_from_slice(&self.softmax.totals[row].0);
            sums.copy_from_slice(as_arrays(&self.softmax.sums[row * vectors..][..vectors]).as_flattened());
        }
    }

    /// The inverse of `hand_in`.
    ///
    /// # Safety
    /// As `hand_in`.
    unsafe fn take_over(&mut self, results: &SharedRows<'_>, first: usize, vectors: usize) {
        for row in 0..self.visible.len() {
            // SAFETY: the caller's promise.
            let from = unsafe { results.row(first + row, 0, (2 + vectors) * LANES) };
            self.softmax.largest[row] = from[0];
            self.softmax.totals[row].0.copy_from_slice(&from[LANES..2 * LANES]);
            let sums = from[2 * LANES..].as_chunks().0;
            self.softmax.sums[row * vectors..][..vectors].iter_mut().zip(sums).for_each(|(to, from)| to.0 = *from);
        }
    }

    /// Writes weighted means.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, inputs: &Inputs<'_>, cluster: &Cluster, kv_head: usize, vectors: usize) {
        let dim = inputs.shape.head_dim;
        let group = inputs.shape.heads / inputs.shape.kv_heads;
        let mut results = self.merged.sums.chunks_exact(vectors).zip(&self.merged.totals);
        for item in &inputs.plan.items[cluster.items.clone()] {
            for query in item.queries.clone() {
                for head in kv_head * group..(kv_head + 1) * group {
                    let (sums, total) = results.next().expect("one result a query and head");
                    let total = s.splat(s.sum(s.load(&total.0)));
                    // SAFETY: spans were checked to be disjoint, and one task finishes a cluster's K/V head.
                    let out = unsafe { inputs.out.row(item.span.query_start + query, head * dim, dim) };
                    for (out, sum) in out.chunks_mut(LANES).zip(sums) {
                        let mut means = [0.0; LANES];
                        s.store(s.div(s.load(&sum.0), total), &mut means);
                        out.copy_from_slice(&means[..out.len()]);
                    }
                }
            }
        }
    }
}
