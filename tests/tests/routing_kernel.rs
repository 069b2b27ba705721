//! The virtual router as kernels see it: who traces a way through it, who asks for what it cannot reach, and gateways that
//! share the flows.
//!
//! ```text
//!  red1 (10.0.0.1)  ──┐                    ┌══ gate1 ─┐
//!  red2 (10.0.1.2)  ──┤ switch ══ underlay ┤          ├─ 198.51.100.1
//!  blue1 (10.9.0.1) ──┘                    └══ gate2 ─┘
//! ```
//! red and blue are peered VPCs. Either gateway is a kernel behind a VTEP of its own, and has the address outside.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::lab::{Lab, Tenant};
use tests::{Counters, Daemon, Family, Netns, netns, traffic};

const RED1: &str = "02:00:00:00:01:01";
const OUTSIDE: &str = "198.51.100.1";
/// VTEPs of the gateways, and their MAC addresses.
const GATES: [(&str, &str); 2] = [("172.16.0.2", "02:00:00:00:08:01"), ("172.16.0.3", "02:00:00:00:08:02")];

struct Site {
    daemon: Daemon,
    red1: Tenant,
    red2: Tenant,
    blue1: Tenant,
    _lab: Lab,
}

fn subnet(vpc: &str, prefix: &str, gateway: &str) -> String {
    format!("[[subnet]]\nvpc = \"{vpc}\"\nprefix = \"{prefix}\"\ngateway = \"{gateway}\"\n")
}

/// The switch with its tenants; `routes` are further ones of VPC red.
fn start(routes: &str) -> Site {
    let lab = Lab::new(Family::V4);
    let red1 = lab.tenant("red1", "red", RED1, &["10.0.0.1/24", "fd00:1::1/64"]);
    let red2 = lab.tenant("red2", "red", "02:00:00:00:01:02", &["10.0.1.2/24", "fd00:2::2/64"]);
    let blue1 = lab.tenant("blue1", "blue", "02:00:00:00:02:01", &["10.9.0.1/24", "fd00:9::1/64"]);
    let vpcs = format!(
        "[[vpc]]\nname = \"red\"\nvni = 100\nroutes = [{{ to = \"10.9.0.0/24\", vpc = \"blue\" }}, {{ to = \"fd00:9::/64\", vpc \
         = \"blue\" }}, {{ to = \"10.66.0.0/16\", blackhole = true }}, {{ to = \"fd66::/16\", blackhole = true }}, {routes}]\n\
         [[vpc]]\nname = \"blue\"\nvni = 200\nroutes = [{{ to = \"10.0.0.0/23\", vpc = \"red\" }}, {{ to = \"fd00:1::/64\", vpc \
         = \"red\" }}]\n"
    );
    let subnets = [
        subnet("red", "10.0.0.0/24", "10.0.0.254"),
        subnet("red", "fd00:1::/64", "fd00:1::fe"),
        subnet("red", "10.0.1.0/24", "10.0.1.254"),
        subnet("red", "fd00:2::/64", "fd00:2::fe"),
        subnet("blue", "10.9.0.0/24", "10.9.0.254"),
        subnet("blue", "fd00:9::/64", "fd00:9::fe"),
    ];
    // No VTEP is listed: gateways are heard because routes lead to them.
    let uplink = lab.uplink("").replace(&format!("peers = [\"{}\"]", lab.remote_vtep()), "");
    let config = [uplink, vpcs, subnets.concat(), red1.vnic(), red2.vnic(), blue1.vnic()].concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    for (tenant, gateways) in [
        (&red1, ["10.0.0.254", "fd00:1::fe"]),
        (&red2, ["10.0.1.254", "fd00:2::fe"]),
        (&blue1, ["10.9.0.254", "fd00:9::fe"]),
    ] {
        tenant.plug(&lab.host);
        for gateway in gateways {
            tenant.netns.ip(&format!("route add default via {gateway}"));
        }
        // An echo to the router and all is known to everybody.
        gateways.iter().for_each(|gateway| traffic::ping(&tenant.netns, gateway, 56, 1));
    }
    daemon.settled();
    Site { daemon, red1, red2, blue1, _lab: lab }
}

/// The hops that Debian's traceroute sees, one probe each, one after another.
fn trace(from: &Netns, to: &str) -> Vec<String> {
    let text = from.run(&["traceroute", "-n", "-q", "1", "-N", "1", "-w", "3", "-m", "4", to]);
    let hop = |line: &str| line.split_whitespace().nth(1).unwrap_or("nothing").to_owned();
    text.lines().skip(1).map(hop).collect()
}

/// What ping says of one echo request that is not answered.
fn complaint(from: &Netns, to: &str) -> String {
    let output = from.try_run(&["ping", "-n", "-c", "1", "-W", "1", to]);
    assert!(!output.status.success(), "{to} answered");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Asserts that since `before` packets were dropped for this one reason, so many, and that as many were told of. Reports of
/// multicast groups, which no kernel can be told to leave, do not count, in the overlay and in the underlay.
#[track_caller]
fn assert_told(daemon: &Daemon, before: &Counters, reason: &str, n: i64) {
    let now = daemon.counters();
    let dropped = now
        .since(before)
        .into_iter()
        .filter_map(|(path, n)| Some((path.strip_prefix("fwd.drops.")?.to_owned(), n)));
    let dropped: Vec<_> = dropped
        .filter(|(reason, _)| !["bum-disabled", "underlay-other"].contains(&reason.as_str()))
        .collect();
    assert_eq!(dropped, [(reason.to_owned(), n)]);
    assert_eq!(now.get("fwd.originated") - before.get("fwd.originated"), n);
}

#[test]
fn routing_is_seen_by_traceroute() {
    let site = start("");
    let router = ["10.0.0.254", "fd00:1::fe"];
    for (family, tenant) in [(0, &site.red2), (1, &site.red2), (0, &site.blue1), (1, &site.blue1)] {
        let to = tenant.address([Family::V4, Family::V6][family]);
        traffic::ping(&site.red1.netns, to, 56, 2);
        let before = site.daemon.counters();
        assert_eq!(trace(&site.red1.netns, to), [router[family], to]);
        assert_told(&site.daemon, &before, "ttl-expired", 1);
    }
    // Back again; and within a subnet nobody routes.
    assert_eq!(trace(&site.blue1.netns, "10.0.0.1"), ["10.9.0.254", "10.0.0.1"]);
    site.daemon.stop();
}

#[test]
fn routing_tells_kernels_what_cannot_be_reached() {
    let site = start("");
    let cases = [
        ("203.0.113.7", "no-route", "Destination Net Unreachable"),
        ("10.0.1.77", "no-location", "Destination Host Unreachable"),
        ("10.9.0.77", "no-location", "Destination Host Unreachable"),
        ("10.66.1.1", "blackhole", "Packet filtered"),
        ("2001:db8::7", "no-route", "No route"),
        ("fd00:2::77", "no-location", "Address unreachable"),
        ("fd66::1", "blackhole", "Administratively prohibited"),
    ];
    for (to, reason, words) in cases {
        let before = site.daemon.counters();
        let said = complaint(&site.red1.netns, to);
        let router = if to.contains(':') { "From fd00:1::fe" } else { "From 10.0.0.254" };
        assert!(said.contains(words) && said.contains(router), "{to}: {said}");
        assert_told(&site.daemon, &before, reason, 1);
    }
    // Changes hold for known flows, and go away again.
    let ping = || site.red1.netns.try_run(&["ping", "-n", "-c", "1", "-W", "1", "10.0.1.2"]).status.success();
    assert!(ping());
    site.daemon.ctl("route add red 10.0.1.2/32 blackhole");
    let before = site.daemon.counters();
    assert!(complaint(&site.red1.netns, "10.0.1.2").contains("Packet filtered"));
    assert_told(&site.daemon, &before, "blackhole", 1);
    let shown = site.daemon.json("show route red");
    let kinds = |to: &str| {
        shown.as_array().unwrap().iter().find(|row| row["to"] == to).map(|row| row["kind"].clone())
    };
    assert_eq!(kinds("10.0.1.2/32"), Some("blackhole".into()), "{shown:#}");
    assert_eq!(kinds("10.9.0.0/24"), Some("peer".into()), "{shown:#}");
    assert_eq!(kinds("10.0.0.0/24"), Some("subnet".into()), "{shown:#}");
    let refused = site.daemon.try_ctl("route add red 10.0.1.2/32 vpc blue").unwrap_err();
    assert!(refused.contains("there is a route \"red 10.0.1.2/32\" already"), "{refused}");
    site.daemon.ctl("route del red 10.0.1.2/32");
    assert!(ping());
    assert!(site.daemon.try_ctl("route del red 10.0.1.2/32").unwrap_err().contains("show route"));
    site.daemon.ctl("subnet add red 203.0.113.0/24 gateway 203.0.113.254");
    assert!(complaint(&site.red1.netns, "203.0.113.7").contains("Destination Host Unreachable"));
    traffic::ping(&site.red1.netns, "203.0.113.254", 56, 1);
    site.daemon.ctl("subnet del red 203.0.113.0/24");
    assert!(complaint(&site.red1.netns, "203.0.113.7").contains("Destination Net Unreachable"));
    site.daemon.stop();
}

/// A gateway: a kernel behind the vxlan device of a namespace, with the address outside.
fn gateway(name: &str, underlay: &Netns, (vtep, mac): (&str, &str)) -> Netns {
    let gate = Netns::new(name);
    underlay.ip(&format!(
        "link add vx100 address {mac} mtu 1450 type vxlan id 100 dstport 4789 local {vtep} remote 172.16.0.1"
    ));
    underlay.ip(&format!("link set vx100 netns {}", gate.name()));
    gate.ip("link set vx100 name eth0");
    gate.ip("link set eth0 up");
    gate.ip(&format!("addr add {OUTSIDE}/32 dev lo"));
    gate.ip("route add 10.0.0.0/24 dev eth0");
    gate.ip(&format!("neigh add 10.0.0.1 lladdr {RED1} dev eth0 nud permanent"));
    gate
}

/// Packets that a gateway was sent so far.
fn received(gate: &Netns) -> u64 {
    let text = gate.run(&["cat", "/proc/net/dev"]);
    let line =
        text.lines().find(|line| line.trim_start().starts_with("eth0:")).unwrap_or_else(|| panic!("{text}"));
    line.split_whitespace().nth(2).unwrap().parse().unwrap()
}

#[test]
fn routing_shares_flows_among_gateways() {
    let hop = |(vtep, mac): (&str, &str)| format!("{{ vtep = \"{vtep}\", mac = \"{mac}\" }}");
    let hops = GATES.map(hop).join(", ");
    let site = start(&format!("{{ to = \"198.51.100.0/24\", next-hops = [{hops}] }}"));
    // The other host's end of the cable becomes a switch with a second host behind it.
    let peer = &site._lab.peer;
    let second = Netns::new("peer2");
    netns::cable((peer, "p2"), (&second, "up0"), 1600);
    // The address stays at its MAC: of another one the switch would make sure while packets are counted.
    let mac = peer.run(&["cat", "/sys/class/net/up0/address"]);
    peer.ip(&format!("link add br0 mtu 1600 address {} type bridge", mac.trim()));
    peer.ip("addr flush dev up0");
    for member in ["up0", "p2"] {
        peer.ip(&format!("link set {member} master br0"));
    }
    peer.ip("link set br0 up");
    peer.ip("addr add 172.16.0.2/24 dev br0");
    second.ip("addr add 172.16.0.3/24 dev up0");
    let gates = [gateway("gate1", peer, GATES[0]), gateway("gate2", &second, GATES[1])];
    let resolved = || {
        let shown = site.daemon.json("show route red");
        let route = shown.as_array().unwrap().iter().find(|row| row["kind"] == "gateway").cloned().unwrap();
        route["next-hops"].as_array().unwrap().iter().all(|hop| hop["state"] == "resolved").then_some(())
    };
    tests::wait_for("both gateways to be resolved", std::time::Duration::from_secs(20), resolved);

    let before = gates.each_ref().map(received);
    let dropped = site.daemon.counters();
    // Each of them has an identifier of its own, and so is a flow.
    for _ in 0..24 {
        traffic::ping(&site.red1.netns, OUTSIDE, 56, 1);
    }
    let shares: Vec<u64> = gates.iter().zip(before).map(|(gate, before)| received(gate) - before).collect();
    assert!(shares.iter().sum::<u64>() == 24 && shares.iter().all(|&n| n > 0), "{shares:?}");
    assert_eq!(trace(&site.red1.netns, OUTSIDE), ["10.0.0.254", OUTSIDE]);
    // A gateway goes: its flows take the other one.
    let (vtep, mac) = GATES[1];
    site.daemon.ctl(&format!("route set red 198.51.100.0/24 vtep {vtep} mac {mac}"));
    let before = gates.each_ref().map(received);
    for _ in 0..8 {
        traffic::ping(&site.red1.netns, OUTSIDE, 56, 1);
    }
    let shares: Vec<u64> = gates.iter().zip(before).map(|(gate, before)| received(gate) - before).collect();
    assert_eq!(shares, [0, 8]);
    assert_told(&site.daemon, &dropped, "ttl-expired", 1);
    site.daemon.stop();
}
