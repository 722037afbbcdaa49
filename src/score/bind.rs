//! Which fact does a key speak of?
//!
//! The words of a fact are those of its subject and relation; the words of a key are those of its text, split at
//! everything that is no letter or digit and between `camelCase` parts. Both lose little words ("of", "the") and
//! inflection ("owner", "owns", "owned" are one word); two words match if their stems are equal or share five letters.
//! A key may speak of a fact if they share at least half of the words of the shorter of the two, and speaks of the one
//! with which it shares the most words; of equals, of the one whose words are all there; of equals still, of each.
//! Where key and context speak of no fact, the words beside the value are added: in `{"constraints": ["error rate at most
//! 4.5 percent"]}` the value itself says what it is about.

use std::collections::BTreeSet;

use crate::score::text::Normalized;
use crate::studies::relay::corpus::{AnswerType, Fact, FactKind};
use crate::studies::relay::format::Pair;

/// The words of all facts of an item.
pub(super) struct Binder {
    facts: Vec<Words>,
}

struct Words {
    all: Vec<String>,
    relation: Vec<String>,
}

impl Binder {
    pub(super) fn new(facts: &[Fact]) -> Self {
        let words = |fact: &Fact| {
            let relation = stems(&fact.relation);
            let mut all = stems(&fact.subject);
            all.extend(relation.iter().cloned());
            all.sort();
            all.dedup();
            Words { all, relation }
        };
        Self { facts: facts.iter().map(words).collect() }
    }

    /// The facts that a key made of these texts speaks of: none, one, or several that fit equally well.
    pub(super) fn owners(&self, key: &[&str]) -> Vec<usize> {
        let words: BTreeSet<String> = key.iter().flat_map(|text| stems(text)).collect();
        let mut best = ((1, false), Vec::new());
        for (index, fact) in self.facts.iter().enumerate() {
            let shared = fact.all.iter().filter(|word| words.iter().any(|other| matches(word, other))).count();
            let fit = (shared, shared == fact.all.len());
            if fit < best.0 || 2 * shared < fact.all.len().min(words.len()) {
                continue;
            }
            if fit > best.0 {
                best = (fit, Vec::new());
            }
            best.1.push(index);
        }
        best.1
    }

    /// Whether a word of the fact's relation, not of its subject alone, is in the key.
    pub(super) fn names_relation(&self, fact: usize, key: &[&str]) -> bool {
        let words: Vec<String> = key.iter().flat_map(|text| stems(text)).collect();
        self.facts[fact].relation.iter().any(|word| words.iter().any(|other| matches(word, other)))
    }
}

/// Whether two keys are one to a reader that ignores case and punctuation.
pub(super) fn same_key(a: &str, b: &str) -> bool {
    let plain = |text: &str| words(text).collect::<Vec<_>>();
    plain(a) == plain(b)
}

/// What became of a prohibition's "not".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polarity {
    Kept,
    /// A permission.
    Turned,
    /// Neither forbidden nor allowed.
    Open,
}

/// Whether a pair that carries a prohibition still forbids. A fact that is no prohibition has no polarity to lose. One
/// with a value of its own ("not before Mara Ilves approves") is kept unless allowed; one that is answered by yes or
/// no must be forbidden in so many words.
pub(super) fn forbids(fact: &Fact, pair: &Pair) -> Polarity {
    const FORBID: [&str; 21] = [
        "no", "not", "never", "nobody", "none", "nothing", "cannot", "without", "until", "unless", "only", "after",
        "false", "don", "mustn", "shouldn", "avoid", "ban", "bans", "banned", "denied",
    ];
    const FORBID_STEMS: [&str; 4] = ["prohibit", "forbid", "disallow", "restrict"];
    const ALLOW: [&str; 4] = ["may", "can", "ok", "yes"];
    const ALLOW_STEMS: [&str; 4] = ["allow", "permit", "permission", "authori"];
    if fact.kind != FactKind::Prohibition {
        return Polarity::Kept;
    }
    let text = format!("{} {} {}", pair.key, pair.context, pair.value);
    let words: Vec<String> = words(&text).collect();
    let any = |whole: &[&str], stems: &[&str]| {
        words.iter().any(|w| whole.contains(&w.as_str()) || stems.iter().any(|stem| w.starts_with(stem)))
    };
    let (forbidden, allowed) = (any(&FORBID, &FORBID_STEMS), any(&ALLOW, &ALLOW_STEMS));
    match (forbidden, allowed) {
        (true, _) => Polarity::Kept,
        (false, true) => Polarity::Turned,
        (false, false) if fact.answer_type == AnswerType::YesNo => Polarity::Open,
        (false, false) => Polarity::Kept,
    }
}

/// The normalised words of a text.
fn words(text: &str) -> impl Iterator<Item = String> {
    let mut spaced = String::with_capacity(text.len() + 8);
    let mut lower = false;
    for c in text.chars() {
        if lower && c.is_uppercase() {
            spaced.push(' ');
        }
        lower = c.is_lowercase();
        spaced.push(c);
    }
    let plain = Normalized::new(&spaced).to_text();
    let words: Vec<String> =
        plain.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_owned).collect();
    words.into_iter()
}

fn stems(text: &str) -> Vec<String> {
    const LITTLE: [&str; 20] = [
        "a", "an", "and", "any", "as", "at", "be", "by", "for", "from", "in", "is", "it", "must", "of", "on", "or",
        "the", "to", "with",
    ];
    let stems: Vec<String> = words(text).filter(|word| !LITTLE.contains(&word.as_str())).map(|w| stem(&w)).collect();
    if stems.is_empty() { words(text).collect() } else { stems }
}

fn stem(word: &str) -> String {
    const ENDINGS: [&str; 18] = [
        "ations", "ation", "encies", "ency", "ions", "ings", "ance", "ence", "ers", "ion", "ing", "ors", "er", "or",
        "es", "ed", "al", "s",
    ];
    let cut = ENDINGS.iter().find_map(|ending| word.strip_suffix(ending).filter(|rest| rest.len() >= 3));
    let cut = cut.unwrap_or(word);
    cut.strip_suffix('e').filter(|rest| rest.len() >= 3).unwrap_or(cut).to_owned()
}

fn matches(a: &str, b: &str) -> bool {
    a == b || a.chars().zip(b.chars()).take_while(|(x, y)| x == y).count() >= 5
}
