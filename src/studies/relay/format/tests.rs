use super::*;
use crate::studies::relay::corpus::generate;

fn pairs(name: &str, message: &str) -> Vec<Pair> {
    match Format::by_name(name).expect("a built-in format").parse(message) {
        Parsed::Pairs(pairs) => {
            for pair in &pairs {
                let raw = &message[pair.span.0..pair.span.1];
                assert!(raw == pair.value || raw.contains('\\'), "{raw:?} is not {:?}", pair.value);
            }
            pairs
        }
        other => panic!("{message:?} gave {other:?}"),
    }
}

fn plain(name: &str, message: &str) -> Vec<(String, String)> {
    pairs(name, message).into_iter().map(|pair| (pair.key, pair.value)).collect()
}

fn invalid(name: &str, message: &str) -> String {
    match Format::by_name(name).expect("a built-in format").parse(message) {
        Parsed::Invalid(why) => why,
        other => panic!("{message:?} gave {other:?}"),
    }
}

fn owned(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[test]
fn the_built_in_formats_are_there() {
    let names: Vec<String> = Format::builtin().into_iter().map(|format| format.name).collect();
    assert_eq!(names, ["free", "constr", "json", "triples", "kv", "json+grammar", "triples+grammar", "kv+grammar"]);
    let error = Format::by_name("xml").expect_err("no such format").to_string();
    assert_eq!(
        error,
        "there is no format \"xml\": the built-in ones are free, constr, json, triples, kv, json+grammar, triples+grammar, kv+grammar"
    );
    assert_eq!(Format::by_name("free").expect("built in").parse("anything"), Parsed::NoParser);
}

#[test]
fn json_is_read_with_paths_and_places() {
    let text = r#"{"title": "t", "quantities": {"port": 8443, "share": -1.5e2}, "list": ["a", {"b": true, "c": null}], "e": "x\"y\u00e9"}"#;
    let expected = [
        ("title", "t"),
        ("quantities.port", "8443"),
        ("quantities.share", "-1.5e2"),
        ("list", "a"),
        ("list.b", "true"),
        ("e", "x\"yé"),
    ];
    assert_eq!(plain("json", text), owned(&expected));
    for fenced in [format!("```json\n{text}\n```"), format!("  ```\n{text}```\n"), format!("```json\n{text}")] {
        assert_eq!(plain("json", &fenced), owned(&expected));
    }
    assert_eq!(plain("json", "{}"), owned(&[]));
}

#[test]
fn strict_json_only() {
    for text in [
        "",
        "[1]",
        "\"x\"",
        "{\"a\": 1",
        "{\"a\": 1} and more",
        "Here it is: {\"a\": 1}",
        "{'a': 1}",
        "{\"a\": 1,}",
        "{\"a\": NaN}",
        "{\"a\": \"\u{1}\"}",
    ] {
        invalid("json", text);
    }
    assert_eq!(invalid("json", "[1]"), "the JSON is not an object");
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(invalid("json", &deep).contains("recursion limit"));
}

#[test]
fn duplicate_keys_are_seen() {
    let marked = |name, text| pairs(name, text).iter().map(|pair| pair.duplicate).collect::<Vec<_>>();
    assert_eq!(marked("json", r#"{"a": 1, "b": 2, "a": 3}"#), [true, false, true]);
    assert_eq!(marked("json", r#"{"a": 1, "b": 2, "a": 1 }"#), [false, false, false]);
    assert_eq!(marked("json", r#"{"a": {"x": 1}, "b": {"x": 2}, "a": {"x": 2}}"#), [true, false, true]);
    assert_eq!(marked("json", r#"{"a": [{"x": 1}, {"x": 2}]}"#), [false, false]);
    assert_eq!(marked("kv", "a_b: 1\nA b: 2\nc: 1\nd: 1\nd: 1"), [true, true, false, false, false]);
    assert_eq!(marked("triples", "x || is || 1\nx || is || 2\ny || is || 2"), [true, true, false]);
}

#[test]
fn siblings_in_a_list_give_the_context() {
    let found = pairs("json", r#"{"personnel": [{"role": "cutover owner", "name": "Mara Ilves"}]}"#);
    assert_eq!((found[1].key.as_str(), found[1].context.as_str()), ("personnel.name", "cutover owner"));
}

#[test]
fn triples_are_read() {
    let text = "```\n- cutover || owner || Mara Ilves\n|| port || is || 8443 ||\nnot a triple\na || b\na || || c\na || b || c || d\n```";
    assert_eq!(plain("triples", text), owned(&[("cutover || owner", "Mara Ilves"), ("port || is", "8443")]));
    assert!(invalid("triples", "Mara owns it.").contains("subject || predicate || object"));
    invalid("triples", "");
}

#[test]
fn key_value_lines_are_read() {
    let text = "port: 8443\n- **Cutover owner:** Mara Ilves\nurl:http://x\nIt ends at 14:35\nempty:\n```\n\"quoted\": \"a: b\"\ntime: 14:35 UTC\r\n";
    let expected = [
        ("port", "8443"),
        ("Cutover owner", "Mara Ilves"),
        ("url", "http://x"),
        ("quoted", "a: b"),
        ("time", "14:35 UTC"),
    ];
    assert_eq!(plain("kv", text), owned(&expected));
    invalid("kv", "It ends at 14:35.");
    invalid("kv", "::::");
}

#[test]
fn the_handoff_of_an_item_reads_back() {
    for index in 0..60 {
        let item = generate(5, index);
        for format in Format::builtin() {
            let text = format.render(&item);
            assert!(item.facts.iter().all(|fact| text.contains(fact.wording())), "{text}");
            match format.parse(&text) {
                Parsed::NoParser => assert_eq!(text, item.brief),
                Parsed::Invalid(why) => panic!("{why}: {text}"),
                Parsed::Pairs(pairs) => {
                    assert_eq!(pairs.len(), 13);
                    assert!(pairs.iter().all(|pair| !pair.duplicate), "{text}");
                    assert!(item.facts.iter().all(|fact| pairs.iter().any(|pair| pair.value == fact.wording())));
                }
            }
        }
    }
    let json = Format::by_name("json").expect("built in").render(&generate(5, 0));
    let value: serde_json::Value = serde_json::from_str(&json).expect("valid JSON");
    let keys: Vec<&String> = value.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["title", "personnel", "quantities", "constraints", "dependencies", "prohibitions"]);
}

#[test]
fn the_conversation_of_a_hop() {
    let (format, example) = (Format::by_name("kv").expect("built in"), generate(5, 1));
    let messages = format.hop_messages(Condition::Plain, None, "the message");
    assert_eq!(messages.iter().map(|m| m.role).collect::<Vec<_>>(), [Role::System, Role::User]);
    assert!(messages[0].content.contains(&format.instruction) && messages[1].content == "the message");
    let messages = format.hop_messages(Condition::Plain, Some(&example), "the message");
    assert_eq!(messages.len(), 4);
    assert_eq!((&messages[1].content, &messages[2].content), (&example.brief, &format.render(&example)));
}

#[test]
fn user_formats_are_checked() {
    let sound = "name = \"yaml+x\"\ndescription = \"d\"\ninstruction = \"i\"\nparser = \"kv\"\n";
    assert_eq!(Format::parse_file(sound).map(|f| f.parser), Ok(Parser::Kv));
    let cases = [
        (sound.replace("kv", "xml"), "line 4: unknown variant `xml`"),
        (sound.replace("\"i\"", "\" \""), "the instruction is empty"),
        (sound.replace("yaml+x", "A B"), "the name \"A B\" is not"),
        (sound.replace("parser", "parsr"), "unknown field `parsr`"),
        (sound.replace("name = \"yaml+x\"\n", ""), "missing field `name`"),
        ("= 3".to_owned(), "line 1: "),
        (format!("{sound}[grammar]\njson_schema = \"{{\""), "grammar.json_schema is not JSON: EOF"),
        (format!("{sound}[grammar]\njson_schema = {{type = \"object\"}}"), "grammar.json_schema is no string"),
        (format!("{sound}[grammar]\nbnf = \"a\""), "unknown variant `bnf`"),
    ];
    for (text, expected) in cases {
        let error = Format::parse_file(&text).expect_err(expected);
        assert!(error.contains(expected) && !error.contains('\n'), "expected {expected:?} in {error:?}");
    }
    let missing = Format::load(Path::new("no/such.toml")).expect_err("no such file").to_string();
    assert!(missing.starts_with("cannot read the format no/such.toml"), "{missing}");
}

proptest::proptest! {
    /// Whatever a model writes, a parser answers, and every span lies in the message.
    #[test]
    fn parsers_never_panic(message in "[{}\\[\\]\":,|\\\\ anu0-9é\n`*-]{0,60}") {
        for format in Format::builtin() {
            if let Parsed::Pairs(pairs) = format.parse(&message) {
                for pair in pairs {
                    proptest::prop_assert!(message.get(pair.span.0..pair.span.1).is_some());
                }
            }
        }
    }
}
