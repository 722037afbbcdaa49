//! Bytes of one quantized block to codes and scales.

use half::f16;

use super::{Format, Layout, Scales};

/// One decoded block of 32 or 256 values.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub layout: Layout,
    /// Unsigned codes in order of the values.
    pub codes: [u8; 256],
    /// Scale of the block.
    pub d: f16,
    /// Minimum of the block, or scale of the minima.
    pub m: f16,
    /// Scale of each sub-block; one per 16 or 32 values.
    pub sub: [i8; 16],
    /// Minimum of each sub-block.
    pub sub_min: [i8; 16],
}

impl Block {
    /// Decodes `raw`, exactly one block of the quantized `format`.
    ///
    /// # Panics
    /// On a dense format or another size: callers cut the bytes by `block_bytes`.
    pub fn decode(format: Format, raw: &[u8]) -> Self {
        let mut block = Self::new(format);
        block.read(format, raw);
        block
    }

    /// A block of zeros, to be read into.
    ///
    /// # Panics
    /// On a dense format.
    pub fn new(format: Format) -> Self {
        let layout = format.layout().expect("only quantized formats have blocks");
        Self { layout, codes: [0; 256], d: f16::ZERO, m: f16::ZERO, sub: [0; 16], sub_min: [0; 16] }
    }

    /// Decodes another block of the same format in place, which saves clearing it: every code and scale is written.
    ///
    /// # Panics
    /// As [`Block::decode`].
    pub fn read(&mut self, format: Format, raw: &[u8]) {
        assert_eq!(raw.len(), format.block_bytes());
        let block = self;
        match format {
            Format::Q4_0 => block.legacy(half(raw, 0), f16::ZERO, &[], &raw[2..]),
            Format::Q4_1 => block.legacy(half(raw, 0), half(raw, 2), &[], &raw[4..]),
            Format::Q5_0 => block.legacy(half(raw, 0), f16::ZERO, &raw[2..6], &raw[6..]),
            Format::Q5_1 => block.legacy(half(raw, 0), half(raw, 2), &raw[4..8], &raw[8..]),
            Format::Q8_0 => {
                block.d = half(raw, 0);
                for (code, byte) in block.codes.iter_mut().zip(&raw[2..]) {
                    *code = byte ^ 0x80; // signed byte to its distance from −128
                }
            }
            Format::Q2K => block.q2k(raw),
            Format::Q3K => block.q3k(raw),
            Format::Q4K => block.q45k(raw, &[], &raw[16..]),
            Format::Q5K => block.q45k(raw, &raw[16..48], &raw[48..]),
            Format::Q6K => block.q6k(raw),
            Format::F32 | Format::F16 | Format::BF16 => unreachable!("dense formats have no layout"),
        }
    }

    /// The value at index `k`. The order of operations is the reference's, so the bits are too.
    pub fn value(&self, k: usize) -> f32 {
        let s = k * self.layout.subs / 32;
        let code = i32::from(self.codes[k]);
        let (scale, min) = match self.layout.scales {
            Scales::Block => (self.d.to_f32(), self.m.to_f32()),
            Scales::Super | Scales::SuperNibbles => {
                (self.d.to_f32() * f32::from(self.sub[s]), -(self.m.to_f32() * f32::from(self.sub_min[s])))
            }
        };
        match self.layout.center {
            Some(center) => scale * (code - center) as f32,
            None => scale * code as f32 + min,
        }
    }

    /// Low nibbles hold values 0–15, high nibbles 16–31; `fifth` holds one more bit a value.
    fn legacy(&mut self, d: f16, m: f16, fifth: &[u8], nibbles: &[u8]) {
        (self.d, self.m) = (d, m);
        for (k, byte) in nibbles.iter().enumerate() {
            self.codes[k] = byte & 15;
            self.codes[k + 16] = byte >> 4;
        }
        for (k, byte) in fifth.iter().enumerate() {
            for bit in 0..8 {
                self.codes[8 * k + bit] |= (byte >> bit & 1) << 4;
            }
        }
    }

    /// 16 bytes of scale | min nibbles, 64 bytes of 2-bit codes, d, dmin.
    fn q2k(&mut self, raw: &[u8]) {
        for (s, both) in raw[..16].iter().enumerate() {
            self.sub[s] = (both & 15) as i8;
            self.sub_min[s] = (both >> 4) as i8;
        }
        self.two_bits(&raw[16..80]);
        (self.d, self.m) = (half(raw, 80), half(raw, 82));
    }

    /// 32 bytes of third bits, 64 bytes of 2-bit codes, 12 bytes of 6-bit scales around 32, d.
    fn q3k(&mut self, raw: &[u8]) {
        let (third, low, scales) = (&raw[..32], &raw[32..96], &raw[96..108]);
        self.two_bits(low);
        for part in 0..8 {
            self.add_bits(part, third, part, 1, 2);
        }
        for s in 0..16 {
            let low = scales[s % 8] >> (4 * (s / 8)) & 15;
            let high = scales[8 + s % 4] >> (2 * (s / 4)) & 3;
            self.sub[s] = (low | high << 4) as i8 - 32;
        }
        self.d = half(raw, 108);
    }

    /// d, dmin, 12 bytes of 6-bit scales and minima, `fifth` bits if any, nibbles.
    fn q45k(&mut self, raw: &[u8], fifth: &[u8], nibbles: &[u8]) {
        (self.d, self.m) = (half(raw, 0), half(raw, 2));
        let scales = &raw[4..16];
        for s in 0..4 {
            self.sub[s] = (scales[s] & 63) as i8;
            self.sub_min[s] = (scales[s + 4] & 63) as i8;
            self.sub[s + 4] = (scales[s + 8] & 15 | scales[s] >> 6 << 4) as i8;
            self.sub_min[s + 4] = (scales[s + 8] >> 4 | scales[s + 4] >> 6 << 4) as i8;
        }
        for part in 0..8 {
            self.add_bits(part, &nibbles[32 * (part / 2)..], 4 * (part % 2), 15, 0);
            self.add_bits(part, fifth, part, 1, 4);
        }
    }

    /// 128 bytes of nibbles, 64 bytes of upper 2 bits, 16 signed scales, d.
    fn q6k(&mut self, raw: &[u8]) {
        let (low, high, scales) = (&raw[..128], &raw[128..192], &raw[192..208]);
        for part in 0..8 {
            self.add_bits(part, &low[64 * (part / 4) + 32 * (part % 2)..], 4 * (part / 2 % 2), 15, 0);
            self.add_bits(part, &high[32 * (part / 4)..], 2 * (part % 4), 3, 4);
        }
        for (sub, byte) in self.sub.iter_mut().zip(scales) {
            *sub = *byte as i8;
        }
        self.d = half(raw, 208);
    }

    /// 64 bytes of 2-bit codes: each byte holds values l, l+32, l+64, l+96 of a half of 128.
    fn two_bits(&mut self, bytes: &[u8]) {
        for part in 0..8 {
            self.add_bits(part, &bytes[32 * (part / 4)..], 2 * (part % 4), 3, 0);
        }
    }

    /// Puts bits `from ..` of the first 32 `bytes` at bits `to ..` of the codes `32 · part ..`, one byte a code.
    /// The lowest bits come first: they replace what was there.
    fn add_bits(&mut self, part: usize, bytes: &[u8], from: usize, mask: u8, to: u32) {
        for (code, byte) in self.codes[32 * part..][..32].iter_mut().zip(bytes) {
            let bits = (byte >> from & mask) << to;
            *code = if to == 0 { bits } else { *code | bits };
        }
    }
}

fn half(raw: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([raw[at], raw[at + 1]])
}
