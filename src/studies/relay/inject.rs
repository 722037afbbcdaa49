//! Error injection: one wrong value is put into a clean chain's first message, and a second chain goes on from there.
//!
//! A fact is *eligible* if its value stands verbatim in the message and its distractor does not. All its wordings there
//! are replaced, so that the altered message holds nothing to correct the error by. The two chains share all their seeds.

use super::corpus::{AnswerType, Fact, Item};
use super::format::Parser;
use super::plan::Trial;
use crate::score::text::{Normalized, find_all};

/// What was put into a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injection {
    /// Facts that could have been altered.
    pub eligible: usize,
    /// The one that was, and the message with it; `None` where none could be.
    pub altered: Option<(String, String)>,
}

/// Alters one fact of `message`. Which one follows from the trial's seed and item alone, so that all formats of an item
/// alter the same fact where they can.
pub fn inject(trial: &Trial, item: &Item, parser: Parser, message: &str) -> Injection {
    let text = Normalized::new(message);
    let mut eligible: Vec<&Fact> = item.facts.iter().filter(|fact| is_eligible(fact, &text)).collect();
    eligible.sort_by_key(|fact| trial.injection_rank(&fact.id));
    let altered = eligible.first().map(|fact| (fact.id.clone(), replace(message, fact, parser)));
    Injection { eligible: eligible.len(), altered }
}

fn is_eligible(fact: &Fact, message: &Normalized) -> bool {
    fact.answer_type != AnswerType::YesNo
        && message.find(&Normalized::new(&fact.value)).is_some()
        && message.find(&Normalized::new(&fact.distractor)).is_none()
}

/// `message` with the fact's distractor in place of every wording of its value.
fn replace(message: &str, fact: &Fact, parser: Parser) -> String {
    let mut spans: Vec<_> = fact.wordings().iter().flat_map(|wording| find_all(message, wording)).collect();
    // The longest of those that begin together; then the ones inside it are skipped.
    spans.sort_by_key(|span| (span.start, usize::MAX - span.end));
    let distractor = match parser {
        Parser::Json => json_escaped(&fact.distractor),
        Parser::None | Parser::Triples | Parser::Kv => fact.distractor.clone(),
    };
    let (mut altered, mut from) = (String::with_capacity(message.len()), 0);
    for span in spans {
        if span.start >= from {
            altered += &message[from..span.start];
            altered += &distractor;
            from = span.end;
        }
    }
    altered + &message[from..]
}

/// As it stands between the quotes of a JSON string.
fn json_escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::text::contains;
    use crate::studies::relay::corpus;
    use crate::studies::relay::format::Format;
    use crate::studies::relay::plan::STUDY;

    fn trial(item: &str, format: &str) -> Trial {
        Trial {
            study: STUDY.into(),
            condition: Default::default(),
            item: item.into(),
            format: format.into(),
            model: "ab".into(),
            replicate: 0,
            seed: 5,
            injected: true,
        }
    }

    #[test]
    fn a_faithful_message_is_altered_in_one_fact_and_no_other() {
        for index in 0..60 {
            let item = corpus::generate(9, index);
            let mut altered_facts = Vec::new();
            for format in Format::builtin() {
                let message = format.render(&item);
                let injection = inject(&trial(&item.id, &format.name), &item, format.parser, &message);
                let open = item.facts.iter().filter(|fact| fact.answer_type != AnswerType::YesNo).count();
                assert_eq!(injection.eligible, open, "every fact stands in a faithful handoff");
                let (id, altered) = injection.altered.expect("an eligible fact");
                for fact in &item.facts {
                    let hit = fact.id == id;
                    assert_eq!(contains(&altered, fact.wording()), !hit, "{} in {altered}", fact.id);
                    if fact.answer_type != AnswerType::YesNo {
                        assert_eq!(contains(&altered, &fact.distractor), hit, "{} in {altered}", fact.id);
                    }
                }
                assert_eq!(
                    matches!(format.parse(&message), super::super::format::Parsed::Invalid(_)),
                    matches!(format.parse(&altered), super::super::format::Parsed::Invalid(_)),
                );
                altered_facts.push(id);
            }
            altered_facts.dedup();
            assert_eq!(altered_facts.len(), 1, "all formats of an item alter the same fact");
        }
    }

    #[test]
    fn what_is_not_there_is_not_eligible() {
        let item = corpus::generate(9, 0);
        let nothing = inject(&trial(&item.id, "free"), &item, Parser::None, "nothing of it");
        assert_eq!(nothing, Injection { eligible: 0, altered: None });
        let fact = item.facts.iter().find(|fact| fact.answer_type != AnswerType::YesNo).expect("an open fact");
        let both = format!("{} or {}", fact.value, fact.distractor);
        assert_eq!(inject(&trial(&item.id, "free"), &item, Parser::None, &both).eligible, 0);
    }

    #[test]
    fn every_wording_is_replaced_and_json_stays_json() {
        let mut item = corpus::generate(9, 0);
        item.facts.truncate(1);
        let fact = &mut item.facts[0];
        (fact.value, fact.distractor) = ("Ann Lee".into(), "the \"Bo\\b\" Day".into());
        fact.answer_type = AnswerType::Name;
        fact.aliases = vec!["A. Lee".into(), "Ann Lee of Bonn".into()];
        let message = r#"{"a": "Ann  LEE leads", "b": "A. Lee; Ann Lee of Bonn; Ann Leeds"}"#;
        let (_, altered) = inject(&trial("i", "json"), &item, Parser::Json, message).altered.expect("eligible");
        let value: serde_json::Value = serde_json::from_str(&altered).expect("still JSON");
        assert_eq!(value["a"], "the \"Bo\\b\" Day leads");
        assert_eq!(value["b"], "the \"Bo\\b\" Day; the \"Bo\\b\" Day; Ann Leeds");
    }
}
