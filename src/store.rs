//! (to be written: store)
