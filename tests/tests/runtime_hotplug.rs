//! Ports come and go, twenty times over, while another tenant's TCP stream, datagrams and ping go on: nothing of theirs is
//! lost, no buffer, open file or interface stays. An attachment that fails leaves everything as it was.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::runtime::{self, TWO_WORKERS};
use tests::steady::{Flows, Ping, Stream};
use tests::{Daemon, Family, Lab, Tenant, lab, netns, traffic};

const ROUNDS: usize = 20;
const FLOWS: u32 = 8;

/// The steady tenants `one` and `two` of the VPC "red", and `host` of the VPC "guest", whose neighbour comes and goes.
fn steady_tenants(workers: &str) -> (Lab, Daemon, [Tenant; 3]) {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    let one = lab.tenant("one", "red", "02:00:00:00:0a:01", &["10.0.0.1/24"]);
    let two = lab.tenant("two", "red", "02:00:00:00:0a:02", &["10.0.0.2/24"]);
    let host = lab.tenant("ghost", "guest", "02:00:00:00:0b:01", &["10.0.0.1/24"]);
    // A cable for a plain port, and a tap that is somebody else's: of one queue, as the switch never makes them.
    netns::cable((&two.netns, "spare0"), (&lab.host, "spare0"), 1500);
    lab.host.ip("tuntap add taken mode tap");
    let config = [
        lab.uplink(""),
        lab::vpc("red", 100, &["10.0.0.0/24"], ""),
        lab::vpc("guest", 200, &["10.0.0.0/24"], ""),
        one.vnic(),
        two.vnic(),
        host.vnic(),
        workers.to_owned(),
    ]
    .concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    for tenant in [&one, &two, &host] {
        tenant.plug(&lab.host);
    }
    traffic::ping(&one.netns, "10.0.0.2", 56, 3);
    daemon.settled();
    (lab, daemon, [one, two, host])
}

fn come_and_go(workers: &str) {
    let (lab, mut daemon, [one, two, host]) = steady_tenants(workers);
    let before = runtime::standing(&mut daemon, &lab.host);
    let flows = Flows::start(&one.netns, &two.netns, "10.0.0.2", FLOWS);
    let stream = Stream::start(&two.netns, &one.netns, "10.0.0.1");
    let ping = Ping::start(&one.netns, "10.0.0.2");
    for round in 0..ROUNDS {
        daemon.ctl("port attach loop ring");
        daemon.ctl("port attach cable af-packet iface=spare0");
        daemon.ctl(
            "vnic add visitor vpc guest mac 02:00:00:00:0b:02 vips 10.0.0.2 mtu 1450 port tap iface=visitor",
        );
        // A new vNIC counts from zero, whoever had its place before.
        let row = daemon.json("show vnic visitor");
        assert_eq!((&row[0]["rx-packets"], &row[0]["tx-packets"]), (&0.into(), &0.into()), "{round}: {row}");
        let visitor = lab.tenant("visitor", "guest", "02:00:00:00:0b:02", &["10.0.0.2/24"]);
        visitor.plug(&lab.host);
        traffic::ping(&visitor.netns, "10.0.0.1", 56, 3);
        let row = daemon.json("show vnic visitor");
        assert!(row[0]["rx-packets"].as_i64().unwrap() >= 3, "{round}: {row}");
        daemon.ctl("port detach loop");
        // What its neighbour still sends to it while it goes has a name.
        daemon.ctl("vnic del visitor");
        daemon.ctl("port detach cable");
        assert_eq!(visitor.netns.interfaces(), ["lo"], "{round}: the tap goes with the vNIC");
        traffic::no_ping(&host.netns, "10.0.0.2");
    }
    assert_eq!(ping.stop().0, 0, "echoes were lost");
    assert!(stream.stop() > 0);
    assert!(flows.stop(FLOWS) > i64::from(FLOWS) * 100);
    runtime::assert_stands(&mut daemon, &lab.host, &before, "all that came and went");
    // No port that stays lost anything: what was dropped went to the one that was leaving, or asked for it.
    let drops = daemon.json("show drops");
    let allowed = ["port-down", "neighbour-unknown", "bum-disabled", "no-location", "guard-vip", "guard-mac"];
    for (reason, count) in drops.as_object().unwrap() {
        assert!(allowed.contains(&reason.as_str()), "{count} packets were dropped as {reason}: {drops}");
    }
    daemon.stop();
}

#[test]
fn runtime_hotplug_disturbs_nobody_with_one_worker() {
    come_and_go("");
}

#[test]
fn runtime_hotplug_disturbs_nobody_with_two_workers() {
    come_and_go(TWO_WORKERS);
}

#[test]
fn runtime_hotplug_that_fails_changes_nothing() {
    let (lab, mut daemon, [one, two, _host]) = steady_tenants(TWO_WORKERS);
    daemon.ctl("port attach loop ring name=a");
    let before = runtime::standing(&mut daemon, &lab.host);
    let flows = Flows::start(&one.netns, &two.netns, "10.0.0.2", FLOWS);
    let vnic = |name: &str, mac: &str, vip: &str, port: &str| {
        format!("vnic add {name} vpc red mac {mac} vips {vip} mtu 1450 port {port}")
    };
    // The command, and words its refusal must say.
    let cases: Vec<(String, &[&str])> = vec![
        ("port attach bad af-packet iface=nosuch0".into(), &["nosuch0"]),
        ("port attach bad af-xdp iface=nosuch0".into(), &["nosuch0"]),
        ("port attach bad af-packet iface=up0".into(), &["up0", "up"]),
        ("port attach bad tap iface=spare0".into(), &["spare0", "veth"]),
        ("port attach bad tap iface=taken".into(), &["taken"]),
        ("port attach loop ring".into(), &["loop"]),
        ("port attach one ring".into(), &["one"]),
        ("port attach bad ring name=a".into(), &["already"]),
        ("port attach bad pcap rx-pcap=/nonexistent/a.pcap".into(), &["/nonexistent/a.pcap"]),
        ("port attach bad raw vdev=net_nothing0".into(), &["net_nothing0"]),
        ("port attach bad vhost-user path=/nonexistent/v.sock server=true".into(), &["/nonexistent"]),
        (vnic("one", "02:00:00:00:0a:03", "10.0.0.3", "ring"), &["one"]),
        (vnic("bad", "02:00:00:00:0a:01", "10.0.0.3", "ring"), &["02:00:00:00:0a:01"]),
        (vnic("bad", "02:00:00:00:0a:03", "10.0.0.1", "ring"), &["10.0.0.1"]),
        (vnic("bad", "02:00:00:00:0a:03", "10.9.0.3", "ring"), &["10.9.0.3"]),
        (vnic("bad", "02:00:00:00:0a:03", "10.0.0.3", "tap iface=spare0"), &["spare0"]),
        (vnic("bad", "02:00:00:00:0a:03", "10.0.0.3", "af-packet iface=nosuch0"), &["nosuch0"]),
        (vnic("bad", "02:00:00:00:0a:03", "10.0.0.3", "notrunk"), &["notrunk"]),
        ("vnic del nobody".into(), &["nobody"]),
        ("port detach nothing".into(), &["nothing"]),
    ];
    for (command, words) in &cases {
        let error = daemon.try_ctl(command).expect_err(command);
        for word in *words {
            assert!(error.contains(word), "'{command}' does not say '{word}': {error}");
        }
        runtime::assert_stands(&mut daemon, &lab.host, &before, &format!("'{command}' ({error})"));
    }
    assert!(flows.stop(FLOWS) > 0);
    assert_eq!(daemon.json("show drops").get("port-down"), None);
    // The same names serve once the fault is gone.
    daemon.ctl("port attach bad af-packet iface=spare0");
    daemon.ctl("port detach bad");
    daemon.ctl("port detach loop");
    daemon.stop();
}
