//! Multi-hop agent relays on small local language models, in one process, and
//! the measurement of what gets lost on the way.
//!
//! [`engine`] batches many sequences through one model; [`generate`] is what
//! studies see of it; [`studies`] plan trials and drive them; [`store`] keeps
//! every hop the moment it is done; [`score`] and [`stats`] read the store.
//! [`batch`] answers files of requests, [`perplexity`] measures a model by a text.
//!
//! # As a library
//!
//! Load a model, submit requests from any async program, await or stream them. Those that are
//! submitted together are computed together, and none changes another's text.
//!
//! ```no_run
//! use weaklink::engine::load::{LoadOptions, OpenModel};
//! use weaklink::generate::{Message, Prompt, Request, Role};
//! use weaklink_models::fetch::{FetchOptions, Fetcher};
//!
//! # async fn example() -> anyhow::Result<()> {
//! let spec = "smollm2-135m".parse()?; // a card, a file or a folder
//! let local = Fetcher::new(FetchOptions::default()).resolve(&spec, &mut |_| {})?;
//! let options = LoadOptions { batch: 8, threads: 2, context: None, expected: None };
//! let engine = OpenModel::open(&local)?.start(&options)?.handle; // clones share the engine
//!
//! let prompt = Prompt::Messages(vec![Message::new(Role::User, "Name a river.")]);
//! let completion = engine.generate(Request::new(prompt.clone(), 32)).await?;
//! println!("{} ({} tokens)", completion.text, completion.generated_tokens);
//!
//! // Log-probabilities of a given answer; nothing is drawn.
//! let answer = engine.text().encode("The Danube.", false)?;
//! println!("{:?}", engine.score(&prompt, &answer).await?);
//! # Ok(())
//! # }
//! ```
//!
//! `examples/engine.rs` also streams; `examples/custom_study.rs` is a small study.
#![forbid(unsafe_code)]

pub mod batch;
pub mod bench;
pub mod cli;
pub mod engine;
pub mod generate;
mod hash;
mod in_order;
mod memory;
pub mod perplexity;
pub mod score;
pub mod selfcheck;
pub mod stats;
pub mod store;
pub mod studies;
mod terminal;
