//! What the manager is told, and what it tells.

use super::rate::Rate;
use crate::offload::counter::Growth;
use crate::offload::translate::FlowSelector;
use crate::qos::Leaf;

/// When flows go into hardware and when they leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A flow is hot from so many packets a second on ...
    pub packets: u64,
    /// ... or so many bytes a second.
    pub bytes: u64,
    /// A flow that is below half of both for so long leaves.
    pub cool_ns: u64,
    /// For so long a flow may wait for a gap.
    pub install_wait_ns: u64,
    /// After a refusal a flow is not tried again for so long.
    pub retry_ns: u64,
    /// Rules made a second at most.
    pub rules_per_second: u64,
    /// Rules at a time at most.
    pub rules: usize,
    /// Gates are opened in gaps only. Without it later packets of a flow overtake earlier ones when its rules appear.
    pub barrier: bool,
    /// For so long a counter that stands still may just not have been refreshed by the device.
    pub refresh_ns: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            packets: 10_000,
            bytes: 12_500_000,
            cool_ns: 1_000_000_000,
            install_wait_ns: 1_000_000_000,
            retry_ns: 10_000_000_000,
            rules_per_second: 10_000,
            rules: 1 << 20,
            barrier: true,
            refresh_ns: 1_000_000_000,
        }
    }
}

impl ManagerCounters {
    /// Counts a reading of the device that is not believed.
    pub(super) fn doubt(&mut self, growth: Growth) {
        match growth {
            Growth::Back => self.backwards += 1,
            Growth::Ahead => self.ahead += 1,
            Growth::By(_) | Growth::Doubted => {}
        }
    }
}

impl Policy {
    pub(super) fn is_hot(&self, rate: Rate) -> bool {
        rate.packets >= self.packets || rate.bytes >= self.bytes
    }

    pub(super) fn is_cold(&self, rate: Rate) -> bool {
        rate.packets < self.packets / 2 && rate.bytes < self.bytes / 2
    }
}

/// What software says of a flow: what NFT (or for queue pairs RCFT) has counted in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSample {
    /// The flow, or queue pair of a flow, as software names it.
    pub selector: FlowSelector,
    /// Packets, hardware's that were accounted included; wraps at 2^64.
    pub packets: u64,
    /// Bytes of their frames, without tunnels' headers.
    pub bytes: u64,
}

/// What hardware did since the last time, to be added to NFT and RCFT and taken from DHTB, there with the bytes that a
/// frame costs on the wire for each packet. What meters turned away is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debit {
    /// The flow whose entry, vNICs and class they count for.
    pub selector: FlowSelector,
    /// Packets that met its gate since the debit before.
    pub packets: u64,
    /// Bytes, as software would have counted them.
    pub bytes: u64,
    /// The class whose tokens are taken; `None` for traffic that stays on this host.
    pub leaf: Option<Leaf>,
    /// Bytes of tunnels' headers around each of the packets, which only the class's link pays for.
    pub link_len: u32,
    /// In how long they came, as far as that is known.
    pub over_ns: u64,
}

/// NFT flows by where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// In software, for whatever reason but a refusal.
    pub software: u64,
    /// On their way into hardware.
    pub installing: u64,
    /// All of their packets meet a rule.
    pub hardware: u64,
    /// Some of their queue pairs are in hardware.
    pub partial: u64,
    /// In software, because the translation or the device refused them; tried again after `retry_ns`.
    pub refused: u64,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManagerCounters {
    /// Flows that came into hardware.
    pub installed: u64,
    /// Flows that left it.
    pub withdrawn: u64,
    /// Of those, because no packet came.
    pub aged: u64,
    /// Of those, to make room for hotter ones.
    pub displaced: u64,
    /// Of those, because their class was over its rate.
    pub over_rate: u64,
    /// Chains changed in place.
    pub updated: u64,
    /// Flows that are treated otherwise by hardware.
    pub refused: u64,
    /// Flows that the device refused, at once or later.
    pub refused_by_device: u64,
    /// Flows that found no gap.
    pub no_gap: u64,
    /// Times that a counter of the device went back: nothing was debited until it was where it had been, or for a while.
    pub backwards: u64,
    /// Times that a counter of the device rose by more than a port can carry: nothing of that was debited.
    pub ahead: u64,
    /// Rules that the device did not let go when it was asked to; it is asked again until they go.
    pub kept: u64,
    /// Aged rules that were gone already.
    pub unknown_aged: u64,
    /// Lost rules that were put back.
    pub repaired: u64,
}
