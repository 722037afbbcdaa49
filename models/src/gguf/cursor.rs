//! Bounded little-endian reading of the header: nothing is taken from the file
//! without a check against the bytes that are there.

use super::error::Problem;

/// A position in the header. `end` is where reading must stop: the end of the
/// file or the largest header accepted, whichever comes first.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
    end: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], limit: usize) -> Self {
        Self { bytes, position: 0, end: bytes.len().min(limit) }
    }

    pub(super) fn at(bytes: &'a [u8], position: usize) -> Self {
        Self { bytes, position, end: bytes.len() }
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    pub(super) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.position]
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Problem> {
        if count > self.end - self.position {
            return Err(self.short());
        }
        let start = self.position;
        self.position += count;
        Ok(&self.bytes[start..self.position])
    }

    pub(super) fn skip(&mut self, count: usize) -> Result<(), Problem> {
        self.take(count).map(|_| ())
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Problem> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Problem> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn bool(&mut self) -> Result<bool, Problem> {
        match self.array::<1>()?[0] {
            0 => Ok(false),
            1 => Ok(true),
            byte => Err(Problem::NotABool { byte }),
        }
    }

    pub(super) fn string(&mut self) -> Result<&'a str, Problem> {
        let length = self.u64()?;
        let length = self.check_count(length, 1, "bytes of text")?;
        let start = self.position;
        std::str::from_utf8(self.take(length)?).map_err(|e| Problem::NotUtf8 { at: start + e.valid_up_to() })
    }

    /// Refuses a count of things of at least `least` bytes each that the bytes
    /// left cannot hold. What passes may size a loop and be multiplied by `least`.
    pub(super) fn check_count(&self, count: u64, least: usize, what: &'static str) -> Result<usize, Problem> {
        let left = self.end - self.position;
        match usize::try_from(count) {
            Ok(count) if count <= left / least.max(1) => Ok(count),
            _ if self.end < self.bytes.len() => Err(self.short()),
            _ => Err(Problem::Count { what, count, left }),
        }
    }

    fn short(&self) -> Problem {
        if self.end < self.bytes.len() {
            Problem::HeaderTooLarge { limit: self.end }
        } else {
            Problem::Truncated { size: self.bytes.len() }
        }
    }
}
