//! The config of the networks: uplinks, VPCs, subnets, trunks, vNICs, locations, plain ports.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use wire::{MacAddr, Vni};

use super::bfd::BfdConfig;
use super::fields;
use super::guard::{AllowedConfig, GuardConfig};
use super::name::Name;
use super::offload::OffloadDevice;
use super::port_spec::{PortSpec, TapPort};
use super::qos::{BothWays, VnicQos, is_default};
use super::rcft::{QuotaConfig, RcftConfig, Refuse};
use super::routes::VpcRoute;
use super::services::{DhcpConfig, DomainName, RaConfig};

/// What becomes of uplink traffic that is not for the VTEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostTraffic {
    /// The NIC keeps it for the kernel (flow isolation).
    Isolate,
    /// It goes to a tap.
    Punt,
}

/// A static route of the underlay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct UnderlayRoute {
    /// Destinations.
    #[serde(deserialize_with = "fields::one")]
    pub to: IpNet,
    /// The next hop.
    #[serde(deserialize_with = "fields::one")]
    pub via: IpAddr,
}

/// A neighbour of the underlay that need not be resolved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StaticNeighbour {
    /// Its address.
    #[serde(deserialize_with = "fields::one")]
    pub ip: IpAddr,
    /// Its MAC address.
    #[serde(deserialize_with = "fields::one", serialize_with = "fields::show")]
    pub mac: MacAddr,
}

/// `[[uplink]]`: a port on the underlay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct UplinkConfig {
    /// Its name.
    pub name: Name,
    /// What stands behind it.
    pub port: PortSpec,
    /// VTEP addresses, each with the prefix of its network.
    #[serde(default, deserialize_with = "fields::list")]
    pub addresses: Vec<IpNet>,
    /// Default routers; several of one address family share the flows.
    #[serde(default, deserialize_with = "fields::list")]
    pub gateway: Vec<IpAddr>,
    /// Other routes.
    #[serde(default)]
    pub routes: Vec<UnderlayRoute>,
    /// Of several uplinks that lead to a VTEP equally well those with the lowest metric are used, and share its flows; the
    /// others take over when these have no link.
    #[serde(default)]
    pub metric: u32,
    /// The largest IP packet of the underlay.
    #[serde(default = "ethernet_mtu")]
    pub mtu: u16,
    /// VTEPs whose tunnel packets are accepted in every VPC, also from stations without a location. Those of a VPC's
    /// locations and gateways are accepted there anyway.
    #[serde(default, deserialize_with = "fields::list")]
    pub peers: Vec<IpAddr>,
    /// The VLAN of the underlay; absent: untagged.
    #[serde(default)]
    pub vlan: Option<u16>,
    /// UDP checksums over IPv6 may be zero, sent and received (RFC 6935).
    #[serde(default)]
    pub udp6_zero_checksum: bool,
    /// TCP super-frames are cut in software although the port's device could do it inside the tunnel.
    #[serde(default)]
    pub software_tso: bool,
    /// The uplink's MAC address; absent: the port's own.
    #[serde(default, with = "fields::optional", skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// What becomes of traffic that is not for the VTEP; absent: dropped and counted.
    #[serde(default)]
    pub host: Option<HostTraffic>,
    /// The name of the tap of `host = "punt"`; absent: that of the uplink with `-host` behind it. It stays when the switch ends.
    #[serde(default)]
    pub host_tap: Option<String>,
    /// Neighbours that are not resolved.
    #[serde(default)]
    pub neighbours: Vec<StaticNeighbour>,
    /// Who is asked whether it lives; absent: nobody.
    #[serde(default)]
    pub bfd: Option<BfdConfig>,
    /// Receive queues; absent: one per worker as far as the port has them.
    #[serde(default)]
    pub rx_queues: Option<u16>,
    /// Transmit queues; absent: one per worker as far as the port has them.
    #[serde(default)]
    pub tx_queues: Option<u16>,
    /// What holds its rules; absent: its flows stay in software.
    #[serde(default)]
    pub offload: Option<OffloadDevice>,
}

impl UplinkConfig {
    /// The tap that takes what is not for the VTEP, with `host = "punt"`.
    pub fn punt_tap(&self) -> Option<TapPort> {
        let iface = || self.host_tap.clone().unwrap_or_else(|| format!("{}-host", self.name));
        // Its MAC address is the uplink's, which the config need not know. It stays when the switch ends, and the switch has it do so when
        // the change that brings it is in force: one that is refused leaves nothing behind.
        let tap = || TapPort { iface: iface(), netns: None, queues: 1, mac: None, persist: false };
        (self.host == Some(HostTraffic::Punt)).then(tap)
    }
}

/// What becomes of a VLAN tag inside the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InnerVlan {
    /// The packet is dropped (RFC 7348 section 6.1).
    #[default]
    Drop,
    /// The tag is kept, and part of the flow.
    Keep,
}

/// `[[vpc]]`: a tenant network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct VpcConfig {
    /// Its name.
    pub name: Name,
    /// Its id on the wire.
    #[serde(deserialize_with = "fields::vni", serialize_with = "fields::show_vni")]
    pub vni: Vni,
    /// The MAC address of its virtual router; absent: see [`VpcConfig::router_mac`].
    #[serde(
        default,
        with = "fields::optional",
        skip_serializing_if = "Option::is_none",
        rename = "router-mac"
    )]
    pub given_router_mac: Option<MacAddr>,
    /// Broadcast and unknown destinations are replicated to the VNI's VTEPs.
    #[serde(default)]
    pub flood: bool,
    /// VTEPs that are heard in it besides those of its locations and gateways, and flooded to where it floods.
    #[serde(default, deserialize_with = "fields::list", skip_serializing_if = "Vec::is_empty")]
    pub vteps: Vec<IpAddr>,
    /// What becomes of inner VLAN tags.
    #[serde(default)]
    pub inner_vlan: InnerVlan,
    /// Routes besides those to its subnets.
    #[serde(default)]
    pub routes: Vec<VpcRoute>,
    /// Its part of the link.
    #[serde(default, skip_serializing_if = "is_default")]
    pub qos: BothWays,
}

impl VpcConfig {
    /// The MAC address of the virtual router: the given one, or a local one made of the VNI, so that every
    /// host of the network has the same.
    pub fn router_mac(&self) -> MacAddr {
        let [_, a, b, c] = self.vni.get().to_be_bytes();
        self.given_router_mac.unwrap_or(MacAddr([0x02, 0x00, 0x5e, a, b, c]))
    }
}

/// `[[subnet]]`: a prefix of a VPC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SubnetConfig {
    /// The VPC's name.
    pub vpc: Name,
    /// The prefix.
    #[serde(deserialize_with = "fields::one")]
    pub prefix: IpNet,
    /// The virtual router's address in it.
    #[serde(default, deserialize_with = "fields::maybe")]
    pub gateway: Option<IpAddr>,
    /// What its vNICs are told by DHCP; absent: nobody answers.
    #[serde(default)]
    pub dhcp: Option<DhcpConfig>,
    /// What its vNICs are told by router advertisements; absent: nothing.
    #[serde(default)]
    pub ra: Option<RaConfig>,
}

/// `[[trunk]]`: a port whose VLANs are vNICs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TrunkConfig {
    /// Its name.
    pub name: Name,
    /// What stands behind it.
    pub port: PortSpec,
    /// Receive queues.
    #[serde(default)]
    pub rx_queues: Option<u16>,
    /// Transmit queues.
    #[serde(default)]
    pub tx_queues: Option<u16>,
}

/// What a vNIC is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum VnicPort {
    /// A trunk, by name; the vNIC has a VLAN of it.
    Trunk(Name),
    /// A port of its own.
    Own(PortSpec),
}

impl<'de> Deserialize<'de> for VnicPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = VnicPort;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a trunk, or a port such as { kind = \"tap\", iface = \"tap0\" }")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<VnicPort, E> {
                Name::new(text).map(VnicPort::Trunk).map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<VnicPort, A::Error> {
                PortSpec::deserialize(MapAccessDeserializer::new(map)).map(VnicPort::Own)
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

/// Which link-local addresses of IPv6 are a vNIC's own, besides those among its VIPs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkLocal {
    /// The one that follows from its MAC (RFC 4291 appendix A).
    Eui64,
    /// That one, and a few that it asks for by duplicate address detection (RFC 7217, RFC 8981).
    #[default]
    Learn,
}

impl LinkLocal {
    /// True when addresses that it asks for become its own.
    pub const fn learns(self) -> bool {
        matches!(self, Self::Learn)
    }
}

/// `[[vnic]]`: a tenant's port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct VnicConfig {
    /// Its name.
    pub name: Name,
    /// The VPC's name.
    pub vpc: Name,
    /// Its MAC address.
    #[serde(deserialize_with = "fields::one", serialize_with = "fields::show")]
    pub mac: MacAddr,
    /// Its virtual addresses.
    #[serde(default, deserialize_with = "fields::list")]
    pub vips: Vec<IpAddr>,
    /// Its link-local addresses of IPv6.
    #[serde(default, skip_serializing_if = "is_default")]
    pub link_local: LinkLocal,
    /// Addresses that it may have besides: floating ones, and those of what is nested in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<AllowedConfig>,
    /// Whether it may send from others' addresses.
    #[serde(default, skip_serializing_if = "is_default")]
    pub guard: GuardConfig,
    /// The host name that DHCP tells it; absent: its name.
    #[serde(default, with = "fields::optional", skip_serializing_if = "Option::is_none")]
    pub host_name: Option<DomainName>,
    /// The largest IP packet of the tenant.
    #[serde(default = "tunnel_mtu")]
    pub mtu: u16,
    /// What it is bound to.
    pub port: VnicPort,
    /// The VLAN, on a trunk.
    #[serde(default)]
    pub vlan: Option<u16>,
    /// Queue pairs the switch uses; absent: one per worker as far as the port has them.
    #[serde(default)]
    pub queues: Option<u16>,
    /// What holds the rules of its own port; absent: its flows stay in software.
    #[serde(default)]
    pub offload: Option<OffloadDevice>,
    /// RC queue pairs it may have in use; absent: what `[rcft] quota` says.
    #[serde(default)]
    pub qp_quota: Option<QuotaConfig>,
    /// What becomes of those over quota; absent: what `[rcft] refuse` says.
    #[serde(default)]
    pub refuse: Option<Refuse>,
    /// Its part of its VPC's.
    #[serde(default, skip_serializing_if = "is_default")]
    pub qos: VnicQos,
    /// The security groups that it is in; absent: everything may come and go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<Name>,
}

impl VnicConfig {
    /// The host name that it is told.
    pub fn told_host_name(&self) -> Option<DomainName> {
        self.host_name.clone().or_else(|| DomainName::near(&self.name))
    }

    /// Its quota under the defaults of `rcft`; nothing: an equal part of what others leave.
    pub fn quota<'c>(&'c self, rcft: &'c RcftConfig) -> Option<&'c QuotaConfig> {
        self.qp_quota.as_ref().or(rcft.quota.as_ref())
    }

    /// What becomes of its queue pairs over quota, under the defaults of `rcft`.
    pub fn refuse(&self, rcft: &RcftConfig) -> Refuse {
        self.refuse.unwrap_or(rcft.refuse)
    }
}

/// `[[location]]`: a VM on another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LocationConfig {
    /// Its network.
    #[serde(deserialize_with = "fields::vni", serialize_with = "fields::show_vni")]
    pub vni: Vni,
    /// Its virtual address.
    #[serde(deserialize_with = "fields::one")]
    pub vip: IpAddr,
    /// Its MAC address.
    #[serde(deserialize_with = "fields::one", serialize_with = "fields::show")]
    pub mac: MacAddr,
    /// The tunnel end point of its host.
    #[serde(deserialize_with = "fields::one")]
    pub vtep: IpAddr,
    /// The security groups that it is in, for rules that name groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Name>,
}

/// `[[port]]`: a plain port for the `io` and `mac` modes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PortConfig {
    /// Its name.
    pub name: Name,
    /// What stands behind it.
    pub port: PortSpec,
    /// Receive queues.
    #[serde(default)]
    pub rx_queues: Option<u16>,
    /// Transmit queues.
    #[serde(default)]
    pub tx_queues: Option<u16>,
}

const fn ethernet_mtu() -> u16 {
    1500
}

const fn tunnel_mtu() -> u16 {
    1450
}
