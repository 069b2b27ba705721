//! What the plugin says when it fails: the codes of the CNI specification, and its own from 100 on.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The `cniVersion` of the config is none that the plugin speaks.
pub const INCOMPATIBLE_VERSION: u32 = 1;
/// The container, or its network namespace, is not there.
pub const UNKNOWN_CONTAINER: u32 = 3;
/// An environment variable is missing or cannot be.
pub const INVALID_ENVIRONMENT: u32 = 4;
/// Standard input, or a program that was run, could not be read.
pub const IO_FAILURE: u32 = 5;
/// What was read is not JSON, or not what it should be.
pub const DECODING: u32 = 6;
/// The network config cannot be.
pub const INVALID_CONFIG: u32 = 7;
/// It may succeed later.
pub const TRY_AGAIN: u32 = 11;
/// STATUS: an ADD would fail.
pub const NOT_AVAILABLE: u32 = 50;
/// The switch refused a change.
pub const REFUSED: u32 = 100;
/// No address of the range is free.
pub const NO_ADDRESS: u32 = 101;
/// The address that was asked for is somebody else's.
pub const ADDRESS_TAKEN: u32 = 102;
/// CHECK: something is not as ADD left it.
pub const DIFFERS: u32 = 103;
/// An interface could not be made or changed.
pub const INTERFACE: u32 = 104;

/// A failure, as it is told to the container runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    #[serde(default)]
    pub code: u32,
    /// What is wrong.
    #[serde(default)]
    pub msg: String,
    /// Where it is, and what to do about it.
    #[serde(default)]
    pub details: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(code: u32, msg: impl Into<String>, details: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), details: details.into() }
    }

    /// A field of the network config that cannot be as it is.
    pub fn config(field: &str, wrong: impl fmt::Display, remedy: impl Into<String>) -> Self {
        Self::new(INVALID_CONFIG, format!("{field}: {wrong}"), remedy)
    }

    /// An environment variable that cannot be as it is.
    pub fn environment(variable: &str, wrong: impl fmt::Display, remedy: impl Into<String>) -> Self {
        Self::new(INVALID_ENVIRONMENT, format!("{variable}: {wrong}"), remedy)
    }

    /// An interface that could not be made or changed.
    pub fn interface(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::new(
            INTERFACE,
            format!("{what}: {why}"),
            "the plugin needs root, CAP_NET_ADMIN and CAP_SYS_ADMIN",
        )
    }

    /// The text for standard output, in the version of the config.
    pub fn told(&self, version: &str) -> String {
        let told = serde_json::json!({
            "cniVersion": version, "code": self.code, "msg": self.msg, "details": self.details,
        });
        told.to_string()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}; code {})", self.msg, self.details, self.code)
    }
}

/// The beginning of a text that came from outside, in quotes.
pub fn quote(text: &str) -> String {
    format!("{:?}", text.chars().take(80).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_in_the_version_of_the_config() {
        let error = Error::config("subnet", "\"x\" is no prefix", "write one like 10.0.0.0/24");
        let want = r#"{"cniVersion":"1.0.0","code":7,"details":"write one like 10.0.0.0/24","msg":"subnet: \"x\" is no prefix"}"#;
        assert_eq!(error.told("1.0.0"), want);
    }
}
