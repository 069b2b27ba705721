//! Matches the words of a line against all commands at once.
//!
//! Word by word: an exact keyword wins, then a value of the type that is due, then a keyword the word is the
//! beginning of, if there is one only. So `sh po st 0` finds `show port stats 0`, a short word never hides a
//! value, and an ambiguous one names its candidates. Reads words; runs nothing.

use std::collections::{BTreeSet, HashSet};

use super::command::{Args, BoundArg, CommandError};
use super::grammar::{Arg, Program, Step};
use super::lexer::Token;
use super::value::{ArgKind, Value};
use crate::config::error::quote;

/// The most expected words that an error lists.
const LISTED: usize = 32;

/// A command under way: how far its program is, and what it took.
#[derive(Clone, Debug)]
pub(super) struct Thread {
    command: usize,
    step: usize,
    args: Args,
}

impl Thread {
    pub(super) fn step<'p>(&self, programs: &[&'p Program]) -> &'p Step {
        &programs[self.command][self.step]
    }
}

/// All commands at their first word.
pub(super) fn begin(programs: &[&Program]) -> Vec<Thread> {
    let firsts = (0..programs.len()).map(|command| Thread { command, step: 0, args: Args::default() });
    follow_forks(programs, firsts.collect())
}

/// Replaces threads at a fork by those that it leads to.
fn follow_forks(programs: &[&Program], threads: Vec<Thread>) -> Vec<Thread> {
    let mut seen = HashSet::new();
    let mut stopped = Vec::new();
    let mut left: Vec<Thread> = threads.into_iter().rev().collect();
    while let Some(thread) = left.pop() {
        if !seen.insert((thread.command, thread.step)) {
            continue;
        }
        if let Step::Fork(to) = thread.step(programs) {
            left.push(Thread { step: *to, ..thread.clone() });
            left.push(Thread { step: thread.step + 1, ..thread });
        } else {
            stopped.push(thread);
        }
    }
    stopped
}

/// The command that the line is, with its arguments.
pub(super) fn find(
    programs: &[&Program],
    line: &str,
    tokens: &[Token],
) -> Result<(usize, Args), CommandError> {
    let mut threads = begin(programs);
    // Without the comment behind it.
    let end = tokens.last().map_or(0, |token| token.end);
    for (index, token) in tokens.iter().enumerate() {
        let rest = line.get(token.start..end).unwrap_or("");
        threads = advance(programs, &threads, token, rest, index + 1 == tokens.len())?;
        if threads.iter().all(took_the_rest) {
            break;
        }
    }
    match threads.iter().find(|thread| matches!(thread.step(programs), Step::Done)) {
        Some(thread) => Ok((thread.command, thread.args.clone())),
        None => {
            let column = line.trim_end().chars().count() + 2;
            let expected = list(&expectations(programs, &threads));
            Err(CommandError::at(column, format!("the command is not complete; expected {expected}")))
        }
    }
}

/// True when the last argument swallowed the rest of the line.
fn took_the_rest(thread: &Thread) -> bool {
    matches!(thread.args.given.last(), Some(BoundArg { value: Value::Text(_), .. }))
}

/// The threads after one more word.
pub(super) fn advance(
    programs: &[&Program],
    threads: &[Thread],
    token: &Token,
    rest: &str,
    last: bool,
) -> Result<Vec<Thread>, CommandError> {
    let mut exact = Vec::new();
    let mut typed = Vec::new();
    let mut short = Vec::new();
    let mut candidates = BTreeSet::new();
    let mut complaints = BTreeSet::new();
    for thread in threads {
        let step = thread.step(programs);
        let (words, arg): (&[&'static str], Option<&Arg>) = match step {
            Step::Keyword(words) | Step::Full(words) => (words, None),
            Step::Arg(arg) => (&arg.words, Some(arg)),
            Step::Fork(_) | Step::Done => continue,
        };
        for word in words.iter().filter(|_| !token.quoted) {
            let next = || took_word(thread, arg, word, token);
            if *word == token.text {
                exact.push(next());
            } else if word.starts_with(token.text.as_str()) && !matches!(step, Step::Full(_)) {
                candidates.insert(*word);
                short.push(next());
            }
        }
        let mut of_its_kind = false;
        for kind in arg.iter().flat_map(|arg| &arg.kinds) {
            let text = if *kind == ArgKind::Text && (!token.quoted || !last) { rest } else { &token.text };
            match kind.read(text) {
                Ok(value) if !of_its_kind => {
                    of_its_kind = true;
                    typed.extend(arg.map(|arg| took_value(thread, arg, value, token)));
                }
                Ok(_) => {}
                Err(complaint) => {
                    complaints.insert(complaint);
                }
            }
        }
    }
    let next = if !exact.is_empty() {
        exact
    } else if !typed.is_empty() {
        typed
    } else if candidates.len() == 1 {
        short
    } else if candidates.len() > 1 {
        let candidates = candidates.into_iter().map(str::to_owned).collect::<Vec<_>>();
        let message = format!("{} is ambiguous: {}", quote(&token.text), list(&candidates));
        return Err(CommandError::at(token.column, message));
    } else {
        return Err(unexpected(programs, threads, token, &complaints));
    };
    Ok(follow_forks(programs, next))
}

fn took_word(thread: &Thread, arg: Option<&Arg>, word: &'static str, token: &Token) -> Thread {
    let mut next = match arg {
        Some(arg) => took_value(thread, arg, Value::Word(word.to_owned()), token),
        None => Thread { step: thread.step + 1, ..thread.clone() },
    };
    next.args.keywords.push(word);
    next
}

fn took_value(thread: &Thread, arg: &Arg, value: Value, token: &Token) -> Thread {
    let mut next = Thread { step: thread.step + 1, ..thread.clone() };
    next.args.given.push(BoundArg { name: arg.name.to_owned(), value, column: token.column });
    next
}

/// What may come next, as it is shown.
fn expectations(programs: &[&Program], threads: &[Thread]) -> Vec<String> {
    let mut words = BTreeSet::new();
    let mut hints = BTreeSet::new();
    let mut done = false;
    for thread in threads {
        match thread.step(programs) {
            Step::Keyword(keywords) | Step::Full(keywords) => {
                words.extend(keywords.iter().map(|word| (*word).to_owned()))
            }
            Step::Arg(arg) => {
                words.extend(arg.words.iter().map(|word| (*word).to_owned()));
                if !arg.kinds.is_empty() {
                    hints.insert(arg.shown());
                }
            }
            Step::Done => done = true,
            Step::Fork(_) => {}
        }
    }
    let end = done.then(|| "the end of the line".to_owned());
    words.into_iter().chain(hints).chain(end).collect()
}

fn list(items: &[String]) -> String {
    let more =
        if items.len() > LISTED { format!(" and {} more", items.len() - LISTED) } else { String::new() };
    items[..items.len().min(LISTED)].join(", ") + &more
}

fn unexpected(
    programs: &[&Program],
    threads: &[Thread],
    token: &Token,
    complaints: &BTreeSet<String>,
) -> CommandError {
    let expected = expectations(programs, threads);
    let hints = expected.iter().filter(|item| item.starts_with('<')).count();
    // Where only one kind of value is due, its own complaint says more than a list.
    let mut message = match complaints.iter().next() {
        Some(complaint) if complaints.len() == 1 && hints == expected.len() => {
            format!("{complaint}; expected {}", list(&expected))
        }
        _ => format!("{} does not fit here; expected {}", quote(&token.text), list(&expected)),
    };
    let near = expected.iter().filter(|item| !item.starts_with('<') && !item.contains(' '));
    let nearest = near.map(|word| (distance(word, &token.text), word)).min();
    if let Some((_, word)) = nearest.filter(|(distance, word)| *distance <= 2 && *distance < word.len()) {
        message.push_str(&format!("; did you mean {word}?"));
    }
    CommandError::at(token.column, message)
}

/// How many letters must change, come or go, or swap with their neighbour, to make `b` of `a`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().take(64).collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn distances() {
        assert_eq!(distance("port", "prot"), 1);
        assert_eq!(distance("port", "port"), 0);
        assert_eq!(distance("show", "shwo"), 1);
        assert_eq!(distance("stats", "xstats"), 1);
        assert_eq!(distance("", "abc"), 3);
    }
}
