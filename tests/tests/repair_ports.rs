//! Ports that nobody reads: what is sent to them is dropped at once, by name, and costs others nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::fmt::Write as _;
use tests::runtime::TWO_WORKERS;
use tests::{Family, Scene, Workdir};

const FRAMES: i64 = 200;

/// `vnics` vhost-user vNICs whose guests never came, all sent to at once; `eal` are further lines of `[eal]`.
fn peerless(vnics: i64, eal: &str) {
    let folder = Workdir::new("peerless");
    let mut more = format!("[eal]\n{eal}{TWO_WORKERS}");
    let mut floods = Vec::new();
    for n in 1..=vnics {
        let socket = folder.path().join(format!("{n}.sock"));
        let _ = writeln!(
            more,
            "[[vnic]]\nname = \"idle{n}\"\nvpc = \"red\"\nmac = \"02:00:00:00:02:{n:02x}\"\nvips = [\"10.0.0.{}\"]\n\
             port = {{ kind = \"vhost-user\", path = \"{}\" }}",
            100 + n,
            socket.display()
        );
        floods.push(format!(
            "[from_red(datagram('x', sport=1000 + n), dst='10.0.0.{}', ether={{'dst': '02:00:00:00:02:{n:02x}'}}) for n in range({FRAMES})]",
            100 + n
        ));
    }
    let mut scene = Scene::start(Family::V4, "", &more);
    let in_use = |scene: &Scene| scene.daemon.json("show fwd stats all")["mbufs"]["in-use"].as_i64().unwrap();
    let before = in_use(&scene);
    let flood = scene.outbound(&floods);
    assert_eq!(flood.sent, vnics * FRAMES);
    assert_eq!(flood.all_drops(), [("link-down".to_owned(), flood.sent)], "each is dropped, by this name");
    let held = in_use(&scene) - before;
    assert!(held < vnics * 32, "{held} packet buffers wait for nobody");
    let outcome = scene.outbound(&["[from_red(datagram('y', sport=2000 + n)) for n in range(100)]"]);
    assert_eq!((outcome.seen.len(), outcome.all_drops()), (100, Vec::new()), "the others lose nothing");
    let ports = scene.daemon.json("show fwd stats all")["ports"].clone();
    assert_eq!(ports["rx-nombuf"], 0, "{ports}");
    scene.stop();
}

/// As many as there may be beside the other ports of the scene.
#[test]
fn repair_ports_without_a_peer_take_nothing_from_others() {
    peerless(27, "");
}

#[test]
fn repair_ports_without_a_peer_take_nothing_of_few_packet_buffers() {
    peerless(4, "mbufs = 4096\n");
}
