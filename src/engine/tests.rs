//! The engine over a decoder that is made up: it keeps tokens where a real one keeps keys and
//! values, and its logits depend on every token that it reads back through the block tables.

mod drafts;
mod edges;
mod random;
mod sharing;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tokio::sync::oneshot;
use weaklink_models::batch::Batch;
use weaklink_models::gguf::Gguf;
use weaklink_models::kv::BLOCK_SIZE;
use weaklink_models::text::Text;

use super::sequence::{Caller, Reply, Sequence, Task};
use super::{Engine, EngineHandle, EngineLimits, Shared, sampler};
use crate::generate::{Completion, GenerateError, Sampling};

/// Tokens of the made-up decoder; so few that sequences repeat themselves.
const VOCAB: u32 = 24;
/// The token that ends a sequence.
const STOP: u32 = 5;
/// The token after which no logit is a number, nor at the 77th token of a sequence that has it. Never drawn.
const POISON: u32 = 23;

const HOT: Sampling = Sampling { temperature: 0.7, top_k: None, top_p: None };

type Answer = oneshot::Receiver<Result<Completion, GenerateError>>;

/// Logits after `past`: mostly those of its last two tokens, a little those of all of it.
fn logits(past: &[u32]) -> Vec<f32> {
    if past.last() == Some(&POISON) || past.len() == 77 && past.contains(&POISON) {
        return vec![f32::NAN; VOCAB as usize];
    }
    let mix = |tokens: &[u32], seed: u64| {
        tokens.iter().fold(seed, |hash, &token| {
            let hash = (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^ (hash >> 29)
        })
    };
    let unit = |hash: u64| (hash.wrapping_mul(0xd134_2543_de82_ef95) >> 40) as f32 / (1u64 << 24) as f32;
    let near = &past[past.len().saturating_sub(2)..];
    (0..VOCAB)
        .map(|id| match id {
            // Rarely, but not never.
            STOP => 27.0 + 7.0 * unit(mix(past, u64::from(id))),
            POISON => f32::NEG_INFINITY,
            _ => 40.0 * unit(mix(near, u64::from(id))) + unit(mix(past, u64::from(id))),
        })
        .collect()
}

/// What the made-up decoder does with a batch. `cache` holds (position, token) by slot.
fn forward(batch: &Batch, cache: &mut [Option<(u32, u32)>]) -> Vec<Vec<f32>> {
    for row in 0..batch.rows() {
        cache[batch.slots[row] as usize] = Some((batch.positions[row], batch.tokens[row]));
    }
    let mut found = Vec::new();
    for &row in &batch.logit_rows {
        let spans = batch.spans.iter();
        let span = spans.rev().find(|span| span.query_start <= row as usize).expect("every row has a span");
        let table = &batch.block_tables[span.table_start..span.table_start + span.table_len];
        let past: Vec<u32> = (0..=batch.positions[row as usize])
            .map(|position| {
                let slot = table[position as usize / BLOCK_SIZE] as usize * BLOCK_SIZE + position as usize % BLOCK_SIZE;
                let (at, token) = cache[slot].expect("what is read was written");
                assert_eq!(at, position, "the slot holds another place");
                token
            })
            .collect();
        found.push(logits(&past));
    }
    found
}

/// What a sequence must say: token by token from the logits of its whole past, nothing shared.
fn expected(task: &Task) -> Result<Vec<u32>, GenerateError> {
    let mut tokens = task.prompt.clone();
    for index in 0..task.max_tokens {
        let id = sampler::draw(&logits(&tokens), &task.sampling, task.seed, index)?;
        if id == STOP {
            break;
        }
        tokens.push(id);
    }
    Ok(tokens.split_off(task.prompt.len()))
}

/// Some tokenizer: the made-up decoder's tokens mean nothing.
fn text() -> Arc<Text> {
    static TEXT: OnceLock<Arc<Text>> = OnceLock::new();
    TEXT.get_or_init(|| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny-llama.gguf");
        Arc::new(Text::from_gguf(&Gguf::open(&file).expect("a golden file opens")).expect("it has a tokenizer"))
    })
    .clone()
}

fn engine(limits: EngineLimits) -> Engine {
    let mut cache = vec![None; limits.blocks * BLOCK_SIZE];
    let forward = move |batch: &Batch| Ok(forward(batch, &mut cache));
    Engine::new(Box::new(forward), limits, vec![STOP], Arc::new(Shared::default()))
}

/// An engine on a thread, whose decoder is `forward`.
fn started(
    limits: EngineLimits,
    forward: impl FnMut(&Batch) -> anyhow::Result<Vec<Vec<f32>>> + Send + 'static,
) -> EngineHandle {
    EngineHandle::spawn(Box::new(forward), text(), limits, 2).expect("the engine starts")
}

fn sequence(task: Task) -> (Sequence, Answer) {
    let (reply, answer) = oneshot::channel();
    (Sequence::new(task, Caller { reply: Reply::Completion(reply), stream: None }, text().stream()), answer)
}

impl Engine {
    /// One step, and what must hold after each.
    fn checked_step(&mut self) {
        self.step();
        self.scheduler.check();
    }
}
