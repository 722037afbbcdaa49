use std::collections::BTreeSet;

use serde_json::json;

use super::*;

/// Ids of the end tokens of [`vocabulary`].
const STOPS: [u32; 2] = [0, 3];

/// A vocabulary made to be awkward: two end tokens apart from each other, a control token that ends nothing, the same
/// bytes twice, tokens across the borders of lexemes, half characters, and no `z`.
fn words() -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = vec![b"\xff<end>".into(), b"a".into(), b"\xff<user>".into(), b"\xff<eot>".into()];
    let texts =
        ["b", "ab", "ab", "ba", "1", "10", "{", "}", "\"", "{\"", "\": ", "\":", ":", " ", "  ", ", ", ",", "\n"];
    words.extend(texts.map(|text| text.as_bytes().to_vec()));
    words.extend(
        ["true", "tr", "ue", "false", "fals", "e", "a\"", "\"b", "x", "xx", "xy", "y", "yy", "aba", "b1"]
            .map(Into::into),
    );
    words.extend([vec![0xc3], vec![0xa9], "é".into(), vec![]]);
    words
}

fn vocabulary() -> Vocabulary {
    Vocabulary::of_tokens(&words(), &STOPS).expect("a small vocabulary")
}

/// The ids that a set should hold after `text`, from the list of all texts: those whose bytes go on to one of them, and
/// the end tokens where the text is one of them.
fn expected(language: &BTreeSet<Vec<u8>>, text: &[u8]) -> Vec<u32> {
    let goes_on = |token: &[u8]| {
        let longer = [text, token].concat();
        language.range(longer.clone()..).next().is_some_and(|next| next.starts_with(&longer))
    };
    let words = words();
    let fits = |id: &u32| {
        let word = &words[*id as usize];
        if STOPS.contains(id) { language.contains(text) } else { !word.is_empty() && goes_on(word) }
    };
    (0..words.len() as u32).filter(fits).collect()
}

/// Compares the masks in every state that is reached within `depth` bytes; how many there were.
fn walk(state: &GrammarState, language: &BTreeSet<Vec<u8>>, text: &[u8], depth: usize) -> usize {
    let mut here = state.clone();
    let words = words();
    let expected = expected(language, text);
    let set = match here.allowed() {
        Ok(set) => set.clone(),
        Err(stuck) => {
            assert_eq!(stuck, &Stuck::DeadEnd, "after {:?}", String::from_utf8_lossy(text));
            assert!(expected.is_empty(), "a dead end after {:?}", String::from_utf8_lossy(text));
            return 1;
        }
    };
    let found: Vec<u32> = (0..words.len() as u32 + 70).filter(|&id| set.contains(id)).collect();
    assert_eq!(found, expected, "after {:?}", String::from_utf8_lossy(text));
    let mut states = 1;
    for id in found.into_iter().filter(|id| !STOPS.contains(id)) {
        let longer = [text, &words[id as usize]].concat();
        let mut next = here.clone();
        let complete = next.advance(id);
        let more = language.range(longer.clone()..).any(|other| other.starts_with(&longer) && *other != longer);
        assert_eq!(complete, language.contains(&longer) && !more, "at {:?}", String::from_utf8_lossy(&longer));
        if !complete && longer.len() <= depth {
            states += walk(&next, language, &longer, depth);
        }
    }
    states
}

fn check(grammar: Grammar, language: BTreeSet<Vec<u8>>, depth: usize, at_least: usize) {
    let state = vocabulary().compile(&grammar).unwrap_or_else(|e| panic!("{e}"));
    let states = walk(&state, &language, b"", depth);
    assert!(states >= at_least, "only {states} states");
}

#[test]
fn the_masks_of_a_regular_expression_are_those_of_trying_every_token() {
    let pieces: [&[u8]; 4] = [b"ab", b"ba", b"b1", "é".as_bytes()];
    let mut language: BTreeSet<Vec<u8>> = BTreeSet::new();
    for a in pieces {
        language.insert(a.to_vec());
        for b in pieces {
            language.insert([a, b].concat());
            language.extend(pieces.map(|c| [a, b, c].concat()));
        }
    }
    check(Grammar::Regex("(ab|ba|b1|é){1,3}".into()), language, 100, 80);
}

#[test]
fn the_masks_of_a_schema_are_those_of_trying_every_token() {
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"enum": [1, 10]}},
        "required": ["a"],
        "additionalProperties": false
    });
    let mut language = BTreeSet::new();
    // At most one space after a comma or a colon, none elsewhere.
    for colon in [":", ": "] {
        for value in ["true", "false"] {
            let a = format!("{{\"a\"{colon}{value}");
            language.insert(format!("{a}}}").into_bytes());
            for (comma, second) in [(",", ":"), (",", ": "), (", ", ":"), (", ", ": ")] {
                language.extend(["1", "10"].map(|b| format!("{a}{comma}\"b\"{second}{b}}}").into_bytes()));
            }
        }
    }
    check(Grammar::JsonSchema(schema), language, 100, 50);
}

#[test]
fn the_masks_of_a_recursive_grammar_are_those_of_trying_every_token() {
    let language = (1..20).map(|n| ["x".repeat(n), "y".repeat(n)].concat().into_bytes()).collect();
    check(Grammar::Lark("start: \"x\" start? \"y\"".into()), language, 8, 30);
}

#[test]
fn what_the_vocabulary_cannot_write_is_a_dead_end_where_it_comes() {
    let mut state = vocabulary().compile(&Grammar::Regex("a(z|ba?z)".into())).expect("a sound expression");
    assert!(state.allowed().is_ok_and(|set| set.contains(1)));
    assert!(!state.advance(1));
    assert!(state.allowed().is_ok_and(|set| set.contains(4) && !STOPS.iter().any(|&stop| set.contains(stop))));
    assert!(!state.advance(4));
    assert!(!state.advance(1));
    assert_eq!(state.allowed().err(), Some(&Stuck::DeadEnd));
    assert_eq!(state.allowed().err(), Some(&Stuck::DeadEnd), "asked again");
}

#[test]
fn without_end_tokens_a_grammar_still_ends_where_nothing_can_follow() {
    let vocabulary = Vocabulary::of_tokens(&words(), &[]).expect("a small vocabulary");
    let mut state = vocabulary.compile(&Grammar::Regex("ab?".into())).expect("a sound expression");
    assert!(!state.advance(1));
    let set = state.allowed().expect("b may follow");
    assert_eq!((0..40).filter(|&id| set.contains(id)).collect::<Vec<_>>(), [4]);
    assert!(state.advance(4));
}

#[test]
fn a_clone_goes_on_by_itself() {
    let mut state = vocabulary().compile(&Grammar::Regex("(ab|ba)*1".into())).expect("a sound expression");
    assert!(!state.advance(1));
    let mut other = state.clone();
    assert!(!other.advance(4) && other.advance(8));
    assert!(state.allowed().is_ok_and(|set| set.contains(4) && !set.contains(8)));
}

#[test]
fn a_token_that_is_not_allowed_fails_the_state_and_does_not_panic() {
    for id in [8, 0, 2, 38, 4_000_000_000] {
        let mut state = vocabulary().compile(&Grammar::Regex("ab".into())).expect("a sound expression");
        assert!(!state.advance(id), "token {id}");
        assert!(matches!(state.allowed(), Err(Stuck::GaveUp(what)) if !what.contains('\n')), "token {id}");
    }
}

#[test]
fn forbidden_logits_are_minus_infinity_and_no_number_is_hidden() {
    let mut state = vocabulary().compile(&Grammar::Regex("[ab]".into())).expect("a sound expression");
    let set = state.allowed().expect("two ways to begin");
    // More logits than tokens, as where an embedding is padded.
    let mut logits = vec![0.5; 100];
    (logits[7], logits[99]) = (f32::NAN, f32::INFINITY);
    set.forbid_others(&mut logits);
    for (id, logit) in logits.iter().enumerate() {
        match id {
            1 | 4 => assert_eq!(*logit, 0.5),
            7 => assert!(logit.is_nan()),
            99 => assert_eq!(*logit, f32::INFINITY),
            _ => assert_eq!(*logit, f32::NEG_INFINITY, "{id}"),
        }
    }
}

#[test]
fn a_bad_grammar_is_refused_on_one_line_that_names_the_place() {
    let deep = format!("start: {}\"a\"{}", "(".repeat(30_000), ")".repeat(30_000));
    let long = format!("start: \"{}\"", "a".repeat(70_000));
    let many = format!("start: {}", "(\"a\"|".repeat(200));
    let lark = |text: &str| Grammar::Lark(text.into());
    let regex = |text: &str| Grammar::Regex(text.into());
    let cases = [
        (
            regex("a(b"),
            "regular expression: invalid regex \"a(b\" (in regex): regex parse error: unclosed group at character 2",
        ),
        (regex("(?=a)b"), "look-around"),
        (regex(&"(a|b".repeat(1000)), "unclosed group at character 3997"),
        (lark(""), "Lark grammar: "),
        (lark("start: a"), "at 1(8): unknown name: \"a\""),
        (lark("start: \"a\"\nb: \"c"), "2(6): lexer error"),
        (lark("start: \"a\" <|nothing|>"), "at 1("),
        (lark("begin: \"a\""), "start"),
        (lark("start: @other"), "unknown grammar @other"),
        (lark(&many), "Lark grammar: "),
        (lark(&long), "65536 at most"),
        (Grammar::JsonSchema(json!("x")), "JSON schema: "),
        (Grammar::JsonSchema(json!(false)), "JSON schema: "),
        (Grammar::JsonSchema(json!({"type": "colour"})), "colour"),
        (Grammar::JsonSchema(json!({"type": "object", "properties": {"a": {"not": {}}}})), "not"),
        (Grammar::JsonSchema(json!({"$ref": "#/$defs/none"})), "none"),
        (Grammar::JsonSchema(json!({"$ref": "http://example.org/x.json"})), "http://example.org/x.json"),
        (Grammar::JsonSchema(json!({"type": "integer", "minimum": 3, "maximum": 1})), "JSON schema: "),
        (Grammar::JsonSchema(json!({"x-guidance": 3})), "JSON schema: "),
        (Grammar::JsonSchema(json!({"x-guidance": {"spaces": 3}})), "spaces"),
    ];
    let vocabulary = vocabulary();
    let mut wrong = Vec::new();
    for (grammar, expected) in cases {
        match vocabulary.compile(&grammar) {
            Ok(_) => wrong.push(format!("{grammar:?} was taken")),
            Err(error) if !error.contains(expected) || error.contains('\n') || error.len() > 400 => {
                wrong.push(format!("expected {expected:?} in {error:?}"));
            }
            Err(_) => {}
        }
    }
    // As deep as a text can be: taken or refused, but not the end of the program.
    let _ = vocabulary.compile(&lark(&deep));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn schemas_that_ask_for_too_much_end_soon_one_way_or_the_other() {
    let nested = (0..120).fold(json!({"type": "string"}), |inner, n| {
        json!({"type": "object", "properties": {format!("k{n}"): inner.clone()}, "anyOf": [{"type": "object"}]})
    });
    let schemas = [
        json!({"$ref": "#"}),
        json!({"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}]}),
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        json!({"type": "string", "minLength": 4_000_000_000_u64}),
        json!({"type": "string", "minLength": 100_000, "maxLength": 200_000, "pattern": "^(a|b)*a(a|b){500}$"}),
        json!({"type": "array", "items": {"type": "array", "items": {}, "minItems": 1_000_000_000}, "minItems": 1_000_000_000}),
        json!({"type": "number", "multipleOf": 0.000_000_001, "minimum": -1e300, "maximum": 1e300}),
        json!({"enum": (0..5000).collect::<Vec<_>>()}),
        json!({"type": "string", "pattern": "(x+x+)+y((a{1,500}){1,500}){1,500}"}),
        json!({}),
        json!(true),
        nested,
    ];
    let vocabulary = vocabulary();
    for schema in schemas {
        let shown: String = schema.to_string().chars().take(80).collect();
        match vocabulary.compile(&Grammar::JsonSchema(schema)) {
            Err(error) => assert!(!error.contains('\n') && error.len() < 600, "{shown}: {error}"),
            Ok(mut state) => {
                for _ in 0..50 {
                    let Ok(set) = state.allowed() else { break };
                    let next = (0..words().len() as u32).find(|&id| set.contains(id) && !STOPS.contains(&id));
                    if next.is_none_or(|id| state.advance(id)) {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn a_grammar_beyond_the_limits_gives_up_and_says_so() {
    // An automaton of 2⁴⁰ states, built as far as a text goes: a state or an answer, and soon.
    let regex = Grammar::Regex("(((a{1,1000}){1,1000}){1,1000}){1,1000}1|(a|b)*a(a|b){40}".into());
    let mut state = vocabulary().compile(&regex).expect("a sound expression");
    for n in 0..200 {
        if state.allowed().is_err() {
            break;
        }
        state.advance([1, 4, 5][n * n % 7 % 3]);
    }
    // Each of 2100 rules may match at the same place: the parser's row overflows.
    let rules: String = (0..2100).map(|n| format!("r{n}: \"a\"* \"b\"\n")).collect();
    let all: Vec<String> = (0..2100).map(|n| format!("r{n}")).collect();
    let lark = format!("start: {}\n{rules}", all.join(" | "));
    let mut state = vocabulary().compile(&Grammar::Lark(lark)).expect("long, but sound");
    let mut stuck = None;
    for _ in 0..4 {
        if let Err(error) = state.allowed() {
            stuck = Some(error.clone());
            break;
        }
        state.advance(1);
    }
    assert!(matches!(&stuck, Some(Stuck::GaveUp(what)) if !what.is_empty() && !what.contains('\n')), "{stuck:?}");
}

#[test]
fn a_vocabulary_that_is_too_large_is_refused_and_odd_tokens_are_left_out() {
    let error = Vocabulary::of_tokens(&vec![vec![b'a'; 500]; 10_000], &[]).err().expect("5 MB of tokens");
    assert!(error.contains("5000000 bytes"), "{error}");
}
