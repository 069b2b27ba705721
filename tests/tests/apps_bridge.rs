//! The control: the same applications in the same guests over a plain Linux bridge, without the switch. What fails here is no
//! fault of the switch.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Instant;
use tests::guest::bridged::Bridged;
use tests::guest::rdma::Path;
use tests::guest::{self, apps, datagrams, site};

fn start() -> Bridged {
    let [mut a, mut b, _, _] = site::two_tenants();
    (a.memory, b.memory) = (apps::MEMORY, apps::MEMORY);
    Bridged::start(&[a, b], &guest::image_of_apps())
}

#[test]
#[ignore = "takes minutes: scripts/test --only apps, or --full"]
fn apps_bridge_carries_storage() {
    if !guest::can_run() {
        return;
    }
    let bridged = start();
    let [(vm, server), (_, client)] = &bridged.guests[..] else { panic!("two guests") };
    let began = Instant::now();
    apps::storage(server, client, vm.ip(false), |what| {
        eprintln!("{:6.1} s  {what}", began.elapsed().as_secs_f32());
    });
}

#[test]
#[ignore = "takes minutes: scripts/test --only apps, or --full"]
fn apps_bridge_carries_messages() {
    if !guest::can_run() {
        return;
    }
    let bridged = start();
    let [(a, server), (b, client)] = &bridged.guests[..] else { panic!("two guests") };
    let path = |v6| Path::over(client, server, [a.ip(v6), b.ip(v6)], a.ip(false));
    let began = Instant::now();
    apps::messages(&path(false), &path(true), b.ip(false), |what| {
        eprintln!("{:6.1} s  {what}", began.elapsed().as_secs_f32());
    });
}

#[test]
#[ignore = "takes minutes: scripts/test --only apps, or --full"]
fn apps_bridge_carries_datagrams() {
    if !guest::can_run() {
        return;
    }
    let bridged = start();
    let [(a, server), (b, client)] = &bridged.guests[..] else { panic!("two guests") };
    let path = |v6| Path::over(client, server, [a.ip(v6), b.ip(v6)], a.ip(false));
    let began = Instant::now();
    datagrams::run(&path(false), &path(true), [b.ip(false), b.ip(true)], |what| {
        eprintln!("{:6.1} s  {what}", began.elapsed().as_secs_f32());
    });
    // A group of IPv6 is nothing that Linux joins for RoCEv2 (ENOTSUPP, which only the kernel has a name for).
    let refused = server.try_run(&format!("mckey -m ff1e::7 -b {} -C 1", a.ip(true)), apps::LIMIT);
    assert!(refused.output.contains("failure joining: Unknown error 524"), "{refused:?}");
}
