//! (to be written: format)
