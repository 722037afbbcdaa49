//! `weaklink logprobs` (to be written).

use std::process::ExitCode;

/// (to be written)
#[derive(clap::Args)]
pub(crate) struct LogprobsArgs {}

pub(crate) fn run(_args: LogprobsArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built")
}
