//! Results as the CNI specification has them: interfaces, addresses, routes.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// From version 1.1.0 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// Of vhost-user, from version 1.1.0 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_path: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    pub address: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Which of the interfaces has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    pub dst: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
}

/// A result, or that of another plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CniResult {
    #[serde(default)]
    pub interfaces: Vec<Interface>,
    #[serde(default)]
    pub ips: Vec<Address>,
    #[serde(default)]
    pub routes: Vec<Route>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub dns: Value,
}

impl CniResult {
    /// This behind what an earlier plugin of the chain made.
    #[must_use]
    pub fn behind(mut self, earlier: Option<Self>) -> Self {
        let Some(mut earlier) = earlier else { return self };
        let shift = earlier.interfaces.len();
        for ip in &mut self.ips {
            ip.interface = ip.interface.map(|at| at + shift);
        }
        earlier.interfaces.append(&mut self.interfaces);
        earlier.ips.append(&mut self.ips);
        earlier.routes.append(&mut self.routes);
        if !self.dns.is_null() {
            earlier.dns = self.dns;
        }
        earlier
    }

    /// The text for standard output, in a version of the specification.
    pub fn told(mut self, version: &str) -> String {
        let is_before_1_1 = version != "1.1.0";
        for interface in self.interfaces.iter_mut().filter(|_| is_before_1_1) {
            interface.mtu = None;
            interface.socket_path = None;
        }
        let families: Vec<_> =
            self.ips.iter().map(|ip| if ip.address.addr().is_ipv4() { "4" } else { "6" }).collect();
        let mut told = json!(self);
        told["cniVersion"] = version.into();
        if version == "0.4.0" {
            let ips = told["ips"].as_array_mut().into_iter().flatten();
            for (ip, family) in ips.zip(families) {
                ip["version"] = family.into();
            }
        }
        told.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::VERSIONS;

    fn result() -> CniResult {
        let pod = Interface {
            name: "eth0".into(),
            mac: "02:00:00:00:00:01".into(),
            mtu: Some(1450),
            sandbox: "/run/netns/a".into(),
            socket_path: None,
        };
        let host = Interface {
            name: "cni1".into(),
            socket_path: Some("/run/a.sock".into()),
            ..Interface::default()
        };
        let ip = |address: &str, gateway: &str| Address {
            address: address.parse().unwrap(),
            gateway: gateway.parse().ok(),
            interface: Some(1),
        };
        let routes = vec![Route { dst: "0.0.0.0/0".parse().unwrap(), gw: "10.0.0.1".parse().ok() }];
        let ips = vec![ip("10.0.0.5/24", "10.0.0.1"), ip("fd00::5/64", "")];
        CniResult { interfaces: vec![host, pod], ips, routes, dns: Value::Null }
    }

    #[test]
    fn each_version_has_its_form() {
        let golden = [
            r#"{"cniVersion":"0.4.0","interfaces":[{"name":"cni1"},{"mac":"02:00:00:00:00:01","name":"eth0","sandbox":"/run/netns/a"}],"ips":[{"address":"10.0.0.5/24","gateway":"10.0.0.1","interface":1,"version":"4"},{"address":"fd00::5/64","interface":1,"version":"6"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}]}"#,
            r#"{"cniVersion":"1.0.0","interfaces":[{"name":"cni1"},{"mac":"02:00:00:00:00:01","name":"eth0","sandbox":"/run/netns/a"}],"ips":[{"address":"10.0.0.5/24","gateway":"10.0.0.1","interface":1},{"address":"fd00::5/64","interface":1}],"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}]}"#,
            r#"{"cniVersion":"1.1.0","interfaces":[{"name":"cni1","socketPath":"/run/a.sock"},{"mac":"02:00:00:00:00:01","mtu":1450,"name":"eth0","sandbox":"/run/netns/a"}],"ips":[{"address":"10.0.0.5/24","gateway":"10.0.0.1","interface":1},{"address":"fd00::5/64","interface":1}],"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}]}"#,
        ];
        for (version, golden) in VERSIONS.into_iter().zip(golden) {
            let told: Value = serde_json::from_str(&result().told(version)).unwrap();
            assert_eq!(told, serde_json::from_str::<Value>(golden).unwrap(), "{version}");
            let again: CniResult = serde_json::from_value(told).unwrap();
            assert_eq!(again.ips, result().ips);
        }
    }

    #[test]
    fn what_earlier_plugins_made_comes_first() {
        let whole = result().behind(Some(result()));
        let interfaces: Vec<_> = whole.ips.iter().map(|ip| ip.interface).collect();
        assert_eq!(interfaces, [Some(1), Some(1), Some(3), Some(3)]);
        assert_eq!((whole.interfaces.len(), whole.routes.len()), (4, 2));
        assert_eq!(result().behind(None), result());
    }
}
