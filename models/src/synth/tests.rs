use std::io;

use weaklink_kernels::{Format, dequantize};

use super::*;
use crate::config::{DecoderConfig, RopeScaling};
use crate::gguf::Gguf;
use crate::text::{ChatMessage, Text};

fn preset(name: &str) -> &'static Preset {
    Preset::by_name(name).expect("a preset")
}

fn mix(name: &str) -> Mix {
    Mix::by_name(name).expect("a quantization")
}

fn bytes(preset: &Preset, mix: Mix, seed: u64) -> Vec<u8> {
    let mut out = Vec::new();
    stream(preset, mix, seed, &mut out).expect("memory takes any file");
    out
}

#[test]
fn values_have_the_spread_asked_for_in_every_format() {
    for format in [
        Format::F16,
        Format::Q8_0,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
    ] {
        let mut row = vec![0; format.row_bytes(1 << 16).expect("whole blocks")];
        blocks::fill(format, 0.025, Draw::new(7, 3), &mut row);
        let mut values = vec![0.0; 1 << 16];
        dequantize(format, &row, &mut values).expect("sizes fit");
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / 65_536.0;
        let square = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / 65_536.0;
        // Scales that vary by up to a quarter add a percent to the spread; 65536 values find the mean to 0.0001.
        assert!((square.sqrt() / 0.025 - 1.0).abs() < 0.03, "{format}: {}", square.sqrt());
        assert!(mean.abs() < 0.001, "{format}: mean {mean}");
    }
}

/// Layers whose values and down projections are Q6_K in a Q4_K_M file, as llama-quantize chooses them.
#[test]
fn formats_are_those_that_the_quantizer_chooses() {
    let found = |preset: &Preset, quant: &str, name: &str| {
        let plan = plan(preset, mix(quant));
        plan.iter().find(|t| t.name == name).map(|t| t.format)
    };
    let tiny = preset("tiny");
    // Of four layers: 7/8 of them rounded down is 3, and every third before.
    for (layer, format) in [Format::Q4K, Format::Q4K, Format::Q6K, Format::Q6K].into_iter().enumerate() {
        for part in ["attn_v", "ffn_down"] {
            assert_eq!(found(tiny, "Q4_K_M", &format!("blk.{layer}.{part}.weight")), Some(format));
        }
        assert_eq!(found(tiny, "Q4_K_M", &format!("blk.{layer}.ffn_up.weight")), Some(Format::Q4K));
    }
    // A head of its own is finer; the embedding of such a file is not.
    assert_eq!(found(tiny, "Q4_0", "output.weight"), Some(Format::Q6K));
    assert_eq!(found(tiny, "Q4_0", "token_embd.weight"), Some(Format::Q4_0));
    assert_eq!(found(tiny, "F16", "output.weight"), Some(Format::F16));
    // Rows of 576 are no multiple of 256, rows of 1536 are.
    let small = preset("smollm2-135m");
    assert_eq!(found(small, "Q4_K_M", "token_embd.weight"), Some(Format::Q8_0));
    assert_eq!(found(small, "Q4_K_M", "blk.0.attn_v.weight"), Some(Format::Q8_0));
    assert_eq!(found(small, "Q4_K_M", "blk.0.attn_q.weight"), Some(Format::Q5_0));
    assert_eq!(found(small, "Q5_K_M", "blk.0.attn_q.weight"), Some(Format::Q5_1));
    assert_eq!(found(small, "Q4_K_M", "blk.0.ffn_down.weight"), Some(Format::Q6K));
    assert_eq!(found(preset("qwen2.5-1.5b"), "Q4_0", "token_embd.weight"), Some(Format::Q6K));
}

#[test]
fn files_are_as_long_as_the_quantizer_makes_them() {
    let length = |name: &str| -> usize {
        plan(preset("tiny"), mix(name))
            .iter()
            .map(|t| {
                t.shape[1..].iter().product::<usize>() / t.format.block_len() * t.format.block_bytes() * t.shape[0]
            })
            .filter(|&bytes| bytes > 0)
            .sum()
    };
    // Parameters: two of 1024 · 256, four layers of 3 · 256 · 512 + 2 · 256 · 256 + 2 · 128 · 256; bits a weight of F16 and Q8_0.
    let matrices = 2 * 1024 * 256 + 4 * (3 * 256 * 512 + 2 * 256 * 256 + 2 * 128 * 256);
    let vectors = 9 * 256 * 4;
    assert_eq!(length("F16"), 2 * matrices + vectors);
    assert_eq!(length("Q8_0"), matrices / 32 * 34 + vectors);
}

#[test]
fn one_seed_makes_one_file_with_any_threads_and_another_seed_another() {
    let tiny = preset("tiny");
    let first = bytes(tiny, mix("Q4_K_M"), 1);
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    assert!(first == one.install(|| bytes(tiny, mix("Q4_K_M"), 1)));
    assert!(first != bytes(tiny, mix("Q4_K_M"), 2));
}

#[test]
fn a_file_opens_with_the_shape_of_its_preset_and_a_tokenizer_that_works() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["tiny", "smollm2-135m"] {
        let (preset, path) = (preset(name), folder.path().join("a.gguf"));
        let length = write(preset, mix("Q4_0"), 0, &path).expect("written");
        assert_eq!(length, std::fs::metadata(&path).expect("there").len());
        let gguf = Gguf::open(&path).expect("opens");
        let config = DecoderConfig::from_gguf(&gguf).expect("a decoder");
        assert_eq!((config.layers, config.hidden, config.ffn), (preset.layers, preset.hidden, preset.ffn));
        assert_eq!((config.heads, config.kv_heads, config.head_dim), (preset.heads, preset.kv_heads, preset.head_dim));
        assert_eq!((config.vocab, config.context), (preset.vocab, preset.context));
        assert_eq!(gguf.tensor("output.weight").is_none(), preset.tied);

        let text = Text::from_gguf(&gguf).expect("a tokenizer");
        let said = "The owner of naïve 漢字\tis  here.\r\n🙂<|im_end|>";
        let ids = text.encode(said, false).expect("every byte has a token");
        assert_eq!(text.decode(&ids), said);
        // "The" and " owner" are words of the vocabulary.
        assert_eq!(text.decode(&ids[..2]), "The owner");
        let turn = text.render(&[ChatMessage { role: "user", content: "Hi" }]).expect("rendered");
        let spelled = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(turn, text.encode(spelled, true).expect("encoded"));
        let end = text.encode("<|im_end|>", true).expect("encoded");
        assert!(end.len() == 1 && text.stop_ids().contains(&end[0]));
    }
    assert!(!folder.path().join("a.gguf.part").exists());
}

#[test]
fn rotary_factors_are_those_of_llama_3() {
    let llama = preset("llama-3.2-1b");
    let factors = llama.rope_factors().expect("llama 3 stretches");
    assert_eq!(preset("tiny").rope_factors(), None);
    // The same rule as read from a config.json, on a configuration of the same numbers.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("tiny.gguf");
    write(preset("tiny"), mix("Q4_0"), 0, &path).expect("written");
    let tiny = DecoderConfig::from_gguf(&Gguf::open(&path).expect("opens")).expect("a decoder");
    let plain = DecoderConfig { rope_base: 5e5, head_dim: 64, ..tiny };
    let scaling = RopeScaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original: 8192.0 };
    let stretched = DecoderConfig { rope_scaling: scaling, ..plain.clone() }.frequencies(false);
    for ((f, s), factor) in plain.frequencies(false).iter().zip(stretched).zip(factors) {
        assert!((f / s / f64::from(factor) - 1.0).abs() < 1e-6, "{f} / {s}, {factor}");
    }
}

#[test]
fn a_disk_that_is_full_or_a_place_that_is_none_leaves_nothing_behind() {
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let tiny = preset("tiny");
    let whole = bytes(tiny, mix("Q4_0"), 0).len();
    assert!(stream(tiny, mix("Q4_0"), 0, &mut Full(whole)).is_ok());
    for room in [0, 100, whole / 2, whole - 1] {
        let error = stream(tiny, mix("Q4_0"), 0, &mut Full(room)).expect_err("full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    for place in [folder.path().to_owned(), folder.path().join("no/such.gguf"), "".into()] {
        assert!(write(tiny, mix("Q4_0"), 0, &place).is_err());
    }
    // A part left by a killed run, longer than the file, is written over; one in use is not.
    let (path, part) = (folder.path().join("a.gguf"), folder.path().join("a.gguf.part"));
    std::fs::write(&part, vec![1; whole + 10]).expect("written");
    let busy = File::open(&part).expect("opens");
    busy.lock().expect("locked");
    let error = write(tiny, mix("Q4_0"), 0, &path).expect_err("in use").to_string();
    assert!(error.contains("another process"), "{error}");
    assert!(part.exists());
    drop(busy);
    assert_eq!(write(tiny, mix("Q4_0"), 0, &path).expect("written"), whole as u64);
    assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 1);
}
