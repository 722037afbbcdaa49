//! The one integration binary: each module tests the crates or the program from outside.

mod bad_input;
mod batch;
mod bench;
mod conditions;
mod engine;
mod grammar;
mod kill;
mod models;
mod program;
mod relay;
mod score;
mod show;
mod stand_in;
mod support;
