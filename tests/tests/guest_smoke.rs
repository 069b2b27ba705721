//! Two guests with soft-RoCE behind one switch: what every run checks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::Family;
use tests::guest::{self, Site, Vm};
use tests::lab::{Lab, vpc};

#[test]
fn guest_ping_through_the_switch() {
    if !guest::can_run() {
        return;
    }
    let red = ("red", 100);
    let here = [
        Vm::new("a", red, "02:00:00:00:0a:01", &["10.0.0.1/24", "fd00:1::1/64"]),
        Vm::new("b", red, "02:00:00:00:0a:02", &["10.0.0.2/24", "fd00:1::2/64"]),
    ];
    let site =
        Site::start(Lab::new(Family::V4), &vpc("red", 100, &["10.0.0.0/24", "fd00:1::/64"], ""), &here, &[]);
    for (address, from) in [("10.0.0.2", "a"), ("10.0.0.1", "b"), ("fd00:1::2", "a"), ("fd00:1::1", "b")] {
        site.guest(from).run(&format!("ping -c 3 -i 0.1 -W 10 {address}"));
    }
    assert!(site.switches[0].counters().get("fwd.local") >= 24, "four pings of three echoes, both ways");
    site.stop();
}
