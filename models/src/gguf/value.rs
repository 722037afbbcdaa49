//! Metadata values: scalars by value, strings and arrays as views into the file.

use super::cursor::Cursor;
use super::error::Problem;

/// The type tag of a metadata value, as the GGUF specification numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// 32-bit float.
    F32,
    /// One byte, 0 or 1.
    Bool,
    /// Length-prefixed UTF-8.
    String,
    /// Element type, count, elements.
    Array,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    I64,
    /// 64-bit float.
    F64,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with this number in the file, if there is one.
    pub fn from_id(id: u32) -> Option<Self> {
        usize::try_from(id).ok().and_then(|i| Self::ALL.get(i).copied())
    }

    /// The number of this type in the file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The name used in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of one value on disk; `None` for strings and arrays, which vary.
    pub fn size(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }
}

/// A metadata value; strings and arrays borrow from the mapped file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// See [`ValueType::U8`].
    U8(u8),
    /// See [`ValueType::I8`].
    I8(i8),
    /// See [`ValueType::U16`].
    U16(u16),
    /// See [`ValueType::I16`].
    I16(i16),
    /// See [`ValueType::U32`].
    U32(u32),
    /// See [`ValueType::I32`].
    I32(i32),
    /// See [`ValueType::F32`].
    F32(f32),
    /// See [`ValueType::Bool`].
    Bool(bool),
    /// See [`ValueType::String`].
    String(&'a str),
    /// See [`ValueType::Array`].
    Array(Array<'a>),
    /// See [`ValueType::U64`].
    U64(u64),
    /// See [`ValueType::I64`].
    I64(i64),
    /// See [`ValueType::F64`].
    F64(f64),
}

impl<'a> Value<'a> {
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
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The type in words, with the element type and length of an array.
    pub fn describe(&self) -> String {
        match self {
            Self::Array(array) => format!("array of {} {}", array.len, array.kind.name()),
            other => other.kind().name().to_owned(),
        }
    }

    /// The value as an integer, when it is one of the eight integer types.
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::U64(v) => Some(v.into()),
            Self::I64(v) => Some(v.into()),
            _ => None,
        }
    }

    /// Reads a value of type `kind`, checking every length, byte of text and
    /// bool on the way. Arrays are walked once and kept as a range.
    pub(super) fn read(kind: ValueType, cursor: &mut Cursor<'a>, depth: u32) -> Result<Self, Problem> {
        Ok(match kind {
            ValueType::U8 => Self::U8(cursor.array::<1>()?[0]),
            ValueType::I8 => Self::I8(i8::from_le_bytes(cursor.array()?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(cursor.array()?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(cursor.array()?)),
            ValueType::U32 => Self::U32(cursor.u32()?),
            ValueType::I32 => Self::I32(i32::from_le_bytes(cursor.array()?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(cursor.array()?)),
            ValueType::Bool => Self::Bool(cursor.bool()?),
            ValueType::String => Self::String(cursor.string()?),
            ValueType::Array => Self::Array(Array::read(cursor, depth)?),
            ValueType::U64 => Self::U64(cursor.u64()?),
            ValueType::I64 => Self::I64(i64::from_le_bytes(cursor.array()?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(cursor.array()?)),
        })
    }
}

/// An array inside the mapped file: nothing is copied, elements are read as
/// they are asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    kind: ValueType,
    len: usize,
    bytes: &'a [u8],
}

/// Arrays of arrays are allowed by the format and used by nobody; this many
/// levels are followed before the file is refused.
const MAX_DEPTH: u32 = 4;

impl<'a> Array<'a> {
    /// Type of the elements.
    pub fn kind(&self) -> ValueType {
        self.kind
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// All elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let mut cursor = Cursor::new(self.bytes, self.bytes.len());
        let kind = self.kind;
        (0..self.len).map_while(move |_| Value::read(kind, &mut cursor, 0).ok())
    }

    fn read(cursor: &mut Cursor<'a>, depth: u32) -> Result<Self, Problem> {
        if depth >= MAX_DEPTH {
            return Err(Problem::NestedArrays { limit: MAX_DEPTH });
        }
        let kind = cursor.u32()?;
        let kind = ValueType::from_id(kind).ok_or(Problem::UnknownValueType { id: kind })?;
        let count = cursor.u64()?;
        // A string or an array takes at least its own length field.
        let least = kind.size().unwrap_or(if kind == ValueType::String { 8 } else { 12 });
        let len = cursor.check_count(count, least, "array elements")?;
        let start = cursor.position();
        match kind {
            ValueType::Bool | ValueType::String | ValueType::Array => {
                for _ in 0..len {
                    Value::read(kind, cursor, depth + 1)?;
                }
            }
            // `check_count` has bounded the product by the bytes left.
            _ => cursor.skip(len * least)?,
        }
        Ok(Self { kind, len, bytes: cursor.since(start) })
    }
}
