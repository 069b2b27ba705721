//! The config of the routes of VPCs.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use wire::MacAddr;

use super::fields;
use super::name::Name;

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
    #[serde(default, skip_serializing_if = "super::qos::is_default")]
    blackhole: bool,
}

impl TryFrom<WrittenVpcRoute> for VpcRoute {
    type Error = String;

    fn try_from(written: WrittenVpcRoute) -> Result<Self, String> {
        let WrittenVpcRoute { to, vtep, mac, next_hops, vpc, blackhole } = written;
        let target = match (vtep, mac, next_hops.is_empty(), vpc, blackhole) {
            (Some(vtep), Some(mac), true, None, false) => {
                RouteTargetConfig::Gateways(vec![GatewayConfig { vtep, mac }])
            }
            (None, None, false, None, false) => RouteTargetConfig::Gateways(next_hops),
            (None, None, true, Some(vpc), false) => RouteTargetConfig::Peer { vpc },
            (None, None, true, None, true) => RouteTargetConfig::Blackhole,
            _ => {
                return Err(format!(
                    "the route to {to} needs one target: both vtep and mac (a gateway), next-hops (several), vpc (a peered \
                     VPC), or blackhole = true"
                ));
            }
        };
        Ok(Self { to, target })
    }
}

impl From<VpcRoute> for WrittenVpcRoute {
    fn from(route: VpcRoute) -> Self {
        let bare =
            Self { to: route.to, vtep: None, mac: None, next_hops: Vec::new(), vpc: None, blackhole: false };
        match route.target {
            RouteTargetConfig::Gateways(gateways) => match gateways.as_slice() {
                [one] => Self { vtep: Some(one.vtep), mac: Some(one.mac), ..bare },
                _ => Self { next_hops: gateways, ..bare },
            },
            RouteTargetConfig::Peer { vpc } => Self { vpc: Some(vpc), ..bare },
            RouteTargetConfig::Blackhole => Self { blackhole: true, ..bare },
        }
    }
}
