//! The engine inside a program of one's own: load, submit many requests, await them, stream one, score a text.
//!
//! `cargo run --release --example engine [MODEL]`

use weaklink::engine::load::{LoadOptions, OpenModel};
use weaklink::generate::{Message, Prompt, Request, Role};
use weaklink_models::fetch::{FetchOptions, Fetcher};

fn ask(question: &str) -> Request {
    let messages = vec![Message::new(Role::System, "Answer in one sentence."), Message::new(Role::User, question)];
    Request::new(Prompt::Messages(messages), 40)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // A card, a file or a folder; fetched once, checked by length and hash.
    let spec = std::env::args().nth(1).unwrap_or_else(|| "smollm2-135m".into()).parse()?;
    let local = Fetcher::new(FetchOptions::default()).resolve(&spec, &mut |_| {})?;
    let threads = std::thread::available_parallelism()?.get();
    let engine =
        OpenModel::open(&local)?.start(&LoadOptions { batch: 8, threads, context: None, expected: None })?.handle;

    // Requests that are submitted together are computed together. None of them changes another's text.
    let mut answers = tokio::task::JoinSet::new();
    for question in ["What is a river?", "What is a relay?", "What is a quorum?"] {
        let engine = engine.clone();
        answers.spawn(async move { (question, engine.generate(ask(question)).await) });
    }
    while let Some(answer) = answers.join_next().await {
        let (question, completion) = answer?;
        println!("{question} {}", completion?.text.trim());
    }

    // One text as it grows. Dropping the future would cancel it.
    let (pieces, mut received) = tokio::sync::mpsc::unbounded_channel();
    let streaming = tokio::spawn({
        let engine = engine.clone();
        async move { engine.stream(ask("What is an isthmus?"), pieces).await }
    });
    while let Some(piece) = received.recv().await {
        print!("{piece}");
    }
    println!(" ({} tokens)", streaming.await??.generated_tokens);

    // How likely is a given answer? Nothing is drawn.
    let prompt = Prompt::Tokens(engine.text().encode("The capital of France is", false)?);
    for answer in [" Paris", " Rome"] {
        let logprobs = engine.score(&prompt, &engine.text().encode(answer, false)?).await?;
        println!("log P({answer}) = {:.3}", logprobs.iter().sum::<f64>());
    }
    Ok(())
}
