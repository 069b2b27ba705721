//! A burst of packets on its way through the stages, and what the stages know about each.

use crate::counters::PipelineCounters;
use crate::direction::Direction;
use crate::drops::DropReason;
use crate::flow_key::FlowKey;
use crate::nft::{self, Bits, Probe};
use crate::vtep::Vtep;
use wire::{Ecn, Headers};

/// Most packets in a burst.
pub const MAX_BURST: usize = 64;

/// No vNIC, no VPC.
pub const NO_INDEX: u32 = u32::MAX;

/// What is known about a packet. Two cache lines.
#[derive(Clone, Copy, Default)]
#[repr(C, align(128))]
pub struct Meta {
    /// Key in the NFT, once a stage has read the headers.
    pub key: FlowKey,
    /// [`FlowKey::hash`] of the key, under the seed of the worker's NFT.
    pub hash: u64,
    /// Offsets and fields of the (inner) packet.
    pub headers: Headers,
    /// Slot of its NFT entry, or [`nft::NONE`] for a miss.
    pub entry: u32,
    /// vNIC that the packet came from, or [`NO_INDEX`] when it came out of a tunnel.
    pub vnic: u32,
    /// Index of the VPC: of the source vNIC, or of the VNI that the packet came with.
    pub vpc: u32,
    /// VTEP that sent it, when it came out of a tunnel.
    pub vtep: Vtep,
    /// UDP or TCP source port that chooses the outer source port; in `stage::forward`, where a NIC's choice is followed, what
    /// it toggles there.
    pub entropy_port: u16,
    /// ECN field of the outer header, of packets out of a tunnel.
    pub outer_ecn: Ecn,
}

const _: () = assert!(size_of::<Meta>() == 128);

impl Meta {
    /// Which way the packet goes: only those of this host's own have a vNIC.
    #[inline(always)]
    pub const fn direction(&self) -> Direction {
        if self.vnic == NO_INDEX { Direction::In } else { Direction::Out }
    }
}

impl Probe for Meta {
    #[inline(always)]
    fn key(&self) -> &FlowKey {
        &self.key
    }

    #[inline(always)]
    fn hash(&self) -> u64 {
        self.hash
    }

    #[inline(always)]
    fn set_entry(&mut self, slot: u32) {
        self.entry = slot;
    }

    #[inline(always)]
    fn entry(&self) -> u32 {
        self.entry
    }
}

/// Up to [`MAX_BURST`] packets. A packet whose bit is set in `pending` is still on its way.
pub struct Burst<P> {
    /// The packets; `None` where none was received, and once one has left the burst.
    pub packets: Box<[Option<P>; MAX_BURST]>,
    /// What is known of each.
    pub metas: Box<[Meta; MAX_BURST]>,
    /// Bits of the packets that no stage has finished with.
    pub pending: u64,
    /// Bits of the packets that the parser found to be super-frames, which stand for several packets each.
    pub super_frames: u64,
}

impl<P> Default for Burst<P> {
    fn default() -> Self {
        Self {
            packets: Box::new([const { None }; MAX_BURST]),
            metas: Box::new([Meta { entry: nft::NONE, ..Meta::default() }; MAX_BURST]),
            pending: 0,
            super_frames: 0,
        }
    }
}

impl<P> Burst<P> {
    /// Declares the first `n` packets received.
    #[inline(always)]
    pub fn begin(&mut self, n: usize) {
        self.pending = if n >= 64 { u64::MAX } else { (1 << n) - 1 };
        self.super_frames = 0;
    }

    /// True when super-frames are among the packets that are still on their way.
    #[inline(always)]
    pub fn has_super_frames(&self) -> bool {
        self.super_frames & self.pending != 0
    }

    /// Puts packets in (tests and replays) and returns those that did not fit.
    pub fn fill(&mut self, packets: impl IntoIterator<Item = P>) -> Vec<P> {
        let mut rest = packets.into_iter();
        let mut n = 0;
        for slot in self.packets.iter_mut() {
            let Some(packet) = rest.next() else { break };
            *slot = Some(packet);
            n += 1;
        }
        self.begin(n);
        rest.collect()
    }

    /// The packets still on their way.
    #[inline(always)]
    pub fn pending(&self) -> Bits {
        Bits(self.pending)
    }

    /// Drops a packet, counted under its reason.
    #[inline(never)]
    pub fn drop(&mut self, index: usize, reason: DropReason, counters: &PipelineCounters) {
        counters.drop(reason);
        if let Some(row) = counters_row(&self.metas[index], counters) {
            row.drops.add(1);
        }
        self.pending &= !(1 << index);
        self.packets[index] = None;
    }

    /// Takes a packet out of the burst.
    #[inline(always)]
    pub fn take(&mut self, index: usize) -> Option<P> {
        self.pending &= !(1 << index);
        self.packets[index].take()
    }

    /// Puts a packet back that was [taken](Self::take): it goes on.
    #[inline(always)]
    pub fn put_back(&mut self, index: usize, packet: P) {
        self.packets[index] = Some(packet);
        self.pending |= 1 << index;
    }
}

fn counters_row<'a>(
    meta: &Meta,
    counters: &'a PipelineCounters,
) -> Option<&'a crate::counters::VnicCounters> {
    (meta.direction() == Direction::Out).then(|| counters.vnic(meta.vnic as usize))
}
