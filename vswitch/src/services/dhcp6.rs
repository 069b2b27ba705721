//! DHCPv6 (RFC 8415, options of RFC 3646) of one vNIC, whose address is known beforehand.

use std::net::{IpAddr, Ipv6Addr};

use dhcproto::Encodable;
use dhcproto::v6::{
    DhcpOption, DhcpOptions, IAAddr, IANA, IAPD, IATA, Message, MessageType, OptionCode, Status, StatusCode,
    UnknownOption,
};
use wire::MacAddr;
use wire::build::Path;
use wire::dhcpv6::{Association, Request, kind, option};
use wire::udp::port::{DHCPV6_CLIENT, DHCPV6_SERVER};

use super::Answer;
use crate::config::{DhcpConfig, DomainName};

/// What a vNIC is told.
#[derive(Clone, Debug)]
pub struct Facts<'c> {
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its address.
    pub address: Ipv6Addr,
    /// The MAC address of the virtual router, which is the server.
    pub router: MacAddr,
    /// The rest.
    pub dhcp: &'c DhcpConfig,
}

/// What becomes of the addresses that a client names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bindings {
    /// The vNIC's is given; others have no time left.
    Given,
    /// They are its own to give back.
    Ended,
}

impl Facts<'_> {
    /// The server's DUID: made of the router's MAC address (RFC 8415 section 11.4), so that it is the same on every host.
    pub fn server_id(&self) -> Vec<u8> {
        [&[0, 3, 0, 1], &self.router.0[..]].concat()
    }

    /// The answer to a UDP payload that the vNIC sent from an address.
    pub fn answer(&self, from: Ipv6Addr, payload: &[u8]) -> Answer {
        self.answered(from, payload).unwrap_or(Answer::Silence)
    }

    fn answered(&self, from: Ipv6Addr, payload: &[u8]) -> Option<Answer> {
        let request = Request::parse(payload)?;
        let server = request.options.find(option::SERVER_ID);
        let is_ours = server.is_some_and(|server| *server == *self.server_id());
        let client = request.options.find(option::CLIENT_ID);
        // RFC 8415 section 16: which messages need whose identity, and which must not have it.
        let (needs_server, needs_client) = match request.kind {
            kind::SOLICIT | kind::CONFIRM | kind::REBIND => (Some(false), true),
            kind::INFORMATION_REQUEST => (None, false),
            _ => (Some(true), true),
        };
        let good_server = needs_server
            .map_or(server.is_none() || is_ours, |needed| if needed { is_ours } else { server.is_none() });
        if !good_server || needs_client && client.is_none() {
            return None;
        }
        let mut options = DhcpOptions::new();
        options.insert(DhcpOption::ServerId(self.server_id()));
        if let Some(client) = client {
            options.insert(DhcpOption::ClientId(client.to_vec()));
        }
        let reply = |options| self.frame(from, MessageType::Reply, &request, options);
        match request.kind {
            kind::SOLICIT => {
                self.bind(&request, &mut options, Bindings::Given);
                self.tell(&mut options);
                if request.options.find(option::RAPID_COMMIT).is_some() {
                    options.insert(DhcpOption::RapidCommit);
                    return Some(Answer::Given(reply(options)?));
                }
                Some(Answer::Told(self.frame(from, MessageType::Advertise, &request, options)?))
            }
            kind::REQUEST | kind::RENEW | kind::REBIND => {
                let given = self.bind(&request, &mut options, Bindings::Given);
                self.tell(&mut options);
                let frame = reply(options)?;
                Some(if given { Answer::Given(frame) } else { Answer::Refused(frame) })
            }
            kind::CONFIRM => {
                let named: Vec<Ipv6Addr> =
                    request.associations().flat_map(|association| association.addresses()).collect();
                // Nothing to judge: silence (RFC 8415 section 18.3.3).
                let right = !named.is_empty() && named.iter().all(|address| *address == self.address);
                if named.is_empty() {
                    return None;
                }
                let code = if right { Status::Success } else { Status::NotOnLink };
                options.insert(status(code));
                let frame = reply(options)?;
                Some(if right { Answer::Told(frame) } else { Answer::Refused(frame) })
            }
            kind::RELEASE | kind::DECLINE => {
                self.bind(&request, &mut options, Bindings::Ended);
                options.insert(status(Status::Success));
                let frame = reply(options)?;
                if request.kind == kind::RELEASE {
                    return Some(Answer::Released(Some(frame)));
                }
                let addresses = request.associations().flat_map(|association| association.addresses());
                Some(Answer::Declined(addresses.map(IpAddr::V6).collect(), Some(frame)))
            }
            // A request for the rest has no associations (RFC 8415 section 16.12).
            _ if request.associations().next().is_some() => None,
            _ => {
                self.tell(&mut options);
                options.insert(DhcpOption::InformationRefreshTime(self.dhcp.lease_seconds()));
                Some(Answer::Told(reply(options)?))
            }
        }
    }

    /// Answers the associations: the address is in the first of addresses, and there is nothing for the others. True when the client
    /// was given the address.
    fn bind(&self, request: &Request<'_>, options: &mut DhcpOptions, what: Bindings) -> bool {
        let mut given = false;
        for association in request.associations() {
            let answer = match (what, association.code) {
                (Bindings::Given, option::IA_NA) if !given => {
                    given = true;
                    self.lend(&association)
                }
                (Bindings::Ended, _) if association.addresses().all(|address| address == self.address) => {
                    continue;
                }
                (Bindings::Ended, _) => empty(&association, Status::NoBinding),
                (Bindings::Given, option::IA_PD) => empty(&association, Status::NoPrefixAvail),
                (Bindings::Given, _) => empty(&association, Status::NoAddrsAvail),
            };
            options.insert(answer);
        }
        given
    }

    /// The vNIC's address for a lease; others that the client names have no time left (RFC 8415 section 18.3.4).
    fn lend(&self, association: &Association<'_>) -> DhcpOption {
        let lease = self.dhcp.lease_seconds();
        let others =
            association.addresses().filter(|address| *address != self.address).map(|address| (address, 0));
        let addresses = std::iter::once((self.address, lease)).chain(others).map(|(addr, lifetime)| {
            let (preferred_life, valid_life) = (lifetime, lifetime);
            DhcpOption::IAAddr(IAAddr { addr, preferred_life, valid_life, opts: DhcpOptions::new() })
        });
        // Half, and four fifths (RFC 8415 section 21.4).
        let (t1, t2) = (lease / 2, lease - lease / 5);
        DhcpOption::IANA(IANA { id: association.id, t1, t2, opts: addresses.collect() })
    }

    /// What a client is told besides its address.
    fn tell(&self, options: &mut DhcpOptions) {
        let dns: Vec<Ipv6Addr> = self.dhcp.dns.iter().filter_map(v6).collect();
        if !dns.is_empty() {
            options.insert(DhcpOption::DomainNameServers(dns));
        }
        if let Some(domain) = &self.dhcp.domain {
            let list = UnknownOption::new(OptionCode::DomainSearchList, labels(domain));
            options.insert(DhcpOption::Unknown(list));
        }
    }

    fn frame(
        &self,
        to: Ipv6Addr,
        what: MessageType,
        request: &Request<'_>,
        options: DhcpOptions,
    ) -> Option<Vec<u8>> {
        let mut message = Message::new_with_id(what, request.transaction);
        message.set_opts(options);
        let payload = message.to_vec().ok()?;
        let path = Path::v6((self.router, self.router.link_local()), (self.mac, to));
        Some(path.udp(DHCPV6_SERVER, DHCPV6_CLIENT, &payload))
    }
}

/// An association with nothing in it but the reason.
fn empty(association: &Association<'_>, why: Status) -> DhcpOption {
    let (id, opts) = (association.id, [status(why)].into_iter().collect());
    match association.code {
        option::IA_PD => DhcpOption::IAPD(IAPD { id, t1: 0, t2: 0, opts }),
        option::IA_TA => DhcpOption::IATA(IATA { id, opts }),
        _ => DhcpOption::IANA(IANA { id, t1: 0, t2: 0, opts }),
    }
}

fn status(status: Status) -> DhcpOption {
    DhcpOption::StatusCode(StatusCode { status, msg: String::new() })
}

/// A name as DNS writes it (RFC 1035 section 3.1).
fn labels(name: &DomainName) -> Vec<u8> {
    let labels =
        name.as_str().split('.').flat_map(|label| std::iter::once(label.len() as u8).chain(label.bytes()));
    labels.chain([0]).collect()
}

const fn v6(address: &IpAddr) -> Option<Ipv6Addr> {
    match address {
        IpAddr::V6(address) => Some(*address),
        IpAddr::V4(_) => None,
    }
}
