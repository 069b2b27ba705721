//! What can go wrong in a comparison.

use super::peer::Contender;
use crate::host::HostError;
use crate::pcap::PcapError;

/// What can go wrong in a comparison.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("{path}: {reason}")]
    Pcap { path: String, reason: PcapError },
    /// A switch did not take its set-up.
    #[error("{switch} does not do what it was set up for: {words}")]
    Refused { switch: &'static str, words: String },
    #[error("{switch}, {case} with {flows} flows: {wrong}; its output is not comparable")]
    Output {
        switch: Contender,
        case: super::cases::Case,
        /// Flows as given.
        flows: String,
        wrong: Box<super::check::Wrong>,
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
}
