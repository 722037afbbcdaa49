//! Work in flight whose results are taken in the order in which it was begun.

use std::collections::VecDeque;
use std::panic::resume_unwind;

use tokio::task::JoinHandle;

/// A queue of running tasks. Dropping it cancels them.
pub(crate) struct InOrder<T> {
    running: VecDeque<JoinHandle<T>>,
}

impl<T: Send + 'static> InOrder<T> {
    pub(crate) fn new() -> Self {
        Self { running: VecDeque::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn begin(&mut self, task: impl Future<Output = T> + Send + 'static) {
        self.running.push_back(tokio::spawn(task));
    }

    /// The result of the oldest task; `None` when there is none. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<T> {
        let result = self.running.front_mut()?.await;
        self.running.pop_front();
        // Nothing aborts these tasks, so one that did not end has panicked: that is ours to show.
        Some(result.unwrap_or_else(|error| resume_unwind(error.into_panic())))
    }
}

impl<T> Drop for InOrder<T> {
    fn drop(&mut self) {
        self.running.iter().for_each(JoinHandle::abort);
    }
}
