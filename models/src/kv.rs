//! [`KvCache`]: keys and values of all sequences in fixed blocks, so that sequences can share a past.

use candle_core::{DType, Device, Tensor};
use half::f16;

use crate::config::DecoderConfig;
use crate::error::ModelError;

/// Tokens a block holds. A power of two; small enough that little is wasted at a
/// sequence's end, large enough that a block's keys of one head fill whole cache lines.
pub const BLOCK_SIZE: usize = 16;

/// A paged K/V cache in f16. Each layer has two tensors `[blocks, kv_heads, block_size, head_dim]`; how elements lie
/// within a block and head is the business of the kernels that write and read them.
pub struct KvCache {
    layers: Vec<(Tensor, Tensor)>,
    blocks: usize,
}

impl KvCache {
    /// A cache of `blocks` blocks for a model of this configuration.
    pub fn new(config: &DecoderConfig, blocks: usize, device: &Device) -> Result<Self, ModelError> {
        let shape = (blocks, config.kv_heads, BLOCK_SIZE, config.head_dim);
        let zeros = || Tensor::zeros(shape, DType::F16, device);
        let layers = (0..config.layers).map(|_| Ok((zeros()?, zeros()?))).collect::<Result<_, candle_core::Error>>()?;
        Ok(Self { layers, blocks })
    }

    /// Bytes that one block takes over all layers.
    pub fn block_bytes(config: &DecoderConfig) -> usize {
        config.layers * 2 * config.kv_heads * BLOCK_SIZE * config.head_dim * size_of::<f16>()
    }

    /// Blocks in the cache.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Tokens a block holds.
    pub fn block_size(&self) -> usize {
        BLOCK_SIZE
    }

    /// The key and value tensors of a layer.
    pub(crate) fn layer(&self, layer: usize) -> (&Tensor, &Tensor) {
        (&self.layers[layer].0, &self.layers[layer].1)
    }
}
