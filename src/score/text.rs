//! The string matcher: is a value contained verbatim in a message?
//!
//! Both sides are normalised, then compared as whole tokens:
//! - Unicode compatibility equivalence: full-width digits, ligatures and composed accents compare as their plain
//!   forms. The comparison runs on NFKD, which is equal exactly when NFKC is, and lets every character keep its place
//!   in the original. Digits of other scripts (`٨٤٤٣`) are not compatibility forms of ASCII digits and do not match them;
//! - case: upper-cased, then lower-cased, so that `ß` equals `ss` and a final sigma equals a sigma;
//! - characters that are not seen (zero-width spaces and joiners, soft hyphens, byte-order marks) are dropped;
//! - a run of white space is one space;
//! - thousands separators are dropped from a well-formed number: one to three digits not beginning with 0, then groups
//!   of exactly three, all after the same `,`, `'`, `’` or no-break or thin space. `1,00,000` and `6,00` are left alone.
//!
//! A match is a whole token: no letter, digit or combining mark stands directly before or after it, and where the value
//! begins or ends with a digit the number does not go on through a separator (`. , : / - '` and dashes) to another
//! digit. So `80` is not in `8080` or `80:443`, `6` not in `4.18.6` or `6,000`, and `8443` is in `port 8443.`. An
//! underscore is no letter: `8443` is in `port_8443`. A sign is no part of a number: `5` is in `-5`.

use std::ops::Range;

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::{canonical_combining_class, is_combining_mark};

/// A text made ready for matching; every normalised character remembers the bytes it came from.
#[derive(Clone, Debug)]
pub struct Normalized {
    chars: Vec<char>,
    spans: Vec<(usize, usize)>,
}

impl Normalized {
    /// Normalises `text`; spans are byte offsets into it.
    pub fn new(text: &str) -> Self {
        let mut pieces = Vec::with_capacity(text.len());
        for (start, c) in text.char_indices() {
            fold(c, start, &mut pieces);
        }
        reorder_marks(&mut pieces);
        drop_thousands(&mut pieces);
        let mut out = Self { chars: Vec::with_capacity(pieces.len()), spans: Vec::with_capacity(pieces.len()) };
        for piece in pieces {
            if piece.c.is_whitespace()
                && let (Some(' '), Some(span)) = (out.chars.last(), out.spans.last_mut())
            {
                span.1 = piece.end;
                continue;
            }
            out.chars.push(if piece.c.is_whitespace() { ' ' } else { piece.c });
            out.spans.push((piece.start, piece.end));
        }
        out
    }

    /// The normalised text, without white space at its ends.
    pub fn to_text(&self) -> String {
        self.chars.iter().collect::<String>().trim().to_owned()
    }

    /// Where `needle` stands as a whole token for the first time: its bytes in the original text.
    pub fn find(&self, needle: &Normalized) -> Option<Range<usize>> {
        self.find_from(needle.trimmed(), 0).map(|at| self.bytes(at, needle.trimmed().len()))
    }

    /// Every place where `needle` stands as a whole token, left to right, not overlapping.
    pub fn find_all(&self, needle: &Normalized) -> Vec<Range<usize>> {
        let needle = needle.trimmed();
        let (mut from, mut found) = (0, Vec::new());
        while let Some(at) = self.find_from(needle, from) {
            found.push(self.bytes(at, needle.len()));
            from = at + needle.len();
        }
        found
    }

    fn trimmed(&self) -> &[char] {
        let start = usize::from(self.chars.first() == Some(&' '));
        let end = self.chars.len() - usize::from(self.chars.len() > start && self.chars.last() == Some(&' '));
        &self.chars[start..end]
    }

    fn bytes(&self, at: usize, len: usize) -> Range<usize> {
        self.spans[at].0..self.spans[at + len - 1].1
    }

    fn find_from(&self, needle: &[char], from: usize) -> Option<usize> {
        let last = self.chars.len().checked_sub(needle.len())?;
        if needle.is_empty() {
            return None;
        }
        (from..=last).find(|&at| self.chars[at..at + needle.len()] == *needle && self.whole(at, at + needle.len()))
    }

    fn whole(&self, start: usize, end: usize) -> bool {
        let before = start.checked_sub(1).map(|i| self.chars[i]);
        let beyond = start.checked_sub(2).map(|i| self.chars[i]);
        let (after, further) = (self.chars.get(end).copied(), self.chars.get(end + 1).copied());
        let joined = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || is_combining_mark(c));
        let goes_on = |edge: char, next: Option<char>, far: Option<char>| {
            edge.is_numeric() && next.is_some_and(is_number_separator) && far.is_some_and(char::is_numeric)
        };
        !joined(before)
            && !joined(after)
            && !goes_on(self.chars[start], before, beyond)
            && !goes_on(self.chars[end - 1], after, further)
    }
}

/// Whether `value` is contained in `text`, both normalised, as a whole token.
pub fn contains(text: &str, value: &str) -> bool {
    Normalized::new(text).find(&Normalized::new(value)).is_some()
}

/// The bytes of every whole-token occurrence of `value` in `text`.
pub fn find_all(text: &str, value: &str) -> Vec<Range<usize>> {
    Normalized::new(text).find_all(&Normalized::new(value))
}

/// Whether two texts are the same after normalisation.
pub fn same(a: &str, b: &str) -> bool {
    Normalized::new(a).trimmed() == Normalized::new(b).trimmed()
}

struct Piece {
    c: char,
    start: usize,
    end: usize,
    /// White space that may stand inside a number.
    tight: bool,
}

fn fold(c: char, start: usize, out: &mut Vec<Piece>) {
    let end = start + c.len_utf8();
    if c.is_ascii() {
        out.push(Piece { c: c.to_ascii_lowercase(), start, end, tight: false });
        return;
    }
    if is_invisible(c) {
        return;
    }
    let tight = matches!(c, '\u{a0}' | '\u{2007}' | '\u{2009}' | '\u{202f}');
    let folded = c.nfkd().flat_map(char::to_uppercase).flat_map(char::to_lowercase);
    out.extend(folded.nfkd().map(|c| Piece { c, start, end, tight }));
}

/// Default-ignorable characters that show nothing: a reader does not see them, so a value with one inside is the value.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}')
}

/// Canonical ordering (Unicode Standard, section 3.11): marks on one base character are sorted by their class.
fn reorder_marks(pieces: &mut [Piece]) {
    let class = |piece: &Piece| canonical_combining_class(piece.c);
    for run in pieces.chunk_by_mut(|a, b| class(a) != 0 && class(b) != 0) {
        if run.len() > 1 {
            run.sort_by_key(class);
        }
    }
}

fn drop_thousands(pieces: &mut Vec<Piece>) {
    let digit = |pieces: &[Piece], i: usize| pieces.get(i).is_some_and(|p| p.c.is_ascii_digit());
    let mut dropped = vec![false; pieces.len()];
    let mut i = 0;
    while i < pieces.len() {
        if !digit(pieces, i) {
            i += 1;
            continue;
        }
        let start = i;
        while digit(pieces, i) {
            i += 1;
        }
        let goes_on = start >= 2 && is_number_separator(pieces[start - 1].c) && pieces[start - 2].c.is_numeric();
        let Some(separator) = pieces.get(i).and_then(thousands_separator) else { continue };
        // Digits and no-break spaces are one number or none: `5 8 660` says neither 58,660 nor 8,660 for sure.
        let spaced = separator == ' '
            && start >= 2
            && thousands_separator(&pieces[start - 1]) == Some(' ')
            && digit(pieces, start - 2);
        if goes_on || spaced || i - start > 3 || pieces[start].c == '0' {
            continue;
        }
        let mut separators = Vec::new();
        let mut end = i;
        while pieces.get(end).and_then(thousands_separator) == Some(separator)
            && (end + 1..end + 4).all(|k| digit(pieces, k))
            && !digit(pieces, end + 4)
        {
            separators.push(end);
            end += 4;
        }
        let next = pieces.get(end).and_then(thousands_separator);
        let ragged = next.is_some_and(|next| next != ' ' || separator == ' ') && digit(pieces, end + 1);
        if !ragged {
            separators.into_iter().for_each(|k| dropped[k] = true);
            i = i.max(end);
        }
    }
    let mut k = 0;
    pieces.retain(|_| {
        k += 1;
        !dropped[k - 1]
    });
}

/// The separator as one character for all its forms, if this piece can separate thousands.
fn thousands_separator(piece: &Piece) -> Option<char> {
    match piece.c {
        ',' => Some(','),
        '\'' | '’' => Some('\''),
        ' ' if piece.tight => Some(' '),
        _ => None,
    }
}

fn is_number_separator(c: char) -> bool {
    matches!(c, '.' | ',' | ':' | '/' | '-' | '\'' | '’' | '⁄' | '\u{2010}'..='\u{2015}' | '\u{2212}')
}
