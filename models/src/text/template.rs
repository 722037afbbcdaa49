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
//! facts lost by the model.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::ops::Range;

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, context};
use sha2::{Digest, Sha256};

use super::ChatMessage;
use super::error::{TextProblem, one_line};

/// Templates are a few kilobytes, the longest known ones below twenty.
const MAX_SOURCE: usize = 64 << 10;
/// Words in one tag: a chain of operators or filters nests once for each, and the
/// time to compile it grows with their square. Real tags have fewer than a hundred.
const MAX_TAG: usize = 1000;
/// Instructions a template may run, or 64 bytes for each that it may produce
/// instead; one more for each byte of the messages. A thousand turns take a
/// fifth of it.
const FUEL: u64 = 1_000_000;
/// Stack that parsing and rendering have: the parser and the printing of values
/// recurse as deep as these limits let a source and a value nest. Only what is
/// touched takes memory.
const STACK: usize = 128 << 20;
/// What a list or map may hold to be printed, turned to JSON or put into a namespace,
/// in bytes and 64 for each value in it, and how deep it may nest.
const MAX_PRINTED: usize = 16 << 20;
const MAX_DEPTH: usize = 64;
/// Nesting of macros and loops; a real template needs a handful.
const MAX_RECURSION: usize = 150;
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
        if source.len() > MAX_SOURCE {
            return Err(TextProblem::Template(format!("{} bytes, at most {MAX_SOURCE} are accepted", source.len())));
        }
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(problem)?;
        env.set_syntax(syntax.clone());
        env.set_recursion_limit(MAX_RECURSION);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, format!("refused by the template: {message}")))
        });
        env.add_function("strftime_now", strftime_now);
        env.set_formatter(|out, state, value| {
            check_size(value)?;
            minijinja::escape_formatter(out, state, value)
        });
        env.add_filter(CHECKED, |value: Value| -> Result<Value, Error> {
            check(&value, Use::Assign)?;
            Ok(value)
        });
        env.add_filter("tojson", |value: &Value, indent: Option<Value>, args: Kwargs| {
            check_size(value)?;
            check_indent(indent.as_ref())?;
            check_indent(args.peek::<Option<Value>>("indent")?.as_ref())?;
            minijinja::filters::tojson(value, indent, args)
        });
        env.add_filter("string", |state: &State, value: &Value| {
            check_size(value)?;
            minijinja::filters::string(state, value)
        });
        env.add_filter("pprint", |value: &Value| {
            check_size(value)?;
            Ok::<_, Error>(minijinja::filters::pprint(value))
        });
        let source = accept_generation(source);
        let source = check_assignments(&source, syntax).map_err(problem)?;
        on_a_deep_stack(|| env.add_template_owned("chat_template", source)).map_err(problem)?;
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
        let given: usize = turns.iter().map(|(_, content)| content.len()).sum();
        let mut env = self.env.clone();
        env.set_fuel(Some(FUEL + given as u64));
        let messages: Vec<Value> = turns.iter().map(|(role, content)| context! { role => *role, content }).collect();
        on_a_deep_stack(|| {
            env.get_template("chat_template")?.render(context! {
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

/// Does what may recurse as deep as a hostile template wants it to.
fn on_a_deep_stack<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    let failed = |what: &str| Error::new(ErrorKind::InvalidOperation, format!("no thread to run it on: {what}"));
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("weaklink-template".into()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work).map_err(|e| failed(&e.to_string()))?;
        thread.join().map_err(|_| failed("it panicked"))?
    })
}

/// The filter that every value goes through on its way into a namespace.
const CHECKED: &str = "weaklink_checked";

/// Counts the words of each tag, and passes what is assigned to a namespace through
/// [`CHECKED`]. Namespaces are the one thing that a template can change: without
/// this, values could grow into each other without end or go round in circles.
fn check_assignments(source: &str, syntax: SyntaxConfig) -> Result<String, Error> {
    let tokens = tokenize(source, false, syntax).collect::<Result<Vec<_>, _>>()?;
    let mut checked = String::with_capacity(source.len());
    let mut copied = 0;
    let ends = |token: &Token<'_>| matches!(token, Token::BlockEnd | Token::VariableEnd);
    for tag in tokens.split_inclusive(|(token, _)| ends(token)) {
        if tag.len() > MAX_TAG {
            let what = format!("a tag of {} words, at most {MAX_TAG} are accepted", tag.len());
            return Err(Error::new(ErrorKind::SyntaxError, what));
        }
        let Some(start) =
            tag.windows(2).position(|pair| matches!(pair, [(Token::BlockStart, _), (Token::Ident("set"), _)]))
        else {
            continue;
        };
        let set = &tag[start..];
        let Some(assign) = set.iter().position(|(token, _)| matches!(token, Token::Assign)) else { continue };
        if !set[..assign].iter().any(|(token, _)| matches!(token, Token::Dot)) {
            continue;
        }
        if let [.., (last, _), (Token::BlockEnd, _)] = &set[assign..]
            && !matches!(last, Token::Assign)
        {
            let (from, to) = (set[assign].1.end_offset as usize, set[set.len() - 2].1.end_offset as usize);
            let _ = write!(checked, "{}({})|{CHECKED}", &source[copied..from], &source[from..to]);
            copied = to;
        }
    }
    checked.push_str(&source[copied..]);
    Ok(checked)
}

/// Refuses a list or map that would recurse too deep, go round in circles or come
/// out huge: the engine charges for what it prints only once it is there.
fn check_size(value: &Value) -> Result<(), Error> {
    check(value, Use::Print)
}

/// What a checked value is wanted for.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    Print,
    Assign,
}

fn check(value: &Value, wanted: Use) -> Result<(), Error> {
    let mut left = MAX_PRINTED;
    let mut inside = vec![(value.clone(), 0)];
    while let Some((value, depth)) = inside.pop() {
        if wanted == Use::Assign && value.as_object().is_some_and(|o| o.type_name().ends_with("Namespace")) {
            let what = "a namespace inside a namespace is not supported";
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
        let walked = match value.kind() {
            ValueKind::Seq | ValueKind::Map => true,
            // One that does not know its length is neither printed nor used up here.
            ValueKind::Iterable => value.len().is_some(),
            _ => false,
        };
        if !walked {
            continue;
        }
        for key in value.try_iter()? {
            let item = if value.kind() == ValueKind::Map { value.get_item(&key)? } else { key.clone() };
            let bytes = 64 + key.as_str().map_or(0, str::len) + item.as_str().map_or(0, str::len);
            if bytes > left || depth == MAX_DEPTH {
                let what =
                    format!("a list or map is larger than {MAX_PRINTED} bytes or nests deeper than {MAX_DEPTH} levels");
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
            left -= bytes;
            inside.push((item, depth + 1));
        }
    }
    Ok(())
}

/// Refuses an indentation that no reader could want.
fn check_indent(indent: Option<&Value>) -> Result<(), Error> {
    match indent.and_then(|indent| indent.as_i64()) {
        Some(wide) if wide > 16 => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("JSON indented by {wide}, at most 16 is accepted")))
        }
        _ => Ok(()),
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
