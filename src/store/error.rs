//! What can go wrong with a run's file, each on one line with the way out.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{ErrorCode, ffi};

use super::DATABASE;

/// Why a run cannot be created, opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder has no `run.db`.
    #[error("{} holds no run (no {DATABASE} in it)", dir.display())]
    NoRun {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder already has a `run.db`.
    #[error("{} already holds a run: go on with `weaklink resume {}`, or name another --out", dir.display(), dir.display())]
    Occupied {
        /// The folder.
        dir: PathBuf,
    },
    /// Another process writes there.
    #[error("{} is in use by {owner}: one process at a time works on a run", dir.display())]
    Locked {
        /// The folder.
        dir: PathBuf,
        /// Process id and host, as far as they are known.
        owner: String,
    },
    /// The folder cannot be created, locked or written.
    #[error("cannot write in {}: {source}", dir.display())]
    Unwritable {
        /// The folder.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not one of ours.
    #[error("{} is not a weaklink run: {what}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        what: String,
    },
    /// The file is ours, and broken.
    #[error("{} is damaged ({what}): restore it from a copy, or start a new run with --out", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is broken.
        what: String,
    },
    /// The disk has no room.
    #[error("the disk is full: {} holds everything up to the last hop; free some space, then `weaklink resume` it", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// Anything else SQLite says.
    #[error("{}: {source}", path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
}

/// Sorts what SQLite says about the file at `path`.
pub(super) fn fault(path: &Path, source: rusqlite::Error) -> StoreError {
    let path = path.to_owned();
    // The helper files of a database are mapped into memory, where a disk without room shows as this.
    let full = [ffi::SQLITE_IOERR_SHMSIZE, ffi::SQLITE_IOERR_SHMMAP];
    if source.sqlite_error().is_some_and(|error| full.contains(&error.extended_code)) {
        return StoreError::Full { path };
    }
    match source.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full { path },
        Some(ErrorCode::DatabaseCorrupt) => StoreError::Damaged { path, what: source.to_string() },
        Some(ErrorCode::NotADatabase) => StoreError::Foreign { path, what: "not an SQLite file".into() },
        None => StoreError::Damaged { path, what: source.to_string() },
        _ => StoreError::Sqlite { path, source },
    }
}
