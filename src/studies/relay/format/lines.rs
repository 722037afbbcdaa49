//! Messages of lines: `subject || predicate || object`, and `key: value`.

use super::Pair;
use crate::score::text::same;

/// A longer key is a sentence.
const MAX_KEY_WORDS: usize = 10;
const MAX_KEY_BYTES: usize = 400;

pub(super) fn triples(message: &str, range: (usize, usize)) -> Result<Vec<Pair>, String> {
    let pairs = lines(message, range).filter_map(|line| {
        let line = line.strip_prefix("||").unwrap_or(line);
        let line = line.strip_suffix("||").unwrap_or(line);
        let parts: Vec<&str> = line.split("||").map(str::trim).collect();
        match parts[..] {
            [subject, predicate, object] if !subject.is_empty() && !predicate.is_empty() && !object.is_empty() => {
                Some(pair(message, format!("{subject} || {predicate}"), object))
            }
            _ => None,
        }
    });
    finish(pairs.collect(), "no line has the form subject || predicate || object")
}

pub(super) fn key_values(message: &str, range: (usize, usize)) -> Result<Vec<Pair>, String> {
    let pairs = lines(message, range).filter_map(|line| {
        let (key, value) = split_key(line)?;
        let value = unquoted(value.trim_matches(['*', '`']).trim());
        (!value.is_empty()).then(|| pair(message, key.to_owned(), value))
    });
    finish(pairs.collect(), "no line has the form key: value")
}

/// The lines with something on them, without list markers and fences.
fn lines(message: &str, (start, end): (usize, usize)) -> impl Iterator<Item = &str> {
    let lines = message[start..end].lines().map(|line| {
        let line = line.trim();
        ["- ", "* ", "• "].iter().find_map(|marker| line.strip_prefix(marker)).unwrap_or(line).trim()
    });
    lines.filter(|line| !line.is_empty() && !line.starts_with("```"))
}

/// Splits at the first colon that ends a key: followed by white space or the line's end, or preceded by one plain
/// identifier. So `14:35` is no key, and `port:8443` is one.
fn split_key(line: &str) -> Option<(&str, &str)> {
    line.match_indices(':').take_while(|&(at, _)| at <= MAX_KEY_BYTES).find_map(|(at, _)| {
        let (key, value) = (line[..at].trim_matches(['*', '`', '"', '\'']).trim(), &line[at + 1..]);
        let identifier = key.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
        let spaced = value.is_empty() || value.starts_with(char::is_whitespace) || value.starts_with("**");
        let worded = key.chars().any(char::is_alphanumeric) && key.split_whitespace().count() <= MAX_KEY_WORDS;
        (identifier || (spaced && worded)).then_some((key, value.trim()))
    })
}

fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value).trim()
}

fn pair(message: &str, key: String, value: &str) -> Pair {
    let start = value.as_ptr() as usize - message.as_ptr() as usize;
    let span = (start, start + value.len());
    Pair { key, context: String::new(), value: value.to_owned(), span, duplicate: false }
}

fn finish(mut pairs: Vec<Pair>, none: &str) -> Result<Vec<Pair>, String> {
    if pairs.is_empty() {
        return Err(none.to_owned());
    }
    let mut by_key = std::collections::HashMap::<String, Vec<usize>>::new();
    for (i, pair) in pairs.iter().enumerate() {
        by_key.entry(super::snake_case(&pair.key)).or_default().push(i);
    }
    for places in by_key.into_values().filter(|places| places.len() > 1) {
        let first = pairs[places[0]].value.clone();
        if places.iter().any(|&i| !same(&pairs[i].value, &first)) {
            places.into_iter().for_each(|i| pairs[i].duplicate = true);
        }
    }
    Ok(pairs)
}
