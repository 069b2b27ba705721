//! Everything that guests do with RDMA through the switch: on one host, on two, and two tenants at once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::Family;
use tests::guest::{self, Site, rdma, site, wire};
use tests::lab::Lab;

/// Runs every tool, both families, and returns how many RoCE packets that took at least.
#[track_caller]
fn run_all(site: &Site, client: &str, server: &str, scale: u32) -> i64 {
    let mut packets = 0;
    for v6 in [false, true] {
        let path = rdma::Path::new(site, client, server, v6);
        for tool in rdma::all(&path, scale) {
            rdma::run(&path, &tool);
            packets += tool.packets;
        }
    }
    packets
}

#[test]
#[ignore = "takes minutes: scripts/test --only guest, or --full"]
fn guest_full_one_switch() {
    if !guest::can_run() {
        return;
    }
    let [a, b, _, _] = site::two_tenants();
    let site = Site::start(Lab::new(Family::V4), &site::vpcs(""), &[a, b], &[]);
    let before = site.switches[0].counters();
    let packets = run_all(&site, "b", "a", 2);
    let path = rdma::Path::new(&site, "a", "b", false);
    rdma::run(&path, &rdma::iperf3(&path, 5201, 2));
    let after = site.switches[0].counters();
    let moved = |name: &str| after.get(name) - before.get(name);
    assert!(moved("fwd.local") >= packets, "{packets} RoCE packets at least: {:#?}", after.since(&before));
    assert_eq!((moved("fwd.encapsulated"), moved("port.up.tx-packets")), (0, 0), "no tunnel is needed");
    site::assert_no_drops_but(&site.switches[0], &[]);
    // What reaches a guest is what the other sent: every byte of payload, every ICRC right.
    let dir = tests::Workdir::new("inside");
    let inside = wire::Inside::start(site.guest("b"), "udp port 4791", 4000, 1600);
    rdma::run(&path, &rdma::perftest(&path, "ib_write_bw", 18515, 16384, 20));
    let seen = inside.stop(&dir.path().join("b.pcap"));
    let writes = seen.kind("RC WRITE");
    // perftest may warm up with writes of its own, and a late answer makes it send again.
    assert!(writes.payload >= 16384 * 20, "{seen}");
    assert!(seen.kind("RC ACKNOWLEDGE").packets > 0, "{seen}");
    assert_eq!((seen.kind("").icrc_wrong, seen.kind("").icrc_unseen, seen.kind("").ce), (0, 0, 0), "{seen}");
    site.stop();
}

#[test]
#[ignore = "takes minutes: scripts/test --only guest, or --full"]
fn guest_full_two_switches() {
    if !guest::can_run() {
        return;
    }
    let [a, b, _, _] = site::two_tenants();
    let site = Site::start(Lab::new(Family::V4), &site::vpcs(""), &[a], &[b]);
    let underlay = wire::Underlay::start(&[&site.lab.host, &site.lab.peer]);
    let before: Vec<_> = site.switches.iter().map(tests::Daemon::counters).collect();
    let packets = run_all(&site, "b", "a", 1);
    let path = rdma::Path::new(&site, "a", "b", false);
    rdma::run(&path, &rdma::iperf3(&path, 5201, 2));
    let seen = underlay.stop();
    let all = seen.kind("");
    assert!(all.packets >= packets, "{packets} RoCE packets at least:\n{seen}");
    assert_eq!(seen.kind_in(100, "").packets, all.packets, "all of it is in the tenant's VNI:\n{seen}");
    assert_eq!((all.icrc_wrong, all.icrc_unseen, all.ce), (0, 0, 0), "{seen}");
    // The bytes of both families' runs of each tool, once each at least.
    for (kind, bytes) in [
        ("RC SEND", 2 * (100 * 4096 * 3)),
        ("RC WRITE", 2 * 20 * 65536),
        ("RC READ_RESPONSE", 2 * 50 * 16384),
        ("UD SEND", 2 * 100 * 1024),
    ] {
        assert!(seen.kind(kind).payload >= bytes, "{kind}: {bytes} bytes at least:\n{seen}");
    }
    for kind in ["CM REQ", "CM REP", "CM RTU", "CM DREQ", "CM SIDR_REQ", "RC ATOMIC_ACKNOWLEDGE"] {
        assert!(seen.kind(kind).packets > 0, "{kind}:\n{seen}");
    }
    for (switch, before) in site.switches.iter().zip(&before) {
        let after = switch.counters();
        let moved = |name: &str| after.get(name) - before.get(name);
        let through = moved("fwd.encapsulated") + moved("fwd.decapsulated");
        assert!(through >= packets, "{packets} RoCE packets at least: {:#?}", after.since(before));
        assert_eq!(moved("fwd.local"), 0, "nobody is local to anybody: {:#?}", after.since(before));
        site::assert_no_drops_but(switch, &[]);
    }
    site.stop();
}

#[test]
#[ignore = "takes minutes: scripts/test --only guest, or --full"]
fn guest_full_two_tenants_with_the_same_addresses() {
    if !guest::can_run() {
        return;
    }
    let [a, b, c, d] = site::two_tenants();
    let site = Site::start(Lab::new(Family::V6), &site::vpcs(""), &[a, c], &[b, d]);
    let underlay = wire::Underlay::start(&[&site.lab.host, &site.lab.peer]);
    let red = rdma::Path::new(&site, "b", "a", false);
    let blue = rdma::Path::new(&site, "d", "c", false);
    let tools = |path: &rdma::Path<'_>| {
        [
            rdma::perftest(path, "ib_write_bw", 18516, 65536, 40),
            rdma::perftest(path, "ib_read_bw", 18517, 16384, 80),
            rdma::rping(path, 7174, 10),
            rdma::iperf3(path, 5201, 5),
        ]
    };
    // All eight at once: each tenant writes, reads, connects, and has TCP beside it.
    let mut running = Vec::new();
    for (red_tool, blue_tool) in tools(&red).into_iter().zip(tools(&blue)).rev() {
        running.push(rdma::begin(&red, &red_tool));
        running.push(rdma::begin(&blue, &blue_tool));
    }
    for tool in running {
        tool.finish().assert_ok();
    }
    for v6 in [false, true] {
        for (client, server) in [("b", "a"), ("d", "c")] {
            let path = rdma::Path::new(&site, client, server, v6);
            rdma::run(&path, &rdma::rc_pingpong(&path, 18515, 1024, 50));
        }
    }
    let seen = underlay.stop();
    for vni in [100, 200] {
        assert!(seen.kind_in(vni, "RC WRITE").payload >= 40 * 65536, "VNI {vni}:\n{seen}");
        assert!(seen.kind_in(vni, "RC READ_RESPONSE").payload >= 80 * 16384, "VNI {vni}:\n{seen}");
        assert!(seen.kind_in(vni, "CM REQ").packets > 0, "VNI {vni}:\n{seen}");
    }
    let all = seen.kind("");
    assert_eq!((all.icrc_wrong, all.icrc_unseen), (0, 0), "{seen}");
    for switch in &site.switches {
        site::assert_no_drops_but(switch, &[]);
    }
    site.stop();
}
