//! A run's folder and who may write in it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::StoreError;

/// The database of a run, inside its folder.
pub(super) const DATABASE: &str = "run.db";
/// Held locked by the one process that writes.
const LOCK: &str = "run.lock";

/// The right to write in a run's folder.
///
/// The operating system releases the lock when the process ends, however it ends.
/// A folder that was created for the claim goes again when the claim is dropped
/// before a run stands in it: a refused command leaves nothing behind.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// Folders made for this claim, outermost first.
    created: Vec<PathBuf>,
    /// The lock file was made by this claim.
    fresh_lock: bool,
    keep: bool,
    /// Locked for as long as it is open.
    lock: Option<File>,
}

impl RunFolder {
    /// Claims `path` for a new run, creating it where it does not exist.
    ///
    /// # Errors
    /// When the folder already holds a run, cannot be written, or is claimed by another process.
    pub fn claim_new(path: &Path) -> Result<Self, StoreError> {
        let mut folder = Self::unlocked(path);
        for missing in missing_ancestors(path) {
            fs::create_dir(&missing).or_else(already_there).map_err(|source| unwritable(path, source))?;
            folder.created.push(missing);
        }
        folder.lock()?;
        if path.join(DATABASE).exists() {
            return Err(StoreError::Occupied { dir: path.to_owned() });
        }
        Ok(folder)
    }

    /// Claims the next free of `parent/stem-0001`, `parent/stem-0002`, …
    ///
    /// # Errors
    /// When `parent` cannot be written.
    pub fn claim_next(parent: &Path, stem: &str) -> Result<Self, StoreError> {
        let mut number = 1;
        loop {
            let path = parent.join(format!("{stem}-{number:04}"));
            if !path.exists() {
                match Self::claim_new(&path) {
                    // Another process was quicker.
                    Err(StoreError::Locked { .. } | StoreError::Occupied { .. }) => {}
                    claim => return claim,
                }
            }
            number += 1;
        }
    }

    /// Claims a folder that holds a run.
    ///
    /// # Errors
    /// When it holds none, or is claimed by another process.
    pub fn claim_run(path: &Path) -> Result<Self, StoreError> {
        if !path.join(DATABASE).is_file() {
            return Err(StoreError::NoRun { dir: path.to_owned() });
        }
        let mut folder = Self::unlocked(path);
        folder.keep = true;
        folder.lock()?;
        Ok(folder)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A run stands in it now: the folder stays.
    pub(super) fn keep(&mut self) {
        self.keep = true;
    }

    fn unlocked(path: &Path) -> Self {
        Self { path: path.to_owned(), created: Vec::new(), fresh_lock: false, keep: false, lock: None }
    }

    fn lock(&mut self) -> Result<(), StoreError> {
        let path = self.path.join(LOCK);
        self.fresh_lock = !path.exists();
        let failed = |source| unwritable(&self.path, source);
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                self.fresh_lock = false;
                self.created.clear();
                return Err(StoreError::Locked { dir: self.path.clone(), owner: owner_of(&mut file) });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let owner = format!("process {} on {}", std::process::id(), host());
        file.set_len(0).and_then(|()| file.write_all(owner.as_bytes())).map_err(failed)?;
        self.lock = Some(file);
        Ok(())
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        // Best effort: what cannot be removed holds something that is not ours.
        if self.fresh_lock {
            let _ = fs::remove_file(self.path.join(LOCK));
        }
        for folder in self.created.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

fn missing_ancestors(path: &Path) -> Vec<PathBuf> {
    let missing = path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists());
    let mut missing: Vec<_> = missing.map(Path::to_owned).collect();
    missing.reverse();
    missing
}

/// Another process may make the same folder at the same moment.
fn already_there(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

fn unwritable(dir: &Path, source: io::Error) -> StoreError {
    StoreError::Unwritable { dir: dir.to_owned(), source }
}

fn owner_of(file: &mut File) -> String {
    let mut owner = String::new();
    let read = file.rewind().and_then(|()| file.take(200).read_to_string(&mut owner));
    if read.is_err() || owner.is_empty() { "another process".into() } else { owner }
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| fs::read_to_string("/etc/hostname"));
    name.map(|name| name.trim().to_owned()).unwrap_or_else(|_| "this machine".into())
}
