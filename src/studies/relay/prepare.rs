//! From settings and models to a relay that can be driven: the plan is made whole, and
//! what cannot fit is refused before a model is loaded.

use anyhow::{bail, ensure};

use crate::generate::Message;
use crate::hash::sha256_hex;
use crate::store::{RunFolder, Store, StoreError, TrialRow};

use super::condition::Condition;
use super::corpus::{self, Item};
use super::format::Format;
use super::plan::{CODE, PlannedFormat, PlannedModel, RelayPlan, STUDY, Trial};
pub use super::settings::{DEFAULT_ITEMS, Draft, Settings};

fn items_sha256(items: &[Item]) -> String {
    let lines = items.iter().map(|item| serde_json::to_string(item).expect("items are strings") + "\n");
    sha256_hex(lines.collect::<String>().as_bytes())
}

impl Draft {
    /// Fills in what the models decide: the plan is then whole.
    ///
    /// # Errors
    /// When two models are one, or a prompt does not fit into the context of one of them.
    pub fn plan(self, models: &[&Model]) -> anyhow::Result<Relay> {
        let Draft { settings, formats, items, corpus, until } = self;
        for (index, model) in models.iter().enumerate() {
            let (name, key) = (model.planned.name(), model.planned.key());
            if let Some(other) = models[..index].iter().find(|other| other.planned.key() == key) {
                bail!("--model {name} and --model {} are the same model: name each once", other.planned.name());
            }
        }
        // Items are matched between models, and so is what is shown.
        let shots = settings.shots.or(models.iter().map(|model| model.shots).max()).unwrap_or(0);
        let mut plan = RelayPlan {
            study: STUDY.into(),
            code: CODE.into(),
            models: models.iter().map(|model| model.planned.clone()).collect(),
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
            conditions: settings.conditions,
            inject: settings.inject,
            replicates: settings.replicates,
            seed: settings.seed,
            until,
        };
        plan.formats = planned_formats(&plan, &formats, &items);
        Ok(Relay { plan, items, formats })
    }
}

fn planned_formats(plan: &RelayPlan, formats: &[Format], items: &[Item]) -> Vec<PlannedFormat> {
    let planned = |format: &Format| {
        let shown = |condition: &Condition| {
            let of = |item| conversation(shot_seed(plan), format, *condition, item, "");
            items.iter().map(of).collect::<Vec<_>>()
        };
        let prompts: Vec<_> = plan.conditions.iter().flat_map(shown).collect();
        let text = serde_json::to_vec(&prompts).expect("messages are strings");
        PlannedFormat { format: format.clone(), prompt_sha256: sha256_hex(&text) }
    };
    formats.iter().map(planned).collect()
}

/// What a hop is shown: with one shot, an item that shares nothing with the corpus
/// and its faithful handoff stand before the message, the same at every hop.
fn conversation(
    shot_seed: Option<u64>,
    format: &Format,
    condition: Condition,
    item: &Item,
    message: &str,
) -> Vec<Message> {
    let exemplar = shot_seed.map(|seed| corpus::exemplar(seed, item));
    format.hop_messages(condition, exemplar.as_ref(), message)
}

/// Root of the exemplar, where there is one.
fn shot_seed(plan: &RelayPlan) -> Option<u64> {
    (plan.shots > 0).then(|| plan.corpus_seed())
}

/// A model that can answer: what a plan records of it and what must be known of it before it does.
pub struct Model {
    /// What the plan records.
    pub planned: PlannedModel,
    /// Exemplars that its card asks for, where the user names no number.
    pub shots: u8,
    /// What counts its tokens; `None` where only the endpoint can.
    pub tokens: Option<Tokens>,
}

/// What is known of a model's tokens without running it.
pub struct Tokens {
    /// Tokens that fit, prompt and answer together.
    pub context: usize,
    /// Counts the tokens of a conversation as the model would be given it.
    pub count: Box<CountTokens>,
    /// The text of drawn tokens.
    pub decode: Box<DecodeTokens>,
}

/// See [`Tokens::count`].
pub type CountTokens = dyn Fn(&[Message]) -> anyhow::Result<usize> + Send + Sync;
/// See [`Tokens::decode`].
pub type DecodeTokens = dyn Fn(&[u32]) -> String + Send + Sync;

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

    /// The plan that this build would make of the stored settings with `models`:
    /// equal to the stored one when the same messages would come of it.
    fn plan_now(&self, models: &[&Model]) -> RelayPlan {
        // A format that this build does not know is a user's: the stored one is all there is of it.
        let now = |format: &Format| Format::by_name(&format.name).unwrap_or_else(|_| format.clone());
        let formats: Vec<_> = self.formats.iter().map(now).collect();
        let named = |(index, model): (usize, &&Model)| match self.plan.models.get(index) {
            Some(stored) => model.planned.named_as(stored),
            None => model.planned.clone(),
        };
        RelayPlan {
            code: CODE.into(),
            models: models.iter().enumerate().map(named).collect(),
            formats: planned_formats(&self.plan, &formats, &self.items),
            ..self.plan.clone()
        }
    }

    /// Refuses models or a build that would make other messages than those stored.
    ///
    /// # Errors
    /// When anything differs; the error names all of it, both sides.
    pub fn check_unchanged(&self, models: &[&Model]) -> anyhow::Result<()> {
        let differences = self.plan.diff(&self.plan_now(models));
        if differences.is_empty() {
            return Ok(());
        }
        bail!("the plan has changed, so the run cannot go on: {}", differences.join("; "))
    }

    /// Tokens that the longest hop may take, prompt and answer together, with messages as long as the limit allows.
    /// Refuses a run whose prompts cannot fit the model's context, as far as that can be known before any message is
    /// made: at hop 1, and at later hops for a message as long as the limit allows. 0 where tokens cannot be counted here.
    ///
    /// # Errors
    /// When a hop does not fit, the error names it and both numbers; or when a prompt cannot be made into tokens.
    pub fn check_fit(&self, model: &Model) -> anyhow::Result<usize> {
        let Some(Tokens { context, count, .. }) = &model.tokens else { return Ok(0) };
        let mut longest = 0;
        let mut fits = |what: &str, format: &Format, prompt: usize, answer: usize| {
            let needed = prompt.saturating_add(answer);
            ensure!(
                needed <= *context,
                "format {}: {what} needs {needed} tokens ({prompt} of prompt, {answer} of answer), but the context of {} holds {context}: lower --max-tokens{}",
                format.name,
                model.planned.name(),
                if self.plan.shots > 0 { " or give --shots 0" } else { "" },
            );
            longest = longest.max(needed);
            Ok(())
        };
        for &condition in &self.plan.conditions {
            let answer = condition.token_limit(self.plan.max_tokens);
            for format in &self.formats {
                for item in &self.items {
                    let first = count(&self.conversation(format, condition, item, &item.brief))?;
                    fits(&format!("hop 1 of item {}", item.id), format, first, answer)?;
                    if self.plan.hops > 1 {
                        let empty = count(&self.conversation(format, condition, item, ""))?;
                        // An answer whose headings cannot be found is passed on whole.
                        let later = empty.saturating_add(answer);
                        fits(&format!("a later hop of item {}", item.id), format, later, answer)?;
                    }
                }
            }
        }
        Ok(longest)
    }

    /// What a hop that reads `message` is shown.
    pub(super) fn conversation(
        &self,
        format: &Format,
        condition: Condition,
        item: &Item,
        message: &str,
    ) -> Vec<Message> {
        conversation(shot_seed(&self.plan), format, condition, item, message)
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
            fork_of: trial.fork_of(),
            item: trial.item,
            format: trial.format,
            condition: trial.condition.name().into(),
            replicate: trial.replicate,
            model: trial.model,
        });
        Store::create(folder, &self.plan, &items, &rows.collect::<Vec<_>>(), session)
    }
}
