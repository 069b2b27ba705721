//! Queue pairs of guests with soft-RoCE in the simulated e-switches of two hosts: they go in while they send, and no
//! packet is overtaken, which the guests' own counters would tell.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::guest::{self, Site, rdma, site};
use tests::lab::Lab;
use tests::{Daemon, Family, wait_for};

/// One figure of `show offload`.
fn figure(daemon: &Daemon, pointer: &str) -> i64 {
    daemon.figure("show offload", pointer)
}

/// Queue pairs in hardware, by the switch's own list.
fn pairs_inside(daemon: &Daemon) -> usize {
    let shown = daemon.json("show offload flows 1000");
    let flows = shown["flows"].as_array().into_iter().flatten();
    flows.filter(|flow| flow["class"] == "rc" && flow["state"] == "hardware").count()
}

/// What soft-RoCE counts of packets out of sequence.
fn out_of_sequence(guest: &guest::Guest) -> String {
    guest.run(
        "cd /sys/class/infiniband/*/ports/1/hw_counters && for f in out_of_seq_request rcvd_seq_err; do echo $f $(cat $f); done",
    )
}

#[test]
fn guest_queue_pairs_go_into_the_eswitch() {
    if !guest::can_run() {
        return;
    }
    let [mut a, mut b, _, _] = site::two_tenants();
    for vm in [&mut a, &mut b] {
        vm.more = "offload = \"simulated\"\n".to_owned();
    }
    // The first line is the uplink's. The e-switch has no more room in a match than ConnectX-6 Dx, the smallest that is known.
    let config = "offload = \"simulated\"\n[offload]\nhot-packets = 20\ncool-after = \"500ms\"\nretry-after = \"500ms\"\n\
                  [offload.simulated]\nnic = \"connectx-6-dx\"\nrefresh = \"100ms\"\ndelay = \"200us\"\n"
        .to_owned()
        + &site::vpcs("");
    let site = Site::start(Lab::new(Family::V4), &config, &[a], &[b]);
    let before = ["a", "b"].map(|name| out_of_sequence(site.guest(name)));
    for v6 in [false, true] {
        let path = rdma::Path::new(&site, "b", "a", v6);
        let tool = rdma::begin(&path, &rdma::perftest(&path, "ib_write_bw -b", 18515, 65536, 300));
        for switch in &site.switches {
            wait_for("queue pairs in hardware, both ways", Duration::from_secs(60), || {
                (pairs_inside(switch) >= 2).then_some(())
            });
        }
        // Back, and in again, in the middle of it.
        for switch in &site.switches {
            switch.ctl("offload off");
            wait_for("all in software", Duration::from_secs(10), || {
                (figure(switch, "/flows/hardware") == 0).then_some(())
            });
            switch.ctl("offload on");
        }
        tool.finish().assert_ok();
    }
    for (name, before) in ["a", "b"].into_iter().zip(before) {
        assert_eq!(out_of_sequence(site.guest(name)), before, "{name} saw packets out of sequence");
    }
    for switch in &site.switches {
        assert!(figure(switch, "/done/packets") > 1000, "{:#}", switch.json("show offload"));
        let shown = switch.json("show rcft top 100 by packets");
        for pair in shown["queue-pairs"].as_array().into_iter().flatten() {
            assert_eq!((&pair["gaps"], &pair["retransmissions"]), (&0.into(), &0.into()), "{shown:#}");
        }
        wait_for("all rules to go", Duration::from_secs(20), || {
            (figure(switch, "/eswitch/rules") == 0).then_some(())
        });
        switch.assert_conserved();
        site::assert_no_drops_but(switch, &[]);
    }
    site.stop();
}
