//! RDMA over VLAN devices that guests make themselves, inside a VPC that keeps their tags.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::Family;
use tests::guest::{self, Site, rdma, site, wire};
use tests::lab::{Lab, vpc};

#[test]
#[ignore = "takes minutes: scripts/test --only guest, or --full"]
fn guest_vlan_over_the_tunnel() {
    if !guest::can_run() {
        return;
    }
    let [a, b, _, _] = site::two_tenants();
    let a = a.with_vlan(7, &["10.0.7.1/24", "fd00:7::1/64"]);
    let b = b.with_vlan(7, &["10.0.7.2/24", "fd00:7::2/64"]);
    let subnets = ["10.0.0.0/24", "fd00:1::/64", "10.0.7.0/24", "fd00:7::/64"];
    let vpcs = vpc("red", 100, &subnets, "inner-vlan = \"keep\"");
    let site = Site::start(Lab::new(Family::V4), &vpcs, &[a], &[b]);
    let underlay = wire::Underlay::start(&[&site.lab.host, &site.lab.peer]);
    for v6 in [false, true] {
        // With the tag and without: two connections between the same guests at the same time.
        let [tagged, plain] =
            [rdma::Path::on_vlan(&site, "b", "a", v6), rdma::Path::new(&site, "b", "a", v6)];
        for write in [false, true] {
            let tool = |path: &rdma::Path<'_>, port| match write {
                false => rdma::rc_pingpong(path, port, 4096, 50),
                true => rdma::perftest(path, "ib_write_bw", port, 4096, 50),
            };
            let running =
                [rdma::begin(&tagged, &tool(&tagged, 18515)), rdma::begin(&plain, &tool(&plain, 18516))];
            for tool in running {
                tool.finish().assert_ok();
            }
        }
        rdma::run(&tagged, &rdma::rping(&tagged, 7174, 5));
        rdma::run(&tagged, &rdma::iperf3(&tagged, 5201, 1));
    }
    let seen = underlay.stop();
    let tagged = seen.sum(|s| s["vlan"] == 7);
    let untagged = seen.sum(|s| s["vlan"].is_null());
    // Ping-pong of 4096 bytes 50 times both ways, and as much written one way; two families.
    let least = 2 * 3 * 50 * 4096;
    assert!(tagged.payload >= least && untagged.payload >= least, "{least} bytes at least:\n{seen}");
    assert!(seen.sum(|s| s["vlan"] == 7 && s["kind"] == "CM REQ").packets >= 2, "{seen}");
    assert_eq!((seen.kind("").icrc_wrong, seen.kind("").icrc_unseen), (0, 0), "{seen}");
    let on_subnet = |s: &serde_json::Value, net: &str| s["source"].as_str().unwrap().starts_with(net);
    for (vlan_seven, net) in [(true, "10.0.0."), (true, "fd00:1:"), (false, "10.0.7."), (false, "fd00:7:")] {
        let strays = seen.sum(|s| (s["vlan"] == 7) == vlan_seven && on_subnet(s, net));
        assert_eq!(strays.packets, 0, "{net} with tag: {vlan_seven}:\n{seen}");
    }
    for switch in &site.switches {
        site::assert_no_drops_but(switch, &[]);
    }
    site.stop();
}
