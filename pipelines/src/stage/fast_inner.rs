//! fast_inner: inner frames as nearly all of them are, read in one go from their bytes to their key: untagged IPv4 without
//! options or fragment, TCP, UDP or RoCEv2, from a vNIC with its own addresses and within its MTU, or out of a tunnel that says the same
//! about congestion.
//!
//! It accepts and never refuses: what is different in any way, wrong or not, is for `parse`, `guard`, `outer` and `key`,
//! which know why. What it accepts, they would find the same of.

use wire::{Ecn, Flags, Headers, L3, PacketBuf, protocol};

use super::Cx;
use super::fast_outer::{long, word};
use super::guard::VnicRun;
use super::key::{CLASS_OTHER, RoceClasses, RoceMasks, class_code};
use super::outer::source_mac_is_wrong;
use crate::burst::{Burst, Meta};
use crate::ecn;
use crate::flow_key::{FlowKey, Scope, be64};
use crate::nft::{Bits, Nft};
use crate::snapshot::{Snapshot, VnicRow};

/// Bytes that are read: up to the end of TCP's fixed header, or of the BTH.
const FRONT: usize = 54;
/// Where layer 3 begins.
const L3_AT: usize = 14;
/// Where layer 4 begins.
const L4_AT: usize = 34;
/// EtherType of IPv4.
const ETHERTYPE_IPV4: u16 = 0x0800;

/// What was read of a burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Bits of the packets that have their keys.
    pub taken: u64,
    /// Which of them are RoCEv2.
    pub roce: RoceMasks,
}

/// Reads what comes from vNICs; they are bound.
#[inline]
pub fn from_vnics<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, nft: &Nft) -> Read {
    from::<P, Sender>(cx, burst, nft)
}

/// Reads what came out of tunnels; the outer ECN field stands where `outer` leaves it.
#[inline]
pub fn from_tunnels<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, nft: &Nft) -> Read {
    from::<P, Network>(cx, burst, nft)
}

/// Where packets come from: what those that follow each other have in common.
trait FrameSource<'a>: Sized {
    /// That of a packet.
    fn of(cx: &Cx<'a>, meta: &Meta) -> Self;
    /// True for a packet that has the same.
    fn has(&self, meta: &Meta) -> bool;
    /// True for a frame that may take the fast path, coming from there.
    fn takes(&mut self, words: FrontWords, meta: &Meta) -> bool;
    /// Who the sender is to the key, and the MAC of its virtual router.
    fn scope(&self) -> (Scope, u64);
    /// Counts so many packets and bytes that were taken, and how many of them are RoCEv2.
    fn count(&self, cx: &Cx, packets: u64, bytes: u64, rdma: u64);
}

/// The fields of a frame that decide whether it takes the fast path, in words of eight bytes, most significant first: a word is
/// compared at once, where bytes would be one by one.
#[derive(Clone, Copy)]
struct FrontWords {
    /// From byte 6: source MAC, EtherType.
    source_mac: u64,
    /// From byte 14: version and header length, TOS, total length, identification, flags and fragment offset.
    ip: u64,
    /// From byte 26: source and destination address.
    addresses: u64,
}

impl FrontWords {
    #[inline(always)]
    fn of(head: &[u8; FRONT]) -> Self {
        Self { source_mac: be64(head, 6), ip: be64(head, L3_AT), addresses: be64(head, 26) }
    }

    /// True for IPv4 without options that is no fragment.
    #[inline(always)]
    fn is_plain(self) -> bool {
        self.source_mac as u16 == ETHERTYPE_IPV4 && self.ip & 0xff00_0000_0000_3fff == 0x4500_0000_0000_0000
    }

    #[inline(always)]
    fn tos(self) -> u8 {
        (self.ip >> 48) as u8
    }

    /// Total length, from the IP header on.
    #[inline(always)]
    fn len(self) -> u16 {
        (self.ip >> 32) as u16
    }

    #[inline(always)]
    fn ip_id(self) -> u16 {
        (self.ip >> 16) as u16
    }

    #[inline(always)]
    fn dont_fragment(self) -> u16 {
        (self.ip >> 14) as u16 & 1
    }
}

/// A vNIC whose frames are read.
struct Sender<'a> {
    vnic: u32,
    row: &'a VnicRow,
    /// Its MAC and the EtherType of IPv4, as [`FrontWords::source_mac`] has them.
    mac: u64,
    /// Its IPv4 address; more than any where it has not just one.
    address: u64,
}

impl<'a> FrameSource<'a> for Sender<'a> {
    #[inline(always)]
    fn of(cx: &Cx<'a>, meta: &Meta) -> Self {
        let row = cx.snapshot.row(meta.vnic);
        let address = if row.v4 == 0 { u64::MAX } else { u64::from(row.v4) };
        Self { vnic: meta.vnic, row, mac: row.mac << 16 | u64::from(ETHERTYPE_IPV4), address }
    }

    #[inline(always)]
    fn has(&self, meta: &Meta) -> bool {
        meta.vnic == self.vnic
    }

    #[inline(always)]
    fn takes(&mut self, words: FrontWords, _: &Meta) -> bool {
        words.source_mac == self.mac && words.addresses >> 32 == self.address && words.len() <= self.row.mtu
    }

    #[inline(always)]
    fn scope(&self) -> (Scope, u64) {
        (Scope::Vnic(self.vnic), self.row.router_mac)
    }

    #[inline(always)]
    fn count(&self, cx: &Cx, packets: u64, bytes: u64, rdma: u64) {
        VnicRun { vnic: self.vnic, packets, bytes, rdma }.count(cx);
    }
}

/// A VPC, out of the tunnel.
struct Network<'a> {
    snapshot: &'a Snapshot,
    vpc: u32,
    router: u64,
    /// The source MAC of the packet before, which may be one; at first what no packet says.
    last_mac: u64,
}

impl<'a> FrameSource<'a> for Network<'a> {
    #[inline(always)]
    fn of(cx: &Cx<'a>, meta: &Meta) -> Self {
        let router = cx.snapshot.vpc(meta.vpc).map_or(0, |vpc| vpc.router_mac.to_u64());
        Self { snapshot: cx.snapshot, vpc: meta.vpc, router, last_mac: u64::MAX }
    }

    #[inline(always)]
    fn has(&self, meta: &Meta) -> bool {
        meta.vpc == self.vpc
    }

    #[inline(always)]
    fn takes(&mut self, words: FrontWords, meta: &Meta) -> bool {
        let mac = words.source_mac >> 16;
        if mac != self.last_mac {
            if source_mac_is_wrong(self.snapshot, self.vpc, mac).is_some() {
                return false;
            }
            self.last_mac = mac;
        }
        says_the_same(words.tos(), meta.outer_ecn as u8)
    }

    #[inline(always)]
    fn scope(&self) -> (Scope, u64) {
        (Scope::Vpc(self.vpc), self.router)
    }

    #[inline(always)]
    fn count(&self, _: &Cx, _: u64, _: u64, _: u64) {}
}

#[inline(always)]
fn from<'a, P: PacketBuf, S: FrameSource<'a>>(cx: &Cx<'a>, burst: &mut Burst<P>, nft: &Nft) -> Read {
    let mut read = Read::default();
    let rdma = if begins_with_rdma(cx, burst) {
        burst.pending
    } else {
        some_from::<P, S, false>(cx, burst, burst.pending, nft, &mut read)
    };
    if rdma != 0 {
        some_from::<P, S, true>(cx, burst, rdma, nft, &mut read);
    }
    read
}

/// True when the first packet may be RoCEv2: then it is likely that most of the burst are.
#[inline(always)]
fn begins_with_rdma<P: PacketBuf>(cx: &Cx, burst: &Burst<P>) -> bool {
    let first = burst.pending().peek().and_then(|i| burst.packets[i].as_ref());
    first
        .and_then(head_of)
        .is_some_and(|head| head[23] == protocol::UDP && word(head, 36) == cx.snapshot.settings.rdma_port)
}

/// Reads the packets in `mask`: without `ROCE` those that are not RoCEv2, with it all. Returns the bits of those to RoCEv2's port.
/// Two loops, so that what RoCEv2 takes burdens nothing else.
#[inline(always)]
fn some_from<'a, P: PacketBuf, S: FrameSource<'a>, const ROCE: bool>(
    cx: &Cx<'a>,
    burst: &mut Burst<P>,
    mask: u64,
    nft: &Nft,
    read: &mut Read,
) -> u64 {
    let (rdma_port, classes) = (cx.snapshot.settings.rdma_port, &cx.snapshot.settings.roce_classes);
    let (mut taken, mut rdma) = (0u64, 0u64);
    let mut left = Bits(mask);
    while let Some(first) = left.peek() {
        // Most bursts come from one place as a whole.
        let mut source = S::of(cx, &burst.metas[first]);
        let (before, rdma_before, mut bytes) = (taken, rdma, 0);
        while let Some(i) = left.peek()
            && source.has(&burst.metas[i])
        {
            left.next();
            let Some(packet) = burst.packets[i].as_ref() else { continue };
            let Some(head) = head_of(packet) else { continue };
            let meta = &mut burst.metas[i];
            let words = FrontWords::of(head);
            if !source.takes(words, meta) {
                continue;
            }
            let look = match InnerFacts::read(head, words, packet, rdma_port) {
                FirstLook::Rdma => {
                    rdma |= 1 << i;
                    if ROCE { InnerFacts::read_rdma(head, words, packet, classes) } else { FirstLook::Rdma }
                }
                look => look,
            };
            let FirstLook::Fast(facts) = look else { continue };
            bytes += packet.len() as u64;
            taken |= 1 << i;
            if ROCE {
                read.roce.add(facts.class, 1 << i, cx);
            }
            let (scope, router) = source.scope();
            facts.leave::<ROCE>(meta, head, words, (scope, router), nft);
        }
        let (all, of_rdma) = (taken ^ before, taken & (rdma ^ rdma_before));
        source.count(cx, u64::from(all.count_ones()), bytes, u64::from(of_rdma.count_ones()));
    }
    read.taken |= taken;
    rdma
}

/// True when the inner ECN field says nothing of congestion and the outer one leaves it as it is.
#[inline(always)]
fn says_the_same(inner: u8, outer: u8) -> bool {
    /// A bit for each pair of fields, the inner one times four.
    const PAIRS: u16 = {
        let (mut pairs, mut pair) = (0, 0);
        while pair < 16 {
            let (inner, outer) = (Ecn::from_tos(pair >> 2), Ecn::from_tos(pair));
            if !matches!(inner, Ecn::Ce)
                && matches!(ecn::decap(inner, outer), Some(after) if after as u8 == inner as u8)
            {
                pairs |= 1 << pair;
            }
            pair += 1;
        }
        pairs
    };
    PAIRS >> ((inner & 3) << 2 | outer & 3) & 1 != 0
}

/// What a frame is at a first look.
enum FirstLook {
    /// It has its key now.
    Fast(InnerFacts),
    /// To the port of RoCEv2.
    Rdma,
    /// For `parse`, which knows every kind of frame.
    Slow,
}

/// What the checks of a frame find out. Everything else is read where it is written down, so that little has to be kept
/// at hand in between.
struct InnerFacts {
    /// Of RoCEv2, else 0.
    class: u8,
    l4_len: u8,
    padded: bool,
}

impl InnerFacts {
    #[inline(always)]
    fn read<P: PacketBuf>(head: &[u8; FRONT], words: FrontWords, packet: &P, rdma_port: u16) -> FirstLook {
        let left = packet.len() - L3_AT;
        let end = usize::from(words.len());
        if !words.is_plain() || end > left {
            return FirstLook::Slow;
        }
        let padded = left > end;
        match head[23] {
            protocol::TCP => {
                let l4_len = head[46] >> 4 << 2;
                let len = usize::from(l4_len);
                let whole = len >= 20 && len + (L4_AT - L3_AT) <= end && L4_AT + len <= packet.head().len();
                if whole { FirstLook::Fast(Self { class: 0, l4_len, padded }) } else { FirstLook::Slow }
            }
            protocol::UDP => {
                let len = usize::from(word(head, 38));
                if len < 8 || len + (L4_AT - L3_AT) > end {
                    FirstLook::Slow
                } else if word(head, 36) == rdma_port {
                    FirstLook::Rdma
                } else {
                    FirstLook::Fast(Self { class: 0, l4_len: 8, padded })
                }
            }
            _ => FirstLook::Slow,
        }
    }

    /// A second look at what is [`Rdma`](FirstLook::Rdma) at the first.
    #[inline(always)]
    fn read_rdma<P: PacketBuf>(
        head: &[u8; FRONT],
        words: FrontWords,
        packet: &P,
        classes: &RoceClasses,
    ) -> FirstLook {
        let left = packet.len() - L3_AT;
        let end = usize::from(words.len());
        if end < FRONT - L3_AT {
            return FirstLook::Slow;
        }
        match class_code(&head[42..], classes) {
            CLASS_OTHER => FirstLook::Slow,
            class => FirstLook::Fast(Self { class, l4_len: 8, padded: left > end }),
        }
    }

    /// Writes the key and the headers of the frame down.
    #[inline(always)]
    fn leave<const ROCE: bool>(
        &self,
        meta: &mut Meta,
        head: &[u8; FRONT],
        words: FrontWords,
        (scope, router): (Scope, u64),
        nft: &Nft,
    ) {
        let (proto, ports) = (head[23], long(head, 34));
        let target = be64(head, 0) >> 16;
        let target = if target == router { None } else { Some(target) };
        let class = if ROCE { self.class } else { 0 };
        meta.key = FlowKey::v4(words.addresses, scope, ports, proto, class, target);
        meta.hash = meta.key.hash(nft.seed());
        nft.prefetch(meta.hash);
        let sport = (ports >> 16) as u16;
        let flags =
            Flags::L4.0 + Flags::DF.0 * words.dont_fragment() + Flags::PADDED.0 * u16::from(self.padded);
        meta.headers = Headers {
            l3_offset: L3_AT as u8,
            vlan_count: 0,
            l3: L3::Ipv4,
            proto,
            l4_offset: L4_AT as u16,
            l3_len: words.len(),
            ethertype: ETHERTYPE_IPV4,
            vlan_tci: [0; 2],
            sport,
            dport: ports as u16,
            tos: words.tos(),
            ttl: head[22],
            flags: Flags(flags),
            l4_len: self.l4_len,
            tcp_flags: if proto == protocol::TCP { head[47] } else { 0 },
            ip_id: u32::from(words.ip_id()),
        };
        meta.entropy_port = sport;
    }
}

/// The bytes that are read, of a packet about which its receiver has nothing left to do.
#[inline(always)]
fn head_of<P: PacketBuf>(packet: &P) -> Option<&[u8; FRONT]> {
    if packet.is_unfinished() { None } else { packet.head().first_chunk() }
}
