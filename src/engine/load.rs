//! From a model's files to a running engine: identity, memory plan, weights, thread.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use weaklink_kernels::QuantMatrix;
use weaklink_models::config::DecoderConfig;
use weaklink_models::decoder::Decoder;
use weaklink_models::fetch::LocalModel;
use weaklink_models::gguf::Gguf;
use weaklink_models::kv::{BLOCK_SIZE, KvCache};
use weaklink_models::text::Text;
use weaklink_models::weights::{Folder, Weights};

use super::score::ROWS_A_STEP;
use super::{EngineHandle, EngineLimits};
use crate::hash::hex;
use crate::memory::Memory;

/// What makes one model's text differ from another's. Part of every plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelIdentity {
    /// Name of the card, or of the file.
    pub name: String,
    /// Hash of the weights' bytes (all files of a folder, in the order of their names).
    pub sha256: String,
    /// Architecture.
    pub family: String,
    /// Formats of the matrices and how many of each, such as `Q4_1×210 Q8_0×1`.
    pub quantization: String,
    /// Hash of the chat template, if there is one.
    pub template: Option<String>,
    /// The template refuses system messages; they are folded into the first user message.
    pub folds_system: bool,
}

/// An opened model: checked, not yet in memory.
pub struct OpenModel {
    /// Name of the card, or of the file.
    pub name: String,
    /// Tokenizer and template.
    pub text: Arc<Text>,
    /// Its shape.
    pub config: DecoderConfig,
    /// Worked examples that its card asks for.
    pub shots: u32,
    source: Source,
    /// The files that hold the weights.
    files: Vec<PathBuf>,
    /// Known once it was asked for: all weights must be read for it.
    identity: OnceLock<ModelIdentity>,
}

enum Source {
    Gguf(Gguf),
    Folder(Folder),
}

/// How an engine is to be set up.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Sequences at once.
    pub batch: usize,
    /// Threads that compute.
    pub threads: usize,
    /// Tokens that one sequence may have; `None` takes the model's context, [`CONTEXT`] at most.
    pub context: Option<usize>,
    /// Tokens that sequences are expected to have at most: the cache holds as many of them at once as `batch` says.
    /// `None` expects [`EXPECTED`].
    pub expected: Option<usize>,
}

/// Tokens that one sequence may have, unless something else is asked for or the model holds fewer.
pub const CONTEXT: usize = 8192;
/// Tokens that sequences are expected to have, where nothing is known of them.
pub const EXPECTED: usize = 2048;

/// What loading will take, in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryPlan {
    /// Weights as they lie in memory.
    pub weights: u64,
    /// The K/V cache.
    pub cache: u64,
    /// Activations and logits of the largest step.
    pub scratch: u64,
    /// What the machine has left, where it can be known.
    pub available: Option<u64>,
    /// Blocks in the cache.
    #[serde(skip)]
    blocks: usize,
}

impl MemoryPlan {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.cache).saturating_add(self.scratch)
    }
}

impl std::fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let (weights, cache, scratch) = (mib(self.weights), mib(self.cache), mib(self.scratch));
        write!(f, "memory: weights {weights} MiB + K/V cache {cache} MiB + scratch {scratch} MiB")?;
        match self.available {
            Some(available) => write!(f, " of {} MiB free", mib(available)),
            None => Ok(()),
        }
    }
}

/// Tokens of prompt that one step may hold: enough rows that a step is bound by arithmetic rather than by
/// reading the weights. More would only hold up the sequences that decode in the same step.
const STEP_TOKENS: usize = 512;

/// Rows up to which a step is filled with drafted tokens.
const DRAFT_ROWS: usize = 16;

impl OpenModel {
    /// Opens and checks a model's files.
    pub fn open(local: &LocalModel) -> anyhow::Result<Self> {
        let path = &local.path;
        let (source, mut text, config, files) = if path.is_dir() {
            let folder = Folder::open(path)?;
            let text = Text::from_folder(path)?;
            let file = path.join("config.json");
            let json = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let json = serde_json::from_str(&json).with_context(|| file.display().to_string())?;
            let config = DecoderConfig::from_json(&file, &json)?;
            let files = folder.files();
            (Source::Folder(folder), text, config, files)
        } else {
            let gguf = Gguf::open(path)?;
            let text = Text::from_gguf(&gguf)?;
            let config = DecoderConfig::from_gguf(&gguf)?;
            (Source::Gguf(gguf), text, config, vec![path.clone()])
        };
        if let Some(card) = &local.card {
            text.add_stops(&card.stop)?;
        }
        // Folders pad the embedding to round numbers; a GGUF file names every row.
        let fits = match source {
            Source::Gguf(_) => text.vocab_size() == config.vocab,
            Source::Folder(_) => text.vocab_size() <= config.vocab,
        };
        if !fits {
            bail!(
                "{}: the tokenizer has {} tokens and the embedding {} rows; the file's parts do not belong together",
                path.display(),
                text.vocab_size(),
                config.vocab
            );
        }
        let shots = local.card.as_ref().map_or(0, |card| card.shots);
        let (name, text) = (local.name.clone(), Arc::new(text));
        Ok(Self { name, text, config, shots, source, files, identity: OnceLock::new() })
    }

    /// Hashes the weights and says what the model is.
    pub fn identity(&self) -> anyhow::Result<ModelIdentity> {
        if let Some(known) = self.identity.get() {
            return Ok(known.clone());
        }
        let mut hash = Sha256::new();
        for file in &self.files {
            hash_file(file, &mut hash).with_context(|| file.display().to_string())?;
        }
        let identity = ModelIdentity {
            name: self.name.clone(),
            sha256: hex(&hash.finalize()),
            family: self.config.family.name().into(),
            quantization: self.quantization(),
            template: self.text.has_template().then(|| self.text.template_hash()),
            folds_system: self.text.folds_system(),
        };
        Ok(self.identity.get_or_init(|| identity).clone())
    }

    /// Formats of the matrices and how many of each.
    pub fn quantization(&self) -> String {
        match &self.source {
            Source::Gguf(gguf) => quantization(gguf),
            Source::Folder(_) => "safetensors".into(),
        }
    }

    /// Adds up what loading takes; an error where it cannot fit.
    pub fn plan_memory(&self, options: &LoadOptions) -> anyhow::Result<MemoryPlan> {
        let c = &self.config;
        let context = self.context(options);
        // Every sequence at the length that is expected; beyond that the scheduler
        // preempts. One sequence always fits whole.
        let expected = options.expected.unwrap_or(EXPECTED).min(context);
        let tokens = context.max(options.batch.saturating_mul(expected));
        let blocks = tokens.div_ceil(BLOCK_SIZE);
        let rows = STEP_TOKENS.max(options.batch);
        let drawn = DRAFT_ROWS.max(options.batch);
        let row = 4 * c.hidden + 3 * c.ffn + 2 * (c.heads + 2 * c.kv_heads) * c.head_dim;
        let logits = drawn.max(ROWS_A_STEP).saturating_mul(2 * c.vocab);
        let scratch = rows.saturating_mul(row).saturating_add(logits).saturating_mul(size_of::<f32>());
        let plan = MemoryPlan {
            weights: self.weight_bytes()?,
            cache: blocks.saturating_mul(KvCache::block_bytes(c)) as u64,
            scratch: scratch as u64,
            available: Memory::read().available,
            blocks,
        };
        if let Some(available) = plan.available
            && plan.total() > available
        {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            bail!(
                "{}: weights {} MiB + K/V cache {} MiB ({} tokens for batch {}) + scratch {} MiB do not fit in the {} MiB \
                 that are free; lower --batch or choose a smaller model",
                self.name,
                mib(plan.weights),
                mib(plan.cache),
                blocks * BLOCK_SIZE,
                options.batch,
                mib(plan.scratch),
                mib(available)
            );
        }
        Ok(plan)
    }

    /// Bytes of the weights as they lie in memory. Those of a folder are not quantized, so they take what its files do.
    fn weight_bytes(&self) -> anyhow::Result<u64> {
        if let Source::Gguf(gguf) = &self.source {
            let tensors = gguf.tensor_names().filter_map(|name| gguf.tensor(name));
            let bytes = tensors.map(|tensor| match *tensor.shape {
                [rows, cols] => QuantMatrix::packed_bytes(tensor.format, rows, cols) as u64,
                _ => (tensor.shape.iter().product::<usize>() * size_of::<f32>()) as u64,
            });
            return Ok(bytes.fold(0, u64::saturating_add));
        }
        self.files
            .iter()
            .map(|file| Ok(std::fs::metadata(file).with_context(|| file.display().to_string())?.len()))
            .sum()
    }

    /// Reads the weights; for callers that compute without an engine.
    pub fn load_decoder(&self) -> anyhow::Result<Decoder> {
        let weights = match &self.source {
            Source::Gguf(gguf) => Weights::Gguf(gguf),
            Source::Folder(folder) => Weights::Folder(folder),
        };
        Ok(Decoder::load(self.config.clone(), &weights)?)
    }

    /// Reads the weights and starts the engine.
    pub fn start(&self, options: &LoadOptions) -> anyhow::Result<LoadedModel> {
        let memory = self.plan_memory(options)?;
        let begun = Instant::now();
        let identity = self.identity()?;
        let decoder = self.load_decoder()?;
        let limits = EngineLimits {
            batch: options.batch,
            step_tokens: STEP_TOKENS,
            blocks: memory.blocks,
            context: self.context(options),
            draft_rows: DRAFT_ROWS,
        };
        let isa = decoder.isa().name().to_owned();
        let handle = EngineHandle::start(Arc::new(decoder), self.text.clone(), limits, options.threads)?;
        Ok(LoadedModel { handle, identity, isa, memory, load_seconds: begun.elapsed().as_secs_f64() })
    }

    /// Tokens that one sequence may have, prompt and answer together.
    pub fn context(&self, options: &LoadOptions) -> usize {
        options.context.unwrap_or(CONTEXT).min(self.config.context)
    }
}

/// A model in memory, its engine running.
pub struct LoadedModel {
    /// Where requests go.
    pub handle: EngineHandle,
    /// What it is.
    pub identity: ModelIdentity,
    /// The instructions that compute it.
    pub isa: String,
    /// What it takes.
    pub memory: MemoryPlan,
    /// How long loading took.
    pub load_seconds: f64,
}

/// Formats of the matrices with their counts, most frequent first; vectors are left out.
fn quantization(gguf: &Gguf) -> String {
    let mut counts: Vec<(&'static str, usize)> = Vec::new();
    for name in gguf.tensor_names() {
        let Some(tensor) = gguf.tensor(name).filter(|t| t.shape.len() > 1) else { continue };
        let format = tensor.format.name();
        match counts.iter_mut().find(|(name, _)| *name == format) {
            Some((_, count)) => *count += 1,
            None => counts.push((format, 1)),
        }
    }
    counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    counts.iter().map(|(name, count)| format!("{name}×{count}")).collect::<Vec<_>>().join(" ")
}

fn hash_file(path: &Path, hash: &mut Sha256) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            n => hash.update(&buffer[..n]),
        }
    }
}
