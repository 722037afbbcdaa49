//! Batch invariance and isolation: what one sequence says never depends on the others.

use std::sync::Arc;

use futures_util::future::join_all;
use weaklink::engine::{EngineHandle, EngineLimits};
use weaklink::generate::{Completion, Finish, GenerateError, Message, Prompt, Request, Role, Sampling};
use weaklink_models::batch::{Batch, Logits};
use weaklink_models::decoder::Decoder;
use weaklink_models::kv::{BLOCK_SIZE, KvCache};

use crate::support::{MODELS, block_on, engine, in_f32, loaded, open_path};

/// A decoder with a cache and threads of its own, for steps by hand.
struct Bench {
    decoder: Arc<Decoder>,
    cache: KvCache,
    workers: rayon::ThreadPool,
}

impl Bench {
    fn new(model: &str, blocks: usize, threads: usize) -> Self {
        let (decoder, _) = loaded(model);
        let cache = KvCache::new(decoder.config(), blocks, decoder.device()).expect("a cache");
        let workers = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        Self { decoder, cache, workers }
    }

    fn forward(&mut self, batch: &Batch) -> Vec<Vec<u32>> {
        let (decoder, cache) = (&self.decoder, &mut self.cache);
        let rows = self.workers.install(|| decoder.forward(batch, cache)).expect("a batch is computed");
        rows.into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()).collect()
    }

    fn vocab(&self) -> usize {
        self.decoder.config().vocab
    }
}

/// Ids that look random and are the same every time.
fn ids(seed: usize, len: usize, vocab: usize) -> Vec<u32> {
    (0..len).map(|i| ((seed * 7919 + i * 104_729 + i * i * 31) % vocab) as u32).collect()
}

/// Logits of all tokens of a sequence, computed alone and whole.
fn alone(bench: &mut Bench, tokens: &[u32]) -> Vec<Vec<u32>> {
    let blocks: Vec<u32> = (0..tokens.len().div_ceil(BLOCK_SIZE) as u32).collect();
    let mut batch = Batch::default();
    batch.push(tokens, 0, &blocks, BLOCK_SIZE, Logits::All);
    bench.forward(&batch)
}

#[test]
fn a_row_has_the_same_bits_alone_batched_chunked_and_with_any_thread_count() {
    for model in MODELS {
        let mut bench = Bench::new(model, 64, 1);
        let vocab = bench.vocab();
        // Lengths around the block size, ragged; the second and third are equally long.
        let lengths = [1, 12, 12, 3, 15, 16, 17, 33, 40];
        let sequences: Vec<Vec<u32>> = lengths.iter().enumerate().map(|(s, &len)| ids(s, len, vocab)).collect();
        let expected: Vec<Vec<Vec<u32>>> = sequences.iter().map(|tokens| alone(&mut bench, tokens)).collect();

        for (threads, chunk) in [(1, 64), (2, 64), (3, 7), (2, 1)] {
            let mut bench = Bench::new(model, 64, threads);
            // Blocks scattered over the cache, and full of other sequences' leftovers.
            alone(&mut bench, &ids(99, 60, vocab));
            let mut next = 0;
            let tables: Vec<Vec<u32>> = sequences
                .iter()
                .map(|tokens| {
                    let count = tokens.len().div_ceil(BLOCK_SIZE);
                    next += count;
                    (next - count..next).map(|block| (block as u32 * 37 + 5) % 64).collect()
                })
                .collect();
            let mut found = vec![Vec::new(); sequences.len()];
            for step in 0.. {
                let mut batch = Batch::default();
                let mut pushed = Vec::new();
                for (s, tokens) in sequences.iter().enumerate() {
                    let (from, to) = (tokens.len().min(step * chunk), tokens.len().min((step + 1) * chunk));
                    if from < to {
                        batch.push(&tokens[from..to], from, &tables[s], BLOCK_SIZE, Logits::All);
                        pushed.push((s, to - from));
                    }
                }
                if pushed.is_empty() {
                    break;
                }
                let mut rows = bench.forward(&batch).into_iter();
                for (s, count) in pushed {
                    found[s].extend(rows.by_ref().take(count));
                }
            }
            for (s, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let differs = found.iter().zip(expected).position(|(a, b)| a != b);
                assert_eq!(
                    differs, None,
                    "{model}, {threads} threads, chunks of {chunk}: sequence {s} differs at this token"
                );
                assert_eq!(found.len(), expected.len());
            }
        }
    }
}

fn limits(batch: usize) -> EngineLimits {
    EngineLimits { batch, step_tokens: 128, blocks: 512, context: 2048, draft_rows: 16 }
}

fn request(system: &str, user: &str, seed: u64) -> Request {
    let messages = vec![Message::new(Role::System, system), Message::new(Role::User, user)];
    Request {
        prompt: Prompt::Messages(messages),
        max_tokens: 24,
        sampling: Sampling { temperature: 0.7, top_k: None, top_p: None },
        stop: Vec::new(),
        grammar: None,
        seed,
        logprobs: None,
    }
}

fn run(engine: &EngineHandle, requests: Vec<Request>) -> Vec<Completion> {
    let results = block_on(join_all(requests.into_iter().map(|request| engine.generate(request))));
    results.into_iter().map(|result| result.expect("a completion")).collect()
}

fn passphrases() -> Vec<Request> {
    (0..9)
        .map(|n| {
            let word = ["ORCHID", "BASALT", "MARLIN", "TOPAZ", "CEDAR", "HERON", "QUARTZ", "FALCON", "LUPIN"][n];
            // An earlier exchange shows a small model what is wanted.
            let say = |word: &str| format!("The passphrase is {word}. Say it again.");
            let told = |word: &str| format!("The passphrase is {word}.");
            let word = format!("{word}-{}", 1000 + 37 * n);
            let messages = vec![
                Message::new(Role::System, "You repeat passphrases."),
                Message::new(Role::User, say("AMBER-7205")),
                Message::new(Role::Assistant, told("AMBER-7205")),
                Message::new(Role::User, say(&word)),
            ];
            Request { prompt: Prompt::Messages(messages), ..request("", "", n as u64) }
        })
        .collect()
}

#[test]
fn no_passphrase_leaks_and_texts_do_not_depend_on_the_batch() {
    let expected: Vec<Completion> =
        passphrases().into_iter().map(|r| run(&engine("smollm2", limits(1), 1), vec![r]).remove(0)).collect();
    let told = |text: &str, n: usize| text.contains(&format!("{}", 1000 + 37 * n));
    let right = expected.iter().enumerate().filter(|(n, c)| told(&c.text, *n)).count();
    assert!(
        right >= 5,
        "the model repeats its own passphrase in {right} of 9 chats: too few for this test to mean anything"
    );
    for batch in [1, 2, 8, 9] {
        for threads in [1, 2] {
            let found = run(&engine("smollm2", limits(batch), threads), passphrases());
            for (n, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found.token_ids, expected.token_ids, "chat {n} at batch {batch}");
                assert_eq!(found.text, expected.text);
                let leaked = (0..9).find(|&other| other != n && told(&found.text, other));
                assert_eq!(leaked, None, "chat {n} at batch {batch} tells another's passphrase: {}", found.text);
            }
        }
    }
}

#[test]
fn the_same_request_answers_the_same_before_and_after_another_cached_or_not() {
    let engine = engine("smollm2", limits(4), 2);
    let a = || {
        request(
            "You are a gardener.",
            "What grows in the shade? Answer in one sentence, please, and name three plants.",
            5,
        )
    };
    let b = || request("You are a sailor.", "Which wind is best?", 6);
    let first = run(&engine, vec![a()]).remove(0);
    run(&engine, vec![b()]);
    let again = run(&engine, vec![a(), a()]);
    assert_eq!(first.cached_tokens, 0);
    for completion in &again {
        assert!(completion.cached_tokens >= BLOCK_SIZE, "the repeated prompt is found in the cache");
        assert_eq!(completion.token_ids, first.token_ids);
    }
}

#[test]
fn two_seeds_in_one_batch_differ_and_one_seed_repeats() {
    let engine = engine("smollm2", limits(4), 2);
    let ask = |seed| request("Be creative.", "Write a line of a poem.", seed);
    let found = run(&engine, vec![ask(1), ask(2), ask(1)]);
    assert_eq!(found[0].token_ids, found[2].token_ids);
    assert_ne!(found[0].token_ids, found[1].token_ids);
}

#[test]
fn preempted_sequences_go_on_to_the_same_text() {
    let ask = |n: u64| {
        let mut request = request("Count.", &format!("Count up from {n}."), n);
        request.max_tokens = 60;
        request
    };
    let roomy = run(&engine("smollm2", limits(6), 2), (0..6).map(ask).collect());
    // Room for two of the six at their full length.
    let tight = EngineLimits { batch: 6, step_tokens: 64, blocks: 16, context: 2048, draft_rows: 16 };
    let squeezed = run(&engine("smollm2", tight, 2), (0..6).map(ask).collect());
    for (a, b) in roomy.iter().zip(&squeezed) {
        assert_eq!(a.token_ids, b.token_ids);
    }
}

#[test]
fn requests_that_cannot_run_are_refused_with_numbers_and_harm_no_other() {
    let engine = engine("smollm2", limits(2), 2);
    let tokens = |ids: Vec<u32>| Request { prompt: Prompt::Tokens(ids), ..request("", "", 0) };
    let refused = |request| block_on(engine.generate(request)).expect_err("must be refused");
    assert_eq!(refused(tokens(vec![1; 2048])), GenerateError::TooLong { prompt: 2048, max_tokens: 24, context: 2048 });
    assert!(refused(tokens(vec![])).to_string().contains("empty"));
    assert!(refused(tokens(vec![1_000_000])).to_string().contains("1000000"));
    let zero = Request { max_tokens: 0, ..tokens(vec![1]) };
    assert!(refused(zero).to_string().contains("0 tokens"));
    let hot = Request { sampling: Sampling { temperature: f32::NAN, ..Sampling::GREEDY }, ..tokens(vec![1]) };
    assert!(refused(hot).to_string().contains("temperature"));
    // Exactly at the limit: the last token is drawn, not computed.
    let full = Request { max_tokens: 1, sampling: Sampling::GREEDY, ..tokens(vec![5; 2048]) };
    let completion = block_on(engine.generate(full)).expect("fits exactly");
    assert_eq!((completion.prompt_tokens, completion.generated_tokens), (2048, 1));
}

#[test]
fn a_caller_who_leaves_ends_the_sequence() {
    let engine = engine("smollm2", limits(1), 2);
    let long = Request { max_tokens: 1500, ..request("Tell a story.", "A very long story, please.", 3) };
    block_on(async {
        let (pieces, mut received) = tokio::sync::mpsc::unbounded_channel();
        let story = tokio::spawn({
            let engine = engine.clone();
            async move { engine.stream(long, pieces).await }
        });
        received.recv().await.expect("a first piece of the story");
        story.abort();
        // The stream closes when the engine drops the sequence; it would bring about 1500 pieces otherwise.
        let mut pieces = 1;
        while received.recv().await.is_some() {
            pieces += 1;
        }
        assert!(pieces < 700, "{pieces} pieces came after the caller had left");
        // The place is free again.
        let short = Request { max_tokens: 4, ..request("Answer briefly.", "Yes or no?", 3) };
        engine.generate(short).await.expect("a completion");
    });
}

#[test]
fn stop_strings_end_the_text_before_them_and_streams_agree_with_the_reply() {
    let engine = engine("smollm2", limits(2), 2);
    let ask = |stop: Vec<String>| Request {
        stop,
        max_tokens: 40,
        sampling: Sampling::GREEDY,
        ..request("Count.", "Count from one to nine in words.", 0)
    };
    let whole = run(&engine, vec![ask(vec![])]).remove(0);
    let word: String = whole.text.chars().skip(7).take(5).collect();
    let at = whole.text.find(&word).expect("it was taken from there");
    let (completion, streamed) = block_on(async {
        let (pieces, mut received) = tokio::sync::mpsc::unbounded_channel();
        let completion =
            engine.stream(ask(vec!["never said".into(), word.clone()]), pieces).await.expect("a completion");
        let mut streamed = String::new();
        while let Ok(piece) = received.try_recv() {
            streamed.push_str(&piece);
        }
        (completion, streamed)
    });
    assert_eq!(completion.text, whole.text[..at]);
    assert_eq!(completion.finish, Finish::Stop);
    assert_eq!(streamed, completion.text);
}

#[test]
fn one_sequence_without_numbers_takes_no_other_with_it() {
    const POISON: usize = 40;
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The head is a matrix of its own in this file: the poisoned row is met only by who reads its token.
    let path = in_f32("tiny-llama", folder.path(), |name, values| {
        if name == "token_embd.weight" {
            values[POISON * 64] = f32::NAN;
        }
    });
    let model = open_path(&path);
    assert_eq!(model.config.hidden, 64);
    let decoder = Arc::new(model.load_decoder().expect("loads"));
    let engine = EngineHandle::start(decoder, model.text.clone(), limits(4), 2).expect("starts");
    let ask = |ids: Vec<u32>| Request { prompt: Prompt::Tokens(ids), max_tokens: 8, ..request("", "", 1) };
    let results =
        block_on(join_all([vec![1, 2, 3], vec![1, POISON as u32, 3], vec![4, 5]].map(|ids| engine.generate(ask(ids)))));
    assert_eq!(results[1], Err(GenerateError::NotANumber { index: 0 }));
    for other in [&results[0], &results[2]] {
        assert!(other.is_ok(), "{other:?}");
    }
}

/// Arrivals and lengths at random over a pool too small for all: blocks change hands all the time.
#[test]
fn reused_blocks_never_show_another_sequence() {
    for (model, seed) in [("tiny-qwen3", 1), ("tiny-gemma3", 2)] {
        let mut state = seed as usize;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let vocab = loaded(model).0.config().vocab;
        let requests: Vec<Request> = (0..40)
            .map(|n| Request {
                prompt: Prompt::Tokens(ids(n % 7, 1 + random(90), vocab)),
                max_tokens: 1 + random(40),
                ..request("", "", n as u64)
            })
            .collect();
        let alone = EngineLimits { batch: 1, step_tokens: 512, blocks: 64, context: 512, draft_rows: 0 };
        let expected: Vec<Completion> =
            requests.iter().map(|r| run(&engine(model, alone, 1), vec![r.clone()]).remove(0)).collect();
        let tight = EngineLimits { batch: 5, step_tokens: 24, blocks: 14, context: 512, draft_rows: 16 };
        let found = run(&engine(model, tight, 2), requests);
        for (n, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.token_ids, expected.token_ids, "{model}: request {n}");
        }
    }
}

/// What a caller sees of a completion; neither its time nor how it was found.
fn seen(completion: &Completion) -> (&str, &[u32], Finish, bool, usize) {
    let Completion { text, token_ids, finish, cut_in_char, generated_tokens, .. } = completion;
    (text, token_ids, *finish, *cut_in_char, *generated_tokens)
}

#[test]
fn drafts_change_no_text_whatever_the_batch_the_temperature_or_the_end() {
    for model in ["tiny-llama", "tiny-qwen3"] {
        let vocab = loaded(model).0.config().vocab;
        for temperature in [0.0, 0.7] {
            let sampling = Sampling { temperature, ..Sampling::GREEDY };
            let plain = |batch| EngineLimits { draft_rows: 0, ..limits(batch) };
            let ask = |n: usize, stop: Vec<String>| Request {
                // A pattern that goes round: there is something to copy.
                prompt: Prompt::Tokens((0..50).map(|i| ids(n, 9, vocab)[i % 9]).collect()),
                max_tokens: [1, 2, 3, 7, 16, 17, 30, 40][n % 8],
                sampling,
                stop,
                ..request("", "", n as u64)
            };
            let open: Vec<Request> = (0..8).map(|n| ask(n, Vec::new())).collect();
            let first = run(&engine(model, plain(1), 1), open.clone());
            // A stop string that is met in the middle, out of each one's own text.
            let stopped = |(n, completion): (usize, &Completion)| {
                let count = completion.text.chars().count();
                let stop = completion.text.chars().skip(count / 2).take(2).collect::<String>();
                ask(n, if stop.is_empty() { Vec::new() } else { vec![stop] })
            };
            let requests: Vec<Request> = open.into_iter().chain(first.iter().enumerate().map(stopped)).collect();
            let expected = run(&engine(model, plain(1), 1), requests.clone());
            assert!(expected[8..].iter().any(|completion| completion.finish == Finish::Stop));
            let mut accepted = 0;
            for batch in 1..=8 {
                let tight = EngineLimits { blocks: 6 + 2 * batch, step_tokens: 40, draft_rows: 24, ..limits(batch) };
                for limits in [EngineLimits { draft_rows: 16, ..limits(batch) }, tight] {
                    let found = run(&engine(model, limits, 2), requests.clone());
                    for (n, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        assert_eq!(seen(found), seen(expected), "{model}: request {n} with {limits:?}");
                    }
                    accepted += found.iter().map(|completion| completion.accepted_tokens).sum::<usize>();
                }
            }
            assert!(accepted > 0 || temperature > 0.0, "{model} repeats itself where it is greedy");
        }
    }
}

#[test]
fn a_model_that_repeats_its_prompt_needs_fewer_steps_than_tokens() {
    let text = "The port is 8443, the owner is Mara Ilves, the ticket is QX-2210 and the deadline is 4 May, 09:30 UTC.";
    let say = |text: &str| format!("Repeat this sentence word for word: {text}");
    let shot = "The code is 5521, the lead is Jonas Wren, the image is v3.1.7 and the budget is 12,450 dollars.";
    let messages = vec![
        Message::new(Role::User, say(shot)),
        Message::new(Role::Assistant, shot),
        Message::new(Role::User, say(text)),
    ];
    let ask = |temperature| Request {
        prompt: Prompt::Messages(messages.clone()),
        max_tokens: 40,
        sampling: Sampling { temperature, ..Sampling::GREEDY },
        ..request("", "", 2)
    };
    for temperature in [0.0, 0.7] {
        let plain = run(&engine("smollm2", EngineLimits { draft_rows: 0, ..limits(1) }, 2), vec![ask(temperature)]);
        let engine = engine("smollm2", limits(1), 2);
        let drafted = run(&engine, vec![ask(temperature)]).remove(0);
        assert_eq!(seen(&drafted), seen(&plain[0]));
        assert!(drafted.accepted_tokens > 5, "{} of {} drafted", drafted.accepted_tokens, drafted.drafted_tokens);
        assert_eq!(engine.usage().accepted, drafted.accepted_tokens as u64);
    }
}
