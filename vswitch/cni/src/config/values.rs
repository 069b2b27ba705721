//! Values of the network config.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;
use wire::MacAddr;

use crate::error::quote;

/// One, or a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneOrMore<T>(pub Vec<T>);

impl<T> Default for OneOrMore<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: std::str::FromStr<Err: fmt::Display>> Deserialize<'de> for OneOrMore<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let texts = match Value::deserialize(deserializer)? {
            Value::String(text) => vec![text],
            Value::Array(texts) => texts
                .into_iter()
                .map(|text| {
                    text.as_str()
                        .map(str::to_owned)
                        .ok_or_else(|| de::Error::custom("a list of texts is wanted"))
                })
                .collect::<std::result::Result<_, _>>()?,
            _ => return Err(de::Error::custom("a text or a list of texts is wanted")),
        };
        let read = |text: &String| {
            text.parse().map_err(|error| de::Error::custom(format!("{}: {error}", quote(text))))
        };
        texts.iter().map(read).collect::<std::result::Result<_, _>>().map(Self)
    }
}

/// A MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub MacAddr);

impl<'de> Deserialize<'de> for Mac {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(de::Error::custom)
    }
}

/// An address, with or without the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host(pub IpAddr);

impl std::str::FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let bare = || text.parse::<IpAddr>().ok();
        let ip = bare().or_else(|| text.parse::<IpNet>().ok().map(|net| net.addr()));
        ip.map(Self).ok_or_else(|| "is no IP address; write one like 10.0.0.5 or 10.0.0.5/24".into())
    }
}

/// RC queue pairs: a number, or a text such as "25% of mlx5_0".
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum QpQuota {
    Number(u32),
    Share(String),
}

impl fmt::Display for QpQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Share(share) => f.write_str(share),
        }
    }
}

/// What stands behind the vNIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Port {
    /// A veth whose other end is the pod's interface.
    #[default]
    Veth,
    /// A vhost-user socket, for a virtual machine.
    VhostUser,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    pub assured: Option<String>,
    pub ceil: Option<String>,
    pub weight: Option<u32>,
    pub burst: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Qos {
    pub outbound: Option<Limits>,
    pub inbound: Option<Limits>,
}

/// What a runtime says for the capabilities `mac` and `ips`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct RuntimeConfig {
    pub mac: Option<Mac>,
    #[serde(default)]
    pub ips: OneOrMore<Host>,
}

/// `args.cni`: what a user says about one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct UserArgs {
    pub vpc: Option<String>,
    pub security_groups: Option<Vec<String>>,
    pub qp_quota: Option<QpQuota>,
    pub mac: Option<Mac>,
    #[serde(default)]
    pub ips: OneOrMore<Host>,
    /// For people; it says nothing here.
    #[serde(default, rename = "labels")]
    pub _labels: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Args {
    #[serde(default)]
    pub cni: UserArgs,
}

/// The keys of a delegated plugin's section are its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ipam {
    #[serde(default, rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub range_start: OneOrMore<Host>,
    #[serde(default)]
    pub range_end: OneOrMore<Host>,
}

impl Ipam {
    /// The keys of the plugin's own.
    pub const KEYS: [&str; 3] = ["type", "rangeStart", "rangeEnd"];
}

/// An attachment that GC keeps.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ValidAttachment {
    #[serde(rename = "containerID")]
    pub container: String,
    #[serde(rename = "ifname")]
    pub interface: String,
}
