//! SentencePiece BPE as GGUF files describe it: a score for every piece, the
//! best-scored pair is merged first, the leftmost of equals.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::added::Found;
use super::error::TextProblem;
use super::vocab::{Kind, byte_token};

/// Pieces with scores, byte tokens for the rest.
pub(super) struct Spm {
    pieces: HashMap<Box<str>, (u32, f32)>,
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    /// Whether a space goes before every stretch of text.
    space_prefix: bool,
}

/// A stretch of text that may still be merged with its neighbours.
struct Symbol {
    start: usize,
    /// Zero once it has been merged into its left neighbour.
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours whose union is a piece.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Length of the union when the pair was found; another one means that a
    /// side has changed since.
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl Spm {
    /// `tokens` by id, with their scores. Only text pieces can be merged to, so
    /// no text spells out a control token or a byte token.
    pub(super) fn new(
        tokens: &[(&str, Kind)],
        scores: impl Iterator<Item = f32>,
        unknown: Option<u32>,
        space_prefix: bool,
    ) -> Result<Self, TextProblem> {
        let mut pieces = HashMap::with_capacity(tokens.len());
        let mut bytes = [None; 256];
        for (id, (&(name, kind), score)) in tokens.iter().zip(scores).enumerate() {
            if !score.is_finite() {
                return Err(TextProblem::Score { id, found: score });
            }
            // Zero and minus zero are one score.
            let score = score + 0.0;
            match kind {
                Kind::Normal | Kind::Unused => {
                    pieces.insert(name.into(), (id as u32, score));
                }
                Kind::Byte => {
                    if let Some(byte) = byte_token(name) {
                        bytes[byte as usize] = Some(id as u32);
                    }
                }
                Kind::Unknown | Kind::Control | Kind::UserDefined => {}
            }
        }
        Ok(Self { pieces, bytes, unknown, space_prefix })
    }

    /// The tokens of `text` with those in `found` where they were found.
    pub(super) fn encode(&self, text: &str, found: &[Found]) -> Result<Vec<u32>, TextProblem> {
        let mut ids = Vec::new();
        let mut start = 0;
        for token in found {
            self.encode_stretch(&text[start..token.range.start], &mut ids)?;
            ids.push(token.id);
            start = token.range.end;
        }
        self.encode_stretch(&text[start..], &mut ids)?;
        Ok(ids)
    }

    fn encode_stretch(&self, stretch: &str, ids: &mut Vec<u32>) -> Result<(), TextProblem> {
        if stretch.is_empty() {
            return Ok(());
        }
        let mut text = stretch.replace(' ', "▁");
        if self.space_prefix {
            text.insert(0, '▁');
        }
        let symbols = self.merge(&text);
        let mut at = Some(0);
        while let Some(index) = at {
            let symbol = &symbols[index];
            self.push_piece(&text[symbol.start..symbol.start + symbol.len], ids)?;
            at = symbol.next;
        }
        Ok(())
    }

    /// Merges until no two neighbours form a piece. The first symbol is never
    /// merged away, so the list starts at index 0.
    fn merge(&self, text: &str) -> Vec<Symbol> {
        let count = text.chars().count();
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                previous: i.checked_sub(1),
                next: (i + 1 < count).then_some(i + 1),
            })
            .collect();
        let mut pairs = BinaryHeap::new();
        for right in 1..symbols.len() {
            pairs.extend(self.pair(text, &symbols, right - 1, right));
        }
        while let Some(pair) = pairs.pop() {
            let (left, right) = (pair.left, pair.right);
            let right_len = symbols[right].len;
            if right_len == 0 || symbols[left].len == 0 || symbols[left].len + right_len != pair.len {
                continue;
            }
            symbols[left].len = pair.len;
            symbols[right].len = 0;
            let next = symbols[right].next;
            symbols[left].next = next;
            if let Some(next) = next {
                symbols[next].previous = Some(left);
                pairs.extend(self.pair(text, &symbols, left, next));
            }
            if let Some(previous) = symbols[left].previous {
                pairs.extend(self.pair(text, &symbols, previous, left));
            }
        }
        symbols
    }

    fn pair(&self, text: &str, symbols: &[Symbol], left: usize, right: usize) -> Option<Pair> {
        let start = symbols[left].start;
        let len = symbols[left].len + symbols[right].len;
        let &(_, score) = self.pieces.get(&text[start..start + len])?;
        Some(Pair { score, left, right, len })
    }

    fn push_piece(&self, piece: &str, ids: &mut Vec<u32>) -> Result<(), TextProblem> {
        if let Some(&(id, _)) = self.pieces.get(piece) {
            ids.push(id);
            return Ok(());
        }
        let length = ids.len();
        for byte in piece.bytes() {
            match self.bytes[byte as usize] {
                Some(id) => ids.push(id),
                None => {
                    // One unknown token for the character, not one a byte.
                    ids.truncate(length);
                    ids.push(self.unknown.ok_or_else(|| TextProblem::Inexpressible(piece.to_owned()))?);
                    break;
                }
            }
        }
        Ok(())
    }
}
