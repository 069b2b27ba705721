//! Who is where in the tests' network: stations and hosts with their addresses, and the underlays between them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pipelines::snapshot::PortIndex;
use wire::MacAddr;
use wire::build::Path;

/// MAC of the virtual router of every VPC here.
pub const ROUTER: MacAddr = MacAddr([2, 0, 0, 0, 0xff, 0xfe]);
/// Port of the uplink.
pub const UPLINK: PortIndex = 0;

/// A tenant's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    pub mac: MacAddr,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
    /// Host it is on.
    pub host: u8,
}

const fn station(n: u8, net: u8, host: u8) -> Station {
    Station {
        mac: MacAddr([2, 0, 0, 0, 1, n]),
        v4: Ipv4Addr::new(10, 0, net, n),
        v6: Ipv6Addr::new(0xfd00, 1 + net as u16, 0, 0, 0, 0, 0, n as u16),
        host,
    }
}

/// On host 1, first subnet; port 1 there.
pub const A: Station = station(1, 0, 1);
/// On host 1, first subnet; port 2 there.
pub const B: Station = station(2, 0, 1);
/// On host 1, second subnet; port 3 there.
pub const C: Station = station(3, 1, 1);
/// On host 2, first subnet; port 1 there.
pub const R: Station = station(9, 0, 2);
/// On host 2, second subnet; port 2 there.
pub const S: Station = station(10, 1, 2);

/// An IPv4 path from one station to the MAC and address of another.
pub fn v4(from: Station, to: Station) -> Path {
    Path::v4((from.mac, from.v4), (to.mac, to.v4))
}

/// An IPv6 path.
pub fn v6(from: Station, to: Station) -> Path {
    Path::v6((from.mac, from.v6), (to.mac, to.v6))
}

/// The same path by way of the virtual router.
pub fn routed(mut path: Path) -> Path {
    path.dst_mac = ROUTER;
    path
}

/// What the underlay is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Underlay {
    pub v6: bool,
    pub vlan: Option<u16>,
    pub zero_checksum6: bool,
}

pub const UNDERLAYS: [Underlay; 5] = [
    Underlay { v6: false, vlan: None, zero_checksum6: false },
    Underlay { v6: false, vlan: Some(7), zero_checksum6: false },
    Underlay { v6: true, vlan: None, zero_checksum6: false },
    Underlay { v6: true, vlan: Some(7), zero_checksum6: false },
    Underlay { v6: true, vlan: None, zero_checksum6: true },
];

pub fn host_mac(host: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0x77, host])
}

pub fn host_v4(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 16, 0, host)
}

pub fn host_v6(host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd16, 0, 0, 0, 0, 0, 0, u16::from(host))
}

/// The number of a host's VTEP.
pub fn vtep_number(vtep: IpAddr) -> u32 {
    match vtep {
        IpAddr::V4(vtep) => u32::from(vtep.octets()[3]),
        IpAddr::V6(vtep) => 16 + u32::from(vtep.octets()[15]),
    }
}
