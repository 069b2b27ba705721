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
    testing::start(NETWORK)
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

/// A config file with the network and locations.
fn file(locations: &[&LocationConfig]) -> Source {
    let mut text = testing::process(4095) + NETWORK;
    for LocationConfig { vni, vip, mac, vtep, .. } in locations {
        text += &format!("[[location]]\nvni = {vni}\nvip = \"{vip}\"\nmac = \"{mac}\"\nvtep = \"{vtep}\"\n");
    }
    Source::parse(&text, "f.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

/// A machine that the file places went from there, and another host says where it is: that host moves it and takes it back, and no file
/// is refused on its account.
#[test]
fn etcd_what_the_file_named_and_has_gone_belongs_to_who_says_it_next() {
    let [first, second, third] = ["172.16.0.2", "172.16.0.3", "172.16.0.4"].map(|vtep| at("10.0.0.9", vtep));
    let (vni, vip) = (first.vni, first.vip);
    let file_with_it = || file(&[&first]);
    let mut switch = Switch::start(file_with_it().config).unwrap();
    switch.set_config_file(Some(file_with_it()));
    switch.set_owners(Owners::default());
    let is = |switch: &Switch, location: &LocationConfig, owner: Owner| {
        assert_eq!(switch.topology.location(vni, vip), Some(location));
        assert_eq!(switch.ownership().of("location", &location_id(location)), owner);
    };
    let refused = switch.follow(Owner::Etcd, come(&second)).unwrap();
    assert!(refused[0].why.contains("the config file"), "{refused:?}");
    switch.remove_location(vni, vip).unwrap();
    for place in [&second, &third] {
        assert_eq!(switch.follow(Owner::Etcd, come(place)).unwrap(), []);
        is(&switch, place, Owner::Etcd);
    }
    // The file says what it said.
    switch.reload_file(file_with_it()).unwrap();
    is(&switch, &third, Owner::Etcd);
    switch.load_file(file_with_it()).unwrap();
    is(&switch, &third, Owner::Etcd);
    assert_eq!(switch.follow(Owner::Etcd, come(&second)).unwrap(), []);
    is(&switch, &second, Owner::Etcd);
    // What goes is gone, and the file's again with the next reload.
    let gone = Heard { gone: vec![(vni, vip)], ..Heard::default() };
    assert_eq!(switch.follow(Owner::Etcd, gone).unwrap(), []);
    assert_eq!(switch.topology.location(vni, vip), None);
    switch.reload_file(file_with_it()).unwrap();
    is(&switch, &first, Owner::File);
    switch.stop();
}

/// Whatever another host says, the file can say something new of it, and is the one that counts.
#[test]
fn etcd_what_a_file_says_anew_of_another_hosts_is_refused_until_that_has_taken_it_away() {
    let [here, there] = ["172.16.0.2", "172.16.0.3"].map(|vtep| at("10.0.0.9", vtep));
    let mut switch = Switch::start(file(&[]).config).unwrap();
    switch.set_config_file(Some(file(&[])));
    switch.set_owners(Owners::default());
    for load in [false, true] {
        let read = |switch: &mut Switch| match load {
            false => switch.reload_file(file(&[&here])),
            true => switch.load_file(file(&[&here])),
        };
        assert_eq!(switch.follow(Owner::Etcd, come(&there)).unwrap(), []);
        let refused = read(&mut switch).unwrap_err().to_string();
        assert!(refused.contains("owner etcd") && refused.contains("file"), "{refused}");
        assert_eq!(switch.topology.location(here.vni, here.vip), Some(&there));
        let gone = Heard { gone: vec![(there.vni, there.vip)], ..Heard::default() };
        assert_eq!(switch.follow(Owner::Etcd, gone).unwrap(), []);
        read(&mut switch).unwrap();
        assert_eq!(switch.topology.location(here.vni, here.vip), Some(&here));
        assert_eq!(switch.ownership().of("location", &location_id(&here)), Owner::File);
        assert_eq!(switch.owners.iter().count(), 0);
        assert_eq!(switch.follow(Owner::Etcd, come(&there)).unwrap().len(), 1, "it is refused alone");
        switch.reload_file(file(&[])).unwrap();
        assert_eq!(switch.topology.location(here.vni, here.vip), None);
    }
    switch.stop();
}
