//! (to be written: corpus)
