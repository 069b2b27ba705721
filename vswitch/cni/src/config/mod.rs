//! The network config on standard input: its keys, and what of it is wrong.

mod values;

use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

pub use self::values::{
    Args, Host, Ipam, Limits, OneOrMore, Port, Qos, QpQuota, RuntimeConfig, ValidAttachment,
};
use crate::error::{DECODING, Error, INCOMPATIBLE_VERSION, Result, quote};
use crate::names;
use crate::result::CniResult;

/// The versions of the CNI specification that are spoken, oldest first.
pub const VERSIONS: [&str; 3] = ["0.4.0", "1.0.0", "1.1.0"];

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NetworkConfig {
    #[serde(default)]
    pub cni_version: String,
    pub name: String,
    #[serde(rename = "type")]
    pub _kind: String,
    #[serde(default = "socket")]
    pub socket: PathBuf,
    pub vpc: String,
    /// Prefixes of the VPC, one of each family at most.
    pub subnet: OneOrMore<IpNet>,
    pub mtu: Option<u16>,
    #[serde(default)]
    pub security_groups: Vec<String>,
    #[serde(default)]
    pub qos: Qos,
    pub qp_quota: Option<QpQuota>,
    #[serde(default)]
    pub port: Port,
    /// Whether the pod's default routes are by the gateways of the subnets.
    #[serde(default = "yes")]
    pub default_route: bool,
    /// Where vhost-user sockets are.
    pub socket_folder: Option<PathBuf>,
    pub socket_owner: Option<String>,
    pub socket_group: Option<String>,
    pub socket_mode: Option<String>,
    #[serde(default)]
    pub ipam: Ipam,
    #[serde(default)]
    pub dns: Value,
    #[serde(default)]
    pub args: Args,
    #[serde(default, rename = "capabilities")]
    pub _capabilities: Value,
    #[serde(default)]
    pub runtime_config: RuntimeConfig,
    pub prev_result: Option<CniResult>,
    #[serde(rename = "cni.dev/valid-attachments")]
    pub valid_attachments: Option<Vec<ValidAttachment>>,
    /// The same, for plugins that knew another name of it.
    #[serde(default, rename = "cni.dev/attachments")]
    pub _attachments: Value,
}

fn yes() -> bool {
    true
}

fn socket() -> PathBuf {
    "/run/vswitch/vswitch.sock".into()
}

/// The `cniVersion` of a config, whatever else is in it.
///
/// # Errors
/// When the text is no JSON.
pub fn version_of(text: &[u8]) -> Result<String> {
    let value: Value = serde_json::from_slice(text).map_err(|error| {
        Error::new(
            DECODING,
            format!("the network config is no JSON: {error}"),
            "a container runtime writes it to standard input",
        )
    })?;
    Ok(value.get("cniVersion").and_then(Value::as_str).unwrap_or("0.1.0").to_owned())
}

impl NetworkConfig {
    pub fn read(text: &[u8]) -> Result<Self> {
        let version = version_of(text)?;
        if !VERSIONS.contains(&version.as_str()) {
            let known = VERSIONS.join(", ");
            let msg = format!("cniVersion: {} is not spoken", quote(&version));
            return Err(Error::new(INCOMPATIBLE_VERSION, msg, format!("write one of {known}")));
        }
        let json = &mut serde_json::Deserializer::from_slice(text);
        let config: Self = serde_path_to_error::deserialize(json).map_err(|error| {
            let path = error.path().to_string();
            let field = if path == "." { "the network config" } else { &path };
            Error::config(field, error.inner(), "the README of vswitch says which keys there are")
        })?;
        config.check()?;
        config.check_ipam_keys(text)?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        names::check_id(&self.name, 255)
            .map_err(|wrong| Error::config("name", wrong, "name the network anew"))?;
        if !self.socket.is_absolute() {
            return Err(Error::config(
                "socket",
                format!("{:?} is no absolute path", self.socket),
                "write the path of the switch's socket",
            ));
        }
        if self.vpc.is_empty() {
            return Err(Error::config("vpc", "it is empty", "write the name of a VPC"));
        }
        let subnets = &self.subnet.0;
        if subnets.is_empty()
            || subnets.iter().filter(|net| net.addr().is_ipv4()).count() > 1
            || subnets.len() > 2
            || subnets.iter().filter(|net| net.addr().is_ipv6()).count() > 1
        {
            return Err(Error::config(
                "subnet",
                "it has none, or several of one family",
                "write one prefix of each family that pods have",
            ));
        }
        if let Some(net) = subnets.iter().find(|net| net.trunc() != **net) {
            return Err(Error::config(
                "subnet",
                format!("{net} has bits behind its prefix"),
                format!("write {}", net.trunc()),
            ));
        }
        if self.mtu.is_some_and(|mtu| mtu < 68) {
            return Err(Error::config(
                "mtu",
                "it is below 68",
                "write what the pods' largest IP packet is, or leave it out",
            ));
        }
        match (self.port, &self.socket_folder) {
            (Port::VhostUser, Some(folder)) if folder.is_absolute() => {}
            (Port::VhostUser, _) => {
                return Err(Error::config(
                    "socketFolder",
                    "a vhost-user port needs an absolute path",
                    "write the folder in which the switch makes its sockets",
                ));
            }
            (Port::Veth, None) => {}
            (Port::Veth, Some(_)) => {
                return Err(Error::config(
                    "socketFolder",
                    "a veth has none",
                    "leave it out, or write \"port\": \"vhost-user\"",
                ));
            }
        }
        self.check_ipam()
    }

    fn check_ipam(&self) -> Result<()> {
        let kind = &self.ipam.kind;
        if kind.contains('/') || kind == "." || kind == ".." {
            return Err(Error::config(
                "ipam.type",
                format!("{} is no name of a plugin", quote(kind)),
                "write a name such as host-local",
            ));
        }
        if self.delegates() {
            return Ok(());
        }
        for (field, ends) in
            [("ipam.rangeStart", &self.ipam.range_start), ("ipam.rangeEnd", &self.ipam.range_end)]
        {
            for Host(ip) in &ends.0 {
                if !self.subnet.0.iter().any(|subnet| subnet.contains(ip)) {
                    return Err(Error::config(
                        field,
                        format!("{ip} is outside the subnet"),
                        "write an address in it",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Refuses keys of the plugin's own address management that it does not know; those of another plugin are that one's to read.
    fn check_ipam_keys(&self, text: &[u8]) -> Result<()> {
        let raw: Value = serde_json::from_slice(text).unwrap_or_default();
        let mut keys = raw.get("ipam").and_then(Value::as_object).into_iter().flat_map(|ipam| ipam.keys());
        match keys.find(|key| !self.delegates() && !Ipam::KEYS.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => Err(Error::config(
                &format!("ipam.{key}"),
                "nobody knows it",
                format!("write one of {}, or the type of the plugin that does", Ipam::KEYS.join(", ")),
            )),
        }
    }

    /// True when another plugin chooses the addresses.
    pub fn delegates(&self) -> bool {
        !matches!(self.ipam.kind.as_str(), "" | "vswitch")
    }

    /// Refuses a command that came with a later version of the specification.
    pub fn since(&self, first: &str, command: &str) -> Result<()> {
        let at = |version: &str| VERSIONS.iter().position(|known| *known == version);
        if at(&self.cni_version) < at(first) {
            let msg = format!("cniVersion: {command} is not in {}", self.cni_version);
            return Err(Error::new(INCOMPATIBLE_VERSION, msg, format!("write {first} or later")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
