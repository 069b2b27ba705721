//! Secrets of the config: read and saved like any text, but neither shown, logged nor quoted in an error.

use std::fmt;
use std::sync::Arc;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::Config;
use super::network::VnicPort;
use super::port_spec::PortSpec;

/// What is shown in place of a secret.
pub const HIDDEN: &str = "(hidden)";

/// A text that only the device gets to see, and the file in which the config is saved.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_string(SecretReader)
    }
}

/// Takes texts. Everything else is refused without being quoted, as serde's own errors would.
struct SecretReader;

impl Visitor<'_> for SecretReader {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret: a text in quotes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Secret, E> {
        Ok(text.into())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Secret, E> {
        Err(E::custom("a secret is a text in quotes, not a number"))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Secret, E> {
        self.visit_i64(0)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Secret, E> {
        self.visit_i64(0)
    }
}

/// A driver's arguments, `key=value,key=value`, with their secrets hidden.
pub fn hide(arguments: &str) -> String {
    let hidden = arguments.split(',').map(|argument| match argument.split_once('=') {
        Some((key, _)) if is_secret(key) => format!("{key}={HIDDEN}"),
        _ => argument.to_owned(),
    });
    hidden.collect::<Vec<_>>().join(",")
}

/// The secrets in a driver's arguments.
pub fn values(arguments: &str) -> impl Iterator<Item = &str> {
    let pairs = arguments.split(',').filter_map(|argument| argument.split_once('='));
    pairs.filter(|(key, value)| is_secret(key) && !value.is_empty()).map(|(_, value)| value)
}

fn is_secret(key: &str) -> bool {
    key.trim().ends_with("secret")
}

impl Config {
    /// The config as it may be shown: every secret is [`HIDDEN`].
    #[must_use]
    pub fn without_secrets(mut self) -> Self {
        // Those on trunks stay shared with the running config.
        let own = self.vnics.iter_mut().filter(|vnic| matches!(vnic.port, VnicPort::Own(_)));
        let vnics = own.filter_map(|vnic| match &mut Arc::make_mut(vnic).port {
            VnicPort::Own(spec) => Some(spec),
            VnicPort::Trunk(_) => None,
        });
        let uplinks = self.uplinks.iter_mut().map(|uplink| &mut uplink.port);
        let trunks = self.trunks.iter_mut().map(|trunk| &mut trunk.port);
        let ports = self.ports.iter_mut().map(|port| &mut port.port);
        for spec in vnics.chain(uplinks).chain(trunks).chain(ports) {
            hide_in(spec);
        }
        self
    }
}

fn hide_in(spec: &mut PortSpec) {
    match spec {
        PortSpec::Memif(memif) => memif.secret = memif.secret.take().map(|_| HIDDEN.into()),
        PortSpec::Raw(raw) => raw.vdev = hide(&raw.vdev),
        PortSpec::Pci(pci) => pci.devargs = pci.devargs.take().map(|devargs| hide(&devargs)),
        PortSpec::Bond(bond) => bond.members.iter_mut().for_each(hide_in),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        [[vpc]]
        name = "red"
        vni = 1
        [[subnet]]
        vpc = "red"
        prefix = "10.0.0.0/24"
        [[vnic]]
        name = "one"
        vpc = "red"
        mac = "02:00:00:00:00:01"
        vips = ["10.0.0.1"]
        port = { kind = "memif", socket = "/run/m", secret = "xyzzy", trusted-peer = true }
        [[port]]
        name = "raw"
        port = { kind = "raw", vdev = "net_memif7,socket=/run/n,secret=xyzzy,id=3" }
    "#;

    #[test]
    fn repair_secrets_are_saved_and_not_shown() {
        let config = Config::parse(TEXT, "test").unwrap();
        // What is saved works after a restart.
        let saved = config.to_toml().unwrap();
        assert_eq!(saved.matches("xyzzy").count(), 2);
        assert_eq!(Config::parse(&saved, "saved").unwrap(), config);
        for shown in [
            config.clone().without_secrets().to_toml().unwrap(),
            serde_json::to_string(&config.clone().without_secrets()).unwrap(),
            format!("{:?}", config.vnics),
        ] {
            assert!(!shown.contains("xyzzy") && shown.contains(HIDDEN), "{shown}");
        }
        assert_eq!(values("net_memif7,secret=a,id=3").collect::<Vec<_>>(), ["a"]);
        assert_eq!(hide("net_memif7,secret=a,id=3"), "net_memif7,secret=(hidden),id=3");
    }

    #[test]
    fn repair_secrets_are_not_quoted_in_errors() {
        for (from, to) in [
            ("secret = \"xyzzy\"", "secret = \"xyzzy,id=5\""),
            ("secret = \"xyzzy\"", "secret = \"xyzzyxyzzyxyzzyxyzzyxyzzy\""),
            ("secret = \"xyzzy\"", "secret = 90210"),
            ("secret = \"xyzzy\"", "secret = 90210.5"),
            (
                "kind = \"memif\", socket = \"/run/m\", secret = \"xyzzy\"",
                "secret = 90210, kind = \"memif\", socket = \"/a\"",
            ),
            ("secret=xyzzy,id=3", "secret=xyzzy, id=3"),
            ("net_memif7,socket", "memif7,socket"),
        ] {
            let text = TEXT.replacen(from, to, 1);
            assert_ne!(text, TEXT);
            let error = Config::parse(&text, "test").unwrap_err().to_string();
            assert!(!error.contains("xyzzy") && !error.contains("90210"), "{to}: {error}");
        }
    }
}
