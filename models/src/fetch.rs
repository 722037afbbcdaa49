//! (to be written: fetch)
