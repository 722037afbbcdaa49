//! Activations, quantized once and shared by all matrices that read them.

use rayon::prelude::*;

use crate::KernelError;
use crate::error::{area, check_len};
use crate::isa::{Isa, LANES, Simd, SimdOp};
use crate::matrix::UNIT;

/// Rows that lie together.
pub(crate) const GROUP: usize = 16;

/// One unit of 32 activations, in the groups of four that a dot product reads.
pub(crate) type XUnit = [[i8; 4]; UNIT / 4];

/// The same unit of 16 rows.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct XGroup(pub [XUnit; GROUP]);

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
    /// `[group][unit]` of 16 rows; those past the last row are zero.
    /// Empty if `cols` is no multiple of 32, as then no quantized matrix fits.
    pub(crate) codes: Vec<XGroup>,
    /// `[group][unit][row]`
    pub(crate) scales: Vec<[f32; GROUP]>,
    /// `[group][unit][half][row]`: sums of the codes of each half unit.
    pub(crate) sums: Vec<[[i32; GROUP]; 2]>,
}

impl<'a> Activations<'a> {
    /// Quantizes `rows` rows of `cols` floats, in the current rayon pool.
    ///
    /// # Errors
    /// If `x` does not hold `rows × cols` values.
    pub fn quantize(isa: Isa, x: &'a [f32], rows: usize, cols: usize) -> Result<Self, KernelError> {
        check_len("activations", area("activations", rows, cols)?, x.len())?;
        let units = if cols.is_multiple_of(UNIT) { cols / UNIT } else { 0 };
        let len = units * rows.div_ceil(GROUP);
        let mut codes = vec![XGroup([[[0; 4]; UNIT / 4]; GROUP]); len];
        let mut scales = vec![[0.0; GROUP]; len];
        let mut sums = vec![[[0; GROUP]; 2]; len];
        let run = |group: usize, codes: &mut [XGroup], scales: &mut [_], sums: &mut [_]| {
            let x = &x[group * GROUP * cols..rows.min((group + 1) * GROUP) * cols];
            isa.run(Quantize { codes, scales, sums, x, cols });
        };
        if rows <= GROUP || units == 0 {
            (len > 0).then(|| run(0, &mut codes, &mut scales, &mut sums));
        } else {
            (codes.par_chunks_mut(units), scales.par_chunks_mut(units), sums.par_chunks_mut(units))
                .into_par_iter()
                .enumerate()
                .for_each(|(group, (codes, scales, sums))| run(group, codes, scales, sums));
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

/// The codes and scale of a unit, for tests.
#[cfg(test)]
impl Activations<'_> {
    pub(crate) fn unit(&self, row: usize, unit: usize) -> (XUnit, f32, [i32; 2]) {
        let at = row / GROUP * (self.cols / UNIT) + unit;
        let row = row % GROUP;
        (self.codes[at].0[row], self.scales[at][row], self.sums[at].map(|half| half[row]))
    }
}

/// Quantizes up to 16 rows of `cols` values: one group.
struct Quantize<'a> {
    codes: &'a mut [XGroup],
    scales: &'a mut [[f32; GROUP]],
    sums: &'a mut [[[i32; GROUP]; 2]],
    x: &'a [f32],
    cols: usize,
}

impl SimdOp for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        const INFINITY: i32 = f32::INFINITY.to_bits() as i32;
        const TINY: i32 = (1.0 / (1u128 << 100) as f32).to_bits() as i32;
        for (row, x) in self.x.chunks_exact(self.cols).enumerate() {
            let outputs = self.codes.iter_mut().zip(&mut *self.scales).zip(&mut *self.sums);
            for (((codes, scale), sums), [first, second]) in outputs.zip(x.as_chunks().0.as_chunks().0) {
                let (a, b) = (s.load(first), s.load(second));
                // As integers, the bits of NaN are above those of infinity: no value hides from this maximum.
                let largest = s.max_across(s.max_i(s.abs_bits(a), s.abs_bits(b)));
                if !(TINY..INFINITY).contains(&largest) {
                    scale[row] = if largest < TINY { 0.0 } else { f32::NAN };
                    continue; // codes and sums are zero
                }
                let largest = f32::from_bits(largest as u32);
                let inverse = s.splat(127.0 / largest);
                let (a, b) = (s.round(s.mul(a, inverse)), s.round(s.mul(b, inverse)));
                scale[row] = largest / 127.0;
                (sums[0][row], sums[1][row]) = (s.sum_across(a), s.sum_across(b));
                let mut bytes = [[0; LANES]; 2];
                s.store_i8(a, &mut bytes[0]);
                s.store_i8(b, &mut bytes[1]);
                codes.0[row].copy_from_slice(bytes.as_flattened().as_chunks().0);
            }
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
                    let (codes, scale, sums) = q.unit(unit / 20, unit % 20);
                    assert_eq!(scale, largest / 127.0);
                    let codes = codes.as_flattened();
                    for (code, x) in codes.iter().zip(x) {
                        assert!((f32::from(*code) - x / scale).abs() <= 0.5001, "{isa}: {x} became {code}");
                    }
                    let halves = [&codes[..16], &codes[16..]].map(|half| half.iter().map(|c| i32::from(*c)).sum());
                    assert_eq!(sums, halves);
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
                    assert!(!q.unit(0, 0).1.is_nan() && q.unit(0, 1).1.is_nan(), "{isa} {bad} at {at}");
                }
            }
            for (x, code) in [(f32::MAX, 127), (f32::MIN, -127), (0.0, 0), (f32::MIN_POSITIVE / 4.0, 0), (1e-29, 127)] {
                let x = [x; 32];
                let q = Activations::quantize(isa, &x, 1, 32).expect("sizes fit");
                assert_eq!(q.unit(0, 0).0, [[code; 4]; 8], "{isa} {}", x[0]);
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
