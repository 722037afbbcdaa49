//! `weaklink logprobs`: log-probabilities of given texts, a JSON line each.

use std::process::ExitCode;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use weaklink_models::text::Text;

use super::output::emit;
use super::{ModelArgs, lines, model};
use crate::engine::load::LoadOptions;
use crate::engine::score::TextScore;
use crate::generate::GenerateError;
use crate::in_order::InOrder;

/// How many of the likeliest next tokens are reported.
const NEXT: usize = 10;
/// Texts computed at once, and texts that wait for a place: a step of the model is then full for short ones too.
const BATCH: usize = 8;
const IN_FLIGHT: usize = 2 * BATCH;

/// Score given texts: JSON lines {"ids"} or {"text","parse_special"} become {"ids","logprobs","next"}
///
/// "logprobs" holds the log-probability of each id after the first, given those before it;
/// "next" the ten likeliest ids after the last. A text gets the start token that the model
/// file asks for. Many texts are computed at once; the answers come in the order of the lines.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  echo '{\"text\":\"The quick brown fox\"}' | weaklink logprobs")]
pub(crate) struct LogprobsArgs {
    /// Tokens that one text may have [default: the model's context, 8192 at most]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    context: Option<usize>,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    ids: Option<Vec<u32>>,
    text: Option<String>,
    #[serde(default)]
    parse_special: bool,
}

#[derive(Serialize)]
struct Output {
    ids: Vec<u32>,
    logprobs: Vec<f64>,
    next: Vec<(u32, f64)>,
}

type Line = (usize, std::io::Result<String>);
type Scored = (usize, Vec<u32>, Result<TextScore, GenerateError>);

pub(crate) fn run(args: LogprobsArgs) -> anyhow::Result<ExitCode> {
    let model = model::open(&args.model)?;
    let options = LoadOptions {
        batch: BATCH,
        threads: model::threads(&args.model.compute)?,
        context: args.context,
        expected: None,
    };
    let engine = model.start(&options)?.handle;
    // A thread of its own reads: an answer is written as soon as it is there, whether or not more lines come.
    let (lines, mut received) = mpsc::channel::<Line>(1);
    std::thread::spawn(move || lines::stdin().try_for_each(|line| lines.blocking_send(line)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut scored = InOrder::<Scored>::new();
        let mut more = true;
        let mut refused = None;
        loop {
            tokio::select! {
                biased;
                Some(done) = scored.next() => {
                    if !print(done)? {
                        break;
                    }
                }
                line = received.recv(), if more && scored.len() < IN_FLIGHT => match line.map(|l| ids(l, engine.text(), engine.context())) {
                    Some(Ok((number, ids))) => {
                        let engine = engine.clone();
                        scored.begin(async move {
                            let score = engine.score_text(&ids, NEXT).await;
                            (number, ids, score)
                        });
                    }
                    // The lines before a bad one are answered first.
                    Some(Err(error)) => (more, refused) = (false, Some(error)),
                    None => more = false,
                },
                else => break,
            }
        }
        refused.map_or(Ok(ExitCode::SUCCESS), Err)
    })
}

/// The token ids of a line.
fn ids((number, line): Line, text: &Text, context: usize) -> anyhow::Result<(usize, Vec<u32>)> {
    let place = || format!("stdin, line {number}");
    let input: Input = lines::parse(&line.with_context(place)?).with_context(place)?;
    let ids = match (input.ids, input.text) {
        (Some(ids), None) => ids,
        (None, Some(content)) => {
            let mut ids: Vec<u32> = text.bos().into_iter().collect();
            ids.extend(text.encode(&content, input.parse_special).with_context(place)?);
            ids
        }
        _ => bail!("stdin, line {number}: give either \"ids\" or \"text\""),
    };
    if ids.is_empty() || ids.len() > context {
        bail!("stdin, line {number}: {} tokens; the context holds 1 to {context} (see --context)", ids.len());
    }
    Ok((number, ids))
}

fn print((number, ids, score): Scored) -> anyhow::Result<bool> {
    let TextScore { logprobs, next, .. } = score.with_context(|| format!("stdin, line {number}"))?;
    emit(&(serde_json::to_string(&Output { ids, logprobs, next })? + "\n"))
}
