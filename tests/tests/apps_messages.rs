//! Message passing over RDMA between guests on two hosts: UCX, OpenMPI, NetPIPE, and what measures RDMA.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::guest::rdma::{self, Path};
use tests::guest::wire::{self, Verdict};
use tests::guest::{self, Site, apps, site};
use tests::lab::Lab;
use tests::{Family, Workdir};

/// What leaves one guest is what arrives at the other, packet by packet of each queue pair, and either sees all rules kept.
#[track_caller]
fn at_the_guests(site: &Site) {
    let dir = Workdir::new("both-ends");
    let [left, arrived] = ["b", "a"].map(|name| dir.path().join(format!("{name}.pcap")));
    let capture = |name| wire::Inside::start(site.guest(name), "udp port 4791", 20_000, 2000);
    let (at_b, at_a) = (capture("b"), capture("a"));
    let path = Path::new(site, "b", "a", false);
    for tool in ["ib_write_bw", "ib_read_bw"] {
        rdma::run(&path, &rdma::perftest(&path, tool, 18515, 16384, 10));
    }
    let seen = [at_b.stop(&left), at_a.stop(&arrived)];
    for (seen, file) in seen.iter().zip([&left, &arrived]) {
        assert!(
            seen.kind("RC WRITE").packets >= 160 && seen.kind("RC READ_RESPONSE").packets >= 160,
            "{seen}"
        );
        Verdict::of(&[file], 0).assert_kept_but(&["unprovoked"]);
    }
    let way = Verdict::of_way(&left, &arrived);
    eprintln!("at the guests: {way}");
    way.assert_kept_but(&[]);
    assert_eq!(way.figure("lost"), 0);
}

#[test]
#[ignore = "takes minutes: scripts/test --only apps, or --full"]
fn apps_messages_arrive_over_two_hosts() {
    if !guest::can_run() {
        return;
    }
    let [a, b] = apps::two_guests();
    let site = Site::start_with(Lab::new(Family::V4), &site::vpcs(""), &[a], &[b], &guest::image_of_apps());
    let underlay = wire::Underlay::start(&[&site.lab.host, &site.lab.peer]);
    let path = |v6| Path::new(&site, "b", "a", v6);
    apps::messages(&path(false), &path(true), site.vm("b").ip(false), tests::steps());
    let (seen, verdict) = underlay.stop_judged(0);
    eprintln!("the underlay: {verdict}");
    assert!(seen.kind("UD SEND").packets >= 200 && seen.kind("RC SEND").packets >= 200, "{seen}");
    verdict.assert_kept_but(&["unprovoked"]);
    at_the_guests(&site);
    for (switch, vnic) in site.switches.iter().zip(["a", "b"]) {
        assert_eq!(apps::rcft(switch, vnic, "refused"), 0);
        site::assert_no_drops_but(switch, &[]);
    }
    site.stop();
}
