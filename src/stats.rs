//! (to be written: stats)
