//! What a run measured, from its store alone: the document of `--json` and the
//! tables for people.
//!
//! The item is the unit of every mean and interval: replicates of an item are
//! averaged first, because they are not new evidence about other items. Chains
//! that failed are counted and take no part; a measure that does not exist is
//! `None`, never 0.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::Context;
use serde::{Serialize, Serializer};

use crate::score::{MessageScore, score};
use crate::stats::{self, Bootstrap};
use crate::store::{HopRow, Store, TrialRow};

use super::plan::RelayPlan;
use super::prepare::Relay;

mod text;
pub(crate) use text::grid;

/// The measures of a run, as `relay --json` prints them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Folder of the run.
    pub run: String,
    /// Name of the model.
    pub model: String,
    /// Device it ran on.
    pub device: String,
    /// Instruction set of the kernels, where there are any.
    pub isa: Option<String>,
    /// Items of the run.
    pub items: usize,
    /// By format, in the order of the plan.
    #[serde(serialize_with = "as_map")]
    pub formats: Vec<(String, FormatSummary)>,
    /// Time in which at least one hop was being made, sessions added up.
    pub seconds: f64,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Of these, tokens found in the cache.
    pub cached_tokens: u64,
    /// Tokens drawn.
    pub generated_tokens: u64,
    /// Chains that ended without their last message.
    pub failed: usize,
    /// The settings that shape the messages, for people.
    #[serde(skip)]
    pub settings: String,
    /// Chains that are neither whole nor failed: the run can be resumed.
    #[serde(skip)]
    pub unfinished: usize,
}

/// One format.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FormatSummary {
    /// One a hop, from hop 1.
    pub hops: Vec<HopSummary>,
    /// 1 − recall at hop 1.
    pub toll: Option<f64>,
    /// Recall at hop 1 − recall at the last hop, over chains that have both.
    pub drift: Option<f64>,
    /// Of the facts right at hop 1, the share still right at the last hop.
    pub retention: Option<f64>,
    /// Tokens drawn for this format over the time in which one of its hops was being made.
    pub tokens_per_second: Option<f64>,
    /// Tokens drawn over facts kept, all messages together.
    pub tokens_per_fact: Option<f64>,
}

/// One hop of one format.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HopSummary {
    /// From 1.
    pub hop: u32,
    /// Mean share of facts whose wording stands in the message.
    pub string_recall: Option<f64>,
    /// Mean share of facts whose value stands under a key of its own; formats with a parser only.
    pub bound_recall: Option<f64>,
    /// Needs a judge.
    pub qa_recall: Option<f64>,
    /// 95 % interval of `string_recall`.
    pub ci: Option<[f64; 2]>,
    /// Messages.
    pub n: usize,
    /// Messages that hit the token limit.
    pub truncated: usize,
    /// Messages that the format's parser refused.
    pub invalid: usize,
    /// Mean tokens of a message.
    pub tokens: Option<f64>,
}

fn as_map<S: Serializer>(formats: &[(String, FormatSummary)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(formats.iter().map(|(name, summary)| (name, summary)))
}

/// A stored message with its scores.
struct Scored {
    row: HopRow,
    score: MessageScore,
}

/// The messages of one chain, from hop 1, without a gap.
struct Chain {
    trial: TrialRow,
    messages: Vec<Scored>,
}

impl Summary {
    /// Reads and scores every message of the run in `dir`.
    ///
    /// # Errors
    /// When the store cannot be read, or its parts do not belong together.
    pub fn of(store: &Store, dir: &Path) -> anyhow::Result<Self> {
        let relay = Relay::stored(store)?;
        let model = relay.plan.models.first().context("the plan names no model")?;
        let mut chains = scored_chains(&relay, store)?;
        chains.retain(|chain| {
            let TrialRow { model: key, condition, fork_of, .. } = &chain.trial;
            *key == model.key() && *condition == relay.plan.conditions[0].name() && fork_of.is_none()
        });
        let rows = || chains.iter().flat_map(|chain| &chain.messages).map(|message| &message.row);
        let failed = store.failures()?.len();
        let whole = chains.iter().filter(|chain| chain.messages.len() == relay.plan.hops as usize).count();
        let bootstrap = Bootstrap { seed: relay.plan.seed, ..Bootstrap::default() };
        let formats = relay.formats.iter().map(|format| {
            let of_format: Vec<_> = chains.iter().filter(|chain| chain.trial.format == format.name).collect();
            (format.name.clone(), summarize(&of_format, relay.plan.hops, bootstrap))
        });
        Ok(Self {
            run: dir.display().to_string(),
            model: model.name().to_owned(),
            device: model.device().to_owned(),
            isa: model.isa().map(str::to_owned),
            items: relay.plan.items,
            formats: formats.collect(),
            seconds: busy_seconds(rows()),
            prompt_tokens: rows().map(|row| row.prompt_tokens).sum(),
            cached_tokens: rows().map(|row| row.cached_tokens).sum(),
            generated_tokens: rows().map(|row| row.generated_tokens).sum(),
            failed,
            settings: settings(&relay.plan),
            unfinished: chains.len().saturating_sub(whole + failed),
        })
    }
}

impl Summary {
    /// Whether half of the interval of every format's recall at the last hop is below `half_width`.
    pub fn is_narrower_than(&self, half_width: f64) -> bool {
        let last = |format: &FormatSummary| format.hops.last().and_then(|hop| hop.ci);
        self.formats.iter().all(|(_, format)| last(format).is_some_and(|[lo, hi]| (hi - lo) / 2.0 < half_width))
    }
}

fn settings(plan: &RelayPlan) -> String {
    let shots = if plan.shots == 0 { "no worked example" } else { "one worked example before each message" };
    format!(
        "temperature {}, at most {} tokens a message, {shots}, seed {}",
        plan.temperature, plan.max_tokens, plan.seed
    )
}

fn scored_chains(relay: &Relay, store: &Store) -> anyhow::Result<Vec<Chain>> {
    let items: HashMap<_, _> = relay.items.iter().map(|item| (item.id.as_str(), item)).collect();
    let mut by_trial: HashMap<String, Vec<HopRow>> = HashMap::new();
    for row in store.hops()? {
        by_trial.entry(row.trial.clone()).or_default().push(row);
    }
    let chains = store.trials()?.into_iter().map(|trial| {
        let item = items.get(trial.item.as_str()).with_context(|| format!("no item {} in the run", trial.item))?;
        let format = relay.formats.iter().find(|format| format.name == trial.format);
        let format = format.with_context(|| format!("no format {} in the run", trial.format))?;
        let rows = by_trial.remove(&trial.key).unwrap_or_default();
        let scored = |row: HopRow| Scored { score: score(item, format, &row.message), row };
        Ok(Chain { messages: rows.into_iter().map(scored).collect(), trial })
    });
    chains.collect()
}

fn summarize(chains: &[&Chain], hops: u32, bootstrap: Bootstrap) -> FormatSummary {
    let summaries: Vec<_> = (1..=hops).map(|hop| summarize_hop(chains, hop, bootstrap)).collect();
    // A chain of one hop drifts nowhere: there is nothing to compare.
    let ends: Vec<_> = chains.iter().filter(|_| hops > 1).filter_map(|chain| ends(chain, hops)).collect();
    let recall = |end: usize| item_means(ends.iter().map(|(chain, scores)| (*chain, scores[end].string_recall)));
    let right = |end: usize| {
        let of_chain = |score: &MessageScore| score.facts.iter().map(|fact| fact.string).collect::<Vec<_>>();
        let chains = by_item(ends.iter().map(|(chain, scores)| (*chain, of_chain(scores[end]))));
        chains.into_iter().map(|facts| facts.concat()).collect::<Vec<_>>()
    };
    let messages = || chains.iter().flat_map(|chain| &chain.messages);
    let tokens = messages().map(|message| message.row.generated_tokens).sum::<u64>() as f64;
    let kept = messages().map(|message| kept(&message.score)).sum::<usize>() as f64;
    FormatSummary {
        toll: summaries.first().and_then(|hop| hop.string_recall).map(|recall| 1.0 - recall),
        drift: bootstrap.drift(&recall(0), &recall(1)).value,
        retention: bootstrap.retention(&right(0), &right(1)).value,
        tokens_per_second: ratio(tokens, busy_seconds(messages().map(|message| &message.row))),
        tokens_per_fact: ratio(tokens, kept),
        hops: summaries,
    }
}

fn summarize_hop(chains: &[&Chain], hop: u32, bootstrap: Bootstrap) -> HopSummary {
    let at = |chain: &&Chain| chain.messages.iter().position(|message| message.row.hop == hop);
    let here: Vec<_> = chains.iter().filter_map(|c| at(c).map(|index| (*c, &c.messages[index]))).collect();
    let recalls = here.iter().map(|(chain, message)| (*chain, message.score.string_recall));
    let recall = bootstrap.share(&item_means(recalls));
    let bound = here.iter().filter_map(|(chain, message)| Some((*chain, message.score.bound_recall?)));
    let tokens = here.iter().map(|(_, message)| message.row.generated_tokens).sum::<u64>();
    HopSummary {
        hop,
        string_recall: recall.value,
        bound_recall: stats::mean(&item_means(bound)),
        qa_recall: None,
        ci: recall.bounds.ends(),
        n: here.len(),
        truncated: here.iter().filter(|(_, message)| message.row.truncated).count(),
        invalid: here.iter().filter(|(_, message)| message.row.invalid).count(),
        tokens: ratio(tokens as f64, here.len() as f64),
    }
}

/// A chain with the scores of its first and last message, when it has both.
fn ends<'a>(chain: &&'a Chain, hops: u32) -> Option<(&'a Chain, [&'a MessageScore; 2])> {
    let (first, last) = (chain.messages.first()?, chain.messages.last()?);
    let whole = first.row.hop == 1 && last.row.hop == hops;
    whole.then_some((*chain, [&first.score, &last.score]))
}

fn kept(score: &MessageScore) -> usize {
    score.facts.iter().filter(|fact| fact.string).count()
}

/// The values of each item's chains, items in one order for all measures of a run.
fn by_item<'a, T>(values: impl Iterator<Item = (&'a Chain, T)>) -> Vec<Vec<T>> {
    let mut items: BTreeMap<&str, Vec<T>> = BTreeMap::new();
    for (chain, value) in values {
        items.entry(&chain.trial.item).or_default().push(value);
    }
    items.into_values().collect()
}

/// One value an item: the mean over its chains.
fn item_means<'a>(values: impl Iterator<Item = (&'a Chain, f64)>) -> Vec<f64> {
    by_item(values).iter().filter_map(|values| stats::mean(values)).collect()
}

/// `None` where there is nothing to divide by.
fn ratio(sum: f64, count: f64) -> Option<f64> {
    (count > 0.0).then_some(sum / count)
}

/// Time in which at least one of the hops was being made: the union of their
/// intervals, so that chains side by side are not counted twice.
fn busy_seconds<'a>(rows: impl Iterator<Item = &'a HopRow>) -> f64 {
    let mut spans: Vec<_> = rows.map(|row| (row.ended - row.seconds.max(0.0), row.ended)).collect();
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut busy = 0.0;
    let mut until = f64::NEG_INFINITY;
    for (began, ended) in spans {
        busy += (ended - began.max(until)).max(0.0);
        until = until.max(ended);
    }
    busy
}
