//! Attention of one decode step by context and batch: `cargo bench --bench attention -- [FILTER]`.
//!
//! Throughput is in bytes of keys and values read, so `GiB/s` is the rate of reading the cache; the line after each
//! group counts it in GB/s and GOP/s (a multiply-add is two operations). The shape is that of a Qwen2.5-1.5B.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use weaklink_kernels::{AttentionShape, Isa, Span, attention};

const SHAPE: AttentionShape =
    AttentionShape { heads: 12, kv_heads: 2, head_dim: 128, block_size: 16, scale: 0.088, window: None };
const CONTEXTS: [usize; 3] = [128, 1024, 4096];
const BATCHES: [usize; 3] = [1, 8, 32];

fn decode(c: &mut Criterion) {
    let isa = Isa::detect();
    for context in CONTEXTS {
        let mut group = c.benchmark_group(format!("{isa}/context {context}"));
        group.sample_size(20).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(600));
        let mut best = Vec::new();
        for batch in BATCHES {
            let blocks = context / SHAPE.block_size;
            let tables: Vec<u32> = (0..(batch * blocks) as u32).collect();
            let elements = batch * context * SHAPE.kv_heads * SHAPE.head_dim;
            let cache: Vec<f16> = (0..elements).map(|i| f16::from_f32((i % 23) as f32 / 23.0 - 0.5)).collect();
            let width = SHAPE.heads * SHAPE.head_dim;
            let q: Vec<f32> = (0..batch * width).map(|i| (i % 19) as f32 / 19.0 - 0.5).collect();
            let mut out = vec![0.0; batch * width];
            let spans: Vec<Span<'_>> = tables
                .chunks_exact(blocks)
                .enumerate()
                .map(|(row, blocks)| Span { query_start: row, query_len: 1, context_len: context, blocks })
                .collect();
            let mut step = || {
                attention(isa, &SHAPE, black_box(&q), width, 0, &cache, &cache, &spans, &mut out).expect("valid");
            };
            let bytes = 2 * elements * size_of::<f16>();
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::new("batch", batch), |b| b.iter(&mut step));
            let seconds = (0..20).map(|_| {
                let begun = Instant::now();
                step();
                begun.elapsed().as_secs_f64()
            });
            // A multiply-add for q · k and one for the weighted values, for each query head.
            let operations = 4 * batch * context * width;
            best.push((batch, bytes, operations, seconds.fold(f64::INFINITY, f64::min)));
        }
        group.finish();
        for (batch, bytes, operations, seconds) in best {
            let (gbs, gops) = (bytes as f64 / seconds / 1e9, operations as f64 / seconds / 1e9);
            println!("{isa}/context {context}/batch {batch}: K/V at {gbs:.1} GB/s, {gops:.1} GOP/s");
        }
    }
}

criterion_group!(benches, decode);
criterion_main!(benches);
