//! (to be written: table)
