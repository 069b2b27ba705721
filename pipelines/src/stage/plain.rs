//! plain: inner frames as nearly all of them are, read in one go from their bytes to their key: untagged IPv4 without
//! options or fragment, TCP, UDP or RoCEv2, from a vNIC with its own addresses or out of a tunnel that says the same
//! about congestion.
//!
//! It accepts and never refuses: what is different in any way, wrong or not, is for `parse`, `guard`, `outer` and `key`,
//! which know why. What it accepts, they would find the same of.

use wire::{ChecksumState, Ecn, Flags, Headers, L3, PacketBuf, protocol};

use super::Cx;
use super::guard::Run;
use super::key::{CLASS_OTHER, Roce, class_code};
use super::plain_outer::{long, word};
use crate::burst::{Burst, Meta, NO_INDEX};
use crate::ecn;
use crate::flow_key::{FlowKey, Scope};
use crate::nft::Nft;
use crate::snapshot::VnicRow;

/// Bytes that are read: up to the end of TCP's fixed header, or of the BTH.
const FRONT: usize = 54;
/// Where layer 3 begins.
const L3_AT: usize = 14;
/// Where layer 4 begins.
const L4_AT: usize = 34;

/// What was read of a burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Bits of the packets that have their keys.
    pub taken: u64,
    /// Which of them are RoCEv2.
    pub roce: Roce,
}

/// Reads what comes from vNICs; they are bound.
#[inline]
pub fn from_vnics<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, nft: &Nft) -> Read {
    let mut read = Read::default();
    let rdma_port = cx.snapshot.settings.rdma_port;
    let mut run = Run::of(NO_INDEX);
    let mut row = &VnicRow::FREE;
    for i in burst.pending() {
        let Some(packet) = burst.packets[i].as_ref() else { continue };
        let meta = &mut burst.metas[i];
        let Some(head) = head_of(packet) else { continue };
        if meta.vnic != run.vnic {
            run.count(cx);
            run = Run::of(meta.vnic);
            row = cx.snapshot.row(meta.vnic);
        }
        let Some(seen) = Seen::read(head, packet, rdma_port) else { continue };
        if (long(head, 26), mac_at(head, 6)) != (row.v4, row.mac) || row.v4 == 0 {
            continue;
        }
        run.packets += 1;
        run.bytes += packet.len() as u64;
        run.rdma += u64::from(seen.class != 0);
        seen.leave(meta, head, Scope::Vnic(run.vnic), row.router_mac, nft);
        read.take(i, seen.class, cx);
    }
    run.count(cx);
    read
}

/// Reads what came out of tunnels; the outer ECN field stands where `outer` leaves it.
#[inline]
pub fn from_tunnels<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, nft: &Nft) -> Read {
    let mut read = Read::default();
    let rdma_port = cx.snapshot.settings.rdma_port;
    let (mut vpc, mut router) = (NO_INDEX, 0);
    for i in burst.pending() {
        let Some(packet) = burst.packets[i].as_ref() else { continue };
        let meta = &mut burst.metas[i];
        let Some(head) = head_of(packet) else { continue };
        let Some(seen) = Seen::read(head, packet, rdma_port) else { continue };
        let inner = Ecn::from_tos(seen.headers.tos);
        if ecn::decap(inner, Ecn::from_tos(meta.entropy_port as u8)) != Some(inner) || inner == Ecn::Ce {
            continue;
        }
        if meta.vpc != vpc {
            vpc = meta.vpc;
            router = cx.snapshot.vpc(vpc).map_or(0, |vpc| vpc.router_mac.to_u64());
        }
        seen.leave(meta, head, Scope::Vpc(vpc), router, nft);
        read.take(i, seen.class, cx);
    }
    read
}

impl Read {
    #[inline(always)]
    fn take(&mut self, i: usize, class: u8, cx: &Cx) {
        self.taken |= 1 << i;
        if class != 0 {
            self.roce.add(class, 1 << i, cx);
        }
    }
}

/// What is to be known of a frame.
struct Seen {
    headers: Headers,
    class: u8,
}

impl Seen {
    #[inline(always)]
    fn read<P: PacketBuf>(head: &[u8; FRONT], packet: &P, rdma_port: u16) -> Option<Self> {
        let (total, fragment, proto) = (word(head, 16), word(head, 20), head[23]);
        let left = packet.len() - L3_AT;
        let end = usize::from(total);
        if long(head, 12) >> 8 != 0x0008_0045 || fragment & 0x3fff != 0 || end > left {
            return None;
        }
        let (sport, dport) = (word(head, 34), word(head, 36));
        let (l4_len, tcp_flags, class) = match proto {
            protocol::TCP => {
                let len = usize::from(head[46] >> 4) * 4;
                let whole = len >= 20 && len + (L4_AT - L3_AT) <= end && L4_AT + len <= packet.head().len();
                (whole.then_some(len as u8)?, head[47], 0)
            }
            protocol::UDP => {
                let len = usize::from(word(head, 38));
                if len < 8 || len + (L4_AT - L3_AT) > end {
                    return None;
                }
                let class = if dport != rdma_port {
                    0
                } else if end >= FRONT - L3_AT {
                    match class_code(&head[42..]) {
                        CLASS_OTHER => return None,
                        class => class,
                    }
                } else {
                    return None;
                };
                (8, 0, class)
            }
            _ => return None,
        };
        let mut flags = Flags::L4;
        if fragment & 0x4000 != 0 {
            flags |= Flags::DF;
        }
        if left > end {
            flags |= Flags::PADDED;
        }
        let headers = Headers {
            l3_offset: L3_AT as u8,
            vlan_count: 0,
            l3: L3::Ipv4,
            proto,
            l4_offset: L4_AT as u16,
            l3_len: total,
            ethertype: 0x0800,
            vlan_tci: [0; 2],
            sport,
            dport,
            tos: head[15],
            ttl: head[22],
            flags,
            l4_len,
            tcp_flags,
            ip_id: u32::from(word(head, 18)),
        };
        Some(Self { headers, class })
    }

    /// Writes it down, and the key with it.
    #[inline(always)]
    fn leave(&self, meta: &mut Meta, head: &[u8; FRONT], scope: Scope, router: u64, nft: &Nft) {
        let headers = &self.headers;
        let routed = mac_at(head, 0) == router;
        let ports = (headers.sport, headers.dport);
        meta.key = FlowKey::build(head, headers, scope, ports, self.class, routed);
        meta.hash = meta.key.hash(nft.seed());
        nft.prefetch(meta.hash);
        meta.headers = *headers;
        meta.entropy_port = headers.sport;
    }
}

/// The bytes that are read, of a packet about which its receiver has nothing left to do.
#[inline(always)]
fn head_of<P: PacketBuf>(packet: &P) -> Option<&[u8; FRONT]> {
    let facts = packet.rx_facts();
    if facts.gso_size != 0 || facts.l4_checksum == ChecksumState::Partial {
        return None;
    }
    packet.head().first_chunk()
}

#[inline(always)]
fn mac_at(head: &[u8; FRONT], at: usize) -> u64 {
    u64::from(long(head, at)) << 16 | u64::from(word(head, at + 4))
}
