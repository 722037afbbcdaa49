//! (to be written: plan)
