//! [`Devargs`]: a driver's arguments, built key by key.
//!
//! No value can smuggle a further key in: what would be taken apart is refused, by the name of the config key.

use std::fmt::Display;
use std::path::Path;

use super::error::OpenError;
use crate::config::secret::HIDDEN;

/// `key=value,key=value`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Devargs(String);

impl Devargs {
    /// Adds a number, or another value whose text is ours.
    pub(super) fn number(mut self, key: &str, value: impl Display) -> Self {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(&format!("{key}={value}"));
        self
    }

    /// Adds a text from the config, where it is called `name`.
    pub(super) fn text(self, key: &str, name: &'static str, value: &str) -> Result<Self, OpenError> {
        check(name, value)?;
        Ok(self.number(key, value))
    }

    /// As [`text`](Self::text), but no error shows the value.
    pub(super) fn secret(self, key: &str, name: &'static str, value: &str) -> Result<Self, OpenError> {
        self.text(key, name, value).map_err(|error| match error {
            OpenError::Value { key, why, .. } => OpenError::Value { key, value: HIDDEN.into(), why },
            other => other,
        })
    }

    /// Adds a path from the config, where it is called `name`.
    pub(super) fn path(self, key: &str, name: &'static str, path: &Path) -> Result<Self, OpenError> {
        let text = path.to_str().ok_or_else(|| OpenError::Value {
            key: name,
            value: path.to_string_lossy().into_owned(),
            why: "is not UTF-8; choose another path",
        })?;
        self.text(key, name, text)
    }

    /// The whole text.
    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// Refuses what a list of device arguments cannot carry.
pub(super) fn check(name: &'static str, value: &str) -> Result<(), OpenError> {
    let why = if value.is_empty() {
        "is empty; write it, or leave the key out"
    } else if value.contains(|c: char| c.is_control() || matches!(c, ',' | '[' | ']')) {
        "has a comma, a bracket or a control character, which device arguments cannot carry; remove it"
    } else {
        return Ok(());
    };
    Err(OpenError::Value { key: name, value: value.into(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_joined_in_order() {
        let args = Devargs::default().text("iface", "iface", "v0").unwrap().number("queues", 2);
        assert_eq!(args.finish(), "iface=v0,queues=2");
        assert_eq!(Devargs::default().finish(), "");
    }

    #[test]
    fn no_value_smuggles_an_argument() {
        for value in ["", "a,b=c", "a\n", "[1]", "a\0"] {
            let error = Devargs::default().text("iface", "iface", value).unwrap_err();
            assert!(matches!(error, OpenError::Value { key: "iface", .. }), "{value:?}: {error}");
        }
        let error = Devargs::default().secret("secret", "secret", "word,id=1").unwrap_err();
        assert!(!error.to_string().contains("word"), "{error}");
        let path = Path::new("/run/a,client=1");
        assert!(Devargs::default().path("iface", "path", path).is_err());
    }
}
