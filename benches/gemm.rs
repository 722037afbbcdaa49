//! GOP/s of the matrix product by instruction set, format and rows: `cargo bench --bench gemm -- [FILTER]`.
//!
//! Throughput is counted in elements: one multiply-add is two operations, so `Gelem/s` reads as GOP/s.
//! After each group the best of a few runs stands beside what the CPU can do at most (`weaklink_kernels::probe`).
//! Shapes are those of SmolLM2-135M and of a Qwen2.5-1.5B; weights are noise, values do not matter to the speed.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use weaklink_kernels::{Activations, Format, Isa, QuantMatrix, matmul, probe, quantize};

/// (format, outputs, inputs)
const SHAPES: [(Format, usize, usize); 14] = [
    (Format::Q4_1, 1536, 576),
    (Format::Q4_1, 576, 1536),
    (Format::Q8_0, 49152, 576),
    (Format::Q4_0, 8960, 1536),
    (Format::Q4K, 8960, 1536),
    (Format::Q4K, 1536, 8960),
    (Format::Q6K, 1536, 8960),
    (Format::Q5K, 1536, 8960),
    (Format::Q3K, 1536, 8960),
    (Format::Q2K, 1536, 8960),
    (Format::Q5_0, 1536, 8960),
    (Format::Q5_1, 1536, 8960),
    (Format::F16, 1536, 8960),
    (Format::BF16, 1536, 8960),
];
const ROWS: [usize; 4] = [1, 8, 32, 128];

/// Bytes without pattern; exponents of halves are kept small by clearing a bit in every byte.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8 & 0xbf
    };
    (0..len).map(|_| next()).collect()
}

/// A tensor: noise for codes and scales, values around zero for dense formats, since bits without pattern would be
/// subnormal or huge floats, which are slow to multiply.
fn tensor(format: Format, outputs: usize, inputs: usize) -> Vec<u8> {
    if format.block_len() == 1 {
        let values: Vec<f32> = noise(outputs * inputs).into_iter().map(|byte| f32::from(byte) / 96.0 - 1.0).collect();
        return quantize(format, &values).expect("dense formats are writable");
    }
    noise(outputs * format.row_bytes(inputs).expect("whole blocks"))
}

/// Seconds of the fastest of a few calls.
fn best(mut call: impl FnMut()) -> f64 {
    let times = (0..20).map(|_| {
        let begun = Instant::now();
        call();
        begun.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}

/// A name, its int8 and f32 peaks in GOP/s and what it reads from memory in GB/s.
fn ceilings() -> Vec<(Isa, f64, f64, f64)> {
    let time = Duration::from_millis(200);
    let measured = Isa::available().into_iter().map(|isa| {
        (isa, probe::int8_gops(isa, time), probe::f32_gops(isa, time), probe::read_gbs(isa, 256 << 20, time))
    });
    measured
        .inspect(|(isa, int8, f32, read)| {
            println!("{isa}: at most {int8:.0} GOP/s int8, {f32:.0} GOP/s f32, {read:.1} GB/s from memory");
        })
        .collect()
}

fn gemm(c: &mut Criterion) {
    let ceilings = ceilings();
    for (format, outputs, inputs) in SHAPES {
        let bytes = tensor(format, outputs, inputs);
        for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::SCALAR) {
            let w = QuantMatrix::with_isa(isa, format, outputs, inputs, &bytes).expect("valid");
            let mut group = c.benchmark_group(format!("{isa}/{format}/{outputs}x{inputs}"));
            group.sample_size(20).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(600));
            for rows in ROWS {
                let x: Vec<f32> = (0..rows * inputs).map(|i| (i % 17) as f32 - 8.0).collect();
                let mut out = vec![0.0; rows * outputs];
                group.throughput(Throughput::Elements(2 * (rows * outputs * inputs) as u64));
                group.bench_with_input(BenchmarkId::from_parameter(rows), &rows, |b, rows| {
                    b.iter(|| {
                        let x = Activations::quantize(isa, black_box(&x), *rows, inputs).expect("valid");
                        matmul(&w, &x, &mut out, outputs, 0).expect("valid");
                    });
                });
            }
            group.finish();
            let Some((_, int8, f32, read)) = ceilings.iter().find(|(found, ..)| *found == isa) else { continue };
            for rows in ROWS {
                let x: Vec<f32> = (0..rows * inputs).map(|i| (i % 17) as f32 - 8.0).collect();
                let mut out = vec![0.0; rows * outputs];
                let seconds = best(|| {
                    let x = Activations::quantize(isa, black_box(&x), rows, inputs).expect("valid");
                    matmul(&w, &x, &mut out, outputs, 0).expect("valid");
                });
                let gops = 2.0 * (rows * outputs * inputs) as f64 / seconds / 1e9;
                let ceiling = if matches!(format, Format::F16 | Format::BF16) { f32 } else { int8 };
                let gbs = w.memory_bytes() as f64 / seconds / 1e9;
                println!(
                    "{isa}/{format}/{outputs}x{inputs}/{rows}: {gops:.1} GOP/s of {ceiling:.0} ({:.0} %), weights at {gbs:.1} GB/s of {read:.1}",
                    100.0 * gops / ceiling
                );
            }
        }
    }
}

criterion_group!(benches, gemm);
criterion_main!(benches);
