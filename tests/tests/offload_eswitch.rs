//! Flows in the simulated e-switch, on real traffic: a tenant's TCP goes into it and comes back, follows its location,
//! survives the loss of everything there, and is counted as if it had stayed in software.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tests::lab::{Lab, Remote, Tenant, vpc};
use tests::rates::{Node, Window};
use tests::steady::{Flows, Stream};
use tests::{Daemon, Family, Workdir, pair, traffic, wait_for};

const SIMULATED: &str = "offload = \"simulated\"\n";
/// Any flow of some packets a second is hot, and comes back soon.
const EAGER: &str = "hot-packets = 50\ncool-after = \"500ms\"\nretry-after = \"500ms\"\n";

struct Hosts {
    daemon: Daemon,
    red: Tenant,
    far: Remote,
    _lab: Lab,
}

/// The switch with a tenant and its partner behind the kernel's vxlan device, both on the e-switch.
fn hosts(underlay: Family, offload: &str) -> Hosts {
    hosts_with(underlay, offload, "")
}

/// The same; `vnic` are further lines of the vNIC.
fn hosts_with(underlay: Family, offload: &str, vnic: &str) -> Hosts {
    let lab = Lab::new(underlay);
    let red = lab.tenant("red", "red", pair::MACS[0], &pair::NEAR);
    // Headers of the e-switch are constant: their UDP has no checksum (RFC 6935).
    let (zero, options) = match underlay {
        Family::V6 => ("udp6-zero-checksum = true\n", "udp6zerocsumtx udp6zerocsumrx"),
        Family::V4 => ("", ""),
    };
    let far = lab.remote("redfar", pair::VNIS[0], pair::MACS[2], &pair::FAR, options);
    let config = [
        lab.uplink(&format!("{zero}{SIMULATED}")),
        vpc("red", pair::VNIS[0], &["10.0.0.0/24", "fd00:1::/64"], ""),
        red.vnic() + SIMULATED + vnic,
        far.location(),
        format!("[offload]\n{EAGER}{offload}"),
    ]
    .concat();
    let daemon = Daemon::start(&lab.host, &config);
    red.plug(&lab.host);
    know(&red, &far);
    Hosts { daemon, red, far, _lab: lab }
}

/// Lets both know each other: a kernel that still asks for its neighbour sends what came in between too late.
fn know(near: &Tenant, far: &Remote) {
    for family in [Family::V4, Family::V6] {
        traffic::ping(&near.netns, far.address(family), 56, 2);
        traffic::ping(&far.netns, near.address(family), 56, 2);
    }
}

/// One figure of `show offload`.
fn figure(daemon: &Daemon, pointer: &str) -> i64 {
    daemon.figure("show offload", pointer)
}

/// Waits until so many flows are in hardware.
#[track_caller]
fn wait_inside(daemon: &Daemon, flows: i64) {
    let end = Instant::now() + Duration::from_secs(20);
    while figure(daemon, "/flows/hardware") != flows {
        assert!(Instant::now() < end, "{flows} flows are not in hardware: {:#}", daemon.json("show offload"));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until hardware has done so many packets more.
#[track_caller]
fn wait_done(daemon: &Daemon, more: i64) {
    let begin = figure(daemon, "/done/packets");
    wait_for("hardware to do its part", Duration::from_secs(30), || {
        (figure(daemon, "/done/packets") >= begin + more).then_some(())
    });
}

/// Waits until the device is empty; nothing of ours is left on it.
#[track_caller]
fn wait_empty(daemon: &Daemon) {
    wait_for("all rules to go", Duration::from_secs(20), || {
        (figure(daemon, "/rules") == 0 && figure(daemon, "/eswitch/rules") == 0).then_some(())
    });
}

/// Packets that NFT has counted of flows between these ports' sides.
fn counted(daemon: &Daemon, from: &str, ports: impl Fn(&str, &str) -> bool) -> i64 {
    let shown = daemon.json("show nft 1000");
    let rows = shown["flows"].as_array().into_iter().flatten();
    let of_it = rows.filter(|row| row["from"] == from && row["proto"] == 17);
    let of_it = of_it.filter(|row| {
        let both = row["ports"].as_str().unwrap_or_default();
        both.split_once(' ').is_some_and(|(source, destination)| ports(source, destination))
    });
    of_it.filter_map(|row| row["packets"].as_i64()).sum()
}

/// The port of the numbered datagrams' server.
const SERVER: &str = "7788";

/// Flows go in and come back while they send, in order; NFT has counted all of it in the end.
fn in_and_out(underlay: Family, inner: Family, device: &str) {
    const FLOWS: u32 = 4;
    let hosts =
        hosts(underlay, &format!("barrier = \"all\"\n[offload.simulated]\nrefresh = \"100ms\"\n{device}"));
    let daemon = &hosts.daemon;
    let flows = Flows::start(&hosts.red.netns, &hosts.far.netns, hosts.far.address(inner), FLOWS);
    for round in 0..4 {
        wait_inside(daemon, 2 * i64::from(FLOWS));
        wait_done(daemon, 500);
        if round < 3 {
            daemon.ctl("offload off");
            wait_inside(daemon, 0);
            daemon.ctl("offload on");
        }
    }
    let why = daemon.json(&format!(
        "offload why vnic red {} {} any",
        hosts.red.address(inner),
        hosts.far.address(inner)
    ));
    let states: Vec<&Value> = why.as_array().unwrap().iter().map(|flow| &flow["state"]).collect();
    assert!(states.iter().filter(|state| **state == "hardware").count() >= FLOWS as usize, "{why:#}");
    assert_eq!(daemon.json("offload audit")["repaired"], 0);
    let datagrams = flows.stop(FLOWS);
    wait_empty(daemon);
    // Three more tell the server the end.
    assert_eq!(counted(daemon, "vnic red", |_, destination| destination == SERVER), datagrams + 3);
    assert_eq!(counted(daemon, "tunnel red", |source, _| source == SERVER), datagrams);
    let (forwarded, offloaded) =
        (figure(daemon, "/eswitch/forwarded"), daemon.counters().get("fwd.offloaded"));
    assert_eq!(forwarded, offloaded, "what the e-switch sent went out");
    assert_eq!(figure(daemon, "/done/packets"), offloaded);
    for none in [
        "/so-far/no-gap",
        "/so-far/refused",
        "/so-far/refused-by-the-device",
        "/so-far/unknown-to-workers",
        "/eswitch/ring-full",
        "/eswitch/lost",
        "/eswitch/errors",
    ] {
        assert_eq!(figure(daemon, none), 0, "{none}: {:#}", daemon.json("show offload"));
    }
    assert!(figure(daemon, "/so-far/installed") >= 4 * 2 * i64::from(FLOWS));
    daemon.assert_conserved();
    hosts.daemon.stop();
}

#[test]
fn offload_eswitch_keeps_order_ipv4_in_ipv4() {
    in_and_out(Family::V4, Family::V4, "delay = \"100us\"\n");
}

#[test]
fn offload_eswitch_keeps_order_ipv6_in_ipv6() {
    in_and_out(Family::V6, Family::V6, "");
}

/// Flows in hardware that the workers do not know any more come back to software, where they are counted again.
#[test]
fn offload_flows_that_workers_have_forgotten_are_learned_anew() {
    const FLOWS: u32 = 4;
    let hosts = hosts(Family::V4, "[offload.simulated]\nrefresh = \"100ms\"\n");
    let daemon = &hosts.daemon;
    let flows = Flows::start(&hosts.red.netns, &hosts.far.netns, hosts.far.address(Family::V4), FLOWS);
    wait_inside(daemon, 2 * i64::from(FLOWS));
    daemon.ctl("clear nft");
    let unknown = || figure(daemon, "/so-far/unknown-to-workers");
    wait_for("hardware to tell of each that nobody knows it", Duration::from_secs(10), || {
        (unknown() >= 2 * i64::from(FLOWS)).then_some(())
    });
    wait_inside(daemon, 2 * i64::from(FLOWS));
    // All of them are known: what hardware does is in the books of the table.
    let (before, already) = (unknown(), counted(daemon, "vnic red", |_, destination| destination == SERVER));
    wait_done(daemon, 1000);
    assert_eq!(unknown(), before);
    let more = counted(daemon, "vnic red", |_, destination| destination == SERVER) - already;
    assert!(more > 300, "{more} of 1,000 each way");
    flows.stop(FLOWS);
    wait_empty(daemon);
    daemon.assert_conserved();
    hosts.daemon.stop();
}

/// A device that will not have flows, or not all of them: traffic goes on, and everything says why.
fn unwilling(device: &str, words: &str, counter: &str) {
    const FLOWS: u32 = 4;
    let hosts = hosts(Family::V4, &format!("[offload.simulated]\n{device}"));
    let daemon = &hosts.daemon;
    let (near, far) = (hosts.red.address(Family::V4), hosts.far.address(Family::V4));
    let flows = Flows::start(&hosts.red.netns, &hosts.far.netns, far, FLOWS);
    let why = format!("offload why vnic red {near} {far} any");
    wait_for("a refusal that says why", Duration::from_secs(20), || {
        let said = daemon.try_ctl(&why).unwrap_or_default();
        (said.contains(words) && figure(daemon, counter) > 0).then_some(())
    });
    assert_eq!(daemon.json("offload audit")["repaired"], 0);
    flows.stop(FLOWS);
    wait_empty(daemon);
    daemon.assert_conserved();
    hosts.daemon.stop();
}

#[test]
fn offload_eswitch_without_room() {
    unwilling("capacity = 0\n", "no room for its rules", "/eswitch/refused");
}

#[test]
fn offload_eswitch_that_refuses_everything() {
    unwilling("refuse-all = true\n", "refused: ", "/so-far/refused-by-the-device");
}

#[test]
fn offload_eswitch_whose_rules_fail() {
    unwilling("fail-one-in = 1\n", "refused: ", "/so-far/refused-by-the-device");
}

#[test]
fn offload_tcp_follows_what_it_is_told() {
    let hosts = hosts(Family::V4, "[offload.simulated]\nrefresh = \"100ms\"\n");
    let daemon = &hosts.daemon;
    let (near, far) = (hosts.red.address(Family::V4), hosts.far.address(Family::V4));
    let stream = Stream::start(&hosts.red.netns, &hosts.far.netns, far);
    wait_inside(daemon, 2);
    wait_done(daemon, 1000);
    // Pinned to software, though it is hot; then wherever it belongs.
    let pin = |place: &str| daemon.ctl(&format!("offload pin {place} vnic red {near} {far} any"));
    let why = || daemon.ctl(&format!("offload why vnic red {near} {far} any"));
    pin("software");
    wait_inside(daemon, 1);
    assert!(why().contains("software: pinned"), "{}", why());
    pin("auto");
    wait_inside(daemon, 2);
    // A rule made by hand takes the flow off the way of the others, and leaves it there.
    daemon
        .ctl("flow create red group 0 priority 0 transfer pattern eth / ipv4 / tcp / end actions drop / end");
    wait_for("the rule by hand to drop", Duration::from_secs(10), || {
        (figure(daemon, "/eswitch/dropped") > 0).then_some(())
    });
    assert!(daemon.ctl("flow list red").contains("drop"));
    daemon.ctl("flow flush red");
    wait_done(daemon, 1000);
    assert!(stream.stop() > 0);
    wait_empty(daemon);
    daemon.assert_conserved();
    hosts.daemon.stop();
}

#[test]
fn offload_follows_policy_at_once() {
    const FLOWS: u32 = 2;
    let hosts = hosts(Family::V4, "[offload.simulated]\nrefresh = \"100ms\"\n");
    let daemon = &hosts.daemon;
    let far = hosts.far.address(Family::V4);
    let (vni, mac) = (pair::VNIS[0], pair::MACS[2]);
    // The partner's other address has the same MAC, by which frames would still find their way, and might be in hardware again soon.
    daemon.ctl(&format!("vlt del {vni} {}", hosts.far.address(Family::V6)));
    let flows = Flows::start(&hosts.red.netns, &hosts.far.netns, far, FLOWS);
    wait_inside(daemon, 2 * i64::from(FLOWS));
    wait_done(daemon, 500);
    // With its last location the way to the partner is gone, in hardware as in software. No answer from the switch in between:
    // the location is back before the sender gives anything up for lost.
    daemon.ctl(&format!("vlt del {vni} {far}"));
    for _ in 0..5 {
        assert_eq!(figure(daemon, "/rules"), 0, "{:#}", daemon.json("show offload"));
        std::thread::sleep(Duration::from_millis(50));
    }
    daemon.ctl(&format!("vlt set {vni} {far} mac {mac} vtep {}", Family::V4.remote_vtep()));
    wait_inside(daemon, 2 * i64::from(FLOWS));
    drop(flows);
    wait_empty(daemon);
    hosts.daemon.stop();
}

#[test]
fn offload_of_one_tenant_outlives_the_port_of_another() {
    const FLOWS: u32 = 2;
    let lab = Lab::new(Family::V4);
    let red = lab.tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let blue = lab.tenant("blue", "blue", pair::MACS[1], &pair::NEAR);
    let red_far = lab.remote("redfar", pair::VNIS[0], pair::MACS[2], &pair::FAR, "");
    let blue_far = lab.remote("bluefar", pair::VNIS[1], pair::MACS[3], &pair::FAR, "");
    let subnets = ["10.0.0.0/24", "fd00:1::/64"];
    let config = [
        lab.uplink(SIMULATED),
        vpc("red", pair::VNIS[0], &subnets, ""),
        vpc("blue", pair::VNIS[1], &subnets, ""),
        red.vnic() + SIMULATED,
        blue.vnic() + SIMULATED,
        red_far.location(),
        blue_far.location(),
        // Slow to put rules into force: the port goes in the middle of it. So no flow waits for a gap, which would have to last
        // as long as a rule takes.
        format!(
            "[offload]\n{EAGER}barrier = \"none\"\n[offload.simulated]\nrefresh = \"100ms\"\ninsertion-rate = 40\n"
        ),
    ];
    let daemon = Daemon::start(&lab.host, &config.concat());
    red.plug(&lab.host);
    blue.plug(&lab.host);
    know(&red, &red_far);
    know(&blue, &blue_far);
    let reds = Flows::start(&red.netns, &red_far.netns, red_far.address(Family::V4), FLOWS);
    let blues = Flows::start(&blue.netns, &blue_far.netns, blue_far.address(Family::V4), FLOWS);
    wait_for("rules on their way", Duration::from_secs(20), || {
        (figure(&daemon, "/flows/installing") > 0).then_some(())
    });
    // A rule by hand about the port goes with it.
    let blue_port = figure(&daemon, "/ports/blue");
    daemon.ctl(&format!(
        "flow create blue transfer pattern represented_port ethdev_port_id is {blue_port} / eth type is 0x88b5 / end actions drop / end"
    ));
    daemon.ctl("vnic del blue");
    drop(blues);
    wait_inside(&daemon, 2 * i64::from(FLOWS));
    let before = figure(&daemon, "/done/packets");
    wait_for("red to go on in hardware", Duration::from_secs(20), || {
        (figure(&daemon, "/done/packets") > before + 500).then_some(())
    });
    reds.stop_in_any_order(FLOWS);
    wait_empty(&daemon);
    daemon.assert_conserved();
    daemon.stop();
}

#[test]
fn offload_eswitch_keeps_to_a_ceiling() {
    const CEIL: f64 = 20.0;
    let limit = format!("qos = {{ out = {{ ceil = \"{CEIL}Mbit\" }} }}\n");
    let hosts = hosts_with(Family::V4, "[offload.simulated]\nrefresh = \"100ms\"\n", &limit);
    let daemon = &hosts.daemon;
    let far = hosts.far.address(Family::V4);
    let dir = Workdir::new("ceiling");
    let mut server = hosts.far.netns.spawn("iperf3-server", &["iperf3", "-s", "--forceflush"], &dir);
    server.wait_output("Server listening", Duration::from_secs(10));
    let args = ["iperf3", "-c", far, "-C", "cubic", "-t", "600", "--forceflush"];
    let client = hosts.red.netns.spawn("iperf3", &args, &dir);
    wait_done(daemon, 100);
    let begin = figure(daemon, "/done/packets");
    let window = &Window::over(&[daemon], Duration::from_secs(1), Duration::from_secs(10))[0];
    let [packets, bytes] = window.sent();
    // As the vNIC pays: with what a frame costs on the wire, without the tunnel.
    let sent = window.megabits(bytes + packets * (24 - 50));
    let [drawn, done] =
        [window.rate(Node::vnic("red", "out")), (figure(daemon, "/done/packets") - begin) as f64];
    eprintln!("sent {sent:.3} Mbit/s, paid {drawn:.3}, {packets} packets; hardware did {done}, both ways");
    // What hardware did is paid for later, and what was saved may be spent in the window: 128 KiB, 1 % of it, and twice.
    assert!(sent <= CEIL * 1.03 && drawn <= CEIL * 1.03, "sent {sent:.3}, paid {drawn:.3} Mbit/s");
    assert!(sent >= CEIL * 0.5, "a tenant over its rate goes on at its rate: {sent:.3} Mbit/s");
    drop((client, server));
    wait_for("what waits for tokens to go", Duration::from_secs(10), || {
        (daemon.counters().get("fwd.waiting") == 0).then_some(())
    });
    hosts.daemon.stop();
}

/// The outer source ports of each tenant's flow, as the underlay sees them while `work` goes on.
fn source_ports(hosts: &Hosts, work: impl FnOnce()) -> BTreeMap<String, BTreeSet<String>> {
    let dir = Workdir::new("source-ports");
    let args = ["tcpdump", "-Z", "root", "-n", "-l", "-i", "up0", "-Q", "in", "udp dst port 4789"];
    let mut capture = hosts._lab.peer.spawn("tcpdump", &args, &dir);
    capture.wait_output("listening on", Duration::from_secs(10));
    work();
    capture.signal("INT");
    capture.wait(Duration::from_secs(20));
    let said = capture.output();
    // Of each packet two lines: "... IP A.PORT > B.4789: VXLAN ..." and "IP a.port > b.port: UDP ...".
    let ends = |line: &str| Some(line.split_once("IP ")?.1.split_once(": ")?.0.to_owned());
    let mut ports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (outer, inner) in said.lines().zip(said.lines().skip(1)) {
        if let (true, Some(outer), Some(inner)) = (outer.contains("VXLAN"), ends(outer), ends(inner)) {
            let source = outer.split(" > ").next().unwrap_or_default();
            let port = source.rsplit('.').next().unwrap_or_default().to_owned();
            ports.entry(inner).or_default().insert(port);
        }
    }
    ports.retain(|ends, _| ends.ends_with(&format!(".{SERVER}")));
    ports
}

/// Flows that go into hardware and come back; the outer source ports that each of them had.
fn ports_of_moving_flows(hosts: &Hosts, flows: u32) -> Vec<BTreeSet<String>> {
    let daemon = &hosts.daemon;
    let far = hosts.far.address(Family::V4);
    let ports = source_ports(hosts, || {
        let sending = Flows::start(&hosts.red.netns, &hosts.far.netns, far, flows);
        for _ in 0..2 {
            wait_inside(daemon, 2 * i64::from(flows));
            wait_done(daemon, 500);
            daemon.ctl("offload off");
            wait_inside(daemon, 0);
            daemon.ctl("offload on");
        }
        sending.stop(flows);
    });
    assert_eq!(ports.len(), flows as usize, "{ports:?}");
    ports.into_values().collect()
}

#[test]
fn offload_eswitch_and_software_send_a_flow_from_the_same_source_port() {
    const FLOWS: u32 = 6;
    let device = "[offload.simulated]\nrefresh = \"100ms\"\nencap-hash = \"crc\"\n";
    let hosts = hosts(Family::V4, &format!("entropy = \"hardware\"\n{device}"));
    let ports = ports_of_moving_flows(&hosts, FLOWS);
    assert!(ports.iter().all(|ports| ports.len() == 1), "a flow keeps its path: {ports:?}");
    let different: BTreeSet<_> = ports.into_iter().collect();
    assert!(different.len() > 1, "not all flows take one path: {different:?}");
    let daemon = &hosts.daemon;
    let shown = daemon.json("show offload");
    assert_eq!((&shown["entropy"], &shown["software-follows"]), (&"hardware".into(), &true.into()));
    assert!(daemon.ctl("show events").contains("flows keep their path"));
    daemon.assert_conserved();
    hosts.daemon.stop();
}

#[test]
fn offload_eswitch_whose_source_ports_software_cannot_follow_is_told_of() {
    const FLOWS: u32 = 4;
    let device = "[offload.simulated]\nrefresh = \"100ms\"\nencap-hash = \"product\"\n";
    let hosts = hosts(Family::V4, &format!("entropy = \"hardware\"\n{device}"));
    let ports = ports_of_moving_flows(&hosts, FLOWS);
    assert!(ports.iter().any(|ports| ports.len() == 2), "as it says, flows change their path: {ports:?}");
    let daemon = &hosts.daemon;
    assert_eq!(daemon.json("show offload")["software-follows"], false);
    for said in [daemon.ctl("show offload"), daemon.ctl("show events"), daemon.log()] {
        assert!(said.contains("flows change their path") && said.contains("not affine"), "{said}");
    }
    daemon.assert_conserved();
    hosts.daemon.stop();
}
