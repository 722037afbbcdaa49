//! [`Decoder`]: the one forward pass of all families, over one ragged [`Batch`].

use candle_core::{Device, Tensor};
use weaklink_kernels::{AttentionShape, Isa, KvSide, RopeTable};

use crate::batch::Batch;
use crate::config::{DecoderConfig, RopeScaling};
use crate::error::ModelError;
use crate::kv::{BLOCK_SIZE, KvCache};
use crate::ops::{self, AttentionGeometry, Linear};
use crate::weights::{Weights, mlp_norm};

/// Gates and ups of a piece of the MLP's rows; a third-level cache holds as much.
const MLP_BYTES: usize = 8 << 20;

/// Lets the C library keep the memory of a step's tensors for the next step. glibc hands blocks above a threshold back
/// to the kernel when they are freed, and every page of the next one is then faulted in and cleared anew: a sixth of
/// the time of a prefill. Freeing one such block moves the threshold up to its size, 32 MiB at most (mallopt(3)).
fn keep_freed_memory() {
    drop(std::hint::black_box(vec![0u8; 31 << 20]));
}

/// Configuration and weights of a decoder; immutable, so that one copy serves every sequence.
pub struct Decoder {
    config: DecoderConfig,
    /// One row a token; the head too where the file has no other.
    embedding: Linear,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    head: Option<Linear>,
    isa: Isa,
    device: Device,
}

struct Layer {
    attention_norm: Vec<f32>,
    qkv: Linear,
    /// Per-head norms of queries and keys.
    qk_norms: Option<(Vec<f32>, Vec<f32>)>,
    output: Linear,
    post_attention_norm: Option<Vec<f32>>,
    mlp_norm: Vec<f32>,
    gate_up: Linear,
    down: Linear,
    post_mlp_norm: Option<Vec<f32>>,
}

impl Decoder {
    /// Reads and repacks the weights of a model for the CPU.
    pub fn load(mut config: DecoderConfig, weights: &Weights<'_>) -> Result<Self, ModelError> {
        let c = &config;
        let (queries, keys) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let embedding = Linear::new(vec![weights.matrix("token_embd.weight", c.vocab, c.hidden)?], None);
        let head = match weights.has("output.weight")? {
            true => Some(Linear::new(vec![weights.matrix("output.weight", c.vocab, c.hidden)?], None)),
            false => None,
        };
        let norm = |name: &str, len: usize| -> Result<Vec<f32>, ModelError> {
            let mut values = weights.vector(name, len)?;
            values.iter_mut().for_each(|w| *w += c.norm_offset);
            Ok(values)
        };
        let mut layers = Vec::with_capacity(c.layers);
        for layer in 0..c.layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let matrix = |part: &str, rows, cols| weights.matrix(&name(part), rows, cols);
            let post = |part: &str| c.post_norms.then(|| norm(&name(part), c.hidden)).transpose();
            let qkv_parts = [("attn_q", queries), ("attn_k", keys), ("attn_v", keys)];
            let bias_of = |parts: &[(&str, usize)]| -> Result<Option<Vec<f32>>, ModelError> {
                let mut joined = Vec::new();
                let mut any = false;
                for &(part, len) in parts {
                    let bias = weights.optional_vector(&format!("blk.{layer}.{part}.bias"), len)?;
                    any |= bias.is_some();
                    joined.extend(bias.unwrap_or_else(|| vec![0.0; len]));
                }
                Ok(any.then_some(joined))
            };
            let qkv = qkv_parts.iter().map(|&(part, rows)| matrix(part, rows, c.hidden)).collect::<Result<_, _>>()?;
            layers.push(Layer {
                attention_norm: norm(&name("attn_norm"), c.hidden)?,
                qkv: Linear::new(qkv, bias_of(&qkv_parts)?),
                qk_norms: match c.qk_norm {
                    true => Some((norm(&name("attn_q_norm"), c.head_dim)?, norm(&name("attn_k_norm"), c.head_dim)?)),
                    false => None,
                },
                output: Linear::new(
                    vec![matrix("attn_output", c.hidden, queries)?],
                    bias_of(&[("attn_output", c.hidden)])?,
                ),
                post_attention_norm: post("post_attention_norm")?,
                mlp_norm: norm(&name(mlp_norm(weights, c)), c.hidden)?,
                gate_up: Linear::new(
                    vec![matrix("ffn_gate", c.ffn, c.hidden)?, matrix("ffn_up", c.ffn, c.hidden)?],
                    None,
                ),
                down: Linear::new(vec![matrix("ffn_down", c.hidden, c.ffn)?], None),
                post_mlp_norm: post("post_ffw_norm")?,
            });
        }
        let final_norm = norm("output_norm.weight", c.hidden)?;
        keep_freed_memory();
        if let Some(factors) = weights.optional_vector("rope_freqs.weight", c.head_dim / 2)? {
            config.rope_scaling = RopeScaling::Factors(factors);
        }
        Ok(Self { config, embedding, layers, norm: final_norm, head, isa: Isa::detect(), device: Device::Cpu })
    }

    /// The configuration.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// The instructions that compute it.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Where it computes.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes that the weights take in memory.
    pub fn memory_bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(|l| [&l.qkv, &l.output, &l.gate_up, &l.down]);
        layers.chain([&self.embedding]).chain(&self.head).map(Linear::memory_bytes).sum()
    }

    /// Computes one batch: writes its K/V to the cache and returns the wanted logits,
    /// a row of `vocab` values for each of `batch.logit_rows`.
    ///
    /// A row's logits have the same bits whatever else is in the batch, and however
    /// its sequence was cut into steps: every operation works a row at a time in a
    /// fixed order, and attention reads this step's K/V back from the cache.
    pub fn forward(&self, batch: &Batch, cache: &mut KvCache) -> Result<Vec<Vec<f32>>, ModelError> {
        let c = &self.config;
        batch.check(c.vocab, cache)?;
        let global = RopeTable::new(&batch.positions, &c.frequencies(false));
        let local = c.window.map(|_| RopeTable::new(&batch.positions, &c.frequencies(true)));
        let norm = |x: &Tensor, weight: &[f32]| ops::rms_norm(x, weight, c.norm_eps, self.isa);
        let maybe_norm = |x: Tensor, weight: &Option<Vec<f32>>| match weight {
            Some(weight) => norm(&x, weight),
            None => Ok(x),
        };
        let mut x = self.embed(&batch.tokens)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let window = c.window_of(index);
            let rope = if window.is_some() { local.as_ref().unwrap_or(&global) } else { &global };
            let geometry = self.geometry(window);
            let (keys, values) = cache.layer(index);

            let qkv = layer.qkv.forward(&norm(&x, &layer.attention_norm)?)?;
            let norms = layer.qk_norms.as_ref().map(|(q, k)| (&q[..], &k[..]));
            ops::rotate(&qkv, geometry, norms, rope)?;
            ops::write_kv(keys, &qkv, geometry, KvSide::Keys, &batch.slots)?;
            ops::write_kv(values, &qkv, geometry, KvSide::Values, &batch.slots)?;
            let attended = ops::attention(&qkv, keys, values, geometry, batch)?;
            x = (x + maybe_norm(layer.output.forward(&attended)?, &layer.post_attention_norm)?)?;

            let mlp = self.mlp(layer, &norm(&x, &layer.mlp_norm)?)?;
            x = (x + maybe_norm(mlp, &layer.post_mlp_norm)?)?;
        }
        if batch.logit_rows.is_empty() {
            return Ok(Vec::new());
        }
        let rows = Tensor::new(batch.logit_rows.as_slice(), &self.device)?;
        let wanted = norm(&x.index_select(&rows, 0)?, &self.norm)?;
        Ok(self.head.as_ref().unwrap_or(&self.embedding).forward(&wanted)?.to_vec2()?)
    }

    /// down(act(gate(x)) · up(x)), so many rows at a time that what lies between stays in the processor's caches.
    fn mlp(&self, layer: &Layer, x: &Tensor) -> Result<Tensor, ModelError> {
        let of = |x: &Tensor| -> candle_core::Result<Tensor> {
            let gate_up = layer.gate_up.forward(x)?;
            layer.down.forward(&ops::gated(&gate_up, self.config.activation, self.isa)?)
        };
        let (all, row_bytes) = (x.dim(0)?, 2 * self.config.ffn * size_of::<f32>());
        let rows = (MLP_BYTES / row_bytes.max(1)).max(64).next_multiple_of(64);
        if all <= rows {
            return Ok(of(x)?);
        }
        let pieces = (0..all).step_by(rows).map(|start| of(&x.narrow(0, start, rows.min(all - start))?));
        Ok(Tensor::cat(&pieces.collect::<candle_core::Result<Vec<_>>>()?, 0)?)
    }

    fn geometry(&self, window: Option<usize>) -> AttentionGeometry {
        let c = &self.config;
        AttentionGeometry {
            shape: AttentionShape {
                heads: c.heads,
                kv_heads: c.kv_heads,
                head_dim: c.head_dim,
                block_size: BLOCK_SIZE,
                scale: c.attention_scale,
                window,
            },
            interleaved: c.rope_interleaved,
            eps: c.norm_eps,
            isa: self.isa,
        }
    }

    /// `[tokens, hidden]`, scaled as the family wants it.
    fn embed(&self, tokens: &[u32]) -> Result<Tensor, ModelError> {
        let hidden = self.config.hidden;
        let mut rows = vec![0.0; tokens.len() * hidden];
        for (row, &id) in rows.chunks_exact_mut(hidden).zip(tokens) {
            self.embedding.row(id as usize, row)?;
            row.iter_mut().for_each(|v| *v *= self.config.embedding_scale);
        }
        Ok(Tensor::from_vec(rows, (tokens.len(), hidden), &self.device)?)
    }
}
