//! `weaklink batch`: a file of requests through the engine.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use super::output::{emit, tell};
use super::relay::{WorkArgs, interrupt};
use super::{ModelArgs, model};
use crate::batch::input::Input;
use crate::batch::output::Output;
use crate::batch::{Summary, run as run_batch};
use crate::engine::load::LoadOptions;

/// Answer a file of requests in the OpenAI Batch format
///
/// Lines {"custom_id","method","url","body"} for /v1/chat/completions or /v1/completions become result lines,
/// written as they finish. If the output exists, requests that it answers already are skipped. One model answers
/// all requests, whatever model they name. A request without a seed gets one from its content; without a
/// temperature, 1.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weaklink batch -i requests.jsonl -o results.jsonl
  weaklink batch -i requests.jsonl -o results.jsonl --model qwen2.5-1.5b --batch 32 --json
A request line:
  {\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{\"model\":\"local\",\"max_tokens\":32,\
\"messages\":[{\"role\":\"user\",\"content\":\"Name a river.\"}]}}")]
pub(crate) struct BatchArgs {
    /// File of requests, a JSON line each
    #[arg(short, long, value_name = "FILE")]
    input: PathBuf,
    /// File of results, appended to
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Tokens that one request may have, prompt and answer together [default: the model's context, 8192 at most]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    context: Option<usize>,
    /// Requests at once
    #[arg(long, value_name = "N", default_value_t = 16, allow_negative_numbers = true)]
    batch: usize,
    /// Print the summary as one JSON document on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

pub(crate) fn run(args: BatchArgs) -> anyhow::Result<ExitCode> {
    WorkArgs { batch: Some(args.batch), json: args.json }.check()?;
    ensure!(args.context != Some(0), "--context is 0: a request has at least one token");
    let input = Input::open(&args.input)?;
    let mut output = Output::open(&args.output, &input)?;
    let model = model::open(&args.model)?;
    let options = LoadOptions {
        batch: args.batch,
        threads: model::threads(&args.model.compute)?,
        context: args.context,
        expected: None,
    };
    let model = model.start(&options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let bar = ProgressBar::new(input.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:12} {pos}/{len} requests {msg} {eta} left").expect("well formed"));
    let report = |summary: &Summary| {
        bar.set_position((summary.requests + summary.skipped) as u64);
        bar.set_message(format!("{:.0} tokens/s {} failed", summary.generated_tps, summary.failed));
    };
    // Twice as many as are computed at once: a place that becomes free is taken in the next step.
    let in_flight = 2 * args.batch;
    let summary = runtime.block_on(async {
        tokio::select! {
            biased;
            () = interrupt() => bail!("stopped; every finished result is kept: the same command goes on"),
            summary = run_batch(&input, &mut output, &model, in_flight, report) => summary,
        }
    });
    bar.finish_and_clear();
    // Not to wait for requests that were dropped.
    runtime.shutdown_background();
    let summary = summary?;
    if args.json {
        emit(&(serde_json::to_string(&summary)? + "\n"))?;
    } else {
        tell(&said(&summary));
    }
    Ok(ExitCode::from(u8::from(summary.failed > 0)))
}

fn said(summary: &Summary) -> String {
    let Summary { requests, skipped, failed, seconds, prompt_tokens, cached_tokens, generated_tokens, generated_tps } =
        summary;
    format!(
        "{requests} requests in {seconds:.1} s ({skipped} done before, {failed} failed), {prompt_tokens} prompt tokens ({cached_tokens} cached), {generated_tokens} generated ({generated_tps:.1} a second)"
    )
}
