//! The config of the guard: what a vNIC may send from besides its own addresses.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wire::MacAddr;

use super::error::quote;
use super::fields::{self, FromText};

/// Whether a vNIC may send from its own and its allowed addresses only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuardConfig {
    /// From those only.
    #[default]
    On,
    /// From any MAC and any address, within its VPC and what that routes to.
    Off,
}

/// Of `[[vnic]] allowed`: addresses that a vNIC may have besides its VIPs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AllowedConfig {
    /// An address, or a prefix of them.
    #[serde(deserialize_with = "addresses", serialize_with = "show_addresses")]
    pub ip: IpNet,
    /// The MAC that it has them with; absent: its own.
    #[serde(default, with = "fields::optional", skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
}

/// A prefix, or one address.
struct Addresses(IpNet);

impl FromText for Addresses {
    fn from_text(text: &str) -> Result<Self, String> {
        let one = text.parse::<IpAddr>().map(IpNet::from);
        let wrong = |_| {
            format!(
                "{} is neither an address nor a prefix; write for example 10.0.0.100 or 10.0.0.0/28",
                quote(text)
            )
        };
        one.or_else(|_| text.parse()).map(Self).map_err(wrong)
    }
}

fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpNet, D::Error> {
    fields::one::<Addresses, D>(deserializer).map(|addresses| addresses.0)
}

fn show_addresses<S: Serializer>(value: &IpNet, serializer: S) -> Result<S::Ok, S::Error> {
    if value.prefix_len() == value.max_prefix_len() {
        fields::show(&value.addr(), serializer)
    } else {
        fields::show(value, serializer)
    }
}
