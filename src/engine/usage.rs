//! What the engine's thread tells its callers: [`Usage`], and why it ended.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// What an engine is doing, and what it has done since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sequences that are being computed.
    pub running: usize,
    /// Sequences that wait for a place.
    pub waiting: usize,
    /// Cache blocks that no sequence uses; some hold a past that can be found again.
    pub free_blocks: usize,
    /// Cache blocks in all.
    pub blocks: usize,
    /// Steps made.
    pub steps: u64,
    /// Tokens computed in them.
    pub rows: u64,
    /// Tokens guessed ahead, for sequences that have ended.
    pub drafted: u64,
    /// Of these, tokens that were then drawn.
    pub accepted: u64,
}

/// What the engine's thread tells all callers.
#[derive(Default)]
pub(super) struct Shared {
    usage: Mutex<Usage>,
    /// Why the thread has ended, if it has.
    pub(super) ended: OnceLock<String>,
}

impl Shared {
    pub(super) fn usage(&self) -> MutexGuard<'_, Usage> {
        // Nothing panics while it is held, and numbers cannot be half written.
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
