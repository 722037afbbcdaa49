//! What can be wrong with a GGUF file, in words that name the file and the way out.

use std::path::{Path, PathBuf};

use weaklink_kernels::Format;

/// A GGUF file that cannot be used, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct GgufError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: Problem,
}

impl GgufError {
    pub(super) fn new(path: &Path, problem: Problem) -> Self {
        Self { path: path.to_owned(), problem }
    }
}

/// What is wrong with a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file could not be opened or mapped.
    #[error("cannot be read: {0}")]
    Io(String),
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it starts with {start:?} where \"GGUF\" is expected{hint}")]
    Magic {
        /// The first bytes, made printable.
        start: String,
        /// What the file looks like instead, or nothing.
        hint: &'static str,
    },
    /// The byte order is the other one.
    #[error("big-endian, not supported: convert the model to a little-endian GGUF file")]
    BigEndian,
    /// A version other than 2 and 3.
    #[error("GGUF version {0} is not supported, versions 2 and 3 are: convert the model anew")]
    Version(u32),
    /// The file is one part of several.
    #[error("one of {0} parts of a split model: merge the parts into one file first")]
    Split(u64),
    /// The file ends inside its header.
    #[error("cut short: the file of {size} bytes ends inside its header; download it again")]
    Truncated {
        /// Size of the file in bytes.
        size: usize,
    },
    /// The header is larger than any known model's.
    #[error("metadata and tensor list take more than {limit} bytes, which no known model needs")]
    HeaderTooLarge {
        /// The largest header accepted, in bytes.
        limit: usize,
    },
    /// A count that the rest of the file cannot hold.
    #[error("claims {count} {what}, but only {left} bytes are left of the header or file")]
    Count {
        /// What is counted.
        what: &'static str,
        /// The number claimed.
        count: u64,
        /// Bytes that are left.
        left: usize,
    },
    /// More keys or tensors than any known model has.
    #[error("claims {count} {what}, more than the {limit} accepted")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The number claimed.
        count: u64,
        /// The most accepted.
        limit: u64,
    },
    /// A problem inside one metadata value.
    #[error("metadata key {key:?}: {problem}")]
    Key {
        /// The key, shortened.
        key: String,
        /// What is wrong with its value.
        problem: Box<Problem>,
    },
    /// Text that is not UTF-8.
    #[error("text is not UTF-8 at byte {at}")]
    NotUtf8 {
        /// Where the first wrong byte is.
        at: usize,
    },
    /// A bool that is neither 0 nor 1.
    #[error("a bool holds {byte}, neither 0 nor 1")]
    NotABool {
        /// The byte found.
        byte: u8,
    },
    /// A type tag that the format does not define.
    #[error("unknown value type {id}")]
    UnknownValueType {
        /// The tag found.
        id: u32,
    },
    /// Arrays inside arrays, too deep.
    #[error("arrays are nested more than {limit} deep")]
    NestedArrays {
        /// The deepest nesting accepted.
        limit: u32,
    },
    /// Two values of one key.
    #[error("metadata key {0:?} occurs twice: which value counts is undefined")]
    DuplicateKey(String),
    /// An empty or overlong key.
    #[error("a metadata key has {0} bytes, 1 to 65535 are allowed")]
    KeyLength(usize),
    /// A key is needed and absent.
    #[error("metadata key {0:?} is missing")]
    MissingKey(String),
    /// A value of another type than the key needs.
    #[error("metadata key {key:?}: expected {expected}, found {found}")]
    WrongType {
        /// The key.
        key: String,
        /// The type needed.
        expected: &'static str,
        /// The type in the file.
        found: String,
    },
    /// An alignment that cannot be one.
    #[error("general.alignment is {0}, expected a power of two from 8 to 65536")]
    Alignment(u32),
    /// An empty or overlong tensor name.
    #[error("a tensor name has {0} bytes, 1 to 64 are allowed")]
    NameLength(usize),
    /// Two tensors of one name.
    #[error("tensor {0:?} occurs twice: which one counts is undefined")]
    DuplicateTensor(String),
    /// No dimensions or too many.
    #[error("tensor {name:?} has {dims} dimensions, 1 to 4 are allowed")]
    Dimensions {
        /// The tensor.
        name: String,
        /// Dimensions claimed.
        dims: u32,
    },
    /// A dimension of zero, or a product that no memory holds.
    #[error("tensor {name:?} has the impossible shape {shape:?} (innermost first)")]
    Shape {
        /// The tensor.
        name: String,
        /// The dimensions as in the file.
        shape: Vec<u64>,
    },
    /// The row length is no multiple of the block length.
    #[error("tensor {name:?}: rows of {columns} values do not divide into {} blocks of {}", format.name(), format.block_len())]
    Blocks {
        /// The tensor.
        name: String,
        /// Values a row.
        columns: usize,
        /// The tensor's format.
        format: Format,
    },
    /// A quantization that cannot be read.
    #[error("tensor {name:?} is of type {} (ggml type {id}), which is not supported; supported: {}", ggml_type_name(*id), supported())]
    TensorType {
        /// The tensor.
        name: String,
        /// The number of the type in the file.
        id: u32,
    },
    /// An offset off the alignment.
    #[error("tensor {name:?} starts at offset {offset}, not a multiple of the alignment {alignment}")]
    Unaligned {
        /// The tensor.
        name: String,
        /// Its offset from the start of the data.
        offset: u64,
        /// The file's alignment.
        alignment: usize,
    },
    /// Data beyond the end of the file.
    #[error("tensor {name:?} ends at byte {end}, but the file has {size}: cut short or damaged; download it again")]
    OutOfFile {
        /// The tensor.
        name: String,
        /// Where its data would end.
        end: u128,
        /// Size of the file in bytes.
        size: usize,
    },
    /// Two tensors share bytes.
    #[error("tensors {first:?} and {second:?} overlap in the file")]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts inside it.
        second: String,
    },
}

/// A name from the file, short enough for one line of a message.
pub(super) fn shorten(name: &str) -> String {
    match name.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

fn supported() -> String {
    Format::ALL.map(Format::name).join(", ")
}

/// Names of all ggml types, by number; the gaps were withdrawn from ggml.
fn ggml_type_name(id: u32) -> &'static str {
    const NAMES: [&str; 41] = [
        "F32",
        "F16",
        "Q4_0",
        "Q4_1",
        "Q4_2",
        "Q4_3",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q8_1",
        "Q2_K",
        "Q3_K",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "Q8_K",
        "IQ2_XXS",
        "IQ2_XS",
        "IQ3_XXS",
        "IQ1_S",
        "IQ4_NL",
        "IQ3_S",
        "IQ2_S",
        "IQ4_XS",
        "I8",
        "I16",
        "I32",
        "I64",
        "F64",
        "IQ1_M",
        "BF16",
        "Q4_0_4_4",
        "Q4_0_4_8",
        "Q4_0_8_8",
        "TQ1_0",
        "TQ2_0",
        "IQ4_NL_4_4",
        "IQ4_NL_4_8",
        "IQ4_NL_8_8",
        "MXFP4",
        "NVFP4",
    ];
    usize::try_from(id).ok().and_then(|i| NAMES.get(i).copied()).unwrap_or("unknown")
}
