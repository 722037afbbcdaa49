//! The corpus: task-handoff briefs of twelve atomic facts, generated or the user's own.
//!
//! A fact's *value* is the answer to its question; its *surface* is the exact wording in the brief. For every answer
//! type but `yes_no` the value stands in the surface, and the value is what is looked for in a message. A `yes_no`
//! fact's value is only "yes" or "no", which says nothing when found in a message: there the surface is looked for. In
//! a generated brief it is the object of a prohibition ("Nobody may restart the *amber ledger* during the cutover"), so
//! that every format can carry it verbatim, as prose or as the value of a key. Its distractor is the opposite answer;
//! as that cannot replace the surface, such a fact is never eligible for injection.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::score::text::{Normalized, contains};

mod generate;
mod load;
mod pools;

pub use generate::{DOMAINS, exemplar, generate};
pub use load::{CorpusError, MAX_LINE_BYTES, load, parse, read};

/// What a fact is about. Every generated brief has two of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FactKind {
    /// Who holds a role.
    Owner,
    /// A port, budget, count or version.
    Quantity,
    /// A date or time by which something happens.
    Deadline,
    /// A limit or a rule.
    Constraint,
    /// What something waits for.
    Dependency,
    /// What must not be done.
    Prohibition,
}

impl FactKind {
    /// All kinds, in the order of a brief.
    pub const ALL: [FactKind; 6] = [
        FactKind::Owner,
        FactKind::Quantity,
        FactKind::Deadline,
        FactKind::Constraint,
        FactKind::Dependency,
        FactKind::Prohibition,
    ];
}

/// The type of a fact's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerType {
    /// A number, with or without thousands separators.
    Number,
    /// A ticket, version or other code.
    Code,
    /// A person or thing.
    Name,
    /// A date or a time of day.
    Date,
    /// "yes" or "no".
    YesNo,
}

/// One atomic fact of a brief.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    /// Unique in the item.
    pub id: String,
    /// What the fact is about.
    pub kind: FactKind,
    /// What is spoken of.
    pub subject: String,
    /// What is said of it; subject and relation together name the fact's key.
    pub relation: String,
    /// The answer to the question.
    pub value: String,
    /// The exact wording in the brief.
    pub surface: String,
    /// A closed question with exactly one answer.
    pub question: String,
    /// The type of the value.
    pub answer_type: AnswerType,
    /// A plausible wrong value of the same type, which does not occur in the brief.
    pub distractor: String,
    /// Other wordings that count as the value.
    #[serde(default)]
    pub aliases: Vec<String>,
}

impl Fact {
    /// The wording that a handoff carries, and that is looked for in it: the value where the surface holds it, else the surface.
    pub fn wording(&self) -> &str {
        let held = || self.surface == self.value || contains(&self.surface, &self.value);
        if self.answer_type != AnswerType::YesNo && held() { &self.value } else { &self.surface }
    }

    /// Every wording that counts as the fact's own: [`Fact::wording`], the value where it is not yes or no, the aliases.
    pub fn wordings(&self) -> Vec<&str> {
        let mut wordings = vec![self.wording()];
        if self.answer_type != AnswerType::YesNo && self.value != wordings[0] {
            wordings.push(&self.value);
        }
        wordings.extend(self.aliases.iter().map(String::as_str));
        wordings
    }
}

/// One task-handoff brief with its facts, of which there is at least one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Unique in the corpus.
    pub id: String,
    /// What the task is called; empty where a user's corpus names none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// The domain of a generated item, one of [`DOMAINS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The text that hop 1 reads.
    pub brief: String,
    /// The facts that a relay should keep.
    pub facts: Vec<Fact>,
}

impl Item {
    /// What every item must satisfy to be scored at all; the error says what does not, on one line.
    pub fn validate(&self) -> Result<(), String> {
        require("id", &self.id)?;
        require("brief", &self.brief)?;
        if self.facts.is_empty() {
            return Err("the item has no facts".into());
        }
        let brief = Normalized::new(&self.brief);
        let mut ids = HashSet::new();
        for fact in &self.facts {
            require("fact id", &fact.id)?;
            if !ids.insert(&fact.id) {
                return Err(format!("two facts have the id {:?}", fact.id));
            }
            fact_is_sound(fact, &self.brief, &brief).map_err(|what| format!("fact {:?}: {what}", fact.id))?;
        }
        Ok(())
    }
}

fn require(name: &str, text: &str) -> Result<(), String> {
    if text.trim().is_empty() { Err(format!("{name} is empty")) } else { Ok(()) }
}

fn fact_is_sound(fact: &Fact, brief: &str, normalized: &Normalized) -> Result<(), String> {
    let fields = [("subject", &fact.subject), ("relation", &fact.relation), ("value", &fact.value)];
    let more = [("surface", &fact.surface), ("question", &fact.question), ("distractor", &fact.distractor)];
    for (name, text) in fields.into_iter().chain(more) {
        require(name, text)?;
    }
    let visible = |text: &str| !Normalized::new(text).to_text().is_empty();
    if let Some(text) = [&fact.value, &fact.surface].into_iter().chain(&fact.aliases).find(|text| !visible(text)) {
        return Err(format!("{text:?} has nothing that can be looked for"));
    }
    if !brief.contains(&fact.surface) {
        return Err(format!("the surface {:?} does not stand verbatim in the brief", fact.surface));
    }
    if normalized.find(&Normalized::new(fact.wording())).is_none() {
        return Err(format!("{:?} stands in the brief only inside a longer word or number", fact.wording()));
    }
    let (value, distractor) = (Normalized::new(&fact.value).to_text(), Normalized::new(&fact.distractor).to_text());
    if value == distractor {
        return Err(format!("the distractor {:?} equals the value", fact.distractor));
    }
    match fact.answer_type {
        AnswerType::YesNo => {
            for (name, text) in [("value", &value), ("distractor", &distractor)] {
                if text != "yes" && text != "no" {
                    return Err(format!("the {name} of a yes_no fact is {text:?}, not \"yes\" or \"no\""));
                }
            }
            return Ok(());
        }
        AnswerType::Number if !fact.value.contains(char::is_numeric) => {
            return Err(format!("the value {:?} of a number fact has no digit", fact.value));
        }
        _ => {}
    }
    if normalized.find(&Normalized::new(&fact.distractor)).is_some() {
        return Err(format!("the distractor {:?} occurs in the brief", fact.distractor));
    }
    if let Some(alias) = fact.aliases.iter().find(|a| Normalized::new(a).to_text() == distractor) {
        return Err(format!("the alias {alias:?} equals the distractor"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
