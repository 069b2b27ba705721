//! What a measurement needs from the machine: a private folder, huge pages, child processes, a clock, an early end;
//! and this project's daemon as a child.
//!
//! Used by every command of `perf`. Nothing here knows what is measured.

pub mod cores;
pub mod daemon;
pub mod hugepages;
pub mod interrupt;
pub mod netns;
pub mod ovs;
pub mod process;
pub mod scratch;
pub mod testpmd;
pub mod threads;
pub mod tsc;

/// What can go wrong with the machine around a measurement.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file or folder could not be read or written.
    #[error("{what}: {reason}")]
    Io { what: String, reason: std::io::Error },
    /// A program could not be started.
    #[error("cannot start {program}: {reason}; {remedy}")]
    Start { program: String, reason: std::io::Error, remedy: &'static str },
    #[error("{program} ended early ({status}); its last words:\n{words}")]
    Ended { program: String, status: String, words: String },
    /// A helper program reported failure.
    #[error("`{command}` failed: {words}")]
    Command { command: String, words: String },
    /// The daemon refused a command, or answered something that is not understood.
    #[error("vswitch does not do what it was set up for: {0}")]
    Refused(String),
    /// The forwarding thread could not be told from the others.
    #[error("{switch} has {found} busy threads pinned to core {core} alone; exactly one was expected")]
    Threads { switch: String, core: usize, found: usize },
    /// Something did not happen in time.
    #[error("waited {seconds} s for {what}; the last words of {program}:\n{words}")]
    Late {
        what: String,
        seconds: u64,
        /// The program that did not answer.
        program: String,
        words: String,
    },
    /// There are not enough huge pages, and no more could be had.
    #[error(
        "{wanted} huge pages of 2 MiB are needed and only {got} could be reserved; free memory, or reserve them at boot \
         with hugepages={wanted} on the kernel command line, and run as root"
    )]
    HugePages { wanted: u64, got: u64 },
    /// The machine cannot say what is asked of it.
    #[error("{what}; {remedy}")]
    Missing { what: String, remedy: &'static str },
    #[error("interrupted; everything started has been taken down")]
    Interrupted,
}

/// Adds the path or action to an I/O error.
pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> HostError {
    let what = what.into();
    move |reason| HostError::Io { what, reason }
}
