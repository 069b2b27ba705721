//! Names of things: uplinks, VPCs, vNICs, ports.
//!
//! A name goes into commands, metrics and file names, so it is short and has no characters that any of them
//! would have to quote. A checked newtype: a `Name` in hand is a good one.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::quote;

/// The name of a configured thing: 1 to 63 characters out of letters, digits, `_`, `-` and `.`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// A text that is not a [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a name; a name has 1 to 63 characters out of A-Z a-z 0-9 _ - .")]
pub struct NameSyntax(String);

impl Name {
    /// The longest name, in characters.
    pub const MAX_LEN: usize = 63;

    /// The checked name.
    ///
    /// # Errors
    /// [`NameSyntax`] when it is empty, too long or has other characters.
    pub fn new(text: &str) -> Result<Self, NameSyntax> {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if text.is_empty() || text.len() > Self::MAX_LEN || !text.chars().all(good) {
            return Err(NameSyntax(quote(text)));
        }
        Ok(Self(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Name {
    type Err = NameSyntax;

    fn from_str(text: &str) -> Result<Self, NameSyntax> {
        Self::new(text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names_pass() {
        let longest = "x".repeat(63);
        for good in ["a", "vm-1.eth0_x", longest.as_str()] {
            assert_eq!(Name::new(good).unwrap(), *good);
        }
    }

    #[test]
    fn bad_names_are_cut_and_named() {
        for bad in ["", "a b", "a,b", "a/b", "\u{e4}", &"x".repeat(64)] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
        let error = Name::new(&"y".repeat(10_240)).unwrap_err().to_string();
        assert!(error.len() < 250 && error.contains("10240 bytes") && error.contains("1 to 63"), "{error}");
    }
}
