//! [`Weights`]: one lookup of tensors by their GGUF names, over a GGUF file or a folder of safetensors.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata};
use weaklink_kernels::{Format, QuantMatrix};

use crate::config::DecoderConfig;
use crate::error::ModelError;
use crate::gguf::Gguf;

/// Where tensors come from.
pub enum Weights<'a> {
    /// An open GGUF file.
    Gguf(&'a Gguf),
    /// An open folder.
    Folder(&'a Folder),
}

/// The bytes of one tensor and what they mean.
struct Raw<'a> {
    format: Format,
    shape: Vec<usize>,
    bytes: &'a [u8],
}

impl Weights<'_> {
    /// A matrix `[rows, cols]`, repacked for the kernels.
    pub fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<QuantMatrix, ModelError> {
        let raw = self.raw(name)?.ok_or_else(|| self.missing(name))?;
        self.expect_shape(name, &raw, &[rows, cols])?;
        let matrix = QuantMatrix::new(raw.format, rows, cols, raw.bytes)
            .map_err(|e| ModelError::File { file: self.place(), what: format!("tensor {name}: {e}") })?;
        match self {
            Weights::Gguf(gguf) => gguf.release(name),
            Weights::Folder(folder) => folder.release(name),
        }
        Ok(matrix)
    }

    /// A vector of `len` values in f32.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        self.optional_vector(name, len)?.ok_or_else(|| self.missing(name))
    }

    /// The same for a tensor that may be absent.
    pub fn optional_vector(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(raw) = self.raw(name)? else { return Ok(None) };
        self.expect_shape(name, &raw, &[len])?;
        let mut values = vec![0.0; len];
        weaklink_kernels::dequantize(raw.format, raw.bytes, &mut values)
            .map_err(|e| ModelError::File { file: self.place(), what: format!("tensor {name}: {e}") })?;
        Ok(Some(values))
    }

    /// Whether a tensor is there.
    pub fn has(&self, name: &str) -> Result<bool, ModelError> {
        Ok(self.raw(name)?.is_some())
    }

    fn raw(&self, name: &str) -> Result<Option<Raw<'_>>, ModelError> {
        match self {
            Weights::Gguf(gguf) => {
                Ok(gguf.tensor(name).map(|t| Raw { format: t.format, shape: t.shape.to_vec(), bytes: t.bytes }))
            }
            Weights::Folder(folder) => folder.raw(name),
        }
    }

    fn expect_shape(&self, name: &str, raw: &Raw<'_>, expected: &[usize]) -> Result<(), ModelError> {
        if raw.shape == expected {
            return Ok(());
        }
        Err(ModelError::Shape {
            file: self.place(),
            tensor: name.to_owned(),
            found: raw.shape.clone(),
            expected: expected.to_vec(),
        })
    }

    fn missing(&self, name: &str) -> ModelError {
        ModelError::Missing { file: self.place(), tensor: name.to_owned() }
    }

    /// The file or folder, for messages.
    fn place(&self) -> String {
        match self {
            Weights::Gguf(gguf) => gguf.path().display().to_string(),
            Weights::Folder(folder) => folder.path.display().to_string(),
        }
    }
}

/// A folder of `*.safetensors` files, mapped, with their headers read.
pub struct Folder {
    path: PathBuf,
    shards: Vec<Shard>,
}

struct Shard {
    file: PathBuf,
    map: Mmap,
    /// Where tensor data begins.
    data: usize,
    metadata: Metadata,
}

impl Folder {
    /// Maps every `*.safetensors` file of a folder and checks their headers: names
    /// are unique over all of them, ranges tile each file.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let bad = |file: &Path, what: String| ModelError::File { file: file.display().to_string(), what };
        let entries = std::fs::read_dir(path).map_err(|e| bad(path, e.to_string()))?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|file| file.extension().is_some_and(|e| e == "safetensors"))
            .collect();
        files.sort();
        if files.is_empty() {
            return Err(bad(path, "no *.safetensors file in this folder".into()));
        }
        let mut shards = Vec::with_capacity(files.len());
        let mut seen = std::collections::HashSet::new();
        for file in &files {
            let handle = File::open(file).map_err(|e| bad(file, e.to_string()))?;
            // SAFETY: the map is only read. A file that another process shortens while it
            // is mapped ends this process with SIGBUS, as with every mapped model file.
            let map = unsafe { Mmap::map(&handle) }.map_err(|e| bad(file, e.to_string()))?;
            let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| bad(file, e.to_string()))?;
            for name in metadata.offset_keys() {
                if !seen.insert(name.clone()) {
                    return Err(bad(file, format!("tensor {name} stands in two files of this folder")));
                }
            }
            // The header's length is itself 8 bytes.
            shards.push(Shard { file: file.clone(), map, data: header + size_of::<u64>(), metadata });
        }
        Ok(Self { path: path.to_owned(), shards })
    }

    /// The mapped files, in the order of their names.
    pub fn files(&self) -> Vec<PathBuf> {
        self.shards.iter().map(|shard| shard.file.clone()).collect()
    }

    /// As [`Gguf::release`].
    fn release(&self, name: &str) {
        #[cfg(unix)]
        for shard in &self.shards {
            if let Some(info) = shard.metadata.info(&hub_name(name)) {
                let (start, end) = info.data_offsets;
                crate::gguf::release(&shard.map, shard.data + start, end - start);
            }
        }
        #[cfg(not(unix))]
        let _ = name;
    }

    fn raw(&self, name: &str) -> Result<Option<Raw<'_>>, ModelError> {
        let hub = hub_name(name);
        let found = self.shards.iter().find_map(|shard| shard.metadata.info(&hub).map(|info| (shard, info)));
        let Some((shard, info)) = found else { return Ok(None) };
        let format = match info.dtype {
            Dtype::F32 => Format::F32,
            Dtype::F16 => Format::F16,
            Dtype::BF16 => Format::BF16,
            other => {
                return Err(ModelError::File {
                    file: self.path.display().to_string(),
                    what: format!("tensor {hub} is {other:?}; F32, F16 and BF16 are supported"),
                });
            }
        };
        let (start, end) = info.data_offsets;
        Ok(Some(Raw { format, shape: info.shape.clone(), bytes: &shard.map[shard.data + start..shard.data + end] }))
    }
}

/// The hub's name for a tensor that GGUF calls `name`.
fn hub_name(name: &str) -> String {
    const LAYER: [(&str, &str); 14] = [
        ("attn_norm", "input_layernorm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
        // Gemma's norm before the MLP; the decoder asks for it by this name of ours,
        // since "ffn_norm" means something else in a folder of the other families.
        ("pre_ffw_norm", "pre_feedforward_layernorm"),
    ];
    match name {
        "token_embd.weight" => "model.embed_tokens.weight".into(),
        "output_norm.weight" => "model.norm.weight".into(),
        "output.weight" => "lm_head.weight".into(),
        _ => {
            let mapped = name.strip_prefix("blk.").and_then(|rest| {
                let (layer, rest) = rest.split_once('.')?;
                let (part, kind) = rest.split_once('.')?;
                let (_, hub) = LAYER.iter().find(|(gguf, _)| *gguf == part)?;
                Some(format!("model.layers.{layer}.{hub}.{kind}"))
            });
            mapped.unwrap_or_else(|| name.to_owned())
        }
    }
}

/// The name of the norm before the MLP, which the two kinds of file do not agree on.
pub(crate) fn mlp_norm(weights: &Weights<'_>, config: &DecoderConfig) -> &'static str {
    match weights {
        Weights::Folder(_) if config.post_norms => "pre_ffw_norm",
        _ => "ffn_norm",
    }
}
