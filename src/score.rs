//! Scoring a message without a judge: which facts of an item stand in it, and are they still tied to what they are about?
//!
//! *String recall* is the share of facts whose wording is contained verbatim, by the rules of [`text`]. Negation is not
//! seen by it: "may restart the amber ledger" holds the wording of a prohibition.
//!
//! *Bound recall* exists for formats with a parser. A fact is bound if its wording stands in a pair whose key speaks of
//! the fact: it shares at least half of the words of the shorter of key and (subject, relation), and no other fact
//! shares more (all rules are in the `bind` module). A key given twice with different values binds nothing; a
//! prohibition must not have turned into a permission. An unreadable message binds nothing, as nothing can be read from it.

use serde::{Deserialize, Serialize};

use crate::studies::relay::corpus::{AnswerType, Fact, Item};
use crate::studies::relay::format::{Format, Pair, Parsed, Parser};
use bind::Binder;
use text::Normalized;

mod bind;
pub mod text;

/// What became of a fact in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The wording stands in the message, and where the format has keys, under the fact's own.
    Kept,
    /// The distractor stands in place of the wording, or the fact's key has another value, or a prohibition became a permission.
    Altered,
    /// The wording stands under the key of another fact.
    Rebound,
    /// The fact's key stands twice, with different values.
    Conflict,
    /// The wording stands in the message, but under no key that speaks of any fact, or the message cannot be read.
    Unbound,
    /// Nothing of it is there.
    Lost,
}

/// One fact in one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FactScore {
    /// The fact's id.
    pub id: String,
    /// Whether its wording is contained verbatim.
    pub string: bool,
    /// Whether it is bound to its own key; `None` for prose.
    pub bound: Option<bool>,
    /// What became of it.
    pub verdict: Verdict,
    /// The bytes of the message that decided the verdict.
    pub span: Option<(usize, usize)>,
}

/// All facts of an item in one message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageScore {
    /// In the order of the item's facts.
    pub facts: Vec<FactScore>,
    /// Share of facts whose wording is contained, 0 to 1.
    pub string_recall: f64,
    /// Share of facts that are bound, 0 to 1; `None` for prose.
    pub bound_recall: Option<f64>,
    /// The message does not follow its format.
    pub invalid: bool,
}

/// Scores `message`, which should carry `item` in `format`. Pure; any text is scored.
pub fn score(item: &Item, format: &Format, message: &str) -> MessageScore {
    let parsed = format.parse(message);
    let whole = Normalized::new(message);
    let facts: Vec<FactScore> = match &parsed {
        Parsed::Pairs(pairs) => {
            let board = Board::new(item, format.parser, pairs);
            (0..item.facts.len()).map(|fact| board.judge(fact, &whole)).collect()
        }
        Parsed::Invalid(_) => item.facts.iter().map(|fact| unparsed(fact, &whole, Verdict::Unbound)).collect(),
        Parsed::NoParser => item.facts.iter().map(|fact| unparsed(fact, &whole, Verdict::Kept)).collect(),
    };
    let share = |count: usize| count as f64 / facts.len().max(1) as f64;
    MessageScore {
        string_recall: share(facts.iter().filter(|fact| fact.string).count()),
        bound_recall: (parsed != Parsed::NoParser)
            .then(|| share(facts.iter().filter(|f| f.bound == Some(true)).count())),
        invalid: matches!(parsed, Parsed::Invalid(_)),
        facts,
    }
}

/// A fact in a text without pairs; `present` is the verdict if its wording stands there.
fn unparsed(fact: &Fact, whole: &Normalized, present: Verdict) -> FactScore {
    let words = Wordings::new(fact);
    let (verdict, span) = match (words.find(whole), words.find_distractor(whole)) {
        (Some(span), _) => (present, Some(span)),
        (None, Some(span)) => (Verdict::Altered, Some(span)),
        (None, None) => (Verdict::Lost, None),
    };
    let bound = (present != Verdict::Kept).then_some(false);
    let string = verdict == present;
    FactScore { id: fact.id.clone(), string, bound, verdict, span }
}

/// What is looked for, ready for matching.
struct Wordings {
    own: Vec<Normalized>,
    /// None for yes and no, which say nothing when found.
    distractor: Option<Normalized>,
}

impl Wordings {
    fn new(fact: &Fact) -> Self {
        let own = fact.wordings().into_iter().map(Normalized::new).collect();
        let distractor = (fact.answer_type != AnswerType::YesNo).then(|| Normalized::new(&fact.distractor));
        Self { own, distractor }
    }

    fn find(&self, text: &Normalized) -> Option<(usize, usize)> {
        self.own.iter().find_map(|wording| text.find(wording)).map(|at| (at.start, at.end))
    }

    fn find_distractor(&self, text: &Normalized) -> Option<(usize, usize)> {
        self.distractor.as_ref().and_then(|wording| text.find(wording)).map(|at| (at.start, at.end))
    }
}

/// So many repetitions of one wording are looked at for twins; a message that says it more often is no handoff.
const MAX_PLACES: usize = 64;

/// A parsed message beside the facts it should carry.
struct Board<'a> {
    item: &'a Item,
    parser: Parser,
    pairs: &'a [Pair],
    wordings: Vec<Wordings>,
    values: Vec<Normalized>,
    keys: Vec<Normalized>,
    /// The facts that each key speaks of, its value left out.
    owners: Vec<Vec<usize>>,
    binder: Binder,
}

/// Where a wording stands: the pair, the bytes, and the facts that the rest of the pair speaks of.
struct Place {
    pair: usize,
    span: (usize, usize),
    owners: Vec<usize>,
}

impl<'a> Board<'a> {
    fn new(item: &'a Item, parser: Parser, pairs: &'a [Pair]) -> Self {
        let binder = Binder::new(&item.facts);
        Self {
            item,
            parser,
            pairs,
            wordings: item.facts.iter().map(Wordings::new).collect(),
            values: pairs.iter().map(|pair| Normalized::new(&pair.value)).collect(),
            keys: pairs.iter().map(|pair| Normalized::new(&pair.key)).collect(),
            owners: pairs.iter().map(|pair| binder.owners(&[&pair.key, &pair.context])).collect(),
            binder,
        }
    }

    fn judge(&self, fact: usize, whole: &Normalized) -> FactScore {
        let places = self.places(fact);
        let span = self.wordings[fact].find(whole).or(places.first().map(|place| place.span));
        let (verdict, decided) = self.verdict(fact, &places, span, whole);
        let (string, bound) = (span.is_some(), Some(verdict == Verdict::Kept));
        FactScore { id: self.item.facts[fact].id.clone(), string, bound, verdict, span: decided }
    }

    fn verdict(
        &self,
        fact: usize,
        places: &[Place],
        found: Option<(usize, usize)>,
        whole: &Normalized,
    ) -> (Verdict, Option<(usize, usize)>) {
        let own: Vec<&Place> = places.iter().filter(|place| place.owners.contains(&fact)).collect();
        if let Some(span) = own.iter().take(MAX_PLACES).find_map(|place| self.twin(place.pair)) {
            return (Verdict::Conflict, Some(span));
        }
        let forbids = |place: &&&Place| bind::forbids(&self.item.facts[fact], &self.pairs[place.pair]);
        if let Some(place) = own.iter().find(|place| forbids(place) == bind::Polarity::Kept) {
            let rival =
                self.under_own_key(fact, |pair| self.wordings[fact].find_distractor(&self.values[pair]).is_some());
            return rival.map_or((Verdict::Kept, Some(place.span)), |span| (Verdict::Conflict, Some(span)));
        }
        if let Some(place) = own.iter().find(|place| forbids(place) == bind::Polarity::Turned) {
            return (Verdict::Altered, Some(place.span));
        }
        if own.is_empty() {
            if let Some(place) = places.iter().find(|place| !place.owners.is_empty()) {
                return (Verdict::Rebound, Some(place.span));
            }
            if let Some(span) = self.under_own_key(fact, |_| true) {
                return (Verdict::Altered, Some(span));
            }
        }
        if found.is_some() {
            return (Verdict::Unbound, found);
        }
        let distractor = self.wordings[fact].find_distractor(whole);
        distractor.map_or((Verdict::Lost, None), |span| (Verdict::Altered, Some(span)))
    }

    /// Every pair that holds a wording of the fact, in its value or, as with `Mara Ilves || owns || cutover`, in its key.
    fn places(&self, fact: usize) -> Vec<Place> {
        let words = &self.wordings[fact];
        let place = |(index, pair): (usize, &Pair)| {
            if let Some((start, end)) = words.find(&self.values[index]) {
                let rest = [&pair.value[..start], &pair.value[end..]].join(" ");
                let owners = match &self.owners[index] {
                    none if none.is_empty() => self.binder.owners(&[&pair.key, &pair.context, &rest]),
                    owners => owners.clone(),
                };
                // An escaped value has other offsets than the message: then the whole value is the place.
                let direct = pair.span.1 - pair.span.0 == pair.value.len();
                let span = if direct { (pair.span.0 + start, pair.span.0 + end) } else { pair.span };
                return Some(Place { pair: index, span, owners });
            }
            let (start, end) = words.find(&self.keys[index])?;
            let rest = [&pair.key[..start], &pair.key[end..]].join(" ");
            let owners = self.binder.owners(&[&rest, &pair.value, &pair.context]);
            Some(Place { pair: index, span: pair.span, owners })
        };
        self.pairs.iter().enumerate().filter_map(place).collect()
    }

    /// The first pair whose key speaks of this fact alone, naming its relation, and which satisfies `also`.
    fn under_own_key(&self, fact: usize, also: impl Fn(usize) -> bool) -> Option<(usize, usize)> {
        let mine = |&(index, pair): &(usize, &Pair)| {
            let keys = [pair.key.as_str(), pair.context.as_str()];
            self.owners[index] == [fact] && self.binder.names_relation(fact, &keys) && also(index)
        };
        self.pairs.iter().enumerate().find(mine).map(|(_, pair)| pair.span)
    }

    /// The value of another pair with the same key, if the two are in conflict. Triples may rightly say several things
    /// of one subject: there a value that belongs to another fact is no conflict, nor is one of another length in words.
    fn twin(&self, index: usize) -> Option<(usize, usize)> {
        let pair = &self.pairs[index];
        if !pair.duplicate {
            return None;
        }
        let words = |pair: &Pair| pair.value.split_whitespace().count();
        let other = self.pairs.iter().enumerate().find(|&(k, twin)| {
            let differs =
                k != index && twin.duplicate && bind::same_key(&twin.key, &pair.key) && twin.value != pair.value;
            let elsewhere = || self.wordings.iter().any(|words| words.find(&self.values[k]).is_some());
            differs && (self.parser != Parser::Triples || (words(twin) == words(pair) && !elsewhere()))
        });
        match other {
            Some((_, twin)) => Some(twin.span),
            // A nested JSON twin need not hold the same inner key.
            None if self.parser == Parser::Json => Some(pair.span),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests;
