//! The config of tables and protocols: NFT, VLT, VxLAN, RoCE.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::fields::DscpConfig;
use super::units;

/// `[nft]`: the network flow table of each worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NftConfig {
    /// Flows a worker remembers.
    pub entries: u32,
    /// A flow without packets for so long is forgotten.
    #[serde(with = "units::duration")]
    pub idle_timeout: Duration,
    /// Slow-path packets per second and vNIC; 0 is no limit.
    pub miss_rate: u32,
    /// Slow-path packets per burst.
    pub miss_budget: u16,
    /// Copies of flooded packets per second and vNIC; 0 is no limit.
    pub flood_rate: u32,
    /// Copies of flooded packets per burst. A packet that needs more is not flooded.
    pub flood_budget: u16,
}

impl NftConfig {
    /// The most entries: what fits the memory of a big machine.
    pub const MAX_ENTRIES: u32 = 1 << 28;
}

impl Default for NftConfig {
    fn default() -> Self {
        Self {
            entries: 65_536,
            idle_timeout: Duration::from_secs(30),
            miss_rate: 100_000,
            miss_budget: 32,
            flood_rate: 100_000,
            flood_budget: 256,
        }
    }
}

/// `[vlt]`: the VxLAN location table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct VltConfig {
    /// Destinations it holds.
    pub entries: u32,
}

impl VltConfig {
    /// The most entries.
    pub const MAX_ENTRIES: u32 = 1 << 26;
}

impl Default for VltConfig {
    fn default() -> Self {
        Self { entries: 65_536 }
    }
}

/// What becomes of VxLAN packets whose reserved bits are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReservedBits {
    /// They are not looked at (RFC 7348 section 5).
    #[default]
    Ignore,
    /// The packet is dropped.
    Strict,
}

/// How encapsulation writes the outer ECN field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EcnEncapConfig {
    /// Copied, congestion experienced included (RFC 6040 normal mode).
    #[default]
    Rfc6040,
    /// Copied, but congestion experienced becomes ECT(0) (RFC 3168 full functionality).
    Rfc3168,
    /// Always Not-ECT (RFC 6040 compatibility mode).
    #[serde(rename = "rfc6040-compat")]
    Rfc6040Compat,
}

/// `[vxlan]`: the tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct VxlanConfig {
    /// The UDP destination port.
    pub udp_port: u16,
    /// What becomes of packets with reserved bits set.
    pub reserved: ReservedBits,
    /// The outer ECN field.
    pub ecn_encap: EcnEncapConfig,
    /// The outer TTL or hop limit.
    pub ttl: u8,
    /// The outer DSCP.
    pub dscp: DscpConfig,
}

impl Default for VxlanConfig {
    fn default() -> Self {
        Self {
            udp_port: 4789,
            reserved: ReservedBits::Ignore,
            ecn_encap: EcnEncapConfig::Rfc6040,
            ttl: 64,
            dscp: DscpConfig::Copy,
        }
    }
}

/// `[rdma]`: RoCEv2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RdmaConfig {
    /// The UDP destination port.
    pub udp_port: u16,
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self { udp_port: 4791 }
    }
}
