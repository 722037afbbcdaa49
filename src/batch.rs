//! Files of requests in the OpenAI Batch format, through the engine.
//!
//! The input is read twice, a line at a time: once to refuse what is malformed before any work, once to do it.
//! Results are appended to the output as they finish. A result's `id` holds a hash of its request and one of all
//! that shapes the answers (weights, template, instructions, program), so the output alone tells what is done, and
//! whether it was done for the same requests and by the same model.

pub mod input;
pub mod output;
pub mod request;
pub mod result;

use std::panic::resume_unwind;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::engine::EngineHandle;
use crate::engine::load::LoadedModel;
use crate::generate::{Completion, GenerateError, Prompt};
use crate::hash::sha256_hex;
use input::Input;
use output::Output;
use request::{Asked, Refusal};
use result::Maker;

/// What a run did, in numbers. Tokens and time are of this process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Requests answered by this process, refusals among them.
    pub requests: usize,
    /// Requests that the output held already.
    pub skipped: usize,
    /// Results in the output that are errors, those of earlier processes among them.
    pub failed: usize,
    /// From the first request to the last result.
    pub seconds: f64,
    /// Tokens of the prompts.
    pub prompt_tokens: usize,
    /// Of these, tokens found in the cache.
    pub cached_tokens: usize,
    /// Tokens drawn.
    pub generated_tokens: usize,
    /// Tokens drawn a second.
    pub generated_tps: f64,
}

impl Summary {
    fn add(&mut self, completion: &Completion) {
        self.prompt_tokens += completion.prompt_tokens;
        self.cached_tokens += completion.cached_tokens;
        self.generated_tokens += completion.generated_tokens;
    }
}

/// What shapes the answers besides the requests: 16 hex digits. The model's name is left out, since the same
/// file may be called by several.
pub fn fingerprint(model: &LoadedModel) -> String {
    let id = &model.identity;
    let code = concat!("weaklink ", env!("CARGO_PKG_VERSION"), " batch 1");
    let parts = (code, &id.sha256, &id.family, &id.template, id.folds_system, &model.isa, model.handle.context());
    let text = serde_json::to_string(&parts).expect("text, numbers and truth values have a JSON form");
    sha256_hex(text.as_bytes())[..16].to_owned()
}

/// Answers every request of `input` that `output` does not hold, with up to `in_flight` of them at the engine.
///
/// An answer does not depend on the order of the requests, nor on which were answered before. `report` is called
/// after every group of results. Where the engine itself fails, the run ends and can be gone on with; every other
/// failure is the result of its request.
///
/// # Errors
/// When the input cannot be read or has changed meanwhile, the output cannot be written, or the engine fails.
pub async fn run(
    input: &Input,
    output: &mut Output,
    model: &LoadedModel,
    in_flight: usize,
    mut report: impl FnMut(&Summary),
) -> anyhow::Result<Summary> {
    let maker = Maker { fingerprint: fingerprint(model), model: model.identity.name.clone() };
    output.check_model(&maker.fingerprint)?;
    let mut summary = Summary { skipped: output.done(), failed: output.failed(), ..Summary::default() };
    let begun = Instant::now();
    let mut lines = input.lines()?;
    let mut running = JoinSet::new();
    let mut more = true;
    loop {
        while more && running.len() < in_flight.max(1) {
            match lines.next().transpose()? {
                Some(line) if output.holds(&line.custom_id) => {}
                Some(line) => {
                    let engine = model.handle.clone();
                    running.spawn(async move {
                        let answer = answer(&engine, &line).await;
                        (line, answer)
                    });
                }
                None => more = false,
            }
        }
        let Some(joined) = running.join_next().await else { break };
        let mut group = vec![joined];
        group.extend(std::iter::from_fn(|| running.try_join_next()));
        let mut text = String::new();
        for joined in group {
            // Nothing aborts these tasks, so one that did not end has panicked: that is ours to show.
            let (line, answer) = joined.unwrap_or_else(|error| resume_unwind(error.into_panic()));
            let answer = answer.with_context(|| {
                format!("stopped at request {:?}; finished results are kept, the same command goes on", line.custom_id)
            })?;
            match &answer {
                Ok((_, completion)) => summary.add(completion),
                Err(_) => summary.failed += 1,
            }
            summary.requests += 1;
            text += &maker.result(&line, &answer, model.handle.text());
            text.push('\n');
        }
        output.append(&text)?;
        summary.seconds = begun.elapsed().as_secs_f64();
        summary.generated_tps = summary.generated_tokens as f64 / summary.seconds.max(1e-9);
        report(&summary);
    }
    Ok(summary)
}

/// A request's outcome; an error where the engine itself has failed, which is no outcome.
async fn answer(
    engine: &EngineHandle,
    line: &input::Line,
) -> Result<Result<(Asked, Completion), Refusal>, GenerateError> {
    let asked = match Asked::read(line, engine.text()) {
        Ok(asked) => asked,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut request = asked.request.clone();
    let prompt = match engine.prompt_ids(&request.prompt) {
        Ok(ids) => ids,
        Err(error) => return Ok(Err(Refusal::invalid(error.to_string()))),
    };
    if !asked.limited {
        // The last token is drawn but never computed: one more than is left.
        request.max_tokens = (engine.context() + 1).saturating_sub(prompt.len()).max(1);
    }
    request.prompt = Prompt::Tokens(prompt);
    match engine.generate(request).await {
        Ok(completion) => Ok(Ok((asked, completion))),
        Err(error @ GenerateError::Backend { .. }) => Err(error),
        Err(error) => Ok(Err(Refusal::of(&error))),
    }
}

/// Makes the folder's entry of a new file last.
fn sync_parent(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(unix) { std::fs::File::open(parent)?.sync_all() } else { Ok(()) }
}
