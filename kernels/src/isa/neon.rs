//! NEON with the dot products of Armv8.2: four registers are one vector of 16 lanes.

use std::arch::{aarch64::*, asm, is_aarch64_feature_detected};

use super::{Bytes, LANES, Simd, SimdOp};

/// Proof that the CPU has every feature that [`Simd::enter`] enables here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Neon(());

impl Neon {
    /// `Some` where the CPU and the operating system support it. Keep in step with `enter`.
    pub fn new() -> Option<Self> {
        // `dot` spreads four bytes over lanes of 32 bits, which a big-endian register would turn around
        let found = cfg!(target_endian = "little")
            && is_aarch64_feature_detected!("neon")
            && is_aarch64_feature_detected!("dotprod");
        found.then_some(Self(()))
    }
}

type F = [float32x4_t; 4];
type I = [int32x4_t; 4];
type W = [uint8x16_t; 4];

/// The expression for each of the four registers.
macro_rules! each {
    ($i:ident => $register:expr) => {
        [
            {
                let $i = 0;
                $register
            },
            {
                let $i = 1;
                $register
            },
            {
                let $i = 2;
                $register
            },
            {
                let $i = 3;
                $register
            },
        ]
    };
}

/// Methods whose bodies may use the detected instructions.
macro_rules! detected {
    ($(fn $name:ident $(<const $n:ident: $t:ty>)? ($self:ident $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)? $body:block)*) => {$(
        #[inline(always)]
        fn $name $(<const $n: $t>)? ($self $(, $arg: $ty)*) $(-> $ret)? {
            // SAFETY: `self` exists only where `new` detected the features; memory is reached through references
            // to arrays, each quarter inside the array.
            unsafe { $body }
        }
    )*};
}

/// Adds to each lane of 32 bits four products of signed bytes: `vdotq_s32`, which Rust 1.95 has as unstable only.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut out = sum;
    // SAFETY: a caller has `dotprod`, and so this instruction, which touches nothing but the registers named here.
    unsafe {
        asm!(
            "sdot {out:v}.4s, {a:v}.16b, {b:v}.16b",
            out = inout(vreg) out,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}

impl Simd for Neon {
    type F = F;
    type I = I;
    type W = W;
    type P = I;

    const PANELS: usize = 1; // four rows: 16 registers of sums, 4 of codes and 4 of activations, out of 32
    const TILE_ROWS: usize = 4;
    const SIGNED_BYTES: bool = true;

    #[inline(always)]
    fn chain(_bits: u32) -> usize {
        usize::MAX // SDOT adds into 32 bits: 32 · 128 · 127 < 2²⁰
    }

    #[inline(always)]
    fn enter<O: SimdOp>(self, op: O) -> O::Output {
        #[inline(never)]
        #[target_feature(enable = "neon,dotprod")]
        fn inner<O: SimdOp>(s: Neon, op: O) -> O::Output {
            op.eval(s)
        }
        // SAFETY: `self` exists only where `new` detected these features.
        unsafe { inner(self, op) }
    }

    #[inline(always)]
    fn prefetch<T>(self, x: &T) {
        // SAFETY: a hint reads nothing and faults nowhere. Its intrinsic is unstable in Rust 1.95.
        unsafe { asm!("prfm pldl2keep, [{}]", in(reg) std::ptr::from_ref(x), options(nostack, preserves_flags)) }
    }

    detected! {
        fn splat(self, x: f32) -> F { [vdupq_n_f32(x); 4] }
        fn load(self, x: &[f32; LANES]) -> F { each!(i => vld1q_f32(x.as_ptr().add(4 * i))) }
        fn store(self, x: F, to: &mut [f32; LANES]) { each!(i => vst1q_f32(to.as_mut_ptr().add(4 * i), x[i])); }
        fn load_f16(self, x: &[u16; LANES]) -> F {
            each!(i => vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x.as_ptr().add(4 * i)))))
        }
        fn load_bf16(self, x: &[u16; LANES]) -> F {
            each!(i => vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(x.as_ptr().add(4 * i)))))
        }
        fn add(self, a: F, b: F) -> F { each!(i => vaddq_f32(a[i], b[i])) }
        fn sub(self, a: F, b: F) -> F { each!(i => vsubq_f32(a[i], b[i])) }
        fn mul(self, a: F, b: F) -> F { each!(i => vmulq_f32(a[i], b[i])) }
        fn div(self, a: F, b: F) -> F { each!(i => vdivq_f32(a[i], b[i])) }
        fn fma(self, a: F, b: F, c: F) -> F { each!(i => vfmaq_f32(c[i], a[i], b[i])) }
        // FMAX and FMIN would pass any NaN on: a comparison that fails chooses `b`
        fn max(self, a: F, b: F) -> F { each!(i => vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i])) }
        fn min(self, a: F, b: F) -> F { each!(i => vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i])) }
        fn sum(self, x: F) -> f32 {
            let x = vaddq_f32(vaddq_f32(x[0], x[2]), vaddq_f32(x[1], x[3]));
            vpadds_f32(vget_low_f32(vpaddq_f32(x, x)))
        }
        fn max_lane(self, x: F) -> f32 {
            vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(x[0], x[2]), vmaxnmq_f32(x[1], x[3])))
        }

        fn splat_i(self, x: i32) -> I { [vdupq_n_s32(x); 4] }
        fn load_i8(self, x: &[i8; LANES]) -> I {
            let x = vld1q_s8(x.as_ptr());
            let words = [vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x)];
            [
                vmovl_s16(vget_low_s16(words[0])),
                vmovl_high_s16(words[0]),
                vmovl_s16(vget_low_s16(words[1])),
                vmovl_high_s16(words[1]),
            ]
        }
        fn store_i8(self, x: I, to: &mut [i8; LANES]) {
            let words = [vqmovn_high_s32(vqmovn_s32(x[0]), x[1]), vqmovn_high_s32(vqmovn_s32(x[2]), x[3])];
            vst1q_s8(to.as_mut_ptr(), vqmovn_high_s16(vqmovn_s16(words[0]), words[1]))
        }
        fn and_i(self, a: I, mask: i32) -> I { each!(i => vandq_s32(a[i], vdupq_n_s32(mask))) }
        fn shr4_i(self, a: I) -> I { each!(i => vshrq_n_s32::<4>(a[i])) }
        fn max_i(self, a: I, b: I) -> I { each!(i => vmaxq_s32(a[i], b[i])) }
        fn max_across(self, x: I) -> i32 { vmaxvq_s32(vmaxq_s32(vmaxq_s32(x[0], x[2]), vmaxq_s32(x[1], x[3]))) }
        fn sum_across(self, x: I) -> i32 { vaddvq_s32(vaddq_s32(vaddq_s32(x[0], x[2]), vaddq_s32(x[1], x[3]))) }
        fn scale_magic(self, x: I, scale: F, bias: F) -> F {
            self.fma(each!(i => vreinterpretq_f32_s32(x[i])), scale, bias)
        }
        fn to_float(self, x: I) -> F { each!(i => vcvtq_f32_s32(x[i])) }
        fn round(self, x: F) -> I { each!(i => vcvtnq_s32_f32(x[i])) }
        fn abs_bits(self, x: F) -> I { each!(i => vreinterpretq_s32_f32(vabsq_f32(x[i]))) }
        fn exp2(self, n: I) -> F {
            each!(i => vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n[i], vdupq_n_s32(127)))))
        }

        fn load_w(self, x: &Bytes) -> W { each!(i => vld1q_u8(x.0.as_ptr().add(16 * i))) }
        fn store_w(self, x: W, to: &mut Bytes) { each!(i => vst1q_u8(to.0.as_mut_ptr().add(16 * i), x[i])); }
        fn and_w(self, a: W, mask: u8) -> W { each!(i => vandq_u8(a[i], vdupq_n_u8(mask))) }
        fn or_w(self, a: W, b: W) -> W { each!(i => vorrq_u8(a[i], b[i])) }
        // within bytes, which differs in nothing that callers keep; USHL by a negative count shifts right
        fn shr_w(self, a: W, n: u32) -> W { each!(i => vshlq_u8(a[i], vdupq_n_s8(-(n as i8)))) }
        fn shl_w(self, a: W, n: u32) -> W { each!(i => vshlq_u8(a[i], vdupq_n_s8(n as i8))) }

        fn dot<const BITS: u32>(self, sum: I, w: W, x: [i8; 4]) -> I {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(i32::from_ne_bytes(x.map(|x| x as u8))));
            // SDOT takes codes for signed, which those of up to 7 bits are anyhow; those of 8 bits become code − 128
            let center = vdupq_n_u8(if BITS == 8 { 128 } else { 0 });
            each!(i => sdot(sum[i], vreinterpretq_s8_u8(veorq_u8(w[i], center)), x))
        }
    }

    #[inline(always)]
    fn start(self, from: I) -> I {
        from
    }
    #[inline(always)]
    fn finish(self, _from: I, sum: I) -> I {
        sum
    }
}
