//! `weaklink doctor` (to be written).

use std::process::ExitCode;

/// (to be written)
#[derive(clap::Args)]
pub(crate) struct DoctorArgs {}

pub(crate) fn run(_args: DoctorArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built")
}
