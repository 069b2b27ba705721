//! Connection manager messages: how RDMA applications agree on queue pairs over queue pair 1 (IBTA vol. 1
//! chapter 12).
//!
//! [`Cm::parse`] reads one from the payload of a RoCEv2 UDP datagram, [`Cm::mad`] writes one. Read from guests, a
//! message is a claim and not a fact: it may name any queue pair and any connection. Nothing here remembers
//! anything, and nothing reads a byte before the length of the whole datagram was checked. Layouts are in
//! [`layout`], the MAD header in [`crate::mad`].

pub mod layout;
mod message;

pub use message::{Answered, CmMessage, Gid, RejectReason, Req, Transport};

use crate::headers::Headers;
use crate::mad::{self, MAD_LEN};
use crate::roce::{self, BTH_LEN, Bth, Deth, ICRC_LEN, opcode};
use crate::types::{Psn, Qpn};
use crate::view::View;
use std::fmt;

/// Bytes of the UDP payload around a message: BTH, DETH, MAD, ICRC.
pub const UDP_PAYLOAD_LEN: usize = MAD_OFFSET + MAD_LEN + ICRC_LEN;
/// Offset of the MAD in the UDP payload.
pub const MAD_OFFSET: usize = BTH_LEN + size_of::<Deth>();

/// A message of the connection manager and what came around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cm {
    /// Transaction id: an answer bears that of its question.
    pub transaction: u64,
    /// Partition key of the packet.
    pub pkey: u16,
    /// PSN of the packet.
    pub psn: Psn,
    /// Queue pair that sent the packet; connection managers send from queue pair 1.
    pub src_qp: Qpn,
    /// What it says.
    pub message: CmMessage,
}

/// Why a packet to queue pair 1 is not a message of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmMalformed {
    /// The first segment ends inside the datagram; with the bytes of UDP payload that it holds.
    Split(usize),
    /// UDP payload of another length, or padded.
    Length(usize),
    /// BTH of an unknown version.
    BthVersion(u8),
    /// Not UD SEND Only.
    Opcode(u8),
    /// Not to queue pair 1.
    DestQp(Qpn),
    /// Not with the queue key of queue pair 1.
    QKey(u32),
    /// MAD header of an unknown version.
    BaseVersion(u8),
    /// Another management class.
    Class(u8),
    /// The connection manager's class in an unknown version.
    ClassVersion(u8),
    /// Not the method Send.
    Method(u8),
    /// A message unknown here.
    Attribute(u16),
}

impl CmMalformed {
    /// The name in counters and traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Split(_) => "cm-split",
            Self::Length(_) => "cm-length",
            Self::BthVersion(_) => "cm-bth-version",
            Self::Opcode(_) => "cm-opcode",
            Self::DestQp(_) => "cm-dest-qp",
            Self::QKey(_) => "cm-q-key",
            Self::BaseVersion(_) => "cm-base-version",
            Self::Class(_) => "cm-class",
            Self::ClassVersion(_) => "cm-class-version",
            Self::Method(_) => "cm-method",
            Self::Attribute(_) => "cm-attribute",
        }
    }
}

impl fmt::Display for CmMalformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Split(len) => write!(f, "only {len} bytes of UDP payload lie in the first segment"),
            Self::Length(len) => {
                write!(f, "{len} bytes of UDP payload with padding; a MAD takes {UDP_PAYLOAD_LEN} without")
            }
            Self::BthVersion(version) => write!(f, "transport header version {version}, not 0"),
            Self::Opcode(opcode) => write!(f, "opcode {opcode:#04x}, not UD SEND Only (0x64)"),
            Self::DestQp(qpn) => write!(f, "destination queue pair {qpn}, not 1"),
            Self::QKey(qkey) => write!(f, "queue key {qkey:#010x}, not {:#010x}", Deth::GSI_QKEY),
            Self::BaseVersion(version) => write!(f, "MAD base version {version}, not 1"),
            Self::Class(class) => {
                write!(f, "management class {class:#04x}, not the connection manager's (0x07)")
            }
            Self::ClassVersion(version) => write!(f, "connection manager's class version {version}, not 2"),
            Self::Method(method) => write!(f, "method {method:#04x}, not Send (0x03)"),
            Self::Attribute(id) => write!(f, "attribute {id:#06x} is no known message"),
        }
    }
}

impl std::error::Error for CmMalformed {}

impl Cm {
    /// A message in a packet from queue pair 1 with the default partition key.
    pub const fn new(transaction: u64, message: CmMessage) -> Self {
        Self { transaction, pkey: roce::DEFAULT_PKEY, psn: Psn::truncated(0), src_qp: roce::QP_GSI, message }
    }

    /// The message in a packet that is known to be a whole UDP datagram to the RoCEv2 port.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and [`CmMalformed::Split`] when `head` does not hold all of it.
    pub fn of(h: &Headers, head: &[u8]) -> Result<Self, CmMalformed> {
        let (payload, len) = roce::udp_payload(h, head).unwrap_or_default();
        if payload.len() < len && len == UDP_PAYLOAD_LEN {
            return Err(CmMalformed::Split(payload.len()));
        }
        if len != UDP_PAYLOAD_LEN {
            return Err(CmMalformed::Length(len));
        }
        Self::parse(payload)
    }

    /// The message in a UDP payload, which begins with the BTH and ends with the ICRC (not checked).
    ///
    /// # Errors
    /// The first thing found wrong, from the outside to the inside.
    pub fn parse(udp_payload: &[u8]) -> Result<Self, CmMalformed> {
        let length = CmMalformed::Length(udp_payload.len());
        let (bth, rest) = Bth::view(udp_payload).ok_or(length)?;
        if bth.version() != 0 {
            return Err(CmMalformed::BthVersion(bth.version()));
        }
        if bth.opcode != opcode::UD_SEND_ONLY {
            return Err(CmMalformed::Opcode(bth.opcode));
        }
        if bth.dest_qp() != roce::QP_GSI {
            return Err(CmMalformed::DestQp(bth.dest_qp()));
        }
        if udp_payload.len() != UDP_PAYLOAD_LEN || bth.pad_count() != 0 {
            return Err(length);
        }
        let (deth, rest) = Deth::view(rest).ok_or(length)?;
        if deth.qkey.get() != Deth::GSI_QKEY {
            return Err(CmMalformed::QKey(deth.qkey.get()));
        }
        let (header, rest) = mad::Header::view(rest).ok_or(length)?;
        if header.base_version != mad::BASE_VERSION {
            return Err(CmMalformed::BaseVersion(header.base_version));
        }
        if header.class != mad::CLASS_CM {
            return Err(CmMalformed::Class(header.class));
        }
        if header.class_version != mad::CLASS_VERSION_CM {
            return Err(CmMalformed::ClassVersion(header.class_version));
        }
        if header.method != mad::METHOD_SEND {
            return Err(CmMalformed::Method(header.method));
        }
        let attribute = header.attribute.get();
        let body = rest.first_chunk().ok_or(length)?;
        let message = CmMessage::parse(attribute, body).ok_or(CmMalformed::Attribute(attribute))?;
        Ok(Self {
            transaction: header.transaction.get(),
            pkey: bth.pkey.get(),
            psn: bth.psn(),
            src_qp: deth.src_qp(),
            message,
        })
    }

    /// The BTH and DETH of the packet that carries the message.
    pub const fn headers(&self) -> (Bth, Deth) {
        let mut bth = Bth::new(opcode::UD_SEND_ONLY, roce::QP_GSI, self.psn);
        bth.pkey = zerocopy::big_endian::U16::new(self.pkey);
        (bth, Deth::new(Deth::GSI_QKEY, self.src_qp))
    }

    /// The management datagram. What [`CmMessage`] does not hold is zero.
    pub fn mad(&self) -> [u8; MAD_LEN] {
        let mut mad = [0u8; MAD_LEN];
        let (header, body) = mad.split_at_mut(mad::HEADER_LEN);
        header.copy_from_slice(mad::Header::cm(self.message.attribute(), self.transaction).bytes());
        if let Some(body) = body.first_chunk_mut() {
            self.message.write(body);
        }
        mad
    }
}
