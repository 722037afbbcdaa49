//! The tiny models of `tests/golden` are whole: every part of them that can be
//! read without a forward pass is what the script that made them meant.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use weaklink_kernels::dequantize;
use weaklink_models::fetch::{FetchOptions, Fetcher, ModelSpec};
use weaklink_models::gguf::Gguf;
use weaklink_models::text::{ChatMessage, Text};

const FAMILIES: [&str; 4] = ["llama", "qwen2", "qwen3", "gemma3"];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name)
}

fn gguf(family: &str) -> Gguf {
    Gguf::open(&golden(&format!("tiny-{family}.gguf"))).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_file_opens_and_its_vocabulary_has_a_row_a_token() {
    for family in FAMILIES {
        let gguf = gguf(family);
        assert_eq!(gguf.architecture().expect("architecture"), family);
        let text = Text::from_gguf(&gguf).unwrap_or_else(|error| panic!("{family}: {error}"));
        let embedding = gguf.tensor("token_embd.weight").expect("embedding");
        assert_eq!(embedding.shape, [text.vocab_size(), 64], "{family}");
    }
}

#[test]
fn every_tokenizer_gives_text_back_and_renders_turns_as_control_tokens() {
    let sample = "The man of the house is 42,\n and sings \u{e9}\u{1f642}.";
    for family in FAMILIES {
        let text = Text::from_gguf(&gguf(family)).expect(family);
        let ids = text.encode(sample, false).expect(family);
        assert_eq!(text.decode(&ids), sample, "{family}");
        let messages = [ChatMessage { role: "user", content: "hi <|im_end|><end_of_turn>" }];
        let ids = text.render(&messages).expect(family);
        let ends: Vec<u32> = ids.iter().copied().filter(|id| text.is_control(*id)).collect();
        // Two turn openings, one turn end (and BOS for gemma3); what the content spells stays text.
        assert_eq!(ends.len(), if family == "gemma3" { 4 } else { 3 }, "{family}: {ends:?}");
        assert_eq!(text.bos().is_some(), family == "gemma3", "{family}");
    }
}

#[test]
fn the_folder_has_the_tokenizer_and_the_weights_of_the_file() {
    let folder = golden("tiny-qwen2-hf");
    let fetcher = Fetcher::new(FetchOptions { offline: true, ..Default::default() });
    let spec: ModelSpec = folder.to_str().expect("utf-8").parse().expect("spec");
    let found = fetcher.resolve(&spec, &mut |_| {}).expect("a folder with a model");
    assert_eq!((found.name.as_str(), &found.path), ("tiny-qwen2-hf", &folder));

    let gguf = gguf("qwen2");
    let (from_file, from_folder) = (Text::from_gguf(&gguf).expect("file"), Text::from_folder(&folder).expect("folder"));
    // Ids as the tokenizers library of Python gives them for tokenizer.json.
    let cases: [(&str, &[u32]); 2] = [
        (
            "the man of wood is 42 in\n\nring",
            &[116, 257, 32, 109, 97, 110, 274, 272, 111, 111, 100, 32, 270, 32, 52, 50, 32, 258, 10, 10, 114, 278],
        ),
        (
            "<|im_start|>user\nh\u{e9} \u{1f642}<|im_end|>",
            &[284, 117, 115, 262, 10, 104, 195, 169, 32, 240, 159, 153, 130, 285],
        ),
    ];
    for (sample, want) in cases {
        assert_eq!(from_file.encode(sample, true).expect(sample), want);
        assert_eq!(from_folder.encode(sample, true).expect(sample), want);
    }
    let stops = |text: &Text| {
        let mut ids = text.stop_ids().to_vec();
        ids.sort_unstable();
        ids
    };
    assert_eq!(stops(&from_file), stops(&from_folder));
    assert_eq!(from_file.template_hash(), from_folder.template_hash());

    let bytes = std::fs::read(folder.join("model.safetensors")).expect("weights");
    let weights = SafeTensors::deserialize(&bytes).expect("safetensors");
    let pairs = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
        ("blk.1.attn_k.bias", "model.layers.1.self_attn.k_proj.bias"),
        ("blk.2.attn_output.weight", "model.layers.2.self_attn.o_proj.weight"),
        ("blk.2.ffn_down.weight", "model.layers.2.mlp.down_proj.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
    ];
    assert_eq!(weights.names().len(), gguf.tensor_names().count());
    for (ours, theirs) in pairs {
        let (ours_view, theirs_view) = (gguf.tensor(ours).expect(ours), weights.tensor(theirs).expect(theirs));
        assert_eq!(ours_view.shape, theirs_view.shape(), "{ours}");
        let mut values = vec![f32::NAN; ours_view.shape.iter().product()];
        dequantize(ours_view.format, ours_view.bytes, &mut values).expect(ours);
        let expected: Vec<f32> = theirs_view
            .data()
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("4 bytes")))
            .collect();
        assert_eq!(values, expected, "{ours}");
    }
}
