//! Statistics.

pub mod draw;
