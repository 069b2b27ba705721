//! Completion: what could come next in a line.

use serde::{Deserialize, Serialize};

use super::grammar::{Program, Step};
use super::lexer;
use super::matcher;

/// One thing that could come next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Candidate {
    /// The word, or the hint such as `<vni>`.
    pub text: String,
    /// It is a hint: shown, never put into the line.
    pub hint: bool,
}

/// All things that could come next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// Where the word under completion starts, in bytes.
    pub start: usize,
    /// Words first, then hints.
    pub candidates: Vec<Candidate>,
}

/// Completion at the end of `line`; `values` gives live values of a type or an argument's name.
pub(super) fn at_end(programs: &[&Program], line: &str, values: &dyn Fn(&str) -> Vec<String>) -> Completion {
    let nothing = || Completion { start: line.len(), candidates: Vec::new() };
    let Ok(mut tokens) = lexer::split(line) else { return nothing() };
    let open = tokens
        .last()
        .is_some_and(|token| !token.quoted && line.get(token.start..) == Some(token.text.as_str()));
    // A comment behind the last word leaves nothing to complete.
    if !open && line.trim_end().len() > tokens.last().map_or(0, |token| token.end) {
        return nothing();
    }
    let partial = if open { tokens.pop() } else { None };
    let mut threads = matcher::begin(programs);
    for token in &tokens {
        match matcher::advance(programs, &threads, token, &line[token.start..], false) {
            Ok(next) => threads = next,
            Err(_) => return nothing(),
        }
    }
    let (start, typed) = partial.map_or((line.len(), String::new()), |token| (token.start, token.text));
    let mut candidates = Vec::new();
    let mut add = |text: &str, hint| {
        if hint || text.starts_with(&typed) {
            candidates.push(Candidate { text: text.to_owned(), hint });
        }
    };
    for thread in &threads {
        match thread.step(programs) {
            Step::Keyword(words) | Step::Full(words) => words.iter().for_each(|word| add(word, false)),
            Step::Arg(arg) => {
                arg.words.iter().for_each(|word| add(word, false));
                for source in arg.kinds.iter().map(|kind| kind.name()).chain([arg.name]) {
                    values(source).iter().for_each(|value| add(value, false));
                }
                let fits = typed.is_empty() || arg.kinds.iter().any(|kind| kind.read(&typed).is_ok());
                if fits && !arg.kinds.is_empty() {
                    add(&arg.shown(), true);
                }
            }
            Step::Done | Step::Fork(_) => {}
        }
    }
    candidates.sort_by(|a, b| (a.hint, &a.text).cmp(&(b.hint, &b.text)));
    candidates.dedup();
    Completion { start, candidates }
}
