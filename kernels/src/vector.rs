//! Row operations between the matrix products: norms, rotary positions, gated activations.
//!
//! Each works on a range of columns of a row-major matrix, so that fused q|k|v and
//! gate|up buffers need no copies. Rows are independent and shared out over the
//! current rayon pool when there is enough to do.

use rayon::prelude::*;

use crate::KernelError;
use crate::error::{area, check_at_least, check_len, check_range};
use crate::isa::{Isa, LANES, Simd, SimdOp};
use crate::math::{gelu_tanh, times_sigmoid};

/// Elements below which an operation stays on the calling thread.
const SERIAL: usize = 1 << 15;

/// Columns `offset .. offset + width` of a row-major matrix with rows of `stride` elements.
#[derive(Debug, Clone, Copy)]
pub struct Columns<'a> {
    /// The matrix.
    pub data: &'a [f32],
    /// Elements from one row to the next.
    pub stride: usize,
    /// First column.
    pub offset: usize,
    /// Number of columns.
    pub width: usize,
}

impl<'a> Columns<'a> {
    /// All columns of a matrix.
    pub fn all(data: &'a [f32], width: usize) -> Self {
        Self { data, stride: width, offset: 0, width }
    }

    fn check(&self, what: &'static str, rows: usize) -> Result<(), KernelError> {
        check_range(what, self.stride, self.offset.saturating_add(self.width))?;
        let Some(last) = rows.checked_sub(1) else { return Ok(()) };
        let end = area(what, last, self.stride)?.saturating_add(self.offset + self.width);
        check_at_least(what, end, self.data.len())
    }

    fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.stride + self.offset..][..self.width]
    }
}

/// `out = x / √(mean(x²) + eps) · weight` for rows of `weight.len()` elements.
///
/// # Errors
/// If `x` is no whole number of rows or `out` has another length.
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) -> Result<(), KernelError> {
    let width = weight.len();
    check_len("rms_norm: out", x.len(), out.len())?;
    if x.is_empty() {
        return Ok(());
    }
    check_len("rms_norm: whole rows", x.len() / width.max(1) * width, x.len())?;
    let run = |(out, x): (&mut [f32], &[f32])| {
        out.copy_from_slice(x);
        isa.run(RmsNorm { x: out, weight, eps });
    };
    if x.len() < SERIAL {
        out.chunks_exact_mut(width).zip(x.chunks_exact(width)).for_each(run);
    } else {
        out.par_chunks_exact_mut(width).zip(x.par_chunks_exact(width)).with_min_len(4).for_each(run);
    }
    Ok(())
}

/// [`rms_norm`] in place on each of `heads` neighbouring heads of `weight.len()` elements, from column `offset` of
/// rows of `stride` elements.
///
/// # Errors
/// If the heads do not fit in a row or `x` is no whole number of rows.
pub fn rms_norm_heads(
    isa: Isa,
    x: &mut [f32],
    stride: usize,
    offset: usize,
    heads: usize,
    weight: &[f32],
    eps: f32,
) -> Result<(), KernelError> {
    let width = weight.len();
    let end = area("rms_norm_heads: columns", heads, width)?.saturating_add(offset);
    check_range("rms_norm_heads: end of the heads in a row", stride, end)?;
    for_rows("rms_norm_heads: x", x, stride, |_, row| {
        for x in row[offset..end].chunks_exact_mut(width.max(1)) {
            isa.run(RmsNorm { x, weight, eps });
        }
    })
}

struct RmsNorm<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl SimdOp for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let (chunks, tail) = self.x.as_chunks::<LANES>();
        let mut squares = s.splat(0.0);
        for x in chunks {
            let x = s.load(x);
            squares = s.fma(x, x, squares);
        }
        let sum = tail.iter().fold(s.sum(squares), |sum, x| sum + x * x);
        let factor = 1.0 / (sum / self.x.len() as f32 + self.eps).sqrt();
        let (chunks, tail) = self.x.as_chunks_mut::<LANES>();
        let (weights, tail_weights) = self.weight.as_chunks::<LANES>();
        for (x, weight) in chunks.iter_mut().zip(weights) {
            s.store(s.mul(s.mul(s.load(x), s.splat(factor)), s.load(weight)), x);
        }
        for (x, weight) in tail.iter_mut().zip(tail_weights) {
            *x = *x * factor * weight;
        }
    }
}

/// Cosines and sines of rotary position embeddings, for the rows of one batch.
#[derive(Debug, Clone)]
pub struct RopeTable {
    pairs: usize,
    /// `[row][pair]` of (cos, sin).
    angles: Vec<(f32, f32)>,
}

impl RopeTable {
    /// Angles `positions[row] · frequencies[pair]`, computed in f64: at position 100,000 an f32 angle
    /// would be off by 0.004.
    pub fn new(positions: &[u32], frequencies: &[f64]) -> Self {
        let mut angles = Vec::with_capacity(positions.len() * frequencies.len());
        for &position in positions {
            for &frequency in frequencies {
                let (sin, cos) = (f64::from(position) * frequency).sin_cos();
                angles.push((cos as f32, sin as f32));
            }
        }
        Self { pairs: frequencies.len(), angles }
    }

    /// Elements of a head that are rotated.
    pub fn rotary_dim(&self) -> usize {
        2 * self.pairs
    }

    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.angles.len().checked_div(self.pairs).unwrap_or(0)
    }
}

/// Rotates, in place, the first [`RopeTable::rotary_dim`] elements of each of `heads` neighbouring heads of
/// `head_dim` elements, from column `offset` of rows of `stride` elements.
///
/// Pairs are elements (2i, 2i+1) if `interleaved`, else (i, i + rotary_dim/2).
///
/// # Errors
/// If shapes do not fit.
pub fn rope(
    x: &mut [f32],
    stride: usize,
    offset: usize,
    heads: usize,
    head_dim: usize,
    table: &RopeTable,
    interleaved: bool,
) -> Result<(), KernelError> {
    let end = area("rope: columns", heads, head_dim)?.saturating_add(offset);
    check_range("rope: end of the heads in a row", stride, end)?;
    check_range("rope: rotated elements of a head", head_dim, table.rotary_dim())?;
    check_len("rope: x against rows of the table", area("rope: x", table.rows(), stride)?, x.len())?;
    for_rows("rope: x", x, stride, |row, x| {
        let angles = &table.angles[row * table.pairs..][..table.pairs];
        for head in x[offset..end].chunks_exact_mut(head_dim.max(1)) {
            let rotated = &mut head[..2 * table.pairs];
            if interleaved {
                for (pair, (cos, sin)) in rotated.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
                    *pair = [pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos];
                }
            } else {
                let (first, second) = rotated.split_at_mut(table.pairs);
                for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(angles) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            }
        }
    })
}

/// `out = silu(gate) · up`, with silu(x) = x / (1 + e⁻ˣ); `out` has rows of `gate.width` elements.
///
/// # Errors
/// If widths differ, `out` is no whole number of rows, or a matrix is too short for them.
pub fn silu_mul(isa: Isa, gate: Columns<'_>, up: Columns<'_>, out: &mut [f32]) -> Result<(), KernelError> {
    gated::<false>(isa, gate, up, out)
}

/// `out = gelu(gate) · up` with the tanh approximation of GELU; `out` has rows of `gate.width` elements.
///
/// # Errors
/// As [`silu_mul`].
pub fn gelu_tanh_mul(isa: Isa, gate: Columns<'_>, up: Columns<'_>, out: &mut [f32]) -> Result<(), KernelError> {
    gated::<true>(isa, gate, up, out)
}

fn gated<const GELU: bool>(isa: Isa, gate: Columns<'_>, up: Columns<'_>, out: &mut [f32]) -> Result<(), KernelError> {
    check_len("gated activation: width of up", gate.width, up.width)?;
    let rows = out.len().checked_div(gate.width).unwrap_or(0);
    gate.check("gated activation: gate", rows)?;
    up.check("gated activation: up", rows)?;
    for_rows("gated activation: out", out, gate.width, |row, out| {
        isa.run(Gated::<GELU> { gate: gate.row(row), up: up.row(row), out });
    })
}

struct Gated<'a, const GELU: bool> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl<const GELU: bool> SimdOp for Gated<'_, GELU> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        for ((out, gate), up) in self.out.chunks_mut(LANES).zip(self.gate.chunks(LANES)).zip(self.up.chunks(LANES)) {
            // The last chunk may be short: pad it, so that every element goes through the same arithmetic.
            let mut lanes = [[0.0; LANES]; 2];
            lanes[0][..gate.len()].copy_from_slice(gate);
            lanes[1][..up.len()].copy_from_slice(up);
            let [gate, up] = [s.load(&lanes[0]), s.load(&lanes[1])];
            let gate = if GELU { gelu_tanh(s, gate) } else { times_sigmoid(s, gate, gate) };
            s.store(s.mul(gate, up), &mut lanes[0]);
            out.copy_from_slice(&lanes[0][..out.len()]);
        }
    }
}

/// Calls `f(row index, row)` for the rows of `stride` elements of `x`.
fn for_rows(
    what: &'static str,
    x: &mut [f32],
    stride: usize,
    f: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<(), KernelError> {
    if x.is_empty() {
        return Ok(());
    }
    check_len(what, x.len() / stride.max(1) * stride, x.len())?;
    if x.len() < SERIAL {
        x.chunks_exact_mut(stride).enumerate().for_each(|(row, x)| f(row, x));
    } else {
        x.par_chunks_exact_mut(stride).enumerate().for_each(|(row, x)| f(row, x));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::testing::floats;

    fn close(got: &[f32], expected: impl IntoIterator<Item = f64>, relative: f64, what: &str) {
        for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
            let error = (f64::from(*got) - expected).abs();
            assert!(error <= relative * expected.abs() + 1e-30, "{what} [{i}]: {got} for {expected}");
        }
    }

    #[test]
    fn norms_match_f64() {
        for isa in Isa::available() {
            println!("isa {isa}");
            for width in [1, 15, 16, 17, 64, 576] {
                for rows in [0, 1, 3, 70] {
                    let (x, weight) = (floats(rows * width, 3), floats(width, 4));
                    let mut out = vec![f32::NAN; rows * width];
                    rms_norm(isa, &x, &weight, 1e-5, &mut out).expect("shapes fit");
                    for (out, x) in out.chunks_exact(width).zip(x.chunks_exact(width)) {
                        let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
                        let expected = x
                            .iter()
                            .zip(&weight)
                            .map(|(x, w)| f64::from(*x) / (mean + f64::from(1e-5f32)).sqrt() * f64::from(*w));
                        close(out, expected, 1e-6, "rms_norm");
                    }
                    // in place, on two heads between other columns
                    let stride = 2 * width + 3;
                    let mut wide = vec![7.0; rows * stride];
                    for (wide, x) in wide.chunks_exact_mut(stride).zip(x.chunks_exact(width)) {
                        wide[1..=width].copy_from_slice(x);
                        wide[1 + width..][..width].copy_from_slice(x);
                    }
                    rms_norm_heads(isa, &mut wide, stride, 1, 2, &weight, 1e-5).expect("shapes fit");
                    for (wide, out) in wide.chunks_exact(stride).zip(out.chunks_exact(width)) {
                        assert_eq!((wide[0], &wide[2 * width + 1..]), (7.0, &[7.0; 2][..]));
                        assert_eq!((&wide[1..=width], &wide[1 + width..][..width]), (out, out));
                    }
                }
            }
        }
    }

    #[test]
    fn rope_rotates_both_pairings() {
        let inv_freq = [1.0f64, 0.25, 0.01];
        let (heads, head_dim, offset, stride) = (3, 8, 2, 27); // the last two elements of a head stay
        let positions = [0u32, 49, 7];
        let table = RopeTable::new(&positions, &inv_freq);
        for interleaved in [false, true] {
            let before = floats(3 * stride, 5);
            let mut x = before.clone();
            rope(&mut x, stride, offset, heads, head_dim, &table, interleaved).expect("shapes fit");
            let mut expected: Vec<f64> = before.iter().map(|x| f64::from(*x)).collect();
            for (row, position) in positions.iter().enumerate() {
                for head in 0..heads {
                    for (i, freq) in inv_freq.iter().enumerate() {
                        let base = row * stride + offset + head * head_dim;
                        let (a, b) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + 3) };
                        let (sin, cos) = (f64::from(*position) * freq).sin_cos();
                        let (xa, xb) = (f64::from(before[base + a]), f64::from(before[base + b]));
                        expected[base + a] = xa * cos - xb * sin;
                        expected[base + b] = xa * sin + xb * cos;
                    }
                }
            }
            for (i, (got, expected)) in x.iter().zip(&expected).enumerate() {
                assert!((f64::from(*got) - expected).abs() < 4e-7, "interleaved {interleaved} [{i}]");
            }
        }
        let mut x = vec![0.0; 27];
        let table = RopeTable::new(&[50], &inv_freq);
        let error = rope(&mut x, 25, 2, 3, 8, &table, false).unwrap_err().to_string();
        assert_eq!(error, "rope: end of the heads in a row: 26 is outside the accepted range, at most 25");
        assert!(rope(&mut x, 27, 2, 3, 8, &RopeTable::new(&[50, 51], &inv_freq), false).is_err());
        assert!(rope(&mut x, 27, 2, 5, 5, &table, false).is_err());
    }

    #[test]
    fn gates_match_f64() {
        let gelu = |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
        for isa in Isa::available() {
            for width in [1, 15, 16, 17, 1536] {
                for rows in [0, 1, 3, 40] {
                    // halves of one row with a column to spare
                    let stride = 2 * width + 1;
                    let both: Vec<f32> = floats(rows * stride, 6).iter().map(|x| x * 4.0).collect();
                    let gate = Columns { data: &both, stride, offset: 0, width };
                    let up = Columns { data: &both, stride, offset: width + 1, width };
                    let pairs = || (0..rows).flat_map(|r| gate.row(r).iter().zip(up.row(r)));
                    let mut out = vec![f32::NAN; rows * width];
                    silu_mul(isa, gate, up, &mut out).expect("shapes fit");
                    let silu = pairs().map(|(g, u)| f64::from(*g) / (1.0 + f64::from(-*g).exp()) * f64::from(*u));
                    close(&out, silu, 1e-6, "silu");
                    out.fill(f32::NAN);
                    gelu_tanh_mul(isa, gate, up, &mut out).expect("shapes fit");
                    // 1 + tanh cancels in the f64 reference too, but far below this bound
                    close(&out, pairs().map(|(g, u)| gelu(f64::from(*g)) * f64::from(*u)), 3e-6, "gelu");
                }
            }
            let mut out = [0.0; 3];
            let gate = [f32::NAN, 1e38, -1e38];
            silu_mul(isa, Columns::all(&gate, 3), Columns::all(&[1.0; 3], 3), &mut out).expect("shapes fit");
            assert!(out[0].is_nan() && out[1] == 1e38 && out[2] == 0.0, "{isa}: {out:?}");
        }
        let short = Columns { data: &[0.0; 5], stride: 4, offset: 2, width: 2 };
        assert!(silu_mul(Isa::SCALAR, short, short, &mut [0.0; 4]).is_err());
        assert!(silu_mul(Isa::SCALAR, Columns::all(&[0.0; 4], 4), short, &mut [0.0; 4]).is_err());
    }
}
