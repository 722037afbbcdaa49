//! Writes small GGUF files: tests and synthetic models.

use std::io::{self, Write};
use std::path::Path;

use weaklink_kernels::Format;

use super::value::{Value, ValueType};

/// An owned metadata value to be written.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are those of ValueType")]
pub enum MetaValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    /// Element type and elements.
    Array(ValueType, Vec<MetaValue>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl MetaValue {
    /// The type tag of this value.
    pub fn kind(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(..) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// An array of strings.
    pub fn strings<S: Into<String>>(values: impl IntoIterator<Item = S>) -> Self {
        Self::Array(ValueType::String, values.into_iter().map(|s| Self::String(s.into())).collect())
    }

    /// An array of 32-bit floats.
    pub fn f32s(values: impl IntoIterator<Item = f32>) -> Self {
        Self::Array(ValueType::F32, values.into_iter().map(Self::F32).collect())
    }

    /// An array of signed 32-bit integers.
    pub fn i32s(values: impl IntoIterator<Item = i32>) -> Self {
        Self::Array(ValueType::I32, values.into_iter().map(Self::I32).collect())
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(v) => out.push(*v),
            Self::I8(v) => out.extend(v.to_le_bytes()),
            Self::U16(v) => out.extend(v.to_le_bytes()),
            Self::I16(v) => out.extend(v.to_le_bytes()),
            Self::U32(v) => out.extend(v.to_le_bytes()),
            Self::I32(v) => out.extend(v.to_le_bytes()),
            Self::F32(v) => out.extend(v.to_le_bytes()),
            Self::Bool(v) => out.push(u8::from(*v)),
            Self::String(v) => write_string(out, v),
            Self::Array(kind, values) => {
                out.extend(kind.id().to_le_bytes());
                out.extend((values.len() as u64).to_le_bytes());
                values.iter().for_each(|v| v.write(out));
            }
            Self::U64(v) => out.extend(v.to_le_bytes()),
            Self::I64(v) => out.extend(v.to_le_bytes()),
            Self::F64(v) => out.extend(v.to_le_bytes()),
        }
    }
}

impl From<u32> for MetaValue {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<f32> for MetaValue {
    fn from(value: f32) -> Self {
        Self::F32(value)
    }
}

impl From<bool> for MetaValue {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for MetaValue {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}

/// A value read from one file, to be written to another.
impl From<Value<'_>> for MetaValue {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::U8(v) => Self::U8(v),
            Value::I8(v) => Self::I8(v),
            Value::U16(v) => Self::U16(v),
            Value::I16(v) => Self::I16(v),
            Value::U32(v) => Self::U32(v),
            Value::I32(v) => Self::I32(v),
            Value::F32(v) => Self::F32(v),
            Value::Bool(v) => Self::Bool(v),
            Value::String(v) => Self::String(v.to_owned()),
            Value::Array(v) => Self::Array(v.kind(), v.iter().map(Self::from).collect()),
            Value::U64(v) => Self::U64(v),
            Value::I64(v) => Self::I64(v),
            Value::F64(v) => Self::F64(v),
        }
    }
}

/// A tensor's bytes, or how many there will be.
#[derive(Clone, Debug)]
enum Data {
    Here(Vec<u8>),
    Later(usize),
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::Later(len) => *len,
        }
    }
}

/// Builds a GGUF file in memory, or its head with tensors that follow when it is [streamed](Self::stream).
///
/// It writes what it is told and checks nothing, so that tests can also write
/// files that must be refused: the checks are [`Gguf::open`](super::Gguf::open)'s.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    alignment: usize,
    metadata: Vec<(String, MetaValue)>,
    tensors: Vec<(String, Vec<u64>, u32, Data)>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self { version: 3, alignment: 32, metadata: Vec::new(), tensors: Vec::new() }
    }
}

impl GgufWriter {
    /// An empty file of version 3.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the version written.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Appends a key. `general.alignment` also aligns what is written, if it can.
    #[must_use]
    pub fn meta(mut self, key: &str, value: impl Into<MetaValue>) -> Self {
        let value = value.into();
        if let ("general.alignment", MetaValue::U32(n)) = (key, &value)
            && n.is_power_of_two()
            && *n <= 65_536
        {
            self.alignment = *n as usize;
        }
        self.metadata.push((key.to_owned(), value));
        self
    }

    /// Removes a key.
    #[must_use]
    pub fn without(mut self, key: &str) -> Self {
        self.metadata.retain(|(k, _)| k != key);
        self
    }

    /// Appends a tensor; `shape` is outermost first, as in
    /// [`TensorView`](super::TensorView).
    #[must_use]
    pub fn tensor(self, name: &str, shape: &[usize], format: Format, bytes: Vec<u8>) -> Self {
        let shape: Vec<u64> = shape.iter().map(|&d| d as u64).collect();
        self.raw_tensor(name, &shape, format.ggml_id(), bytes)
    }

    /// Appends a tensor of any shape (outermost first) and ggml type number.
    #[must_use]
    pub fn raw_tensor(mut self, name: &str, shape: &[u64], ggml_type: u32, bytes: Vec<u8>) -> Self {
        let innermost_first = shape.iter().rev().copied().collect();
        self.tensors.push((name.to_owned(), innermost_first, ggml_type, Data::Here(bytes)));
        self
    }

    /// Appends a tensor whose bytes are asked for by [`stream`](Self::stream); `shape` is outermost first.
    ///
    /// # Panics
    /// If the format's blocks do not divide a row or the size overflows: such a tensor cannot be stored.
    #[must_use]
    pub fn planned_tensor(mut self, name: &str, shape: &[usize], format: Format) -> Self {
        let (cols, rows) = shape.split_last().expect("a tensor has a shape");
        let row = format.row_bytes(*cols).expect("whole blocks in a row");
        let len = rows.iter().try_fold(row, |len, rows| len.checked_mul(*rows)).expect("a size that can be stored");
        let innermost_first = shape.iter().rev().map(|&d| d as u64).collect();
        self.tensors.push((name.to_owned(), innermost_first, format.ggml_id(), Data::Later(len)));
        self
    }

    /// Writes the file to `out`. `data(i, out)` writes the bytes of the i-th tensor, if it is a
    /// [planned](Self::planned_tensor) one.
    ///
    /// # Errors
    /// Those of `out` and `data`, and where `data` writes more or fewer bytes than the tensor has.
    pub fn stream(
        &self,
        out: &mut dyn Write,
        mut data: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let head = self.head();
        out.write_all(&head)?;
        let mut at = head.len();
        for (index, (name, _, _, bytes)) in self.tensors.iter().enumerate() {
            let padding = at.next_multiple_of(self.alignment) - at;
            out.write_all(&vec![0; padding])?;
            match bytes {
                Data::Here(bytes) => out.write_all(bytes)?,
                Data::Later(len) => {
                    let mut counted = Counted { out, bytes: 0 };
                    data(index, &mut counted)?;
                    if counted.bytes != *len {
                        return Err(io::Error::other(format!(
                            "tensor {name}: {} bytes written of {len}",
                            counted.bytes
                        )));
                    }
                }
            }
            at += padding + bytes.len();
        }
        Ok(())
    }

    /// The file's bytes; those of planned tensors are zeros.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.head();
        for (_, _, _, data) in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            match data {
                Data::Here(bytes) => out.extend(bytes),
                Data::Later(len) => out.resize(out.len() + len, 0),
            }
        }
        out
    }

    /// Everything before the tensors' bytes.
    fn head(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            write_string(&mut out, key);
            out.extend(value.kind().id().to_le_bytes());
            value.write(&mut out);
        }
        let mut offset = 0_u64;
        for (name, shape, ggml_type, bytes) in &self.tensors {
            write_string(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(ggml_type.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += bytes.len().next_multiple_of(self.alignment) as u64;
        }
        out
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.to_bytes())
    }
}

/// Counts what passes through.
struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: usize,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
