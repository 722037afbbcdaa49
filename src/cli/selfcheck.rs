//! `weaklink selfcheck`: whether text depends on the batch, on this machine.

use std::process::ExitCode;
use std::sync::Arc;

use super::output::emit;
use super::{ModelArgs, model};
use crate::selfcheck::Check;

/// Check that logits and texts do not depend on batch, pieces, preemption or threads
///
/// Fixed prompts are computed alone, then in batches of 2 to 64, in pieces, with other numbers of threads and with too
/// few cache blocks. Logits are compared bit by bit, generated tokens (greedy and at temperature 0.7) one by one.
/// Exit code 1 and the first difference, if there is one.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  weaklink selfcheck --model smollm2-135m")]
pub(crate) struct SelfcheckArgs {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

pub(crate) fn run(args: SelfcheckArgs) -> anyhow::Result<ExitCode> {
    let threads = model::threads(&args.model.compute)?;
    let model = model::open(&args.model)?;
    let decoder = Arc::new(model.load_decoder()?);
    let isa = decoder.isa().name();
    let report = Check::new(decoder, model.text.clone())?.run(threads)?;
    let identical = report.difference.is_none();
    if args.json {
        let mut document = serde_json::json!({ "model": model.name, "isa": isa, "identical": identical });
        if let (Some(all), serde_json::Value::Object(more)) = (document.as_object_mut(), serde_json::to_value(&report)?)
        {
            all.extend(more);
        }
        emit(&(serde_json::to_string_pretty(&document)? + "\n"))?;
    } else {
        let mut text: String = report.settings.iter().map(|setting| format!("{setting}\n")).collect();
        match &report.difference {
            Some(difference) => text += &format!("DIFFERENT ({isa}): {difference}\n"),
            None => {
                text += &format!(
                    "identical ({isa}): {} rows of logits, {} generated tokens, {} prompts, {} settings\n",
                    report.logit_rows,
                    report.tokens,
                    report.prompts,
                    report.settings.len()
                );
            }
        }
        emit(&text)?;
    }
    Ok(if identical { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
