//! `weaklink bench`: tokens a second of prefill and decode.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::bail;
use clap::ValueEnum;
use serde::Serialize;

use super::output::emit;
use super::{ModelArgs, model};
use crate::bench::{Measured, Speed, Workload};
use crate::engine::load::OpenModel;
use crate::memory::peak_rss;

/// Measure tokens per second: prompts in steps of 512 tokens, then one token a sequence and step
///
/// Prefill counts the prompt tokens computed, decode the tokens of all sequences together.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  weaklink bench --model ./qwen.gguf --batch 1,8,32\n  \
    weaklink bench --pp 512 --tg 64 --batch 16 --shared-prefix -r 5 --output jsonl")]
pub(crate) struct BenchArgs {
    /// Prompt tokens of each sequence
    #[arg(long, default_value_t = 128, value_name = "N", allow_negative_numbers = true)]
    pp: usize,
    /// Tokens decoded for each sequence
    #[arg(long, default_value_t = 32, value_name = "N", allow_negative_numbers = true)]
    tg: usize,
    /// Sequences at once; a test each
    #[arg(long, default_value = "1,8,32", value_name = "N,…", value_delimiter = ',', allow_negative_numbers = true)]
    batch: Vec<usize>,
    /// All sequences have one prompt: it is computed once and its cache blocks are shared
    #[arg(long)]
    shared_prefix: bool,
    /// Times to measure each test; more than one gives a standard deviation
    #[arg(short, long, default_value_t = 3, value_name = "N", allow_negative_numbers = true)]
    repeats: usize,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Output::Md, value_name = "FORMAT")]
    output: Output,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Output {
    /// A Markdown table
    Md,
    /// Comma-separated values with a header
    Csv,
    /// One array
    Json,
    /// One object a line
    Jsonl,
}

/// One test. The order of the fields is that of the columns.
#[derive(Serialize)]
struct Row {
    model: String,
    quant: String,
    device: &'static str,
    isa: &'static str,
    threads: usize,
    batch: usize,
    pp: usize,
    tg: usize,
    shared_prefix: bool,
    repeats: usize,
    prefill_tps: Option<f64>,
    prefill_sd: Option<f64>,
    decode_tps: Option<f64>,
    decode_sd: Option<f64>,
    load_seconds: f64,
    peak_rss_bytes: Option<u64>,
}

const MD_HEADER: &str = "| model | quant | isa | threads | batch | pp | tg | prefill t/s | decode t/s | load s | peak MiB |\n\
    |---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n";

pub(crate) fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    if args.repeats == 0 {
        bail!("-r 0 measures nothing; give 1 or more");
    }
    let threads = model::threads(&args.model.compute)?;
    let workers = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let local = model::find(&args.model)?;
    let begun = Instant::now();
    let model = OpenModel::open(&local)?;
    let works: Vec<Workload> = args
        .batch
        .iter()
        .map(|&batch| Workload { prompt: args.pp, decode: args.tg, batch, shared_prefix: args.shared_prefix })
        .collect();
    // What cannot run is refused before minutes are spent on what can.
    works.iter().try_for_each(|work| work.check(&model.config))?;
    let decoder = workers.install(|| model.load_decoder())?;
    let load_seconds = begun.elapsed().as_secs_f64();
    let mut rows = Vec::new();
    for work in works {
        let measured = workers.install(|| work.measure(&decoder, args.repeats))?;
        let row = Row {
            model: model.name.clone(),
            quant: model.quantization(),
            device: "cpu",
            isa: decoder.isa().name(),
            threads,
            load_seconds,
            peak_rss_bytes: peak_rss(),
            ..Row::of(&work, &measured, args.repeats)
        };
        let first = rows.is_empty();
        let written = match args.output {
            Output::Json => true,
            Output::Jsonl => emit(&(serde_json::to_string(&row)? + "\n"))?,
            Output::Csv => emit(&row.csv(first)?)?,
            Output::Md => emit(&row.markdown(first))?,
        };
        if !written {
            return Ok(ExitCode::SUCCESS);
        }
        rows.push(row);
    }
    if args.output == Output::Json {
        emit(&(serde_json::to_string_pretty(&rows)? + "\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Row {
    fn of(work: &Workload, measured: &Measured, repeats: usize) -> Self {
        let mean = |speed: Option<Speed>| speed.map(|s| s.mean);
        let sd = |speed: Option<Speed>| speed.and_then(|s| s.sd);
        Self {
            model: String::new(),
            quant: String::new(),
            device: "",
            isa: "",
            threads: 0,
            batch: work.batch,
            pp: work.prompt,
            tg: work.decode,
            shared_prefix: work.shared_prefix,
            repeats,
            prefill_tps: mean(measured.prefill),
            prefill_sd: sd(measured.prefill),
            decode_tps: mean(measured.decode),
            decode_sd: sd(measured.decode),
            load_seconds: 0.0,
            peak_rss_bytes: None,
        }
    }

    /// A line, before the first one the names of the columns. What does not exist is an empty field.
    fn csv(&self, header: bool) -> anyhow::Result<String> {
        let json = serde_json::to_value(self)?;
        let fields = json.as_object().into_iter().flatten();
        let field = |value: &serde_json::Value| match value {
            serde_json::Value::Null => String::new(),
            serde_json::Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
            other => other.to_string(),
        };
        let (names, values): (Vec<String>, Vec<String>) = fields.map(|(name, v)| (name.clone(), field(v))).unzip();
        Ok(if header { names.join(",") + "\n" } else { String::new() } + &values.join(",") + "\n")
    }

    fn markdown(&self, header: bool) -> String {
        let speed = |mean: Option<f64>, sd: Option<f64>| match (mean, sd) {
            (Some(mean), Some(sd)) => format!("{mean:.1} ± {sd:.1}"),
            (Some(mean), None) => format!("{mean:.1}"),
            _ => "–".into(),
        };
        format!(
            "{}| {} | {} | {} | {} | {} | {}{} | {} | {} | {} | {:.2} | {} |\n",
            if header { MD_HEADER } else { "" },
            self.model.replace('|', "/"),
            self.quant,
            self.isa,
            self.threads,
            self.batch,
            self.pp,
            if self.shared_prefix { " shared" } else { "" },
            self.tg,
            speed(self.prefill_tps, self.prefill_sd),
            speed(self.decode_tps, self.decode_sd),
            self.load_seconds,
            self.peak_rss_bytes.map_or("–".into(), |bytes| (bytes >> 20).to_string()),
        )
    }
}
