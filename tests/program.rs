//! The program with a real model, as a person runs it.

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value as Json;
use weaklink::store::{HopRow, Store};

use crate::support::{golden, golden_json, pulled, weaklink};

/// The relay's five formats over three hops, short messages; nothing answers at the hub's address.
fn quick(folder: &Path, out: &str, more: &[&str]) -> Output {
    let args = ["relay", "--quick", "--json", "--max-tokens", "40", "--seed", "5", "--out", out];
    weaklink()
        .args(args)
        .args(more)
        .current_dir(folder)
        .env("HF_ENDPOINT", "http://127.0.0.1:9")
        .output()
        .expect("weaklink runs")
}

fn json(output: &Output) -> Json {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "exit {:?}: {error}", output.status.code());
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stdout)))
}

/// All that may not depend on batch, threads and time.
fn messages(run: &Path) -> Vec<HopRow> {
    let hops = Store::read(run).expect("a run").hops().expect("its hops");
    let timeless =
        |hop| HopRow { seconds: 0.0, ended: 0.0, cached_tokens: 0, drafted_tokens: 0, accepted_tokens: 0, ..hop };
    hops.into_iter().map(timeless).collect()
}

#[test]
fn a_relay_of_all_formats_has_the_promised_document_and_the_same_messages_for_any_batch_and_threads() {
    pulled("smollm2-135m");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let document = json(&quick(folder.path(), "a", &["--shots", "0", "--batch", "16", "--threads", "2"]));
    for key in [
        "run",
        "model",
        "device",
        "isa",
        "items",
        "seconds",
        "prompt_tokens",
        "cached_tokens",
        "generated_tokens",
        "failed",
    ] {
        assert!(!document[key].is_null(), "{key} is missing: {document}");
    }
    let formats = document["formats"].as_object().expect("formats");
    assert_eq!(formats.keys().collect::<Vec<_>>(), ["free", "constr", "json", "triples", "kv"]);
    for (name, format) in formats {
        let hops = format["hops"].as_array().expect("hops");
        assert_eq!(hops.len(), 3, "{name}");
        for hop in hops {
            let recall = hop["string_recall"].as_f64().unwrap_or_else(|| panic!("{name}: no string recall: {hop}"));
            assert!((0.0..=1.0).contains(&recall), "{name}: {recall}");
            assert!(hop["qa_recall"].is_null(), "no judge, no number");
            assert_eq!(hop["bound_recall"].is_null(), ["free", "constr"].contains(&name.as_str()), "{name}: {hop}");
        }
    }
    assert_eq!(document["failed"], 0);
    assert!(document["cached_tokens"].as_u64().expect("a count") > 0, "instructions are shared");

    json(&quick(folder.path(), "b", &["--shots", "0", "--batch", "3", "--threads", "1"]));
    let (a, b) = (messages(&folder.path().join("a")), messages(&folder.path().join("b")));
    assert_eq!(a.len(), 5 * 2 * 3);
    assert_eq!(a, b);
    assert!(a.iter().any(|hop| !hop.message.trim().is_empty()), "the model says something");
}

#[test]
fn a_relay_killed_in_the_middle_goes_on_to_the_same_messages() {
    pulled("smollm2-135m");
    let folder = tempfile::tempdir().expect("a temporary folder");
    json(&quick(folder.path(), "whole", &["--formats", "kv,free"]));
    let (run, whole) = (folder.path().join("cut"), messages(&folder.path().join("whole")));
    let hops = |run: &Path| Store::read(run).and_then(|store| store.hops()).map_or(0, |hops| hops.len());
    let mut program = weaklink()
        .args([
            "relay",
            "--quick",
            "--json",
            "--max-tokens",
            "40",
            "--seed",
            "5",
            "--formats",
            "kv,free",
            "--out",
            "cut",
        ])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("weaklink runs");
    while hops(&run) < 3 && program.try_wait().expect("a child").is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    program.kill().expect("it can be killed");
    program.wait().expect("it ends");
    assert!((3..whole.len()).contains(&hops(&run)), "it was killed at hop {} of {}", hops(&run), whole.len());
    json(&weaklink().args(["resume", "cut", "--json"]).current_dir(folder.path()).output().expect("weaklink runs"));
    assert_eq!(messages(&run), whole);
}

fn with_stdin(args: &[&str], input: &str) -> Output {
    let mut child = weaklink()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("weaklink runs");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads its input");
    child.wait_with_output().expect("it ends")
}

#[test]
fn tokenize_and_logprobs_speak_json_lines() {
    let model = pulled("smollm2-135m");
    let model = model.to_str().expect("a UTF-8 path");
    let case = &golden_json("smollm2-logits.json")[0];
    let text = case["text"].as_str().expect("a text");
    let line = |value: Json| format!("{value}\n");

    let output = with_stdin(&["tokenize", "--model", model], &line(serde_json::json!({ "text": text })));
    assert_eq!(json(&output), serde_json::json!({ "text": text, "ids": case["ids"] }));
    let turn = serde_json::json!({ "text": "<|im_start|>" });
    assert_eq!(
        json(&with_stdin(&["tokenize", "--special", "--model", model], &line(turn.clone())))["ids"],
        serde_json::json!([1])
    );
    assert_ne!(json(&with_stdin(&["tokenize", "--model", model], &line(turn)))["ids"], serde_json::json!([1]));

    let by_text = json(&with_stdin(&["logprobs", "--model", model], &line(serde_json::json!({ "text": text }))));
    let by_ids = json(&with_stdin(&["logprobs", "--model", model], &line(serde_json::json!({ "ids": case["ids"] }))));
    assert_eq!(by_text, by_ids);
    assert_eq!(by_ids["logprobs"].as_array().expect("a list").len(), case["ids"].as_array().expect("a list").len() - 1);
    assert_eq!(by_ids["next"].as_array().expect("a list").len(), 10);
    assert_eq!(by_ids["next"][0][0], case["next"][0][0]);

    let tiny = golden("tiny-llama.gguf");
    let tiny = tiny.to_str().expect("a UTF-8 path");
    for (input, word) in [
        ("{\"ids\": [999999]}\n", "999999"),
        ("{\"ids\": []}\n", "line 1"),
        ("{\"ids\": [1]}\n{\"text\": 5}\n", "line 2"),
        ("{\"ids\": [1], \"text\": \"a\"}\n", "either"),
        ("nonsense\n", "line 1"),
    ] {
        let output = with_stdin(&["logprobs", "--model", tiny], input);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{input}: {error}");
        assert!(error.contains(word) && error.lines().count() == 1, "{input}: {error}");
    }
}

#[test]
fn generate_streams_what_its_json_says_and_repeats_with_its_seed() {
    let model = pulled("smollm2-135m");
    let run = |more: &[&str]| {
        let args = ["generate", "Name a river.", "--max-tokens", "12", "--seed", "3", "--model"];
        let output = weaklink().args(args).arg(&model).args(more).output().expect("weaklink runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let document: Json = serde_json::from_str(&run(&["--json"])).expect("JSON");
    let text = document["text"].as_str().expect("a text");
    assert!(!text.is_empty());
    assert_eq!(run(&[]), format!("{text}\n"));
    assert_eq!(run(&["--threads", "1"]), format!("{text}\n"));
}
