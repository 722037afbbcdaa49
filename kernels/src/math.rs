//! Vector functions that the CPU has no instruction for.

use crate::isa::Simd;

/// eˣ, within 2 ULP for −87.6 ≤ x ≤ 88.3; below that the result is 0, above it infinity; NaN stays NaN.
///
/// x = n · ln 2 + r with |r| ≤ ln 2 / 2; ln 2 is split in two so that r is exact to the last bit (Cody and Waite),
/// and eʳ comes from the minimax polynomial of Cephes' `expf` (<https://www.netlib.org/cephes/>).
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    const LN_2_HIGH: f32 = 0.693_359_4; // 355 / 512, which has few bits
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const POLYNOMIAL: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5];
    // The constant comes first: `max` and `min` return their second operand for NaN.
    let x = s.min(s.splat(89.0), s.max(s.splat(-88.0), x));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let n_float = s.to_float(n);
    let r = s.fma(n_float, s.splat(-LN_2_HIGH), x);
    let r = s.fma(n_float, s.splat(-LN_2_LOW), r);
    let mut p = s.splat(POLYNOMIAL[0]);
    for c in &POLYNOMIAL[1..] {
        p = s.fma(p, r, s.splat(*c));
    }
    let p = s.fma(s.mul(r, r), p, s.add(r, s.splat(1.0)));
    s.mul(p, s.exp2(n))
}

/// x / (1 + e⁻ʸ): SiLU for y = x.
#[inline(always)]
pub(crate) fn times_sigmoid<S: Simd>(s: S, x: S::F, y: S::F) -> S::F {
    let e = exp(s, s.sub(s.splat(0.0), y));
    s.div(x, s.add(s.splat(1.0), e))
}

/// GELU with the tanh approximation: x/2 · (1 + tanh u) = x / (1 + e⁻²ᵘ), u = √(2/π) · (x + 0.044715 x³).
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(s: S, x: S::F) -> S::F {
    const TWO_ROOT_2_OVER_PI: f32 = 1.595_769;
    let cubic = s.fma(s.mul(s.mul(x, x), x), s.splat(0.044_715), x);
    times_sigmoid(s, x, s.mul(s.splat(TWO_ROOT_2_OVER_PI), cubic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Isa, LANES, SimdOp};

    struct Exp([f32; LANES]);

    impl SimdOp for Exp {
        type Output = [f32; LANES];
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) -> [f32; LANES] {
            let mut out = [f32::NAN; LANES];
            s.store(exp(s, s.load(&self.0)), &mut out);
            out
        }
    }

    #[test]
    fn exp_is_within_two_ulp() {
        for isa in Isa::available() {
            let mut worst = 0f64;
            for step in 0..20_000 {
                let x = std::array::from_fn(|lane| -87.6 + (step * LANES + lane) as f32 * (175.9 / 320_000.0));
                for (x, got) in x.into_iter().zip(isa.run(Exp(x))) {
                    let expected = f64::from(x).exp();
                    let ulp = f64::from((expected as f32).next_up()) - f64::from(expected as f32);
                    worst = worst.max((f64::from(got) - expected).abs() / ulp);
                }
            }
            println!("isa {isa}: {worst:.2} ulp");
            assert!(worst < 2.0, "{isa}: {worst}");
        }
    }

    #[test]
    fn exp_of_the_extremes() {
        for isa in Isa::available() {
            let mut x = [0.0; LANES];
            x[..6].copy_from_slice(&[f32::NEG_INFINITY, -1000.0, -88.0, f32::INFINITY, f32::NAN, -f32::NAN]);
            let got = isa.run(Exp(x));
            assert_eq!(got[..3], [0.0; 3], "{isa}");
            assert!(got[3] == f32::INFINITY && got[4].is_nan() && got[5].is_nan(), "{isa}: {got:?}");
            assert_eq!(got[6..], [1.0; 10], "{isa}");
        }
    }
}
