//! What a user may ask of a relay, and what of it can be refused before there is a model.

use std::path::PathBuf;

use anyhow::{bail, ensure};

use super::condition::Condition;
use super::corpus::{self, Item};
use super::format::Format;
use super::plan::{CorpusSource, Until};
use crate::hash::sha256_hex;

/// More chains than this in one run are a slip of the keyboard.
const MAX_CHAINS: usize = 1_000_000;
/// As are more hops than this in one chain.
const MAX_HOPS: u32 = 10_000;

/// What the user asked for. `None` stands for a default that depends on something else.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names of formats; `all` stands for the five built-in ones without a grammar.
    pub formats: Vec<String>,
    /// Files of formats of the user's own, after the named ones.
    pub format_files: Vec<PathBuf>,
    /// How many items; `None` takes all of a corpus file, or [`DEFAULT_ITEMS`]. With `until_ci`, how many at a time.
    pub items: Option<usize>,
    /// A corpus file in place of the generator.
    pub corpus: Option<PathBuf>,
    /// Hops of a chain.
    pub hops: u32,
    /// Sampling temperature.
    pub temperature: f64,
    /// Token limit of a message.
    pub max_tokens: usize,
    /// Exemplars; `None` leaves it to the models' cards.
    pub shots: Option<u8>,
    /// What hops have to do besides.
    pub conditions: Vec<Condition>,
    /// Every chain is forked after its first message, with an error in the fork.
    pub inject: bool,
    /// Chains of each item, format and condition.
    pub replicates: u32,
    /// Root of every draw, and of the generator.
    pub seed: u64,
    /// Go on adding items until half of every format's interval at the last hop is below this share.
    pub until_ci: Option<f64>,
    /// Where `until_ci` ends at the latest; `None` takes all of a corpus file.
    pub max_items: Option<usize>,
}

/// Items of a run when neither their number nor a corpus file is given.
pub const DEFAULT_ITEMS: usize = 8;

impl Default for Settings {
    /// All five formats, six hops, temperature 0.7.
    fn default() -> Self {
        Self {
            formats: vec!["all".into()],
            format_files: Vec::new(),
            items: None,
            corpus: None,
            hops: 6,
            temperature: 0.7,
            max_tokens: 512,
            shots: None,
            conditions: vec![Condition::Plain],
            inject: false,
            replicates: 1,
            seed: 0,
            until_ci: None,
            max_items: None,
        }
    }
}

/// Settings that were found good, with the formats and items they name.
#[derive(Clone, Debug)]
pub struct Draft {
    pub(super) settings: Settings,
    pub(super) formats: Vec<Format>,
    pub(super) items: Vec<Item>,
    pub(super) corpus: CorpusSource,
    pub(super) until: Option<Until>,
}

impl Settings {
    /// Checks every setting and finds the formats and items.
    ///
    /// # Errors
    /// One line that names the flag, what it was and what it may be.
    pub fn resolve(mut self) -> anyhow::Result<Draft> {
        ensure!(self.items != Some(0), "--items is 0: a run needs at least one item");
        ensure!(self.hops > 0, "--hops is 0: a chain needs at least one hop");
        ensure!(self.hops <= MAX_HOPS, "--hops is {}: a chain may have {MAX_HOPS} at most", self.hops);
        ensure!(self.replicates > 0, "--replicates is 0: a run needs at least one");
        ensure!(self.max_tokens > 0, "--max-tokens is 0: a message needs at least one token");
        let (t, shots) = (self.temperature, self.shots.unwrap_or(0));
        ensure!((0.0..=100.0).contains(&t), "--temperature is {t}: it may be 0 (always the likeliest token) to 100");
        ensure!(shots <= 1, "--shots is {shots}: it may be 0 or 1");
        ensure!(
            !self.inject || self.hops > 1,
            "--inject with --hops 1: an error is followed from hop 1 on, so give --hops 2 or more"
        );
        let mut seen = Vec::new();
        self.conditions.retain(|condition| {
            !seen.contains(condition) && {
                seen.push(*condition);
                true
            }
        });
        ensure!(!self.conditions.is_empty(), "--condition names no condition: give plain, loaded or both");
        let formats = chosen_formats(&self.formats, &self.format_files)?;
        if self.conditions.contains(&Condition::Loaded)
            && let Some(format) = formats.iter().find(|format| format.grammar.is_some())
        {
            bail!(
                "--condition loaded with the format {}: its grammar leaves no room for the analysis that comes first; leave out one of them",
                format.name
            );
        }
        let until = self.until()?;
        let chains = |items: usize| {
            let kinds = self.conditions.len() * if self.inject { 2 } else { 1 };
            let chains = items.checked_mul(formats.len() * kinds).and_then(|n| n.checked_mul(self.replicates as usize));
            let fits = chains.is_some_and(|chains| chains <= MAX_CHAINS);
            ensure!(
                fits,
                "{items} items in {} formats with --replicates {} are more than {MAX_CHAINS} chains: lower --items or --replicates",
                formats.len(),
                self.replicates
            );
            Ok(())
        };
        chains(self.most_items().unwrap_or(1))?;
        let (items, corpus) = self.items()?;
        chains(items.len())?;
        Ok(Draft { settings: self, formats, items, corpus, until })
    }

    fn until(&self) -> anyhow::Result<Option<Until>> {
        let Some(half_width) = self.until_ci else {
            ensure!(self.max_items.is_none(), "--max-items belongs to --until-ci; a run without it takes --items");
            return Ok(None);
        };
        ensure!(
            half_width > 0.0 && half_width < 0.5,
            "--until-ci is {half_width}: half of an interval of shares lies between 0 and 0.5 (0.02, 2% and 2pp are the same)"
        );
        ensure!(self.max_items != Some(0), "--max-items is 0: a run needs at least one item");
        ensure!(
            self.max_items.is_some() || self.corpus.is_some(),
            "--until-ci needs --max-items: the run must end somewhere"
        );
        Ok(Some(Until { half_width, step: self.items.unwrap_or(DEFAULT_ITEMS) }))
    }

    /// The number of items, where the settings alone say it.
    fn most_items(&self) -> Option<usize> {
        if self.until_ci.is_some() { self.max_items } else { self.items }
    }

    fn items(&self) -> anyhow::Result<(Vec<Item>, CorpusSource)> {
        let Some(path) = &self.corpus else {
            let count = self.most_items().unwrap_or(DEFAULT_ITEMS) as u64;
            let items = (0..count).map(|index| corpus::generate(self.seed, index)).collect();
            return Ok((items, CorpusSource::Generated { seed: self.seed }));
        };
        // Read once: the hash is of what was parsed, and a pipe can be read no second time.
        let bytes = corpus::read(path)?;
        let mut items = corpus::parse(&bytes[..], path)?;
        if let Some(count) = self.most_items() {
            let flag = if self.until_ci.is_some() { "--max-items" } else { "--items" };
            ensure!(count <= items.len(), "{flag} is {count}, but {} holds {}", path.display(), items.len());
            items.truncate(count);
        }
        Ok((items, CorpusSource::File { sha256: sha256_hex(&bytes) }))
    }
}

fn chosen_formats(names: &[String], files: &[PathBuf]) -> anyhow::Result<Vec<Format>> {
    let mut chosen: Vec<Format> = Vec::new();
    for name in names {
        let found = match name.as_str() {
            "all" => Format::builtin().into_iter().filter(|format| format.grammar.is_none()).collect(),
            name => vec![Format::by_name(name)?],
        };
        for format in found {
            if !chosen.iter().any(|other| other.name == format.name) {
                chosen.push(format);
            }
        }
    }
    for file in files {
        let format = Format::load(file)?;
        ensure!(
            Format::by_name(&format.name).is_err() && !chosen.iter().any(|other| other.name == format.name),
            "--format {}: there is a format {:?} already; give it another name",
            file.display(),
            format.name
        );
        chosen.push(format);
    }
    ensure!(!chosen.is_empty(), "--formats names no format");
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(wanted: &[&str]) -> anyhow::Result<Vec<String>> {
        let wanted: Vec<_> = wanted.iter().map(|name| name.to_string()).collect();
        Ok(chosen_formats(&wanted, &[])?.into_iter().map(|format| format.name).collect())
    }

    #[test]
    fn a_stored_format_has_its_grammar_with_its_keys_in_order() {
        for format in Format::builtin() {
            let text = serde_json::to_string(&format).expect("a format has a JSON form");
            assert_eq!(text.contains("\"grammar\":{"), format.name.ends_with("+grammar"), "{text}");
            let stored: Format = serde_json::from_str(&text).expect("its own text");
            assert_eq!(serde_json::to_string(&stored).expect("a format"), text);
        }
    }

    #[test]
    fn formats_come_in_the_order_asked_for_and_once_each() {
        assert_eq!(names(&["all"]).expect("all"), ["free", "constr", "json", "triples", "kv"]);
        assert_eq!(names(&["kv", "all", "kv"]).expect("all"), ["kv", "free", "constr", "json", "triples"]);
        assert_eq!(names(&["json", "free"]).expect("two"), ["json", "free"]);
        assert_eq!(names(&["kv+grammar", "kv"]).expect("two"), ["kv+grammar", "kv"]);
        assert!(names(&[]).is_err() && names(&["KV"]).is_err() && names(&[""]).is_err());
    }
}
