//! Items of the rules that the translation makes.

use std::net::{IpAddr, Ipv6Addr};

use wire::roce::{QP_GSI, RoceClass, opcode};
use wire::{MacAddr, Qpn, protocol};

use crate::flow_key::{FlowAddresses, FlowKey, FlowPorts};
use rules::Colour;
use rules::items::{eth, ib_bth, ipv4, ipv6, meter_color, represented_port, tag, tcp, udp, vlan, vxlan};
use rules::{Field, Item, ItemKind};

/// IPv4 without options; 0x2000 is "more fragments", the rest of the field's low bits the offset.
const NO_OPTIONS: u8 = 0x45;
const FRAGMENT: u128 = 0x3fff;

/// Register in which the class of a packet is: its leaf and one.
pub const TAG_CLASS: u8 = 0;
/// Register in which the adjacency of a packet is.
pub const TAG_ADJACENCY: u8 = 1;
/// Register that is 1 when the inner packet is to have congestion experienced.
pub const TAG_CE: u8 = 2;
/// Register in which the framing of a packet is, where it has a number.
pub const TAG_FRAMING: u8 = 3;

/// From what a DPDK port stands for.
pub fn from(port: u16) -> Item {
    Item::with(represented_port::ETHDEV_PORT_ID, port)
}

/// A tag register has a value.
pub fn tagged(index: u8, data: u32) -> Item {
    Item::with(tag::DATA, data).is(tag::INDEX, index)
}

/// A meter gave this colour.
pub fn coloured(colour: Colour) -> Item {
    Item::with(meter_color::COLOR, colour as u8)
}

/// To UDP port `port`.
pub fn to_udp(port: u16) -> Item {
    Item::with(udp::DST, port)
}

/// Behind a VxLAN header with this VNI.
pub fn in_vni(vni: u32) -> Item {
    Item::with(vxlan::VNI, vni)
}

/// An IP family and the names its fields have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// That of an address.
    pub const fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// True for IPv6.
    pub const fn is_v6(self) -> bool {
        matches!(self, Self::V6)
    }

    /// The item of its header.
    pub const fn kind(self) -> ItemKind {
        match self {
            Self::V4 => ItemKind::Ipv4,
            Self::V6 => ItemKind::Ipv6,
        }
    }

    /// Any packet of the family.
    pub const fn any(self) -> Item {
        Item::any(self.kind())
    }

    /// Any packet from an address.
    pub fn sent_by(source: IpAddr) -> Item {
        match source {
            IpAddr::V4(source) => Item::with(ipv4::SRC, u32::from(source)),
            IpAddr::V6(_) => Item::with(ipv6::SRC, bits(source)),
        }
    }

    /// The EtherType in front of its header.
    pub const fn ethertype(self) -> u16 {
        match self {
            Self::V4 => 0x0800,
            Self::V6 => 0x86dd,
        }
    }

    /// DSCP and ECN have these bits.
    pub fn tos(self, value: u8, mask: u8) -> Item {
        self.with_tos(self.any(), value, mask)
    }

    /// An item of the family that also asks for these bits of DSCP and ECN.
    pub fn with_tos(self, item: Item, value: u8, mask: u8) -> Item {
        item.masked(self.tos_field(), value, mask.into())
    }

    const fn tos_field(self) -> Field {
        match self {
            Self::V4 => ipv4::TOS,
            Self::V6 => ipv6::TC,
        }
    }

    /// TTL or hop limit 0 or 1: what a router does not pass on.
    pub fn expiring(self) -> Item {
        self.any().masked(self.ttl_field(), 0u8, 0xfe)
    }

    /// TTL or hop limit 0: what nobody may have sent.
    pub fn expired(self) -> Item {
        self.any().is(self.ttl_field(), 0u8)
    }

    const fn ttl_field(self) -> Field {
        match self {
            Self::V4 => ipv4::TTL,
            Self::V6 => ipv6::HOP,
        }
    }

    /// A whole packet, without options or extension headers, to an address.
    pub fn whole_to(destination: IpAddr, proto: u8) -> Item {
        match destination {
            IpAddr::V4(destination) => Item::with(ipv4::VERSION_IHL, NO_OPTIONS)
                .masked(ipv4::FRAGMENT_OFFSET, 0u8, FRAGMENT)
                .is(ipv4::PROTO, proto)
                .is(ipv4::DST, u32::from(destination)),
            IpAddr::V6(_) => {
                Item::with(ipv6::PROTO, proto).is(ipv6::DST, bits(destination)).is(ipv6::HAS_FRAG_EXT, 0u8)
            }
        }
    }

    /// Packets of a protocol from one address to another: of IPv4 whole ones without options. Of IPv6 no others come here, and
    /// none from another address: the rules of their framing have seen to both, since beside a destination there is no room.
    pub fn between(source: IpAddr, destination: IpAddr, proto: u8) -> Item {
        match source {
            IpAddr::V4(source) => Self::whole_to(destination, proto).is(ipv4::SRC, u32::from(source)),
            IpAddr::V6(_) => Item::with(ipv6::PROTO, proto).is(ipv6::DST, bits(destination)),
        }
    }

    /// IPv6 without a fragment header, from an address if one is named.
    pub fn unfragmented(source: Option<Ipv6Addr>) -> Item {
        let item = Item::with(ipv6::HAS_FRAG_EXT, 0u8);
        source.map_or(item, |source| item.is(ipv6::SRC, u128::from(source)))
    }
}

/// The only VLAN tag in front of a packet of a family.
pub fn tag_of(vid: u16, family: Family) -> Item {
    Item::with(vlan::VID, vid).is(vlan::INNER_TYPE, family.ethertype()).is(vlan::HAS_MORE_VLAN, 0u8)
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// The upper bit of ECN: set in ECT(0) and CE, of which rules take packets (RFC 3168 section 5); ECT(1) is left to software.
const ECN_CAPABLE: u8 = 2;

/// What of a RoCEv2 packet's base transport header is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoceMatch {
    /// A class: the three upper bits of the opcode.
    Class(RoceClass),
    /// A queue pair of a class.
    QueuePair(RoceClass, Qpn),
    /// Messages of connection managers.
    ConnectionManager,
    /// One opcode.
    Opcode(u8),
}

impl RoceMatch {
    /// The item, where the upper bits tell the class.
    pub fn item(self) -> Option<Item> {
        let prefix = |class| match class {
            RoceClass::Rc => Some(0x00u8),
            RoceClass::Uc => Some(0x20),
            RoceClass::Rd => Some(0x40),
            RoceClass::Ud => Some(0x60),
            RoceClass::Xrc => Some(0xa0),
            _ => None,
        };
        let of = |class| {
            prefix(class).map(|prefix| Item::any(ItemKind::IbBth).masked(ib_bth::OPCODE, prefix, 0xe0))
        };
        match self {
            Self::Class(class) => of(class),
            Self::QueuePair(class, qpn) => of(class).map(|item| item.is(ib_bth::DST_QP, qpn.get())),
            Self::ConnectionManager => {
                Some(Item::with(ib_bth::OPCODE, opcode::UD_SEND_ONLY).is(ib_bth::DST_QP, QP_GSI.get()))
            }
            Self::Opcode(opcode) => Some(Item::with(ib_bth::OPCODE, opcode)),
        }
    }
}

/// A tenant's frame to a MAC: with one VLAN tag, or with none.
pub fn frame(destination: MacAddr, vlan: Option<u16>, family: Family) -> impl Iterator<Item = Item> {
    let frame = Item::with(eth::DST, destination.to_u64());
    let first = match vlan {
        None => frame.is(eth::TYPE, family.ethertype()).is(eth::HAS_VLAN, 0u8),
        Some(_) => frame.is(eth::HAS_VLAN, 1u8),
    };
    [first].into_iter().chain(vlan.map(|vid| tag_of(vid, family)))
}

/// The packets of an NFT flow, layers 3 and 4. `None` when rules cannot tell them.
pub fn flow(key: &FlowKey, source_port: Option<u16>, ecn_capable: bool, items: &mut Vec<Item>) -> Option<()> {
    let FlowAddresses { source, destination } = key.addresses()?;
    let ip = Family::between(source, destination, key.proto());
    let marks = |ip| Family::of(source).with_tos(ip, ECN_CAPABLE, ECN_CAPABLE);
    items.push(if ecn_capable { marks(ip) } else { ip });
    let FlowPorts { source: sport, destination: dport } = key.ports();
    items.push(match (key.proto(), key.class()) {
        (protocol::TCP, _) => Item::with(tcp::SRC, sport).is(tcp::DST, dport),
        (protocol::UDP, 0) => Item::with(udp::SRC, sport).is(udp::DST, dport),
        (protocol::UDP, _) => match source_port {
            Some(sport) => Item::with(udp::SRC, sport).is(udp::DST, dport),
            None => to_udp(dport),
        },
        _ => return None,
    });
    Some(())
}
