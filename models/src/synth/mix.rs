//! Which tensor gets which format: the choices of llama.cpp's quantizer for a file of a given name.

use weaklink_kernels::Format;

/// A quantization by its usual name. It names one format, but heads and some layers get a finer one, and rows that
/// a format's blocks do not divide get a coarser-grained one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    name: &'static str,
    format: Format,
    /// Some values and down projections are Q6_K.
    medium: bool,
    file_type: u32,
}

impl Mix {
    /// All quantizations that can be written.
    pub const ALL: [Mix; 9] = [
        Mix { name: "F16", format: Format::F16, medium: false, file_type: 1 },
        Mix { name: "Q8_0", format: Format::Q8_0, medium: false, file_type: 7 },
        Mix { name: "Q4_0", format: Format::Q4_0, medium: false, file_type: 2 },
        Mix { name: "Q4_1", format: Format::Q4_1, medium: false, file_type: 3 },
        Mix { name: "Q5_0", format: Format::Q5_0, medium: false, file_type: 8 },
        Mix { name: "Q5_1", format: Format::Q5_1, medium: false, file_type: 9 },
        Mix { name: "Q4_K_M", format: Format::Q4K, medium: true, file_type: 15 },
        Mix { name: "Q5_K_M", format: Format::Q5K, medium: true, file_type: 17 },
        Mix { name: "Q6_K", format: Format::Q6K, medium: false, file_type: 18 },
    ];

    /// The quantization of this name, in capitals or not.
    pub fn by_name(name: &str) -> Option<Mix> {
        Self::ALL.into_iter().find(|mix| mix.name.eq_ignore_ascii_case(name))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Its number under `general.file_type`.
    pub(super) fn file_type(self) -> u32 {
        self.file_type
    }

    /// The format of an embedding of rows this wide; `head`: of one that also makes the logits, or of a head.
    pub(super) fn embedding(self, cols: usize, head: bool) -> Format {
        match self.format {
            Format::F16 | Format::Q8_0 => self.format,
            _ if head => fitting(Format::Q6K, cols),
            format => fitting(format, cols),
        }
    }

    /// The format of a layer's matrix `part` with rows this wide.
    pub(super) fn matrix(self, part: &str, layer: usize, layers: usize, cols: usize) -> Format {
        // The first and last eighth of the layers, and every third between them.
        let (eighth, last) = (layers / 8, 7 * layers / 8);
        let more = layer < eighth || layer >= last || (layer - eighth) % 3 == 2;
        let finer = self.medium && more && matches!(part, "attn_v" | "ffn_down");
        fitting(if finer { Format::Q6K } else { self.format }, cols)
    }
}

/// A format, or what stands in for it in rows that its blocks of 256 do not divide.
fn fitting(format: Format, cols: usize) -> Format {
    if cols.is_multiple_of(format.block_len()) {
        return format;
    }
    match format {
        Format::Q4K => Format::Q5_0,
        Format::Q5K => Format::Q5_1,
        Format::Q6K => Format::Q8_0,
        other => other,
    }
}
