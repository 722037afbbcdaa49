//! From a completion to a result line in the OpenAI Batch output format.

use serde_json::{Map, Value, json};
use weaklink_models::text::Text;

use super::input::Line;
use super::request::{Api, Asked, Refusal};
use crate::generate::{Completion, Finish, TokenLogprob};
use crate::store::unix_now;

/// Log-probabilities below this are written as this: JSON knows no −∞.
const LOWEST: f64 = -9999.0;

/// Writes the results of one model.
#[derive(Clone, Debug)]
pub struct Maker {
    /// Of all that shapes the answers, see [`fingerprint`](super::fingerprint).
    pub fingerprint: String,
    /// The model's name.
    pub model: String,
}

impl Maker {
    /// A result line, without its end.
    pub fn result(&self, line: &Line, answer: &Result<(Asked, Completion), Refusal>, text: &Text) -> String {
        let hash = line.hash_hex();
        let (status, body, error) = match answer {
            Ok((asked, completion)) => (200, self.body(&hash, asked.api, completion, text), Value::Null),
            Err(Refusal { status, code, message }) => {
                let kind = if *status == 400 { "invalid_request_error" } else { "server_error" };
                let body = json!({"error": {"message": message, "type": kind, "param": null, "code": code}});
                (*status, body, json!({"code": code, "message": message}))
            }
        };
        json!({
            "id": format!("batch_req_{}_{hash}", self.fingerprint),
            "custom_id": line.custom_id,
            "response": {"status_code": status, "request_id": format!("req_{hash}"), "body": body},
            "error": error,
        })
        .to_string()
    }

    fn body(&self, hash: &str, api: Api, completion: &Completion, text: &Text) -> Value {
        let finish = match completion.finish {
            Finish::Stop | Finish::GrammarEnd => "stop",
            Finish::Length => "length",
        };
        let logprobs = completion.logprobs.as_deref();
        let (prefix, object, choice) = match api {
            Api::Chat => {
                let logprobs = logprobs.map(|tokens| json!({"content": chat_logprobs(tokens, text)}));
                let message = json!({"role": "assistant", "content": completion.text});
                let choice = json!({"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish});
                ("chatcmpl", "chat.completion", choice)
            }
            Api::Completions => {
                let logprobs = logprobs.map(|tokens| completion_logprobs(tokens, text));
                let choice =
                    json!({"index": 0, "text": completion.text, "logprobs": logprobs, "finish_reason": finish});
                ("cmpl", "text_completion", choice)
            }
        };
        json!({
            "id": format!("{prefix}-{hash}"),
            "object": object,
            "created": unix_now() as u64,
            "model": self.model,
            "system_fingerprint": format!("fp_{}", self.fingerprint),
            "choices": [choice],
            "usage": {
                "prompt_tokens": completion.prompt_tokens,
                "completion_tokens": completion.generated_tokens,
                "total_tokens": completion.prompt_tokens + completion.generated_tokens,
                "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
            },
        })
    }
}

fn chat_logprobs(tokens: &[TokenLogprob], text: &Text) -> Vec<Value> {
    let one = |id: u32, logprob: f64| json!({"token": token_name(id, text), "logprob": logprob.max(LOWEST), "bytes": text.token_bytes(id)});
    let with_top = |token: &TokenLogprob| {
        let mut value = one(token.id, token.logprob);
        value["top_logprobs"] = token.top.iter().map(|&(id, logprob)| one(id, logprob)).collect();
        value
    };
    tokens.iter().map(with_top).collect()
}

/// `text_offset` counts characters of the completion's text.
fn completion_logprobs(tokens: &[TokenLogprob], text: &Text) -> Value {
    let (mut stream, mut offset) = (text.stream(), 0);
    let mut offsets = Vec::with_capacity(tokens.len());
    for token in tokens {
        offsets.push(offset);
        offset += stream.push(token.id).chars().count();
    }
    let tops = tokens.iter().map(|token| {
        let top = token.top.iter().map(|&(id, logprob)| (token_name(id, text), json!(logprob.max(LOWEST))));
        Value::Object(top.collect::<Map<_, _>>())
    });
    json!({
        "tokens": tokens.iter().map(|token| token_name(token.id, text)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.logprob.max(LOWEST)).collect::<Vec<_>>(),
        "top_logprobs": tops.collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

/// A token's text; bytes that are no text as `bytes:\xe2\x82`, a control token by its name.
fn token_name(id: u32, text: &Text) -> String {
    let bytes = text.token_bytes(id);
    if text.is_control(id) || bytes.is_empty() {
        return text.token_text(id).unwrap_or_default().to_owned();
    }
    match std::str::from_utf8(bytes) {
        Ok(token) => token.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |name, byte| name + &format!("\\x{byte:02x}")),
    }
}
