//! (to be written: card)
