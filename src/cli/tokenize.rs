//! `weaklink tokenize` (to be written).

use std::process::ExitCode;

/// (to be written)
#[derive(clap::Args)]
pub(crate) struct TokenizeArgs {}

pub(crate) fn run(_args: TokenizeArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built")
}
