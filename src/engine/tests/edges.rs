//! Defined behaviour at the edges: of lengths, of numbers, of callers and of the decoder.

use std::sync::mpsc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Runtime;

use super::*;
use crate::generate::{Finish, Prompt, Request};

fn limits(batch: usize) -> EngineLimits {
    EngineLimits { batch, step_tokens: 64, blocks: 16, context: 1024, draft_rows: 16 }
}

fn request(prompt: &[u32], max_tokens: usize) -> Request {
    Request {
        prompt: Prompt::Tokens(prompt.to_vec()),
        max_tokens,
        sampling: HOT,
        stop: Vec::new(),
        logprobs: None,
        grammar: None,
        seed: prompt.iter().map(|&id| u64::from(id)).sum(),
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

fn sound(limits: EngineLimits) -> EngineHandle {
    let mut cache = vec![None; limits.blocks * BLOCK_SIZE];
    started(limits, move |batch| Ok(forward(batch, &mut cache)))
}

/// An engine that makes one step for each message sent to it.
fn by_hand(limits: EngineLimits) -> (EngineHandle, mpsc::Sender<()>) {
    let mut cache = vec![None; limits.blocks * BLOCK_SIZE];
    let (go, steps) = mpsc::channel();
    let engine = started(limits, move |batch| {
        steps.recv()?;
        Ok(forward(batch, &mut cache))
    });
    (engine, go)
}

/// Waits for the engine's thread, which tells of each step after it.
fn until(engine: &EngineHandle, what: impl Fn(&super::super::Usage) -> bool) {
    while !what(&engine.usage()) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn prompts_of_no_token_one_token_and_of_the_limit() {
    let engine = sound(limits(2));
    let ask = |prompt: Vec<u32>, max_tokens| runtime().block_on(engine.generate(request(&prompt, max_tokens)));
    assert!(ask(vec![], 5).expect_err("no token").to_string().contains("the prompt is empty"));
    assert_eq!(ask(vec![3], 1).expect("one token").generated_tokens, 1);
    // 16 blocks of 16 hold all but the last token, which is drawn and not computed.
    for (prompt, max_tokens) in [(256, 1), (200, 57), (1, 256)] {
        let completion = ask(vec![2; prompt], max_tokens).expect("fits exactly");
        assert_eq!((completion.generated_tokens, completion.finish), (max_tokens, Finish::Length));
        let error = ask(vec![2; prompt + 1], max_tokens).expect_err("one token too many");
        assert_eq!(error, GenerateError::TooLong { prompt: prompt + 1, max_tokens, context: 256 });
    }
    assert!(matches!(ask(vec![2], usize::MAX), Err(GenerateError::TooLong { .. })));
}

#[test]
fn a_stop_token_drawn_first_gives_an_empty_text() {
    // Whatever is drawn ends the sequence.
    let forward = |batch: &Batch| Ok(batch.logit_rows.iter().map(|_| logits(&[1])).collect());
    let stops = (0..VOCAB).collect();
    let mut engine = Engine::new(Box::new(forward), limits(1), stops, Arc::new(Shared::default()));
    let prompt = vec![1, 2, 3];
    let (first, mut reply) = sequence(Task {
        prompt,
        max_tokens: 9,
        sampling: HOT,
        seed: 0,
        stop: Vec::new(),
        logprobs: None,
        grammar: None,
    });
    engine.scheduler.submit(first);
    engine.checked_step();
    let completion = reply.try_recv().expect("answered").expect("a completion");
    assert_eq!((completion.text.as_str(), completion.finish), ("", Finish::Stop));
    assert_eq!((completion.token_ids.len(), completion.generated_tokens), (0, 1));
    assert!(engine.scheduler.is_idle());
}

#[test]
fn logits_that_are_no_numbers_end_one_sequence_with_a_name_for_it() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut cache = vec![None; 256];
        let engine = started(limits(8), move |batch| {
            let mut rows = forward(batch, &mut cache);
            for row in rows.iter_mut().filter(|row| row.iter().any(|logit| logit.is_nan())) {
                row.fill(bad);
            }
            Ok(rows)
        });
        let asked: Vec<Request> = (0..6).map(|n| request(&[1, 2, n, if n % 2 == 0 { POISON } else { 9 }], 4)).collect();
        let found = runtime().block_on(join_all(asked.into_iter().map(|request| engine.generate(request))));
        for (n, found) in found.iter().enumerate() {
            match n % 2 {
                0 => assert_eq!(*found, Err(GenerateError::NotANumber { index: 0 }), "{bad}"),
                _ => assert!(found.as_ref().is_ok_and(|completion| completion.generated_tokens == 4), "{found:?}"),
            }
        }
        assert_eq!(engine.usage().free_blocks, 16);
    }
}

#[test]
fn a_thousand_requests_at_once_are_all_answered() {
    let engine = sound(limits(4));
    let asked = (0..1000u32).map(|n| engine.generate(request(&[n % 20, n / 20 % 20, n % 7], 1 + n as usize % 9)));
    let found = runtime().block_on(join_all(asked));
    for (n, found) in found.into_iter().enumerate() {
        let completion = found.expect("a completion");
        assert_eq!(completion.generated_tokens, 1 + n % 9, "no token of the made-up decoder stops this engine");
    }
    let usage = engine.usage();
    assert_eq!((usage.running, usage.waiting, usage.free_blocks), (0, 0, 16));
}

#[test]
fn callers_who_leave_while_running_or_waiting_free_their_places() {
    let (engine, go) = by_hand(limits(1));
    let runtime = runtime();
    let ask = |prompt: [u32; 2], max_tokens| {
        let engine = engine.clone();
        runtime.spawn(async move { engine.generate(request(&prompt, max_tokens)).await })
    };
    let running = ask([1, 2], 200);
    go.send(()).expect("the engine runs");
    until(&engine, |usage| usage.running == 1);
    let (waiting, last) = (ask([3, 4], 200), ask([5, 6], 1));
    // The next steps find both of them in the queue, however long that takes.
    go.send(()).expect("the engine runs");
    for _ in 0..200 {
        if engine.usage().waiting == 2 {
            break;
        }
        go.send(()).expect("the engine runs");
        std::thread::sleep(Duration::from_millis(5));
    }
    running.abort();
    waiting.abort();
    let _ = runtime.block_on(running);
    let _ = runtime.block_on(waiting);
    // One step may have been planned with the first of them.
    (0..3).for_each(|_| go.send(()).expect("the engine runs"));
    let completion = runtime.block_on(last).expect("not aborted").expect("a completion");
    assert_eq!(completion.generated_tokens, 1);
    until(&engine, |usage| usage.free_blocks == 16 && usage.running + usage.waiting == 0);
}

#[test]
fn a_panic_of_the_engine_reaches_every_caller_then_and_later() {
    let engine = started(limits(1), |_| panic!("the decoder is broken"));
    let runtime = runtime();
    let ended = |found: Result<Completion, GenerateError>| {
        let error = found.expect_err("nobody can answer").to_string();
        assert!(error.contains("ended") && error.contains("the decoder is broken"), "{error}");
    };
    let asked = (0..3).map(|n| engine.generate(request(&[n, 1], 4)));
    runtime.block_on(join_all(asked)).into_iter().for_each(ended);
    ended(runtime.block_on(engine.generate(request(&[7], 4))));
}

#[test]
fn a_step_that_fails_fails_what_was_in_it_and_the_engine_goes_on() {
    let mut cache = vec![None; 256];
    let mut left = 3;
    let engine = started(limits(4), move |batch| {
        left -= 1;
        anyhow::ensure!(left != 0, "a lost device");
        Ok(forward(batch, &mut cache))
    });
    let runtime = runtime();
    let asked = (0..3).map(|n| engine.generate(request(&[n, 1], 50)));
    for found in runtime.block_on(join_all(asked)) {
        assert_eq!(found, Err(GenerateError::Backend { what: "a lost device".into() }));
    }
    assert_eq!(engine.usage().free_blocks, 16);
    runtime.block_on(engine.generate(request(&[7], 4))).expect("a completion");
}

/// The long form of this is `cargo bench --bench relay -- --soak 60`.
#[test]
fn thousands_of_short_requests_and_cancellations_leave_every_block_free() {
    let engine = sound(limits(6));
    runtime().block_on(async {
        let mut answered = 0;
        for round in 0..40u32 {
            let asked: Vec<_> = (0..50u32)
                .map(|n| {
                    let prompt: Vec<u32> = (0..1 + (n * 7 + round) % 60).map(|i| (i * i + n % 3) % 20).collect();
                    let engine = engine.clone();
                    tokio::spawn(async move { engine.generate(request(&prompt, 1 + n as usize % 20)).await })
                })
                .collect();
            for (n, task) in asked.into_iter().enumerate() {
                if (n * 31 + round as usize * 17) % 10 < 4 {
                    task.abort();
                } else {
                    task.await.expect("not aborted").expect("a completion");
                    answered += 1;
                }
            }
        }
        assert!(answered >= 1000, "{answered}");
        // Those who left last are noticed at the next step.
        engine.generate(request(&[1], 1)).await.expect("a completion");
    });
    until(&engine, |usage| usage.running + usage.waiting == 0);
    assert_eq!(engine.usage().free_blocks, 16);
}
