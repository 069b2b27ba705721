//! `[control] etcd`: the etcd that the hosts of a cluster share.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::name::Name;
use super::{fields, units};

/// `[control] etcd`: where it is, who asks, and how long a silent host is believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct EtcdConfig {
    /// URLs of its members: `http://192.0.2.1:2379`, or `https://` with `tls`. One is used at a time.
    pub endpoints: Vec<String>,
    /// The name of this host in the cluster; the machine's host name when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Name>,
    /// In front of all keys.
    #[serde(default = "usual_prefix")]
    pub prefix: String,
    /// The addresses that others tunnel to; those that this host's tunnels come from when it is left out.
    #[serde(default, deserialize_with = "fields::list", skip_serializing_if = "Vec::is_empty")]
    pub vteps: Vec<IpAddr>,
    /// Files for `https://`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<EtcdTls>,
    /// A user of etcd's authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<EtcdUser>,
    /// How long etcd keeps what this host says after it was heard last: the time of the host's lease.
    #[serde(default = "usual_lease", with = "units::duration")]
    pub lease: Duration,
    /// How long this host believes others after their leases have ended.
    #[serde(default = "usual_grace", with = "units::duration")]
    pub grace: Duration,
}

/// Files of TLS, in PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct EtcdTls {
    /// The CAs that sign etcd's certificates.
    pub ca: PathBuf,
    /// This host's own certificate, and its key, where etcd asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

/// A user of etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct EtcdUser {
    pub name: String,
    /// A file with the password, and nothing else but a line feed at its end.
    pub password_file: PathBuf,
}

impl EtcdConfig {
    /// Leases are granted in whole seconds, and etcd has none under this.
    pub const SHORTEST_LEASE: Duration = Duration::from_secs(2);
    /// Beyond it a host that died is believed for longer than anybody wants.
    pub const LONGEST_LEASE: Duration = Duration::from_secs(600);
}

fn usual_prefix() -> String {
    "/vswitch/".into()
}

const fn usual_lease() -> Duration {
    Duration::from_secs(10)
}

const fn usual_grace() -> Duration {
    Duration::from_secs(30)
}
