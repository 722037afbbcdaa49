//! `weaklink generate` (to be written).

use std::process::ExitCode;

/// (to be written)
#[derive(clap::Args)]
pub(crate) struct GenerateArgs {}

pub(crate) fn run(_args: GenerateArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built")
}
