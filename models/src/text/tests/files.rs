use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

type Files = Vec<(&'static str, Value)>;

/// The vocabulary of [`byte_level`] as tokenizer.json.
fn tokenizer_json() -> Value {
    let added = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "special": special, "normalized": false,
               "single_word": false, "lstrip": false, "rstrip": false})
    };
    let vocab: serde_json::Map<String, Value> =
        byte_level_tokens().into_iter().take(259).enumerate().map(|(id, name)| (name, json!(id))).collect();
    json!({
        "version": "1.0",
        "added_tokens": [
            added(START, "<|im_start|>", true), added(END, "<|im_end|>", true), added(THINK, "<think>", false),
            added(BOS, "<s>", true), added(EOT, "<|eot_id|>", true),
        ],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["h", "i"], ["Ġ", "hi"], ["1", "2"]]},
    })
}

fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, content) in files {
        let content = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
        std::fs::write(folder.path().join(name), content).expect("writing a temporary file");
    }
    folder
}

fn load_folder(files: &[(&str, Value)]) -> Result<Text, TextError> {
    Text::from_folder(folder(files).path())
}

#[test]
fn folder_and_gguf_agree() {
    let config = json!({"bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}});
    let from_folder =
        load_folder(&[("tokenizer.json", tokenizer_json()), ("tokenizer_config.json", config)]).expect("loads");
    let from_gguf = text(&byte_level());
    for input in ["", "hi  hi 12", "<|im_end|>hi<think> hi", "é😀\n", "<s>", " <|eot_id|> "] {
        for special in [false, true] {
            assert_eq!(
                from_folder.encode(input, special).expect("encodes"),
                from_gguf.encode(input, special).expect("encodes"),
                "{input:?} {special}"
            );
        }
        assert_eq!(from_folder.decode(&from_folder.encode(input, false).expect("encodes")), input);
    }
    assert_eq!(from_folder.stop_ids(), from_gguf.stop_ids());
    assert_eq!(from_folder.vocab_size(), from_gguf.vocab_size());
}

#[test]
fn end_tokens_of_all_files_count() {
    let files = [
        ("tokenizer.json", tokenizer_json()),
        ("tokenizer_config.json", json!({"eos_token": "<|im_end|>"})),
        ("config.json", json!({"eos_token_id": BOS})),
        ("generation_config.json", json!({"eos_token_id": [START, END]})),
    ];
    assert_eq!(load_folder(&files).expect("loads").stop_ids(), [START, END, BOS, EOT]);
}

#[test]
fn bos_of_a_folder() {
    let processor = json!({"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {}}]});
    let mut prepending = tokenizer_json();
    prepending["post_processor"] = processor;
    let asked = |tokenizer: &Value, config: Value| {
        load_folder(&[("tokenizer.json", tokenizer.clone()), ("tokenizer_config.json", config)]).expect("loads").bos()
    };
    assert_eq!(asked(&tokenizer_json(), json!({"bos_token": "<s>"})), None);
    assert_eq!(asked(&tokenizer_json(), json!({"bos_token": "<s>", "add_bos_token": true})), Some(BOS));
    assert_eq!(asked(&prepending, json!({"bos_token": "<s>"})), Some(BOS));
    assert_eq!(asked(&prepending, json!({"bos_token": "<s>", "add_bos_token": false})), None);
}

#[test]
fn templates_of_a_folder() {
    let render = |files: &[(&str, Value)]| {
        let mut files = files.to_vec();
        files.push(("tokenizer.json", tokenizer_json()));
        let text = load_folder(&files).expect("loads");
        text.decode(&text.render(&[message("user", "hi")]).expect("renders"))
    };
    let string = json!({"chat_template": "A{{ messages[0].content }}"});
    let list = json!({"chat_template": [{"name": "tool_use", "template": "T"},
        {"name": "default", "template": "D{{ messages[0].content }}"}]});
    assert_eq!(render(&[("tokenizer_config.json", string.clone())]), "Ahi");
    assert_eq!(render(&[("tokenizer_config.json", list)]), "Dhi");
    let jinja = ("chat_template.jinja", json!("J{{ messages[0].content }}"));
    assert_eq!(render(&[("tokenizer_config.json", string), jinja]), "Jhi");
}

#[test]
fn tokens_take_the_white_space_the_file_gives_them() {
    let mut tokenizer = tokenizer_json();
    tokenizer["added_tokens"][0]["rstrip"] = json!(true);
    tokenizer["added_tokens"][1]["lstrip"] = json!(true);
    tokenizer["added_tokens"][2]["single_word"] = json!(true);
    let text = load_folder(&[("tokenizer.json", tokenizer)]).expect("loads");
    assert_eq!(text.encode("<|im_start|> \nhi  <|im_end|>", true).expect("encodes"), [START, HI, END]);
    assert_eq!(text.encode("<think> hi", true).expect("encodes"), [THINK, SPACE_HI]);
    // As text, with the "hi" inside "think".
    let joined = [bytes("<t"), vec![HI], bytes("nk>"), vec![HI]].concat();
    assert_eq!(text.encode("<think>hi", true).expect("encodes"), joined);
}

#[test]
fn sentence_piece_folder() {
    let bytes = (0..=255).map(|b| (format!("<0x{b:02X}>"), json!(b + 3)));
    let pieces = ["<unk>", "<s>", "</s>"].into_iter().enumerate().map(|(id, name)| (name.to_owned(), json!(id)));
    let rest = [("▁", 259), ("a", 260), ("▁a", 261)].map(|(name, id)| (name.to_owned(), json!(id)));
    let vocab: serde_json::Map<String, Value> = pieces.chain(bytes).chain(rest).collect();
    let special = |id: u32, content: &str| json!({"id": id, "content": content, "special": true});
    let tokenizer = json!({
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocab, "merges": ["▁ a"]},
    });
    let text = load_folder(&[("tokenizer.json", tokenizer)]).expect("loads");
    assert_eq!(text.encode("a é", false).expect("encodes"), [261, 259, 198, 172]);
    assert_eq!(text.decode(&[261, 259, 198, 172]), "a é");
    assert_eq!(text.encode("a</s>a", true).expect("encodes"), [261, 2, 261]);
    assert_eq!(text.stop_ids(), [2]);
}

#[test]
fn unusable_folders_are_named() {
    let with = |change: &dyn Fn(&mut Value)| {
        let mut tokenizer = tokenizer_json();
        change(&mut tokenizer);
        vec![("tokenizer.json", tokenizer)]
    };
    let beside = |name: &'static str, content: Value| vec![("tokenizer.json", tokenizer_json()), (name, content)];
    let cases: Vec<(&str, Files, &str)> = vec![
        ("no tokenizer", vec![], "tokenizer.json: there is no such file"),
        ("not JSON", vec![("tokenizer.json", json!("<html>"))], "tokenizer.json: expected value"),
        ("unigram", with(&|t| t["model"]["type"] = json!("Unigram")), "tokenizer model \"Unigram\" is not supported"),
        ("merge unknown", with(&|t| t["model"]["merges"] = json!(["x yz"])), "merge 0 (\"x yz\") is of tokens"),
        (
            "merge too long",
            with(&|t| t["model"]["merges"] = json!([["<think>", "<think>"]])),
            "merge 0 (\"<think> <think>\") makes a token that the vocabulary lacks",
        ),
        ("merge of one", with(&|t| t["model"]["merges"] = json!(["hi"])), "merge 0 (\"hi\") is not a pair"),
        ("dropout", with(&|t| t["model"]["dropout"] = json!(0.1)), "dropout makes tokens random"),
        ("suffix", with(&|t| t["model"]["end_of_word_suffix"] = json!("</w>")), "prefixes and suffixes"),
        ("huge id", with(&|t| t["model"]["vocab"]["hi"] = json!(4_000_000_000_u32)), "4000000001 tokens"),
        ("id twice", with(&|t| t["model"]["vocab"]["hi"] = json!(257)), "id 257 belongs to both"),
        ("added id differs", with(&|t| t["model"]["vocab"]["<s>"] = json!(264)), "\"<s>\" has two ids, 264 and 262"),
        ("no decoder", with(&|t| t["decoder"] = Value::Null), "there is no decoder"),
        ("odd decoder", with(&|t| t["decoder"] = json!({"type": "CTC"})), "decoder CTC is not supported"),
        ("unknown unk", with(&|t| t["model"]["unk_token"] = json!("<u>")), "unk_token names the token \"<u>\""),
        ("bos not named", beside("tokenizer_config.json", json!({"add_bos_token": true})), "a BOS token is asked for"),
        ("bos unknown", beside("tokenizer_config.json", json!({"bos_token": "<b>"})), "bos_token names the token"),
        ("eos too large", beside("config.json", json!({"eos_token_id": 264})), "eos_token_id of config.json is 264"),
        (
            "eos as text",
            beside("generation_config.json", json!({"eos_token_id": "2"})),
            "generation_config.json: eos_token_id holds \"2\", which is no id",
        ),
        (
            "template list without default",
            beside("tokenizer_config.json", json!({"chat_template": [{"name": "x", "template": ""}]})),
            "no chat template is named \"default\"",
        ),
    ];
    let mut failures = Vec::new();
    for (name, files, words) in cases {
        match load_folder(&files) {
            Ok(_) => failures.push(format!("{name}: loaded")),
            Err(error) => {
                let message = error.to_string();
                if !message.contains(words) || message.contains('\n') || !message.starts_with('/') {
                    failures.push(format!("{name}: {message:?} lacks {words:?}, the path, or is more than a line"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn damaged_folders_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), 32_u8..127), 1..4)) {
        let mut bytes = tokenizer_json().to_string().into_bytes();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("tokenizer.json"), bytes)?;
        if let Ok(text) = Text::from_folder(folder.path()) {
            text.decode(&text.encode("hi 12 <think>é", true).unwrap_or_default());
        }
    }
}
