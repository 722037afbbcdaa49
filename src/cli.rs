//! The command line: parse, resolve, run. Each command is a file of its own.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

mod batch;
mod bench;
mod doctor;
mod generate;
pub(crate) mod lines;
mod logprobs;
mod model;
mod models;
mod output;
mod perplexity;
mod pull;
mod relay;
mod resume;
mod selfcheck;
mod show;
mod synth;
mod tokenize;

/// Runs multi-hop agent relays on small local language models and measures what gets lost.
#[derive(Parser)]
#[command(name = "weaklink", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Relay(relay::RelayArgs),
    Batch(batch::BatchArgs),
    Resume(resume::ResumeArgs),
    Show(show::ShowArgs),
    Models(models::ModelsArgs),
    Pull(pull::PullArgs),
    Generate(generate::GenerateArgs),
    Tokenize(tokenize::TokenizeArgs),
    Logprobs(logprobs::LogprobsArgs),
    Perplexity(perplexity::PerplexityArgs),
    Bench(bench::BenchArgs),
    Selfcheck(selfcheck::SelfcheckArgs),
    Synth(synth::SynthArgs),
    Doctor(doctor::DoctorArgs),
}

/// Which model, and on what.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelArgs {
    /// CARD, FILE.gguf, FOLDER or hub:OWNER/REPO[@REV]/FILE
    #[arg(long, default_value = DEFAULT_MODEL, value_name = "MODEL")]
    pub model: String,
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// What answers where nothing else is named: small enough to fetch and run anywhere.
const DEFAULT_MODEL: &str = "smollm2-135m";

/// On what a model is computed, and how it is found.
#[derive(Args, Clone, Debug)]
pub(crate) struct ComputeArgs {
    /// auto, cpu or cuda:N
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub device: String,
    /// Threads that compute; all cores when not given
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Use what is cached; never go online
    #[arg(long)]
    pub offline: bool,
    /// Say more (repeat for more)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// Where a run is kept.
#[derive(Args, Clone, Debug)]
pub(crate) struct OutArgs {
    /// Folder of the run, which will hold run.db; a new one under runs/ when not given
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Parses the process's arguments and runs the command.
///
/// Exit codes: 0 ok, 1 finished but some trials failed, 2 error (one line on stderr).
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let result = match cli.command {
        Command::Relay(args) => relay::run(args),
        Command::Batch(args) => batch::run(args),
        Command::Resume(args) => resume::run(args),
        Command::Show(args) => show::run(args),
        Command::Models(args) => models::run(args),
        Command::Pull(args) => pull::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Logprobs(args) => logprobs::run(args),
        Command::Perplexity(args) => perplexity::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Selfcheck(args) => selfcheck::run(args),
        Command::Synth(args) => synth::run(args),
        Command::Doctor(args) => doctor::run(args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            output::tell(&format!("weaklink: {}", one_line(&error)));
            ExitCode::from(2)
        }
    }
}

/// An error and its causes, each said once: many errors quote their cause themselves.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(|cause| cause.to_string().replace('\n', " ")) {
        if !line.ends_with(&cause) {
            line += if line.is_empty() { "" } else { ": " };
            line += &cause;
        }
    }
    line
}

/// Prints help and versions as they are, and what clap says of bad arguments on one line.
fn refuse(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    if matches!(error.kind(), DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand | DisplayVersion) {
        error.exit()
    }
    let text = error.to_string();
    let lines =
        text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let line = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    output::tell(&format!("weaklink: {} (see --help)", line.trim_start_matches("error: ")));
    ExitCode::from(2)
}
