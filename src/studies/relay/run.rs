//! (to be written: run)
