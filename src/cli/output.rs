//! Writing to stdout and stderr: a closed or full end of a pipe is no reason to
//! panic, and an error is one line whatever it quotes.

use std::io::{ErrorKind, Write};

use anyhow::Context;

use crate::terminal::plain;

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
    let line = plain(&text.replace(['\n', '\t'], " "));
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

#[cfg(test)]
mod tests {
    use super::shortened;

    #[test]
    fn a_long_line_keeps_both_ends() {
        assert_eq!(shortened("as it is"), "as it is");
        let long = shortened(&format!("begin{}end", "é".repeat(100_000)));
        assert!(long.starts_with("begin") && long.ends_with("end") && long.chars().count() < 2010);
    }
}
