//! `weaklink perplexity`: perplexity of a text file.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::output::{emit, tell};
use super::{ModelArgs, model};
use crate::engine::load::LoadOptions;
use crate::perplexity::{MIN_CHUNK, chunks, measure};

/// A larger file would take hours and is likelier a mistake.
const MAX_BYTES: u64 = 256 << 20;
/// Chunks computed at once.
const AT_ONCE: usize = 2;

/// Perplexity of a text, as llama-perplexity defines it
///
/// The text is cut into chunks that do not overlap; the second half of each is scored, given all before it in
/// the chunk. One line break at the end of the file does not count.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  weaklink perplexity wiki.test.raw --model gemma-3-270m --chunk 512")]
pub(crate) struct PerplexityArgs {
    /// A text file in UTF-8
    file: PathBuf,
    /// Tokens of a chunk
    #[arg(long, value_name = "N", default_value_t = 512, allow_negative_numbers = true)]
    chunk: usize,
    /// One JSON document on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Serialize)]
struct Document {
    model: String,
    chunk: usize,
    chunks: usize,
    tokens_scored: usize,
    perplexity: Option<f64>,
    error: Option<f64>,
    seconds: f64,
}

pub(crate) fn run(args: PerplexityArgs) -> anyhow::Result<ExitCode> {
    ensure!(args.chunk >= MIN_CHUNK, "--chunk is {}: at least {MIN_CHUNK} tokens make a chunk", args.chunk);
    let text = read(&args.file)?;
    let model = model::open(&args.model)?;
    let (name, context) = (model.name.clone(), model.config.context);
    ensure!(args.chunk <= context, "--chunk is {}, but the context of {name} holds {context} tokens", args.chunk);
    let tokens = model.text.encode(&text, false)?;
    let chunks = chunks(&tokens, model.text.bos(), args.chunk).with_context(|| args.file.display().to_string())?;
    let options = LoadOptions {
        batch: AT_ONCE,
        threads: model::threads(&args.model.compute)?,
        context: Some(args.chunk),
        expected: None,
    };
    let engine = model.start(&options)?.handle;
    let count = chunks.len();
    let bar = ProgressBar::new(count as u64);
    bar.set_style(ProgressStyle::with_template("{bar:12} {pos}/{len} chunks {msg} {eta} left").expect("well formed"));
    let begun = std::time::Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let sums = runtime.block_on(measure(&engine, chunks, 2 * AT_ONCE, |sums| {
        bar.inc(1);
        if std::io::stderr().is_terminal() {
            bar.set_message(format!("perplexity {:.3}", sums.perplexity().unwrap_or(f64::NAN)));
        }
    }))?;
    bar.finish_and_clear();
    let document = Document {
        model: name,
        chunk: args.chunk,
        chunks: count,
        tokens_scored: sums.count,
        perplexity: sums.perplexity().filter(|p| p.is_finite()),
        error: sums.error().filter(|e| e.is_finite()),
        seconds: begun.elapsed().as_secs_f64(),
    };
    if args.json {
        emit(&(serde_json::to_string(&document)? + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let number = |value: Option<f64>| value.map_or("–".into(), |v| format!("{v:.4}"));
    emit(&format!("{} +/- {}\n", number(document.perplexity), number(document.error)))?;
    if args.model.compute.verbose > 0 {
        tell(&format!("weaklink: {} tokens in {count} chunks, {:.1} s", document.tokens_scored, document.seconds));
    }
    Ok(ExitCode::SUCCESS)
}

/// The text without the line break at its end.
fn read(path: &Path) -> anyhow::Result<String> {
    let place = || path.display().to_string();
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).with_context(place)?;
    if bytes.len() as u64 > MAX_BYTES {
        bail!("{}: longer than {MAX_BYTES} bytes; give a part of it", place());
    }
    let mut text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => bail!("{}: not UTF-8 after byte {}", place(), error.utf8_error().valid_up_to()),
    };
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(text)
}
