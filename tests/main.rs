//! The one integration binary: each module tests the crates or the program from outside.

mod bad_input;
mod engine;
mod grammar;
mod kill;
mod models;
mod program;
mod relay;
mod show;
mod stand_in;
mod support;
