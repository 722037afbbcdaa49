//! Activations, quantized once and shared by all matrices that read them.

use rayon::prelude::*;

use crate::KernelError;
use crate::error::{area, check_len};
use crate::isa::{Isa, LANES, Simd, SimdOp};
use crate::matrix::UNIT;

/// One unit of 32 activations, in the groups of four that a dot product reads.
pub(crate) type XUnit = [[i8; 4]; UNIT / 4];

/// Rows of activations: the floats themselves, for dense weights, and signed bytes for quantized ones.
///
/// Each 32 values share the scale max|x| / 127, so codes lie in −127…127 and a value
/// is off by at most half a scale. Units whose largest magnitude is below 2⁻¹⁰⁰ are
/// taken as zero. A unit with a NaN or an infinity gets the scale NaN, which makes
/// every output of the row NaN.
#[derive(Debug)]
pub struct Activations<'a> {
    rows: usize,
    cols: usize,
    pub(crate) floats: &'a [f32],
    /// `[row][unit]`; empty if `cols` is no multiple of 32, as then no quantized matrix fits.
    pub(crate) codes: Vec<XUnit>,
    /// `[row][unit]`
    pub(crate) scales: Vec<f32>,
    /// `[row][unit]`: sums of the codes of each half unit.
    pub(crate) sums: Vec<[i32; 2]>,
}

impl<'a> Activations<'a> {
    /// Quantizes `rows` rows of `cols` floats, in the current rayon pool.
    ///
    /// # Errors
    /// If `x` does not hold `rows × cols` values.
    pub fn quantize(isa: Isa, x: &'a [f32], rows: usize, cols: usize) -> Result<Self, KernelError> {
        check_len("activations", area("activations", rows, cols)?, x.len())?;
        let units = if cols.is_multiple_of(UNIT) { x.len() / UNIT } else { 0 };
        let mut codes = vec![[[0; 4]; 8]; units];
        let mut scales = vec![0.0; units];
        let mut sums = vec![[0; 2]; units];
        // ~1 µs of work: less is not worth waking a thread
        const CHUNK: usize = 256;
        let run = |codes: &mut [XUnit], scales: &mut [f32], sums: &mut [[i32; 2]], x: &[f32]| {
            isa.run(Quantize { codes, scales, sums, x: x.as_chunks().0.as_chunks().0 });
        };
        if units <= 4 * CHUNK {
            run(&mut codes, &mut scales, &mut sums, &x[..units * UNIT]);
        } else {
            (codes.par_chunks_mut(CHUNK), scales.par_chunks_mut(CHUNK), sums.par_chunks_mut(CHUNK))
                .into_par_iter()
                .zip(x.par_chunks(CHUNK * UNIT))
                .for_each(|((codes, scales, sums), x)| run(codes, scales, sums, x));
        }
        Ok(Self { rows, cols, floats: x, codes, scales, sums })
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values in a row.
    pub fn cols(&self) -> usize {
        self.cols
    }
}

struct Quantize<'a> {
    codes: &'a mut [XUnit],
    scales: &'a mut [f32],
    sums: &'a mut [[i32; 2]],
    x: &'a [[[f32; LANES]; 2]],
}

impl SimdOp for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        const INFINITY: i32 = f32::INFINITY.to_bits() as i32;
        const TINY: i32 = (1.0 / (1u128 << 100) as f32).to_bits() as i32;
        let outputs = self.codes.iter_mut().zip(self.scales).zip(self.sums);
        for (((codes, scale), sums), [first, second]) in outputs.zip(self.x) {
            let (a, b) = (s.load(first), s.load(second));
            // As integers, the bits of NaN are above those of infinity: no value hides from this maximum.
            let largest = s.max_across(s.max_i(s.abs_bits(a), s.abs_bits(b)));
            if !(TINY..INFINITY).contains(&largest) {
                *scale = if largest < TINY { 0.0 } else { f32::NAN };
                (*codes, *sums) = ([[0; 4]; 8], [0; 2]);
                continue;
            }
            let largest = f32::from_bits(largest as u32);
            let inverse = s.splat(127.0 / largest);
            let (a, b) = (s.round(s.mul(a, inverse)), s.round(s.mul(b, inverse)));
            *scale = largest / 127.0;
            *sums = [s.sum_across(a), s.sum_across(b)];
            let mut bytes = [[0; LANES]; 2];
            s.store_i8(a, &mut bytes[0]);
            s.store_i8(b, &mut bytes[1]);
            codes.copy_from_slice(bytes.as_flattened().as_chunks().0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::testing::floats;

    #[test]
    fn codes_are_the_rounded_values() {
        for isa in Isa::available() {
            println!("isa {isa}");
            for rows in [0, 1, 3, 70] {
                let x = floats(rows * 640, rows as u64);
                let q = Activations::quantize(isa, &x, rows, 640).expect("sizes fit");
                for (unit, x) in x.chunks_exact(UNIT).enumerate() {
                    let largest = x.iter().fold(0f32, |max, x| max.max(x.abs()));
                    assert_eq!(q.scales[unit], largest / 127.0);
                    let codes = q.codes[unit].as_flattened();
                    for (code, x) in codes.iter().zip(x) {
                        assert!((f32::from(*code) - x / q.scales[unit]).abs() <= 0.5001, "{isa}: {x} became {code}");
                    }
                    let halves = [&codes[..16], &codes[16..]].map(|half| half.iter().map(|c| i32::from(*c)).sum());
                    assert_eq!(q.sums[unit], halves);
                }
            }
        }
    }

    #[test]
    fn odd_values_never_become_plausible() {
        for isa in Isa::available() {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, 15, 16, 31] {
                    let mut x = [1.0; 64];
                    x[32 + at] = bad;
                    let q = Activations::quantize(isa, &x, 1, 64).expect("sizes fit");
                    assert!(!q.scales[0].is_nan() && q.scales[1].is_nan(), "{isa} {bad} at {at}");
                }
            }
            for (x, code) in [(f32::MAX, 127), (f32::MIN, -127), (0.0, 0), (f32::MIN_POSITIVE / 4.0, 0), (1e-29, 127)] {
                let q = Activations::quantize(isa, &[x; 32], 1, 32).expect("sizes fit").codes;
                assert_eq!(q, [[[code; 4]; 8]], "{isa} {x}");
            }
        }
    }

    #[test]
    fn wrong_sizes_are_errors() {
        assert!(Activations::quantize(Isa::SCALAR, &[0.0; 31], 1, 32).is_err());
        assert!(Activations::quantize(Isa::SCALAR, &[], usize::MAX, 2).is_err());
        assert!(Activations::quantize(Isa::SCALAR, &[0.0; 21], 3, 7).expect("any width for dense").codes.is_empty());
    }
}
