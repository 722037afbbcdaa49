//! What a hop has to do besides passing the message on.
//!
//! Under [`Condition::Loaded`] (the source's "processing relay") a hop answers a question about the handoff first, under
//! a heading of its own. That analysis is cut off before the message is passed on, so it costs tokens and attention and
//! carries nothing. See `Condition::split` for how the two are told apart.

use serde::{Deserialize, Serialize};

use super::corpus::{FactKind, Item};

/// Tokens that a loaded hop may use beyond the limit of a message: the analysis must not shorten the handoff.
pub const ANALYSIS_TOKENS: usize = 160;

const LOAD: &str = "Before the handoff, write a line that says only Analysis and below it one or two sentences: which element of the handoff is most time-critical, and why. Then write a line that says only Handoff and below it the handoff itself.";

/// A condition of the study.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// The hop only passes the message on.
    #[default]
    Plain,
    /// The hop says first what is most urgent, and why.
    Loaded,
}

/// An answer, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split<'a> {
    /// What is cut off, headings included.
    pub analysis: Option<&'a str>,
    /// What is passed on: always the end of the answer.
    pub message: &'a str,
    /// An analysis was asked for, and no end of it found.
    pub unsplit: bool,
}

impl Condition {
    /// The name in plans, stores and tables.
    pub fn name(self) -> &'static str {
        match self {
            Condition::Plain => "plain",
            Condition::Loaded => "loaded",
        }
    }

    /// Tokens that a hop may draw where a message may have `max_tokens`.
    pub fn token_limit(self, max_tokens: usize) -> usize {
        match self {
            Condition::Plain => max_tokens,
            Condition::Loaded => max_tokens.saturating_add(ANALYSIS_TOKENS),
        }
    }

    /// What the relay is told after the format's instruction.
    pub fn instruction(self) -> Option<&'static str> {
        match self {
            Condition::Plain => None,
            Condition::Loaded => Some(LOAD),
        }
    }

    /// The answer of a worked example that passes on `handoff`.
    pub fn example(self, item: &Item, handoff: String) -> String {
        match self {
            Condition::Plain => handoff,
            Condition::Loaded => format!("Analysis\n{}\n\nHandoff\n{handoff}", analysis_of(item)),
        }
    }

    /// Takes an answer apart.
    ///
    /// A heading is a line that says `Analysis` or `Handoff` and nothing else but the marks that models put around
    /// headings (`#`, `*`, `_`, `=`, `-`, `:`, `.`), in any case; `Handoff: …` with the message on the same line is taken too. The
    /// message begins after the first handoff heading that follows an analysis heading. Without both it is the whole
    /// answer, and unsplit.
    pub fn split(self, answer: &str) -> Split<'_> {
        let whole = Split { analysis: None, message: answer, unsplit: self == Condition::Loaded };
        if self == Condition::Plain {
            return whole;
        }
        let mut lines = answer.split_inclusive('\n');
        let mut at = 0;
        let mut seen_analysis = false;
        for line in &mut lines {
            if !seen_analysis {
                seen_analysis = heading(line, "analysis").is_some();
            } else if let Some(rest) = heading(line, "handoff") {
                let (analysis, message) = answer.split_at(at + rest);
                return Split {
                    analysis: Some(analysis),
                    message: message.trim_start_matches(['\n', '\r']),
                    unsplit: false,
                };
            }
            at += line.len();
        }
        whole
    }
}

/// If `line` is the heading `name`, the byte at which what follows the heading begins.
fn heading(line: &str, name: &str) -> Option<usize> {
    let mark = |c: char| c.is_whitespace() || "#*_=-:.".contains(c);
    let start = line.len() - line.trim_start_matches(mark).len();
    let word = line.get(start..start + name.len()).filter(|word| word.eq_ignore_ascii_case(name))?;
    let rest = &line[start + word.len()..];
    if rest.chars().all(mark) {
        return Some(line.len());
    }
    // `**Handoff:** the text` and `Handoff: the text`; but not `Handoff of the mail server`.
    let marks = rest.len() - rest.trim_start_matches(mark).len();
    rest[..marks].contains(':').then_some(start + word.len() + marks)
}

fn analysis_of(item: &Item) -> String {
    let urgent = item.facts.iter().find(|fact| fact.kind == FactKind::Deadline).or(item.facts.first());
    urgent.map_or_else(String::new, |fact| {
        format!(
            "The most time-critical element is {} {} {}, because the rest of the plan waits for it.",
            fact.subject,
            fact.relation,
            fact.wording()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_split_at_its_headings() {
        let split = |answer| Condition::Loaded.split(answer);
        let cases = [
            ("Analysis\nThe date.\n\nHandoff\nkey: 1\nb: 2", "key: 1\nb: 2"),
            ("## Analysis\nThe date.\n## Handoff\n\nkey: 1", "key: 1"),
            ("**Analysis:**\nThe date.\n**Handoff:**\n{\"a\": 1}", "{\"a\": 1}"),
            ("Analysis: the date is near.\nHandoff: all of it", "all of it"),
            ("sure!\nANALYSIS\r\nwhy\r\nHANDOFF\r\nall of it\r\n", "all of it\r\n"),
            ("Analysis\nx\nHandoff of the server is late\n**Handoff** - \nreal", "real"),
            ("Analysis\nx\nHandoff\na\nHandoff\nb", "a\nHandoff\nb"),
            ("Analysis\nx\nHandoff\n", ""),
            ("Analysis\nx\n**Handoff:** ééé", "ééé"),
        ];
        for (answer, message) in cases {
            let split = split(answer);
            assert_eq!((split.message, split.unsplit), (message, false), "{answer:?}");
            assert!(split.analysis.is_some_and(|analysis| answer.starts_with(analysis)), "{answer:?}");
            assert!(answer.ends_with(split.message));
        }
        for answer in
            ["", "key: 1", "Analysis\nonly", "Handoff\nno analysis", "Handoff\nx\nAnalysis\ny", "analysisé", "é"]
        {
            let split = split(answer);
            assert_eq!((split.message, split.analysis, split.unsplit), (answer, None, true), "{answer:?}");
        }
        let plain = Condition::Plain.split("Analysis\nx\nHandoff\ny");
        assert_eq!((plain.message, plain.unsplit), ("Analysis\nx\nHandoff\ny", false));
    }

    #[test]
    fn the_worked_example_is_split_into_its_own_parts() {
        let item = super::super::corpus::generate(3, 0);
        let example = Condition::Loaded.example(&item, "title: x\nport: 1".into());
        assert_eq!(Condition::Loaded.split(&example).message, "title: x\nport: 1");
        assert_eq!(Condition::Plain.example(&item, "as it is".into()), "as it is");
    }
}
