//! A guest that goes to another host of a cluster while its queue pairs work: etcd tells the others where it is.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use tests::etcd::{Etcd, Fabric, Host, wait_for_place};
use tests::guest::rdma::{self, Path};
use tests::guest::wire::Underlay;
use tests::guest::{self, Vm, site};
use tests::lab::vpc;
use tests::{Workdir, wait_for};

const RED: u32 = 100;
const SOON: Duration = Duration::from_secs(20);

#[test]
#[ignore = "takes half a minute: scripts/test --only guest, or --full"]
fn etcd_a_guest_that_moves_goes_on_with_its_queue_pairs() {
    if !guest::can_run() {
        return;
    }
    let (fabric, etcd) = (Fabric::new(), Etcd::start());
    let hosts: Vec<Host> = (1..4).map(|number| Host::new(&fabric, &etcd, number)).collect();
    let dir = Workdir::new("moves");
    let m = Vm::new("m", ("red", RED), "02:00:00:00:0a:01", &["10.0.0.1/16"]);
    let b = Vm::new("b", ("red", RED), "02:00:00:00:0a:02", &["10.0.0.2/16"]);
    let red = vpc("red", RED, &["10.0.0.0/16"], "");
    let vnic = |vm: &Vm| vm.vnic(&site::socket(dir.path(), &vm.name));
    let bodies = [red.clone() + &vnic(&m), red.clone() + &vnic(&b), red];
    let daemons: Vec<_> = hosts.iter().zip(&bodies).map(|(host, body)| host.start(&etcd, body)).collect();
    let [first, other, second] = &daemons[..] else { panic!("three switches") };
    let (own, peer): (IpAddr, IpAddr) = (m.ip(false), b.ip(false));
    wait_for_place(first, RED, &peer.to_string(), Some("vtep 172.16.0.2"), SOON);
    wait_for_place(other, RED, &own.to_string(), Some("vtep 172.16.0.1"), SOON);
    let guests = site::boot(&[m.clone(), b], dir.path(), &guest::image());

    let underlay = Underlay::start(&[&hosts[1].netns]);
    let path = Path::over(&guests[0], &guests[1], [peer, own], peer);
    let running = rdma::begin(&path, &rdma::perftest(&path, "ib_write_bw", 18515, 65536, 1500));
    let came = || other.figure("show fwd stats all", "/decapsulated");
    let before = came();
    wait_for("RDMA to be under way", SOON, || (came() > before + 500).then_some(()));
    // The same machine, with the same memory, leaves one switch and comes to another: one command on each.
    let socket = site::new_plug(dir.path(), "m");
    let began = Instant::now();
    second.ctl(&format!(
        "vnic add m vpc red mac {} vips {own} mtu {} port vhost-user path={}",
        m.mac,
        site::MTU,
        socket.display()
    ));
    first.ctl("vnic del m");
    let commanded = began.elapsed();
    wait_for_place(other, RED, &own.to_string(), Some("vtep 172.16.0.3"), SOON);
    let known = began.elapsed();
    running.finish().assert_ok();

    let times = underlay.stop_timed(own);
    let by = |vtep: &str| {
        let vtep: IpAddr = vtep.parse().unwrap();
        times.iter().filter(move |(_, by)| *by == vtep).map(|(time, _)| *time)
    };
    let last = by("172.16.0.1").reduce(f64::max).expect("packets came from its first host");
    let next = by("172.16.0.3").reduce(f64::min).expect("packets came from its second host");
    assert!(last < next, "none came from the first host any more: {last} {next}");
    assert!(by("172.16.0.3").count() > 1000, "it goes on there");
    eprintln!(
        "its place was known to the other host {known:?} after the first of two commands, which took {commanded:?}; \
         {:.3} s passed between its last packet by the first host and its next by the second, of which QEMU waits up to a second to connect again",
        next - last
    );
    assert_eq!(first.json("show vnic").as_array().map_or(0, Vec::len), 0, "{}", first.ctl("show vnic"));
    drop(guests);
    for daemon in &daemons {
        // To where it was, to where it was not yet, and of its own while nobody had it.
        site::assert_no_drops_but(
            daemon,
            &["no-location", "not-local", "inner-source", "no-neighbour", "port-down", "port-unbound"],
        );
    }
    for daemon in daemons {
        daemon.stop();
    }
}
