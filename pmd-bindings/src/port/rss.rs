//! Receive-side scaling: what to hash on, checked against what the port says it can.

#![allow(clippy::unnecessary_cast)]

use std::fmt;
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

/// Bits that are no header fields: they say which headers of a tunnelled packet are hashed.
const LEVELS: u64 = sys::RTE_ETH_RSS_LEVEL_MASK as u64;

/// Which headers of a tunnelled packet are hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RssLevel {
    /// Whichever the driver hashes when it is not told.
    #[default]
    Driver,
    /// Those of the tunnel.
    Outermost,
    /// Those inside of the tunnel, as deep as the device looks.
    Innermost,
}

impl RssLevel {
    const fn bits(self) -> u64 {
        match self {
            Self::Driver => 0,
            Self::Outermost => sys::RTE_ETH_RSS_LEVEL_OUTERMOST as u64,
            Self::Innermost => sys::RTE_ETH_RSS_LEVEL_INNERMOST as u64,
        }
    }

    const fn from_bits(bits: u64) -> Self {
        match bits & LEVELS {
            bits if bits == Self::Outermost.bits() => Self::Outermost,
            bits if bits == Self::Innermost.bits() => Self::Innermost,
            _ => Self::Driver,
        }
    }

    /// A word for people and programs: `driver`, `outermost`, `innermost`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Outermost => "outermost",
            Self::Innermost => "innermost",
        }
    }
}

/// What a device says its RSS can: header fields, and levels that it can be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RssCapabilities {
    /// What it can hash on.
    pub types: RssTypes,
    /// It can be told to hash the headers of the tunnel.
    pub outermost: bool,
    /// It can be told to hash the headers inside of the tunnel.
    pub innermost: bool,
}

impl RssCapabilities {
    pub(super) fn from_bits(bits: u64) -> Self {
        let has = |level: RssLevel| bits & level.bits() == level.bits();
        Self {
            types: RssTypes::from_bits(bits & !LEVELS),
            outermost: has(RssLevel::Outermost),
            innermost: has(RssLevel::Innermost),
        }
    }

    /// Levels that the device can be told.
    pub fn levels(self) -> Vec<RssLevel> {
        let told = [RssLevel::Outermost, RssLevel::Innermost];
        told.into_iter().filter(|level| self.can(*level)).collect()
    }

    /// True where the device can be told this level.
    pub const fn can(self, level: RssLevel) -> bool {
        match level {
            RssLevel::Driver => true,
            RssLevel::Outermost => self.outermost,
            RssLevel::Innermost => self.innermost,
        }
    }
}

/// `ipv4 ipv4-udp; level outermost innermost`, for people.
impl fmt::Display for RssCapabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_words(f, self.types, &self.levels())
    }
}

fn write_words(f: &mut fmt::Formatter<'_>, types: RssTypes, levels: &[RssLevel]) -> fmt::Result {
    if types.is_empty() {
        return f.write_str("nothing");
    }
    f.write_str(&types.names().join(" "))?;
    if levels.is_empty() {
        return Ok(());
    }
    let levels: Vec<&str> = levels.iter().map(|level| level.name()).collect();
    write!(f, "; level {}", levels.join(" "))
}

/// The key of a driver that does not say how long it is: such drivers take as many bytes without asking.
const USUAL_KEY_SIZE: usize = 40;

/// How a port is to spread packets over its receive queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RssConfig {
    /// What to hash on.
    pub types: RssTypes,
    /// Which headers of a tunnelled packet.
    pub level: RssLevel,
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
    /// Which headers of a tunnelled packet: [`RssLevel::Driver`] where the port cannot be told what was asked for.
    pub level: RssLevel,
}

impl RssReport {
    /// What the port hashes on, and of which headers.
    pub fn hash(self) -> RssHash {
        RssHash { types: self.applied, level: self.level }
    }

    /// What a port is configured with, in DPDK's bits.
    pub(super) const fn bits(self) -> u64 {
        self.applied.bits() | self.level.bits()
    }
}

/// Header fields that are hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RssHash {
    /// Which.
    pub types: RssTypes,
    /// Of which headers of a tunnelled packet.
    pub level: RssLevel,
}

impl RssHash {
    const fn from_bits(bits: u64) -> Self {
        Self { types: RssTypes::from_bits(bits & !LEVELS), level: RssLevel::from_bits(bits) }
    }
}

/// `ipv4 ipv4-udp; level innermost`, for people.
impl fmt::Display for RssHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_words(f, self.types, &[self.level])
    }
}

/// What is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfiguredRss {
    /// The receive mode has RSS (`mq_mode`).
    pub spreads: bool,
    /// What DPDK gave the driver.
    pub given: RssHash,
    /// What the driver says of itself, where it says anything: net_null tells all that it can instead.
    pub told: Option<RssHash>,
}

impl ConfiguredRss {
    pub(super) fn of(id: PortId) -> Result<Self, Errno> {
        // SAFETY: integers, enums and pointers, for all of which zero is a value.
        let mut conf: sys::rte_eth_conf = unsafe { std::mem::zeroed() };
        // SAFETY: a valid place; the function checks the id.
        let ret = unsafe { sys::rte_eth_dev_conf_get(id.get(), &raw mut conf) };
        Errno::check(ret)?;
        // SAFETY: as above; without a place for the key none is told.
        let mut told: sys::rte_eth_rss_conf = unsafe { std::mem::zeroed() };
        // SAFETY: a valid place; the function checks the id.
        let ret = unsafe { sys::rte_eth_dev_rss_hash_conf_get(id.get(), &raw mut told) };
        Ok(Self {
            spreads: conf.rxmode.mq_mode & sys::RTE_ETH_MQ_RX_RSS_FLAG != 0,
            given: RssHash::from_bits(conf.rx_adv_conf.rss_conf.rss_hf),
            told: (ret == 0).then_some(RssHash::from_bits(told.rss_hf)),
        })
    }
}

impl RssConfig {
    /// What a switch wants of any port with several queues: addresses and ports of IP, UDP and TCP, as far as the
    /// port has them, of the headers that its flows are told by where the port can be told which.
    pub fn usual(level: RssLevel) -> Self {
        Self { types: RssTypes::IP | RssTypes::UDP | RssTypes::TCP, level, key: None, adjust: true }
    }

    /// Checks this against a port.
    pub(super) fn check(&self, info: &PortInfo) -> Result<RssReport, PortError> {
        let available = info.rss.types;
        let refused = self.types.without(available);
        let can = info.rss.can(self.level);
        if !(self.adjust || refused.is_empty() && can) {
            let mut missing = refused.names();
            missing.extend((!can).then(|| format!("level {}", self.level.name())));
            return Err(PortError::Rss { name: info.name.clone(), missing, available: available.names() });
        }
        let wanted = match info.hash_key_size {
            0 => USUAL_KEY_SIZE,
            size => size.into(),
        };
        if let Some(key) = self.key.as_ref().filter(|key| key.len() != wanted) {
            return Err(PortError::RssKey { name: info.name.clone(), given: key.len(), wanted });
        }
        let applied = self.types.and(available);
        let level = if can && !applied.is_empty() { self.level } else { RssLevel::Driver };
        Ok(RssReport { applied, refused, level })
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

    #[test]
    fn levels_are_no_header_fields() {
        let all = RssCapabilities::from_bits(RssTypes::UDP.bits() | LEVELS);
        assert_eq!((all.types, all.outermost, all.innermost), (RssTypes::UDP, true, true));
        let outer = RssCapabilities::from_bits(RssLevel::Outermost.bits());
        assert!(outer.can(RssLevel::Outermost) && !outer.can(RssLevel::Innermost));
        assert!(outer.types.is_empty() && outer.can(RssLevel::Driver));
        for level in [RssLevel::Driver, RssLevel::Outermost, RssLevel::Innermost] {
            assert_eq!(RssLevel::from_bits(level.bits() | RssTypes::IP.bits()), level);
        }
        assert_eq!(RssLevel::from_bits(LEVELS), RssLevel::Driver, "both at once is no level");
    }
}
