//! What a command is made of: its table entry, its arguments, its output, its errors.

use std::fmt;

use serde_json::json;

use super::table::{Table, printable};
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
    /// The call that programs make for it, and whose answer they get from the console; nothing where the console does it alone.
    pub rpc: &'static str,
    pub run: Run<C>,
}

/// Something that people read as text and programs as JSON.
pub trait Shown {
    /// For people.
    fn text(&self) -> String;

    /// For programs.
    fn json(&self) -> serde_json::Value;
}

/// What a command gives back. Each form is made when it is asked for, since one of them is.
pub struct Output(Box<dyn Shown>);

/// Both forms, made already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// For people.
    pub text: String,
    /// For programs.
    pub json: serde_json::Value,
}

impl Shown for Said {
    fn text(&self) -> String {
        self.text.clone()
    }

    fn json(&self) -> serde_json::Value {
        self.json.clone()
    }
}

impl Output {
    /// Both forms.
    pub fn new(text: impl Into<String>, json: serde_json::Value) -> Self {
        Self::of(Said { text: text.into(), json })
    }

    /// What has both forms.
    pub fn of(shown: impl Shown + 'static) -> Self {
        Self(Box::new(shown))
    }

    /// Nothing to say.
    pub fn none() -> Self {
        Self::new("", serde_json::Value::Null)
    }

    /// A sentence; programs get it as `{"message": ...}`.
    pub fn message(text: impl Into<String>) -> Self {
        let text = text.into();
        let json = json!({ "message": text });
        Self::new(text, json)
    }

    /// A table, with what programs get.
    pub fn table(table: &Table, json: serde_json::Value) -> Self {
        Self::new(table.to_string(), json)
    }

    /// For people, on whose terminals it does nothing but be read.
    pub fn text(&self) -> String {
        printable(&self.0.text())
    }

    /// For programs.
    pub fn json(&self) -> serde_json::Value {
        self.0.json()
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Output").field(&self.text()).finish()
    }
}

/// Why a line was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandError {
    /// The column the error speaks of, from 1, in characters.
    pub column: Option<usize>,
    /// What is wrong and what to do.
    pub message: String,
    /// The argument that it speaks of, where only whoever carries the command out could tell.
    pub argument: Option<String>,
    /// Nobody was there to carry it out.
    pub is_lost: bool,
    /// What it names is not there.
    pub is_not_found: bool,
    /// What those commands of a file said that came before it, in one form as in the other.
    pub before: Option<Box<Said>>,
}

impl CommandError {
    /// An error of no particular column.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            column: None,
            message: message.into(),
            argument: None,
            is_lost: false,
            is_not_found: false,
            before: None,
        }
    }

    /// An error of a column.
    pub fn at(column: usize, message: String) -> Self {
        Self { column: Some(column), ..Self::new(message) }
    }

    /// An error of an argument, if the command has one of this name.
    #[must_use]
    pub fn of_argument(self, name: &str) -> Self {
        Self { argument: Some(name.to_owned()), ..self }
    }

    /// What it names is not there.
    #[must_use]
    pub fn not_found(self, is_not_found: bool) -> Self {
        Self { is_not_found, ..self }
    }

    /// Nobody was there to carry it out.
    #[must_use]
    pub fn lost(self) -> Self {
        Self { is_lost: true, ..self }
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

    /// The error with the column of the argument that it speaks of.
    pub(super) fn place(&self, error: CommandError) -> CommandError {
        let of = |name: &String| self.given.iter().find(|given| given.name == *name);
        let column = error.column.or_else(|| error.argument.as_ref().and_then(of).map(|given| given.column));
        CommandError { column, ..error }
    }

    /// An error about the argument `name`, pointing at its column.
    pub fn error(&self, name: &str, message: impl Into<String>) -> CommandError {
        let column = self.given.iter().find(|given| given.name == name).map(|given| given.column);
        CommandError { column, ..CommandError::new(message) }
    }
}
