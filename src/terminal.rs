//! Text of models and files on a terminal: control characters are shown, never obeyed.

/// Text that cannot move the cursor, change colours or reorder a line: every such
/// character is spelled out, line breaks and tabs too.
pub fn plain(text: &str) -> String {
    spelled(text, is_harmless)
}

/// [`plain`], but line breaks and tabs stay.
pub fn plain_lines(text: &str) -> String {
    spelled(text, |c| is_harmless(c) || c == '\n' || c == '\t')
}

fn spelled(text: &str, harmless: impl Fn(char) -> bool) -> String {
    let spell = |c: char| if harmless(c) { c.to_string() } else { c.escape_default().to_string() };
    text.chars().map(spell).collect()
}

fn is_harmless(c: char) -> bool {
    // Marks and overrides of the writing direction would show a line in another order than it was written in.
    let directs = matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !c.is_control() && !directs && !matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_cannot_command_a_terminal() {
        let cases = [
            ("Zoë – 8080 “ok” 漢字", "Zoë – 8080 “ok” 漢字"),
            ("\u{1b}[31mred\r\n\t\u{7}\u{9b}2J", "\\u{1b}[31mred\\r\\n\\t\\u{7}\\u{9b}2J"),
            ("a\u{202e}b\u{2066}c\u{2028}d", "a\\u{202e}b\\u{2066}c\\u{2028}d"),
        ];
        for (text, expected) in cases {
            assert_eq!(plain(text), expected);
        }
        assert_eq!(plain_lines("a\n\t\u{1b}b\n"), "a\n\t\\u{1b}b\n");
    }
}
