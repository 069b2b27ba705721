//! service: questions to the services of a VPC, checked, limited and handed to control.

use std::net::IpAddr;

use wire::l4::{ChecksumVerdict, verify};
use wire::{Flags, PacketBuf, View, protocol, udp};

use super::outer::addresses;
use super::{Cx, bind};
use crate::Sink;
use crate::burst::{Burst, Meta};
use crate::counters::PipelineCounters;
use crate::drops::DropReason;
use crate::flow_key::FlowAddresses;
use crate::miss::MissLimits;
use crate::service::{self, ServiceRequest};
use crate::snapshot::{NO_PORT, Services, Snapshot, mac_from};

/// True for a packet by which a vNIC may ask for an address that it has not: from any of IPv4, for it goes nowhere but to control,
/// and from a link-local one of IPv6 that nobody has.
#[cold]
#[inline(never)]
pub(super) fn asks_for_address(cx: &Cx, head: &[u8], meta: &Meta) -> bool {
    let headers = &meta.headers;
    if headers.proto != protocol::UDP || !headers.is(Flags::L4) || headers.vlan_count != 0 {
        return false;
    }
    let Some(vpc) = cx.snapshot.vpc(meta.vpc) else { return false };
    let (source, destination) = addresses(head, headers);
    let may_ask = match source {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => address.is_unicast_link_local() && !cx.snapshot.is_held(vpc, source),
    };
    may_ask && service::asks(cx.snapshot, vpc, meta.vnic, destination, headers.dport)
}

/// True when a vNIC that looks for a router from an address is told of the virtual one.
#[cold]
pub(super) fn has_router_for(cx: &Cx, meta: &Meta, address: IpAddr) -> bool {
    cx.snapshot.serves(meta.vnic, Services::ADVERTISEMENTS, address)
}

/// Takes a question in.
#[cold]
#[inline(never)]
pub(super) fn run<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, i: usize, limits: &mut MissLimits) {
    let meta = &burst.metas[i];
    // First what costs the least: a storm ends here.
    if !limits.admit_service(meta.vnic, cx.now.ns) {
        burst.drop(i, DropReason::SERVICE_LIMIT, cx.counters);
        return;
    }
    let Some(packet) = burst.packets[i].as_ref() else { return };
    let request = read(cx, packet, meta).ok_or(DropReason::DHCP_MALFORMED);
    let handed = request.and_then(|request| {
        request.check()?;
        cx.events.ask(request)
    });
    match handed {
        Ok(()) => {
            burst.take(i);
            cx.counters.consumed.add(1);
            cx.counters.service_requests.add(1);
        }
        Err(reason) => burst.drop(i, reason, cx.counters),
    }
}

/// Hands a packet that the switch made, or turned into its answer, to a vNIC of this host.
pub fn deliver<P: PacketBuf, S: Sink<P>>(
    snapshot: &Snapshot,
    counters: &PipelineCounters,
    vnic: u32,
    mut packet: P,
    sink: &mut S,
) {
    let row = snapshot.row(vnic);
    if row.port == NO_PORT {
        counters.drop(DropReason::PORT_DOWN);
        return;
    }
    if row.vlan != 0 && !bind::push_tag(&mut packet, row.vlan) {
        counters.drop(DropReason::NO_BUFFER);
        return;
    }
    let of_vnic = counters.vnic(vnic as usize);
    of_vnic.tx_packets.add(1);
    of_vnic.tx_bytes.add(packet.len() as u64);
    sink.send(row.port, packet);
}

/// Copies the payload of a UDP datagram that is whole.
fn read<P: PacketBuf>(cx: &Cx, packet: &P, meta: &Meta) -> Option<ServiceRequest> {
    let headers = &meta.headers;
    let whole = headers.is(Flags::L4) && !headers.flags.intersects(Flags::FRAGMENT);
    if !whole || verify(headers, packet.segments()) == ChecksumVerdict::Bad {
        return None;
    }
    let (source, destination) = addresses(packet.head(), headers);
    let mac = mac_from(cx.snapshot.row(meta.vnic).mac);
    let mut request = ServiceRequest::new(meta.vnic, mac, FlowAddresses { source, destination });
    let at = usize::from(headers.l4_offset);
    let len = usize::from(udp::Header::view_at(packet.head(), at)?.len.get());
    // What is left to skip, and to copy.
    let (mut skip, mut left) = (at + udp::HEADER_LEN, len.checked_sub(udp::HEADER_LEN)?);
    for segment in packet.segments() {
        let part = segment.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(segment.len());
        let part = &part[..part.len().min(left)];
        left -= part.len();
        request.extend(part).then_some(())?;
    }
    (left == 0).then_some(request)
}
