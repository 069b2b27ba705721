//! The config of the routes of VPCs.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use wire::MacAddr;

use super::name::Name;
use super::{Config, VnicConfig, fields};

/// Most gateways that share the flows of a route.
pub const MOST_GATEWAYS: usize = 16;

/// A router behind a VTEP, known by its MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct GatewayConfig {
    /// The tunnel end point.
    #[serde(deserialize_with = "fields::one")]
    pub vtep: IpAddr,
    /// The gateway's inner MAC address.
    #[serde(deserialize_with = "fields::one", serialize_with = "fields::show")]
    pub mac: MacAddr,
}

/// Where a VPC's route leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTargetConfig {
    /// A gateway, or several that share the flows.
    Gateways(Vec<GatewayConfig>),
    /// Another VPC.
    Peer {
        /// Its name.
        vpc: Name,
    },
    /// A vNIC of this host. When it moves to another host or goes, the route is one to its [`Station`](Self::Station).
    Vnic {
        /// Its name.
        vnic: Name,
    },
    /// A station of the VPC, on whichever host it is.
    Station {
        /// Its MAC address.
        mac: MacAddr,
    },
    /// Nowhere.
    Blackhole,
}

/// A route of a VPC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenVpcRoute", into = "WrittenVpcRoute")]
pub struct VpcRoute {
    /// Destinations.
    pub to: IpNet,
    /// Where they are.
    pub target: RouteTargetConfig,
}

/// A [`VpcRoute`] as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenVpcRoute {
    #[serde(deserialize_with = "fields::one")]
    to: IpNet,
    #[serde(default, deserialize_with = "fields::maybe", skip_serializing_if = "Option::is_none")]
    vtep: Option<IpAddr>,
    #[serde(default, with = "fields::optional", skip_serializing_if = "Option::is_none")]
    mac: Option<MacAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    next_hops: Vec<GatewayConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vpc: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vnic: Option<Name>,
    #[serde(default, skip_serializing_if = "super::qos::is_default")]
    blackhole: bool,
}

impl TryFrom<WrittenVpcRoute> for VpcRoute {
    type Error = String;

    fn try_from(written: WrittenVpcRoute) -> Result<Self, String> {
        let WrittenVpcRoute { to, vtep, mac, next_hops, vpc, vnic, blackhole } = written;
        let by_mac = match (vtep, mac) {
            (Some(vtep), Some(mac)) => Some(RouteTargetConfig::Gateways(vec![GatewayConfig { vtep, mac }])),
            (None, Some(mac)) => Some(RouteTargetConfig::Station { mac }),
            (_, None) => None,
        };
        let targets = [
            by_mac,
            (!next_hops.is_empty()).then_some(RouteTargetConfig::Gateways(next_hops)),
            vpc.map(|vpc| RouteTargetConfig::Peer { vpc }),
            vnic.map(|vnic| RouteTargetConfig::Vnic { vnic }),
            blackhole.then_some(RouteTargetConfig::Blackhole),
        ];
        let mut targets = targets.into_iter().flatten();
        match (targets.next(), targets.next(), vtep.is_none() || mac.is_some()) {
            (Some(target), None, true) => Ok(Self { to, target }),
            _ => Err(format!(
                "the route to {to} needs one target: both vtep and mac (a gateway), next-hops (several), vpc (a peered VPC), \
                 vnic (one of this host), mac alone (a station of the VPC on any host), or blackhole = true"
            )),
        }
    }
}

impl From<VpcRoute> for WrittenVpcRoute {
    fn from(route: VpcRoute) -> Self {
        let bare = Self {
            to: route.to,
            vtep: None,
            mac: None,
            next_hops: Vec::new(),
            vpc: None,
            vnic: None,
            blackhole: false,
        };
        match route.target {
            RouteTargetConfig::Gateways(gateways) => match gateways.as_slice() {
                [one] => Self { vtep: Some(one.vtep), mac: Some(one.mac), ..bare },
                _ => Self { next_hops: gateways, ..bare },
            },
            RouteTargetConfig::Peer { vpc } => Self { vpc: Some(vpc), ..bare },
            RouteTargetConfig::Vnic { vnic } => Self { vnic: Some(vnic), ..bare },
            RouteTargetConfig::Station { mac } => Self { mac: Some(mac), ..bare },
            RouteTargetConfig::Blackhole => Self { blackhole: true, ..bare },
        }
    }
}

impl Config {
    /// Has the routes that lead to a vNIC by its name lead to its MAC address, so that they follow it when it leaves this host.
    pub fn lead_to_station(&mut self, vnic: &VnicConfig) {
        for route in self.vpcs.iter_mut().flat_map(|vpc| &mut vpc.routes) {
            if matches!(&route.target, RouteTargetConfig::Vnic { vnic: name } if *name == vnic.name) {
                route.target = RouteTargetConfig::Station { mac: vnic.mac };
            }
        }
    }
}
