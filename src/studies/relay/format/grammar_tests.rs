//! The grammars of the built-in formats against their parsers.

use super::*;
use crate::engine::grammar::{GrammarState, Vocabulary};
use crate::studies::relay::corpus::generate;

/// The end token: the bytes 0 to 255 and some tokens that invite mistakes come before it.
const INVITING: [&str; 20] = [
    "\": \"", "\", \"", "port", ": ", " || ", "||", "\n", "- ", "* ", "```", "**", "\u{a0}", "\u{2028}", "\r\n", "\\u",
    "\"\"", "  ", "é", "1e999", "::",
];
const END: u32 = 256 + INVITING.len() as u32;

fn vocabulary() -> Vocabulary {
    // 0xff stands in no text, and marks what is no text.
    let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| if byte == 0xff { vec![] } else { vec![byte] }).collect();
    tokens.extend(INVITING.map(Into::into));
    tokens.push(b"\xff<end>".into());
    Vocabulary::of_tokens(&tokens, &[END]).expect("a small vocabulary")
}

fn with_grammar() -> Vec<(Format, GrammarState)> {
    let vocabulary = vocabulary();
    let formats = Format::builtin().into_iter().filter_map(|format| {
        let state = vocabulary.compile(format.grammar.as_ref()?).unwrap_or_else(|e| panic!("{}: {e}", format.name));
        Some((format, state))
    });
    formats.collect()
}

/// A text of the grammar: tokens at random, and after `length` of them the shortest way out.
fn random_text(parser: Parser, mut state: GrammarState, seed: u64, length: usize) -> String {
    let mut random = seed;
    let mut next = |n: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    };
    let mut text = Vec::new();
    for drawn in 0.. {
        assert!(drawn < length + 500, "no way out of {:?}", String::from_utf8_lossy(&text));
        let set = state.allowed().expect("a way on");
        let mut allowed: Vec<u32> = (0..=END).filter(|&id| set.contains(id)).collect();
        let structure: &[u8] = match parser {
            Parser::Json => b"\"}]:,",
            Parser::Triples => b"| a",
            Parser::Kv | Parser::None => b"a: ",
        };
        if drawn >= length {
            let way_out = [END].into_iter().chain(structure.iter().map(|&byte| byte.into()));
            let first = way_out.filter(|id| allowed.contains(id)).chain(allowed.iter().copied()).next();
            allowed = first.into_iter().collect();
        } else if next(2) == 0 {
            // Single letters are many and change little.
            let telling = |&id: &u32| id >= 256 || structure.contains(&(id as u8));
            let few: Vec<u32> = allowed.iter().copied().filter(telling).filter(|&id| id != END).collect();
            allowed = if few.is_empty() { allowed } else { few };
        }
        let id = allowed[next(allowed.len())];
        if id == END {
            break;
        }
        match INVITING.get((id as usize).wrapping_sub(256)) {
            Some(token) => text.extend_from_slice(token.as_bytes()),
            None => text.push(id as u8),
        }
        if state.advance(id) {
            break;
        }
    }
    String::from_utf8(text).expect("grammars allow UTF-8 only")
}

#[test]
fn whatever_a_grammar_allows_its_parser_reads_whole() {
    for (format, state) in with_grammar() {
        assert_eq!(
            format.name,
            format!(
                "{}+grammar",
                match format.parser {
                    Parser::Json => "json",
                    Parser::Triples => "triples",
                    Parser::Kv => "kv",
                    Parser::None => panic!("{} has nothing to be held to", format.name),
                }
            )
        );
        let mut some = 0;
        for seed in 0..150 {
            let text = random_text(format.parser, state.clone(), seed, 5 + 2 * seed as usize % 120);
            assert_eq!(text.trim(), text, "{}: white space at an end", format.name);
            let Parsed::Pairs(pairs) = format.parse(&text) else {
                panic!("{}: {:?} of {text:?}", format.name, format.parse(&text))
            };
            some += pairs.len();
            if format.parser != Parser::Json {
                assert_eq!(pairs.len(), text.split('\n').count(), "{}: a line is lost of {text:?}", format.name);
                continue;
            }
            assert!(!text.contains('\n'), "{text:?}");
            let value: serde_json::Value = serde_json::from_str(&text).expect("the parser took it");
            let keys: Vec<&String> = value.as_object().expect("an object").keys().collect();
            assert_eq!(keys, ["title", "personnel", "quantities", "constraints", "dependencies", "prohibitions"]);
        }
        assert!(some > 150, "{}: {some} pairs in 150 messages", format.name);
    }
}

#[test]
fn the_handoff_of_an_item_follows_the_grammar() {
    for (format, start) in with_grammar() {
        for index in 0..25 {
            let message = format.render(&generate(5, index));
            let mut state = start.clone();
            for (at, byte) in message.bytes().enumerate() {
                let set = state.allowed().expect("a way on");
                assert!(set.contains(byte.into()), "{}: {:?} of {message}", format.name, &message[..=at]);
                let complete = state.advance(byte.into());
                assert_eq!(complete, format.parser == Parser::Json && at + 1 == message.len(), "{}", format.name);
            }
            let ended = format.parser == Parser::Json || state.allowed().is_ok_and(|set| set.contains(END));
            assert!(ended, "{}: {message}", format.name);
        }
    }
}

#[test]
fn a_grammar_forbids_what_its_parser_would_skip_or_refuse() {
    let cases = [
        ("json+grammar", "{\"title\": \"t\", \"owner\": 1}"),
        ("json+grammar", "{\n"),
        ("json+grammar", "{ "),
        ("json+grammar", "```"),
        ("json+grammar", "{\"title\": 1"),
        ("triples+grammar", "a || b\n"),
        ("triples+grammar", "- a"),
        ("triples+grammar", "a || b || c || d"),
        ("triples+grammar", "a || b || c\n\n"),
        ("triples+grammar", "a  b"),
        ("kv+grammar", "port: 1\n\n"),
        ("kv+grammar", "port: \n"),
        ("kv+grammar", "port: \"\"\n"),
        ("kv+grammar", "Port: 1"),
        ("kv+grammar", "port: 1  "),
    ];
    let formats = with_grammar();
    for (name, text) in cases {
        let (_, start) = formats.iter().find(|(format, _)| format.name == name).expect("built in");
        let mut state = start.clone();
        let refused = text.bytes().any(|byte| {
            let allowed = state.allowed().expect("a way on").contains(byte.into());
            if allowed {
                state.advance(byte.into());
            }
            !allowed
        });
        assert!(refused, "{name} allows {text:?}");
    }
}
