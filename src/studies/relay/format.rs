//! Message formats as data: what the relay is told, and how a message is read back.
//!
//! A format is a TOML file of four strings: `name`, `description`, `instruction`, and `parser`, one of `none`, `json`,
//! `triples` and `kv`. A table `grammar` may follow, with one of the strings `json_schema`, `regex` and `lark`: decoding
//! is then held to it, and whatever it allows the parser must read. The built-in ones lie in `formats/`; a user's file has the same form.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::condition::Condition;
use super::corpus::{Fact, Item};
use crate::generate::{Grammar, Message, Role};

mod json;
mod lines;

/// What every relay is told before the format's own instruction.
pub const RELAY_TASK: &str = "You are one agent in a chain. The user sends you a task handoff. Pass it on: the next agent sees only what you write, so repeat the whole handoff and add nothing of your own.";

const BUILTIN: [&str; 8] = [
    include_str!("formats/free.toml"),
    include_str!("formats/constr.toml"),
    include_str!("formats/json.toml"),
    include_str!("formats/triples.toml"),
    include_str!("formats/kv.toml"),
    include_str!("formats/json_grammar.toml"),
    include_str!("formats/triples_grammar.toml"),
    include_str!("formats/kv_grammar.toml"),
];

/// A longer format file is refused.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// How a message is read back into pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Parser {
    /// Prose: it is not.
    None,
    /// One JSON object; every string, number or boolean in it is the value of a pair.
    Json,
    /// Lines of `subject || predicate || object`.
    Triples,
    /// Lines of `key: value`.
    Kv,
}

/// A message format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Format {
    /// Lower-case letters, digits, `_`, `-` and `+`.
    pub name: String,
    /// One line for people.
    pub description: String,
    /// What the relay is told about the format.
    pub instruction: String,
    /// How a message is read back.
    pub parser: Parser,
    /// What decoding is held to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grammar: Option<Grammar>,
}

/// One statement of a parsed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The key as written: `key`, `outer.inner`, or `subject || predicate`.
    pub key: String,
    /// Other words that say what the value is about: its siblings, where a JSON list holds objects (`{"role": …, "name": …}`).
    pub context: String,
    /// The value, unescaped.
    pub value: String,
    /// The bytes of the value in the message (of a JSON string: between the quotes).
    pub span: (usize, usize),
    /// The same key stands again in the same place with another value: a reader of the message keeps one of them only.
    pub duplicate: bool,
}

/// What a parser made of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The pairs in the order of the message.
    Pairs(Vec<Pair>),
    /// It does not follow the format; why.
    Invalid(String),
    /// The format is prose.
    NoParser,
}

/// Why a format cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// No such built-in format.
    #[error("there is no format {name:?}: the built-in ones are {}", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The file cannot be read.
    #[error("cannot read the format {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a sound format.
    #[error("format {}: {what}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

impl Format {
    /// The built-in formats, in the order of the tables: first the five that leave decoding free.
    ///
    /// # Panics
    /// If an embedded file is not a sound format, which is a bug.
    pub fn builtin() -> Vec<Format> {
        BUILTIN.iter().map(|text| Self::parse_file(text).expect("the embedded formats are tested")).collect()
    }

    /// The built-in format of this name.
    pub fn by_name(name: &str) -> Result<Format, FormatError> {
        let formats = Self::builtin();
        let known = formats.iter().map(|format| format.name.clone()).collect();
        let found = formats.into_iter().find(|format| format.name == name);
        found.ok_or_else(|| FormatError::Unknown { name: name.to_owned(), known })
    }

    /// Reads and checks a user's format.
    pub fn load(path: &Path) -> Result<Format, FormatError> {
        let read = |source| FormatError::Read { path: path.to_owned(), source };
        let invalid = |what| FormatError::Invalid { path: path.to_owned(), what };
        let length = std::fs::metadata(path).map_err(read)?.len();
        if length > MAX_FILE_BYTES {
            return Err(invalid(format!("{length} bytes, but a format has at most {MAX_FILE_BYTES}")));
        }
        let text = std::fs::read(path).map_err(read)?;
        let text = String::from_utf8(text).map_err(|_| invalid("not UTF-8".into()))?;
        Self::parse_file(&text).map_err(invalid)
    }

    fn parse_file(text: &str) -> Result<Format, String> {
        let mut format: Format = toml::from_str(text).map_err(|e| {
            let line = e.span().map(|span| text[..span.start.min(text.len())].lines().count().max(1));
            let what = e.message().replace('\n', " ");
            line.map_or(what.clone(), |line| format!("line {line}: {what}"))
        })?;
        if let Some(Grammar::JsonSchema(schema)) = &mut format.grammar {
            let text =
                schema.as_str().ok_or("grammar.json_schema is no string (a table would lose the keys' order)")?;
            *schema = serde_json::from_str(text).map_err(|e| format!("grammar.json_schema is not JSON: {e}"))?;
        }
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-' | '+');
        if format.name.is_empty() || format.name.len() > 40 || !format.name.chars().all(allowed) {
            return Err(format!("the name {:?} is not 1 to 40 of a-z, 0-9, _, - and +", format.name));
        }
        if format.instruction.trim().is_empty() {
            return Err("the instruction is empty".into());
        }
        if format.description.contains('\n') {
            return Err("the description has more than one line".into());
        }
        Ok(format)
    }

    /// Reads a message back into pairs. Deterministic, never panics, linear in the message but for nesting.
    ///
    /// - All parsers drop a code fence that encloses the whole message, closed or not, as deployed readers do.
    /// - JSON is then strict: anything before or after the one object makes the message invalid.
    /// - Of lines, those that are no statement are skipped; a message with none at all is invalid.
    pub fn parse(&self, message: &str) -> Parsed {
        let parsed = match self.parser {
            Parser::None => return Parsed::NoParser,
            Parser::Json => json::parse(message, unfenced(message)),
            Parser::Triples => lines::triples(message, unfenced(message)),
            Parser::Kv => lines::key_values(message, unfenced(message)),
        };
        parsed.map_or_else(Parsed::Invalid, Parsed::Pairs)
    }

    /// A faithful handoff of `item` in this format, with the wording of every fact verbatim: the worked example of
    /// one-shot runs, and what a perfect relay may answer.
    ///
    /// Prose formats repeat the brief; JSON has its six keys, with deadlines among the constraints.
    pub fn render(&self, item: &Item) -> String {
        let title = one_line(if item.title.is_empty() { "task handoff" } else { &item.title });
        match self.parser {
            Parser::None => item.brief.clone(),
            Parser::Json => json::render(&title, item),
            Parser::Triples => {
                let mut lines = vec![format!("handoff || title || {title}")];
                let statement =
                    |fact: &Fact| [&fact.subject, &fact.relation, fact.wording()].map(one_line).join(" || ");
                lines.extend(item.facts.iter().map(statement));
                lines.join("\n")
            }
            Parser::Kv => {
                let mut keys = Keys(vec!["title".into()]);
                let mut lines = vec![format!("title: {title}")];
                lines.extend(item.facts.iter().map(|fact| format!("{}: {}", keys.of(fact), one_line(fact.wording()))));
                lines.join("\n")
            }
        }
    }

    /// What the relay is told: the task, the format's instruction and the condition's.
    pub fn system_prompt(&self, condition: Condition) -> String {
        let mut told = format!("{RELAY_TASK} {}", self.instruction);
        if let Some(more) = condition.instruction() {
            told += " ";
            told += more;
        }
        told
    }

    /// The conversation of one hop. With an exemplar, its brief and its handoff in this format stand before the
    /// message as an earlier exchange, the same at every hop.
    pub fn hop_messages(&self, condition: Condition, exemplar: Option<&Item>, message: &str) -> Vec<Message> {
        let mut messages = vec![Message::new(Role::System, self.system_prompt(condition))];
        if let Some(item) = exemplar {
            messages.push(Message::new(Role::User, item.brief.clone()));
            messages.push(Message::new(Role::Assistant, condition.example(item, self.render(item))));
        }
        messages.push(Message::new(Role::User, message));
        messages
    }
}

/// Hands out the key of each fact, numbered where two would be alike.
struct Keys(Vec<String>);

impl Keys {
    fn of(&mut self, fact: &Fact) -> String {
        let plain = snake_case(&format!("{} {}", fact.subject, fact.relation));
        let numbered = (2..).map(|n| format!("{plain}_{n}"));
        let key = std::iter::once(plain.clone()).chain(numbered).find(|key| !self.0.contains(key)).unwrap_or(plain);
        self.0.push(key.clone());
        key
    }
}

fn snake_case(text: &str) -> String {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    if words.is_empty() { "fact".into() } else { words.join("_") }
}

fn one_line(text: impl AsRef<str>) -> String {
    text.as_ref().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The bytes of the message within an enclosing code fence, or of all of it, without white space at its ends.
fn unfenced(message: &str) -> (usize, usize) {
    let trimmed = message.trim();
    let mut inner = trimmed;
    if let Some(rest) = trimmed.strip_prefix("```") {
        inner = rest.split_once('\n').map_or(rest, |(info, body)| if info.contains(['{', '[']) { rest } else { body });
        inner = inner.trim_end().strip_suffix("```").unwrap_or(inner).trim();
    }
    let start = inner.as_ptr() as usize - message.as_ptr() as usize;
    (start, start + inner.len())
}

#[cfg(test)]
mod grammar_tests;
#[cfg(test)]
mod tests;
