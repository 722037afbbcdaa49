//! A study of one's own: does a small model copy a code word better when it is said twice?
//!
//! `cargo run --release --example custom_study [MODEL]`

use weaklink::engine::load::{LoadOptions, OpenModel};
use weaklink::generate::{Backend, Message, Prompt, Request, Role};
use weaklink_models::fetch::{FetchOptions, Fetcher};

const CONDITIONS: [(&str, &str); 2] =
    [("once", "The code is {code}. Say the code."), ("twice", "The code is {code}. I repeat: {code}. Say the code.")];
const TRIALS: usize = 20;

/// One trial: a message goes in, whether its code comes out again.
async fn trial(backend: Backend, template: &str, number: usize) -> anyhow::Result<bool> {
    let code = format!("K{}-{}", 2 + number % 8, 1000 + 737 * number % 9000);
    let message = Message::new(Role::User, template.replace("{code}", &code));
    let request = Request { seed: number as u64, ..Request::new(Prompt::Messages(vec![message]), 24) };
    Ok(backend.generate(request).await?.text.contains(&code))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let spec = std::env::args().nth(1).unwrap_or_else(|| "smollm2-135m".into()).parse()?;
    let local = Fetcher::new(FetchOptions::default()).resolve(&spec, &mut |_| {})?;
    let threads = std::thread::available_parallelism()?.get();
    let model = OpenModel::open(&local)?.start(&LoadOptions { batch: 8, threads, context: None, expected: None })?;
    let backend = Backend::Local(model.handle);
    for (name, template) in CONDITIONS {
        let mut trials = tokio::task::JoinSet::new();
        (0..TRIALS).for_each(|number| drop(trials.spawn(trial(backend.clone(), template, number))));
        let kept = trials.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let kept = kept.into_iter().filter(|kept| *kept).count();
        println!("{name}: {kept} of {TRIALS} codes kept");
    }
    Ok(())
}
