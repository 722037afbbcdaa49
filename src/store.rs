//! The journal of a run: one SQLite file, `run.db`, in the run's folder.
//!
//! The plan, the items and the list of chains are written before any work; a hop
//! is written in a transaction of its own the moment it is done. So a run that is
//! killed holds every hop whose message was passed on, and none twice.
//!
//! The file is in WAL mode with `synchronous=FULL`: a commit is on the disk when
//! [`Store::add_hop`] returns, and survives a power cut too. Against `NORMAL`
//! that costs one fsync a hop: 4 ms at the median on a virtual disk, where a hop takes a second. One process
//! writes (see [`RunFolder`]); any number may read meanwhile.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

mod error;
mod folder;
mod injection;
pub use error::StoreError;
use error::fault;
use folder::DATABASE;
pub use folder::RunFolder;
pub use injection::InjectionRow;

const SCHEMA: &str = include_str!("schema.sql");
/// Stands in SQLite's `user_version`; goes up with every change of the schema.
const VERSION: i64 = 2;
/// Stands in SQLite's `application_id`: "WkLk".
const APPLICATION: i64 = 0x576b_4c6b;
/// How long a question waits while another process holds the file.
const PATIENCE: Duration = Duration::from_secs(10);

/// One chain, as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialRow {
    /// Hash of what the trial is.
    pub key: String,
    /// Id of its item.
    pub item: String,
    /// Name of its format.
    pub format: String,
    /// Name of its condition.
    pub condition: String,
    /// Its replicate, from 0.
    pub replicate: u32,
    /// Hash of the weights that answer, or of what names the model.
    pub model: String,
    /// Key of the clean chain whose first message, altered, this one goes on from.
    pub fork_of: Option<String>,
}

/// One hop that was done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HopRow {
    /// Key of the chain.
    pub trial: String,
    /// From 1.
    pub hop: u32,
    /// The message as it was passed on.
    pub message: String,
    /// The message hit the token limit.
    pub truncated: bool,
    /// The limit fell inside a character.
    pub cut_in_char: bool,
    /// The format's parser refused the message.
    pub invalid: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Of these, tokens found in the cache.
    pub cached_tokens: u64,
    /// Tokens drawn, those of the analysis too.
    pub generated_tokens: u64,
    /// Tokens guessed ahead of being drawn.
    pub drafted_tokens: u64,
    /// Of these, tokens that were then drawn.
    pub accepted_tokens: u64,
    /// The analysis that was cut off before the message was passed on.
    pub analysis: Option<String>,
    /// Of the tokens drawn, those of the analysis.
    pub analysis_tokens: u64,
    /// An analysis was asked for, and no end of it found: the message is the whole answer.
    pub unsplit: bool,
    /// From submission to the last token.
    pub seconds: f64,
    /// When it was done, Unix time in seconds.
    pub ended: f64,
    /// Root of its draws; below 2⁶³.
    pub seed: u64,
}

/// One hop that ended without a message.
#[derive(Clone, Debug, PartialEq)]
pub struct FailureRow {
    /// Key of the chain.
    pub trial: String,
    /// The hop that was tried.
    pub hop: u32,
    /// Which outcome it was.
    pub kind: String,
    /// What was said.
    pub detail: String,
}

/// Seconds since 1970, for [`HopRow::ended`].
pub fn unix_now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// An open run.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
    /// Held for its lock; `None` for a reader.
    _folder: Option<RunFolder>,
}

impl Store {
    /// Writes the beginning of a run and opens it for work. The file appears under
    /// its name only when plan, items, chains and the facts of the first session are
    /// all in it: what can be seen can be resumed.
    ///
    /// # Errors
    /// When the file cannot be written; the folder is then as it was before.
    pub fn create(
        mut folder: RunFolder,
        plan: &impl Serialize,
        items: &[(String, impl Serialize)],
        trials: &[TrialRow],
        session: &impl Serialize,
    ) -> Result<Self, StoreError> {
        let path = folder.path().join(DATABASE);
        let part = folder.path().join("run.db.part");
        let written = write_beginning(&part, plan, items, trials, session).and_then(|()| {
            let renamed = std::fs::rename(&part, &path).and_then(|()| sync_folder(folder.path()));
            renamed.map_err(|source| StoreError::Unwritable { dir: folder.path().to_owned(), source })
        });
        if let Err(error) = written {
            for leftover in [part.clone(), folder.path().join("run.db.part-journal")] {
                let _ = std::fs::remove_file(leftover);
            }
            return Err(error);
        }
        folder.keep();
        Self::writer(path, folder)
    }

    /// Opens the run in `dir` to go on with it.
    ///
    /// # Errors
    /// When there is none, it is damaged or foreign, or another process has it.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let folder = RunFolder::claim_run(dir)?;
        Self::writer(dir.join(DATABASE), folder)
    }

    /// Opens the run in `dir` to read it; another process may be writing.
    ///
    /// # Errors
    /// When there is none, or it is damaged or foreign.
    pub fn read(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(DATABASE);
        if !path.is_file() {
            return Err(StoreError::NoRun { dir: dir.to_owned() });
        }
        Self::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, None)
    }

    fn writer(path: PathBuf, folder: RunFolder) -> Result<Self, StoreError> {
        let store = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, Some(folder))?;
        let settings = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;";
        store.ask(|c| c.execute_batch(settings))?;
        Ok(store)
    }

    fn connect(path: PathBuf, flags: OpenFlags, folder: Option<RunFolder>) -> Result<Self, StoreError> {
        let connection = Connection::open_with_flags(&path, flags).map_err(|e| fault(&path, e))?;
        let store = Self { connection, path, _folder: folder };
        store.ask(|c| c.busy_timeout(PATIENCE))?;
        store.check()?;
        Ok(store)
    }

    fn check(&self) -> Result<(), StoreError> {
        let number = |name| self.ask(|c| c.pragma_query_value(None, name, |row| row.get::<_, i64>(0)));
        let foreign = |what| Err(StoreError::Foreign { path: self.path.clone(), what });
        if number("application_id")? != APPLICATION {
            return foreign("an SQLite file of another program".into());
        }
        let version = number("user_version")?;
        if version != VERSION {
            return foreign(format!("its layout is version {version}, this weaklink reads version {VERSION}"));
        }
        let verdict = self.ask(|c| c.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0)))?;
        if verdict != "ok" {
            // The verdict is a heading and a line below it.
            let what = verdict.lines().last().unwrap_or_default().to_owned();
            return Err(StoreError::Damaged { path: self.path.clone(), what });
        }
        Ok(())
    }

    fn ask<T>(&self, question: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        question(&self.connection).map_err(|error| fault(&self.path, error))
    }

    fn rows<T>(&self, sql: &str, map: impl FnMut(&Row<'_>) -> rusqlite::Result<T>) -> Result<Vec<T>, StoreError> {
        self.ask(|c| c.prepare(sql)?.query_map([], map)?.collect())
    }

    fn parse<T: DeserializeOwned>(&self, what: &str, text: &str) -> Result<T, StoreError> {
        serde_json::from_str(text).map_err(|error| StoreError::Foreign {
            path: self.path.clone(),
            what: format!("this version cannot read its {what}: {error}"),
        })
    }

    /// The plan the run was begun with.
    pub fn plan<T: DeserializeOwned>(&self) -> Result<T, StoreError> {
        let text = self.ask(|c| c.query_row("SELECT plan FROM run", [], |row| row.get::<_, String>(0)))?;
        self.parse("plan", &text)
    }

    /// The items, in the order of the plan.
    pub fn items<T: DeserializeOwned>(&self) -> Result<Vec<T>, StoreError> {
        let texts = self.rows("SELECT item FROM items ORDER BY position", |row| row.get::<_, String>(0))?;
        texts.iter().map(|text| self.parse("items", text)).collect()
    }

    /// The chains, in the order of the plan.
    pub fn trials(&self) -> Result<Vec<TrialRow>, StoreError> {
        self.rows(
            "SELECT key, item, format, condition, replicate, model, fork_of FROM trials ORDER BY position",
            |row| {
                Ok(TrialRow {
                    key: row.get(0)?,
                    item: row.get(1)?,
                    format: row.get(2)?,
                    condition: row.get(3)?,
                    replicate: row.get(4)?,
                    model: row.get(5)?,
                    fork_of: row.get(6)?,
                })
            },
        )
    }

    /// Every stored hop, chain by chain and hop by hop.
    pub fn hops(&self) -> Result<Vec<HopRow>, StoreError> {
        let sql = "SELECT trial, hop, message, finish, cut_in_char, invalid, prompt_tokens, cached_tokens,
                          generated_tokens, seconds, ended, seed, drafted_tokens, accepted_tokens, analysis,
                          analysis_tokens, unsplit FROM hops ORDER BY trial, hop";
        self.rows(sql, |row| {
            let count = |index| row.get::<_, i64>(index).map(i64::unsigned_abs);
            Ok(HopRow {
                trial: row.get(0)?,
                hop: row.get(1)?,
                message: row.get(2)?,
                truncated: row.get::<_, String>(3)? == "length",
                cut_in_char: row.get(4)?,
                invalid: row.get(5)?,
                prompt_tokens: count(6)?,
                cached_tokens: count(7)?,
                generated_tokens: count(8)?,
                seconds: row.get(9)?,
                ended: row.get(10)?,
                seed: count(11)?,
                drafted_tokens: count(12)?,
                accepted_tokens: count(13)?,
                analysis: row.get(14)?,
                analysis_tokens: count(15)?,
                unsplit: row.get(16)?,
            })
        })
    }

    /// Failures that still stand: those whose hop was not done later. The last one of a hop.
    pub fn failures(&self) -> Result<Vec<FailureRow>, StoreError> {
        let sql = "SELECT trial, hop, kind, detail, max(id) FROM failures AS f
                   WHERE NOT EXISTS (SELECT 1 FROM hops AS h WHERE h.trial = f.trial AND h.hop = f.hop)
                   GROUP BY trial, hop ORDER BY max(id)";
        self.rows(sql, |row| {
            Ok(FailureRow { trial: row.get(0)?, hop: row.get(1)?, kind: row.get(2)?, detail: row.get(3)? })
        })
    }

    /// Writes one hop; it is on the disk when this returns.
    pub fn add_hop(&self, hop: &HopRow) -> Result<(), StoreError> {
        let sql = "INSERT INTO hops (trial, hop, message, finish, cut_in_char, invalid, prompt_tokens, cached_tokens,
                   generated_tokens, seconds, ended, seed, drafted_tokens, accepted_tokens, analysis, analysis_tokens,
                   unsplit) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        let finish = if hop.truncated { "length" } else { "stop" };
        self.ask(|c| {
            c.prepare_cached(sql)?.execute(params![
                hop.trial,
                hop.hop,
                hop.message,
                finish,
                hop.cut_in_char,
                hop.invalid,
                hop.prompt_tokens.cast_signed(),
                hop.cached_tokens.cast_signed(),
                hop.generated_tokens.cast_signed(),
                hop.seconds,
                hop.ended,
                hop.seed.cast_signed(),
                hop.drafted_tokens.cast_signed(),
                hop.accepted_tokens.cast_signed(),
                hop.analysis,
                hop.analysis_tokens.cast_signed(),
                hop.unsplit,
            ])
        })?;
        Ok(())
    }

    /// Writes one failure.
    pub fn add_failure(&self, failure: &FailureRow) -> Result<(), StoreError> {
        let FailureRow { trial, hop, kind, detail } = failure;
        let sql = "INSERT INTO failures (trial, hop, kind, detail, ended) VALUES (?, ?, ?, ?, ?)";
        self.ask(|c| c.execute(sql, params![trial, hop, kind, detail, unix_now()]))?;
        Ok(())
    }

    /// Notes that another process goes on with the run, and with what.
    pub fn begin_session(&self, facts: &impl Serialize) -> Result<(), StoreError> {
        self.ask(|c| c.execute("INSERT INTO sessions (facts) VALUES (?)", [json(facts)]))?;
        Ok(())
    }

    /// The facts of the last session.
    pub fn last_session<T: DeserializeOwned>(&self) -> Result<Option<T>, StoreError> {
        let sql = "SELECT facts FROM sessions ORDER BY id DESC LIMIT 1";
        let text = self.ask(|c| c.query_row(sql, [], |row| row.get::<_, String>(0)).optional())?;
        text.map(|text| self.parse("sessions", &text)).transpose()
    }

    /// Notes that every chain has come to its end.
    ///
    /// The file then leaves WAL mode, unless somebody is reading it: without its
    /// helper files it can be copied, and read where nothing may be written.
    pub fn finish(&self, chains: usize, failed: usize) -> Result<(), StoreError> {
        let sql = "INSERT INTO final (chains, failed) VALUES (?, ?)";
        self.ask(|c| c.execute(sql, [chains as i64, failed as i64]))?;
        self.ask(|c| c.busy_timeout(Duration::ZERO))?;
        let _ = self.connection.execute_batch("PRAGMA journal_mode = DELETE");
        self.ask(|c| c.busy_timeout(PATIENCE))
    }

    /// Whether every chain has come to its end.
    pub fn finished(&self) -> Result<bool, StoreError> {
        self.ask(|c| c.query_row("SELECT EXISTS (SELECT 1 FROM final)", [], |row| row.get(0)))
    }
}

fn write_beginning(
    path: &Path,
    plan: &impl Serialize,
    items: &[(String, impl Serialize)],
    trials: &[TrialRow],
    session: &impl Serialize,
) -> Result<(), StoreError> {
    // What a killed process left there holds nothing that was ever promised.
    let _ = std::fs::remove_file(path);
    let write = || {
        let mut connection = Connection::open(path)?;
        let all = connection.transaction()?;
        all.pragma_update(None, "application_id", APPLICATION)?;
        all.pragma_update(None, "user_version", VERSION)?;
        all.execute_batch(SCHEMA)?;
        all.execute("INSERT INTO run (id, plan) VALUES (1, ?)", [json(plan)])?;
        for (id, item) in items {
            all.execute("INSERT INTO items (id, item) VALUES (?, ?)", params![id, json(item)])?;
        }
        for TrialRow { key, item, format, condition, replicate, model, fork_of } in trials {
            let sql = "INSERT INTO trials (key, item, format, condition, replicate, model, fork_of) VALUES (?, ?, ?, ?, ?, ?, ?)";
            all.execute(sql, params![key, item, format, condition, replicate, model, fork_of])?;
        }
        all.execute("INSERT INTO sessions (facts) VALUES (?)", [json(session)])?;
        all.commit()?;
        connection.close().map_err(|(_, error)| error)
    };
    write().map_err(|error| match fault(path, error) {
        // There is no run yet that could be resumed.
        StoreError::Full { path } => {
            let dir = path.parent().unwrap_or(&path).to_owned();
            StoreError::Unwritable { dir, source: io::ErrorKind::StorageFull.into() }
        }
        other => other,
    })
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plans, items and session facts hold only what JSON holds")
}

/// A rename is on the disk when its folder is.
fn sync_folder(dir: &Path) -> io::Result<()> {
    if cfg!(unix) { std::fs::File::open(dir)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests;
