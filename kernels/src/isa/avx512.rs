//! AVX-512 with VNNI: one register is one vector of 16 lanes.

use std::arch::x86_64::*;

use super::{Bytes, LANES, Simd, SimdOp};

/// Proof that the CPU has every feature that [`Simd::enter`] enables here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// `Some` where the CPU and the operating system support it. Keep in step with `enter`.
    pub fn new() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then_some(Self(()))
    }
}

/// Methods whose bodies may use the detected instructions.
macro_rules! detected {
    ($(fn $name:ident $(<const $n:ident: $t:ty>)? ($self:ident $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)? $body:block)*) => {$(
        #[inline(always)]
        fn $name $(<const $n: $t>)? ($self $(, $arg: $ty)*) $(-> $ret)? {
            // SAFETY: `self` exists only where `new` detected the features; memory is reached through references
            // to arrays of the size of the load or store.
            unsafe { $body }
        }
    )*};
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type W = __m512i;
    type P = __m512i;

    const PANELS: usize = 2;
    const TILE_ROWS: usize = 6;
    const SIGNED_BYTES: bool = false;

    #[inline(always)]
    fn chain(_bits: u32) -> usize {
        usize::MAX // VPDPBUSD adds into 32 bits: 32 · 255 · 127 < 2²⁰
    }

    #[inline(always)]
    fn enter<O: SimdOp>(self, op: O) -> O::Output {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        fn inner<O: SimdOp>(s: Avx512, op: O) -> O::Output {
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
        fn splat(self, x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn load(self, x: &[f32; LANES]) -> __m512 { _mm512_loadu_ps(x.as_ptr()) }
        fn store(self, x: __m512, to: &mut [f32; LANES]) { _mm512_storeu_ps(to.as_mut_ptr(), x) }
        fn load_f16(self, x: &[u16; LANES]) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
        fn load_bf16(self, x: &[u16; LANES]) -> __m512 {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
        fn add(self, a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(self, a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul(self, a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn div(self, a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn max(self, a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn min(self, a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        fn sum(self, x: __m512) -> f32 { _mm512_reduce_add_ps(x) }
        fn max_lane(self, x: __m512) -> f32 { _mm512_reduce_max_ps(x) }

        fn splat_i(self, x: i32) -> __m512i { _mm512_set1_epi32(x) }
        fn load_i8(self, x: &[i8; LANES]) -> __m512i { _mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast())) }
        fn store_i8(self, x: __m512i, to: &mut [i8; LANES]) {
            _mm_storeu_si128(to.as_mut_ptr().cast(), _mm512_cvtsepi32_epi8(x))
        }
        fn and_i(self, a: __m512i, mask: i32) -> __m512i { _mm512_and_si512(a, _mm512_set1_epi32(mask)) }
        fn shr4_i(self, a: __m512i) -> __m512i { _mm512_srai_epi32::<4>(a) }
        fn max_i(self, a: __m512i, b: __m512i) -> __m512i { _mm512_max_epi32(a, b) }
        fn max_across(self, x: __m512i) -> i32 { _mm512_reduce_max_epi32(x) }
        fn sum_across(self, x: __m512i) -> i32 { _mm512_reduce_add_epi32(x) }
        fn to_float(self, x: __m512i) -> __m512 { _mm512_cvtepi32_ps(x) }
        fn scale_magic(self, x: __m512i, scale: __m512, bias: __m512) -> __m512 {
            _mm512_fmadd_ps(_mm512_castsi512_ps(x), scale, bias)
        }
        fn round(self, x: __m512) -> __m512i { _mm512_cvtps_epi32(x) }
        fn abs_bits(self, x: __m512) -> __m512i {
            _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MAX))
        }
        fn exp2(self, n: __m512i) -> __m512 {
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(n, _mm512_set1_epi32(127))))
        }

        fn load_w(self, x: &Bytes) -> __m512i { _mm512_load_si512(x.0.as_ptr().cast()) }
        fn store_w(self, x: __m512i, to: &mut Bytes) { _mm512_store_si512(to.0.as_mut_ptr().cast(), x) }
        fn and_w(self, a: __m512i, mask: u8) -> __m512i { _mm512_and_si512(a, _mm512_set1_epi8(mask as i8)) }
        fn or_w(self, a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn shr_w(self, a: __m512i, n: u32) -> __m512i { _mm512_srl_epi16(a, _mm_cvtsi32_si128(n as i32)) }
        fn shl_w(self, a: __m512i, n: u32) -> __m512i { _mm512_sll_epi16(a, _mm_cvtsi32_si128(n as i32)) }

        fn dot<const BITS: u32>(self, sum: __m512i, w: __m512i, x: [i8; 4]) -> __m512i {
            _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(i32::from_ne_bytes(x.map(|x| x as u8))))
        }
    }

    #[inline(always)]
    fn start(self, from: __m512i) -> __m512i {
        from
    }
    #[inline(always)]
    fn finish(self, _from: __m512i, sum: __m512i) -> __m512i {
        sum
    }
}
