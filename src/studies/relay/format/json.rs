//! JSON messages, read with the place of every value and with duplicate keys seen.

use std::collections::HashMap;

use super::{Keys, Pair, one_line};
use crate::studies::relay::corpus::{FactKind, Item};

/// The last bytes of a path that are kept. Names are shorter; without a limit a message could grow without bound.
const MAX_PATH_BYTES: usize = 400;
/// An object with more entries is a table, whose values say nothing of each other.
const MAX_SIBLINGS: usize = 16;

const GROUPS: [&str; 5] = ["personnel", "quantities", "constraints", "dependencies", "prohibitions"];

fn group(kind: FactKind) -> usize {
    match kind {
        FactKind::Owner => 0,
        FactKind::Quantity => 1,
        FactKind::Deadline | FactKind::Constraint => 2,
        FactKind::Dependency => 3,
        FactKind::Prohibition => 4,
    }
}

fn clipped(path: &str) -> &str {
    let from = path.len().saturating_sub(MAX_PATH_BYTES);
    (from..path.len()).find_map(|at| path.get(at..)).unwrap_or_default()
}

pub(super) fn render(title: &str, item: &Item) -> String {
    let quote = |text: &str| serde_json::Value::from(text).to_string();
    let mut fields = vec![format!("\"title\": {}", quote(title))];
    for (index, name) in GROUPS.iter().enumerate() {
        let mut keys = Keys(Vec::new());
        let facts = item.facts.iter().filter(|fact| group(fact.kind) == index);
        let pairs = facts.map(|fact| format!("{}: {}", quote(&keys.of(fact)), quote(&one_line(fact.wording()))));
        fields.push(format!("\"{name}\": {{{}}}", pairs.collect::<Vec<_>>().join(", ")));
    }
    format!("{{{}}}", fields.join(", "))
}

/// Reads the bytes `start..end` of a message as one JSON object.
///
/// `serde_json` decides what is valid (its nesting limit of 128 included); it neither gives places nor shows that a key
/// came twice, so the valid text is walked once more.
pub(super) fn parse(message: &str, (start, end): (usize, usize)) -> Result<Vec<Pair>, String> {
    let text = &message[start..end];
    let value: serde_json::Value = serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))?;
    if !value.is_object() {
        return Err("the JSON is not an object".into());
    }
    let mut walk = Walk { text, at: 0, offset: start, pairs: Vec::new() };
    walk.object("", false);
    Ok(walk.pairs)
}

/// Walks text that is known to be valid JSON.
struct Walk<'a> {
    text: &'a str,
    at: usize,
    /// Where `text` begins in the message.
    offset: usize,
    pairs: Vec<Pair>,
}

/// One entry of an object: key, raw value, its pairs, and whether the value is a single one.
struct Entry {
    key: String,
    raw: (usize, usize),
    pairs: (usize, usize),
    single: bool,
}

impl Walk<'_> {
    fn peek(&mut self) -> u8 {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        bytes.get(self.at).copied().unwrap_or(b'}')
    }

    /// Steps over `,` or `:` if it is next.
    fn skip(&mut self, byte: u8) {
        if self.peek() == byte {
            self.at += 1;
        }
    }

    fn object(&mut self, path: &str, in_list: bool) {
        self.skip(b'{');
        let mut entries: Vec<Entry> = Vec::new();
        while self.peek() != b'}' {
            let key = self.string().1;
            self.skip(b':');
            let single = !matches!(self.peek(), b'{' | b'[');
            let (start, first) = (self.at, self.pairs.len());
            let inner =
                if path.is_empty() { clipped(&key).to_owned() } else { clipped(&format!("{path}.{key}")).to_owned() };
            self.value(&inner, false);
            entries.push(Entry { key, raw: (start, self.at), pairs: (first, self.pairs.len()), single });
            self.skip(b',');
        }
        self.at += 1;
        self.mark_duplicates(&entries);
        if in_list {
            self.share_context(&entries);
        }
    }

    fn mark_duplicates(&mut self, entries: &[Entry]) {
        let mut by_key = HashMap::<&str, Vec<&Entry>>::new();
        entries.iter().for_each(|entry| by_key.entry(&entry.key).or_default().push(entry));
        let raw = |entry: &Entry| self.text[entry.raw.0..entry.raw.1].trim_end();
        let differ = |twins: &&Vec<&Entry>| twins.iter().any(|entry| raw(entry) != raw(twins[0]));
        let marked: Vec<(usize, usize)> = by_key.values().filter(differ).flatten().map(|entry| entry.pairs).collect();
        for (first, last) in marked {
            self.pairs[first..last].iter_mut().for_each(|pair| pair.duplicate = true);
        }
    }

    fn share_context(&mut self, entries: &[Entry]) {
        let singles = || entries.iter().filter(|entry| entry.single && entry.pairs.0 < entry.pairs.1);
        if entries.len() > MAX_SIBLINGS {
            return;
        }
        let values: Vec<String> = singles().map(|entry| self.pairs[entry.pairs.0].value.clone()).collect();
        for (i, entry) in singles().enumerate() {
            let others = values.iter().enumerate().filter(|&(k, _)| k != i).map(|(_, value)| value.as_str());
            self.pairs[entry.pairs.0].context = others.collect::<Vec<_>>().join(" ");
        }
    }

    fn value(&mut self, path: &str, in_list: bool) {
        match self.peek() {
            b'{' => self.object(path, in_list),
            b'[' => {
                self.at += 1;
                while self.peek() != b']' {
                    self.value(path, true);
                    self.skip(b',');
                }
                self.at += 1;
            }
            b'"' => {
                let (span, value) = self.string();
                self.push(path, value, span);
            }
            _ => {
                let start = self.at;
                let rest = &self.text.as_bytes()[start..];
                let ends = |b: &u8| matches!(b, b',' | b'}' | b']') || b.is_ascii_whitespace();
                self.at += rest.iter().position(ends).unwrap_or(rest.len());
                let literal = &self.text[start..self.at];
                if literal != "null" {
                    self.push(path, literal.to_owned(), (start, self.at));
                }
            }
        }
    }

    fn push(&mut self, path: &str, value: String, (start, end): (usize, usize)) {
        let span = (start + self.offset, end + self.offset);
        self.pairs.push(Pair { key: path.to_owned(), context: String::new(), value, span, duplicate: false });
    }

    /// A string: the bytes between its quotes, and what they stand for.
    fn string(&mut self) -> ((usize, usize), String) {
        self.peek();
        let (start, bytes) = (self.at + 1, self.text.as_bytes());
        let mut end = start;
        while bytes.get(end).is_some_and(|&b| b != b'"') {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        self.at = end + 1;
        let raw = &self.text[start - 1..self.at];
        ((start, end), serde_json::from_str(raw).unwrap_or_else(|_| raw.to_owned()))
    }
}
