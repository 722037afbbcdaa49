//! The plan of a relay run: every setting that can change a message, written
//! down before the first one is made.
//!
//! What cannot change a message (how many chains at once, threads, where the
//! model file lies) is not here: it stands beside the plan, in the sessions of
//! the [store](crate::store). Two equal plans make equal messages, so a run goes
//! on only under a plan equal to its own.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::condition::Condition;
use super::format::Format;
use crate::engine::load::ModelIdentity;
use crate::hash::hex;

/// Stored as the study's name; the first part of every trial's key.
pub const STUDY: &str = "relay";

/// What made the messages, as a plan records it. The second number goes up with
/// every change that makes other messages from the same settings (prompt layout,
/// sampler, seeds): it is what tells two builds of one version apart.
pub const CODE: &str = concat!("weaklink ", env!("CARGO_PKG_VERSION"), " protocol 1");

/// Where the items came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum CorpusSource {
    /// Made by the generator of this crate.
    Generated {
        /// Root of the generator.
        seed: u64,
    },
    /// Read from a user's file.
    File {
        /// SHA-256 of the whole file, in hex.
        sha256: String,
    },
}

impl CorpusSource {
    /// The seed that generated it; of a file, the run's own.
    pub(super) fn seed_or(&self, own: u64) -> u64 {
        match self {
            CorpusSource::Generated { seed } => *seed,
            CorpusSource::File { .. } => own,
        }
    }
}

/// One format of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedFormat {
    /// All of it: a stored run can be scored and shown when the file is gone.
    pub format: Format,
    /// SHA-256 of what its hops are shown beside the messages, in hex: the
    /// instruction, the exemplars and their order are all in it.
    pub prompt_sha256: String,
}

/// One model of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum PlannedModel {
    /// In this process.
    Local {
        /// Which weights, tokenizer and template.
        identity: ModelIdentity,
        /// `cpu` or `cuda:N`.
        device: String,
        /// Instruction set of the kernels: bits may differ between two of them.
        isa: String,
    },
    /// Behind an endpoint.
    Remote {
        /// As the endpoint calls it.
        name: String,
        /// Address of the endpoint.
        base_url: String,
    },
    /// Recorded answers.
    Replay {
        /// Name of the file.
        name: String,
        /// SHA-256 of the file, in hex.
        sha256: String,
    },
}

impl PlannedModel {
    /// What people call it.
    pub fn name(&self) -> &str {
        match self {
            PlannedModel::Local { identity, .. } => &identity.name,
            PlannedModel::Remote { name, .. } | PlannedModel::Replay { name, .. } => name,
        }
    }

    /// What tells its chains from those of another model, wherever its files lie: the hash of weights or of recorded
    /// answers, in hex, or of what names a remote one.
    pub fn key(&self) -> String {
        match self {
            PlannedModel::Local { identity, .. } => identity.sha256.clone(),
            PlannedModel::Replay { sha256, .. } => sha256.clone(),
            PlannedModel::Remote { name, base_url } => hex(&digest(&("remote", base_url, name))),
        }
    }

    /// `cpu` or `cuda:N`; `remote` or `replay` where nothing is computed here.
    pub fn device(&self) -> &str {
        match self {
            PlannedModel::Local { device, .. } => device,
            PlannedModel::Remote { .. } => "remote",
            PlannedModel::Replay { .. } => "replay",
        }
    }

    /// Instruction set of the kernels, where there are any.
    pub fn isa(&self) -> Option<&str> {
        match self {
            PlannedModel::Local { isa, .. } => Some(isa),
            PlannedModel::Remote { .. } | PlannedModel::Replay { .. } => None,
        }
    }

    /// The same model under the name that `other` has: names change no message.
    pub(super) fn named_as(&self, other: &PlannedModel) -> PlannedModel {
        let mut named = self.clone();
        match &mut named {
            PlannedModel::Local { identity, .. } => other.name().clone_into(&mut identity.name),
            PlannedModel::Replay { name, .. } => other.name().clone_into(name),
            PlannedModel::Remote { .. } => {}
        }
        named
    }
}

/// When a run ends before all of its items are done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Until {
    /// Half of the 95 % interval of every format's recall at the last hop, as a share: below it the run ends.
    pub half_width: f64,
    /// Items before the first look, and between two looks.
    pub step: usize,
}

/// Every setting of a run, defaults filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayPlan {
    /// Always [`STUDY`].
    pub study: String,
    /// [`CODE`] of the build that planned it.
    pub code: String,
    /// What answers, one after the other.
    pub models: Vec<PlannedModel>,
    /// The formats, in the order of the tables.
    pub formats: Vec<PlannedFormat>,
    /// Where the items came from.
    pub corpus: CorpusSource,
    /// How many there are; with [`RelayPlan::until`], at most.
    pub items: usize,
    /// SHA-256 of their JSON lines, in hex.
    pub items_sha256: String,
    /// Hops of a chain.
    pub hops: u32,
    /// 0 takes the likeliest token.
    pub temperature: f64,
    /// Keep the k likeliest tokens.
    pub top_k: Option<usize>,
    /// Keep the likeliest tokens that add up to this probability.
    pub top_p: Option<f64>,
    /// Token limit of one message, the same for every format.
    pub max_tokens: usize,
    /// Exemplars before the message: 0 or 1.
    pub shots: u8,
    /// The conditions, in the order of the tables.
    pub conditions: Vec<Condition>,
    /// From every chain's first message a second chain goes on with an error in it.
    pub inject: bool,
    /// Chains with the same item, format and condition, each with seeds of its own.
    pub replicates: u32,
    /// Root of every draw.
    pub seed: u64,
    /// When the run may end before all items are done.
    pub until: Option<Until>,
}

impl RelayPlan {
    /// Every chain of the run. Chains of one model, condition and format stand together,
    /// because they share the beginning of their prompts, and so do their items. A fork
    /// follows the chain it branches off from.
    pub fn trials(&self, item_ids: &[String]) -> Vec<Trial> {
        let mut trials = Vec::new();
        for model in self.models.iter().map(PlannedModel::key) {
            for condition in &self.conditions {
                for format in &self.formats {
                    for item in item_ids {
                        for replicate in 0..self.replicates {
                            let clean = Trial {
                                study: self.study.clone(),
                                condition: *condition,
                                item: item.clone(),
                                format: format.format.name.clone(),
                                model: model.clone(),
                                replicate,
                                seed: self.seed,
                                injected: false,
                            };
                            let fork = self.inject.then(|| Trial { injected: true, ..clean.clone() });
                            trials.push(clean);
                            trials.extend(fork);
                        }
                    }
                }
            }
        }
        trials
    }

    /// The seed that exemplars keep away from: the corpus's own, or the run's.
    pub fn corpus_seed(&self) -> u64 {
        self.corpus.seed_or(self.seed)
    }

    /// Every setting in which `now` differs from this stored plan, one line each:
    /// `model.sha256: stored "ab…", now "cd…"`. Empty when they make the same messages.
    pub fn diff(&self, now: &RelayPlan) -> Vec<String> {
        let mut lines = Vec::new();
        compare("", &as_value(self), &as_value(now), &mut lines);
        lines
    }
}

fn as_value(plan: &RelayPlan) -> Value {
    serde_json::to_value(plan).expect("a plan holds only strings and finite numbers")
}

fn compare(path: &str, stored: &Value, now: &Value, lines: &mut Vec<String>) {
    let at = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (stored, now) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let side = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
                compare(&at(key), &side(a), &side(b), lines);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&at(&index.to_string()), a, b, lines);
            }
        }
        _ if stored == now => {}
        _ => lines.push(format!("{path}: stored {stored}, now {now}")),
    }
}

/// One chain: the unit that is planned, driven and scored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// [`STUDY`].
    pub study: String,
    /// What its hops have to do besides.
    pub condition: Condition,
    /// Id of the item.
    pub item: String,
    /// Name of the format.
    pub format: String,
    /// [`PlannedModel::key`] of the model.
    pub model: String,
    /// Counts chains that differ in nothing but their draws.
    pub replicate: u32,
    /// The run's seed.
    pub seed: u64,
    /// It goes on from the altered first message of the trial that is the same but for this.
    pub injected: bool,
}

impl Trial {
    /// The primary key in the store: the hash of what the trial is, in hex. Never
    /// of a position or a time, so the same trial has the same key in any run.
    pub fn key(&self) -> String {
        let Trial { study, condition, item, format, model, replicate, seed, injected } = self;
        hex(&digest(&(study, condition, item, format, model, replicate, seed, injected)))
    }

    /// Key of the chain whose first message this one has altered.
    pub fn fork_of(&self) -> Option<String> {
        self.injected.then(|| Trial { injected: false, ..self.clone() }.key())
    }

    /// Where a fact stands in the order in which facts are chosen to be altered: not of the format, the condition or
    /// the model, so that they alter the same one where they can.
    pub fn injection_rank(&self, fact: &str) -> u64 {
        seed_of(&("inject", self.seed, &self.item, self.replicate, fact))
    }

    /// Root of the chain's draws. Not of the model: two models meet the same draws. A fork draws as its clean chain does.
    pub fn chain_seed(&self) -> u64 {
        seed_of(&("chain", self.seed, &self.item, &self.format, &self.condition, self.replicate))
    }

    /// Root of the draws of hop `hop`, counted from 1.
    pub fn hop_seed(&self, hop: u32) -> u64 {
        seed_of(&("hop", self.chain_seed(), hop))
    }
}

/// SHA-256 of the compact JSON of a tuple. JSON keeps the parts apart: no two
/// tuples of strings and numbers share a text.
fn digest(parts: &impl Serialize) -> [u8; 32] {
    let text = serde_json::to_vec(parts).expect("strings and whole numbers always have a JSON form");
    Sha256::digest(&text).into()
}

/// The first 63 bits of the digest: a seed then fits the signed integers of SQLite.
fn seed_of(parts: &impl Serialize) -> u64 {
    let digest = digest(parts);
    u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes")) >> 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(name: &str) -> PlannedFormat {
        let format = Format::by_name(name).expect("a built-in format");
        PlannedFormat { format, prompt_sha256: "00".into() }
    }

    fn plan() -> RelayPlan {
        RelayPlan {
            study: STUDY.into(),
            code: CODE.into(),
            models: vec![PlannedModel::Local {
                identity: ModelIdentity {
                    name: "m".into(),
                    sha256: "ab".into(),
                    quantization: "Q8_0".into(),
                    template: Some("t".into()),
                    folds_system: false,
                    family: "llama".into(),
                },
                device: "cpu".into(),
                isa: "avx2".into(),
            }],
            formats: vec![format("kv"), format("json")],
            corpus: CorpusSource::Generated { seed: 7 },
            items: 2,
            items_sha256: "11".into(),
            hops: 3,
            temperature: 0.7,
            top_k: None,
            top_p: None,
            max_tokens: 100,
            shots: 1,
            conditions: vec![Condition::Plain],
            inject: false,
            replicates: 2,
            seed: 7,
            until: None,
        }
    }

    /// Expected values from Python:
    /// `j = lambda *p: hashlib.sha256(json.dumps(p, separators=(",", ":"), ensure_ascii=False).encode()).digest()`,
    /// key `j("relay", "plain", "ü\"1", "kv", "ab", 1, 2**64 - 1, False).hex()`,
    /// seed `int.from_bytes(j("chain", …)[:8], "big") >> 1`.
    #[test]
    fn keys_and_seeds_are_the_documented_hashes() {
        let trial = Trial {
            study: STUDY.into(),
            condition: Condition::Plain,
            item: "ü\"1".into(),
            format: "kv".into(),
            model: "ab".into(),
            replicate: 1,
            seed: u64::MAX,
            injected: false,
        };
        assert_eq!(trial.key(), "a2b26e4d9e647f6d06d7a2a5ef9cdb0c5f1448b166d74890dbe9a43e05c001b3");
        assert_eq!(trial.chain_seed(), 63_505_078_453_736_097);
        assert_eq!(trial.hop_seed(1), 8_394_678_664_944_580_598);
        assert_eq!(trial.hop_seed(6), 3_792_753_968_971_419_143);
    }

    #[test]
    fn every_part_of_a_trial_changes_its_key_and_all_but_the_model_its_seed() {
        let base = plan().trials(&["a".into()]).remove(0);
        type Change = fn(&mut Trial);
        let changes: [(&str, Change); 5] = [
            ("item", |t| t.item = "b".into()),
            ("format", |t| t.format = "xml".into()),
            ("condition", |t| t.condition = Condition::Loaded),
            ("replicate", |t| t.replicate = 9),
            ("seed", |t| t.seed = 8),
        ];
        for (what, change) in changes {
            let mut other = base.clone();
            change(&mut other);
            assert_ne!(base.key(), other.key(), "{what}");
            assert_ne!(base.chain_seed(), other.chain_seed(), "{what}");
        }
        let other = Trial { model: "cd".into(), ..base.clone() };
        assert_ne!(base.key(), other.key());
        assert_eq!(base.chain_seed(), other.chain_seed());
        assert_ne!(base.hop_seed(1), base.hop_seed(2));
        let fork = Trial { injected: true, ..base.clone() };
        assert_ne!(base.key(), fork.key());
        assert_eq!(base.chain_seed(), fork.chain_seed());
        assert_eq!((base.fork_of(), fork.fork_of()), (None, Some(base.key())));
    }

    #[test]
    fn trials_are_all_combinations_with_formats_together() {
        let trials = plan().trials(&["a".into(), "b".into()]);
        let seen: Vec<_> = trials.iter().map(|t| format!("{}/{}/{}", t.format, t.item, t.replicate)).collect();
        assert_eq!(seen, ["kv/a/0", "kv/a/1", "kv/b/0", "kv/b/1", "json/a/0", "json/a/1", "json/b/0", "json/b/1"]);
        let keys: std::collections::HashSet<_> = trials.iter().map(Trial::key).collect();
        assert_eq!(keys.len(), trials.len());
        let remote = |url: &str| PlannedModel::Remote { name: "m".into(), base_url: url.into() };
        let both = RelayPlan {
            models: vec![remote("http://a/v1"), remote("http://b/v1")],
            conditions: vec![Condition::Plain, Condition::Loaded],
            inject: true,
            ..plan()
        };
        let trials = both.trials(&["a".into()]);
        assert_eq!(trials.len(), 2 * 2 * 2 * 2 * 2, "models × conditions × formats × replicates × forks");
        let keys: std::collections::HashSet<_> = trials.iter().map(Trial::key).collect();
        assert_eq!(keys.len(), trials.len());
        for (index, trial) in trials.iter().enumerate().filter(|(_, trial)| trial.injected) {
            assert_eq!(trial.fork_of(), Some(trials[index - 1].key()), "a fork follows its clean chain");
        }
    }

    #[test]
    fn a_difference_names_the_setting_and_both_sides() {
        let stored = plan();
        assert_eq!(stored.diff(&stored), Vec::<String>::new());
        let mut now = plan();
        let PlannedModel::Local { identity, .. } = &mut now.models[0] else { panic!("a local model") };
        identity.sha256 = "cd".into();
        now.temperature = 0.0;
        now.top_k = Some(40);
        now.formats[1].prompt_sha256 = "ff".into();
        now.corpus = CorpusSource::File { sha256: "ee".into() };
        assert_eq!(
            stored.diff(&now),
            [
                r#"models.0.identity.sha256: stored "ab", now "cd""#,
                r#"formats.1.prompt_sha256: stored "00", now "ff""#,
                r#"corpus.kind: stored "generated", now "file""#,
                "corpus.seed: stored 7, now null",
                r#"corpus.sha256: stored null, now "ee""#,
                "temperature: stored 0.7, now 0.0",
                "top_k: stored null, now 40",
            ]
        );
        now.formats.truncate(1);
        assert!(stored.diff(&now).iter().any(|line| line.starts_with("formats: stored [{")));
    }

    #[test]
    fn a_plan_survives_its_text_and_an_unknown_setting_is_refused() {
        let text = serde_json::to_string(&plan()).expect("a plan has a JSON form");
        assert_eq!(serde_json::from_str::<RelayPlan>(&text).expect("its own text"), plan());
        let extra = text.replacen("{\"study\"", "{\"beams\":4,\"study\"", 1);
        assert!(serde_json::from_str::<RelayPlan>(&extra).is_err());
    }
}
