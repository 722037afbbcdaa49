//! GGUF files: a memory map with an index that is checked before it is believed.
//!
//! [`Gguf::open`] reads the header once and verifies every count, length, type,
//! shape and offset against the bytes that are there, before anything is sized
//! by them. Metadata stays in the map: a key costs its name and a position, and
//! an array of 262,144 tokens costs no more than a number. Versions 2 and 3,
//! little-endian.

mod cursor;
mod error;
#[cfg(test)]
mod tests;
mod value;
mod writer;

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use weaklink_kernels::Format;

use cursor::Cursor;
use error::shorten;

pub use error::{GgufError, Problem};
pub use value::{Array, Value, ValueType};
pub use writer::{GgufWriter, MetaValue};

/// The largest metadata and tensor list accepted, in bytes. The largest known
/// vocabularies take about a tenth of it.
const MAX_HEADER: usize = 256 << 20;
/// The most keys, and the most tensors, of a file: bounds what the index costs.
const MAX_ENTRIES: u64 = 65_536;

/// An open, fully checked GGUF file.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    map: Mmap,
    metadata: HashMap<String, (ValueType, usize)>,
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
struct Tensor {
    name: String,
    format: Format,
    /// Outermost first.
    shape: Vec<usize>,
    /// Where the data lies: from the start of the data section while reading
    /// the list, then from the start of the file.
    start: usize,
    bytes: usize,
}

/// A tensor in the mapped file.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// How the values are stored.
    pub format: Format,
    /// Dimensions, outermost first: `[rows, columns]` of a matrix.
    pub shape: &'a [usize],
    /// The stored blocks, row after row.
    pub bytes: &'a [u8],
}

/// Lets go of the pages of a mapped file. Failing to is no harm.
#[cfg(unix)]
pub(crate) fn release(map: &Mmap, start: usize, len: usize) {
    // SAFETY: the map is of a file and only read: a page that is dropped is read from the file again when it is
    // looked at, with the same contents.
    let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
}

impl Gguf {
    /// Maps a file and checks all of its header.
    ///
    /// # Errors
    /// Every way in which the file is unreadable, of another kind, damaged or
    /// hostile; see [`Problem`].
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let fail = |problem| GgufError::new(path, problem);
        // Looked at before it is opened: opening a pipe would wait for a writer.
        let kind = std::fs::metadata(path).map_err(|e| fail(Problem::Io(e.to_string())))?;
        if !kind.is_file() {
            return Err(fail(Problem::Io("not a regular file".to_owned())));
        }
        if kind.len() == 0 {
            return Err(fail(check_magic(&[]).expect_err("no bytes are no magic")));
        }
        let file = File::open(path).map_err(|e| fail(Problem::Io(e.to_string())))?;
        // SAFETY: the map is only read. Nobody in this process writes to model
        // files; another process that changes the file while it is mapped could
        // change what the slices show, which is the known price of mapping:
        // downloads are renamed into place, so a complete file is never rewritten.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| fail(Problem::Io(e.to_string())))?;
        let index = Index::read(&map).map_err(fail)?;
        let by_name = index.tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Self { path: path.to_owned(), map, metadata: index.metadata, tensors: index.tensors, by_name })
    }

    /// The file this was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the file in bytes.
    pub fn size(&self) -> usize {
        self.map.len()
    }

    /// The value of a metadata key.
    pub fn metadata(&self, key: &str) -> Option<Value<'_>> {
        let &(kind, position) = self.metadata.get(key)?;
        Value::read(kind, &mut Cursor::at(&self.map, position), 0).ok()
    }

    /// All metadata keys, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.metadata.keys().map(String::as_str)
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let tensor = &self.tensors[*self.by_name.get(name)?];
        Some(TensorView {
            format: tensor.format,
            shape: &tensor.shape,
            bytes: &self.map[tensor.start..tensor.start + tensor.bytes],
        })
    }

    /// Tells the operating system that a tensor's bytes will not be read again soon: once repacked, they need not stay
    /// in memory beside their copy. They can still be read.
    pub fn release(&self, name: &str) {
        #[cfg(unix)]
        if let Some(&index) = self.by_name.get(name) {
            let tensor = &self.tensors[index];
            release(&self.map, tensor.start, tensor.bytes);
        }
        #[cfg(not(unix))]
        let _ = name;
    }

    /// Names of all tensors in file order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|t| t.name.as_str())
    }

    /// `general.architecture`, the prefix of the model's own keys.
    ///
    /// # Errors
    /// When the key is absent or no string.
    pub fn architecture(&self) -> Result<&str, GgufError> {
        self.need("general.architecture", self.get_str("general.architecture")?)
    }

    /// An unsigned integer of at most 32 bits, of whichever integer type;
    /// `None` when the key is absent.
    ///
    /// # Errors
    /// When the value is no integer, negative or too large.
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.get(key, "an integer from 0 to 4294967295 (u32)", |v| v.as_integer().and_then(|n| n.try_into().ok()))
    }

    /// A 32-bit float (an f64 is accepted and rounded); `None` when absent.
    ///
    /// # Errors
    /// When the value is no float.
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.get(key, "f32", |v| match *v {
            Value::F32(x) => Some(x),
            Value::F64(x) => Some(x as f32),
            _ => None,
        })
    }

    /// A bool; `None` when the key is absent.
    ///
    /// # Errors
    /// When the value is of another type.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.get(key, "bool", |v| if let Value::Bool(b) = *v { Some(b) } else { None })
    }

    /// A string; `None` when the key is absent.
    ///
    /// # Errors
    /// When the value is of another type.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.get(key, "string", |v| if let Value::String(s) = *v { Some(s) } else { None })
    }

    /// An array whose elements are of type `kind`; `None` when the key is absent.
    ///
    /// # Errors
    /// When the value is no array or one of another type.
    pub fn get_array(&self, key: &str, kind: ValueType) -> Result<Option<Array<'_>>, GgufError> {
        let expected = match kind {
            ValueType::String => "array of string",
            ValueType::F32 => "array of f32",
            ValueType::I32 => "array of i32",
            ValueType::U32 => "array of u32",
            ValueType::Bool => "array of bool",
            _ => "array of another type",
        };
        self.get(key, expected, |v| match *v {
            Value::Array(array) if array.kind() == kind => Some(array),
            _ => None,
        })
    }

    /// The strings of an array; `None` when the key is absent.
    ///
    /// # Errors
    /// When the value is no array of strings.
    pub fn get_strings(&self, key: &str) -> Result<Option<impl ExactSizeIterator<Item = &str>>, GgufError> {
        Ok(self.get_array(key, ValueType::String)?.map(Strings::new))
    }

    /// The value, or an error that names the missing key.
    ///
    /// # Errors
    /// When `value` is `None`.
    pub fn need<T>(&self, key: &str, value: Option<T>) -> Result<T, GgufError> {
        value.ok_or_else(|| GgufError::new(&self.path, Problem::MissingKey(key.to_owned())))
    }

    fn get<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.metadata(key) else { return Ok(None) };
        let wrong = || Problem::WrongType { key: key.to_owned(), expected, found: found(&value) };
        convert(&value).map(Some).ok_or_else(|| GgufError::new(&self.path, wrong()))
    }
}

/// Type and, for a number, the value: what a message needs to show.
fn found(value: &Value<'_>) -> String {
    match value.as_integer() {
        Some(n) => format!("{n} ({})", value.kind().name()),
        None => value.describe(),
    }
}

/// The strings of a checked array.
struct Strings<'a> {
    cursor: Cursor<'a>,
    left: usize,
}

impl<'a> Strings<'a> {
    fn new(array: Array<'a>) -> Self {
        Self { cursor: Cursor::at(array.bytes(), 0), left: array.len() }
    }
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.left = self.left.checked_sub(1)?;
        // The text was checked at opening; a file changed since then shows as
        // empty strings, never as a crash.
        Some(self.cursor.string().unwrap_or_default())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

/// What the header says, checked.
struct Index {
    metadata: HashMap<String, (ValueType, usize)>,
    tensors: Vec<Tensor>,
}

impl Index {
    fn read(bytes: &[u8]) -> Result<Self, Problem> {
        check_magic(bytes)?;
        let mut cursor = Cursor::new(bytes, MAX_HEADER);
        cursor.skip(4)?;
        check_version(cursor.u32()?)?;
        let tensor_count = cursor.u64()?;
        let key_count = cursor.u64()?;
        // The smallest entries there can be: a key of one byte with a one-byte
        // value, a tensor with a one-byte name and one dimension.
        let key_count = bounded(&cursor, key_count, 14, "metadata keys")?;
        let tensor_count = bounded(&cursor, tensor_count, 33, "tensors")?;
        let metadata = read_metadata(&mut cursor, key_count)?;
        let alignment = alignment(bytes, &metadata)?;
        check_split(bytes, &metadata)?;
        let mut tensors = Vec::new();
        let mut names = std::collections::HashSet::new();
        for _ in 0..tensor_count {
            let tensor = read_tensor(&mut cursor, alignment)?;
            if !names.insert(tensor.name.clone()) {
                return Err(Problem::DuplicateTensor(tensor.name));
            }
            tensors.push(tensor);
        }
        place(&mut tensors, cursor.position(), alignment, bytes.len())?;
        Ok(Self { metadata, tensors })
    }
}

fn check_magic(bytes: &[u8]) -> Result<(), Problem> {
    if bytes.starts_with(b"GGUF") {
        return Ok(());
    }
    if bytes.starts_with(b"FUGG") {
        return Err(Problem::BigEndian);
    }
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(16)]).into_owned();
    let lower = start.trim_start().to_ascii_lowercase();
    let hint = if bytes.is_empty() {
        " (the file is empty)"
    } else if lower.starts_with("<!doctype") || lower.starts_with("<html") {
        " (a web page, not the model: download it again)"
    } else if lower.starts_with("version https") {
        " (a Git LFS pointer, not the model: download the file itself)"
    } else if ["ggml", "ggjt", "ggla", "ggmf", "lmgg", "tjgg"].iter().any(|m| lower.starts_with(m)) {
        " (a format older than GGUF: convert the model anew)"
    } else {
        ""
    };
    Err(Problem::Magic { start, hint })
}

fn check_version(version: u32) -> Result<(), Problem> {
    match version {
        2 | 3 => Ok(()),
        // A byte-swapped small number; little-endian files never get that far.
        v if v & 0xffff == 0 && v != 0 => Err(Problem::BigEndian),
        v => Err(Problem::Version(v)),
    }
}

fn bounded(cursor: &Cursor<'_>, count: u64, least: usize, what: &'static str) -> Result<usize, Problem> {
    if count > MAX_ENTRIES {
        // Too many for the file is the better message where it applies.
        cursor.check_count(count, least, what)?;
        return Err(Problem::TooMany { what, count, limit: MAX_ENTRIES });
    }
    cursor.check_count(count, least, what)
}

fn read_metadata(cursor: &mut Cursor<'_>, count: usize) -> Result<HashMap<String, (ValueType, usize)>, Problem> {
    let mut metadata = HashMap::new();
    for _ in 0..count {
        let key = cursor.string()?;
        if key.is_empty() || key.len() > 65_535 {
            return Err(Problem::KeyLength(key.len()));
        }
        let inside = |problem| Problem::Key { key: shorten(key), problem: Box::new(problem) };
        let id = cursor.u32().map_err(inside)?;
        let kind = ValueType::from_id(id).ok_or_else(|| inside(Problem::UnknownValueType { id }))?;
        let start = cursor.position();
        Value::read(kind, cursor, 0).map_err(inside)?;
        if metadata.insert(key.to_owned(), (kind, start)).is_some() {
            return Err(Problem::DuplicateKey(shorten(key)));
        }
    }
    Ok(metadata)
}

fn lookup<'a>(
    bytes: &'a [u8],
    metadata: &HashMap<String, (ValueType, usize)>,
    key: &str,
) -> Result<Option<Value<'a>>, Problem> {
    let Some(&(kind, start)) = metadata.get(key) else { return Ok(None) };
    Value::read(kind, &mut Cursor::at(bytes, start), 0).map(Some)
}

fn alignment(bytes: &[u8], metadata: &HashMap<String, (ValueType, usize)>) -> Result<usize, Problem> {
    const KEY: &str = "general.alignment";
    match lookup(bytes, metadata, KEY)? {
        None => Ok(32),
        Some(Value::U32(n)) if n.is_power_of_two() && (8..=65_536).contains(&n) => Ok(n as usize),
        Some(Value::U32(n)) => Err(Problem::Alignment(n)),
        Some(other) => Err(Problem::WrongType { key: KEY.to_owned(), expected: "u32", found: found(&other) }),
    }
}

fn check_split(bytes: &[u8], metadata: &HashMap<String, (ValueType, usize)>) -> Result<(), Problem> {
    match lookup(bytes, metadata, "split.count")?.and_then(|v| v.as_integer()) {
        Some(n) if n > 1 => Err(Problem::Split(n.try_into().unwrap_or(u64::MAX))),
        _ => Ok(()),
    }
}

/// Reads one entry of the tensor list; `start` is still relative.
fn read_tensor(cursor: &mut Cursor<'_>, alignment: usize) -> Result<Tensor, Problem> {
    let name = cursor.string()?;
    if name.is_empty() || name.len() > 64 {
        return Err(Problem::NameLength(name.len()));
    }
    let name = name.to_owned();
    let dims = cursor.u32()?;
    if !(1..=4).contains(&dims) {
        return Err(Problem::Dimensions { name, dims });
    }
    let mut file_shape = Vec::with_capacity(4);
    for _ in 0..dims {
        file_shape.push(cursor.u64()?);
    }
    let id = cursor.u32()?;
    let offset = cursor.u64()?;
    let Some(format) = Format::from_ggml(id) else {
        return Err(Problem::TensorType { name, id });
    };
    let impossible = |name: &str| Problem::Shape { name: name.to_owned(), shape: file_shape.clone() };
    let mut shape = Vec::with_capacity(file_shape.len());
    let mut rows = 1_usize;
    for (i, &dim) in file_shape.iter().enumerate() {
        let dim = usize::try_from(dim).ok().filter(|&d| d > 0).ok_or_else(|| impossible(&name))?;
        if i > 0 {
            rows = rows.checked_mul(dim).ok_or_else(|| impossible(&name))?;
        }
        shape.push(dim);
    }
    let columns = shape[0];
    shape.reverse();
    if !columns.is_multiple_of(format.block_len()) {
        return Err(Problem::Blocks { name, columns, format });
    }
    let bytes = format.row_bytes(columns).and_then(|row| row.checked_mul(rows));
    // Values are counted as well: formats of less than a byte a value could
    // fit where the count of values does not.
    let values = rows.checked_mul(columns);
    let (Some(bytes), Some(_)) = (bytes, values) else {
        return Err(impossible(&name));
    };
    if offset % alignment as u64 != 0 {
        return Err(Problem::Unaligned { name, offset, alignment });
    }
    let Ok(start) = usize::try_from(offset) else {
        return Err(Problem::OutOfFile { name, end: u128::from(offset) + bytes as u128, size: 0 });
    };
    Ok(Tensor { name, format, shape, start, bytes })
}

/// Turns relative starts into positions in the file and checks that the data
/// lies inside the file without sharing bytes.
fn place(tensors: &mut [Tensor], header_end: usize, alignment: usize, size: usize) -> Result<(), Problem> {
    let data = header_end.next_multiple_of(alignment);
    for tensor in &mut *tensors {
        let end = data as u128 + tensor.start as u128 + tensor.bytes as u128;
        if end > size as u128 {
            return Err(Problem::OutOfFile { name: tensor.name.clone(), end, size });
        }
        tensor.start += data;
    }
    let mut order: Vec<&Tensor> = tensors.iter().collect();
    order.sort_by_key(|t| t.start);
    for pair in order.windows(2) {
        if pair[0].start + pair[0].bytes > pair[1].start {
            return Err(Problem::Overlap { first: pair[0].name.clone(), second: pair[1].name.clone() });
        }
    }
    Ok(())
}
