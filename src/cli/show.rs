//! `weaklink show` (to be written).

use std::process::ExitCode;

/// (to be written)
#[derive(clap::Args)]
pub(crate) struct ShowArgs {}

pub(crate) fn run(_args: ShowArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built")
}
