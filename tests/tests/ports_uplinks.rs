//! Kinds of ports between two switches: two tenants with the same addresses talk through each kind of uplink.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::lab::{Lab, location, vpc};
use tests::{Daemon, Family, Workdir, pair};

/// Two switches whose uplinks are the given ports ("{ kind = ... }"); the first one starts first.
///
/// `held` is how many packet buffers the driver may keep in its rings: some take sent ones back only when they need room.
fn two_switches(here_port: &str, there_port: &str, held: i64) {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    let there = lab.reversed();
    let subnets = ["10.0.0.0/24", "fd00:1::/64"];
    let vpcs = [vpc("red", pair::VNIS[0], &subnets, ""), vpc("blue", pair::VNIS[1], &subnets, "")].concat();
    let red = lab.tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let blue = lab.tenant("blue", "blue", pair::MACS[1], &pair::NEAR);
    let red_far = there.tenant("redfar", "red", pair::MACS[2], &pair::FAR);
    let blue_far = there.tenant("bluefar", "blue", pair::MACS[3], &pair::FAR);
    let config = |uplink: String, vnics: [String; 2], vtep: &str, macs: [&str; 2], addresses: &[&str]| {
        let [one, two] = vnics;
        let far = [
            location(vtep, pair::VNIS[0], macs[0], addresses),
            location(vtep, pair::VNIS[1], macs[1], addresses),
        ];
        [uplink, vpcs.clone(), one, two, far.concat()].concat()
    };
    let vteps = (Family::V4.local_vtep(), Family::V4.remote_vtep());
    let (macs, far_macs) = ([pair::MACS[0], pair::MACS[1]], [pair::MACS[2], pair::MACS[3]]);
    let here_config =
        config(lab.uplink_on(here_port, ""), [red.vnic(), blue.vnic()], vteps.1, far_macs, &pair::FAR);
    let there_config = config(
        there.uplink_on(there_port, ""),
        [red_far.vnic(), blue_far.vnic()],
        vteps.0,
        macs,
        &pair::NEAR,
    );
    let mut here = Daemon::start_alone(&lab.host, &here_config);
    let over_there = Daemon::start(&lab.peer, &there_config);
    here.wait_until_resolved();
    for tenant in [&red, &blue] {
        tenant.plug(&lab.host);
    }
    for tenant in [&red_far, &blue_far] {
        tenant.plug(&lab.peer);
    }
    pair::talk(Family::V4, [(&red.netns, &red_far.netns), (&blue.netns, &blue_far.netns)]);
    over_there.stop_holding(held);
    here.stop_holding(held);
}

#[test]
fn ports_uplink_af_xdp() {
    let port = "{ kind = \"af-xdp\", iface = \"up0\" }";
    two_switches(port, port, 64);
}

#[test]
fn ports_uplink_memif() {
    let dir = Workdir::new("memif");
    let socket = dir.path().join("memif.sock").display().to_string();
    let port =
        |role: &str| format!("{{ kind = \"memif\", socket = \"{socket}\", id = 0, role = \"{role}\" }}");
    two_switches(&port("server"), &port("client"), 0);
}

#[test]
fn ports_uplink_vhost_user_and_virtio_user() {
    let dir = Workdir::new("vhost");
    let path = dir.path().join("vhost.sock").display().to_string();
    let vhost = format!("{{ kind = \"vhost-user\", path = \"{path}\", server = true }}");
    let virtio = format!("{{ kind = \"virtio-user\", path = \"{path}\", server = false }}");
    // A virtio ring keeps what it sent until it is full: its size is the bound.
    two_switches(&vhost, &virtio, 1024);
}
