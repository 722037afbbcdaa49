//! `weaklink resume`: goes on where a run stopped.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use super::ModelArgs;
use super::relay::{Session, WorkArgs, go_on, load, print};
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
    /// The model, where it is found elsewhere now; its weights must be the same
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
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
    let progress = relay.progress(&store)?;
    if progress.hops_left == 0 {
        // Nothing to make, so no model to load.
        if !store.finished()? {
            store.finish(progress.chains, progress.failed)?;
        }
        print(&store, dir, args.work.json)?;
        return Ok(ExitCode::from(u8::from(progress.failed > 0)));
    }
    let before: Session = store.last_session()?.context("the run does not say which model it was begun with")?;
    let model_args = ModelArgs {
        model: args.model.unwrap_or(before.model),
        device: before.device,
        threads: args.threads.or(before.threads),
        offline: args.offline,
        verbose: args.verbose,
    };
    let chains = progress.chains - progress.chains_done - progress.failed;
    let (model, batch) = load(&model_args, &args.work, chains, |_, count_tokens| relay.tokens_needed(count_tokens))?;
    relay.check_unchanged(&model)?;
    store.begin_session(&Session::new(&model_args, batch))?;
    go_on(&relay, &model, &store, dir, batch, &args.work)
}

/// A run is named by its folder; its `run.db` is taken as well.
pub(super) fn folder_of(run: &Path) -> &Path {
    match run.parent() {
        Some(parent) if run.file_name().is_some_and(|name| name == "run.db") && run.is_file() => parent,
        _ => run,
    }
}
