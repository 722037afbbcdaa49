//! The instruction set as a value.
//!
//! An [`Isa`] exists only where the CPU was found to have it, so holding one is the
//! proof that its instructions may run. Numeric bodies are written once as a
//! [`SimdOp`], generic over [`Simd`]: a vector of 16 columns, however many registers
//! that takes. [`Isa::run`] enters the function that carries the target features.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

#[cfg(target_arch = "x86_64")]
use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
use neon::Neon;
use scalar::Scalar;

/// Columns of a panel and lanes of a vector.
pub(crate) const LANES: usize = 16;

/// 1.5 · 2²³: adding an integer below 2²² to its bits adds the same to its value.
pub(crate) const MAGIC: f32 = 12_582_912.0;

/// 16 floats on one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Floats(pub [f32; LANES]);

/// 16 half-precision bit patterns.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct Halves(pub [u16; LANES]);

/// 64 bytes on one cache line: four consecutive codes of each of 16 columns, or a bit plane of several such.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Bytes(pub [u8; 4 * LANES]);

impl Floats {
    pub const ZERO: Self = Self([0.0; LANES]);
}

impl Bytes {
    pub const ZERO: Self = Self([0; 4 * LANES]);
}

/// An instruction set that this CPU has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Scalar(Scalar),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

impl Isa {
    /// Plain Rust, available everywhere.
    pub const SCALAR: Isa = Isa(Kind::Scalar(Scalar));

    /// The widest instruction set of this CPU.
    pub fn detect() -> Isa {
        *Self::available().last().expect("the scalar isa is always there")
    }

    /// All instruction sets of this CPU, narrowest first.
    pub fn available() -> Vec<Isa> {
        #[allow(unused_mut, reason = "some CPUs have no other")]
        let mut found = vec![Self::SCALAR];
        #[cfg(target_arch = "x86_64")]
        {
            found.extend(Avx2::new().map(|isa| Isa(Kind::Avx2(isa))));
            found.extend(Avx512::new().map(|isa| Isa(Kind::Avx512(isa))));
        }
        #[cfg(target_arch = "aarch64")]
        found.extend(Neon::new().map(|isa| Isa(Kind::Neon(isa))));
        found
    }

    /// Short name, as recorded with every run: `scalar`, `avx2`, `avx512` or `neon`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar(_) => "scalar",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(_) => "avx512",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon(_) => "neon",
        }
    }

    /// Panels multiplied at a time.
    pub(crate) fn panels(self) -> usize {
        match self.0 {
            Kind::Scalar(_) => Scalar::PANELS,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(_) => Avx2::PANELS,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(_) => Avx512::PANELS,
            #[cfg(target_arch = "aarch64")]
            Kind::Neon(_) => Neon::PANELS,
        }
    }

    /// Runs `op` compiled for this instruction set.
    pub(crate) fn run<O: SimdOp>(self, op: O) -> O::Output {
        match self.0 {
            Kind::Scalar(s) => s.enter(op),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(s) => s.enter(op),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(s) => s.enter(op),
            #[cfg(target_arch = "aarch64")]
            Kind::Neon(s) => s.enter(op),
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A numeric body, generic over the instruction set.
///
/// `eval`, and every function it calls with a [`Simd`], must be `#[inline(always)]`:
/// only then does it end up inside the function that carries the target features.
pub(crate) trait SimdOp {
    type Output;
    fn eval<S: Simd>(self, s: S) -> Self::Output;
}

/// Operations on 16 lanes. Implementors are proofs of detection.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// 16 × f32.
    type F: Copy;
    /// 16 × i32.
    type I: Copy;
    /// 64 bytes.
    type W: Copy;
    /// 16 running integer dot products, in whatever form is quickest to add to.
    type P: Copy;

    /// Panels multiplied, or heads attended to, at a time: 1 or 2, as many as the registers hold.
    const PANELS: usize;
    /// Rows of integer products at a time, 6 at most.
    const TILE_ROWS: usize;
    /// Whether `dot::<8>` reads codes as signed around 128, so that no correction is due.
    const SIGNED_BYTES: bool;

    /// Calls of `dot::<BITS>` that a running sum takes before `finish` must fold it.
    fn chain(bits: u32) -> usize;

    /// Runs `op` in a function of its own that has the target features.
    fn enter<O: SimdOp>(self, op: O) -> O::Output;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, x: &[f32; LANES]) -> Self::F;
    fn store(self, x: Self::F, to: &mut [f32; LANES]);
    fn load_f16(self, x: &[u16; LANES]) -> Self::F;
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// a · b + c, rounded once where the CPU can.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `b` where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `b` where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Sum over the lanes, in an order fixed for the instruction set.
    fn sum(self, x: Self::F) -> f32;
    /// Largest lane; NaN lanes may be passed over.
    fn max_lane(self, x: Self::F) -> f32;

    fn splat_i(self, x: i32) -> Self::I;
    fn load_i8(self, x: &[i8; LANES]) -> Self::I;
    /// Lanes must fit in a signed byte.
    fn store_i8(self, x: Self::I, to: &mut [i8; LANES]);
    fn and_i(self, a: Self::I, mask: i32) -> Self::I;
    /// Arithmetic shift right by 4.
    fn shr4_i(self, a: Self::I) -> Self::I;
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn max_across(self, x: Self::I) -> i32;
    fn sum_across(self, x: Self::I) -> i32;
    fn to_float(self, x: Self::I) -> Self::F;
    /// `n · scale`, rounded once, of integers that stand as the bits of the floats [`MAGIC`] + n, with |n| < 2²².
    ///
    /// `bias` is −MAGIC · scale, and must be exact: a scale has at most 22 significant bits.
    fn scale_magic(self, x: Self::I, scale: Self::F, bias: Self::F) -> Self::F;
    /// Nearest integer, ties to even; |x| must be below 2³¹.
    fn round(self, x: Self::F) -> Self::I;
    /// Bit patterns of |x|: as integers they are in the order of the values, NaN last.
    fn abs_bits(self, x: Self::F) -> Self::I;
    /// 2ⁿ for −127 ≤ n ≤ 128, where 2⁻¹²⁷ counts as zero and 2¹²⁸ as infinity.
    fn exp2(self, n: Self::I) -> Self::F;

    /// Hints that the cache line on which `x` begins will be read soon.
    fn prefetch<T>(self, x: &T);
    fn load_w(self, x: &Bytes) -> Self::W;
    fn store_w(self, x: Self::W, to: &mut Bytes);
    fn and_w(self, a: Self::W, mask: u8) -> Self::W;
    fn or_w(self, a: Self::W, b: Self::W) -> Self::W;
    /// Shift within 16-bit lanes; callers mask away what crosses a byte.
    fn shr_w(self, a: Self::W, n: u32) -> Self::W;
    /// Shift within 16-bit lanes; callers mask away what crosses a byte.
    fn shl_w(self, a: Self::W, n: u32) -> Self::W;

    /// A running sum that continues from `from`.
    fn start(self, from: Self::I) -> Self::P;
    /// Adds to lane c the products of bytes 4c…4c+3 of `w`, unsigned codes of `BITS` bits, with `x`.
    ///
    /// No sum overflows while |x| ≤ 127 and `finish` follows after [`Simd::chain`] calls.
    fn dot<const BITS: u32>(self, sum: Self::P, w: Self::W, x: [i8; 4]) -> Self::P;
    /// The integer sums; `from` is what `start` was given.
    fn finish(self, from: Self::I, sum: Self::P) -> Self::I;
}

#[cfg(test)]
mod tests;
