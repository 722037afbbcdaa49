//! `weaklink doctor`: what this machine offers, which models fit, and what is
//! wrong with any of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use weaklink_kernels::Isa;
use weaklink_models::card::{Card, DEFAULT_CARD};
use weaklink_models::fetch::{FetchOptions, Fetcher, free_space};

use super::models::{align, megabytes};
use super::output::emit;
use crate::memory::Memory;

/// Tokens of K/V that "fits" leaves room for: eight relays of 2,048 tokens at once.
const KV_TOKENS: u64 = 16_384;
/// Activations, logits and the program itself.
const SCRATCH: u64 = 300 << 20;
/// How long a program asked for its version may take.
const ASK: Duration = Duration::from_secs(10);

/// Say what this machine offers, which models fit, and what is wrong
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  weaklink doctor\n  weaklink doctor --online\n  weaklink doctor --json | jq .problems\n\n\
    Exit code 0: everything needed is there; 1: something must be mended first."
)]
pub(crate) struct DoctorArgs {
    /// Also ask the hub whether it answers
    #[arg(long)]
    online: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    /// The instruction set that computes, the widest of `isas`.
    isa: &'static str,
    isas: Vec<&'static str>,
    threads: usize,
    memory: Memory,
    devices: Vec<Device>,
    cache: Cache,
    hub: HubState,
    pip: Option<String>,
    cards: Vec<CardState>,
    problems: Vec<Problem>,
}

#[derive(Serialize)]
struct Device {
    name: &'static str,
    usable: bool,
    note: &'static str,
}

#[derive(Serialize)]
struct Cache {
    path: Option<PathBuf>,
    writable: bool,
    free: Option<u64>,
}

#[derive(Serialize)]
struct HubState {
    host: String,
    offline: bool,
    token: bool,
    /// Names of the proxy variables that are set; their values may hold passwords.
    proxies: Vec<&'static str>,
    /// Null when it was not asked.
    answers: Option<bool>,
}

#[derive(Serialize)]
struct CardState {
    name: &'static str,
    cached: bool,
    /// Weights, K/V of 16,384 tokens, and scratch, in bytes.
    needs: u64,
    /// Null when the available memory is not known.
    fits: Option<bool>,
}

#[derive(Serialize)]
struct Problem {
    /// Whether the program cannot work before it is mended.
    serious: bool,
    what: String,
    way_out: String,
}

pub(crate) fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let report = examine(&Fetcher::new(FetchOptions::default()), args.online);
    let text = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { page(&report) };
    emit(&text)?;
    let serious = report.problems.iter().any(|problem| problem.serious);
    Ok(if serious { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn examine(fetcher: &Fetcher, online: bool) -> Report {
    let mut problems = Vec::new();
    let mut problem = |serious, what: String, way_out: &str| {
        problems.push(Problem { serious, what, way_out: way_out.to_owned() });
    };
    let memory = Memory::read();
    let cards: Vec<CardState> = Card::all()
        .iter()
        .map(|card| {
            let needs = needed_memory(card);
            let fits = memory.available.map(|free| needs <= free);
            CardState { name: &card.name, cached: fetcher.cached(card).is_some(), needs, fits }
        })
        .collect();
    for card in cards.iter().filter(|card| card.name == DEFAULT_CARD && card.fits == Some(false)) {
        let free = memory.available.unwrap_or(0);
        let what = format!("{} needs {}, {} of memory are free", card.name, megabytes(card.needs), megabytes(free));
        problem(true, what, "close other programs, or raise the container's memory limit");
    }
    let default_cached = cards.iter().any(|card| card.name == DEFAULT_CARD && card.cached);

    let path = fetcher.cache_folder().ok().map(Path::to_owned);
    let cache = match &path {
        None => {
            let what = "no cache folder: neither XDG_CACHE_HOME nor HOME is set".to_owned();
            problem(true, what, "set XDG_CACHE_HOME to a folder with room for models");
            Cache { path: None, writable: false, free: None }
        }
        Some(folder) => {
            let unwritable = write_error(folder);
            if let Some(error) = &unwritable {
                let what = format!("the cache folder {} cannot be written: {error}", folder.display());
                problem(!default_cached, what, "mend its permissions, or set XDG_CACHE_HOME to another folder");
            }
            let free = free_space(folder);
            let default = Card::by_name(DEFAULT_CARD).map_or(0, Card::size);
            if free.is_some_and(|free| free < default) && !default_cached {
                let what = format!("the disk of the cache folder {} is full", folder.display());
                problem(true, what, "free some space, or set XDG_CACHE_HOME to another disk");
            }
            Cache { path, writable: unwritable.is_none(), free }
        }
    };

    let pip = pip_version();
    if let Err(error) = &pip {
        let what = format!("python3 -m pip does not work ({error})");
        problem(false, what, "only needed where the hub cannot be reached: install Python 3 with pip");
    }
    let answers = online.then(|| fetcher.probe_hub());
    if let Some(Err(error)) = &answers {
        problem(
            false,
            error.clone(),
            "set HF_ENDPOINT to a mirror or HTTPS_PROXY to your proxy; some cards also come as Python packages",
        );
    }
    if fetcher.is_offline() && !default_cached {
        let what = format!("HF_HUB_OFFLINE is set and {DEFAULT_CARD} is not cached");
        problem(true, what, "unset it for `weaklink pull`, or copy the cache from another machine");
    }
    Report {
        version: env!("CARGO_PKG_VERSION"),
        isa: Isa::detect().name(),
        isas: Isa::available().into_iter().map(Isa::name).collect(),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        memory,
        devices: vec![
            Device { name: "cpu", usable: true, note: "" },
            Device { name: "cuda", usable: false, note: "not built in: this build computes on the CPU only" },
        ],
        cache,
        hub: HubState {
            host: fetcher.hub_host().to_owned(),
            offline: fetcher.is_offline(),
            token: fetcher.has_token(),
            proxies: set_proxies(),
            answers: answers.map(|answer| answer.is_ok()),
        },
        pip: pip.ok(),
        cards,
        problems,
    }
}

/// Memory a card's model takes when it runs: weights with a tenth for what is
/// repacked, K/V, and scratch.
fn needed_memory(card: &Card) -> u64 {
    card.size() + card.size() / 10 + card.kv_bytes_per_token * KV_TOKENS + SCRATCH
}

fn set_proxies() -> Vec<&'static str> {
    let names =
        ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"];
    names.into_iter().filter(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())).collect()
}

/// Why a file cannot be made in the folder, or in the closest parent that exists.
fn write_error(folder: &Path) -> Option<std::io::Error> {
    let existing = folder.ancestors().find(|path| path.exists()).unwrap_or(folder);
    let probe = existing.join(format!(".weaklink-doctor-{}", std::process::id()));
    match fs::OpenOptions::new().write(true).create_new(true).open(&probe) {
        Ok(_) => fs::remove_file(&probe).err(),
        Err(error) => Some(error),
    }
}

/// What `python3 -m pip --version` prints, or why it does not.
fn pip_version() -> Result<String, String> {
    let mut child = Command::new("python3")
        .args(["-m", "pip", "--version"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let start = Instant::now();
    while start.elapsed() < ASK {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => {
                let output = child.wait_with_output().map_err(|error| error.to_string())?;
                let text = String::from_utf8_lossy(&output.stdout);
                // "pip 24.0 from PATH (python 3.12)"; the path is of no interest.
                return Ok(text.split_whitespace().take(2).collect::<Vec<_>>().join(" "));
            }
            Ok(Some(status)) => return Err(format!("it ends with {status}")),
            Ok(None) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error.to_string()),
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(format!("no answer in {} s", ASK.as_secs()))
}

fn page(report: &Report) -> String {
    let bytes = |value: Option<u64>| value.map_or("unknown".to_owned(), megabytes);
    let yes = |value: bool| if value { "yes" } else { "no" };
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: &str, text: String| rows.push(vec![name.to_owned(), text]);
    row("weaklink", report.version.to_owned());
    row("isa", format!("{} (of {})", report.isa, report.isas.join(", ")));
    row("threads", report.threads.to_string());
    row("memory", format!("{}, {} free", bytes(report.memory.total), bytes(report.memory.available)));
    for device in &report.devices {
        let note = if device.note.is_empty() { String::new() } else { format!(" ({})", device.note) };
        row("device", format!("{}: {}{note}", device.name, if device.usable { "usable" } else { "not usable" }));
    }
    let path = report.cache.path.as_ref().map_or("none".to_owned(), |path| path.display().to_string());
    let writable = if report.cache.writable { "writable" } else { "not writable" };
    row("cache", format!("{path}: {writable}, {} free", bytes(report.cache.free)));
    let answers = match report.hub.answers {
        None => "not asked (--online asks)",
        Some(true) => "answers",
        Some(false) => "does not answer",
    };
    let proxies = if report.hub.proxies.is_empty() { "none".to_owned() } else { report.hub.proxies.join(", ") };
    let offline = if report.hub.offline { ", offline by HF_HUB_OFFLINE" } else { "" };
    row("hub", format!("{}: {answers}{offline}; token: {}; proxy: {proxies}", report.hub.host, yes(report.hub.token)));
    row("pip", report.pip.clone().unwrap_or("not found".to_owned()));
    let mut text = align(&rows);

    let mut cards = vec![["MODEL", "CACHED", "NEEDS", "FITS"].map(str::to_owned).to_vec()];
    for card in &report.cards {
        let fits = card.fits.map_or("unknown", yes);
        cards.push(vec![card.name.to_owned(), yes(card.cached).to_owned(), megabytes(card.needs), fits.to_owned()]);
    }
    text += &format!("\n{}(needs: weights, K/V of {KV_TOKENS} tokens, scratch)\n\n", align(&cards));
    if report.problems.is_empty() {
        text += "Nothing is wrong.\n";
    }
    for problem in &report.problems {
        let mark = if problem.serious { "ERROR" } else { "note" };
        text += &format!("{mark}: {}; {}\n", problem.what, problem.way_out);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_needed_memory_is_weights_cache_and_scratch() {
        let card = Card::by_name(DEFAULT_CARD).expect("default card");
        // 98,362,432 + 9,836,243 + 23,040 · 16,384 + 314,572,800
        assert_eq!(needed_memory(card), 800_258_835);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_serious_only_while_nothing_is_cached() {
        let folder = tempfile::tempdir().expect("folder");
        let blocked = folder.path().join("file");
        fs::write(&blocked, b"in the way").expect("write");
        let options = FetchOptions { cache: Some(blocked.join("cache")), ..Default::default() };
        let report = examine(&Fetcher::new(options), false);
        assert!(!report.cache.writable);
        let problem = report.problems.iter().find(|p| p.what.contains("cannot be written")).expect("a problem");
        assert!(problem.serious && problem.way_out.contains("XDG_CACHE_HOME"));

        let options = FetchOptions { cache: Some(folder.path().join("not/yet")), ..Default::default() };
        let report = examine(&Fetcher::new(options), false);
        assert!(report.cache.writable && report.hub.answers.is_none());
        assert!(!folder.path().join("not").exists(), "doctor changes nothing");
        let text = page(&report);
        for want in ["isa", "threads", "memory", "not built in", "smollm2-135m", "not asked"] {
            assert!(text.contains(want), "'{want}' is not in:\n{text}");
        }
    }
}
