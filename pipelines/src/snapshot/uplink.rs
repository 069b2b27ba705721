//! Uplinks, and which of them a tunnel's packets leave by.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{PortIndex, Snapshot};
use crate::next_hop::{BUCKETS, HopWord, LinkSource};

/// A port on the underlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Name in config, console and metrics.
    pub name: String,
    /// Port that its packets leave by and come from.
    pub port: PortIndex,
    /// Its MAC address, as [`wire::MacAddr::to_u64`].
    pub mac: u64,
    /// The same, as frames have it.
    pub source: LinkSource,
    /// VTEP addresses, IPv4.
    pub v4: Vec<Ipv4Addr>,
    /// VTEP addresses, IPv6; link-local ones included.
    pub v6: Vec<Ipv6Addr>,
    /// Largest outer IP packet.
    pub mtu: u16,
    /// VLAN of the underlay.
    pub vlan: Option<u16>,
    /// Accept and send zero UDP checksums over IPv6.
    pub udp6_zero_checksum: bool,
    /// Those of its addresses that another uplink has too and answers for.
    pub silent: Vec<IpAddr>,
    /// Where non-VTEP traffic goes, or [`NO_PORT`](super::NO_PORT).
    pub punt: PortIndex,
    /// Largest IP packet that goes there.
    pub punt_mtu: u16,
}

impl Uplink {
    /// Bytes in front of the IP header of what it sends: an Ethernet header, with a tag (IEEE 802.1Q) where it is in a VLAN.
    #[inline(always)]
    pub const fn link_header_len(&self) -> u8 {
        if self.vlan.is_some() { 18 } else { 14 }
    }

    /// Bytes of the longest frame that it sends, without the check sequence.
    #[inline(always)]
    pub const fn longest_frame(&self) -> usize {
        self.mtu as usize + self.link_header_len() as usize
    }

    /// True when the address is one of this uplink's.
    #[inline]
    pub fn owns(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.contains(&address),
            IpAddr::V6(address) => self.v6.contains(&address),
        }
    }

    /// Its addresses, link-local ones included.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.v4.iter().copied().map(IpAddr::V4).chain(self.v6.iter().copied().map(IpAddr::V6))
    }

    /// True when it tells others that an address is here.
    pub fn answers_for(&self, address: IpAddr) -> bool {
        self.owns(address) && !self.is_silent_about(address)
    }

    /// True for an address of its own that another uplink answers for.
    pub fn is_silent_about(&self, address: IpAddr) -> bool {
        !self.silent.is_empty() && self.silent.contains(&address)
    }
}

impl Snapshot {
    /// An uplink by index.
    #[inline(always)]
    pub fn uplink(&self, index: u16) -> Option<&Uplink> {
        self.uplinks.get(usize::from(index))?.as_deref()
    }

    /// The way of packets with an outer source port through a tunnel: the uplink, and the next hop there.
    #[inline(always)]
    pub fn way(&self, group: u16, source_port: u16) -> Option<(&Uplink, HopWord)> {
        let hop = self.vlt.next_hops().word(group, source_port);
        Some((self.uplink(hop.uplink())?, hop))
    }

    /// An uplink that packets of a next-hop group go by. All of a group have one MTU, one VLAN and one policy on checksums.
    pub fn uplink_of(&self, group: u16) -> Option<&Uplink> {
        (0..BUCKETS as u16).find_map(|port| self.way(group, port)).map(|(uplink, _)| uplink)
    }
}
