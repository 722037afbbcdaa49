//! What a chat template may take: size, time, stack and memory. A template comes with a
//! model file and is as hostile as any other part of it.

use std::fmt::Write as _;

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

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

/// An environment whose filters and printing refuse what is too large or too deep.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_recursion_limit(MAX_RECURSION);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
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
    env
}

/// Refuses a source that is too long to be one.
pub(super) fn check_length(source: &str) -> Result<(), String> {
    match source.len() > MAX_SOURCE {
        true => Err(format!("{} bytes, at most {MAX_SOURCE} are accepted", source.len())),
        false => Ok(()),
    }
}

/// Parses the one template of an environment, in the syntax of chat templates.
pub(super) fn add_template(env: &mut Environment<'static>, name: &'static str, source: String) -> Result<(), Error> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    env.set_syntax(syntax.clone());
    let source = check_assignments(&source, syntax)?;
    on_a_deep_stack(|| env.add_template_owned(name, source))
}

/// The environment with fuel for one rendering of `given` bytes of messages.
pub(super) fn fueled(env: &Environment<'static>, given: usize) -> Environment<'static> {
    let mut env = env.clone();
    env.set_fuel(Some(FUEL + given as u64));
    env
}

/// Does what may recurse as deep as a hostile template wants it to.
pub(super) fn on_a_deep_stack<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
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
