//! Driving a relay: chains side by side, each hop stored before the next begins.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::generate::{Backend, Completion, Finish, GenerateError, Prompt, Request, Sampling};
use crate::store::{FailureRow, HopRow, Store, StoreError, unix_now};

use super::format::Parsed;
use super::plan::Trial;
use super::prepare::Relay;

impl Relay {
    /// How far the run in `store` is.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn progress(&self, store: &Store) -> Result<Progress, StoreError> {
        Ok(self.unfinished(store)?.1)
    }

    /// Makes every hop that is not in `store` yet, `batch` chains at once.
    ///
    /// Each hop is stored before its message is passed on. A hop that ends without
    /// a message ends its chain and no other. `report` is called after every hop.
    /// When `stop` is ready first, the hops in flight are dropped: they were not
    /// stored, so they will be made anew, with the same draws.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn drive(
        &self,
        backend: &Backend,
        store: &Store,
        batch: usize,
        stop: impl Future<Output = ()>,
        mut report: impl FnMut(&Progress),
    ) -> Result<Ending, StoreError> {
        let (mut waiting, mut progress) = self.unfinished(store)?;
        let work_to_do = !waiting.is_empty();
        let hop_of = |chain: Chain| {
            let request = self.request(&chain);
            let backend = backend.clone();
            async move { (chain, backend.generate(request).await) }
        };
        let mut running = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        report(&progress);
        loop {
            while running.len() < batch.max(1)
                && let Some(chain) = waiting.pop_front()
            {
                running.spawn(hop_of(chain));
            }
            let joined = tokio::select! {
                biased;
                () = &mut stop => return Ok(Ending::Stopped),
                joined = running.join_next() => joined,
            };
            let Some(joined) = joined else { break };
            // Nothing aborts these tasks, so one that did not end has panicked: that is ours to show.
            let (mut chain, answer) = joined.unwrap_or_else(|error| resume_unwind(error.into_panic()));
            match answer {
                Ok(completion) => {
                    let row = self.hop_row(&chain, &completion);
                    store.add_hop(&row)?;
                    progress.add(&row);
                    chain.message = row.message;
                    chain.hop += 1;
                    if chain.hop > self.plan.hops {
                        progress.chains_done += 1;
                    } else {
                        // Before the waiting chains: a chain that goes on finds its format's prompt in the cache.
                        running.spawn(hop_of(chain));
                    }
                }
                Err(error) => {
                    let kind = kind(&error).into();
                    let (trial, hop) = (chain.key, chain.hop);
                    store.add_failure(&FailureRow { trial, hop, kind, detail: error.to_string() })?;
                    progress.failed += 1;
                    progress.hops_left -= u64::from(self.plan.hops - hop + 1);
                }
            }
            report(&progress);
        }
        if work_to_do || !store.finished()? {
            store.finish(progress.chains, progress.failed)?;
        }
        Ok(Ending::Finished { failed: progress.failed })
    }

    /// The chains that still have hops to make, each at its next hop, and what was done before.
    ///
    /// A chain that failed stays failed, because the same request fails again; only
    /// where the backend itself was at fault is the hop tried anew.
    fn unfinished(&self, store: &Store) -> Result<(VecDeque<Chain>, Progress), StoreError> {
        let mut last: HashMap<String, HopRow> = HashMap::new();
        let mut progress = Progress::new();
        for row in store.hops()? {
            progress.hops_done += 1;
            last.insert(row.trial.clone(), row); // hops come in order
        }
        let failures = store.failures()?.into_iter();
        let failed: HashMap<_, _> = failures.map(|failure| (failure.trial, failure.kind)).collect();
        let items: HashMap<_, _> =
            self.items.iter().enumerate().map(|(index, item)| (item.id.as_str(), index)).collect();
        let mut waiting = VecDeque::new();
        for trial in self.trials() {
            progress.chains += 1;
            let key = trial.key();
            let (hop, message) = match last.remove(&key) {
                Some(row) => (row.hop + 1, Some(row.message)),
                None => (1, None),
            };
            if hop > self.plan.hops {
                progress.chains_done += 1;
                continue;
            }
            if failed.get(&key).is_some_and(|kind| kind != BACKEND) {
                progress.failed += 1;
                continue;
            }
            progress.hops_left += u64::from(self.plan.hops - hop + 1);
            let item = items[trial.item.as_str()];
            let format = self.formats.iter().position(|format| format.name == trial.format);
            let format = format.expect("trials are made of the formats");
            let message = message.unwrap_or_else(|| self.items[item].brief.clone());
            waiting.push_back(Chain { key, trial, item, format, hop, message });
        }
        Ok((waiting, progress))
    }

    fn request(&self, chain: &Chain) -> Request {
        let (format, item) = (&self.formats[chain.format], &self.items[chain.item]);
        Request {
            prompt: Prompt::Messages(self.conversation(format, item, &chain.message)),
            max_tokens: self.plan.max_tokens,
            sampling: Sampling {
                temperature: self.plan.temperature as f32,
                top_k: self.plan.top_k,
                top_p: self.plan.top_p.map(|p| p as f32),
            },
            stop: Vec::new(),
            grammar: format.grammar.clone(),
            seed: chain.trial.hop_seed(chain.hop),
            logprobs: None,
        }
    }

    fn hop_row(&self, chain: &Chain, completion: &Completion) -> HopRow {
        let format = &self.formats[chain.format];
        HopRow {
            trial: chain.key.clone(),
            hop: chain.hop,
            message: completion.text.clone(),
            truncated: completion.finish == Finish::Length,
            cut_in_char: completion.cut_in_char,
            invalid: matches!(format.parse(&completion.text), Parsed::Invalid(_)),
            prompt_tokens: completion.prompt_tokens as u64,
            cached_tokens: completion.cached_tokens as u64,
            generated_tokens: completion.generated_tokens as u64,
            drafted_tokens: completion.drafted_tokens as u64,
            accepted_tokens: completion.accepted_tokens as u64,
            analysis: None,
            analysis_tokens: 0,
            unsplit: false,
            seconds: completion.seconds,
            ended: unix_now(),
            seed: chain.trial.hop_seed(chain.hop),
        }
    }
}

/// A chain on its way: the hop it is at, and the message that hop reads.
struct Chain {
    key: String,
    trial: Trial,
    /// Index into the relay's items.
    item: usize,
    /// Index into the relay's formats.
    format: usize,
    hop: u32,
    message: String,
}

/// How a drive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every chain has come to its end.
    Finished {
        /// Chains that ended without their last message.
        failed: usize,
    },
    /// It was asked to stop; the run can be resumed.
    Stopped,
}

/// How far a run is. Tokens and time are of this process alone.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Chains of the run.
    pub chains: usize,
    /// Chains with all their hops.
    pub chains_done: usize,
    /// Chains that ended without their last message.
    pub failed: usize,
    /// Hops done, in earlier sessions too.
    pub hops_done: u64,
    /// Hops still to be made.
    pub hops_left: u64,
    /// Tokens of the prompts.
    pub prompt_tokens: u64,
    /// Of these, tokens found in the cache.
    pub cached_tokens: u64,
    /// Tokens drawn.
    pub generated_tokens: u64,
    began: Instant,
    /// Hops of this process.
    made: u64,
}

impl Progress {
    fn new() -> Self {
        Self {
            chains: 0,
            chains_done: 0,
            failed: 0,
            hops_done: 0,
            hops_left: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            generated_tokens: 0,
            began: Instant::now(),
            made: 0,
        }
    }

    fn add(&mut self, hop: &HopRow) {
        self.made += 1;
        self.hops_done += 1;
        self.hops_left -= 1;
        self.prompt_tokens += hop.prompt_tokens;
        self.cached_tokens += hop.cached_tokens;
        self.generated_tokens += hop.generated_tokens;
    }

    /// Tokens drawn a second, all chains together.
    pub fn tokens_per_second(&self) -> f64 {
        self.generated_tokens as f64 / self.began.elapsed().as_secs_f64().max(1e-9)
    }

    /// Share of the prompt tokens that were found in the cache, 0 to 1.
    pub fn cached_share(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// Time left at the pace so far; `None` before the first hop.
    pub fn time_left(&self) -> Option<Duration> {
        (self.made > 0).then(|| self.began.elapsed().mul_f64(self.hops_left as f64 / self.made as f64))
    }
}

/// The outcome of a backend that was at fault itself: the hop may be tried anew.
const BACKEND: &str = "backend";

/// The name under which an outcome is counted.
fn kind(error: &GenerateError) -> &'static str {
    match error {
        GenerateError::TooLong { .. } => "too_long",
        GenerateError::Invalid { .. } => "invalid",
        GenerateError::NotANumber { .. } => "not_a_number",
        GenerateError::GrammarDeadEnd { .. } => "grammar_dead_end",
        GenerateError::GrammarTooHard { .. } => "grammar_too_hard",
        GenerateError::Backend { .. } => BACKEND,
    }
}
