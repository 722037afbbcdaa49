//! Uniform integers from a generator, by a rule of our own: a draw never changes with a library's version.

use rand_chacha::rand_core::RngCore;

/// A uniform integer below `n`, without bias (Lemire, "Fast random integer generation in an interval", 2019).
///
/// # Panics
/// If `n` is 0: there is nothing to draw from.
pub fn below(rng: &mut impl RngCore, n: u32) -> u32 {
    assert!(n > 0, "cannot draw from no values");
    let reject = n.wrapping_neg() % n;
    loop {
        let product = u64::from(rng.next_u32()) * u64::from(n);
        if product as u32 >= reject {
            return (product >> 32) as u32;
        }
    }
}
