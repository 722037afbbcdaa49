//! Chat templates: rendered so that the caller knows which part of the output
//! is the template's and which is what a message says.
//!
//! A control token counts only where the template wrote it. To tell the two
//! apart, every content goes into the template between two private-use
//! characters of its own that occur in no content; they are taken out of the
//! output again and leave the ranges of the contents behind. A template that trims would trim
//! around the marks and not inside, so what it trims is tried out once when it is
//! loaded and done before the marks are set. A template that drops a message,
//! shows it twice or takes it apart is refused: in a relay that would count as
//! facts lost by the model. What a hostile template may take is bounded in `limits`.

mod limits;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::ops::Range;

use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind, context};
use sha2::{Digest, Sha256};

use super::ChatMessage;
use super::error::{TextProblem, one_line};

/// What the one template of an environment is called.
const NAME: &str = "chat_template";
/// The word looked for when a template is tried out.
const PROBE: &str = "zq0probe0qz";

/// Names a template may print.
#[derive(Clone, Debug, Default)]
pub(super) struct SpecialNames {
    pub(super) bos: Option<String>,
    pub(super) eos: Option<String>,
    pub(super) unknown: Option<String>,
    pub(super) padding: Option<String>,
}

/// A parsed chat template and what trying it out has shown.
pub(super) struct Template {
    env: Environment<'static>,
    names: SpecialNames,
    trims: [(Role, Trim, Trim); 3],
    /// Of a user message right behind a system message, which some templates
    /// join before they trim.
    trims_behind_system: (Trim, Trim),
    /// The template refuses or ignores a system message.
    pub(super) folds_system: bool,
    /// What follows an assistant message in the middle of a conversation.
    pub(super) after_assistant: Option<String>,
}

type Role = &'static str;

/// What a template takes away from one end of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trim {
    Nothing,
    Newlines,
    WhiteSpace,
}

/// A rendered prompt, marks removed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rendered {
    pub(super) text: String,
    /// Byte ranges of `text` that contents wrote, in order.
    pub(super) contents: Vec<Range<usize>>,
}

impl Template {
    /// Parses the template and tries it out.
    pub(super) fn new(source: &str, names: SpecialNames) -> Result<Self, TextProblem> {
        limits::check_length(source).map_err(TextProblem::Template)?;
        let mut env = limits::environment();
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, format!("refused by the template: {message}")))
        });
        env.add_function("strftime_now", strftime_now);
        limits::add_template(&mut env, NAME, accept_generation(source)).map_err(problem)?;
        let nothing = Trim::Nothing;
        let mut template = Self {
            env,
            names,
            trims: ["system", "user", "assistant"].map(|role| (role, nothing, nothing)),
            trims_behind_system: (nothing, nothing),
            folds_system: false,
            after_assistant: None,
        };
        template.try_out()?;
        Ok(template)
    }

    /// Renders a conversation with the generation prompt. The template's marks
    /// on white space, and a system message it does not take, are dealt with here:
    /// such a message goes in front of the first user message, with an empty line
    /// between.
    pub(super) fn render(&self, messages: &[ChatMessage<'_>]) -> Result<Rendered, TextProblem> {
        if messages.is_empty() {
            return Err(TextProblem::NoMessages);
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if let Some(odd) = messages.iter().find(|m| m.role.is_empty() || !m.role.chars().all(plain)) {
            return Err(TextProblem::Role(odd.role.to_owned()));
        }
        let mut turns: Vec<(&str, String)> = messages.iter().map(|m| (m.role, m.content.to_owned())).collect();
        if self.folds_system {
            fold_system(&mut turns);
        }
        let marks = unused_marks(&turns)?;
        let mut after = "";
        for ((role, content), (open, close)) in turns.iter_mut().zip(&marks) {
            // An empty content has nothing to guard, and a template may ask
            // whether there is one.
            if !content.is_empty() {
                *content = format!("{open}{}{close}", self.trim(after, role, content));
            }
            after = role;
        }
        let output = self.run(&turns).map_err(problem)?;
        take_out_marks(&output, &turns, &marks)
    }

    fn trim<'a>(&self, after: &str, role: &str, content: &'a str) -> &'a str {
        let (start, end) = match self.trims.iter().find(|(r, _, _)| *r == role) {
            None => return content,
            Some(_) if (after, role) == ("system", "user") => self.trims_behind_system,
            Some(&(_, start, end)) => (start, end),
        };
        let content = match start {
            Trim::Nothing => content,
            Trim::Newlines => content.trim_start_matches('\n'),
            Trim::WhiteSpace => content.trim_start(),
        };
        match end {
            Trim::Nothing => content,
            Trim::Newlines => content.trim_end_matches('\n'),
            Trim::WhiteSpace => content.trim_end(),
        }
    }

    fn run(&self, turns: &[(&str, String)]) -> Result<String, Error> {
        let env = limits::fueled(&self.env, turns.iter().map(|(_, content)| content.len()).sum());
        let messages: Vec<Value> = turns.iter().map(|(role, content)| context! { role => *role, content }).collect();
        limits::on_a_deep_stack(|| {
            env.get_template(NAME)?.render(context! {
                messages,
                add_generation_prompt => true,
                // A relayed message is an answer; thinking before it would use up its token limit.
                enable_thinking => false,
                tools => Value::from(()),
                documents => Value::from(()),
                bos_token => self.names.bos.as_deref().unwrap_or_default(),
                eos_token => self.names.eos.as_deref().unwrap_or_default(),
                unk_token => self.names.unknown.as_deref().unwrap_or_default(),
                pad_token => self.names.padding.as_deref().unwrap_or_default(),
            })
        })
    }

    /// Renders three small conversations: does a user message work at all, is a
    /// system message taken, what is trimmed, what ends an assistant's turn.
    fn try_out(&mut self) -> Result<(), TextProblem> {
        let probe = format!("\n \t{PROBE}\t \n");
        let turn = |role, content: &str| (role, content.to_owned());
        let output = self.run(&[turn("user", &probe)]).map_err(problem)?;
        let lost = || TextProblem::ContentLost { index: 0, role: "user".to_owned() };
        let user = trims(&output).ok_or_else(lost)?;
        self.trims[1] = ("user", user.0, user.1);
        let behind = self.run(&[turn("system", "x"), turn("user", &probe)]).ok();
        self.trims_behind_system = behind.as_deref().and_then(trims).unwrap_or(user);
        match self.run(&[turn("system", &probe), turn("user", "x")]).ok().as_deref().and_then(trims) {
            Some(system) => self.trims[0] = ("system", system.0, system.1),
            None => self.folds_system = true,
        }
        let conversation = [turn("user", "x"), turn("assistant", &probe), turn("user", "x")];
        if let Ok(output) = self.run(&conversation)
            && let Some(assistant) = trims(&output)
        {
            self.trims[2] = ("assistant", assistant.0, assistant.1);
            let rest = output.split_once(PROBE).map_or("", |(_, rest)| rest);
            let kept = match assistant.1 {
                Trim::Nothing => "\t \n",
                Trim::Newlines => "\t ",
                Trim::WhiteSpace => "",
            };
            self.after_assistant = rest.strip_prefix(kept).map(str::to_owned);
        }
        Ok(())
    }
}

/// SHA-256 of a template's source, in hexadecimal.
pub(super) fn hash(source: &str) -> String {
    Sha256::digest(source.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// What of the white space around the probe is missing; `None` when the probe
/// itself is.
fn trims(output: &str) -> Option<(Trim, Trim)> {
    let (before, after) = output.split_once(PROBE)?;
    let side = |whole: bool, inner: bool| match (whole, inner) {
        (true, _) => Trim::Nothing,
        (false, true) => Trim::Newlines,
        (false, false) => Trim::WhiteSpace,
    };
    let start = side(before.ends_with("\n \t"), before.ends_with(" \t"));
    let end = side(after.starts_with("\t \n"), after.starts_with("\t "));
    Some((start, end))
}

/// Puts system messages in front of the next user message; one that no user
/// message follows becomes one itself.
fn fold_system(turns: &mut Vec<(&str, String)>) {
    let mut pending: Vec<String> = Vec::new();
    let mut folded = Vec::with_capacity(turns.len());
    for (role, content) in turns.drain(..) {
        match role {
            "system" if !content.is_empty() => pending.push(content),
            "system" => {}
            "user" if !pending.is_empty() => {
                pending.push(content);
                folded.push((role, std::mem::take(&mut pending).join("\n\n")));
            }
            _ => folded.push((role, content)),
        }
    }
    if !pending.is_empty() {
        folded.push(("user", pending.join("\n\n")));
    }
    *turns = folded;
}

/// Two private-use characters for every turn that no content holds.
fn unused_marks(turns: &[(&str, String)]) -> Result<Vec<(char, char)>, TextProblem> {
    let private = '\u{f0000}'..='\u{10fffd}';
    let used: HashSet<char> =
        turns.iter().flat_map(|(_, content)| content.chars()).filter(|c| private.contains(c)).collect();
    let mut free = private.filter(|c| !used.contains(c));
    let marks: Vec<(char, char)> = turns.iter().map_while(|_| Some((free.next()?, free.next()?))).collect();
    if marks.len() < turns.len() {
        return Err(TextProblem::Template("the messages leave too few private-use characters unused".to_owned()));
    }
    Ok(marks)
}

/// Removes the marks and keeps where they stood. Every content must be there
/// once, begun and ended.
fn take_out_marks(output: &str, turns: &[(&str, String)], marks: &[(char, char)]) -> Result<Rendered, TextProblem> {
    let lost = |index: usize| TextProblem::ContentLost { index, role: turns[index].0.to_owned() };
    let by_mark: HashMap<char, (usize, bool)> =
        marks.iter().enumerate().flat_map(|(i, &(open, close))| [(open, (i, true)), (close, (i, false))]).collect();
    let mut text = String::with_capacity(output.len());
    let mut contents: Vec<Range<usize>> = Vec::with_capacity(turns.len());
    let mut seen = vec![false; turns.len()];
    let mut inside: Option<(usize, usize)> = None;
    for c in output.chars() {
        match by_mark.get(&c) {
            None => text.push(c),
            Some(&(index, true)) => {
                if inside.replace((index, text.len())).is_some() || std::mem::replace(&mut seen[index], true) {
                    return Err(lost(index));
                }
            }
            Some(&(index, false)) => match inside.take() {
                Some((begun, start)) if begun == index => contents.push(start..text.len()),
                _ => return Err(lost(index)),
            },
        }
    }
    if let Some((index, _)) = inside {
        return Err(lost(index));
    }
    match turns.iter().zip(seen).position(|((_, content), seen)| !content.is_empty() && !seen) {
        Some(index) => Err(lost(index)),
        None => Ok(Rendered { text, contents }),
    }
}

/// `{% generation %}` and its end only mark what a trainer counts, so they are
/// read as an `if` that always holds, white-space marks included.
fn accept_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let mark = |c: char| c == '-' || c == '+';
        let inside = tag[2..tag.len() - 2].trim_matches(mark).trim();
        match inside {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The date of the templates' own fall-back, 26 July 2024, in `format`. The
/// clock must not change a prompt, so every run has the same date.
fn strftime_now(format: &str) -> Result<String, Error> {
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        out.push_str(match chars.next() {
            Some('Y') => "2024",
            Some('y') => "24",
            Some('m') => "07",
            Some('d' | 'e') => "26",
            Some('B') => "July",
            Some('b' | 'h') => "Jul",
            Some('A') => "Friday",
            Some('a') => "Fri",
            Some('j') => "208",
            Some('H' | 'I') => "12",
            Some('M' | 'S') => "00",
            Some('p') => "PM",
            Some('F') => "2024-07-26",
            Some('D') => "07/26/24",
            Some('T') => "12:00:00",
            Some('%') => "%",
            other => {
                let code = other.map(String::from).unwrap_or_default();
                let message = format!("strftime_now does not know %{code}");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        });
    }
    Ok(out)
}

fn problem(error: Error) -> TextProblem {
    let mut message = one_line(&error);
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        message = format!("{message}: {}", one_line(&cause));
        source = cause.source();
    }
    TextProblem::Template(message)
}
