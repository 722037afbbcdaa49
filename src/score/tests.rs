use super::*;
use crate::studies::relay::corpus::generate;

mod naive;
mod table;

/// The item of the table: hand-made, and sound.
pub(super) fn item() -> Item {
    let item: Item = serde_json::from_str(include_str!("tests/item.json")).expect("the item of the table is JSON");
    assert_eq!(item.validate(), Ok(()));
    item
}

fn format(name: &str) -> Format {
    Format::by_name(name).expect("a built-in format")
}

#[test]
fn a_faithful_handoff_keeps_everything() {
    for index in 0..300 {
        let item = generate(11, index);
        for format in Format::builtin() {
            let text = format.render(&item);
            let score = score(&item, &format, &text);
            let wrong: Vec<&FactScore> = score.facts.iter().filter(|fact| fact.verdict != Verdict::Kept).collect();
            assert!(wrong.is_empty(), "{}: {wrong:?} in {text}", format.name);
            assert_eq!(score.string_recall, 1.0);
            assert_eq!(score.bound_recall, (format.parser != Parser::None).then_some(1.0));
            for (fact, judged) in item.facts.iter().zip(&score.facts) {
                let (start, end) = judged.span.expect("a kept fact has a place");
                assert_eq!(&text[start..end], fact.wording());
            }
        }
    }
}

/// What injection does: one wording replaced by its distractor alters that fact and no other.
#[test]
fn a_distractor_alters_its_own_fact_only() {
    for index in 0..60 {
        let item = generate(12, index);
        for format in Format::builtin() {
            for (which, fact) in item.facts.iter().enumerate().filter(|(_, f)| f.answer_type != AnswerType::YesNo) {
                let text = format.render(&item).replace(fact.wording(), &fact.distractor);
                for (other, judged) in score(&item, &format, &text).facts.iter().enumerate() {
                    let expected = if other == which { Verdict::Altered } else { Verdict::Kept };
                    assert_eq!(judged.verdict, expected, "{} {}: {text}", format.name, judged.id);
                }
            }
        }
    }
}

/// Two facts of one kind with their values exchanged: both strings are there, neither fact is.
#[test]
fn exchanged_values_are_rebound() {
    for index in 0..60 {
        let item = generate(13, index);
        for format in Format::builtin().into_iter().filter(|format| format.parser != Parser::None) {
            let (a, b) = (item.facts[0].wording(), item.facts[1].wording());
            let text = format.render(&item).replace(a, "\u{1}").replace(b, a).replace('\u{1}', b);
            let score = score(&item, &format, &text);
            assert_eq!(score.string_recall, 1.0);
            let verdicts: Vec<Verdict> = score.facts.iter().map(|fact| fact.verdict).collect();
            assert_eq!(verdicts[..2], [Verdict::Rebound; 2], "{}: {text}", format.name);
            assert!(verdicts[2..].iter().all(|&verdict| verdict == Verdict::Kept));
        }
    }
}

#[test]
fn shares_are_counted_over_the_facts() {
    let score = score(&item(), &format("kv"), "service_port: 8443\nrollback_lead: Mara Ilves");
    assert_eq!((score.string_recall, score.bound_recall, score.invalid), (2.0 / 12.0, Some(1.0 / 12.0), false));
}

#[test]
fn an_unreadable_message_binds_nothing() {
    let text = format("json").render(&item());
    let cut = &text[..text.len() - 1];
    let score = score(&item(), &format("json"), cut);
    assert_eq!((score.string_recall, score.bound_recall, score.invalid), (1.0, Some(0.0), true));
    assert!(score.facts.iter().all(|fact| fact.verdict == Verdict::Unbound && fact.span.is_some()));
}

#[test]
fn scores_are_written_as_the_command_line_says() {
    let score = score(&item(), &format("free"), "port 8443");
    let json = serde_json::to_value(&score).expect("a score is JSON");
    assert_eq!(json["bound_recall"], serde_json::Value::Null);
    let port = serde_json::json!({"id": "port", "string": true, "bound": null, "verdict": "kept", "span": [5, 9]});
    assert_eq!(json["facts"][2], port);
    assert_eq!(json["facts"][3]["verdict"], "lost");
}

/// Messages that would take for ever if any step were quadratic in them.
#[test]
fn huge_messages_are_scored() {
    let n = 30_000;
    let nested = format!("{{\"{}\": {{{}}}}}", "k".repeat(n), vec!["\"port\": 8443"; n / 4].join(","));
    let list = format!("{{\"x\": [{{{}}}]}}", (0..n).map(|i| format!("\"k{i}\": 8443")).collect::<Vec<_>>().join(","));
    let twins = (0..n / 10).map(|i| format!("service || port || number {i} of 8443\n")).collect::<String>();
    let same_key = (0..n / 10).map(|i| format!("port: 8443 {i}\n")).collect::<String>();
    for text in [nested, list, twins, same_key, ": ".repeat(n), "|| ".repeat(n), "6,000,".repeat(n), "8443 ".repeat(n)]
    {
        for format in Format::builtin() {
            assert_eq!(score(&item(), &format, &text).facts.len(), 12);
        }
    }
}

proptest::proptest! {
    /// Any text gets a score, and every span is a piece of the message.
    #[test]
    fn any_text_is_scored(message in "(port|8443|Mara Ilves|owner|cutover|48,500|::? |\\|\\||[{}\"\n ,é\u{200b}８]){0,24}") {
        for format in Format::builtin() {
            let score = score(&item(), &format, &message);
            proptest::prop_assert!((0.0..=1.0).contains(&score.string_recall));
            for fact in score.facts {
                proptest::prop_assert!(fact.span.is_none_or(|(start, end)| start < end && message.get(start..end).is_some()));
                proptest::prop_assert!(fact.string || fact.bound != Some(true));
            }
        }
    }
}
