//! Beyond the plain relay: loaded hops, forks with an error in them, several models, and an end that the data decide.

use std::sync::{Arc, Mutex};

use weaklink::generate::{Completion, GenerateError, Prompt, Request};
use weaklink::score::text::contains;
use weaklink::store::{HopRow, Store};
use weaklink::studies::relay::condition::{ANALYSIS_TOKENS, Condition};
use weaklink::studies::relay::plan::PlannedModel;
use weaklink::studies::relay::prepare::{Relay, Settings};
use weaklink::studies::relay::run::{Ending, Work};

use crate::stand_in::{StandIn, begin, finish, forgetful, message_of, messages, model, plan, runtime, settings};

/// Says `text` in answer to everything, one token a character.
fn saying(request: &Request, text: &str) -> Completion {
    let token_ids: Vec<u32> = text.chars().map(u32::from).collect();
    let generated_tokens = token_ids.len() + 1;
    Completion { text: text.into(), token_ids, generated_tokens, ..forgetful(request).expect("it always answers") }
}

/// Passes everything on.
fn faithful(request: &Request) -> Result<Completion, GenerateError> {
    Ok(saying(request, message_of(request)))
}

#[test]
fn a_loaded_hop_passes_on_what_follows_its_analysis_and_counts_its_tokens_apart() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = model(|request| {
        let message = message_of(request);
        let Prompt::Messages(prompt) = &request.prompt else { panic!("a relay sends messages") };
        if !prompt[0].content.contains("Analysis") {
            return faithful(request);
        }
        assert_eq!(request.max_tokens, 300 + ANALYSIS_TOKENS);
        // Every other message lacks the second heading.
        let heading = if message.len().is_multiple_of(2) { "## Handoff\n" } else { "" };
        Ok(saying(request, &format!("**Analysis**\nThé date.\n{heading}{message}!")))
    });
    let relay = plan(Settings { conditions: vec![Condition::Loaded, Condition::Plain], ..settings() }, &model);
    let store = begin(&relay, dir.path());
    assert_eq!(finish(&relay, &model, &store, 4), Ending::Finished { failed: 0 });
    let hops = messages(&store.hops().expect("hops"));
    let mut unsplit = 0;
    for trial in relay.trials() {
        let item = relay.items.iter().find(|item| item.id == trial.item).expect("its item");
        let mut read = item.brief.clone();
        for hop in 1..=relay.plan.hops {
            let row = &hops[&(trial.key(), hop)];
            let even = read.len().is_multiple_of(2);
            match trial.condition {
                Condition::Plain => {
                    assert_eq!((row.message.as_str(), row.unsplit, row.analysis_tokens), (read.as_str(), false, 0));
                    assert_eq!(row.analysis, None);
                }
                Condition::Loaded if even => {
                    let analysis = "**Analysis**\nThé date.\n## Handoff\n";
                    assert_eq!(row.message, format!("{read}!"));
                    assert_eq!(row.analysis.as_deref(), Some(analysis));
                    assert_eq!(row.analysis_tokens, analysis.chars().count() as u64, "one token a character");
                    assert!(!row.unsplit);
                }
                Condition::Loaded => {
                    assert_eq!(row.message, format!("**Analysis**\nThé date.\n{read}!"), "forwarded whole");
                    assert_eq!((row.unsplit, row.analysis_tokens, &row.analysis), (true, 0, &None));
                    unsplit += 1;
                }
            }
            read.clone_from(&row.message);
        }
    }
    assert!(unsplit > 0, "both kinds of answers were seen");
}

#[test]
fn a_fork_goes_on_from_the_altered_message_with_the_seeds_of_its_clean_chain() {
    let dir = tempfile::tempdir().expect("a folder");
    let sent = Arc::new(Mutex::new(Vec::<Request>::new()));
    let log = Arc::clone(&sent);
    let model = model(move |request| {
        log.lock().expect("no panic").push(request.clone());
        // The brief of the second item is lost at once: nothing in it can be altered.
        if message_of(request).contains("nothing left") {
            Ok(saying(request, "nothing left"))
        } else {
            faithful(request)
        }
    });
    let mut relay = plan(Settings { inject: true, ..settings() }, &model);
    relay.items[1].brief = "nothing left".into();
    let store = begin(&relay, dir.path());
    assert_eq!(finish(&relay, &model, &store, 5), Ending::Finished { failed: 0 });
    assert!(store.finished().expect("an answer"));
    let hops = messages(&store.hops().expect("hops"));
    let injections = store.injections().expect("injections");
    let forks: Vec<_> = relay.trials().into_iter().filter(|trial| trial.injected).collect();
    assert_eq!((forks.len(), injections.len()), (12, 12));
    for fork in forks {
        let clean = fork.fork_of().expect("its clean chain");
        let item = relay.items.iter().find(|item| item.id == fork.item).expect("its item");
        let row = injections.iter().find(|row| row.trial == fork.key()).expect("its injection");
        assert_eq!(row.facts, 12);
        if fork.item == relay.items[1].id {
            assert_eq!((row.eligible, &row.fact, &row.message), (0, &None, &None));
            assert!(!hops.contains_key(&(fork.key(), 2)), "there is nothing to follow");
            continue;
        }
        let (fact, message) = (row.fact.as_ref().expect("a fact"), row.message.as_ref().expect("a message"));
        let fact = item.facts.iter().find(|f| f.id == *fact).expect("a fact of the item");
        assert!(!contains(message, &fact.value) && contains(message, &fact.distractor));
        assert!(!hops.contains_key(&(fork.key(), 1)), "hop 1 is the clean chain's");
        for hop in 2..=relay.plan.hops {
            assert_eq!(hops[&(fork.key(), hop)].message, *message, "a faithful relay keeps the error");
            assert_eq!(hops[&(fork.key(), hop)].seed, hops[&(clean.clone(), hop)].seed);
            assert_eq!(hops[&(clean.clone(), hop)].message, item.brief, "and the truth beside it");
        }
    }
    // (2 formats × 2 replicates) × (3 items × 4 hops + 2 forks × 3 hops): no hop twice.
    assert_eq!(sent.lock().expect("no panic").len(), 4 * (3 * 4 + 2 * 3));
}

#[test]
fn a_run_with_forks_that_is_stopped_anywhere_ends_as_one_that_was_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = model(forgetful);
    let relay =
        plan(Settings { inject: true, conditions: vec![Condition::Plain, Condition::Loaded], ..settings() }, &model);
    let whole = begin(&relay, &dir.path().join("whole"));
    finish(&relay, &model, &whole, 7);
    let expected = messages(&whole.hops().expect("hops"));
    let run = dir.path().join("stopped");
    drop(begin(&relay, &run));
    let mut after = 1;
    loop {
        let store = Store::open(&run).expect("the run");
        let relay = Relay::stored(&store).expect("its plan");
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        let mut tell = Some(tell);
        let before = store.hops().expect("hops").len() as u64;
        let report = |progress: &weaklink::studies::relay::run::Progress| {
            if progress.hops_done >= before + after
                && let Some(tell) = tell.take()
            {
                let _ = tell.send(());
            }
        };
        let stop = async {
            if told.await.is_err() {
                std::future::pending::<()>().await
            }
        };
        let drive = relay.drive(model.work(&relay, 3), &store, stop, report);
        if runtime().block_on(drive).expect("a writable store") != Ending::Stopped {
            break;
        }
        after += 6;
    }
    let store = Store::read(&run).expect("the run");
    assert_eq!(messages(&store.hops().expect("hops")), expected);
    assert_eq!(store.injections().expect("injections"), whole.injections().expect("injections"));
}

/// A stand-in with a name of its own.
fn named(name: &str, program: fn(&Request) -> Result<Completion, GenerateError>) -> StandIn {
    let mut stand_in = model(program);
    let PlannedModel::Local { identity, .. } = &mut stand_in.model.planned else { panic!("a local model") };
    (identity.name, identity.sha256) = (name.into(), format!("hash of {name}"));
    stand_in
}

#[test]
fn several_models_pass_on_the_same_items_with_the_same_seeds() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mut a, b) = (named("a", forgetful), named("b", faithful));
    a.model.shots = 0;
    let draft = settings().resolve().expect("good settings");
    let relay = draft.plan(&[&a.model, &b.model]).expect("two models");
    assert_eq!(relay.plan.shots, 1, "one number of worked examples for both, the larger one");
    let store = begin(&relay, dir.path());
    let all = relay.items.len();
    assert_eq!(relay.chains_left(&store, all).expect("a count"), [12, 12]);
    let drive = |who: &StandIn| {
        let drive = relay.drive(who.work(&relay, 4), &store, std::future::pending(), |_| {});
        runtime().block_on(drive).expect("a writable store");
        relay.conclude(&store, all).expect("a writable store");
    };
    drive(&b);
    assert_eq!(relay.chains_left(&store, all).expect("a count"), [12, 0]);
    assert!(!store.finished().expect("an answer"), "the other model's chains are not done");
    drive(&a);
    assert!(store.finished().expect("an answer"));
    let hops = messages(&store.hops().expect("hops"));
    for trial in relay.trials().iter().filter(|trial| trial.model == "hash of a") {
        let other = weaklink::studies::relay::plan::Trial { model: "hash of b".into(), ..trial.clone() };
        for hop in 1..=relay.plan.hops {
            let (row, twin): (&HopRow, &HopRow) = (&hops[&(trial.key(), hop)], &hops[&(other.key(), hop)]);
            assert_eq!(row.seed, twin.seed);
            assert_ne!(row.message, twin.message, "each was answered by its own model");
        }
    }
    let twice = settings().resolve().expect("good settings").plan(&[&a.model, &a.model]);
    let error = twice.expect_err("one model twice").to_string();
    assert!(error.contains("the same model") && !error.contains('\n'), "{error}");
}

#[test]
fn a_drive_of_some_items_leaves_the_others() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = model(forgetful);
    let wanted = Settings { until_ci: Some(0.02), max_items: Some(5), items: Some(2), ..settings() };
    let relay = plan(wanted, &model);
    assert_eq!((relay.items.len(), relay.plan.until.expect("an end").step), (5, 2));
    let store = begin(&relay, dir.path());
    for items in [2, 4, 5] {
        let work = Work { items, ..model.work(&relay, 3) };
        runtime().block_on(relay.drive(work, &store, std::future::pending(), |_| {})).expect("a writable store");
        assert_eq!(store.hops().expect("hops").len(), items * 2 * 2 * 4, "items × formats × replicates × hops");
    }
}

#[test]
fn settings_that_do_not_go_together_are_refused_in_one_line() {
    let wanted: [(Settings, &str); 8] = [
        (Settings { inject: true, hops: 1, ..settings() }, "--inject with --hops 1"),
        (Settings { conditions: vec![], ..settings() }, "--condition names no condition"),
        (
            Settings { conditions: vec![Condition::Loaded], formats: vec!["kv+grammar".into()], ..settings() },
            "--condition loaded with the format kv+grammar",
        ),
        (Settings { until_ci: Some(0.02), ..settings() }, "--until-ci needs --max-items"),
        (Settings { max_items: Some(9), ..settings() }, "--max-items belongs to --until-ci"),
        (Settings { until_ci: Some(0.5), max_items: Some(9), ..settings() }, "--until-ci is 0.5"),
        (Settings { until_ci: Some(f64::NAN), max_items: Some(9), ..settings() }, "--until-ci is NaN"),
        (Settings { until_ci: Some(0.1), max_items: Some(0), ..settings() }, "--max-items is 0"),
    ];
    for (settings, part) in wanted {
        let error = settings.resolve().expect_err(part).to_string();
        assert!(error.contains(part) && !error.contains('\n'), "{error}");
    }
    let both = Settings { conditions: vec![Condition::Plain, Condition::Loaded, Condition::Plain], ..settings() };
    let model = model(forgetful);
    assert_eq!(plan(both, &model).plan.conditions, [Condition::Plain, Condition::Loaded]);
}
