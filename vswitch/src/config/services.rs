//! What the virtual router of a subnet tells its vNICs: `[[subnet]] dhcp` and `ra`, and names of hosts and domains.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::error::quote;
use super::fields::{self, FromText};
use super::units;

/// The name of a host or a domain: labels of letters, digits and hyphens with dots between (RFC 1123 section 2.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainName(String);

impl DomainName {
    /// The longest name, in characters (RFC 1035 section 2.3.4).
    pub const MAX_LEN: usize = 253;
    /// The longest label.
    const MAX_LABEL: usize = 63;

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name nearest to a text: hyphens stand for what cannot be in one. `None` when nothing is left.
    pub fn near(text: &str) -> Option<Self> {
        let legal = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        let replaced: String = text.chars().map(legal).collect();
        let labels =
            replaced.split('.').map(|label| label.trim_matches('-')).filter(|label| !label.is_empty());
        Self::from_text(&labels.collect::<Vec<_>>().join(".")).ok()
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromText for DomainName {
    fn from_text(text: &str) -> Result<Self, String> {
        let is_label = |label: &str| {
            (1..=Self::MAX_LABEL).contains(&label.len())
                && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        if text.len() > Self::MAX_LEN || !text.split('.').all(is_label) {
            return Err(format!(
                "{} is not the name of a host or a domain; write labels of letters, digits and hyphens with dots between, \
                 such as vm1 or blue.example",
                quote(text)
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

/// `[[subnet]] dhcp`: what its vNICs are told by DHCPv4, or by DHCPv6 in a subnet of IPv6.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DhcpConfig {
    /// How long an address is theirs before they have to ask again; they do so at half of it.
    #[serde(default = "one_hour", with = "units::duration")]
    pub lease: Duration,
    /// Name servers.
    #[serde(default, deserialize_with = "fields::list")]
    pub dns: Vec<IpAddr>,
    /// Their domain.
    #[serde(default, with = "fields::optional", skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The MTU that they are told; absent: that of each vNIC.
    #[serde(default)]
    pub mtu: Option<u16>,
    /// Routes that they are told besides the one to everywhere.
    #[serde(default)]
    pub routes: Vec<DhcpRoute>,
}

/// `[[subnet]] ra`: router advertisements in a subnet of IPv6.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RaConfig {
    /// How long the virtual router is a default router after each; zero: it is none.
    #[serde(default = "half_an_hour", with = "units::duration")]
    pub lifetime: Duration,
    /// Name servers (RFC 8106); none: those of DHCP.
    #[serde(default, deserialize_with = "fields::list")]
    pub dns: Vec<IpAddr>,
}

impl RaConfig {
    /// The shortest lifetime but zero, which is twice the longest time between two advertisements, so that one may be lost, and the
    /// longest one (RFC 4861 section 6.2.1).
    pub const LIFETIMES: [Duration; 2] = [Duration::from_secs(1200), Duration::from_secs(9000)];
}

impl Default for RaConfig {
    fn default() -> Self {
        Self { lifetime: half_an_hour(), dns: Vec::new() }
    }
}

/// A route that vNICs are told (RFC 3442).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DhcpRoute {
    /// Destinations.
    #[serde(deserialize_with = "fields::one")]
    pub to: IpNet,
    /// The router on the way; absent: the subnet's gateway.
    #[serde(default, deserialize_with = "fields::maybe")]
    pub via: Option<IpAddr>,
}

impl DhcpConfig {
    /// The shortest lease.
    pub const MIN_LEASE: Duration = Duration::from_secs(4);
    /// The longest lease: what the field of DHCP holds, but for the value that means for ever (RFC 2131 section 3.3).
    pub const MAX_LEASE: Duration = Duration::from_secs(u32::MAX as u64 - 1);
    /// Most name servers, so that answers fit into the 576 bytes that every client takes (RFC 2131 section 2).
    pub const MAX_DNS: usize = 8;
    /// Most routes, for the same reason.
    pub const MAX_ROUTES: usize = 16;

    /// The lease in seconds, as DHCP counts.
    pub const fn lease_seconds(&self) -> u32 {
        let seconds = self.lease.as_secs();
        if seconds < u32::MAX as u64 { seconds as u32 } else { u32::MAX - 1 }
    }
}

impl Default for DhcpConfig {
    fn default() -> Self {
        Self { lease: one_hour(), dns: Vec::new(), domain: None, mtu: None, routes: Vec::new() }
    }
}

const fn half_an_hour() -> Duration {
    Duration::from_secs(1800)
}

const fn one_hour() -> Duration {
    Duration::from_secs(3600)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_names_of_hosts_are_checked_and_made() {
        for good in ["a", "vm-1.blue.example", &vec!["x".repeat(63); 3].join(".")] {
            assert_eq!(DomainName::from_text(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            ".",
            "a..b",
            "a.",
            "-a",
            "a-",
            "a_b",
            "\u{e4}",
            &"x".repeat(64),
            &vec!["x".repeat(63); 4].join("."),
        ] {
            let error = DomainName::from_text(bad).unwrap_err();
            assert!(error.contains("not the name of a host"), "{error}");
        }
        let near = |text: &str| DomainName::near(text).map(|name| name.to_string());
        assert_eq!(near("vm_1.eth0").as_deref(), Some("vm-1.eth0"));
        assert_eq!(near("_box_").as_deref(), Some("box"));
        assert_eq!((near("__.-"), near("")), (None, None));
    }
}
