//! Plain Rust on arrays of 16: the reference for the other instruction sets, and good enough to be vectorised.

use half::{bf16, f16};

use super::{Bytes, LANES, MAGIC, Simd, SimdOp};

/// Needs nothing of the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scalar;

type Vector = [f32; LANES];

#[inline(always)]
fn zip<T: Copy, U: Copy>(a: [T; LANES], b: [U; LANES], f: impl Fn(T, U) -> T) -> [T; LANES] {
    let mut out = a;
    for (a, b) in out.iter_mut().zip(b) {
        *a = f(*a, b);
    }
    out
}

impl Simd for Scalar {
    type F = Vector;
    type I = [i32; LANES];
    type W = [u8; 64];
    type P = [i32; LANES];

    const PANELS: usize = 1;
    const TILE_ROWS: usize = 4;
    const SIGNED_BYTES: bool = false;

    #[inline(always)]
    fn chain(_bits: u32) -> usize {
        usize::MAX // 32-bit sums of at most 32 products: 32 · 255 · 127 < 2²⁰
    }

    #[inline(always)]
    fn enter<O: SimdOp>(self, op: O) -> O::Output {
        #[inline(never)]
        fn inner<O: SimdOp>(op: O) -> O::Output {
            op.eval(Scalar)
        }
        inner(op)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Vector {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &Vector) -> Vector {
        *x
    }
    #[inline(always)]
    fn store(self, x: Vector, to: &mut Vector) {
        *to = x;
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Vector {
        x.map(|bits| f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> Vector {
        x.map(|bits| bf16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    fn add(self, a: Vector, b: Vector) -> Vector {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Vector, b: Vector) -> Vector {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Vector, b: Vector) -> Vector {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Vector, b: Vector) -> Vector {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Vector, b: Vector, c: Vector) -> Vector {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn max(self, a: Vector, b: Vector) -> Vector {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Vector, b: Vector) -> Vector {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn sum(self, x: Vector) -> f32 {
        // halves, as the vector units do
        let mut x = x;
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                x[lane] += x[lane + width];
            }
        }
        x[0]
    }
    #[inline(always)]
    fn max_lane(self, x: Vector) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> Self::I {
        x.map(i32::from)
    }
    #[inline(always)]
    fn store_i8(self, x: Self::I, to: &mut [i8; LANES]) {
        *to = x.map(|x| x as i8);
    }
    #[inline(always)]
    fn and_i(self, a: Self::I, mask: i32) -> Self::I {
        a.map(|a| a & mask)
    }
    #[inline(always)]
    fn shr4_i(self, a: Self::I) -> Self::I {
        a.map(|a| a >> 4)
    }
    #[inline(always)]
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::max)
    }
    #[inline(always)]
    fn max_across(self, x: Self::I) -> i32 {
        x.into_iter().fold(i32::MIN, i32::max)
    }
    #[inline(always)]
    fn sum_across(self, x: Self::I) -> i32 {
        x.into_iter().sum()
    }
    #[inline(always)]
    fn to_float(self, x: Self::I) -> Vector {
        x.map(|x| x as f32)
    }
    #[inline(always)]
    fn scale_magic(self, x: Self::I, scale: Vector, _bias: Vector) -> Vector {
        // without a fused multiply-add, the subtraction comes first
        std::array::from_fn(|i| (f32::from_bits(x[i] as u32) - MAGIC) * scale[i])
    }
    #[inline(always)]
    fn round(self, x: Vector) -> Self::I {
        // Adding 1.5 · 2²³ rounds the fraction away, ties to even, for |x| < 2²²; `round_ties_even` is a
        // library call on CPUs without the instruction. Larger values have no use here.
        const MAGIC: f32 = 12_582_912.0;
        x.map(|x| ((x + MAGIC) - MAGIC) as i32)
    }
    #[inline(always)]
    fn abs_bits(self, x: Vector) -> Self::I {
        x.map(|x| x.abs().to_bits() as i32)
    }
    #[inline(always)]
    fn exp2(self, n: Self::I) -> Vector {
        n.map(|n| f32::from_bits(((n + 127) << 23) as u32))
    }

    #[inline(always)]
    fn prefetch<T>(self, _x: &T) {}
    #[inline(always)]
    fn load_w(self, x: &Bytes) -> Self::W {
        x.0
    }
    #[inline(always)]
    fn store_w(self, x: Self::W, to: &mut Bytes) {
        to.0 = x;
    }
    #[inline(always)]
    fn and_w(self, a: Self::W, mask: u8) -> Self::W {
        a.map(|a| a & mask)
    }
    #[inline(always)]
    fn or_w(self, a: Self::W, b: Self::W) -> Self::W {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn shr_w(self, a: Self::W, n: u32) -> Self::W {
        a.map(|a| a >> n)
    }
    #[inline(always)]
    fn shl_w(self, a: Self::W, n: u32) -> Self::W {
        a.map(|a| a << n)
    }

    #[inline(always)]
    fn start(self, from: Self::I) -> Self::P {
        from
    }
    #[inline(always)]
    fn dot<const BITS: u32>(self, sum: Self::P, w: Self::W, x: [i8; 4]) -> Self::P {
        let mut sum = sum;
        let x = x.map(i32::from);
        for (lane, sum) in sum.iter_mut().enumerate() {
            for (i, x) in x.iter().enumerate() {
                *sum += i32::from(w[4 * lane + i]) * x;
            }
        }
        sum
    }
    #[inline(always)]
    fn finish(self, _from: Self::I, sum: Self::P) -> Self::I {
        sum
    }
}
