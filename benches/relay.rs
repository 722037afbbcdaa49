//! What the engine makes of a relay: `cargo bench --bench relay -- [--model CARD|FILE] [--batch 1,2,4,16] [--drafts 0,16]`.
//!
//! Each line is one run of `relay --quick` (or of that with other `--formats`, `--items`, `--hops`, `--max-tokens` and
//! `--temperature`) with its own engine: tokens drawn a second, prompt tokens found in the cache, steps, and tokens drawn a step. The messages are the same
//! in every line, which is checked. `--traffic FILE` runs the requests of a file in the form of OpenAI's batches instead,
//! all sent at once. Two more forms: `--steps` prints what a step of so many rows takes, `--soak N`
//! sends N rounds of short requests, of which some are cancelled, and prints the memory in use.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use weaklink::engine::load::OpenModel;
use weaklink::engine::{EngineHandle, EngineLimits, Usage, sampler};
use weaklink::generate::{Backend, Completion, Prompt, Request, Sampling};
use weaklink::store::RunFolder;
use weaklink::studies::relay::plan::PlannedModel;
use weaklink::studies::relay::prepare::{Model, Settings, Tokens};
use weaklink::studies::relay::run::Work;
use weaklink_models::batch::{Batch, Logits};
use weaklink_models::decoder::Decoder;
use weaklink_models::fetch::{FetchOptions, Fetcher, ModelSpec};
use weaklink_models::kv::{BLOCK_SIZE, KvCache};

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    // Run as a test it has nothing to say.
    if !args.iter().any(|arg| arg == "--bench") {
        return Ok(());
    }
    let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
    let numbers = |name: &str, default: &str| -> anyhow::Result<Vec<usize>> {
        let text = value(name).map_or(default, String::as_str);
        text.split(',').map(|n| n.parse().with_context(|| format!("{name} {text}"))).collect()
    };
    let fetcher = Fetcher::new(FetchOptions { offline: true, ..Default::default() });
    let spec: ModelSpec = value("--model").map_or("smollm2-135m", String::as_str).parse()?;
    let local = fetcher.resolve(&spec, &mut |_| {})?;
    let model = OpenModel::open(&local)?;
    let decoder = Arc::new(model.load_decoder()?);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    if args.iter().any(|arg| arg == "--steps") {
        return steps(&decoder, threads);
    }
    if value("--soak").is_some() {
        return soak(&model, decoder, threads, numbers("--soak", "")?[0]);
    }
    let temperature = value("--temperature").map_or(Ok(0.7), |text| text.parse())?;
    let settings = Settings {
        formats: value("--formats").map_or("all", String::as_str).split(',').map(str::to_owned).collect(),
        items: Some(numbers("--items", "2")?[0]),
        hops: numbers("--hops", "3")?[0] as u32,
        temperature,
        max_tokens: numbers("--max-tokens", "384")?[0],
        ..Settings::default()
    };
    println!("batch drafts  tokens/s  cached  steps  tokens/step  drafted accepted");
    let mut messages: Option<Vec<String>> = None;
    let start = |batch, draft_rows| {
        let limits = EngineLimits { batch, step_tokens: 512, blocks: 2048, context: 8192, draft_rows };
        EngineHandle::start(decoder.clone(), model.text.clone(), limits, threads)
    };
    for batch in numbers("--batch", "1,2,4,16")? {
        for drafts in numbers("--drafts", "0,16")? {
            let said = match value("--traffic") {
                Some(file) => traffic(start(batch, drafts)?, file, (batch, drafts))?,
                None => relay(&model, start(batch, drafts)?, &settings, (batch, drafts))?,
            };
            ensure!(messages.get_or_insert_with(|| said.clone()) == &said, "the messages differ");
        }
    }
    Ok(())
}

/// One run and its line; returns its messages.
fn relay(
    open: &OpenModel,
    engine: EngineHandle,
    settings: &Settings,
    (batch, draft_rows): (usize, usize),
) -> anyhow::Result<Vec<String>> {
    let counter = engine.clone();
    let text = open.text.clone();
    let tokens = Tokens {
        context: engine.context(),
        count: Box::new(move |messages| Ok(counter.prompt_ids(&Prompt::Messages(messages.to_vec()))?.len())),
        decode: Box::new(move |ids| text.decode(ids)),
    };
    let isa = weaklink_kernels::Isa::detect().name().into();
    let planned = PlannedModel::Local { identity: open.identity()?, device: "cpu".into(), isa };
    let model = Model { planned, shots: u8::from(open.shots > 0), tokens: Some(tokens) };
    let relay = settings.clone().resolve()?.plan(&[&model])?;
    let folder = tempfile::tempdir()?;
    let store = relay.begin(RunFolder::claim_new(&folder.path().join("run"))?, &())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (begun, mut last) = (Instant::now(), None);
    let report = |progress: &weaklink::studies::relay::run::Progress| last = Some(progress.clone());
    let backend = Backend::Local(engine.clone());
    let work = Work { model: &model, backend: &backend, items: relay.items.len(), batch };
    runtime.block_on(relay.drive(work, &store, std::future::pending(), report))?;
    let (seconds, progress) = (begun.elapsed().as_secs_f64(), last.context("no progress")?);
    line((batch, draft_rows), progress.generated_tokens, seconds, progress.cached_share(), engine.usage());
    Ok(store.hops()?.into_iter().map(|hop| hop.message).collect())
}

/// The requests of a file, all at once, and their line; returns their texts.
fn traffic(engine: EngineHandle, file: &str, (batch, draft_rows): (usize, usize)) -> anyhow::Result<Vec<String>> {
    let mut requests = Vec::new();
    for text in std::fs::read_to_string(file)?.lines() {
        let body = serde_json::from_str::<serde_json::Value>(text)?["body"].take();
        requests.push(Request {
            logprobs: None,
            grammar: None,
            prompt: Prompt::Messages(serde_json::from_value(body["messages"].clone())?),
            max_tokens: body["max_tokens"].as_u64().context("max_tokens")? as usize,
            sampling: Sampling { temperature: body["temperature"].as_f64().unwrap_or(1.0) as f32, ..Sampling::GREEDY },
            stop: Vec::new(),
            seed: body["seed"].as_u64().unwrap_or(0),
        });
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let begun = Instant::now();
    let asked = requests.into_iter().map(|request| engine.generate(request));
    let found = runtime.block_on(futures_util::future::try_join_all(asked))?;
    let sum = |count: fn(&Completion) -> usize| found.iter().map(count).sum::<usize>();
    let cached = sum(|found| found.cached_tokens) as f64 / sum(|found| found.prompt_tokens) as f64;
    let generated = sum(|found| found.generated_tokens) as u64;
    line((batch, draft_rows), generated, begun.elapsed().as_secs_f64(), cached, engine.usage());
    Ok(found.into_iter().map(|found| found.text).collect())
}

fn line((batch, draft_rows): (usize, usize), generated: u64, seconds: f64, cached: f64, usage: Usage) {
    println!(
        "{batch:5} {draft_rows:6}  {:8.1}  {:4.0} %  {:5}  {:11.2}  {:7} {:8}",
        generated as f64 / seconds,
        100.0 * cached,
        usage.steps,
        generated as f64 / usage.steps as f64,
        usage.drafted,
        usage.accepted,
    );
}

/// What a step takes, by its rows: those of one sequence, or of as many sequences, after 500 tokens.
fn steps(decoder: &Decoder, threads: usize) -> anyhow::Result<()> {
    const PAST: usize = 500;
    let workers = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let blocks = (PAST + 64).div_ceil(BLOCK_SIZE);
    let mut cache = KvCache::new(decoder.config(), 64 * blocks, decoder.device())?;
    println!("rows  one sequence (ms)  as many sequences (ms)");
    for rows in [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64] {
        let table = |n: usize| (n * blocks..(n + 1) * blocks).map(|block| block as u32).collect::<Vec<_>>();
        let mut one = Batch::default();
        one.push(&vec![7; rows], PAST, &table(0), BLOCK_SIZE, Logits::All);
        let mut many = Batch::default();
        (0..rows).for_each(|n| many.push(&[7], PAST, &table(n), BLOCK_SIZE, Logits::All));
        let mut best = |batch: &Batch| -> anyhow::Result<f64> {
            let mut best = f64::INFINITY;
            for _ in 0..15 {
                let begun = Instant::now();
                workers.install(|| decoder.forward(batch, &mut cache))?;
                best = best.min(begun.elapsed().as_secs_f64());
            }
            Ok(1e3 * best)
        };
        println!("{rows:4}  {:17.2}  {:22.2}", best(&one)?, best(&many)?);
    }
    let logits: Vec<f32> = (0..decoder.config().vocab).map(|id| (id * 7919 % 1000) as f32 * 0.02).collect();
    for temperature in [0.0, 0.7] {
        let sampling = Sampling { temperature, top_k: None, top_p: None };
        let begun = Instant::now();
        for index in 0..50 {
            std::hint::black_box(sampler::draw(&logits, &sampling, 0, index)?);
        }
        println!("a draw at temperature {temperature}: {:.2} ms", 1e3 * begun.elapsed().as_secs_f64() / 50.0);
    }
    Ok(())
}

/// Rounds of 100 short requests; about 4 in 10 are cancelled.
fn soak(model: &OpenModel, decoder: Arc<Decoder>, threads: usize, rounds: usize) -> anyhow::Result<()> {
    let vocab = model.config.vocab;
    let limits = EngineLimits { batch: 8, step_tokens: 64, blocks: 48, context: 768, draft_rows: 16 };
    let engine = EngineHandle::start(decoder, model.text.clone(), limits, threads)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    for round in 0..rounds {
        let ask = |n: usize| Request {
            logprobs: None,
            grammar: None,
            prompt: Prompt::Tokens((0..1 + (n * 7 + round) % 90).map(|i| ((i * i + n % 5) % vocab) as u32).collect()),
            max_tokens: 1 + n % 24,
            sampling: Sampling { temperature: 0.7, top_k: None, top_p: None },
            stop: Vec::new(),
            seed: (round * 100 + n) as u64,
        };
        runtime.block_on(async {
            let asked: Vec<_> = (0..100)
                .map(|n| {
                    let (engine, request) = (engine.clone(), ask(n));
                    tokio::spawn(async move { engine.generate(request).await })
                })
                .collect();
            for (n, task) in asked.into_iter().enumerate() {
                if (n * 31 + round * 17) % 10 < 4 {
                    task.abort();
                } else {
                    task.await??;
                }
            }
            anyhow::Ok(())
        })?;
        if (round + 1) % rounds.div_ceil(10) == 0 {
            // Those who left last are noticed at the next step.
            runtime.block_on(engine.generate(ask(0)))?;
            let usage = engine.usage();
            ensure!(usage.running + usage.waiting == 0 && usage.free_blocks == usage.blocks, "{usage:?}");
            let memory = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
            let resident = memory.lines().find(|line| line.starts_with("VmRSS")).unwrap_or("unknown");
            println!("{} requests, all {} blocks free, {resident}", 100 * (round + 1), usage.blocks);
        }
    }
    Ok(())
}
