//! The engine: one thread owns decoder, cache, block pool, scheduler and all
//! sequences, so nothing is locked. Callers hold an [`EngineHandle`].
//!
//! A step is: plan ([`scheduler`]), compute one ragged batch, draw a token for each
//! sequence whose known tokens are done ([`sampler`]), answer those that ended.

pub mod block_pool;
pub mod grammar;
pub mod load;
pub mod sampler;
pub mod scheduler;
pub mod score;
pub mod sequence;

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock};

use rayon::prelude::*;
use tokio::sync::{mpsc, oneshot};
use weaklink_models::batch::{Batch, Logits};
use weaklink_models::decoder::Decoder;
use weaklink_models::kv::{BLOCK_SIZE, KvCache};
use weaklink_models::text::{ChatMessage, Text};

use crate::generate::{Completion, GenerateError, Prompt, Request};
use block_pool::BlockPool;
use grammar::{Grammar, GrammarState, Vocabulary};
use scheduler::{Piece, Scheduler};
use sequence::{Caller, Sequence, Task};

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
}

/// A caller's end of the engine; clones share it. The engine ends when all are dropped.
#[derive(Clone)]
pub struct EngineHandle {
    submissions: Sender<Sequence>,
    text: Arc<Text>,
    context: usize,
    /// Made for the first grammar.
    vocabulary: Arc<OnceLock<Result<Vocabulary, String>>>,
}

impl EngineHandle {
    /// Starts an engine on a thread of its own.
    ///
    /// `threads` are the threads that compute; the text is the same for any number.
    pub fn start(decoder: Arc<Decoder>, text: Arc<Text>, limits: EngineLimits, threads: usize) -> anyhow::Result<Self> {
        let cache = KvCache::new(decoder.config(), limits.blocks, decoder.device())?;
        let workers = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        let pool = BlockPool::new(limits.blocks);
        let budget = limits.step_tokens.max(limits.batch);
        let (submissions, receiver) = std::sync::mpsc::channel();
        let context = limits.context.min(limits.blocks * BLOCK_SIZE);
        let mut engine = Engine {
            scheduler: Scheduler::new(pool, limits.batch, budget),
            receiver,
            decoder,
            cache,
            stop_ids: text.stop_ids().to_vec(),
        };
        std::thread::Builder::new().name("weaklink-engine".into()).spawn(move || workers.install(|| engine.run()))?;
        Ok(Self { submissions, text, context, vocabulary: Arc::default() })
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
        let ids = match prompt {
            Prompt::Tokens(ids) => ids.clone(),
            Prompt::Messages(messages) => {
                let messages: Vec<ChatMessage<'_>> =
                    messages.iter().map(|m| ChatMessage { role: m.role.as_str(), content: &m.content }).collect();
                self.text.render(&messages).map_err(|e| GenerateError::Invalid { what: e.to_string() })?
            }
        };
        if ids.is_empty() {
            return Err(GenerateError::Invalid {
                what: "the prompt is empty; a model needs at least one token".into(),
            });
        }
        let vocab = self.text.vocab_size();
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
            return Err(GenerateError::Invalid { what: format!("token id {id} in a vocabulary of {vocab}") });
        }
        Ok(ids)
    }

    /// Tokens that one sequence may have, prompt and answer together.
    pub fn context(&self) -> usize {
        self.context
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
        let Request { max_tokens, sampling, seed, stop, .. } = request;
        let (reply, answer) = oneshot::channel();
        let task = Task { prompt, max_tokens, sampling, seed, stop, grammar };
        let gone = || GenerateError::Backend { what: "the engine's thread has ended".into() };
        self.submissions.send(Sequence::new(task, Caller { reply, stream }, self.text.stream())).map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// What the engine's thread owns.
struct Engine {
    receiver: Receiver<Sequence>,
    scheduler: Scheduler,
    decoder: Arc<Decoder>,
    cache: KvCache,
    stop_ids: Vec<u32>,
}

impl Engine {
    /// Steps until all handles are gone and all work is done.
    fn run(&mut self) {
        loop {
            if self.scheduler.is_idle() {
                match self.receiver.recv() {
                    Ok(sequence) => self.scheduler.submit(sequence),
                    Err(_) => return,
                }
            }
            while let Ok(sequence) = self.receiver.try_recv() {
                self.scheduler.submit(sequence);
            }
            self.step();
        }
    }

    fn step(&mut self) {
        let pieces = self.scheduler.schedule();
        if pieces.is_empty() {
            return;
        }
        let mut logits = match self.compute(&pieces) {
            Ok(logits) => logits,
            Err(error) => {
                // The decoder refused the batch: a bug or a lost device. Nothing of it can be trusted.
                for sequence in self.scheduler.drain() {
                    sequence.fail(GenerateError::Backend { what: error.to_string() });
                }
                return;
            }
        };
        let completed: Vec<Piece> = pieces.iter().copied().filter(|piece| piece.completes).collect();
        pieces.into_iter().for_each(|piece| self.scheduler.computed(piece));
        // Mask and draw read the whole vocabulary: at full batches that is worth all threads.
        self.scheduler.prepare_masks();
        let scheduler = &self.scheduler;
        let draw = |(piece, row): (&Piece, &mut Vec<f32>)| {
            let sequence = scheduler.running(piece.index);
            sequence.mask(row)?;
            sequence.draw(row)
        };
        let drawn: Vec<Result<u32, GenerateError>> = completed.par_iter().zip(&mut logits).map(draw).collect();
        // From the last, since those after a removed one move up.
        for (piece, drawn) in completed.into_iter().zip(drawn).rev() {
            let sequence = self.scheduler.running_mut(piece.index);
            match drawn.map(|id| sequence.push(id, &self.stop_ids)) {
                Ok(None) => {}
                Ok(Some(finish)) => self.scheduler.remove(piece.index).finish(finish, &self.stop_ids),
                Err(error) => self.scheduler.remove(piece.index).fail(error),
            }
        }
    }

    /// Runs the batch of a step; one row of logits for every piece that completes.
    fn compute(&mut self, pieces: &[Piece]) -> anyhow::Result<Vec<Vec<f32>>> {
        let mut batch = Batch::default();
        for piece in pieces {
            let sequence = self.scheduler.running(piece.index);
            let tokens = &sequence.tokens[sequence.computed..sequence.computed + piece.len];
            let logits = if piece.completes { Logits::Last } else { Logits::None };
            batch.push(tokens, sequence.computed, &sequence.blocks, BLOCK_SIZE, logits);
        }
        Ok(self.decoder.forward(&batch, &mut self.cache)?)
    }
}
