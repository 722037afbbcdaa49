//! (to be written: weights)
