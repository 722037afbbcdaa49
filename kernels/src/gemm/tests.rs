//! Every format on every instruction set of this CPU against a naive twin.

use super::testing::{floats, random_bytes};
use super::*;
use crate::{Isa, dequantize};

fn weights(format: Format, rows: usize, cols: usize) -> Vec<u8> {
    random_bytes(format, rows, cols, (rows * 1000 + cols) as u64)
}

/// Σ w·x in f64 over dequantized weights, and Σ |w·x|, for row `r` of x and output `j`.
fn naive(w: &[f32], x: &[f32], cols: usize, r: usize, j: usize) -> (f64, f64) {
    let terms = w[j * cols..][..cols].iter().zip(&x[r * cols..][..cols]).map(|(w, x)| f64::from(*w) * f64::from(*x));
    terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
}

/// The activations that the integer kernels see: each unit of 32 rounded to its scale, in f64 precision enough for f32.
fn rounded(x: &Activations<'_>) -> Vec<f32> {
    let units = (0..x.rows()).flat_map(|row| (0..x.cols() / 32).map(move |unit| x.unit(row, unit)));
    units.flat_map(|(codes, scale, _)| codes.into_iter().flatten().map(move |code| f32::from(code) * scale)).collect()
}

fn product(isa: Isa, format: Format, bytes: &[u8], outputs: usize, cols: usize, x: &[f32], rows: usize) -> Vec<f32> {
    let w = QuantMatrix::with_isa(isa, format, outputs, cols, bytes).expect("valid");
    let x = Activations::quantize(isa, x, rows, cols).expect("valid");
    let mut out = vec![f32::NAN; rows * outputs];
    matmul(&w, &x, &mut out, outputs, 0).expect("valid");
    out
}

/// Outputs and rows below, at and above the edges of panels (16, 32), row tiles (4, 6) and groups (16).
const OUTPUTS: [usize; 9] = [0, 1, 3, 15, 16, 17, 31, 33, 64];
const ROWS: [usize; 9] = [0, 1, 3, 4, 5, 7, 13, 16, 17];

#[test]
fn products_match_the_naive_twin() {
    for isa in Isa::available() {
        println!("isa {isa}");
        for format in Format::ALL {
            let dense = format.layout().is_none();
            let widths: &[usize] = match format.block_len() {
                1 => &[0, 1, 31, 32, 127, 128, 129],
                32 => &[0, 32, 64, 512, 544],
                _ => &[0, 256, 768],
            };
            for cols in widths.iter().copied() {
                for outputs in OUTPUTS {
                    let bytes = weights(format, outputs, cols);
                    let mut w = vec![0.0; outputs * cols];
                    dequantize(format, &bytes, &mut w).expect("valid");
                    for rows in ROWS {
                        let x = floats(rows * cols, rows as u64);
                        let seen = match dense {
                            true => x.clone(),
                            false => rounded(&Activations::quantize(isa, &x, rows, cols).expect("valid")),
                        };
                        let got = product(isa, format, &bytes, outputs, cols, &x, rows);
                        for (i, got) in got.iter().enumerate() {
                            let (r, j) = (i / outputs, i % outputs);
                            let (expected, size) = naive(&w, &seen, cols, r, j);
                            // f32 sums of `cols` terms; minima and codes of one sub-block may cancel (factor 32)
                            let bound = (size * 32.0 + 1e-6) * f64::from(f32::EPSILON) * (4.0 + cols as f64 / 32.0);
                            assert!(
                                (f64::from(*got) - expected).abs() <= bound,
                                "{isa} {format} {outputs}×{cols} row {r} of {rows}, output {j}: {got} for {expected}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn rounding_activations_costs_little() {
    // Activations are rounded to 1/127 of the largest in 32: a relative error of each term of at most 1/254 of
    // max/mean, random in sign. Over 768 inputs the whole product is off by less than 1 % of its root mean square.
    let (outputs, cols, rows) = (64, 768, 8);
    for isa in Isa::available() {
        println!("isa {isa}");
        for format in Format::ALL {
            let bytes = weights(format, outputs, cols);
            let mut w = vec![0.0; outputs * cols];
            dequantize(format, &bytes, &mut w).expect("valid");
            let x = floats(rows * cols, 9);
            let got = product(isa, format, &bytes, outputs, cols, &x, rows);
            let (mut error, mut size) = (0.0, 0.0);
            for (i, got) in got.iter().enumerate() {
                let (expected, _) = naive(&w, &x, cols, i / outputs, i % outputs);
                error += (f64::from(*got) - expected).powi(2);
                size += expected.powi(2);
            }
            let relative = (error / size).sqrt();
            println!("{format}: relative error {relative:.1e}");
            assert!(relative < if format.layout().is_none() { 1e-6 } else { 0.01 }, "{isa} {format}: {relative}");
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_batch_and_on_any_threads() {
    let (outputs, most) = (50, 150);
    for isa in Isa::available() {
        println!("isa {isa}");
        for format in Format::ALL {
            let cols = if format.layout().is_none() { 200 } else { 768 };
            let bytes = weights(format, outputs, cols);
            let w = QuantMatrix::with_isa(isa, format, outputs, cols, &bytes).expect("valid");
            let x = floats(most * cols, 11);
            let run = |rows: Range<usize>, threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a small pool");
                pool.install(|| {
                    let n = rows.len();
                    let x = Activations::quantize(isa, &x[rows.start * cols..rows.end * cols], n, cols).expect("valid");
                    let mut out = vec![f32::NAN; n * outputs];
                    matmul(&w, &x, &mut out, outputs, 0).expect("valid");
                    out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                })
            };
            let whole = run(0..most, 1);
            for (batch, threads) in
                [(1, 1), (1, 3), (2, 2), (3, 1), (7, 3), (8, 2), (9, 1), (64, 3), (most, 2), (most, 3)]
            {
                for start in [0, 1, most - batch] {
                    let rows = start.min(most - batch)..start.min(most - batch) + batch;
                    let expected = &whole[rows.start * outputs..rows.end * outputs];
                    assert!(run(rows.clone(), threads) == expected, "{isa} {format} rows {rows:?}, {threads} threads");
                }
            }
        }
    }
}

#[test]
fn extreme_codes_stay_exact() {
    // Every code at its limit, every activation at ±127: the largest integer sums there are.
    for isa in Isa::available() {
        println!("isa {isa}");
        for format in Format::ALL.into_iter().filter(|format| format.layout().is_some()) {
            let cols = 512;
            for fill in [0x00, 0xff, 0x80, 0x7f] {
                let mut bytes = vec![fill; format.row_bytes(cols).expect("whole blocks")];
                let halves: &[usize] = match format {
                    Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
                    Format::Q2K => &[80, 82],
                    Format::Q3K => &[108],
                    Format::Q6K => &[208],
                    _ => &[0],
                };
                for block in bytes.chunks_exact_mut(format.block_bytes()) {
                    for at in halves {
                        block[*at..at + 2].copy_from_slice(&half::f16::ONE.to_le_bytes());
                    }
                }
                let mut w = vec![0.0; cols];
                dequantize(format, &bytes, &mut w).expect("valid");
                for sign in [1.0, -1.0] {
                    // scale 1: the codes are the values
                    let x: Vec<f32> = (0..cols).map(|k| if k % 3 == 0 { 127.0 } else { 127.0 * sign }).collect();
                    let got = product(isa, format, &bytes, 1, cols, &x, 1)[0];
                    let (expected, size) = naive(&w, &x, cols, 0, 0);
                    assert!(
                        (f64::from(got) - expected).abs() <= size * 32.0 * f64::from(f32::EPSILON),
                        "{isa} {format} {fill:#x} {sign}: {got} for {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn odd_activations_reach_the_output() {
    for isa in Isa::available() {
        for format in Format::ALL {
            let (outputs, cols) = (20, 256);
            let bytes = weights(format, outputs, cols);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = floats(3 * cols, 2);
                x[cols + 77] = bad;
                let got = product(isa, format, &bytes, outputs, cols, &x, 3);
                for (i, got) in got.iter().enumerate() {
                    assert_eq!(got.is_finite(), i / outputs != 1, "{isa} {format} {bad} at output {i}: {got}");
                }
            }
        }
    }
}

#[test]
fn parts_share_a_row_and_leave_the_rest_alone() {
    let cols = 96;
    for isa in Isa::available() {
        let x = floats(5 * cols, 1);
        let x = Activations::quantize(isa, &x, 5, cols).expect("valid");
        let matrix =
            |format, rows| QuantMatrix::with_isa(isa, format, rows, cols, &weights(format, rows, cols)).expect("valid");
        let (q, k, v) = (matrix(Format::Q4_0, 33), matrix(Format::Q5_1, 16), matrix(Format::F16, 3));
        let (stride, parts) = (60, [(&q, 1), (&k, 40), (&v, 34)]);
        let mut out = vec![7.0; 5 * stride];
        matmul_parts(&parts, &x, &mut out, stride).expect("valid");
        let mut expected = vec![7.0; 5 * stride];
        for (w, offset) in parts {
            let mut alone = vec![f32::NAN; 5 * w.rows()];
            matmul(w, &x, &mut alone, w.rows(), 0).expect("valid");
            for (row, alone) in expected.chunks_exact_mut(stride).zip(alone.chunks_exact(w.rows())) {
                row[offset..offset + w.rows()].copy_from_slice(alone);
            }
        }
        assert_eq!(out, expected, "{isa}");

        let mut refuse = |parts: &[(&QuantMatrix, usize)], len, stride| {
            matmul_parts(parts, &x, &mut out[..len], stride).unwrap_err().to_string()
        };
        assert!(refuse(&[(&q, 0), (&k, 32)], 300, 60).contains("33 is outside the accepted range, at most 32"));
        assert!(refuse(&[(&q, 28)], 300, 60).contains("61 is outside"));
        assert!(refuse(&[(&q, usize::MAX)], 300, 60).contains("outside"));
        assert!(refuse(&[(&q, 27)], 299, 60).contains("needs 300 elements, the buffer has 299"));
        assert!(
            refuse(&[(&QuantMatrix::new(Format::F32, 1, 1, &[0; 4]).expect("valid"), 0)], 300, 60).contains("columns")
        );
    }
}
