//! The switch against the Linux kernel's own vxlan device, which asks for neighbours through the tunnel, over both underlays and with both inner families: two tenants
//! with the same addresses at once, pings of all sizes, 60 kB by TCP and UDP compared byte for byte, and isolation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::lab::{Lab, Remote, Tenant, vpc};
use tests::{Daemon, Family, pair, traffic};

struct Hosts {
    daemon: Daemon,
    red: Tenant,
    blue: Tenant,
    red_far: Remote,
    blue_far: Remote,
    _lab: Lab,
}

/// The switch with tenants red and blue, and the kernel with their partners; `more` is further config.
fn hosts(underlay: Family, more: &str) -> Hosts {
    let lab = Lab::new(underlay);
    let red = lab.tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let blue = lab.tenant("blue", "blue", pair::MACS[1], &pair::NEAR);
    let red_far = lab.remote("redfar", pair::VNIS[0], pair::MACS[2], &pair::FAR, "");
    let blue_far = lab.remote("bluefar", pair::VNIS[1], pair::MACS[3], &pair::FAR, "");
    let subnets = ["10.0.0.0/24", "fd00:1::/64"];
    let config = [
        lab.uplink(""),
        vpc("red", pair::VNIS[0], &subnets, ""),
        vpc("blue", pair::VNIS[1], &subnets, ""),
        red.vnic(),
        blue.vnic(),
        red_far.location(),
        blue_far.location(),
        more.to_owned(),
    ]
    .concat();
    let daemon = Daemon::start(&lab.host, &config);
    red.plug(&lab.host);
    blue.plug(&lab.host);
    Hosts { daemon, red, blue, red_far, blue_far, _lab: lab }
}

fn interop(underlay: Family, inner: Family, more: &str) {
    let hosts = hosts(underlay, more);
    pair::talk(inner, [(&hosts.red.netns, &hosts.red_far.netns), (&hosts.blue.netns, &hosts.blue_far.netns)]);
    let counters = hosts.daemon.counters();
    for reason in
        ["fragment-unknown", "unknown-vni", "mtu-exceeded", "guard-vip", "outer-checksum", "tx-full"]
    {
        assert_eq!(counters.get(&format!("fwd.drops.{reason}")), 0, "{reason}: {counters:#?}");
    }
    hosts.daemon.stop();
}

#[test]
fn interop_kernel_ipv4_in_ipv4() {
    interop(Family::V4, Family::V4, "");
}

#[test]
fn interop_kernel_ipv6_in_ipv4() {
    interop(Family::V4, Family::V6, "");
}

#[test]
fn interop_kernel_ipv4_in_ipv6() {
    interop(Family::V6, Family::V4, "");
}

#[test]
fn interop_kernel_ipv6_in_ipv6() {
    interop(Family::V6, Family::V6, "");
}

#[test]
fn interop_kernel_with_two_workers() {
    // One-queue ports with two workers: one of them hands its packets over.
    interop(Family::V4, Family::V4, "[workers]\ncores = [0, 1]\nidle = \"sleep\"\n");
}

#[test]
fn interop_tenants_never_hear_each_other() {
    let hosts = hosts(Family::V4, "");
    // Blue's partner is gone: red's partner has the same address, and must not answer for it.
    traffic::ping(&hosts.red.netns, "10.0.0.2", 56, 3);
    hosts.blue_far.netns.ip("link set eth0 down");
    traffic::no_ping(&hosts.blue.netns, "10.0.0.2");
    traffic::ping(&hosts.red.netns, "10.0.0.2", 56, 3);
    let received = |netns: &tests::Netns| {
        let text = netns.run(&["cat", "/proc/net/snmp"]);
        let echoes: Vec<&str> = text.lines().filter(|l| l.starts_with("Icmp:")).collect();
        let column = echoes[0].split_whitespace().position(|w| w == "InEchos").unwrap();
        echoes[1].split_whitespace().nth(column).unwrap().parse::<u32>().unwrap()
    };
    assert_eq!(received(&hosts.red_far.netns), 6, "red's partner heard red's pings and nobody else's");
    assert_eq!(received(&hosts.blue_far.netns), 0);
    hosts.daemon.stop();
}
