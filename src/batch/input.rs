//! The file of requests.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::cli::lines;
use crate::hash::hex;

/// What stands for a text of any length: the first half of its SHA-256.
pub type Key = [u8; 16];

/// The key of a text.
pub fn key(text: &str) -> Key {
    let hash = Sha256::digest(text.as_bytes());
    std::array::from_fn(|i| hash[i])
}

/// One request as it stands in the file.
#[derive(Clone, Debug)]
pub struct Line {
    /// The name under which its result is found.
    pub custom_id: String,
    /// All its members, `custom_id` among them.
    pub members: Map<String, Value>,
    /// Of all its members, whatever their order and spacing.
    pub hash: Key,
}

impl Line {
    /// The hash in hex.
    pub fn hash_hex(&self) -> String {
        hex(&self.hash)
    }

    /// Seed of a request that names none: of its content, not of its place in the file.
    pub fn seed(&self) -> u64 {
        u64::from_be_bytes(std::array::from_fn(|i| self.hash[i]))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let Value::Object(members) = lines::parse::<Value>(text)? else { bail!("not a JSON object") };
        let custom_id = match members.get("custom_id") {
            Some(Value::String(id)) if !id.is_empty() => id.clone(),
            Some(other) => bail!("custom_id is {other}: it must be a text that is not empty"),
            None => bail!("there is no custom_id"),
        };
        let mut canonical = String::new();
        write_canonical(&Value::Object(members.clone()), &mut canonical);
        Ok(Self { custom_id, members, hash: key(&canonical) })
    }
}

/// JSON with sorted keys and no spaces. Depth is bounded by the parser that made the value.
fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            out.push('{');
            for key in keys {
                *out += &Value::from(key.as_str()).to_string();
                out.push(':');
                write_canonical(&map[key], out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write_canonical(item, out);
                out.push(',');
            }
            out.push(']');
        }
        scalar => *out += &scalar.to_string(),
    }
}

/// A file of requests that was read once and found well formed.
#[derive(Debug)]
pub struct Input {
    path: PathBuf,
    /// By the key of the custom_id: line number and hash of the request. 40 bytes a request.
    requests: HashMap<Key, (usize, Key)>,
}

impl Input {
    /// Reads the file once.
    ///
    /// # Errors
    /// When it cannot be read, holds a line that is no JSON object with a custom_id, two lines of one custom_id,
    /// or no request at all. The error names the line.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let meta = std::fs::metadata(path).with_context(|| name.to_string())?;
        ensure!(meta.is_file(), "{name} is no regular file, and it is read twice: write the requests to a file first");
        let mut requests = HashMap::new();
        for item in read(path)? {
            let (number, line) = item?;
            let before = requests.insert(key(&line.custom_id), (number, line.hash));
            if let Some((first, _)) = before {
                bail!("{name}, line {number}: custom_id {:?} stands in line {first} already", line.custom_id);
            }
        }
        ensure!(!requests.is_empty(), "{name} holds no request");
        Ok(Self { path: path.to_owned(), requests })
    }

    /// Requests in the file.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is no request; never, for an opened file.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The hash of the request of that custom_id.
    pub fn hash_of(&self, custom_id: &str) -> Option<Key> {
        self.requests.get(&key(custom_id)).map(|(_, hash)| *hash)
    }

    /// Reads the file again, each request an error where it is not the one that stood there before.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn lines(&self) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Line>> + '_> {
        let same = |(number, line): (usize, Line)| {
            let known = self.requests.get(&key(&line.custom_id)) == Some(&(number, line.hash));
            ensure!(known, "{}, line {number} was changed while the program ran", self.path.display());
            Ok(line)
        };
        Ok(read(&self.path)?.map(move |item| item.and_then(same)))
    }
}

fn read(path: &Path) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(usize, Line)>> + use<>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let path = path.to_owned();
    Ok(lines::of(BufReader::new(file)).map(move |(number, line)| {
        let line = line.map_err(anyhow::Error::from).and_then(|line| Line::parse(&line));
        Ok((number, line.with_context(|| format!("{}, line {number}", path.display()))?))
    }))
}
