//! Two switches: each host runs one, and two tenants with the same addresses talk through both.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::lab::{Lab, location, vpc};
use tests::{Daemon, Family, pair, traffic};

fn interop(underlay: Family, inner: Family) {
    let lab = Lab::new(underlay);
    lab.peer.ip("addr flush dev up0");
    let subnets = ["10.0.0.0/24", "fd00:1::/64"];
    let vpcs = [vpc("red", pair::VNIS[0], &subnets, ""), vpc("blue", pair::VNIS[1], &subnets, "")].concat();
    let red = lab.tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let blue = lab.tenant("blue", "blue", pair::MACS[1], &pair::NEAR);
    // The other host is the same, seen from the other side.
    let there = lab.reversed();
    let red_far = there.tenant("redfar", "red", pair::MACS[2], &pair::FAR);
    let blue_far = there.tenant("bluefar", "blue", pair::MACS[3], &pair::FAR);
    let here_config = [
        lab.uplink(""),
        vpcs.clone(),
        red.vnic(),
        blue.vnic(),
        location(underlay.remote_vtep(), pair::VNIS[0], pair::MACS[2], &pair::FAR),
        location(underlay.remote_vtep(), pair::VNIS[1], pair::MACS[3], &pair::FAR),
    ]
    .concat();
    let there_config = [
        there.uplink(""),
        vpcs,
        red_far.vnic(),
        blue_far.vnic(),
        location(underlay.local_vtep(), pair::VNIS[0], pair::MACS[0], &pair::NEAR),
        location(underlay.local_vtep(), pair::VNIS[1], pair::MACS[1], &pair::NEAR),
    ]
    .concat();
    let mut here = Daemon::start_alone(&lab.host, &here_config);
    let over_there = Daemon::start(&lab.peer, &there_config);
    here.wait_until_resolved();
    for tenant in [&red, &blue] {
        tenant.plug(&lab.host);
    }
    for tenant in [&red_far, &blue_far] {
        tenant.plug(&lab.peer);
    }
    pair::talk(inner, [(&red.netns, &red_far.netns), (&blue.netns, &blue_far.netns)]);
    over_there.stop();
    here.stop();
}

#[test]
fn interop_vswitch_to_vswitch_over_ipv4() {
    interop(Family::V4, Family::V4);
}

#[test]
fn interop_vswitch_to_vswitch_over_ipv6() {
    interop(Family::V6, Family::V6);
}

#[test]
fn interop_local_vnics_need_no_tunnel() {
    let lab = Lab::new(Family::V4);
    let one = lab.tenant("one", "red", pair::MACS[0], &pair::NEAR);
    let two = lab.tenant("two", "red", pair::MACS[2], &pair::FAR);
    let other = lab.tenant("other", "blue", pair::MACS[1], &["10.0.0.3/24"]);
    let subnets = ["10.0.0.0/24", "fd00:1::/64"];
    let config = [
        lab.uplink(""),
        vpc("red", 100, &subnets, ""),
        vpc("blue", 200, &subnets, ""),
        one.vnic(),
        two.vnic(),
        other.vnic(),
    ]
    .concat();
    let daemon = Daemon::start(&lab.host, &config);
    for tenant in [&one, &two, &other] {
        tenant.plug(&lab.host);
    }
    for inner in [Family::V4, Family::V6] {
        let [near, far] = pair::addresses(inner);
        for size in pair::PING_SIZES {
            traffic::ping(&one.netns, far, size, 3);
            traffic::ping(&two.netns, near, size, 3);
        }
        traffic::transfer(&one.netns, &two.netns, far, 60_000);
        traffic::transfer(&two.netns, &one.netns, near, 60_000);
    }
    traffic::no_ping(&one.netns, "10.0.0.3");
    let counters = daemon.counters();
    assert_eq!(counters.get("fwd.encapsulated"), 0);
    assert!(counters.get("fwd.local") > 0);
    daemon.stop();
}
