//! What goes to stdout and stderr: text of models and files is shown and never
//! obeyed, and a closed or full end of a pipe is no reason to panic.

use std::io::{ErrorKind, Write};

use anyhow::Context;

/// Writes to stdout. `false` when its reader has seen enough (`| head`), which is no error.
pub(crate) fn emit(text: &str) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to stdout"),
    }
}

/// Says something on stderr, on one line. Where nobody can be told, nobody is.
pub(crate) fn tell(text: &str) {
    let line = printable(text).replace(['\n', '\t'], " ");
    let _ = writeln!(std::io::stderr().lock(), "{}", shortened(&line));
}

/// A line that quotes a file may quote much of it: its middle is left out.
fn shortened(line: &str) -> String {
    const END: usize = 1000;
    let chars = line.chars().count();
    if chars <= 2 * END {
        return line.to_owned();
    }
    let head: String = line.chars().take(END).collect();
    let tail: String = line.chars().skip(chars - END).collect();
    format!("{head} … {tail}")
}

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
    use super::{printable, shortened};

    #[test]
    fn control_characters_become_visible_and_text_stays() {
        assert_eq!(printable("a\tb\nc é 日"), "a\tb\nc é 日");
        assert_eq!(printable("\u{1b}[31mred\u{7}"), "\\u{1b}[31mred\\u{7}");
        assert_eq!(printable("\u{9b}2J\r\u{202e}"), "\\u{9b}2J\\u{d}\\u{202e}");
    }

    #[test]
    fn a_long_line_keeps_both_ends() {
        assert_eq!(shortened("as it is"), "as it is");
        let long = shortened(&format!("begin{}end", "é".repeat(100_000)));
        assert!(long.starts_with("begin") && long.ends_with("end") && long.chars().count() < 2010);
    }
}
