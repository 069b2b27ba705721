//! Splits a line into words: blanks between, `"..."` around what has blanks, `#` before a comment.

use super::MAX_LINE;
use super::command::CommandError;

/// A word of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The word, without quotes.
    pub text: String,
    /// Where it starts in the line, in bytes.
    pub start: usize,
    /// Where it ends there, its quotes included.
    pub end: usize,
    /// Its column, from 1, in characters.
    pub column: usize,
    /// It was in quotes, so it is no keyword.
    pub quoted: bool,
}

/// The words of `line`.
///
/// # Errors
/// A line longer than [`MAX_LINE`], or with a quote that is not closed.
pub fn split(line: &str) -> Result<Vec<Token>, CommandError> {
    if line.len() > MAX_LINE {
        let length = line.len();
        return Err(CommandError::new(format!(
            "the line is {length} bytes long; a command has at most {MAX_LINE}: split it, or use load <file>"
        )));
    }
    let mut tokens = Vec::new();
    let mut chars = line.char_indices().enumerate().peekable();
    while let Some((column, (start, c))) = chars.next() {
        let column = column + 1;
        if c.is_whitespace() {
            continue;
        }
        if c == '#' {
            break;
        }
        let quoted = c == '"';
        let mut text = String::new();
        if quoted {
            loop {
                match chars.next() {
                    None => return Err(CommandError::at(column, "the quote is not closed; add a \"".into())),
                    Some((_, (_, '"'))) => break,
                    Some((_, (_, '\\'))) => text.extend(chars.next().map(|(_, (_, c))| c)),
                    Some((_, (_, c))) => text.push(c),
                }
            }
        } else {
            text.push(c);
            while let Some((_, (_, c))) = chars.next_if(|(_, (_, c))| !c.is_whitespace()) {
                text.push(c);
            }
        }
        let end = chars.peek().map_or(line.len(), |(_, (at, _))| *at);
        tokens.push(Token { text, start, end, column, quoted });
    }
    Ok(tokens)
}

/// The line of words that a shell has split already: one is the line itself, and of several each stays the word that it is.
pub fn joined(words: &[String]) -> String {
    let one = |word: &String| {
        let is_quoted = word.len() > 1 && word.starts_with('"') && word.ends_with('"');
        let needs_quotes =
            word.is_empty() || word.starts_with(['#', '"']) || word.contains(char::is_whitespace);
        match needs_quotes && !is_quoted {
            true => format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\"")),
            false => word.clone(),
        }
    };
    match words {
        [line] => line.clone(),
        words => words.iter().map(one).collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(line: &str) -> Vec<String> {
        split(line).unwrap().into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn words_quotes_and_comments() {
        assert_eq!(words("  show\tport stats  0"), ["show", "port", "stats", "0"]);
        assert_eq!(words(r#"load "a b" "c\"d" "\\""#), ["load", "a b", "c\"d", "\\"]);
        assert_eq!(words("stop # now"), ["stop"]);
        assert_eq!(words("# all of it"), [""; 0]);
        assert_eq!(words("a#b"), ["a#b"]);
        let tokens = split("\u{e4}\u{e4} \"x\"").unwrap();
        assert_eq!((tokens[1].start, tokens[1].column, tokens[1].quoted), (5, 4, true));
        let ends = |line: &str| split(line).unwrap().iter().map(|token| token.end).collect::<Vec<_>>();
        assert_eq!(ends("\u{e4} \"x y\" z # \u{e4}"), [2, 8, 10]);
    }

    #[test]
    fn unclosed_quotes_and_long_lines_are_refused() {
        assert_eq!(split("a \"b").unwrap_err().column, Some(3));
        assert_eq!(split("a \"b\\").unwrap_err().column, Some(3));
        let error = split(&"x".repeat(1_000_000)).unwrap_err().to_string();
        assert!(error.contains("1000000 bytes") && error.contains("load <file>"), "{error}");
        assert!(split(&"x".repeat(MAX_LINE)).is_ok());
    }

    #[test]
    fn words_of_a_shell_are_not_taken_apart_again() {
        let joined = |words: &[&str]| joined(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(joined(&["show port # all"]), "show port # all");
        assert_eq!(joined(&["load", "\"/a b\""]), "load \"/a b\"");
        for given in
            [&["save", "/a b.toml"], &["del", "#y"], &["del", ""], &["say", "\"x"], &["a\\", "b \"\\"]]
        {
            assert_eq!(words(&joined(given)), given);
        }
    }

    proptest! {
        #[test]
        fn shell_words_come_back(given in proptest::collection::vec("[a\"# \\\\]{0,4}", 2..5)) {
            prop_assume!(!given.iter().any(|word| word.len() > 1 && word.starts_with('"') && word.ends_with('"')));
            let given: Vec<String> = given;
            prop_assert_eq!(words(&joined(&given)), given);
        }

        #[test]
        fn no_line_panics(line in "\\PC{0,64}") {
            let _ = split(&line);
        }
    }
}
