//! A model that was named for a relay: found and checked, not yet in memory.

use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::anyhow;
use weaklink_models::card::CardKind;

use super::WorkArgs;
use crate::cli::output::tell;
use crate::cli::{ComputeArgs, ModelArgs, model};
use crate::engine::load::{LoadOptions, OpenModel};
use crate::engine::prompt_ids;
use crate::generate::{Backend, Message, Prompt};
use crate::studies::relay::plan::PlannedModel;
use crate::studies::relay::prepare::{Model, Tokens};

/// Chains at once where memory allows: more gain little on the cores of one machine.
const BATCH: usize = 16;

/// See the module.
pub(crate) struct Candidate {
    /// What is known of it.
    pub model: Model,
    /// Tokens of the longest sequence that the relay may ask of it; 0 until it is known.
    pub expected: usize,
    source: OpenModel,
    threads: usize,
    /// Its memory plan is told of.
    telling: bool,
}

impl Candidate {
    /// Finds the model `name` and opens it.
    pub fn open(name: &str, compute: &ComputeArgs) -> anyhow::Result<Self> {
        let args = ModelArgs { model: name.into(), compute: compute.clone() };
        let no_chat = |name: &str| {
            anyhow!(
                "{name} has no chat template, and a relay is a chat: choose a model that `weaklink models` calls chat"
            )
        };
        if model::kind(&args) == Some(CardKind::Base) {
            return Err(no_chat(name));
        }
        let threads = model::threads(compute)?;
        let open = model::open(&args)?;
        if !open.text.has_template() {
            return Err(no_chat(&open.name));
        }
        let text = Arc::clone(&open.text);
        let count = {
            let text = Arc::clone(&text);
            move |messages: &[Message]| Ok(prompt_ids(&text, &Prompt::Messages(messages.to_vec()))?.len())
        };
        let tokens = Tokens {
            context: open.context(&options(1, threads, 0)),
            count: Box::new(count),
            decode: Box::new(move |ids| text.decode(ids)),
        };
        let planned = PlannedModel::Local {
            identity: open.identity()?,
            device: "cpu".into(),
            isa: weaklink_kernels::Isa::detect().name().into(),
        };
        let model = Model { planned, shots: u8::from(open.shots > 0), tokens: Some(tokens) };
        let telling = compute.verbose > 0 || std::io::stderr().is_terminal();
        Ok(Self { model, expected: 0, source: open, threads, telling })
    }

    /// How many of `chains` run at once: as many as asked for, or as memory has room for.
    ///
    /// # Errors
    /// When not even one fits, or not as many as asked for.
    pub fn batch(&self, chains: usize, work: &WorkArgs) -> anyhow::Result<usize> {
        let mut batch = work.batch.unwrap_or(BATCH).min(chains).max(1);
        let fits = |batch| self.source.plan_memory(&options(batch, self.threads, self.expected));
        while work.batch.is_none() && batch > 1 && fits(batch).is_err() {
            batch /= 2;
        }
        fits(batch)?;
        Ok(batch)
    }

    /// Loads the model and starts its engine, for `batch` chains at once.
    pub fn start(&self, batch: usize) -> anyhow::Result<Backend> {
        let options = options(batch, self.threads, self.expected);
        if self.telling {
            tell(&format!("weaklink: {}", self.source.plan_memory(&options)?));
        }
        Ok(Backend::Local(self.source.start(&options)?.handle))
    }
}

fn options(batch: usize, threads: usize, expected: usize) -> LoadOptions {
    LoadOptions { batch, threads, context: None, expected: Some(expected) }
}
