//! Kinds of ports towards tenants: tap devices moved into the tenant's namespace, af_xdp, more than one queue, VLANs of a
//! trunk, and ports that come and go while others carry traffic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;
use tests::lab::{Lab, Tenant, vpc};
use tests::process::{self, Process};
use tests::runtime::port_count;
use tests::{Agent, Daemon, Family, Netns, Scene, Workdir, netns, pair, script, traffic, wait_for};

const SUBNETS: [&str; 2] = ["10.0.0.0/24", "fd00:1::/64"];

/// Starts the switch with a tenant on `port` ("{ kind = ... }") and a partner behind the kernel's vxlan.
fn with_partner(lab: &Lab, red: &Tenant, port: &str, more: &str) -> (Daemon, tests::Remote) {
    let far = lab.remote("redfar", pair::VNIS[0], pair::MACS[2], &pair::FAR, "");
    let config = [
        lab.uplink(""),
        vpc("red", pair::VNIS[0], &SUBNETS, ""),
        red.vnic_on(port),
        far.location(),
        more.to_owned(),
    ]
    .concat();
    (Daemon::start(&lab.host, &config), far)
}

#[track_caller]
fn all_sizes(near: &Netns, far: &Netns, sizes: &[u32]) {
    for size in sizes {
        traffic::ping(near, "10.0.0.2", *size, 3);
        traffic::ping(far, "10.0.0.1", *size, 3);
    }
}

fn tap(queues: u16, workers: &str) {
    let lab = Lab::new(Family::V4);
    let red = lab.tenant("red", "red", pair::MACS[0], &["10.0.0.1/24"]);
    let port = format!("{{ kind = \"tap\", iface = \"red\", queues = {queues} }}");
    let (daemon, far) = with_partner(&lab, &red, &port, workers);
    red.plug(&lab.host);
    all_sizes(&red.netns, &far.netns, &pair::PING_SIZES);
    traffic::transfer(&red.netns, &far.netns, "10.0.0.2", 60_000);
    traffic::transfer(&far.netns, &red.netns, "10.0.0.1", 60_000);
    daemon.stop();
    assert_eq!(red.netns.interfaces(), ["lo"], "the tap goes with the switch");
}

#[test]
fn ports_tap_moved_to_its_tenant() {
    tap(1, "");
}

#[test]
fn ports_tap_with_two_queues_and_two_workers() {
    tap(2, "[workers]\ncores = [0, 1]\nidle = \"sleep\"\n");
}

#[test]
fn ports_af_xdp_towards_a_tenant() {
    let lab = Lab::new(Family::V4);
    let red = lab.cabled_tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let (daemon, far) = with_partner(&lab, &red, "{ kind = \"af-xdp\", iface = \"red\" }", "");
    all_sizes(&red.netns, &far.netns, &[56, 1400]);
    // Sent buffers stay in the completion ring until the next ones go out.
    daemon.stop_holding(64);
}

#[test]
fn ports_af_packet_fanout_spreads_flows_over_workers() {
    let lab = Lab::new(Family::V4);
    let red = lab.cabled_tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let port = "{ kind = \"af-packet\", iface = \"red\", queues = 2 }";
    let (daemon, far) = with_partner(&lab, &red, port, "[workers]\ncores = [0, 1]\nidle = \"sleep\"\n");
    all_sizes(&red.netns, &far.netns, &[56, 1400]);
    // Many flows: each goes one way all the time, and all together use both queues.
    let mut agent =
        Agent::start(&lab, &[("red", &red.netns)], &[("red_mac", &red.mac), ("far_mac", &far.mac)]);
    let flows = "[Ether(src=red_mac, dst=far_mac)/IP(src='10.0.0.1', dst='10.0.0.2')/UDP(sport=s, dport=9)/Raw(b'x') for s in range(1000, 1200)]";
    agent.exchange("red", &[flows], &["red"]);
    let workers = daemon.json("show workers");
    let received: Vec<i64> = workers["workers"]
        .as_array()
        .unwrap_or_else(|| panic!("'show workers' lists no workers: {workers:#}"))
        .iter()
        .map(|w| {
            w["packets"].as_i64().unwrap_or_else(|| panic!("a worker does not say what it received: {w:#}"))
        })
        .collect();
    assert_eq!(received.len(), 2);
    assert!(received.iter().all(|n| *n > 20), "both workers have work: {received:?}");
    daemon.stop();
}

#[test]
fn ports_trunk_carries_tenants_by_vlan() {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    let host = Netns::new("trunk");
    netns::cable((&host, "eth0"), (&lab.host, "trunk"), 1500);
    let vnic = |name: &str, vpc: &str, mac: &str, vip: &str, vlan: u16| {
        format!(
            "[[vnic]]\nname = \"{name}\"\nvpc = \"{vpc}\"\nmac = \"{mac}\"\nvips = [\"{vip}\"]\nmtu = 1450\nport = \"trunk\"\nvlan = {vlan}\n"
        )
    };
    let config = [
        lab.uplink(""),
        "[[trunk]]\nname = \"trunk\"\nport = { kind = \"af-packet\", iface = \"trunk\" }\n".to_owned(),
        vpc("red", 100, &SUBNETS, ""),
        vpc("blue", 200, &SUBNETS, ""),
        vnic("red1", "red", "02:00:00:00:0a:01", "10.0.0.1", 11),
        vnic("red2", "red", "02:00:00:00:0a:02", "10.0.0.2", 12),
        vnic("blue1", "blue", "02:00:00:00:0b:01", "10.0.0.1", 21),
        vnic("blue2", "blue", "02:00:00:00:0b:02", "10.0.0.2", 22),
    ]
    .concat();
    let daemon = Daemon::start(&lab.host, &config);
    let mut agent = Agent::start(&lab, &[("trunk", &host)], &[]);
    let frame = |tenant: &str, vlan: u16| {
        format!(
            "Ether(src='02:00:00:00:{tenant}:01', dst='02:00:00:00:{tenant}:02')/Dot1Q(vlan={vlan})/IP(src='10.0.0.1', dst='10.0.0.2')/UDP()/Raw(b'{tenant}')"
        )
    };
    for (tenant, from, to) in [("0a", 11, 12), ("0b", 21, 22)] {
        let exchange = agent.exchange("trunk", &[frame(tenant, from)], &["trunk"]);
        let [seen] = exchange.on("trunk") else { panic!("{exchange:?}") };
        assert_eq!(seen["vlans"], serde_json::json!([to]), "{seen}");
        assert_eq!(seen["l4_sum_ok"], true, "{seen}");
    }
    // A VLAN that carries nobody, no VLAN at all, and a tenant on its neighbour's VLAN.
    let before = daemon.counters();
    let untagged =
        "Ether(src='02:00:00:00:0a:01', dst='02:00:00:00:0a:02')/IP(src='10.0.0.1', dst='10.0.0.2')/UDP()";
    let bad = [frame("0a", 99), untagged.to_owned(), frame("0a", 21)];
    assert!(agent.exchange("trunk", &bad, &["trunk"]).on("trunk").is_empty());
    let after = daemon.counters();
    let moved =
        |reason: &str| after.get(&format!("fwd.drops.{reason}")) - before.get(&format!("fwd.drops.{reason}"));
    assert_eq!((moved("vlan-unbound"), moved("guard-mac")), (2, 1));
    daemon.stop();
}

#[test]
fn ports_come_and_go_while_others_carry_traffic() {
    let lab = Lab::new(Family::V4);
    let red = lab.cabled_tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let guest = lab.cabled_tenant("guest", "red", "02:00:00:00:0a:03", &["10.0.0.3/24"]);
    let port = "{ kind = \"af-packet\", iface = \"red\" }";
    let (daemon, far) = with_partner(&lab, &red, port, "");
    let dir = tests::Workdir::new("hotplug");
    // A ping that runs all the time: 100 a second; nothing of it may get lost.
    let mut steady =
        red.netns.spawn("steady", &["ping", "-n", "-i", "0.01", "-c", "600", "-W", "3", "10.0.0.2"], &dir);
    steady.wait_output("icmp_seq=5", Duration::from_secs(10));
    for _ in 0..3 {
        daemon.ctl(
            "vnic add guest vpc red mac 02:00:00:00:0a:03 vips 10.0.0.3 mtu 1450 port af-packet iface=guest",
        );
        traffic::ping(&guest.netns, "10.0.0.1", 56, 3);
        daemon.ctl("vnic del guest");
        daemon.ctl("port attach spare ring");
        daemon.ctl("port detach spare");
        traffic::no_ping(&guest.netns, "10.0.0.1");
    }
    let status = steady.wait(Duration::from_secs(30));
    let said = steady.output();
    assert!(status.success() && said.contains(" 0% packet loss"), "{said}");
    traffic::ping(&far.netns, "10.0.0.1", 56, 3);
    daemon.stop();
}

/// A datagram of the vNIC behind the lying back end to the machine behind the other VTEP, 60 bytes.
fn frame_of_the_liar() -> String {
    let udp = "03e807d0001a0000".to_owned() + &"00".repeat(18);
    let ip = "4500002e00004000401126ba0a0000030a000002";
    format!("0200000001020200000001030800{ip}{udp}")
}

#[test]
fn ports_a_back_end_that_lies_about_lengths_shows_nobody_elses_bytes() {
    const HONEST: i64 = 3;
    const LIES: [&str; 4] = ["2200", "9000", "60000", "70000"];
    let dir = Workdir::new("backend");
    let path = dir.path().join("liar.sock").display().to_string();
    let script = script::path("backend.py").display().to_string();
    let frame = frame_of_the_liar();
    let told = [script::PYTHON, &script, &path, &frame, "0", LIES[0], LIES[1], "0", LIES[2], LIES[3], "0"];
    let mut backend = Process::spawn("backend", process::bound_to_us(&told), dir.path().join("backend.log"));
    backend.wait_output("listening", Duration::from_secs(10));

    let vnic = format!(
        "[[vnic]]\nname = \"liar\"\nvpc = \"red\"\nmac = \"02:00:00:00:01:03\"\nvips = [\"10.0.0.3\"]\n\
         port = {{ kind = \"virtio-user\", path = \"{path}\", server = false, trusted-peer = true }}\n"
    );
    let scene = Scene::start(Family::V4, "", &vnic);
    backend.wait_output("written", Duration::from_secs(10));
    wait_for("all frames of the back end", Duration::from_secs(10), || {
        (port_count(&scene.daemon, "liar", "rx-packets") == HONEST + LIES.len() as i64).then_some(())
    });
    wait_for("the honest frames to leave", Duration::from_secs(10), || {
        (scene.daemon.drops("header-split") + port_count(&scene.daemon, "up", "tx-packets")
            >= HONEST + LIES.len() as i64)
            .then_some(())
    });
    assert_eq!(scene.daemon.drops("header-split"), LIES.len() as i64);
    assert!(scene.daemon.ctl("show drops").contains("header-split"));
    scene.stop();
}
