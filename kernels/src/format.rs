//! The tensor formats of GGUF that weaklink reads, and their scalar meaning.
//!
//! Every quantized format is seen here as one shape: unsigned integer codes, cut
//! into sub-blocks of 16 or 32 values with a scale each, and either a fixed centre
//! (`w = scale · (code − centre)`) or a minimum (`w = scale · code + min`).
//! [`Layout`] says which; [`Block`] holds one decoded block. The packed matrix
//! starts from the same two, so a format is described once.

mod decode;
mod quantize;

use half::{bf16, f16};

use crate::KernelError;
use crate::error::check_len;
pub(crate) use decode::Block;
pub use quantize::quantize;

/// A tensor format, named as in GGUF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a 32-bit float.
    BF16,
    /// Blocks of 32: f16 scale, 4-bit codes around 8.
    Q4_0,
    /// Blocks of 32: f16 scale and minimum, 4-bit codes.
    Q4_1,
    /// Blocks of 32: f16 scale, 5-bit codes around 16.
    Q5_0,
    /// Blocks of 32: f16 scale and minimum, 5-bit codes.
    Q5_1,
    /// Blocks of 32: f16 scale, signed 8-bit codes.
    Q8_0,
    /// Blocks of 256: 2-bit codes, 4-bit scales and minima for each 16.
    Q2K,
    /// Blocks of 256: 3-bit codes around 4, 6-bit scales for each 16.
    Q3K,
    /// Blocks of 256: 4-bit codes, 6-bit scales and minima for each 32.
    Q4K,
    /// Blocks of 256: 5-bit codes, 6-bit scales and minima for each 32.
    Q5K,
    /// Blocks of 256: 6-bit codes around 32, 8-bit scales for each 16.
    Q6K,
}

/// How the scales of a quantized format are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scales {
    /// One f16 scale (and f16 minimum) a block of 32.
    Block,
    /// f16 scale (and f16 scale of minima) a block of 256, one signed byte a sub-block (and one for its minimum).
    Super,
    /// As `Super`, with scale (low) and minimum (high) of a sub-block in one byte of two nibbles.
    SuperNibbles,
}

/// The shape of a quantized format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bits of a code.
    pub bits: u32,
    /// Sub-blocks in 32 values: 1 or 2.
    pub subs: usize,
    /// `Some`: codes are signed around this centre. `None`: sub-blocks have minima.
    pub center: Option<i32>,
    /// Where the scales are.
    pub scales: Scales,
}

impl Format {
    /// All accepted formats.
    pub const ALL: [Format; 13] = [
        Format::F32,
        Format::F16,
        Format::BF16,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::Q2K,
        Format::Q3K,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
    ];

    /// The type number in a GGUF tensor header.
    pub fn ggml_id(self) -> u32 {
        match self {
            Format::F32 => 0,
            Format::F16 => 1,
            Format::BF16 => 30,
            Format::Q4_0 => 2,
            Format::Q4_1 => 3,
            Format::Q5_0 => 6,
            Format::Q5_1 => 7,
            Format::Q8_0 => 8,
            Format::Q2K => 10,
            Format::Q3K => 11,
            Format::Q4K => 12,
            Format::Q5K => 13,
            Format::Q6K => 14,
        }
    }

    /// The format with this type number, or `None` where weaklink cannot read it.
    pub fn from_ggml(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.ggml_id() == id)
    }

    /// The name used by GGUF tools, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        match self {
            Format::F32 => "F32",
            Format::F16 => "F16",
            Format::BF16 => "BF16",
            Format::Q4_0 => "Q4_0",
            Format::Q4_1 => "Q4_1",
            Format::Q5_0 => "Q5_0",
            Format::Q5_1 => "Q5_1",
            Format::Q8_0 => "Q8_0",
            Format::Q2K => "Q2_K",
            Format::Q3K => "Q3_K",
            Format::Q4K => "Q4_K",
            Format::Q5K => "Q5_K",
            Format::Q6K => "Q6_K",
        }
    }

    /// Values in one block; a row is a whole number of blocks.
    pub fn block_len(self) -> usize {
        match self {
            Format::F32 | Format::F16 | Format::BF16 => 1,
            Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::Q8_0 => 32,
            Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::BF16 => 2,
            Format::Q4_0 => 18,
            Format::Q4_1 => 20,
            Format::Q5_0 => 22,
            Format::Q5_1 => 24,
            Format::Q8_0 => 34,
            Format::Q2K => 84,
            Format::Q3K => 110,
            Format::Q4K => 144,
            Format::Q5K => 176,
            Format::Q6K => 210,
        }
    }

    /// Bytes of a row of `cols` values; `None` if `cols` is no multiple of the block or the size overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The shape of a quantized format; `None` for the dense ones.
    pub(crate) fn layout(self) -> Option<Layout> {
        let (bits, subs, center, scales) = match self {
            Format::F32 | Format::F16 | Format::BF16 => return None,
            Format::Q4_0 => (4, 1, Some(8), Scales::Block),
            Format::Q4_1 => (4, 1, None, Scales::Block),
            Format::Q5_0 => (5, 1, Some(16), Scales::Block),
            Format::Q5_1 => (5, 1, None, Scales::Block),
            Format::Q8_0 => (8, 1, Some(128), Scales::Block),
            Format::Q2K => (2, 2, None, Scales::SuperNibbles),
            Format::Q3K => (3, 2, Some(4), Scales::Super),
            Format::Q4K => (4, 1, None, Scales::Super),
            Format::Q5K => (5, 1, None, Scales::Super),
            Format::Q6K => (6, 2, Some(32), Scales::Super),
        };
        Some(Layout { bits, subs, center, scales })
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The values of whole blocks in `bytes`, one at a time: the definition that every fast path is tested against.
///
/// # Errors
/// If `out` is no whole number of blocks or `bytes` has another size than `out` needs.
pub fn dequantize(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), KernelError> {
    let size = format.row_bytes(out.len()).ok_or(KernelError::Columns {
        format,
        cols: out.len(),
        block: format.block_len(),
    })?;
    check_len("dequantize: bytes", size, bytes.len())?;
    match format {
        Format::F32 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*raw);
            }
        }
        Format::F16 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f16::from_le_bytes(*raw).to_f32();
            }
        }
        Format::BF16 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = bf16::from_le_bytes(*raw).to_f32();
            }
        }
        _ => {
            let blocks = bytes.chunks_exact(format.block_bytes());
            for (values, raw) in out.chunks_exact_mut(format.block_len()).zip(blocks) {
                let block = Block::decode(format, raw);
                for (k, value) in values.iter_mut().enumerate() {
                    *value = block.value(k);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_sizes_are_consistent() {
        for format in Format::ALL {
            assert_eq!(Format::from_ggml(format.ggml_id()), Some(format));
            assert_eq!(format.row_bytes(0), Some(0));
            assert_eq!(format.row_bytes(format.block_len() * 3), Some(format.block_bytes() * 3));
            assert_eq!(
                format.row_bytes(usize::MAX - usize::MAX % format.block_len()).is_some(),
                format.block_bytes() < format.block_len()
            );
            if format.block_len() > 1 {
                assert_eq!(format.row_bytes(format.block_len() + 1), None);
            }
        }
        // Q8_1, Q8_K, IQ2_XXS and beyond
        for id in [9, 15, 16, 31, u32::MAX] {
            assert_eq!(Format::from_ggml(id), None);
        }
    }

    #[test]
    fn wrong_sizes_are_errors() {
        let mut out = [0.0; 32];
        assert_eq!(
            dequantize(Format::Q4_0, &[0; 17], &mut out),
            Err(KernelError::Length { what: "dequantize: bytes", expected: 18, found: 17 })
        );
        assert_eq!(
            dequantize(Format::Q4K, &[0; 18], &mut out).unwrap_err().to_string(),
            "Q4_K: 32 columns are not a multiple of the format's block of 256"
        );
    }

    /// Random blocks of every format against the values of the `gguf` Python package, bit for bit.
    /// File (see tests/golden/make_quants.py): per format id u32, block count u32, the blocks, then f32 values.
    #[test]
    fn equals_the_python_reference() {
        let mut file: &[u8] = include_bytes!("../tests/golden/quants.bin");
        let mut take = |n: usize| {
            let (head, tail) = file.split_at(n);
            file = tail;
            head
        };
        let mut seen = 0;
        for _ in Format::ALL {
            let header = take(8);
            let id = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
            let blocks = u32::from_le_bytes(header[4..].try_into().expect("four bytes")) as usize;
            let format = Format::from_ggml(id).expect("golden file holds accepted formats");
            let bytes = take(blocks * format.block_bytes());
            let expected = take(blocks * format.block_len() * 4).as_chunks::<4>().0;
            let mut values = vec![f32::NAN; expected.len()];
            dequantize(format, bytes, &mut values).expect("golden sizes fit");
            for (k, (value, raw)) in values.iter().zip(expected).enumerate() {
                let expected = f32::from_le_bytes(*raw);
                let same = value.to_bits() == expected.to_bits() || (*value == 0.0 && expected == 0.0);
                assert!(same, "{format} value {k}: {value} != {expected}");
            }
            seen += 1;
        }
        assert_eq!((seen, file.len()), (13, 0));
    }
}
