//! Message passing over RDMA between guests on two hosts: UCX, OpenMPI, NetPIPE, and what measures RDMA.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Instant;
use tests::Family;
use tests::guest::rdma::Path;
use tests::guest::{self, Site, apps, site, wire};
use tests::lab::Lab;

#[test]
#[ignore = "takes minutes: scripts/test --only apps, or --full"]
fn apps_messages_arrive_over_two_hosts() {
    if !guest::can_run() {
        return;
    }
    let [mut a, mut b, _, _] = site::two_tenants();
    (a.memory, b.memory) = (apps::MEMORY, apps::MEMORY);
    let site = Site::start_with(Lab::new(Family::V4), &site::vpcs(""), &[a], &[b], &guest::image_of_apps());
    let underlay = wire::Underlay::start(&[&site.lab.host, &site.lab.peer]);
    let began = Instant::now();
    let path = |v6| Path::new(&site, "b", "a", v6);
    apps::messages(&path(false), &path(true), site.vm("b").ip(false), |what| {
        eprintln!("{:6.1} s  {what}", began.elapsed().as_secs_f32());
    });
    let (seen, verdict) = underlay.stop_judged(0);
    eprintln!("the underlay: {verdict}");
    assert!(seen.kind("UD SEND").packets >= 200 && seen.kind("RC SEND").packets >= 200, "{seen}");
    verdict.assert_kept_but(&["unprovoked"]);
    for (switch, vnic) in site.switches.iter().zip(["a", "b"]) {
        assert_eq!(apps::rcft(switch, vnic, "refused"), 0);
        site::assert_no_drops_but(switch, &[]);
    }
    site.stop();
}
