//! (to be written: config)
