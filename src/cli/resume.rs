//! `weaklink resume` (to be written).

use std::process::ExitCode;

/// (to be written)
#[derive(clap::Args)]
pub(crate) struct ResumeArgs {}

pub(crate) fn run(_args: ResumeArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built")
}
