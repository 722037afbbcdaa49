//! `weaklink pull`: fetch models into the cache, and the progress display every
//! command uses that needs a model.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use weaklink_models::fetch::{FetchError, FetchOptions, Fetcher, LocalModel, ModelSpec, Progress};

use super::models::megabytes;
use super::output::{emit, tell};

/// Fetch models into the cache and print their paths
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  weaklink pull smollm2-135m\n  weaklink pull qwen2.5-1.5b all-minilm-l6-v2\n  \
    weaklink pull hub:Qwen/Qwen2.5-3B-Instruct-GGUF/qwen2.5-3b-instruct-q4_k_m.gguf\n\n\
    HF_ENDPOINT names a mirror of the hub, HF_TOKEN opens gated models, XDG_CACHE_HOME moves the cache.")]
pub(crate) struct PullArgs {
    /// Cards (see `weaklink models`) or hub:OWNER/REPO[@REV]/FILE
    #[arg(required = true, value_name = "CARD")]
    models: Vec<String>,
    /// Only say where they are in the cache; never go online
    #[arg(long)]
    offline: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Pulled {
    name: String,
    path: Option<PathBuf>,
    bytes: Option<u64>,
    error: Option<String>,
}

pub(crate) fn run(args: PullArgs) -> anyhow::Result<ExitCode> {
    let mut pulled = Vec::new();
    for text in &args.models {
        let row = match resolve(text, args.offline) {
            Ok(model) => {
                if !args.json {
                    emit(&format!("{}\n", model.path.display()))?;
                }
                Pulled { name: model.name, bytes: size_of(&model.path), path: Some(model.path), error: None }
            }
            Err(error) => Pulled { name: text.clone(), path: None, bytes: None, error: Some(error.to_string()) },
        };
        pulled.push(row);
    }
    if args.json {
        emit(&(serde_json::to_string_pretty(&serde_json::json!({ "models": pulled }))? + "\n"))?;
    }
    let errors: Vec<String> = pulled.into_iter().filter_map(|row| row.error).collect();
    if !errors.is_empty() {
        anyhow::bail!("{}", errors.join(" | "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Length of a file, or of all files in a folder.
fn size_of(path: &std::path::Path) -> Option<u64> {
    let meta = std::fs::metadata(path).ok()?;
    if meta.is_file() {
        return Some(meta.len());
    }
    std::fs::read_dir(path).ok()?.flatten().map(|entry| size_of(&entry.path())).sum()
}

/// Finds the model a command names, fetching it when it is not cached.
///
/// # Errors
/// One line that says what is missing and what to do.
pub(crate) fn resolve(text: &str, offline: bool) -> Result<LocalModel, FetchError> {
    let fetcher = Fetcher::new(FetchOptions { offline, ..Default::default() });
    let mut display = Display::new();
    let result = text.parse::<ModelSpec>().and_then(|spec| fetcher.resolve(&spec, &mut |event| display.show(event)));
    display.finish();
    result
}

/// A bar on a terminal; elsewhere a line when a file begins.
struct Display {
    terminal: bool,
    bar: Option<ProgressBar>,
    current: String,
}

impl Display {
    fn new() -> Self {
        Display { terminal: std::io::stderr().is_terminal(), bar: None, current: String::new() }
    }

    fn show(&mut self, event: Progress<'_>) {
        match event {
            Progress::Bytes { file, done, total, source } => {
                self.begin(&format!("{file} from {source}"), total);
                if let Some(bar) = &self.bar {
                    bar.set_position(done);
                }
            }
            Progress::Waiting { source } => self.begin(source, None),
            Progress::Note(text) => match &self.bar {
                Some(bar) => bar.suspend(|| tell(&format!("weaklink: {text}"))),
                None => tell(&format!("weaklink: {text}")),
            },
        }
    }

    fn begin(&mut self, what: &str, total: Option<u64>) {
        if self.current == what {
            return;
        }
        self.finish();
        self.current = what.to_owned();
        if !self.terminal {
            let size = total.map_or(String::new(), |total| format!(", {}", megabytes(total)));
            tell(&format!("weaklink: fetching {what}{size}"));
            return;
        }
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        let template = match total {
            Some(_) => "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
            None => "{spinner} {msg} {elapsed}",
        };
        bar.set_style(ProgressStyle::with_template(template).expect("the templates above are valid"));
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        self.bar = Some(bar);
    }

    fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.current.clear();
    }
}
