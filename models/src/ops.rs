//! The bridge between candle's tensors and our kernels: custom operations over
//! contiguous f32 rows. Each has its CPU half here; a device half joins it there.

use candle_core::{CpuStorage, CustomOp1, CustomOp3, Error, Layout, Result, Shape, Tensor, bail};
use candle_core::{InplaceOp1, InplaceOp2, WithDType};
use half::f16;
use weaklink_kernels::{
    self as kernels, Activations, AttentionShape, Columns, Isa, KernelError, KvSide, QuantMatrix, RopeTable, Span,
};

use crate::batch::Batch;
use crate::config::Activation;

/// One or more matrices that read the same input, side by side in one output row:
/// the input is quantized once for all of them.
pub struct Linear {
    parts: Vec<QuantMatrix>,
    /// One value an output column.
    bias: Option<Vec<f32>>,
}

impl Linear {
    /// Joins matrices of equal width. `bias` has one value for each of all their rows.
    pub fn new(parts: Vec<QuantMatrix>, bias: Option<Vec<f32>>) -> Self {
        debug_assert!(parts.windows(2).all(|w| w[0].cols() == w[1].cols()));
        Self { parts, bias }
    }

    /// Width of an output row.
    pub fn outputs(&self) -> usize {
        self.parts.iter().map(QuantMatrix::rows).sum()
    }

    /// Row `row` of the first matrix: an embedding.
    pub fn row(&self, row: usize, out: &mut [f32]) -> std::result::Result<(), KernelError> {
        self.parts[0].dequantize_row(row, out)
    }

    /// Bytes that the weights take in memory.
    pub fn memory_bytes(&self) -> usize {
        self.parts.iter().map(QuantMatrix::memory_bytes).sum()
    }

    /// `[rows, inputs]` → `[rows, outputs]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.apply_op1_no_bwd(&LinearOp(self))
    }
}

struct LinearOp<'a>(&'a Linear);

impl CustomOp1 for LinearOp<'_> {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let linear = self.0;
        let (rows, inputs) = layout.shape().dims2()?;
        if inputs != linear.parts[0].cols() {
            bail!("linear: input rows of {inputs} values for matrices of {} columns", linear.parts[0].cols());
        }
        let x = contiguous::<f32>(x, layout)?;
        let x = Activations::quantize(linear.parts[0].isa(), x, rows, inputs).map_err(Error::wrap)?;
        let stride = linear.outputs();
        let mut out = vec![0.0; rows * stride];
        let mut offset = 0;
        let parts: Vec<(&QuantMatrix, usize)> = linear
            .parts
            .iter()
            .map(|part| {
                offset += part.rows();
                (part, offset - part.rows())
            })
            .collect();
        kernels::matmul_parts(&parts, &x, &mut out, stride).map_err(Error::wrap)?;
        if let Some(bias) = &linear.bias {
            for row in out.chunks_exact_mut(stride) {
                row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
        }
        Ok((CpuStorage::F32(out), (rows, stride).into()))
    }
}

/// x / sqrt(mean(x²) + eps) · w over each row of `[rows, w.len()]`.
pub fn rms_norm(x: &Tensor, weight: &[f32], eps: f32, isa: Isa) -> Result<Tensor> {
    x.apply_op1_no_bwd(&RmsNorm { weight, eps, isa })
}

struct RmsNorm<'a> {
    weight: &'a [f32],
    eps: f32,
    isa: Isa,
}

impl CustomOp1 for RmsNorm<'_> {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = contiguous::<f32>(x, layout)?;
        let mut out = vec![0.0; x.len()];
        kernels::rms_norm(self.isa, x, self.weight, self.eps, &mut out).map_err(Error::wrap)?;
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

/// act(gate) · up for rows that hold gate and up side by side: `[rows, 2n]` → `[rows, n]`.
pub fn gated(x: &Tensor, activation: Activation, isa: Isa) -> Result<Tensor> {
    x.apply_op1_no_bwd(&Gated { activation, isa })
}

struct Gated {
    activation: Activation,
    isa: Isa,
}

impl CustomOp1 for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = layout.shape().dims2()?;
        let data = contiguous::<f32>(x, layout)?;
        let half = |offset| Columns { data, stride: width, offset, width: width / 2 };
        let (gate, up) = (half(0), half(width / 2));
        let mut out = vec![0.0; rows * (width / 2)];
        match self.activation {
            Activation::Silu => kernels::silu_mul(self.isa, gate, up, &mut out),
            Activation::GeluTanh => kernels::gelu_tanh_mul(self.isa, gate, up, &mut out),
        }
        .map_err(Error::wrap)?;
        Ok((CpuStorage::F32(out), (rows, width / 2).into()))
    }
}

/// Where queries, keys and values stand in a fused row, and how attention reads them.
#[derive(Clone, Copy)]
pub struct AttentionGeometry {
    /// Query heads, key/value heads, head width, block size, score scale, window.
    pub shape: AttentionShape,
    /// Rotary pairing.
    pub interleaved: bool,
    /// Epsilon of the per-head norms.
    pub eps: f32,
    /// Which instructions compute it.
    pub isa: Isa,
}

impl AttentionGeometry {
    fn queries(&self) -> usize {
        self.shape.heads * self.shape.head_dim
    }

    fn keys(&self) -> usize {
        self.shape.kv_heads * self.shape.head_dim
    }

    /// Width of a fused row.
    fn width(&self) -> usize {
        self.queries() + 2 * self.keys()
    }
}

/// Normalises (where weights are given) and rotates queries and keys of fused rows, in place.
pub fn rotate(qkv: &Tensor, g: AttentionGeometry, norms: Option<(&[f32], &[f32])>, rope: &RopeTable) -> Result<()> {
    qkv.inplace_op1(&Rotate { g, norms, rope })
}

struct Rotate<'a> {
    g: AttentionGeometry,
    norms: Option<(&'a [f32], &'a [f32])>,
    rope: &'a RopeTable,
}

impl InplaceOp1 for Rotate<'_> {
    fn name(&self) -> &'static str {
        "rotate"
    }

    fn cpu_fwd(&self, qkv: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let g = &self.g;
        let AttentionShape { heads, kv_heads, head_dim, .. } = g.shape;
        let (_, width) = layout.shape().dims2()?;
        let qkv = contiguous_mut(qkv, layout)?;
        if let Some((q_norm, k_norm)) = self.norms {
            kernels::rms_norm_heads(g.isa, qkv, width, 0, heads, q_norm, g.eps).map_err(Error::wrap)?;
            kernels::rms_norm_heads(g.isa, qkv, width, g.queries(), kv_heads, k_norm, g.eps).map_err(Error::wrap)?;
        }
        kernels::rope(qkv, width, 0, heads + kv_heads, head_dim, self.rope, g.interleaved).map_err(Error::wrap)
    }
}

/// Writes the keys or values of fused rows to their slots in a layer's cache.
pub fn write_kv(cache: &Tensor, qkv: &Tensor, g: AttentionGeometry, side: KvSide, slots: &[u32]) -> Result<()> {
    let offset = g.queries() + if side == KvSide::Values { g.keys() } else { 0 };
    cache.inplace_op2(qkv, &WriteKv { g, side, offset, slots })
}

struct WriteKv<'a> {
    g: AttentionGeometry,
    side: KvSide,
    offset: usize,
    slots: &'a [u32],
}

impl InplaceOp2 for WriteKv<'_> {
    fn name(&self) -> &'static str {
        "write-kv"
    }

    fn cpu_fwd(&self, cache: &mut CpuStorage, cache_layout: &Layout, qkv: &CpuStorage, layout: &Layout) -> Result<()> {
        let (CpuStorage::F16(cache), true) = (cache, cache_layout.is_contiguous()) else {
            bail!("write-kv: the cache is not a contiguous f16 tensor");
        };
        let qkv = contiguous::<f32>(qkv, layout)?;
        kernels::write_kv(&self.g.shape, self.side, cache, qkv, self.g.width(), self.offset, self.slots)
            .map_err(Error::wrap)
    }
}

/// Attention of the queries in fused rows over the cache: → `[rows, heads · head_dim]`.
pub fn attention(qkv: &Tensor, keys: &Tensor, values: &Tensor, g: AttentionGeometry, batch: &Batch) -> Result<Tensor> {
    qkv.apply_op3_no_bwd(keys, values, &Attention { g, batch })
}

struct Attention<'a> {
    g: AttentionGeometry,
    batch: &'a Batch,
}

impl CustomOp3 for Attention<'_> {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        qkv: &CpuStorage,
        layout: &Layout,
        keys: &CpuStorage,
        keys_layout: &Layout,
        values: &CpuStorage,
        values_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, _) = layout.shape().dims2()?;
        let (g, batch) = (&self.g, self.batch);
        let qkv = contiguous::<f32>(qkv, layout)?;
        let keys = contiguous::<f16>(keys, keys_layout)?;
        let values = contiguous::<f16>(values, values_layout)?;
        let spans: Vec<Span<'_>> = batch
            .spans
            .iter()
            .map(|s| Span {
                query_start: s.query_start,
                query_len: s.query_len,
                context_len: s.context_len,
                blocks: &batch.block_tables[s.table_start..s.table_start + s.table_len],
            })
            .collect();
        let mut out = vec![0.0; rows * g.queries()];
        kernels::attention(g.isa, &g.shape, qkv, g.width(), 0, keys, values, &spans, &mut out).map_err(Error::wrap)?;
        Ok((CpuStorage::F32(out), (rows, g.queries()).into()))
    }
}

fn contiguous<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<T>()?[start..end]),
        None => bail!("a tensor of shape {:?} is not contiguous", layout.shape()),
    }
}

fn contiguous_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(data), Some((start, end))) => Ok(&mut data[start..end]),
        _ => bail!("a tensor of shape {:?} is not contiguous f32", layout.shape()),
    }
}
