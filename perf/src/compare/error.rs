//! What can go wrong in a comparison.

use super::peer::Contender;
use crate::host::HostError;
use crate::pcap::PcapError;

/// What can go wrong in a comparison.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The machine around it.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A frame file.
    #[error("{path}: {reason}")]
    Pcap {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: PcapError,
    },
    /// A switch did not take its set-up.
    #[error("{switch} does not do what it was set up for: {words}")]
    Refused {
        /// The switch.
        switch: &'static str,
        /// What it said or shows.
        words: String,
    },
    /// The frames that came out are wrong.
    #[error("{switch}, {case} with {flows} flows: {wrong}; its output is not comparable")]
    Output {
        /// The switch.
        switch: Contender,
        /// The case.
        case: super::cases::Case,
        /// Flows as given.
        flows: String,
        /// What is wrong.
        wrong: Box<super::check::Wrong>,
    },
    /// Packets are lost in what is to be the steady state.
    #[error("{switch} lost {lost} of {made} packets in a sample; its rate is not comparable")]
    Lossy {
        /// The switch.
        switch: Contender,
        /// Packets that did not come out.
        lost: u64,
        /// Packets that were made for it.
        made: u64,
    },
    /// Too few quiet samples.
    #[error(
        "only {kept} of {wanted} pairs were quiet: in the others a forwarding thread had less than 97 % of core {core}, \
         at worst {worst:.0} %; stop what else runs on that core, or choose another with --core"
    )]
    Noisy {
        /// Quiet pairs.
        kept: usize,
        /// Pairs asked for.
        wanted: usize,
        /// The core.
        core: usize,
        /// The smallest share seen, in percent.
        worst: f64,
    },
    /// A switch that should forward does not.
    #[error("{switch} forwarded nothing in {seconds} s, although its output was right before")]
    Silent {
        /// The switch.
        switch: Contender,
        /// Length of the sample.
        seconds: f64,
    },
}
