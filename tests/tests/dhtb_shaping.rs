//! Rates on real traffic: iperf3's TCP of two tenants through the switch to the kernel's vxlan, held to what the config and
//! `qos set` say. Rates are the switch's own bytes over the switch's own clock; how fast the machine is does not matter, as
//! all ceilings are far below it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use std::time::Duration;
use tests::lab::{Lab, Remote, Tenant, vpc};
use tests::{Daemon, Family, Netns, Process, Workdir, pair, wait_for};

/// How long rates are measured, nanoseconds of the switch's clock.
const WINDOW_NS: u64 = 10_000_000_000;
/// Bytes that each packet costs besides its own.
const OVERHEAD: u64 = 24;
/// The tunnel's headers over IPv4.
const TUNNEL: u64 = 50;

struct Hosts {
    daemon: Daemon,
    red: Tenant,
    blue: Tenant,
    red_far: Remote,
    blue_far: Remote,
    _lab: Lab,
}

/// The switch with tenants red and blue, each with further lines of its vNIC.
fn hosts([red_line, blue_line]: [&str; 2]) -> Hosts {
    let lab = Lab::new(Family::V4);
    let red = lab.tenant("red", "red", pair::MACS[0], &pair::NEAR[..1]);
    let blue = lab.tenant("blue", "blue", pair::MACS[1], &pair::NEAR[..1]);
    let red_far = lab.remote("redfar", pair::VNIS[0], pair::MACS[2], &pair::FAR[..1], "");
    let blue_far = lab.remote("bluefar", pair::VNIS[1], pair::MACS[3], &pair::FAR[..1], "");
    let config = [
        lab.uplink(""),
        vpc("red", pair::VNIS[0], &["10.0.0.0/24"], ""),
        vpc("blue", pair::VNIS[1], &["10.0.0.0/24"], ""),
        red.vnic() + red_line + "\n",
        blue.vnic() + blue_line + "\n",
        red_far.location(),
        blue_far.location(),
    ]
    .concat();
    let daemon = Daemon::start(&lab.host, &config);
    red.plug(&lab.host);
    blue.plug(&lab.host);
    Hosts { daemon, red, blue, red_far, blue_far, _lab: lab }
}

/// iperf3's TCP from one machine to another, until it is dropped.
struct Flow {
    _client: Process,
    _server: Process,
}

impl Flow {
    #[track_caller]
    fn start(from: &Netns, to: &Netns, dir: &Workdir) -> Flow {
        let mut server = to.spawn("iperf3-server", &["iperf3", "-s", "--forceflush"], dir);
        server.wait_output("Server listening", Duration::from_secs(10));
        let client = from.spawn("iperf3", &["iperf3", "-c", "10.0.0.2", "-t", "600", "--forceflush"], dir);
        Flow { _client: client, _server: server }
    }
}

/// Counters at a time.
struct Look {
    now_ns: u64,
    qos: Value,
    /// Packets and bytes that the uplink sent.
    uplink: (u64, u64),
}

impl Look {
    #[track_caller]
    fn take(daemon: &Daemon) -> Look {
        let qos = daemon.json("show qos");
        let ports = daemon.json("show port stats all");
        let text = ports.to_string();
        let up = ports
            .as_array()
            .or_else(|| ports["ports"].as_array())
            .and_then(|ports| ports.iter().find(|port| port["name"] == "up"))
            .unwrap_or_else(|| panic!("no port up: {text}"));
        let count = |name: &str| up[name].as_u64().unwrap_or_else(|| panic!("no {name}: {text}"));
        let now_ns = qos["now-ns"].as_u64().unwrap_or_else(|| panic!("no now-ns: {qos:#}"));
        Look { now_ns, uplink: (count("tx-packets"), count("tx-bytes")), qos }
    }

    /// Bytes that a node let out.
    #[track_caller]
    fn drawn(&self, level: &str, name: Option<&str>) -> u64 {
        let nodes = self.qos["nodes"].as_array().expect("nodes");
        let is = |node: &&Value| {
            node["level"] == level && node["direction"] == "out" && node["name"].as_str() == name
        };
        let node = nodes.iter().find(is).unwrap_or_else(|| panic!("no {level} {name:?}: {:#}", self.qos));
        node["drawn"].as_u64().unwrap_or_else(|| panic!("no drawn: {node}"))
    }
}

/// Rates over a window, Mbit/s.
#[derive(Debug)]
struct Rates {
    red: f64,
    blue: f64,
    /// Of what the uplink's counters say, as vNICs pay for it.
    port: f64,
}

/// What the nodes let through in the next window, after `settle` of the switch's time.
#[track_caller]
fn rates(daemon: &Daemon, settle: u64) -> Rates {
    let later = |from: u64, ns: u64| {
        wait_for("the switch's clock to go on", Duration::from_nanos(ns * 4), || {
            let look = Look::take(daemon);
            (look.now_ns >= from + ns).then_some(look)
        })
    };
    let start = Look::take(daemon);
    let start = later(start.now_ns, settle);
    let end = later(start.now_ns, WINDOW_NS);
    let seconds = (end.now_ns - start.now_ns) as f64 / 1e9;
    let megabits = |bytes: u64| bytes as f64 * 8.0 / 1e6 / seconds;
    let drawn = |level: &str, name| megabits(end.drawn(level, name) - start.drawn(level, name));
    let (packets, bytes) = (end.uplink.0 - start.uplink.0, end.uplink.1 - start.uplink.1);
    Rates {
        red: drawn("vnic", Some("red")),
        blue: drawn("vnic", Some("blue")),
        port: megabits(bytes + packets * OVERHEAD - packets * TUNNEL),
    }
}

/// How far over its ceiling a rate may be, in percent.
const OVER: f64 = 2.0;
/// How far under it: a TCP that was dropped takes its time to come back, and a worker that had not its core as well.
const UNDER: f64 = 15.0;

#[track_caller]
fn near(what: &str, rate: f64, wanted: f64) {
    let error = (rate / wanted - 1.0) * 100.0;
    eprintln!("{what}: {rate:.3} Mbit/s, wanted {wanted}, {error:+.2} %");
    assert!((-UNDER..=OVER).contains(&error), "{what}: {rate:.3} Mbit/s is {error:+.2} % off {wanted}");
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn dhtb_shaper_holds_vnics_to_their_ceilings() {
    let hosts = hosts(["qos = { out = { ceil = \"20Mbit\" } }", "qos = { out = { ceil = \"40Mbit\" } }"]);
    let dir = Workdir::new("shaping");
    let flows = [
        Flow::start(&hosts.red.netns, &hosts.red_far.netns, &dir),
        Flow::start(&hosts.blue.netns, &hosts.blue_far.netns, &dir),
    ];
    let before = rates(&hosts.daemon, 2 * SECOND);
    near("red", before.red, 20.0);
    near("blue", before.blue, 40.0);
    near("the uplink's counters", before.port, 60.0);
    // Live, both ways.
    hosts.daemon.ctl("qos set vnic red out ceil 30Mbit");
    hosts.daemon.ctl("qos set vnic blue out ceil 10Mbit");
    let after = rates(&hosts.daemon, 2 * SECOND);
    near("red, raised", after.red, 30.0);
    near("blue, lowered", after.blue, 10.0);
    near("the uplink's counters", after.port, 40.0);
    drop(flows);
    hosts.daemon.stop();
}
