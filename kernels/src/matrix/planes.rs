//! How the codes of a unit are laid out in bits.
//!
//! A unit is 32 inputs of 16 outputs. Its codes form 8 *groups* of 64 bytes: byte
//! `4c + i` of group `g` is the code of output `c`, input `4g + i`, which is what a
//! four-way dot product reads. Codes of fewer than 8 bits are stored as planes of 4,
//! 2 and 1 bits, so that one vector of a plane holds the same bits of several groups
//! and a code costs one or two shifts and masks to rebuild. A unit of `b`-bit codes
//! is exactly `b` vectors of 64 bytes.

use crate::isa::{Bytes, Simd};

/// Groups of four inputs in a unit.
pub(crate) const GROUPS: usize = 8;

/// The codes of one unit, unpacked.
pub(crate) type Codes = [Bytes; GROUPS];

/// `mask` bits of each code: at bit `from` of vector `plane`, at bit `to` of the code.
#[derive(Clone, Copy)]
struct Field {
    plane: usize,
    from: u32,
    to: u32,
    mask: u8,
}

/// The lowest bits of group `g`.
#[inline(always)]
fn low(bits: u32, g: usize) -> Field {
    match bits {
        2 | 3 => Field { plane: g / 4, from: 2 * (g as u32 % 4), to: 0, mask: 3 },
        4..=6 => Field { plane: g % 4, from: 4 * (g as u32 / 4), to: 0, mask: 15 },
        _ => Field { plane: g, from: 0, to: 0, mask: 255 },
    }
}

/// The remaining bits of group `g`.
#[inline(always)]
fn high(bits: u32, g: usize) -> Option<Field> {
    match bits {
        3 => Some(Field { plane: 2, from: g as u32, to: 2, mask: 1 }),
        5 => Some(Field { plane: 4, from: g as u32, to: 4, mask: 1 }),
        6 => Some(Field { plane: 4 + g / 4, from: 2 * (g as u32 % 4), to: 4, mask: 3 }),
        _ => None,
    }
}

/// The code at byte `i` of group `g`.
pub(crate) fn get(bits: u32, planes: &[Bytes], g: usize, i: usize) -> u8 {
    let read = |f: Field| (planes[f.plane].0[i] >> f.from & f.mask) << f.to;
    read(low(bits, g)) | high(bits, g).map_or(0, read)
}

/// Packs a unit into `bits` vectors.
pub(crate) fn pack(bits: u32, codes: &Codes, planes: &mut [Bytes]) {
    planes.fill(Bytes::ZERO);
    for (g, codes) in codes.iter().enumerate() {
        for f in [Some(low(bits, g)), high(bits, g)].into_iter().flatten() {
            for (byte, code) in planes[f.plane].0.iter_mut().zip(codes.0) {
                *byte |= (code >> f.to & f.mask) << f.from;
            }
        }
    }
}

/// Unpacks a unit from `BITS` vectors.
#[inline(always)]
pub(crate) fn unpack<S: Simd, const BITS: u32>(s: S, planes: &[Bytes], codes: &mut Codes) {
    for (g, codes) in codes.iter_mut().enumerate() {
        let mut w = read(s, planes, low(BITS, g));
        if let Some(field) = high(BITS, g) {
            w = s.or_w(w, read(s, planes, field));
        }
        s.store_w(w, codes);
    }
}

#[inline(always)]
fn read<S: Simd>(s: S, planes: &[Bytes], f: Field) -> S::W {
    let w = s.load_w(&planes[f.plane]);
    let w = if f.from >= f.to { s.shr_w(w, f.from - f.to) } else { s.shl_w(w, f.to - f.from) };
    s.and_w(w, f.mask << f.to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Isa, SimdOp};

    struct Unpack<'a, const BITS: u32>(&'a [Bytes], &'a mut Codes);

    impl<const BITS: u32> SimdOp for Unpack<'_, BITS> {
        type Output = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            unpack::<S, BITS>(s, self.0, self.1);
        }
    }

    fn check<const BITS: u32>() {
        let codes: Codes = std::array::from_fn(|g| {
            Bytes(std::array::from_fn(|i| (((g * 64 + i) * 151) >> 2) as u8 & (255 >> (8 - BITS))))
        });
        let mut planes = vec![Bytes([0xff; 64]); BITS as usize];
        pack(BITS, &codes, &mut planes);
        for (g, group) in codes.iter().enumerate() {
            for (i, code) in group.0.iter().enumerate() {
                assert_eq!(get(BITS, &planes, g, i), *code, "{BITS} bits, group {g}, byte {i}");
            }
        }
        for isa in Isa::available() {
            let mut back = [Bytes([0xff; 64]); GROUPS];
            isa.run(Unpack::<BITS>(&planes, &mut back));
            for (got, expected) in back.iter().zip(&codes) {
                assert_eq!(got.0, expected.0, "{isa}, {BITS} bits");
            }
        }
    }

    #[test]
    fn pack_get_and_unpack_agree() {
        check::<2>();
        check::<3>();
        check::<4>();
        check::<5>();
        check::<6>();
        check::<8>();
    }
}
