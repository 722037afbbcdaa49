//! Bad input of every kind: one clear line on stderr, exit code 2, nothing left behind.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::relay::write_corpus;

fn weaklink(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weaklink")).args(args).current_dir(dir).output().expect("the program")
}

fn refused(dir: &Path, args: &[&str]) -> String {
    let before = tree(dir);
    let output = weaklink(dir, args);
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{args:?}: {error}");
    assert!(error.starts_with("weaklink: ") && !error.contains("panicked"), "{args:?}: {error}");
    assert!(error.matches("(os error").count() <= 1, "{args:?} says it twice: {error}");
    assert!(output.stdout.is_empty(), "{args:?}");
    assert_eq!(tree(dir), before, "{args:?} left something behind");
    error
}

fn tree(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).expect("a readable folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            paths.extend(tree(&path));
        }
        paths.push(path);
    }
    paths.sort();
    paths
}

#[test]
fn every_bad_setting_of_a_relay_is_one_clear_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    write_corpus(&at("good.jsonl"), 8);
    let mut lines: Vec<_> = fs::read_to_string(at("good.jsonl")).expect("a file").lines().map(str::to_owned).collect();
    lines[6] = "{\"id\": 7".into();
    fs::write(at("line7.jsonl"), lines.join("\n")).expect("a file");
    fs::write(at("empty.jsonl"), "").expect("a file");
    fs::write(at("file"), "").expect("a file");
    fs::create_dir_all(at("taken")).expect("a folder");
    fs::write(at("taken/run.db"), "").expect("a file");

    let cases: [(&[&str], &[&str]); 24] = [
        (&["--items", "0"], &["--items is 0"]),
        (&["--items", "-1"], &["--items", "-1"]),
        (&["--items", "18446744073709551615"], &["chains"]),
        (&["--hops", "0"], &["--hops is 0"]),
        (&["--temperature", "-1"], &["--temperature is -1"]),
        (&["--temperature", "NaN"], &["--temperature is NaN"]),
        (&["--temperature", "inf"], &["--temperature is inf"]),
        (&["--max-tokens", "0"], &["--max-tokens is 0"]),
        (&["--shots", "2"], &["--shots is 2", "0 or 1"]),
        (&["--replicates", "0"], &["--replicates is 0"]),
        (&["--batch", "0"], &["--batch is 0"]),
        (&["--formats", "kv,yaml"], &["yaml", "triples"]),
        (&["--corpus", "line7.jsonl"], &["line7.jsonl", "7"]),
        (&["--corpus", "empty.jsonl"], &["empty.jsonl"]),
        (&["--corpus", "good.jsonl", "--items", "9"], &["--items is 9", "holds 8"]),
        (&["--corpus", "nowhere.jsonl"], &["nowhere.jsonl"]),
        (&["--frobnicate"], &["--frobnicate"]),
        (&["--hops", "4294967295"], &["--hops is 4294967295", "10000"]),
        (&["--batch", "18446744073709551615"], &["--batch is 18446744073709551615"]),
        (&["--threads", "1000000"], &["--threads 1000000", "512"]),
        (&["--device", "cuda:0"], &["--device cuda:0", "cpu"]),
        (&["--device", "abacus"], &["--device abacus", "cuda:N"]),
        (&["--seed", "-1"], &["--seed", "-1"]),
        (&["--model", "\u{1b}[31mred\n\u{202e}"], &["\\u{1b}[31mred \\u{202e}"]),
    ];
    for (args, parts) in cases {
        let args: Vec<_> = ["relay", "--offline", "--out", "run"].iter().chain(args).copied().collect();
        let error = refused(dir.path(), &args);
        assert!(parts.iter().all(|part| error.contains(part)), "{args:?}: {error}");
    }
    let out: [(&str, &str); 3] = [
        ("file/run", "cannot write in file/run"),
        ("/proc/run", "cannot write in /proc/run"),
        ("taken", "already holds a run"),
    ];
    for (folder, part) in out {
        let error = refused(dir.path(), &["relay", "--quick", "--offline", "--out", folder]);
        assert!(error.contains(part), "{folder}: {error}");
    }
    refused(dir.path(), &["relay", "--quick", "--offline", "--model", "no-such-card"]);
}

#[test]
fn a_folder_that_is_no_run_is_one_clear_line() {
    let dir = tempfile::tempdir().expect("a folder");
    fs::create_dir(dir.path().join("none")).expect("a folder");
    fs::create_dir(dir.path().join("text")).expect("a folder");
    fs::write(dir.path().join("text/run.db"), "This is not a database at all.".repeat(40)).expect("a file");
    for command in ["show", "resume"] {
        for (run, part) in [("none", "holds no run"), ("nowhere", "holds no run")] {
            let error = refused(dir.path(), &[command, run]);
            assert!(error.contains(part), "{error}");
        }
    }
    assert!(refused(dir.path(), &["show", "text"]).contains("is not a weaklink run"));
    let output = weaklink(dir.path(), &["resume", "text"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a weaklink run"));
}

#[test]
fn no_end_of_a_pipe_makes_a_command_panic() {
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").expect("a device that is always full");
    let tiny = crate::support::golden("tiny-llama.gguf");
    let tiny = tiny.to_str().expect("UTF-8");
    let run = |args: &[&str], input: &str, change: &dyn Fn(&mut Command)| {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("input"), input).expect("a file");
        let input = fs::File::open(dir.path().join("input")).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_weaklink"));
        command.args(args).stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        change(&mut command);
        let output = command.output().expect("the program");
        (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
    };
    let texts = "{\"text\":\"hello\"}\n".repeat(3);
    let (tokenize, logprobs) = (["tokenize", "--model", tiny], ["logprobs", "--model", tiny]);
    let generate = ["generate", "--raw", "hello", "--max-tokens", "3", "--model", tiny];
    let json = ["generate", "--raw", "hello", "--max-tokens", "3", "--json", "--model", tiny];
    for args in [&["models"][..], &["models", "--json"], &["doctor"], &tokenize, &logprobs, &generate, &json] {
        // A full disk behind stdout is an error that names it.
        let (code, error) = run(args, &texts, &|c| {
            c.stdout(full());
        });
        assert_eq!(code, Some(2), "{args:?}: {error}");
        assert!(error.starts_with("weaklink: cannot write to stdout: "), "{args:?}: {error}");
        // A reader that has gone away is none.
        let (code, error) = run(args, &texts, &|c| {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            drop(reader);
            c.stdout(writer);
        });
        assert_eq!((code, error.as_str()), (Some(0), ""), "{args:?}");
    }
    // Where an error cannot be said, the exit code still says it.
    for args in [&["pull", "no-such-card"][..], &["relay", "--frobnicate"]] {
        let (code, _) = run(args, "", &|c| {
            c.stderr(full());
        });
        assert_eq!(code, Some(2), "{args:?}");
    }
}

#[test]
fn bad_lines_on_stdin_are_named_by_their_number() {
    let tiny = crate::support::golden("tiny-llama.gguf");
    let cases: [(&str, &[u8], &str); 8] = [
        ("tokenize", b"{\"text\":\"\xff\"}", "line 1: not UTF-8 after byte 9"),
        ("tokenize", b"{\"text\":\"a\"}\n\n[1]", "line 3: "),
        ("tokenize", b"{\"text\":\"a\",\"no\":1}", "unknown field `no`"),
        ("logprobs", b"{\"ids\":[]}", "line 1: 0 tokens"),
        ("logprobs", b"{\"ids\":[286]}", "token id 286 in a vocabulary of 286"),
        ("logprobs", b"{\"ids\":[4294967296]}", "4294967296"),
        ("logprobs", b"{\"ids\":[1],\"text\":\"a\"}", "either \"ids\" or \"text\""),
        ("logprobs", b"{\"ids\":[1,2,3", "line 1: "),
    ];
    for (command, input, part) in cases {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weaklink"));
        child
            .arg(command)
            .arg("--model")
            .arg(&tiny)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = child.spawn().expect("the program");
        child.stdin.take().expect("a pipe").write_all(input).expect("it reads");
        let output = child.wait_with_output().expect("an end");
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{command}: {error}");
        assert!(error.starts_with("weaklink: stdin, line ") && error.contains(part), "{command}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

/// Files that were cut or changed: never a panic, never a hang, always one line.
#[test]
fn a_damaged_model_file_is_one_clear_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let whole = fs::read(crate::support::golden("tiny-qwen3.gguf")).expect("the golden file");
    let file = dir.path().join("damaged.gguf");
    let mut random = 88_172_645_463_325_252u64;
    let mut refused = 0;
    for round in 0..150 {
        // xorshift
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let at = (random >> 8) as usize;
        let mut bytes = whole.clone();
        match round % 3 {
            0 => bytes.truncate(at % whole.len()),
            1 => bytes[at % 8000] = random as u8,
            _ => bytes[at % 8000..][..4].copy_from_slice(&[[0xff; 4], [0; 4], [0, 0, 0, 0x80]][at % 7 % 3]),
        }
        fs::write(&file, bytes).expect("a file");
        let args = ["generate", "--raw", "hello", "--max-tokens", "2", "--threads", "1", "--model", "damaged.gguf"];
        let output = weaklink(dir.path(), &args);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        match output.status.code() {
            Some(0) => assert!(error.is_empty() || error.starts_with("weaklink: cut at 2 tokens"), "{error}"),
            Some(2) => assert!(error.starts_with("weaklink: ") && error.lines().count() == 1, "{error}"),
            code => panic!("round {round}: {code:?} {error}"),
        }
        refused += usize::from(output.status.code() == Some(2));
    }
    assert!(refused > 75, "only {refused} of 150 were refused");
}

#[test]
fn a_folder_whose_files_ask_for_something_else_is_one_clear_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = dir.path().join("model");
    fs::create_dir(&model).expect("a folder");
    for entry in fs::read_dir(crate::support::golden("tiny-qwen2-hf")).expect("the golden folder") {
        let path = entry.expect("an entry").path();
        fs::copy(&path, model.join(path.file_name().expect("a name"))).expect("a copy");
    }
    let config = fs::read_to_string(model.join("config.json")).expect("a file");
    let args = ["generate", "hello", "--max-tokens", "2", "--model", "model"];
    assert_eq!(weaklink(dir.path(), &args).status.code(), Some(0), "the folder is good as it is");
    let cases = [
        (r#""hidden_act": "silu""#, r#""hidden_act": "relu""#, "hidden_act \"relu\""),
        (r#""hidden_size": 64"#, r#""hidden_size": 1e30"#, "hidden_size is 1e+30"),
        (r#""hidden_size": 64"#, r#""hidden_size": -1"#, "hidden_size is -1"),
        (r#""num_hidden_layers": 3"#, r#""num_hidden_layers": 4000000000"#, "layers of 4000000000"),
        (r#""rope_theta": 1000000.0"#, r#""rope_theta": 1000000.0, "rope_scaling": {"factor": 2}"#, "rope scaling"),
    ];
    for (from, to, part) in cases {
        assert!(config.contains(from), "{from} in {config}");
        fs::write(model.join("config.json"), config.replace(from, to)).expect("a file");
        let error = refused(dir.path(), &args);
        assert!(error.contains("config.json") && error.contains(part), "{to}: {error}");
    }
}

/// `--corpus <(…)`: what can be read once only is read once.
#[cfg(unix)]
#[test]
fn a_corpus_may_be_a_pipe() {
    let dir = tempfile::tempdir().expect("a folder");
    write_corpus(&dir.path().join("corpus.jsonl"), 2);
    let script = "mkfifo pipe; cat corpus.jsonl > pipe & \"$0\" relay --offline --corpus pipe --model no-such-card";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_weaklink")]).current_dir(dir.path());
    let output = command.output().expect("a shell");
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.starts_with("weaklink: there is no model card 'no-such-card'"), "the corpus is good: {error}");
}
