//! Quotas of queue pairs, as guests with soft-RoCE meet them: dropped, rejected, freed, and seen one by one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use std::time::Duration;
use tests::guest::rdma::{self, Path};
use tests::guest::{self, Site, site, wire};
use tests::lab::Lab;
use tests::{Daemon, Family, Workdir, wait_for};

/// What `show rcft` says of a vNIC.
#[track_caller]
fn figure(switch: &Daemon, vnic: &str, name: &str) -> i64 {
    let answer = switch.json("show rcft");
    let row = answer["vnics"].as_array().into_iter().flatten().find(|row| row["name"] == vnic);
    row.and_then(|row| row[name].as_i64()).unwrap_or_else(|| panic!("no {name} of {vnic}: {answer:#}"))
}

/// Waits until a figure of a vNIC is as wanted.
#[track_caller]
fn wait_figure(switch: &Daemon, vnic: &str, name: &str, wanted: impl Fn(i64) -> bool) {
    wait_for(&format!("{name} of {vnic} in 'show rcft'"), Duration::from_secs(60), || {
        wanted(figure(switch, vnic, name)).then_some(())
    });
}

/// Starts a and b on one switch; b may have `quota` queue pairs.
#[track_caller]
fn start(quota: u32) -> Site {
    let [a, mut b, _, _] = site::two_tenants();
    b.more = format!("qp-quota = {quota}\nrefuse = \"reject\"\n");
    Site::start(Lab::new(Family::V4), &site::vpcs(""), &[a, b], &[])
}

#[test]
#[ignore = "takes minutes: scripts/test --only guest, or --full"]
fn guest_quota_holds_and_can_be_raised() {
    if !guest::can_run() {
        return;
    }
    let site = start(3);
    let switch = &site.switches[0];
    let path = Path::new(&site, "b", "a", false);
    let writes = |port, count| rdma::perftest(&path, "ib_write_bw", port, 65536, count);
    // Three queue pairs are what b may have.
    let admitted = [18516, 18517, 18518].map(|port| rdma::begin(&path, &writes(port, 100)));
    wait_figure(switch, "b", "in-use", |n| n == 3);
    assert_eq!(figure(switch, "b", "refused"), 0);
    // A fourth does not get through. soft-RoCE takes seven retries, which tools ask for, as tries without end.
    let fourth = rdma::begin(&path, &rdma::rc_pingpong(&path, 18519, 1024, 10));
    wait_figure(switch, "b", "packets-dropped", |n| n >= 3);
    assert!(figure(switch, "b", "refused") >= 1);
    // The three never notice; and when they are done the fourth still waits, for nobody said that they are gone.
    for tool in admitted {
        tool.finish().assert_ok();
    }
    let before = figure(switch, "b", "packets-dropped");
    wait_figure(switch, "b", "packets-dropped", |n| n > before);
    assert!(fourth.goes_on(), "it waits for its answer");
    assert_eq!(figure(switch, "b", "in-use"), 3, "it took no place, and took none from others");
    // The quota is raised, and that very queue pair gets in.
    switch.ctl("rcft set b quota 4");
    fourth.finish().assert_ok();
    assert_eq!(figure(switch, "b", "in-use"), 4);
    // a, which has no quota, answered all of them.
    assert!(figure(switch, "a", "in-use") >= 4);
    assert_eq!(figure(switch, "a", "refused"), 0);
    assert!(switch.drops("qp-quota") >= 1);
    // A quota below what is in use takes nothing away and lets nothing in.
    let said = switch.ctl("rcft set b quota 2");
    assert!(said.contains("4 in use"), "{said}");
    let before = figure(switch, "b", "packets-dropped");
    let fifth = rdma::begin(&path, &rdma::rc_pingpong(&path, 18519, 1024, 10));
    wait_figure(switch, "b", "packets-dropped", |n| n > before);
    assert!(fifth.goes_on(), "it waits for its answer");
    rdma::give_up(fifth);
    assert_eq!(figure(switch, "b", "in-use"), 4);
    // Places taken back by hand are free for others.
    switch.ctl("rcft evict b all");
    rdma::run(&path, &rdma::rc_pingpong(&path, 18519, 1024, 10));
    wait_figure(switch, "b", "in-use", |n| n == 1);
    site::assert_no_drops_but(switch, &["qp-quota"]);
    site.stop();
}

#[test]
#[ignore = "takes minutes: scripts/test --only guest, or --full"]
fn guest_quota_rejects_what_asks_and_frees_what_leaves() {
    if !guest::can_run() {
        return;
    }
    let site = start(1);
    let switch = &site.switches[0];
    for v6 in [false, true] {
        let path = Path::new(&site, "b", "a", v6);
        // A disconnect gives the place back at once: far sooner than the ten minutes of an idle queue pair.
        for _ in 0..3 {
            rdma::run(&path, &rdma::rping(&path, 7174, 3));
            wait_figure(switch, "b", "in-use", |n| n == 0);
        }
        // One queue pair that stays, over TCP: nobody disconnects it.
        rdma::run(&path, &rdma::rc_pingpong(&path, 18515, 1024, 10));
        wait_figure(switch, "b", "in-use", |n| n == 1);
        // The connection manager's request is answered in the peer's name, and the application fails at once. Were the
        // ICRC wrong, soft-RoCE would drop the answer, and the client would hang in its retries instead.
        let rejected = figure(switch, "b", "rejected");
        let dir = Workdir::new("reject");
        let inside = wire::Inside::start(site.guest("b"), "udp port 4791", 100, 2000);
        let outcome = rdma::begin(&path, &rdma::rping(&path, 7174, 3)).finish();
        assert!(!outcome.client.ok(), "{}", outcome.client.output);
        assert!(outcome.client.output.contains("REJECTED"), "{}", outcome.client.output);
        assert!(figure(switch, "b", "rejected") > rejected);
        assert_eq!(figure(switch, "b", "in-use"), 1);
        let seen = inside.stop(&dir.path().join("b.pcap"));
        let answer = seen.kind("CM REJ");
        assert!(answer.packets >= 1 && answer.icrc_wrong == 0, "{seen}");
        switch.ctl("rcft evict b all");
        wait_figure(switch, "b", "in-use", |n| n == 0);
    }
    site::assert_no_drops_but(switch, &["qp-quota"]);
    site.stop();
}

/// Every number of queue pair of a vNIC, one direction, with what is counted of it.
fn queue_pairs(switch: &Daemon, vnic: &str, way: &str) -> Vec<Value> {
    let answer = switch.json(&format!("show rcft {vnic}"));
    let all = answer["queue-pairs"].as_array().into_iter().flatten();
    all.filter(|row| row["direction"] == way).cloned().collect()
}

#[test]
#[ignore = "takes minutes: scripts/test --only guest, or --full"]
fn guest_quota_view_tells_queue_pairs_apart() {
    if !guest::can_run() {
        return;
    }
    let [a, b, _, _] = site::two_tenants();
    let site = Site::start(Lab::new(Family::V4), &site::vpcs(""), &[a], &[b]);
    let [to_a, to_b] = &site.switches[..] else { panic!("two switches") };
    let path = Path::new(&site, "b", "a", false);
    // Marked by its sender as having met congestion: the mark goes through the tunnel and reaches the other guest.
    let dir = Workdir::new("marked");
    let inside = wire::Inside::start(site.guest("a"), "udp port 4791", 2000, 1600);
    let marked = rdma::perftest(&path, "ib_write_bw --tclass=107", 18515, 8192, 20);
    rdma::run(&path, &marked);
    let seen = inside.stop(&dir.path().join("a.pcap"));
    let writes = seen.kind("RC WRITE");
    assert!(writes.ce >= marked.packets && writes.ce == writes.packets, "{seen}");
    // Toward the tunnel at b's switch, out of it at a's: bytes and marks are counted for the queue pair.
    let counted =
        |row: &Value, name: &str| row[name].as_i64().unwrap_or_else(|| panic!("no {name}: {row:#}"));
    let [out] = &queue_pairs(to_b, "b", "out")[..] else { panic!("one: {:#}", to_b.json("show rcft b")) };
    let [into] = &queue_pairs(to_a, "a", "in")[..] else { panic!("one: {:#}", to_a.json("show rcft a")) };
    for row in [out, into] {
        assert!(counted(row, "packets") >= marked.packets && counted(row, "bytes") >= 8192 * 20, "{row:#}");
        assert!(counted(row, "ce") >= marked.packets, "{row:#}");
    }
    // b sends to the number that a receives on.
    assert_eq!(out["qpn"], into["qpn"], "{out:#}\n{into:#}");
    let number = counted(out, "qpn");
    let shown = to_b.json(&format!("show qp b {number}"));
    assert_eq!(shown["queue-pairs"][0]["out"]["qpn"], number, "{shown:#}");
    // A second one, of another tool, has a number and a count of its own.
    rdma::run(&path, &rdma::rc_pingpong(&path, 18515, 1024, 50));
    let all = queue_pairs(to_b, "b", "out");
    let [first, second] = &all[..] else { panic!("two: {all:#?}") };
    assert_ne!(first["qpn"], second["qpn"]);
    let fresh = if counted(first, "qpn") == number { second } else { first };
    assert_eq!(counted(fresh, "ce"), 0, "{fresh:#}");
    let top = to_b.json("show rcft b top 1 by bytes");
    assert_eq!(top["queue-pairs"][0]["qpn"], number, "the writes were more: {top:#}");
    for switch in &site.switches {
        site::assert_no_drops_but(switch, &[]);
    }
    site.stop();
}
