//! AVX2 with FMA and F16C: two registers are one vector of 16 lanes.

use std::arch::x86_64::*;

use super::{Bytes, LANES, Simd, SimdOp};

/// Proof that the CPU has every feature that [`Simd::enter`] enables here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// `Some` where the CPU and the operating system support it. Keep in step with `enter`.
    pub fn new() -> Option<Self> {
        let found =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        found.then_some(Self(()))
    }
}

type F = [__m256; 2];
type I = [__m256i; 2];

/// Methods whose bodies may use the detected instructions.
macro_rules! detected {
    ($(fn $name:ident $(<const $n:ident: $t:ty>)? ($self:ident $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)? $body:block)*) => {$(
        #[inline(always)]
        fn $name $(<const $n: $t>)? ($self $(, $arg: $ty)*) $(-> $ret)? {
            // SAFETY: `self` exists only where `new` detected the features; memory is reached through references
            // to arrays, each half inside the array.
            unsafe { $body }
        }
    )*};
}

impl Simd for Avx2 {
    type F = F;
    type I = I;
    type W = I;
    /// 16-bit sums of pairs.
    type P = I;

    const PANELS: usize = 1;
    const TILE_ROWS: usize = 6;
    const SIGNED_BYTES: bool = true;

    /// VPMADDUBSW leaves the sum of two products in 16 bits. A chain adds up pairs, so with |x| ≤ 127:
    /// 4 bits: 8 · 2 · 15 · 127 = 30 480; 5 bits: 4 · 2 · 31 · 127 = 31 496; 6 bits: 2 · 2 · 63 · 127 = 32 004;
    /// 8 bits (magnitudes up to 128): 2 · 128 · 127 = 32 512. All stay below 32 767.
    #[inline(always)]
    fn chain(bits: u32) -> usize {
        match bits {
            0..=4 => 8,
            5 => 4,
            6 => 2,
            _ => 1,
        }
    }

    #[inline(always)]
    fn enter<O: SimdOp>(self, op: O) -> O::Output {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner<O: SimdOp>(s: Avx2, op: O) -> O::Output {
            op.eval(s)
        }
        // SAFETY: `self` exists only where `new` detected these features.
        unsafe { inner(self, op) }
    }

    #[inline(always)]
    fn prefetch<T>(self, x: &T) {
        // SAFETY: `self` proves the features; a hint reads nothing and faults nowhere.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(x).cast()) }
    }

    detected! {
        fn splat(self, x: f32) -> F { [_mm256_set1_ps(x); 2] }
        fn load(self, x: &[f32; LANES]) -> F { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
        fn store(self, x: F, to: &mut [f32; LANES]) {
            _mm256_storeu_ps(to.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), x[1]);
        }
        fn load_f16(self, x: &[u16; LANES]) -> F {
            let x = x.as_ptr().cast::<__m128i>();
            [_mm256_cvtph_ps(_mm_loadu_si128(x)), _mm256_cvtph_ps(_mm_loadu_si128(x.add(1)))]
        }
        fn load_bf16(self, x: &[u16; LANES]) -> F {
            let x = x.as_ptr().cast::<__m128i>();
            let wide = [_mm256_cvtepu16_epi32(_mm_loadu_si128(x)), _mm256_cvtepu16_epi32(_mm_loadu_si128(x.add(1)))];
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide[0])),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide[1])),
            ]
        }
        fn add(self, a: F, b: F) -> F { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
        fn sub(self, a: F, b: F) -> F { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
        fn mul(self, a: F, b: F) -> F { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
        fn div(self, a: F, b: F) -> F { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
        fn fma(self, a: F, b: F, c: F) -> F {
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
        }
        fn max(self, a: F, b: F) -> F { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
        fn min(self, a: F, b: F) -> F { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
        fn sum(self, x: F) -> f32 {
            let x = _mm256_add_ps(x[0], x[1]);
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
        fn max_lane(self, x: F) -> f32 {
            let x = _mm256_max_ps(x[0], x[1]);
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        }

        fn splat_i(self, x: i32) -> I { [_mm256_set1_epi32(x); 2] }
        fn load_i8(self, x: &[i8; LANES]) -> I {
            let x = _mm_loadu_si128(x.as_ptr().cast());
            [_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(x, x))]
        }
        fn store_i8(self, x: I, to: &mut [i8; LANES]) {
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(x[0], x[1]));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(to.as_mut_ptr().cast(), bytes)
        }
        fn and_i(self, a: I, mask: i32) -> I {
            let mask = _mm256_set1_epi32(mask);
            [_mm256_and_si256(a[0], mask), _mm256_and_si256(a[1], mask)]
        }
        fn shr4_i(self, a: I) -> I { [_mm256_srai_epi32::<4>(a[0]), _mm256_srai_epi32::<4>(a[1])] }
        fn max_i(self, a: I, b: I) -> I { [_mm256_max_epi32(a[0], b[0]), _mm256_max_epi32(a[1], b[1])] }
        fn max_across(self, x: I) -> i32 {
            let x = _mm256_max_epi32(x[0], x[1]);
            let x = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            let x = _mm_max_epi32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
            _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32::<0b10_11_00_01>(x)))
        }
        fn sum_across(self, x: I) -> i32 {
            let x = _mm256_add_epi32(x[0], x[1]);
            let x = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            let x = _mm_add_epi32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
            _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32::<0b10_11_00_01>(x)))
        }
        fn to_float(self, x: I) -> F { [_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])] }
        fn scale_magic(self, x: I, scale: F, bias: F) -> F {
            self.fma([_mm256_castsi256_ps(x[0]), _mm256_castsi256_ps(x[1])], scale, bias)
        }
        fn round(self, x: F) -> I { [_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1])] }
        fn abs_bits(self, x: F) -> I {
            let mask = _mm256_set1_epi32(i32::MAX);
            [_mm256_and_si256(_mm256_castps_si256(x[0]), mask), _mm256_and_si256(_mm256_castps_si256(x[1]), mask)]
        }
        fn exp2(self, n: I) -> F {
            let bias = _mm256_set1_epi32(127);
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n[0], bias))),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n[1], bias))),
            ]
        }

        fn load_w(self, x: &Bytes) -> I {
            let x = x.0.as_ptr().cast::<__m256i>();
            [_mm256_load_si256(x), _mm256_load_si256(x.add(1))]
        }
        fn store_w(self, x: I, to: &mut Bytes) {
            let to = to.0.as_mut_ptr().cast::<__m256i>();
            _mm256_store_si256(to, x[0]);
            _mm256_store_si256(to.add(1), x[1]);
        }
        fn and_w(self, a: I, mask: u8) -> I {
            let mask = _mm256_set1_epi8(mask as i8);
            [_mm256_and_si256(a[0], mask), _mm256_and_si256(a[1], mask)]
        }
        fn or_w(self, a: I, b: I) -> I { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
        fn shr_w(self, a: I, n: u32) -> I {
            let n = _mm_cvtsi32_si128(n as i32);
            [_mm256_srl_epi16(a[0], n), _mm256_srl_epi16(a[1], n)]
        }
        fn shl_w(self, a: I, n: u32) -> I {
            let n = _mm_cvtsi32_si128(n as i32);
            [_mm256_sll_epi16(a[0], n), _mm256_sll_epi16(a[1], n)]
        }

        fn start(self, _from: I) -> I { [_mm256_setzero_si256(); 2] }
        fn dot<const BITS: u32>(self, sum: I, w: I, x: [i8; 4]) -> I {
            let x = _mm256_set1_epi32(i32::from_ne_bytes(x.map(|x| x as u8)));
            let mut out = sum;
            for (sum, w) in out.iter_mut().zip(w) {
                let pairs = if BITS == 8 {
                    // Codes of 8 bits would overflow: take |code − 128| ≤ 128 and give its sign to x instead.
                    let w = _mm256_xor_si256(w, _mm256_set1_epi8(i8::MIN));
                    _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
                } else {
                    _mm256_maddubs_epi16(w, x)
                };
                *sum = _mm256_add_epi16(*sum, pairs);
            }
            out
        }
        fn finish(self, from: I, sum: I) -> I {
            let ones = _mm256_set1_epi16(1);
            [
                _mm256_add_epi32(from[0], _mm256_madd_epi16(sum[0], ones)),
                _mm256_add_epi32(from[1], _mm256_madd_epi16(sum[1], ones)),
            ]
        }
    }
}
