//! Attention against a plain f64 softmax, and against itself cut differently.

use super::*;
use crate::gemm::testing::{Random, floats};

/// A filled cache, its block tables and the queries of a ragged batch.
struct Case {
    shape: AttentionShape,
    k: Vec<f16>,
    v: Vec<f16>,
    /// By cache slot, what was written to it as `[kv head][head_dim]`, rounded to f16.
    written: [Vec<Vec<f64>>; 2],
    /// Per sequence: context length, query length, blocks.
    sequences: Vec<(usize, usize, Vec<u32>)>,
    q: Vec<f32>,
    q_stride: usize,
    q_offset: usize,
    rows: usize,
}

impl Case {
    /// Sequences of (context, queries) over a shuffled cache; slots that nobody wrote hold NaN.
    fn new(shape: AttentionShape, lengths: &[(usize, usize)]) -> Self {
        Self::sharing(shape, lengths, 0)
    }

    /// Like `new`, but all sequences have the first `shared` blocks in common, or as many as they need.
    fn sharing(shape: AttentionShape, lengths: &[(usize, usize)], shared: usize) -> Self {
        let blocks: usize = lengths.iter().map(|(context, _)| context.div_ceil(shape.block_size)).sum::<usize>() + 2;
        let mut free: Vec<u32> = (0..blocks as u32).collect();
        let mut random = Random(1);
        for i in (1..free.len()).rev() {
            free.swap(i, random.next() as usize % (i + 1));
        }
        let width = shape.kv_heads * shape.head_dim;
        let mut k = vec![f16::NAN; blocks * shape.block_size * width];
        let mut v = k.clone();
        let mut written = [(); 2].map(|()| vec![vec![f64::NAN; width]; blocks * shape.block_size]);
        let common: Vec<u32> = (0..shared).map(|_| free.pop().expect("enough")).collect();
        let mut sequences = Vec::new();
        for (context, queries) in lengths {
            let block = |i: usize| common.get(i).copied().unwrap_or_else(|| free.pop().expect("enough"));
            let table: Vec<u32> = (0..context.div_ceil(shape.block_size)).map(block).collect();
            let slot = |p: usize| table[p / shape.block_size] * shape.block_size as u32 + (p % shape.block_size) as u32;
            let slots: Vec<u32> = (0..*context).map(slot).collect();
            let stride = width + 3;
            for (side, cache, seed) in [(KvSide::Keys, &mut k, 10), (KvSide::Values, &mut v, 20)] {
                // what is common is written again and again: the last sequence's
                let values = floats(context * stride, seed + *context as u64);
                write_kv(&shape, side, cache, &values, stride, 2, &slots).expect("slots are in the cache");
                for (slot, row) in slots.iter().zip(values.chunks_exact(stride)) {
                    let row = row[2..2 + width].iter().map(|x| f16::from_f32(*x).to_f64()).collect();
                    written[side as usize][*slot as usize] = row;
                }
            }
            sequences.push((*context, *queries, table));
        }
        let rows = lengths.iter().map(|(_, queries)| queries).sum();
        let (q_stride, q_offset) = (shape.heads * shape.head_dim + 5, 4);
        let q = floats(rows * q_stride, 30).iter().map(|q| q * 6.0).collect();
        Self { shape, k, v, written, sequences, q, q_stride, q_offset, rows }
    }

    fn spans(&self) -> Vec<Span<'_>> {
        let mut query_start = 0;
        let mut spans = Vec::new();
        for (context_len, query_len, blocks) in &self.sequences {
            spans.push(Span { query_start, query_len: *query_len, context_len: *context_len, blocks });
            query_start += query_len;
        }
        spans
    }

    fn run(&self, isa: Isa, spans: &[Span<'_>]) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.rows * self.shape.heads * self.shape.head_dim];
        attention(isa, &self.shape, &self.q, self.q_stride, self.q_offset, &self.k, &self.v, spans, &mut out)
            .expect("the case is valid");
        out
    }

    fn naive(&self) -> Vec<f64> {
        let AttentionShape { heads, kv_heads, head_dim, block_size, scale, window } = self.shape;
        let mut out = Vec::new();
        for span in self.spans() {
            for query in 0..span.query_len {
                let position = span.context_len - span.query_len + query;
                for head in 0..heads {
                    let q = &self.q[(span.query_start + query) * self.q_stride + self.q_offset + head * head_dim..];
                    let element = |side: KvSide, key: usize, d: usize| {
                        let slot = span.blocks[key / block_size] as usize * block_size + key % block_size;
                        self.written[side as usize][slot][head * kv_heads / heads * head_dim + d]
                    };
                    let keys: Vec<usize> =
                        (0..=position).filter(|key| window.is_none_or(|window| position - key < window)).collect();
                    let weight = |key: &usize| {
                        let dot: f64 = (0..head_dim).map(|d| f64::from(q[d]) * element(KvSide::Keys, *key, d)).sum();
                        (dot * f64::from(scale)).exp()
                    };
                    let weights: Vec<f64> = keys.iter().map(weight).collect();
                    let total: f64 = weights.iter().sum();
                    for d in 0..head_dim {
                        let sum: f64 =
                            keys.iter().zip(&weights).map(|(key, w)| w * element(KvSide::Values, *key, d)).sum();
                        out.push(sum / total);
                    }
                }
            }
        }
        out
    }
}

fn shapes() -> Vec<AttentionShape> {
    let shape = |heads, kv_heads, head_dim, block_size, window| AttentionShape {
        heads,
        kv_heads,
        head_dim,
        block_size,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window,
    };
    vec![
        shape(9, 3, 64, 16, None),
        shape(4, 1, 256, 32, Some(20)),
        shape(2, 2, 8, 128, None),
        shape(3, 3, 1, 48, Some(1)),
        shape(6, 2, 17, 16, Some(16)),
        shape(2, 1, 80, 64, Some(1000)),
        shape(8, 1, 32, 16, Some(70)),
    ]
}

/// (context, queries): decoding, whole prompts, later pieces of prompts, at and around the edges of blocks, chunks
/// and segments.
const LENGTHS: [(usize, usize); 14] = [
    (1, 1),
    (15, 1),
    (16, 16),
    (17, 1),
    (33, 17),
    (0, 0),
    (40, 0),
    (48, 3),
    (90, 40),
    (31, 31),
    (64, 1),
    (65, 2),
    (257, 3),
    (530, 1),
];

/// Blocks that the sequences share: none, some, and more than a chunk.
const SHARED: [usize; 3] = [0, 3, 9];

#[test]
fn matches_f64() {
    for isa in Isa::available() {
        println!("isa {isa}");
        for (shape, shared) in shapes().into_iter().flat_map(|shape| SHARED.map(|shared| (shape, shared))) {
            let case = Case::sharing(shape, &LENGTHS, shared);
            let got = case.run(isa, &case.spans());
            let expected = case.naive();
            assert_eq!(got.len(), expected.len());
            for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
                let error = (f64::from(*got) - expected).abs();
                assert!(error < 2e-6, "{isa} {shape:?} {shared} [{i}]: {got} for {expected}");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_chunks_batch_or_threads() {
    for isa in Isa::available() {
        println!("isa {isa}");
        for (shape, shared) in shapes().into_iter().flat_map(|shape| SHARED.map(|shared| (shape, shared))) {
            let case = Case::sharing(shape, &LENGTHS, shared);
            let bits = |out: Vec<f32>| out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let whole = bits(case.run(isa, &case.spans()));
            // each span cut into pieces of `piece` queries, run one after the other or in one batch
            for piece in [1, 2, 7, 16, 25] {
                let mut pieces = Vec::new();
                for span in case.spans() {
                    for first in (0..span.query_len).step_by(piece) {
                        let query_len = piece.min(span.query_len - first);
                        pieces.push(Span {
                            query_start: span.query_start + first,
                            query_len,
                            context_len: span.context_len - span.query_len + first + query_len,
                            blocks: span.blocks,
                        });
                    }
                }
                pieces.reverse();
                for threads in [1, 2, 3] {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a small pool");
                    assert!(
                        pool.install(|| bits(case.run(isa, &pieces))) == whole,
                        "{isa} {shape:?} {shared} {piece} {threads}"
                    );
                }
                let mut one_by_one = vec![f32::NAN; whole.len()];
                for span in &pieces {
                    let width = shape.heads * shape.head_dim;
                    let rows = span.query_start * width..(span.query_start + span.query_len) * width;
                    one_by_one[rows.clone()].copy_from_slice(&case.run(isa, &[*span])[rows]);
                }
                assert!(bits(one_by_one) == whole, "{isa} {shape:?} {shared} {piece} one by one");
            }
        }
    }
}

#[test]
fn odd_values_stay_odd_and_in_their_row() {
    let shape = shapes()[0];
    for isa in Isa::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut case = Case::new(shape, &[(20, 3)]);
            let head = case.q_stride + case.q_offset + 2 * shape.head_dim;
            case.q[head + 1] = bad;
            let out = case.run(isa, &case.spans());
            for (i, out) in out.chunks_exact(shape.head_dim).enumerate() {
                assert!(out.iter().all(|x| x.is_finite()) == (i != shape.heads + 2), "{isa} {bad} head {i}");
            }
        }
    }
}

#[test]
fn odd_keys_and_values_reach_only_those_who_see_them() {
    let poisoned = 37;
    for isa in Isa::available() {
        for (shape, side) in
            shapes().into_iter().flat_map(|shape| [KvSide::Keys, KvSide::Values].map(|side| (shape, side)))
        {
            let mut case = Case::new(shape, &[(150, 150)]);
            let block = case.sequences[0].2[poisoned / shape.block_size];
            let slot = block * shape.block_size as u32 + (poisoned % shape.block_size) as u32;
            let cache = if side == KvSide::Keys { &mut case.k } else { &mut case.v };
            let width = shape.kv_heads * shape.head_dim;
            write_kv(&shape, side, cache, &vec![f32::NAN; width], width, 0, &[slot]).expect("the slot is in the cache");
            let out = case.run(isa, &case.spans());
            for (query, row) in out.chunks_exact(shape.heads * shape.head_dim).enumerate() {
                let sees = shape.visible(query).contains(&poisoned);
                assert!(row.iter().all(|x| x.is_nan() == sees), "{isa} {shape:?} {side:?} query {query}");
            }
        }
    }
}

#[test]
fn bad_shapes_are_errors() {
    let shape = shapes()[0];
    let case = Case::new(shape, &[(20, 3)]);
    let good = case.spans()[0];
    let mut out = vec![0.0; 3 * 576];
    let mut refuse = |shape: AttentionShape, spans: &[Span<'_>]| {
        attention(Isa::SCALAR, &shape, &case.q, case.q_stride, 4, &case.k, &case.v, spans, &mut out)
            .unwrap_err()
            .to_string()
    };
    assert!(refuse(shape, &[Span { query_start: 1, ..good }]).contains("4 is outside the accepted range, at most 3"));
    assert!(refuse(shape, &[Span { query_len: usize::MAX, ..good }]).contains("outside"));
    assert!(refuse(shape, &[Span { context_len: 2, ..good }]).contains("3 is outside the accepted range, at most 2"));
    assert!(refuse(shape, &[Span { context_len: 33, ..good }]).contains("needs 3 elements, the buffer has 2"));
    assert!(refuse(shape, &[Span { blocks: &[0, u32::MAX], ..good }]).contains("at most 4"));
    assert!(refuse(shape, &[good, good]).contains("start of the next"));
    assert!(refuse(AttentionShape { kv_heads: 2, ..shape }, &[good]).contains("multiple"));
    assert!(refuse(AttentionShape { kv_heads: 0, ..shape }, &[good]).contains("kv_heads"));
    assert!(refuse(AttentionShape { block_size: 0, ..shape }, &[good]).contains("block_size"));
    assert!(refuse(AttentionShape { block_size: 20, ..shape }, &[good]).contains("block_size as a multiple of 16"));
    let mut cache = vec![f16::ZERO; 2 * 16 * 192];
    let mut write = |stride, offset, slots: &[u32]| {
        write_kv(&shape, KvSide::Values, &mut cache, &[0.0; 200], stride, offset, slots)
            .map_err(|error| error.to_string())
    };
    assert_eq!(write(200, 8, &[31]), Ok(()));
    assert!(write(200, 9, &[31]).is_err() && write(200, 8, &[32]).is_err() && write(200, 8, &[0, 1]).is_err());
}
