//! What the kernel tells of links, addresses and routes.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::address::AddressAttribute;
use netlink_packet_route::link::{LinkAttribute, LinkFlags};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteProtocol, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use wire::MacAddr;

use super::Link;
use crate::result::Route;

pub(super) fn link(answer: RouteNetlinkMessage) -> Option<Link> {
    let RouteNetlinkMessage::NewLink(message) = answer else { return None };
    let mut link = Link { index: message.header.index, ..Link::default() };
    link.is_up = message.header.flags.contains(LinkFlags::Up);
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::IfAlias(alias) => link.alias = alias,
            LinkAttribute::Address(bytes) => link.mac = bytes.try_into().ok().map(MacAddr),
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::Link(peer) => link.peer = Some(peer),
            _ => {}
        }
    }
    Some(link)
}

pub(super) fn address(answer: RouteNetlinkMessage, index: u32) -> Option<IpNet> {
    let RouteNetlinkMessage::NewAddress(message) = answer else { return None };
    let mut found = None;
    for attribute in message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => found = Some(ip),
            AddressAttribute::Address(ip) => found = found.or(Some(ip)),
            _ => {}
        }
    }
    let ip = found.filter(|_| message.header.index == index)?;
    let is_of_link = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    IpNet::new(ip, message.header.prefix_len).ok().filter(|_| !is_of_link)
}

pub(super) fn route(answer: RouteNetlinkMessage, index: u32) -> Option<Route> {
    let RouteNetlinkMessage::NewRoute(message) = answer else { return None };
    let header = &message.header;
    let ours = header.table == RouteHeader::RT_TABLE_MAIN
        && header.kind == RouteType::Unicast
        && header.protocol != RouteProtocol::Kernel;
    let ip = |address: &RouteAddress| match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    };
    let (mut to, mut gw, mut by) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => to = ip(address),
            RouteAttribute::Gateway(address) => gw = ip(address),
            RouteAttribute::Oif(index) => by = Some(*index),
            _ => {}
        }
    }
    let any: IpAddr = match header.address_family {
        AddressFamily::Inet => [0; 4].into(),
        _ => [0; 16].into(),
    };
    let dst = IpNet::new(to.unwrap_or(any), header.destination_prefix_length).ok()?;
    (ours && by == Some(index)).then_some(Route { dst, gw })
}
