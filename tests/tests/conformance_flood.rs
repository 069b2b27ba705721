//! Encapsulation, decapsulation and head-end replication to ten VTEPs, on the standard port and on another: what a bridge domain
//! with ten unicast tunnels does. Nobody plays the VTEPs: their stations are configured, and the wire is watched.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use tests::counters::Moved;
use tests::{Agent, Daemon, Family, Lab, Scene, lab};

const FLOODED: &str = "from_red(datagram('flood'), ether={'dst': '02:00:00:00:01:99'}, dst='10.0.0.99')";

fn vtep(underlay: Family, n: usize) -> String {
    match underlay {
        Family::V4 => format!("172.16.0.{n}"),
        Family::V6 => format!("fd00::{n}"),
    }
}

fn mac(n: usize) -> String {
    format!("02:00:00:00:99:{n}")
}

/// The stations that got a copy and the tunnels they are for, sorted; each must be a whole copy of the frame.
fn copies(seen: &[Value], port: u16) -> Vec<(String, String)> {
    let mut copies: Vec<_> = seen
        .iter()
        .map(|fact| {
            let text = |name: &str| fact[name].as_str().unwrap();
            assert_eq!(fact["dport"], port, "{fact}");
            // Header of VNI 100, the frame's addresses as they were, and its bytes.
            assert!(text("payload").starts_with("0800000000006400020000000199020000000101"), "{fact}");
            assert!(text("payload").ends_with("666c6f6f64"), "{fact}");
            assert_ne!(fact["ip_sum_ok"], false, "{fact}");
            assert!(fact["l4_sum"] == 0 || fact["l4_sum_ok"] == true, "{fact}");
            (text("ip_dst").to_owned(), text("dst").to_owned())
        })
        .collect();
    copies.sort();
    copies
}

fn tunnels(underlay: Family, port: u16) {
    let stations: Vec<(String, String)> = (10..20).map(|n| (vtep(underlay, n), mac(n))).collect();
    let quoted: Vec<String> = stations.iter().map(|(vtep, _)| format!("\"{vtep}\"")).collect();
    let list = |more: &str| format!("flood = true\nvteps = [{}{more}]", quoted.join(", "));
    let vxlan = format!("[vxlan]\nudp-port = {port}\n");
    let mut scene = Scene::start_on(underlay, "", &stations, &list(""), &vxlan);

    // In and out of one tunnel.
    let outcome = scene.inbound(&[format!("to_red(datagram('in'), dport={port})")]);
    assert_eq!(outcome.seen.len(), 1);
    assert_eq!(outcome.seen[0]["payload"], "696e", "{outcome:?}");
    outcome.assert_inbound(&[], &[("fwd.decapsulated", 1)]);
    let outcome = scene.outbound(&["from_red(datagram('out'))"]);
    assert_eq!(outcome.seen.len(), 1);
    assert_eq!(
        (&outcome.seen[0]["dport"], &outcome.seen[0]["ip_dst"]),
        (&port.into(), &underlay.remote_vtep().into())
    );
    outcome.assert_outbound(&[], &[]);
    // Another UDP port is not the tunnel's.
    let other = if port == 4789 { 1111 } else { 4789 };
    let outcome = scene.inbound(&[format!("to_red(dport={other})")]);
    outcome.assert_inbound(&[("underlay-other", 1)], &[]);

    // Once to each VTEP: the ten of the list, and that of the location.
    let outcome = scene.outbound(&[FLOODED]);
    let mut expected = stations.clone();
    expected.push((underlay.remote_vtep().to_owned(), scene.lab.peer_mac()));
    expected.sort();
    assert_eq!(copies(&outcome.seen, port), expected);
    outcome.assert_outbound(&[], &[("fwd.copies", 10)]);
    scene.stop();
}

#[test]
fn conformance_flood_over_ipv4() {
    tunnels(Family::V4, 4789);
}

#[test]
fn conformance_flood_over_ipv6() {
    tunnels(Family::V6, 4789);
}

#[test]
fn conformance_flood_on_another_port() {
    tunnels(Family::V4, 1111);
    tunnels(Family::V6, 1111);
}

/// A VTEP of the list is not there: the others get their one copy each, and the packet that was for it is dropped by name.
#[test]
fn conformance_flood_past_a_vtep_that_is_not_there() {
    let underlay = Family::V4;
    let stations: Vec<(String, String)> = (10..13).map(|n| (vtep(underlay, n), mac(n))).collect();
    let list = "flood = true\nvteps = [\"172.16.0.10\", \"172.16.0.11\", \"172.16.0.77\", \"172.16.0.12\"]";
    let mut scene = Scene::start_on(underlay, "", &stations, list, "");
    let mut expected = stations.clone();
    expected.push((underlay.remote_vtep().to_owned(), scene.lab.peer_mac()));
    expected.sort();
    let outcome = scene.outbound(&[FLOODED]);
    assert_eq!(copies(&outcome.seen, 4789), expected);
    // It is asked for once a second, besides.
    let asked = outcome.after.get("fwd.originated") - outcome.before.get("fwd.originated");
    outcome.after.assert_moved(
        &outcome.before,
        &[
            ("fwd.received", Moved::By(1)),
            ("fwd.copies", Moved::By(4)),
            ("fwd.encapsulated", Moved::By(4)),
            ("fwd.sent", Moved::By(4 + asked)),
            ("fwd.originated", Moved::By(asked)),
            ("fwd.dropped", Moved::By(1)),
            ("fwd.drops.no-neighbour", Moved::By(1)),
            ("fwd.nft-*", Moved::By(1)),
            ("port.red.rx-packets", Moved::By(1)),
            ("port.up.tx-packets", Moved::By(4 + asked)),
            ("port.red.rx-bytes", Moved::Anyhow),
            ("port.up.tx-bytes", Moved::Anyhow),
        ],
    );
    scene.stop();
}

/// One uplink with addresses of both families: copies leave over either, and packets come in over either.
#[test]
fn conformance_flood_to_vteps_of_both_families() {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    lab.peer.sysctl(&["net.ipv6.conf.all.disable_ipv6=1"]);
    let red = lab.tenant("red", "red", "02:00:00:00:01:01", &["10.0.0.1/24"]);
    let neighbours = [10, 11].map(|n| {
        let family = if n == 10 { Family::V4 } else { Family::V6 };
        format!("{{ ip = \"{}\", mac = \"{}\" }}", vtep(family, n), mac(n))
    });
    let uplink = lab
        .uplink(&format!("neighbours = [{}]", neighbours.join(", ")))
        .replace("\"172.16.0.1/24\"", "\"172.16.0.1/24\", \"fd00::1/64\"")
        .replace("peers = [\"172.16.0.2\"]", "peers = [\"172.16.0.10\", \"fd00::11\"]");
    let config = [
        uplink,
        lab::vpc("red", 100, &["10.0.0.0/24"], "flood = true\nvteps = [\"172.16.0.10\", \"fd00::11\"]"),
        red.vnic(),
    ];
    let mut daemon = Daemon::start(&lab.host, &config.concat());
    red.plug_mute(&lab.host);
    daemon.settled();
    let names = [
        ("red_mac", "02:00:00:00:01:01"),
        ("red_ip", "10.0.0.1"),
        ("far_mac", "02:00:00:00:01:02"),
        ("far_ip", "10.0.0.2"),
    ];
    let mut agent = Agent::start(&lab, &[("red", &red.netns)], &names);
    let before = daemon.counters();
    let seen = agent.exchange("red", &[FLOODED], &["peer"]);
    let wanted = [("172.16.0.10".to_owned(), mac(10)), ("fd00::11".to_owned(), mac(11))];
    assert_eq!(copies(seen.on("peer"), 4789), wanted);
    let frames = ["to_red(src='172.16.0.10')", "to_red(src='fd00::11', dst='fd00::1')"];
    let seen = agent.exchange("peer", &frames, &["red"]);
    assert_eq!(seen.on("red").len(), 2, "{seen:?}");
    daemon.counters().assert_moved(
        &before,
        &[
            ("fwd.received", Moved::By(3)),
            ("fwd.copies", Moved::By(1)),
            ("fwd.encapsulated", Moved::By(2)),
            ("fwd.decapsulated", Moved::By(2)),
            ("fwd.sent", Moved::By(4)),
            ("fwd.nft-*", Moved::By(3)),
            ("port.red.rx-packets", Moved::By(1)),
            ("port.red.tx-packets", Moved::By(2)),
            ("port.up.rx-packets", Moved::By(2)),
            ("port.up.tx-packets", Moved::By(2)),
            ("port.*", Moved::Anyhow),
        ],
    );
    drop(agent);
    daemon.stop();
}
