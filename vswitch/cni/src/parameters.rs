//! What one attachment is to be like: the network's config, and what a runtime or a user says about the pod.

use std::net::IpAddr;
use std::path::PathBuf;

use vswitch_api::v1::{self, port_spec, vnic::Behind};
use wire::MacAddr;

use crate::config::{Host, Limits, NetworkConfig, OneOrMore, Port, QpQuota};
use crate::environment::Attachment;
use crate::error::{ADDRESS_TAKEN, Error, Result};
use crate::names::Names;

#[derive(Clone, Debug)]
pub struct Parameters {
    pub names: Names,
    pub vpc: String,
    pub mac: MacAddr,
    /// Addresses that are asked for; none: they are chosen.
    pub ips: Vec<IpAddr>,
    security_groups: Vec<String>,
    qp_quota: Option<QpQuota>,
    qos: Option<v1::VnicQos>,
    host_name: Option<String>,
    mtu: Option<u16>,
    /// Of vhost-user.
    pub socket: Option<PathBuf>,
    socket_owner: Option<String>,
    socket_group: Option<String>,
    socket_mode: Option<String>,
}

/// The first of some lists that has something.
fn first<const N: usize>(lists: [&OneOrMore<Host>; N], last: &[IpAddr]) -> Vec<IpAddr> {
    let list = lists.into_iter().find(|list| !list.0.is_empty());
    list.map_or_else(|| last.to_vec(), |list| list.0.iter().map(|Host(ip)| *ip).collect())
}

fn limits(limits: &Limits) -> v1::Limits {
    let Limits { assured, ceil, weight, burst } = limits.clone();
    v1::Limits { assured, ceil, weight, burst }
}

impl Parameters {
    /// What the runtime says (`runtimeConfig`) comes before what the user says (`args.cni`), and that before `CNI_ARGS`.
    pub fn of(config: &NetworkConfig, attachment: &Attachment) -> Result<Self> {
        let (user, runtime) = (&config.args.cni, &config.runtime_config);
        let names = Names::of(&config.name, &attachment.container, &attachment.interface);
        let mac = runtime.mac.or(user.mac).map(|mac| mac.0).or(attachment.args.mac).unwrap_or(names.mac);
        if !mac.is_station() {
            return Err(Error::config(
                "mac",
                format!("{mac} is a group's"),
                "ask for a MAC address that a station may have",
            ));
        }
        let ips = first([&runtime.ips, &user.ips], &attachment.args.ips);
        for (at, ip) in ips.iter().enumerate() {
            if !config.subnet.0.iter().any(|subnet| subnet.contains(ip)) {
                return Err(Error::config(
                    "ips",
                    format!("{ip} is outside the subnet"),
                    "ask for an address in it",
                ));
            }
            if ips[..at].iter().any(|other| other.is_ipv4() == ip.is_ipv4()) {
                return Err(Error::config(
                    "ips",
                    format!("{ip} is the second of its family"),
                    "ask for one of each family at most",
                ));
            }
        }
        let qos = (config.qos.outbound.is_some() || config.qos.inbound.is_some()).then(|| v1::VnicQos {
            outbound: config.qos.outbound.as_ref().map(limits),
            inbound: config.qos.inbound.as_ref().map(limits),
            ..v1::VnicQos::default()
        });
        let folder = config.socket_folder.as_ref().filter(|_| config.port == Port::VhostUser);
        Ok(Self {
            socket: folder.map(|folder| folder.join(format!("{}.sock", names.host_end))),
            names,
            vpc: user.vpc.clone().unwrap_or_else(|| config.vpc.clone()),
            mac,
            ips,
            security_groups: user.security_groups.clone().unwrap_or_else(|| config.security_groups.clone()),
            qp_quota: user.qp_quota.clone().or_else(|| config.qp_quota.clone()),
            qos,
            host_name: attachment.args.host_name.clone(),
            mtu: config.mtu,
            socket_owner: config.socket_owner.clone(),
            socket_group: config.socket_group.clone(),
            socket_mode: config.socket_mode.clone(),
        })
    }

    /// The addresses that a vNIC has, with those that are asked for in their place.
    pub fn asked(&self, has: &[IpAddr]) -> Vec<IpAddr> {
        let instead = |ip: &IpAddr| self.ips.iter().find(|asked| asked.is_ipv4() == ip.is_ipv4()).copied();
        has.iter().map(|ip| instead(ip).unwrap_or(*ip)).collect()
    }

    /// What is said when somebody else has an address that is asked for.
    pub fn taken(&self, ip: IpAddr) -> Error {
        let msg = format!("{ip} is somebody else's in VPC {}", self.vpc);
        Error::new(ADDRESS_TAKEN, msg, "ask for another address, or for none")
    }

    /// The vNIC with these addresses.
    pub fn vnic(&self, ips: &[IpAddr]) -> v1::Vnic {
        let kind = match &self.socket {
            None => {
                port_spec::Kind::Veth(port_spec::Veth { iface: self.names.host_end.clone(), queues: None })
            }
            Some(socket) => port_spec::Kind::VhostUser(port_spec::VhostUser {
                path: socket.display().to_string(),
                owner: self.socket_owner.clone(),
                group: self.socket_group.clone(),
                mode: self.socket_mode.clone(),
                ..port_spec::VhostUser::default()
            }),
        };
        v1::Vnic {
            name: self.names.vnic.clone(),
            vpc: self.vpc.clone(),
            mac: self.mac.to_string(),
            vips: ips.iter().map(IpAddr::to_string).collect(),
            host_name: self.host_name.clone(),
            mtu: self.mtu.map(u32::from),
            behind: Some(Behind::Port(v1::PortSpec { kind: Some(kind) })),
            qp_quota: self.qp_quota.as_ref().map(QpQuota::to_string),
            qos: self.qos.clone(),
            security_groups: self.security_groups.clone(),
            ..v1::Vnic::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parameters(more: &Value, args: &str) -> Result<Parameters> {
        let mut config = json!({"cniVersion": "1.1.0", "name": "n", "type": "vswitch-cni", "vpc": "blue",
            "subnet": "10.0.0.0/24", "securityGroups": ["all"]});
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        let args = crate::args::PodArgs::read(args)?;
        let attachment = Attachment { container: "c".into(), interface: "eth0".into(), netns: None, args };
        Parameters::of(&NetworkConfig::read(config.to_string().as_bytes())?, &attachment)
    }

    #[test]
    fn the_runtime_comes_before_the_user_and_that_before_cni_args() {
        let args = "IP=10.0.0.3;MAC=02:00:00:00:00:03;K8S_POD_NAME=web";
        let user = json!({"cni": {"vpc": "red", "ips": ["10.0.0.2"], "mac": "02:00:00:00:00:02", "securityGroups": ["web"], "qpQuota": 3}});
        let runtime = json!({"mac": "02:00:00:00:00:01", "ips": ["10.0.0.1/24"]});
        for (config, last) in
            [(json!({}), 3), (json!({"args": user}), 2), (json!({"args": user, "runtimeConfig": runtime}), 1)]
        {
            let parameters = parameters(&config, args).unwrap();
            assert_eq!(parameters.mac, MacAddr([2, 0, 0, 0, 0, last]));
            assert_eq!(parameters.ips, [IpAddr::from([10, 0, 0, last])]);
            let vnic = parameters.vnic(&parameters.ips);
            let (vpc, group) = if last == 3 { ("blue", "all") } else { ("red", "web") };
            assert_eq!((vnic.vpc.as_str(), vnic.security_groups.as_slice()), (vpc, &[group.to_owned()][..]));
            assert_eq!(vnic.host_name.as_deref(), Some("web"));
            assert_eq!(vnic.qp_quota.as_deref(), (last != 3).then_some("3"));
        }
        let one = parameters(&json!({"subnet": ["10.0.0.0/24", "fd00::/64"]}), "IP=fd00::5").unwrap();
        let has = ["10.0.0.9", "fd00::9"].map(|ip| ip.parse().unwrap());
        assert_eq!(one.asked(&has), [has[0], "fd00::5".parse().unwrap()]);
        let plain = parameters(&json!({}), "").unwrap();
        assert_eq!((plain.mac, plain.ips.len()), (plain.names.mac, 0));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (config, args, field) in [
            (json!({}), "IP=10.0.1.3", "ips"),
            (json!({}), "IP=10.0.0.3,10.0.0.4", "ips"),
            (json!({}), "MAC=ff:ff:ff:ff:ff:ff", "mac"),
        ] {
            let error = parameters(&config, args).unwrap_err();
            assert!(error.code == 7 && error.msg.starts_with(field), "{error}");
        }
    }

    #[test]
    fn a_virtual_machine_has_a_socket() {
        let config = json!({"port": "vhost-user", "socketFolder": "/run/pods", "socketMode": "0660", "qos": {"inbound": {"ceil": "1Gbit"}}});
        let vnic = parameters(&config, "").unwrap().vnic(&[]);
        let Some(Behind::Port(v1::PortSpec { kind: Some(port_spec::Kind::VhostUser(port)) })) = vnic.behind
        else {
            panic!("{vnic:?}")
        };
        assert!(port.path.starts_with("/run/pods/cni") && port.path.ends_with(".sock"), "{port:?}");
        assert_eq!((port.mode.as_deref(), port.owner), (Some("0660"), None));
        assert_eq!(vnic.qos.unwrap().inbound.unwrap().ceil.as_deref(), Some("1Gbit"));
    }
}
