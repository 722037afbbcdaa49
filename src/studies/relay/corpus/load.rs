//! A user's corpus: one item a line, checked line by line.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use super::Item;

/// A longer line is refused: it is no brief, and reading it whole could exhaust the memory.
pub const MAX_LINE_BYTES: usize = 1 << 20;
/// Items are held in memory, all of them; a larger file, or an endless one, is refused.
const MAX_CORPUS_BYTES: u64 = 1 << 30;

/// Why a corpus cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// The file cannot be read.
    #[error("cannot read the corpus {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line is not a sound item.
    #[error("corpus {}, line {line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// There is no item in it.
    #[error("the corpus {} holds no item: write one JSON object a line", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// Reads and checks the corpus at `path`: JSON lines, empty lines skipped.
pub fn load(path: &Path) -> Result<Vec<Item>, CorpusError> {
    parse(&read(path)?[..], path)
}

/// The bytes of the corpus at `path`.
pub fn read(path: &Path) -> Result<Vec<u8>, CorpusError> {
    let failed = |source| CorpusError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    if file.take(MAX_CORPUS_BYTES + 1).read_to_end(&mut bytes).map_err(failed)? as u64 > MAX_CORPUS_BYTES {
        return Err(failed(std::io::Error::other(format!("it is larger than {MAX_CORPUS_BYTES} bytes"))));
    }
    Ok(bytes)
}

/// Reads and checks a corpus from anywhere; `path` names it in errors.
pub fn parse(mut input: impl BufRead, path: &Path) -> Result<Vec<Item>, CorpusError> {
    let (mut items, mut lines_of_ids) = (Vec::<Item>::new(), HashMap::<String, usize>::new());
    let (mut line, mut bytes) = (0, Vec::new());
    loop {
        bytes.clear();
        line += 1;
        let mut limited = (&mut input).take(MAX_LINE_BYTES as u64 + 1);
        let read = limited.read_until(b'\n', &mut bytes);
        let read = read.map_err(|source| CorpusError::Read { path: path.to_owned(), source })?;
        if read == 0 {
            break;
        }
        let wrong = |what: String| CorpusError::Line { path: path.to_owned(), line, what };
        if read > MAX_LINE_BYTES {
            return Err(wrong(format!("the line is longer than {MAX_LINE_BYTES} bytes")));
        }
        let text =
            std::str::from_utf8(&bytes).map_err(|e| wrong(format!("not UTF-8 after byte {}", e.valid_up_to())))?;
        let text = if line == 1 { text.trim_start_matches('\u{feff}') } else { text }.trim();
        if text.is_empty() {
            continue;
        }
        let item = item(text).map_err(wrong)?;
        if let Some(first) = lines_of_ids.insert(item.id.clone(), line) {
            let what = format!("the item id {:?} is already used in line {first}", item.id);
            return Err(CorpusError::Line { path: path.to_owned(), line, what });
        }
        items.push(item);
    }
    if items.is_empty() { Err(CorpusError::Empty { path: path.to_owned() }) } else { Ok(items) }
}

fn item(text: &str) -> Result<Item, String> {
    if !text.starts_with('{') {
        return Err("not a JSON object".into());
    }
    // serde_json counts lines too; ours is the one that helps.
    let item: Item = serde_json::from_str(text).map_err(|e| {
        let what = e.to_string();
        let what = what.split(" at line ").next().unwrap_or(&what).to_owned();
        format!("{what} (column {})", e.column())
    })?;
    item.validate()?;
    Ok(item)
}
