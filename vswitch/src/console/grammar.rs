//! Reads syntaxes such as `vlt set <vni:vni> <vip:ip> [mac <mac:mac>] vtep <remote:ip>` once, at start.
//!
//! A syntax becomes a small program of the kind regular expressions compile to: steps that take a word, and
//! forks. The matcher runs the programs of all commands at once, word by word.

use std::collections::HashSet;

use super::value::ArgKind;

/// A command syntax that is wrong. Only ever the programmer's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("command syntax `{syntax}` {problem}")]
pub struct SyntaxError {
    syntax: String,
    problem: String,
}

impl SyntaxError {
    pub(super) fn new(syntax: &str, problem: impl Into<String>) -> Self {
        Self { syntax: syntax.into(), problem: problem.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arg {
    pub name: &'static str,
    /// The types it may have, in order of preference.
    pub kinds: Vec<ArgKind>,
    /// The words it may be.
    pub words: Vec<&'static str>,
}

impl Arg {
    /// How completion and errors show it: `<vni>`, or `<to:prefix>` where name and type differ.
    pub fn shown(&self) -> String {
        let kinds: Vec<&str> = self.kinds.iter().map(|kind| kind.name()).collect();
        match kinds.join("|") {
            kinds if kinds == self.name || kinds.is_empty() => format!("<{}>", self.name),
            kinds => format!("<{}:{kinds}>", self.name),
        }
    }
}

/// One step of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Takes one of these keywords.
    Keyword(Vec<&'static str>),
    /// The same, written in full.
    Full(Vec<&'static str>),
    /// Takes a value.
    Arg(Arg),
    /// Goes on with the next step and with that one.
    Fork(usize),
    /// The line is whole.
    Done,
}

/// A compiled syntax; always ends with [`Step::Done`].
pub type Program = Vec<Step>;

/// A syntax as it is shown: without the mark that its keywords must be written in full.
pub fn shown(syntax: &'static str) -> &'static str {
    syntax.strip_suffix('!').unwrap_or(syntax)
}

/// Compiles a syntax.
///
/// # Errors
/// [`SyntaxError`] says what is wrong with it.
pub fn compile(syntax: &'static str) -> Result<Program, SyntaxError> {
    let (rest, full) = (shown(syntax), shown(syntax) != syntax);
    let mut compiler = Compiler { syntax, rest, program: Vec::new(), names: HashSet::new() };
    compiler.sequence(0)?;
    compiler.program.push(Step::Done);
    if full {
        for step in &mut compiler.program {
            if let Step::Keyword(words) = step {
                *step = Step::Full(std::mem::take(words));
            }
        }
    }
    if !matches!(compiler.program.first(), Some(Step::Keyword(_) | Step::Full(_))) {
        return Err(compiler.error("must begin with a keyword"));
    }
    Ok(compiler.program)
}

struct Compiler {
    syntax: &'static str,
    rest: &'static str,
    program: Program,
    names: HashSet<&'static str>,
}

impl Compiler {
    fn error(&self, problem: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.syntax, problem)
    }

    fn sequence(&mut self, depth: usize) -> Result<(), SyntaxError> {
        loop {
            self.rest = self.rest.trim_start();
            let Some(first) = self.rest.chars().next() else {
                return if depth == 0 { Ok(()) } else { Err(self.error("has a [ without its ]")) };
            };
            match first {
                ']' if depth == 0 => return Err(self.error("has a ] without its [")),
                ']' => {
                    self.rest = &self.rest[1..];
                    return Ok(());
                }
                '[' => {
                    self.rest = &self.rest[1..];
                    let fork = self.program.len();
                    self.program.push(Step::Fork(0));
                    self.sequence(depth + 1)?;
                    let end = self.program.len();
                    if end == fork + 1 {
                        return Err(self.error("has an empty []"));
                    }
                    self.program[fork] = Step::Fork(end);
                }
                '<' => self.argument(depth)?,
                _ => self.keyword()?,
            }
        }
    }

    fn keyword(&mut self) -> Result<(), SyntaxError> {
        let end =
            self.rest.find(|c: char| c.is_whitespace() || "[]<>".contains(c)).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let words: Vec<&'static str> = text.split('|').collect();
        for word in &words {
            self.check_word(word)?;
        }
        self.program.push(Step::Keyword(words));
        Ok(())
    }

    fn check_word(&self, word: &str) -> Result<(), SyntaxError> {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if word.is_empty() || !word.chars().all(good) {
            return Err(self.error(format!("has the keyword `{word}`; keywords are made of a-z 0-9 - _")));
        }
        Ok(())
    }

    fn argument(&mut self, depth: usize) -> Result<(), SyntaxError> {
        let Some(end) = self.rest.find('>') else { return Err(self.error("has a < without its >")) };
        let inside = &self.rest[1..end];
        self.rest = &self.rest[end + 1..];
        let Some((name, types)) = inside.split_once(':') else {
            return Err(self.error(format!("has <{inside}>; write <name:type>")));
        };
        if !self.names.insert(name) {
            return Err(self.error(format!("has two arguments named {name}")));
        }
        let mut arg = Arg { name, kinds: Vec::new(), words: Vec::new() };
        // Where the first alternative is a type, all names of types are types; else all are words, so that a
        // choice such as `<mode:overlay|io|mac>` may have a word that is also a type's name.
        let single = !types.contains('|');
        let typed = types.split('|').next().and_then(ArgKind::named).is_some();
        for part in types.split('|') {
            match ArgKind::named(part).filter(|_| typed) {
                Some(kind) => arg.kinds.push(kind),
                None if single => return Err(self.error(format!("has the unknown type {part}"))),
                None => {
                    self.check_word(part)?;
                    arg.words.push(part);
                }
            }
        }
        let last = self.rest.trim_start().trim_start_matches(']').trim_start().is_empty();
        if arg.kinds.contains(&ArgKind::Text) && !last {
            return Err(self.error(format!("has more behind <{name}>, which takes the rest of the line")));
        }
        let at = self.program.len();
        self.program.push(Step::Arg(arg));
        if let Some(rest) = self.rest.strip_prefix("...") {
            self.rest = rest;
            if depth == 0 && !rest.trim().is_empty()
                || rest.trim().trim_start_matches(']').contains(|c| c != ' ')
            {
                return Err(self.error(format!("has more behind <{name}>..., which must be the end")));
            }
            self.program.push(Step::Fork(at));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syntaxes_compile() {
        let program = compile("vlt set <vni:vni> [mac <mac:mac>] <to:ip|all>...").unwrap();
        assert_eq!(program.len(), 9);
        assert_eq!(program[3], Step::Fork(6));
        assert_eq!(program[7], Step::Fork(6));
        let Step::Arg(arg) = &program[6] else { panic!("{program:?}") };
        assert_eq!((arg.words.as_slice(), arg.shown()), (["all"].as_slice(), "<to:ip>".into()));
        assert!(compile("port start|stop [all [now]] [<note:text>]").is_ok());
    }

    #[test]
    fn wrong_syntaxes_say_what_is_wrong() {
        for (syntax, word) in [
            ("", "keyword"),
            ("<x:uint>", "begin with a keyword"),
            ("a [b", "[ without"),
            ("a b]", "] without"),
            ("a []", "empty"),
            ("a <x", "< without"),
            ("a <x>", "<name:type>"),
            ("a <x:int>", "unknown type int"),
            ("a <x:ip> <x:ip>", "two arguments named x"),
            ("a <x:text> b", "rest of the line"),
            ("a <x:ip>... b", "must be the end"),
            ("a B", "`B`"),
            ("a b|", "``"),
        ] {
            let error = compile(syntax).unwrap_err().to_string();
            assert!(error.contains(word), "{syntax}: {error}");
        }
    }
}
