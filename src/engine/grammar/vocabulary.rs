//! What grammars need to know of a model's tokens, and grammars made ready for them.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, ensure};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser};
use serde_json::{Value, json};
use weaklink_models::text::Text;

use super::{Grammar, GrammarState, one_line};

/// A longer grammar is refused: far more than anybody writes, and little enough to parse.
const MAX_GRAMMAR_BYTES: usize = 64 * 1024;
/// Stack of the thread that reads a grammar: rules may be nested as deep as the text is long. Untouched, it costs
/// nothing.
const STACK_BYTES: usize = 512 << 20;
/// The library's tree of tokens holds tokens of at most 1024 bytes and 2²² nodes, of which each byte may need one.
const MAX_TOKEN_BYTES: usize = 1000;
const MAX_VOCABULARY_BYTES: usize = (1 << 22) - 1;
/// States of one sequence's lexer, 1 to 2 kB each. The library's own limit would let one sequence take 500 MB.
const MAX_LEXER_STATES: usize = 50_000;
/// Compiled grammars that are kept; a study has a few.
const MAX_COMPILED: usize = 32;

/// A model's tokens as bytes, which of them end a text, and the grammars that were compiled for them.
pub struct Vocabulary {
    factory: ParserFactory,
    /// By the grammar's JSON form.
    compiled: Mutex<HashMap<String, TokenParser>>,
}

impl Vocabulary {
    /// The tokens of `text`, its stop tokens at this moment included.
    ///
    /// A token that no UTF-8 text contains, or that is longer than 1000 bytes, is never allowed.
    ///
    /// # Errors
    /// One line, when the vocabulary is too large.
    pub fn new(text: &Text) -> Result<Self, String> {
        let stops = text.stop_ids();
        let tokens = (0..text.vocab_size() as u32).map(|id| {
            if text.is_control(id) || stops.contains(&id) {
                // The library's mark of tokens that are no text: they are allowed where a grammar names them, and
                // end tokens where the text is complete.
                let name = text.token_text(id).unwrap_or_default();
                return [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat();
            }
            let bytes = text.token_bytes(id);
            let odd = bytes.len() > MAX_TOKEN_BYTES || bytes.starts_with(&[TokTrie::SPECIAL_TOKEN_MARKER]);
            if odd { Vec::new() } else { bytes.to_vec() }
        });
        Self::of_tokens(&tokens.collect::<Vec<_>>(), stops)
    }

    /// From the bytes of each token, and the ids that end a text.
    pub(crate) fn of_tokens(tokens: &[Vec<u8>], stops: &[u32]) -> Result<Self, String> {
        let factory = catch_unwind(AssertUnwindSafe(|| {
            let bytes: usize = tokens.iter().map(Vec::len).sum();
            ensure!(
                bytes <= MAX_VOCABULARY_BYTES,
                "the vocabulary's tokens have {bytes} bytes, and grammars work with {MAX_VOCABULARY_BYTES} at most"
            );
            let eos = stops.first().copied().unwrap_or(INVALID_TOKEN);
            let mut trie = TokTrie::from(&TokRxInfo::new(tokens.len() as u32, eos), tokens);
            if !stops.is_empty() {
                trie = trie.with_eos_tokens(stops);
            }
            // It does not claim to tokenize as the model would: then the masks hold every token that the grammar
            // allows, and not only the one that a tokenizer would choose.
            let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let mut factory = ParserFactory::new_simple(&tokens)?;
            factory.quiet();
            *factory.limits_mut() =
                ParserLimits { max_lexer_states: MAX_LEXER_STATES, verbose_errors: false, ..ParserLimits::default() };
            Ok(factory)
        }));
        let factory = factory.map_err(|error| one_line(&error))?;
        Ok(Self { factory, compiled: Mutex::default() })
    }

    /// A grammar at its beginning. The second time it is a copy of what the first time made.
    ///
    /// # Errors
    /// One line that says what is wrong with the grammar, and where.
    pub fn compile(&self, grammar: &Grammar) -> Result<GrammarState, String> {
        let key = serde_json::to_string(grammar).map_err(|e| e.to_string())?;
        let (kind, bytes) = match grammar {
            Grammar::JsonSchema(_) => ("JSON schema", key.len()),
            Grammar::Regex(text) => ("regular expression", text.len()),
            Grammar::Lark(text) => ("Lark grammar", text.len()),
        };
        if bytes > MAX_GRAMMAR_BYTES {
            return Err(format!("the {kind} has {bytes} bytes, {MAX_GRAMMAR_BYTES} at most are read"));
        }
        // The map holds whole parsers only, so a thread that panicked has left nothing half done in it.
        let compiled = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(parser) = compiled().get(&key) {
            return Ok(GrammarState::new(parser.deep_clone()));
        }
        let parser = self.parse(grammar).map_err(|error| {
            let what = one_line(&error);
            // An expression is read as a rule, whose place says nothing.
            let place = if matches!(grammar, Grammar::Regex(_)) { "at 1(8): " } else { "" };
            format!("{kind}: {}", what.strip_prefix(place).unwrap_or(&what))
        })?;
        let mut compiled = compiled();
        if compiled.len() >= MAX_COMPILED {
            compiled.clear();
        }
        compiled.insert(key, parser.deep_clone());
        Ok(GrammarState::new(parser))
    }

    fn parse(&self, grammar: &Grammar) -> anyhow::Result<TokenParser> {
        let parse = || {
            self.factory.create_parser(match grammar {
                Grammar::JsonSchema(schema) => TopLevelGrammar::from_json_schema(on_one_line(schema)),
                Grammar::Regex(regex) => TopLevelGrammar::from_regex(regex),
                Grammar::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
            })
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("weaklink-grammar".into()).stack_size(STACK_BYTES);
            let parsing = thread.spawn_scoped(scope, parse).context("no thread to read it on")?;
            parsing.join().unwrap_or_else(|_| anyhow::bail!("reading it failed"))
        })
    }
}

/// The schema with the white space of [`Grammar::JsonSchema`], where it does not ask for another: free white space
/// is where weak models never stop.
fn on_one_line(schema: &Value) -> Value {
    let mut schema = if *schema == Value::Bool(true) { json!({}) } else { schema.clone() };
    if let Some(schema) = schema.as_object_mut()
        && let Some(options) = schema.entry("x-guidance").or_insert_with(|| json!({})).as_object_mut()
    {
        let defaults =
            [("whitespace_flexible", json!(false)), ("item_separator", json!(", ?")), ("key_separator", json!(": ?"))];
        for (name, value) in defaults {
            options.entry(name).or_insert(value);
        }
    }
    schema
}
