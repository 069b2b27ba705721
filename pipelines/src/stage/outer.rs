//! outer: from the wire to the inner frame. Checks everything about the outer packet, takes it off, and after the
//! inner parse applies tunnel ECN and the VPC's VLAN policy.

use std::net::IpAddr;

use wire::parse::parse_into;
use wire::{ChecksumState, Ecn, Flags, Headers, L3, PacketBuf, View, checksum, ipv4, ipv6, protocol};
use wire::{udp, vxlan};

use super::Cx;
use super::fast_outer::{FRONT, FastOuter};
use super::parse::pseudo_sum;
use crate::burst::{Burst, NO_INDEX};
use crate::drops::DropReason;
use crate::ecn;
use crate::flow_key::be64;
use crate::nft::Bits;
use crate::snapshot::{Snapshot, Uplink};
use crate::vtep::Vtep;

/// What became of an outer packet.
enum Outer {
    /// VxLAN for a VPC: its sender, index of the VPC, bytes in front of the inner frame, bytes behind it, outer ECN.
    Inner { vtep: Vtep, vpc: u32, front: usize, back: usize, ecn: Ecn },
    /// Not VxLAN: for the underlay stage.
    Other,
}

/// Decapsulates the pending packets; returns the bits of those that are not VxLAN. `partial`: the port may
/// deliver unfinished checksums unmarked.
#[inline]
pub fn run<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, uplink: &Uplink, partial: bool) -> u64 {
    let fast = FastOuter::new(uplink, &cx.snapshot.settings);
    let taken = fast.map_or(0, |fast| fast_path(cx, burst, fast));
    cx.counters.decapsulated.add(u64::from(taken.count_ones()));
    let rest = burst.pending & !taken;
    if rest == 0 { 0 } else { closely(cx, burst, rest, uplink, partial) }
}

/// The fast path: packets of known VTEPs and networks, with nothing behind the inner frame; returns the bits of
/// those that took it.
#[inline(always)]
fn fast_path<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, fast: FastOuter) -> u64 {
    // Source and network are often those of the packet before.
    // At first they are what no packet says.
    let (mut last, mut vtep, mut vpc) = (u64::MAX, Vtep::NONE, NO_INDEX);
    let mut taken = 0;
    for i in burst.pending() {
        let Some(packet) = burst.packets[i].as_mut() else { continue };
        let Some(facts) = fast.read(packet.head(), packet.len(), packet.rx_facts().l3_checksum) else {
            continue;
        };
        let from = u64::from(facts.source.to_bits()) << 32 | u64::from(facts.vni);
        if from != last {
            let Ok(found) = sender_and_vpc(cx.snapshot, facts.source.into(), facts.vni) else { continue };
            (last, (vtep, vpc)) = (from, found);
        }
        if facts.back > 0 || !packet.trim_front(FRONT) {
            continue;
        }
        let meta = &mut burst.metas[i];
        (meta.vnic, meta.vpc, meta.vtep) = (NO_INDEX, vpc, vtep);
        meta.outer_ecn = facts.ecn;
        taken |= 1 << i;
    }
    taken
}

/// The sender and the VPC of a packet; or why not.
#[inline(always)]
fn sender_and_vpc(snapshot: &Snapshot, source: IpAddr, vni: u32) -> Result<(Vtep, u32), DropReason> {
    let vtep = snapshot.vteps.find(source).ok_or(DropReason::UNKNOWN_VTEP)?;
    match snapshot.vteps.network(vtep, vni, &snapshot.vnis) {
        Some(vpc) => Ok((vtep, vpc)),
        None if snapshot.vnis.get(u128::from(vni)).is_some() => Err(DropReason::UNKNOWN_VTEP),
        None => Err(DropReason::UNKNOWN_VNI),
    }
}

/// The long way, for the packets in `rest`; returns the bits of those that are not VxLAN.
#[inline(never)]
fn closely<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, rest: u64, uplink: &Uplink, partial: bool) -> u64 {
    let mut others = 0;
    for i in Bits(rest) {
        let Some(packet) = burst.packets[i].as_mut() else { continue };
        let meta = &mut burst.metas[i];
        (meta.vnic, meta.vpc) = (NO_INDEX, NO_INDEX);
        let result = match parse_into(packet.head(), packet.len(), &mut meta.headers) {
            Ok(()) => examine(cx, packet, &meta.headers, uplink, partial),
            Err(malformed) => Err(malformed.into()),
        };
        match result {
            Ok(Outer::Inner { vtep, vpc, front, back, ecn }) => {
                (meta.vpc, meta.vtep) = (vpc, vtep);
                meta.outer_ecn = ecn;
                if back > 0 && !packet.trim_back(back) || !packet.trim_front(front) {
                    burst.drop(i, DropReason::NO_BUFFER, cx.counters);
                    continue;
                }
                cx.counters.decapsulated.add(1);
            }
            Ok(Outer::Other) => others |= 1 << i,
            Err(reason) => burst.drop(i, reason, cx.counters),
        }
    }
    others
}

#[inline(always)]
fn examine<P: PacketBuf>(
    cx: &Cx,
    packet: &P,
    headers: &Headers,
    uplink: &Uplink,
    partial: bool,
) -> Result<Outer, DropReason> {
    let head = packet.head();
    let destination = headers.ethernet(head).map(|eth| eth.dst).unwrap_or_default();
    let to_us = destination.to_u64() == uplink.mac;
    if !to_us && !destination.is_group() {
        return Err(DropReason::UNDERLAY_MAC);
    }
    let vlan = (headers.vlan_count > 0).then_some(headers.vlan_tci[0] & 0xfff).filter(|&vid| vid != 0);
    if !to_us || vlan != uplink.vlan || !headers.is_ip() || headers.proto != protocol::UDP {
        return Ok(Outer::Other);
    }
    let (source, target) = addresses(head, headers);
    if !uplink.owns(target) {
        return if target.is_multicast() || uplink.punt != crate::snapshot::NO_PORT {
            Ok(Outer::Other)
        } else {
            Err(DropReason::UNDERLAY_ADDRESS)
        };
    }
    if headers.is(Flags::FRAGMENT_LATER) {
        return if uplink.punt == crate::snapshot::NO_PORT {
            Err(DropReason::OUTER_FRAGMENT)
        } else {
            Ok(Outer::Other)
        };
    }
    if headers.dport != cx.snapshot.settings.vxlan_port {
        return Ok(Outer::Other);
    }
    if headers.is(Flags::FRAGMENT) {
        return Err(DropReason::OUTER_FRAGMENT);
    }
    check_sums(packet, headers, uplink, partial)?;
    if headers.ttl == 0 {
        return Err(DropReason::OUTER_TTL);
    }
    if headers.flags.intersects(Flags::IP_OPTIONS | Flags::SOURCE_ROUTED) {
        return Err(DropReason::OUTER_OPTIONS);
    }
    if cx.snapshot.vteps.find(source).is_none() {
        return Err(DropReason::UNKNOWN_VTEP);
    }
    let l4 = usize::from(headers.l4_offset);
    let udp_len = udp::Header::view_at(head, l4).map_or(0, |udp| usize::from(udp.len.get()));
    let front = l4 + udp::HEADER_LEN + vxlan::HEADER_LEN;
    let end = l4 + udp_len;
    let vxlan = match vxlan::Header::view_at(head, l4 + udp::HEADER_LEN) {
        Some(vxlan) if end >= front => vxlan,
        _ => return Err(DropReason::VXLAN_TRUNCATED),
    };
    if !vxlan.has_vni() {
        return Err(DropReason::VXLAN_FLAGS);
    }
    if cx.snapshot.settings.vxlan_strict && !vxlan.reserved_clear() {
        return Err(DropReason::VXLAN_RESERVED);
    }
    let (vtep, vpc) = sender_and_vpc(cx.snapshot, source, vxlan.vni().get())?;
    Ok(Outer::Inner { vtep, vpc, front, back: packet.len() - end, ecn: Ecn::from_tos(headers.tos) })
}

/// Source and destination address of an IP packet; unspecified where the bytes are not there.
#[inline(always)]
pub(super) fn addresses(head: &[u8], headers: &Headers) -> (IpAddr, IpAddr) {
    let unspecified = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
    let l3 = usize::from(headers.l3_offset);
    match headers.l3 {
        L3::Ipv4 => ipv4::Header::view_at(head, l3)
            .map_or((unspecified, unspecified), |ip| (ip.src().into(), ip.dst().into())),
        L3::Ipv6 => ipv6::Header::view_at(head, l3)
            .map_or((unspecified, unspecified), |ip| (ip.src().into(), ip.dst().into())),
        L3::None | L3::Arp => (unspecified, unspecified),
    }
}

/// Outer IPv4 header checksum, and UDP checksum where there is one (RFC 7348 section 4.1, RFC 6935).
#[inline(always)]
pub(super) fn check_sums<P: PacketBuf>(
    packet: &P,
    headers: &Headers,
    uplink: &Uplink,
    partial: bool,
) -> Result<(), DropReason> {
    let facts = packet.rx_facts();
    let head = packet.head();
    let (l3, l4) = (usize::from(headers.l3_offset), usize::from(headers.l4_offset));
    if headers.l3 == L3::Ipv4 && facts.l3_checksum != ChecksumState::Good {
        let ok = head.get(l3..l4).is_some_and(ipv4::checksum_ok);
        if !ok || facts.l3_checksum == ChecksumState::Bad {
            return Err(DropReason::OUTER_CHECKSUM);
        }
    }
    let stored = udp::Header::view_at(head, l4).map_or(0, |udp| udp.checksum.get());
    if stored == 0 {
        let allowed = headers.l3 == L3::Ipv4 || uplink.udp6_zero_checksum;
        return if allowed { Ok(()) } else { Err(DropReason::OUTER_CHECKSUM_ZERO) };
    }
    match facts.l4_checksum {
        ChecksumState::Good => Ok(()),
        ChecksumState::Bad => Err(DropReason::OUTER_CHECKSUM),
        state => verify_udp(packet, headers, stored, partial || state == ChecksumState::Partial),
    }
}

#[inline(never)]
fn verify_udp<P: PacketBuf>(
    packet: &P,
    headers: &Headers,
    stored: u16,
    partial: bool,
) -> Result<(), DropReason> {
    let head = packet.head();
    let l4 = usize::from(headers.l4_offset);
    let len = udp::Header::view_at(head, l4).map_or(0, |udp| usize::from(udp.len.get()));
    let Some(pseudo) = pseudo_sum(head, headers, len) else { return Err(DropReason::OUTER_CHECKSUM) };
    if partial && stored == pseudo {
        return Ok(());
    }
    // First the pseudo header, which is of even length: the datagram need not be.
    let mut sum = checksum::Sum::ZERO;
    sum.add_u16(pseudo);
    let all = sum.add_range(packet.segments(), l4, len).is_some();
    if all && sum.fold() == 0xffff { Ok(()) } else { Err(DropReason::OUTER_CHECKSUM) }
}

/// True for a source MAC that no frame out of a tunnel for a VPC has: a group, or a vNIC of this host.
#[inline(always)]
pub(super) fn source_mac_is_wrong(snapshot: &Snapshot, vpc: u32, mac: u64) -> Option<DropReason> {
    if mac >> 40 & 1 != 0 {
        return Some(DropReason::GROUP_SOURCE);
    }
    let local = snapshot.local_macs.get(Snapshot::local_mac(vpc, mac));
    local.map(|_| DropReason::INNER_SOURCE)
}

/// After the inner parse of the packets whose bits are in `mask`: source MAC, VLAN policy and tunnel ECN (RFC 6040).
#[inline]
pub fn finish<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, mask: u64) {
    for i in Bits(mask & burst.pending) {
        let meta = &mut burst.metas[i];
        let head = burst.packets[i].as_ref().map_or(&[][..], |packet| packet.head());
        let mac = be64(head, 4) & 0xffff_ffff_ffff;
        if let Some(reason) = source_mac_is_wrong(cx.snapshot, meta.vpc, mac) {
            burst.drop(i, reason, cx.counters);
            continue;
        }
        let outer = meta.outer_ecn;
        if meta.headers.vlan_count > 0 && !cx.snapshot.vpc(meta.vpc).is_some_and(|vpc| vpc.keep_vlan) {
            burst.drop(i, DropReason::INNER_VLAN, cx.counters);
            continue;
        }
        if !meta.headers.is_ip() {
            continue;
        }
        let inner = Ecn::from_tos(meta.headers.tos);
        match ecn::decap(inner, outer) {
            None => burst.drop(i, DropReason::ECN_DECAP, cx.counters),
            Some(ecn) => {
                cx.counters.ecn_ce.add(u64::from(ecn == Ecn::Ce));
                if ecn == inner {
                    continue;
                }
                meta.headers.tos = ecn.into_tos(meta.headers.tos);
                let headers = meta.headers;
                let written = burst.packets[i].as_mut().is_some_and(|packet| set_ecn(packet, &headers, ecn));
                if !written {
                    burst.drop(i, DropReason::NO_BUFFER, cx.counters);
                }
            }
        }
    }
}

/// Writes the ECN field of a packet.
pub(crate) fn set_ecn<P: PacketBuf>(packet: &mut P, headers: &Headers, ecn: Ecn) -> bool {
    let l3 = usize::from(headers.l3_offset);
    let head = packet.head_mut();
    match headers.l3 {
        L3::Ipv4 => ipv4::Header::view_mut_at(head, l3).map(|ip| ip.set_ecn(ecn)).is_some(),
        L3::Ipv6 => ipv6::Header::view_mut_at(head, l3).map(|ip| ip.set_ecn(ecn)).is_some(),
        L3::None | L3::Arp => true,
    }
}
