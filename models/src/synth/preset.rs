//! The architectures, with the numbers of their public configurations.

use crate::config::Family;

/// A real model's architecture.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// The name on the command line.
    pub name: &'static str,
    /// The family.
    pub family: Family,
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub ffn: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens, and rows of the embedding.
    pub vocab: usize,
    /// Tokens that the model was made for.
    pub context: usize,
    /// Added to the mean square in every RMS norm.
    pub norm_eps: f32,
    /// Rotary base.
    pub rope_base: f32,
    /// Whether the embedding is the head too.
    pub tied: bool,
    /// Llama 3's stretching of the rotary frequencies: factor, low, high, original context.
    pub(super) llama3: Option<[f64; 4]>,
    /// The pre-tokenizer, by its name in GGUF files.
    pub(super) pre: &'static str,
    /// Id of the first of the three special tokens.
    pub(super) first_special: usize,
}

impl Preset {
    /// All presets.
    pub const ALL: [Preset; 4] = [
        Preset {
            name: "qwen2.5-1.5b",
            family: Family::Qwen2,
            layers: 28,
            hidden: 1536,
            ffn: 8960,
            heads: 12,
            kv_heads: 2,
            head_dim: 128,
            vocab: 151_936,
            context: 32_768,
            norm_eps: 1e-6,
            rope_base: 1e6,
            tied: true,
            llama3: None,
            pre: "qwen2",
            first_special: 151_643,
        },
        Preset {
            name: "llama-3.2-1b",
            family: Family::Llama,
            layers: 16,
            hidden: 2048,
            ffn: 8192,
            heads: 32,
            kv_heads: 8,
            head_dim: 64,
            vocab: 128_256,
            context: 131_072,
            norm_eps: 1e-5,
            rope_base: 5e5,
            tied: true,
            llama3: Some([32.0, 1.0, 4.0, 8192.0]),
            pre: "llama-bpe",
            first_special: 128_000,
        },
        Preset {
            name: "smollm2-135m",
            family: Family::Llama,
            layers: 30,
            hidden: 576,
            ffn: 1536,
            heads: 9,
            kv_heads: 3,
            head_dim: 64,
            vocab: 49_152,
            context: 8192,
            norm_eps: 1e-5,
            rope_base: 1e5,
            tied: true,
            llama3: None,
            pre: "smollm",
            first_special: 0,
        },
        // No real model: small enough for tests, wide enough for the formats with blocks of 256, with a head of its own.
        Preset {
            name: "tiny",
            family: Family::Llama,
            layers: 4,
            hidden: 256,
            ffn: 512,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            vocab: 1024,
            context: 2048,
            norm_eps: 1e-5,
            rope_base: 1e4,
            tied: false,
            llama3: None,
            pre: "smollm",
            first_special: 0,
        },
    ];

    /// The preset of this name.
    pub fn by_name(name: &str) -> Option<&'static Preset> {
        const ALL: &[Preset] = &Preset::ALL;
        ALL.iter().find(|preset| preset.name == name)
    }

    /// What each rotary frequency is divided by, where the family stretches them: 1 for short waves, `factor` for
    /// waves longer than `original / low`, and between them the ramp of Llama 3.1's reference code.
    pub(super) fn rope_factors(&self) -> Option<Vec<f32>> {
        let [factor, low, high, original] = self.llama3?;
        let half = self.head_dim / 2;
        let factors = (0..half).map(|i| {
            let frequency = f64::from(self.rope_base).powf(-(i as f64) / half as f64);
            let wave = 2.0 * std::f64::consts::PI / frequency;
            let keep = ((original / wave - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 / (keep + (1.0 - keep) / factor)) as f32
        });
        Some(factors.collect())
    }
}
