//! (to be written: batch)
