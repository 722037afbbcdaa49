//! `weaklink synth`: a model file with random weights.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use weaklink_models::synth::{self, Mix, Preset};

use super::models::megabytes;
use super::output::emit;

/// Write a model file with random weights in a real architecture: benchmarks without a download
///
/// Shapes, formats and metadata are those of the real model; the tokenizer works, the text it makes means nothing.
/// Presets: qwen2.5-1.5b, llama-3.2-1b, smollm2-135m, tiny.
/// Quantizations: F16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K_M, Q5_K_M, Q6_K.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  weaklink synth qwen2.5-1.5b --quant Q4_K_M -o qwen.gguf\n  \
    weaklink generate 'Hello' --max-tokens 20 --model ./qwen.gguf")]
pub(crate) struct SynthArgs {
    /// The architecture
    preset: String,
    /// How the weights are stored
    #[arg(long, default_value = "Q4_K_M", value_name = "QUANT")]
    quant: String,
    /// The file to write; one of that name is replaced
    #[arg(short, long, value_name = "FILE.gguf")]
    output: PathBuf,
    /// The same seed gives the same file
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    seed: u64,
}

pub(crate) fn run(args: SynthArgs) -> anyhow::Result<ExitCode> {
    let Some(preset) = Preset::by_name(&args.preset) else {
        bail!("no preset {:?}; there are {}", args.preset, Preset::ALL.map(|p| p.name).join(", "));
    };
    let Some(mix) = Mix::by_name(&args.quant) else {
        bail!("--quant {:?}: give one of {}", args.quant, Mix::ALL.map(Mix::name).join(", "));
    };
    let path = args.output.display();
    let bytes = synth::write(preset, mix, args.seed, &args.output).with_context(|| format!("cannot write {path}"))?;
    let line = format!("{path}: {} in {}, {}, seed {}\n", preset.name, mix.name(), megabytes(bytes), args.seed);
    emit(&line)?;
    Ok(ExitCode::SUCCESS)
}
