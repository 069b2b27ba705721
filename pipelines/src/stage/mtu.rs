//! mtu: a vNIC sends IP packets of its own MTU at most. A longer one is answered here, where the number is known, and not by
//! the host at the other end, which knows its own alone.
//!
//! Of a super-frame that is what it will be cut into: headers and one segment.

use wire::{Headers, L3, PacketBuf};

use super::icmp_error::{Complaint, complain, is_roce};
use super::{Cx, super_frame};
use crate::Sink;
use crate::burst::{Burst, NO_INDEX};
use crate::drops::DropReason;
use crate::miss::MissLimits;
use crate::nft::Bits;
use crate::snapshot::VnicRow;

/// Drops what is longer than its vNIC's MTU among the packets from vNICs whose bits are in `mask`, and tells senders of TCP,
/// UDP and the like.
#[inline]
pub fn run<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    mask: u64,
    limits: &mut MissLimits,
    sink: &mut S,
) {
    let (mut vnic, mut row) = (NO_INDEX, &VnicRow::FREE);
    for i in Bits(mask & burst.pending) {
        let Some(packet) = burst.packets[i].as_ref() else { continue };
        let meta = &burst.metas[i];
        if meta.vnic != vnic {
            (vnic, row) = (meta.vnic, cx.snapshot.row(meta.vnic));
        }
        if length(packet, &meta.headers) <= usize::from(row.mtu) {
            continue;
        }
        if super_frame::of(packet, &meta.headers).is_some_and(|frame| frame.ip_len() <= usize::from(row.mtu))
        {
            continue;
        }
        if is_roce(cx, &meta.headers) {
            burst.drop(i, DropReason::MTU_ROCE, cx.counters);
        } else {
            complain(cx, burst, i, Complaint::TooBig(row.mtu), None, limits, sink);
        }
    }
}

/// What an MTU bounds: the IP packet without what follows it, or all that is behind the Ethernet header and its tags.
#[inline(always)]
fn length<P: PacketBuf>(packet: &P, headers: &Headers) -> usize {
    match headers.l3 {
        L3::Ipv4 | L3::Ipv6 => usize::from(headers.l3_len),
        L3::Arp | L3::None => packet.len().saturating_sub(usize::from(headers.l3_offset)),
    }
}
