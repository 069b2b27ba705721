//! `[control] evpn`: what other hosts say by BGP, and what this one tells them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{fields, units};

/// How the route target of a VNI is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteTargetForm {
    /// AS number and VNI, as FRR does by itself.
    #[default]
    Plain,
    /// AS number, and the VNI with its type in front (RFC 8365 section 5.1.2.1), as FRR's `autort rfc8365-compatible`.
    Rfc8365,
}

/// `[control] evpn`: the BGP speaker of this host. Takes effect at start only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct EvpnConfig {
    /// Where gobgpd's gRPC interface is.
    pub gobgpd: SocketAddr,
    /// The tunnel end point that is announced; absent: the first address of the first uplink.
    #[serde(default, deserialize_with = "fields::maybe", skip_serializing_if = "Option::is_none")]
    pub vtep: Option<IpAddr>,
    /// The AS number of route targets; absent: gobgpd's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asn: Option<u32>,
    /// How route targets are made.
    #[serde(default)]
    pub route_target: RouteTargetForm,
    /// Routes of VPCs that lead to a vNIC of this host are announced as prefixes.
    #[serde(default)]
    pub prefixes: bool,
    /// For so long what was heard is kept when gobgpd is back and its peers are not.
    #[serde(default = "usual_stale_time", with = "units::duration")]
    pub stale_time: Duration,
}

/// As the time after which FRR forgets the routes of a peer that restarts.
const fn usual_stale_time() -> Duration {
    Duration::from_secs(120)
}
