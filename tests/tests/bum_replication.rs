//! Broadcast, unknown unicast and multicast to the VTEPs of a network: kernels with vxlan devices count what comes out.
//!
//! ```text
//!  red ──┐                       ╔═ vtep2 ── vxlan eth0     in the list of the VPC, and the uplink's peer
//!  blue ─┤ switch ── up0 ══ bridge ═ vtep3 ── vxlan eth0     in the list, and behind it a location
//!  other ┘                       ╠═ vtep4 ── vxlan eth0     behind it a location
//!  (a VPC of its own)            ╚═ vtep5 ── vxlan eth0     in the list of the other VPC, with the first one's VNI as well
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::counters::Moved;
use tests::lab::{Lab, location, vpc};
use tests::vteps::{self, address, machine};
use tests::{Agent, Daemon, Family, Netns, traffic, wait_for};

const VTEPS: [&str; 4] = ["vtep2", "vtep3", "vtep4", "vtep5"];
const MACS: [&str; 3] = ["02:00:00:00:0b:01", "02:00:00:00:0b:02", "02:00:00:00:0b:03"];

struct Site {
    daemon: Daemon,
    tenants: Vec<tests::Tenant>,
    machines: Vec<Netns>,
    lab: Lab,
}

fn start(family: Family) -> Site {
    let lab = Lab::new(family);
    vteps::bridge(&lab);
    let machines: Vec<Netns> = (2..6).map(|host| machine(&lab, VTEPS[host - 2], host, 100)).collect();
    let tenant = |n: usize, name: &str, vpc: &str| {
        let addresses = [format!("10.0.0.{}/24", n + 1), format!("fd00:1::{}/64", n + 1)];
        lab.tenant(name, vpc, MACS[n], &[&addresses[0], &addresses[1]])
    };
    let tenants = vec![tenant(0, "red", "red"), tenant(1, "blue", "red"), tenant(2, "other", "other")];
    let subnets = ["10.0.0.0/24", "fd00:1::/64"];
    let hosts: Vec<(&Netns, usize)> = machines.iter().zip(2..).collect();
    let neighbours = vteps::neighbours(&lab, &hosts);
    let list = |hosts: &[usize]| {
        let quoted: Vec<String> =
            hosts.iter().map(|&host| format!("\"{}\"", address(family, host))).collect();
        format!("flood = true\nvteps = [{}]", quoted.join(", "))
    };
    let config = [
        // The uplink lists vtep2 as a peer.
        lab.uplink(&neighbours),
        vpc("red", 100, &subnets, &list(&[2, 3])),
        vpc("other", 200, &subnets, &list(&[5])),
        tenants.iter().map(tests::Tenant::vnic).collect(),
        location(&address(family, 3), 100, "02:00:00:00:0b:13", &["10.0.0.13"]),
        location(&address(family, 4), 100, "02:00:00:00:0b:14", &["10.0.0.14", "10.0.0.24"]),
    ];
    let daemon = Daemon::start(&lab.host, &config.concat());
    tenants.iter().for_each(|tenant| tenant.plug_mute(&lab.host));
    Site { daemon, tenants, machines, lab }
}

fn agent(site: &Site) -> Agent {
    let tenants = site.tenants.iter().map(|tenant| (tenant.name.as_str(), &tenant.netns));
    let machines = VTEPS.iter().copied().zip(&site.machines);
    let wires: Vec<(&str, &Netns)> = tenants.chain(machines).collect();
    Agent::start(&site.lab, &wires, &[("red_mac", MACS[0]), ("blue_mac", MACS[1]), ("other_mac", MACS[2])])
}

/// What a station of the network says to all, or to nobody it knows.
const FRAMES: [&str; 5] = [
    "Ether(src=red_mac, dst='ff:ff:ff:ff:ff:ff')/IP(src='10.0.0.1', dst='10.0.0.255')/datagram('all')",
    "Ether(src=red_mac, dst='01:00:5e:00:00:fb')/IP(src='10.0.0.1', dst='224.0.0.251')/datagram('group')",
    "Ether(src=red_mac, dst='33:33:00:00:00:fb')/IPv6(src='fd00:1::1', dst='ff02::fb')/datagram('group')",
    "Ether(src=red_mac, dst='02:00:00:00:0b:99')/IP(src='10.0.0.1', dst='10.0.0.99')/datagram('where')",
    "Ether(src=red_mac, dst='02:00:00:00:0b:99')/IPv6(src='fd00:1::1', dst='fd00:1::99')/datagram('where')",
];

fn copies(family: Family) {
    let site = start(family);
    let mut agent = agent(&site);
    let watched = ["blue", "other", VTEPS[0], VTEPS[1], VTEPS[2], VTEPS[3], "red"];
    let mut before = site.daemon.counters();
    for frame in FRAMES {
        let seen = agent.exchange("red", &[frame], &watched);
        // Once to the other vNIC and to each VTEP of the network: in a list, in two, behind it one location or two.
        let copies = watched.map(|wire| seen.on(wire).len());
        assert_eq!(copies, [1, 0, 1, 1, 1, 0, 0], "{frame}");
        let after = site.daemon.counters();
        after.assert_moved(
            &before,
            &[
                ("fwd.received", Moved::By(1)),
                ("fwd.copies", Moved::By(3)),
                ("fwd.sent", Moved::By(4)),
                ("fwd.encapsulated", Moved::By(3)),
                ("fwd.local", Moved::By(1)),
                ("fwd.drops.*", Moved::By(0)),
                ("*", Moved::Anyhow),
            ],
        );
        before = after;
    }
    // Back from a VTEP: to the vNICs of the network, and into no tunnel.
    let back = "Ether(src='02:00:00:00:0b:13', dst='ff:ff:ff:ff:ff:ff')/IP(src='10.0.0.13', dst='10.0.0.255')/datagram('all')";
    let seen = agent.exchange("vtep3", &[back], &["red", "blue", "other", VTEPS[0], VTEPS[2], VTEPS[3]]);
    assert_eq!(
        ["red", "blue", "other", VTEPS[0], VTEPS[2], VTEPS[3]].map(|wire| seen.on(wire).len()),
        [1, 1, 0, 0, 0, 0]
    );
    // A VTEP of the other network's list has no say in this one.
    let before = site.daemon.drops("unknown-vtep");
    let stray = back.replace("0b:13", "0b:15").replace("10.0.0.13", "10.0.0.15");
    let seen = agent.exchange("vtep5", &[stray], &["red", "blue", "other"]);
    assert_eq!(["red", "blue", "other"].map(|wire| seen.on(wire).len()), [0, 0, 0]);
    assert_eq!(site.daemon.drops("unknown-vtep"), before + 1);
    drop(agent);
    site.daemon.stop();
}

#[test]
fn bum_one_copy_for_each_vtep_of_the_network() {
    copies(Family::V4);
}

#[test]
fn bum_one_copy_for_each_vtep_of_the_network_over_ipv6() {
    copies(Family::V6);
}

/// A vNIC floods as fast as it can, into four VTEPs; its neighbour's echoes are not lost.
#[test]
fn bum_a_storm_of_one_vnic_costs_its_neighbour_nothing() {
    let site = start(Family::V4);
    let (red, blue) = (&site.tenants[0], &site.tenants[1]);
    blue.netns.ip("addr add 10.0.0.2/24 dev eth0");
    blue.netns.ip(&format!("link set eth0 address {} up", MACS[1]));
    site.machines[1].ip("link set eth0 address 02:00:00:00:0b:13");
    site.machines[1].ip("addr add 10.0.0.13/24 dev eth0");
    traffic::ping(&blue.netns, "10.0.0.13", 56, 3);
    let ping = tests::steady::Ping::start(&blue.netns, "10.0.0.13");
    // The kernel's own broadcasts, hundreds of thousands of them a second.
    red.netns.ip(&format!("link set eth0 address {} up", MACS[0]));
    red.netns.ip("addr add 10.0.0.1/24 broadcast 10.0.0.255 dev eth0");
    let dir = tests::Workdir::new("storm");
    let storm = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)\n\
                 while True:\n    try: s.sendto(b'x' * 64, ('10.0.0.255', 9))\n    except OSError: pass\n";
    let mut process = red.netns.spawn("storm", &["python3", "-c", storm], &dir);
    let limited = || site.daemon.figure("show fwd stats all", "/copies");
    wait_for("copies of the storm", Duration::from_secs(20), || (limited() > 200_000).then_some(()));
    process.signal("KILL");
    process.wait(Duration::from_secs(5));
    let (lost, sent) = ping.stop();
    assert!(lost * 200 <= sent, "{lost} of {sent} echoes were lost beside the storm");
    site.daemon.stop();
}
