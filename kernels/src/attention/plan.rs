//! How the work of a call is cut into tasks. None of it has an influence on any bit.

use std::ops::Range;

use super::steps::CHUNK;
use super::{AttentionShape, SEGMENT, Span};

/// Rows (queries × heads of a K/V head) of one span that share the loads of a task.
const ROWS: usize = 48;

/// Rows of several spans that share the loads of a task, where they share blocks.
const SHARED_ROWS: usize = 96;

/// Some queries of a span.
#[derive(Clone)]
pub(super) struct Item<'a> {
    pub span: &'a Span<'a>,
    pub queries: Range<usize>,
}

impl Item<'_> {
    pub fn position(&self, query: usize) -> usize {
        self.span.context_len - self.span.query_len + query
    }

    /// Keys that any of the queries sees.
    pub fn visible(&self, shape: &AttentionShape) -> Range<usize> {
        shape.visible(self.position(self.queries.start)).start..self.position(self.queries.end)
    }
}

/// Items next to each other that share blocks, or one item.
pub(super) struct Cluster {
    pub items: Range<usize>,
    /// Segments that hold a key that a query sees.
    pub segments: Range<usize>,
    /// About how many queries meet a key.
    pairs: usize,
}

/// Work of one thread.
pub(super) struct Task {
    pub cluster: usize,
    pub kv_head: usize,
    pub segments: Range<usize>,
    pairs: usize,
}

/// All work of a call.
pub(super) struct Plan<'a> {
    pub items: Vec<Item<'a>>,
    pub clusters: Vec<Cluster>,
    /// The longest first.
    pub tasks: Vec<Task>,
}

impl<'a> Plan<'a> {
    pub fn new(shape: &AttentionShape, spans: &'a [Span<'a>], threads: usize) -> Self {
        let group = (shape.heads / shape.kv_heads).max(1);
        let tile = (ROWS / group).max(1);
        let mut items = Vec::new();
        for span in spans {
            let queries = (0..span.query_len).step_by(tile);
            items.extend(queries.map(|first| Item { span, queries: first..span.query_len.min(first + tile) }));
        }
        // Sequences with a common past are next to each other in the order of their blocks.
        if items.len() > 1 {
            items.sort_by(|a, b| a.span.blocks.cmp(b.span.blocks).then(a.queries.start.cmp(&b.queries.start)));
        }
        // A few tasks for each thread, so that the last ones end at about the same time.
        let total: usize = items.iter().map(|item| pairs(shape, item)).fold(0, usize::saturating_add);
        let target = match threads {
            ..2 => usize::MAX,
            _ => total.saturating_mul(shape.heads) / (4 * threads),
        };
        let clusters = clusters(shape, &items, (SHARED_ROWS / group).max(1), target / group);
        let mut tasks = Vec::with_capacity(clusters.len() * shape.kv_heads);
        for (index, cluster) in clusters.iter().enumerate() {
            let segments = cluster.segments.len();
            let parts = (cluster.pairs * group).div_ceil(target.max(1)).clamp(1, segments.max(1));
            for kv_head in 0..shape.kv_heads {
                for part in 0..parts {
                    let from = |part: usize| cluster.segments.start + segments * part / parts;
                    let segments = from(part)..from(part + 1);
                    tasks.push(Task { cluster: index, kv_head, segments, pairs: cluster.pairs * group / parts });
                }
            }
        }
        tasks.sort_by_key(|task| std::cmp::Reverse(task.pairs));
        Self { items, clusters, tasks }
    }

    /// About how many rows meet a key in all.
    pub fn pairs(&self) -> usize {
        self.tasks.iter().map(|task| task.pairs).fold(0, usize::saturating_add)
    }
}

fn pairs(shape: &AttentionShape, item: &Item<'_>) -> usize {
    item.queries.len().saturating_mul(item.visible(shape).len())
}

/// Joins neighbours that share their first chunk of keys, up to `queries` and `target` pairs in all.
fn clusters(shape: &AttentionShape, items: &[Item<'_>], queries: usize, target: usize) -> Vec<Cluster> {
    let mut clusters: Vec<Cluster> = Vec::with_capacity(items.len());
    let mut joined = 0;
    for (index, item) in items.iter().enumerate() {
        let visible = item.visible(shape);
        let segments = visible.start / SEGMENT..visible.end.div_ceil(SEGMENT);
        let pairs = pairs(shape, item);
        if let Some(last) = clusters.last_mut() {
            let both = last.segments.start.min(segments.start)..last.segments.end.max(segments.end);
            let fits = joined + item.queries.len() <= queries
                && last.pairs.saturating_add(pairs) <= target.saturating_mul(both.len());
            if fits && share_a_chunk(shape, &items[last.items.start], item) {
                last.items.end = index + 1;
                last.segments = both;
                last.pairs += pairs;
                joined += item.queries.len();
                continue;
            }
        }
        clusters.push(Cluster { items: index..index + 1, segments, pairs });
        joined = item.queries.len();
    }
    clusters
}

/// Whether both items see a whole chunk of the same blocks.
fn share_a_chunk(shape: &AttentionShape, a: &Item<'_>, b: &Item<'_>) -> bool {
    let (a_sees, b_sees) = (a.visible(shape), b.visible(shape));
    let first = a_sees.start.max(b_sees.start) / CHUNK * CHUNK;
    let end = (first + CHUNK).min(a_sees.end).min(b_sees.end);
    let blocks = first / shape.block_size..end.div_ceil(shape.block_size);
    first < end && a.span.blocks[blocks.clone()] == b.span.blocks[blocks]
}
