//! `weaklink pull` (to be written).

use std::process::ExitCode;

/// (to be written)
#[derive(clap::Args)]
pub(crate) struct PullArgs {}

pub(crate) fn run(_args: PullArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built")
}
