//! VLAN tags of tenants and the tunnel, with the kernel's vxlan devices on the other hosts: carried inside where the network keeps
//! them, and taken off at a trunk. The machines' frames are crafted: their kernels need no VLAN devices.
//!
//! ```text
//!  h1 ─┐                          ╔═ vtep2 ── r1
//!  h2 ─┤ switch ── up0 ══ bridge ═╝
//!      │                          ╚═ vtep3 ── r2
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use tests::counters::Moved;
use tests::lab::{self, Lab, TENANT_MTU};
use tests::{Agent, Counters, Daemon, Family, Netns, vteps};

const NAMES: [&str; 4] = ["h1", "h2", "r1", "r2"];

/// The MAC address of the machine with this number, from 1.
fn mac(n: usize) -> String {
    format!("02:00:00:00:0d:0{n}")
}

/// A datagram from one machine to another, in a VLAN or in none.
fn frame(from: usize, to: usize, vlan: Option<u16>, prefix: &str) -> String {
    let tag = vlan.map(|id| format!("/Dot1Q(vlan={id})")).unwrap_or_default();
    let (source, target) = (mac(from), mac(to));
    format!(
        "Ether(src='{source}', dst='{target}'){tag}/IP(src='{prefix}.{from}', dst='{prefix}.{to}')/datagram('{from}to{to}')"
    )
}

/// The tags and the payloads of frames.
fn came(seen: &[Value]) -> Vec<(Vec<u64>, String)> {
    let tags =
        |fact: &Value| fact["vlans"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    seen.iter()
        .map(|fact| {
            assert_eq!(fact["l4_sum_ok"], true, "{fact}");
            (tags(fact), fact["payload"].as_str().unwrap().to_owned())
        })
        .collect()
}

/// Asserts that packets went in at one port and so many out at each of others, and that nothing else happened.
fn assert_forwarded(daemon: &Daemon, before: &Counters, from: &str, ways: &[(&str, i64)]) {
    let n = ways.iter().map(|(_, n)| n).sum();
    let mut expected = vec![("fwd.received".to_owned(), Moved::By(n)), ("fwd.sent".to_owned(), Moved::By(n))];
    expected.push(("fwd.nft-*".to_owned(), Moved::By(n)));
    let mut port = |direction: &str, name: &str, n: i64| {
        expected.push((format!("port.{name}.{direction}-packets"), Moved::By(n)));
        expected.push((format!("port.{name}.{direction}-bytes"), Moved::Anyhow));
    };
    port("rx", from, n);
    ways.iter().for_each(|(to, n)| port("tx", to, *n));
    for (to, n) in ways {
        let path = match (from, *to) {
            ("up", _) => "fwd.decapsulated",
            (_, "up") => "fwd.encapsulated",
            _ => "fwd.local",
        };
        expected.push((path.to_owned(), Moved::By(*n)));
    }
    let expected: Vec<(&str, Moved)> = expected.iter().map(|(name, moved)| (name.as_str(), *moved)).collect();
    daemon.counters().assert_moved(before, &expected);
}

/// Four machines, two of them behind other hosts, each with an address in VLAN 10 and one in VLAN 20.
#[test]
fn conformance_vlan_tags_are_carried_in_one_network() {
    const VNI: u32 = 1000;
    const VLANS: [(u16, &str); 2] = [(10, "192.0.2"), (20, "198.51.100")];
    let lab = Lab::new(Family::V4);
    vteps::bridge(&lab);
    let remotes = [vteps::machine(&lab, "vtep2", 2, VNI), vteps::machine(&lab, "vtep3", 3, VNI)];
    let addresses = |n: usize| [format!("192.0.2.{n}/28"), format!("198.51.100.{n}/24")];
    let tenants = [1, 2].map(|n| {
        let [ten, twenty] = addresses(n);
        lab.tenant(NAMES[n - 1], "one", &mac(n), &[&ten, &twenty])
    });
    let locations: String = [3, 4]
        .iter()
        .map(|&n| {
            let [ten, twenty] = addresses(n);
            lab::location(&vteps::address(Family::V4, n - 1), VNI, &mac(n), &[&ten, &twenty])
        })
        .collect();
    let config = [
        lab.uplink(&vteps::neighbours(&lab, &[(&remotes[0], 2), (&remotes[1], 3)])),
        lab::vpc("one", VNI, &["192.0.2.0/28", "198.51.100.0/24"], "inner-vlan = \"keep\""),
        tenants[0].vnic(),
        tenants[1].vnic(),
        locations,
    ]
    .concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    tenants.iter().for_each(|tenant| tenant.plug_mute(&lab.host));
    daemon.settled();
    let machines = [&tenants[0].netns, &tenants[1].netns, &remotes[0], &remotes[1]];
    let wires: Vec<(&str, &Netns)> = NAMES.into_iter().zip(machines).collect();
    let mut agent = Agent::start(&lab, &wires, &[("h1_mac", &mac(1))]);
    for (from, targets) in [(1, vec![2, 3, 4]), (2, vec![1]), (3, vec![1]), (4, vec![1])] {
        let to_each = |to: &usize| VLANS.map(|(vlan, prefix)| frame(from, *to, Some(vlan), prefix));
        let frames: Vec<String> = targets.iter().flat_map(to_each).collect();
        let before = daemon.counters();
        let seen = agent.exchange(NAMES[from - 1], &frames, &NAMES);
        for n in 1..=4 {
            let wanted: Vec<_> = VLANS
                .iter()
                .filter(|_| targets.contains(&n))
                .map(|(vlan, _)| (vec![u64::from(*vlan)], format!("3{from}746f3{n}")))
                .collect();
            assert_eq!(came(seen.on(NAMES[n - 1])), wanted, "from {from} at {n}");
        }
        let ways: &[(&str, i64)] = match from {
            1 => &[("h2", 2), ("up", 4)],
            _ => &[("h1", 2)],
        };
        let port = if from < 3 { NAMES[from - 1] } else { "up" };
        assert_forwarded(&daemon, &before, port, ways);
    }
    // Who has an address of a VLAN is answered in that VLAN.
    for (vlan, prefix) in VLANS {
        let question = format!(
            "Ether(src=h1_mac, dst='ff:ff:ff:ff:ff:ff')/Dot1Q(vlan={vlan})/ARP(op=1, hwsrc=h1_mac, psrc='{prefix}.1', hwdst='00:00:00:00:00:00', pdst='{prefix}.4')"
        );
        let seen = agent.exchange_with_discovery("h1", &[&question], &["h1", "r1", "r2"]);
        let [reply] = seen.on("h1") else { panic!("{seen:?}") };
        assert_eq!((&reply["src"], &reply["vlans"]), (&mac(4).into(), &serde_json::json!([vlan])), "{reply}");
        assert!(seen.on("r1").is_empty() && seen.on("r2").is_empty(), "{seen:?}");
    }
    drop(agent);
    daemon.stop();
}

/// Two networks side by side with the same addresses: one keeps its tenant's tags, the other's tenant is VLAN 20 of a trunk and
/// has none inside.
#[test]
fn conformance_vlan_is_kept_in_one_network_and_taken_off_in_another() {
    let lab = Lab::new(Family::V4);
    vteps::bridge(&lab);
    let remotes = [vteps::machine(&lab, "vtep2", 2, 1000), vteps::machine(&lab, "vtep3", 3, 2000)];
    let h1 = lab.tenant("h1", "one", &mac(1), &["192.0.2.1/28"]);
    let config = [
        lab.uplink(&vteps::neighbours(&lab, &[(&remotes[0], 2), (&remotes[1], 3)])),
        "[[trunk]]\nname = \"trunk\"\nport = { kind = \"raw\", vdev = \"net_tap0,iface=trunk0\" }\n".to_owned(),
        lab::vpc("one", 1000, &["192.0.2.0/28"], "inner-vlan = \"keep\""),
        lab::vpc("two", 2000, &["192.0.2.0/28"], ""),
        h1.vnic(),
        format!(
            "[[vnic]]\nname = \"h2\"\nvpc = \"two\"\nmac = \"{}\"\nvips = [\"192.0.2.2\"]\nmtu = {TENANT_MTU}\nport = \"trunk\"\nvlan = 20\n",
            mac(2)
        ),
        lab::location(&vteps::address(Family::V4, 2), 1000, &mac(3), &["192.0.2.3"]),
        lab::location(&vteps::address(Family::V4, 3), 2000, &mac(4), &["192.0.2.4"]),
    ]
    .concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    h1.plug_mute(&lab.host);
    let h2 = Netns::new("h2");
    lab.host.ip(&format!("link set trunk0 netns {}", h2.name()));
    h2.ip("link set trunk0 name eth0");
    h2.ip("link set eth0 up");
    daemon.settled();
    let wires = [("h1", &h1.netns), ("h2", &h2), ("r1", &remotes[0]), ("r2", &remotes[1])];
    let mut agent = Agent::start(&lab, &wires, &[]);
    // From, to, and the tag at either end.
    let ways = [
        (1, 3, Some(10), vec![10], "h1", "up"),
        (3, 1, Some(10), vec![10], "up", "h1"),
        (2, 4, Some(20), vec![], "trunk", "up"),
        (4, 2, None, vec![20], "up", "trunk"),
    ];
    for (from, to, tag, arrives, port, way) in ways {
        let before = daemon.counters();
        let seen = agent.exchange(NAMES[from - 1], &[frame(from, to, tag, "192.0.2")], &NAMES);
        for n in 1..=4 {
            let wanted =
                if n == to { vec![(arrives.clone(), format!("3{from}746f3{to}"))] } else { Vec::new() };
            assert_eq!(came(seen.on(NAMES[n - 1])), wanted, "from {from} to {to} at {n}");
        }
        assert_forwarded(&daemon, &before, port, &[(way, 1)]);
    }
    // The other network's machine is nobody here, and its tag nobody's there.
    let before = daemon.counters();
    let seen = agent.exchange("h1", &[frame(1, 4, Some(10), "192.0.2")], &["r1", "r2"]);
    assert!(seen.on("r1").is_empty() && seen.on("r2").is_empty(), "{seen:?}");
    let seen = agent.exchange("h2", &[frame(2, 4, Some(21), "192.0.2")], &["r1", "r2"]);
    assert!(seen.on("r1").is_empty() && seen.on("r2").is_empty(), "{seen:?}");
    let moved = daemon.counters().since(&before);
    let dropped: Vec<_> = moved.iter().filter(|(path, _)| path.starts_with("fwd.drops.")).collect();
    assert_eq!(dropped.len(), 2, "{dropped:?}");
    drop(agent);
    daemon.stop();
}
