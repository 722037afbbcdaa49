//! Arrivals, lengths, cancellations and pool sizes at random.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A request of a random run.
#[derive(Clone, Debug)]
struct Arrival {
    /// Steps after the one before it.
    after: usize,
    /// Prompts begin alike as often as not: which beginning, and tokens of it.
    beginning: u32,
    shared: usize,
    own: Vec<u32>,
    max_tokens: usize,
    hot: bool,
    /// Steps after which the caller leaves.
    leaves: Option<usize>,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let leaves = prop_oneof![3 => Just(None), 1 => (0..40usize).prop_map(Some)];
    (0..4usize, 0..3u32, 0..90usize, vec(0..VOCAB, 1..30), 1..50usize, any::<bool>(), leaves).prop_map(
        |(after, beginning, shared, own, max_tokens, hot, leaves)| Arrival {
            after: after / 2,
            beginning,
            shared,
            own,
            max_tokens,
            hot,
            leaves,
        },
    )
}

impl Arrival {
    fn task(&self, seed: u64) -> Task {
        let mut prompt: Vec<u32> =
            (0..self.shared as u32).map(|i| (i * (self.beginning + 2) + i * i / 7) % 20).collect();
        prompt.extend_from_slice(&self.own);
        let sampling = if self.hot { HOT } else { Sampling::GREEDY };
        Task { prompt, max_tokens: self.max_tokens, sampling, seed, stop: Vec::new(), logprobs: None, grammar: None }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_every_sequence_says_what_it_says_alone(
        arrivals in vec(arrival(), 1..24),
        batch in 1..7usize,
        more_budget in 0..40usize,
        spare_blocks in 0..30usize,
        draft_rows in prop_oneof![Just(0), 1..24usize],
    ) {
        // The longest sequence fits alone; a few more blocks make the others change places.
        let tasks: Vec<Task> = arrivals.iter().zip(0..).map(|(arrival, seed)| arrival.task(seed)).collect();
        let longest = tasks.iter().map(|task| task.prompt.len() + task.max_tokens - 1).max().expect("one at least");
        let blocks = longest.div_ceil(BLOCK_SIZE) + spare_blocks;
        let step_tokens = batch + more_budget;
        let limits = EngineLimits { batch, step_tokens, blocks, context: longest, draft_rows };
        let expected: Vec<_> = tasks.iter().map(expected).collect();

        // A sequence is only ever held up by those before it, and the first of all goes on in every step.
        let bound: usize = tasks
            .iter()
            .map(|task| (task.prompt.len() + task.max_tokens).div_ceil(step_tokens) + task.max_tokens)
            .sum();

        let mut cache = vec![None; blocks * BLOCK_SIZE];
        let checked = move |step: &Batch| {
            assert!(step.rows() <= step_tokens, "{} tokens in a step of {step_tokens}", step.rows());
            assert!(step.spans.len() <= batch, "{} sequences in a batch of {batch}", step.spans.len());
            Ok(forward(step, &mut cache))
        };
        let mut engine = Engine::new(Box::new(checked), limits, vec![STOP], Arc::new(Shared::default()));
        let mut coming = tasks.into_iter().zip(&arrivals).peekable();
        let mut replies: Vec<(Option<Answer>, Option<usize>)> = Vec::new();
        let (mut steps, mut wait) = (0, 0);
        while coming.peek().is_some() || !engine.scheduler.is_idle() {
            while let Some((task, arrival)) = coming.next_if(|(_, arrival)| arrival.after <= wait) {
                wait = 0;
                let (sequence, reply) = sequence(task);
                engine.scheduler.submit(sequence);
                replies.push((Some(reply), arrival.leaves));
            }
            wait += 1;
            steps += usize::from(!engine.scheduler.is_idle());
            engine.checked_step();
            for (reply, leaves) in &mut replies {
                match leaves {
                    Some(0) => *reply = None,
                    Some(left) => *left -= 1,
                    None => {}
                }
            }
            prop_assert!(steps <= bound, "{steps} steps, where {bound} are enough");
        }
        prop_assert_eq!(engine.scheduler.free_blocks(), (blocks, blocks));
        for (index, ((reply, _), expected)) in replies.into_iter().zip(expected).enumerate() {
            let Some(mut reply) = reply else { continue };
            let found = reply.try_recv().expect("every caller that stayed is answered");
            if let Ok(completion) = &found {
                prop_assert!(completion.accepted_tokens <= completion.drafted_tokens);
                prop_assert!(completion.cached_tokens < completion.prompt_tokens);
            }
            prop_assert_eq!(found.map(|completion| completion.token_ids), expected, "sequence {}", index);
        }
    }
}
