//! Layouts of the connection manager's messages behind the MAD header (IBTA vol. 1 section 12.6).
//!
//! Fields that a switch has no use for are kept as bytes between those it reads. Every layout is as long as its
//! defined fields; private data follows it up to the end of the datagram.

use crate::view::to_u24;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Attribute ids: which layout follows the MAD header.
pub mod attribute {
    /// The active side asks for a connection (section 12.6.5).
    pub const REQ: u16 = 0x10;
    /// The answer to a REQ, REP or LAP takes longer than its sender waits (section 12.6.6).
    pub const MRA: u16 = 0x11;
    /// A connection is not wanted, or a message is not valid (section 12.6.7).
    pub const REJ: u16 = 0x12;
    /// The passive side accepts, and names its queue pair (section 12.6.8).
    pub const REP: u16 = 0x13;
    /// The active side has the REP: data may flow (section 12.6.9).
    pub const RTU: u16 = 0x14;
    /// Either side ends the connection (section 12.6.10).
    pub const DREQ: u16 = 0x15;
    /// The other side has ended it, too (section 12.6.11).
    pub const DREP: u16 = 0x16;
    /// Which queue pair serves datagrams of a service? (section 12.11.1)
    pub const SIDR_REQ: u16 = 0x17;
    /// That queue pair and its queue key, or why there is none (section 12.11.2).
    pub const SIDR_REP: u16 = 0x18;
    /// The active side names a path to fail over to (section 12.8.1).
    pub const LAP: u16 = 0x19;
    /// Whether that path was taken (section 12.8.2).
    pub const APR: u16 = 0x1a;
}

/// Communication ids with which nearly every message begins, and all that RTU and DREP say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommIds {
    /// Chosen by the sender.
    pub local: U32,
    /// Chosen by the receiver, zero while the sender does not know it.
    pub remote: U32,
}

/// REQ (section 12.6.5), 140 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReqLayout {
    /// Communication id, chosen by the sender.
    pub local_comm_id: U32,
    /// Reserved, bytes 4 to 7: sent as zero, ignored when received (IBTA vol. 1 section 12.6).
    pub reserved: U32,
    /// Service id asked for; of the RDMA connection manager the low 16 bits are a port.
    pub service_id: U64,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: U64,
    /// Reserved, bytes 24 to 27: sent as zero.
    pub reserved_24: U32,
    /// Queue key of the sender (RD only).
    pub local_qkey: U32,
    /// Queue pair of the sender.
    pub local_qpn: [u8; 3],
    /// READs and atomics that the sender serves at once.
    pub responder_resources: u8,
    /// End-to-end context of the sender (RD only).
    pub local_eecn: [u8; 3],
    /// READs and atomics that the sender has under way at once.
    pub initiator_depth: u8,
    /// End-to-end context of the receiver (RD only).
    pub remote_eecn: [u8; 3],
    /// Response timeout (5 bits), transport service type (2), end-to-end flow control (1).
    pub timeout_transport: u8,
    /// PSN of the first packet to the sender's queue pair.
    pub starting_psn: [u8; 3],
    /// Local response timeout (5 bits), retry count (3).
    pub timeout_retry: u8,
    /// Partition key (P_Key) of the connection: 15 bits, and full membership in the top one.
    pub pkey: U16,
    /// Path packet payload MTU (4 bits), RDC exists (1), RNR retry count (3).
    pub mtu_rnr: u8,
    /// CM retries (4 bits), shared receive queue (1), extended transport type (3).
    pub retries_extended: u8,
    /// LID of the sender's port (InfiniBand only).
    pub local_lid: U16,
    /// LID of the receiver's port (InfiniBand only).
    pub remote_lid: U16,
    /// Primary path: GID of the sender's port.
    pub local_gid: [u8; 16],
    /// Primary path: GID of the receiver's port.
    pub remote_gid: [u8; 16],
    /// Rest of the primary path: flow label, rate, traffic class, hop limit, service level, timeout.
    pub path: [u8; 8],
    /// Alternate path: LIDs, GIDs and the rest in the same order.
    pub alternate: [u8; 44],
}

impl ReqLayout {
    /// Transport service type: 0 RC, 1 UC, 2 RD, 3 as [`extended_transport`](Self::extended_transport) says.
    #[inline]
    pub const fn transport(&self) -> u8 {
        self.timeout_transport >> 1 & 3
    }

    /// Extended transport type: 1 XRC, else reserved.
    #[inline]
    pub const fn extended_transport(&self) -> u8 {
        self.retries_extended & 7
    }

    /// Path MTU code: 1 for 256 bytes, 5 for 4096.
    #[inline]
    pub const fn mtu(&self) -> u8 {
        self.mtu_rnr >> 4
    }
}

/// MRA (section 12.6.6) and REJ (section 12.6.7), which differ in what follows the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MraRejLayout {
    /// By what both ends know the connection: bytes 0 to 7.
    pub ids: CommIds,
    /// Which message is meant, in the top two bits: 0 REQ, 1 REP, 2 another (in an MRA: LAP).
    pub kind: u8,
    /// REJ: length of the additional information (7 bits). MRA: service timeout (5 bits).
    pub length_or_timeout: u8,
    /// REJ: the reason. MRA: the first bytes of private data.
    pub reason: U16,
}

/// REP (section 12.6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RepLayout {
    /// By what both ends know the connection: bytes 0 to 7.
    pub ids: CommIds,
    /// Queue key of the sender (RD only).
    pub local_qkey: U32,
    /// Queue pair of the sender.
    pub local_qpn: [u8; 3],
    /// Reserved, byte 15: sent as zero.
    pub reserved_15: u8,
    /// End-to-end context of the sender (RD only).
    pub local_eecn: [u8; 3],
    /// Reserved, byte 19: sent as zero.
    pub reserved_19: u8,
    /// PSN of the first packet to the sender's queue pair.
    pub starting_psn: [u8; 3],
    /// Reserved, byte 23: sent as zero.
    pub reserved_23: u8,
    /// READs and atomics that the sender serves at once.
    pub responder_resources: u8,
    /// READs and atomics that the sender has under way at once.
    pub initiator_depth: u8,
    /// Target ACK delay (5 bits), failover accepted (2), end-to-end flow control (1).
    pub delay_failover: u8,
    /// RNR retry count (3 bits), shared receive queue (1), reserved (4).
    pub rnr_srq: u8,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: U64,
}

/// DREQ (section 12.6.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DreqLayout {
    /// By what both ends know the connection: bytes 0 to 7.
    pub ids: CommIds,
    /// Queue pair of the receiver.
    pub remote_qpn: [u8; 3],
    /// Reserved, byte 11: sent as zero.
    pub reserved: u8,
}

/// LAP (section 12.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LapLayout {
    /// By what both ends know the connection: bytes 0 to 7.
    pub ids: CommIds,
    /// Reserved, bytes 8 to 11: sent as zero.
    pub reserved_8: U32,
    /// Queue pair of the receiver.
    pub remote_qpn: [u8; 3],
    /// Response timeout (5 bits), reserved (3).
    pub timeout: u8,
    /// Reserved, bytes 16 to 19: sent as zero.
    pub reserved_16: U32,
    /// Alternate path: LIDs of both ports (InfiniBand only).
    pub lids: U32,
    /// Alternate path: GID of the sender's port.
    pub local_gid: [u8; 16],
    /// Alternate path: GID of the receiver's port.
    pub remote_gid: [u8; 16],
    /// Rest of the alternate path.
    pub path: [u8; 8],
}

/// APR (section 12.8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AprLayout {
    /// By what both ends know the connection: bytes 0 to 7.
    pub ids: CommIds,
    /// Length of the additional information.
    pub information_len: u8,
    /// Zero when the path was loaded, else why not.
    pub status: u8,
    /// Reserved, the two bytes behind what is above: sent as zero.
    pub reserved: U16,
}

/// SIDR_REQ (section 12.11.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SidrReqLayout {
    /// Chosen by the sender.
    pub request_id: U32,
    /// Partition key (P_Key) of the connection: 15 bits, and full membership in the top one.
    pub pkey: U16,
    /// Reserved, the two bytes behind what is above: sent as zero.
    pub reserved: U16,
    /// Service id asked for; of the RDMA connection manager the low 16 bits are a port.
    pub service_id: U64,
}

/// SIDR_REP (section 12.11.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SidrRepLayout {
    /// The id of the SIDR_REQ that is answered.
    pub request_id: U32,
    /// Zero when the queue pair is valid, else why not.
    pub status: u8,
    /// Length of the additional information.
    pub information_len: u8,
    /// Reserved, bytes 6 and 7: sent as zero.
    pub reserved_6: U16,
    /// Queue pair of the service.
    pub qpn: [u8; 3],
    /// Reserved, byte 11: sent as zero.
    pub reserved_11: u8,
    /// Service id asked for; of the RDMA connection manager the low 16 bits are a port.
    pub service_id: U64,
    /// Queue key of that queue pair.
    pub qkey: U32,
}

impl CommIds {
    /// The ids in the order in which the sender of a message writes them: its own first.
    pub const fn new(local: u32, remote: u32) -> Self {
        Self { local: U32::new(local), remote: U32::new(remote) }
    }
}

impl DreqLayout {
    /// A DREQ to the queue pair with the low 24 bits of `remote_qpn`.
    pub const fn new(ids: CommIds, remote_qpn: u32) -> Self {
        Self { ids, remote_qpn: to_u24(remote_qpn), reserved: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{View, check};
    use std::mem::offset_of;

    /// Offsets of section 12.6's tables, which a switch's filters and other implementations also use.
    #[test]
    fn offsets_are_the_standard_s() {
        assert_eq!(offset_of!(ReqLayout, service_id), 8);
        assert_eq!(offset_of!(ReqLayout, local_ca_guid), 16);
        assert_eq!(offset_of!(ReqLayout, local_qkey), 28);
        assert_eq!(offset_of!(ReqLayout, local_qpn), 32);
        assert_eq!(offset_of!(ReqLayout, timeout_transport), 43);
        assert_eq!(offset_of!(ReqLayout, starting_psn), 44);
        assert_eq!(offset_of!(ReqLayout, pkey), 48);
        assert_eq!(offset_of!(ReqLayout, mtu_rnr), 50);
        assert_eq!(offset_of!(ReqLayout, retries_extended), 51);
        assert_eq!(offset_of!(ReqLayout, local_gid), 56);
        assert_eq!(offset_of!(ReqLayout, remote_gid), 72);
        assert_eq!(offset_of!(ReqLayout, alternate), 96);
        assert_eq!(ReqLayout::LEN, 140);
        assert_eq!(offset_of!(MraRejLayout, kind), 8);
        assert_eq!(offset_of!(MraRejLayout, reason), 10);
        assert_eq!(offset_of!(RepLayout, local_qpn), 12);
        assert_eq!(offset_of!(RepLayout, starting_psn), 20);
        assert_eq!(offset_of!(RepLayout, local_ca_guid), 28);
        assert_eq!(RepLayout::LEN, 36);
        assert_eq!(offset_of!(DreqLayout, remote_qpn), 8);
        assert_eq!(offset_of!(LapLayout, remote_qpn), 12);
        assert_eq!(offset_of!(LapLayout, local_gid), 24);
        assert_eq!(offset_of!(LapLayout, remote_gid), 40);
        assert_eq!(LapLayout::LEN, 64);
        assert_eq!(offset_of!(AprLayout, status), 9);
        assert_eq!(offset_of!(SidrReqLayout, pkey), 4);
        assert_eq!(offset_of!(SidrReqLayout, service_id), 8);
        assert_eq!(offset_of!(SidrRepLayout, status), 4);
        assert_eq!(offset_of!(SidrRepLayout, qpn), 8);
        assert_eq!(offset_of!(SidrRepLayout, service_id), 12);
        assert_eq!(offset_of!(SidrRepLayout, qkey), 20);
    }

    fn numbered<const LEN: usize>() -> [u8; LEN] {
        std::array::from_fn(|at| at as u8)
    }

    #[test]
    fn layouts_survive_and_bit_fields_sit_where_they_should() {
        let mut req: ReqLayout = check::layout(&numbered::<140>());
        assert_eq!(req.starting_psn, [44, 45, 46]);
        check::layout::<RepLayout>(&numbered::<36>());
        check::layout::<MraRejLayout>(&numbered::<12>());
        check::layout::<LapLayout>(&numbered::<64>());
        check::layout::<AprLayout>(&numbered::<12>());
        check::layout::<SidrReqLayout>(&numbered::<16>());
        check::layout::<SidrRepLayout>(&numbered::<24>());
        check::layout::<CommIds>(&numbered::<8>());
        let dreq: DreqLayout = check::layout(&[0, 0, 0, 1, 0, 0, 0, 2, 0xab, 0xcd, 0xef, 0]);
        assert_eq!(dreq, DreqLayout::new(CommIds::new(1, 2), 0xff_abcdef));
        (req.timeout_transport, req.retries_extended, req.mtu_rnr) = (0xfd, 0xf9, 0x5f);
        assert_eq!((req.transport(), req.extended_transport(), req.mtu()), (2, 1, 5));
        (req.timeout_transport, req.retries_extended, req.mtu_rnr) = (0x06, 0x06, 0xa0);
        assert_eq!((req.transport(), req.extended_transport(), req.mtu()), (3, 6, 10));
    }
}
