//! [`RocePacket`]: a RoCEv2 packet taken apart, for whoever looks at it longer than the fast path does.
//!
//! Finds the headers and measures the payload; every length is checked before it is believed. It judges form only:
//! an unassigned opcode is none of its errors, for such packets are forwarded.

use super::extended::Extended;
use super::opcode::{self, Operation, RoceClass};
use super::{
    Aeth, AtomicAckEth, AtomicEth, BTH_LEN, Bth, Deth, Feth, ICRC_LEN, Ieth, ImmDt, Rdeth, Reth, XrcEth,
};
use crate::headers::Headers;
use crate::view::View;
use std::fmt;

/// Why a RoCEv2 packet cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RoceMalformed {
    /// The UDP payload holds no BTH and ICRC.
    BthTruncated,
    /// Transport header version other than 0.
    BthVersion,
    /// Ends inside the extended headers that its opcode announces.
    ExtendedTruncated,
    /// More padding than payload.
    PadCount,
    /// The first segment ends inside the headers; the packet itself may be sound.
    HeaderSplit,
}

impl RoceMalformed {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::BthTruncated, Self::BthVersion, Self::ExtendedTruncated, Self::PadCount, Self::HeaderSplit];

    /// The name in counters, console and captures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BthTruncated => "roce-bth-truncated",
            Self::BthVersion => "roce-bth-version",
            Self::ExtendedTruncated => "roce-extended-truncated",
            Self::PadCount => "roce-pad-count",
            Self::HeaderSplit => "roce-header-split",
        }
    }
}

impl fmt::Display for RoceMalformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::error::Error for RoceMalformed {}

/// A RoCEv2 packet: its BTH, and the extended headers and payload that follow.
#[derive(Clone, Copy, Debug)]
pub struct RocePacket<'a> {
    /// Base transport header, of every packet.
    pub bth: &'a Bth,
    /// What it does; `None` for an unassigned opcode, of which only the BTH is known.
    pub operation: Option<Operation>,
    extended: &'static Extended,
    bytes: &'a [u8],
    payload_len: usize,
}

impl<'a> RocePacket<'a> {
    /// The packet in a UDP datagram to the RoCEv2 port; `None` when it is no whole UDP datagram.
    #[inline]
    pub fn of(h: &Headers, head: &'a [u8]) -> Option<Result<Self, RoceMalformed>> {
        let (bytes, len) = super::udp_payload(h, head)?;
        Some(Self::parse(bytes, len))
    }

    /// The packet in a UDP payload of `len` bytes, of which `bytes` are at hand.
    ///
    /// # Errors
    /// The first thing found wrong, from the front to the back.
    #[inline]
    pub fn parse(bytes: &'a [u8], len: usize) -> Result<Self, RoceMalformed> {
        if len < BTH_LEN + ICRC_LEN {
            return Err(RoceMalformed::BthTruncated);
        }
        let bytes = &bytes[..bytes.len().min(len)];
        let Some(bth) = Bth::parse(bytes) else { return Err(RoceMalformed::HeaderSplit) };
        if bth.version() != 0 {
            return Err(RoceMalformed::BthVersion);
        }
        let extended = Extended::of(bth.opcode).unwrap_or(Extended::UNKNOWN);
        let start = usize::from(extended.payload);
        let Some(padded) = len.checked_sub(start + ICRC_LEN) else {
            return Err(RoceMalformed::ExtendedTruncated);
        };
        let Some(payload_len) = padded.checked_sub(usize::from(bth.pad_count())) else {
            return Err(RoceMalformed::PadCount);
        };
        if bytes.len() < start {
            return Err(RoceMalformed::HeaderSplit);
        }
        Ok(Self { bth, operation: Operation::of(bth.opcode), extended, bytes, payload_len })
    }

    /// The class that opcode and queue pair make: what a flow key holds.
    #[inline]
    pub const fn class(&self) -> RoceClass {
        self.bth.class()
    }

    /// Bytes of payload, without padding.
    #[inline]
    pub const fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// The payload, as far as it is at hand.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let start = usize::from(self.extended.payload);
        self.bytes.get(start..(start + self.payload_len).min(self.bytes.len())).unwrap_or_default()
    }

    /// PSNs that the packet takes of its sender's requests: for a READ request as many as its answer has packets
    /// of `path_mtu` bytes, for any other request one, for all else none. An unassigned opcode takes none.
    #[inline]
    pub fn psns(&self, path_mtu: u16) -> u32 {
        match (self.operation, self.reth()) {
            (Some(Operation::ReadRequest), Some(reth)) => opcode::read_psns(reth.len.get(), path_mtu),
            (Some(operation), _) if operation.is_request() => 1,
            _ => 0,
        }
    }

    #[inline]
    fn header<T: View>(&self, offset: u8) -> Option<&'a T> {
        if offset == 0 { None } else { T::view_at(self.bytes, usize::from(offset)) }
    }

    /// Reliable datagram extended transport header; of RD packets only.
    #[inline]
    pub fn rdeth(&self) -> Option<&'a Rdeth> {
        self.header(self.extended.rdeth)
    }

    /// Datagram extended transport header: of UD packets, and of RD requests.
    #[inline]
    pub fn deth(&self) -> Option<&'a Deth> {
        self.header(self.extended.deth)
    }

    /// XRC extended transport header: of XRC requests.
    #[inline]
    pub fn xrceth(&self) -> Option<&'a XrcEth> {
        self.header(self.extended.xrceth)
    }

    /// FLUSH extended transport header: of FLUSH requests.
    #[inline]
    pub fn feth(&self) -> Option<&'a Feth> {
        self.header(self.extended.feth)
    }

    /// RDMA extended transport header: of the first packet of a WRITE, of READ requests and of FLUSH.
    #[inline]
    pub fn reth(&self) -> Option<&'a Reth> {
        self.header(self.extended.reth)
    }

    /// Atomic extended transport header: of CompareSwap and FetchAdd.
    #[inline]
    pub fn atomic(&self) -> Option<&'a AtomicEth> {
        self.header(self.extended.atomic)
    }

    /// ACK extended transport header: of acknowledgements, atomic ones included, and of READ responses but middle
    /// ones.
    #[inline]
    pub fn aeth(&self) -> Option<&'a Aeth> {
        self.header(self.extended.aeth)
    }

    /// Atomic ACK extended transport header: the value that was there before.
    #[inline]
    pub fn atomic_ack(&self) -> Option<&'a AtomicAckEth> {
        self.header(self.extended.atomic_ack)
    }

    /// Immediate data: four bytes for the receiver's completion.
    #[inline]
    pub fn immediate(&self) -> Option<&'a ImmDt> {
        self.header(self.extended.immediate)
    }

    /// Invalidate extended transport header: the R_Key that the receiver is to invalidate.
    #[inline]
    pub fn ieth(&self) -> Option<&'a Ieth> {
        self.header(self.extended.ieth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order() {
        for (number, malformed) in RoceMalformed::ALL.into_iter().enumerate() {
            assert_eq!(malformed as usize, number);
            assert!(malformed.to_string().starts_with("roce-"));
        }
    }
}
