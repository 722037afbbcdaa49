//! What the tests share: models fetched once through `weaklink pull`, and their parts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use serde_json::Value as Json;
use weaklink::engine::load::OpenModel;
use weaklink::engine::score::TextScore;
use weaklink::engine::{EngineHandle, EngineLimits};
use weaklink_kernels::Format;
use weaklink_models::decoder::Decoder;
use weaklink_models::fetch::LocalModel;
use weaklink_models::gguf::{Gguf, GgufWriter};
use weaklink_models::text::Text;

/// The program under test.
pub fn weaklink() -> Command {
    Command::new(env!("CARGO_BIN_EXE_weaklink"))
}

/// The file of a card, fetched through the program's own `pull`; once a test run.
pub fn pulled(card: &str) -> PathBuf {
    static PULLED: OnceLock<Mutex<HashMap<String, PathBuf>>> = OnceLock::new();
    let mut pulled = PULLED.get_or_init(Mutex::default).lock().expect("no test panics while pulling");
    pulled
        .entry(card.to_owned())
        .or_insert_with(|| {
            let output = weaklink().args(["pull", card, "--json"]).output().expect("weaklink runs");
            assert!(output.status.success(), "pull {card}: {}", String::from_utf8_lossy(&output.stderr));
            let line: Json = serde_json::from_slice(&output.stdout).expect("pull --json prints JSON");
            let path = line["models"][0]["path"].as_str().unwrap_or_else(|| panic!("no path in {line}"));
            PathBuf::from(path)
        })
        .clone()
}

/// A file under `tests/golden`.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A golden JSON file.
pub fn golden_json(name: &str) -> Json {
    let bytes = std::fs::read(golden(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The models that the tests run, by the name in their golden files.
pub const MODELS: [&str; 6] = ["smollm2", "gemma3", "tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3"];

/// Opens one of [`MODELS`].
pub fn open(name: &str) -> OpenModel {
    let path = match name {
        "smollm2" => pulled("smollm2-135m"),
        "gemma3" => pulled("gemma-3-270m"),
        tiny => golden(&format!("{tiny}.gguf")),
    };
    open_path(&path)
}

/// Opens a model file or folder.
pub fn open_path(path: &Path) -> OpenModel {
    let local = LocalModel { name: "test".into(), path: path.to_owned(), card: None };
    OpenModel::open(&local).unwrap_or_else(|e| panic!("{}: {e:#}", path.display()))
}

/// The file of one of [`MODELS`] again, its weights in F32 after `change` has seen each (name, values).
pub fn in_f32(name: &str, folder: &Path, change: impl Fn(&str, &mut [f32])) -> PathBuf {
    let gguf = Gguf::open(&golden(&format!("{name}.gguf"))).expect("a golden file opens");
    let mut writer = GgufWriter::new();
    for key in gguf.keys() {
        writer = writer.meta(key, gguf.metadata(key).expect("a listed key has a value"));
    }
    for tensor_name in gguf.tensor_names() {
        let tensor = gguf.tensor(tensor_name).expect("a listed tensor is there");
        let mut values = vec![0.0; tensor.shape.iter().product()];
        weaklink_kernels::dequantize(tensor.format, tensor.bytes, &mut values).expect("whole blocks");
        change(tensor_name, &mut values);
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        writer = writer.tensor(tensor_name, tensor.shape, Format::F32, bytes);
    }
    let path = folder.join(format!("{name}-f32.gguf"));
    writer.write(&path).expect("a temporary folder can be written");
    path
}

/// A decoder with its text, loaded once a test run.
pub fn loaded(name: &str) -> (Arc<Decoder>, Arc<Text>) {
    type Loaded = HashMap<String, (Arc<Decoder>, Arc<Text>)>;
    static LOADED: OnceLock<Mutex<Loaded>> = OnceLock::new();
    let mut loaded = LOADED.get_or_init(Mutex::default).lock().expect("no test panics while loading");
    loaded
        .entry(name.to_owned())
        .or_insert_with(|| {
            let model = open(name);
            (Arc::new(model.load_decoder().expect("the weights load")), model.text)
        })
        .clone()
}

/// An engine over an already loaded model.
pub fn engine(name: &str, limits: EngineLimits, threads: usize) -> EngineHandle {
    let (decoder, text) = loaded(name);
    EngineHandle::start(decoder, text, limits, threads).expect("the engine starts")
}

/// Scores one text at a time.
pub struct Scorer(EngineHandle);

impl Scorer {
    pub fn new(model: &OpenModel, threads: usize) -> anyhow::Result<Self> {
        let decoder = Arc::new(model.load_decoder()?);
        let limits = EngineLimits { batch: 1, step_tokens: 512, blocks: 128, context: 2048, draft_rows: 16 };
        Ok(Self(EngineHandle::start(decoder, model.text.clone(), limits, threads)?))
    }

    pub fn score(&mut self, ids: &[u32]) -> anyhow::Result<TextScore> {
        Ok(block_on(self.0.score_text(ids, 10))?)
    }
}

/// Runs a future to its end.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}
