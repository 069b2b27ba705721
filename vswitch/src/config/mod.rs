//! The config: what the operator wrote, checked, as plain types.
//!
//! [`Config::parse`] reads TOML and gives either a whole valid config or every error with line and column;
//! [`Config::to_toml`] writes one that reads back to the same. Sections that run together lie in one file each
//! (`process`, `network`, `datapath`), what stands behind a port in `port_spec`. Nothing here opens a port,
//! a file other than the config, or a socket; what only the machine can answer (which cores there are) is
//! asked of the caller.

pub mod bfd;
pub mod buffers;
pub mod datapath;
pub mod difference;
pub mod document;
pub mod error;
pub mod etcd;
pub mod evpn;
pub mod fields;
pub mod guard;
pub mod merge;
pub mod name;
pub mod network;
pub mod objects;
pub mod offload;
mod opcodes;
pub mod others;
pub mod path;
pub mod places;
pub mod port_spec;
pub mod process;
pub mod qos;
pub mod rcft;
pub mod routes;
pub mod secret;
mod security;
mod services;
pub mod units;
pub mod validate;

use std::sync::Arc;

use imbl::Vector;
use serde::Serialize;

pub use bfd::BfdConfig;
pub use datapath::{EcnEncapConfig, NftConfig, RdmaConfig, ReservedBits, VltConfig, VxlanConfig};
pub use difference::{Difference, KeptLocations, Relocation};
pub use document::Document;
pub use error::{ConfigError, ConfigErrors};
pub use etcd::EtcdConfig;
pub use evpn::{EvpnConfig, GobgpdAddress, RouteTargetForm};
pub use fields::DscpConfig;
pub use guard::{AllowedConfig, GuardConfig};
pub use merge::Source;
pub use name::Name;
pub use network::{
    HostTraffic, InnerVlan, LinkLocal, LocationConfig, PortConfig, StaticNeighbour, SubnetConfig,
    TrunkConfig, UnderlayRoute, UplinkConfig, VnicConfig, VnicPort, VpcConfig,
};
pub use offload::{
    Barrier, Engine, Entropy, OffloadConfig, OffloadDevice, SimulatedConfig, SimulatedHash, SimulatedNic,
    Steering,
};
pub use opcodes::VendorOpcodes;
pub use port_spec::PortSpec;
pub use process::{
    ApiConfig, ApiTcpConfig, ControlConfig, EalConfig, ForwardConfig, ForwardMode, HugePages, Idle, Seccomp,
    WorkersConfig,
};
pub use qos::{BothWays, LimitsConfig, LinkConfig, Percent, QosConfig, VnicQos};
pub use rcft::{QuotaConfig, RcftConfig, Refuse, Share};
pub use routes::{GatewayConfig, RouteTargetConfig, VpcRoute};
pub use security::{Access, RulePeer, SecurityConfig, SecurityGroupConfig, SecurityRule};
pub use services::{DhcpConfig, DhcpRoute, DomainName, RaConfig};
pub use units::{BitRate, ByteSize};
pub use worker::MAX_PORTS;

/// A whole config. Every section may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Config {
    /// DPDK's environment.
    pub eal: EalConfig,
    /// The cores that move packets.
    pub workers: WorkersConfig,
    /// The forwarding mode.
    pub forward: ForwardConfig,
    /// The console's socket.
    pub api: ApiConfig,
    /// What outlives the process.
    pub control: ControlConfig,
    /// The network flow table.
    pub nft: NftConfig,
    /// The VxLAN location table.
    pub vlt: VltConfig,
    /// The tunnel.
    pub vxlan: VxlanConfig,
    /// RoCEv2.
    pub rdma: RdmaConfig,
    /// The RC flow table: quotas of queue pairs.
    pub rcft: RcftConfig,
    /// How tenants share the link.
    pub qos: QosConfig,
    /// The connection table of security groups.
    pub security: SecurityConfig,
    /// Which flows go into hardware.
    pub offload: OffloadConfig,
    /// Ports on the underlay.
    #[serde(rename = "uplink")]
    pub uplinks: Vec<UplinkConfig>,
    /// Tenant networks.
    #[serde(rename = "vpc")]
    pub vpcs: Vec<VpcConfig>,
    /// Their prefixes.
    #[serde(rename = "subnet")]
    pub subnets: Vec<SubnetConfig>,
    /// What their members may send and get.
    #[serde(rename = "security-group")]
    pub security_groups: Vec<SecurityGroupConfig>,
    /// Ports whose VLANs are vNICs.
    #[serde(rename = "trunk")]
    pub trunks: Vec<TrunkConfig>,
    /// Tenants' ports. There may be many, and most configs differ from another in few of them: copies share the rest.
    #[serde(rename = "vnic", serialize_with = "fields::show_shared")]
    pub vnics: Vector<Arc<VnicConfig>>,
    /// VMs on other hosts.
    #[serde(rename = "location")]
    pub locations: Vec<LocationConfig>,
    /// Plain ports.
    #[serde(rename = "port")]
    pub ports: Vec<PortConfig>,
}

impl Config {
    /// The config in `text`; `origin` is the name its errors give the text.
    ///
    /// # Errors
    /// Everything wrong with it, each with its place.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigErrors> {
        Document::parse(text, origin).map(|document| document.config)
    }

    /// Checks a config that was changed at run time and has no text.
    ///
    /// # Errors
    /// Everything wrong with it.
    pub fn validate(&self) -> Result<(), ConfigErrors> {
        validate::all(self, &places::Places::default())
    }

    /// The config as TOML that [`Config::parse`] reads back to the same.
    ///
    /// # Errors
    /// When a value cannot be written as TOML, such as a path that is not UTF-8.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string_pretty(self)
    }
}

#[cfg(test)]
pub(crate) mod tests;
