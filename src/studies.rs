//! The studies: each plans its trials and drives them over [`crate::generate`].

pub mod relay;
