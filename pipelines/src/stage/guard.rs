//! guard: a vNIC sends from its own MAC and its own addresses, and from the pairs that it is allowed besides; nothing else,
//! unless the guard is off for it.
//!
//! It is asked of every packet, of known flows too, so that a change holds from the next burst on.
//! What ARP and neighbour discovery claim is checked where they are answered ([`super::neighbour`]), reverse ARP here. None of them
//! is read inside of LLC and SNAP: nor may they come so.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::arp::{self, ArpPacket};
use wire::ethernet::ethertype;
use wire::{Flags, Headers, L3, MacAddr, Malformed, PacketBuf, View, icmpv6, llc, protocol, vlan};

use super::outer::addresses;
use super::{Cx, service};
use crate::burst::{Burst, Meta, NO_INDEX};
use crate::drops::DropReason;
use crate::event::Binding;
use crate::flow_key::be64;
use crate::nft::Bits;
use crate::snapshot::{GUARD_OFF, VnicRow, mac_from};

/// Drops what is not the vNIC's own among the packets whose bits are in `mask`, and counts what it looks at.
#[inline]
pub fn run<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, mask: u64) {
    // Bursts come from one vNIC, but for trunk ports: its row is looked up, and its counters added to, once a run.
    let mut run = VnicRun::of(NO_INDEX);
    let mut row = &VnicRow::FREE;
    for i in Bits(mask & burst.pending) {
        let Some(packet) = burst.packets[i].as_ref() else { continue };
        let meta = &burst.metas[i];
        if meta.vnic != run.vnic {
            run.count(cx);
            run = VnicRun::of(meta.vnic);
            row = cx.snapshot.row(meta.vnic);
        }
        run.packets += 1;
        run.bytes += packet.len() as u64;
        let verdict = check(cx, packet.head(), meta, row);
        if let Err(reason) = verdict {
            burst.drop(i, reason, cx.counters);
        }
    }
    run.count(cx);
}

/// Packets in a row from one vNIC.
pub(super) struct VnicRun {
    pub(super) vnic: u32,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// Those of them that are RoCEv2, as far as that is known here.
    pub(super) rdma: u64,
}

impl VnicRun {
    #[inline(always)]
    pub(super) const fn of(vnic: u32) -> Self {
        Self { vnic, packets: 0, bytes: 0, rdma: 0 }
    }

    #[inline(always)]
    pub(super) fn count(&self, cx: &Cx) {
        if self.packets > 0 {
            let counters = cx.counters.vnic(self.vnic as usize);
            counters.rx_packets.add(self.packets);
            counters.rx_bytes.add(self.bytes);
            if self.rdma > 0 {
                counters.rdma_rx_packets.add(self.rdma);
            }
        }
    }
}

#[inline(always)]
fn check(cx: &Cx, head: &[u8], meta: &Meta, row: &VnicRow) -> Result<(), DropReason> {
    let mac = be64(head, 4) & 0xffff_ffff_ffff;
    if mac != row.mac && (row.guard == 0 || mac_from(mac).is_group()) {
        return Err(if row.guard == 0 { DropReason::GUARD_MAC } else { DropReason::GROUP_SOURCE });
    }
    if meta.headers.vlan_count > 0 && row.keep_vlan == 0 {
        return Err(DropReason::INNER_VLAN);
    }
    if mac != row.mac {
        return other_mac(cx, head, meta, row);
    }
    let l3 = usize::from(meta.headers.l3_offset);
    match meta.headers.l3 {
        L3::Ipv4 => {
            let source = be64(head, l3 + 12) >> 32;
            if source == u64::from(row.v4) && source != 0 {
                return Ok(());
            }
            other_v4(cx, head, meta, row, Ipv4Addr::from(source as u32))
        }
        L3::Ipv6 => {
            let source = u128::from(be64(head, l3 + 8)) << 64 | u128::from(be64(head, l3 + 16));
            if source == row.v6 && source != 0 {
                return Ok(());
            }
            let address = Ipv6Addr::from(source);
            // RDMA's first GID.
            if address == mac_from(row.mac).link_local() {
                return Ok(());
            }
            if source == 0 || address.is_unicast_link_local() {
                let asks = source != 0 && service::asks_for_address(cx, head, meta);
                return if asks { Ok(()) } else { link_scope(cx, meta, row, address) };
            }
            other_vip(cx, meta, row, address.into())
        }
        L3::None if row.guard & GUARD_OFF == 0 => not_ip(head, meta, mac_from(mac)),
        L3::Arp | L3::None => Ok(()),
    }
}

/// A frame of a guarded vNIC that is neither IP nor ARP as such: nor may it be by another name.
#[cold]
#[inline(never)]
fn not_ip(head: &[u8], meta: &Meta, mac: MacAddr) -> Result<(), DropReason> {
    let Headers { ethertype, l3_offset, .. } = meta.headers;
    if ethertype == ethertype::RARP {
        return reverse_arp(head, meta, mac);
    }
    match llc::encapsulated(head, usize::from(l3_offset), ethertype) {
        Some(inner) if may_claim(inner) => Err(DropReason::GUARD_VIP),
        _ => Ok(()),
    }
}

/// True for the EtherTypes of what speaks in the name of an address, or may after a tag.
fn may_claim(ethertype: u16) -> bool {
    vlan::is_tag(ethertype)
        || matches!(ethertype, ethertype::IPV4 | ethertype::IPV6 | ethertype::ARP | ethertype::RARP)
}

/// Reverse ARP (RFC 903) of a vNIC asks for the address of the MAC that it is sent from. So do monitors of virtual machines, for
/// guests that came here and do not announce themselves (VHOST_USER_SEND_RARP), and bridges learn from it where that MAC is. Who
/// asks for another's, or gives others an address, says something of somebody else.
fn reverse_arp(head: &[u8], meta: &Meta, mac: MacAddr) -> Result<(), DropReason> {
    let Some(packet) = ArpPacket::view_at(head, usize::from(meta.headers.l3_offset)) else {
        return Err(Malformed::ArpTruncated.into());
    };
    if !packet.is_ipv4_over_ethernet() {
        return Err(Malformed::ArpFormat.into());
    }
    if packet.operation.get() != arp::REVERSE_REQUEST {
        return Err(DropReason::GUARD_VIP);
    }
    let of_itself = packet.sender_mac == mac && packet.target_mac == mac;
    if of_itself { Ok(()) } else { Err(DropReason::GUARD_MAC) }
}

/// A frame from a MAC that is not the vNIC's own, which has pairs or is not guarded.
#[cold]
#[inline(never)]
fn other_mac(cx: &Cx, head: &[u8], meta: &Meta, row: &VnicRow) -> Result<(), DropReason> {
    let mac = mac_from(be64(head, 4) & 0xffff_ffff_ffff);
    let allowed = cx.snapshot.vnic(meta.vnic).is_some_and(|vnic| vnic.allows_mac(mac));
    if row.guard & GUARD_OFF == 0 && !allowed {
        return Err(DropReason::GUARD_MAC);
    }
    if row.guard & GUARD_OFF == 0 && meta.headers.l3 == L3::None {
        return not_ip(head, meta, mac);
    }
    if !meta.headers.is_ip() {
        return Ok(());
    }
    match addresses(head, &meta.headers).0 {
        IpAddr::V6(source) if allowed && source == mac.link_local() => Ok(()),
        IpAddr::V6(source) if source.is_unspecified() && asks(&meta.headers) => Ok(()),
        source => pair(cx, meta, row, Binding { address: source, mac }),
    }
}

/// What is not the vNIC's own is one of its pairs, or it is not guarded.
#[cold]
#[inline(never)]
fn pair(cx: &Cx, meta: &Meta, row: &VnicRow, from: Binding) -> Result<(), DropReason> {
    let Some(vnic) = cx.snapshot.vnic(meta.vnic).filter(|vnic| vnic.may_send(from)) else {
        return Err(DropReason::GUARD_VIP);
    };
    // Whoever speaks from an address that is nowhere has it: a switch that was started anew finds it so.
    if row.guard != 0
        && let Some(vpc) = cx.snapshot.vpc(meta.vpc)
        && vnic.allows(from)
        && !cx.snapshot.is_held(vpc, from.address)
    {
        cx.events.float(meta.vnic, from, true);
    }
    Ok(())
}

/// From a link-local address that nobody of the VPC has, and from none, a vNIC may only ask and join groups: duplicate
/// address detection (RFC 4862 section 5.4) and what comes before it.
#[cold]
fn link_scope(cx: &Cx, meta: &Meta, row: &VnicRow, source: Ipv6Addr) -> Result<(), DropReason> {
    if cx.snapshot.vnic(meta.vnic).is_some_and(|vnic| vnic.has(source.into())) {
        return Ok(());
    }
    let held = cx.snapshot.vpc(meta.vpc).is_none_or(|vpc| cx.snapshot.is_held(vpc, source.into()));
    if !held && asks(&meta.headers) { Ok(()) } else { other_vip(cx, meta, row, source.into()) }
}

/// True for router and neighbour solicitations (RFC 4861), and for reports of a multicast listener (RFC 2710, RFC 3810).
fn asks(headers: &Headers) -> bool {
    headers.proto == protocol::ICMPV6
        && headers.is(Flags::L4)
        && matches!(
            (headers.sport >> 8) as u8,
            icmpv6::kind::ROUTER_SOLICITATION
                | icmpv6::kind::NEIGHBOUR_SOLICITATION
                | icmpv6::kind::LISTENER_REPORT
                | icmpv6::kind::LISTENER_DONE
                | icmpv6::kind::LISTENER_REPORT_V2
        )
}

/// From an IPv4 address that is not its own a vNIC may ask for one all the same: before it has one, and while it has one that was
/// its own when it was lent.
#[cold]
fn other_v4(cx: &Cx, head: &[u8], meta: &Meta, row: &VnicRow, source: Ipv4Addr) -> Result<(), DropReason> {
    let asks = |reason| if service::asks_for_address(cx, head, meta) { Ok(()) } else { Err(reason) };
    other_vip(cx, meta, row, source.into()).or_else(asks)
}

#[cold]
fn other_vip(cx: &Cx, meta: &Meta, row: &VnicRow, source: IpAddr) -> Result<(), DropReason> {
    let owned =
        row.more_vips != 0 && cx.snapshot.vnic(meta.vnic).is_some_and(|vnic| vnic.vips.contains(&source));
    let from = Binding { address: source, mac: mac_from(row.mac) };
    match (owned, row.guard) {
        (true, _) => Ok(()),
        (false, 0) => Err(DropReason::GUARD_VIP),
        (false, _) => pair(cx, meta, row, from),
    }
}
