//! What a command is made of: its table entry, its arguments, its output, its errors.

use std::fmt;

use serde_json::json;

use super::table::Table;
use super::value::{FromValue, Value};

/// The function of a command.
pub type Run<C> = fn(&mut C, &Args) -> Result<Output, CommandError>;

/// One entry of a command table.
///
/// A syntax is keywords, choices `a|b`, arguments `<name:type>`, optional parts `[...]` and, at the end, a
/// repeated argument `<name:type>...`. A `!` behind it all: its keywords cannot be abbreviated, nor do they make other
/// abbreviations ambiguous. An argument may have alternatives: types first, then words, as in
/// `<id:port|all>`, or words only, as in `<mode:overlay|io|mac>`.
pub struct Command<C> {
    /// How it is written.
    pub syntax: &'static str,
    /// One line on what it does.
    pub help: &'static str,
    pub run: Run<C>,
}

/// What a command gives back: for people and for programs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// For people.
    pub text: String,
    /// For programs.
    pub json: serde_json::Value,
}

impl Output {
    /// Both forms.
    pub fn new(text: impl Into<String>, json: serde_json::Value) -> Self {
        Self { text: text.into(), json }
    }

    /// A sentence; programs get it as `{"message": ...}`.
    pub fn message(text: impl Into<String>) -> Self {
        let text = text.into();
        let json = json!({ "message": text });
        Self { text, json }
    }

    /// A table, with what programs get.
    pub fn table(table: &Table, json: serde_json::Value) -> Self {
        Self { text: table.to_string(), json }
    }
}

/// Why a line was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandError {
    /// The column the error speaks of, from 1, in characters.
    pub column: Option<usize>,
    /// What is wrong and what to do.
    pub message: String,
}

impl CommandError {
    /// An error of no particular column.
    pub fn new(message: impl Into<String>) -> Self {
        Self { column: None, message: message.into() }
    }

    /// An error of a column.
    pub fn at(column: usize, message: String) -> Self {
        Self { column: Some(column), message }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(column) = self.column {
            write!(f, "column {column}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for CommandError {}

/// One argument as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BoundArg {
    pub(super) name: String,
    pub(super) value: Value,
    pub(super) column: usize,
}

/// The arguments and keywords of a matched line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Args {
    pub(super) given: Vec<BoundArg>,
    pub(super) keywords: Vec<&'static str>,
}

impl Args {
    /// The argument `name`, which the syntax makes sure of.
    ///
    /// # Errors
    /// When the command's syntax has no such argument, or one of another type: a fault of its table entry.
    pub fn get<T: FromValue>(&self, name: &str) -> Result<T, CommandError> {
        self.maybe(name).ok_or_else(|| {
            CommandError::new(format!(
                "the command has no argument {name} of this type; its table entry is wrong"
            ))
        })
    }

    /// The argument `name` if it was given, and is a `T` (of alternatives such as `<id:port|all>` it may not
    /// be).
    pub fn maybe<T: FromValue>(&self, name: &str) -> Option<T> {
        self.given.iter().find(|given| given.name == name).and_then(|given| T::from_value(&given.value))
    }

    /// All values of the repeated argument `name`.
    pub fn all<T: FromValue>(&self, name: &str) -> Vec<T> {
        let of_name = self.given.iter().filter(|given| given.name == name);
        of_name.filter_map(|given| T::from_value(&given.value)).collect()
    }

    /// True where the keyword was given, in full or short.
    pub fn has(&self, keyword: &str) -> bool {
        self.keywords.contains(&keyword)
    }

    /// An error about the argument `name`, pointing at its column.
    pub fn error(&self, name: &str, message: impl Into<String>) -> CommandError {
        let column = self.given.iter().find(|given| given.name == name).map(|given| given.column);
        CommandError { column, message: message.into() }
    }
}
