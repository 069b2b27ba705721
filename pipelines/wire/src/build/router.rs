//! Router advertisements (RFC 4861 section 4.2) as a virtual router sends them.

use std::net::Ipv6Addr;

use super::Path;
use crate::icmpv6::{self, LinkAddress, option};
use crate::types::MacAddr;
use crate::view::View;
use crate::{ipv6, protocol};

/// What hosts take for their hop limit (RFC 4861 section 4.2), the default of RFC 1700.
const HOP_LIMIT: u8 = 64;
/// Addresses come from DHCPv6.
const MANAGED: u8 = 0x80;
/// So does the rest.
const OTHER: u8 = 0x40;
/// The prefix is on the link.
const ON_LINK: u8 = 0x80;

/// What a router says of itself and of the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterAdvertisement {
    /// Addresses, and all else, come from DHCPv6 (RFC 8415).
    pub managed: bool,
    /// How long it is a default router, seconds; 0: it is none.
    pub lifetime: u16,
    /// The largest IP packet.
    pub mtu: u16,
    /// Prefixes on the link.
    pub prefixes: Vec<OnLinkPrefix>,
    /// Name servers.
    pub dns: Vec<NameServer>,
}

/// A prefix on the link. No host makes itself an address of it (RFC 4862).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnLinkPrefix {
    /// Its first address.
    pub prefix: Ipv6Addr,
    /// Bits of it that count.
    pub len: u8,
    /// How long it is on the link, seconds; 0: no longer.
    pub lifetime: u32,
}

/// A name server (RFC 8106).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameServer {
    /// Its address.
    pub address: Ipv6Addr,
    /// How long it is one, seconds; 0: no longer.
    pub lifetime: u32,
}

impl RouterAdvertisement {
    /// The frame from a router's MAC and link-local address to all nodes: behind a port there may be stations besides the one whose
    /// port it is, which take no frame to its MAC.
    pub fn frame(&self, router: MacAddr) -> Vec<u8> {
        let flags = if self.managed { MANAGED | OTHER } else { 0 };
        let [high, low] = self.lifetime.to_be_bytes();
        let mut message = vec![icmpv6::kind::ROUTER_ADVERTISEMENT, 0, 0, 0, HOP_LIMIT, flags, high, low];
        // Reachable time and retransmission timer: unspecified.
        message.extend([0; 8]);
        message.extend_from_slice(LinkAddress::new(option::SOURCE_LINK_ADDRESS, router).bytes());
        message.extend([option::MTU, 1, 0, 0]);
        message.extend(u32::from(self.mtu).to_be_bytes());
        for OnLinkPrefix { prefix, len, lifetime } in &self.prefixes {
            message.extend([option::PREFIX_INFORMATION, 4, *len, ON_LINK]);
            // For as long addresses of it would be valid, and preferred.
            message.extend([lifetime.to_be_bytes(); 2].concat());
            message.extend([0; 4]);
            message.extend(prefix.octets());
        }
        // An option has one lifetime for all of its servers.
        for servers in self.dns.chunk_by(|one, other| one.lifetime == other.lifetime) {
            message.extend([option::RDNSS, 1 + 2 * servers.len() as u8, 0, 0]);
            message.extend(servers[0].lifetime.to_be_bytes());
            message.extend(servers.iter().flat_map(|server| server.address.octets()));
        }
        let to = (ipv6::multicast_mac(ipv6::ALL_NODES), ipv6::ALL_NODES);
        let path = Path::v6((router, router.link_local()), to).with_ttl(icmpv6::ND_HOP_LIMIT);
        path.ip(protocol::ICMPV6, &message)
    }
}

/// The frame "who is a router?" of a host (RFC 4861 section 4.1).
pub fn router_solicitation(sender: (MacAddr, Ipv6Addr)) -> Vec<u8> {
    /// The group of all routers on a link.
    const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    let to = (ipv6::multicast_mac(ALL_ROUTERS), ALL_ROUTERS);
    let path = Path::v6(sender, to).with_ttl(icmpv6::ND_HOP_LIMIT);
    let mut message = vec![icmpv6::kind::ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    if !sender.1.is_unspecified() {
        message.extend_from_slice(LinkAddress::new(option::SOURCE_LINK_ADDRESS, sender.0).bytes());
    }
    path.ip(protocol::ICMPV6, &message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::l4::{ChecksumVerdict, verify};
    use crate::parse::parse;

    #[test]
    fn services_an_advertisement_says_what_it_should() {
        let router = MacAddr([2, 0, 0, 0, 0, 1]);
        let prefix: Ipv6Addr = "fd00:1::".parse().unwrap();
        let [server, gone] = ["fd00:1::35", "fd00:1::36"].map(|text| text.parse::<Ipv6Addr>().unwrap());
        let said = RouterAdvertisement {
            managed: true,
            lifetime: 1800,
            mtu: 1450,
            prefixes: vec![OnLinkPrefix { prefix, len: 64, lifetime: 2_592_000 }],
            dns: vec![
                NameServer { address: server, lifetime: 1200 },
                NameServer { address: gone, lifetime: 0 },
            ],
        };
        let frame = said.frame(router);
        let headers = parse(&frame, frame.len()).unwrap();
        assert_eq!((headers.ttl, verify(&headers, [&frame[..]])), (255, ChecksumVerdict::Good));
        let ethernet = headers.ethernet(&frame).unwrap();
        assert_eq!((ethernet.src, ethernet.dst), (router, MacAddr([0x33, 0x33, 0, 0, 0, 1])));
        let ip = headers.ipv6(&frame).unwrap();
        assert_eq!((ip.src(), ip.dst()), (router.link_local(), ipv6::ALL_NODES));
        let message = &frame[usize::from(headers.l4_offset)..];
        assert_eq!(message[4..16], [64, 0xc0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut expected = vec![1, 1, 2, 0, 0, 0, 0, 1, 5, 1, 0, 0, 0, 0, 0x05, 0xaa, 3, 4, 64, 0x80];
        expected.extend([0, 0x27, 0x8d, 0, 0, 0x27, 0x8d, 0, 0, 0, 0, 0]);
        expected.extend(prefix.octets());
        expected.extend([25, 3, 0, 0, 0, 0, 0x04, 0xb0]);
        expected.extend(server.octets());
        expected.extend([25, 3, 0, 0, 0, 0, 0, 0]);
        expected.extend(gone.octets());
        assert_eq!(message[16..], expected);
        // Without DHCPv6, and without name servers.
        let less = RouterAdvertisement { managed: false, dns: Vec::new(), ..said }.frame(router);
        assert_eq!((less.len(), less[usize::from(headers.l4_offset) + 5]), (frame.len() - 48, 0));
    }
}
