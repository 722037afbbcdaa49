//! The string matcher a second time, by other means: whole strings are normalised to NFKC, numbers are taken apart by
//! splitting, and every position is tried.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use crate::score::text::{Normalized, contains};

fn normalise(text: &str) -> String {
    const INVISIBLE: [char; 4] = ['\u{200b}', '\u{200d}', '\u{feff}', '\u{ad}'];
    let seen: String = text.chars().filter(|c| !INVISIBLE.contains(c)).collect();
    // The spaces that may stand in a number are kept apart from the others until numbers are done.
    let marked: String = seen.chars().map(|c| if matches!(c, '\u{a0}' | '\u{202f}') { '\u{1}' } else { c }).collect();
    let folded: String = marked.nfkc().flat_map(char::to_uppercase).flat_map(char::to_lowercase).nfkc().collect();
    let ungrouped = [',', '\'', '\u{1}'].iter().fold(folded, |text, &separator| ungroup(&text, separator));
    ungrouped.replace('\u{1}', " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Drops `separator` from every run of ASCII digits and single separators between them that is a well-grouped number.
fn ungroup(text: &str, separator: char) -> String {
    let chars: Vec<char> = text.chars().collect();
    let (mut out, mut i) = (String::new(), 0);
    while i < chars.len() {
        let mut end = i;
        let digit = |k: usize| chars.get(k).is_some_and(char::is_ascii_digit);
        while digit(end) || end > i && chars.get(end) == Some(&separator) && digit(end + 1) {
            end += 1;
        }
        if end == i || !chars[i].is_ascii_digit() {
            out.push(chars[i]);
            i += 1;
            continue;
        }
        let run: String = chars[i..end].iter().collect();
        let groups: Vec<&str> = run.split(separator).collect();
        let grouped = groups.len() > 1
            && (1..=3).contains(&groups[0].len())
            && !groups[0].starts_with('0')
            && groups[1..].iter().all(|group| group.len() == 3);
        let joins = |c: char| ".,:/-'".contains(c);
        let goes_on = i >= 2 && joins(chars[i - 1]) && chars[i - 2].is_numeric();
        let other = end + 1 < chars.len()
            && ",'".contains(chars[end])
            && chars[end] != separator
            && chars[end + 1].is_ascii_digit();
        out.push_str(&if grouped && !goes_on && !other { groups.concat() } else { run });
        i = end;
    }
    out
}

fn naive(text: &str, value: &str) -> bool {
    let (text, value): (Vec<char>, Vec<char>) = (normalise(text).chars().collect(), normalise(value).chars().collect());
    let letter = |c: char| c.is_alphanumeric() || is_combining_mark(c);
    let joins = |c: char| ".,:/-'".contains(c);
    !value.is_empty()
        && (0..text.len()).any(|start| {
            let end = start + value.len();
            if end > text.len() || text[start..end] != value[..] {
                return false;
            }
            let (before, after) = (&text[..start], &text[end..]);
            let free_before = match before {
                [.., digit, mark] if joins(*mark) && digit.is_numeric() => !value[0].is_numeric(),
                [.., last] => !letter(*last),
                [] => true,
            };
            let free_after = match after {
                [mark, digit, ..] if joins(*mark) && digit.is_numeric() => !value[value.len() - 1].is_numeric(),
                [next, ..] => !letter(*next),
                [] => true,
            };
            free_before && free_after
        })
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 20_000, ..Default::default() })]
    #[test]
    fn both_matchers_agree(text in "[0168v,.:' aBé\u{301}\u{200b}８ßﬁ\u{a0}\u{202f}٨_\n-]{0,16}", from in 0usize..16, len in 1usize..6) {
        let chars: Vec<char> = text.chars().collect();
        let from = from.min(chars.len());
        let value: String = chars[from..(from + len).min(chars.len())].iter().collect();
        proptest::prop_assert_eq!(contains(&text, &value), naive(&text, &value), "{:?} in {:?}", value, text);
        for value in ["8", "80", "6,000", "v1.6", "é", "ss", "a 8"] {
            proptest::prop_assert_eq!(contains(&text, value), naive(&text, value), "{:?} in {:?}", value, text);
        }
    }
}

/// Found by the property above: spaced digits that are no grouped number as a whole are left alone.
#[test]
fn spaced_digits_are_one_number_or_none() {
    for (text, joined, parts) in [
        ("0\u{a0}8\u{202f}660", "8660", ["8", "660"]),
        ("1\u{a0}660\u{a0}8", "1660", ["660", "8"]),
        ("5\u{a0}660,661", "5660661", ["5", "660,661"]),
    ] {
        assert!(!contains(text, joined) && !naive(text, joined), "{joined} in {text:?}");
        for part in parts {
            assert!(contains(text, part) && naive(text, part), "{part} in {text:?}");
        }
    }
    assert!(contains("8\u{202f}660 units", "8,660"));
    // Two spaces end a number, whatever they are.
    for text in ["8\u{202f}088\u{a0}\u{a0}0", "8\u{202f}088  0"] {
        assert!(contains(text, "8088") && naive(text, "8088") && contains(text, "0") && naive(text, "0"));
    }
}

#[test]
fn the_matcher_keeps_the_places() {
    let text = "a  ８４\u{200b}４３ b 48,500.";
    let found = |value: &str| Normalized::new(text).find(&Normalized::new(value)).map(|at| &text[at]);
    assert_eq!(found("8443"), Some("８４\u{200b}４３"));
    assert_eq!(found("48500"), Some("48,500"));
    assert_eq!(found("A 8443"), Some("a  ８４\u{200b}４３"));
    assert_eq!(found("443"), None);
    let all = Normalized::new("6 16 6, 6.5 v6 (6)").find_all(&Normalized::new("6"));
    assert_eq!(all, [0..1, 5..6, 16..17]);
}
