//! The one integration binary: each module tests the crates or the program from outside.

mod bad_input;
mod bench;
mod engine;
mod kill;
mod models;
mod program;
mod relay;
mod show;
mod stand_in;
mod support;
