//! From `--model`, `--device` and `--threads` to an opened model.

use anyhow::{Context, bail};

use weaklink_models::card::{Card, CardKind};
use weaklink_models::fetch::LocalModel;

use super::{ComputeArgs, ModelArgs, pull};
use crate::engine::load::OpenModel;

/// Finds (and where needed fetches) the model that the arguments name, and opens it.
pub(crate) fn open(args: &ModelArgs) -> anyhow::Result<OpenModel> {
    OpenModel::open(&find(args)?)
}

/// Finds (and where needed fetches) the model that the arguments name.
pub(crate) fn find(args: &ModelArgs) -> anyhow::Result<LocalModel> {
    device(&args.compute.device)?;
    if kind(args) == Some(CardKind::Embedder) {
        bail!(
            "{} turns text into vectors and makes none; choose a model that `weaklink models` calls chat or base",
            args.model
        );
    }
    Ok(pull::resolve(&args.model, args.compute.offline)?)
}

/// What a card says that its model is for, known before anything is fetched; `None` where no card is named.
pub(crate) fn kind(args: &ModelArgs) -> Option<CardKind> {
    Card::by_name(&args.model).map(|card| card.kind)
}

/// More threads than any machine this runs on has cores.
const MAX_THREADS: usize = 512;

/// Threads that compute: as asked for, or one a core.
pub(crate) fn threads(args: &ComputeArgs) -> anyhow::Result<usize> {
    match args.threads {
        Some(0) => bail!("--threads 0 leaves nothing to compute with; give 1 or more"),
        // Thousands of threads on a few cores only take turns, and the program would seem to hang.
        Some(n) if n > MAX_THREADS => bail!("--threads {n}: at most {MAX_THREADS}; one a core is fastest"),
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
