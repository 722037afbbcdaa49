//! `weaklink tokenize`: token ids of texts, a JSON line each.

use std::process::ExitCode;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::output::emit;
use super::{ModelArgs, lines, model};

/// Turn texts into token ids: JSON lines {"text"} on stdin become {"text","ids"}
#[derive(clap::Args)]
#[command(after_help = "Example:\n  echo '{\"text\":\"Port 8443 is open\"}' | weaklink tokenize")]
pub(crate) struct TokenizeArgs {
    /// Read control tokens that are spelled out in the text as control tokens
    #[arg(long)]
    special: bool,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    text: String,
}

#[derive(Serialize)]
struct Output {
    text: String,
    ids: Vec<u32>,
}

pub(crate) fn run(args: TokenizeArgs) -> anyhow::Result<ExitCode> {
    let text = model::open(&args.model)?.text;
    for (number, line) in lines::stdin() {
        let context = || format!("stdin, line {number}");
        let input: Input = lines::parse(&line.with_context(context)?).with_context(context)?;
        let ids = text.encode(&input.text, args.special).with_context(context)?;
        if !emit(&(serde_json::to_string(&Output { text: input.text, ids })? + "\n"))? {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}
