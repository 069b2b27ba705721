//! Whatever happened before, a config decides as it does after a fresh start.

use proptest::prelude::*;

use super::*;
use crate::config::VnicConfig;
use crate::topology::underlay::NeighbourState;

/// A config from numbers: few names, few MAC addresses and VTEPs, so that they meet.
fn made(a: u8, b: u8, vnics: u8, places: &[(bool, u8, u8, u8)]) -> Config {
    let options = |bits: u8, peer: Option<&str>| {
        let mut text = String::new();
        if bits & 1 != 0 {
            text += "flood = true\n";
        }
        if bits & 2 != 0 {
            text += "router-mac = \"02:00:00:00:09:09\"\n";
        }
        let mut routes = Vec::new();
        if let Some(peer) = peer.filter(|_| bits & 4 != 0) {
            routes.push(format!("{{ to = \"10.98.0.0/24\", vpc = \"{peer}\" }}"));
        }
        if bits & 8 != 0 {
            let hops =
                [4, 5].map(|n| format!("{{ vtep = \"172.16.0.{n}\", mac = \"02:00:00:00:07:0{n}\" }}"));
            routes.push(format!("{{ to = \"10.200.0.0/24\", next-hops = [{}] }}", hops.join(", ")));
            routes.push("{ to = \"10.200.0.0/30\", blackhole = true }".into());
            // To a station that is here, elsewhere or nowhere.
            routes.push("{ to = \"10.200.0.4/30\", mac = \"02:00:00:00:00:01\" }".into());
        }
        format!("{text}routes = [{}]", routes.join(", "))
    };
    let has_b = b & 16 != 0;
    let mut parts = vec![vpc("a", 1 + u32::from(a & 32), &options(a, has_b.then_some("b")))];
    if has_b {
        parts.push(vpc("b", 2 + u32::from(b & 32), &options(b, None)));
    }
    let mut local = Vec::new();
    for (bit, name, net, host) in [(1, "va", "a", 1), (2, "vb", "b", 1), (4, "vc", "a", 2), (8, "vc", "b", 2)]
    {
        let taken = bit == 8 && vnics & 4 != 0;
        if vnics & bit != 0 && (net == "a" || has_b) && !taken {
            parts.push(vnic(name, net, host));
            local.push((net == "b", host));
        }
    }
    let mut seen = HashSet::new();
    for &(in_b, host, mac, vtep) in places {
        let vni = if in_b { 2 + u32::from(b & 32) } else { 1 + u32::from(a & 32) };
        if (in_b && !has_b) || local.contains(&(in_b, host)) || !seen.insert((in_b, host)) {
            continue;
        }
        parts.push(location(vni, if in_b { b'b' } else { b'a' }, host, mac, vtep));
    }
    config(&parts)
}

/// The locations of a config that are where a vNIC of another one was or will be.
fn same_machine<'c>(config: &'c Config, vnic: &VnicConfig, networks: &Config) -> Vec<&'c LocationConfig> {
    let vni = networks.vpcs.iter().find(|vpc| vpc.name == vnic.vpc).map(|vpc| vpc.vni);
    let is_it = |location: &&LocationConfig| {
        Some(location.vni) == vni && location.mac == vnic.mac && vnic.vips.contains(&location.vip)
    };
    config.locations.iter().filter(is_it).collect()
}

/// Goes from one config to another by small changes, each of which is looked at alone: vNICs that go or move to other hosts,
/// the networks, locations, vNICs that come or move here. `false`, with some of it done, where locations do not stay with the networks, or the VLT has no room.
fn step_by_step(lab: &mut Lab, old: &Config, new: &Config) -> bool {
    if !keeps_locations(old, new) {
        return false;
    }
    let publish = |lab: &mut Lab| {
        let version = lab.topology.snapshot().version;
        lab.topology.commit();
        assert_eq!(lab.topology.snapshot().version, version + 1);
        lab.topology.settle(&mut lab.neighbours);
        let held: Vec<u32> = lab.topology.held().collect();
        held.into_iter().for_each(|index| lab.topology.let_go(index));
    };
    let go = |lab: &mut Lab, from: &Config, to: &Config, elsewhere: Vec<LocationConfig>| {
        let difference =
            Difference::between(from, to).and_relocation(Relocation { come: elsewhere, gone: Vec::new() });
        assert!(!difference.is_whole);
        let followed = lab.topology.follow(to, &Extent::of(&difference), &PORTS, &lab.neighbours).is_ok();
        if followed {
            publish(lab);
        }
        followed
    };
    let mut config = old.clone();
    let mut to = |lab: &mut Lab, elsewhere: Vec<LocationConfig>, change: &dyn Fn(&mut Config)| {
        let mut next = config.clone();
        change(&mut next);
        let followed = go(lab, &config, &next, elsewhere);
        config = next;
        followed
    };
    for vnic in old.vnics.iter().filter(|vnic| !new.vnics.contains(vnic)) {
        let elsewhere = match new.vnics.iter().any(|other| other.name == vnic.name) {
            true => Vec::new(),
            false => same_machine(new, vnic, old).into_iter().cloned().collect(),
        };
        if !to(lab, elsewhere, &|config| config.vnics.retain(|other| other.name != vnic.name)) {
            return false;
        }
    }
    let networks = |config: &mut Config| {
        (config.vpcs, config.subnets) = (new.vpcs.clone(), new.subnets.clone());
    };
    if !to(lab, Vec::new(), &networks) {
        return false;
    }
    let vpcs = new.clone();
    let comes = |vnic: &&Arc<VnicConfig>| !old.vnics.contains(vnic);
    let moves_here: Vec<&LocationConfig> =
        new.vnics.iter().filter(comes).flat_map(|vnic| same_machine(old, vnic, new)).collect();
    let ends =
        |location: &&LocationConfig| !new.locations.contains(location) && !moves_here.contains(location);
    for location in old.locations.iter().filter(ends) {
        let goes = new.vpcs.iter().any(|vpc| vpc.vni == location.vni);
        // Those of a VPC go with it.
        let gone = lab.topology.remove_location(&vpcs, location.vni, location.vip, &lab.neighbours).unwrap();
        assert_eq!(gone, goes);
        publish(lab);
    }
    for vnic in new.vnics.iter().filter(|vnic| !old.vnics.contains(vnic)) {
        if !to(lab, Vec::new(), &|config| config.vnics.push_back(vnic.clone())) {
            return false;
        }
    }
    for location in new.locations.iter().filter(|location| !old.locations.contains(location)) {
        if lab.topology.set_location(new, location, &lab.neighbours).is_err() {
            return false;
        }
        publish(lab);
    }
    true
}

/// The part in which two snapshots differ, but for the version.
fn differs(a: &Snapshot, b: &Snapshot) -> Option<&'static str> {
    let parts = [
        ("settings", a.settings == b.settings),
        ("ports", a.ports == b.ports),
        ("vNICs", a.vnics == b.vnics),
        ("rows", a.vnic_rows == b.vnic_rows),
        ("VPCs", a.vpcs == b.vpcs),
        ("VNIs", a.vnis == b.vnis),
        ("uplinks", a.uplinks == b.uplinks),
        ("VTEPs", a.vteps == b.vteps),
        ("MAC addresses", a.local_macs == b.local_macs),
        ("trunks", a.trunks == b.trunks),
        ("locations", a.locations == b.locations),
        ("cells", a.cells == b.cells),
    ];
    parts.into_iter().find(|(_, same)| !same).map(|(part, _)| part)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_history_decides_as_a_fresh_start(
        steps in prop::collection::vec(
            (
                // The networks; or those of before, and only what is in them changes.
                prop::option::of((0u8..64, 0u8..64)),
                0u8..16,
                prop::collection::vec((any::<bool>(), 1u8..6, 1u8..5, 2u8..6), 0..8),
                2u8..6,
            ),
            1..12,
        ),
    ) {
        let mut lab = Lab::new(14);
        let mut cache: HashMap<FlowKey, FlowAction> = HashMap::new();
        let (mut running, mut networks) = (None, (0, 0));
        for (new_networks, vnics, places, host) in steps {
            let (a, b) = new_networks.unwrap_or(networks);
            networks = (a, b);
            let config = made(a, b, vnics, &places);
            let one_by_one = running.take().is_some_and(|old| step_by_step(&mut lab, &old, &config));
            let before = (lab.decisions(), lab.used());
            if !one_by_one && lab.try_set(&config).is_err() {
                prop_assert_eq!((lab.decisions(), lab.used()), before);
                continue;
            }
            running = Some(config.clone());
            // Whatever the way here: the same config again changes nothing.
            let now = lab.topology.snapshot().clone();
            lab.set(&config);
            prop_assert_eq!(differs(&now, lab.topology.snapshot()), None);
            lab.hear(host, a);
            let mut fresh = Lab::new(64);
            fresh.set(&config);
            for (_, address, neighbour) in lab.neighbours.list() {
                if let (IpAddr::V4(v4), NeighbourState::Reachable(mac)) = (address, neighbour.state) {
                    fresh.hear(v4.octets()[3], mac.0[5]);
                }
            }
            prop_assert_eq!(lab.decisions(), fresh.decisions());
            prop_assert_eq!(lab.used(), fresh.used());
            // What a worker remembers is stale or still right.
            for (who, key) in keys(lab.topology.snapshot()) {
                let now = decide(lab.topology.snapshot(), &key);
                if let Some(old) = cache.insert(key, now)
                    && valid(&lab, &old)
                {
                    prop_assert_eq!(tell(&lab, &old), tell(&lab, &now), "{}", who);
                }
            }
        }
    }
}
