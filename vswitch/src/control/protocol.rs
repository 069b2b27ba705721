//! What goes over the control socket: one JSON object per line, each way.
//!
//! A request is `{"id": 1, "command": "show vnic", "json": true}` or `{"id": 2, "complete": "show v"}`; its
//! reply carries the same id. Knows the shapes and the sizes, neither sockets nor commands.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::guard::{Fault, caught};
use crate::config::error::{quote, tidy};
use crate::console::{CommandError, Completion, Console};

/// The longest request line, in bytes, without its newline.
pub const MAX_REQUEST: usize = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// Run this line.
    Command(String),
    /// What could come next at the end of this line?
    Complete(String),
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Request {
    /// Comes back in the reply.
    pub id: u64,
    #[serde(flatten)]
    pub ask: Ask,
    /// The answer is for a program.
    pub json: bool,
}

/// A request as it is written; serde's flattened enums would take unknown keys without a word.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRequest {
    #[serde(default)]
    id: u64,
    command: Option<String>,
    complete: Option<String>,
    #[serde(default)]
    json: bool,
}

impl Request {
    /// Reads one line.
    ///
    /// # Errors
    /// A sentence on what is wrong with it.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let wrong = |e: serde_json::Error| {
            let example = r#"{"id": 1, "command": "show vnic", "json": true}"#;
            format!("this is not a request ({}); write for example {example}", tidy(&e.to_string()))
        };
        let written: WrittenRequest = serde_json::from_slice(line).map_err(wrong)?;
        let ask = match (written.command, written.complete) {
            (Some(command), None) => Ask::Command(command),
            (None, Some(line)) => Ask::Complete(line),
            _ => return Err("a request has either \"command\" or \"complete\"".into()),
        };
        Ok(Self { id: written.id, ask, json: written.json })
    }
}

/// One reply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The request's.
    pub id: u64,
    /// It was done.
    pub ok: bool,
    /// The answer for people; empty when the request wanted `json`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The answer for programs, when the request wanted it; of a completion, always.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub json: Value,
    /// Why it was not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The column of the command that the error speaks of, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
}

impl Reply {
    pub fn error(id: u64, message: impl Into<String>) -> Self {
        Self { id, error: Some(message.into()), ..Self::default() }
    }

    /// The completion that this reply carries; none when it carries something else.
    pub fn completion(&self) -> Completion {
        serde_json::from_value(self.json.clone()).unwrap_or_default()
    }

    /// The reply as one line with its newline.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_else(|_| b"{\"id\":0,\"ok\":false}".to_vec());
        line.push(b'\n');
        line
    }
}

impl From<CommandError> for Reply {
    fn from(error: CommandError) -> Self {
        Self { error: Some(error.message), column: error.column, ..Self::default() }
    }
}

/// Answers a request with a console: what the owner of the switch does with each [`Request`]. One that panics is
/// answered, too, and `suspect` is told of it.
pub fn answer<C>(
    console: &Console<C>,
    context: &mut C,
    request: &Request,
    suspect: impl FnOnce(&mut C, &Fault),
) -> Reply {
    let what = match &request.ask {
        // What follows may be secret.
        Ask::Command(line) => quote(&line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")),
        Ask::Complete(_) => "completion".to_owned(),
    };
    match caught(&what, || reply(console, context, request)) {
        Ok(reply) => Reply { id: request.id, ..reply },
        Err(fault) => {
            suspect(context, &fault);
            Reply::error(request.id, fault.to_string())
        }
    }
}

fn reply<C>(console: &Console<C>, context: &mut C, request: &Request) -> Reply {
    match &request.ask {
        Ask::Command(line) => match console.execute(context, line) {
            Ok(output) if request.json => Reply { ok: true, json: output.json(), ..Reply::default() },
            Ok(output) => Reply { ok: true, text: output.text(), ..Reply::default() },
            Err(error) => error.into(),
        },
        Ask::Complete(line) => {
            let completion = console.complete(context, line);
            let json = serde_json::to_value(completion).unwrap_or_default();
            Reply { ok: true, json, ..Reply::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_as_they_are_written() {
        for request in [
            Request { id: 7, ask: Ask::Command("show vnic".into()), json: true },
            Request { id: 0, ask: Ask::Complete("sh\u{e4} \"".into()), json: false },
        ] {
            let line = serde_json::to_vec(&request).unwrap();
            assert_eq!(Request::parse(&line), Ok(request));
        }
    }

    #[test]
    fn bad_requests_say_what_is_wrong() {
        for (line, word) in [
            ("", "for example"),
            ("show vnic", "for example"),
            ("[]", "for example"),
            ("{}", "either"),
            (r#"{"command": "a", "complete": "b"}"#, "either"),
            (r#"{"command": "a", "jsno": true}"#, "jsno"),
            (r#"{"command": 5}"#, "for example"),
        ] {
            let error = Request::parse(line.as_bytes()).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
        assert!(Request::parse(b"{\"command\": \"\xff\"}").is_err());
        let deep = "[".repeat(60_000);
        assert!(Request::parse(deep.as_bytes()).unwrap_err().len() < 1500);
    }

    #[test]
    fn replies_are_one_line() {
        let reply = Reply { id: 3, ok: true, text: "a\nb\n".into(), ..Reply::default() };
        let line = reply.to_line();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(serde_json::from_slice::<Reply>(&line).unwrap(), reply);
    }
}
