//! BTH opcodes: which transport a packet belongs to and what it does (IBTA vol. 1 section 9.2.1, table 38;
//! CNP: annex A17; FLUSH and ATOMIC WRITE: annex A19).
//!
//! FLUSH is read on RC and RD, ATOMIC WRITE on RC, as Linux assigns them. Whether annex A19 gives both to RD and XRC
//! too is unconfirmed: there they are unassigned.
//!
//! Pure functions of the opcode byte. An opcode is the guest's choice: nothing here says that a packet is what
//! it claims to be.

use super::extended::Extended;
use super::{BTH_LEN, ICRC_LEN, QP_GSI};
pub use crate::mad::MAD_LEN;
use crate::types::Qpn;

/// RC SEND Only.
pub const RC_SEND_ONLY: u8 = 0x04;
/// RC RDMA WRITE First.
pub const RC_WRITE_FIRST: u8 = 0x06;
/// RC RDMA WRITE Middle.
pub const RC_WRITE_MIDDLE: u8 = 0x07;
/// RC RDMA WRITE Last.
pub const RC_WRITE_LAST: u8 = 0x08;
/// RC RDMA WRITE Only.
pub const RC_WRITE_ONLY: u8 = 0x0a;
/// RC RDMA READ Request.
pub const RC_READ_REQUEST: u8 = 0x0c;
/// RC Acknowledge: an ACK or a NAK, as its AETH says.
pub const RC_ACK: u8 = 0x11;
/// RC Atomic Acknowledge.
pub const RC_ATOMIC_ACK: u8 = 0x12;
/// UC SEND Only.
pub const UC_SEND_ONLY: u8 = 0x24;
/// UD SEND Only.
pub const UD_SEND_ONLY: u8 = 0x64;
/// UD SEND Only with Immediate.
pub const UD_SEND_ONLY_IMM: u8 = 0x65;
/// Congestion notification packet (IBTA vol. 1 annex A17).
pub const CNP: u8 = 0x81;

/// Transport class of a packet: the part of the opcode that a flow key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RoceClass {
    /// Reliable connection: opcodes 000xxxxx.
    Rc,
    /// Unreliable connection: opcodes 001xxxxx.
    Uc,
    /// Reliable datagram: opcodes 010xxxxx.
    Rd,
    /// Unreliable datagram: opcodes 011xxxxx, but for the connection manager's.
    Ud,
    /// Congestion notification packet: opcode 0x81 (IBTA vol. 1 annex A17).
    Cnp,
    /// Extended reliable connection: opcodes 101xxxxx (IBTA vol. 1 annex A14).
    Xrc,
    /// Connection manager: UD SEND Only to queue pair 1.
    Cm,
    /// Vendor-specific: top opcode bits 110 and 111 (dynamically connected transport among them).
    Vendor,
    /// In the CNP's opcode space but not a CNP.
    Unknown,
}

impl RoceClass {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 9] =
        [Self::Rc, Self::Uc, Self::Rd, Self::Ud, Self::Cnp, Self::Xrc, Self::Cm, Self::Vendor, Self::Unknown];

    /// The class of a packet with this opcode to this queue pair.
    #[inline]
    pub const fn of(opcode: u8, dest_qp: Qpn) -> Self {
        match opcode >> 5 {
            0 => Self::Rc,
            1 => Self::Uc,
            2 => Self::Rd,
            3 if opcode == UD_SEND_ONLY && dest_qp.get() == QP_GSI.get() => Self::Cm,
            3 => Self::Ud,
            4 if opcode == CNP => Self::Cnp,
            4 => Self::Unknown,
            5 => Self::Xrc,
            _ => Self::Vendor,
        }
    }

    /// The name in console and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Rd => "rd",
            Self::Ud => "ud",
            Self::Cnp => "cnp",
            Self::Xrc => "xrc",
            Self::Cm => "cm",
            Self::Vendor => "vendor",
            Self::Unknown => "unknown",
        }
    }

    /// True for the classes whose queue pairs a quota counts: RC, and XRC which counts as RC.
    #[inline]
    pub const fn is_reliable_connection(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }
}

impl std::fmt::Display for RoceClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// What a packet does, without its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // the names of the standard's table
pub enum Operation {
    SendFirst,
    SendMiddle,
    SendLast,
    SendLastImm,
    SendOnly,
    SendOnlyImm,
    WriteFirst,
    WriteMiddle,
    WriteLast,
    WriteLastImm,
    WriteOnly,
    WriteOnlyImm,
    ReadRequest,
    ReadResponseFirst,
    ReadResponseMiddle,
    ReadResponseLast,
    ReadResponseOnly,
    Ack,
    AtomicAck,
    CompareSwap,
    FetchAdd,
    SendLastInvalidate,
    SendOnlyInvalidate,
    Resync,
    Flush,
    AtomicWrite,
    Cnp,
}

/// Which way a packet goes between the two ends of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OperationKind {
    /// From the requester: takes a PSN of its own, a read as many as its answer has packets.
    Request,
    /// From the responder, with data: bears the PSN of what it answers.
    Response,
    /// From the responder, without data. Acknowledgements coalesce: their PSNs skip.
    Ack,
    /// A congestion notification: outside of any sequence.
    Notification,
}

/// Where a packet stands in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // the words of the standard's table
pub enum Position {
    First,
    Middle,
    Last,
    Only,
}

impl Operation {
    /// The operation of an opcode; `None` for opcodes that the standard does not assign to its transport.
    #[inline(always)]
    pub const fn of(opcode: u8) -> Option<Self> {
        /// [`Operation::assigned`] of every opcode: the fast path asks for every packet.
        static TABLE: [Option<Operation>; 256] = {
            let mut table = [None; 256];
            let mut opcode = 0;
            while opcode < table.len() {
                table[opcode] = Operation::assigned(opcode as u8);
                opcode += 1;
            }
            table
        };
        TABLE[opcode as usize]
    }

    /// The table of the standard (IBTA volume 1, section 9.2.1), with the CNP of annex A17.
    const fn assigned(opcode: u8) -> Option<Self> {
        use Operation as Op;
        let operation = match opcode & 0x1f {
            _ if opcode == CNP => return Some(Op::Cnp),
            0x00 => Op::SendFirst,
            0x01 => Op::SendMiddle,
            0x02 => Op::SendLast,
            0x03 => Op::SendLastImm,
            0x04 => Op::SendOnly,
            0x05 => Op::SendOnlyImm,
            0x06 => Op::WriteFirst,
            0x07 => Op::WriteMiddle,
            0x08 => Op::WriteLast,
            0x09 => Op::WriteLastImm,
            0x0a => Op::WriteOnly,
            0x0b => Op::WriteOnlyImm,
            0x0c => Op::ReadRequest,
            0x0d => Op::ReadResponseFirst,
            0x0e => Op::ReadResponseMiddle,
            0x0f => Op::ReadResponseLast,
            0x10 => Op::ReadResponseOnly,
            0x11 => Op::Ack,
            0x12 => Op::AtomicAck,
            0x13 => Op::CompareSwap,
            0x14 => Op::FetchAdd,
            0x15 => Op::Resync,
            0x16 => Op::SendLastInvalidate,
            0x17 => Op::SendOnlyInvalidate,
            0x1c => Op::Flush,
            0x1d => Op::AtomicWrite,
            _ => return None,
        };
        let number = opcode & 0x1f;
        let assigned = match opcode >> 5 {
            0 => number != 0x15,
            1 => number <= 0x0b,
            2 => number <= 0x15 || number == 0x1c,
            3 => number == 4 || number == 5,
            5 => number <= 0x17 && number != 0x15,
            _ => false,
        };
        if assigned { Some(operation) } else { None }
    }

    /// The name in console and traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SendFirst => "send-first",
            Self::SendMiddle => "send-middle",
            Self::SendLast => "send-last",
            Self::SendLastImm => "send-last-imm",
            Self::SendOnly => "send-only",
            Self::SendOnlyImm => "send-only-imm",
            Self::WriteFirst => "write-first",
            Self::WriteMiddle => "write-middle",
            Self::WriteLast => "write-last",
            Self::WriteLastImm => "write-last-imm",
            Self::WriteOnly => "write-only",
            Self::WriteOnlyImm => "write-only-imm",
            Self::ReadRequest => "read-request",
            Self::ReadResponseFirst => "read-response-first",
            Self::ReadResponseMiddle => "read-response-middle",
            Self::ReadResponseLast => "read-response-last",
            Self::ReadResponseOnly => "read-response-only",
            Self::Ack => "ack",
            Self::AtomicAck => "atomic-ack",
            Self::CompareSwap => "compare-swap",
            Self::FetchAdd => "fetch-add",
            Self::SendLastInvalidate => "send-last-invalidate",
            Self::SendOnlyInvalidate => "send-only-invalidate",
            Self::Resync => "resync",
            Self::Flush => "flush",
            Self::AtomicWrite => "atomic-write",
            Self::Cnp => "cnp",
        }
    }

    /// Which way it goes.
    #[inline]
    pub const fn kind(self) -> OperationKind {
        match self {
            Self::ReadResponseFirst
            | Self::ReadResponseMiddle
            | Self::ReadResponseLast
            | Self::ReadResponseOnly
            | Self::AtomicAck => OperationKind::Response,
            Self::Ack => OperationKind::Ack,
            Self::Cnp => OperationKind::Notification,
            _ => OperationKind::Request,
        }
    }

    /// True for what a requester sends.
    #[inline]
    pub const fn is_request(self) -> bool {
        matches!(self.kind(), OperationKind::Request)
    }

    /// True for what a responder sends with data: read responses and ATOMIC ACK.
    #[inline]
    pub const fn is_response(self) -> bool {
        matches!(self.kind(), OperationKind::Response)
    }

    /// True for ACK and NAK.
    #[inline]
    pub const fn is_ack(self) -> bool {
        matches!(self.kind(), OperationKind::Ack)
    }

    /// True for packets with payload, which an "only" or "last" of a message without data leaves empty.
    #[inline]
    pub const fn carries_payload(self) -> bool {
        !matches!(
            self,
            Self::ReadRequest
                | Self::Ack
                | Self::AtomicAck
                | Self::CompareSwap
                | Self::FetchAdd
                | Self::Resync
                | Self::Flush
                | Self::Cnp
        )
    }

    /// Where it stands in its message.
    #[inline]
    pub const fn position(self) -> Position {
        match self {
            Self::SendFirst | Self::WriteFirst | Self::ReadResponseFirst => Position::First,
            Self::SendMiddle | Self::WriteMiddle | Self::ReadResponseMiddle => Position::Middle,
            Self::SendLast
            | Self::SendLastImm
            | Self::SendLastInvalidate
            | Self::WriteLast
            | Self::WriteLastImm
            | Self::ReadResponseLast => Position::Last,
            _ => Position::Only,
        }
    }

    /// True for a packet that fills the path MTU: all but the last of a message of several.
    #[inline]
    pub const fn is_full_mtu(self) -> bool {
        matches!(self.position(), Position::First | Position::Middle)
    }
}

/// PSNs that a READ request for `len` bytes takes: one for each packet of its answer (IBTA vol. 1 section 9.7.3.1),
/// at least one. An MTU of zero counts as the smallest.
#[inline]
pub const fn read_psns(len: u32, path_mtu: u16) -> u32 {
    let mtu = if path_mtu == 0 { 256 } else { path_mtu as u32 };
    if len == 0 { 1 } else { len.div_ceil(mtu) }
}

/// Bytes of the extended headers between BTH and payload; `None` for unassigned opcodes.
#[inline]
pub const fn extended_len(opcode: u8) -> Option<usize> {
    match Extended::of(opcode) {
        Some(extended) => Some(extended.len()),
        None => None,
    }
}

/// The one legal length of the UDP payload (BTH to ICRC) of a packet that keeps a connection alive rather than
/// moving data: ACK, NAK, ATOMIC ACK, CNP, connection manager. `None` for all other packets.
pub const fn control_len(opcode: u8, dest_qp: Qpn) -> Option<usize> {
    let fixed = BTH_LEN + ICRC_LEN;
    let body = match Operation::of(opcode) {
        Some(Operation::Ack | Operation::AtomicAck | Operation::Cnp) => 0,
        _ if matches!(RoceClass::of(opcode, dest_qp), RoceClass::Cm) => MAD_LEN,
        _ => return None,
    };
    match extended_len(opcode) {
        Some(extended) => Some(fixed + extended + body),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QP: Qpn = Qpn::truncated(0x123);

    #[test]
    fn classes() {
        for (number, class) in RoceClass::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, number);
        }
        for opcode in 0..=255u8 {
            let expected = match opcode {
                0x00..=0x1f => RoceClass::Rc,
                0x20..=0x3f => RoceClass::Uc,
                0x40..=0x5f => RoceClass::Rd,
                0x60..=0x7f => RoceClass::Ud,
                0x81 => RoceClass::Cnp,
                0x80..=0x9f => RoceClass::Unknown,
                0xa0..=0xbf => RoceClass::Xrc,
                0xc0..=0xff => RoceClass::Vendor,
            };
            assert_eq!(RoceClass::of(opcode, QP), expected, "opcode {opcode:02x}");
            let to_qp1 = if opcode == 0x64 { RoceClass::Cm } else { expected };
            assert_eq!(RoceClass::of(opcode, QP_GSI), to_qp1, "opcode {opcode:02x}");
        }
    }

    #[test]
    fn operations_of_each_transport() {
        let count = |from: u8| (from..from + 0x20).filter(|op| Operation::of(*op).is_some()).count();
        assert_eq!([0x00, 0x20, 0x40, 0x60, 0x80, 0xa0, 0xc0].map(count), [25, 12, 23, 2, 1, 23, 0]);
        for opcode in (0..=255).filter(|op| Operation::of(*op).is_none()) {
            assert_eq!(extended_len(opcode), None);
        }
        assert_eq!(Operation::of(0x12), Some(Operation::AtomicAck));
        assert_eq!(Operation::of(RC_ATOMIC_ACK).map(Operation::name), Some("atomic-ack"));
    }

    #[test]
    fn lengths() {
        let rc: Vec<_> = (0..0x20).map(|op| extended_len(op).map_or(-1, |len| len as i32)).collect();
        #[rustfmt::skip]
        assert_eq!(rc, [
            0, 0, 0, 4, 0, 4, 16, 0, 0, 4, 16, 20, 16, 4, 0, 4, 4, 4, 12, 28, 28, -1, 4, 4, -1, -1, -1, -1, 20, 16,
            -1, -1,
        ]);
        assert_eq!(extended_len(UD_SEND_ONLY_IMM), Some(12));
        assert_eq!(extended_len(0xa4), Some(4));
        assert_eq!(extended_len(0xb1), Some(4));
        assert_eq!(extended_len(0x51), Some(8));
        assert_eq!(control_len(RC_ACK, QP), Some(20));
        assert_eq!(control_len(RC_ATOMIC_ACK, QP), Some(28));
        assert_eq!(control_len(CNP, QP), Some(32));
        assert_eq!(control_len(UD_SEND_ONLY, QP_GSI), Some(280));
        assert_eq!(control_len(UD_SEND_ONLY, QP), None);
        assert_eq!(control_len(RC_WRITE_ONLY, QP), None);
    }
}
