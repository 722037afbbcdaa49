//! Study 1, the multi-hop relay: twelve facts passed on hop after hop.

pub mod condition;
pub mod corpus;
pub mod format;
pub mod inject;
pub mod plan;
pub mod prepare;
pub mod run;
mod settings;
pub mod table;
