//! JSON lines on standard input.

use std::io::BufRead;

use anyhow::bail;
use serde::de::DeserializeOwned;

/// Lines of standard input with their numbers, blank ones left out.
pub(crate) fn stdin() -> impl Iterator<Item = (usize, std::io::Result<String>)> {
    let numbered = std::io::stdin().lock().lines().enumerate();
    numbered.map(|(i, line)| (i + 1, line)).filter(|(_, line)| !line.as_ref().is_ok_and(|l| l.trim().is_empty()))
}

/// One JSON object.
pub(crate) fn parse<T: DeserializeOwned>(line: &str) -> anyhow::Result<T> {
    match serde_json::from_str(line) {
        Ok(value) => Ok(value),
        Err(error) => bail!("not the JSON object that is expected here: {error}"),
    }
}
