//! Study 1, the multi-hop relay: twelve facts passed on hop after hop.

pub mod corpus;
pub mod format;
pub mod plan;
pub mod prepare;
pub mod run;
pub mod table;
