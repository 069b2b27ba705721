//! The console: a table of commands, and all that derives from it.
//!
//! Commands are data ([`Command`]): a syntax, a help text, a function. The table gives matching with
//! abbreviations, errors that point at a column, completion and help. Generic over the context `C` the
//! functions work on, so that it tests without a switch. Never touches a terminal, except in [`repl`].

pub mod command;
pub mod complete;
pub mod grammar;
pub mod help;
pub mod lexer;
pub mod matcher;
pub mod repl;
pub mod script;
pub mod table;
pub mod value;

pub use command::{Args, Command, CommandError, Output, Shown};
pub use complete::{Candidate, Completion};
pub use grammar::SyntaxError;
pub use table::Table;
pub use value::{FromValue, PortRef, Value};

use grammar::Program;

/// The longest line a console takes, in bytes.
pub const MAX_LINE: usize = 64 * 1024;

/// A table of commands, ready to run lines.
pub struct Console<C> {
    entries: Vec<CompiledCommand<C>>,
    values: fn(&C, &str) -> Vec<String>,
}

/// One command, compiled.
pub(crate) struct CompiledCommand<C> {
    pub(crate) syntax: &'static str,
    pub(crate) help: &'static str,
    pub(crate) rpc: &'static str,
    pub(crate) program: Program,
    action: Handler<C>,
}

enum Handler<C> {
    Run(command::Run<C>),
    Help,
}

impl<C> Console<C> {
    /// Compiles a table. `help [topic]` is added to it.
    ///
    /// # Errors
    /// The first command whose syntax is wrong, or is there twice.
    pub fn new(commands: impl IntoIterator<Item = Command<C>>) -> Result<Self, SyntaxError> {
        let mut entries: Vec<CompiledCommand<C>> = vec![CompiledCommand {
            syntax: help::SYNTAX,
            help: help::HELP,
            rpc: "",
            program: grammar::compile(help::SYNTAX)?,
            action: Handler::Help,
        }];
        for Command { syntax, help, rpc, run } in commands {
            if entries.iter().any(|entry| entry.syntax == grammar::shown(syntax)) {
                return Err(SyntaxError::new(syntax, "is there twice"));
            }
            entries.push(CompiledCommand {
                syntax: grammar::shown(syntax),
                help,
                rpc,
                program: grammar::compile(syntax)?,
                action: Handler::Run(run),
            });
        }
        Ok(Self { entries, values: |_, _| Vec::new() })
    }

    /// Lets completion offer live values: `values(context, type)` gives those of an argument type such as
    /// `port`, or of an argument by its name.
    #[must_use]
    pub fn with_values(mut self, values: fn(&C, &str) -> Vec<String>) -> Self {
        self.values = values;
        self
    }

    /// Runs one line. An empty line or a comment does nothing.
    ///
    /// # Errors
    /// A line that matches no command, with the column; or the command's own.
    pub fn execute(&self, context: &mut C, line: &str) -> Result<Output, CommandError> {
        if line.len() > MAX_LINE {
            let message = format!(
                "the command is {} bytes long, and may have {MAX_LINE}: split it, or use load <file>",
                line.len()
            );
            return Err(CommandError::new(message));
        }
        let tokens = lexer::split(line)?;
        if tokens.is_empty() {
            return Ok(Output::none());
        }
        let (index, args) = matcher::find(&self.programs(), line, &tokens)?;
        match &self.entries[index].action {
            Handler::Run(run) => run(context, &args).map_err(|error| args.place(error)),
            Handler::Help => help::show(&self.entries, args.maybe::<String>("topic").as_deref()),
        }
    }

    /// What could come next at the end of `line`.
    pub fn complete(&self, context: &C, line: &str) -> Completion {
        complete::at_end(&self.programs(), line, &|kind| (self.values)(context, kind))
    }

    fn programs(&self) -> Vec<&Program> {
        self.entries.iter().map(|entry| &entry.program).collect()
    }
}

#[cfg(test)]
mod tests;
