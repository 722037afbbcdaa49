//! The proof of batch invariance on the machine and model at hand: what `weaklink selfcheck` runs.
//!
//! Fixed prompts are computed alone, and again in every other way that an engine may choose: side by side, in pieces,
//! with other numbers of threads, from cache blocks full of leftovers, put aside when blocks run out. Logits must
//! have the same bits, and generated tokens must be the same ones.

use std::sync::Arc;

use anyhow::{Context, bail};
use serde::Serialize;
use weaklink_models::batch::{Batch, Logits};
use weaklink_models::decoder::Decoder;
use weaklink_models::kv::{BLOCK_SIZE, KvCache};
use weaklink_models::text::Text;

use crate::engine::{EngineHandle, EngineLimits};
use crate::generate::{Prompt, Request, Sampling};

/// Tokens of the prompts: around the block size, ragged.
const LENGTHS: [usize; 8] = [17, 1, 50, 15, 2, 33, 16, 7];

/// Tokens generated after each prompt.
const GENERATED: usize = 12;

/// A way to compute the prompts' logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Sequences side by side; beyond the number of prompts these are repeated.
    pub batch: usize,
    /// Tokens of a sequence in one step.
    pub piece: usize,
    /// Threads that compute.
    pub threads: usize,
}

impl Setting {
    /// What the others are compared with.
    pub const REFERENCE: Setting = Setting { batch: 1, piece: usize::MAX, threads: 1 };
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.batch {
            1 => write!(f, "logits alone")?,
            n => write!(f, "logits in a batch of {n}")?,
        }
        if self.piece != usize::MAX {
            write!(f, ", pieces of {}", self.piece)?;
        }
        write!(f, ", threads {}", self.threads)
    }
}

/// The first place where two ways of computing the same disagree.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The setting that disagrees with the reference.
    pub setting: String,
    /// Index of the prompt.
    pub prompt: usize,
    /// Index of the token in its prompt (logits), or among those generated.
    pub position: usize,
    /// The token whose logit differs; `None` where the generated tokens do.
    pub logit_of: Option<usize>,
    /// What the reference has: a logit and its bits, or a token.
    pub expected: String,
    /// What was found instead.
    pub found: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { setting, prompt, position, expected, found, .. } = self;
        let what = self.logit_of.map_or("generated token".into(), |id| format!("logit of token {id}"));
        write!(f, "{setting}: prompt {prompt}, position {position}: {what} is {found}, alone it is {expected}")
    }
}

/// What was compared, and the first difference if there is one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Different prompts.
    pub prompts: usize,
    /// Rows of logits compared bit by bit, over all settings.
    pub logit_rows: usize,
    /// Generated tokens compared, over all settings.
    pub tokens: usize,
    /// The settings compared with the reference, up to the one that differs.
    pub settings: Vec<String>,
    /// The first difference.
    pub difference: Option<Difference>,
}

/// A model with the prompts that it is checked with.
pub struct Check {
    decoder: Arc<Decoder>,
    text: Arc<Text>,
    prompts: Vec<Vec<u32>>,
    cache: KvCache,
    /// Blocks of the longest prompt.
    blocks: usize,
}

/// Logits of every token of every prompt: `[prompt][token][vocabulary]`.
pub type PromptLogits = Vec<Vec<Vec<f32>>>;

/// Sequences in the largest batch.
const MOST: usize = 64;

impl Check {
    /// Prepares the prompts and a cache.
    pub fn new(decoder: Arc<Decoder>, text: Arc<Text>) -> anyhow::Result<Self> {
        let (vocab, context) = (decoder.config().vocab, decoder.config().context);
        let Some(longest) = context.checked_sub(GENERATED).filter(|&n| n > 0) else {
            bail!("a context of {context} tokens is too short to check anything");
        };
        // Ids that look random and are the same every time.
        let id = |s: usize, i: usize| ((s * 7919 + i * 104_729 + i * i * 31) % vocab) as u32;
        let lengths = LENGTHS.iter().map(|&len| len.min(longest)).enumerate();
        let prompts: Vec<Vec<u32>> = lengths.map(|(s, len)| (0..len).map(|i| id(s, i)).collect()).collect();
        let blocks = prompts.iter().map(|prompt| prompt.len().div_ceil(BLOCK_SIZE)).max().unwrap_or(1);
        let cache = KvCache::new(decoder.config(), MOST * blocks, decoder.device())?;
        Ok(Self { decoder, text, prompts, cache, blocks })
    }

    /// Compares everything; stops at the first difference. `threads` is one of the numbers of threads tried.
    pub fn run(&mut self, threads: usize) -> anyhow::Result<Report> {
        let mut report = Report { prompts: self.prompts.len(), ..Report::default() };
        let expected = self.logits(Setting::REFERENCE)?;
        for setting in [
            Setting { batch: 1, piece: 3, threads },
            Setting { batch: 2, piece: usize::MAX, threads },
            Setting { batch: 8, piece: 7, threads: 3 },
            Setting { batch: 8, piece: 1, threads: 2 },
            Setting { batch: 32, piece: 5, threads: 1 },
            Setting { batch: MOST, piece: 4, threads },
        ] {
            report.settings.push(setting.to_string());
            let rows = self.prompts.iter().map(Vec::len).sum::<usize>();
            report.logit_rows += rows * setting.batch.div_ceil(self.prompts.len());
            report.difference = self.compare(setting, &expected)?;
            if report.difference.is_some() {
                return Ok(report);
            }
        }
        let blocks = 2 * self.prompts.len() * (self.blocks + 1);
        let context = self.decoder.config().context;
        let roomy = EngineLimits { batch: 1, step_tokens: 512, blocks, context, draft_rows: 0 };
        let expected = self.generate(roomy, 1)?;
        // One block more than the longest sequence needs: the others lose theirs again and again.
        let tight = self.longest().div_ceil(BLOCK_SIZE) + 1;
        for (name, limits, threads) in [
            ("batch 2", EngineLimits { batch: 2, ..roomy }, threads),
            ("batch 16, steps of 16 tokens", EngineLimits { batch: 16, step_tokens: 16, ..roomy }, 2),
            ("batch 16", EngineLimits { batch: 16, ..roomy }, 3),
            ("batch 2 with drafts", EngineLimits { batch: 2, draft_rows: 16, ..roomy }, threads),
            ("batch 6 in too few blocks", EngineLimits { batch: 6, blocks: tight, ..roomy }, threads),
        ] {
            let setting = format!("tokens at {name}, threads {threads}");
            report.settings.push(setting.clone());
            let found = self.generate(limits, threads)?;
            report.tokens += expected.iter().map(Vec::len).sum::<usize>();
            report.difference = compare_tokens(&setting, self.prompts.len(), &expected, &found);
            if report.difference.is_some() {
                break;
            }
        }
        Ok(report)
    }

    /// The logits of all prompts, each computed alone unless the setting says otherwise. Of repeated prompts the first.
    pub fn logits(&mut self, setting: Setting) -> anyhow::Result<PromptLogits> {
        let mut all = vec![Vec::new(); self.prompts.len()];
        self.each_row(setting, |prompt, repeat, row| {
            if repeat == 0 {
                all[prompt].push(row);
            }
            true
        })?;
        Ok(all)
    }

    /// Computes the logits of all prompts in this setting and tells the first that has other bits than expected.
    ///
    /// First means: in the order in which they are computed.
    pub fn compare(&mut self, setting: Setting, expected: &PromptLogits) -> anyhow::Result<Option<Difference>> {
        let mut next = vec![[0; MOST]; self.prompts.len()];
        let mut difference = None;
        self.each_row(setting, |prompt, repeat, row| {
            let position = next[prompt][repeat];
            next[prompt][repeat] += 1;
            let wanted = &expected[prompt][position];
            let id = row.iter().zip(wanted).position(|(a, b)| a.to_bits() != b.to_bits());
            difference = id.map(|id| {
                let shown = |logit: f32| format!("{logit} ({:#010x})", logit.to_bits());
                Difference {
                    setting: setting.to_string(),
                    prompt,
                    position,
                    logit_of: Some(id),
                    expected: shown(wanted[id]),
                    found: shown(row[id]),
                }
            });
            difference.is_none()
        })?;
        Ok(difference)
    }

    /// Computes all prompts and hands over each row of logits with its prompt and the repeat of it, in order of
    /// positions, until `take` has enough.
    fn each_row(
        &mut self,
        setting: Setting,
        mut take: impl FnMut(usize, usize, Vec<f32>) -> bool,
    ) -> anyhow::Result<()> {
        let workers = rayon::ThreadPoolBuilder::new().num_threads(setting.threads).build()?;
        let count = self.prompts.len();
        let sequences: Vec<usize> = (0..count.max(setting.batch.min(MOST))).collect();
        for group in sequences.chunks(setting.batch.min(MOST)) {
            let longest = group.iter().map(|s| self.prompts[s % count].len()).max().unwrap_or(0);
            let mut from = 0;
            while from < longest {
                let to = from.saturating_add(setting.piece).min(longest);
                let mut batch = Batch::default();
                let mut owners = Vec::new();
                for (place, &s) in group.iter().enumerate() {
                    let prompt = &self.prompts[s % count];
                    let piece = &prompt[from.min(prompt.len())..to.min(prompt.len())];
                    if !piece.is_empty() {
                        let table = self.table(place);
                        batch.push(piece, from, &table, BLOCK_SIZE, Logits::All);
                        owners.extend(std::iter::repeat_n((s % count, s / count), piece.len()));
                    }
                }
                let (decoder, cache) = (&self.decoder, &mut self.cache);
                let rows = workers.install(|| decoder.forward(&batch, cache))?;
                for ((prompt, repeat), row) in owners.into_iter().zip(rows) {
                    if !take(prompt, repeat, row) {
                        return Ok(());
                    }
                }
                from = to;
            }
        }
        Ok(())
    }

    /// A block table scattered over the cache, whose blocks hold what earlier settings left there.
    fn table(&self, place: usize) -> Vec<u32> {
        let all = MOST * self.blocks;
        // A step that has no factor in common with the number of blocks meets each of them once.
        let step = [37, 41, 43].into_iter().find(|step| !all.is_multiple_of(*step)).unwrap_or(1);
        (place * self.blocks..(place + 1) * self.blocks).map(|block| ((block * step + 5) % all) as u32).collect()
    }

    fn longest(&self) -> usize {
        self.prompts.iter().map(Vec::len).max().unwrap_or(0) + GENERATED
    }

    /// The tokens generated for every prompt, greedily and then at temperature 0.7, by an engine of its own.
    pub fn generate(&self, limits: EngineLimits, threads: usize) -> anyhow::Result<Vec<Vec<u32>>> {
        let engine = EngineHandle::start(self.decoder.clone(), self.text.clone(), limits, threads)?;
        let warm = Sampling { temperature: 0.7, top_k: None, top_p: None };
        let requests = [Sampling::GREEDY, warm].into_iter().flat_map(|sampling| {
            self.prompts.iter().enumerate().map(move |(n, prompt)| Request {
                prompt: Prompt::Tokens(prompt.clone()),
                max_tokens: GENERATED,
                sampling,
                stop: Vec::new(),
                grammar: None,
                seed: n as u64,
                logprobs: None,
            })
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        runtime.block_on(async {
            let submit = |request| {
                let engine = engine.clone();
                tokio::spawn(async move { engine.generate(request).await })
            };
            let answers: Vec<_> = requests.map(submit).collect();
            let mut tokens = Vec::with_capacity(answers.len());
            for answer in answers {
                tokens.push(answer.await.context("a request of the self-check ended early")??.token_ids);
            }
            Ok(tokens)
        })
    }
}

/// The first generated token that is not the expected one; the lists go through the prompts twice.
pub fn compare_tokens(setting: &str, prompts: usize, expected: &[Vec<u32>], found: &[Vec<u32>]) -> Option<Difference> {
    let at = |tokens: &[u32], i: usize| tokens.get(i).map_or("the end".into(), u32::to_string);
    expected.iter().zip(found).enumerate().find(|(_, (e, f))| e != f).map(|(n, (e, f))| {
        let position = e.iter().zip(f).position(|(e, f)| e != f).unwrap_or(e.len().min(f.len()));
        let sampled = if n < prompts { "greedy" } else { "at temperature 0.7" };
        Difference {
            setting: format!("{setting}, {sampled}"),
            prompt: n % prompts.max(1),
            position,
            logit_of: None,
            expected: at(e, position),
            found: at(f, position),
        }
    })
}
