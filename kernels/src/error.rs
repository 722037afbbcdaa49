//! The one error type of the crate.

use crate::Format;

/// Why a kernel refused its input. Every message names both sides of the mismatch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// A row cannot be cut into whole blocks of its format.
    #[error("{format}: {cols} columns are not a multiple of the format's block of {block}")]
    Columns {
        /// Format of the tensor.
        format: Format,
        /// Columns (inputs) asked for.
        cols: usize,
        /// Values in one block of the format.
        block: usize,
    },
    /// The product of a shape does not fit the machine's address space.
    #[error("{what}: {rows} rows of {cols} columns overflow the address space")]
    Overflow {
        /// The operation and argument.
        what: &'static str,
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
    },
    /// A buffer has another length than its shape says.
    #[error("{what}: the shape needs {expected} elements, the buffer has {found}")]
    Length {
        /// The operation and argument, in words.
        what: &'static str,
        /// Elements the shape needs.
        expected: usize,
        /// Elements the buffer has.
        found: usize,
    },
    /// A number lies outside what the operation accepts.
    #[error("{what}: {found} is outside the accepted range, at most {limit}")]
    Range {
        /// The operation and argument, in words.
        what: &'static str,
        /// The largest accepted value.
        limit: usize,
        /// The value given.
        found: usize,
    },
    /// A format can be read but not written.
    #[error("{format}: quantizing to this format is not supported; use F32, F16, BF16, Q8_0, Q4_0 or Q4_1")]
    NotWritable {
        /// The format asked for.
        format: Format,
    },
}

/// `Ok` if a buffer has exactly the length its shape needs.
pub(crate) fn check_len(what: &'static str, expected: usize, found: usize) -> Result<(), KernelError> {
    if expected == found { Ok(()) } else { Err(KernelError::Length { what, expected, found }) }
}

/// `Ok` if a buffer is at least as long as its shape needs.
pub(crate) fn check_at_least(what: &'static str, expected: usize, found: usize) -> Result<(), KernelError> {
    if expected <= found { Ok(()) } else { Err(KernelError::Length { what, expected, found }) }
}

/// `Ok` if `found <= limit`.
pub(crate) fn check_range(what: &'static str, limit: usize, found: usize) -> Result<(), KernelError> {
    if found <= limit { Ok(()) } else { Err(KernelError::Range { what, limit, found }) }
}

/// Elements of a `rows × cols` buffer.
pub(crate) fn area(what: &'static str, rows: usize, cols: usize) -> Result<usize, KernelError> {
    rows.checked_mul(cols).ok_or(KernelError::Overflow { what, rows, cols })
}
