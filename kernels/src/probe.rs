//! How fast this CPU is at best: ceilings that benchmarks set their measurements beside.
//!
//! Each thread of the current rayon pool runs the same loop for the time given, and the rates are added up. Nothing
//! here computes anything that is used.

#![allow(
    clippy::needless_range_loop,
    reason = "plain loops over the chains: closures are compiled without the target features"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::isa::{Bytes, Isa, LANES, Simd, SimdOp};

/// Multiply-adds of 8-bit codes, in 10⁹ operations a second (a multiply-add is two), as the kernels do them: codes in
/// a register, activations broadcast from the first-level cache, sums in registers that do not wait for each other.
pub fn int8_gops(isa: Isa, time: Duration) -> f64 {
    let x = [[1i8, -2, 3, -4]; X];
    on_all_threads(|| isa.run(Int8 { x: &x, time }))
}

/// Multiply-adds of 32-bit floats in registers, in 10⁹ operations a second.
pub fn f32_gops(isa: Isa, time: Duration) -> f64 {
    on_all_threads(|| isa.run(Float { time }))
}

/// Reading of memory in order, in 10⁹ bytes a second; `bytes` a thread, several times the last-level cache.
pub fn read_gbs(isa: Isa, bytes: usize, time: Duration) -> f64 {
    on_all_threads(|| {
        // Pages that were never written would all be the same one.
        let data = vec![Bytes([1; 4 * LANES]); bytes.div_ceil(size_of::<Bytes>()).max(1)];
        isa.run(Read { data: &data, time })
    })
}

fn on_all_threads(rate: impl Fn() -> f64 + Sync) -> f64 {
    rayon::broadcast(|_| rate()).into_iter().sum()
}

/// Activations that a pass over the chains goes through.
const X: usize = 80;

struct Int8<'a> {
    x: &'a [[i8; 4]; X],
    time: Duration,
}

impl SimdOp for Int8<'_> {
    type Output = f64;
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) -> f64 {
        // As many sums as the registers hold beside the codes.
        if S::PANELS == 2 { self.chains::<S, 16>(s) } else { self.chains::<S, 5>(s) }
    }
}

impl Int8<'_> {
    #[inline(always)]
    fn chains<S: Simd, const N: usize>(self, s: S) -> f64 {
        let w = s.load_w(black_box(&Bytes([7; 4 * LANES])));
        let from = s.splat_i(0);
        let mut sums = [s.start(from); N];
        let mut clock = Clock::new(self.time);
        while clock.goes_on() {
            for _ in 0..1000 {
                // The loads are made anew in each pass, or their products could be taken out of the loop.
                for x in black_box(self.x).as_chunks::<N>().0 {
                    for c in 0..N {
                        sums[c] = s.dot::<4>(sums[c], w, x[c]);
                    }
                }
            }
        }
        for sum in sums {
            black_box(s.sum_across(s.finish(from, sum)));
        }
        clock.rate() * (1000 * X * 2 * 4 * LANES) as f64 / 1e9
    }
}

struct Float {
    time: Duration,
}

impl SimdOp for Float {
    type Output = f64;
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) -> f64 {
        if S::PANELS == 2 { self.chains::<S, 16>(s) } else { self.chains::<S, 5>(s) }
    }
}

impl Float {
    #[inline(always)]
    fn chains<S: Simd, const N: usize>(self, s: S) -> f64 {
        let (a, b) = (s.splat(black_box(0.5)), s.splat(black_box(1.5)));
        let mut sums = [b; N];
        let mut clock = Clock::new(self.time);
        while clock.goes_on() {
            for _ in 0..10_000 {
                for c in 0..N {
                    sums[c] = s.fma(sums[c], a, b);
                }
            }
        }
        for sum in sums {
            black_box(s.sum(sum));
        }
        clock.rate() * (10_000 * N * 2 * LANES) as f64 / 1e9
    }
}

struct Read<'a> {
    data: &'a [Bytes],
    time: Duration,
}

impl SimdOp for Read<'_> {
    type Output = f64;
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) -> f64 {
        let mut all = s.load_w(&Bytes::ZERO);
        let mut clock = Clock::new(self.time);
        while clock.goes_on() {
            for line in black_box(self.data) {
                all = s.or_w(all, s.load_w(line));
            }
        }
        let mut out = Bytes::ZERO;
        s.store_w(all, &mut out);
        black_box(out.0);
        clock.rate() * size_of_val(self.data) as f64 / 1e9
    }
}

/// Counts the turns of a loop until the time is up; the first one only warms up.
///
/// Not a function that takes the loop's body: a closure would be compiled without the target features.
struct Clock {
    time: Duration,
    begun: Option<Instant>,
    turns: u64,
    elapsed: f64,
}

impl Clock {
    fn new(time: Duration) -> Self {
        Self { time, begun: None, turns: 0, elapsed: 0.0 }
    }

    /// Whether another turn is due: one to warm up, one to count, and more while there is time.
    #[inline(never)]
    fn goes_on(&mut self) -> bool {
        let Some(begun) = self.begun else {
            self.begun = Some(Instant::now());
            return true;
        };
        if self.turns == 0 && self.elapsed == 0.0 {
            // The warming turn is done.
            self.begun = Some(Instant::now());
            self.elapsed = f64::MIN_POSITIVE;
            return true;
        }
        self.turns += 1;
        let elapsed = begun.elapsed();
        self.elapsed = elapsed.as_secs_f64();
        elapsed < self.time || elapsed.is_zero()
    }

    /// Turns a second.
    fn rate(&self) -> f64 {
        self.turns as f64 / self.elapsed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ceiling_is_a_number_above_zero() {
        let time = Duration::from_millis(2);
        for isa in Isa::available() {
            for rate in [int8_gops(isa, time), f32_gops(isa, time), read_gbs(isa, 1 << 16, time)] {
                assert!(rate.is_finite() && rate > 0.0, "{isa}: {rate}");
            }
        }
    }

    #[test]
    fn turns_are_counted_but_for_the_one_that_warms_up() {
        let mut clock = Clock::new(Duration::ZERO);
        let mut turns = 0;
        while clock.goes_on() {
            turns += 1;
        }
        assert!(turns >= 2 && clock.turns == turns - 1, "{turns}");
        assert!(clock.rate() > 0.0);
    }
}
