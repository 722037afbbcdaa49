//! Drafts save steps and change nothing else.

use super::*;

/// Eight sequences whose prompts repeat themselves; with the steps and the tokens that were computed.
fn run(draft_rows: usize, max_tokens: usize, blocks: usize) -> (Vec<Completion>, u64, u64) {
    let mut engine = engine(EngineLimits { batch: 8, step_tokens: 64, blocks, context: 512, draft_rows });
    let tasks: Vec<Task> = (0..8)
        .map(|n| Task {
            prompt: (0..40).map(|i| 6 + i % (3 + n)).collect(),
            max_tokens,
            sampling: if n % 2 == 0 { HOT } else { Sampling::GREEDY },
            seed: n.into(),
            stop: Vec::new(),
            logprobs: None,
            grammar: None,
        })
        .collect();
    let expected: Vec<_> = tasks.iter().map(expected).collect();
    let mut replies = Vec::new();
    for task in tasks {
        let (sequence, reply) = sequence(task);
        engine.scheduler.submit(sequence);
        replies.push(reply);
    }
    while !engine.scheduler.is_idle() {
        engine.checked_step();
    }
    let found = replies.into_iter().zip(expected).filter_map(|(mut reply, expected)| {
        let found = reply.try_recv().expect("answered");
        assert_eq!(found.clone().map(|completion| completion.token_ids), expected);
        found.ok()
    });
    let found: Vec<Completion> = found.collect();
    let usage = engine.shared.usage();
    (found, usage.steps, usage.rows)
}

#[test]
fn accepted_drafts_save_steps_and_are_counted() {
    let (plain, plain_steps, _) = run(0, 120, 256);
    let (drafted, steps, rows) = run(32, 120, 256);
    assert_eq!((plain.len(), drafted.len()), (8, 8), "none of them breaks");
    assert!(plain.iter().all(|completion| completion.drafted_tokens == 0));
    let sum = |count: fn(&Completion) -> usize| drafted.iter().map(count).sum::<usize>();
    let (accepted, generated) =
        (sum(|completion| completion.accepted_tokens), sum(|completion| completion.generated_tokens));
    assert!(accepted >= 50, "{accepted} of {generated} tokens");
    assert!(steps < plain_steps, "{steps} steps where {plain_steps} did");
    // A guess that was wrong is a row computed for nothing; nothing else is computed twice.
    let wrong = sum(|completion| completion.drafted_tokens - completion.accepted_tokens);
    let prompts = sum(|completion| completion.prompt_tokens - completion.cached_tokens);
    let last = |completion: &Completion| completion.generated_tokens - 1;
    let needed = prompts + sum(last) + wrong;
    assert!((needed..=needed + drafted.len()).contains(&(rows as usize)), "{rows} rows, {needed} needed");
}

#[test]
fn no_draft_passes_the_token_limit() {
    for max_tokens in 1..24 {
        for completion in run(64, max_tokens, 256).0 {
            let generated = completion.generated_tokens;
            assert!(generated <= max_tokens, "{generated} of {max_tokens}");
            assert!(completion.accepted_tokens <= generated);
        }
    }
}

#[test]
fn drafts_hold_through_preemption_and_take_nobodys_blocks() {
    // Room for two sequences at their full length, or for four at their prompts.
    let (found, ..) = run(64, 120, 20);
    assert!(found.iter().any(|completion| completion.accepted_tokens > 0));
    // Room for exactly one.
    run(64, 120, 10);
}
