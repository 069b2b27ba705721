//! The stages of the overlay pipeline, one file each, in the order in which a packet meets them.
//!
//! A stage is a loop over the packets of a burst that are still pending. It knows the snapshot, the time and the
//! counters through [`Cx`], ends packets by dropping, answering or sending them, and returns no errors.

mod bfd;
pub mod bind;
pub mod cm;
pub mod dhtb;
pub mod fast_inner;
pub mod fast_outer;
pub mod flood;
pub mod forward;
pub mod guard;
pub mod host;
pub mod icmp_error;
pub mod key;
pub mod lookup;
pub mod mtu;
pub mod neighbour;
pub mod outer;
pub mod parse;
mod probe;
pub mod rcft;
pub mod reply;
pub(crate) mod security;
pub mod service;
pub mod slow_path;
pub mod super_frame;
pub mod tunnel;
pub mod underlay;

use crate::Now;
use crate::counters::PipelineCounters;
use crate::event::Events;
use crate::snapshot::{PortIndex, Snapshot};

/// What every stage may look at.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    /// The configuration for this burst.
    pub snapshot: &'a Snapshot,
    /// The worker's counters.
    pub counters: &'a PipelineCounters,
    /// Where control hears of what happens.
    pub events: &'a Events,
    /// The time of this burst.
    pub now: Now,
    /// The port that the burst came from.
    pub port: PortIndex,
}
