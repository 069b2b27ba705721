//! Many routes of EVPN at once, from a second gobgpd, beside tenants who must not notice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::{Duration, Instant};

use tests::bgp::{GRPC, Gobgpd, station};
use tests::lab::{Lab, UNDERLAY_MTU, vpc};
use tests::netns::cable;
use tests::runtime::thread_ticks;
use tests::steady::Flows;
use tests::{Daemon, Family, pair, steps, wait_for};

/// What a machine that does other things besides may take; the figure is printed.
const PATIENCE: Duration = Duration::from_secs(60);
const FLOWS: u32 = 16;
const VNI: u32 = pair::VNIS[0];

/// A station by its number: MAC address, IP address, and which of ten hosts it is on.
fn numbered(number: u32) -> [String; 3] {
    let mac = format!("02:00:01:00:{:02x}:{:02x}", number >> 8, number & 0xff);
    let ip = format!("10.1.{}.{}", number >> 8, number & 0xff);
    [mac, ip, format!("172.16.0.{}", 100 + number % 10)]
}

fn paths(routes: u32) -> impl Iterator<Item = tests::bgp::Path> {
    (0..routes).map(|number| {
        let [mac, ip, vtep] = numbered(number);
        station("172.16.0.100", VNI, &mac, &ip, &vtep)
    })
}

/// Time since a moment, and the processor time of some processes since.
struct Clock {
    routes: u32,
    began: Instant,
    spent: Vec<(&'static str, u64)>,
}

impl Clock {
    fn start(routes: u32, spent: &[(&'static str, u64)]) -> Clock {
        Clock { routes, began: Instant::now(), spent: spent.to_vec() }
    }

    fn tell(&self, what: &str, now: &[u64]) {
        let shares = self.spent.iter().zip(now);
        let shares =
            shares.map(|((name, before), now)| format!("{name} {:.2} s", (now - before) as f64 / 100.0));
        let shares: Vec<String> = shares.collect();
        let took = self.began.elapsed().as_secs_f64();
        println!("{} routes {what} after {took:.2} s; processor time: {}", self.routes, shares.join(", "));
    }
}

#[test]
fn evpn_two_thousand_routes_come_and_go_while_tenants_notice_nothing() {
    come_and_go(2_000);
}

/// gobgpd 3.10 looks at all its routes for each: that takes it some 25 times as long.
#[test]
#[ignore = "takes a minute: scripts/test --full"]
fn evpn_ten_thousand_routes_come_and_go_while_tenants_notice_nothing() {
    come_and_go(10_000);
}

#[track_caller]
fn come_and_go(routes: u32) {
    let step = steps();
    let lab = Lab::new(Family::V4);
    cable((&lab.host, "bgp0"), (&lab.peer, "bgp0"), 1500);
    for (netns, address) in [(&lab.host, "192.168.255.1"), (&lab.peer, "192.168.255.2")] {
        netns.ip(&format!("addr add {address}/24 dev bgp0"));
    }
    let one = lab.cabled_tenant("one", "red", pair::MACS[0], &["10.0.0.1/24"]);
    let two = lab.cabled_tenant("two", "red", pair::MACS[2], &["10.0.0.2/24"]);
    let mut other = Gobgpd::start(&lab.peer, "172.16.0.100", &["192.168.255.1"]);
    other.announce(paths(routes));
    step("the other gobgpd has its routes");
    // How long gobgpd takes with nothing beside it is the least that the switch can take.
    let mut gobgpd = Gobgpd::start(&lab.host, "172.16.0.1", &["192.168.255.2"]);
    gobgpd.await_session(PATIENCE);
    let alone = Clock::start(routes, &[("this gobgpd", gobgpd.ticks()), ("the other gobgpd", other.ticks())]);
    wait_for("gobgpd to have all of them", PATIENCE, || (gobgpd.destinations() >= routes).then_some(()));
    alone.tell("in the table of a gobgpd without a switch", &[gobgpd.ticks(), other.ticks()]);
    gobgpd.kill();
    let port = |name: &str| format!("{{ kind = \"veth\", iface = \"{name}\" }}");
    let config = [
        format!("[control]\nevpn = {{ gobgpd = \"{GRPC}\" }}\n"),
        format!(
            "[[uplink]]\nname = \"up\"\nport = {}\naddresses = [\"172.16.0.1/24\"]\nmtu = {UNDERLAY_MTU}\n",
            port("up0")
        ),
        vpc("red", VNI, &["10.0.0.0/24", "10.1.0.0/16"], ""),
        one.vnic_on(&port("one")),
        two.vnic_on(&port("two")),
    ]
    .concat();
    let mut daemon = Daemon::start_alone(&lab.host, &config);
    let pid = daemon.process().pid();
    let before = daemon.counters();
    let flows = Flows::start(&one.netns, &two.netns, "10.0.0.2", FLOWS);
    let used = || daemon.figure("show vlt 4194303", "/used");
    let others = used();
    gobgpd.again(&lab.host);
    gobgpd.await_session(PATIENCE);
    let spent = || {
        [
            gobgpd.ticks(),
            other.ticks(),
            thread_ticks(pid, "worker"),
            thread_ticks(pid, "evpn"),
            thread_ticks(pid, ""),
        ]
    };
    let names =
        ["this gobgpd", "the other gobgpd", "the switch's worker", "its thread of EVPN", "all of the switch"];
    let before_all: Vec<_> = names.into_iter().zip(spent()).collect();
    let beside = Clock::start(routes, &before_all);
    step("the session is established");
    wait_for("gobgpd to have all of them", PATIENCE, || (gobgpd.destinations() >= routes).then_some(()));
    beside.tell("in the table of the switch's gobgpd", &spent());
    wait_for("all of them to be in the VLT", PATIENCE, || {
        (used() >= others + i64::from(routes)).then_some(())
    });
    beside.tell("in the VLT", &spent());
    let shown = daemon.json("show evpn");
    assert_eq!(shown["heard"]["stations"], routes, "{shown}");
    assert_eq!((&shown["refused"], &shown["unusable"]), (&0.into(), &0.into()), "{shown}");
    let all = daemon.json(&format!("show vlt {VNI}"));
    let mut rows = all["locations"].as_array().into_iter().flatten();
    let [mac, ip, vtep] = numbered(routes - 1);
    let found = rows.find(|row| row["vip"] == ip).unwrap();
    assert_eq!((&found["mac"], &found["where"]), (&mac.into(), &format!("vtep {vtep}").into()));
    // All of them go at once.
    other.kill();
    let began = Instant::now();
    wait_for("all of them to be gone", PATIENCE, || (used() == others).then_some(()));
    println!("{routes} routes gone after {:.2} s", began.elapsed().as_secs_f64());
    let datagrams = flows.stop_in_any_order(FLOWS);
    assert!(datagrams > 1000, "{datagrams} datagrams only");
    let after = daemon.counters();
    for count in ["fwd.drops.no-location", "fwd.drops.guard-vip"] {
        assert_eq!(after.get(count), before.get(count), "{count}");
    }
    daemon.stop();
}
