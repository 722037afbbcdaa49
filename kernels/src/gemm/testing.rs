//! Inputs for tests, from a fixed generator.

use crate::Format;

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in −1…1.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

/// `len` floats in −1…1.
pub(crate) fn floats(len: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..len).map(|_| random.float()).collect()
}

/// A valid tensor: random codes and sub-scales, halves of moderate size.
pub(crate) fn random_bytes(format: Format, rows: usize, cols: usize, seed: u64) -> Vec<u8> {
    if format.layout().is_none() {
        return crate::quantize(format, &floats(rows * cols, seed)).expect("dense formats are writable");
    }
    let mut random = Random(seed);
    let len = rows * format.row_bytes(cols).expect("tests use whole blocks");
    let mut bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
    let halves: &[usize] = match format {
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        _ => &[0],
    };
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        for at in halves {
            block[*at..at + 2].copy_from_slice(&half::f16::from_f32(random.float()).to_le_bytes());
        }
    }
    bytes
}
