//! Killed with SIGKILL at any moment, a run loses no hop and does none twice.
//!
//! The victim is this test binary itself, started anew with the name of one test
//! and the run's folder in a variable. Its model is slow and keeps a log of the
//! hops it was asked for.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use weaklink::store::{HopRow, RunFolder, Store};
use weaklink::studies::relay::prepare::{Relay, Settings};

use crate::stand_in::{begin, finish, forgetful, messages, model, plan, settings};

const RUN: &str = "WEAKLINK_TEST_VICTIM";
const KILLS: usize = 20;

fn victims_settings() -> Settings {
    Settings { items: Some(5), replicates: 1, ..settings() }
}

/// Does nothing unless it is started as the victim.
#[test]
fn victim() {
    let Some(dir) = std::env::var_os(RUN) else { return };
    let dir = Path::new(&dir);
    let calls = OpenOptions::new().append(true).create(true).open(dir.with_extension("calls")).expect("a log");
    let model = model(move |request| {
        // One write a line: lines of two hops never mix, and a kill never halves one.
        (&calls).write_all(format!("{}\n", request.seed).as_bytes()).expect("a writable log");
        sleep(Duration::from_millis(6));
        forgetful(request)
    });
    let (relay, store) = if dir.join("run.db").exists() {
        let store = Store::open(dir).expect("a run that was killed can be opened");
        (Relay::stored(&store).expect("its plan"), store)
    } else {
        let relay = plan(victims_settings(), &model);
        let store = relay.begin(RunFolder::claim_new(dir).expect("a free folder"), &"a test").expect("a new run");
        (relay, store)
    };
    relay.check_unchanged(&[&model.model]).expect("nothing changed");
    finish(&relay, &model, &store, 3);
}

fn start_victim(dir: &Path) -> Child {
    let binary = std::env::current_exe().expect("this binary");
    let mut command = Command::new(binary);
    command.args(["kill::victim", "--exact", "--test-threads=1"]).env(RUN, dir);
    command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().expect("a child")
}

/// Reads what the dead process left, without a lock.
fn stored(dir: &Path) -> Vec<HopRow> {
    if !dir.join("run.db").exists() {
        return Vec::new();
    }
    Store::read(dir).expect("a readable run").hops().expect("hops")
}

fn calls(dir: &Path) -> Vec<u64> {
    let log = fs::read_to_string(dir.with_extension("calls")).unwrap_or_default();
    log.lines().map(|line| line.parse().expect("a seed")).collect()
}

/// Waits for a random number of hops of the child, then for a random part of one. A
/// quarter of the moments fall before its first hop: the run is then being created or opened.
fn wait_a_random_while(child: &mut Child, random: &mut u64, hops: impl Fn() -> usize) {
    // xorshift
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    let wanted = *random as usize % 12;
    while wanted > 2 && hops() < wanted - 2 && child.try_wait().expect("its state").is_none() {
        sleep(Duration::from_millis(1));
    }
    sleep(Duration::from_micros((*random >> 32) % 12_000));
}

#[test]
fn twenty_kills_lose_nothing_and_repeat_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = model(forgetful);
    let relay = plan(victims_settings(), &model);
    let whole = begin(&relay, &folder.path().join("whole"));
    finish(&relay, &model, &whole, 1);
    let whole = messages(&whole.hops().expect("hops"));
    assert_eq!(whole.len(), 40);

    let mut kills = 0;
    let mut in_the_middle = 0;
    let mut random = u64::from(std::process::id());
    for round in 0.. {
        let dir = folder.path().join(format!("run{round}"));
        let mut finished = false;
        while !finished {
            let (hops_before, calls_before) = (stored(&dir), calls(&dir).len());
            let mut child = start_victim(&dir);
            if kills < KILLS {
                wait_a_random_while(&mut child, &mut random, || calls(&dir).len() - calls_before);
                child.kill().expect("a kill");
                kills += 1;
            }
            finished = child.wait().expect("an end").success();
            let hops = stored(&dir);
            in_the_middle += usize::from(!finished && !hops.is_empty() && hops.len() < whole.len());
            let kept = messages(&hops);
            for (key, row) in messages(&hops_before) {
                assert_eq!(kept.get(&key), Some(&row), "a hop that was stored is lost or changed");
            }
            let done: BTreeSet<_> = hops_before.iter().map(|hop| hop.seed).collect();
            let again = calls(&dir)[calls_before..].iter().filter(|seed| done.contains(seed)).count();
            assert_eq!(again, 0, "a stored hop was made again");
        }
        assert_eq!(messages(&stored(&dir)), whole, "a killed run ends as one that was never killed");
        assert!(Store::read(&dir).expect("a run").finished().expect("an answer"));
        if kills >= KILLS {
            break;
        }
    }
    assert!(in_the_middle >= KILLS / 4, "only {in_the_middle} of {kills} kills hit a run in its middle");
}

#[test]
fn a_second_process_on_a_run_is_refused_while_the_first_works() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("run");
    let mut child = start_victim(&dir);
    while stored(&dir).is_empty() {
        sleep(Duration::from_millis(2));
    }
    let error = Store::open(&dir).expect_err("the victim has it").to_string();
    child.kill().expect("a kill");
    child.wait().expect("an end");
    assert!(error.contains(&format!("in use by process {}", child.id())), "{error}");
    Store::open(&dir).expect("the lock died with its owner");
}
