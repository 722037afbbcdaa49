//! (to be written: ops)
