//! What hosts do not agree about. DPDK runs once per process, so each test wants a process of its own.

use crate::cluster::book::Seen;
use crate::cluster::status::Shared;
use crate::switch::testing;

use super::*;

/// A switch at 172.16.0.1 that follows an etcd in which hosts say that they are at these VTEPs.
fn controller(hosts: &[(&str, &str)]) -> Controller {
    let switch = testing::start(
        "[forward]\nauto-start = false\n\
         [control]\netcd = { endpoints = [\"http://127.0.0.1:1\"], host = \"own\" }\n\
         [[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"172.16.0.1/24\"]\n",
    );
    let etcd = switch.bare_config().control.etcd.clone().unwrap();
    let mut controller = Controller::new(switch, None);
    let shared = Shared::new(&etcd, &Name::new("own").unwrap());
    for (name, vtep) in hosts {
        let seen = Seen { vteps: Some([vtep.parse().unwrap()].into()), ..Seen::default() };
        shared.lock().hosts.insert(Name::new(name).unwrap(), Host { record: None, seen });
    }
    controller.cluster = Some(shared);
    controller
}

#[test]
fn etcd_a_host_with_the_vtep_of_this_one_is_told_and_the_others_are_probed() {
    let mut controller = controller(&[
        ("own", "172.16.0.1"),
        ("copy", "172.16.0.1"),
        ("good", "172.16.0.2"),
        ("far", "10.0.0.1"),
    ]);
    let (answer, vteps) = look(&mut controller).unwrap_or_else(|problem| panic!("{}", problem.message));
    assert_eq!(vteps, [("172.16.0.2".parse().unwrap(), Name::new("good").unwrap())].into());
    let told = |kind: &str| {
        let of_kind = answer.faults.iter().filter(|fault| fault.kind == kind);
        of_kind.map(|fault| fault.subject.as_str()).collect::<Vec<_>>()
    };
    assert_eq!((told("duplicate-vtep"), told("unreachable-vtep")), (vec!["copy"], vec!["far"]));
    // What is to be probed can be.
    let (send, _receive) = tokio::sync::oneshot::channel();
    let vteps: Vec<IpAddr> = vteps.into_keys().collect();
    controller.switch.probe(&vteps, send).unwrap();
    controller.switch.stop();
}
