//! Token ids to text as they come, whole characters only.

use std::sync::Arc;

use super::vocab::Vocab;

/// Turns token ids into text one by one. What [`push`](Self::push) returned so
/// far, put together, is what [`Text::decode`](super::Text::decode) gives for
/// the same ids.
#[derive(Clone)]
pub struct TextStream {
    vocab: Arc<Vocab>,
    /// Bytes of a character that is not complete.
    pending: Vec<u8>,
    at_start: bool,
}

impl TextStream {
    pub(super) fn new(vocab: Arc<Vocab>) -> Self {
        Self { vocab, pending: Vec::new(), at_start: true }
    }

    /// Adds a token and returns the characters that are complete now. Bytes that
    /// can never become a character give U+FFFD as soon as that is certain.
    pub fn push(&mut self, id: u32) -> String {
        let mut bytes = self.vocab.bytes(id);
        if self.at_start && !bytes.is_empty() {
            self.at_start = false;
            if self.vocab.strip_first_space {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            }
        }
        self.pending.extend_from_slice(bytes);
        let mut out = String::new();
        let mut done = 0;
        while done < self.pending.len() {
            let rest = &self.pending[done..];
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    done = self.pending.len();
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    out.push_str(&String::from_utf8_lossy(&rest[..valid]));
                    done += valid;
                    let Some(length) = error.error_len() else { break };
                    out.push(char::REPLACEMENT_CHARACTER);
                    done += length;
                }
            }
        }
        self.pending.drain(..done);
        out
    }

    /// Ends the stream: true when bytes of an unfinished character were left
    /// over, which are not part of the text.
    pub fn finish(&mut self) -> bool {
        self.at_start = true;
        !std::mem::take(&mut self.pending).is_empty()
    }
}
