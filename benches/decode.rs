//! Decode step and prefill of the tiny synthetic model by batch: `cargo bench --bench decode -- [FILTER]`.
//!
//! What a step costs apart from large products: the model fits in the second-level cache.

use std::path::Path;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use weaklink_models::batch::{Batch, Logits};
use weaklink_models::config::DecoderConfig;
use weaklink_models::decoder::Decoder;
use weaklink_models::gguf::Gguf;
use weaklink_models::kv::{BLOCK_SIZE, KvCache};
use weaklink_models::synth::{self, Mix, Preset};
use weaklink_models::weights::Weights;

const PROMPT: usize = 128;
const BATCHES: [usize; 3] = [1, 8, 32];

fn tiny(folder: &Path) -> Decoder {
    let path = folder.join("tiny.gguf");
    let (preset, mix) = (Preset::by_name("tiny").expect("a preset"), Mix::by_name("Q4_K_M").expect("a mix"));
    synth::write(preset, mix, 0, &path).expect("a temporary folder can be written");
    let gguf = Gguf::open(&path).expect("opens");
    Decoder::load(DecoderConfig::from_gguf(&gguf).expect("a decoder"), &Weights::Gguf(&gguf)).expect("loads")
}

/// `rows` tokens of each sequence after `computed` ones.
fn batch(sequences: usize, rows: usize, computed: usize) -> Batch {
    let blocks = (PROMPT + 1).div_ceil(BLOCK_SIZE) as u32;
    let tokens: Vec<u32> = (0..rows as u32).map(|i| 20 + i * 7 % 900).collect();
    let mut batch = Batch::default();
    for s in 0..sequences as u32 {
        let table: Vec<u32> = (s * blocks..(s + 1) * blocks).collect();
        batch.push(&tokens, computed, &table, BLOCK_SIZE, Logits::Last);
    }
    batch
}

fn steps(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let decoder = tiny(folder.path());
    for (name, rows, computed) in [("prefill", PROMPT, 0), ("decode", 1, PROMPT)] {
        let mut group = c.benchmark_group(name);
        group.sample_size(20).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(600));
        for sequences in BATCHES {
            let blocks = sequences * (PROMPT + 1).div_ceil(BLOCK_SIZE);
            let mut cache = KvCache::new(decoder.config(), blocks, decoder.device()).expect("a cache");
            let step = batch(sequences, rows, computed);
            group.throughput(Throughput::Elements(step.rows() as u64));
            group.bench_function(BenchmarkId::new("batch", sequences), |b| {
                b.iter(|| decoder.forward(&step, &mut cache).expect("computed"));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, steps);
criterion_main!(benches);
