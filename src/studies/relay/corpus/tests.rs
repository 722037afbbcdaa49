use std::io::Cursor;
use std::path::Path;

use super::generate::self_check;
use super::*;

#[test]
fn the_first_item_never_changes() {
    let item = generate(1, 0);
    assert_eq!(item.id, "migration-1-0");
    assert_eq!(item.brief, include_str!("../../../../tests/golden/brief.txt").trim_end());
    assert_eq!(item, generate(1, 0));
}

/// The self-check is run by [`generate`] itself; here the promises are checked again in other words.
#[test]
fn ten_thousand_items_are_sound() {
    let mut briefs = HashSet::new();
    for index in 0..10_000 {
        let item = generate(7, index);
        assert_eq!(item.facts.len(), 12);
        assert!(briefs.insert(item.brief.clone()), "{} repeats a brief", item.id);
        for kind in FactKind::ALL {
            assert_eq!(item.facts.iter().filter(|fact| fact.kind == kind).count(), 2, "{}", item.id);
        }
        for (i, fact) in item.facts.iter().enumerate() {
            assert_eq!(item.brief.matches(&fact.surface).count(), 1, "{}: {}", item.id, fact.surface);
            if fact.answer_type == AnswerType::YesNo {
                assert_ne!(fact.value, fact.distractor);
                assert!(fact.question.contains(&fact.surface));
                continue;
            }
            assert_eq!(fact.value, fact.surface);
            assert!(!item.brief.contains(&fact.distractor), "{}: {}", item.id, fact.distractor);
            assert!(!fact.question.contains(&fact.value), "the question gives the answer away: {}", fact.question);
            for other in item.facts.iter().enumerate().filter(|&(k, _)| k != i).map(|(_, other)| other) {
                assert!(!other.surface.contains(&fact.surface), "{}: {}", item.id, fact.surface);
            }
        }
    }
}

#[test]
fn the_self_check_can_fail() {
    let broken = |change: fn(&mut Item)| {
        let mut item = generate(1, 0);
        change(&mut item);
        self_check(&item).expect_err("a broken item")
    };
    assert_eq!(self_check(&generate(1, 0)), Ok(()));
    assert!(broken(|item| item.brief = item.brief.replace("port ", "port 1")).contains("inside a longer"));
    assert!(broken(|item| item.brief.push_str(" Port 2863.")).contains("stands 2 times"));
    assert!(broken(|item| item.brief.push_str(" XH5-ACACIA.")).contains("the distractor \"H5-ACACIA\" occurs"));
    assert!(broken(|item| item.facts[1].distractor = "Priya Olsen".into()).contains("cannot be told apart"));
    assert!(broken(|item| item.facts[3].distractor = "62863".into()).contains("cannot be told apart"));
    assert!(broken(|item| item.facts[1].question = item.facts[0].question.clone()).contains("asked twice"));
    let no_owner = |item: &mut Item| item.facts[..2].iter_mut().for_each(|fact| fact.kind = FactKind::Quantity);
    assert_eq!(broken(no_owner), "no fact of kind Owner");
}

#[test]
fn the_exemplar_shares_no_value_with_any_item() {
    for index in 0..300 {
        let item = generate(3, index);
        let example = exemplar(3, &item);
        assert_eq!(example.domain, item.domain);
        assert!(example.facts.iter().all(|fact| !contains(&item.brief, fact.wording())), "{}", item.id);
    }
}

#[test]
fn seeds_and_indices_give_different_items() {
    assert_ne!(generate(1, 0).brief, generate(2, 0).brief);
    assert_ne!(generate(1, 0).brief, generate(1, 3).brief);
    let yes = (0..300).filter(|&i| generate(1, i).facts.iter().any(|f| f.value == "yes")).count();
    assert!((100..200).contains(&yes), "{yes} of 300 prohibitions are answered by yes");
}

fn read(text: &[u8]) -> Result<Vec<Item>, String> {
    parse(Cursor::new(text), Path::new("c.jsonl")).map_err(|e| e.to_string())
}

fn line(change: impl FnOnce(&mut serde_json::Value)) -> String {
    let mut value = serde_json::to_value(generate(1, 0)).expect("an item is JSON");
    change(&mut value);
    value.to_string()
}

#[test]
fn a_generated_corpus_reads_back() {
    let items: Vec<Item> = (0..5).map(|i| generate(9, i)).collect();
    let lines: Vec<String> = items.iter().map(|item| serde_json::to_string(item).expect("an item is JSON")).collect();
    assert_eq!(read(lines.join("\n").as_bytes()), Ok(items.clone()));
    let spaced = format!("\u{feff}\r\n{}\r\n\r\n", lines.join("\r\n\r\n"));
    assert_eq!(read(spaced.as_bytes()), Ok(items));
}

#[test]
fn every_error_names_its_line() {
    let fact = |name: &'static str, text: &'static str| line(|v| v["facts"][2][name] = text.into());
    let cases = [
        ("{", "line 2: EOF while parsing an object"),
        ("[]", "line 2: not a JSON object"),
        ("{} x", "line 2: missing field `id`"),
        (&line(|v| drop(v.as_object_mut().map(|o| o.remove("brief")))), "line 2: missing field `brief`"),
        (&line(|v| v["facts"] = serde_json::json!([])), "the item has no facts"),
        (&line(|v| v["facts"][1]["id"] = "owner_1".into()), "two facts have the id \"owner_1\""),
        (&fact("kind", "colour"), "unknown variant `colour`"),
        (&fact("answer_type", "text"), "unknown variant `text`"),
        (&fact("aliasses", "x"), "unknown field `aliasses`"),
        (&fact("surface", "nowhere"), "fact \"quantity_1\": the surface \"nowhere\" does not stand verbatim"),
        (&fact("value", ""), "value is empty"),
        (&fact("question", "  "), "question is empty"),
        (&fact("distractor", "cutover"), "the distractor \"cutover\" occurs in the brief"),
        (&line(|v| v["facts"][2]["surface"] = "n port".into()), "only inside a longer word"),
        (&line(|v| v["facts"][2]["distractor"] = v["facts"][2]["value"].clone()), "equals the value"),
        (&line(|v| v["facts"][2]["aliases"] = serde_json::json!(["\u{200b}"])), "nothing that can be looked for"),
        (&line(|v| v["facts"][11]["value"] = "maybe".into()), "not \"yes\" or \"no\""),
        (&line(|_| ()), "is already used in line 1"),
    ];
    for (text, expected) in cases {
        let error = read(format!("{}\n{text}\n", line(|_| ())).as_bytes()).expect_err(expected);
        assert!(error.contains(expected) && error.contains("line 2"), "expected {expected:?} in {error:?}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn unreadable_corpora_are_refused() {
    assert!(read(b"").is_err_and(|e| e.contains("holds no item")));
    assert!(read(b"\n \n").is_err_and(|e| e.contains("holds no item")));
    assert!(read(b"{\"id\":\"\xff\"}").is_err_and(|e| e.contains("line 1: not UTF-8 after byte 7")));
    let huge = vec![b' '; MAX_LINE_BYTES + 1];
    assert!(read(&huge).is_err_and(|e| e.contains("line 1: the line is longer than 1048576 bytes")));
    assert!(read(&huge[1..]).is_err_and(|e| e.contains("holds no item")));
    let gone = load(Path::new("no/such/corpus.jsonl")).map_err(|e| e.to_string());
    assert!(gone.is_err_and(|e| e.starts_with("cannot read the corpus no/such/corpus.jsonl")));
    let folder = tempfile::tempdir().expect("a temporary folder");
    assert!(matches!(load(folder.path()), Err(CorpusError::Read { .. })));
}

#[test]
fn the_wording_is_the_value_where_the_surface_holds_it() {
    let mut fact = generate(1, 0).facts.swap_remove(2);
    (fact.value, fact.surface) = ("8443".into(), "port 8443".into());
    assert_eq!(fact.wordings(), ["8443"]);
    (fact.value, fact.surface) = ("2027-03-14".into(), "14 March 2027".into());
    assert_eq!(fact.wordings(), ["14 March 2027", "2027-03-14"]);
    fact.aliases = vec!["March 14".into()];
    fact.answer_type = AnswerType::YesNo;
    assert_eq!(fact.wordings(), ["14 March 2027", "March 14"]);
}
