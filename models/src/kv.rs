//! (to be written: kv)
