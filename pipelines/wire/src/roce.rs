//! RoCEv2 headers: what follows UDP port 4791 (IBTA vol. 1 sections 9.2 to 9.4 and annex A17).
//!
//! Layouts and accessors. What an opcode means is in [`opcode`], which extended headers it brings in [`extended`],
//! a whole packet in [`packet`], the trailing CRC in [`crate::icrc`].

pub mod extended;
pub mod opcode;
pub mod packet;

pub use extended::Extended;
pub use opcode::{Operation, RoceClass};
pub use packet::{RoceMalformed, RocePacket};

use crate::headers::{Flags, Headers};
use crate::types::{Psn, Qpn};
use crate::udp;
use crate::view::{View, to_u24, u24};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the base transport header.
pub const BTH_LEN: usize = 12;
/// Bytes of the invariant CRC at the end of the UDP payload.
pub const ICRC_LEN: usize = 4;
/// Queue pair of the general services interface, to which connection managers talk.
pub const QP_GSI: Qpn = Qpn::truncated(1);
/// The default partition key, full membership.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// The UDP payload of a packet that is a whole UDP datagram, as far as it lies in `head`, and its full length.
#[inline]
pub fn udp_payload<'a>(h: &Headers, head: &'a [u8]) -> Option<(&'a [u8], usize)> {
    if h.flags.intersects(Flags::FRAGMENT) {
        return None;
    }
    let len = usize::from(h.udp(head)?.len.get()).checked_sub(udp::HEADER_LEN)?;
    let start = h.payload_offset();
    Some((head.get(start..(start + len).min(head.len()))?, len))
}

/// Base transport header (IBTA vol. 1 section 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Bth {
    /// Operation and transport, see [`opcode`].
    pub opcode: u8,
    /// Solicited event (1 bit), migration request (1), pad count (2), header version (4).
    pub flags: u8,
    /// Partition key: 0xffff in RoCEv2 networks without partitions.
    pub pkey: U16,
    /// FECN (1 bit), BECN (1), reserved (6). Not covered by the ICRC.
    pub congestion: u8,
    /// Number of the receiver's queue pair, 24 bits.
    pub dest_qp: [u8; 3],
    /// Acknowledge request (1 bit), reserved (7).
    pub ack: u8,
    /// Packet sequence number, 24 bits, modulo 2^24.
    pub psn: [u8; 3],
}

impl Bth {
    /// A header with the default partition key and nothing else set.
    pub const fn new(opcode: u8, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            flags: 0,
            pkey: U16::new(DEFAULT_PKEY),
            congestion: 0,
            dest_qp: to_u24(dest_qp.get()),
            ack: 0,
            psn: to_u24(psn.get()),
        }
    }

    /// The header at the start of a UDP payload; `None` when that is too short.
    #[inline]
    pub fn parse(payload: &[u8]) -> Option<&Self> {
        Some(Self::view(payload)?.0)
    }

    /// The receiver's queue pair.
    #[inline]
    pub const fn dest_qp(&self) -> Qpn {
        // With the byte before them, four bytes are one load.
        let [a, b, c] = self.dest_qp;
        Qpn::truncated(u32::from_be_bytes([self.congestion, a, b, c]))
    }

    /// The packet's place in the sequence of its queue pair, modulo 2^24.
    #[inline]
    pub const fn psn(&self) -> Psn {
        let [a, b, c] = self.psn;
        Psn::truncated(u32::from_be_bytes([self.ack, a, b, c]))
    }

    /// Transport class of the packet.
    #[inline]
    pub const fn class(&self) -> RoceClass {
        RoceClass::of(self.opcode, self.dest_qp())
    }

    /// True when the sender wants the receiver's consumer to be woken (solicited event).
    #[inline]
    pub const fn solicited(&self) -> bool {
        self.flags & 0x80 != 0
    }

    /// Bytes of padding in front of the ICRC, 0 to 3.
    #[inline]
    pub const fn pad_count(&self) -> u8 {
        self.flags >> 4 & 3
    }

    /// Sets the pad count to the low two bits of `count`.
    #[inline]
    pub const fn set_pad_count(&mut self, count: u8) {
        self.flags = self.flags & !0x30 | (count & 3) << 4;
    }

    /// Transport header version, 0 in all that exists.
    #[inline]
    pub const fn version(&self) -> u8 {
        self.flags & 0xf
    }

    /// Forward explicit congestion notification.
    #[inline]
    pub const fn fecn(&self) -> bool {
        self.congestion & 0x80 != 0
    }

    /// Backward explicit congestion notification.
    #[inline]
    pub const fn becn(&self) -> bool {
        self.congestion & 0x40 != 0
    }

    /// Sets or clears the backward notification.
    #[inline]
    pub const fn set_becn(&mut self, becn: bool) {
        self.congestion = self.congestion & !0x40 | if becn { 0x40 } else { 0 };
    }

    /// The sender asks for an acknowledgement.
    #[inline]
    pub const fn ack_requested(&self) -> bool {
        self.ack & 0x80 != 0
    }

    /// Sets or clears the acknowledge request.
    #[inline]
    pub const fn set_ack_requested(&mut self, ack: bool) {
        self.ack = self.ack & !0x80 | if ack { 0x80 } else { 0 };
    }
}

/// Reliable datagram extended transport header (IBTA vol. 1 section 9.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Rdeth {
    /// Reserved: sent as zero, ignored when received.
    pub reserved: u8,
    /// Number of the receiver's end-to-end context, 24 bits.
    pub ee_context: [u8; 3],
}

/// Datagram extended transport header (IBTA vol. 1 section 9.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Deth {
    /// Queue key (Q_Key) that the receiving queue pair must have: datagrams with another are dropped.
    pub qkey: U32,
    /// Reserved: sent as zero, ignored when received.
    pub reserved: u8,
    /// Number of the sender's queue pair, 24 bits: where a reply goes.
    pub src_qp: [u8; 3],
}

impl Deth {
    /// Queue key of the general services interface.
    pub const GSI_QKEY: u32 = 0x8001_0000;

    /// A header from its two fields.
    pub const fn new(qkey: u32, src_qp: Qpn) -> Self {
        Self { qkey: U32::new(qkey), reserved: 0, src_qp: to_u24(src_qp.get()) }
    }

    /// The sender's queue pair.
    #[inline]
    pub const fn src_qp(&self) -> Qpn {
        Qpn::truncated(u24(self.src_qp))
    }
}

/// RDMA extended transport header (IBTA vol. 1 section 9.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: U64,
    /// Remote key (R_Key) of the memory region that the address is in.
    pub rkey: U32,
    /// Bytes of the whole operation.
    pub len: U32,
}

impl Reth {
    /// A header from its three fields.
    pub const fn new(va: u64, rkey: u32, len: u32) -> Self {
        Self { va: U64::new(va), rkey: U32::new(rkey), len: U32::new(len) }
    }
}

/// Atomic extended transport header (IBTA vol. 1 section 9.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AtomicEth {
    /// Virtual address at the responder.
    pub va: U64,
    /// Remote key (R_Key) of the memory region that the address is in.
    pub rkey: U32,
    /// Value to swap in, or to add.
    pub swap_or_add: U64,
    /// Value to compare with.
    pub compare: U64,
}

/// Acknowledge extended transport header (IBTA vol. 1 sections 9.3.5 and 9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Aeth {
    /// Kind of acknowledgement and its parameter, see [`Syndrome`].
    pub syndrome: u8,
    /// Message sequence number, 24 bits: messages that the responder has completed.
    pub msn: [u8; 3],
}

impl Aeth {
    /// A header from its two fields; of `msn` the low 24 bits.
    pub const fn new(syndrome: u8, msn: u32) -> Self {
        Self { syndrome, msn: to_u24(msn) }
    }

    /// Messages that the responder has completed, modulo 2^24.
    #[inline]
    pub const fn msn(&self) -> u32 {
        u24(self.msn)
    }

    /// The syndrome, taken apart.
    #[inline]
    pub const fn syndrome(&self) -> Syndrome {
        Syndrome::of(self.syndrome)
    }
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Received; with the encoded credit count.
    Ack(u8),
    /// Receiver not ready; with the encoded timer.
    RnrNak(u8),
    /// Refused; with the NAK code: 0 sequence error, 1 invalid request, 2 remote access error, 3 remote
    /// operational error, 4 invalid RD request.
    Nak(u8),
    /// A value that the standard reserves, as it is in the field.
    Reserved(u8),
}

impl Syndrome {
    /// NAK code: a packet of the sequence is missing.
    pub const NAK_SEQUENCE_ERROR: u8 = 0;

    /// Takes a syndrome byte apart: bits 6:5 are the kind, bits 4:0 its parameter.
    #[inline]
    pub const fn of(syndrome: u8) -> Self {
        let parameter = syndrome & 0x1f;
        match syndrome >> 5 {
            0 => Self::Ack(parameter),
            1 => Self::RnrNak(parameter),
            3 => Self::Nak(parameter),
            _ => Self::Reserved(syndrome),
        }
    }
}

/// Value that an atomic operation found (IBTA vol. 1 section 9.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AtomicAckEth {
    /// The value before the operation.
    pub original: U64,
}

/// Immediate data (IBTA vol. 1 section 9.3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ImmDt {
    /// Passed to the receiver's completion.
    pub data: U32,
}

/// Invalidate extended transport header (IBTA vol. 1 section 9.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ieth {
    /// Remote key to invalidate.
    pub rkey: U32,
}

/// Flush extended transport header (IBTA vol. 1 annex A19): what FLUSH waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Feth {
    /// Selectivity level and placement type in the low bits, else reserved.
    pub flush: U32,
}

/// XRC extended transport header (IBTA vol. 1 annex A14): in front of the other extended headers of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct XrcEth {
    /// Reserved: sent as zero, ignored when received.
    pub reserved: u8,
    /// Shared receive queue at the responder.
    pub srq: [u8; 3],
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::check;

    #[test]
    fn bth() {
        let mut bth: Bth =
            check::layout(&[0x0a, 0xb0, 0x80, 0x01, 0xc0, 0, 0x01, 0x23, 0x80, 0xff, 0xff, 0xfe]);
        assert_eq!((bth.dest_qp().get(), bth.psn().get(), bth.pkey.get()), (0x123, 0xff_fffe, 0x8001));
        assert!(bth.solicited() && bth.fecn() && bth.becn() && bth.ack_requested());
        assert_eq!((bth.pad_count(), bth.version()), (3, 0));
        assert_eq!(bth.class(), RoceClass::Rc);
        bth.set_pad_count(1);
        bth.set_becn(false);
        bth.set_ack_requested(false);
        assert_eq!((bth.flags, bth.congestion, bth.ack), (0x90, 0x80, 0));
        assert_eq!(Bth::parse(bth.bytes()), Some(&bth));
        assert_eq!(Bth::parse(&bth.bytes()[..11]), None);
        let plain = Bth::new(4, Qpn::truncated(0xabcdef), Psn::truncated(7));
        assert_eq!(plain.bytes(), [4, 0, 0xff, 0xff, 0, 0xab, 0xcd, 0xef, 0, 0, 0, 7]);
    }

    #[test]
    fn extended_headers() {
        let deth: Deth = check::layout(&[0x80, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(deth, Deth::new(Deth::GSI_QKEY, QP_GSI));
        assert_eq!(deth.src_qp(), QP_GSI);
        let reth: Reth = check::layout(&[0, 0, 0x7f, 0, 0, 0, 0x10, 0, 0, 0, 0x12, 0x34, 0, 0, 0x10, 0]);
        assert_eq!(reth, Reth::new(0x7f00_0000_1000, 0x1234, 4096));
        let mut bytes = [0u8; 28];
        (bytes[7], bytes[11], bytes[19], bytes[27]) = (1, 2, 3, 4);
        let atomic: AtomicEth = check::layout(&bytes);
        assert_eq!(
            (atomic.va.get(), atomic.rkey.get(), atomic.swap_or_add.get(), atomic.compare.get()),
            (1, 2, 3, 4)
        );
        assert_eq!(check::layout::<AtomicAckEth>(&[0, 0, 0, 0, 0, 0, 0, 9]).original.get(), 9);
        assert_eq!(check::layout::<ImmDt>(&[0, 0, 1, 0]).data.get(), 256);
        assert_eq!(check::layout::<Ieth>(&[0, 0, 1, 1]).rkey.get(), 257);
        assert_eq!(u24(check::layout::<Rdeth>(&[9, 0, 2, 4]).ee_context), 0x204);
        assert_eq!(check::layout::<Feth>(&[0, 0, 0, 0x21]).flush.get(), 0x21);
        assert_eq!(u24(check::layout::<XrcEth>(&[0, 0, 2, 3]).srq), 0x203);
    }

    #[test]
    fn acknowledgements() {
        let aeth: Aeth = check::layout(&[0x60, 0, 0, 5]);
        assert_eq!(aeth, Aeth::new(0x60, 0xff00_0005));
        assert_eq!(aeth.syndrome(), Syndrome::Nak(Syndrome::NAK_SEQUENCE_ERROR));
        assert_eq!(aeth.msn(), 5);
        assert_eq!(Syndrome::of(0x1f), Syndrome::Ack(31));
        assert_eq!(Syndrome::of(0x2e), Syndrome::RnrNak(14));
        assert_eq!(Syndrome::of(0x64), Syndrome::Nak(4));
        assert_eq!(Syndrome::of(0x40), Syndrome::Reserved(0x40));
        assert_eq!(Syndrome::of(0xe0), Syndrome::Reserved(0xe0));
    }
}
