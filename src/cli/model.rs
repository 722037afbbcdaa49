//! From `--model`, `--device` and `--threads` to an opened model.

use std::io::IsTerminal;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use weaklink_models::fetch::{FetchOptions, Fetcher, ModelSpec};

use super::ModelArgs;
use crate::engine::load::OpenModel;

/// Finds (and where needed fetches) the model that the arguments name, and opens it.
pub(crate) fn open(args: &ModelArgs) -> anyhow::Result<OpenModel> {
    device(&args.device)?;
    let spec: ModelSpec = args.model.parse()?;
    let fetcher = Fetcher::new(FetchOptions { offline: args.offline, ..FetchOptions::default() })?;
    let bar = bar();
    let local = fetcher.resolve(&spec, &mut |progress| {
        bar.set_length(progress.total.unwrap_or(0));
        bar.set_message(progress.file.to_owned());
        bar.set_position(progress.done);
    });
    bar.finish_and_clear();
    OpenModel::open(&local?)
}

/// Threads that compute: as asked for, or one a core.
pub(crate) fn threads(args: &ModelArgs) -> anyhow::Result<usize> {
    match args.threads {
        Some(0) => bail!("--threads 0 leaves nothing to compute with; give 1 or more"),
        Some(n) => Ok(n),
        None => Ok(std::thread::available_parallelism().context("cannot count the cores; give --threads")?.get()),
    }
}

/// Checks `--device`.
fn device(device: &str) -> anyhow::Result<()> {
    match device {
        "auto" | "cpu" => Ok(()),
        other if other.starts_with("cuda") => {
            bail!("--device {other}: this program was built for the CPU only; use --device cpu")
        }
        other => bail!("--device {other}: give auto, cpu or cuda:N"),
    }
}

/// A bar on a terminal, nothing elsewhere.
pub(crate) fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
