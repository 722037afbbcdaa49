//! The engine: one thread owns decoder, cache, block pool, scheduler and all
//! sequences, so nothing is locked. Callers hold an [`EngineHandle`].
//!
//! A step is: plan ([`scheduler`]), compute one ragged batch, draw a token for each
//! sequence whose known tokens are done ([`sampler`]), answer those that ended.

pub mod block_pool;
pub mod draft;
pub mod grammar;
pub mod load;
pub mod sampler;
pub mod scheduler;
pub mod score;
pub mod sequence;
mod usage;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock};

use rayon::prelude::*;
use tokio::sync::{mpsc, oneshot};
use weaklink_models::batch::{Batch, Logits};
use weaklink_models::decoder::Decoder;
use weaklink_models::kv::{BLOCK_SIZE, KvCache};
use weaklink_models::text::{ChatMessage, Text};

use crate::generate::{Completion, Finish, GenerateError, Prompt, Request};
use block_pool::BlockPool;
use grammar::{Grammar, GrammarState, Vocabulary};
use scheduler::{Piece, Scheduler};
use sequence::{Caller, Reply, Sequence, Task};
use usage::Shared;

pub use usage::Usage;

/// Limits of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineLimits {
    /// Sequences computed at once.
    pub batch: usize,
    /// Tokens a step may hold; long prompts are computed in pieces of this.
    pub step_tokens: usize,
    /// Cache blocks, shared by all sequences.
    pub blocks: usize,
    /// Tokens that one sequence may have, prompt and answer together.
    pub context: usize,
    /// Steps of fewer rows are filled up to this with drafted tokens ([`draft`]); 0 drafts none.
    pub draft_rows: usize,
}

/// Computes a batch: a row of logits for each of its `logit_rows`.
type Forward = Box<dyn FnMut(&Batch) -> anyhow::Result<Vec<Vec<f32>>> + Send>;

/// A caller's end of the engine; clones share it. The engine ends when all are dropped.
#[derive(Clone)]
pub struct EngineHandle {
    submissions: Sender<Sequence>,
    text: Arc<Text>,
    context: usize,
    shared: Arc<Shared>,
    /// Made for the first grammar.
    vocabulary: Arc<OnceLock<Result<Vocabulary, String>>>,
}

impl EngineHandle {
    /// Starts an engine on a thread of its own.
    ///
    /// `threads` are the threads that compute; the text is the same for any number.
    pub fn start(decoder: Arc<Decoder>, text: Arc<Text>, limits: EngineLimits, threads: usize) -> anyhow::Result<Self> {
        let mut cache = KvCache::new(decoder.config(), limits.blocks, decoder.device())?;
        let forward = move |batch: &Batch| Ok(decoder.forward(batch, &mut cache)?);
        Self::spawn(Box::new(forward), text, limits, threads)
    }

    fn spawn(forward: Forward, text: Arc<Text>, limits: EngineLimits, threads: usize) -> anyhow::Result<Self> {
        let workers = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        let (submissions, mut receiver) = std::sync::mpsc::channel();
        let context = limits.context.min(limits.blocks * BLOCK_SIZE);
        let shared = Arc::new(Shared::default());
        let mut engine = Engine::new(forward, limits, text.stop_ids().to_vec(), shared.clone());
        let run = move || {
            let ended = catch_unwind(AssertUnwindSafe(|| workers.install(|| engine.run(&mut receiver))));
            // Before the sequences are dropped, and with them all that waits for them.
            let _ = engine.shared.ended.set(match &ended {
                Ok(()) => "nobody was left".into(),
                Err(panic) => panic_text(&**panic),
            });
        };
        std::thread::Builder::new().name("weaklink-engine".into()).spawn(run)?;
        Ok(Self { submissions, text, context, shared, vocabulary: Arc::default() })
    }

    /// Makes one completion. Dropping the future cancels it.
    pub async fn generate(&self, request: Request) -> Result<Completion, GenerateError> {
        self.submit(request, None).await
    }

    /// The same, with the text sent to `pieces` as it grows.
    pub async fn stream(
        &self,
        request: Request,
        pieces: mpsc::UnboundedSender<String>,
    ) -> Result<Completion, GenerateError> {
        self.submit(request, Some(pieces)).await
    }

    /// Token ids of a prompt, as the model will see them.
    pub fn prompt_ids(&self, prompt: &Prompt) -> Result<Vec<u32>, GenerateError> {
        let ids = prompt_ids(&self.text, prompt)?;
        if ids.is_empty() {
            return Err(GenerateError::Invalid {
                what: "the prompt is empty; a model needs at least one token".into(),
            });
        }
        self.check_ids(&ids)?;
        Ok(ids)
    }

    fn check_ids(&self, ids: &[u32]) -> Result<(), GenerateError> {
        let vocab = self.text.vocab_size();
        match ids.iter().find(|&&id| id as usize >= vocab) {
            Some(id) => Err(GenerateError::Invalid { what: format!("token id {id} in a vocabulary of {vocab}") }),
            None => Ok(()),
        }
    }

    /// Tokens that one sequence may have, prompt and answer together.
    pub fn context(&self) -> usize {
        self.context
    }

    /// What the engine did up to its last step.
    pub fn usage(&self) -> Usage {
        *self.shared.usage()
    }

    /// The tokenizer and template.
    pub fn text(&self) -> &Text {
        &self.text
    }

    /// A grammar made ready for this model's tokens, at its beginning.
    ///
    /// # Errors
    /// [`GenerateError::Invalid`] with what is wrong with it, and where, on one line.
    pub fn compile(&self, grammar: &Grammar) -> Result<GrammarState, GenerateError> {
        let vocabulary = self.vocabulary.get_or_init(|| Vocabulary::new(&self.text)).as_ref().map_err(Clone::clone);
        vocabulary.and_then(|vocabulary| vocabulary.compile(grammar)).map_err(|what| GenerateError::Invalid { what })
    }

    async fn submit(
        &self,
        request: Request,
        stream: Option<mpsc::UnboundedSender<String>>,
    ) -> Result<Completion, GenerateError> {
        sampler::check(&request.sampling)?;
        if request.max_tokens == 0 {
            return Err(GenerateError::Invalid { what: "a limit of 0 tokens leaves nothing to generate".into() });
        }
        if request.stop.iter().any(String::is_empty) {
            return Err(GenerateError::Invalid { what: "an empty stop string would end every text at once".into() });
        }
        let prompt = self.prompt_ids(&request.prompt)?;
        // The last token is drawn but never computed, hence the - 1.
        if prompt.len().saturating_add(request.max_tokens - 1) > self.context {
            return Err(GenerateError::TooLong {
                prompt: prompt.len(),
                max_tokens: request.max_tokens,
                context: self.context,
            });
        }
        let grammar = request.grammar.as_ref().map(|grammar| self.compile(grammar)).transpose()?;
        let Request { max_tokens, sampling, seed, stop, logprobs, .. } = request;
        let (reply, answer) = oneshot::channel();
        let task = Task { prompt, max_tokens, sampling, seed, stop, logprobs, grammar };
        let caller = Caller { reply: Reply::Completion(reply), stream };
        self.send(Sequence::new(task, caller, self.text.stream()))?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    fn send(&self, sequence: Sequence) -> Result<(), GenerateError> {
        self.submissions.send(sequence).map_err(|_| self.gone())
    }

    fn gone(&self) -> GenerateError {
        let why = self.shared.ended.get().map_or("", String::as_str);
        GenerateError::Backend { what: format!("the engine's thread has ended: {why}") }
    }
}

/// Token ids of a prompt, as a model with this tokenizer and template will see them; unchecked.
pub fn prompt_ids(text: &Text, prompt: &Prompt) -> Result<Vec<u32>, GenerateError> {
    match prompt {
        Prompt::Tokens(ids) => Ok(ids.clone()),
        Prompt::Messages(messages) => {
            let messages: Vec<ChatMessage<'_>> =
                messages.iter().map(|m| ChatMessage { role: m.role.as_str(), content: &m.content }).collect();
            text.render(&messages).map_err(|e| GenerateError::Invalid { what: e.to_string() })
        }
    }
}

/// A sequence that is taken out, and how it ended.
type Ended = (Sequence, Result<Finish, GenerateError>);

/// What the engine's thread owns.
struct Engine {
    scheduler: Scheduler,
    forward: Forward,
    stop_ids: Vec<u32>,
    shared: Arc<Shared>,
}

impl Engine {
    fn new(forward: Forward, limits: EngineLimits, stop_ids: Vec<u32>, shared: Arc<Shared>) -> Self {
        let EngineLimits { batch, step_tokens, blocks, draft_rows, .. } = limits;
        let scheduler = Scheduler::new(BlockPool::new(blocks), batch, step_tokens.max(batch), draft_rows);
        let engine = Self { scheduler, forward, stop_ids, shared };
        engine.tell(0, &[]);
        engine
    }

    /// Steps until all handles are gone and all work is done.
    fn run(&mut self, receiver: &mut Receiver<Sequence>) {
        loop {
            if self.scheduler.is_idle() {
                match receiver.recv() {
                    Ok(sequence) => self.scheduler.submit(sequence),
                    Err(_) => return,
                }
            }
            while let Ok(sequence) = receiver.try_recv() {
                self.scheduler.submit(sequence);
            }
            self.step();
        }
    }

    fn step(&mut self) {
        let pieces = self.scheduler.schedule();
        if pieces.is_empty() {
            self.tell(0, &[]);
            return;
        }
        let batch = self.batch(&pieces);
        let mut logits = match (self.forward)(&batch) {
            Ok(logits) => logits.into_iter(),
            Err(error) => {
                // The decoder refused the batch: a bug or a lost device. Nothing of it can be trusted.
                let failed = self.scheduler.drain();
                self.tell(batch.rows(), &[]);
                for sequence in failed {
                    sequence.fail(GenerateError::Backend { what: error.to_string() });
                }
                return;
            }
        };
        self.scheduler.computed(&pieces);
        let mut rows: Vec<Vec<Vec<f32>>> =
            pieces.iter().map(|piece| logits.by_ref().take(piece.logit_rows).collect()).collect();
        // Mask and draw read the whole vocabulary: at full batches that is worth all threads.
        let (running, stop_ids) = (self.scheduler.running_mut(), &self.stop_ids);
        let advanced: Vec<Result<Option<Finish>, GenerateError>> =
            running.par_iter_mut().zip(&mut rows).map(|(sequence, rows)| sequence.advance(rows, stop_ids)).collect();
        let mut ended: Vec<Ended> = Vec::new();
        // From the last, since those after a removed one move up.
        for (index, result) in advanced.into_iter().enumerate().rev() {
            if let Some(result) = result.transpose() {
                ended.push((self.scheduler.remove(index), result));
            }
        }
        self.scheduler.trim();
        // Who is answered finds the blocks free already.
        self.tell(batch.rows(), &ended);
        for (sequence, result) in ended.into_iter().rev() {
            match result {
                Ok(finish) => sequence.finish(finish, &self.stop_ids),
                Err(error) => sequence.fail(error),
            }
        }
    }

    /// The batch of a step: of each piece its known tokens, then its drafted ones.
    fn batch(&self, pieces: &[Piece]) -> Batch {
        let mut batch = Batch::default();
        let pieces = pieces.iter().zip(self.scheduler.running()).filter(|(piece, _)| piece.len > 0);
        for (piece, sequence) in pieces {
            let mut tokens = sequence.tokens[sequence.computed..sequence.computed + piece.len].to_vec();
            tokens.extend_from_slice(&sequence.draft);
            batch.push(&tokens, sequence.computed, &sequence.blocks, BLOCK_SIZE, Logits::Tail(piece.logit_rows));
        }
        batch
    }

    /// Publishes what a step of `rows` tokens left behind, and those that it ended.
    fn tell(&self, rows: usize, ended: &[Ended]) {
        let (free_blocks, blocks) = self.scheduler.free_blocks();
        let drafts = |count: fn((usize, usize)) -> usize| -> u64 {
            ended.iter().map(|(sequence, _)| count(sequence.drafts()) as u64).sum()
        };
        let mut usage = self.shared.usage();
        *usage = Usage {
            running: self.scheduler.running().len(),
            waiting: self.scheduler.waiting(),
            free_blocks,
            blocks,
            steps: usage.steps + u64::from(rows > 0),
            rows: usage.rows + rows as u64,
            drafted: usage.drafted + drafts(|(drafted, _)| drafted),
            accepted: usage.accepted + drafts(|(_, accepted)| accepted),
        };
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words").to_owned()
}

#[cfg(test)]
mod tests;
