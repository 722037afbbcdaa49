//! Synthetic models, the speed measurement and the self-check, from outside.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value as Json;
use weaklink::engine::EngineLimits;
use weaklink::selfcheck::{Check, Setting, compare_tokens};

use crate::support::{golden, loaded, weaklink};

fn run(args: &[&str]) -> Output {
    weaklink().args(args).output().expect("weaklink runs")
}

/// What the program says when it refuses: exit code 2 and one line.
fn refused(args: &[&str]) -> String {
    let output = run(args);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{args:?}: {error}");
    error
}

fn tiny(folder: &Path, quant: &str) -> PathBuf {
    let path = folder.join(format!("{quant}.gguf"));
    let output = run(&["synth", "tiny", "--quant", quant, "-o", path.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

const COLUMNS: [&str; 15] = [
    "model",
    "quant",
    "device",
    "isa",
    "threads",
    "batch",
    "pp",
    "tg",
    "shared_prefix",
    "prefill_tps",
    "prefill_sd",
    "decode_tps",
    "decode_sd",
    "load_seconds",
    "peak_rss_bytes",
];

#[test]
fn a_synthetic_model_is_measured_in_every_output_format() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = tiny(folder.path(), "q4_k_m");
    let model = model.to_str().expect("UTF-8");
    let bench = |more: &[&str]| {
        let args = [&["bench", "--model", model, "--pp", "20", "--batch", "1,30"], more].concat();
        let output = run(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let lines: Vec<Json> = bench(&["-r", "2", "--tg", "3", "--shared-prefix", "--output", "jsonl"])
        .lines()
        .map(|line| serde_json::from_str(line).expect("a JSON object"))
        .collect();
    assert_eq!(lines.iter().map(|row| row["batch"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(30)]);
    for row in &lines {
        assert!(COLUMNS.iter().all(|&column| row.get(column).is_some()), "{row}");
        assert_eq!((&row["shared_prefix"], &row["quant"]), (&true.into(), &"Q4_K×25 Q6_K×5".into()));
        for column in ["prefill_tps", "decode_tps", "load_seconds"] {
            assert!(row[column].as_f64().is_some_and(|v| v > 0.0), "{column}: {row}");
        }
        assert!(row["decode_sd"].is_number());
    }
    // One repeat has no deviation, and nothing decoded no speed: neither is 0.
    let array: Json = serde_json::from_str(&bench(&["-r", "1", "--tg", "0", "--output", "json"])).expect("an array");
    assert_eq!(array[1]["prefill_sd"], Json::Null);
    assert_eq!((&array[1]["decode_tps"], &array[1]["decode_sd"]), (&Json::Null, &Json::Null));
    let csv = bench(&["-r", "1", "--tg", "3", "--output", "csv"]);
    let header: Vec<&str> = csv.lines().next().expect("a header").split(',').collect();
    assert!(COLUMNS.iter().all(|column| header.contains(column)), "{csv}");
    assert!(csv.lines().all(|line| line.split(',').count() == header.len()) && csv.lines().count() == 3, "{csv}");
    assert_eq!(bench(&["-r", "1", "--tg", "3"]).lines().count(), 4);
}

#[test]
fn what_cannot_be_written_or_measured_is_refused_on_one_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = tiny(folder.path(), "Q4_0");
    let (model, place) = (model.to_str().expect("UTF-8"), folder.path().to_str().expect("UTF-8"));
    assert!(refused(&["synth", "gpt-5", "-o", "a.gguf"]).contains("qwen2.5-1.5b, llama-3.2-1b, smollm2-135m, tiny"));
    assert!(refused(&["synth", "tiny", "--quant", "Q9", "-o", "a.gguf"]).contains("Q4_K_M"));
    assert!(refused(&["synth", "tiny", "-o", place]).contains("is a folder"));
    assert!(refused(&["synth", "tiny", "-o", &format!("{place}/no/a.gguf")]).contains("cannot write"));
    for (flag, value) in
        [("--pp", "0"), ("--batch", "0"), ("--batch", "1,,2"), ("--batch", "-1"), ("-r", "0"), ("--tg", "x")]
    {
        refused(&["bench", "--model", model, flag, value]);
    }
    assert!(refused(&["bench", "--model", model, "--pp", "2000", "--tg", "49"]).contains("context of 2048"));
    for endless in ["4097", "18446744073709551615"] {
        assert!(refused(&["bench", "--model", model, "--batch", endless]).contains("at most 4096"));
    }
    assert!(refused(&["bench", "--model", model, "--pp", "18446744073709551615"]).contains("context"));
    assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 1, "nothing half-written is left");
}

/// A limit on file sizes stands for a disk that is full.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_no_part() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = format!("trap '' XFSZ; ulimit -f 100; exec {} synth tiny -o a.gguf", env!("CARGO_BIN_EXE_weaklink"));
    let output = std::process::Command::new("bash").args(["-c", &script]).current_dir(folder.path()).output();
    let output = output.expect("bash runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{error}");
    assert!(error.contains("cannot write a.gguf"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 0);
}

#[test]
fn the_self_check_finds_every_family_identical() {
    for family in ["llama", "qwen2", "qwen3", "gemma3"] {
        let (decoder, text) = loaded(&format!("tiny-{family}"));
        let report = Check::new(decoder, text).expect("prompts").run(2).expect("computed");
        assert_eq!(report.difference, None, "{family}");
        assert_eq!((report.prompts, report.settings.len()), (8, 11));
        assert!(report.logit_rows > 1000 && report.tokens > 100, "{report:?}");
    }
    let path = golden("tiny-qwen2.gguf");
    let output = run(&["selfcheck", "--json", "--model", path.to_str().expect("UTF-8")]);
    let json: Json = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!((&json["identical"], &json["difference"], output.status.code()), (&true.into(), &Json::Null, Some(0)));
}

/// One bit of one logit, and one token: the check must see both and say where.
#[test]
fn the_self_check_sees_a_single_bit() {
    let (decoder, text) = loaded("tiny-qwen2");
    let mut check = Check::new(decoder, text).expect("prompts");
    let mut expected = check.logits(Setting::REFERENCE).expect("computed");
    let settings = [
        Setting { batch: 8, piece: 7, threads: 2 },
        Setting { batch: 64, piece: 4, threads: 1 },
        Setting { batch: 1, piece: 3, threads: 1 },
    ];
    for setting in settings {
        assert_eq!(check.compare(setting, &expected).expect("computed"), None);
    }
    let logit = &mut expected[5][20][100];
    let before = *logit;
    *logit = f32::from_bits(before.to_bits() ^ 1);
    for setting in settings {
        let found = check.compare(setting, &expected).expect("computed").expect("a bit differs");
        assert_eq!((found.prompt, found.position, found.logit_of), (5, 20, Some(100)));
        assert!(found.found.starts_with(&format!("{before} (0x")) && found.expected != found.found, "{found}");
        assert!(found.to_string().starts_with(&setting.to_string()), "{found}");
    }

    let limits = EngineLimits { batch: 4, step_tokens: 64, blocks: 64, context: 128, draft_rows: 16 };
    let tokens = check.generate(limits, 1).expect("generated");
    assert_eq!(compare_tokens("the same", 8, &tokens, &tokens), None);
    // Prompts whose text did not end at once: the 11th answer is the warm one of prompt 3.
    let mut other = tokens.clone();
    other[11].truncate(2);
    let cut = compare_tokens("cut", 8, &tokens, &other).expect("one is shorter");
    assert_eq!((cut.prompt, cut.position, cut.found.as_str()), (3, 2, "the end"));
    assert!(cut.setting.contains("0.7"), "{cut}");
    other[2][1] ^= 1;
    let changed = compare_tokens("changed", 8, &tokens, &other).expect("a token differs");
    assert_eq!((changed.prompt, changed.position), (2, 1));
    assert!(changed.setting.contains("greedy"), "{changed}");
}
