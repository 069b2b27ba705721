//! Runs many lines: the `load` of the console. Stops at the first error and says where.

use super::Console;
use super::command::{CommandError, Output};

impl<C> Console<C> {
    /// Runs the lines of `text`, which came from `origin`, one after the other.
    ///
    /// # Errors
    /// The first line that fails, with its number; what came before it stays done.
    pub fn execute_all(&self, context: &mut C, text: &str, origin: &str) -> Result<Output, CommandError> {
        let mut shown = String::new();
        let mut done = 0;
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.trim_start().starts_with('#') {
                continue;
            }
            let output = self.execute(context, line).map_err(|error| {
                let line = index + 1;
                CommandError::new(format!(
                    "{origin}: line {line}: {error} ({done} commands before it were done)"
                ))
            })?;
            done += 1;
            let text = output.text();
            shown.push_str(&text);
            if !text.is_empty() && !text.ends_with('\n') {
                shown.push('\n');
            }
        }
        shown.push_str(&format!("{origin}: {done} commands done\n"));
        Ok(Output::new(shown, serde_json::json!({ "origin": origin, "commands": done })))
    }
}
