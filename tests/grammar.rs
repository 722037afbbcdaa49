//! Constrained decoding with real models: texts follow their grammar, and the batch changes nothing.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::{Value as Json, json};
use weaklink::engine::{EngineHandle, EngineLimits};
use weaklink::generate::{Completion, Finish, GenerateError, Grammar, Message, Prompt, Request, Role, Sampling};
use weaklink::studies::relay::condition::Condition;
use weaklink::studies::relay::corpus::{exemplar, generate};
use weaklink::studies::relay::format::{Format, Parsed};
use weaklink_models::gguf::{Gguf, GgufWriter, MetaValue, Value};

use crate::support::{block_on, engine, golden, open_path, pulled, weaklink};

fn limits(batch: usize) -> EngineLimits {
    EngineLimits { batch, step_tokens: 128, blocks: 512, context: 4096, draft_rows: 16 }
}

fn request(user: &str, grammar: Grammar, seed: u64) -> Request {
    Request {
        prompt: Prompt::Messages(vec![Message::new(Role::User, user)]),
        max_tokens: 120,
        sampling: Sampling { temperature: 0.7, top_k: None, top_p: None },
        stop: Vec::new(),
        grammar: Some(grammar),
        logprobs: None,
        seed,
    }
}

fn run(engine: &EngineHandle, requests: &[Request]) -> Vec<Result<Completion, GenerateError>> {
    block_on(join_all(requests.iter().map(|request| engine.generate(request.clone()))))
}

/// A river as [`rivers`] asks for it.
fn schema() -> Json {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 2, "maxLength": 20},
            "length_km": {"type": "integer", "minimum": 1, "maximum": 7000},
            "flows_into": {"enum": ["sea", "lake", "river"]},
            "countries": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 3}
        },
        "required": ["name", "length_km", "flows_into", "countries"],
        "additionalProperties": false
    })
}

fn rivers() -> Vec<Request> {
    let names = ["Rhine", "Nile", "Danube", "Amazon", "Volga", "Mekong", "Ganges", "Seine"];
    let ask = |(n, name)| request(&format!("Describe the {name} as JSON."), Grammar::JsonSchema(schema()), n as u64);
    names.iter().enumerate().map(ask).collect()
}

#[test]
fn texts_follow_a_schema_and_depend_on_neither_batch_nor_preemption() {
    let alone: Vec<_> =
        rivers().iter().map(|r| run(&engine("smollm2", limits(1), 1), std::slice::from_ref(r)).remove(0)).collect();
    for completion in &alone {
        let Completion { text, finish, generated_tokens, token_ids, .. } = completion.as_ref().expect("a completion");
        assert_eq!(*finish, Finish::GrammarEnd, "{text}");
        assert_eq!(*generated_tokens, token_ids.len(), "no end token was needed");
        assert!(!text.contains('\n') && text.ends_with('}'), "{text}");
        let river: Json = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let keys: Vec<&String> = river.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["name", "length_km", "flows_into", "countries"], "{text}");
        let long = |value: &Json, most: usize| value.as_str().is_some_and(|s| s.chars().count() <= most);
        assert!(long(&river["name"], 20), "{text}");
        assert!((1..=7000).contains(&river["length_km"].as_i64().expect("an integer")), "{text}");
        assert!(["sea", "lake", "river"].contains(&river["flows_into"].as_str().expect("a string")), "{text}");
        let countries = river["countries"].as_array().expect("a list");
        assert!((1..=3).contains(&countries.len()) && countries.iter().all(|c| long(c, 12)), "{text}");
    }
    let texts = |results: &[Result<Completion, GenerateError>]| -> Vec<Vec<u32>> {
        results.iter().map(|result| result.as_ref().expect("a completion").token_ids.clone()).collect()
    };
    assert_eq!(texts(&run(&engine("smollm2", limits(8), 2), &rivers())), texts(&alone), "in a batch of eight");
    let tight = EngineLimits { blocks: 20, step_tokens: 40, ..limits(8) };
    assert_eq!(texts(&run(&engine("smollm2", tight, 2), &rivers())), texts(&alone), "with blocks for three at most");
}

#[test]
fn sequences_without_a_grammar_are_untouched_by_those_with_one() {
    let free =
        |seed| Request { grammar: None, max_tokens: 24, ..request("Name a river.", Grammar::Regex("".into()), seed) };
    let alone = run(&engine("smollm2", limits(1), 1), &[free(1)]);
    let mut mixed = rivers();
    mixed.truncate(3);
    mixed.insert(1, free(1));
    let together = run(&engine("smollm2", limits(4), 2), &mixed);
    let ids = |result: &Result<Completion, GenerateError>| result.as_ref().expect("a completion").token_ids.clone();
    assert_eq!(ids(&together[1]), ids(&alone[0]));
}

#[test]
fn the_relays_json_format_is_kept_by_a_small_model() {
    let format = Format::by_name("json+grammar").expect("built in");
    let engine = engine("smollm2", limits(3), 2);
    let requests: Vec<Request> = (0..3)
        .map(|n| {
            let item = generate(3, n);
            let messages = format.hop_messages(Condition::Plain, Some(&exemplar(3, &item)), &item.brief);
            let grammar = format.grammar.clone().expect("it has one");
            Request { prompt: Prompt::Messages(messages), max_tokens: 600, ..request("", grammar, n) }
        })
        .collect();
    let mut ended = 0;
    for (result, request) in run(&engine, &requests).into_iter().zip(&requests) {
        let Completion { text, finish, token_ids, .. } = result.expect("a completion");
        let mut state = engine.compile(request.grammar.as_ref().expect("it has one")).expect("a sound grammar");
        for (at, &id) in token_ids.iter().enumerate() {
            assert!(state.allowed().is_ok_and(|set| set.contains(id)), "token {at} of {text}");
            assert_eq!(state.advance(id), finish == Finish::GrammarEnd && at + 1 == token_ids.len(), "{text}");
        }
        // Strings have no length, and the limit is the same for every format: a text may be cut like any other.
        if finish == Finish::Length {
            continue;
        }
        ended += 1;
        assert!(matches!(format.parse(&text), Parsed::Pairs(pairs) if !pairs.is_empty()), "{text}");
        let message: Json = serde_json::from_str(&text).expect("JSON");
        let keys: Vec<&String> = message.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["title", "personnel", "quantities", "constraints", "dependencies", "prohibitions"]);
    }
    assert!(ended > 0, "no message came to its end");
}

#[test]
fn every_end_token_ends_a_complete_text_and_none_an_incomplete_one() {
    let engine = engine("smollm2", limits(1), 1);
    let stops = engine.text().stop_ids().to_vec();
    assert!(stops.len() > 1, "{stops:?}");
    let mut state = engine.compile(&Grammar::Regex("(yes)+".into())).expect("a sound expression");
    let yes = engine.text().encode("yes", false).expect("it has tokens");
    for &id in &yes {
        let allowed = state.allowed().expect("a way on");
        assert!(allowed.contains(id) && !stops.iter().any(|&stop| allowed.contains(stop)));
        assert!(!state.advance(id), "more may come");
    }
    let allowed = state.allowed().expect("a way on");
    assert!(stops.iter().all(|&stop| allowed.contains(stop)));
    // Control tokens that end nothing are no text.
    let controls = (0..engine.text().vocab_size() as u32).filter(|&id| engine.text().is_control(id));
    assert!(controls.filter(|id| !stops.contains(id)).all(|id| !allowed.contains(id)));

    let answer = run(
        &engine,
        &[request("Is water wet? Answer yes or no.", Grammar::Regex("(yes|no)( yes| no){0,9}".into()), 1)],
    );
    let answer = answer[0].as_ref().expect("a completion");
    assert!(answer.text.split(' ').all(|word| ["yes", "no"].contains(&word)), "{answer:?}");
    assert_ne!(answer.finish, Finish::Length);
}

#[test]
fn a_limit_cuts_a_constrained_text_like_any_other() {
    let ask = Request { max_tokens: 5, ..request("Count.", Grammar::Regex("[a-z]{500}".into()), 1) };
    let cut = run(&engine("smollm2", limits(1), 1), &[ask]).remove(0).expect("a completion");
    assert_eq!((cut.finish, cut.generated_tokens), (Finish::Length, 5));
    assert!(cut.text.len() >= 5 && cut.text.bytes().all(|b| b.is_ascii_lowercase()), "{}", cut.text);
}

/// A model whose vocabulary cannot write the letter z: tokens with it are control tokens.
fn without_z(folder: &Path) -> PathBuf {
    let gguf = Gguf::open(&golden("tiny-llama.gguf")).expect("a golden file opens");
    let Some(Value::Array(names)) = gguf.metadata("tokenizer.ggml.tokens") else { panic!("no tokens") };
    let Some(Value::Array(types)) = gguf.metadata("tokenizer.ggml.token_type") else { panic!("no types") };
    let has_z = |name: &Value| matches!(name, Value::String(name) if name.contains('z'));
    let types = names.iter().zip(types.iter()).map(|(name, kind)| {
        let kind = kind.as_integer().expect("a type") as i32;
        if has_z(&name) { 3 } else { kind }
    });
    let mut writer = GgufWriter::new();
    for key in gguf.keys().filter(|&key| key != "tokenizer.ggml.token_type") {
        writer = writer.meta(key, gguf.metadata(key).expect("a listed key has a value"));
    }
    writer = writer.meta("tokenizer.ggml.token_type", MetaValue::i32s(types));
    for name in gguf.tensor_names() {
        let tensor = gguf.tensor(name).expect("a listed tensor is there");
        writer = writer.tensor(name, tensor.shape, tensor.format, tensor.bytes.to_vec());
    }
    let path = folder.join("no-z.gguf");
    writer.write(&path).expect("a temporary folder can be written");
    path
}

#[test]
fn a_dead_end_and_a_bad_grammar_are_outcomes_of_their_sequence_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = open_path(&without_z(folder.path()));
    let decoder = Arc::new(model.load_decoder().expect("loads"));
    let engine = EngineHandle::start(decoder, model.text.clone(), limits(3), 2).expect("starts");
    let ask =
        |regex: &str| Request { prompt: Prompt::Tokens(vec![1, 2, 3]), ..request("", Grammar::Regex(regex.into()), 4) };
    let results = run(&engine, &[ask("[a-z]{3}"), ask("az"), ask("a(")]);
    assert!(results[0].as_ref().is_ok_and(|c| c.text.len() == 3 && c.finish == Finish::GrammarEnd), "{results:?}");
    assert_eq!(results[1], Err(GenerateError::GrammarDeadEnd { index: 1 }));
    assert!(
        matches!(&results[2], Err(GenerateError::Invalid { what }) if what.contains("unclosed group")),
        "{results:?}"
    );
}

#[test]
fn the_program_takes_grammars_and_refuses_bad_ones_with_their_place() {
    pulled("smollm2-135m");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("a writable folder");
    write("river.json", &schema().to_string());
    write("cut.json", "{\"type\": \n\"object\"");
    write("sum.lark", "start: /[0-9]{1,3}/ \"+\" /[0-9]{1,3}/");
    write("bad.lark", "start: sum");
    let run = |args: &[&str]| -> Output {
        weaklink().args(["generate", "Go on."]).args(args).current_dir(folder.path()).output().expect("weaklink runs")
    };
    let said = |args: &[&str]| {
        let output = run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    assert!(["yes\n", "no\n"].contains(&said(&["--regex", "yes|no"]).as_str()));
    let river: Json = serde_json::from_str(&said(&["--json-schema", "river.json"])).expect("JSON");
    assert!(river["countries"].is_array());
    let sum = said(&["--lark", "sum.lark"]);
    assert!(sum.trim_end().split('+').all(|n| n.parse::<u32>().is_ok()) && sum.contains('+'), "{sum}");
    for (args, expected) in [
        (["--regex", "a(b"], "unclosed group at character 2"),
        (["--lark", "bad.lark"], "at 1(8): unknown name: \"sum\""),
        (["--json-schema", "cut.json"], "cut.json is not JSON: EOF while parsing an object at line 2 column 8"),
        (["--json-schema", "none.json"], "cannot read none.json"),
    ] {
        let output = run(&args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(expected) && error.trim_end().lines().count() == 1, "expected {expected:?} in {error}");
    }
    let both = run(&["--regex", "a", "--lark", "sum.lark"]);
    assert_eq!(both.status.code(), Some(2));
}
