//! What is heard while a worker does not answer. DPDK runs once per process, so each test wants a process of its own.

use std::time::{Duration, Instant};

use crossbeam::channel::Receiver;

use super::*;
use crate::config::Source;
use crate::state::owners::Owners;
use crate::switch::testing::{self, stop_worker};

const NETWORK: &str = "[forward]\nauto-start = false\n\
     [[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"172.16.0.1/24\"]\n\
     [[vpc]]\nname = \"red\"\nvni = 100\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n";

fn start() -> Switch {
    testing::start(
        "[forward]\nauto-start = false\n\
         [[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"172.16.0.1/24\"]\n\
         [[vpc]]\nname = \"red\"\nvni = 100\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n",
    )
}

fn at(vip: &str, vtep: &str) -> LocationConfig {
    LocationConfig {
        vni: Vni::new(100).unwrap(),
        vip: vip.parse().unwrap(),
        mac: MacAddr([2, 0, 0, 0, 0, 9]),
        vtep: vtep.parse().unwrap(),
        groups: Vec::new(),
    }
}

fn come(location: &LocationConfig) -> Heard {
    Heard { come: vec![location.clone()], ..Heard::default() }
}

/// Has the worker go on, until it has taken `heard`.
fn go_on(switch: &mut Switch, stopped: Receiver<()>, heard: &Heard) {
    drop(stopped);
    let until = Instant::now() + Duration::from_secs(10);
    while switch.follow(Owner::Etcd, heard.clone()).is_err() {
        assert!(Instant::now() < until, "the worker does not come back");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn etcd_what_comes_while_a_worker_stands_still_belongs_to_who_said_it() {
    let mut switch = start();
    let location = at("10.0.0.9", "172.16.0.2");
    let of = |switch: &Switch| switch.owners.at_run_time("location", &location_id(&location));
    let stopped = stop_worker(&switch);
    let stuck = |result: Result<Vec<Refused>, SwitchError>| matches!(result, Err(SwitchError::Worker(_)));
    assert!(stuck(switch.follow(Owner::Etcd, come(&location))));
    assert_eq!(of(&switch), Owner::Etcd);
    // The same said again is no news, and the worker has still not been told.
    assert!(stuck(switch.follow(Owner::Etcd, come(&location))));
    assert!(switch.topology.is_unsettled());
    go_on(&mut switch, stopped, &come(&location));
    assert!(!switch.topology.is_unsettled());
    // The peer moves it, and takes it back.
    let moved = at("10.0.0.9", "172.16.0.3");
    assert_eq!(switch.follow(Owner::Etcd, come(&moved)).unwrap(), []);
    assert_eq!(switch.topology.location(moved.vni, moved.vip), Some(&moved));
    // What goes meanwhile is nobody's.
    let stopped = stop_worker(&switch);
    let gone = Heard { gone: vec![(moved.vni, moved.vip)], ..Heard::default() };
    assert!(stuck(switch.follow(Owner::Etcd, gone)));
    assert_eq!((switch.topology.location(moved.vni, moved.vip), of(&switch)), (None, Owner::Api));
    drop(stopped);
    switch.stop();
}

#[test]
fn a_location_of_a_pod_that_is_set_while_a_worker_stands_still_is_the_plugins() {
    let mut switch = start();
    let location = at("10.0.0.9", "172.16.0.2");
    let stopped = stop_worker(&switch);
    assert!(matches!(switch.set_location_of(&location, Owner::Cni), Err(SwitchError::Worker(_))));
    assert_eq!(switch.owners.at_run_time("location", &location_id(&location)), Owner::Cni);
    drop(stopped);
    switch.stop();
}
