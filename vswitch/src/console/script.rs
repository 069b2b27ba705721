//! Runs many lines: the `load` of the console. Stops at the first error and says where.

use serde_json::{Value, json};

use super::Console;
use super::command::{CommandError, Output, Said, Shown};

/// What the commands of a file said.
struct Script {
    origin: String,
    outputs: Vec<Output>,
}

impl Script {
    /// All of it, of people's form.
    fn lines(&self) -> String {
        let mut lines = String::new();
        for text in self.outputs.iter().map(Output::text) {
            lines.push_str(&text);
            if !text.is_empty() && !text.ends_with('\n') {
                lines.push('\n');
            }
        }
        lines
    }

    fn values(&self) -> Vec<Value> {
        self.outputs.iter().map(Output::json).collect()
    }

    /// For programs: `commands` of them were done, and each of those, and what came before a failure in a file that one
    /// loaded, has its own form among `outputs`.
    fn object(&self, outputs: Vec<Value>) -> Value {
        json!({ "origin": self.origin, "commands": self.outputs.len(), "outputs": outputs })
    }

    /// Both forms, when the next command has failed.
    fn before(&self, error: CommandError) -> Said {
        let (mut text, mut values) = (self.lines(), self.values());
        if let Some(before) = error.before {
            text.push_str(&before.text);
            values.push(before.json);
        }
        Said { text, json: self.object(values) }
    }
}

impl Shown for Script {
    fn text(&self) -> String {
        let (lines, origin, count) = (self.lines(), &self.origin, self.outputs.len());
        format!("{lines}{origin}: {count} commands done\n")
    }

    fn json(&self) -> Value {
        self.object(self.values())
    }
}

impl<C> Console<C> {
    /// Runs the lines of `text`, which came from `origin`, one after the other.
    ///
    /// # Errors
    /// The first line that fails, with its number and what those before it said; they stay done.
    pub fn execute_all(&self, context: &mut C, text: &str, origin: &str) -> Result<Output, CommandError> {
        let mut script = Script { origin: origin.to_owned(), outputs: Vec::new() };
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.trim_start().starts_with('#') {
                continue;
            }
            let output = self.execute(context, line).map_err(|error| {
                let (line, done) = (index + 1, script.outputs.len());
                let message = format!("{origin}: line {line}: {error} ({done} commands before it were done)");
                CommandError {
                    is_lost: error.is_lost,
                    before: Some(Box::new(script.before(error))),
                    ..CommandError::new(message)
                }
            })?;
            script.outputs.push(output);
        }
        Ok(Output::of(script))
    }
}
