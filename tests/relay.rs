//! The relay over a stand-in model: what is sent, what is stored, what a resumed run does.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weaklink::engine::load::ModelIdentity;
use weaklink::generate::{GenerateError, Prompt, Request, Role};
use weaklink::store::Store;
use weaklink::studies::relay::plan::PlannedModel;
use weaklink::studies::relay::prepare::{Relay, Tokens};
use weaklink::studies::relay::run::{Ending, Progress};

use crate::stand_in::{StandIn, begin, finish, forgetful, message_of, messages, model, plan, runtime, settings};

#[test]
fn the_same_plan_makes_the_same_messages_at_any_batch() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = model(forgetful);
    let relay = plan(settings(), &model);
    let runs: Vec<_> = [1, 1, 2, 5, 100]
        .iter()
        .enumerate()
        .map(|(index, &batch)| {
            let store = begin(&relay, &dir.path().join(index.to_string()));
            assert_eq!(finish(&relay, &model, &store, batch), Ending::Finished { failed: 0 });
            messages(&store.hops().expect("hops"))
        })
        .collect();
    assert_eq!(runs[0].len(), 2 * 3 * 2 * 4, "formats × items × replicates × hops");
    assert!(runs.iter().all(|run| *run == runs[0]));
    let other = plan(weaklink::studies::relay::prepare::Settings { seed: 12, ..settings() }, &model);
    let store = begin(&other, &dir.path().join("other"));
    finish(&other, &model, &store, 3);
    let other = messages(&store.hops().expect("hops"));
    assert!(other.keys().all(|key| !runs[0].contains_key(key)), "another seed is another set of chains");
}

#[test]
fn a_hop_reads_the_message_before_it_and_nothing_else() {
    let dir = tempfile::tempdir().expect("a folder");
    let sent = Arc::new(Mutex::new(Vec::<Request>::new()));
    let log = Arc::clone(&sent);
    let model = model(move |request| {
        log.lock().expect("no test thread panics here").push(request.clone());
        forgetful(request)
    });
    for shots in [0, 1] {
        let relay = plan(weaklink::studies::relay::prepare::Settings { shots: Some(shots), ..settings() }, &model);
        sent.lock().expect("no test thread panics here").clear();
        let store = begin(&relay, &dir.path().join(shots.to_string()));
        finish(&relay, &model, &store, 4);
        let stored = messages(&store.hops().expect("hops"));
        let sent = sent.lock().expect("no test thread panics here");
        assert_eq!(sent.len(), stored.len(), "no hop is made twice");
        for trial in relay.trials() {
            let item = relay.items.iter().find(|item| item.id == trial.item).expect("its item");
            let mut read = item.brief.clone();
            for hop in 1..=relay.plan.hops {
                let request = sent.iter().find(|r| r.seed == trial.hop_seed(hop)).expect("the hop's request");
                assert_eq!(message_of(request), read);
                assert_eq!(request.max_tokens, 300);
                assert_eq!(request.sampling.temperature, 0.7);
                let Prompt::Messages(prompt) = &request.prompt else { panic!("a relay sends messages") };
                let roles: Vec<_> = prompt.iter().map(|message| message.role).collect();
                let expected: &[_] = if shots == 0 {
                    &[Role::System, Role::User]
                } else {
                    &[Role::System, Role::User, Role::Assistant, Role::User]
                };
                assert_eq!(roles, expected);
                let row = &stored[&(trial.key(), hop)];
                assert_eq!(row.seed, trial.hop_seed(hop));
                read.clone_from(&row.message);
            }
        }
    }
}

#[test]
fn a_failed_hop_ends_its_chain_alone_and_only_the_backends_own_fault_is_tried_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let plain = model(forgetful);
    let relay = plan(settings(), &plain);
    let trials = relay.trials();
    let (too_long, gone) = (trials[1].hop_seed(2), trials[7].hop_seed(3));
    let failing = model(move |request| match request.seed {
        seed if seed == too_long => Err(GenerateError::TooLong { prompt: 9, max_tokens: 5, context: 10 }),
        seed if seed == gone => Err(GenerateError::Backend { what: "gone".into() }),
        _ => forgetful(request),
    });
    let store = begin(&relay, dir.path());
    assert_eq!(finish(&relay, &failing, &store, 3), Ending::Finished { failed: 2 });
    assert_eq!(store.hops().expect("hops").len(), 12 * 4 - 3 - 2);
    let mut kinds: Vec<_> = store.failures().expect("failures").into_iter().map(|f| (f.kind, f.hop)).collect();
    kinds.sort();
    assert_eq!(kinds, [("backend".to_owned(), 3), ("too_long".to_owned(), 2)]);
    assert_eq!(finish(&relay, &plain, &store, 3), Ending::Finished { failed: 1 });
    let stored = messages(&store.hops().expect("hops"));
    assert_eq!(stored.len(), 12 * 4 - 3);

    let whole = begin(&relay, &dir.path().join("whole"));
    finish(&relay, &plain, &whole, 3);
    let whole = messages(&whole.hops().expect("hops"));
    assert!(stored.iter().all(|(key, row)| whole[key] == *row), "a failure beside it changes no message");
}

#[test]
fn a_stopped_run_goes_on_where_it_was_and_a_finished_one_has_nothing_to_do() {
    let dir = tempfile::tempdir().expect("a folder");
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let model = model(move |request| {
        counter.fetch_add(1, Ordering::SeqCst);
        forgetful(request)
    });
    let relay = plan(settings(), &model);
    let whole = begin(&relay, &dir.path().join("whole"));
    finish(&relay, &model, &whole, 1);

    let run = dir.path().join("stopped");
    drop(begin(&relay, &run));
    for stop_after in [1, 7, 20, 31] {
        let store = Store::open(&run).expect("the run");
        let relay = Relay::stored(&store).expect("its plan");
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        let mut tell = Some(tell);
        let report = |progress: &Progress| {
            if progress.hops_done >= stop_after
                && let Some(tell) = tell.take()
            {
                tell.send(()).expect("the drive is listening");
            }
        };
        let stop = async { told.await.expect("the sender lives as long") };
        let ending = runtime().block_on(relay.drive(model.work(&relay, 1), &store, stop, report));
        assert_eq!(ending.expect("a writable store"), Ending::Stopped);
        assert_eq!(store.hops().expect("hops").len() as u64, stop_after);
        assert!(!store.finished().expect("an answer"));
    }
    let store = Store::open(&run).expect("the run");
    assert_eq!(finish(&relay, &model, &store, 6), Ending::Finished { failed: 0 });
    assert_eq!(messages(&store.hops().expect("hops")), messages(&whole.hops().expect("hops")));

    let before = calls.load(Ordering::SeqCst);
    assert_eq!(finish(&relay, &model, &store, 6), Ending::Finished { failed: 0 });
    assert_eq!(calls.load(Ordering::SeqCst), before);
}

#[test]
fn progress_counts_what_was_done_before_and_what_is_left() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = model(forgetful);
    let relay = plan(settings(), &model);
    let store = begin(&relay, dir.path());
    let mut seen = Vec::new();
    let drive = relay.drive(model.work(&relay, 4), &store, std::future::pending(), |p| seen.push(p.clone()));
    runtime().block_on(drive).expect("a writable store");
    assert_eq!(seen.len(), 1 + 48, "once at the start, then after every hop");
    assert_eq!(seen[0].time_left(), None);
    assert!(seen.iter().all(|p| p.hops_done + p.hops_left == 48 && p.chains == 12));
    let last = seen.last().expect("the last report");
    assert_eq!((last.chains_done, last.failed, last.time_left()), (12, 0, Some(Duration::ZERO)));
    let tokens: u64 = store.hops().expect("hops").iter().map(|hop| hop.generated_tokens).sum();
    assert_eq!(last.generated_tokens, tokens);
}

#[test]
fn a_changed_model_or_setting_refuses_to_go_on_and_says_what_changed() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut model = model(forgetful);
    let relay = plan(settings(), &model);
    drop(begin(&relay, dir.path()));
    let stored = Relay::stored(&Store::open(dir.path()).expect("the run")).expect("its plan");
    assert_eq!(stored.plan, relay.plan);
    stored.check_unchanged(&[&model.model]).expect("nothing changed");
    change(&mut model, |identity, _| identity.name = "the same weights elsewhere".into());
    stored.check_unchanged(&[&model.model]).expect("a name changes no message");
    change(&mut model, |identity, isa| (identity.sha256, *isa) = ("f1".into(), "avx2".into()));
    let error = stored.check_unchanged(&[&model.model]).expect_err("two changes").to_string();
    for part in [r#"models.0.identity.sha256: stored "f0", now "f1""#, r#"models.0.isa: stored "scalar", now "avx2""#] {
        assert!(error.contains(part) && !error.contains('\n'), "{error}");
    }
}

fn change(stand_in: &mut StandIn, change: impl FnOnce(&mut ModelIdentity, &mut String)) {
    let PlannedModel::Local { identity, isa, .. } = &mut stand_in.model.planned else { panic!("a local model") };
    change(identity, isa);
}

#[test]
fn prompts_that_cannot_fit_are_refused_before_the_run() {
    let mut model = model(forgetful);
    let relay = plan(settings(), &model);
    relay.check_fit(&model.model).expect("the context is large");
    tokens(&mut model).context = 400;
    let error = relay.check_fit(&model.model).expect_err("the context is small").to_string();
    assert!(error.contains("300 of answer") && error.contains("holds 400"), "{error}");
    // A prompt of no words, and room for one message more: only a later hop is too long.
    tokens(&mut model).count = Box::new(|_| Ok(1));
    let error = relay.check_fit(&model.model).expect_err("two messages do not fit").to_string();
    assert!(error.contains("a later hop") && error.contains("601 tokens"), "{error}");
}

fn tokens(stand_in: &mut StandIn) -> &mut Tokens {
    stand_in.model.tokens.as_mut().expect("the stand-in counts tokens")
}

#[test]
fn a_users_corpus_is_stored_with_the_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = model(forgetful);
    let file = dir.path().join("briefs.jsonl");
    write_corpus(&file, 4);
    let mut mine = settings();
    (mine.corpus, mine.items) = (Some(file.clone()), Some(2));
    let relay = plan(mine, &model);
    drop(begin(&relay, &dir.path().join("run")));
    std::fs::remove_file(&file).expect("the file goes");
    let stored = Relay::stored(&Store::read(&dir.path().join("run")).expect("the run")).expect("its plan");
    assert_eq!(stored.items, relay.items);
    stored.check_unchanged(&[&model.model]).expect("the file is not needed any more");
}

/// Items that the generator made, as a user's file.
pub fn write_corpus(path: &Path, items: u64) {
    let line = |index| serde_json::to_string(&weaklink::studies::relay::corpus::generate(5, index)).expect("an item");
    let lines: Vec<String> = (0..items).map(line).collect();
    std::fs::write(path, lines.join("\n") + "\n").expect("a writable file");
}
