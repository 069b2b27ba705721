//! Security groups and soft-RoCE: a rule admits queue pairs and what the connection manager says of them, and ends both when it goes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::guest::rdma::{self, Path};
use tests::guest::{self, Site, site};
use tests::lab::Lab;
use tests::{Daemon, Family, wait_for};

/// Members of `readers` get what `writers` send by RDMA; programs meet over TCP.
const GROUPS: &str = "[[security-group]]\nname = \"readers\"\nvpc = \"red\"\nrules = [\n\
     { direction = \"in\", protocol = \"tcp\" },\n{ direction = \"in\", protocol = \"rdma\", group = \"writers\" },\n]\n\
     [[security-group]]\nname = \"writers\"\nvpc = \"red\"\n";

/// RoCEv2 packets that a vNIC was handed.
fn delivered(switch: &Daemon, vnic: &str) -> i64 {
    let shown = switch.json(&format!("show vnic {vnic}"));
    shown[0]["rdma-tx-packets"].as_i64().unwrap_or_else(|| panic!("{shown:#}"))
}

#[test]
#[ignore = "takes minutes: scripts/test --only guest, or --full"]
fn guest_security_a_rule_that_goes_ends_queue_pairs_before_the_command_returns() {
    if !guest::can_run() {
        return;
    }
    let [mut a, mut b, _, _] = site::two_tenants();
    a.more = "security-groups = [\"readers\"]\n".to_owned();
    b.more = "security-groups = [\"writers\"]\n".to_owned();
    let site = Site::start(Lab::new(Family::V4), &(site::vpcs("") + GROUPS), &[a, b], &[]);
    let switch = &site.switches[0];
    let path = Path::new(&site, "b", "a", false);
    // Both what meets over TCP and what the connection manager brings together.
    rdma::run(&path, &rdma::perftest(&path, "ib_write_bw", 18515, 65536, 20));
    rdma::run(&path, &rdma::rping(&path, 7174, 3));
    for _ in 0..2 {
        let before = delivered(switch, "a");
        let writes = rdma::begin(&path, &rdma::perftest(&path, "ib_write_bw", 18516, 65536, 1_000_000));
        wait_for("ib_write_bw to run", Duration::from_secs(60), || {
            (delivered(switch, "a") > before + 200).then_some(())
        });
        switch.ctl("security-group revoke readers in rdma from group writers");
        let then = delivered(switch, "a");
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(delivered(switch, "a"), then, "nothing is delivered any more");
        assert!(switch.drops("security-in") > 0);
        rdma::give_up(writes);
        switch.ctl("security-group allow readers in rdma from group writers");
    }
    rdma::run(&path, &rdma::perftest(&path, "ib_write_bw", 18517, 65536, 20));
    // What the kernels say after a reset belongs to no connection any more.
    site::assert_no_drops_but(switch, &["security-in", "security-out"]);
    site.stop();
}
