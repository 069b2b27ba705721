//! Receive-side scaling: what to hash on, checked against what the port says it can.

#![allow(clippy::unnecessary_cast)]

use std::ops::BitOr;

use dpdk_sys as sys;

use super::{PortId, PortInfo};
use crate::error::{Errno, PortError};

/// A set of header fields to hash on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RssTypes(u64);

const NAMES: &[(&str, u64)] = &[
    ("ipv4", sys::RTE_ETH_RSS_IPV4 as u64),
    ("ipv4-frag", sys::RTE_ETH_RSS_FRAG_IPV4 as u64),
    ("ipv4-tcp", sys::RTE_ETH_RSS_NONFRAG_IPV4_TCP as u64),
    ("ipv4-udp", sys::RTE_ETH_RSS_NONFRAG_IPV4_UDP as u64),
    ("ipv4-sctp", sys::RTE_ETH_RSS_NONFRAG_IPV4_SCTP as u64),
    ("ipv4-other", sys::RTE_ETH_RSS_NONFRAG_IPV4_OTHER as u64),
    ("ipv6", sys::RTE_ETH_RSS_IPV6 as u64),
    ("ipv6-frag", sys::RTE_ETH_RSS_FRAG_IPV6 as u64),
    ("ipv6-tcp", sys::RTE_ETH_RSS_NONFRAG_IPV6_TCP as u64),
    ("ipv6-udp", sys::RTE_ETH_RSS_NONFRAG_IPV6_UDP as u64),
    ("ipv6-sctp", sys::RTE_ETH_RSS_NONFRAG_IPV6_SCTP as u64),
    ("ipv6-other", sys::RTE_ETH_RSS_NONFRAG_IPV6_OTHER as u64),
    ("l2-payload", sys::RTE_ETH_RSS_L2_PAYLOAD as u64),
    ("ipv6-ex", sys::RTE_ETH_RSS_IPV6_EX as u64),
    ("ipv6-tcp-ex", sys::RTE_ETH_RSS_IPV6_TCP_EX as u64),
    ("ipv6-udp-ex", sys::RTE_ETH_RSS_IPV6_UDP_EX as u64),
    ("vxlan", sys::RTE_ETH_RSS_VXLAN as u64),
    ("eth", sys::RTE_ETH_RSS_ETH as u64),
    ("c-vlan", sys::RTE_ETH_RSS_C_VLAN as u64),
    ("s-vlan", sys::RTE_ETH_RSS_S_VLAN as u64),
];

impl RssTypes {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// IP addresses, IPv4 and IPv6, whatever they carry.
    pub const IP: Self = Self(sys::RTE_ETH_RSS_IP as u64);
    /// Addresses and ports of TCP.
    pub const TCP: Self = Self(sys::RTE_ETH_RSS_TCP as u64);
    /// Addresses and ports of UDP; on an uplink this spreads tunnels by their source port.
    pub const UDP: Self = Self(sys::RTE_ETH_RSS_UDP as u64);

    /// From DPDK's bits.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// DPDK's bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// True without members.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those in both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those in this set and not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Names of the members; a bit without a name is shown as a number.
    pub fn names(self) -> Vec<String> {
        let mut names: Vec<String> =
            NAMES.iter().filter(|(_, bit)| self.0 & bit != 0).map(|(name, _)| (*name).into()).collect();
        let named = NAMES.iter().fold(0, |all, (_, bit)| all | bit);
        let rest = (0..u64::BITS).filter(|bit| (self.0 & !named) >> bit & 1 != 0);
        names.extend(rest.map(|bit| format!("bit-{bit}")));
        names
    }
}

impl BitOr for RssTypes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The key of a driver that does not say how long it is: such drivers take as many bytes without asking.
const USUAL_KEY_SIZE: usize = 40;

/// How a port is to spread packets over its receive queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RssConfig {
    /// What to hash on.
    pub types: RssTypes,
    /// The key, of as many bytes as the port says, else 40; the driver's own when not given.
    pub key: Option<Vec<u8>>,
    /// Leave out what the port does not have instead of refusing.
    pub adjust: bool,
}

/// What became of an [`RssConfig`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RssReport {
    /// What the port hashes on.
    pub applied: RssTypes,
    /// What was asked for and the port does not have.
    pub refused: RssTypes,
}

/// What DPDK has configured, as it tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfiguredRss {
    /// The receive mode has RSS (`mq_mode`).
    pub spreads: bool,
    /// What it was configured to hash on.
    pub types: RssTypes,
}

impl ConfiguredRss {
    pub(super) fn of(id: PortId) -> Result<Self, Errno> {
        // SAFETY: integers, enums and pointers, for all of which zero is a value.
        let mut conf: sys::rte_eth_conf = unsafe { std::mem::zeroed() };
        // SAFETY: a valid place; the function checks the id.
        let ret = unsafe { sys::rte_eth_dev_conf_get(id.get(), &raw mut conf) };
        Errno::check(ret).map(|_| Self {
            spreads: conf.rxmode.mq_mode & sys::RTE_ETH_MQ_RX_RSS_FLAG != 0,
            types: RssTypes::from_bits(conf.rx_adv_conf.rss_conf.rss_hf),
        })
    }
}

impl RssConfig {
    /// What a switch wants of any port with several queues: addresses and ports of IP, UDP and TCP, as far as the
    /// port has them. On an uplink UDP's ports spread the tunnels.
    pub fn usual() -> Self {
        Self { types: RssTypes::IP | RssTypes::UDP | RssTypes::TCP, key: None, adjust: true }
    }

    /// Checks this against a port.
    pub(super) fn check(&self, info: &PortInfo) -> Result<RssReport, PortError> {
        let refused = self.types.without(info.rss_types);
        if !refused.is_empty() && !self.adjust {
            return Err(PortError::Rss {
                name: info.name.clone(),
                missing: refused.names(),
                available: info.rss_types.names(),
            });
        }
        let wanted = match info.hash_key_size {
            0 => USUAL_KEY_SIZE,
            size => size.into(),
        };
        if let Some(key) = self.key.as_ref().filter(|key| key.len() != wanted) {
            return Err(PortError::RssKey { name: info.name.clone(), given: key.len(), wanted });
        }
        Ok(RssReport { applied: self.types.and(info.rss_types), refused })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_named() {
        assert_eq!((RssTypes::from_bits(4) | RssTypes::from_bits(1 << 5)).names(), ["ipv4", "ipv4-udp"]);
        assert_eq!(RssTypes::from_bits(1 << 63).names(), ["bit-63"]);
        assert_eq!(RssTypes::UDP.names(), ["ipv4-udp", "ipv6-udp", "ipv6-udp-ex"]);
    }
}
