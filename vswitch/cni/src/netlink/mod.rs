//! Links, addresses and routes of one network namespace, by rtnetlink.

mod answers;

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;

use ipnet::IpNet;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use wire::MacAddr;

use self::answers::{address, link, route};
use crate::netns;
use crate::result::Route;

/// A socket of the namespace in which it was opened, whoever uses it.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    pub alias: String,
    pub mac: Option<MacAddr>,
    pub mtu: u32,
    pub is_up: bool,
    /// The index of the other end of a veth, in that end's namespace.
    pub peer: Option<u32>,
}

/// A veth to be made.
#[derive(Debug)]
pub struct Veth<'v> {
    pub host_end: &'v str,
    pub pod_end: &'v str,
    pub mac: MacAddr,
    pub mtu: Option<u16>,
}

impl Netlink {
    /// Of the namespace of this process.
    ///
    /// # Errors
    /// When the kernel gives no socket.
    pub fn here() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Of another namespace.
    ///
    /// # Errors
    /// When the file is no namespace, or the kernel gives no socket.
    pub fn of(netns: &File) -> io::Result<Self> {
        netns::inside(netns, Self::here)
    }

    /// Sends a request and takes in its answers.
    fn ask(&mut self, request: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answers = Vec::new();
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let answer =
                    NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
                // Each begins at a multiple of four.
                let length = (answer.header.length as usize).next_multiple_of(4).max(4);
                rest = rest.get(length..).unwrap_or_default();
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    _ => {}
                }
            }
        }
    }

    fn change(&mut self, request: RouteNetlinkMessage) -> io::Result<()> {
        self.ask(request, NLM_F_ACK).map(drop)
    }

    fn make(&mut self, request: RouteNetlinkMessage) -> io::Result<()> {
        self.ask(request, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    /// An interface, by its name.
    pub fn link(&mut self, name: &str) -> io::Result<Option<Link>> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        match self.ask(RouteNetlinkMessage::GetLink(message), NLM_F_ACK) {
            Ok(answers) => Ok(answers.into_iter().find_map(link)),
            Err(error) if is(&error, Errno::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn links(&mut self) -> io::Result<Vec<Link>> {
        let answers = self.ask(RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP)?;
        Ok(answers.into_iter().filter_map(link).collect())
    }

    /// Makes a veth: one end here, the other in the namespace of a file. Both are down.
    pub fn make_veth(&mut self, veth: &Veth<'_>, netns: &File) -> io::Result<()> {
        let mtu = veth.mtu.map(|mtu| LinkAttribute::Mtu(mtu.into()));
        let mut pod = LinkMessage::default();
        pod.attributes = vec![
            LinkAttribute::IfName(veth.pod_end.to_owned()),
            LinkAttribute::Address(veth.mac.0.to_vec()),
            LinkAttribute::NetNsFd(netns.as_raw_fd()),
        ];
        pod.attributes.extend(mtu.clone());
        let mut host = LinkMessage::default();
        let data = LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(pod)));
        host.attributes = vec![
            LinkAttribute::IfName(veth.host_end.to_owned()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth), data]),
        ];
        host.attributes.extend(mtu);
        self.make(RouteNetlinkMessage::NewLink(host))
    }

    /// Sets the end of a veth at the host up, without ARP, and says who it is for.
    pub fn set_host_end_up(&mut self, index: u32, alias: &str) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up | LinkFlags::Noarp;
        message.header.change_mask = LinkFlags::Up | LinkFlags::Noarp;
        message.attributes.push(LinkAttribute::IfAlias(alias.to_owned()));
        self.change(RouteNetlinkMessage::SetLink(message))
    }

    /// Takes an interface away; one that there is not is well away.
    pub fn delete_link(&mut self, index: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        match self.change(RouteNetlinkMessage::DelLink(message)) {
            Err(error) if !is(&error, Errno::ENODEV) => Err(error),
            _ => Ok(()),
        }
    }

    /// Sets an interface up, and its MTU where one is given.
    pub fn set_up(&mut self, index: u32, mtu: Option<u32>) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes.extend(mtu.map(LinkAttribute::Mtu));
        self.change(RouteNetlinkMessage::SetLink(message))
    }

    /// The addresses of an interface, but for those of the link alone.
    pub fn addresses(&mut self, index: u32) -> io::Result<Vec<IpNet>> {
        let answers = self.ask(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP)?;
        Ok(answers.into_iter().filter_map(|answer| address(answer, index)).collect())
    }

    /// Gives an interface an address, without duplicate address detection: the switch knows that it is the only one.
    pub fn add_address(&mut self, index: u32, address: IpNet) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = family(address.addr());
        message.header.prefix_len = address.prefix_len();
        message.header.index = index;
        if address.addr().is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        message.attributes =
            vec![AddressAttribute::Local(address.addr()), AddressAttribute::Address(address.addr())];
        self.make(RouteNetlinkMessage::NewAddress(message))
    }

    /// The routes by an interface that are not the kernel's own.
    pub fn routes(&mut self, index: u32) -> io::Result<Vec<Route>> {
        let mut routes = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            let answers = self.ask(RouteNetlinkMessage::GetRoute(message), NLM_F_DUMP)?;
            routes.extend(answers.into_iter().filter_map(|answer| route(answer, index)));
        }
        Ok(routes)
    }

    pub fn add_route(&mut self, index: u32, route: &Route) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(route.dst.addr());
        message.header.destination_prefix_length = route.dst.prefix_len();
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = if route.gw.is_some() { RouteScope::Universe } else { RouteScope::Link };
        message.header.kind = RouteType::Unicast;
        message.attributes.push(RouteAttribute::Oif(index));
        if route.dst.prefix_len() > 0 {
            message.attributes.push(RouteAttribute::Destination(route.dst.network().into()));
        }
        message.attributes.extend(route.gw.map(|gateway| RouteAttribute::Gateway(gateway.into())));
        self.make(RouteNetlinkMessage::NewRoute(message))
    }
}

/// True for this error of the kernel.
pub fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}
