use std::fs;

use serde_json::{Value, json};

use super::*;

fn trial(key: &str, item: &str) -> TrialRow {
    TrialRow {
        key: key.into(),
        item: item.into(),
        format: "kv".into(),
        condition: "plain".into(),
        replicate: 0,
        model: "ab".into(),
        fork_of: None,
    }
}

fn hop(trial: &str, hop: u32, message: &str) -> HopRow {
    HopRow {
        trial: trial.into(),
        hop,
        message: message.into(),
        truncated: hop == 2,
        cut_in_char: hop == 2,
        invalid: false,
        prompt_tokens: 100,
        cached_tokens: 60,
        generated_tokens: 20,
        drafted_tokens: 7,
        accepted_tokens: 5,
        analysis: (hop == 2).then(|| "the deadline".into()),
        analysis_tokens: 3,
        unsplit: hop == 1,
        seconds: 0.5,
        ended: 1000.5,
        seed: (1 << 63) - 1,
    }
}

fn failure(trial: &str, hop: u32, kind: &str) -> FailureRow {
    FailureRow { trial: trial.into(), hop, kind: kind.into(), detail: "so it was".into() }
}

fn create(dir: &Path) -> Result<Store, StoreError> {
    let items = [("a".to_owned(), json!({"brief": "it's \"so\""})), ("b".to_owned(), json!({"brief": "ü\0\n"}))];
    let folder = RunFolder::claim_new(dir)?;
    Store::create(folder, &json!({"seed": 7}), &items, &[trial("k1", "a"), trial("k2", "b")], &json!({"batch": 0}))
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a readable folder");
    let mut names: Vec<_> = entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn what_is_written_is_read_back_by_a_later_process() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("deep/er");
    let hops = [hop("k1", 1, "'; DROP TABLE hops; --"), hop("k1", 2, "ü\0\u{1b}[31m"), hop("k2", 1, "")];
    {
        let store = create(&run).expect("a new run");
        assert_eq!(store.last_session::<Value>().expect("a session"), Some(json!({"batch": 0})));
        store.begin_session(&json!({"batch": 1})).expect("a session");
        store.begin_session(&json!({"batch": 2})).expect("a session");
        for hop in &hops {
            store.add_hop(hop).expect("a hop");
        }
        store.add_failure(&failure("k2", 2, "backend")).expect("a failure");
        assert!(!store.finished().expect("an answer"));
        store.finish(2, 1).expect("an end");
    }
    assert_eq!(names(&run), ["run.db", "run.lock"], "a closed run is one file beside its lock");
    // The write and read versions of SQLite's file format: 1 for a rollback journal, 2 for WAL.
    assert_eq!(fs::read(run.join("run.db")).expect("its bytes")[18..20], [1, 1]);
    for store in [Store::read(&run).expect("a reader"), Store::open(&run).expect("a writer")] {
        assert_eq!(store.plan::<Value>().expect("a plan"), json!({"seed": 7}));
        assert_eq!(store.items::<Value>().expect("items")[1], json!({"brief": "ü\0\n"}));
        assert_eq!(store.trials().expect("trials"), [trial("k1", "a"), trial("k2", "b")]);
        assert_eq!(store.hops().expect("hops"), hops);
        assert_eq!(store.failures().expect("failures"), [failure("k2", 2, "backend")]);
        assert_eq!(store.last_session::<Value>().expect("a session"), Some(json!({"batch": 2})));
        assert!(store.finished().expect("an answer"));
    }
}

#[test]
fn a_hop_is_stored_once_and_only_for_a_planned_chain() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = create(dir.path()).expect("a new run");
    store.add_hop(&hop("k1", 1, "first")).expect("a hop");
    assert!(store.add_hop(&hop("k1", 1, "second")).is_err());
    assert!(store.add_hop(&hop("nobody", 1, "x")).is_err());
    assert_eq!(store.hops().expect("hops"), [hop("k1", 1, "first")]);
}

#[test]
fn a_failure_stands_until_its_hop_is_done() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = create(dir.path()).expect("a new run");
    for (trial, hop, kind) in [("k1", 2, "backend"), ("k2", 1, "backend"), ("k2", 1, "too_long")] {
        store.add_failure(&failure(trial, hop, kind)).expect("a failure");
    }
    assert_eq!(store.failures().expect("failures"), [failure("k1", 2, "backend"), failure("k2", 1, "too_long")]);
    store.add_hop(&hop("k1", 2, "made good")).expect("a hop");
    assert_eq!(store.failures().expect("failures"), [failure("k2", 1, "too_long")]);
}

#[test]
fn one_process_writes_and_the_other_is_told_who() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = create(dir.path()).expect("a new run");
    let error = Store::open(dir.path()).expect_err("the run is in use").to_string();
    assert!(error.contains(&format!("in use by process {}", std::process::id())), "{error}");
    let error = RunFolder::claim_new(dir.path()).expect_err("the run is in use").to_string();
    assert!(error.contains("in use by process"), "{error}");
    store.add_hop(&hop("k1", 1, "x")).expect("a hop");
    assert_eq!(Store::read(dir.path()).expect("a reader").hops().expect("hops").len(), 1, "reading goes on meanwhile");
    drop(store);
    Store::open(dir.path()).expect("the run is free again");
    let error = RunFolder::claim_new(dir.path()).expect_err("the folder holds a run").to_string();
    assert!(error.contains("already holds a run: go on with `weaklink resume"), "{error}");
}

#[test]
fn a_claim_without_a_run_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    drop(RunFolder::claim_new(&dir.path().join("x/y/z")).expect("a claim"));
    assert_eq!(names(dir.path()), Vec::<String>::new());
    fs::write(dir.path().join("notes"), "mine").expect("a file");
    drop(RunFolder::claim_new(dir.path()).expect("a claim"));
    assert_eq!(names(dir.path()), ["notes"], "a user's folder keeps what was in it");
    let duplicate = [("a".to_owned(), json!(1)), ("a".to_owned(), json!(2))];
    let folder = RunFolder::claim_new(&dir.path().join("new")).expect("a claim");
    assert!(Store::create(folder, &json!({}), &duplicate, &[], &json!({})).is_err());
    assert_eq!(names(dir.path()), ["notes"]);
    let error = RunFolder::claim_new(&dir.path().join("notes/run")).expect_err("a file is no folder").to_string();
    assert!(error.starts_with("cannot write in "), "{error}");
}

#[test]
fn runs_without_a_name_are_numbered() {
    let dir = tempfile::tempdir().expect("a folder");
    for expected in ["relay-0001", "relay-0002"] {
        let folder = RunFolder::claim_next(dir.path(), "relay").expect("a claim");
        assert!(folder.path().ends_with(expected));
        Store::create(folder, &json!({}), &[("a".to_owned(), json!(1))], &[], &json!({})).expect("a run");
    }
}

#[test]
fn a_file_that_is_no_run_is_refused_in_one_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let good = dir.path().join("good");
    drop(create(&good).expect("a run"));
    let bytes = fs::read(good.join("run.db")).expect("its bytes");
    let mut torn = bytes.clone();
    torn.truncate(bytes.len() / 2 / 4096 * 4096);
    let mut scribbled = bytes.clone();
    scribbled[4096..12288].fill(0xa5);
    let mut newer = bytes.clone();
    newer[60..64].copy_from_slice(&99u32.to_be_bytes()); // user_version, by SQLite's file format
    let mut other = bytes.clone();
    other[68..72].fill(0); // application_id
    let cases: [(&str, &[u8], &str); 6] = [
        (
            "text",
            b"hello, this is not a database, however long the text goes on; and on; and on; and on; and on",
            "not an SQLite file",
        ),
        ("empty", b"", "of another program"),
        ("other", &other, "of another program"),
        ("newer", &newer, "layout is version 99, this weaklink reads version 2"),
        ("torn", &torn, "is damaged"),
        ("scribbled", &scribbled, "is damaged"),
    ];
    for (name, bytes, expected) in cases {
        let run = dir.path().join(name);
        fs::create_dir(&run).expect("a folder");
        fs::write(run.join("run.db"), bytes).expect("a file");
        for opened in [Store::read(&run), Store::open(&run)] {
            let error = opened.expect_err(name).to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{name}: {error}");
            assert!(error.contains("run.db"), "{name}: {error}");
        }
        assert_eq!(fs::read(run.join("run.db")).expect("its bytes"), bytes, "{name} was changed");
    }
    let error = Store::read(dir.path()).expect_err("no run").to_string();
    assert!(error.contains("holds no run"), "{error}");
    assert!(Store::open(&dir.path().join("nowhere")).is_err());
    assert!(!dir.path().join("nowhere").exists());
}

/// SQLite answers a reached page limit as it answers a full disk.
#[test]
fn a_full_disk_is_one_clear_error_and_the_run_opens_again() {
    let dir = tempfile::tempdir().expect("a folder");
    {
        let store = create(dir.path()).expect("a new run");
        store.add_hop(&hop("k1", 1, "kept")).expect("a hop");
        let pages: i64 = store.connection.pragma_query_value(None, "page_count", |row| row.get(0)).expect("a number");
        store.connection.pragma_update(None, "max_page_count", pages).expect("a limit");
        let error = store.add_hop(&hop("k1", 2, &"x".repeat(100_000))).expect_err("no room").to_string();
        assert!(error.starts_with("the disk is full") && !error.contains('\n'), "{error}");
    }
    let store = Store::open(dir.path()).expect("the run opens");
    assert_eq!(store.hops().expect("hops"), [hop("k1", 1, "kept")]);
    store.add_hop(&hop("k1", 2, &"x".repeat(100_000))).expect("there is room now");
}
