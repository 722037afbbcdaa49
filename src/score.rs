//! (to be written: score)
