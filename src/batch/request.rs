//! From a line of the file to a request for the engine, or to the reason why there is none.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use weaklink_models::text::Text;

use super::input::Line;
use crate::generate::{GenerateError, Grammar, Message, Prompt, Request, Role, Sampling};

/// Tokens that `/v1/completions` gives where no limit is asked for, as its API says.
const COMPLETION_TOKENS: usize = 16;
/// The most alternatives that may be asked for with each token.
const MAX_LOGPROBS: usize = 20;

/// Fields that are accepted at the value that changes nothing.
const NEUTRAL: [&str; 6] = ["n", "best_of", "stream", "echo", "frequency_penalty", "presence_penalty"];

/// Which API a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

/// A request that can be made.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Which form its answer has.
    pub api: Api,
    /// For the engine.
    pub request: Request,
    /// Whether it names a token limit; otherwise it may take what the context leaves.
    pub limited: bool,
}

/// Why a request has no answer: its result, not the run's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status of such an error.
    pub status: u16,
    /// A word for programs.
    pub code: &'static str,
    /// A line for people.
    pub message: String,
}

impl Refusal {
    /// The request itself is unusable.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { status: 400, code: "invalid_request", message: message.into() }
    }

    /// The engine has refused it or got nowhere.
    pub fn of(error: &GenerateError) -> Self {
        match error {
            GenerateError::TooLong { prompt, max_tokens, context } => Self {
                status: 400,
                code: "context_length_exceeded",
                message: format!(
                    "the prompt has {prompt} tokens and the answer may have {max_tokens}, but the context holds {context}: shorten the prompt, lower max_tokens or raise --context"
                ),
            },
            GenerateError::NotANumber { .. } => Self { status: 500, code: "not_a_number", message: error.to_string() },
            other => Self::invalid(other.to_string()),
        }
    }
}

impl Asked {
    /// Reads a line. Fields that are not known are refused by name.
    ///
    /// # Errors
    /// When the line is no request that this program can answer.
    pub fn read(line: &Line, text: &Text) -> Result<Self, Refusal> {
        let mut outer = Fields::new("", line.members.clone());
        outer.take::<String>("custom_id")?;
        let method: String = outer.need("method")?;
        let url: String = outer.need("url")?;
        let body: Map<String, Value> = outer.need("body")?;
        outer.end()?;
        if method != "POST" {
            return Err(Refusal::invalid(format!("method is {method:?}: only \"POST\" is known")));
        }
        let api = match url.as_str() {
            "/v1/chat/completions" => Api::Chat,
            "/v1/completions" => Api::Completions,
            other => {
                return Err(Refusal::invalid(format!(
                    "url is {other:?}: only \"/v1/chat/completions\" and \"/v1/completions\" are known"
                )));
            }
        };
        let mut body = Fields::new("body.", body);
        // One model answers all; the result names it.
        body.take::<String>("model")?;
        let prompt = match api {
            Api::Chat => Prompt::Messages(messages(body.need("messages")?)?),
            Api::Completions => Prompt::Tokens(tokens(body.need("prompt")?, text)?),
        };
        let limit = match (body.take::<usize>("max_tokens")?, body.take::<usize>("max_completion_tokens")?) {
            (Some(a), Some(b)) if a != b => {
                return Err(Refusal::invalid(format!("max_tokens is {a} and max_completion_tokens {b}: give one")));
            }
            (a, b) => a.or(b).or((api == Api::Completions).then_some(COMPLETION_TOKENS)),
        };
        let request = Request {
            sampling: Sampling {
                temperature: body.take("temperature")?.unwrap_or(1.0),
                top_k: None,
                top_p: body.take("top_p")?,
            },
            seed: seed(&mut body)?.unwrap_or_else(|| line.seed()),
            stop: stop(&mut body)?,
            logprobs: logprobs(&mut body, api)?,
            grammar: response_format(&mut body)?,
            ..Request::new(prompt, limit.unwrap_or(1))
        };
        for name in NEUTRAL {
            neutral(&mut body, name)?;
        }
        body.end()?;
        Ok(Self { api, request, limited: limit.is_some() })
    }
}

/// Members of an object, taken one by one; what is left in the end is not known.
struct Fields {
    /// Where the object stands.
    place: &'static str,
    members: Map<String, Value>,
}

impl Fields {
    fn new(place: &'static str, members: Map<String, Value>) -> Self {
        Self { place, members }
    }

    /// A member; null counts as none.
    fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Refusal> {
        match self.members.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value)
                .map(Some)
                .map_err(|error| Refusal::invalid(format!("{}{name}: {error}", self.place))),
        }
    }

    fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, Refusal> {
        let place = self.place;
        self.take(name)?.ok_or_else(|| Refusal::invalid(format!("{place}{name} is missing")))
    }

    fn end(self) -> Result<(), Refusal> {
        match self.members.keys().next() {
            Some(name) => Err(Refusal::invalid(format!("{}{name} is not a field that this program knows", self.place))),
            None => Ok(()),
        }
    }
}

fn messages(values: Vec<Map<String, Value>>) -> Result<Vec<Message>, Refusal> {
    let message = |members| {
        let mut fields = Fields::new("body.messages[].", members);
        let (role, content): (Role, Value) = (fields.need("role")?, fields.need("content")?);
        fields.end()?;
        Ok(Message::new(role, content_text(content)?))
    };
    values.into_iter().map(message).collect()
}

/// A text, or a list with one part that is a text.
fn content_text(content: Value) -> Result<String, Refusal> {
    let text = match &content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => match parts.as_slice() {
            [part] if part["type"] == "text" => part["text"].as_str().map(str::to_owned),
            _ => None,
        },
        _ => None,
    };
    text.ok_or_else(|| Refusal::invalid("body.messages[].content: only a text, or a list of one text part, is known"))
}

/// A text, which gets the start token that the model asks for, or token ids as they are.
fn tokens(prompt: Value, text: &Text) -> Result<Vec<u32>, Refusal> {
    if let Value::String(prompt) = &prompt {
        let ids = text.encode(prompt, false).map_err(|error| Refusal::invalid(format!("body.prompt: {error}")))?;
        return Ok(text.bos().into_iter().chain(ids).collect());
    }
    serde_json::from_value(prompt)
        .map_err(|_| Refusal::invalid("body.prompt: only one text or one list of token ids is known"))
}

/// Any whole number of 64 bits.
fn seed(body: &mut Fields) -> Result<Option<u64>, Refusal> {
    let Some(value) = body.take::<Value>("seed")? else { return Ok(None) };
    let seed = value.as_u64().or(value.as_i64().map(i64::cast_unsigned));
    seed.map(Some)
        .ok_or_else(|| Refusal::invalid(format!("body.seed is {value}: it must be a whole number of 64 bits")))
}

fn stop(body: &mut Fields) -> Result<Vec<String>, Refusal> {
    match body.take::<Value>("stop")? {
        None => Ok(Vec::new()),
        Some(Value::String(stop)) => Ok(vec![stop]),
        Some(list) => serde_json::from_value(list)
            .map_err(|_| Refusal::invalid("body.stop: it must be a text or a list of texts")),
    }
}

fn logprobs(body: &mut Fields, api: Api) -> Result<Option<usize>, Refusal> {
    let count = match api {
        Api::Completions => body.take::<usize>("logprobs")?,
        Api::Chat => {
            let (wanted, top) = (body.take::<bool>("logprobs")?.unwrap_or(false), body.take::<usize>("top_logprobs")?);
            if !wanted && top.is_some_and(|top| top > 0) {
                return Err(Refusal::invalid("body.top_logprobs needs body.logprobs to be true"));
            }
            wanted.then_some(top.unwrap_or(0))
        }
    };
    match count {
        Some(count) if count > MAX_LOGPROBS => {
            Err(Refusal::invalid(format!("log-probabilities of {count} tokens are asked for: at most {MAX_LOGPROBS}")))
        }
        count => Ok(count),
    }
}

/// The grammar that a `response_format` asks for: of `json_schema` the schema, of `json_object` any object.
fn response_format(body: &mut Fields) -> Result<Option<Grammar>, Refusal> {
    let Some(mut format) = body.take::<Value>("response_format")? else { return Ok(None) };
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Grammar::JsonSchema(json!({"type": "object"})))),
        Some("json_schema") => match format["json_schema"]["schema"].take() {
            Value::Null => Err(Refusal::invalid("body.response_format.json_schema has no schema")),
            schema => Ok(Some(Grammar::JsonSchema(schema))),
        },
        Some(kind) => Err(Refusal::invalid(format!(
            "body.response_format of type {kind:?}: \"text\", \"json_object\" and \"json_schema\" are known"
        ))),
        None => Err(Refusal::invalid("body.response_format has no type")),
    }
}

fn neutral(body: &mut Fields, name: &str) -> Result<(), Refusal> {
    let Some(value) = body.take::<Value>(name)? else { return Ok(()) };
    let is = match name {
        "n" | "best_of" => value.as_u64() == Some(1),
        "stream" | "echo" => value == Value::Bool(false),
        _ => value.as_f64() == Some(0.0),
    };
    if is {
        Ok(())
    } else {
        Err(Refusal::invalid(format!("body.{name} is {value}: only the value that changes nothing is known")))
    }
}
