//! (to be written: engine)

use crate::generate::{Completion, GenerateError, Request};

/// A caller's end of the engine.
#[derive(Clone)]
pub struct EngineHandle;

impl EngineHandle {
    /// Makes one completion.
    pub async fn generate(&self, _request: Request) -> Result<Completion, GenerateError> {
        Err(GenerateError::Backend { what: "no engine".into() })
    }
}
