//! `weaklink logprobs`: log-probabilities of given texts, a JSON line each.

use std::process::ExitCode;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::output::emit;
use super::{ModelArgs, lines, model};
use crate::engine::score::Scorer;

/// Score given texts: JSON lines {"ids"} or {"text","parse_special"} become {"ids","logprobs","next"}
///
/// "logprobs" holds the log-probability of each id after the first, given those before it;
/// "next" the ten likeliest ids after the last. A text gets the start token that the model
/// file asks for.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  echo '{\"text\":\"The quick brown fox\"}' | weaklink logprobs")]
pub(crate) struct LogprobsArgs {
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

pub(crate) fn run(args: LogprobsArgs) -> anyhow::Result<ExitCode> {
    let model = model::open(&args.model)?;
    let text = model.text.clone();
    let mut scorer = Scorer::new(&model, model::threads(&args.model)?)?;
    for (number, line) in lines::stdin() {
        let context = || format!("stdin, line {number}");
        let input: Input = lines::parse(&line.with_context(context)?).with_context(context)?;
        let ids = match (input.ids, input.text) {
            (Some(ids), None) => ids,
            (None, Some(content)) => {
                let mut ids: Vec<u32> = text.bos().into_iter().collect();
                ids.extend(text.encode(&content, input.parse_special).with_context(context)?);
                ids
            }
            _ => bail!("stdin, line {number}: give either \"ids\" or \"text\""),
        };
        let score = scorer.score(&ids).with_context(context)?;
        let output = Output { ids, logprobs: score.logprobs, next: score.next };
        if !emit(&(serde_json::to_string(&output)? + "\n"))? {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}
