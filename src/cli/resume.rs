//! `weaklink resume`: goes on where a run stopped.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};

use super::ComputeArgs;
use super::relay::{Candidate, Session, WorkArgs, go_on, known, print};
use crate::store::Store;
use crate::studies::relay::prepare::Relay;

/// Goes on where a run stopped; refuses when other messages would come of it
#[derive(clap::Args)]
#[command(after_help = "Example:
  weaklink resume runs/relay-0001")]
pub(crate) struct ResumeArgs {
    /// Folder of the run
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The model, where it is found elsewhere now; its weights must be the same. Of several models, all in their order
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// Threads that compute [default: as before]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Use what is cached; never go online
    #[arg(long)]
    offline: bool,
    /// Say more (repeat for more)
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(flatten)]
    work: WorkArgs,
}

pub(crate) fn run(args: ResumeArgs) -> anyhow::Result<ExitCode> {
    args.work.check()?;
    let dir = folder_of(&args.run);
    let store = Store::open(dir)?;
    let relay = Relay::stored(&store).with_context(|| format!("cannot go on with {}", dir.display()))?;
    let items = relay.items.len();
    let left: usize = relay.chains_left(&store, items)?.iter().sum();
    if left == 0 && !store.finished()? {
        relay.conclude(&store, items)?;
    }
    if left == 0 || (relay.plan.until.is_some() && store.finished()?) {
        // Nothing to make, so no model to load.
        print(&store, dir, args.work.json)?;
        return Ok(ExitCode::from(u8::from(!store.failures()?.is_empty())));
    }
    let before: Session = store.last_session()?.context("the run does not say which model it was begun with")?;
    let names = if args.models.is_empty() { before.models } else { args.models };
    let compute = ComputeArgs {
        device: before.device,
        threads: args.threads.or(before.threads),
        offline: args.offline,
        verbose: args.verbose,
    };
    ensure!(
        names.len() == relay.plan.models.len(),
        "--model names {} models, and the run has {}: name each, in the order of the plan",
        names.len(),
        relay.plan.models.len()
    );
    let mut candidates =
        names.iter().map(|name| Candidate::open(name, &compute)).collect::<anyhow::Result<Vec<_>>>()?;
    relay.check_unchanged(&known(&candidates))?;
    for candidate in &mut candidates {
        candidate.expected = relay.check_fit(&candidate.model)?;
    }
    let work = WorkArgs { batch: args.work.batch.or(before.batch), ..args.work };
    store.begin_session(&Session::new(&names, &compute, &work))?;
    go_on(&relay, &candidates, &store, dir, &work)
}

/// A run is named by its folder; its `run.db` is taken as well.
pub(super) fn folder_of(run: &Path) -> &Path {
    match run.parent() {
        Some(parent) if run.file_name().is_some_and(|name| name == "run.db") && run.is_file() => parent,
        _ => run,
    }
}
