//! (to be written: text)
