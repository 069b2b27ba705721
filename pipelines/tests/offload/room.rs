//! Flows for which there is no room: who gives way, and who does not.

use pipelines::Direction;
use pipelines::offload::manager::*;
use pipelines::offload::sim::EswitchConfig;
use pipelines::offload::translate::EntropySource;
use pipelines::qos::Class;
use rules::*;

use crate::bad_device::Lab;

fn lab(capacity: u32) -> Lab {
    Lab::new(EswitchConfig { capacity, refresh_ns: 0, ..EswitchConfig::default() })
}

/// A tenth of a second in which a flow of this vNIC is clearly hotter than three others.
fn beside(lab: &mut Lab, vnic: u16, tenths: usize) {
    lab.run_from(tenths, &[(1, 1), (1, 2), (1, 3), (vnic, 9), (vnic, 9), (vnic, 9)]);
}

/// All flows in hardware, and the hotter one not.
#[track_caller]
fn assert_others_stay(lab: &Lab, words: &str) {
    assert_eq!(lab.status(9).to_string(), words);
    assert_eq!([1, 2, 3].map(|port| lab.status(port)), [1, 2, 3].map(|_| Status::Hardware));
    let counters = lab.manager.counters();
    assert_eq!((counters.displaced, counters.refused_by_device), (0, 1), "asked once, then left alone");
}

#[test]
fn room_nobody_gives_way_for_want_of_a_meter() {
    let mut lab = lab(1000);
    lab.run(5, &[1, 2, 3]);
    lab.host.limit(Direction::Out, 1, Class::Tcp, 400_000_000_000);
    lab.device.lacks_meters = true;
    beside(&mut lab, 2, 10);
    assert_others_stay(&lab, "refused: no meter is left (configuration of action 0)");
    lab.device.lacks_meters = false;
    beside(&mut lab, 2, 20);
    assert_eq!(lab.status(9), Status::Hardware);
}

#[test]
fn room_nobody_gives_way_for_want_of_what_an_action_needs() {
    let mut lab = lab(1000);
    lab.host.options.entropy = EntropySource::Exact;
    lab.run(5, &[1, 2, 3]);
    lab.device.lacks_headers = Some(Where::Action(0));
    beside(&mut lab, 1, 10);
    assert_others_stay(&lab, "refused: no header is left (action 0)");
    lab.device.lacks_headers = None;
    beside(&mut lab, 1, 20);
    assert_eq!(lab.status(9), Status::Hardware);
}

/// A device that does not say what it lacks is taken for one that is full, until it has no room below what it was seen to hold.
#[test]
fn room_one_gives_way_where_the_device_does_not_say_what_it_lacks() {
    let mut lab = lab(1000);
    lab.host.options.entropy = EntropySource::Exact;
    lab.run(5, &[1, 2, 3]);
    lab.device.lacks_headers = Some(Where::Unspecified);
    beside(&mut lab, 1, 15);
    assert_eq!(lab.status(9), Status::Software(Why::NoRoom));
    assert_eq!(lab.manager.counters().displaced, 1);
    assert_eq!(lab.manager.states().hardware, 2);
}

/// Whoever gives way leaves its rules to a device that does not let them go: that makes no room.
#[test]
fn room_nobody_else_gives_way_on_a_device_that_keeps_rules() {
    // Four ways and four roots are common; each flow has one rule of its own.
    let mut lab = lab(11);
    lab.run(6, &[1, 2, 3]);
    assert_eq!((lab.manager.states().hardware, lab.manager.rules()), (3, 11));
    lab.device.keeps = lab.device.eswitch.ids().into_iter().map(|id| (id, u32::MAX)).collect();
    beside(&mut lab, 1, 10);
    assert_eq!(lab.manager.counters().displaced, 1);
}
