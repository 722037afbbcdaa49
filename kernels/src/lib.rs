//! Quantized matrix products and paged attention on plain slices.
//!
//! This crate is arithmetic only: slices in, slices out. It knows nothing of
//! files, models, tensors or threads other than the rayon pool it is called in.
