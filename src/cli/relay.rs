//! `weaklink relay`: plans a run, drives it and prints its tables.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use super::output::{emit, tell};
use super::{ComputeArgs, DEFAULT_MODEL, OutArgs};
use crate::generate::Backend;
use crate::store::{RunFolder, Store};
use crate::studies::relay::condition::Condition;
use crate::studies::relay::plan::CODE;
use crate::studies::relay::prepare::{Model, Relay, Settings};
use crate::studies::relay::run::{Ending, Progress, Work};
use crate::studies::relay::table::Summary;
pub(super) use candidate::Candidate;

mod candidate;

/// Hops of a chain, and tokens of a message, unless something else is asked for.
const HOPS: u32 = 6;
const MAX_TOKENS: usize = 512;
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
  weaklink relay --condition plain,loaded --inject --items 24
  weaklink relay --model smollm2-135m --model qwen2.5-1.5b --until-ci 2pp --max-items 200
  weaklink relay --corpus briefs.jsonl --format memo.toml --hops 4 --temperature 0 --json")]
pub(crate) struct RelayArgs {
    /// free, constr, json, triples and kv, with commas between, or all for these five; json+grammar, triples+grammar
    /// and kv+grammar hold the decoding to the format
    #[arg(long, value_delimiter = ',', default_value = "all", value_name = "NAMES")]
    formats: Vec<String>,
    /// A format of your own beside them; may be given several times
    #[arg(long = "format", value_name = "FILE.toml")]
    format_files: Vec<PathBuf>,
    /// Briefs to pass on; with --until-ci, so many at a time [default: 8, or all of --corpus]
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
    /// plain; loaded makes every hop say first what is most urgent, and cuts that off before the message is passed on
    #[arg(long = "condition", value_delimiter = ',', default_value = "plain", value_name = "NAMES")]
    conditions: Vec<Condition>,
    /// Put a wrong value into a copy of every first message, and follow it beside the true one
    #[arg(long)]
    inject: bool,
    /// Chains of each item and format, each with draws of its own
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    replicates: u32,
    /// Add items until half of every format's interval at the last hop is below this: 2pp, 2% and 0.02 are the same
    #[arg(long, value_name = "WIDTH", value_parser = share)]
    until_ci: Option<f64>,
    /// Where --until-ci ends at the latest [default: all of --corpus]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_items: Option<usize>,
    /// A look: 2 items, 3 hops and 384 tokens where nothing else is asked for
    #[arg(long)]
    quick: bool,
    /// Root of the items and of every draw
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    work: WorkArgs,
    /// CARD, FILE.gguf, FOLDER or hub:OWNER/REPO[@REV]/FILE; given several times, the same items pass through each
    #[arg(long = "model", default_value = DEFAULT_MODEL, value_name = "MODEL")]
    models: Vec<String>,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    out: OutArgs,
}

/// `2pp`, `2%` or `0.02`.
pub(super) fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix("pp").or_else(|| text.strip_suffix('%'));
    let number = percent.unwrap_or(text).trim().parse::<f64>().ok().filter(|number| number.is_finite());
    let number = number.ok_or_else(|| format!("{text:?} is no share: give 2pp, 2% or 0.02"))?;
    Ok(if percent.is_some() { number / 100.0 } else { number })
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
    /// The models and the device as they were named: how to find them again.
    pub models: Vec<String>,
    pub device: String,
    pub threads: Option<usize>,
    /// Chains at once, where the user says how many.
    pub batch: Option<usize>,
    pub code: String,
    pub process: u32,
}

impl Session {
    pub fn new(models: &[String], compute: &ComputeArgs, work: &WorkArgs) -> Self {
        Self {
            models: models.to_vec(),
            device: compute.device.clone(),
            threads: compute.threads,
            batch: work.batch,
            code: CODE.into(),
            process: std::process::id(),
        }
    }
}

pub(crate) fn run(args: RelayArgs) -> anyhow::Result<ExitCode> {
    let RelayArgs { work, models, compute, out, quick, .. } = &args;
    work.check()?;
    let quick_items = (*quick && args.corpus.is_none() && args.until_ci.is_none()).then_some(QUICK_ITEMS);
    let settings = Settings {
        formats: args.formats.clone(),
        format_files: args.format_files.clone(),
        items: args.items.or(quick_items),
        corpus: args.corpus.clone(),
        hops: args.hops.unwrap_or(if *quick { QUICK_HOPS } else { HOPS }),
        temperature: args.temperature,
        max_tokens: args.max_tokens.unwrap_or(if *quick { QUICK_MAX_TOKENS } else { MAX_TOKENS }),
        shots: args.shots,
        conditions: args.conditions.clone(),
        inject: args.inject,
        replicates: args.replicates,
        seed: args.seed,
        until_ci: args.until_ci,
        max_items: args.max_items,
    };
    let draft = settings.resolve()?;
    let claim = || match &out.out {
        Some(dir) => RunFolder::claim_new(dir),
        None => RunFolder::claim_next(Path::new("runs"), "relay"),
    };
    // A folder that cannot be had is found out before a model is opened, and not
    // held meanwhile: who stops the program while it loads finds no empty folder.
    drop(claim()?);
    let mut candidates =
        models.iter().map(|name| Candidate::open(name, compute)).collect::<anyhow::Result<Vec<_>>>()?;
    let relay = draft.plan(&known(&candidates))?;
    for candidate in &mut candidates {
        candidate.expected = relay.check_fit(&candidate.model)?;
        candidate.batch(relay.trials().len() / models.len(), work)?;
    }
    let folder = claim()?;
    let dir = folder.path().to_owned();
    let store = relay.begin(folder, &Session::new(models, compute, work))?;
    go_on(&relay, &candidates, &store, &dir, work)
}

/// What is known of the models.
pub(super) fn known(candidates: &[Candidate]) -> Vec<&Model> {
    candidates.iter().map(|candidate| &candidate.model).collect()
}

/// Makes what is left of the run in `dir`, with a progress bar, and prints its tables.
pub(super) fn go_on(
    relay: &Relay,
    candidates: &[Candidate],
    store: &Store,
    dir: &Path,
    work: &WorkArgs,
) -> anyhow::Result<ExitCode> {
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = threads.context("cannot start the threads that wait for the model")?;
    let made = make(relay, candidates, store, dir, work, &runtime);
    // Not to wait for hops that were dropped.
    runtime.shutdown_background();
    match made? {
        // Exit code 2, as for every command that did not do what it was asked for.
        Ending::Stopped => bail!("stopped; every finished hop is kept: go on with `weaklink resume {}`", dir.display()),
        Ending::Finished { failed } => {
            print(store, dir, work.json)?;
            Ok(ExitCode::from(u8::from(failed > 0)))
        }
    }
}

/// Makes the messages: model after model, and with a plan that may end early, some items at a time.
fn make(
    relay: &Relay,
    candidates: &[Candidate],
    store: &Store,
    dir: &Path,
    work: &WorkArgs,
    runtime: &tokio::runtime::Runtime,
) -> anyhow::Result<Ending> {
    let all = relay.items.len();
    let mut items = relay.plan.until.map_or(all, |until| until.step.min(all));
    let mut loaded: Option<(usize, Backend, usize)> = None;
    loop {
        for (index, chains) in relay.chains_left(store, items)?.into_iter().enumerate() {
            if chains == 0 {
                continue;
            }
            let candidate = &candidates[index];
            if loaded.as_ref().is_none_or(|(which, ..)| *which != index) {
                // One model in memory at a time.
                drop(loaded.take());
                let batch = candidate.batch(chains, work)?;
                loaded = Some((index, candidate.start(batch)?, batch));
            }
            let (_, backend, batch) = loaded.as_ref().expect("it was just loaded");
            let bar = bar();
            let mut last_line = Instant::now();
            let report = |progress: &Progress| show_progress(&bar, progress, &mut last_line);
            let work = Work { model: &candidate.model, backend, items, batch: *batch };
            let ending = runtime.block_on(relay.drive(work, store, interrupt(), report));
            bar.finish_and_clear();
            if ending? == Ending::Stopped {
                return Ok(Ending::Stopped);
            }
        }
        let Some(until) = relay.plan.until.filter(|_| items < all) else { break };
        if Summary::of(store, dir)?.is_narrower_than(until.half_width) {
            break;
        }
        items = items.saturating_add(until.step).min(all);
    }
    Ok(Ending::Finished { failed: relay.conclude(store, items)? })
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
