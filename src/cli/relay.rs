//! `weaklink relay`: plans a run, drives it and prints its tables.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use weaklink_models::card::CardKind;

use super::output::{emit, tell};
use super::{ModelArgs, OutArgs, model};
use crate::engine::load::LoadOptions;
use crate::engine::prompt_ids;
use crate::generate::{Backend, Message, Prompt};
use crate::store::{RunFolder, Store};
use crate::studies::relay::plan::CODE;
use crate::studies::relay::prepare::{CountTokens, Model, Relay, Settings};
use crate::studies::relay::run::{Ending, Progress};
use crate::studies::relay::table::Summary;

/// Hops of a chain, and tokens of a message, unless something else is asked for.
const HOPS: u32 = 6;
const MAX_TOKENS: usize = 512;
/// Chains at once where memory allows: more gain little on the cores of one machine.
const BATCH: usize = 16;
/// More chains at once than any machine's memory holds.
const MAX_BATCH: usize = 4096;
/// What `--quick` takes instead, and how many items: a look at all formats within minutes on two cores.
const QUICK_HOPS: u32 = 3;
const QUICK_MAX_TOKENS: usize = 384;
const QUICK_ITEMS: usize = 2;

/// Passes facts on, hop after hop, and measures what gets lost
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weaklink relay --quick
  weaklink relay --model qwen2.5-1.5b --formats kv,json --items 30 --out runs/weak
  weaklink relay --corpus briefs.jsonl --hops 4 --temperature 0 --json")]
pub(crate) struct RelayArgs {
    /// free, constr, json, triples and kv, with commas between, or all for these five; json+grammar, triples+grammar
    /// and kv+grammar hold the decoding to the format
    #[arg(long, value_delimiter = ',', default_value = "all", value_name = "NAMES")]
    formats: Vec<String>,
    /// Briefs to pass on [default: 8, or all of --corpus]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    items: Option<usize>,
    /// Briefs of your own in place of generated ones, one JSON item a line (README shows one)
    #[arg(long, value_name = "FILE")]
    corpus: Option<PathBuf>,
    /// Hops of a chain [default: 6]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    hops: Option<u32>,
    /// 0 takes the likeliest token every time
    #[arg(long, value_name = "T", default_value_t = 0.7, allow_negative_numbers = true)]
    temperature: f64,
    /// Token limit of one message, the same for every format [default: 512]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_tokens: Option<usize>,
    /// Worked examples before the message, 0 or 1 [default: as the model's card says]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    shots: Option<u8>,
    /// Chains of each item and format, each with draws of its own
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    replicates: u32,
    /// A look: 2 items, 3 hops and 384 tokens where nothing else is asked for
    #[arg(long)]
    quick: bool,
    /// Root of the items and of every draw
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    work: WorkArgs,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    out: OutArgs,
}

/// How a run is worked on; none of it changes a message.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct WorkArgs {
    /// Chains at once [default: 16, or fewer where there are fewer or memory is short]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub batch: Option<usize>,
    /// One JSON document on stdout in place of the tables
    #[arg(long)]
    pub json: bool,
}

impl WorkArgs {
    pub fn check(&self) -> anyhow::Result<()> {
        let Some(batch) = self.batch else { return Ok(()) };
        ensure!(batch > 0, "--batch is 0: at least one chain runs at a time");
        ensure!(batch <= MAX_BATCH, "--batch is {batch}: at most {MAX_BATCH} chains run at a time");
        Ok(())
    }
}

/// The facts of a session, kept beside the plan.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Session {
    /// The model and device as they were named: how to find them again.
    pub model: String,
    pub device: String,
    pub threads: Option<usize>,
    pub batch: usize,
    pub code: String,
    pub process: u32,
}

impl Session {
    pub fn new(model: &ModelArgs, batch: usize) -> Self {
        Self {
            model: model.model.clone(),
            device: model.device.clone(),
            threads: model.threads,
            batch,
            code: CODE.into(),
            process: std::process::id(),
        }
    }
}

pub(crate) fn run(args: RelayArgs) -> anyhow::Result<ExitCode> {
    let RelayArgs { work, model: model_args, out, quick, .. } = &args;
    work.check()?;
    let settings = Settings {
        formats: args.formats.clone(),
        items: args.items.or((*quick && args.corpus.is_none()).then_some(QUICK_ITEMS)),
        corpus: args.corpus.clone(),
        hops: args.hops.unwrap_or(if *quick { QUICK_HOPS } else { HOPS }),
        temperature: args.temperature,
        max_tokens: args.max_tokens.unwrap_or(if *quick { QUICK_MAX_TOKENS } else { MAX_TOKENS }),
        shots: args.shots,
        replicates: args.replicates,
        seed: args.seed,
    };
    let draft = settings.resolve()?;
    let claim = || match &out.out {
        Some(dir) => RunFolder::claim_new(dir),
        None => RunFolder::claim_next(Path::new("runs"), "relay"),
    };
    // A folder that cannot be had is found out before the model is loaded, and not
    // held meanwhile: who stops the program while it loads finds no empty folder.
    drop(claim()?);
    let (model, batch) =
        load(model_args, work, draft.chains(), |shots, count_tokens| draft.tokens_needed(shots, count_tokens))?;
    let relay = draft.plan(&model);
    relay.check_fit(&model)?;
    let folder = claim()?;
    let dir = folder.path().to_owned();
    let store = relay.begin(folder, &Session::new(model_args, batch))?;
    go_on(&relay, &model, &store, &dir, batch, work)
}

/// Drives what is left of the run in `dir`, with a progress bar, and prints its tables.
pub(super) fn go_on(
    relay: &Relay,
    model: &Model,
    store: &Store,
    dir: &Path,
    batch: usize,
    work: &WorkArgs,
) -> anyhow::Result<ExitCode> {
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = threads.context("cannot start the threads that wait for the model")?;
    let bar = bar();
    let mut last_line = Instant::now();
    let report = |progress: &Progress| show_progress(&bar, progress, &mut last_line);
    let drive = relay.drive(&model.backend, store, batch, interrupt(), report);
    let ending = runtime.block_on(drive);
    bar.finish_and_clear();
    // Not to wait for hops that were dropped.
    runtime.shutdown_background();
    match ending? {
        // Exit code 2, as for every command that did not do what it was asked for.
        Ending::Stopped => bail!("stopped; every finished hop is kept: go on with `weaklink resume {}`", dir.display()),
        Ending::Finished { failed } => {
            print(store, dir, work.json)?;
            Ok(ExitCode::from(u8::from(failed > 0)))
        }
    }
}

/// Prints the tables of the run in `dir`, or its JSON document.
pub(super) fn print(store: &Store, dir: &Path, json: bool) -> anyhow::Result<()> {
    let summary = Summary::of(store, dir)?;
    emit(&if json { serde_json::to_string(&summary)? + "\n" } else { summary.to_string() })?;
    Ok(())
}

/// Ready when the user presses Ctrl-C, or when the system asks the program to end.
pub(super) async fn interrupt() {
    // Without a handler the system ends the process, which is as good: the store holds every hop.
    let or_never = async |asked: bool| {
        if !asked {
            std::future::pending::<()>().await
        }
    };
    let ctrl_c = async { or_never(tokio::signal::ctrl_c().await.is_ok()).await };
    #[cfg(unix)]
    tokio::select! {
        () = ctrl_c => {}
        () = async { or_never(terminated().await.is_some()).await } => {}
    }
    #[cfg(not(unix))]
    ctrl_c.await;
}

/// SIGTERM: what batch systems send before they kill.
#[cfg(unix)]
async fn terminated() -> Option<()> {
    tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok()?.recv().await
}

/// Drawn on stderr, and only where that is a terminal.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:12} {msg}").expect("the template is well formed");
    ProgressBar::new(0).with_style(style)
}

/// How often a line tells of the progress where there is no terminal to draw on.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// Draws the bar; elsewhere writes a line now and then. `last_line` is when the last one was written.
fn show_progress(bar: &ProgressBar, progress: &Progress, last_line: &mut Instant) {
    bar.set_length(progress.hops_done + progress.hops_left);
    bar.set_position(progress.hops_done);
    let mut line = format!(
        "{}/{} hops {}/{} chains {:.0} tokens/s {:.0} % cached",
        progress.hops_done,
        progress.hops_done + progress.hops_left,
        progress.chains_done,
        progress.chains,
        progress.tokens_per_second(),
        100.0 * progress.cached_share()
    );
    if let Some(left) = progress.time_left() {
        line += &format!(" {} left", indicatif::FormattedDuration(Duration::from_secs(left.as_secs())));
    }
    if progress.failed > 0 {
        line += &format!(" {} failed", progress.failed);
    }
    if !std::io::stderr().is_terminal() && last_line.elapsed() >= LINE_EVERY {
        tell(&format!("weaklink: {line}"));
        *last_line = Instant::now();
    }
    bar.set_message(line);
}

/// Loads the model and starts its engine, for at most `chains` chains at once, each of the tokens that
/// `tokens_needed` says. Returns how many chains run at once.
pub(super) fn load(
    args: &ModelArgs,
    work: &WorkArgs,
    chains: usize,
    tokens_needed: impl Fn(u8, &CountTokens) -> anyhow::Result<usize>,
) -> anyhow::Result<(Model, usize)> {
    let threads = model::threads(args)?;
    let no_chat = |name: &str| {
        anyhow::anyhow!(
            "{name} has no chat template, and a relay is a chat: choose a model that `weaklink models` calls chat"
        )
    };
    if model::kind(args) == Some(CardKind::Base) {
        return Err(no_chat(&args.model));
    }
    let open = model::open(args)?;
    let shots = open.shots;
    if !open.text.has_template() {
        return Err(no_chat(&open.name));
    }
    let shots = u8::from(shots > 0);
    let text = open.text.clone();
    let count_tokens = move |messages: &[Message]| Ok(prompt_ids(&text, &Prompt::Messages(messages.to_vec()))?.len());
    let expected = Some(tokens_needed(shots, &count_tokens)?);
    let options = |batch| LoadOptions { batch, threads, context: None, expected };
    let mut batch = work.batch.unwrap_or(BATCH).min(chains).max(1);
    while work.batch.is_none() && batch > 1 && open.plan_memory(&options(batch)).is_err() {
        batch /= 2;
    }
    let options = options(batch);
    let memory = open.plan_memory(&options)?;
    if args.verbose > 0 || std::io::stderr().is_terminal() {
        tell(&format!("weaklink: {memory}"));
    }
    let loaded = open.start(&options)?;
    let model = Model {
        backend: Backend::Local(loaded.handle.clone()),
        identity: loaded.identity,
        device: "cpu".into(),
        isa: loaded.isa,
        shots,
        context: loaded.handle.context(),
        count_tokens: Box::new(count_tokens),
    };
    Ok((model, batch))
}
