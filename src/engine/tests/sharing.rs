//! What is computed once for several sequences.

use super::*;

fn limits(batch: usize) -> EngineLimits {
    EngineLimits { batch, step_tokens: 512, blocks: 256, context: 1024, draft_rows: 0 }
}

fn task(prompt: Vec<u32>, seed: u64) -> Task {
    Task { prompt, max_tokens: 8, sampling: HOT, seed, stop: Vec::new(), logprobs: None, grammar: None }
}

fn tokens(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (seed + i * (seed + 3) + i * i / 5) % 20).collect()
}

/// Runs sequences that are submitted together; each with its tokens found in the cache.
fn run(engine: &mut Engine, tasks: Vec<Task>) -> Vec<Completion> {
    let expected: Vec<_> = tasks.iter().map(|task| expected(task).expect("no poison")).collect();
    let replies: Vec<Answer> = tasks
        .into_iter()
        .map(|task| {
            let (sequence, reply) = sequence(task);
            engine.scheduler.submit(sequence);
            reply
        })
        .collect();
    while !engine.scheduler.is_idle() {
        engine.checked_step();
    }
    let answered = replies.into_iter().map(|mut reply| reply.try_recv().expect("answered").expect("a completion"));
    let found: Vec<Completion> = answered.collect();
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.token_ids, expected);
    }
    found
}

fn cached(found: &[Completion]) -> Vec<usize> {
    found.iter().map(|completion| completion.cached_tokens).collect()
}

#[test]
fn sequences_admitted_in_the_same_step_compute_their_common_prompt_once() {
    let mut engine = engine(limits(16));
    let tasks = (0..16).map(|n| {
        let mut prompt = tokens(1, 20 * BLOCK_SIZE);
        prompt.extend(tokens(2 + n, 5));
        task(prompt, n.into())
    });
    let found = run(&mut engine, tasks.collect());
    assert_eq!(cached(&found)[0], 0);
    assert_eq!(cached(&found)[1..], [20 * BLOCK_SIZE; 15]);
    // The prompts, the common one once; of what was drawn all but the last tokens.
    let drawn: usize = found.iter().map(|completion| completion.generated_tokens - 1).sum();
    assert_eq!(engine.shared.usage().rows, (20 * BLOCK_SIZE + 16 * 5 + drawn) as u64);
}

#[test]
fn a_prompt_longer_than_a_step_is_computed_once_too() {
    let mut engine = engine(EngineLimits { step_tokens: 48, ..limits(8) });
    let tasks = (0..8).map(|n| {
        let mut prompt = tokens(1, 10 * BLOCK_SIZE);
        prompt.push(n);
        task(prompt, n.into())
    });
    let found = run(&mut engine, tasks.collect());
    assert_eq!(cached(&found)[1..], [10 * BLOCK_SIZE; 7]);
}

#[test]
fn forks_share_their_whole_past_with_what_was_drawn_in_it() {
    let mut engine = engine(limits(8));
    let trunk = Task { max_tokens: 40, ..task(tokens(3, 50), 10) };
    let said = run(&mut engine, vec![trunk]).remove(0);
    let mut past = tokens(3, 50);
    past.extend(&said.token_ids);
    let forks: Vec<Task> = (0..6).map(|n| task(past.clone(), 20 + n)).collect();
    // All but the last token was computed; whole blocks of that are shared.
    let whole = (past.len() - 1) / BLOCK_SIZE * BLOCK_SIZE;
    assert_eq!(cached(&run(&mut engine, forks)), [whole; 6]);
}

#[test]
fn a_conversation_finds_its_earlier_turns() {
    let mut engine = engine(limits(2));
    let mut conversation = tokens(7, 30);
    for turn in 0..5 {
        let before = conversation.len();
        let found = run(&mut engine, vec![Task { max_tokens: 30, ..task(conversation.clone(), turn) }]).remove(0);
        if turn > 0 {
            assert!(found.cached_tokens + 21 + BLOCK_SIZE > before, "{} of {before} cached", found.cached_tokens);
        }
        conversation.extend(&found.token_ids);
        conversation.extend(tokens(11 + turn as u32, 20));
    }
}

#[test]
fn what_was_used_last_is_kept_longest() {
    // Room for two pasts of 8 blocks and one that is running.
    let mut engine = engine(EngineLimits { blocks: 27, ..limits(1) });
    let past = |seed| task(tokens(seed, 8 * BLOCK_SIZE + 1), seed.into());
    let mut first = |seed| cached(&run(&mut engine, vec![past(seed)]))[0];
    assert_eq!([first(1), first(2), first(3)], [0; 3]);
    assert_eq!(first(1), 8 * BLOCK_SIZE, "three fit");
    assert_eq!(first(4), 0);
    // The second was used longest ago and gave its blocks to the fourth, from its end.
    assert_eq!([first(1), first(3)], [8 * BLOCK_SIZE; 2]);
    assert!(first(2) < 8 * BLOCK_SIZE);
}

#[test]
fn after_a_failed_step_nothing_is_found() {
    let mut cache = vec![None; 256 * BLOCK_SIZE];
    let mut fails = true;
    let sometimes = move |batch: &Batch| {
        if std::mem::take(&mut fails) {
            anyhow::bail!("the device is lost");
        }
        Ok(forward(batch, &mut cache))
    };
    let mut engine = Engine::new(Box::new(sometimes), limits(4), vec![STOP], Arc::new(Shared::default()));
    let (lost, mut reply) = sequence(task(tokens(1, 60), 1));
    engine.scheduler.submit(lost);
    engine.checked_step();
    let error = reply.try_recv().expect("answered").expect_err("the step failed");
    assert_eq!(error, GenerateError::Backend { what: "the device is lost".into() });
    assert_eq!(cached(&run(&mut engine, vec![task(tokens(1, 60), 1)])), [0]);
}
