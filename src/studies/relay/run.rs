//! Driving a relay: chains side by side, each hop stored before the next begins.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::generate::{Backend, Completion, Finish, GenerateError, Prompt, Request, Sampling};
use crate::store::{FailureRow, HopRow, InjectionRow, Store, StoreError, unix_now};

use super::format::Parsed;
use super::inject::inject;
use super::plan::Trial;
use super::prepare::{Model, Relay};

/// What a drive works on.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// Whose chains.
    pub model: &'a Model,
    /// What answers for it.
    pub backend: &'a Backend,
    /// The first so many items of the plan.
    pub items: usize,
    /// Chains at once.
    pub batch: usize,
}

impl Relay {
    /// How far the run in `store` is, as far as its first `items` go.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn progress(&self, store: &Store, items: usize) -> Result<Progress, StoreError> {
        Ok(self.unfinished(store, items)?.1)
    }

    /// Chains of each model, in the order of the plan, that still have hops to make among the first `items`. Forks
    /// whose clean chain has no message yet are not counted.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn chains_left(&self, store: &Store, items: usize) -> Result<Vec<usize>, StoreError> {
        let (waiting, _) = self.unfinished(store, items)?;
        let of = |key: String| waiting.iter().filter(|chain| chain.trial.model == key).count();
        Ok(self.plan.models.iter().map(|model| of(model.key())).collect())
    }

    /// Makes every hop of the work's chains that is not in `store` yet.
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
        work: Work<'_>,
        store: &Store,
        stop: impl Future<Output = ()>,
        mut report: impl FnMut(&Progress),
    ) -> Result<Ending, StoreError> {
        let key = work.model.planned.key();
        let (mut waiting, mut progress) = self.unfinished(store, work.items)?;
        waiting.retain(|chain| chain.trial.model == key);
        let hop_of = |chain: Chain| {
            let request = self.request(&chain);
            let backend = work.backend.clone();
            async move { (chain, backend.generate(request).await) }
        };
        let mut running = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        report(&progress);
        loop {
            while running.len() < work.batch.max(1)
                && let Some(mut chain) = waiting.pop_front()
            {
                if chain.message_is_clean && !self.fork(&mut chain, store)? {
                    progress.skip(self.plan.hops);
                    continue;
                }
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
                    let row = self.hop_row(&chain, work.model, &completion);
                    store.add_hop(&row)?;
                    progress.add(&row);
                    if chain.hop == 1 && self.plan.inject {
                        waiting.push_front(chain.forked(&row.message));
                    }
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
                    let kind = error.kind().into();
                    let hop = chain.hop;
                    store.add_failure(&FailureRow { trial: chain.key, hop, kind, detail: error.to_string() })?;
                    progress.failed += 1;
                    progress.hops_left -= u64::from(self.plan.hops - hop + 1);
                    if hop == 1 && self.plan.inject {
                        progress.skip(self.plan.hops);
                    }
                }
            }
            report(&progress);
        }
        Ok(Ending::Finished { failed: progress.failed })
    }

    /// Notes in `store` that every chain of the first `items` has come to its end, if that is so. A chain that its
    /// backend failed has: the next session tries it anew.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub fn conclude(&self, store: &Store, items: usize) -> Result<usize, StoreError> {
        let (waiting, progress) = self.unfinished(store, items)?;
        let failed: HashSet<_> = store.failures()?.into_iter().map(|failure| failure.trial).collect();
        if waiting.iter().all(|chain| failed.contains(&chain.key)) {
            store.finish(progress.chains, failed.len())?;
        }
        Ok(failed.len())
    }

    /// Alters the message of a fork that begins, and notes it. Without an eligible fact there is nothing to follow: false.
    fn fork(&self, chain: &mut Chain, store: &Store) -> Result<bool, StoreError> {
        let (item, format) = (&self.items[chain.item], &self.formats[chain.format]);
        let injection = inject(&chain.trial, item, format.parser, &chain.message);
        let (fact, message) = injection.altered.unzip();
        store.add_injection(&InjectionRow {
            trial: chain.key.clone(),
            eligible: injection.eligible,
            facts: item.facts.len(),
            fact,
            message: message.clone(),
        })?;
        chain.message_is_clean = false;
        Ok(message.map(|message| chain.message = message).is_some())
    }

    /// The chains that still have hops to make, each at its next hop, and what was done before.
    ///
    /// A chain that failed stays failed, because the same request fails again; only
    /// where the backend itself was at fault is the hop tried anew.
    fn unfinished(&self, store: &Store, items: usize) -> Result<(VecDeque<Chain>, Progress), StoreError> {
        let mut first: HashMap<String, String> = HashMap::new();
        let mut last: HashMap<String, HopRow> = HashMap::new();
        let mut progress = Progress::new();
        for row in store.hops()? {
            progress.hops_done += 1;
            if row.hop == 1 && self.plan.inject {
                first.insert(row.trial.clone(), row.message.clone());
            }
            last.insert(row.trial.clone(), row); // hops come in order
        }
        let mut injections: HashMap<_, _> =
            store.injections()?.into_iter().map(|row| (row.trial.clone(), row)).collect();
        let failures = store.failures()?.into_iter();
        let failed: HashMap<_, _> = failures.map(|failure| (failure.trial, failure.kind)).collect();
        let within = &self.items[..items.min(self.items.len())];
        let index_of: HashMap<_, _> = within.iter().enumerate().map(|(at, item)| (item.id.as_str(), at)).collect();
        let mut waiting = VecDeque::new();
        for trial in self.trials() {
            let Some(&item) = index_of.get(trial.item.as_str()) else { continue };
            progress.chains += 1;
            let key = trial.key();
            let stuck = |key: &String| failed.get(key).is_some_and(|kind| kind != GenerateError::BACKEND);
            let begin = if trial.injected { 2 } else { 1 };
            let (hop, message) = match last.remove(&key) {
                Some(row) => (row.hop + 1, Some(row.message)),
                None => (begin, None),
            };
            if hop > self.plan.hops {
                progress.chains_done += 1;
                continue;
            }
            if stuck(&key) {
                progress.failed += 1;
                continue;
            }
            let format = self.formats.iter().position(|format| format.name == trial.format);
            let format = format.expect("trials are made of the formats");
            let chain = |hop, message, message_is_clean| Chain {
                key: key.clone(),
                trial: trial.clone(),
                item,
                format,
                hop,
                message,
                message_is_clean,
            };
            let left = u64::from(self.plan.hops - hop + 1);
            match (message, trial.fork_of()) {
                (Some(message), _) => waiting.push_back(chain(hop, message, false)),
                (None, None) => waiting.push_back(chain(hop, self.items[item].brief.clone(), false)),
                (None, Some(parent)) => match (injections.remove(&key), first.get(&parent)) {
                    (Some(InjectionRow { message: Some(message), .. }), _) => {
                        waiting.push_back(chain(hop, message, false))
                    }
                    // Nothing in it could be altered, or there is nothing that could be.
                    (Some(_), _) => {
                        progress.chains_done += 1;
                        continue;
                    }
                    (None, None) if stuck(&parent) => {
                        progress.chains_done += 1;
                        continue;
                    }
                    (None, Some(message)) => waiting.push_back(chain(hop, message.clone(), true)),
                    // Its clean chain comes first, and brings it along.
                    (None, None) => {}
                },
            }
            progress.hops_left += left;
        }
        Ok((waiting, progress))
    }

    fn request(&self, chain: &Chain) -> Request {
        let (format, item) = (&self.formats[chain.format], &self.items[chain.item]);
        let condition = chain.trial.condition;
        Request {
            prompt: Prompt::Messages(self.conversation(format, condition, item, &chain.message)),
            max_tokens: condition.token_limit(self.plan.max_tokens),
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

    fn hop_row(&self, chain: &Chain, model: &Model, completion: &Completion) -> HopRow {
        let format = &self.formats[chain.format];
        let split = chain.trial.condition.split(&completion.text);
        let cut = completion.text.len() - split.message.len();
        HopRow {
            trial: chain.key.clone(),
            hop: chain.hop,
            message: split.message.to_owned(),
            truncated: completion.finish == Finish::Length,
            cut_in_char: completion.cut_in_char,
            invalid: matches!(format.parse(split.message), Parsed::Invalid(_)),
            prompt_tokens: completion.prompt_tokens as u64,
            cached_tokens: completion.cached_tokens as u64,
            generated_tokens: completion.generated_tokens as u64,
            drafted_tokens: completion.drafted_tokens as u64,
            accepted_tokens: completion.accepted_tokens as u64,
            analysis_tokens: tokens_before(cut, model, completion) as u64,
            analysis: split.analysis.map(str::to_owned),
            unsplit: split.unsplit,
            seconds: completion.seconds,
            ended: unix_now(),
            seed: chain.trial.hop_seed(chain.hop),
        }
    }
}

/// Of the drawn tokens, those whose text lies before byte `cut` of the answer. Where the tokens themselves are not known
/// (an endpoint gives only their number), their share of the answer's bytes.
fn tokens_before(cut: usize, model: &Model, completion: &Completion) -> usize {
    if cut == 0 {
        return 0;
    }
    match &model.tokens {
        Some(tokens) if !completion.token_ids.is_empty() => {
            let ids = &completion.token_ids;
            let lengths: Vec<usize> = (0..=ids.len()).collect();
            lengths.partition_point(|&n| (tokens.decode)(&ids[..n]).len() < cut).min(ids.len())
        }
        _ => completion.generated_tokens * cut / completion.text.len().max(1),
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
    /// A fork whose message is still that of its clean chain.
    message_is_clean: bool,
}

impl Chain {
    /// The fork of this chain, which has just made its first message.
    fn forked(&self, message: &str) -> Chain {
        let trial = Trial { injected: true, ..self.trial.clone() };
        let key = trial.key();
        Chain { key, trial, hop: 2, message: message.to_owned(), message_is_clean: true, ..*self }
    }
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

    /// A fork has nothing to follow.
    fn skip(&mut self, hops: u32) {
        self.chains_done += 1;
        self.hops_left -= u64::from(hops - 1);
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
