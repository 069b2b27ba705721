//! Devices that do not let rules go: what such rules match comes to software all the same, and they go in the end.

use std::collections::HashSet;

use pipelines::offload::manager::*;
use pipelines::offload::sim::EswitchConfig;
use rules::*;

use crate::bad_device::Lab;

/// A host with the flows 1 and 2 in hardware, which share all rules but their gates, and the gate of the first.
fn two_flows() -> (Lab, RuleId) {
    let mut lab = Lab::new(EswitchConfig { refresh_ns: 0, ..EswitchConfig::default() });
    lab.run(5, &[2]);
    let known: HashSet<RuleId> = lab.device.eswitch.ids().into_iter().collect();
    lab.run(5, &[1, 2]);
    assert_eq!([1, 2].map(|port| lab.status(port)), [Status::Hardware, Status::Hardware]);
    let new: Vec<RuleId> = lab.device.eswitch.ids().into_iter().filter(|id| !known.contains(id)).collect();
    let [gate] = new[..] else { panic!("{new:?}") };
    (lab, gate)
}

/// All flows have cooled: nothing is left, and everything was counted once.
#[track_caller]
fn nothing_is_left(lab: &mut Lab) {
    lab.run(60, &[]);
    assert_eq!((lab.manager.rules(), lab.device.eswitch.len()), (0, 0));
    assert_eq!((lab.manager.adjacencies_and_bundles(), lab.manager.kept()), ((0, 0), None));
    assert_eq!(lab.debited(), lab.by_hardware);
}

/// The adjacency to which the gate leads is held open by another flow.
#[test]
fn bad_gates_that_stay_lead_nowhere() {
    for refusals in [1, 2, 3, 12] {
        let (mut lab, gate) = two_flows();
        lab.device.keeps.insert(gate, refusals);
        lab.withdraw(1);
        let before = lab.by_hardware;
        lab.run(1, &[1]);
        assert_eq!(lab.by_hardware, before, "kept {refusals} times");
        assert_eq!(lab.manager.counters().kept, 1);
        lab.run(3, &[1, 2]);
        assert_eq!(lab.status(2), Status::Hardware, "by another adjacency");
        if refusals == 12 {
            let words =
                "refused: the device keeps an older rule that matches the same: not now (rule) (rule)";
            assert_eq!((lab.status(1).to_string(), lab.by_hardware), (words.to_string(), before + 2 * 200));
            assert_eq!(lab.manager.kept(), Some((1, "not now (rule)")));
            assert_eq!(lab.manager.rules(), lab.device.eswitch.len());
        }
        lab.run(60, &[1, 2]);
        assert_eq!([1, 2].map(|port| lab.status(port)), [Status::Hardware, Status::Hardware]);
        assert_eq!((lab.manager.kept(), lab.manager.counters().kept), (None, 1));
        nothing_is_left(&mut lab);
    }
}

/// The same where removals are taken on at once and come to nothing later, as by a flow queue: when the device was waited for, no
/// packet passes.
#[test]
fn bad_gates_that_stay_after_their_removal_was_taken_on_lead_nowhere() {
    for refusals in [0, 1, 2, 3, 40] {
        let (mut lab, gate) = two_flows();
        lab.device.is_late = true;
        lab.device.keeps.insert(gate, refusals);
        lab.withdraw(1);
        lab.manager.await_removals(&mut lab.device);
        let before = lab.by_hardware;
        lab.run(1, &[1]);
        assert_eq!(lab.by_hardware, before, "kept {refusals} times");
        assert_eq!(lab.manager.counters().kept, u64::from(refusals > 0));
        lab.run(3, &[1, 2]);
        assert_eq!(lab.status(2), Status::Hardware, "by another adjacency");
        if refusals == 40 {
            let words =
                "refused: the device keeps an older rule that matches the same: not now (rule) (rule)";
            assert_eq!((lab.status(1).to_string(), lab.by_hardware), (words.to_string(), before + 2 * 200));
            assert_eq!(lab.manager.kept(), Some((1, "not now (rule)")));
        }
        lab.run(80, &[1, 2]);
        assert_eq!([1, 2].map(|port| lab.status(port)), [Status::Hardware, Status::Hardware]);
        assert_eq!((lab.manager.kept(), lab.manager.counters().kept), (None, u64::from(refusals > 0)));
        nothing_is_left(&mut lab);
    }
}

/// Where the device keeps the gate and where it leads, packets of the flow go on: that is told until either of them goes.
#[test]
fn bad_gates_that_stay_with_their_ways_are_told_of() {
    for is_late in [false, true] {
        let (mut lab, gate) = two_flows();
        let all = lab.device.eswitch.ids();
        lab.device.is_late = is_late;
        lab.device.keeps = all.into_iter().map(|id| (id, 12)).collect();
        [1, 2].iter().for_each(|port| lab.withdraw(*port));
        lab.manager.await_removals(&mut lab.device);
        assert_eq!((lab.manager.leaving(), lab.manager.forwarding()), (0, 2), "taken on: {is_late}");
        lab.device.keeps.retain(|id, _| *id == gate);
        lab.run(1, &[]);
        assert_eq!(lab.manager.kept().map(|(rules, _)| rules), Some(1));
        assert_eq!(lab.manager.forwarding(), 0, "to software, without its adjacency");
        nothing_is_left(&mut lab);
    }
}

/// A rule beside one that should be gone: nobody can tell which of them packets meet.
#[test]
fn bad_rules_that_stay_after_their_removal_was_taken_on_send_their_flows_to_software() {
    let (mut lab, _) = two_flows();
    lab.device.is_late = true;
    lab.device.keeps = lab.device.eswitch.ids().into_iter().map(|id| (id, 1)).collect();
    lab.move_station();
    assert_eq!([1, 2].map(|port| lab.status(port)), [Status::Hardware, Status::Hardware], "not known yet");
    lab.manager.await_removals(&mut lab.device);
    assert_eq!([1, 2].map(|port| lab.status(port).to_string()), ["refused: not now (rule)"; 2]);
    let before = lab.by_hardware;
    lab.run(1, &[1, 2]);
    assert_eq!(lab.by_hardware, before);
    lab.run(40, &[1, 2]);
    assert_eq!([1, 2].map(|port| lab.status(port)), [Status::Hardware, Status::Hardware]);
    nothing_is_left(&mut lab);
}

/// A device that keeps everything for a while: nothing comes in beside what should be gone, and all of it goes.
#[test]
fn bad_removals_that_fail_for_long_leave_nothing_behind() {
    let (mut lab, _) = two_flows();
    [1, 2].iter().for_each(|port| lab.pin(*port, Some(Pin::Hardware)));
    for round in 1..=3 {
        let rules = lab.device.eswitch.len();
        lab.device.keeps.extend(lab.device.eswitch.ids().into_iter().map(|id| (id, 20)));
        lab.manager.switch(false);
        lab.run(1, &[]);
        assert_eq!((lab.device.eswitch.len(), lab.manager.rules()), (rules, rules));
        assert_eq!(lab.manager.counters().kept, round * rules as u64);
        lab.manager.switch(true);
        lab.run(3, &[]);
        assert_eq!(lab.device.eswitch.len(), rules, "none beside them");
        assert!(lab.status(1).to_string().contains("keeps an older rule"), "{}", lab.status(1));
        // An audit asks for all of them, whosever turn it is.
        for _ in 0..20 {
            assert_eq!(lab.manager.audit(&mut lab.device), Ok(0));
        }
        assert_eq!((lab.device.eswitch.len(), lab.manager.kept()), (0, None));
        lab.run(40, &[1, 2]);
        assert_eq!([1, 2].map(|port| lab.status(port)), [Status::Hardware, Status::Hardware]);
    }
    [1, 2].iter().for_each(|port| lab.pin(*port, None));
    nothing_is_left(&mut lab);
}

/// Where a rule that should be gone and the one in its place match the same, nobody can tell where packets go.
#[test]
fn bad_rules_that_stay_beside_what_replaced_them_send_their_flows_to_software() {
    let (mut lab, _) = two_flows();
    lab.device.keeps = lab.device.eswitch.ids().into_iter().map(|id| (id, 1)).collect();
    lab.move_station();
    assert_eq!([1, 2].map(|port| lab.status(port).to_string()), ["refused: not now (rule)"; 2]);
    assert_eq!((lab.manager.rules(), lab.device.eswitch.len()), (0, 0));
    let before = lab.by_hardware;
    lab.run(1, &[1, 2]);
    assert_eq!(lab.by_hardware, before);
    lab.run(40, &[1, 2]);
    assert_eq!([1, 2].map(|port| lab.status(port)), [Status::Hardware, Status::Hardware]);
    nothing_is_left(&mut lab);
}
