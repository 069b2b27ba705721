//! What is wrong with a config, and where.
//!
//! Every error carries the origin (a file name), line and column it speaks of, where there are such: a config
//! changed at run time has no text, so its errors name the thing only. Nothing here prints or exits.

use std::fmt;

/// The longest piece of user text that a message repeats.
const LONGEST_QUOTE: usize = 64;

/// One thing wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file the text came from; empty for a config that has no text.
    pub origin: String,
    /// Line and column, from 1, where the text is known.
    pub place: Option<(usize, usize)>,
    /// The value that it is about, as `vnic[name=vm1].vips[0]`; empty where it is about no one value, or about text that is no config.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.origin.is_empty() {
            write!(f, "{}:", self.origin)?;
        }
        if let Some((line, column)) = self.place {
            write!(f, "{line}:{column}:")?;
        }
        if !self.origin.is_empty() || self.place.is_some() {
            f.write_str(" ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

/// Everything wrong with one config, in the order of the text; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// `text` in quotes for a message: cut when long, control characters escaped.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for (count, c) in text.chars().enumerate() {
        if count == LONGEST_QUOTE {
            quoted.push_str("...\" (");
            quoted.push_str(&text.len().to_string());
            quoted.push_str(" bytes)");
            return quoted;
        }
        quoted.extend(c.escape_debug());
    }
    quoted.push('"');
    quoted
}

/// A message of somebody else's making (serde, the TOML parser) made fit to print: one line, no control
/// characters, and no run of user text longer than a few words.
pub fn tidy(message: &str) -> String {
    let mut tidy = String::new();
    let mut run = 0;
    let mut cut = false;
    for c in message.chars() {
        run = if c.is_whitespace() { 0 } else { run + 1 };
        if run == LONGEST_QUOTE + 32 {
            tidy.push_str("...");
            cut = true;
        } else if run < LONGEST_QUOTE + 32 {
            cut = false;
            tidy.push(if c.is_control() { ' ' } else { c });
        } else if cut && matches!(c, '`' | '"') {
            tidy.push(c);
            run = 0;
        }
    }
    if tidy.chars().count() > 1000 {
        tidy = tidy.chars().take(1000).chain("...".chars()).collect();
    }
    tidy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_as_compilers_write_them() {
        let mut error = ConfigError {
            origin: "file.toml".into(),
            place: Some((12, 7)),
            path: String::new(),
            message: "no".into(),
        };
        assert_eq!(error.to_string(), "file.toml:12:7: no");
        error.place = None;
        assert_eq!(error.to_string(), "file.toml: no");
        error.origin.clear();
        assert_eq!(error.to_string(), "no");
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(quote("a\nb"), "\"a\\nb\"");
        let long = "x".repeat(10_000);
        assert!(quote(&long).ends_with("...\" (10000 bytes)"));
        assert!(quote(&long).len() < 100);
        let message = format!("unknown field `{long}`, expected one of `a`, `b`");
        let short = tidy(&message);
        assert!(short.len() < 200 && short.ends_with("...`, expected one of `a`, `b`"), "{short}");
        assert_eq!(tidy("plain words\nand more"), "plain words and more");
        assert!(tidy(&"ab ".repeat(10_000)).len() < 1100);
    }
}
