//! Where forks were altered.

use rusqlite::params;

use super::{Store, StoreError};

/// What was done to the message that a fork goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectionRow {
    /// Key of the fork.
    pub trial: String,
    /// Facts that could have been altered.
    pub eligible: usize,
    /// Facts of the item.
    pub facts: usize,
    /// Id of the one that was; `None` where none could be: the fork then has no hops.
    pub fact: Option<String>,
    /// The altered message.
    pub message: Option<String>,
}

impl Store {
    /// Writes one alteration; it is on the disk when this returns.
    pub fn add_injection(&self, row: &InjectionRow) -> Result<(), StoreError> {
        let InjectionRow { trial, eligible, facts, fact, message } = row;
        let sql = "INSERT INTO injections (trial, eligible, facts, fact, message) VALUES (?, ?, ?, ?, ?)";
        self.ask(|c| c.prepare_cached(sql)?.execute(params![trial, *eligible as i64, *facts as i64, fact, message]))?;
        Ok(())
    }

    /// Every alteration.
    pub fn injections(&self) -> Result<Vec<InjectionRow>, StoreError> {
        self.rows("SELECT trial, eligible, facts, fact, message FROM injections ORDER BY trial", |row| {
            let count = |index| row.get::<_, i64>(index).map(|n| n.unsigned_abs() as usize);
            Ok(InjectionRow {
                trial: row.get(0)?,
                eligible: count(1)?,
                facts: count(2)?,
                fact: row.get(3)?,
                message: row.get(4)?,
            })
        })
    }
}
