//! Datagrams over RDMA between guests on two hosts: RDS, and UD multicast by the switches' flooding.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::Family;
use tests::guest::rdma::Path;
use tests::guest::{self, Site, apps, datagrams, site, wire};
use tests::lab::Lab;

#[test]
#[ignore = "takes minutes: scripts/test --only apps, or --full"]
fn apps_datagrams_arrive_over_two_hosts() {
    if !guest::can_run() {
        return;
    }
    let [a, b] = apps::two_guests();
    let clients = [b.ip(false), b.ip(true)];
    let sections = site::vpcs("flood = true");
    let site = Site::start_with(Lab::new(Family::V4), &sections, &[a], &[b], &guest::image_of_apps());
    let underlay = wire::Underlay::start(&[&site.lab.host, &site.lab.peer]);
    let path = |v6| Path::new(&site, "b", "a", v6);
    datagrams::run(&path(false), &path(true), clients, tests::steps());
    let (seen, verdict) = underlay.stop_judged(0);
    eprintln!("the underlay: {verdict}");
    verdict.assert_kept_but(&["unprovoked"]);
    // RDS asks for RDMA and nothing else, so what it sent is there: over either family, either way.
    for (from, to) in [("10.0.0.1", "10.0.0.2"), ("fd00:1::1", "fd00:1::2")] {
        for (from, to) in [(from, to), (to, from)] {
            let sent = seen.sum(|stream| {
                let kind = stream["kind"].as_str().unwrap_or("");
                stream["source"] == from && stream["destination"] == to && kind.starts_with("RC SEND")
            });
            assert!(sent.packets >= 200 && sent.payload >= 200 * 4096, "{from} to {to}: {sent:?}\n{seen}");
        }
    }
    // One copy of each message to the group, to the one other host.
    let flooded = seen.sum(|stream| stream["destination"] == datagrams::GROUP);
    let (count, size) = datagrams::TO_GROUP;
    assert_eq!((flooded.packets, flooded.payload), (i64::from(count), i64::from(count * size)), "{seen}");
    assert_eq!((flooded.icrc_wrong, flooded.icrc_unseen), (0, 0));
    for (switch, vnic) in site.switches.iter().zip(["a", "b"]) {
        assert_eq!(apps::rcft(switch, vnic, "refused"), 0);
        site::assert_no_drops_but(switch, &[]);
    }
    site.stop();
}
