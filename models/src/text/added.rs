//! Finds tokens that are written out in a text: control tokens where they are
//! allowed, user-defined tokens everywhere.

use std::collections::HashMap;
use std::ops::Range;

/// A token that is looked for in text as a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) control: bool,
    /// Takes the white space before it along.
    pub(super) lstrip: bool,
    /// Takes the white space after it along.
    pub(super) rstrip: bool,
    /// Matches only between characters that are not part of a word.
    pub(super) single_word: bool,
}

/// Where a token was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) range: Range<usize>,
    pub(super) id: u32,
}

/// The tokens to look for, by text; the lengths that occur, longest first, are
/// kept by first byte, so that a position costs a few look-ups.
#[derive(Default)]
pub(super) struct AddedTokens {
    by_text: HashMap<Box<str>, Added>,
    lengths: HashMap<u8, Vec<usize>>,
}

impl AddedTokens {
    pub(super) fn insert(&mut self, text: &str, added: Added) {
        let Some(&first) = text.as_bytes().first() else { return };
        let lengths = self.lengths.entry(first).or_default();
        if let Err(at) = lengths.binary_search_by(|l| text.len().cmp(l)) {
            lengths.insert(at, text.len());
        }
        self.by_text.insert(text.into(), added);
    }

    /// The token that is spelled exactly so.
    pub(super) fn get(&self, text: &str) -> Option<&Added> {
        self.by_text.get(text)
    }

    /// The tokens in `text`: leftmost first, longest at one place. A control
    /// token counts only where `control_allowed` says so of its range.
    pub(super) fn find(&self, text: &str, control_allowed: impl Fn(&Range<usize>) -> bool) -> Vec<Found> {
        let mut found = Vec::new();
        let mut free = 0; // where the previous token ended
        let mut at = 0;
        while at < text.len() {
            match self.longest(text, at, &control_allowed) {
                Some((range, added)) => {
                    let mut range = range;
                    if added.lstrip {
                        range.start = free + text[free..range.start].trim_end().len();
                    }
                    if added.rstrip {
                        range.end = text.len() - text[range.end..].trim_start().len();
                    }
                    at = range.end;
                    free = range.end;
                    found.push(Found { range, id: added.id });
                }
                None => at += 1,
            }
        }
        found
    }

    fn longest(
        &self,
        text: &str,
        at: usize,
        control_allowed: &impl Fn(&Range<usize>) -> bool,
    ) -> Option<(Range<usize>, Added)> {
        let lengths = self.lengths.get(&text.as_bytes()[at])?;
        lengths.iter().find_map(|&length| {
            let range = at..at + length;
            let &added = self.by_text.get(text.get(range.clone())?)?;
            let word = |c: char| c.is_alphanumeric() || c == '_';
            let inside_word = || text[..range.start].ends_with(word) || text[range.end..].starts_with(word);
            let allowed = (!added.control || control_allowed(&range)) && !(added.single_word && inside_word());
            allowed.then_some((range, added))
        })
    }
}
