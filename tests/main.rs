//! The one integration binary: each module tests a part of weaklink from outside.

mod engine;
mod models;
mod support;
