//! From the file's rows to panels. Runs once a matrix, in parallel over panels.

use rayon::prelude::*;

use super::{Data, Quant, UNIT, planes};
use crate::format::{Block, Format, Layout, Scales};
use crate::isa::{Bytes, Floats, Halves, LANES};

/// Packs checked `bytes`.
pub(super) fn pack(format: Format, rows: usize, cols: usize, bytes: &[u8]) -> Data {
    match (format, format.layout()) {
        (_, Some(layout)) => Data::Quant(quant(format, layout, rows, cols, bytes)),
        (Format::F32, None) => Data::Full(dense(rows, cols, bytes, |to: &mut Floats, lane, raw: &[u8; 4]| {
            to.0[lane] = f32::from_le_bytes(*raw);
        })),
        (_, None) => Data::Half(dense(rows, cols, bytes, |to: &mut Halves, lane, raw: &[u8; 2]| {
            to.0[lane] = u16::from_le_bytes(*raw);
        })),
    }
}

/// Transposes 16 rows at a time; `set` writes one element into its lane.
fn dense<T: Copy + Send + Sync, const N: usize>(
    rows: usize,
    cols: usize,
    bytes: &[u8],
    set: impl Fn(&mut T, usize, &[u8; N]) + Sync,
) -> Vec<T> {
    // SAFETY: the callers' types are floats and integers, for which all zeros is a value.
    let mut out: Vec<T> = unsafe { zeroed(rows.div_ceil(LANES) * cols) };
    let values = bytes.as_chunks::<N>().0;
    if cols > 0 {
        out.par_chunks_mut(cols).zip(values.par_chunks(LANES * cols)).for_each(|(panel, values)| {
            for (lane, row) in values.chunks_exact(cols).enumerate() {
                for (to, value) in panel.iter_mut().zip(row) {
                    set(to, lane, value);
                }
            }
        });
    }
    out
}

/// Sizes of the five arrays of one panel.
struct Sizes {
    planes: usize,
    d: usize,
    m: usize,
    sub: usize,
    sub_min: usize,
}

fn sizes(layout: Layout, block_len: usize, cols: usize) -> Sizes {
    let (units, blocks) = (cols / UNIT, cols / block_len);
    let has_min = layout.center.is_none();
    let subs = if layout.scales == Scales::Block { 0 } else { units * layout.subs };
    Sizes {
        planes: units * layout.bits as usize,
        d: blocks,
        m: if has_min { blocks } else { 0 },
        sub: subs,
        sub_min: if has_min && layout.scales == Scales::Super { subs } else { 0 },
    }
}

/// Bytes of one panel of 16 outputs.
pub(super) fn panel_bytes(format: Format, cols: usize) -> usize {
    let Some(layout) = format.layout() else { return cols.saturating_mul(LANES * format.block_bytes()) };
    let size = sizes(layout, format.block_len(), cols);
    size.planes * size_of::<Bytes>()
        + (size.d + size.m) * size_of::<Halves>()
        + (size.sub + size.sub_min) * size_of::<[i8; LANES]>()
}

fn quant(format: Format, layout: Layout, rows: usize, cols: usize, bytes: &[u8]) -> Quant {
    let panels = rows.div_ceil(LANES);
    let size = sizes(layout, format.block_len(), cols);
    let mut out = Quant {
        layout,
        units: cols / UNIT,
        // SAFETY: integers, for which all zeros is a value.
        planes: unsafe { zeroed(panels * size.planes) },
        // SAFETY: as above.
        d: unsafe { zeroed(panels * size.d) },
        // SAFETY: as above.
        m: unsafe { zeroed(panels * size.m) },
        sub: vec![[0; LANES]; panels * size.sub],
        sub_min: vec![[0; LANES]; panels * size.sub_min],
    };
    // An empty array has no chunks: hand out one chunk a panel by hand.
    let row_bytes = (cols / format.block_len()) * format.block_bytes();
    let (mut p, mut d, mut m) = (&mut out.planes[..], &mut out.d[..], &mut out.m[..]);
    let (mut sub, mut sub_min) = (&mut out.sub[..], &mut out.sub_min[..]);
    let tasks: Vec<Panel> = (0..panels)
        .map(|panel| {
            let end = rows.min((panel + 1) * LANES);
            Panel {
                rows: &bytes[panel * LANES * row_bytes..end * row_bytes],
                planes: p.split_off_mut(..size.planes).expect("sized for all panels"),
                d: d.split_off_mut(..size.d).expect("sized for all panels"),
                m: m.split_off_mut(..size.m).expect("sized for all panels"),
                sub: sub.split_off_mut(..size.sub).expect("sized for all panels"),
                sub_min: sub_min.split_off_mut(..size.sub_min).expect("sized for all panels"),
            }
        })
        .collect();
    tasks.into_par_iter().for_each(|panel| panel.fill(format, layout, row_bytes));
    out
}

/// Zeros that the operating system hands out a page at a time, to the thread that first writes to it: filling them here
/// would touch all of a model's memory once more, from one thread.
///
/// # Safety
/// All zeros must be a value of `T`.
unsafe fn zeroed<T>(len: usize) -> Vec<T> {
    // SAFETY: the caller's promise.
    unsafe { Box::<[T]>::new_zeroed_slice(len).assume_init() }.into_vec()
}

/// The parts of one panel: source rows and destinations.
struct Panel<'a> {
    rows: &'a [u8],
    planes: &'a mut [Bytes],
    d: &'a mut [Halves],
    m: &'a mut [Halves],
    sub: &'a mut [[i8; LANES]],
    sub_min: &'a mut [[i8; LANES]],
}

impl Panel<'_> {
    fn fill(self, format: Format, layout: Layout, row_bytes: usize) {
        let (len, size, bits) = (format.block_len(), format.block_bytes(), layout.bits as usize);
        let subs = len / UNIT * layout.subs;
        // 8 units at most; padding lanes keep code, scale and minimum zero, the others are written in each turn
        let mut codes = [[Bytes::ZERO; planes::GROUPS]; 8];
        let mut block = Block::new(format);
        for b in 0..row_bytes / size {
            for (lane, row) in self.rows.chunks_exact(row_bytes).enumerate() {
                block.read(format, &row[b * size..][..size]);
                for (group, four) in codes.as_flattened_mut().iter_mut().zip(block.codes[..len].as_chunks::<4>().0) {
                    group.0.as_chunks_mut::<4>().0[lane] = *four;
                }
                self.d[b].0[lane] = block.d.to_bits();
                if let Some(m) = self.m.get_mut(b) {
                    m.0[lane] = block.m.to_bits();
                }
                for s in 0..subs {
                    if let Some(sub) = self.sub.get_mut(b * subs + s) {
                        sub[lane] = match layout.scales {
                            Scales::SuperNibbles => block.sub[s] | block.sub_min[s] << 4,
                            _ => block.sub[s],
                        };
                    }
                    if let Some(sub_min) = self.sub_min.get_mut(b * subs + s) {
                        sub_min[lane] = block.sub_min[s];
                    }
                }
            }
            let units = len / UNIT;
            for (unit, planes) in self.planes[b * units * bits..][..units * bits].chunks_exact_mut(bits).enumerate() {
                planes::pack(layout.bits, &codes[unit], planes);
            }
        }
    }
}
