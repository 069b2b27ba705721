//! Scenarios of the topology, without DPDK: configs from text, ports from a list, decisions asked of the pipeline.

use std::net::IpAddr;
use std::time::Instant;

use pipelines::decide::decide;
use pipelines::flow_key::{FlowKey, Scope};
use pipelines::nft::{Action, Verdict};
use pipelines::snapshot::{Destination, NO_PORT, PortIndex};
use pipelines::vlt::Place;
use proptest::prelude::*;
use wire::{L3, MacAddr, Vni};

use super::*;
use crate::switch::underlay::State;

/// No cell.
const NONE: [u32; 0] = [];

struct Fake;

impl Ports for Fake {
    fn find(&self, name: &str) -> Option<(PortIndex, MacAddr)> {
        let at = ["up", "up2", "va", "vb", "vc"].iter().position(|known| *known == name)?;
        Some((at as u16, self.mac(at as u16)))
    }
    fn partial_checksums(&self, _: PortIndex) -> bool {
        false
    }
    fn partner(&self, _: PortIndex) -> PortIndex {
        NO_PORT
    }
    fn count(&self) -> usize {
        5
    }
    fn mac(&self, port: PortIndex) -> MacAddr {
        MacAddr([2, 0, 0, 0, 1, port as u8])
    }
}

const UPLINK: &str = r#"
[[uplink]]
name = "up"
port = { kind = "null" }
addresses = ["172.16.0.1/24"]
"#;

fn vpc(name: &str, vni: u32, more: &str) -> String {
    format!(
        "[[vpc]]\nname = \"{name}\"\nvni = {vni}\n{more}\n[[subnet]]\nvpc = \"{name}\"\nprefix = \"10.{}.0.0/24\"\n",
        name.as_bytes()[0]
    )
}

fn vnic(name: &str, vpc: &str, host: u8) -> String {
    let net = vpc.as_bytes()[0];
    format!(
        "[[vnic]]\nname = \"{name}\"\nvpc = \"{vpc}\"\nmac = \"02:00:00:00:00:{host:02x}\"\nvips = [\"10.{net}.0.{host}\"]\nport = {{ kind = \"null\" }}\n"
    )
}

fn location(vni: u32, net: u8, host: u8, mac: u8, vtep: u8) -> String {
    format!(
        "[[location]]\nvni = {vni}\nvip = \"10.{net}.0.{host}\"\nmac = \"02:00:00:00:00:{mac:02x}\"\nvtep = \"172.16.0.{vtep}\"\n"
    )
}

fn config(parts: &[String]) -> Config {
    let text = format!("{UPLINK}{}", parts.concat());
    Config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

struct Lab {
    topology: Topology,
    neighbours: Neighbours,
}

impl Lab {
    fn new(entries: u32) -> Self {
        Self { topology: Topology::new(entries), neighbours: Neighbours::default() }
    }
    fn try_set(&mut self, config: &Config) -> Result<(), TopologyError> {
        self.topology.rebuild(config, &Fake, &mut self.neighbours)?;
        self.topology.commit();
        self.topology.release();
        Ok(())
    }
    fn set(&mut self, config: &Config) {
        self.try_set(config).unwrap();
    }
    fn hear(&mut self, host: u8, mac: u8) {
        let (address, mac) = (vtep(host), MacAddr([2, 0, 0, 0, 2, mac]));
        if self.neighbours.heard(0, address, mac, Instant::now()) {
            self.topology.next_hop_changed(0, address, &mut self.neighbours);
        }
    }
    fn cells_after(&mut self, config: &Config) -> Vec<u32> {
        let before = self.topology.snapshot().cells.clone();
        self.set(config);
        let after = &self.topology.snapshot().cells;
        (0..after.len()).filter(|&i| before.get(i) != Some(&after[i])).map(|i| i as u32).collect()
    }
    fn vpc(&self, name: &str) -> Arc<pipelines::snapshot::Vpc> {
        let found = self.topology.snapshot().vpcs.iter().flatten().find(|vpc| vpc.name == name);
        found.unwrap_or_else(|| panic!("no VPC {name}")).clone()
    }
    fn vnic_cell(&self, name: &str) -> u32 {
        self.topology.snapshot().vnics.iter().flatten().find(|vnic| vnic.name == name).unwrap().cell
    }
    fn all_cells(&self, vpc: &str, vnics: &[&str]) -> Vec<u32> {
        let vpc = self.vpc(vpc);
        let mut cells = vec![vpc.cell, vpc.topology_cell];
        cells.extend(vnics.iter().map(|name| self.vnic_cell(name)));
        cells.sort_unstable();
        cells
    }
    fn slot(&self, vpc: &str, host: u8) -> SlotRef {
        let address = ip(vpc.as_bytes()[0], host);
        self.topology.snapshot().location(self.vpc(vpc).index, Destination::Ip(address)).unwrap().slot
    }
    fn place(&self, slot: SlotRef) -> Place {
        self.topology.writer.table().read(slot.slot).place
    }
    fn used(&self) -> usize {
        self.topology.vlt_usage().0
    }
    /// What is decided for the packets of every VPC and vNIC there is, in terms that do not depend on indices.
    fn decisions(&self) -> Vec<String> {
        let keys = keys(self.topology.snapshot()).into_iter();
        let mut told: Vec<String> = keys
            .map(|(who, key)| format!("{who}: {}", tell(self, &decide(self.topology.snapshot(), &key))))
            .collect();
        told.sort();
        told
    }
}

fn ip(net: u8, host: u8) -> IpAddr {
    IpAddr::from([10, net, 0, host])
}

fn vtep(host: u8) -> IpAddr {
    IpAddr::from([172, 16, 0, host])
}

fn keys(snapshot: &Snapshot) -> Vec<(String, FlowKey)> {
    let vnics =
        snapshot.vnics.iter().flatten().map(|vnic| (format!("vnic {}", vnic.name), Scope::Vnic(vnic.index)));
    let vpcs = snapshot.vpcs.iter().flatten().map(|vpc| (format!("vpc {}", vpc.name), Scope::Vpc(vpc.index)));
    let mut keys = Vec::new();
    for (who, scope) in vnics.chain(vpcs) {
        let rest = u64::from(scope.raw()) << 32;
        for net in [b'a', b'b', b'c', 200] {
            for host in 1..8u8 {
                let to = u64::from(u32::from_be_bytes([10, net, 0, host]));
                let words = [to, 0, 0, 0, rest, 0, (L3::Ipv4 as u64) << 16 | 1 << 24];
                keys.push((format!("{who} to {}", ip(net, host)), FlowKey::from_words(words)));
            }
        }
        for host in 1..8u64 {
            let words = [0, 0, 0, 0, rest, (0x0200_0000_0000 | host) << 16, (L3::Ipv4 as u64) << 16];
            keys.push((format!("{who} to mac {host}"), FlowKey::from_words(words)));
        }
    }
    keys
}

fn tell(lab: &Lab, action: &Action) -> String {
    let place = match action.verdict {
        Verdict::Forward => match lab.topology.writer.table().read(action.slot).place {
            Place::Local { vnic } => {
                format!("{:?}", lab.topology.snapshot().vnic(vnic).map(|vnic| &vnic.name))
            }
            place => format!("{place:?}"),
        },
        _ => String::new(),
    };
    format!("{:?} {} {:?} {} {place}", action.verdict, action.reason, action.macs(), action.rcft)
}

/// What a worker's NFT would still use.
fn valid(lab: &Lab, action: &Action) -> bool {
    let snapshot = lab.topology.snapshot();
    action.generation == snapshot.generation(action.cell)
        && (action.verdict != Verdict::Forward
            || lab.topology.writer.table().read(action.slot).generation == action.slot_generation)
}

fn base() -> Vec<String> {
    vec![
        vpc("a", 1, "routes = [{ to = \"10.98.0.0/24\", vpc = \"b\" }]"),
        vpc("b", 2, ""),
        vnic("va", "a", 1),
        vnic("vb", "b", 1),
        location(1, b'a', 2, 2, 2),
        location(2, b'b', 2, 2, 3),
    ]
}

fn with(more: &[String]) -> Config {
    config(&[base(), more.to_vec()].concat())
}

#[test]
fn indices_and_cells_are_stable_and_reused_ones_inherit_nothing() {
    let mut lab = Lab::new(32);
    lab.set(&with(&[]));
    let (a, b) = (lab.vpc("a"), lab.vpc("b"));
    assert_ne!(a.index, b.index);
    assert_eq!(lab.cells_after(&with(&[])), NONE);
    assert_eq!((lab.vpc("a"), lab.vpc("b")), (a, b.clone()));
    let cached: Vec<_> = keys(lab.topology.snapshot())
        .into_iter()
        .map(|(who, key)| (who, decide(lab.topology.snapshot(), &key)))
        .filter(|(who, _)| who.contains("vpc b") || who.contains("vnic vb"))
        .collect();
    lab.set(&config(&[vpc("a", 1, ""), vpc("c", 3, ""), vnic("va", "a", 1), vnic("vc", "c", 1)]));
    assert_eq!(lab.vpc("c").index, b.index, "the index is used again");
    for (who, action) in cached {
        assert!(!valid(&lab, &action), "{who} outlived its owner");
    }
}

#[test]
fn a_change_bumps_its_cells_and_no_others() {
    let mut lab = Lab::new(32);
    lab.set(&with(&[]));
    let of_b = lab.all_cells("b", &["vb"]);
    let mut of_both = [lab.all_cells("a", &["va"]), of_b.clone()].concat();
    of_both.sort_unstable();
    let mut topologies = vec![lab.vpc("a").topology_cell, lab.vpc("b").topology_cell];
    topologies.sort_unstable();
    // A location comes: to the VPC, and to the one that routes to it.
    let added = location(2, b'b', 3, 3, 3);
    assert_eq!(lab.cells_after(&with(std::slice::from_ref(&added))), topologies);
    let slot = lab.slot("b", 3);
    let place = lab.place(slot);
    // It moves.
    assert_eq!(lab.cells_after(&with(&[location(2, b'b', 3, 3, 4)])), NONE);
    lab.hear(4, 4);
    assert_eq!(lab.slot("b", 3), slot);
    assert_ne!(lab.place(slot), place);
    assert!(matches!(lab.place(slot), Place::Remote(_)));
    // Its MAC address changes; it goes.
    assert_eq!(lab.cells_after(&with(&[location(2, b'b', 3, 4, 4)])), of_both);
    assert_eq!(lab.cells_after(&with(&[])), NONE);
    assert_ne!(lab.topology.writer.table().read(slot.slot).generation, slot.generation);
    // Only the VPC itself looks at its subnets and its flooding.
    let flood =
        config(&[vec![base()[0].clone(), vpc("b", 2, "flood = true")], base()[2..].to_vec()].concat());
    assert_eq!(lab.cells_after(&flood), of_b);
    assert_eq!(lab.cells_after(&with(&[])), of_b);
    let subnet = "[[subnet]]\nvpc = \"b\"\nprefix = \"10.200.0.0/24\"\n".to_owned();
    assert_eq!(lab.cells_after(&with(&[subnet])), of_b);
    lab.set(&with(&[]));
    // The VNI is in no decision, the router's MAC address in those of its peers too.
    let router = |vni, mac: &str| {
        let b = vpc("b", vni, &format!("router-mac = \"{mac}\""));
        config(
            &[vec![base()[0].clone(), b], base()[2..5].to_vec(), vec![location(vni, b'b', 2, 2, 3)]].concat(),
        )
    };
    assert_eq!(lab.cells_after(&router(2, "02:00:00:00:09:09")), of_both);
    let before = lab.place(lab.slot("b", 2));
    lab.hear(3, 3);
    assert_eq!(lab.cells_after(&router(7, "02:00:00:00:09:09")), NONE);
    let Place::Remote(tunnel) = lab.place(lab.slot("b", 2)) else { panic!("not resolved") };
    assert_ne!(Place::Remote(tunnel), before);
    assert_eq!(tunnel.header[46..49], [0, 0, 7]);
}

#[test]
fn a_change_that_fails_changes_nothing() {
    // Just room enough: what is put back must not need slots that are not free yet.
    let mut lab = Lab::new(5);
    lab.set(&with(&[]));
    let (before, used, snapshot) = (lab.decisions(), lab.used(), lab.topology.snapshot().clone());
    let mut unreachable = with(&[location(1, b'a', 3, 3, 4)]);
    unreachable.locations[2].vtep = IpAddr::from([192, 0, 2, 1]);
    let mut own = with(&[location(1, b'a', 3, 3, 4)]);
    own.locations[2].vtep = vtep(1);
    let mut multicast = own.clone();
    multicast.locations[2].vtep = IpAddr::from([224, 0, 0, 1]);
    let mut unknown = own.clone();
    (unknown.locations[2].vtep, unknown.locations[2].vni) = (vtep(4), Vni::new(99).unwrap());
    let mut local = own.clone();
    (local.locations[2].vtep, local.locations[2].vip) = (vtep(4), ip(b'a', 1));
    // Everything else changes with it: places move, a VPC goes, another comes.
    let other = |count: u8| {
        let more: Vec<String> = (3..3 + count).map(|host| location(1, b'a', host, host, 5)).collect();
        config(&[vec![vpc("a", 1, "flood = true"), vpc("c", 3, ""), vnic("vc", "c", 1)], more].concat())
    };
    type Check = fn(&TopologyError) -> bool;
    let cases: [(Config, Check); 6] = [
        (unreachable, |error| matches!(error, TopologyError::NoRoute(_))),
        (own, |error| matches!(error, TopologyError::OwnVtep(_))),
        (multicast, |error| matches!(error, TopologyError::NotUnicast(_))),
        (unknown, |error| matches!(error, TopologyError::UnknownVni { .. })),
        (local, |error| matches!(error, TopologyError::LocalVip { .. })),
        (other(4), |error| matches!(error, TopologyError::VltFull(5))),
    ];
    for (config, right) in cases {
        let error = lab.try_set(&config).unwrap_err();
        assert!(right(&error), "{error}");
        assert!(Arc::ptr_eq(&snapshot, lab.topology.snapshot()));
        assert_eq!((lab.decisions(), lab.used()), (before.clone(), used), "{error}");
    }
    assert_eq!(lab.cells_after(&with(&[])), NONE);
    assert_eq!((lab.decisions(), lab.used()), (before.clone(), used));
    // One location alone, where only the slot for flooding is missing.
    let flood = config(&[vec![vpc("a", 1, "flood = true")], base()[1..].to_vec()].concat());
    let mut lab = Lab::new(6);
    lab.set(&flood);
    let (before, used) = (lab.decisions(), lab.used());
    let more = with(&[location(1, b'a', 3, 3, 4)]).locations.remove(2);
    let error = lab.topology.set_location(&flood, &more, &mut lab.neighbours).unwrap_err();
    assert_eq!(error, TopologyError::VltFull(6));
    lab.topology.commit();
    assert_eq!((lab.decisions(), lab.used()), (before, used));
    assert_eq!(lab.topology.locations().count(), 2);
}

#[test]
fn slots_are_freed_by_release_and_all_come_back() {
    let mut lab = Lab::new(32);
    lab.set(&with(&[location(1, b'a', 3, 3, 4)]));
    let used = lab.used();
    let without = with(&[]);
    lab.topology.rebuild(&without, &Fake, &mut lab.neighbours).unwrap();
    lab.topology.commit();
    assert_eq!(lab.used(), used);
    lab.topology.release();
    assert_eq!(lab.used(), used - 1);
    // The remote location becomes a vNIC of this host, and goes back.
    let (before, used) = (lab.decisions(), lab.used());
    let mut parts = base();
    parts[4] = vnic("vc", "a", 2);
    lab.set(&config(&parts));
    assert!(matches!(lab.place(lab.slot("a", 2)), Place::Local { .. }));
    lab.set(&without);
    assert_eq!((lab.decisions(), lab.used()), (before, used));
    lab.set(&config(&[]));
    assert_eq!(lab.used(), 0);
}

#[test]
fn next_hops_change_the_slots_behind_them_and_only_those() {
    let mut lab = Lab::new(32);
    lab.set(&with(&[location(1, b'a', 3, 3, 2)]));
    let slots =
        |lab: &Lab| [lab.slot("a", 2), lab.slot("a", 3), lab.slot("b", 2)].map(|slot| lab.place(slot));
    let start = slots(&lab);
    assert!(start.iter().all(|place| *place == Place::Unresolved { uplink: 0 }));
    lab.hear(2, 7);
    let known = slots(&lab);
    assert!(matches!(known[..2], [Place::Remote(_), Place::Remote(_)]) && known[2] == start[2]);
    lab.hear(2, 8);
    let changed = slots(&lab);
    assert!(changed[0] != known[0] && changed[1] != known[1] && changed[2] == start[2]);
    let (_, lost) = lab.neighbours.tick(Instant::now() + std::time::Duration::from_secs(600));
    assert_eq!(lost, [(0, vtep(2))]);
    lab.topology.next_hop_changed(0, vtep(2), &mut lab.neighbours);
    assert_eq!(slots(&lab), start);
    // A configured neighbour is used, and forgotten when it is configured no more.
    let mut fixed = with(&[location(1, b'a', 3, 3, 2)]);
    let mac = MacAddr([2, 0, 0, 0, 2, 9]);
    fixed.uplinks[0].neighbours.push(config::StaticNeighbour { ip: vtep(2), mac });
    lab.set(&fixed);
    let Place::Remote(tunnel) = slots(&lab)[0] else { panic!("not resolved") };
    assert_eq!(tunnel.header[..6], mac.0);
    lab.set(&with(&[location(1, b'a', 3, 3, 2)]));
    assert_eq!(slots(&lab), start);
    // Nobody needs the neighbour of a location that is gone.
    let vni = Vni::new(2).unwrap();
    assert!(lab.topology.remove_location(&with(&[]), vni, ip(b'b', 2), &mut lab.neighbours).unwrap());
    assert_eq!(lab.neighbours.list().iter().map(|n| n.1).collect::<Vec<_>>(), [vtep(2)]);
}

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
            routes.push(
                "{ to = \"10.200.0.0/24\", vtep = \"172.16.0.4\", mac = \"02:00:00:00:07:07\" }".into(),
            );
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_history_decides_as_a_fresh_start(
        steps in prop::collection::vec(
            (0u8..64, 0u8..64, 0u8..16, prop::collection::vec((any::<bool>(), 1u8..6, 1u8..5, 2u8..6), 0..8), 2u8..6),
            1..8,
        ),
    ) {
        let mut lab = Lab::new(14);
        let mut cache: HashMap<FlowKey, Action> = HashMap::new();
        for (a, b, vnics, places, host) in steps {
            let config = made(a, b, vnics, &places);
            let before = (lab.decisions(), lab.used());
            if lab.try_set(&config).is_err() {
                prop_assert_eq!((lab.decisions(), lab.used()), before);
                continue;
            }
            lab.hear(host, a);
            let mut fresh = Lab::new(64);
            fresh.set(&config);
            for (_, address, neighbour) in lab.neighbours.list() {
                if let (IpAddr::V4(v4), State::Reachable(mac)) = (address, neighbour.state) {
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

#[test]
fn vnics_bump_what_their_addresses_concern() {
    let mut lab = Lab::new(32);
    lab.set(&with(&[]));
    let cells = |lab: &Lab| {
        let mut cells = [lab.all_cells("a", &["va"]), lab.all_cells("b", &["vb"])].concat();
        cells.sort_unstable();
        cells
    };
    let mut smaller = with(&[]);
    smaller.vnics[1].mtu = 1300;
    assert_eq!(lab.cells_after(&smaller), NONE);
    let mut other = with(&[]);
    other.vnics[1].mac = MacAddr([2, 0, 0, 0, 0, 6]);
    assert_eq!(lab.cells_after(&other), cells(&lab));
    lab.set(&with(&[]));
    let come = lab.cells_after(&with(&[vnic("vc", "b", 3)]));
    let mut wanted = vec![lab.vpc("a").topology_cell, lab.vpc("b").topology_cell, lab.vnic_cell("vc")];
    wanted.sort_unstable();
    assert_eq!(come, wanted);
    // It goes: its index may be used again, so what its VPC decided without it goes too.
    let mut wanted = [cells(&lab), vec![lab.vnic_cell("vc")]].concat();
    wanted.sort_unstable();
    assert_eq!(lab.cells_after(&with(&[])), wanted);
}

#[test]
fn single_locations_decide_as_a_whole_config_and_floods_follow_the_vni() {
    let flood = |vni| config(&[vec![vpc("a", vni, "flood = true")], vec![vnic("va", "a", 1)]].concat());
    let places = [location(1, b'a', 3, 4, 4), location(1, b'a', 2, 4, 2), location(1, b'a', 3, 5, 2)];
    let mut lab = Lab::new(32);
    lab.set(&flood(1));
    for text in &places {
        let one = config(&[vpc("a", 1, ""), text.clone()]).locations.remove(0);
        lab.topology.set_location(&flood(1), &one, &mut lab.neighbours).unwrap();
        lab.topology.commit();
        lab.topology.release();
    }
    let mut whole = flood(1);
    whole.locations = lab.topology.locations().cloned().collect();
    let mut fresh = Lab::new(32);
    fresh.set(&whole);
    assert_eq!((lab.decisions(), lab.used()), (fresh.decisions(), fresh.used()));
    lab.hear(2, 2);
    whole.vpcs[0].vni = Vni::new(9).unwrap();
    whole.locations.iter_mut().for_each(|location| location.vni = whole.vpcs[0].vni);
    lab.set(&whole);
    let floods = lab.vpc("a").flood_slots.clone();
    assert_eq!(floods.len(), 1);
    let Place::Remote(tunnel) = lab.place(floods[0]) else { panic!("not resolved") };
    assert_eq!(tunnel.header[46..49], [0, 0, 9]);
}
