//! `help [topic]`: made from the table.

use serde_json::json;

use super::CompiledCommand;
use super::command::{CommandError, Output};
use super::table::Table;
use crate::config::error::quote;

pub(super) const SYNTAX: &str = "help [<topic:text>]";
pub(super) const HELP: &str = "Show all commands, or those that begin with the given words";

/// The commands that begin with the words of `topic`.
pub(super) fn show<C>(entries: &[CompiledCommand<C>], topic: Option<&str>) -> Result<Output, CommandError> {
    let words: Vec<&str> = topic.unwrap_or("").split_whitespace().collect();
    let mut found: Vec<&CompiledCommand<C>> =
        entries.iter().filter(|entry| begins(entry.syntax, &words)).collect();
    if found.is_empty() {
        // Not how a command begins; perhaps a word in one.
        found =
            entries.iter().filter(|entry| words.iter().all(|word| mentions(entry.syntax, word))).collect();
    }
    if found.is_empty() {
        let mut topics: Vec<&str> =
            entries.iter().filter_map(|entry| entry.syntax.split_whitespace().next()).collect();
        topics.sort_unstable();
        topics.dedup();
        let message = format!(
            "no command begins with {}; topics are {}",
            quote(topic.unwrap_or("")),
            topics.join(", ")
        );
        return Err(CommandError::new(message));
    }
    found.sort_by_key(|entry| entry.syntax);
    let mut table = Table::bare(2);
    for entry in &found {
        table.row([entry.syntax, entry.help]);
    }
    let one =
        |entry: &&CompiledCommand<C>| json!({ "syntax": entry.syntax, "help": entry.help, "rpc": entry.rpc });
    Ok(Output::table(&table, found.iter().map(one).collect()))
}

fn begins(syntax: &str, words: &[&str]) -> bool {
    let mut parts = syntax.split_whitespace();
    words.iter().all(|word| parts.next().is_some_and(|part| part.split('|').any(|p| p.starts_with(word))))
}

fn mentions(syntax: &str, word: &str) -> bool {
    syntax.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').any(|part| part == word)
}
