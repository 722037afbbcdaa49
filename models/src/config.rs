//! [`DecoderConfig`]: everything that tells one decoder from another, read from
//! GGUF metadata or from a `config.json`, and bounded before anything is sized by it.

use std::path::Path;

use serde_json::Value as Json;

use crate::error::ModelError;
use crate::gguf::Gguf;

/// The model families that the one decoder runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama and its kin (SmolLM2, TinyLlama, Llama 3.x).
    Llama,
    /// Qwen 2 and 2.5: biases on query, key and value.
    Qwen2,
    /// Qwen 3: normalised queries and keys, head width of its own.
    Qwen3,
    /// Gemma 3: norms after attention and MLP, five windowed layers to a global one, GELU.
    Gemma3,
}

impl Family {
    const ALL: [(&'static str, Family); 5] = [
        ("llama", Family::Llama),
        ("qwen2", Family::Qwen2),
        ("qwen3", Family::Qwen3),
        ("gemma3", Family::Gemma3),
        ("gemma3_text", Family::Gemma3),
    ];

    /// The family of an architecture name, as GGUF and `config.json` spell it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(n, _)| *n == name).map(|(_, f)| *f)
    }

    /// The name that GGUF uses.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Gemma3 => "gemma3",
        }
    }
}

/// The non-linearity of the gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// The tanh form of GELU.
    GeluTanh,
}

/// How rotary frequencies are stretched beyond the training length.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by the factor.
    Linear(f64),
    /// Llama 3.1's rule: long waves divided by `factor`, short ones kept, a ramp between.
    Llama3 {
        /// Divisor of the longest waves.
        factor: f64,
        /// Waves longer than `original / low` are divided by the whole factor.
        low: f64,
        /// Waves shorter than `original / high` are kept.
        high: f64,
        /// Context length of the original training, in tokens.
        original: f64,
    },
    /// One divisor a frequency, as the file gives them (`rope_freqs.weight`).
    Factors(Vec<f32>),
}

/// A decoder's shape and habits. Family differences are fields, not types.
#[derive(Clone, Debug)]
pub struct DecoderConfig {
    /// The family.
    pub family: Family,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the MLP.
    pub ffn: usize,
    /// Tokens that the model was made for.
    pub context: usize,
    /// Added to the mean square in every RMS norm.
    pub norm_eps: f32,
    /// Added to every norm weight of the file (Gemma stores w − 1 in safetensors).
    pub norm_offset: f32,
    /// Rotary base of the global layers.
    pub rope_base: f64,
    /// Rotary base of the windowed layers.
    pub rope_base_local: f64,
    /// Stretching of the global layers' frequencies.
    pub rope_scaling: RopeScaling,
    /// Rotary pairs are (2i, 2i+1) rather than (i, i + head_dim/2).
    pub rope_interleaved: bool,
    /// Attention scores are multiplied by this.
    pub attention_scale: f32,
    /// Sliding window in tokens, and every how many layers one is global instead.
    pub window: Option<(usize, usize)>,
    /// Embeddings are multiplied by this.
    pub embedding_scale: f32,
    /// Queries and keys are normalised a head at a time.
    pub qk_norm: bool,
    /// Norms after attention and after the MLP.
    pub post_norms: bool,
    /// The MLP's non-linearity.
    pub activation: Activation,
}

impl DecoderConfig {
    /// The sliding window of a layer in tokens; `None` where the whole context is seen.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        self.window.and_then(|(window, pattern)| (!(layer + 1).is_multiple_of(pattern)).then_some(window))
    }

    /// Rotary frequencies (radians a token) of a layer, `head_dim / 2` of them.
    ///
    /// Frequency i is base^(−2i/d) [Su et al. 2021, arXiv:2104.09864], stretched by [`RopeScaling`].
    pub fn frequencies(&self, windowed: bool) -> Vec<f64> {
        let base = if windowed { self.rope_base_local } else { self.rope_base };
        let half = self.head_dim / 2;
        let plain = (0..half).map(|i| base.powf(-(2.0 * i as f64) / self.head_dim as f64));
        if windowed {
            return plain.collect();
        }
        match &self.rope_scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear(factor) => plain.map(|f| f / factor).collect(),
            RopeScaling::Factors(factors) => plain.zip(factors).map(|(f, &d)| f / f64::from(d)).collect(),
            RopeScaling::Llama3 { factor, low, high, original } => plain
                .map(|f| {
                    let wave = 2.0 * std::f64::consts::PI / f;
                    // 0 at the long end, 1 at the short end.
                    let keep = ((original / wave - low) / (high - low)).clamp(0.0, 1.0);
                    f * (keep + (1.0 - keep) / factor)
                })
                .collect(),
        }
    }

    /// Reads the configuration of a GGUF file. `vocab` is the number of its tokens.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        let file = gguf.path().display().to_string();
        let arch = gguf.architecture()?;
        let family = family(&file, arch)?;
        let key = |name: &str| format!("{arch}.{name}");
        let size =
            |name: &str| -> Result<Option<usize>, ModelError> { Ok(gguf.get_u32(&key(name))?.map(|v| v as usize)) };
        let need = |name: &str| -> Result<usize, ModelError> {
            size(name)?.ok_or_else(|| bad(&file, format!("no metadata key {}", key(name))))
        };
        let float = |name: &str| -> Result<Option<f64>, ModelError> { Ok(gguf.get_f32(&key(name))?.map(f64::from)) };
        let (hidden, heads) = (need("embedding_length")?, need("attention.head_count")?);
        let head_dim = match size("attention.key_length")? {
            Some(dim) => dim,
            None => hidden / heads.max(1),
        };
        for (name, what) in [("attention.value_length", "value heads"), ("rope.dimension_count", "rotated part")] {
            if let Some(found) = size(name)?.filter(|&found| found != head_dim) {
                return Err(bad(
                    &file,
                    format!("{what} of {found} in heads of {head_dim} ({}): not supported", key(name)),
                ));
            }
        }
        let vocab = gguf
            .tensor("token_embd.weight")
            .map(|t| t.shape[0])
            .ok_or_else(|| ModelError::Missing { file: file.clone(), tensor: "token_embd.weight".into() })?;
        let scaling = match gguf.get_str(&key("rope.scaling.type"))? {
            None | Some("none") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear(float("rope.scaling.factor")?.unwrap_or(1.0)),
            Some(other) => {
                return Err(bad(
                    &file,
                    format!("rope scaling {other:?} is not supported (none, linear and per-frequency factors are)"),
                ));
            }
        };
        let rope_base = float("rope.freq_base")?.unwrap_or(10_000.0);
        let window = match (family, size("attention.sliding_window")?) {
            (Family::Gemma3, Some(window)) => Some((window, size("attention.sliding_window_pattern")?.unwrap_or(6))),
            _ => None,
        };
        let config = Self {
            vocab,
            layers: need("block_count")?,
            kv_heads: size("attention.head_count_kv")?.unwrap_or(heads),
            ffn: need("feed_forward_length")?,
            context: need("context_length")?,
            norm_eps: float("attention.layer_norm_rms_epsilon")?
                .ok_or_else(|| bad(&file, format!("no metadata key {}", key("attention.layer_norm_rms_epsilon"))))?
                as f32,
            norm_offset: 0.0,
            rope_base,
            rope_scaling: scaling,
            // The converter permutes Llama's query and key rows so that pairs stand side by side.
            rope_interleaved: family == Family::Llama,
            window,
            ..Self::of_family(family, hidden, heads, head_dim)
        };
        config.check(&file)?;
        Ok(config)
    }

    /// Reads a `config.json` as the hub's model folders hold it.
    pub fn from_json(path: &Path, json: &Json) -> Result<Self, ModelError> {
        let file = path.display().to_string();
        let arch = json["model_type"].as_str().ok_or_else(|| bad(&file, "no \"model_type\"".into()))?;
        let family = family(&file, arch)?;
        let size = |name: &str| -> Result<Option<usize>, ModelError> {
            match &json[name] {
                Json::Null => Ok(None),
                value => value
                    .as_u64()
                    .map(|v| Some(v as usize))
                    .ok_or_else(|| bad(&file, format!("{name} is {value}, not a count"))),
            }
        };
        let need = |name: &str| -> Result<usize, ModelError> {
            size(name)?.ok_or_else(|| bad(&file, format!("no \"{name}\"")))
        };
        let float = |name: &str| json[name].as_f64();
        // Computing another one than the file asks for would give numbers, and wrong ones.
        let activation = if family == Family::Gemma3 { "gelu_pytorch_tanh" } else { "silu" };
        for name in ["hidden_act", "hidden_activation"] {
            if let Some(found) = Some(&json[name]).filter(|found| !found.is_null() && *found != activation) {
                return Err(bad(&file, format!("{name} {found} in family {arch}: only {activation:?} is supported")));
            }
        }
        let (hidden, heads) = (need("hidden_size")?, need("num_attention_heads")?);
        let head_dim = size("head_dim")?.unwrap_or(hidden / heads.max(1));
        // Transformers 5 writes one "rope_parameters", a kind of layer each where kinds differ.
        let rope = match &json["rope_parameters"] {
            Json::Null => &json["rope_scaling"],
            parameters if parameters["full_attention"].is_object() => &parameters["full_attention"],
            parameters => parameters,
        };
        let theta = float("rope_theta").or(rope["rope_theta"].as_f64());
        let scaling = match rope {
            Json::Null => RopeScaling::None,
            s => {
                let number = |name: &str| {
                    s[name].as_f64().ok_or_else(|| bad(&file, format!("rope_scaling has no number {name:?}")))
                };
                match s["rope_type"].as_str().or(s["type"].as_str()) {
                    Some("default") => RopeScaling::None,
                    Some("linear") => RopeScaling::Linear(number("factor")?),
                    Some("llama3") => RopeScaling::Llama3 {
                        factor: number("factor")?,
                        low: number("low_freq_factor")?,
                        high: number("high_freq_factor")?,
                        original: number("original_max_position_embeddings")?,
                    },
                    other => {
                        let name = other.unwrap_or("without a \"rope_type\"");
                        return Err(bad(
                            &file,
                            format!("rope scaling {name} is not supported (default, linear and llama3 are)"),
                        ));
                    }
                }
            }
        };
        let pattern = size("sliding_window_pattern")?.unwrap_or(6);
        let window = match (family, size("sliding_window")?) {
            (Family::Gemma3, Some(window)) => Some((window, pattern)),
            (_, Some(_)) if json["use_sliding_window"].as_bool() == Some(true) => {
                return Err(bad(&file, format!("a sliding window in family {arch} is not supported")));
            }
            _ => None,
        };
        if let (Some((_, pattern)), Some(kinds)) = (window, json["layer_types"].as_array()) {
            let differs = |(i, kind): (usize, &Json)| (kind == "full_attention") != (i + 1).is_multiple_of(pattern);
            if kinds.iter().enumerate().any(differs) {
                return Err(bad(
                    &file,
                    format!("layer_types do not follow one global layer in {pattern}: not supported"),
                ));
            }
        }
        let defaults = Self::of_family(family, hidden, heads, head_dim);
        let config = Self {
            vocab: need("vocab_size")?,
            layers: need("num_hidden_layers")?,
            kv_heads: size("num_key_value_heads")?.unwrap_or(heads),
            ffn: need("intermediate_size")?,
            context: need("max_position_embeddings")?,
            norm_eps: float("rms_norm_eps").ok_or_else(|| bad(&file, "no number \"rms_norm_eps\"".into()))? as f32,
            norm_offset: if family == Family::Gemma3 { 1.0 } else { 0.0 },
            rope_base: theta.ok_or_else(|| bad(&file, "no number \"rope_theta\"".into()))?,
            rope_base_local: float("rope_local_base_freq").unwrap_or(defaults.rope_base_local),
            rope_scaling: scaling,
            rope_interleaved: false,
            attention_scale: float("query_pre_attn_scalar")
                .map_or(defaults.attention_scale, |s| (1.0 / s.sqrt()) as f32),
            window,
            ..defaults
        };
        config.check(&file)?;
        Ok(config)
    }

    /// What follows from the family alone; sizes that the file gives are left at 0.
    fn of_family(family: Family, hidden: usize, heads: usize, head_dim: usize) -> Self {
        let gemma = family == Family::Gemma3;
        Self {
            family,
            vocab: 0,
            hidden,
            layers: 0,
            heads,
            kv_heads: heads,
            head_dim,
            ffn: 0,
            context: 0,
            norm_eps: 1e-6,
            norm_offset: 0.0,
            rope_base: 10_000.0,
            rope_base_local: 10_000.0,
            rope_scaling: RopeScaling::None,
            rope_interleaved: false,
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            window: None,
            embedding_scale: if gemma { (hidden as f32).sqrt() } else { 1.0 },
            qk_norm: gemma || family == Family::Qwen3,
            post_norms: gemma,
            activation: if gemma { Activation::GeluTanh } else { Activation::Silu },
        }
    }

    /// Refuses numbers that no model of these families has, before anything is sized by them.
    fn check(&self, file: &str) -> Result<(), ModelError> {
        let bounds = [
            ("layers", self.layers, 512),
            ("hidden width", self.hidden, 1 << 16),
            ("attention heads", self.heads, 1 << 10),
            ("key/value heads", self.kv_heads, 1 << 10),
            ("head width", self.head_dim, 1 << 10),
            ("MLP width", self.ffn, 1 << 20),
            ("vocabulary", self.vocab, 1 << 22),
            ("context", self.context, 1 << 24),
        ];
        for (what, found, most) in bounds {
            if found == 0 || found > most {
                return Err(bad(file, format!("{what} of {found}; this program takes 1 to {most}")));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(bad(
                file,
                format!("{} attention heads cannot share {} key/value heads evenly", self.heads, self.kv_heads),
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(bad(file, format!("head width {} is odd; rotary embedding needs pairs", self.head_dim)));
        }
        if let Some((window, pattern)) = self.window
            && (window == 0 || pattern == 0)
        {
            return Err(bad(file, format!("sliding window {window} every {pattern} layers: neither may be 0")));
        }
        let positive = |x: f64| x.is_finite() && x > 0.0;
        if !positive(f64::from(self.norm_eps)) || !positive(f64::from(self.attention_scale)) {
            return Err(bad(
                file,
                format!(
                    "norm epsilon {} or attention scale {} is not a positive number",
                    self.norm_eps, self.attention_scale
                ),
            ));
        }
        let all = self.frequencies(false).into_iter().chain(self.frequencies(true));
        if let Some(f) = all.into_iter().find(|&f| !positive(f)) {
            return Err(bad(file, format!("rotary base {} and its scaling give a frequency of {f}", self.rope_base)));
        }
        Ok(())
    }
}

fn bad(file: &str, what: String) -> ModelError {
    ModelError::File { file: file.to_owned(), what }
}

fn family(file: &str, arch: &str) -> Result<Family, ModelError> {
    Family::from_name(arch)
        .ok_or_else(|| bad(file, format!("family {arch:?} is not supported; llama, qwen2, qwen3 and gemma3 are")))
}
