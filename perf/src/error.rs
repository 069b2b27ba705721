//! What can go wrong: with the machine around a measurement, with live traffic, in a comparison, in a lab.

use pmd::{EalError, MempoolError, PortError};

use crate::compare::cases::Case;
use crate::compare::check::Wrong;
use crate::compare::peer::Contender;
use crate::generator::scenario::ScenarioError;
use crate::lab::file::LabForwarder;
use crate::pcap::PcapError;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a measurement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
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
    /// A switch did not take its set-up, refused a command, or answered something that is not understood.
    #[error("{switch} does not do what it was set up for: {words}")]
    Refused { switch: &'static str, words: String },
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

    #[error(transparent)]
    Eal(#[from] EalError),
    #[error(transparent)]
    Pool(#[from] MempoolError),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error("`{command}` does not say {what}: {answer}")]
    Answer { command: String, what: String, answer: String },
    /// A measurement came to nothing, for a reason that is told in full.
    #[error("{0}")]
    Failed(String),
    /// A plot could not be drawn.
    #[error("draw {path}: {reason}")]
    Plot { path: String, reason: String },

    #[error("{path}: {reason}")]
    Pcap { path: String, reason: PcapError },
    #[error("{switch}, {case} with {flows} flows: {wrong}; its output is not comparable")]
    Output {
        switch: Contender,
        case: Case,
        /// Flows as given.
        flows: String,
        wrong: Box<Wrong>,
    },
    /// Packets are lost in what is to be the steady state.
    #[error("{switch} lost {lost} of {made} packets in a sample; its rate is not comparable")]
    Lossy {
        switch: Contender,
        /// Packets that did not come out.
        lost: u64,
        made: u64,
    },
    #[error(
        "only {kept} of {wanted} pairs were quiet: in the others a forwarding thread had less than 97 % of core {core}, \
         at worst {worst:.0} %; stop what else runs on that core, or choose another with --core"
    )]
    Noisy {
        kept: usize,
        wanted: usize,
        core: usize,
        /// The smallest share seen, in percent.
        worst: f64,
    },
    #[error(
        "only {kept} of {wanted} rounds were quiet: in the others a worker had less than 97 % of its core, at worst \
         {worst:.0} %; stop what else runs on cores {cores:?}"
    )]
    NoisyRounds {
        kept: usize,
        wanted: usize,
        cores: [usize; 2],
        /// The smallest share seen, in percent.
        worst: f64,
    },
    /// One core is not enough.
    #[error(
        "cores {0:?}: two different ones of those that this process may use are needed; name them with --cores"
    )]
    Cores(Vec<usize>),
    /// A switch that should forward does not.
    #[error("{switch} forwarded nothing in {seconds} s, although its output was right before")]
    Silent { switch: Contender, seconds: f64 },

    #[error(transparent)]
    File(#[from] ScenarioError),
    /// The machine is not as the lab file says.
    #[error(
        "{missing} of the checks failed; see to what the lines with `FAILED` say, then try `perf lab --check` again"
    )]
    Checks { missing: usize },
    /// The generator answered something that is not understood.
    #[error("the generator's report is not understood ({reason}); is its `perf` of this version?")]
    Report { reason: String },
    #[error(
        "{stream}: {sent} frames were sent and {frames} came out at the other port; look at the cables: near to near, far to far"
    )]
    Cabling { stream: String, sent: u64, frames: u64 },
    /// The work was not done, or done wrong.
    #[error("{forwarder}, {what}: {wrong}; its output is not comparable")]
    Work { forwarder: LabForwarder, what: String, wrong: String },
}

impl Error {
    /// The daemon refused a command, or answered something that is not understood.
    pub(crate) fn refused(words: impl Into<String>) -> Self {
        Self::Refused { switch: "vswitch", words: words.into() }
    }

    /// Adds the path or action to an I/O error.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |reason| Self::Io { what, reason }
    }
}
