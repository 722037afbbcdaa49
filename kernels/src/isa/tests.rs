//! Every operation of every instruction set against the scalar one.

use super::*;

/// Results of the operations on some inputs, as bits.
struct Probe {
    a: [f32; LANES],
    b: [f32; LANES],
    n: [i8; LANES],
    bytes: Bytes,
}

impl SimdOp for Probe {
    type Output = Vec<(&'static str, Vec<u32>)>;

    #[inline(always)]
    fn eval<S: Simd>(self, s: S) -> Self::Output {
        let mut out = Vec::new();
        let floats = |x: S::F| {
            let mut to = [f32::NAN; LANES];
            s.store(x, &mut to);
            to.map(f32::to_bits).to_vec()
        };
        let ints = |x: S::I| floats(s.to_float(x));
        let bytes = |x: S::W| {
            let mut to = Bytes::ZERO;
            s.store_w(x, &mut to);
            to.0.map(u32::from).to_vec()
        };
        let (a, b, n, w) = (s.load(&self.a), s.load(&self.b), s.load_i8(&self.n), s.load_w(&self.bytes));
        out.push(("splat", floats(s.splat(1.5))));
        out.push(("add", floats(s.add(a, b))));
        out.push(("sub", floats(s.sub(a, b))));
        out.push(("mul", floats(s.mul(a, b))));
        out.push(("div", floats(s.div(a, b))));
        out.push(("fma", floats(s.fma(a, b, a))));
        out.push(("max", floats(s.max(a, b))));
        out.push(("min", floats(s.min(a, b))));
        let nan = s.splat(f32::NAN);
        out.push(("max with NaN", [floats(s.max(nan, b)), floats(s.max(b, nan))].concat()));
        out.push(("min with NaN", [floats(s.min(nan, b)), floats(s.min(b, nan))].concat()));
        out.push(("sum", vec![s.sum(a).to_bits()]));
        out.push(("max_lane", vec![s.max_lane(a).to_bits()]));
        let half = self.a.map(|x| half::f16::from_f32(x).to_bits());
        out.push(("load_f16", floats(s.load_f16(&half))));
        out.push(("load_bf16", floats(s.load_bf16(&half))));
        out.push(("load_i8", ints(n)));
        out.push(("and_i", ints(s.and_i(n, 15))));
        out.push(("shr4_i", ints(s.shr4_i(n))));
        out.push(("max_i", ints(s.max_i(n, s.splat_i(3)))));
        out.push(("across", vec![s.max_across(n) as u32, s.sum_across(n) as u32]));
        out.push(("round", ints(s.round(a))));
        out.push(("abs_bits", ints(s.abs_bits(a))));
        out.push(("exp2", floats(s.exp2(s.shr4_i(n)))));
        out.push(("exp2 of the least", floats(s.exp2(s.splat_i(-127)))));
        out.push(("exp2 of the largest", floats(s.exp2(s.splat_i(128)))));
        let mut back = [0; LANES];
        s.store_i8(n, &mut back);
        out.push(("store_i8", back.map(|x| x as u32).to_vec()));
        out.push(("and_w", bytes(s.and_w(w, 0x3c))));
        out.push(("or_w", bytes(s.or_w(w, s.and_w(s.shl_w(w, 2), 0xfc)))));
        out.push(("shr_w", bytes(s.and_w(s.shr_w(w, 4), 15))));
        out
    }
}

#[test]
fn operations_agree_with_scalar() {
    let probe = || Probe {
        // small dyadic numbers: every order of summation and fusing gives the same bits; ties for `round`
        a: std::array::from_fn(|i| (i as f32 - 7.0) * 0.5),
        b: std::array::from_fn(|i| if i % 2 == 0 { -0.25 } else { 4.0 }),
        n: std::array::from_fn(|i| (i as i32 * 17 - 128) as i8),
        bytes: Bytes(std::array::from_fn(|i| (i * 89) as u8)),
    };
    let expected = Isa::SCALAR.run(probe());
    for isa in Isa::available() {
        println!("isa {isa}");
        for ((name, got), (_, expected)) in isa.run(probe()).into_iter().zip(&expected) {
            assert_eq!(&got, expected, "{isa} {name}");
        }
    }
    let by_name = |name| &expected.iter().find(|(n, _)| *n == name).expect("probed").1;
    assert_eq!(by_name("sum")[0], (0.5 * (120.0 - 112.0f32)).to_bits());
    assert_eq!(by_name("round")[0], (-4.0f32).to_bits(), "−3.5 rounds to even");
    assert_eq!(by_name("exp2 of the least")[0], 0);
    assert_eq!(by_name("exp2 of the largest")[0], f32::INFINITY.to_bits());
    assert_eq!(by_name("max with NaN")[0], (-0.25f32).to_bits(), "the second operand");
    assert_eq!(by_name("min with NaN")[LANES], f32::NAN.to_bits(), "the second operand");
}

/// Sixteen patterns read as f16, and as bf16.
struct Widen([u16; LANES]);

impl SimdOp for Widen {
    type Output = [[f32; LANES]; 2];

    #[inline(always)]
    fn eval<S: Simd>(self, s: S) -> Self::Output {
        let mut out = [[0.0; LANES]; 2];
        s.store(s.load_f16(&self.0), &mut out[0]);
        s.store(s.load_bf16(&self.0), &mut out[1]);
        out
    }
}

#[test]
fn every_pattern_of_16_bits_widens() {
    for isa in Isa::available() {
        println!("isa {isa}");
        for first in (0..=u16::MAX).step_by(LANES) {
            let bits: [u16; LANES] = std::array::from_fn(|i| first + i as u16);
            let [half, brain] = isa.run(Widen(bits));
            for (i, bits) in bits.into_iter().enumerate() {
                // sign, exponent and fraction of IEEE 754 binary16, put together in f64
                let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
                let size = match exponent {
                    0 => fraction * 2f64.powi(-24),
                    31 if fraction == 0.0 => f64::INFINITY,
                    31 => f64::NAN,
                    _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
                };
                let expected = if bits >> 15 == 1 { -size } else { size } as f32;
                let same = |got: f32, want: f32| got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same(half[i], expected), "{isa}: {bits:#06x} as f16 is {}", half[i]);
                let expected = f32::from_bits(u32::from(bits) << 16);
                assert!(same(brain[i], expected), "{isa}: {bits:#06x} as bf16 is {}", brain[i]);
            }
        }
    }
}

/// One chain of dot products of constant codes with constant activations.
struct Chain<const BITS: u32> {
    code: u8,
    x: i8,
}

impl<const BITS: u32> SimdOp for Chain<BITS> {
    type Output = (usize, Vec<f32>);

    #[inline(always)]
    fn eval<S: Simd>(self, s: S) -> Self::Output {
        let steps = S::chain(BITS).min(8);
        let w = s.load_w(&Bytes([self.code; 64]));
        let from =
            s.splat_i(if BITS == 8 && !S::SIGNED_BYTES { -128 * 4 * steps as i32 * i32::from(self.x) } else { 0 });
        let mut sum = s.start(from);
        for _ in 0..steps {
            sum = s.dot::<BITS>(sum, w, [self.x; 4]);
        }
        let mut out = [f32::NAN; LANES];
        s.store(s.to_float(s.finish(from, sum)), &mut out);
        (4 * steps, out.to_vec())
    }
}

#[test]
fn chains_of_extremes_do_not_overflow() {
    fn check<const BITS: u32>(isa: Isa, center: i32) {
        for code in [0u8, 1, ((1u32 << BITS) - 1) as u8, (1u32 << (BITS - 1)) as u8] {
            for x in [-127i8, -1, 0, 127] {
                let (terms, got) = isa.run(Chain::<BITS> { code, x });
                let expected = terms as i32 * (i32::from(code) - center) * i32::from(x);
                assert_eq!(got, [expected as f32; LANES], "{isa}, {BITS} bits, code {code}, x {x}");
            }
        }
    }
    for isa in Isa::available() {
        println!("isa {isa}");
        check::<2>(isa, 0);
        check::<3>(isa, 0);
        check::<4>(isa, 0);
        check::<5>(isa, 0);
        check::<6>(isa, 0);
        check::<8>(isa, 128);
    }
}
