//! Scoring without a judge.

pub mod text;
