//! Storage over RDMA between guests on two hosts: NVMe-oF, iSER and NFS, with everything read back verified.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::Family;
use tests::guest::{self, Site, apps, site, wire};
use tests::lab::Lab;

#[test]
#[ignore = "takes minutes: scripts/test --only apps, or --full"]
fn apps_storage_is_verified_over_two_hosts() {
    if !guest::can_run() {
        return;
    }
    let [a, b] = apps::two_guests();
    let site = Site::start_with(Lab::new(Family::V4), &site::vpcs(""), &[a], &[b], &guest::image_of_apps());
    let (server, client, ip) = (site.guest("a"), site.guest("b"), site.vm("a").ip(false));
    let [at_a, at_b] = &site.switches[..] else { panic!("two switches") };
    let say = tests::steps();

    let underlay = wire::Underlay::start(&[&site.lab.host, &site.lab.peer]);
    apps::storage(server, client, ip, |what| {
        say(what);
        if what.starts_with("NVMe-oF: connected") {
            // The queue pair of administration and that of its one processor.
            assert!(apps::rcft(at_a, "a", "in-use") >= 2 && apps::rcft(at_b, "b", "in-use") >= 2);
        }
    });
    let (seen, verdict) = underlay.stop_judged(0);
    say(&format!("the underlay: {verdict}"));
    // Each byte was written once, and read once by RDMA.
    for kind in ["RC WRITE", "RC READ_RESPONSE"] {
        assert!(seen.kind(kind).payload >= 12 << 20, "{kind}:\n{seen}");
    }
    verdict.assert_kept_but(&["unprovoked"]);
    for (switch, vnic) in [(at_a, "a"), (at_b, "b")] {
        assert_eq!(apps::rcft(switch, vnic, "refused"), 0);
        site::assert_no_drops_but(switch, &[]);
    }
    site.stop();
}
