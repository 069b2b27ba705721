//! DHCPv4 (RFC 2131, options of RFC 2132, RFC 3442 and RFC 6842) of one vNIC, whose address is known beforehand.

use std::net::{IpAddr, Ipv4Addr};

use dhcproto::Encodable;
use dhcproto::error::EncodeResult;
use dhcproto::v4::{DhcpOption, DhcpOptions, Flags, Message, MessageType, Opcode, OptionCode};
use ipnet::{IpNet, Ipv4Net};
use wire::build::Path;
use wire::dhcp::{Request, kind, option};
use wire::udp::port::{DHCP_CLIENT, DHCP_SERVER};
use wire::{MacAddr, ipv4, udp};

use super::Answer;
use crate::config::{DhcpConfig, DomainName};

/// Longest datagram that every client takes (RFC 2131 section 2), bytes.
const EVERY_CLIENT_TAKES: u16 = 576;
/// Bytes of a message below which old clients and relays do not see one: a BOOTP message (RFC 951 section 3).
const LEAST: usize = 300;
/// What is left out of an answer that gets too long, first the first.
const DISPENSABLE: [OptionCode; 5] = [
    OptionCode::BroadcastAddr,
    OptionCode::Hostname,
    OptionCode::DomainName,
    OptionCode::ClasslessStaticRoute,
    OptionCode::DomainNameServer,
];

/// What a vNIC is told.
#[derive(Clone, Debug)]
pub struct Facts<'c> {
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its address.
    pub address: Ipv4Addr,
    /// The subnet.
    pub subnet: Ipv4Net,
    /// The virtual router in it, which is the server.
    pub router: (MacAddr, Ipv4Addr),
    /// Its MTU.
    pub mtu: u16,
    /// Its name.
    pub host_name: Option<DomainName>,
    /// The rest.
    pub dhcp: &'c DhcpConfig,
}

impl Facts<'_> {
    /// The answer to a UDP payload from the vNIC.
    pub fn answer(&self, payload: &[u8]) -> Answer {
        let Some(request) = Request::parse(payload) else { return Answer::Silence };
        let server = request.address(option::SERVER_ID);
        if server.is_some_and(|server| server != self.router.1) {
            return Answer::Silence;
        }
        let answer = match request.kind() {
            Some(kind::DISCOVER) => self.reply(&request, MessageType::Offer).map(Answer::Told),
            Some(kind::INFORM) if request.header.client().is_unspecified() => None,
            Some(kind::INFORM) => self.reply(&request, MessageType::Inform).map(Answer::Told),
            Some(kind::REQUEST) => match wanted(&request) {
                Some(address) if address == self.address => {
                    self.reply(&request, MessageType::Ack).map(Answer::Given)
                }
                Some(_) => self.reply(&request, MessageType::Nak).map(Answer::Refused),
                None => None,
            },
            Some(kind::RELEASE) => Some(Answer::Released(None)),
            Some(kind::DECLINE) => request
                .address(option::REQUESTED_ADDRESS)
                .map(|address| Answer::Declined(vec![address.into()], None)),
            _ => None,
        };
        answer.unwrap_or(Answer::Silence)
    }

    /// A reply's frame. [`MessageType::Inform`] stands for the acknowledgement without a lease (RFC 2131 section 4.3.5).
    fn reply(&self, request: &Request<'_>, what: MessageType) -> Option<Vec<u8>> {
        let asked = request.header;
        let client = asked.client();
        let (mac, server) = self.router;
        let gives = matches!(what, MessageType::Offer | MessageType::Ack);
        let yours = if gives { self.address } else { Ipv4Addr::UNSPECIFIED };
        // Table 3 of RFC 2131: an acknowledgement repeats the client's address, offers and refusals have none.
        let repeated = if gives && what != MessageType::Ack || what == MessageType::Nak {
            Ipv4Addr::UNSPECIFIED
        } else {
            client
        };
        let none = Ipv4Addr::UNSPECIFIED;
        let mut message = Message::new_with_id(asked.xid.get(), repeated, yours, none, none, &asked.mac().0);
        message.set_opcode(Opcode::BootReply).set_flags(Flags::new(asked.flags.get()));
        let shown = if what == MessageType::Inform { MessageType::Ack } else { what };
        let options = message.opts_mut();
        options.insert(DhcpOption::MessageType(shown));
        options.insert(DhcpOption::ServerIdentifier(server));
        if let Some(id) = request.option(option::CLIENT_ID) {
            options.insert(DhcpOption::ClientIdentifier(id.to_vec()));
        }
        if gives {
            let lease = self.dhcp.lease_seconds();
            options.insert(DhcpOption::AddressLeaseTime(lease));
            options.insert(DhcpOption::Renewal(lease / 2));
            // Seven eighths (RFC 2131 section 4.4.5).
            options.insert(DhcpOption::Rebinding(lease - lease / 8));
        }
        if what != MessageType::Nak {
            self.tell(options);
        }
        let most = usize::from(request.max_message_size().unwrap_or(0).max(EVERY_CLIENT_TAKES).min(self.mtu));
        let payload = fit(&mut message, most.saturating_sub(ipv4::HEADER_LEN + udp::HEADER_LEN)).ok()?;
        // RFC 2131 section 4.1: refusals to all, the rest to the client's address where it hears that.
        let broadcast = (MacAddr([0xff; 6]), Ipv4Addr::BROADCAST);
        let to = match what {
            MessageType::Nak => broadcast,
            _ if !client.is_unspecified() => (self.mac, client),
            _ if asked.wants_broadcast() => broadcast,
            _ => (self.mac, yours),
        };
        Some(Path::v4((mac, server), to).udp(DHCP_SERVER, DHCP_CLIENT, &payload))
    }

    /// What a client is told besides its address.
    fn tell(&self, options: &mut DhcpOptions) {
        let (_, server) = self.router;
        options.insert(DhcpOption::SubnetMask(self.subnet.netmask()));
        options.insert(DhcpOption::Router(vec![server]));
        options.insert(DhcpOption::InterfaceMtu(self.dhcp.mtu.map_or(self.mtu, |mtu| mtu.min(self.mtu))));
        if self.subnet.prefix_len() < 31 {
            options.insert(DhcpOption::BroadcastAddr(self.subnet.broadcast()));
        }
        let dns: Vec<Ipv4Addr> = self.dhcp.dns.iter().filter_map(v4).collect();
        if !dns.is_empty() {
            options.insert(DhcpOption::DomainNameServer(dns));
        }
        if let Some(domain) = &self.dhcp.domain {
            options.insert(DhcpOption::DomainName(domain.to_string()));
        }
        if let Some(name) = &self.host_name {
            options.insert(DhcpOption::Hostname(name.to_string()));
        }
        let routes = self.dhcp.routes.iter().filter_map(|route| match (route.to, route.via) {
            (IpNet::V4(to), None) => Some((to, server)),
            (IpNet::V4(to), Some(via)) => Some((to, v4(&via)?)),
            (IpNet::V6(_), _) => None,
        });
        let routes: Vec<_> = routes.collect();
        if !routes.is_empty() {
            // Who reads these must not look at the router option (RFC 3442), so the route to everywhere is among them.
            let has_default = routes.iter().any(|(to, _)| to.prefix_len() == 0);
            let default = (!has_default).then_some((Ipv4Net::default(), server));
            options.insert(DhcpOption::ClasslessStaticRoute(routes.into_iter().chain(default).collect()));
        }
    }
}

/// The address that a client would have (RFC 2131 section 4.3.2): one that it was offered or remembers, or the one that it has
/// and would keep.
fn wanted(request: &Request<'_>) -> Option<Ipv4Addr> {
    let client = request.header.client();
    request.address(option::REQUESTED_ADDRESS).or_else(|| (!client.is_unspecified()).then_some(client))
}

/// The bytes of a message, without what is too much for `most` of them.
fn fit(message: &mut Message, most: usize) -> EncodeResult<Vec<u8>> {
    let mut bytes = message.to_vec()?;
    for code in DISPENSABLE {
        if bytes.len() <= most.max(LEAST) {
            break;
        }
        message.opts_mut().remove(code);
        bytes = message.to_vec()?;
    }
    bytes.resize(bytes.len().max(LEAST), option::PAD);
    Ok(bytes)
}

const fn v4(address: &IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    }
}
