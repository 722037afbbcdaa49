//! The file of results: appended to, and read again when a run goes on.

use std::collections::HashSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use super::input::{Input, Key, key};
use crate::cli::lines;
use crate::hash::hex;

/// What every result line begins with; `Maker` writes it.
pub(super) const BEGIN: &str = "{\"id\":\"batch_req_";

/// A file of results, locked for this process.
#[derive(Debug)]
pub struct Output {
    file: File,
    path: PathBuf,
    done: HashSet<Key>,
    failed: usize,
    /// Fingerprint of the model that made what is there.
    model: Option<String>,
    /// Made by this process, and nothing written yet: it goes again when it is dropped.
    fresh: bool,
}

/// What is read of a result line.
#[derive(Deserialize)]
struct Stored {
    id: String,
    custom_id: String,
    error: Option<serde::de::IgnoredAny>,
}

impl Output {
    /// Opens the file, or makes it, and reads what it holds. A last line that was cut off in the middle is
    /// removed; nothing else ever is.
    ///
    /// # Errors
    /// When the file cannot be read or written, another process has it, it holds something else than results,
    /// or a result of another request than the one of that custom_id in `input`.
    pub fn open(path: &Path, input: &Input) -> anyhow::Result<Self> {
        let name = path.display();
        let fresh = !path.exists();
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).append(true).create(true).open(path).with_context(|| format!("cannot write {name}"))?;
        ensure!(file.metadata().is_ok_and(|m| m.is_file()), "{name} is no regular file, and results are read again");
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!("{name} is in use by another process"),
            Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("cannot lock {name}")),
        }
        super::sync_parent(path).with_context(|| format!("cannot write {name}"))?;
        let mut output = Self {
            file: file.try_clone()?,
            path: path.to_owned(),
            done: HashSet::new(),
            failed: 0,
            model: None,
            fresh,
        };
        file.seek(SeekFrom::Start(0))?;
        let whole = output.read(BufReader::new(&file), input)?;
        if file.metadata()?.len() > whole {
            file.set_len(whole).and_then(|()| file.sync_all()).with_context(|| format!("cannot write {name}"))?;
        }
        Ok(output)
    }

    /// Takes in the results; how many bytes they take.
    fn read(&mut self, mut reader: impl std::io::BufRead, input: &Input) -> anyhow::Result<u64> {
        let (mut whole, mut number) = (0, 0);
        loop {
            number += 1;
            let place = || format!("{}, line {number}", self.path.display());
            let Some(bytes) = lines::next_bytes(&mut reader).with_context(place)? else { return Ok(whole) };
            if bytes.last() != Some(&b'\n') {
                let torn = BEGIN.as_bytes().starts_with(&bytes[..bytes.len().min(BEGIN.len())])
                    || bytes.iter().all(|&b| b == 0);
                ensure!(torn, "{}: not the result of a batch; choose another file for the results", place());
                return Ok(whole);
            }
            let Ok(stored) = serde_json::from_slice::<Stored>(&bytes) else {
                bail!("{}: not the result of a batch; choose another file for the results", place());
            };
            let hashes = stored.id.strip_prefix("batch_req_").and_then(|hashes| hashes.split_once('_'));
            let Some((model, request)) = hashes else {
                bail!("{}: a result of another program (id {:?}); choose another file", place(), stored.id);
            };
            let id = &stored.custom_id;
            match input.hash_of(id) {
                None => bail!(
                    "{}: request {id:?} is not in {}: were requests removed? Bring it back, or choose another file for the results",
                    place(),
                    input.path().display()
                ),
                Some(hash) if hex(&hash) != request => bail!(
                    "{}: request {id:?} has changed in {} since it was answered: choose another file for the results, or another custom_id",
                    place(),
                    input.path().display()
                ),
                Some(_) => {}
            }
            ensure!(self.done.insert(key(id)), "{}: a second result for request {id:?}", place());
            if let Some(other) = self.model.replace(model.to_owned()) {
                ensure!(other == model, "{}: made by another model than the lines before it", place());
            }
            self.failed += usize::from(stored.error.is_some());
            whole += bytes.len() as u64;
        }
    }

    /// Refuses to go on with another model, template, instruction set, context or version than before.
    ///
    /// # Errors
    /// When the results were made by another.
    pub fn check_model(&self, fingerprint: &str) -> anyhow::Result<()> {
        match &self.model {
            Some(other) if other != fingerprint => bail!(
                "{}: its results were made by another model, template, instruction set, --context or version ({other}, now {fingerprint}): choose another file for the results",
                self.path.display()
            ),
            _ => Ok(()),
        }
    }

    /// Whether a result of this custom_id is there.
    pub fn holds(&self, custom_id: &str) -> bool {
        self.done.contains(&key(custom_id))
    }

    /// Results that were there when the file was opened.
    pub fn done(&self) -> usize {
        self.done.len()
    }

    /// How many of them are errors.
    pub fn failed(&self) -> usize {
        self.failed
    }

    /// Appends whole lines; they are on the disk when this returns.
    ///
    /// # Errors
    /// When they cannot be written; what was written of them is removed when the file is next opened.
    pub fn append(&mut self, lines: &str) -> anyhow::Result<()> {
        self.fresh = false;
        let written = self.file.write_all(lines.as_bytes()).and_then(|()| self.file.sync_data());
        written.with_context(|| {
            format!("cannot write {}: finished results are kept, the same command goes on", self.path.display())
        })
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.fresh {
            // Best effort: a refused command leaves nothing behind.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
