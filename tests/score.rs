//! Scores of given tokens, and perplexity: the same bits as a decoder alone gives, the same numbers as a reference.

use std::sync::Arc;

use futures_util::future::join_all;
use weaklink::engine::{EngineHandle, EngineLimits};
use weaklink::generate::{GenerateError, Prompt, Request, Sampling};
use weaklink::perplexity::{chunks, measure};
use weaklink_models::batch::{Batch, Logits};
use weaklink_models::kv::{BLOCK_SIZE, KvCache};

use crate::support::{block_on, engine, golden_json, in_f32, loaded, open_path};

/// Log-probabilities of all ids after the first: one text, whole, in a cache of its own.
fn alone(model: &str, ids: &[u32]) -> Vec<f64> {
    let (decoder, _) = loaded(model);
    let count = ids.len().div_ceil(BLOCK_SIZE);
    let mut cache = KvCache::new(decoder.config(), count, decoder.device()).expect("a cache");
    let blocks: Vec<u32> = (0..count as u32).collect();
    let mut batch = Batch::default();
    batch.push(ids, 0, &blocks, BLOCK_SIZE, Logits::All);
    let rows = decoder.forward(&batch, &mut cache).expect("a batch is computed");
    let of = |(logits, &id): (&Vec<f32>, &u32)| {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&l| (f64::from(l) - f64::from(max)).exp()).sum();
        f64::from(logits[id as usize]) - (f64::from(max) + sum.ln())
    };
    rows.iter().zip(&ids[1..]).map(of).collect()
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn ids(seed: usize, len: usize) -> Vec<u32> {
    (0..len).map(|i| ((seed * 7919 + i * 104_729 + i * i * 31) % 280) as u32).collect()
}

#[test]
fn many_texts_at_once_have_the_bits_of_each_alone() {
    for model in ["tiny-llama", "tiny-gemma3"] {
        // Texts of all lengths around block and step sizes, half of them after one prompt; more rows than a
        // step may score, and blocks for a few of them only, so that some are put aside and computed again.
        let prompt = ids(3, 40);
        let texts: Vec<Vec<u32>> = [1, 2, 15, 16, 17, 33, 90, 150, 64, 65, 5, 120]
            .iter()
            .enumerate()
            .map(|(n, &len)| if n % 2 == 0 { ids(n, len) } else { [prompt.clone(), ids(n, len)].concat() })
            .collect();
        for (batch, step_tokens, blocks) in [(1, 512, 64), (6, 512, 128), (6, 40, 16)] {
            let engine = engine(model, EngineLimits { batch, step_tokens, blocks, context: 256, draft_rows: 16 }, 2);
            let whole = block_on(join_all(texts.iter().map(|text| engine.score_text(text, 3))));
            for (text, score) in texts.iter().zip(whole) {
                let score = score.expect("a score");
                assert_eq!(bits(&score.logprobs), bits(&alone(model, text)), "{model}, {} ids", text.len());
                assert_eq!(score.next.len(), 3);
            }
            let prompted = texts.iter().filter(|text| text.len() > 40);
            let after = prompted.clone().map(|text| engine.score_after(text[..40].to_vec(), &text[40..], 0));
            for (text, score) in prompted.zip(block_on(join_all(after))) {
                assert_eq!(bits(&score.expect("a score").logprobs), bits(&alone(model, text)[39..]));
            }
        }
    }
}

#[test]
fn a_shared_prompt_is_computed_once() {
    let engine =
        engine("tiny-llama", EngineLimits { batch: 4, step_tokens: 512, blocks: 64, context: 256, draft_rows: 16 }, 1);
    let cached = |n| block_on(engine.score_after(ids(1, 100), &[n, n + 1], 0)).expect("a score").cached_tokens;
    assert_eq!((cached(5), cached(9)), (0, 96));
}

#[test]
fn what_is_reported_of_drawn_tokens_is_their_score() {
    let engine =
        engine("tiny-qwen3", EngineLimits { batch: 4, step_tokens: 64, blocks: 64, context: 256, draft_rows: 16 }, 2);
    for (seed, temperature) in [(1, 0.0), (2, 1.3), (3, 0.6)] {
        let prompt = Prompt::Tokens(ids(seed, 20));
        let sampling = Sampling { temperature, top_k: Some(20), top_p: None };
        let request = Request { sampling, seed: seed as u64, logprobs: Some(4), ..Request::new(prompt.clone(), 30) };
        let completion = block_on(engine.generate(request.clone())).expect("a completion");
        let reported = completion.logprobs.expect("they were asked for");
        let scored = block_on(engine.score(&prompt, &completion.token_ids)).expect("a score");
        assert_eq!(reported.iter().map(|t| t.id).collect::<Vec<_>>(), completion.token_ids);
        assert_eq!(bits(&reported.iter().map(|t| t.logprob).collect::<Vec<_>>()), bits(&scored));
        for token in &reported {
            assert!(token.top.len() == 4 && token.top.is_sorted_by(|a, b| a.1 >= b.1), "{token:?}");
            assert!(temperature > 0.0 || token.top[0] == (token.id, token.logprob), "{token:?}");
        }
        let silent = block_on(engine.generate(Request { logprobs: None, ..request })).expect("a completion");
        assert_eq!((silent.logprobs, silent.token_ids), (None, completion.token_ids));
    }
}

#[test]
fn texts_that_cannot_be_scored_are_refused() {
    let engine =
        engine("tiny-llama", EngineLimits { batch: 2, step_tokens: 64, blocks: 8, context: 100, draft_rows: 16 }, 1);
    let refused = |tokens: Vec<u32>, rest: &[u32], part: &str| match block_on(engine.score_after(tokens, rest, 0)) {
        Err(GenerateError::Invalid { what }) => assert!(what.contains(part), "{what}"),
        other => panic!("{other:?}"),
    };
    refused(vec![], &[1], "0 tokens");
    refused(vec![1], &[286], "token id 286 in a vocabulary of 286");
    refused(vec![1; 60], &[1; 42], "101 tokens");
    // The last token is scored, not computed: it fits exactly.
    let full = block_on(engine.score_after(vec![1; 60], &[1; 41], 0)).expect("fits");
    assert_eq!(full.logprobs.len(), 41);
    assert_eq!(block_on(engine.score(&Prompt::Tokens(vec![1]), &[])), Ok(vec![]));
}

#[test]
fn perplexity_agrees_with_the_float32_reference() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for case in golden_json("perplexity.json").as_array().expect("a list of cases") {
        let name = case["model"].as_str().expect("a name");
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).expect("ids");
        let bos = case["bos"].as_u64().map(|id| id as u32);
        let model = open_path(&in_f32(name, folder.path(), |_, _| {}));
        assert_eq!(model.text.bos(), bos, "{name}");
        let decoder = Arc::new(model.load_decoder().expect("the weights load"));
        let limits = EngineLimits { batch: 3, step_tokens: 512, blocks: 32, context: 256, draft_rows: 16 };
        let engine = EngineHandle::start(decoder, model.text.clone(), limits, 2).expect("the engine starts");
        let chunks = chunks(&ids, bos, case["chunk"].as_u64().expect("a number") as usize).expect("chunks");
        let count = chunks.len();
        let mut reports = 0;
        let sums = block_on(measure(&engine, chunks, 4, |_| reports += 1)).expect("a perplexity");
        assert_eq!((reports, sums.count as u64), (count, case["count"].as_u64().expect("a number")));
        for (ours, key) in [(sums.perplexity(), "perplexity"), (sums.error(), "error")] {
            let (ours, expected) = (ours.expect("a number"), case[key].as_f64().expect("a number"));
            assert!((ours / expected - 1.0).abs() < 0.005, "{name} {key}: {ours}, expected {expected}");
        }
    }
}
