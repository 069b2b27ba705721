//! What this host says of itself: which keys it wants to have in etcd, from its config.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use prost::Message;
use vswitch_api::v1;
use wire::Vni;

use super::keys::Published;
use crate::config::{Config, Name, RouteTargetConfig, VpcConfig};
use crate::topology::paths::tunnel_sources;

/// What a host says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// The addresses that others tunnel to, the preferred ones first.
    pub vteps: Vec<IpAddr>,
    /// The smallest MTU of the uplinks.
    pub mtu: u16,
    /// The vNICs, by network and name; their generations are not known here.
    pub vnics: BTreeMap<(Vni, Name), Published>,
    /// Networks whose stations this host has to know: those of its vNICs, and those that it routes to from there.
    pub networks: BTreeSet<Vni>,
}

impl Wanted {
    /// From a config; `vteps` are those that it says itself, if any.
    pub fn of(config: &Config, vteps: &[IpAddr]) -> Self {
        let vpcs: BTreeMap<&Name, &VpcConfig> = config.vpcs.iter().map(|vpc| (&vpc.name, vpc)).collect();
        let vnics = config.vnics.iter().filter_map(|vnic| {
            let mut vips = vnic.vips.clone();
            vips.sort_unstable();
            let groups = vnic.security_groups.clone();
            let published = Published { mac: vnic.mac, vips, groups, generation: 0 };
            Some(((vpcs.get(&vnic.vpc)?.vni, vnic.name.clone()), published))
        });
        let mut networks = BTreeSet::new();
        let mut to_see: Vec<&VpcConfig> =
            config.vnics.iter().filter_map(|vnic| vpcs.get(&vnic.vpc).copied()).collect();
        while let Some(vpc) = to_see.pop() {
            if networks.insert(vpc.vni) {
                let peers = vpc.routes.iter().filter_map(|route| match &route.target {
                    RouteTargetConfig::Peer { vpc } => vpcs.get(vpc).copied(),
                    _ => None,
                });
                to_see.extend(peers);
            }
        }
        Self {
            vteps: if vteps.is_empty() { tunnel_sources(&config.uplinks) } else { vteps.to_vec() },
            mtu: config.uplinks.iter().map(|uplink| uplink.mtu).min().unwrap_or_default(),
            vnics: vnics.collect(),
            networks,
        }
    }

    /// The networks in which this host has a vNIC.
    pub fn own_networks(&self) -> BTreeSet<Vni> {
        self.vnics.keys().map(|(vni, _)| *vni).collect()
    }

    /// The value that says that this host takes part in a network.
    pub fn member(&self) -> Vec<u8> {
        v1::MemberRecord { vteps: self.texts() }.encode_to_vec()
    }

    /// The value of this host itself.
    pub fn host(&self, instance: u64) -> Vec<u8> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        v1::HostRecord { vteps: self.texts(), instance, version, mtu: self.mtu.into() }.encode_to_vec()
    }

    fn texts(&self) -> Vec<String> {
        self.vteps.iter().map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str) -> Wanted {
        Wanted::of(&Config::parse(text, "f").unwrap_or_else(|errors| panic!("{errors}")), &[])
    }

    const UPLINK: &str = "[[uplink]]\nname = \"u\"\nport = { kind = \"null\" }\naddresses = [\"172.16.0.1/24\", \"fd00:16::1/64\"]\nmtu = 1600\n";

    fn vpc(name: &str, vni: u32, peer: &str) -> String {
        let routes = match peer {
            "" => String::new(),
            peer => format!("routes = [{{ to = \"10.9.0.0/16\", vpc = \"{peer}\" }}]\n"),
        };
        format!(
            "[[vpc]]\nname = \"{name}\"\nvni = {vni}\n{routes}[[subnet]]\nvpc = \"{name}\"\nprefix = \"10.{vni}.0.0/24\"\n"
        )
    }

    #[test]
    fn etcd_a_host_says_its_vnics_and_follows_the_networks_that_they_reach() {
        let vnic = "[[vnic]]\nname = \"m\"\nvpc = \"a\"\nmac = \"02:00:00:00:00:01\"\nvips = [\"10.1.0.1\"]\n\
            port = { kind = \"null\" }\n";
        // a routes to b, b to c; d has nothing here.
        let all = [
            UPLINK.to_owned(),
            vpc("a", 1, "b"),
            vpc("b", 2, "c"),
            vpc("c", 3, ""),
            vpc("d", 4, ""),
            vnic.into(),
        ];
        let wanted = wanted(&all.concat());
        let vnis = |set: &BTreeSet<Vni>| set.iter().map(|vni| vni.get()).collect::<Vec<_>>();
        assert_eq!(vnis(&wanted.networks), [1, 2, 3]);
        assert_eq!(vnis(&wanted.own_networks()), [1]);
        let addresses: Vec<IpAddr> = ["172.16.0.1", "fd00:16::1"].map(|text| text.parse().unwrap()).to_vec();
        assert_eq!((wanted.vteps, wanted.vnics.len()), (addresses, 1));
    }

    #[test]
    fn etcd_an_address_of_several_uplinks_is_where_tunnels_come_from() {
        let two = "[[uplink]]\nname = \"a\"\nport = { kind = \"null\" }\naddresses = [\"192.0.2.1/31\", \"10.255.0.1/32\"]\n\
            gateway = [\"192.0.2.0\"]\n\
            [[uplink]]\nname = \"b\"\nport = { kind = \"null\" }\naddresses = [\"10.255.0.1/32\", \"192.0.2.3/31\"]\n\
            gateway = [\"192.0.2.2\"]\n";
        assert_eq!(wanted(two).vteps, ["10.255.0.1".parse::<IpAddr>().unwrap()]);
    }
}
