//! Bad input of every kind: one clear line on stderr, exit code 2, nothing left behind.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

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

    let cases: [(&[&str], &[&str]); 17] = [
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
