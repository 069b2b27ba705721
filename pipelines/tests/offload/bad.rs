//! Devices that are full, refuse, fail, forget, or go: counted, explained, and traffic goes on in software.

use pipelines::Direction;
use pipelines::offload::manager::*;
use pipelines::offload::sim::EswitchConfig;
use pipelines::qos::Class;
use rules::*;

use crate::bad_device::{Bad, Lab};

#[test]
fn bad_devices_without_room_or_will_are_counted_by_their_words() {
    let room = EswitchConfig { capacity: 0, ..EswitchConfig::default() };
    let will = EswitchConfig { refuse_all: true, ..EswitchConfig::default() };
    let words = "refused: this device takes no rules (unspecified)";
    for (config, status, refusals) in [
        (room, "software: no room for its rules", vec![]),
        (will, words, vec![("this device takes no rules (unspecified)".to_string(), 2)]),
    ] {
        let mut lab = Lab::new(config);
        lab.run(15, &[1, 2]);
        assert_eq!([1, 2].map(|port| lab.status(port).to_string()), [status; 2]);
        assert_eq!(lab.manager.refusals(), refusals);
        assert_eq!((lab.by_hardware, lab.by_software), (0, 15 * 400));
        assert_eq!((lab.device.eswitch.len(), lab.manager.rules()), (0, 0));
        let states = lab.manager.states();
        let expected = if refusals.is_empty() {
            States { software: 2, ..States::default() }
        } else {
            States { refused: 2, ..States::default() }
        };
        assert_eq!(states, expected);
    }
}

#[test]
fn bad_rules_that_are_taken_and_fail_leave_nothing_behind() {
    for fail_one_in in [1, 10] {
        let mut lab = Lab::new(EswitchConfig { fail_one_in, ..EswitchConfig::default() });
        lab.run(150, &[1, 2, 3]);
        let counters = lab.manager.counters();
        assert!(counters.refused_by_device > 0);
        assert_eq!(lab.manager.refusals()[0].0, "the device failed (unspecified)");
        // What does not fail gets through, sooner or later; nothing of what failed is there.
        assert_eq!(lab.by_hardware > 0, fail_one_in > 1, "one in {fail_one_in}: {counters:?}");
        assert_eq!(lab.manager.rules(), lab.device.eswitch.len());
        lab.run(60, &[]);
        assert_eq!((lab.manager.rules(), lab.device.eswitch.len()), (0, 0));
        assert_eq!(lab.manager.adjacencies_and_bundles(), (0, 0));
        assert_eq!(lab.debited(), lab.by_hardware, "one in {fail_one_in}");
    }
}

/// Rules that are changed in place, and the change fails: their flows go back to software.
#[test]
fn bad_changes_that_fail_take_their_flows_out() {
    // Nine rules for the first flow, one for the second; the first three of the change come, the fourth fails.
    let mut lab = Lab::new(EswitchConfig { fail_one_in: 14, ..EswitchConfig::default() });
    lab.run(5, &[1, 2]);
    assert_eq!([1, 2].map(|port| lab.status(port)), [Status::Hardware, Status::Hardware]);
    lab.move_station();
    assert_eq!(
        [1, 2].map(|port| lab.status(port).to_string()),
        ["refused: the device failed (unspecified)"; 2]
    );
    assert_eq!((lab.manager.rules(), lab.device.eswitch.len()), (0, 0));
    let before = lab.by_hardware;
    lab.run(1, &[1, 2]);
    assert_eq!(lab.by_hardware, before);
    lab.run(30, &[1, 2]);
    assert_eq!(lab.status(1), Status::Hardware, "after a while they are tried again");
}

/// What a meter turned away is counted by the device as well: nobody is taken for over its rate by a wrong figure.
#[test]
fn bad_ages_of_rules_that_nobody_has_are_counted() {
    let mut lab = Lab::new(EswitchConfig::default());
    lab.run(5, &[1]);
    lab.device.unknown_aged = vec![RuleId(u64::MAX), RuleId(1 << 40), RuleId(u64::MAX)];
    lab.run(2, &[1]);
    let counters = lab.manager.counters();
    assert_eq!((counters.unknown_aged, counters.aged), (2, 0));
    assert_eq!(lab.status(1), Status::Hardware);
}

/// A flow is metered by the rate of its class, or not in hardware.
#[test]
fn bad_meters_that_do_not_change_send_their_flows_to_software() {
    let mut lab = Lab::new(EswitchConfig::default());
    lab.host.limit(Direction::Out, 0, Class::Tcp, 8_000_000_000);
    lab.run(5, &[1]);
    assert_eq!(lab.status(1), Status::Hardware);
    lab.device.keeps_rates = true;
    lab.run(2, &[1]);
    assert_eq!(lab.status(1), Status::Hardware, "its rate is what it was");
    lab.host.limit(Direction::Out, 0, Class::Tcp, 4_000_000_000);
    lab.run(2, &[1]);
    let words = lab.status(1).to_string();
    assert!(words.contains("its rate cannot be changed: meters stay as they are"), "{words}");
    assert_eq!(lab.manager.rules(), 0);
    lab.device.keeps_rates = false;
    lab.run(30, &[1]);
    assert_eq!(lab.status(1), Status::Hardware);
}

/// A back end with a queue learns later that a meter was not changed.
#[test]
fn bad_meters_that_were_taken_and_not_changed_send_their_flows_to_software() {
    let mut lab = Lab::new(EswitchConfig::default());
    lab.host.limit(Direction::Out, 0, Class::Tcp, 8_000_000_000);
    lab.run(5, &[1]);
    let meter = lab.device.asked[0];
    let error = FlowError::new(Cause::Other(5), Where::Unspecified, "it came to nothing");
    // Of a meter that nobody has nothing follows.
    lab.device.failed_meters.push((meter + 1, error.clone()));
    lab.run(1, &[1]);
    assert_eq!(lab.status(1), Status::Hardware);
    lab.device.failed_meters.push((meter, error));
    lab.run(1, &[1]);
    let words = lab.status(1).to_string();
    assert!(words.contains("its rate cannot be changed: it came to nothing"), "{words}");
    assert_eq!(lab.manager.rules(), 0);
    lab.run(30, &[1]);
    assert_eq!(lab.status(1), Status::Hardware);
}

/// Asked for a meter, a device may take its time to say that it is to be asked again: once a turn is enough, all have their
/// turn, and whoever cannot have its rate for long leaves hardware.
#[test]
fn bad_devices_that_are_busy_hold_up_no_turn() {
    let mut lab = Lab::new(EswitchConfig::default());
    let flows = [(1, 1), (2, 2)];
    let limit =
        |lab: &Lab, rate| (0..2).for_each(|vnic| lab.host.limit(Direction::Out, vnic, Class::Tcp, rate));
    limit(&lab, 8_000_000_000);
    lab.run_from(5, &flows);
    assert_eq!([1, 2].map(|port| lab.status(port)), [Status::Hardware, Status::Hardware]);
    let mut meters = std::mem::take(&mut lab.device.asked);
    meters.sort_unstable();
    meters.dedup();
    let [first, second] = meters[..] else { panic!("{meters:?}") };
    lab.device.is_busy = true;
    limit(&lab, 4_000_000_000);
    for _ in 0..20 {
        lab.run_from(1, &flows);
        assert_eq!(std::mem::take(&mut lab.device.asked), [first]);
    }
    assert_eq!([1, 2].map(|port| lab.status(port)), [Status::Hardware, Status::Hardware]);
    // Two seconds, after which what is refused is asked for again, have gone.
    lab.run_from(1, &flows);
    let words = lab.status(1).to_string();
    assert!(words.contains("its rate cannot be changed: not now"), "{words}");
    lab.device.asked.clear();
    lab.run_from(1, &flows);
    assert_eq!((lab.device.asked.clone(), lab.status(2)), (vec![second], Status::Hardware));
    lab.device.is_busy = false;
    lab.run_from(30, &flows);
    assert_eq!([1, 2].map(|port| lab.status(port)), [Status::Hardware, Status::Hardware]);
}

/// The port goes after each number of calls in turn: in the middle of preparing, of opening, of counting.
#[test]
fn bad_ports_that_go_in_the_middle_leave_everything_in_software() {
    for calls in 0..40 {
        let mut lab = Lab::new(EswitchConfig::default());
        lab.run(1, &[1, 2]);
        lab.device.calls = Some(calls);
        lab.run(30, &[1, 2]);
        assert!(lab.device.gone, "after {calls} calls");
        let words = [1, 2].map(|port| lab.status(port).to_string());
        if calls < 9 {
            assert_eq!(words, ["refused: the port is gone (unspecified)"; 2], "after {calls} calls");
            assert_eq!(lab.manager.rules(), 0, "after {calls} calls");
        }
        lab.manager.lost();
        assert_eq!(lab.manager.states().hardware, 0);
        assert_eq!((lab.manager.rules(), lab.manager.adjacencies_and_bundles()), (0, (0, 0)));
        let sent = lab.by_software;
        lab.run(1, &[1, 2]);
        assert_eq!(lab.by_software, sent + 400);
        // Another device comes.
        lab.device = Bad::new(EswitchConfig::default());
        lab.device.eswitch.advance(lab.now_ns);
        lab.run(30, &[1, 2]);
        assert_eq!([1, 2].map(|port| lab.status(port)), [Status::Hardware, Status::Hardware]);
    }
}
