//! The interactive end: reads lines from a terminal or a pipe, shows answers.
//!
//! On a terminal there are history, completion and hints; on a pipe lines are read with a bound. `quit` and `exit`, in full, leave
//! the console and nothing else; all other words are commands.

use std::cell::RefCell;
use std::fs::DirBuilder;
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::rc::Rc;

use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use super::command::{CommandError, Output};
use super::complete::Completion;
use super::table::printable;
use super::{Console, MAX_LINE};

/// A console with what its commands work on.
struct Session<C> {
    console: Rc<Console<C>>,
    context: C,
}

impl<C> Session<C> {
    fn command(&mut self, line: &str) -> Result<Output, CommandError> {
        self.console.execute(&mut self.context, line)
    }

    fn complete(&self, line: &str) -> Completion {
        self.console.complete(&self.context, line)
    }
}

/// How a console behaves.
#[derive(Clone, Debug, Default)]
pub struct ReplOptions {
    /// Stop at the first error.
    pub strict: bool,
    /// Answers are for programs.
    pub json: bool,
    /// Where past lines are kept; `None` for nowhere.
    pub history: Option<PathBuf>,
}

impl ReplOptions {
    /// Options with the history file of this user, in the XDG state folder.
    pub fn for_user() -> Self {
        let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = folder("XDG_STATE_HOME").or_else(|| folder("HOME").map(|home| home.join(".local/state")));
        Self { history: state.map(|state| state.join("vswitch/history")), ..Self::default() }
    }
}

/// How a console ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All lines were done, or their errors were shown to somebody who could see them.
    Clean,
    /// A line failed, and the console was told to be strict.
    Failed,
    /// The switch went away.
    Lost,
}

/// Runs a console on this process's terminal, or on its standard input if that is none.
///
/// # Errors
/// When the terminal or the standard streams fail; a broken pipe, too, for the lines behind it were not done.
pub fn run<C>(console: Rc<Console<C>>, context: C, options: &ReplOptions) -> io::Result<Ending> {
    let stdin = io::stdin();
    if stdin.is_terminal() && io::stdout().is_terminal() {
        return on_terminal(Session { console, context }, options);
    }
    on_pipe(console, context, options, &mut stdin.lock(), &mut io::stdout(), &mut io::stderr())
}

/// Runs the lines of `input`.
///
/// # Errors
/// When a stream fails.
pub fn on_pipe<C>(
    console: Rc<Console<C>>,
    context: C,
    options: &ReplOptions,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    errors: &mut dyn Write,
) -> io::Result<Ending> {
    let mut session = Session { console, context };
    let mut line = Vec::new();
    while next_line(input, &mut line)? {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if leaves(text) {
            break;
        }
        match run_line(&mut session, options, text, output, errors)? {
            LineResult::Well => {}
            LineResult::Badly if options.strict => return Ok(Ending::Failed),
            LineResult::Badly => {}
            LineResult::Lost => return Ok(Ending::Lost),
        }
    }
    Ok(Ending::Clean)
}

/// True for the words that end the console and nothing else.
fn leaves(line: &str) -> bool {
    matches!(line, "quit" | "exit")
}

/// True for a line that says nothing: a blank one, or a comment.
pub fn is_nothing(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

enum LineResult {
    Well,
    Badly,
    Lost,
}

/// Runs one line and shows what came of it.
fn run_line<C>(
    session: &mut Session<C>,
    options: &ReplOptions,
    line: &str,
    output: &mut dyn Write,
    errors: &mut dyn Write,
) -> io::Result<LineResult> {
    if is_nothing(line) {
        return Ok(LineResult::Well);
    }
    match session.command(line) {
        Ok(answer) => show(&answer, options.json, output),
        Err(error) => {
            if let Some(before) = &error.before {
                show(&Output::of((**before).clone()), options.json, output)?;
            }
            writeln!(errors, "{}", printable(&error.to_string()))?;
            Ok(if error.is_lost { LineResult::Lost } else { LineResult::Badly })
        }
    }
}

fn show(answer: &Output, json: bool, output: &mut dyn Write) -> io::Result<LineResult> {
    if json {
        writeln!(output, "{}", answer.json())?;
    } else {
        let text = answer.text();
        output.write_all(text.as_bytes())?;
        if !text.is_empty() && !text.ends_with('\n') {
            writeln!(output)?;
        }
    }
    output.flush()?;
    Ok(LineResult::Well)
}

/// Reads one line, of which at most a little more than [`MAX_LINE`] bytes are kept: enough for the switch to
/// see that it is too long. False at the end.
fn next_line(input: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut any = false;
    loop {
        let bytes = match input.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if bytes.is_empty() {
            return Ok(any);
        }
        any = true;
        let newline = bytes.iter().position(|byte| *byte == b'\n');
        let piece = &bytes[..newline.unwrap_or(bytes.len())];
        let room = (MAX_LINE + 1).saturating_sub(line.len());
        line.extend_from_slice(&piece[..piece.len().min(room)]);
        let used = piece.len() + usize::from(newline.is_some());
        input.consume(used);
        if newline.is_some() {
            return Ok(true);
        }
    }
}

fn on_terminal<C>(session: Session<C>, options: &ReplOptions) -> io::Result<Ending> {
    let config =
        Config::builder().completion_type(CompletionType::List).max_history_size(1000).map_err(other)?;
    let mut editor: Editor<Assistant<C>, DefaultHistory> =
        Editor::with_config(config.auto_add_history(true).build()).map_err(other)?;
    let session = Rc::new(RefCell::new(session));
    editor.set_helper(Some(Assistant { session: Rc::clone(&session) }));
    if let Some(history) = &options.history {
        // No history is no reason to have no console.
        let _ = history.parent().map(|folder| DirBuilder::new().recursive(true).mode(0o700).create(folder));
        let _ = editor.load_history(history);
    }
    let ending = loop {
        match editor.readline("vswitch> ") {
            Ok(line) if leaves(line.trim()) => break Ending::Clean,
            Ok(line) => {
                let mut session = session.borrow_mut();
                let done =
                    run_line(&mut *session, options, line.trim(), &mut io::stdout(), &mut io::stderr())?;
                match done {
                    LineResult::Badly if options.strict => break Ending::Failed,
                    LineResult::Lost => break Ending::Lost,
                    LineResult::Well | LineResult::Badly => {}
                }
            }
            Err(ReadlineError::Interrupted) => writeln!(io::stdout(), "(quit or Ctrl-D leaves the console)")?,
            Err(ReadlineError::Eof) => break Ending::Clean,
            Err(error) => return Err(other(error)),
        }
    };
    if let Some(history) = &options.history {
        let _ = editor.save_history(history);
    }
    Ok(ending)
}

fn other(error: ReadlineError) -> io::Error {
    match error {
        ReadlineError::Io(error) => error,
        error => io::Error::other(error),
    }
}

/// Asks the session what could come next.
struct Assistant<C> {
    session: Rc<RefCell<Session<C>>>,
}

impl<C> Assistant<C> {
    fn ask(&self, line: &str) -> Completion {
        // While a command runs nobody presses keys, but a nested borrow must not end the console either.
        self.session.try_borrow().map(|session| session.complete(line)).unwrap_or_default()
    }
}

impl<C> Completer for Assistant<C> {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let Completion { start, candidates } = self.ask(&line[..at]);
        let typed = line.get(start..at).unwrap_or("").to_owned();
        let single = candidates.len() == 1;
        let mut pairs: Vec<Pair> = candidates
            .into_iter()
            .map(|candidate| match candidate.hint {
                true => Pair { display: candidate.text, replacement: typed.clone() },
                false if single => {
                    Pair { replacement: candidate.text.clone() + " ", display: candidate.text }
                }
                false => Pair { replacement: candidate.text.clone(), display: candidate.text },
            })
            .collect();
        // A single candidate would be put into the line without being shown.
        if single && pairs.iter().all(|pair| pair.replacement == typed) {
            pairs.push(Pair { display: String::new(), replacement: typed });
        }
        Ok((start, pairs))
    }
}

impl<C> Hinter for Assistant<C> {
    type Hint = String;

    fn hint(&self, line: &str, at: usize, _: &Context<'_>) -> Option<String> {
        if at < line.len() || !line.ends_with(' ') {
            return None;
        }
        let hints: Vec<String> = self
            .ask(line)
            .candidates
            .into_iter()
            .filter(|c| c.hint)
            .map(|candidate| candidate.text)
            .collect();
        (!hints.is_empty()).then(|| hints.join(" | "))
    }
}

impl<C> Highlighter for Assistant<C> {
    fn highlight_hint<'h>(&self, hint: &'h str) -> std::borrow::Cow<'h, str> {
        format!("\x1b[2m{hint}\x1b[0m").into()
    }
}

impl<C> Validator for Assistant<C> {}
impl<C> Helper for Assistant<C> {}
