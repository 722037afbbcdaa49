//! A stand-in for a model, and short ways to make and read runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use weaklink::engine::load::ModelIdentity;
use weaklink::generate::{Backend, Completion, Finish, GenerateError, Prompt, Request};
use weaklink::store::{HopRow, RunFolder, Store};
use weaklink::studies::relay::plan::PlannedModel;
use weaklink::studies::relay::prepare::{Model, Relay, Settings, Tokens};
use weaklink::studies::relay::run::{Ending, Work};

/// The message that a request asks to be passed on.
pub fn message_of(request: &Request) -> &str {
    let Prompt::Messages(messages) = &request.prompt else { panic!("a relay sends messages") };
    &messages.last().expect("at least one message").content
}

/// Passes on about nine words in ten and signs with a hash of the whole request:
/// whatever changes in a request shows in this message and in all that follow.
pub fn forgetful(request: &Request) -> Result<Completion, GenerateError> {
    let text = serde_json::to_string(request).expect("a request has a JSON form");
    let hash = Sha256::digest(text.as_bytes());
    let words = message_of(request).split_whitespace().filter(|word| !word.starts_with('#'));
    let kept = words.enumerate().filter(|(index, _)| !(hash[index % 32] as usize + index).is_multiple_of(10));
    let mut kept: Vec<_> = kept.map(|(_, word)| word.to_owned()).collect();
    kept.push(format!("#{:02x}{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2], hash[3]));
    Ok(Completion {
        text: kept.join(" "),
        token_ids: Vec::new(),
        finish: if hash[4] < 64 { Finish::Length } else { Finish::Stop },
        cut_in_char: false,
        logprobs: None,
        prompt_tokens: text.split_whitespace().count(),
        cached_tokens: 3,
        generated_tokens: kept.len(),
        drafted_tokens: 0,
        accepted_tokens: 0,
        seconds: 0.25,
    })
}

/// A model and what answers for it.
pub struct StandIn {
    pub model: Model,
    pub backend: Backend,
}

impl StandIn {
    pub fn work(&self, relay: &Relay, batch: usize) -> Work<'_> {
        Work { model: &self.model, backend: &self.backend, items: relay.items.len(), batch }
    }
}

pub fn model(program: impl Fn(&Request) -> Result<Completion, GenerateError> + Send + Sync + 'static) -> StandIn {
    let tokens = Tokens {
        context: 100_000,
        count: Box::new(|messages| Ok(messages.iter().map(|m| m.content.split_whitespace().count()).sum())),
        decode: Box::new(|ids| ids.iter().filter_map(|&id| char::from_u32(id)).collect()),
    };
    let identity = ModelIdentity {
        name: "forgetful".into(),
        sha256: "f0".into(),
        quantization: "none".into(),
        template: Some("t0".into()),
        folds_system: false,
        family: "llama".into(),
    };
    let planned = PlannedModel::Local { identity, device: "cpu".into(), isa: "scalar".into() };
    StandIn { model: Model { planned, shots: 1, tokens: Some(tokens) }, backend: Backend::Program(Arc::new(program)) }
}

pub fn settings() -> Settings {
    Settings {
        formats: vec!["constr".into(), "kv".into()],
        items: Some(3),
        hops: 4,
        max_tokens: 300,
        replicates: 2,
        seed: 11,
        ..Settings::default()
    }
}

pub fn plan(settings: Settings, stand_in: &StandIn) -> Relay {
    settings.resolve().expect("good settings").plan(&[&stand_in.model]).expect("one model that fits")
}

pub fn begin(relay: &Relay, dir: &Path) -> Store {
    relay.begin(RunFolder::claim_new(dir).expect("a free folder"), &"a test").expect("a new run")
}

/// Drives what is left of a run to its end.
pub fn finish(relay: &Relay, stand_in: &StandIn, store: &Store, batch: usize) -> Ending {
    let drive = relay.drive(stand_in.work(relay, batch), store, std::future::pending(), |_| {});
    let ending = runtime().block_on(drive).expect("the store can be written");
    relay.conclude(store, relay.items.len()).expect("the store can be written");
    ending
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// All that a run says about its messages and nothing that a clock or the size of a batch says, by chain and hop.
pub fn messages(hops: &[HopRow]) -> BTreeMap<(String, u32), HopRow> {
    let timeless =
        |hop: &HopRow| HopRow { seconds: 0.0, ended: 0.0, drafted_tokens: 0, accepted_tokens: 0, ..hop.clone() };
    let map: BTreeMap<_, _> = hops.iter().map(|hop| ((hop.trial.clone(), hop.hop), timeless(hop))).collect();
    assert_eq!(map.len(), hops.len(), "a hop stands in the store twice");
    map
}
