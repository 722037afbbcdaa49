//! What can go wrong between a file and a forward pass.

use crate::gguf::GgufError;
use crate::text::TextError;

/// An error of loading or running a model; one line that names the file and both sides of a mismatch.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The GGUF container is damaged or of an unsupported kind.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The tokenizer or the chat template cannot be used.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The file is readable, but what it says cannot be run.
    #[error("{file}: {what}")]
    File {
        /// The file or folder.
        file: String,
        /// What is wrong with it, and the way out.
        what: String,
    },
    /// A tensor that the configuration asks for is absent.
    #[error("{file}: no tensor {tensor}; is the file complete, and of the family that it names?")]
    Missing {
        /// The file or folder.
        file: String,
        /// The tensor, under the name that this kind of file uses.
        tensor: String,
    },
    /// A tensor does not have the shape that the configuration asks for.
    #[error("{file}: tensor {tensor} has shape {found:?}, the configuration asks for {expected:?}")]
    Shape {
        /// The file or folder.
        file: String,
        /// The tensor.
        tensor: String,
        /// Shape in the file, outermost dimension first.
        found: Vec<usize>,
        /// Shape by the configuration.
        expected: Vec<usize>,
    },
    /// A batch that the cache or the model cannot hold: a bug of the caller.
    #[error("batch: {0}")]
    Batch(String),
    /// A kernel refused its input: a bug of this crate.
    #[error(transparent)]
    Kernel(#[from] weaklink_kernels::KernelError),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}
