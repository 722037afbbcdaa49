//! Model files with random weights in a real architecture: benchmarks without a download.
//!
//! A file has the shapes, formats, metadata and a working tokenizer of its [`Preset`]; only the weights mean nothing.
//! They are drawn with the spread that a freshly initialised model has, so that logits are finite and of ordinary
//! size. The same preset, [`Mix`] and seed give the same bytes on every machine and with any number of threads, and
//! no more than a few megabytes of the file are ever in memory.

mod blocks;
mod mix;
mod preset;
#[cfg(test)]
mod tests;
mod tokenizer;

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use weaklink_kernels::Format;

use crate::config::Family;
use crate::gguf::GgufWriter;
use blocks::Draw;

pub use mix::Mix;
pub use preset::Preset;

/// What the values of a tensor are.
#[derive(Clone, Debug, PartialEq)]
enum Values {
    /// Random around 0 with this standard deviation.
    Spread(f32),
    /// Random within this distance of this middle.
    Around(f32, f32),
    /// As given.
    Given(Vec<f32>),
}

/// A tensor of the file: its place, format and contents.
#[derive(Clone, Debug, PartialEq)]
struct Planned {
    name: String,
    /// Outermost first.
    shape: Vec<usize>,
    format: Format,
    values: Values,
}

/// Writes the file; returns its length in bytes.
///
/// It grows as `FILE.part` beside its place and is renamed when it is whole; after an error the part is gone.
///
/// # Errors
/// Those of the file system, and a part that another process is writing.
pub fn write(preset: &Preset, mix: Mix, seed: u64, path: &Path) -> io::Result<u64> {
    if path.file_name().is_none() || path.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a folder; name a file"));
    }
    let mut name = OsString::from(path);
    name.push(".part");
    let part = PathBuf::from(name);
    let file = File::options().create(true).truncate(false).write(true).open(&part)?;
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => io::Error::other("another process is writing it"),
        TryLockError::Error(error) => error,
    })?;
    let written = write_part(preset, mix, seed, &file).and_then(|bytes| {
        std::fs::rename(&part, path)?;
        Ok(bytes)
    });
    if written.is_err() {
        // The error that led here says more than one of this removal would.
        let _ = std::fs::remove_file(&part);
    }
    written
}

fn write_part(preset: &Preset, mix: Mix, seed: u64, file: &File) -> io::Result<u64> {
    // What an interrupted run left behind may be longer.
    file.set_len(0)?;
    let mut out = io::BufWriter::with_capacity(1 << 20, file);
    stream(preset, mix, seed, &mut out)?;
    out.flush()?;
    drop(out);
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

/// Writes the bytes of the file to `out`.
fn stream(preset: &Preset, mix: Mix, seed: u64, out: &mut dyn Write) -> io::Result<()> {
    let tensors = plan(preset, mix);
    let mut writer = tokenizer::describe(preset, metadata(preset, mix));
    for tensor in &tensors {
        writer = writer.planned_tensor(&tensor.name, &tensor.shape, tensor.format);
    }
    writer.stream(out, |index, out| fill(&tensors[index], Draw::new(seed, index as u64), out))
}

fn metadata(preset: &Preset, mix: Mix) -> GgufWriter {
    let arch = preset.family.name();
    let key = |name: &str| format!("{arch}.{name}");
    GgufWriter::new()
        .meta("general.architecture", arch)
        .meta("general.type", "model")
        .meta("general.name", format!("{} with random weights", preset.name).as_str())
        .meta("general.file_type", mix.file_type())
        .meta("general.quantization_version", 2)
        .meta(&key("block_count"), preset.layers as u32)
        .meta(&key("context_length"), preset.context as u32)
        .meta(&key("embedding_length"), preset.hidden as u32)
        .meta(&key("feed_forward_length"), preset.ffn as u32)
        .meta(&key("attention.head_count"), preset.heads as u32)
        .meta(&key("attention.head_count_kv"), preset.kv_heads as u32)
        .meta(&key("attention.layer_norm_rms_epsilon"), preset.norm_eps)
        .meta(&key("rope.freq_base"), preset.rope_base)
        .meta(&key("rope.dimension_count"), preset.head_dim as u32)
        .meta(&key("vocab_size"), preset.vocab as u32)
}

/// All tensors of the file, in its order.
fn plan(preset: &Preset, mix: Mix) -> Vec<Planned> {
    let p = preset;
    let mut tensors = Vec::new();
    let mut add = |name: String, shape: &[usize], format: Format, values: Values| {
        tensors.push(Planned { name, shape: shape.to_vec(), format, values });
    };
    // Unit variance in, unit variance out.
    let spread = |inputs: usize| 1.0 / (inputs as f32).sqrt();
    // What a layer adds to the residual stream is kept small enough that the sum over all layers is of size 1.
    let branch = |inputs: usize| spread(inputs) / (2.0 * p.layers as f32).sqrt();
    let norm = Values::Around(1.0, 0.1);

    let embedding = mix.embedding(p.hidden, p.tied);
    add("token_embd.weight".into(), &[p.vocab, p.hidden], embedding, Values::Spread(spread(p.hidden)));
    if let Some(factors) = p.rope_factors() {
        add("rope_freqs.weight".into(), &[p.head_dim / 2], Format::F32, Values::Given(factors));
    }
    let (queries, keys) = (p.heads * p.head_dim, p.kv_heads * p.head_dim);
    for layer in 0..p.layers {
        let matrices = [
            ("attn_q", queries, p.hidden, spread(p.hidden)),
            ("attn_k", keys, p.hidden, spread(p.hidden)),
            ("attn_v", keys, p.hidden, spread(p.hidden)),
            ("attn_output", p.hidden, queries, branch(queries)),
            ("ffn_gate", p.ffn, p.hidden, spread(p.hidden)),
            ("ffn_up", p.ffn, p.hidden, spread(p.hidden)),
            ("ffn_down", p.hidden, p.ffn, branch(p.ffn)),
        ];
        for part in ["attn_norm", "ffn_norm"] {
            add(format!("blk.{layer}.{part}.weight"), &[p.hidden], Format::F32, norm.clone());
        }
        for (part, rows, cols, spread) in matrices {
            let format = mix.matrix(part, layer, p.layers, cols);
            add(format!("blk.{layer}.{part}.weight"), &[rows, cols], format, Values::Spread(spread));
            if p.family == Family::Qwen2 && matches!(part, "attn_q" | "attn_k" | "attn_v") {
                add(format!("blk.{layer}.{part}.bias"), &[rows], Format::F32, Values::Around(0.0, 0.5));
            }
        }
    }
    add("output_norm.weight".into(), &[p.hidden], Format::F32, norm);
    if !p.tied {
        let values = Values::Spread(spread(p.hidden));
        add("output.weight".into(), &[p.vocab, p.hidden], mix.embedding(p.hidden, true), values);
    }
    tensors
}

/// Bytes made at once: all cores have rows to fill, and the memory is that of a cache rather than of a model.
const CHUNK: usize = 4 << 20;

/// Writes one tensor's data, row by row, each drawn from a stream of its own.
fn fill(tensor: &Planned, draw: Draw, out: &mut dyn Write) -> io::Result<()> {
    let spread = match &tensor.values {
        Values::Given(values) => {
            return out.write_all(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
        }
        Values::Around(middle, distance) => {
            let mut draw = draw.row(0);
            let values = (0..tensor.shape[0]).map(|_| middle + distance * draw.signed_unit());
            return out.write_all(&values.flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
        }
        Values::Spread(spread) => *spread,
    };
    let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
    let row_bytes = tensor.format.row_bytes(cols).expect("a mix chooses formats whose blocks divide the row");
    let at_once = (CHUNK / row_bytes).clamp(1, rows);
    let mut buffer = vec![0; at_once * row_bytes];
    for first in (0..rows).step_by(at_once) {
        let chunk = &mut buffer[..at_once.min(rows - first) * row_bytes];
        chunk.par_chunks_exact_mut(row_bytes).enumerate().for_each(|(i, row)| {
            blocks::fill(tensor.format, spread, draw.row((first + i) as u64), row);
        });
        out.write_all(chunk)?;
    }
    Ok(())
}
