//! `[control] evpn`: what other hosts say by BGP, and what this one tells them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::quote;
use super::fields::{self, FromText};
use super::units;

/// Where gobgpd's gRPC interface is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GobgpdAddress {
    /// By TCP.
    Tcp(SocketAddr),
    /// By a Unix socket, an absolute path.
    Unix(PathBuf),
}

impl FromText for GobgpdAddress {
    fn from_text(text: &str) -> Result<Self, String> {
        let wrong = || {
            let what = quote(text);
            format!(
                "{what} is neither an address with a port nor a socket; write for example 127.0.0.1:50051 or unix:/run/gobgpd.sock"
            )
        };
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') && !path.contains(char::is_control) => {
                Ok(Self::Unix(path.into()))
            }
            Some(_) => Err(wrong()),
            None => text.parse().map(Self::Tcp).map_err(|_| wrong()),
        }
    }
}

impl fmt::Display for GobgpdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

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
    #[serde(deserialize_with = "fields::one", serialize_with = "fields::show")]
    pub gobgpd: GobgpdAddress,
    /// The tunnel end point that is announced; absent: the first of `tunnel_sources`.
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
    /// So many moves of a MAC address within the time below make it a duplicate (N of RFC 7432 section 15.1).
    #[serde(default = "usual_moves")]
    pub duplicate_moves: usize,
    /// The time for them (M), and for how long it is left alone then.
    #[serde(default = "usual_duplicate_time", with = "units::duration")]
    pub duplicate_time: Duration,
}

impl EvpnConfig {
    /// So many moves within [`Self::DUPLICATE_TIME`] are too many, unless the config says otherwise (RFC 7432 section 15.1).
    pub const DUPLICATE_MOVES: usize = 5;
    pub const DUPLICATE_TIME: Duration = Duration::from_secs(180);
}

const fn usual_moves() -> usize {
    EvpnConfig::DUPLICATE_MOVES
}

const fn usual_duplicate_time() -> Duration {
    EvpnConfig::DUPLICATE_TIME
}

/// As the time after which FRR forgets the routes of a peer that restarts.
const fn usual_stale_time() -> Duration {
    Duration::from_secs(120)
}
