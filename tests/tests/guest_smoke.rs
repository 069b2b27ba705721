//! Two guests with soft-RoCE, on one host and on two: the part of the guest scenarios that every run has time for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;
use tests::Family;
use tests::guest::{self, Site, rdma, site, wire};
use tests::lab::{Lab, vpc};
use tests::vhost::{FrontEnd, OFFLOADS, Station, datagram, number_of};
use tests::{Workdir, wait_for};

/// Pings, a connection over TCP and one through the connection manager, both families, TCP beside it.
#[track_caller]
fn talk(site: &Site) -> i64 {
    let mut packets = 0;
    for v6 in [false, true] {
        for (from, to) in [("a", "b"), ("b", "a")] {
            site.guest(from).run(&format!("ping -c 3 -i 0.1 -W 10 {}", site.vm(to).ip(v6)));
        }
        let path = rdma::Path::new(site, "b", "a", v6);
        for tool in [
            rdma::rc_pingpong(&path, 18515, 4096, 50),
            rdma::rping(&path, 7174, 5),
            rdma::perftest(&path, "ib_write_bw", 18515, 16384, 20),
        ] {
            rdma::run(&path, &tool);
            packets += tool.packets;
        }
    }
    packets += link_local(site);
    let path = rdma::Path::new(site, "a", "b", false);
    rdma::run(&path, &rdma::iperf3(&path, 5201, 1));
    packets
}

/// Over link-local addresses: the one that follows from the MAC, which is a RoCE device's first GID and needs no
/// configuration, and one that the guest takes by duplicate address detection.
fn link_local(site: &Site) -> i64 {
    let mut path = rdma::Path::new(site, "b", "a", true);
    path.gids = [0, 0];
    let tool = rdma::rc_pingpong(&path, 18516, 4096, 50);
    rdma::run(&path, &tool);
    // What a guest asked for, its own switch knows; others hear it only where the VPC floods.
    let asking: &[(&str, &str)] = if site.switches.len() == 1 { &[("a", "b"), ("b", "a")] } else { &[] };
    for (number, &(from, to)) in asking.iter().enumerate() {
        let peer = site.guest(to).run("cat /sys/class/infiniband/rxe0/ports/1/gids/0");
        let own = format!("fe80::8d3c:1234:5678:{}", number + 1);
        // The image goes without the second that it takes.
        site.guest(from).run("echo 1 >/proc/sys/net/ipv6/conf/eth0/accept_dad");
        site.guest(from).run(&format!("ip address add {own}/64 dev eth0"));
        wait_for("the switch to have heard of the address", Duration::from_secs(60), || {
            site.switches[0].ctl("show vnic").contains(&own).then_some(())
        });
        site.guest(from).until("[ -z \"$(ip address show dev eth0 tentative)\" ]", Duration::from_secs(60));
        site.guest(from).run(&format!("ping -c 3 -i 0.2 -W 10 -I {own}%eth0 {}%eth0", peer.trim()));
    }
    tool.packets
}

/// vNICs beside those of the two guests: 200 with them.
const CROWD: u16 = 198;

/// Whether packets of TCP came that are longer than the MTU: the guests leave their segmentation to the device.
fn sent_super_frames(site: &Site) -> bool {
    let flows = site.switches[0].json("show nft 500");
    let is_long = |flow: &serde_json::Value| {
        let figure = |key: &str| flow[key].as_i64().unwrap_or_default();
        flow["proto"] == 6 && figure("bytes") > 2 * 1500 * figure("packets")
    };
    flows["flows"].as_array().or(flows.as_array()).is_some_and(|flows| flows.iter().any(is_long))
}

#[test]
fn guest_smoke_one_switch() {
    if !guest::can_run() {
        return;
    }
    let [a, b, _, _] = site::two_tenants();
    let dir = Workdir::new("crowd");
    let crowd: Vec<Station> = (1..=CROWD).map(Station).collect();
    let mut config = site::vpcs("") + &vpc("crowd", 300, &["10.0.0.0/16"], "");
    config.extend(crowd.iter().map(|station| station.vnic("crowd", dir.path())));
    let site = Site::start(Lab::new(Family::V4), &config, &[a, b], &[]);
    let peers = crowd.iter().map(|station| FrontEnd::ready(&station.socket(dir.path()), OFFLOADS));
    let mut peers: Vec<FrontEnd> = peers.collect::<Result<_, _>>().expect("each vNIC takes a peer");
    let packets = talk(&site);
    assert!(
        sent_super_frames(&site),
        "guests leave segmentation to the switch: {}",
        site.switches[0].ctl("show nft")
    );
    // Nobody of the crowd was forgotten meanwhile.
    for (at, peer) in peers.iter_mut().enumerate() {
        let next = crowd[(at + 1) % crowd.len()];
        peer.send(&datagram(crowd[at], next, at as u32)).expect("there is room");
    }
    for (at, peer) in peers.iter_mut().enumerate() {
        let number = wait_for("a datagram", Duration::from_secs(20), || {
            peer.receive().ok()?.iter().find_map(|frame| number_of(frame))
        });
        assert_eq!(number as usize, (at + crowd.len() - 1) % crowd.len());
    }
    let counters = site.switches[0].counters();
    assert!(counters.get("fwd.local") >= packets, "{packets} RoCE packets at least: {counters:#?}");
    assert_eq!(counters.get("fwd.encapsulated"), 0);
    site::assert_no_drops_but(&site.switches[0], &[]);
    site.stop();
}

#[test]
fn guest_smoke_two_switches() {
    if !guest::can_run() {
        return;
    }
    let [a, b, _, _] = site::two_tenants();
    let site = Site::start(Lab::new(Family::V4), &site::vpcs(""), &[a], &[b]);
    let underlay = wire::Underlay::start(&[&site.lab.host, &site.lab.peer]);
    let packets = talk(&site);
    let seen = underlay.stop();
    assert!(seen.kind_in(100, "").packets >= packets, "{packets} RoCE packets at least:\n{seen}");
    assert!(seen.kind("RC WRITE").payload >= 2 * 20 * 16384, "{seen}");
    assert_eq!((seen.kind("").icrc_wrong, seen.kind("").icrc_unseen), (0, 0), "{seen}");
    let cut: i64 = site.switches.iter().map(|switch| switch.counters().get("fwd.copies")).sum();
    assert!(cut > 0, "super-frames are cut for the tunnel");
    for switch in &site.switches {
        let counters = switch.counters();
        let through = counters.get("fwd.encapsulated") + counters.get("fwd.decapsulated");
        assert!(through >= packets, "{packets} RoCE packets at least: {counters:#?}");
        site::assert_no_drops_but(switch, &[]);
    }
    site.stop();
}
