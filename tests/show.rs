//! What a run says about itself, from a store whose every message is known.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use weaklink::generate::GenerateError;
use weaklink::store::{FailureRow, HopRow, Store};
use weaklink::studies::relay::prepare::Settings;
use weaklink::studies::relay::table::Summary;

use crate::stand_in::{begin, finish, forgetful, model, plan, settings};

fn fact(id: &str, kind: &str, relation: &str, value: &str, answer_type: &str, distractor: &str) -> Value {
    json!({"id": id, "kind": kind, "subject": "cutover", "relation": relation, "value": value, "surface": value,
           "question": format!("What is the {relation}?"), "answer_type": answer_type, "distractor": distractor, "aliases": []})
}

/// Two items of four facts.
fn corpus(dir: &Path) -> std::path::PathBuf {
    let a = json!({"id": "a", "brief": "Ann Lee leads the cutover. Port 8080 serves it. The ticket is XK-17. It is due 3 May 2030.", "facts": [
        fact("f1", "owner", "lead", "Ann Lee", "name", "Tom Ray"), fact("f2", "quantity", "port", "8080", "number", "9090"),
        fact("f3", "dependency", "ticket", "XK-17", "code", "XK-99"), fact("f4", "deadline", "due date", "3 May 2030", "date", "4 May 2030")]});
    let b = json!({"id": "b", "brief": "Bob Day leads the cutover. Port 7070 serves it. The ticket is QZ-23. It is due 9 June 2031.", "facts": [
        fact("f1", "owner", "lead", "Bob Day", "name", "Tim Roe"), fact("f2", "quantity", "port", "7070", "number", "6060"),
        fact("f3", "dependency", "ticket", "QZ-23", "code", "QZ-88"), fact("f4", "deadline", "due date", "9 June 2031", "date", "8 June 2031")]});
    let file = dir.join("corpus.jsonl");
    std::fs::write(&file, format!("{a}\n{b}\n")).expect("a writable file");
    file
}

/// `free` is whole. Of `kv`, item a failed at hop 1, and item b has hop 1 of 2.
fn known_run(dir: &Path) -> std::path::PathBuf {
    let wanted = Settings {
        formats: vec!["free".into(), "kv".into()],
        corpus: Some(corpus(dir)),
        items: None,
        hops: 2,
        replicates: 1,
        ..settings()
    };
    let relay = plan(wanted, &model(forgetful));
    let run = dir.join("run");
    let store = begin(&relay, &run);
    let key = |format: &str, item: &str| {
        let trials = relay.trials();
        trials.iter().find(|t| t.format == format && t.item == item).expect("the chain").key()
    };
    let add = |(format, item, hop, message, tokens, began, ended): (&str, &str, u32, &str, u64, f64, f64)| {
        let row = HopRow {
            trial: key(format, item),
            hop,
            message: message.into(),
            truncated: format == "kv",
            invalid: format == "kv",
            prompt_tokens: 100,
            cached_tokens: 25,
            generated_tokens: tokens,
            seconds: ended - began,
            ended,
            seed: 1,
            ..HopRow::default()
        };
        store.add_hop(&row).expect("a hop");
    };
    add(("free", "a", 1, "Ann Lee leads; port 8080; ticket XK-17.", 10, 100.0, 101.0));
    add(("free", "b", 1, "Bob Day, 7070, QZ-23, 9 June 2031", 20, 100.5, 101.5));
    add(("free", "a", 2, "Ann Lee, port 9090, \u{1b}[2J\u{7} 3 May 2030\nend", 30, 103.0, 104.0));
    add(("free", "b", 2, "Bob Day, 7070, QZ-23", 40, 104.0, 105.0));
    add(("kv", "b", 1, "Bob Day and 7070", 50, 106.0, 107.0));
    let failure = FailureRow { trial: key("kv", "a"), hop: 1, kind: "too_long".into(), detail: "does not fit".into() };
    store.add_failure(&failure).expect("a failure");
    run
}

fn close(value: &Value, expected: f64) -> bool {
    value.as_f64().is_some_and(|value| (value - expected).abs() < 1e-9)
}

#[test]
fn the_json_document_has_the_hand_computed_measures() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = known_run(dir.path());
    let output = weaklink(dir.path(), &["show", "run", "--json"], false);
    let from_program: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let summary = Summary::of(&Store::read(&run).expect("a run"), Path::new("run")).expect("its measures");
    assert_eq!(from_program, serde_json::to_value(&summary).expect("a document"));

    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>().join(" ");
    let doc = &from_program;
    assert_eq!(
        keys(doc),
        "run model device isa items formats seconds prompt_tokens cached_tokens generated_tokens failed"
    );
    assert_eq!(keys(&doc["formats"]), "free kv");
    let (free, kv) = (&doc["formats"]["free"], &doc["formats"]["kv"]);
    assert_eq!(keys(free), "hops toll drift retention tokens_per_second tokens_per_fact");
    assert_eq!(keys(&free["hops"][0]), "hop string_recall bound_recall qa_recall ci n truncated invalid tokens");
    assert_eq!(doc["items"], 2);
    assert_eq!(doc["failed"], 1);
    assert_eq!((&doc["prompt_tokens"], &doc["cached_tokens"]), (&json!(500), &json!(125)));
    assert_eq!(doc["generated_tokens"], 150);

    // Hop 1 keeps 3 and 4 of 4 facts, hop 2 keeps {1, 4} and {1, 2, 3}.
    assert!(close(&free["hops"][0]["string_recall"], 0.875));
    assert!(close(&free["hops"][1]["string_recall"], 0.625));
    assert!(close(&free["toll"], 0.125));
    assert!(close(&free["drift"], 0.25));
    assert!(close(&free["retention"], 4.0 / 7.0), "of 3 + 4 facts right at hop 1, 1 + 3 are right at hop 2");
    assert!(close(&free["tokens_per_fact"], 100.0 / 12.0));
    // Made during [100, 101.5] and [103, 105].
    assert!(close(&free["tokens_per_second"], 100.0 / 3.5));
    assert!(close(&doc["seconds"], 4.5));
    assert!(close(&free["hops"][1]["tokens"], 35.0));
    assert_eq!(free["hops"][0]["n"], 2);
    for absent in [&free["hops"][0]["bound_recall"], &free["hops"][0]["qa_recall"], &kv["drift"], &kv["retention"]] {
        assert_eq!(*absent, Value::Null);
    }
    // Two items give means of 0.75, 0.875 and 1 in a quarter, half and quarter of the resamples.
    let ci = &free["hops"][0]["ci"];
    assert!(close(&ci[0], 0.75) && close(&ci[1], 1.0), "{ci}");

    let first = &kv["hops"][0];
    assert!(close(&first["string_recall"], 0.5) && close(&first["bound_recall"], 0.0));
    assert_eq!((&first["n"], &first["truncated"], &first["invalid"]), (&json!(1), &json!(1), &json!(1)));
    assert_eq!(first["ci"], Value::Null, "one item has no interval");
    let nothing = json!({"hop": 2, "string_recall": null, "bound_recall": null, "qa_recall": null, "ci": null,
                         "n": 0, "truncated": 0, "invalid": 0, "tokens": null});
    assert_eq!(kv["hops"][1], nothing);
}

#[test]
fn the_tables_name_what_failed_and_what_is_unfinished() {
    let dir = tempfile::tempdir().expect("a folder");
    known_run(dir.path());
    let text = stdout(&weaklink(dir.path(), &["show", "run"], true));
    for part in [
        "87.5 [",
        "62.5 [",
        "57.1",
        "1 chain failed",
        "1 chain unfinished: weaklink resume run",
        "failed: too_long",
        "unfinished",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    assert!(!text.contains("NaN") && !text.contains('\u{1b}'));
}

#[test]
fn a_chain_is_shown_hop_by_hop_and_cannot_command_the_terminal() {
    let dir = tempfile::tempdir().expect("a folder");
    known_run(dir.path());
    let text = stdout(&weaklink(dir.path(), &["show", "run", "free/a"], false));
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    for part in [
        "Ann Lee, port 9090, \\u{1b}[2J\\u{7} 3 May 2030\nend",
        "hop 1: 3/4 facts found word for word, 10 tokens",
        "hop 2: 2/4 facts found word for word, 30 tokens",
        "altered  cutover port: 8080 (now \"9090\")",
        "lost     cutover ticket: XK-17",
        "kept     cutover lead: Ann Lee",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    let failed = stdout(&weaklink(dir.path(), &["show", "run", "kv/a/0"], false));
    assert!(failed.contains("hop 1 failed: does not fit"), "{failed}");
    let invalid = stdout(&weaklink(dir.path(), &["show", "run", "kv/b"], false));
    assert!(invalid.contains(", truncated, invalid"), "{invalid}");
    for (chain, part) in [("nothing", "no chain \"nothing\""), ("", "names 4 chains")] {
        let output = weaklink(dir.path(), &["show", "run", chain], false);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2));
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_run_with_nothing_left_is_resumed_without_a_model() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = model(forgetful);
    for (name, failing, code) in [("whole", usize::MAX, 0), ("failed", 0, 1)] {
        let relay = plan(Settings { items: Some(1), replicates: 1, ..settings() }, &model);
        let store = begin(&relay, &dir.path().join(name));
        let seed = relay.trials().get(failing).map(|trial| trial.hop_seed(2));
        let model = crate::stand_in::model(move |request| match seed {
            Some(seed) if seed == request.seed => Err(GenerateError::NotANumber { index: 3 }),
            _ => forgetful(request),
        });
        finish(&relay, &model, &store, 2);
        drop(store);
        let output = weaklink(dir.path(), &["resume", name, "--json"], false);
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
        assert_eq!(document["failed"], code);
        assert_eq!(document["run"], name);
    }
}

fn weaklink(dir: &Path, args: &[&str], no_color: bool) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weaklink"));
    if no_color {
        command.env("NO_COLOR", "1");
    }
    command.args(args).current_dir(dir).output().expect("the program")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}
