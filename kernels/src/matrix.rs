//! Weights, repacked once into panels of 16 columns.
//!
//! A weight matrix is `rows` outputs by `cols` inputs. A panel holds 16 outputs; its
//! codes lie in units of 32 inputs, in the order in which the kernel reads them (see
//! [`planes`]). Scales lie apart, 16 at a time. The packed matrix is as large as the
//! file's tensor (Q4_K, Q5_K and Q3_K grow by 1/8 bit a weight, as 6-bit scales become
//! bytes), plus what rounds the outputs up to a multiple of 16.

mod pack;
pub(crate) mod planes;

use half::{bf16, f16};

use crate::KernelError;
use crate::error::{area, check_len, check_range};
use crate::format::{Format, Layout, Scales};
use crate::isa::{Bytes, Floats, Halves, Isa, LANES};

/// Inputs in one unit: every quantized format has whole units.
pub(crate) const UNIT: usize = 32;

/// An immutable weight matrix in the layout of the kernels.
#[derive(Debug)]
pub struct QuantMatrix {
    format: Format,
    rows: usize,
    cols: usize,
    isa: Isa,
    pub(crate) data: Data,
}

/// Panels one after the other.
#[derive(Debug)]
pub(crate) enum Data {
    /// `[panel][input]` of 16 outputs.
    Full(Vec<Floats>),
    /// `[panel][input]` of 16 outputs, F16 or BF16.
    Half(Vec<Halves>),
    /// Codes and scales.
    Quant(Quant),
}

/// Codes and scales of a quantized matrix.
#[derive(Debug)]
pub(crate) struct Quant {
    pub layout: Layout,
    /// Inputs in units of 32.
    pub units: usize,
    /// `[panel][unit][bits]`: bit planes of the codes.
    pub planes: Vec<Bytes>,
    /// `[panel][block]`: block scales.
    pub d: Vec<Halves>,
    /// `[panel][block]`: block minima or the scales of minima; empty for centred formats.
    pub m: Vec<Halves>,
    /// `[panel][unit][sub]`: sub-block scales; empty for formats without super-blocks.
    pub sub: Vec<[i8; LANES]>,
    /// `[panel][unit][sub]`: sub-block minima; empty unless kept as bytes of their own.
    pub sub_min: Vec<[i8; LANES]>,
}

impl Quant {
    /// Units that share one entry of `d` and `m`.
    pub fn units_per_block(&self) -> usize {
        match self.layout.scales {
            Scales::Block => 1,
            Scales::Super | Scales::SuperNibbles => 8,
        }
    }
}

impl QuantMatrix {
    /// Repacks a tensor of `rows` outputs by `cols` inputs for the best instruction set of this CPU.
    ///
    /// `bytes` holds the rows one after the other, as in a GGUF file. Runs in the current rayon pool.
    ///
    /// # Errors
    /// If `cols` is no whole number of blocks, or `bytes` has another size than the shape needs.
    pub fn new(format: Format, rows: usize, cols: usize, bytes: &[u8]) -> Result<Self, KernelError> {
        Self::with_isa(Isa::detect(), format, rows, cols, bytes)
    }

    /// As [`QuantMatrix::new`], for a chosen instruction set.
    ///
    /// # Errors
    /// As [`QuantMatrix::new`].
    pub fn with_isa(isa: Isa, format: Format, rows: usize, cols: usize, bytes: &[u8]) -> Result<Self, KernelError> {
        let block = format.block_len();
        let row_bytes = format.row_bytes(cols).ok_or(KernelError::Columns { format, cols, block })?;
        let size = area("matrix bytes", rows, row_bytes)?;
        check_len("matrix bytes", size, bytes.len())?;
        Ok(Self { format, rows, cols, isa, data: pack::pack(format, rows, cols, bytes) })
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Format of the tensor it was made from.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Instruction set that multiplies it.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Bytes that [`QuantMatrix::memory_bytes`] will be for such a tensor.
    #[must_use]
    pub fn packed_bytes(format: Format, rows: usize, cols: usize) -> usize {
        rows.div_ceil(LANES).saturating_mul(pack::panel_bytes(format, cols))
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        match &self.data {
            Data::Full(w) => size_of_val(&w[..]),
            Data::Half(w) => size_of_val(&w[..]),
            Data::Quant(q) => {
                size_of_val(&q.planes[..])
                    + size_of_val(&q.d[..])
                    + size_of_val(&q.m[..])
                    + size_of_val(&q.sub[..])
                    + size_of_val(&q.sub_min[..])
            }
        }
    }

    /// The values of one output row (an embedding, say), bit for bit those of [`dequantize`](crate::dequantize).
    ///
    /// # Errors
    /// If there is no such row or `out` is not `cols` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) -> Result<(), KernelError> {
        check_range("dequantize_row: row + 1", self.rows, row.saturating_add(1))?;
        check_len("dequantize_row: out", self.cols, out.len())?;
        let (panel, lane) = (row / LANES, row % LANES);
        match &self.data {
            Data::Full(w) => {
                for (value, w) in out.iter_mut().zip(&w[panel * self.cols..]) {
                    *value = w.0[lane];
                }
            }
            Data::Half(w) => {
                for (value, w) in out.iter_mut().zip(&w[panel * self.cols..]) {
                    let bits = w.0[lane];
                    *value = match self.format {
                        Format::BF16 => bf16::from_bits(bits).to_f32(),
                        _ => f16::from_bits(bits).to_f32(),
                    };
                }
            }
            Data::Quant(q) => {
                for (unit, values) in out.chunks_exact_mut(UNIT).enumerate() {
                    q.dequantize_unit(panel, unit, lane, values);
                }
            }
        }
        Ok(())
    }
}

impl Quant {
    fn dequantize_unit(&self, panel: usize, unit: usize, lane: usize, out: &mut [f32]) {
        let Layout { bits, subs, center, scales } = self.layout;
        let at = panel * self.units + unit;
        let planes = &self.planes[at * bits as usize..];
        let half = |halves: &[Halves]| {
            let block = panel * (self.units / self.units_per_block()) + unit / self.units_per_block();
            halves.get(block).map_or(0.0, |x| f16::from_bits(x.0[lane]).to_f32())
        };
        let (d, m) = (half(&self.d), half(&self.m));
        for (k, value) in out.iter_mut().enumerate() {
            let s = at * subs + k * subs / UNIT;
            let byte = |bytes: &[[i8; LANES]]| bytes.get(s).map_or(0, |x| x[lane]);
            let (sub, sub_min) = (byte(&self.sub), byte(&self.sub_min));
            let (scale, min) = match scales {
                Scales::Block => (d, m),
                Scales::Super => (d * f32::from(sub), -(m * f32::from(sub_min))),
                Scales::SuperNibbles => (d * f32::from(sub & 15), -(m * f32::from(sub >> 4 & 15))),
            };
            let code = i32::from(planes::get(bits, planes, k / 4, 4 * lane + k % 4));
            *value = match center {
                Some(center) => scale * (code - center) as f32,
                None => scale * code as f32 + min,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dequantize;
    use crate::gemm::testing::random_bytes;

    #[test]
    fn rows_come_back_bit_for_bit() {
        for format in Format::ALL {
            let cols = if format.block_len() == 256 { 512 } else { 96 };
            for rows in [0, 1, 3, 15, 16, 17, 40] {
                let bytes = random_bytes(format, rows, cols, rows as u64);
                let matrix = QuantMatrix::new(format, rows, cols, &bytes).expect("valid");
                let mut expected = vec![f32::NAN; rows * cols];
                dequantize(format, &bytes, &mut expected).expect("valid");
                for row in 0..rows {
                    let mut got = vec![f32::NAN; cols];
                    matrix.dequantize_row(row, &mut got).expect("in range");
                    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&got), bits(&expected[row * cols..][..cols]), "{format} row {row} of {rows}");
                }
            }
        }
    }

    #[test]
    fn memory_stays_near_the_file() {
        for format in Format::ALL {
            let bytes = random_bytes(format, 64, 512, 1);
            let matrix = QuantMatrix::new(format, 64, 512, &bytes).expect("valid");
            let ratio = matrix.memory_bytes() as f64 / bytes.len() as f64;
            assert!((1.0..1.04).contains(&ratio), "{format}: {ratio}");
        }
    }

    #[test]
    fn bad_shapes_are_errors() {
        let matrix = QuantMatrix::new(Format::Q8_0, 2, 32, &[0; 68]).expect("valid");
        let mut out = [0.0; 32];
        assert!(matrix.dequantize_row(2, &mut out).is_err());
        assert!(matrix.dequantize_row(usize::MAX, &mut out).is_err());
        assert!(matrix.dequantize_row(0, &mut out[1..]).is_err());
        assert!(QuantMatrix::new(Format::Q8_0, 2, 33, &[0; 68]).is_err());
        assert!(QuantMatrix::new(Format::Q8_0, 3, 32, &[0; 68]).is_err());
        assert!(QuantMatrix::new(Format::Q8_0, usize::MAX, 32, &[0; 68]).is_err());
        assert!(QuantMatrix::new(Format::F32, 0, 7, &[]).is_ok());
        assert!(QuantMatrix::new(Format::F32, 7, 0, &[]).is_ok());
    }
}
