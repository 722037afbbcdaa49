//! How models are fetched: options given by the caller, and what the environment says.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// How long a source may be silent.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// Until a connection stands.
    pub connect: Duration,
    /// Until the answer begins.
    pub response: Duration,
    /// Between two pieces of the answer.
    pub stall: Duration,
    /// For pip to fetch one package.
    pub pip: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Deadlines {
            connect: Duration::from_secs(5),
            response: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            pip: Duration::from_secs(900),
        }
    }
}

/// How models are fetched. What is `None` comes from the environment.
#[derive(Clone, Default)]
pub struct FetchOptions {
    /// Folder of the cache; `$XDG_CACHE_HOME/weaklink/models` or
    /// `~/.cache/weaklink/models` when not given.
    pub cache: Option<PathBuf>,
    /// Use what is cached, never go online. `HF_HUB_OFFLINE` sets it too.
    pub offline: bool,
    /// Address of the hub; `HF_ENDPOINT` when not given.
    pub endpoint: Option<String>,
    /// Program and first arguments that run pip; `python3 -m pip` when not given.
    pub pip: Option<Vec<OsString>>,
    /// How long to wait.
    pub deadlines: Deadlines,
}

/// What the environment says about fetching.
#[derive(Clone, Default)]
pub struct Environment {
    /// `HF_HUB_OFFLINE`.
    pub offline: bool,
    /// `HF_ENDPOINT`.
    pub endpoint: Option<String>,
    /// `XDG_CACHE_HOME`, or `.cache` in `HOME`.
    pub cache_home: Option<PathBuf>,
    /// `HF_TOKEN`, or the file that `hf auth login` writes. Not printable.
    pub(super) token: Option<String>,
}

impl Environment {
    /// Reads it from the process.
    pub fn read() -> Self {
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let implicit = text("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_none();
        let token_file = || path("HF_TOKEN_PATH").unwrap_or_else(|| hf_hub::hf_home().join("token"));
        let stored = || fs::read_to_string(token_file()).ok();
        let token = text("HF_TOKEN").or_else(stored).map(|token| token.trim().to_owned());
        Environment {
            offline: text("HF_HUB_OFFLINE").is_some_and(|value| is_truthy(&value)),
            endpoint: text("HF_ENDPOINT"),
            // The XDG rule: a relative path there is to be ignored.
            cache_home: path("XDG_CACHE_HOME")
                .filter(|path| path.is_absolute())
                .or_else(|| path("HOME").map(|home| home.join(".cache"))),
            token: token.filter(|token| implicit && !token.is_empty()),
        }
    }
}

pub(super) fn is_truthy(value: &str) -> bool {
    ["1", "true", "yes", "on"].contains(&value.trim().to_ascii_lowercase().as_str())
}
