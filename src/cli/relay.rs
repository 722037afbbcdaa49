//! `weaklink relay` (to be written).

use std::process::ExitCode;

/// (to be written)
#[derive(clap::Args)]
pub(crate) struct RelayArgs {}

pub(crate) fn run(_args: RelayArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built")
}
