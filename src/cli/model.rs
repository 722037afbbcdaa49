//! From `--model`, `--device` and `--threads` to an opened model.

use anyhow::{Context, bail};

use super::{ModelArgs, pull};
use crate::engine::load::OpenModel;

/// Finds (and where needed fetches) the model that the arguments name, and opens it.
pub(crate) fn open(args: &ModelArgs) -> anyhow::Result<OpenModel> {
    device(&args.device)?;
    OpenModel::open(&pull::resolve(&args.model, args.offline)?)
}

/// More threads than any machine this runs on has cores.
const MAX_THREADS: usize = 512;

/// Threads that compute: as asked for, or one a core.
pub(crate) fn threads(args: &ModelArgs) -> anyhow::Result<usize> {
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
