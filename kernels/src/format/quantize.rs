//! Plain writers for a few formats: tests and synthetic models need them, quality of rounding is not their aim.

use half::{bf16, f16};

use super::Format;
use crate::KernelError;

/// Encodes `values` in `format`; the formats without super-blocks other than Q5_0 and Q5_1.
///
/// # Errors
/// If the format cannot be written or `values` is no whole number of blocks.
pub fn quantize(format: Format, values: &[f32]) -> Result<Vec<u8>, KernelError> {
    if !values.len().is_multiple_of(format.block_len()) {
        return Err(KernelError::Columns { format, cols: values.len(), block: format.block_len() });
    }
    let blocks = values.as_chunks::<32>().0;
    Ok(match format {
        Format::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        Format::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        Format::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        Format::Q8_0 => blocks.iter().flat_map(q8_0).collect(),
        Format::Q4_0 => blocks.iter().flat_map(q4_0).collect(),
        Format::Q4_1 => blocks.iter().flat_map(q4_1).collect(),
        _ => return Err(KernelError::NotWritable { format }),
    })
}

/// Reciprocal that makes an all-equal block's codes zero.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { scale.recip() }
}

fn q8_0(block: &[f32; 32]) -> Vec<u8> {
    let scale = block.iter().fold(0f32, |max, v| max.max(v.abs())) / 127.0;
    let inverse = inverse(scale);
    let codes = block.iter().map(|v| (v * inverse).round() as i8 as u8);
    f16::from_f32(scale).to_le_bytes().into_iter().chain(codes).collect()
}

fn q4_0(block: &[f32; 32]) -> Vec<u8> {
    // The value of largest magnitude, with its sign, becomes code 0 = −8.
    let extreme = block.iter().fold(0f32, |max, v| if v.abs() > max.abs() { *v } else { max });
    let scale = extreme / -8.0;
    let inverse = inverse(scale);
    let codes = block.map(|v| (v * inverse + 8.5) as u8);
    f16::from_f32(scale).to_le_bytes().into_iter().chain(nibbles(codes)).collect()
}

fn q4_1(block: &[f32; 32]) -> Vec<u8> {
    let (min, max) = block.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), v| (lo.min(*v), hi.max(*v)));
    let scale = (max - min) / 15.0;
    let inverse = inverse(scale);
    let codes = block.map(|v| ((v - min) * inverse + 0.5) as u8);
    let header = [f16::from_f32(scale), f16::from_f32(min)].map(f16::to_le_bytes);
    header.into_iter().flatten().chain(nibbles(codes)).collect()
}

fn nibbles(codes: [u8; 32]) -> [u8; 16] {
    std::array::from_fn(|k| codes[k].min(15) | codes[k + 16].min(15) << 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dequantize;

    #[test]
    fn values_come_back_within_half_a_step() {
        let values: Vec<f32> = (0..256).map(|k| ((k * 37 % 101) as f32 - 50.0) / 17.0).collect();
        // largest magnitude 50/17 ≈ 2.94, range ≈ 5.9: half a step, plus f16 rounding of the scale over all codes
        // (Q4_0 also clips the top code: one whole step)
        for (format, bound) in [
            (Format::F32, 0.0),
            (Format::F16, 0.002),
            (Format::BF16, 0.012),
            (Format::Q8_0, 0.0135),
            (Format::Q4_0, 0.37),
            (Format::Q4_1, 0.2),
        ] {
            let bytes = quantize(format, &values).expect("writable");
            let mut back = vec![f32::NAN; values.len()];
            dequantize(format, &bytes, &mut back).expect("sizes fit");
            let worst = values.iter().zip(&back).fold(0f32, |max, (a, b)| max.max((a - b).abs()));
            assert!(worst <= bound, "{format}: {worst}");
        }
    }

    #[test]
    fn zeros_stay_zero_and_bad_requests_are_errors() {
        for format in [Format::Q8_0, Format::Q4_0, Format::Q4_1] {
            let bytes = quantize(format, &[0.0; 64]).expect("writable");
            let mut back = [f32::NAN; 64];
            dequantize(format, &bytes, &mut back).expect("sizes fit");
            assert_eq!(back, [0.0; 64]);
            assert!(quantize(format, &[0.0; 33]).is_err());
        }
        assert_eq!(quantize(Format::Q6K, &[0.0; 256]), Err(KernelError::NotWritable { format: Format::Q6K }));
    }
}
