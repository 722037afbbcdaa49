//! The one integration binary: each module tests the crate or the program from outside.

mod bad_input;
mod kill;
mod relay;
mod show;
mod support;
