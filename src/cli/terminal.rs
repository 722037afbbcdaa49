//! Model text on a terminal: control characters are shown, never obeyed.

/// The text with every control character but line feed and tab replaced by a visible
/// escape, so that it can neither move the cursor nor recolour or retitle the terminal.
/// Bidirectional overrides are escaped too: they can make text read as something else.
pub(crate) fn printable(text: &str) -> String {
    let hidden = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if hidden(c) {
            out.extend(c.escape_unicode())
        } else {
            out.push(c)
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn control_characters_become_visible_and_text_stays() {
        assert_eq!(printable("a\tb\nc é 日"), "a\tb\nc é 日");
        assert_eq!(printable("\u{1b}[31mred\u{7}"), "\\u{1b}[31mred\\u{7}");
        assert_eq!(printable("\u{9b}2J\r\u{202e}"), "\\u{9b}2J\\u{d}\\u{202e}");
    }
}
