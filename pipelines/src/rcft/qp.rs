//! What is known of one direction of a queue pair: a line that every packet updates, and a record of events.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::roce::opcode::{Operation, OperationKind};
use wire::roce::{Aeth, BTH_LEN, Bth, Reth, Syndrome};
use wire::{Headers, Qpn, View};
use zerocopy::FromZeros;

use crate::flow_key::Scope;
use crate::stage::key::{CLASS_VENDOR_RC, CLASS_XRC};

/// Who sends to which queue pair: the scope (a vNIC sends, or a VPC's tunnel brings), the receiver's VIP and
/// the queue pair's number there.
///
/// Toward the wire this is (vNIC, peer VIP, peer QPN), from the wire (VPC, local VIP, local QPN), which names one
/// vNIC as VIPs are unique in a VPC.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, FromZeros)]
#[repr(transparent)]
pub struct QpKey {
    words: [u64; 3],
}

impl QpKey {
    /// The key of packets from `scope` to queue pair `qpn` at `address`.
    pub fn new(scope: Scope, address: IpAddr, qpn: Qpn) -> Self {
        let [high, low] = match address {
            IpAddr::V4(address) => Self::v4_words(u32::from(address)),
            IpAddr::V6(address) => {
                let bits = u128::from(address);
                [(bits >> 64) as u64, bits as u64]
            }
        };
        Self::from_words([high, low, u64::from(scope.raw()) << 32 | u64::from(qpn.get()) << 8])
    }

    /// The key from its words: address (IPv4 in mapped form), scope and number.
    #[inline(always)]
    pub const fn from_words(words: [u64; 3]) -> Self {
        Self { words }
    }

    /// The words, as [`from_words`](Self::from_words) takes them.
    #[inline(always)]
    pub const fn words(&self) -> &[u64; 3] {
        &self.words
    }

    /// The two words of an IPv4 address.
    #[inline(always)]
    pub const fn v4_words(address: u32) -> [u64; 2] {
        [0, V4 | address as u64]
    }

    /// The vNIC that sends, or the VPC whose tunnel brings the packets.
    pub const fn scope(&self) -> Scope {
        Scope::from_raw((self.words[2] >> 32) as u32)
    }

    /// The receiver's number of the queue pair.
    pub const fn qpn(&self) -> Qpn {
        Qpn::truncated((self.words[2] >> 8) as u32)
    }

    /// The receiver's VIP.
    pub fn address(&self) -> IpAddr {
        let [high, low, _] = self.words;
        if high == 0 && low & V4_MASK == V4 {
            Ipv4Addr::from(low as u32).into()
        } else {
            Ipv6Addr::from(u128::from(high) << 64 | u128::from(low)).into()
        }
    }

    pub(super) const fn is_free(&self) -> bool {
        self.words[2] == 0
    }
}

/// A queue pair that is looked for in a worker's table, whose lines were loaded meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub struct QpProbe {
    /// The queue pair.
    pub key: QpKey,
    /// Hash of the key, as [`Rcft::prefetch`](super::Rcft::prefetch) says it.
    pub hash: u64,
    /// The entry that may be it, as [`Rcft::prefetch_line`](super::Rcft::prefetch_line) says it.
    pub slot: u32,
}

/// IPv4-mapped prefix (RFC 4291 section 2.5.5.2), lower half.
pub(super) const V4: u64 = 0xffff_0000_0000;
const V4_MASK: u64 = 0xffff_ffff_0000_0000;

impl std::fmt::Debug for QpKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} > {} qp {:#x}", self.scope(), self.address(), self.qpn().get())
    }
}

/// What a packet of a reliable connection says, as far as the view needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RocePacketFacts {
    /// Opcode of the BTH (IBTA vol. 1 section 9.2.1).
    pub opcode: u8,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
    /// Bytes of the frame.
    pub bytes: u32,
    /// Bytes of the UDP payload.
    pub payload: u32,
    /// Syndrome of acknowledgements, length of read requests.
    pub detail: u32,
    /// It came with congestion experienced.
    pub ce: bool,
}

impl RocePacketFacts {
    /// Those of a packet of `len` bytes, which begins with `head`, and the queue pair that it is for; `None` for opcodes that
    /// mean nothing, and for the queue pairs of management. Its class was read from its BTH, so the BTH lies within the packet.
    #[inline(always)]
    pub(crate) fn read(headers: &Headers, class: u8, head: &[u8], len: usize) -> Option<(Qpn, Self)> {
        let at = headers.payload_offset();
        let (bth, _) = Bth::view(head.get(at..)?)?;
        let qpn = bth.dest_qp();
        let traits = OpcodeTraits::of(bth.opcode);
        if !(traits.is_assigned() || class == CLASS_VENDOR_RC) || qpn.get() <= 1 {
            return None;
        }
        let detail = if traits.has(OpcodeTraits::ACK | OpcodeTraits::READ) {
            Self::detail(traits, class == CLASS_XRC, headers.payload(head).get(BTH_LEN..).unwrap_or_default())
        } else {
            0
        };
        let facts = Self {
            opcode: bth.opcode,
            psn: bth.psn().get(),
            bytes: len as u32,
            // The head may end before the packet does.
            payload: headers.l3_end().saturating_sub(at) as u32,
            detail,
            ce: headers.tos & 3 == 3,
        };
        Some((qpn, facts))
    }

    /// What the extended header behind the BTH says; of XRC another one may stand in front of it.
    fn detail(traits: OpcodeTraits, xrc: bool, rest: &[u8]) -> u32 {
        if traits.has(OpcodeTraits::ACK) {
            return Aeth::view(rest).map_or(0, |(aeth, _)| u32::from(aeth.syndrome));
        }
        let skip = if xrc { 4 } else { 0 };
        Reth::view_at(rest, skip).map_or(0, |reth| reth.len.get())
    }
}

/// What the view goes by of an opcode, in bits: the fast path looks them up once for every packet.
#[derive(Clone, Copy)]
pub(super) struct OpcodeTraits(u8);

impl OpcodeTraits {
    /// From the requester.
    const REQUEST: u8 = 1;
    /// From the responder, with data.
    const RESPONSE: u8 = 2;
    /// ACK or NAK.
    pub const ACK: u8 = 4;
    /// A read request, whose answer takes several PSNs.
    pub const READ: u8 = 8;
    /// It fills the path MTU.
    const FULL_MTU: u8 = 16;
    /// A response that goes on with one before it.
    const CONTINUES: u8 = 32;

    /// Those of an opcode; none of one that the standard does not assign.
    #[inline(always)]
    pub const fn of(opcode: u8) -> Self {
        static TABLE: [u8; 256] = {
            let mut table = [0; 256];
            let mut opcode = 0;
            while opcode < table.len() {
                if let Some(operation) = Operation::of(opcode as u8) {
                    table[opcode] = OpcodeTraits::bits(operation);
                }
                opcode += 1;
            }
            table
        };
        Self(TABLE[opcode as usize])
    }

    const fn bits(operation: Operation) -> u8 {
        let kind = match operation.kind() {
            OperationKind::Ack => Self::ACK,
            OperationKind::Response => Self::RESPONSE,
            OperationKind::Request | OperationKind::Notification => Self::REQUEST,
        };
        let more = match operation {
            Operation::ReadRequest => Self::READ,
            Operation::ReadResponseMiddle | Operation::ReadResponseLast => Self::CONTINUES,
            _ => 0,
        };
        kind | more | if operation.is_full_mtu() { Self::FULL_MTU } else { 0 }
    }

    /// True when one of these bits is set.
    #[inline(always)]
    pub const fn has(self, bits: u8) -> bool {
        self.0 & bits != 0
    }

    /// True for an opcode that the standard assigns.
    #[inline(always)]
    pub const fn is_assigned(self) -> bool {
        self.0 != 0
    }
}

/// The line that every packet updates.
#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C, align(64))]
pub(super) struct QpLine {
    pub key: QpKey,
    pub bytes: u64,
    pub packets: u64,
    pub acks: u64,
    pub last_seen: u32,
    /// Slot in the ledger (toward the wire).
    pub ledger: u32,
    /// Next PSN of requests, and flags above.
    pub request: u32,
    /// Last PSN of responses, last opcode above.
    pub response: u32,
}

const _: () = assert!(size_of::<QpLine>() == 64);

const PSN: u32 = 0xff_ffff;
const HALF: u32 = 0x80_0000;
/// A PSN further behind than this is no retransmission but another use of the queue pair's number.
const WINDOW: u32 = 1 << 16;
/// The next request's PSN is known.
const REQUEST_KNOWN: u32 = 1 << 24;
/// The last response's PSN is known.
const RESPONSE_KNOWN: u32 = 1 << 25;
/// Path MTU: 0 unknown, else 1 + log2(MTU / 256) in three bits.
const MTU_SHIFT: u32 = 26;
/// Hardware took packets of which nobody knows what they were.
const HARDWARE: u32 = 1 << 29;

/// What happened to one direction of a queue pair beside data in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub struct QpEvents {
    /// Packets that came with congestion experienced (RFC 3168).
    pub ce: u32,
    /// Congestion notification packets sent to this queue pair (IBTA annex A17).
    pub cnp: u32,
    /// Times the sequence jumped ahead.
    pub gaps: u32,
    /// Packets whose PSN was behind: sent again.
    pub retransmissions: u32,
    /// NAKs: PSN sequence error.
    pub nak_sequence: u32,
    /// NAKs: receiver not ready.
    pub rnr: u32,
    /// NAKs, up to 255 each: invalid request, remote access error, remote operational error, anything else.
    pub nak_fatal: [u8; 4],
    /// When the first packet was seen (ticks).
    pub first_seen: u32,
}

const _: () = assert!(size_of::<QpEvents>() == 32);

/// One direction of a queue pair, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpView {
    /// Receiver's address and QPN, and the direction.
    pub key: QpKey,
    /// Bytes of frames.
    pub bytes: u64,
    /// Frames counted, acknowledgements included.
    pub packets: u64,
    /// Acknowledgements among those of them that software saw.
    pub acks: u64,
    /// Hardware took some of the packets: there may be more acknowledgements, and more of all that only software sees.
    pub in_part: bool,
    /// Opcode of the last packet.
    pub last_opcode: u8,
    /// Time of the last packet (ticks).
    pub last_seen: u32,
    /// Path MTU, once seen from the size of packets.
    pub path_mtu: Option<u16>,
    /// Next expected PSN of requests.
    pub next_psn: Option<u32>,
    /// What happens seldom: losses, congestion, refusals.
    pub events: QpEvents,
}

impl QpLine {
    pub fn view(&self, events: &QpEvents) -> QpView {
        QpView {
            key: self.key,
            bytes: self.bytes,
            packets: self.packets,
            acks: self.acks,
            in_part: self.request & HARDWARE != 0,
            last_opcode: (self.response >> 24) as u8,
            last_seen: self.last_seen,
            path_mtu: self.path_mtu(),
            next_psn: (self.request & REQUEST_KNOWN != 0).then_some(self.request & PSN),
            events: *events,
        }
    }

    fn path_mtu(&self) -> Option<u16> {
        match self.request >> MTU_SHIFT & 7 {
            0 => None,
            code => Some(128 << code),
        }
    }

    /// Counts a packet. `events` is touched only when something happened.
    #[inline(always)]
    pub fn count(&mut self, facts: &RocePacketFacts, tick: u32, events: &mut QpEvents) {
        self.bytes += u64::from(facts.bytes);
        self.packets += 1;
        self.last_seen = tick;
        if facts.ce {
            events.ce = events.ce.saturating_add(1);
        }
        self.response = self.response & PSN | u32::from(facts.opcode) << 24;
        let traits = OpcodeTraits::of(facts.opcode);
        if traits.has(OpcodeTraits::REQUEST) {
            self.ask(traits, facts, events);
        } else if traits.has(OpcodeTraits::ACK) {
            self.acknowledge(facts, events);
        } else if traits.has(OpcodeTraits::RESPONSE) {
            self.respond(traits, facts, events);
        }
    }

    /// Counts packets that were not seen: what comes next is in sequence whatever it is.
    pub fn account(&mut self, packets: u64, bytes: u64, tick: u32) {
        self.packets = self.packets.wrapping_add(packets);
        self.bytes = self.bytes.wrapping_add(bytes);
        self.last_seen = tick;
        self.request &= !(REQUEST_KNOWN | RESPONSE_KNOWN);
        if packets > 0 {
            self.request |= HARDWARE;
        }
    }

    /// Acknowledgements coalesce: their PSNs are never gaps.
    #[inline(always)]
    fn acknowledge(&mut self, facts: &RocePacketFacts, events: &mut QpEvents) {
        match Syndrome::of(facts.detail as u8) {
            Syndrome::Ack(_) => self.acks += 1,
            Syndrome::RnrNak(_) => events.rnr = events.rnr.saturating_add(1),
            Syndrome::Nak(Syndrome::NAK_SEQUENCE_ERROR) => {
                events.nak_sequence = events.nak_sequence.saturating_add(1);
            }
            Syndrome::Nak(code) => fatal(events, usize::from(code) - 1),
            Syndrome::Reserved(_) => fatal(events, 3),
        }
    }

    /// Requests: each has the next PSN; a read takes as many as its answer has packets.
    #[inline(always)]
    fn ask(&mut self, traits: OpcodeTraits, facts: &RocePacketFacts, events: &mut QpEvents) {
        self.learn_mtu(traits, facts);
        let ahead = facts.psn.wrapping_sub(self.request) & PSN;
        if self.request & REQUEST_KNOWN != 0 && ahead != 0 {
            if ahead > PSN - WINDOW {
                events.retransmissions = events.retransmissions.saturating_add(1);
                return;
            }
            if ahead < HALF {
                events.gaps = events.gaps.saturating_add(1);
            } else {
                self.forget();
            }
        }
        let flags = self.request & !(PSN | REQUEST_KNOWN);
        let next = |span: u32| flags | REQUEST_KNOWN | facts.psn.wrapping_add(span) & PSN;
        self.request = if traits.has(OpcodeTraits::READ) {
            self.read_span(facts.detail).map_or(flags, next)
        } else {
            next(1)
        };
    }

    /// Responses carry the PSNs of the requests that they answer: only within one read must they be in sequence.
    #[inline(always)]
    fn respond(&mut self, traits: OpcodeTraits, facts: &RocePacketFacts, events: &mut QpEvents) {
        self.learn_mtu(traits, facts);
        let known = self.request & RESPONSE_KNOWN != 0;
        let ahead = facts.psn.wrapping_sub(self.response) & PSN;
        if known && (ahead == 0 || ahead > PSN - WINDOW) {
            events.retransmissions = events.retransmissions.saturating_add(1);
            return;
        }
        if known && traits.has(OpcodeTraits::CONTINUES) && ahead != 1 && ahead < HALF {
            events.gaps = events.gaps.saturating_add(1);
        }
        self.request |= RESPONSE_KNOWN;
        self.response = self.response & !PSN | facts.psn & PSN;
    }

    /// The number is used anew: what was learnt of its former use does not hold.
    #[cold]
    fn forget(&mut self) {
        self.request &= !(7 << MTU_SHIFT | RESPONSE_KNOWN);
    }

    /// A packet that fills the path MTU tells it.
    #[inline(always)]
    fn learn_mtu(&mut self, traits: OpcodeTraits, facts: &RocePacketFacts) {
        if !traits.has(OpcodeTraits::FULL_MTU) {
            return;
        }
        // Extended headers are at most 20 bytes there, less than a quarter of the smallest MTU: rounding down to a
        // power of two finds the MTU.
        let payload = facts.payload.saturating_sub(BTH_LEN as u32);
        if (256..=4096 + 64).contains(&payload) {
            let code = payload.ilog2() - 7;
            if code > self.request >> MTU_SHIFT & 7 {
                self.request = self.request & !(7 << MTU_SHIFT) | code << MTU_SHIFT;
            }
        }
    }

    /// PSNs that a read of `len` bytes takes; `None` when the MTU is not known and it matters.
    fn read_span(&self, len: u32) -> Option<u32> {
        match self.path_mtu() {
            _ if len <= 256 => Some(1),
            Some(mtu) => Some(len.div_ceil(u32::from(mtu))),
            None => None,
        }
    }
}

#[cold]
fn fatal(events: &mut QpEvents, kind: usize) {
    let count = &mut events.nak_fatal[kind.min(3)];
    *count = count.saturating_add(1);
}
