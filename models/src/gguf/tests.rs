use std::io::Write;

use proptest::prelude::*;

use super::*;

fn open_bytes(bytes: &[u8]) -> Result<Gguf, GgufError> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("writing a temporary file");
    Gguf::open(file.path())
}

/// Bytes of a header put together by hand: what the writer would never write.
struct Raw(Vec<u8>);

impl Raw {
    fn new(version: u32, tensors: u64, keys: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(version).u64(tensors).u64(keys)
    }

    fn u32(mut self, v: u32) -> Self {
        self.0.extend(v.to_le_bytes());
        self
    }

    fn u64(mut self, v: u64) -> Self {
        self.0.extend(v.to_le_bytes());
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn text(self, text: &str) -> Self {
        self.u64(text.len() as u64).raw(text.as_bytes())
    }

    fn tensor(self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        let start = self.text(name).u32(dims.len() as u32);
        dims.iter().fold(start, |raw, &d| raw.u64(d)).u32(kind).u64(offset)
    }

    /// Pads to the default alignment and appends `data` zero bytes.
    fn data(mut self, data: usize) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(32) + data, 0);
        self.0
    }
}

fn small() -> GgufWriter {
    GgufWriter::new()
        .meta("general.architecture", "llama")
        .meta("general.alignment", 64)
        .meta("llama.block_count", 2)
        .meta("llama.rope.freq_base", 10_000.0)
        .meta("tokenizer.ggml.add_bos_token", true)
        .meta("tokenizer.ggml.tokens", MetaValue::strings(["a", "", "é"]))
        .meta("tokenizer.ggml.scores", MetaValue::f32s([0.0, -1.0, -2.5]))
        .meta("tokenizer.ggml.token_type", MetaValue::i32s([1, 3, 4]))
        .tensor("token_embd.weight", &[3, 2], Format::F32, (0..24).collect())
        .tensor("blk.0.attn_q.weight", &[2, 32], Format::Q8_0, (100..168).collect())
}

#[test]
fn what_is_written_is_read_back() {
    for version in [2, 3] {
        let file = open_bytes(&small().version(version).to_bytes()).expect("a valid file");
        assert_eq!(file.architecture().expect("a string"), "llama");
        assert_eq!(file.get_u32("llama.block_count").expect("an integer"), Some(2));
        assert_eq!(file.get_f32("llama.rope.freq_base").expect("a float"), Some(10_000.0));
        assert_eq!(file.get_bool("tokenizer.ggml.add_bos_token").expect("a bool"), Some(true));
        let tokens = file.get_strings("tokenizer.ggml.tokens").expect("strings").expect("present");
        assert_eq!(tokens.len(), 3);
        assert_eq!(tokens.collect::<Vec<_>>(), ["a", "", "é"]);
        let scores = file.get_array("tokenizer.ggml.scores", ValueType::F32).expect("floats").expect("present");
        let expected = [0.0, -1.0, -2.5].map(Value::F32);
        assert_eq!(scores.iter().collect::<Vec<_>>(), expected);
        let names: Vec<&str> = file.tensor_names().collect();
        assert_eq!(names, ["token_embd.weight", "blk.0.attn_q.weight"]);
        let embedding = file.tensor("token_embd.weight").expect("a tensor");
        assert_eq!((embedding.format, embedding.shape), (Format::F32, &[3, 2][..]));
        assert_eq!(embedding.bytes, (0..24).collect::<Vec<u8>>());
        let query = file.tensor("blk.0.attn_q.weight").expect("a tensor");
        assert_eq!((query.format, query.shape), (Format::Q8_0, &[2, 32][..]));
        assert_eq!(query.bytes, (100..168).collect::<Vec<u8>>());
        assert!(file.tensor("output.weight").is_none());
    }
}

#[test]
fn every_scalar_type_survives() {
    let values = [
        (MetaValue::U8(200), Value::U8(200)),
        (MetaValue::I8(-3), Value::I8(-3)),
        (MetaValue::U16(60_000), Value::U16(60_000)),
        (MetaValue::I16(-300), Value::I16(-300)),
        (MetaValue::U32(4_000_000_000), Value::U32(4_000_000_000)),
        (MetaValue::I32(-70_000), Value::I32(-70_000)),
        (MetaValue::F32(0.5), Value::F32(0.5)),
        (MetaValue::Bool(false), Value::Bool(false)),
        (MetaValue::String("ü".into()), Value::String("ü")),
        (MetaValue::U64(1 << 40), Value::U64(1 << 40)),
        (MetaValue::I64(-(1 << 40)), Value::I64(-(1 << 40))),
        (MetaValue::F64(0.1), Value::F64(0.1)),
    ];
    let writer = values.iter().fold(GgufWriter::new(), |w, (v, _)| w.meta(v.kind().name(), v.clone()));
    let file = open_bytes(&writer.to_bytes()).expect("a valid file");
    for (written, read) in &values {
        assert_eq!(file.metadata(written.kind().name()), Some(*read));
    }
}

#[test]
fn getters_name_key_and_both_types() {
    let file = open_bytes(&small().meta("neg", MetaValue::I32(-1)).to_bytes()).expect("a valid file");
    let cases = [
        (file.get_u32("neg").map(|_| ()), "\"neg\": expected an integer from 0 to 4294967295 (u32), found -1 (i32)"),
        (
            file.get_u32("general.architecture").map(|_| ()),
            "expected an integer from 0 to 4294967295 (u32), found string",
        ),
        (file.get_f32("llama.block_count").map(|_| ()), "\"llama.block_count\": expected f32, found 2 (u32)"),
        (file.get_str("tokenizer.ggml.tokens").map(|_| ()), "expected string, found array of 3 string"),
        (file.get_strings("tokenizer.ggml.scores").map(|_| ()), "expected array of string, found array of 3 f32"),
        (file.get_bool("llama.block_count").map(|_| ()), "expected bool, found 2 (u32)"),
        (file.need::<u32>("x.y", None).map(|_| ()), "metadata key \"x.y\" is missing"),
    ];
    for (result, expected) in cases {
        let message = result.expect_err("a type that does not fit").to_string();
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        assert!(message.contains(&file.path().display().to_string()), "{message:?} does not name the file");
    }
    assert_eq!(file.get_u32("absent").expect("absence is no error"), None);
}

/// Each case: a name, the bytes of a file that must be refused, words of the
/// message.
fn hostile() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let huge = 1_u64 << 40;
    let key = |k: &str, value: MetaValue| GgufWriter::new().meta(k, value).to_bytes();
    let valid = small().to_bytes();
    let swapped = |v: u32| Raw(b"GGUF".to_vec()).raw(&v.to_be_bytes()).raw(&[0; 16]).0;
    let f32_tensor = |dims: &[u64], offset| Raw::new(3, 1, 0).tensor("t", dims, 0, offset).data(64);
    vec![
        ("empty file", vec![], "the file is empty"),
        ("one byte", b"G".to_vec(), "not a GGUF file: it starts with \"G\""),
        ("web page", b"<!DOCTYPE html><html>".to_vec(), "a web page"),
        ("lfs pointer", b"version https://git-lfs.github.com/spec/v1\n".to_vec(), "a Git LFS pointer"),
        ("older format", b"tjgg\x03\0\0\0".to_vec(), "older than GGUF"),
        ("magic only", b"GGUF".to_vec(), "ends inside its header"),
        ("version 0", Raw::new(0, 0, 0).0, "version 0 is not supported, versions 2 and 3 are"),
        ("version 1", Raw(b"GGUF".to_vec()).u32(1).u32(0).u32(0).0, "version 1 is not supported"),
        ("version 4", Raw::new(4, 0, 0).0, "version 4 is not supported"),
        ("big-endian v1", swapped(1), "big-endian, not supported"),
        ("big-endian v2", swapped(2), "big-endian, not supported"),
        ("big-endian v3", swapped(3), "big-endian, not supported"),
        ("big-endian magic", b"FUGG\0\0\0\x03".to_vec(), "big-endian, not supported"),
        ("tensor count 2^32", Raw::new(3, 1 << 32, 0).data(8), "claims 4294967296 tensors"),
        ("key count 2^32", Raw::new(3, 0, 1 << 32).data(8), "claims 4294967296 metadata keys"),
        ("key count 2^64-1", Raw::new(3, 0, u64::MAX).data(8), "metadata keys"),
        ("keys beyond the cap", Raw::new(3, 0, 70_000).data(1 << 20), "more than the 65536 accepted"),
        ("key length 2^63", Raw::new(3, 0, 1).u64(1 << 63).data(64), "claims 9223372036854775808 bytes of text"),
        ("empty key", Raw::new(3, 0, 1).text("").u32(4).u32(1).data(64), "a metadata key has 0 bytes"),
        ("key not UTF-8", Raw::new(3, 0, 1).u64(2).raw(&[0x61, 0xff]).u32(4).u32(1).data(64), "not UTF-8 at byte 33"),
        ("unknown value type", Raw::new(3, 0, 1).text("k").u32(13).data(64), "\"k\": unknown value type 13"),
        ("bool of 2", Raw::new(3, 0, 1).text("k").u32(7).raw(&[2]).data(64), "\"k\": a bool holds 2"),
        (
            "bool of 2 in an array",
            Raw::new(3, 0, 1).text("k").u32(9).u32(7).u64(2).raw(&[1, 2]).data(64),
            "\"k\": a bool holds 2",
        ),
        ("string length 2^40", Raw::new(3, 0, 1).text("k").u32(8).u64(huge).data(64), "\"k\": claims 1099511627776"),
        (
            "value not UTF-8",
            Raw::new(3, 0, 1).text("k").u32(8).u64(1).raw(&[0x80]).data(64),
            "\"k\": text is not UTF-8",
        ),
        (
            "array of 2^61 u64",
            Raw::new(3, 0, 1).text("k").u32(9).u32(10).u64(1 << 61).data(64),
            "\"k\": claims 2305843009213693952 array elements",
        ),
        (
            "array of 2^40 strings",
            Raw::new(3, 0, 1).text("k").u32(9).u32(8).u64(huge).data(64),
            "\"k\": claims 1099511627776 array elements",
        ),
        (
            "nested arrays",
            (0..1000).fold(Raw::new(3, 0, 1).text("k").u32(9), |r, _| r.u32(9).u64(1)).data(64),
            "\"k\": arrays are nested more than 4 deep",
        ),
        ("duplicate key", GgufWriter::new().meta("k", 1).meta("k", 2).to_bytes(), "key \"k\" occurs twice"),
        (
            "second chat template",
            GgufWriter::new().meta("tokenizer.chat_template", "a").meta("tokenizer.chat_template", "b").to_bytes(),
            "\"tokenizer.chat_template\" occurs twice",
        ),
        ("alignment 0", key("general.alignment", MetaValue::U32(0)), "general.alignment is 0"),
        ("alignment 0x80000000", key("general.alignment", MetaValue::U32(1 << 31)), "general.alignment is 2147483648"),
        ("alignment 48", key("general.alignment", MetaValue::U32(48)), "general.alignment is 48"),
        ("alignment i32", key("general.alignment", MetaValue::I32(32)), "expected u32, found 32 (i32)"),
        ("alignment u64", key("general.alignment", MetaValue::U64(32)), "expected u32, found 32 (u64)"),
        ("alignment string", key("general.alignment", "32".into()), "expected u32, found string"),
        ("split model", key("split.count", MetaValue::U16(3)), "one of 3 parts"),
        ("no dimensions", f32_tensor(&[], 0), "tensor \"t\" has 0 dimensions"),
        ("five dimensions", f32_tensor(&[1; 5], 0), "tensor \"t\" has 5 dimensions"),
        ("2^32-1 dimensions", Raw::new(3, 1, 0).text("t").u32(u32::MAX).data(64), "has 4294967295 dimensions"),
        ("dimension of zero", f32_tensor(&[4, 0], 0), "tensor \"t\" has the impossible shape [4, 0]"),
        ("product wraps to 2^80", f32_tensor(&[huge, huge], 0), "tensor \"t\" has the impossible shape"),
        ("product wraps to 0", f32_tensor(&[1 << 32, 1 << 32], 0), "tensor \"t\" has the impossible shape"),
        (
            "bytes wrap, values do not",
            f32_tensor(&[1 << 31, 1 << 31], 0),
            "tensor \"t\" has the impossible shape [2147483648, 2147483648]",
        ),
        (
            "row off the block",
            Raw::new(3, 1, 0).tensor("t", &[33], 8, 0).data(64),
            "rows of 33 values do not divide into Q8_0 blocks of 32",
        ),
        ("IQ4_XS", Raw::new(3, 1, 0).tensor("t", &[256], 23, 0).data(256), "is of type IQ4_XS (ggml type 23)"),
        ("MXFP4", Raw::new(3, 1, 0).tensor("t", &[32], 39, 0).data(64), "is of type MXFP4 (ggml type 39)"),
        ("unknown type", Raw::new(3, 1, 0).tensor("t", &[32], 999, 0).data(64), "is of type unknown (ggml type 999)"),
        ("unknown type lists others", Raw::new(3, 1, 0).tensor("t", &[32], 999, 0).data(64), "Q4_K"),
        ("empty tensor name", Raw::new(3, 1, 0).tensor("", &[8], 0, 0).data(64), "a tensor name has 0 bytes"),
        ("long tensor name", Raw::new(3, 1, 0).tensor(&"n".repeat(65), &[8], 0, 0).data(64), "has 65 bytes"),
        (
            "tensor name not UTF-8",
            Raw::new(3, 1, 0).u64(1).raw(&[0xff]).u32(1).u64(8).u32(0).u64(0).data(64),
            "not UTF-8",
        ),
        (
            "duplicate tensor",
            GgufWriter::new()
                .tensor("t", &[8], Format::F32, vec![0; 32])
                .tensor("t", &[8], Format::F32, vec![1; 32])
                .to_bytes(),
            "tensor \"t\" occurs twice",
        ),
        ("offset off the alignment", f32_tensor(&[8], 4), "starts at offset 4, not a multiple of the alignment 32"),
        ("offset at the end", f32_tensor(&[8], 64), "tensor \"t\" ends at byte"),
        ("offset 2^64-32", f32_tensor(&[8], u64::MAX - 31), "tensor \"t\" ends at byte"),
        ("larger than the file", f32_tensor(&[1 << 20], 0), "tensor \"t\" ends at byte"),
        (
            "two tensors in one place",
            Raw::new(3, 2, 0).tensor("a", &[8], 0, 0).tensor("b", &[8], 0, 0).data(64),
            "tensors \"a\" and \"b\" overlap",
        ),
        (
            "overlap out of order",
            Raw::new(3, 2, 0).tensor("b", &[8], 0, 32).tensor("a", &[16], 0, 0).data(64),
            "tensors \"a\" and \"b\" overlap",
        ),
        ("cut at 90 %", valid[..valid.len() * 9 / 10].to_vec(), "but the file has"),
        ("cut by one byte", valid[..valid.len() - 1].to_vec(), "but the file has"),
        ("cut in the header", valid[..100].to_vec(), ""),
    ]
}

#[test]
fn hostile_files_are_refused_by_name() {
    let mut failures = Vec::new();
    for (name, bytes, words) in hostile() {
        match open_bytes(&bytes) {
            Ok(_) => failures.push(format!("{name}: opened")),
            Err(error) => {
                let message = error.to_string();
                if !message.contains(words) || message.contains('\n') || !message.starts_with('/') {
                    failures.push(format!("{name}: {message:?} lacks {words:?}, the path, or is more than a line"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn missing_file_and_folder_are_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let absent = folder.path().join("absent.gguf");
    let error = Gguf::open(&absent).expect_err("no file").to_string();
    assert!(error.contains("absent.gguf: cannot be read"), "{error}");
    let error = Gguf::open(folder.path()).expect_err("a folder").to_string();
    assert!(error.contains("cannot be read"), "{error}");
}

#[test]
fn every_truncation_is_refused() {
    let valid = small().to_bytes();
    for end in 0..valid.len() {
        assert!(Index::read(&valid[..end]).is_err(), "the first {end} bytes passed");
    }
    assert!(Index::read(&valid).is_ok());
}

#[test]
fn arrays_cost_no_memory_of_their_own() {
    // A million one-byte elements: as a vector of values this would be 24 MB.
    let values = MetaValue::Array(ValueType::U8, vec![MetaValue::U8(7); 1_000_000]);
    let bytes = GgufWriter::new().meta("k", values).to_bytes();
    let index = Index::read(&bytes).expect("a valid file");
    assert_eq!(index.metadata.len(), 1);
    assert_eq!(size_of_val(&index.metadata["k"]), 16);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// Whatever a few changed bytes do, reading ends in a value or an error,
    /// and what is then handed out lies inside the file.
    #[test]
    fn damage_never_panics(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in 0_usize..600) {
        let mut bytes = small().to_bytes();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(bytes.len().saturating_sub(cut.saturating_sub(500)));
        if let Ok(index) = Index::read(&bytes) {
            for tensor in &index.tensors {
                prop_assert!(tensor.start + tensor.bytes <= bytes.len());
            }
            for key in index.metadata.keys() {
                prop_assert!(lookup(&bytes, &index.metadata, key).is_ok());
            }
        }
    }
}
