//! [`RxOffloads`] and [`TxOffloads`]: sets of what a device can do, named as DPDK names them.

#![allow(clippy::unnecessary_cast)]

use std::ffi::{CStr, c_char};
use std::ops::BitOr;

use dpdk_sys as sys;

/// A set of receive offloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxOffloads(u64);

/// A set of transmit offloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffloads(u64);

impl RxOffloads {
    /// None.
    pub const NONE: Self = Self(0);
    /// Removes the outer VLAN tag.
    pub const VLAN_STRIP: Self = Self(sys::RTE_ETH_RX_OFFLOAD_VLAN_STRIP as u64);
    /// Verifies the IPv4 header checksum.
    pub const IPV4_CHECKSUM: Self = Self(sys::RTE_ETH_RX_OFFLOAD_IPV4_CKSUM as u64);
    /// Verifies the UDP checksum.
    pub const UDP_CHECKSUM: Self = Self(sys::RTE_ETH_RX_OFFLOAD_UDP_CKSUM as u64);
    /// Verifies the TCP checksum.
    pub const TCP_CHECKSUM: Self = Self(sys::RTE_ETH_RX_OFFLOAD_TCP_CKSUM as u64);
    /// Accepts TCP super-frames.
    pub const TCP_LRO: Self = Self(sys::RTE_ETH_RX_OFFLOAD_TCP_LRO as u64);
    /// Receives frames longer than a buffer, as chains.
    pub const SCATTER: Self = Self(sys::RTE_ETH_RX_OFFLOAD_SCATTER as u64);
    /// Delivers the RSS hash.
    pub const RSS_HASH: Self = Self(sys::RTE_ETH_RX_OFFLOAD_RSS_HASH as u64);

    /// From DPDK's bits.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// DPDK's bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// True when all of `other` are in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Those in both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those in this set and not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// DPDK's names.
    pub fn names(self) -> Vec<String> {
        // SAFETY: returns a static C string for any value.
        names(self.0, |bit| unsafe { sys::rte_eth_dev_rx_offload_name(bit) })
    }
}

impl TxOffloads {
    /// None.
    pub const NONE: Self = Self(0);
    /// Inserts a VLAN tag.
    pub const VLAN_INSERT: Self = Self(sys::RTE_ETH_TX_OFFLOAD_VLAN_INSERT as u64);
    /// Fills the IPv4 header checksum.
    pub const IPV4_CHECKSUM: Self = Self(sys::RTE_ETH_TX_OFFLOAD_IPV4_CKSUM as u64);
    /// Fills the UDP checksum.
    pub const UDP_CHECKSUM: Self = Self(sys::RTE_ETH_TX_OFFLOAD_UDP_CKSUM as u64);
    /// Fills the TCP checksum.
    pub const TCP_CHECKSUM: Self = Self(sys::RTE_ETH_TX_OFFLOAD_TCP_CKSUM as u64);
    /// Cuts TCP super-frames.
    pub const TCP_TSO: Self = Self(sys::RTE_ETH_TX_OFFLOAD_TCP_TSO as u64);
    /// Cuts TCP super-frames inside VxLAN.
    pub const VXLAN_TSO: Self = Self(sys::RTE_ETH_TX_OFFLOAD_VXLAN_TNL_TSO as u64);
    /// Fills the outer IPv4 header checksum of a tunnel.
    pub const OUTER_IPV4_CHECKSUM: Self = Self(sys::RTE_ETH_TX_OFFLOAD_OUTER_IPV4_CKSUM as u64);
    /// Fills the outer UDP checksum of a tunnel.
    pub const OUTER_UDP_CHECKSUM: Self = Self(sys::RTE_ETH_TX_OFFLOAD_OUTER_UDP_CKSUM as u64);
    /// Sends packets of several segments.
    pub const MULTI_SEGMENT: Self = Self(sys::RTE_ETH_TX_OFFLOAD_MULTI_SEGS as u64);

    /// From DPDK's bits.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// DPDK's bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// True when all of `other` are in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Those in both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those in this set and not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// DPDK's names.
    pub fn names(self) -> Vec<String> {
        // SAFETY: returns a static C string for any value.
        names(self.0, |bit| unsafe { sys::rte_eth_dev_tx_offload_name(bit) })
    }
}

/// All that a device needs to cut TCP super-frames inside VxLAN: each piece has up to two IPv4 headers with checksums of their own and a
/// TCP checksum, and comes out of several segments.
const TUNNEL_TSO: TxOffloads = TxOffloads(
    TxOffloads::VXLAN_TSO.0
        | TxOffloads::TCP_TSO.0
        | TxOffloads::TCP_CHECKSUM.0
        | TxOffloads::IPV4_CHECKSUM.0
        | TxOffloads::OUTER_IPV4_CHECKSUM.0
        | TxOffloads::MULTI_SEGMENT.0,
);

/// The offloads to switch on for cutting TCP super-frames inside VxLAN, of a port that has these; none where it cannot. The outer UDP
/// checksum is among them where the port fills it.
pub(super) fn tunnel_tso(offloads: TxOffloads) -> Option<TxOffloads> {
    let wanted = TUNNEL_TSO | TxOffloads::OUTER_UDP_CHECKSUM.and(offloads);
    offloads.contains(wanted).then_some(wanted)
}

impl BitOr for RxOffloads {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for TxOffloads {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

fn names(bits: u64, name: impl Fn(u64) -> *const c_char) -> Vec<String> {
    let set = (0..u64::BITS).map(|shift| 1 << shift).filter(|bit| bits & bit != 0);
    let text = |bit| {
        // SAFETY: DPDK's static string for this bit.
        unsafe { CStr::from_ptr(name(bit)) }.to_string_lossy().into_owned()
    };
    set.map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_name_their_members() {
        let set = RxOffloads::VLAN_STRIP | RxOffloads::TCP_CHECKSUM;
        assert_eq!(set.names(), ["VLAN_STRIP", "TCP_CKSUM"]);
        assert!(set.contains(RxOffloads::VLAN_STRIP) && !set.contains(RxOffloads::SCATTER));
        assert_eq!(set.without(RxOffloads::VLAN_STRIP), RxOffloads::TCP_CHECKSUM);
        assert_eq!((TxOffloads::TCP_TSO | TxOffloads::MULTI_SEGMENT).names(), ["TCP_TSO", "MULTI_SEGS"]);
    }

    #[test]
    fn cutting_in_tunnels_takes_all_that_it_needs() {
        assert_eq!((tunnel_tso(TUNNEL_TSO), TUNNEL_TSO.names().len()), (Some(TUNNEL_TSO), 6));
        let with_udp = TUNNEL_TSO | TxOffloads::OUTER_UDP_CHECKSUM;
        assert_eq!(tunnel_tso(with_udp | TxOffloads::UDP_CHECKSUM), Some(with_udp));
        for bit in (0..64).map(|shift| TxOffloads(1 << shift)).filter(|bit| TUNNEL_TSO.contains(*bit)) {
            assert_eq!(tunnel_tso(with_udp.without(bit)), None, "{:?}", bit.names());
        }
    }
}
