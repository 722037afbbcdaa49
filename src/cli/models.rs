//! `weaklink models` (to be written).

use std::process::ExitCode;

/// (to be written)
#[derive(clap::Args)]
pub(crate) struct ModelsArgs {}

pub(crate) fn run(_args: ModelsArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built")
}
