//! (to be written: decoder)
