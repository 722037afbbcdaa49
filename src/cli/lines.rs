//! JSON lines on standard input, or in a file.

use std::io::{BufRead, Error, Read};

use anyhow::bail;
use serde::de::DeserializeOwned;

/// A longer line is refused: reading it whole could exhaust the memory.
const MAX_LINE_BYTES: usize = 64 << 20;

/// Lines of standard input with their numbers, blank ones left out.
pub(crate) fn stdin() -> impl Iterator<Item = (usize, std::io::Result<String>)> {
    of(std::io::stdin().lock())
}

/// Lines of any input with their numbers, blank ones left out.
pub(crate) fn of(mut input: impl BufRead) -> impl Iterator<Item = (usize, std::io::Result<String>)> {
    let numbered = std::iter::from_fn(move || next(&mut input).transpose()).enumerate();
    numbered.map(|(i, line)| (i + 1, line)).filter(|(_, line)| !line.as_ref().is_ok_and(|l| l.trim().is_empty()))
}

/// The bytes of the next line, its end among them where it has one; `None` after the last.
pub(crate) fn next_bytes(input: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let read = input.take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut line)?;
    if read > MAX_LINE_BYTES {
        return Err(Error::other(format!("longer than {MAX_LINE_BYTES} bytes")));
    }
    Ok((read > 0).then_some(line))
}

/// The next line; `None` after the last.
fn next(input: &mut impl BufRead) -> std::io::Result<Option<String>> {
    let Some(line) = next_bytes(input)? else { return Ok(None) };
    let line = String::from_utf8(line)
        .map_err(|e| Error::other(format!("not UTF-8 after byte {}", e.utf8_error().valid_up_to())))?;
    Ok(Some(line))
}

/// One JSON object.
pub(crate) fn parse<T: DeserializeOwned>(line: &str) -> anyhow::Result<T> {
    match serde_json::from_str(line) {
        Ok(value) => Ok(value),
        Err(error) => bail!("not the JSON object that is expected here: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: impl Read) -> Vec<(usize, Result<String, String>)> {
        of(std::io::BufReader::new(input)).map(|(n, line)| (n, line.map_err(|e| e.to_string()))).take(4).collect()
    }

    #[test]
    fn lines_keep_their_numbers_and_blank_ones_are_left_out() {
        assert_eq!(read(&b"a\n\n \r\nb"[..]), [(1, Ok("a\n".into())), (4, Ok("b".into()))]);
        assert_eq!(read(&b""[..]), []);
    }

    #[test]
    fn an_endless_line_and_bytes_that_are_no_text_are_errors() {
        let (number, line) = read(std::io::repeat(b'x')).swap_remove(0);
        assert_eq!((number, line.expect_err("too long")), (1, "longer than 67108864 bytes".into()));
        assert_eq!(read(&b"a\n\"\xff"[..])[1], (2, Err("not UTF-8 after byte 1".into())));
    }
}
