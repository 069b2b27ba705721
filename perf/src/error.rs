//! What can go wrong: with the machine around a measurement, with live traffic, in a comparison, in a lab.
//!
//! What somebody here acts upon is an error of its own; everything else is told to people, in full.

use pmd::{EalError, MempoolError, PortError};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a measurement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("interrupted; everything started has been taken down")]
    Interrupted,
    /// A program ended that was to go on.
    #[error("{0}")]
    Ended(String),
    /// A switch did not take its set-up, refused a command, or answered something that is not understood.
    #[error("{switch} does not do what it was set up for: {words}")]
    Refused { switch: &'static str, words: String },
    /// The forwarding thread could not be told from the others.
    #[error("{switch} has {found} busy threads pinned to core {core} alone; exactly one was expected")]
    Threads { switch: String, core: usize, found: usize },
    /// Packets are lost in what is to be the steady state.
    #[error("{switch} lost {lost} of {made} packets in a sample; its rate is not comparable")]
    Lossy { switch: String, lost: u64, made: u64 },
    /// It came to nothing, for a reason that is told in full.
    #[error("{0}")]
    Failed(String),

    #[error(transparent)]
    Eal(#[from] EalError),
    #[error(transparent)]
    Pool(#[from] MempoolError),
    #[error(transparent)]
    Port(#[from] PortError),
}

impl Error {
    /// The daemon refused a command, or answered something that is not understood.
    pub(crate) fn refused(words: impl Into<String>) -> Self {
        Self::Refused { switch: "vswitch", words: words.into() }
    }

    /// Adds the path or action to an I/O error.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |reason| Self::Failed(format!("{what}: {reason}"))
    }

    /// The machine has not what is needed of it, or does not say.
    pub(crate) fn missing(what: impl std::fmt::Display, remedy: &str) -> Self {
        Self::Failed(format!("{what}; {remedy}"))
    }

    /// A program's answer lacks something.
    pub(crate) fn answer(command: &str, what: impl std::fmt::Display, answer: &serde_json::Value) -> Self {
        let answer: String = answer.to_string().chars().take(600).collect();
        Self::Failed(format!("`{command}` does not say {what}: {answer}"))
    }
}
