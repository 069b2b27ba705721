//! The part of a config that a change concerns is refused exactly when the whole is.

use std::sync::Arc;

use ipnet::IpNet;
use proptest::prelude::*;
use proptest::sample::Index;

use super::round_trip::networks;
use crate::config::*;
use crate::topology::keeps_locations;

/// One change, right or wrong, of what a config has; places are taken modulo what there is.
#[derive(Clone, Copy, Debug)]
struct Edit {
    kind: u8,
    /// The object that changes, and one that it may come to be at odds with.
    which: [Index; 2],
    number: u16,
}

fn edit() -> impl Strategy<Value = Edit> {
    let places = any::<[Index; 2]>();
    (0u8..28, places, any::<u16>()).prop_map(|(kind, which, number)| Edit { kind, which, number })
}

fn rate(megabits: u16) -> Option<BitRate> {
    Some(BitRate(u64::from(megabits) * 1_000_000 + 8_000))
}

/// Changes a vNIC; `other` is one that it meets.
fn edit_vnic(edit: Edit, vnic: &mut VnicConfig, other: &VnicConfig, config: &Config) {
    let n = edit.number;
    match edit.kind {
        0 => vnic.mac = other.mac,
        1 => vnic.vips.clone_from(&other.vips),
        2 => vnic.vips.push(std::net::Ipv4Addr::new(10, 0, n as u8 % 2, 100 + n as u8 % 16).into()),
        3 => vnic.name = other.name.clone(),
        4 => vnic.vlan = other.vlan,
        5 => vnic.vpc = other.vpc.clone(),
        6 => vnic.port = other.port.clone(),
        7 => (vnic.port, vnic.vlan) = (other.port.clone(), other.vlan),
        8 => vnic.mtu = [68, 576, 1500, 9000, 65_000][usize::from(n) % 5],
        9 => vnic.qos.out.assured = rate(n),
        10 => vnic.qos.rdma.into.ceil = rate(n),
        11 => vnic.qp_quota = Some(u32::from(n).into()),
        12 => vnic.queues = Some(n % 4),
        13 => vnic.offload = other.offload,
        14 if !config.trunks.is_empty() => {
            vnic.port = VnicPort::Trunk(edit.which[1].get(&config.trunks).name.clone());
        }
        _ => vnic.vlan = Some(n % 4096),
    }
}

fn apply(edit: Edit, config: &mut Config) {
    let n = edit.number;
    let [which, other] = edit.which;
    match edit.kind {
        0..=15 if !config.vnics.is_empty() => {
            let (at, beside) = (which.index(config.vnics.len()), other.index(config.vnics.len()));
            let (mut vnic, beside) = ((*config.vnics[at]).clone(), config.vnics[beside].clone());
            edit_vnic(edit, &mut vnic, &beside, config);
            // One more, or this one otherwise.
            match n % 3 {
                0 => config.vnics.push_back(Arc::new(vnic)),
                _ => drop(config.vnics.set(at, Arc::new(vnic))),
            }
        }
        16 if !config.vnics.is_empty() => drop(config.vnics.remove(which.index(config.vnics.len()))),
        17 if !config.subnets.is_empty() => drop(config.subnets.remove(which.index(config.subnets.len()))),
        18 if !config.subnets.is_empty() => {
            let at = which.index(config.subnets.len());
            let subnet = &mut config.subnets[at];
            let prefix = ["10.0.0.0/28", "10.0.0.0/16", "10.0.1.0/24", "10.0.0.128/25"][usize::from(n) % 4];
            subnet.prefix = prefix.parse::<IpNet>().unwrap();
        }
        19 if !config.subnets.is_empty() => {
            let mut subnet = which.get(&config.subnets).clone();
            subnet.gateway = Some(std::net::Ipv4Addr::new(10, 0, 0, n as u8 % 16).into());
            match n % 2 {
                0 => config.subnets.push(subnet),
                _ => *other.get_mut(&mut config.subnets) = subnet,
            }
        }
        20 if !config.vpcs.is_empty() => drop(config.vpcs.remove(which.index(config.vpcs.len()))),
        21 if !config.vpcs.is_empty() => {
            let beside = other.get(&config.vpcs).clone();
            let vpc = which.get_mut(&mut config.vpcs);
            match n % 5 {
                0 => vpc.vni = beside.vni,
                1 => vpc.name = beside.name,
                2 => vpc.qos.out.ceil = rate(n),
                3 => vpc.qos.into.assured = rate(n),
                _ => vpc.routes.push(VpcRoute {
                    to: "10.77.0.0/16".parse().unwrap(),
                    target: RouteTargetConfig::Peer { vpc: beside.name },
                }),
            }
        }
        22 if !config.trunks.is_empty() => drop(config.trunks.remove(which.index(config.trunks.len()))),
        23 if !config.trunks.is_empty() => {
            let mut trunk = which.get(&config.trunks).clone();
            match n % 3 {
                0 => trunk.name = Name::new(&format!("more{n}")).unwrap(),
                1 => trunk.port = other.get(&config.trunks).port.clone(),
                _ => {}
            }
            config.trunks.push(trunk);
        }
        24 if !config.ports.is_empty() => {
            let mut port = which.get(&config.ports).clone();
            match (n % 3, config.vnics.is_empty()) {
                (0, false) => port.name = config.vnics[other.index(config.vnics.len())].name.clone(),
                (1, _) => port.name = Name::new("another").unwrap(),
                _ => {}
            }
            config.ports.push(port);
        }
        25 if !config.vnics.is_empty() => {
            if let VnicPort::Own(spec) = &config.vnics[which.index(config.vnics.len())].port {
                let (name, port) = (Name::new("another").unwrap(), spec.clone());
                config.ports.push(PortConfig { name, port, rx_queues: None, tx_queues: None });
            }
        }
        26 => config.ports.clear(),
        _ => config.offload.enabled = !config.offload.enabled,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn a_part_is_refused_exactly_when_the_whole_is(
        config in networks(),
        edits in prop::collection::vec(edit(), 1..4),
    ) {
        let mut old = config;
        old.eal.mbufs = old.eal.mbufs.map(|mbufs| mbufs.min(buffers::most(&old, false)));
        prop_assert!(old.validate().is_ok());
        let mut new = old.clone();
        edits.into_iter().for_each(|edit| apply(edit, &mut new));
        // Those of a VPC go with it.
        new.locations.retain(|location| new.vpcs.iter().any(|vpc| vpc.vni == location.vni));
        prop_assume!(keeps_locations(&old, &new));
        // As the switch has them, which keeps locations elsewhere.
        let bare = |config: &Config| config.with_vnics(config.vnics.clone());
        let (bare_old, bare_new) = (bare(&old), bare(&new));
        let difference = Difference::between(&bare_old, &bare_new);
        let find = |vni, vip| {
            new.locations.iter().find(|location| location.vni == vni && location.vip == vip).cloned()
        };
        let of = |vni| new.locations.iter().filter(|location| location.vni == vni).cloned().collect();
        // A location with the MAC address of the vNIC that gets its address is that vNIC, which moves here.
        let moved = difference.moved_here(find);
        let mut whole = new.clone();
        whole.locations.retain(|location| !moved.contains(location));
        let part = difference.to_check(&KeptLocations { at: &find, of: &of }).validate();
        let whole = whole.validate();
        prop_assert_eq!(part.is_ok(), whole.is_ok(), "part: {:?}\nwhole: {:?}", part, whole);
        let same = |vnics: &[&Arc<VnicConfig>], of: &Config, other: &Config| {
            let altered = of.vnics.iter().filter(|vnic| !other.vnics.contains(vnic));
            whole.is_err() || altered.eq(vnics.iter().copied())
        };
        prop_assert!(same(&difference.before, &old, &new) && same(&difference.after, &new, &old));
    }
}
