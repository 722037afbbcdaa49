//! The tokens: what each is called, what it is for and which bytes it stands for.

use super::error::TextProblem;

/// The largest vocabulary accepted; the largest known has 262,144 tokens.
pub(super) const MAX_TOKENS: usize = 1 << 22;

/// What a token is for; the numbers are those of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A piece of text.
    Normal,
    /// Stands for text that has no token.
    Unknown,
    /// Structure: turn boundaries, beginning, end. Decodes to nothing.
    Control,
    /// Text that is always one token. Decodes to that text.
    UserDefined,
    /// Reserved.
    Unused,
    /// One byte of a character without a token of its own.
    Byte,
}

impl Kind {
    pub(super) fn from_gguf(id: usize, number: i32) -> Result<Self, TextProblem> {
        match number {
            0 | 1 => Ok(Self::Normal),
            2 => Ok(Self::Unknown),
            3 => Ok(Self::Control),
            4 => Ok(Self::UserDefined),
            5 => Ok(Self::Unused),
            6 => Ok(Self::Byte),
            found => Err(TextProblem::TokenType { id, found }),
        }
    }
}

/// How token names stand for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// Every byte is written as one printable character (GPT-2's table).
    ByteLevel,
    /// Names are text with `▁` for a space, plus tokens `<0x00>` to `<0xFF>`.
    SentencePiece,
}

/// Strings end to end in one allocation, by index.
#[derive(Default)]
struct Packed {
    data: Vec<u8>,
    ends: Vec<u32>,
}

impl Packed {
    fn push(&mut self, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
        self.ends.push(u32::try_from(self.data.len()).unwrap_or(u32::MAX));
    }

    fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = index.checked_sub(1).map_or(0, |i| self.ends[i] as usize);
        self.data.get(start..end)
    }
}

/// All tokens by id.
pub(super) struct Vocab {
    kinds: Vec<Kind>,
    names: Packed,
    bytes: Packed,
    /// Whether a space was put before the text and the first one is to go again.
    pub(super) strip_first_space: bool,
}

impl Vocab {
    pub(super) fn new(tokens: &[(&str, Kind)], scheme: Scheme, strip_first_space: bool) -> Result<Self, TextProblem> {
        if tokens.is_empty() || tokens.len() > MAX_TOKENS {
            return Err(TextProblem::Size { found: tokens.len(), limit: MAX_TOKENS });
        }
        let table = byte_of_char();
        let mut vocab =
            Self { kinds: Vec::new(), names: Packed::default(), bytes: Packed::default(), strip_first_space };
        let mut bytes = Vec::new();
        for &(name, kind) in tokens {
            bytes.clear();
            match (kind, scheme) {
                (Kind::Control | Kind::Unknown, _) => {}
                (Kind::Byte, Scheme::SentencePiece) if byte_token(name).is_some() => bytes.extend(byte_token(name)),
                (Kind::UserDefined, Scheme::ByteLevel) => bytes.extend_from_slice(name.as_bytes()),
                (_, Scheme::SentencePiece) => bytes.extend_from_slice(name.replace('▁', " ").as_bytes()),
                (_, Scheme::ByteLevel) => {
                    for c in name.chars() {
                        match table.get(c as usize) {
                            Some(&Some(byte)) => bytes.push(byte),
                            _ => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                        }
                    }
                }
            }
            vocab.kinds.push(kind);
            vocab.names.push(name.as_bytes());
            vocab.bytes.push(&bytes);
        }
        Ok(vocab)
    }

    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(super) fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    pub(super) fn name(&self, id: u32) -> Option<&str> {
        self.names.get(id as usize).and_then(|name| std::str::from_utf8(name).ok())
    }

    /// The bytes a token adds to the text; none for control tokens and for ids
    /// beyond the vocabulary (models may have more rows than tokens).
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).unwrap_or_default()
    }
}

/// The byte that a name such as `<0x0A>` stands for.
pub(super) fn byte_token(name: &str) -> Option<u8> {
    let hex = name.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit()) { u8::from_str_radix(hex, 16).ok() } else { None }
}

/// GPT-2's table, inverted: printable Latin-1 characters stand for themselves,
/// and the other 68 bytes in order for the characters from U+0100 on.
fn byte_of_char() -> [Option<u8>; 324] {
    let mut table = [None; 324];
    let mut next = 256;
    for byte in 0..=255_u8 {
        if matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) {
            table[byte as usize] = Some(byte);
        } else {
            table[next] = Some(byte);
            next += 1;
        }
    }
    table
}
