//! (to be written: gguf)
