//! Quantized matrix products and paged attention on plain slices.
//!
//! This crate is arithmetic only: slices in, slices out. It knows nothing of
//! files, models, tensors or threads other than the rayon pool it is called in.
//!
//! Three rules hold for every operation. *Batch invariance*: a row's result has the
//! same bits alone, in any batch and for any thread count; bits may differ between
//! instruction sets, so record [`Isa::name`]. *Nothing wrong is finite*: NaN or
//! infinity going in never comes out as a plausible number. *Shapes are checked*:
//! a mismatch is a [`KernelError`], not a panic.

mod attention;
mod error;
mod format;
mod gemm;
mod isa;
mod math;
mod matrix;
mod output;
pub mod probe;
mod vector;

pub use attention::{AttentionShape, KvSide, Span, attention, write_kv};
pub use error::KernelError;
pub use format::{Format, dequantize, quantize};
pub use gemm::{Activations, matmul, matmul_parts};
pub use isa::Isa;
pub use matrix::QuantMatrix;
pub use vector::{Columns, RopeTable, gelu_tanh_mul, rms_norm, rms_norm_heads, rope, silu_mul};
