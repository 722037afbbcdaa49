//! `weaklink show`: the tables of a run again, or one chain hop by hop.

use std::fmt::Write;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::output::emit;
use super::relay::print;
use super::resume::folder_of;
use crate::score::{FactScore, MessageScore, Verdict, score};
use crate::store::{FailureRow, HopRow, InjectionRow, Store, TrialRow};
use crate::studies::relay::condition::Condition;
use crate::studies::relay::corpus::Item;
use crate::studies::relay::format::Format;
use crate::studies::relay::prepare::Relay;
use crate::studies::relay::table::grid;
use crate::terminal::{plain, plain_lines};

/// Shows a run's tables and chains, or the messages of one chain
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weaklink show runs/relay-0001
  weaklink show runs/relay-0001 kv/migration-0-0")]
pub(crate) struct ShowArgs {
    /// Folder of the run
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// A chain: the beginning of its key or of its name, FORMAT/ITEM/REPLICATE
    #[arg(value_name = "CHAIN")]
    chain: Option<String>,
    /// The tables as one JSON document
    #[arg(long, conflicts_with = "chain")]
    json: bool,
}

pub(crate) fn run(args: ShowArgs) -> anyhow::Result<ExitCode> {
    let dir = folder_of(&args.run);
    let store = Store::read(dir)?;
    if args.json {
        print(&store, dir, true)?;
        return Ok(ExitCode::SUCCESS);
    }
    let run = Run::read(&store).with_context(|| format!("cannot show {}", dir.display()))?;
    match &args.chain {
        Some(name) => {
            let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
            emit(&run.chain(run.find(name, dir)?, Paint(colour))?)?;
        }
        None => {
            print(&store, dir, false)?;
            let name = plain(&dir.display().to_string());
            emit(&format!("\nChains (weaklink show {name} CHAIN for the messages)\n{}", run.list()?))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// All of a run, in memory.
struct Run {
    relay: Relay,
    trials: Vec<TrialRow>,
    hops: Vec<HopRow>,
    failures: Vec<FailureRow>,
    injections: Vec<InjectionRow>,
}

impl Run {
    fn read(store: &Store) -> anyhow::Result<Self> {
        Ok(Self {
            relay: Relay::stored(store)?,
            trials: store.trials()?,
            hops: store.hops()?,
            failures: store.failures()?,
            injections: store.injections()?,
        })
    }

    /// The hops of a chain; the store gives them chain by chain.
    fn hops_of(&self, trial: &TrialRow) -> &[HopRow] {
        let start = self.hops.partition_point(|hop| hop.trial < trial.key);
        let end = self.hops.partition_point(|hop| hop.trial <= trial.key);
        &self.hops[start..end]
    }

    fn failure_of(&self, trial: &TrialRow) -> Option<&FailureRow> {
        self.failures.iter().find(|failure| failure.trial == trial.key)
    }

    fn named(&self, trial: &TrialRow) -> anyhow::Result<(&Item, &Format)> {
        let item = self.relay.items.iter().find(|item| item.id == trial.item);
        let format = self.relay.formats.iter().find(|format| format.name == trial.format);
        Ok((item.context("the run lacks an item it names")?, format.context("the run lacks a format it names")?))
    }

    fn find(&self, name: &str, dir: &Path) -> anyhow::Result<&TrialRow> {
        let by_name = |t: &&TrialRow| self.name(t) == name;
        if let Some(trial) = self.trials.iter().find(by_name) {
            return Ok(trial);
        }
        let begins = |t: &&TrialRow| t.key.starts_with(name) || self.name(t).starts_with(&format!("{name}/"));
        let found: Vec<_> = self.trials.iter().filter(begins).collect();
        match found[..] {
            [trial] => Ok(trial),
            [] => bail!(
                "no chain {name:?} in {}: give the beginning of a key or FORMAT/ITEM; `weaklink show {}` lists them",
                dir.display(),
                dir.display()
            ),
            [first, ..] => bail!(
                "{name:?} names {} chains: give more of the key, or of the name, such as {}",
                found.len(),
                plain(&self.name(first))
            ),
        }
    }

    /// `FORMAT/ITEM/REPLICATE`, and after it what tells the chain from others of its kind: the model where there are
    /// several, a condition other than plain, and whether it was altered.
    fn name(&self, trial: &TrialRow) -> String {
        let mut name = format!("{}/{}/{}", trial.format, trial.item, trial.replicate);
        if let [_, _, ..] = self.relay.plan.models[..]
            && let Some(model) = self.relay.plan.models.iter().find(|model| model.key() == trial.model)
        {
            name = name + "/" + model.name();
        }
        if trial.condition != Condition::Plain.name() {
            name = name + "/" + &trial.condition;
        }
        if trial.fork_of.is_some() {
            name += "/injected";
        }
        name
    }

    fn injection_of(&self, trial: &TrialRow) -> Option<&InjectionRow> {
        self.injections.iter().find(|injection| injection.trial == trial.key)
    }

    fn list(&self) -> anyhow::Result<String> {
        let mut rows = vec![["key", "chain", "hops", "facts found", "state"].map(str::to_owned).to_vec()];
        for trial in &self.trials {
            let hops = self.hops_of(trial);
            let (item, format) = self.named(trial)?;
            let kept = hops.iter().map(|hop| kept(&score(item, format, &hop.message)).to_string());
            let state = match self.failure_of(trial) {
                Some(failure) => format!("failed: {}", plain(&failure.kind)),
                None if self.injection_of(trial).is_some_and(|injection| injection.fact.is_none()) => {
                    "no fact could be altered".into()
                }
                None if hops.last().map_or(0, |hop| hop.hop) < self.relay.plan.hops => "unfinished".into(),
                None => "done".into(),
            };
            rows.push(vec![
                trial.key.chars().take(12).collect(),
                plain(&self.name(trial)),
                format!("{}/{}", hops.len(), self.relay.plan.hops - u32::from(trial.fork_of.is_some())),
                kept.collect::<Vec<_>>().join(" "),
                state,
            ]);
        }
        let mut text = String::new();
        grid(&mut text, &rows)?;
        Ok(text)
    }

    /// The brief, then every message with the fate of each fact.
    fn chain(&self, trial: &TrialRow, paint: Paint) -> anyhow::Result<String> {
        let (item, format) = self.named(trial)?;
        let mut text = String::new();
        let name = format!("{} {}", trial.key, self.name(trial));
        writeln!(text, "{}\n\n{}", plain(&name), paint.bold("brief"))?;
        writeln!(text, "{}", marked(&item.brief, &score(item, &prose(format), &item.brief), paint))?;
        if let Some(InjectionRow { fact, message: Some(message), eligible, facts, .. }) = self.injection_of(trial) {
            let what = item.facts.iter().find(|f| Some(&f.id) == fact.as_ref());
            let what = what.context("the run altered a fact that its item lacks")?;
            let title = format!(
                "hop 1, altered: {:?} in place of {:?} ({eligible} of {facts} facts could be altered)",
                what.distractor, what.value
            );
            writeln!(
                text,
                "\n{}\n{}",
                paint.bold(&plain(&title)),
                marked(message, &score(item, format, message), paint)
            )?;
        }
        for hop in self.hops_of(trial) {
            if let Some(analysis) = &hop.analysis {
                let title = format!("hop {}, analysis, cut off: {} tokens", hop.hop, hop.analysis_tokens);
                writeln!(text, "\n{}\n{}", paint.bold(&title), plain_lines(analysis))?;
            }
            let fates = score(item, format, &hop.message);
            let mut title = format!(
                "hop {}: {}/{} facts found word for word, {} tokens",
                hop.hop,
                kept(&fates),
                fates.facts.len(),
                hop.generated_tokens - hop.analysis_tokens
            );
            let flags = [
                (hop.truncated, "truncated"),
                (hop.cut_in_char, "cut inside a character"),
                (hop.invalid, "invalid"),
                (hop.unsplit, "unsplit: no handoff heading after an analysis heading"),
            ];
            for (flag, what) in flags {
                if flag {
                    write!(title, ", {what}")?;
                }
            }
            writeln!(text, "\n{}\n{}", paint.bold(&title), marked(&hop.message, &fates, paint))?;
            for (fact, fate) in item.facts.iter().zip(&fates.facts) {
                let meant = format!("{} {}: {}", fact.subject, fact.relation, fact.wording());
                let found = evidence(fate, &hop.message);
                writeln!(text, "  {} {}{found}", paint.fate(fate.verdict, label(fate.verdict)), plain(&meant))?;
            }
        }
        writeln!(text, "\n{LEGEND}")?;
        if let Some(failure) = self.failure_of(trial) {
            writeln!(text, "\n{}: {}", paint.bold(&format!("hop {} failed", failure.hop)), plain(&failure.detail))?;
        }
        Ok(text)
    }
}

const LEGEND: &str = "kept: found, and under its own key where the format has keys; altered: another value in its place; \
rebound: found under the key of another fact; conflict: its key stands twice with different values; \
unbound: found under no key of a fact; lost: not found.";

/// The brief is prose in every format.
fn prose(format: &Format) -> Format {
    Format { parser: crate::studies::relay::format::Parser::None, ..format.clone() }
}

fn kept(score: &MessageScore) -> usize {
    score.facts.iter().filter(|fact| fact.string).count()
}

/// What stands in the message instead of the fact.
fn evidence(fate: &FactScore, message: &str) -> String {
    let found = fate.span.filter(|_| fate.verdict == Verdict::Altered).and_then(|(start, end)| message.get(start..end));
    found.map(|found| format!(" (now {:?})", plain(found))).unwrap_or_default()
}

/// The text with the bytes that decided a verdict painted in its colour.
fn marked(text: &str, fates: &MessageScore, paint: Paint) -> String {
    let mut spans: Vec<_> = fates.facts.iter().filter_map(|fact| Some((fact.span?, fact.verdict))).collect();
    spans.sort_by_key(|(span, _)| *span);
    let mut out = String::new();
    let mut at = 0;
    for ((start, end), verdict) in spans {
        // Two facts may be decided by overlapping words: the first one paints them.
        if let (Some(before), Some(found)) = (text.get(at..start), text.get(start..end)) {
            out += &plain_lines(before);
            out += &paint.fate(verdict, &plain_lines(found));
            at = end;
        }
    }
    out + &plain_lines(&text[at..])
}

fn label(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Kept => "kept    ",
        Verdict::Altered => "altered ",
        Verdict::Rebound => "rebound ",
        Verdict::Conflict => "conflict",
        Verdict::Unbound => "unbound ",
        Verdict::Lost => "lost    ",
    }
}

/// Colours, or none.
#[derive(Clone, Copy)]
struct Paint(bool);

impl Paint {
    fn fate(self, verdict: Verdict, text: &str) -> String {
        self.code(
            match verdict {
                Verdict::Kept => "32",
                Verdict::Lost => "31",
                Verdict::Altered | Verdict::Rebound | Verdict::Conflict | Verdict::Unbound => "33",
            },
            text,
        )
    }

    fn bold(self, text: &str) -> String {
        self.code("1", text)
    }

    fn code(self, code: &str, text: &str) -> String {
        if self.0 && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
