//! Random rows in every format: random codes under scales that give the spread asked for.

use half::f16;
use weaklink_kernels::Format;

/// A stream of random numbers (SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
/// 2014). Part of what a seed means: another generator would give other files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw(u64);

impl Draw {
    /// The stream of a tensor.
    pub(super) fn new(seed: u64, tensor: u64) -> Self {
        Self(seed).row(tensor)
    }

    /// A stream of its own for each part: neither threads nor order change what a row holds.
    pub(super) fn row(self, row: u64) -> Self {
        let mut draw = Self(self.0 ^ row.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self(draw.next())
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in [−1, 1).
    pub(super) fn signed_unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn bytes(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Standard deviation of a uniform code of that many bits.
fn code_spread(bits: u32) -> f32 {
    (((1_u32 << (2 * bits)) - 1) as f32 / 12.0).sqrt()
}

/// Fills a row with values of mean 0 and standard deviation `spread`.
///
/// Codes are uniform over all that a format has. A block's scale is within a quarter of what the spread asks for,
/// so that blocks differ as they do in real files, and has a random sign where codes are not symmetric around their
/// centre: the mean would not be 0 otherwise.
pub(super) fn fill(format: Format, spread: f32, mut draw: Draw, row: &mut [u8]) {
    if format == Format::F16 {
        // Uniform within ±√3 has a standard deviation of 1.
        let width = spread * 3_f32.sqrt();
        for value in row.chunks_exact_mut(2) {
            value.copy_from_slice(&f16::from_f32(width * draw.signed_unit()).to_le_bytes());
        }
        return;
    }
    draw.bytes(row);
    for block in row.chunks_exact_mut(format.block_bytes()) {
        let spread = spread * (1.0 + 0.25 * draw.signed_unit());
        let signed = |draw: &mut Draw| if draw.next() & 1 == 0 { spread } else { -spread };
        match format {
            Format::Q4_0 => put(block, 0, signed(&mut draw) / code_spread(4)),
            Format::Q5_0 => put(block, 0, signed(&mut draw) / code_spread(5)),
            Format::Q4_1 => scale_and_min(block, spread / code_spread(4), 7.5),
            Format::Q5_1 => scale_and_min(block, spread / code_spread(5), 15.5),
            Format::Q8_0 => {
                put(block, 0, spread / code_spread(8));
                // −128 is a code that no quantizer writes.
                block[2..].iter_mut().filter(|code| **code == 0x80).for_each(|code| *code = 0x81);
            }
            Format::Q4K => six_bit_scales(block, spread / code_spread(4), 7.5, &mut draw),
            Format::Q5K => six_bit_scales(block, spread / code_spread(5), 15.5, &mut draw),
            Format::Q6K => {
                put(block, 208, spread / code_spread(6) / SUB_SCALE);
                for scale in &mut block[192..208] {
                    // Bits 0–4 and the sign of what was drawn.
                    let size = 32 + (*scale & 31) as i8;
                    *scale = if *scale & 0x80 == 0 { size } else { -size } as u8;
                }
            }
            other => unreachable!("no mix chooses {other} for a matrix"),
        }
    }
}

/// Root mean square of the integers 32 to 63, from which sub-block scales are drawn.
const SUB_SCALE: f32 = 48.4;

fn put(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

fn scale_and_min(block: &mut [u8], scale: f32, middle: f32) {
    put(block, 0, scale);
    put(block, 2, -scale * middle);
}

/// The head of a Q4_K or Q5_K block: eight scales, each with a minimum that puts its middle code at 0.
fn six_bit_scales(block: &mut [u8], scale: f32, middle: f32, draw: &mut Draw) {
    put(block, 0, scale / SUB_SCALE);
    // Minima are subtracted.
    put(block, 2, middle * scale / SUB_SCALE);
    let mut drawn = draw.next();
    let sub: [u8; 8] = std::array::from_fn(|_| {
        let size = 32 + (drawn & 31) as u8;
        drawn >>= 8;
        size
    });
    for i in 0..4 {
        // Scale and minimum are the same number: six bits of the first four, then nibbles and upper bits of the rest.
        let high = sub[i + 4] >> 4 << 6;
        block[4 + i] = sub[i] | high;
        block[8 + i] = sub[i] | high;
        block[12 + i] = (sub[i + 4] & 15) | sub[i + 4] << 4;
    }
}
