//! The control: the same applications in the same guests over a plain Linux bridge, without the switch. What fails here is no
//! fault of the switch.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::guest::bridged::Bridged;
use tests::guest::rdma::Path;
use tests::guest::{self, apps, datagrams};

fn start() -> Bridged {
    Bridged::start(&apps::two_guests(), &guest::image_of_apps())
}

/// The way from b to a, over IPv4 or IPv6.
fn path(bridged: &Bridged, v6: bool) -> Path<'_> {
    let [(a, server), (b, client)] = &bridged.guests[..] else { panic!("two guests") };
    Path::over(client, server, [a.ip(v6), b.ip(v6)], a.ip(false))
}

#[test]
#[ignore = "takes minutes: scripts/test --only apps, or --full"]
fn apps_bridge_carries_storage() {
    if !guest::can_run() {
        return;
    }
    let bridged = start();
    let [(vm, server), (_, client)] = &bridged.guests[..] else { panic!("two guests") };
    apps::storage(server, client, vm.ip(false), tests::steps());
}

#[test]
#[ignore = "takes minutes: scripts/test --only apps, or --full"]
fn apps_bridge_carries_messages() {
    if !guest::can_run() {
        return;
    }
    let bridged = start();
    let [_, (b, _)] = &bridged.guests[..] else { panic!("two guests") };
    apps::messages(&path(&bridged, false), &path(&bridged, true), b.ip(false), tests::steps());
}

#[test]
#[ignore = "takes minutes: scripts/test --only apps, or --full"]
fn apps_bridge_carries_datagrams() {
    if !guest::can_run() {
        return;
    }
    let bridged = start();
    let [(a, server), (b, _)] = &bridged.guests[..] else { panic!("two guests") };
    datagrams::run(&path(&bridged, false), &path(&bridged, true), [b.ip(false), b.ip(true)], tests::steps());
    // A group of IPv6 is nothing that Linux joins for RoCEv2 (ENOTSUPP, which only the kernel has a name for).
    let refused = server.try_run(&format!("mckey -m ff1e::7 -b {} -C 1", a.ip(true)), apps::LIMIT);
    assert!(refused.output.contains("failure joining: Unknown error 524"), "{refused:?}");
}
