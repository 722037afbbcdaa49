//! `weaklink batch` as a person runs it, with a tiny model.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::support::{golden, weaklink};

fn chat(id: &str, body: Json) -> String {
    let mut whole = json!({"model": "any", "max_tokens": 12, "messages": [
        {"role": "system", "content": "You pass on what you are told, word for word."}, {"role": "user", "content": id}]});
    whole.as_object_mut().expect("an object").extend(body.as_object().expect("an object").clone());
    json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": whole}).to_string()
}

fn text(id: &str, body: Json) -> String {
    let mut whole = json!({"model": "any", "max_tokens": 8, "prompt": "the ring"});
    whole.as_object_mut().expect("an object").extend(body.as_object().expect("an object").clone());
    json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": whole}).to_string()
}

fn requests(count: usize) -> Vec<String> {
    (0..count).map(|n| chat(&format!("item-{n}"), json!({"max_tokens": 8 + n % 40}))).collect()
}

fn command(dir: &Path, out: &str, more: &[&str]) -> std::process::Command {
    let mut command = weaklink();
    let model = golden("tiny-llama.gguf");
    command
        .args(["batch", "-i", "in.jsonl", "-o", out, "--threads", "1", "--model"])
        .arg(model)
        .args(more)
        .current_dir(dir);
    command
}

fn run(dir: &Path, lines: &[String], out: &str, more: &[&str]) -> Output {
    fs::write(dir.join("in.jsonl"), lines.join("\n") + "\n").expect("a file");
    command(dir, out, more).output().expect("weaklink runs")
}

fn error_of(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// Results by custom_id; each stands there once.
fn results(path: &Path) -> BTreeMap<String, Json> {
    let lines = fs::read_to_string(path).expect("the results");
    let parse = |line: &str| {
        let line: Json = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        (line["custom_id"].as_str().expect("a custom_id").to_owned(), line)
    };
    let map: BTreeMap<_, _> = lines.lines().map(parse).collect();
    assert_eq!(map.len(), lines.lines().count(), "a request was answered twice");
    map
}

/// What must not depend on order, batch and interruptions.
fn answers(path: &Path) -> BTreeMap<String, (Json, Json)> {
    let timeless = |line: &Json| (line["response"]["body"]["choices"].clone(), line["error"].clone());
    results(path).iter().map(|(id, line)| (id.clone(), timeless(line))).collect()
}

#[test]
fn results_have_the_promised_form_and_refusals_name_the_field() {
    let dir = tempfile::tempdir().expect("a folder");
    let good = [
        chat(
            "chat",
            json!({"temperature": 0, "logprobs": true, "top_logprobs": 2, "response_format": {"type": "text"}}),
        ),
        text("text", json!({"logprobs": 3, "n": 1, "stop": null, "seed": -5})),
        text("ids", json!({"prompt": [5, 6, 7], "stop": "e", "frequency_penalty": 0.0})),
        chat("open", json!({"max_tokens": null, "stop": ["a", "b"]})),
        chat("form", json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": true}}}})),
    ];
    let bad = [
        (text("tools", json!({"tools": []})), "body.tools"),
        (text("hot", json!({"temperature": "hot"})), "body.temperature"),
        (text("negative", json!({"temperature": -1})), "temperature -1"),
        (text("three", json!({"n": 3})), "body.n is 3"),
        (text("two", json!({"prompt": ["a", "b"]})), "body.prompt"),
        (text("long", json!({"max_tokens": 5000})), "may have 5000, but the context holds 256"),
        (text("limits", json!({"max_completion_tokens": 9})), "max_tokens is 8 and max_completion_tokens 9"),
        (text("id", json!({"prompt": [286]})), "token id 286"),
        (text("many", json!({"logprobs": 21})), "21"),
        (chat("schema", json!({"response_format": {"type": "json_schema", "json_schema": {}}})), "json_schema"),
        (chat("top", json!({"top_logprobs": 2})), "top_logprobs"),
        (chat("role", json!({"messages": [{"role": "tool", "content": "a"}]})), "role"),
        (chat("part", json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})), "content"),
        (chat("name", json!({"messages": [{"role": "user", "content": "a", "name": "b"}]})), "messages[].name"),
        (json!({"custom_id": "get", "method": "GET", "url": "/v1/completions", "body": {}}).to_string(), "GET"),
        (
            json!({"custom_id": "url", "method": "POST", "url": "/v1/embeddings", "body": {}}).to_string(),
            "/v1/embeddings",
        ),
        (json!({"custom_id": "body", "method": "POST", "url": "/v1/completions"}).to_string(), "body is missing"),
        (
            json!({"custom_id": "more", "method": "POST", "url": "/v1/completions", "body": {}, "x": 1}).to_string(),
            "x is not a field",
        ),
    ];
    let lines: Vec<String> = good.iter().cloned().chain(bad.iter().map(|(line, _)| line.clone())).collect();
    let output = run(dir.path(), &lines, "out.jsonl", &["--json"]);
    assert_eq!(output.status.code(), Some(1), "some failed: {}", error_of(&output));
    let summary: Json = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!((&summary["requests"], &summary["failed"], &summary["skipped"]), (&json!(23), &json!(18), &json!(0)));
    let found = results(&dir.path().join("out.jsonl"));
    for (line, part) in bad {
        let id = serde_json::from_str::<Json>(&line).expect("JSON")["custom_id"].as_str().expect("an id").to_owned();
        let (error, response) = (&found[&id]["error"], &found[&id]["response"]);
        assert!(error["message"].as_str().is_some_and(|m| m.contains(part)), "{id}: {error}");
        assert_eq!((&response["status_code"], &response["body"]["error"]["message"]), (&json!(400), &error["message"]));
    }
    let mut tokens = (0, 0);
    let form = &found["form"]["response"]["body"]["choices"][0];
    assert_eq!((&form["message"]["content"], &form["finish_reason"]), (&json!("true"), &json!("stop")));
    for id in ["chat", "text", "ids", "open", "form"] {
        let (line, body) = (&found[id], &found[id]["response"]["body"]);
        assert_eq!((&line["error"], &line["response"]["status_code"]), (&Json::Null, &json!(200)), "{line}");
        let usage = |key: &str| body["usage"][key].as_u64().expect("a count");
        assert_eq!(usage("total_tokens"), usage("prompt_tokens") + usage("completion_tokens"));
        assert!(body["usage"]["prompt_tokens_details"]["cached_tokens"].is_u64());
        tokens = (tokens.0 + usage("prompt_tokens"), tokens.1 + usage("completion_tokens"));
    }
    assert_eq!(
        (summary["prompt_tokens"].as_u64(), summary["generated_tokens"].as_u64()),
        (Some(tokens.0), Some(tokens.1))
    );
    let chat = &found["chat"]["response"]["body"]["choices"][0];
    let content = chat["logprobs"]["content"].as_array().expect("a list");
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|t| t["bytes"].as_array().expect("bytes"))
        .map(|b| b.as_u64().expect("a byte") as u8)
        .collect();
    // A character that the token limit cuts is left out of the text.
    let (said, joined) = (chat["message"]["content"].as_str().expect("a text"), String::from_utf8_lossy(&bytes));
    assert!(joined.strip_prefix(said).is_some_and(|rest| rest.is_empty() || rest == "\u{fffd}"), "{joined:?} {said:?}");
    for token in content {
        let top = token["top_logprobs"].as_array().expect("a list");
        assert_eq!((top.len(), &top[0]["logprob"]), (2, &token["logprob"]), "greedy takes the likeliest");
    }
    let text = &found["text"]["response"]["body"]["choices"][0]["logprobs"];
    assert_eq!(text["tokens"].as_array().map(Vec::len), text["text_offset"].as_array().map(Vec::len));
    assert!(
        text["top_logprobs"]
            .as_array()
            .is_some_and(|tops| tops.iter().all(|top| top.as_object().is_some_and(|t| t.len() <= 3)))
    );
    assert!(!found["ids"]["response"]["body"]["choices"][0]["text"].as_str().expect("a text").contains('e'));
}

#[test]
fn an_answer_depends_on_its_request_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut lines = requests(30);
    run(dir.path(), &lines, "a.jsonl", &["--batch", "16"]);
    lines.reverse();
    // Members in another order and with other spacing are the same request.
    let last = lines.pop().expect("a line");
    lines.insert(3, last.replacen("\"method\":\"POST\",", "", 1).replacen('{', "{ \"method\" : \"POST\" , ", 1));
    run(dir.path(), &lines, "b.jsonl", &["--batch", "1"]);
    let (a, b) = (answers(&dir.path().join("a.jsonl")), answers(&dir.path().join("b.jsonl")));
    assert_eq!((a.len(), &a), (30, &b));
    let texts: std::collections::BTreeSet<String> =
        a.values().map(|(choices, _)| choices[0]["message"]["content"].to_string()).collect();
    assert!(texts.len() > 20, "seeds differ by request: {} texts", texts.len());
}

#[test]
fn killed_at_any_moment_no_request_is_lost_or_answered_twice() {
    let dir = tempfile::tempdir().expect("a folder");
    let lines = requests(60);
    run(dir.path(), &lines, "whole.jsonl", &[]);
    let whole = answers(&dir.path().join("whole.jsonl"));
    assert_eq!(whole.len(), 60);
    let out = dir.path().join("cut.jsonl");
    let mut random = u64::from(std::process::id());
    let (mut kills, mut in_the_middle) = (0, 0);
    while kills < 15 {
        let before = fs::read(&out).unwrap_or_default();
        let mut child =
            command(dir.path(), "cut.jsonl", &["--batch", "3"]).stderr(Stdio::null()).spawn().expect("weaklink runs");
        // xorshift
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let wanted = before.len() as u64 + random % 6000;
        let size = || fs::metadata(&out).map_or(0, |m| m.len());
        while size() < wanted && child.try_wait().expect("its state").is_none() {
            std::thread::sleep(Duration::from_micros(300));
        }
        child.kill().expect("a kill");
        let finished = child.wait().expect("an end").success();
        kills += 1;
        let after = fs::read(&out).unwrap_or_default();
        let kept = before.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        assert_eq!(after[..kept.min(after.len())], before[..kept], "a finished result was changed");
        in_the_middle += usize::from(!finished && !after.is_empty());
        if finished {
            assert_eq!(answers(&out), whole);
            fs::remove_file(&out).expect("removed");
        } else if random % 4 == 0 && !after.is_empty() {
            // What a kill inside a write leaves.
            let cut = after.len() - 1 - (random as usize >> 8) % 300.min(after.len() - 1);
            fs::write(&out, &after[..cut]).expect("a file");
        }
    }
    assert!(in_the_middle >= 3, "only {in_the_middle} of {kills} kills fell into a run");
    let output = command(dir.path(), "cut.jsonl", &["--json"]).output().expect("weaklink runs");
    assert!(output.status.success(), "{}", error_of(&output));
    assert_eq!(answers(&out), whole);
    // Nothing left to do is a normal case.
    let again = command(dir.path(), "cut.jsonl", &["--json"]).output().expect("weaklink runs");
    let summary: Json = serde_json::from_slice(&again.stdout).expect("one document");
    assert_eq!((&summary["requests"], &summary["skipped"]), (&json!(0), &json!(60)));
}

#[test]
fn what_does_not_belong_together_is_refused_before_any_work() {
    let dir = tempfile::tempdir().expect("a folder");
    let lines = requests(4);
    let a = |n: usize| lines[n].clone();
    let broken = "{\"custom_id\": \"x\"".to_owned();
    let cases: [(Vec<String>, &str); 7] = [
        (vec![a(0), a(1), a(0)], "in.jsonl, line 3: custom_id \"item-0\" stands in line 1 already"),
        (vec![a(0), broken], "in.jsonl, line 2: not the JSON object"),
        (vec![a(0), "[1]".into()], "in.jsonl, line 2: not a JSON object"),
        (vec!["{\"custom_id\": 7}".into()], "custom_id is 7"),
        (vec!["{\"url\": \"\"}".into()], "there is no custom_id"),
        (vec![String::new()], "holds no request"),
        (vec!["{\"custom_id\":".to_owned() + &"[".repeat(100_000)], "line 1: "),
    ];
    for (lines, part) in cases {
        let output = run(dir.path(), &lines, "none.jsonl", &[]);
        let error = error_of(&output);
        assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{error}");
        assert!(error.contains(part), "{error}");
        assert!(!dir.path().join("none.jsonl").exists(), "{part}: nothing is left behind");
    }

    let output = run(dir.path(), &lines, "out.jsonl", &[]);
    assert_eq!(output.status.code(), Some(0), "{}", error_of(&output));
    let done = fs::read(dir.path().join("out.jsonl")).expect("results");
    let changed = chat("item-2", json!({"max_tokens": 11}));
    let foreign = b"{\"custom_id\":\"item-0\",\"note\":\"mine\"}";
    /// Requests, what the output holds, more arguments, part of the error.
    type Case<'a> = (Vec<String>, &'a [u8], &'a [&'a str], &'a str);
    let cases: [Case<'_>; 7] = [
        (vec![a(0), a(1), changed, a(3)], &done, &[], "\"item-2\" has changed"),
        (lines[..3].to_vec(), &done, &[], "\"item-3\" is not in in.jsonl"),
        (lines.clone(), &done, &["--context", "200"], "made by another model"),
        (lines.clone(), &[&done[..], &done[..]].concat(), &[], "a second result"),
        (lines.clone(), foreign, &[], "choose another file"),
        (lines.clone(), &[&foreign[..], b"\n"].concat(), &[], "choose another file"),
        (lines.clone(), b"\x7fELF", &[], "choose another file"),
    ];
    for (lines, before, more, part) in cases {
        fs::write(dir.path().join("out.jsonl"), before).expect("a file");
        let output = run(dir.path(), &lines, "out.jsonl", more);
        let error = error_of(&output);
        assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{error}");
        assert!(error.contains(part), "{part}: {error}");
        assert_eq!(
            fs::read(dir.path().join("out.jsonl")).expect("it is there"),
            before,
            "{part}: the file is as it was"
        );
    }
    let output = run(dir.path(), &lines, "in.jsonl", &[]);
    assert_eq!(output.status.code(), Some(2), "the input is no place for results");
}
