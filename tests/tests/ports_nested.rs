//! Tunnels of the containers' own: a VxLAN device of the kernel's in each of two containers, whose super-frames nobody but the switch cuts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::lab::{Lab, Tenant, vpc};
use tests::{Daemon, Family, pair, traffic};

/// Bytes of a transfer, which segment by segment, each after a time-out, would take minutes.
const BYTES: u32 = 8_000_000;

/// A device over the container's network: its peer, and addresses of its own.
fn device(tenant: &Tenant, name: &str, id: u32, peer: &str, options: &str, addresses: [&str; 2]) {
    let netns = &tenant.netns;
    netns.enable_ipv6();
    netns.ip(&format!("link add {name} type vxlan id {id} remote {peer} dstport 8472 dev eth0 {options}"));
    netns.ip(&format!("link set {name} up"));
    for address in addresses {
        netns.ip(&format!(
            "addr add {address} dev {name}{}",
            if address.contains(':') { " nodad" } else { "" }
        ));
    }
}

#[test]
fn veth_gso_goes_through_tunnels_of_containers() {
    let lab = Lab::new(Family::V4);
    let red = lab.cabled_tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let tan = lab.cabled_tenant("tan", "red", pair::MACS[2], &pair::FAR);
    for (netns, iface) in [(&red.netns, "eth0"), (&lab.host, "red"), (&tan.netns, "eth0"), (&lab.host, "tan")]
    {
        netns.run(&["ethtool", "-K", iface, "tx", "on"]);
    }
    let config = [
        lab.uplink(""),
        vpc("red", pair::VNIS[0], &["10.0.0.0/24", "fd00:1::/64"], ""),
        red.vnic_on("{ kind = \"veth\", iface = \"red\" }"),
        tan.vnic_on("{ kind = \"veth\", iface = \"tan\" }"),
    ]
    .concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    traffic::ping(&red.netns, "10.0.0.2", 56, 3);
    traffic::ping(&red.netns, "fd00:1::2", 56, 3);
    // With and without an outer checksum, over either family.
    let tunnels = [
        ("vx0", 9, ["10.0.0.1", "10.0.0.2"], "udpcsum"),
        ("vx1", 10, ["10.0.0.1", "10.0.0.2"], "noudpcsum"),
        ("vx2", 11, ["fd00:1::1", "fd00:1::2"], ""),
    ];
    for (number, (name, id, [near, far], options)) in (1..).zip(tunnels) {
        let v4 = [1, 2].map(|last| format!("192.168.{number}.{last}/24"));
        let v6 = [1, 2].map(|last| format!("fd09:{number}::{last}/64"));
        device(&red, name, id, far, options, [&v4[0], &v6[0]]);
        device(&tan, name, id, near, options, [&v4[1], &v6[1]]);
        traffic::ping(&red.netns, &format!("192.168.{number}.2"), 56, 3);
        traffic::ping(&red.netns, &format!("fd09:{number}::2"), 56, 3);
    }
    daemon.settled();
    let before = daemon.counters();
    for number in 1..=tunnels.len() {
        for (here, there) in [
            (format!("192.168.{number}.1"), format!("192.168.{number}.2")),
            (format!("fd09:{number}::1"), format!("fd09:{number}::2")),
        ] {
            traffic::transfer_by(&["tcp"], &red.netns, &tan.netns, &there, BYTES);
            traffic::transfer_by(&["tcp"], &tan.netns, &red.netns, &here, BYTES);
        }
    }
    let after = daemon.counters();
    let lost: Vec<_> = after
        .since(&before)
        .into_iter()
        .filter(|(path, _)| path.starts_with("fwd.drops.") || path.ends_with("-errors"))
        .filter(|(path, _)| path != "fwd.drops.bum-disabled" && path != "fwd.drops.underlay-other")
        .collect();
    assert_eq!(lost, []);
    daemon.assert_conserved();
    daemon.process().signal("TERM");
    daemon.assert_clean_end();
}
