//! From what the user asked for to a relay that can be driven: parse, then
//! resolve, then run. Everything that can be refused is refused here, before a
//! model is loaded where that is possible.

use std::path::PathBuf;

use anyhow::{bail, ensure};

use crate::engine::load::ModelIdentity;
use crate::generate::{Backend, Message};
use crate::hash::sha256_hex;
use crate::store::{RunFolder, Store, StoreError, TrialRow};

use super::corpus::{self, Item};
use super::format::Format;
use super::plan::{CODE, CorpusSource, PlannedFormat, RelayPlan, STUDY, Trial};

/// More chains than this in one run are a slip of the keyboard.
const MAX_CHAINS: usize = 1_000_000;
/// As are more hops than this in one chain.
const MAX_HOPS: u32 = 10_000;

/// What the user asked for. `None` stands for a default that depends on something else.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names of formats; `all` stands for the five built-in ones without a grammar.
    pub formats: Vec<String>,
    /// How many items; `None` takes all of a corpus file, or [`DEFAULT_ITEMS`].
    pub items: Option<usize>,
    /// A corpus file in place of the generator.
    pub corpus: Option<PathBuf>,
    /// Hops of a chain.
    pub hops: u32,
    /// Sampling temperature.
    pub temperature: f64,
    /// Token limit of a message.
    pub max_tokens: usize,
    /// Exemplars; `None` leaves it to the model's card.
    pub shots: Option<u8>,
    /// Chains of each item, format and condition.
    pub replicates: u32,
    /// Root of every draw, and of the generator.
    pub seed: u64,
}

/// Items of a run when neither their number nor a corpus file is given.
pub const DEFAULT_ITEMS: usize = 8;

/// Settings that were found good, with the formats and items they name.
#[derive(Clone, Debug)]
pub struct Draft {
    settings: Settings,
    formats: Vec<Format>,
    items: Vec<Item>,
    corpus: CorpusSource,
}

impl Settings {
    /// Checks every setting and finds the formats and items.
    ///
    /// # Errors
    /// One line that names the flag, what it was and what it may be.
    pub fn resolve(self) -> anyhow::Result<Draft> {
        ensure!(self.items != Some(0), "--items is 0: a run needs at least one item");
        ensure!(self.hops > 0, "--hops is 0: a chain needs at least one hop");
        ensure!(self.hops <= MAX_HOPS, "--hops is {}: a chain may have {MAX_HOPS} at most", self.hops);
        ensure!(self.replicates > 0, "--replicates is 0: a run needs at least one");
        ensure!(self.max_tokens > 0, "--max-tokens is 0: a message needs at least one token");
        let (t, shots) = (self.temperature, self.shots.unwrap_or(0));
        ensure!((0.0..=100.0).contains(&t), "--temperature is {t}: it may be 0 (always the likeliest token) to 100");
        ensure!(shots <= 1, "--shots is {shots}: it may be 0 or 1");
        let formats = chosen_formats(&self.formats)?;
        let chains = |items: usize| {
            let chains = items.checked_mul(formats.len()).and_then(|n| n.checked_mul(self.replicates as usize));
            let fits = chains.is_some_and(|chains| chains <= MAX_CHAINS);
            ensure!(
                fits,
                "{items} items in {} formats with --replicates {} are more than {MAX_CHAINS} chains: lower --items or --replicates",
                formats.len(),
                self.replicates
            );
            Ok(())
        };
        chains(self.items.unwrap_or(1))?;
        let (items, corpus) = self.items()?;
        chains(items.len())?;
        Ok(Draft { settings: self, formats, items, corpus })
    }

    fn items(&self) -> anyhow::Result<(Vec<Item>, CorpusSource)> {
        let Some(path) = &self.corpus else {
            let count = self.items.unwrap_or(DEFAULT_ITEMS) as u64;
            let items = (0..count).map(|index| corpus::generate(self.seed, index)).collect();
            return Ok((items, CorpusSource::Generated { seed: self.seed }));
        };
        // Read once: the hash is of what was parsed, and a pipe can be read no second time.
        let bytes = corpus::read(path)?;
        let mut items = corpus::parse(&bytes[..], path)?;
        if let Some(count) = self.items {
            ensure!(count <= items.len(), "--items is {count}, but {} holds {}", path.display(), items.len());
            items.truncate(count);
        }
        Ok((items, CorpusSource::File { sha256: sha256_hex(&bytes) }))
    }
}

fn chosen_formats(names: &[String]) -> anyhow::Result<Vec<Format>> {
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
    ensure!(!chosen.is_empty(), "--formats names no format");
    Ok(chosen)
}

fn items_sha256(items: &[Item]) -> String {
    let lines = items.iter().map(|item| serde_json::to_string(item).expect("items are strings") + "\n");
    sha256_hex(lines.collect::<String>().as_bytes())
}

impl Draft {
    /// Chains of the run.
    pub fn chains(&self) -> usize {
        self.items.len() * self.formats.len() * self.settings.replicates as usize
    }

    /// Tokens that the longest hop may take, as [`Relay::tokens_needed`], before there is a model that answers.
    /// `shots` is what its card asks for.
    ///
    /// # Errors
    /// When a prompt cannot be made into tokens.
    pub fn tokens_needed(&self, shots: u8, count_tokens: &CountTokens) -> anyhow::Result<usize> {
        let Settings { max_tokens, hops, seed, .. } = self.settings;
        let shot = (self.settings.shots.unwrap_or(shots) > 0).then(|| self.corpus.seed_or(seed));
        let conversation = |format: &Format, item: &Item, message: &str| conversation(shot, format, item, message);
        tokens_needed(&self.formats, &self.items, (hops, max_tokens), conversation, count_tokens)
    }

    /// Fills in what the model decides: the plan is then whole.
    pub fn plan(self, model: &Model) -> Relay {
        let Draft { settings, formats, items, corpus } = self;
        let shots = settings.shots.unwrap_or(model.shots);
        let mut plan = RelayPlan {
            study: STUDY.into(),
            code: CODE.into(),
            model: model.identity.clone(),
            device: model.device.clone(),
            isa: model.isa.clone(),
            formats: Vec::new(),
            corpus,
            items: items.len(),
            items_sha256: items_sha256(&items),
            hops: settings.hops,
            temperature: settings.temperature,
            top_k: None,
            top_p: None,
            max_tokens: settings.max_tokens,
            shots,
            conditions: vec!["plain".into()],
            replicates: settings.replicates,
            seed: settings.seed,
        };
        plan.formats = planned_formats(&plan, &formats, &items);
        Relay { plan, items, formats }
    }
}

fn planned_formats(plan: &RelayPlan, formats: &[Format], items: &[Item]) -> Vec<PlannedFormat> {
    let planned = |format: &Format| {
        let prompts: Vec<_> = items.iter().map(|item| conversation(shot_seed(plan), format, item, "")).collect();
        let text = serde_json::to_vec(&prompts).expect("messages are strings");
        PlannedFormat { format: format.clone(), prompt_sha256: sha256_hex(&text) }
    };
    formats.iter().map(planned).collect()
}

/// What a hop is shown: with one shot, an item that shares nothing with the corpus
/// and its faithful handoff stand before the message, the same at every hop.
fn conversation(shot_seed: Option<u64>, format: &Format, item: &Item, message: &str) -> Vec<Message> {
    let exemplar = shot_seed.map(|seed| corpus::exemplar(seed, item));
    format.hop_messages(exemplar.as_ref(), message)
}

/// Root of the exemplar, where there is one.
fn shot_seed(plan: &RelayPlan) -> Option<u64> {
    (plan.shots > 0).then(|| plan.corpus_seed())
}

/// See [`Relay::tokens_needed`]; `limits` are hops and tokens of a message.
fn tokens_needed(
    formats: &[Format],
    items: &[Item],
    (hops, max_tokens): (u32, usize),
    conversation: impl Fn(&Format, &Item, &str) -> Vec<Message>,
    count_tokens: &CountTokens,
) -> anyhow::Result<usize> {
    let mut longest = 0;
    for format in formats {
        for item in items {
            let first = count_tokens(&conversation(format, item, &item.brief))?;
            let later =
                if hops > 1 { count_tokens(&conversation(format, item, ""))?.saturating_add(max_tokens) } else { 0 };
            longest = longest.max(first).max(later);
        }
    }
    Ok(longest.saturating_add(max_tokens))
}

/// A model that answers, and what a plan records of it.
pub struct Model {
    /// Makes the completions.
    pub backend: Backend,
    /// Which weights, tokenizer and template.
    pub identity: ModelIdentity,
    /// `cpu` or `cuda:N`.
    pub device: String,
    /// Instruction set of the kernels.
    pub isa: String,
    /// Exemplars that its card asks for, where the user names no number.
    pub shots: u8,
    /// Tokens that fit, prompt and answer together.
    pub context: usize,
    /// Counts the tokens of a conversation as the model would be given it.
    pub count_tokens: Box<CountTokens>,
}

/// See [`Model::count_tokens`].
pub type CountTokens = dyn Fn(&[Message]) -> anyhow::Result<usize> + Send + Sync;

/// A relay ready to be driven: the plan, and the things it names.
#[derive(Clone, Debug)]
pub struct Relay {
    /// Every setting.
    pub plan: RelayPlan,
    /// The items, in the order of the plan.
    pub items: Vec<Item>,
    /// The formats, in the order of the plan.
    pub formats: Vec<Format>,
}

impl Relay {
    /// The relay stored in `store`; nothing but the store is read.
    ///
    /// # Errors
    /// When the store cannot be read, or does not agree with itself.
    pub fn stored(store: &Store) -> anyhow::Result<Self> {
        let plan: RelayPlan = store.plan()?;
        let formats = plan.formats.iter().map(|planned| planned.format.clone()).collect();
        let items: Vec<Item> = store.items()?;
        ensure!(items_sha256(&items) == plan.items_sha256, "the stored items are not those of the stored plan");
        Ok(Self { plan, items, formats })
    }

    /// The plan that this build would make of the stored settings with `model`:
    /// equal to the stored one when the same messages would come of it.
    pub fn plan_now(&self, model: &Model) -> RelayPlan {
        // A format that this build does not know is a user's: the stored one is all there is of it.
        let now = |format: &Format| Format::by_name(&format.name).unwrap_or_else(|_| format.clone());
        let formats: Vec<_> = self.formats.iter().map(now).collect();
        // The same weights under another name make the same messages.
        let name = self.plan.model.name.clone();
        RelayPlan {
            code: CODE.into(),
            model: ModelIdentity { name, ..model.identity.clone() },
            device: model.device.clone(),
            isa: model.isa.clone(),
            formats: planned_formats(&self.plan, &formats, &self.items),
            ..self.plan.clone()
        }
    }

    /// Refuses a model or a build that would make other messages than those stored.
    ///
    /// # Errors
    /// When anything differs; the error names all of it, both sides.
    pub fn check_unchanged(&self, model: &Model) -> anyhow::Result<()> {
        let differences = self.plan.diff(&self.plan_now(model));
        if differences.is_empty() {
            return Ok(());
        }
        bail!("the plan has changed, so the run cannot go on: {}", differences.join("; "))
    }

    /// Tokens that the longest hop may take, prompt and answer together, with messages as long as the limit allows.
    ///
    /// # Errors
    /// When a prompt cannot be made into tokens.
    pub fn tokens_needed(&self, count_tokens: &CountTokens) -> anyhow::Result<usize> {
        let conversation = |format: &Format, item: &Item, message: &str| self.conversation(format, item, message);
        let limits = (self.plan.hops, self.plan.max_tokens);
        tokens_needed(&self.formats, &self.items, limits, conversation, count_tokens)
    }

    /// Refuses a run whose prompts cannot fit the model's context, as far as that
    /// can be known before any message is made: at hop 1, and at later hops for a
    /// message as long as the limit allows.
    ///
    /// # Errors
    /// When one does not fit; the error names it and both numbers.
    pub fn check_fit(&self, model: &Model) -> anyhow::Result<()> {
        let Model { context, count_tokens, .. } = model;
        let limit = self.plan.max_tokens;
        let fits = |what: &str, format: &Format, prompt: usize| {
            let needed = prompt.saturating_add(limit);
            ensure!(
                needed <= *context,
                "format {}: {what} needs {needed} tokens ({prompt} of prompt, {limit} of answer), but the context of {} holds {context}: lower --max-tokens{}",
                format.name,
                self.plan.model.name,
                if self.plan.shots > 0 { " or give --shots 0" } else { "" },
            );
            Ok(())
        };
        for format in &self.formats {
            for item in &self.items {
                let first = count_tokens(&self.conversation(format, item, &item.brief))?;
                fits(&format!("hop 1 of item {}", item.id), format, first)?;
                if self.plan.hops > 1 {
                    let longest = count_tokens(&self.conversation(format, item, ""))?.saturating_add(limit);
                    fits(&format!("a later hop of item {}", item.id), format, longest)?;
                }
            }
        }
        Ok(())
    }

    /// What a hop that reads `message` is shown.
    pub(super) fn conversation(&self, format: &Format, item: &Item, message: &str) -> Vec<Message> {
        conversation(shot_seed(&self.plan), format, item, message)
    }

    /// Every chain, in the order of the plan.
    pub fn trials(&self) -> Vec<Trial> {
        let ids: Vec<_> = self.items.iter().map(|item| item.id.clone()).collect();
        self.plan.trials(&ids)
    }

    /// Writes the plan, the items, the list of chains and what is known of this
    /// session into `folder`.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn begin(&self, folder: RunFolder, session: &impl serde::Serialize) -> Result<Store, StoreError> {
        let items: Vec<_> = self.items.iter().map(|item| (item.id.clone(), item)).collect();
        let rows = self.trials().into_iter().map(|trial| TrialRow {
            key: trial.key(),
            item: trial.item,
            format: trial.format,
            condition: trial.condition,
            replicate: trial.replicate,
            model: trial.model,
            fork_of: None,
        });
        Store::create(folder, &self.plan, &items, &rows.collect::<Vec<_>>(), session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(wanted: &[&str]) -> anyhow::Result<Vec<String>> {
        let wanted: Vec<_> = wanted.iter().map(|name| name.to_string()).collect();
        Ok(chosen_formats(&wanted)?.into_iter().map(|format| format.name).collect())
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
