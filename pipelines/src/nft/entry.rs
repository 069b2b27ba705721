//! An NFT entry: two cache lines, the key in the first, what to do and how often it was done in the second.

use wire::MacAddr;
use zerocopy::FromZeros;

use crate::connections::Watch;
use crate::flow_key::FlowKey;
use crate::vtep::SourceVtep;

/// What becomes of the packets of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(u8)]
pub enum FlowVerdict {
    /// Drop, with the reason in [`FlowAction::reason`].
    #[default]
    Drop = 0,
    /// Send to the VLT slot.
    Forward = 1,
    /// Replicate within the VPC.
    Flood = 2,
    /// The virtual router is the destination: the slow path answers packet by packet.
    Router = 3,
    /// A question to a service of the VPC, which control answers packet by packet.
    Service = 4,
}

/// The compiled decision for a flow: everything the fast path needs, as data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub struct FlowAction {
    /// Whether packets are forwarded to `slot`, flooded, answered or dropped.
    pub verdict: FlowVerdict,
    /// Index of the drop reason for [`FlowVerdict::Drop`].
    pub reason: u8,
    /// 1 when MACs are rewritten and the TTL is decremented.
    pub rewrite: u8,
    /// 1 when the packet is an RC data packet and RCFT applies.
    pub rcft: u8,
    /// VLT slot for [`FlowVerdict::Forward`].
    pub slot: u32,
    /// Generation that the VLT slot had when this was computed.
    pub slot_generation: u16,
    /// New source MAC when rewritten.
    pub src_mac: [u8; 6],
    /// New destination MAC when rewritten.
    pub dst_mac: [u8; 6],
    /// [`Snapshot::entropy`](crate::snapshot::Snapshot::entropy) of the flow.
    pub entropy: u16,
    /// Which generation cell this decision depends on.
    pub cell: u32,
    /// The value of that cell when this was computed.
    pub generation: u32,
    /// From where the packets of a flow out of the tunnel may come.
    pub source: SourceVtep,
}

impl FlowAction {
    /// A decision to drop.
    pub fn drop(reason: crate::drops::DropReason) -> Self {
        Self { verdict: FlowVerdict::Drop, reason: reason.index() as u8, ..Self::default() }
    }

    /// The rewritten MACs (source, destination), if the flow is routed.
    pub fn macs(&self) -> Option<(MacAddr, MacAddr)> {
        (self.rewrite != 0).then_some((MacAddr(self.src_mac), MacAddr(self.dst_mac)))
    }
}

/// A flow: what is done with its packets, when it was last seen, and what it carried.
#[derive(Clone, Copy, Default, FromZeros)]
#[repr(C, align(64))]
pub struct NftEntry {
    /// The key; it means something only while the slot is in use.
    pub key: FlowKey,
    /// 0 when the slot is free, else 1 + list of the idle wheel.
    pub(super) used: u16,
    /// What the decision rests on beside its generation: the parts of a [`Watch`].
    pub(super) watch_version: u16,
    pub(super) watch_of: u32,
    /// The decision that `decide` made, valid while its generation cell has the same count.
    pub action: FlowAction,
    /// When the flow was last seen, in ticks ([`crate::TICK_MS`]).
    pub last_seen: u32,
    /// Packets of the flow.
    pub packets: u64,
    /// Bytes of the flow.
    pub bytes: u64,
    pub(super) prev: u32,
    pub(super) next: u32,
}

impl NftEntry {
    /// The connection, or the refusal, that the decision rests on.
    #[inline(always)]
    pub const fn watch(&self) -> Watch {
        Watch::from_parts((self.watch_of, self.watch_version))
    }

    /// Says what the decision rests on.
    #[inline(always)]
    pub const fn set_watch(&mut self, watch: Watch) {
        (self.watch_of, self.watch_version) = watch.parts();
    }
}

const _: () = assert!(size_of::<NftEntry>() == 128 && align_of::<NftEntry>() == 64);
const _: () = assert!(std::mem::offset_of!(NftEntry, action) == 64);
