//! ICMP errors: too big (RFC 1191, RFC 4443 section 3.2), time exceeded (RFC 792, RFC 4443 3.3), destination unreachable
//! (RFC 1812 section 5.2.7.1, RFC 4443 3.1).
//!
//! Made in place of the packet that caused them, which is quoted; none is made about an error, a later fragment
//! or a group address (RFC 1122 section 3.2.2, RFC 4443 section 2.4), nor about RoCEv2, whose senders hear none.
//!
//! A vNIC of this host hears from the virtual router: its address in the subnet of the sender, or where there is none the
//! destination's. A sender behind a tunnel hears of what is for a vNIC of this host from the vNIC's own address: every host
//! on the way knows that address to be behind this VTEP, the virtual router's is everywhere.

use std::net::IpAddr;

use wire::{
    Flags, Headers, L3, MacAddr, PacketBuf, TxRequest, View, checksum, icmp, icmpv6, ipv4, ipv6, protocol,
};

use super::Cx;
use super::forward::{Origin, to_place};
use super::neighbour::send_back;
use super::outer::addresses;
use super::tunnel::EncapInput;
use crate::Sink;
use crate::burst::{Burst, Meta, NO_INDEX};
use crate::decide::way_to;
use crate::direction::Direction;
use crate::drops::DropReason;
use crate::flow_key::outer_source_port;
use crate::miss::MissLimits;
use crate::snapshot::{Destination, mac_from};
use crate::vlt::Place;

/// What to complain about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Complaint {
    /// Larger than this MTU of the way out.
    TooBig(u16),
    /// TTL or hop limit ran out.
    TimeExceeded,
    /// It is not let through, and dropped for this reason.
    Unreachable(Unreachable, DropReason),
}

/// Why a destination cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreachable {
    /// No route leads there.
    Network,
    /// Nobody there has the address.
    Host,
    /// Somebody does not want it.
    Prohibited,
}

impl Unreachable {
    /// What the sender of a routed packet that is dropped for a reason is told; `None`: nothing.
    pub(super) fn of(reason: DropReason) -> Option<Self> {
        match reason {
            DropReason::NO_ROUTE => Some(Self::Network),
            DropReason::NO_LOCATION => Some(Self::Host),
            DropReason::BLACKHOLE => Some(Self::Prohibited),
            _ => None,
        }
    }

    /// The code of ICMP (RFC 792, RFC 1812 section 5.2.7.1).
    const fn code_v4(self) -> u8 {
        match self {
            Self::Network => icmp::CODE_NETWORK,
            Self::Host => icmp::CODE_HOST,
            Self::Prohibited => icmp::CODE_PROHIBITED,
        }
    }

    /// The code of ICMPv6 (RFC 4443 section 3.1).
    const fn code_v6(self) -> u8 {
        match self {
            Self::Network => icmpv6::CODE_NO_ROUTE,
            Self::Host => icmpv6::CODE_ADDRESS,
            Self::Prohibited => icmpv6::CODE_PROHIBITED,
        }
    }
}

impl Complaint {
    /// What the packet is dropped as.
    const fn reason(self) -> DropReason {
        match self {
            Self::TooBig(_) => DropReason::MTU_EXCEEDED,
            Self::TimeExceeded => DropReason::TTL_EXPIRED,
            Self::Unreachable(_, reason) => reason,
        }
    }
}

/// Who sends an error: the virtual router, or a vNIC of this host.
struct Speaker {
    /// `None`: the destination of the packet complained about.
    address: Option<IpAddr>,
    mac: MacAddr,
}

/// Most bytes of the original that IPv4 quotes: 576 less both headers (RFC 1812 section 4.3.2.3).
const QUOTE_V4: usize = 576 - 28;
/// The same for IPv6: the minimum MTU less both headers (RFC 4443 section 2.4).
const QUOTE_V6: usize = ipv6::MIN_MTU - 48;
/// Longest layer 2 header: Ethernet and two tags.
const MAX_L2: usize = 22;

/// Drops a packet for a reason. Where the virtual router was to send it on, and the reason is one that routers tell of
/// ([`Unreachable::of`]), its sender hears of it; of what is bridged, the router knows nothing.
#[cold]
#[inline(never)]
pub(super) fn drop_and_tell<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    i: usize,
    reason: DropReason,
    limits: &mut MissLimits,
    sink: &mut S,
) {
    let meta = &burst.metas[i];
    let is_told = meta.key.routed() && !is_to_all_of_a_subnet(cx, meta);
    match Unreachable::of(reason).filter(|_| is_told) {
        Some(why) => complain(cx, burst, i, Complaint::Unreachable(why, reason), None, limits, sink),
        None => burst.drop(i, reason, cx.counters),
    }
}

/// True for a packet to the broadcast address of a subnet, about which nobody is told (RFC 1122 section 3.2.2).
fn is_to_all_of_a_subnet(cx: &Cx, meta: &Meta) -> bool {
    let Some(IpAddr::V4(destination)) = meta.key.addresses().map(|ip| ip.destination) else { return false };
    let subnet = cx.snapshot.vpc(meta.vpc).and_then(|vpc| vpc.subnet_of(destination.into()));
    let host_bits = |len: u8| u32::MAX.checked_shr(len.into()).unwrap_or(0);
    subnet
        .map(|subnet| subnet.prefix.len())
        .is_some_and(|len| len < 31 && destination.to_bits() & host_bits(len) == host_bits(len))
}

/// Drops a packet and tells its sender why, as often as the vNIC that it is about may cause errors: the one that sent it,
/// or `receiver`, a vNIC of this host, of a packet out of a tunnel; each has a rate of its own.
#[cold]
#[inline(never)]
pub(super) fn complain<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    i: usize,
    complaint: Complaint,
    receiver: Option<u32>,
    limits: &mut MissLimits,
    sink: &mut S,
) {
    let (meta, reason) = (burst.metas[i], complaint.reason());
    let direction = meta.direction();
    let about = if direction == Direction::In { receiver } else { Some(meta.vnic) };
    let Some((packet, about)) = burst.packets[i].as_mut().zip(about) else {
        return burst.drop(i, reason, cx.counters);
    };
    let (source, destination) = addresses(packet.head(), &meta.headers);
    // What is said to nobody costs nothing of the rate.
    let sayable = allowed(packet.head(), &meta.headers)
        && !is_roce(cx, &meta.headers)
        && is_station(source)
        && is_station(destination);
    let way = if direction == Direction::In { way_back(cx, &meta, packet.head(), source) } else { None };
    let (speaker, to) = if direction == Direction::In {
        let to = way.map(|(_, mac)| mac);
        (Speaker { address: None, mac: mac_from(cx.snapshot.row(about).mac) }, to)
    } else {
        let vpc = cx.snapshot.vpc(meta.vpc);
        let address = vpc.and_then(|vpc| vpc.subnet_of(source)).and_then(|subnet| subnet.gateway);
        let mac = vpc.map_or(MacAddr::ZERO, |vpc| vpc.router_mac);
        (Speaker { address, mac }, Some(station_of(cx, about, meta.vpc, source)))
    };
    let told = sayable
        && to.is_some_and(|to| {
            limits.admit_error(about, direction, cx.snapshot.settings.error_rate, cx.now.ns)
                && make(packet, &meta.headers, complaint, &speaker, to)
        });
    if !told {
        return burst.drop(i, reason, cx.counters);
    }
    // The packet is dropped by name; what takes its place is a new one.
    cx.counters.drop(reason);
    cx.counters.originated.add(1);
    match way {
        Some((place, _)) => {
            let Some(packet) = burst.take(i) else { return };
            let origin = Origin { vnic: NO_INDEX, direction: Direction::Out };
            let flow = EncapInput { tos: 0, source_port: outer_source_port(meta.vpc as u16, 0), roce: false };
            if let Err((reason, _)) = to_place(cx, sink, packet, place, origin, flow) {
                cx.counters.drop(reason);
            }
        }
        None => {
            cx.counters.vnic(meta.vnic as usize).drops.add(1);
            send_back(cx, burst, i, sink);
        }
    }
}

/// The MAC of the station behind a vNIC that sent from an address: the vNIC's own, or that with which the address floats there.
fn station_of(cx: &Cx, vnic: u32, vpc: u32, source: IpAddr) -> MacAddr {
    let own = mac_from(cx.snapshot.row(vnic).mac);
    let Some(location) = cx.snapshot.location(vpc, Destination::Ip(source)) else { return own };
    match cx.snapshot.vlt.read(location.slot.slot).place {
        Place::Local { vnic: at } if at == vnic => location.mac,
        _ => own,
    }
}

/// Where the sender of a packet out of a tunnel is, and its MAC: the station that has the frame's source MAC, or where that
/// is a router's, the source address. `None` for one that says it is a vNIC of this host.
fn way_back(cx: &Cx, meta: &Meta, head: &[u8], source: IpAddr) -> Option<(Place, MacAddr)> {
    let vpc = cx.snapshot.vpc(meta.vpc)?;
    let mac = meta.headers.ethernet(head)?.src;
    let bridged =
        cx.snapshot.location(meta.vpc, Destination::Mac(mac)).map(|location| (location.slot, location.mac));
    let (slot, mac) = bridged.or_else(|| way_to(cx.snapshot, vpc, source))?;
    let reading = cx.snapshot.vlt.read(slot.slot);
    let remote = reading.generation == slot.generation && matches!(reading.place, Place::Remote(_));
    remote.then_some((reading.place, mac))
}

/// True for an address that one station may have: errors go to no other, and are made about no packet to another.
fn is_station(address: IpAddr) -> bool {
    !address.is_unspecified()
        && !address.is_multicast()
        && !address.is_loopback()
        && !matches!(address, IpAddr::V4(address) if address.is_broadcast())
}

/// A sender of RoCEv2 hears no ICMP: its path MTU is set, not found.
pub(super) fn is_roce(cx: &Cx, headers: &Headers) -> bool {
    headers.proto == protocol::UDP
        && headers.dport == cx.snapshot.settings.rdma_port
        && headers.is(Flags::L4)
        && headers.is_ip()
}

/// Turns a packet into an error to its sender, whose MAC is `to` (the packet's own source MAC may be rewritten by
/// now). `false`: the packet must be dropped silently.
fn make<P: PacketBuf>(
    packet: &mut P,
    headers: &Headers,
    complaint: Complaint,
    speaker: &Speaker,
    to: MacAddr,
) -> bool {
    allowed(packet.head(), headers) && build(packet, headers, complaint, speaker, to).is_some()
}

fn allowed(head: &[u8], headers: &Headers) -> bool {
    let error = match (headers.l3, headers.proto) {
        (L3::Ipv4, protocol::ICMP) => icmp::is_error((headers.sport >> 8) as u8),
        (L3::Ipv6, protocol::ICMPV6) => icmpv6::is_error((headers.sport >> 8) as u8),
        _ => false,
    };
    headers.is_ip()
        && !error
        && !headers.is(Flags::FRAGMENT_LATER)
        && head.first().is_some_and(|b| b & 1 == 0)
}

fn build<P: PacketBuf>(
    packet: &mut P,
    headers: &Headers,
    complaint: Complaint,
    speaker: &Speaker,
    to: MacAddr,
) -> Option<()> {
    let l3 = usize::from(headers.l3_offset);
    let mut l2 = [0u8; MAX_L2];
    l2.get_mut(..l3)?.copy_from_slice(packet.head().get(..l3)?);
    l2[..6].copy_from_slice(&to.0);
    l2[6..12].copy_from_slice(&speaker.mac.0);
    let (limit, header_len) = match headers.l3 {
        L3::Ipv4 => (QUOTE_V4, 28),
        _ => (QUOTE_V6, 48),
    };
    if packet.is_unfinished() {
        // Nothing is left to do in the error.
        packet.request_tx(TxRequest::default());
    }
    packet.trim_front(l3).then_some(())?;
    // Of a packet of several segments, what the first one holds: all headers.
    let quote = usize::from(headers.l3_len).min(limit).min(packet.head().len());
    packet.trim_back(packet.len().checked_sub(quote)?).then_some(())?;
    let mut prefix = [0u8; 48];
    let quoted = packet.head().get(..quote)?;
    match headers.l3 {
        L3::Ipv4 => v4(&mut prefix, quoted, complaint, speaker.address)?,
        _ => v6(&mut prefix, quoted, complaint, speaker.address)?,
    }
    let head = packet.prepend(l3 + header_len)?;
    head.get_mut(..l3)?.copy_from_slice(&l2[..l3]);
    head.get_mut(l3..l3 + header_len)?.copy_from_slice(&prefix[..header_len]);
    Some(())
}

fn v4(out: &mut [u8; 48], quoted: &[u8], complaint: Complaint, from: Option<IpAddr>) -> Option<()> {
    let original = ipv4::Header::view_at(quoted, 0)?;
    let from = match from {
        Some(IpAddr::V4(address)) => address,
        _ => original.dst(),
    };
    let mut ip = ipv4::Header::new(from, original.src(), protocol::ICMP, (quoted.len() + 8) as u16);
    ip.fill_checksum();
    let mut error = match complaint {
        Complaint::TooBig(mtu) => {
            icmp::Header::new(icmp::kind::UNREACHABLE, icmp::CODE_FRAGMENTATION_NEEDED, 0, mtu)
        }
        Complaint::TimeExceeded => icmp::Header::new(icmp::kind::TIME_EXCEEDED, 0, 0, 0),
        Complaint::Unreachable(why, _) => icmp::Header::new(icmp::kind::UNREACHABLE, why.code_v4(), 0, 0),
    };
    let mut sum = checksum::sum(error.bytes());
    sum.add(quoted);
    error.checksum.set(sum.checksum());
    out[..20].copy_from_slice(ip.bytes());
    out[20..28].copy_from_slice(error.bytes());
    Some(())
}

fn v6(out: &mut [u8; 48], quoted: &[u8], complaint: Complaint, from: Option<IpAddr>) -> Option<()> {
    let original = ipv6::Header::view_at(quoted, 0)?;
    let from = match from {
        Some(IpAddr::V6(address)) => address,
        _ => original.dst(),
    };
    let len = quoted.len() + 8;
    let ip = ipv6::Header::new(from, original.src(), protocol::ICMPV6, len as u16);
    let mut error = match complaint {
        Complaint::TooBig(mtu) => icmpv6::Header::new(icmpv6::kind::TOO_BIG, 0, u32::from(mtu)),
        Complaint::TimeExceeded => icmpv6::Header::new(icmpv6::kind::TIME_EXCEEDED, 0, 0),
        Complaint::Unreachable(why, _) => icmpv6::Header::new(icmpv6::kind::UNREACHABLE, why.code_v6(), 0),
    };
    let mut sum = checksum::pseudo_v6(&from.octets(), &original.src().octets(), protocol::ICMPV6, len as u32);
    sum.add(error.bytes());
    sum.add(quoted);
    error.checksum.set(sum.checksum());
    out[..40].copy_from_slice(ip.bytes());
    out[40..48].copy_from_slice(error.bytes());
    Some(())
}
