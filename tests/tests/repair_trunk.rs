//! Frames for one tenant that the trunk's port does not take cost the other tenants of the trunk nothing.
//!
//! ```text
//!  machine: VLAN 11 red, VLAN 21 blue ── trunk (DPDK's net_tap) ── switch ── up0 ══ frames for both out of the tunnel
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::{Agent, Daemon, Family, Lab, Netns, lab, pair};

/// Frames of each tenant, one of red's before each of blue's, sent as fast as may be: far more than 240 a second.
const FRAMES: i64 = 500;

#[test]
fn repair_mtu_of_a_trunk_stops_nobody_else() {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    lab.peer.sysctl(&["net.ipv6.conf.all.disable_ipv6=1"]);
    let vtep = Family::V4.remote_vtep();
    let neighbour = format!("neighbours = [{{ ip = \"{vtep}\", mac = \"{}\" }}]", lab.peer_mac());
    let vnic = |name: &str, mac: &str, vlan: u16, mtu: u16| {
        format!(
            "[[vnic]]\nname = \"{name}1\"\nvpc = \"{name}\"\nmac = \"{mac}\"\nvips = [\"10.0.0.1\"]\nmtu = {mtu}\nport = \"trunk\"\nvlan = {vlan}\n"
        )
    };
    let config = |red_mtu: u16| {
        [
            lab.uplink(&neighbour),
            "[[trunk]]\nname = \"trunk\"\nport = { kind = \"raw\", vdev = \"net_tap0,iface=trunk0\" }\n"
                .to_owned(),
            lab::vpc("red", pair::VNIS[0], &["10.0.0.0/24"], ""),
            lab::vpc("blue", pair::VNIS[1], &["10.0.0.0/24"], ""),
            vnic("red", pair::MACS[0], 11, red_mtu),
            vnic("blue", pair::MACS[1], 21, 1450),
            lab::location(vtep, pair::VNIS[0], pair::MACS[2], &pair::FAR[..1]),
            lab::location(vtep, pair::VNIS[1], pair::MACS[3], &pair::FAR[..1]),
        ]
        .concat()
    };
    let mut daemon = Daemon::start(&lab.host, &config(1450));
    let machine = Netns::new("machine");
    lab.host.ip(&format!("link set trunk0 netns {}", machine.name()));
    machine.ip("link set trunk0 name eth0");
    machine.ip("link set eth0 up");
    daemon.settled();
    let names = [
        ("red", pair::MACS[0]),
        ("blue", pair::MACS[1]),
        ("red_far", pair::MACS[2]),
        ("blue_far", pair::MACS[3]),
    ];
    let mut agent = Agent::start(&lab, &[("trunk", &machine)], &names);
    let tunnelled = |who: &str, vni: u32, payload: &str| {
        format!(
            "outer(vxlan({vni}, Ether(src={who}_far, dst={who})/IP(src='10.0.0.2', dst='10.0.0.1')/UDP(sport=7, dport=8)/Raw({payload})))"
        )
    };
    // Longer than red's vNIC may have, by one byte and by a hundred; and when it may have more than the trunk's driver
    // takes, longer than that.
    for (red_mtu, length) in [(1450, 1451), (1450, 1550), (1540, 1540)] {
        daemon.rewrite_config(&config(red_mtu));
        let reloaded = daemon.try_ctl("config reload");
        assert!(reloaded.is_ok(), "{reloaded:?}");
        let red = tunnelled("red", pair::VNIS[0], &format!("b'x' * {}", length - 28));
        let blue = tunnelled("blue", pair::VNIS[1], "n.to_bytes(4, 'big') * 300");
        let frames = format!("[frame for n in range({FRAMES}) for frame in ({red}, {blue})]");
        let before = daemon.counters();
        let exchange = agent.exchange("peer", &[frames], &["trunk"]);
        let moved = daemon.counters().since(&before);
        assert_eq!(exchange.sent, 2 * FRAMES);
        let dropped: Vec<_> = moved.into_iter().filter(|(path, _)| path.starts_with("fwd.drops.")).collect();
        assert_eq!(dropped, [("fwd.drops.mtu-exceeded".to_owned(), FRAMES)], "{red_mtu}, {length}");
        let numbers: Vec<i64> = exchange.on("trunk").iter().map(number).collect();
        assert_eq!(numbers, (0..FRAMES).collect::<Vec<_>>(), "blue's, in order; {red_mtu}, {length}");
    }
    daemon.stop();
}

/// The number in a frame for blue.
fn number(fact: &serde_json::Value) -> i64 {
    assert_eq!(fact["vlans"], serde_json::json!([21]), "{fact}");
    let payload = fact["payload"].as_str().unwrap_or_default();
    i64::from_str_radix(payload.get(..8).unwrap_or_default(), 16).unwrap_or_else(|e| panic!("{e}: {fact}"))
}
