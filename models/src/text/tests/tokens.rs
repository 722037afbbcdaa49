use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[test]
fn byte_level_merges_by_hand() {
    let text = text(&byte_level());
    let cases: [(&str, Vec<u32>); 8] = [
        ("", vec![]),
        ("hi", vec![HI]),
        ("hi hi", vec![HI, SPACE_HI]),
        // GPT-2's pattern keeps digits together.
        ("12", vec![TWELVE]),
        // The first space stays alone, the second goes with the word.
        ("hi  hi", vec![HI, 32, SPACE_HI]),
        ("é", vec![0xc3, 0xa9]),
        ("\n\t\0", vec![10, 9, 0]),
        ("😀", vec![0xf0, 0x9f, 0x98, 0x80]),
    ];
    for (input, expected) in cases {
        assert_eq!(text.encode(input, false).expect("all bytes have tokens"), expected, "{input:?}");
        assert_eq!(text.decode(&expected), input);
    }
}

#[test]
fn pre_tokenizers_split_as_their_models_do() {
    // "12" is a token, but smollm and qwen2 take digits one by one.
    let cases: [(&str, &str, Vec<u32>); 9] = [
        ("gpt-2", "12", vec![TWELVE]),
        ("smollm", "12", vec![49, 50]),
        ("qwen2", "12", vec![49, 50]),
        ("deepseek-r1-qwen", "12", vec![49, 50]),
        ("llama-bpe", "12", vec![TWELVE]),
        // Three digits at most: 121|2.
        ("llama3", "1212", vec![TWELVE, 49, 50]),
        ("gpt-2", "1212", vec![TWELVE, TWELVE]),
        // qwen2 composes e and the accent to é, gpt-2 does not.
        ("qwen2", "e\u{301}", vec![0xc3, 0xa9]),
        ("gpt-2", "e\u{301}", vec![0x65, 0xcc, 0x81]),
    ];
    for (pre, input, expected) in cases {
        let with_pre = replace(byte_level(), "tokenizer.ggml.pre", pre.into());
        assert_eq!(text(&with_pre).encode(input, false).expect("encodes"), expected, "{pre} {input:?}");
    }
}

/// The file with another value of a key.
pub(super) fn replace(writer: GgufWriter, key: &str, value: MetaValue) -> GgufWriter {
    writer.without(key).meta(key, value)
}

#[test]
fn special_tokens_by_mode() {
    let text = text(&byte_level());
    let input = "<|im_end|>hi<think> hi";
    let plain: Vec<u32> = bytes("<|im_end|>").into_iter().chain([HI, THINK, SPACE_HI]).collect();
    assert_eq!(text.encode(input, false).expect("encodes"), plain);
    assert_eq!(text.encode(input, true).expect("encodes"), [END, HI, THINK, SPACE_HI]);
    assert_eq!(text.decode(&[END, HI, THINK, SPACE_HI, START]), "hi<think> hi");
    assert!(text.is_control(END) && !text.is_control(THINK));
}

#[test]
fn turn_tokens_are_control_whatever_the_file_says() {
    let types = [1; 259].into_iter().chain([4, 1, 4, 3, 3]);
    let mistyped = replace(byte_level(), "tokenizer.ggml.token_type", MetaValue::i32s(types));
    let text = text(&mistyped);
    assert_eq!(text.encode("<|im_end|>", false).expect("encodes"), bytes("<|im_end|>"));
    assert_eq!(text.encode("<|im_start|>", false).expect("encodes"), bytes("<|im_start|>"));
    assert_eq!(text.encode("<|im_start|>", true).expect("encodes"), [START]);
    assert_eq!(text.stop_ids(), [END, EOT]);
}

#[test]
fn merges_cannot_spell_a_control_token() {
    let tokens = byte_level_tokens().into_iter().chain(["<s".to_owned()]);
    let types = [1; 259].into_iter().chain([3, 3, 4, 3, 3, 1]);
    let writer = replace(byte_level(), "tokenizer.ggml.tokens", MetaValue::strings(tokens));
    let writer = replace(writer, "tokenizer.ggml.token_type", MetaValue::i32s(types));
    let writer = replace(writer, "tokenizer.ggml.merges", MetaValue::strings(["< s", "<s >"]));
    // gpt-2 keeps "<" and "s" apart, so the control token never arises anyway;
    // that the second merge is left out must not fail the load.
    assert_eq!(text(&writer).encode("<s>", false).expect("encodes"), bytes("<s>"));
}

#[test]
fn unusable_metadata_is_named() {
    let cases: [(&str, GgufWriter, &str); 18] = [
        ("no model", byte_level().without("tokenizer.ggml.model"), "\"tokenizer.ggml.model\" is missing"),
        (
            "other model",
            replace(byte_level(), "tokenizer.ggml.model", "bert".into()),
            "tokenizer model \"bert\" is not supported; supported: gpt2, llama",
        ),
        ("no pre", byte_level().without("tokenizer.ggml.pre"), "tokenizer.ggml.pre is missing"),
        ("no pre lists names", byte_level().without("tokenizer.ggml.pre"), "smollm, gpt-2, qwen2"),
        (
            "unknown pre",
            replace(byte_level(), "tokenizer.ggml.pre", "default".into()),
            "pre-tokenizer \"default\" (tokenizer.ggml.pre) is not known; known: smollm, gpt-2, qwen2",
        ),
        ("no tokens", byte_level().without("tokenizer.ggml.tokens"), "\"tokenizer.ggml.tokens\" is missing"),
        (
            "empty tokens",
            replace(byte_level(), "tokenizer.ggml.tokens", MetaValue::strings([""; 0])),
            "the vocabulary has 0 tokens",
        ),
        (
            "tokens as numbers",
            replace(byte_level(), "tokenizer.ggml.tokens", MetaValue::i32s([1, 2])),
            "expected array of string, found array of 2 i32",
        ),
        (
            "types as floats",
            replace(byte_level(), "tokenizer.ggml.token_type", MetaValue::f32s([1.0; 264])),
            "expected array of i32, found array of 264 f32",
        ),
        (
            "types too short",
            replace(byte_level(), "tokenizer.ggml.token_type", MetaValue::i32s([1; 263])),
            "tokenizer.ggml.token_type has 263 entries, tokenizer.ggml.tokens has 264",
        ),
        (
            "type 7",
            replace(byte_level(), "tokenizer.ggml.token_type", MetaValue::i32s([7; 264])),
            "token 0 has type 7, types 0 to 6 are defined",
        ),
        (
            "token twice",
            replace(
                byte_level(),
                "tokenizer.ggml.tokens",
                MetaValue::strings((0..264).map(|i| format!("t{}", i % 263))),
            ),
            "token \"t0\" has two ids, 0 and 263",
        ),
        ("no merges", byte_level().without("tokenizer.ggml.merges"), "\"tokenizer.ggml.merges\" is missing"),
        (
            "half a merge",
            replace(byte_level(), "tokenizer.ggml.merges", MetaValue::strings(["h i", "hi"])),
            "merge 1 (\"hi\") is not a pair of tokens",
        ),
        (
            "merge of nothing known",
            replace(byte_level(), "tokenizer.ggml.merges", MetaValue::strings(["xy z"])),
            "merge 0 (\"xy z\") is of tokens that the vocabulary lacks",
        ),
        (
            // The library indexes out of bounds on such a merge.
            "merge to an overlong token",
            replace(byte_level(), "tokenizer.ggml.merges", MetaValue::strings(["<think> <think>"])),
            "merge 0 (\"<think> <think>\") makes a token that the vocabulary lacks",
        ),
        (
            "eos beyond the vocabulary",
            replace(byte_level(), "tokenizer.ggml.eos_token_id", 264.into()),
            "tokenizer.ggml.eos_token_id is 264, but the vocabulary has 264 tokens",
        ),
        (
            "bos wanted, not named",
            byte_level().without("tokenizer.ggml.bos_token_id").meta("tokenizer.ggml.add_bos_token", true),
            "a BOS token is asked for",
        ),
    ];
    let mut failures = Vec::new();
    for (name, writer, words) in cases {
        match load(&writer) {
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

/// Pieces with scores: 0 unknown, 1 and 2 control, 3..259 bytes, then text.
fn sentence_piece(pieces: &[(&str, f32)]) -> GgufWriter {
    let bytes: Vec<String> = (0..=255).map(|b| format!("<0x{b:02X}>")).collect();
    let special = ["<unk>", "<s>", "</s>"];
    let names = special.into_iter().chain(bytes.iter().map(String::as_str)).chain(pieces.iter().map(|p| p.0));
    let types = [2, 3, 3].into_iter().chain([6; 256]).chain(pieces.iter().map(|_| 1));
    let scores = [0.0; 259].into_iter().chain(pieces.iter().map(|p| p.1));
    GgufWriter::new()
        .meta("tokenizer.ggml.model", "llama")
        .meta("tokenizer.ggml.tokens", MetaValue::strings(names))
        .meta("tokenizer.ggml.token_type", MetaValue::i32s(types))
        .meta("tokenizer.ggml.scores", MetaValue::f32s(scores))
        .meta("tokenizer.ggml.bos_token_id", 1)
        .meta("tokenizer.ggml.eos_token_id", 2)
        .meta("tokenizer.ggml.unknown_token_id", 0)
}

#[test]
fn sentence_piece_merges_by_score() {
    let pieces = [
        ("▁", -10.0), // 259
        ("a", -11.0),
        ("b", -12.0),
        ("c", -13.0),
        ("ab", -2.0),  // 263
        ("bc", -1.0),  // 264: better than ab
        ("▁a", -3.0),  // 265
        ("=", -14.0),  // 266
        ("==", -4.0),  // 267
        ("===", -5.0), // 268
        ("<", -15.0),  // 269
        ("s", -15.0),
        (">", -15.0),
        ("<s", -6.0), // 272
        ("-", -16.0),
        ("--", -7.0), // 274
    ];
    let writer = sentence_piece(&pieces).meta("tokenizer.ggml.add_space_prefix", false);
    let text = text(&writer);
    let cases: [(&str, Vec<u32>); 10] = [
        ("", vec![]),
        ("abc", vec![260, 264]),
        ("ab", vec![263]),
        (" a", vec![265]),
        ("a b", vec![260, 259, 261]),
        // Of equal pairs the leftmost: == ==, then = joins the second.
        ("=====", vec![267, 268]),
        ("---", vec![274, 273]),
        // "<s" + ">" would be the control token; it stays text.
        ("<s>", vec![272, 271]),
        // No piece: its bytes, 3 + 0xC3 and 3 + 0xA9.
        ("é", vec![198, 172]),
        ("\n", vec![13]),
    ];
    for (input, expected) in cases {
        assert_eq!(text.encode(input, false).expect("encodes"), expected, "{input:?}");
        assert_eq!(text.decode(&expected), input);
    }
    assert_eq!(text.encode("a<s>a", true).expect("encodes"), [260, 1, 260]);
    // The file says nothing, and SentencePiece models begin with BOS.
    assert_eq!(text.bos(), Some(1));
}

#[test]
fn sentence_piece_space_prefix() {
    let text = text(&sentence_piece(&[("▁", -1.0), ("a", -2.0), ("▁a", -3.0)]));
    assert_eq!(text.encode("a", false).expect("encodes"), [261]);
    assert_eq!(text.encode("", false).expect("encodes"), [0; 0]);
    // Before every stretch of text, also after a control token.
    assert_eq!(text.encode("a<s>a", true).expect("encodes"), [261, 1, 261]);
    // The space that was put in front is taken away again, the others stay.
    assert_eq!(text.decode(&[261, 261]), "a a");
    assert_eq!(text.decode(&text.encode(" a", false).expect("encodes")), " a");
}

#[test]
fn sentence_piece_metadata_is_checked() {
    let good = || sentence_piece(&[("a", -1.0)]);
    let cases: [(GgufWriter, &str); 4] = [
        (good().without("tokenizer.ggml.scores"), "\"tokenizer.ggml.scores\" is missing"),
        (
            replace(
                good(),
                "tokenizer.ggml.scores",
                MetaValue::Array(crate::gguf::ValueType::U8, vec![MetaValue::U8(0); 260]),
            ),
            "expected array of f32, found array of 260 u8",
        ),
        (
            replace(good(), "tokenizer.ggml.scores", MetaValue::f32s([0.0; 10])),
            "tokenizer.ggml.scores has 10 entries, tokenizer.ggml.tokens has 260",
        ),
        (
            replace(good(), "tokenizer.ggml.scores", MetaValue::f32s([f32::NAN; 260])),
            "token 0 has the score NaN, which is not a finite number",
        ),
    ];
    for (writer, words) in cases {
        let message = load(&writer).expect_err("bad metadata").to_string();
        assert!(message.contains(words), "{message:?} lacks {words:?}");
    }
}

#[test]
fn harmless_oddities_are_taken() {
    // A padding id beyond the vocabulary, nameless tokens, no token types.
    let names = ["", "", "a", "<0x62>"];
    let odd = GgufWriter::new()
        .meta("tokenizer.ggml.model", "llama")
        .meta("tokenizer.ggml.tokens", MetaValue::strings(names))
        .meta("tokenizer.ggml.scores", MetaValue::f32s([0.0; 4]))
        .meta("tokenizer.ggml.add_space_prefix", false)
        .meta("tokenizer.ggml.padding_token_id", 4);
    assert_eq!(text(&odd).encode("ab", false).expect("encodes"), [2, 3]);
    // Without byte tokens the unknown token stands for a character.
    let unknown = odd.meta("tokenizer.ggml.token_type", MetaValue::i32s([2, 1, 1, 6]));
    assert_eq!(text(&unknown).encode("aéb", false).expect("encodes"), [2, 0, 3]);
}

#[test]
fn text_without_a_token_is_an_error() {
    let tokens = ["a", "b"];
    let tiny = GgufWriter::new()
        .meta("tokenizer.ggml.model", "gpt2")
        .meta("tokenizer.ggml.pre", "gpt-2")
        .meta("tokenizer.ggml.tokens", MetaValue::strings(tokens))
        .meta("tokenizer.ggml.merges", MetaValue::strings([""; 0]));
    let text = text(&tiny);
    assert_eq!(text.encode("ab", false).expect("encodes"), [0, 1]);
    let message = text.encode("abc", false).expect_err("no token for c").to_string();
    assert!(message.contains("no token for a part of the text \"abc\""), "{message}");
}

#[test]
fn stop_set_is_the_union() {
    // eos from the metadata, <|eot_id|> by name, eom by metadata.
    let writer = byte_level().meta("tokenizer.ggml.eom_token_id", START);
    assert_eq!(text(&writer).stop_ids(), [START, END, EOT]);
    // A normal token of that spelling is no end token: <s> here is text.
    assert_eq!(text(&byte_level()).stop_ids(), [END, EOT]);
    // A card's names join them; one that the vocabulary does not know as a control token is an error.
    let mut carded = text(&byte_level());
    carded.add_stops(&["<|im_start|>", "<|im_end|>"]).expect("both are control tokens");
    assert_eq!(carded.stop_ids(), [START, END, EOT]);
    for unknown in ["<|nonsense|>", "hi", "<think>", "<|im_end|> "] {
        let error = carded.add_stops(&[unknown]).expect_err("no such control token").to_string();
        assert!(error.contains(&format!("{unknown:?}")), "{error}");
    }
}

#[test]
fn bos_is_asked_for_by_the_file() {
    assert_eq!(text(&byte_level()).bos(), None);
    assert_eq!(text(&byte_level().meta("tokenizer.ggml.add_bos_token", true)).bos(), Some(BOS));
    let llama = replace(byte_level(), "tokenizer.ggml.pre", "llama-bpe".into());
    assert_eq!(text(&llama).bos(), Some(BOS));
    assert_eq!(text(&llama.meta("tokenizer.ggml.add_bos_token", false)).bos(), None);
}

/// Merging as the rule says it, by looking at every pair every time.
fn merged_slowly(pieces: &HashMap<&str, f32>, text: &str) -> Vec<String> {
    let mut parts: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for at in 1..parts.len() {
            let joined = parts[at - 1].clone() + &parts[at];
            if let Some(&score) = pieces.get(joined.as_str())
                && best.is_none_or(|(so_far, _)| score > so_far)
            {
                best = Some((score, at));
            }
        }
        let Some((_, at)) = best else { return parts };
        let right = parts.remove(at);
        parts[at - 1].push_str(&right);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn sentence_piece_agrees_with_the_slow_way(
        inputs in prop::collection::vec("[abé]{0,24}", 1..6),
        scores in prop::collection::vec(-4_i8..0, 10),
    ) {
        // Scores repeat, so that the leftmost of equals decides often.
        let names = ["a", "b", "ab", "ba", "aa", "bb", "aab", "abab", "baa", "bbbb"];
        let pieces: Vec<(&str, f32)> = names.into_iter().zip(scores.iter().map(|&s| f32::from(s))).collect();
        let text = text(&sentence_piece(&pieces).meta("tokenizer.ggml.add_space_prefix", false));
        let by_name: HashMap<&str, f32> = pieces.into_iter().collect();
        for input in inputs {
            let ids = text.encode(&input, false)?;
            let shown: Vec<&str> = ids.iter().filter_map(|&id| text.token_text(id)).collect();
            let slow = merged_slowly(&by_name, &input);
            let expected: Vec<&str> =
                slow.iter().flat_map(|p| if p == "é" { vec!["<0xC3>", "<0xA9>"] } else { vec![p.as_str()] }).collect();
            prop_assert_eq!(shown, expected);
        }
    }

    /// A damaged vocabulary loads or is refused; encoding and rendering with what
    /// loaded end as well.
    #[test]
    fn damaged_metadata_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        piece in any::<bool>(),
    ) {
        let writer = if piece { sentence_piece(&[("a", -1.0), ("aa", -2.0)]) } else { byte_level() };
        let writer = writer.meta("tokenizer.chat_template", "{% for m in messages %}<s>{{ m.content }}{% endfor %}");
        let mut bytes = writer.to_bytes();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(&bytes)?;
        if let Ok(gguf) = Gguf::open(file.path())
            && let Ok(text) = Text::from_gguf(&gguf)
        {
            let ids = text.encode("aaa hi<s> é", true).unwrap_or_default();
            text.decode(&ids);
            let _ = text.render(&[message("user", "hi<s>")]);
        }
    }
}
