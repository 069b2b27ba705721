//! Rules through templates and queues, on a device of our own that takes them (`testdev`, net_eswitch): answers that come
//! late and out of order, failures, full queues, the order in which chains go, and that the device holds what it is
//! believed to hold.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use common::eswitch::{Bed, Left, answers, count, queues, rule, well_behaved};
use common::{start, stop};
use pmd::{FlowDevice, FlowEngine, Port, PortConfig, PortError, StartedPort};
use rules::{Action, Attr, BackEnd, Cause, Encap, FlowRule, Modify, Removal, RuleId, Usage, Where};

/// Addresses of the rules that the device has in force.
fn held(port: &StartedPort) -> BTreeSet<u32> {
    let address = |line: &str| {
        let spec = line.split("ipv4 spec=").nth(1).unwrap().split(' ').next().unwrap();
        u32::from_str_radix(&spec[32..40], 16).unwrap()
    };
    port.flow_dump().unwrap().lines().map(address).collect()
}

#[test]
fn what_the_device_holds_is_what_was_asked_for() {
    let bed = Bed::new();
    let left = bed.run("delay=200", 64, |port, queue| {
        let made: Vec<RuleId> = (0..5000).map(|n| queue.create(&rule(1, n, None)).unwrap()).collect();
        assert!(queue.outstanding() <= 64);
        // More than the queue holds wait here, more than a table holds are in several.
        assert!(answers(queue, made.len()).values().all(|fine| *fine));
        assert_eq!(held(port), (0..5000).collect());
        assert_eq!(count(port, "flow_tables"), 5);
        assert_eq!(count(port, "flow_again"), 0, "a queue that is known to be full is not asked");
        for id in made.iter().step_by(2) {
            assert_eq!(queue.destroy(*id), Ok(rules::Usage::default()));
            assert_eq!(queue.destroy(*id).unwrap_err().cause, Cause::Gone);
            assert_eq!(queue.query(*id).unwrap_err().cause, Cause::Gone);
        }
        queue.drain().unwrap();
        assert_eq!(held(port), (0..5000).filter(|n| n % 2 == 1).collect());
        // Room in older tables is used again.
        let more: Vec<RuleId> = (10_000..12_500).map(|n| queue.create(&rule(1, n, None)).unwrap()).collect();
        answers(queue, more.len());
        assert_eq!(count(port, "flow_tables"), 5);
        well_behaved(port);
    });
    assert_eq!(left, Left::default());
}

#[test]
fn answers_that_come_late_and_failures_are_told_of_the_right_rules() {
    let bed = Bed::new();
    let left = bed.run("delay=20,late=7,late-us=4000,fail=5,keep=3,busy=11,fresh=2", 32, |port, queue| {
        let made: Vec<(u32, RuleId)> =
            (0..500).map(|n| (n, queue.create(&rule(1, n, None)).unwrap())).collect();
        let results = answers(queue, made.len());
        let failed = results.values().filter(|fine| !**fine).count() as u64;
        assert_eq!((failed, count(port, "flow_create_failed")), (100, 100));
        let in_force: BTreeSet<u32> = made.iter().filter(|(_, id)| results[id]).map(|(n, _)| *n).collect();
        assert_eq!(held(port), in_force);
        assert!(count(port, "flow_again") > 40);
        // A counter that is not there yet is asked again.
        let (_, id) = made.iter().find(|(_, id)| results[id]).unwrap();
        for _ in 0..2 {
            assert_eq!(queue.query(*id).unwrap_err().cause, Cause::Again);
        }
        queue.query(*id).unwrap();
        // Every third removal comes to nothing, and is asked for again.
        for (n, id) in &made {
            let gone = queue.destroy(*id).map_err(|error| error.cause);
            assert_eq!(gone.is_ok(), in_force.contains(n), "{gone:?}");
        }
        queue.drain().unwrap();
        assert_eq!(held(port), BTreeSet::new());
        assert!(count(port, "flow_destroy_failed") > 100);
        assert_eq!(count(port, "flow_rules"), 0, "handles of rules that failed are given back, too");
        well_behaved(port);
    });
    assert_eq!(left, Left::default());
}

#[test]
fn no_packet_meets_half_a_chain_on_its_way_out() {
    let bed = Bed::new();
    let left = bed.run("delay=100,late=5,late-us=3000,keep=6", 16, |port, queue| {
        let mut chains = Vec::new();
        for chain in 0..40u32 {
            // What a group leads to is in force before it: as the manager does it.
            let mut made = Vec::new();
            for group in [3, 2, 1] {
                let group = group + 4 * chain;
                let to = (group % 4 < 3).then_some(group + 1);
                made.push(queue.create(&rule(group, chain, to)).unwrap());
                queue.drain().unwrap();
            }
            chains.push(made);
        }
        let mut results = Vec::new();
        queue.completed(&mut results);
        assert_eq!(count(port, "flow_dangling_jumps"), 0);
        // All of them go, their ends first: the queue knows better.
        for id in chains.iter().flatten() {
            queue.destroy(*id).unwrap();
        }
        queue.drain().unwrap();
        assert_eq!(count(port, "flow_rules"), 0);
        well_behaved(port);
    });
    assert_eq!(left, Left::default());
}

#[test]
fn a_rule_can_go_at_any_moment_and_come_again() {
    let bed = Bed::new();
    let left = bed.run("delay=500,fail=9", 8, |port, queue| {
        let mut results = Vec::new();
        let mut present: BTreeMap<u32, RuleId> = BTreeMap::new();
        // A generator of numbers, the same every time.
        let mut state = 1u32;
        let mut next = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        for _ in 0..20_000 {
            let address = next(64);
            match present.remove(&address) {
                Some(id) => drop(queue.destroy(id)),
                None => drop(present.insert(address, queue.create(&rule(1, address, None)).unwrap())),
            }
            if next(4) == 0 {
                queue.completed(&mut results);
            }
        }
        queue.drain().unwrap();
        queue.completed(&mut results);
        let failed: BTreeSet<RuleId> =
            results.iter().filter(|(_, result)| result.is_err()).map(|(id, _)| *id).collect();
        let expected: BTreeSet<u32> =
            present.iter().filter(|(_, id)| !failed.contains(id)).map(|(address, _)| *address).collect();
        assert_eq!(held(port), expected);
        well_behaved(port);
        queue.flush().unwrap();
        assert_eq!(count(port, "flow_rules"), 0);
    });
    assert_eq!(left, Left::default());
}

#[test]
fn a_device_that_never_takes_an_operation_is_told_of() {
    let bed = Bed::new();
    let left = bed.run("busy=1", 8, |_, queue| {
        let id = queue.create(&rule(1, 1, None)).unwrap();
        let mut results = Vec::new();
        let began = Instant::now();
        while results.is_empty() {
            queue.completed(&mut results);
            assert!(began.elapsed() < Duration::from_secs(10));
        }
        let [(told, Err(error))] = &results[..] else { panic!("{results:?}") };
        assert_eq!((*told, error.cause), (id, Cause::Again));
        assert!(error.message.contains("the flow queue is busy"), "{error}");
    });
    assert_eq!(left, Left::default());
}

/// Answers that keep coming are no reason to wait for all of them.
#[test]
fn a_drain_ends_though_the_device_goes_on_answering() {
    let bed = Bed::new();
    let left = bed.run("late=1,late-us=100000", 8, |port, queue| {
        let made: Vec<RuleId> = (0..200).map(|n| queue.create(&rule(1, n, None)).unwrap()).collect();
        assert!(answers(queue, made.len()).values().all(|fine| *fine));
        for id in &made {
            queue.destroy(*id).unwrap();
        }
        let began = Instant::now();
        let error = queue.drain().unwrap_err();
        assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
        assert_eq!(error.cause, Cause::Again, "{error}");
        assert!(count(port, "flow_rules") > 0);
        // They go all the same, when their turn comes.
        while queue.drain().is_err() {
            assert!(began.elapsed() < Duration::from_secs(20));
        }
        assert_eq!(count(port, "flow_rules"), 0);
        well_behaved(port);
    });
    assert_eq!(left, Left::default());
}

#[test]
fn a_rule_that_the_device_keeps_is_asked_for_until_it_goes() {
    let bed = Bed::new();
    let left = bed.run("keep=1", 8, |port, queue| {
        let id = queue.create(&rule(1, 1, None)).unwrap();
        assert_eq!(answers(queue, 1), BTreeMap::from([(id, true)]));
        assert_eq!(queue.removal(id), Removal::Done, "none was asked for");
        queue.destroy(id).unwrap();
        assert_eq!(queue.removal(id), Removal::UnderWay);
        let error = queue.drain().unwrap_err();
        assert!(error.message.contains("does not let 1 rules go"), "{error}");
        let removal = queue.removal(id);
        assert!(
            matches!(&removal, Removal::Refused(error) if error.message.contains("did not do it")),
            "{removal:?}"
        );
        let asked = count(port, "flow_destroy_failed");
        assert!(asked >= 8);
        std::thread::sleep(Duration::from_millis(600));
        queue.push();
        queue.push();
        assert_eq!(count(port, "flow_destroy_failed"), asked + 1, "once in a while, not all the time");
    });
    // With its table, and the templates of that.
    assert_eq!(left, Left { rules: 1, tables: 1, templates: 2, ..Left::default() });
}

/// Whoever uses the synchronous calls asks again itself.
#[test]
fn a_rule_that_the_device_keeps_is_still_there_without_queues() {
    let bed = Bed::new();
    let port = Port::attach(&bed.eal, "net_eswitch0", "keep=2").unwrap();
    let config = PortConfig { flow_engine: FlowEngine::Sync, ..PortConfig::default() };
    let (port, rx, tx) = start(port, &config, &bed.pool);
    let mut device = FlowDevice::new(&port).unwrap();
    let [first, second] = [1, 2].map(|address| device.create(&rule(1, address, None)).unwrap());
    device.destroy(first).unwrap();
    let error = device.destroy(second).unwrap_err();
    assert_eq!((error.cause, error.at), (Cause::Again, Where::Handle), "{error}");
    assert!(error.message.contains("the rule is in use"), "{error}");
    assert_eq!((device.len(), count(&port, "flow_rules"), count(&port, "flow_destroy_failed")), (1, 1, 1));
    assert_eq!(device.query(second), Ok(Usage::default()));
    device.destroy(second).unwrap();
    assert_eq!((device.len(), count(&port, "flow_rules")), (0, 0));
    assert_eq!(device.destroy(second).unwrap_err().cause, Cause::Gone);
    // A command that failed does not say that the device is gone, nor its rules.
    let third = device.create(&rule(1, 3, None)).unwrap();
    assert_eq!(device.destroy(third).unwrap_err().cause, Cause::Other(libc::EIO));
    assert_eq!((device.len(), count(&port, "flow_rules"), count(&port, "flow_destroy_failed")), (1, 1, 2));
    device.destroy(third).unwrap();
    assert_eq!((device.len(), count(&port, "flow_rules")), (0, 0));
    drop(device);
    well_behaved(&port);
    stop(port, rx, tx).detach().unwrap();
}

/// A counter may come and go a little later than its rule. One that stays away takes its rule along.
#[test]
fn a_rule_whose_counter_is_lost_is_gone() {
    let bed = Bed::new();
    let left = bed.run("lost=1", 8, |_, queue| {
        let id = queue.create(&rule(1, 1, None)).unwrap();
        answers(queue, 1);
        let began = Instant::now();
        let error = loop {
            let error = queue.query(id).unwrap_err();
            assert!(error.message.contains("there is no such counter"), "{error}");
            if error.cause != Cause::Again || began.elapsed() > Duration::from_secs(10) {
                break error;
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        assert_eq!(error.cause, Cause::Gone);
        assert!(began.elapsed() >= Duration::from_secs(2));
        // What the device has of it still goes.
        assert_eq!(queue.destroy(id), Ok(Usage::default()));
        queue.drain().unwrap();
    });
    assert_eq!(left, Left::default());
}

#[test]
fn forms_that_hardware_steering_refuses_are_refused_by_name() {
    let bed = Bed::new();
    let left = bed.run("", 8, |port, queue| {
        let base = rule(1, 1, None);
        let with = |actions: Vec<Action>| FlowRule { actions, ..base.clone() };
        // Ethernet, IPv4, UDP, VxLAN; the VNI tells one from another.
        let encap = |vni: u8| {
            let mut header = [0; 50];
            (header[12], header[14], header[23], header[48]) = (8, 0x45, 17, vni);
            Action::RawEncap(Encap::new(&header).unwrap())
        };
        let out = Action::RepresentedPort { port: port.id().get() };
        let cases = [
            (with(vec![Action::Jump { group: 0 }]), Where::Action(0), "jump to the root table"),
            (with(vec![encap(1), Action::Count, out]), Where::Action(1), "the order of actions"),
            (with(vec![Action::Count]), Where::ActionNum, "exactly one action"),
            (with(vec![Action::PortId { id: 1 }]), Where::Action(0), "not supported"),
            (with(vec![Action::Meter { mtr_id: 1 }, Action::Drop]), Where::Action(0), "there is no meter 1"),
            (
                FlowRule { attr: Attr::transfer(1, 30_000), ..base.clone() },
                Where::Unspecified,
                "priorities end",
            ),
        ];
        for (rule, at, words) in cases {
            let error = queue.validate(&rule).unwrap_err();
            assert!(error.message.contains(words), "{rule}: {error}");
            assert!(error.at == at || at == Where::Unspecified, "{rule}: {error}");
            assert_eq!(queue.create(&rule).unwrap_err().cause, error.cause, "{rule}");
        }
        // Headers of one length share a table, whatever is in them.
        for n in [1, 2] {
            let actions = vec![Action::Count, encap(n), out];
            queue.create(&FlowRule { actions, ..rule(1, n.into(), None) }).unwrap();
        }
        answers(queue, 2);
        let dump = port.flow_dump().unwrap();
        assert_eq!(dump.lines().filter(|line| line.contains("raw_encap conf=")).count(), 2);
        assert!(dump.contains("0100 represented_port") && dump.contains("0200 represented_port"), "{dump}");
        well_behaved(port);
    });
    assert_eq!(left, Left::default());
}

/// Rules that write different values into one register share a table, and each writes its own.
#[test]
fn what_a_rule_brings_itself_is_its_own() {
    let bed = Bed::new();
    let left = bed.run("", 8, |port, queue| {
        for n in [0x0a0b_0c01u32, 0x0a0b_0c02] {
            let write = Action::ModifyField(Modify::Tag { index: 1, data: n });
            let actions = vec![Action::Count, write, Action::Jump { group: 2 }];
            queue.create(&FlowRule { actions, ..rule(1, n, None) }).unwrap();
        }
        answers(queue, 2);
        assert_eq!(count(port, "flow_tables"), 1);
        let dump = port.flow_dump().unwrap();
        for (line, last) in dump.lines().zip(["01", "02"]) {
            let conf = line.split("modify_field conf=").nth(1).unwrap().split(' ').next().unwrap();
            assert!(conf.contains(&format!("{last}0c0b0a")), "{line}");
        }
    });
    // Both rules lead to where nothing is.
    assert_eq!(left, Left { dangling_jumps: 2, ..Left::default() });
}

#[test]
fn the_engine_is_set_up_once_and_where_there_is_one() {
    let bed = Bed::new();
    let config = |flow_engine| PortConfig { flow_engine, ..PortConfig::default() };
    let mut port = Port::attach(&bed.eal, "net_eswitch0", "queues=2,depth=16").unwrap();
    for engine in [FlowEngine::Auto(queues(4096)), FlowEngine::Async(queues(8))] {
        // More than there is is not asked for. Started again, the port has what it had.
        let (started, rx, tx) = start(port, &config(engine), &bed.pool);
        let mut queue = started.flow_queue(0).unwrap();
        for n in 0..100 {
            queue.create(&rule(1, n, None)).unwrap();
            assert!(queue.outstanding() <= 16);
        }
        answers(&mut queue, 100);
        assert_eq!(started.flow_queue(1).unwrap_err().cause, Cause::Invalid, "one queue was asked for");
        drop(queue);
        well_behaved(&started);
        port = stop(started, rx, tx);
    }
    let (started, rx, tx) = start(port, &config(FlowEngine::Sync), &bed.pool);
    assert_eq!(started.flow_queue(0).unwrap_err().cause, Cause::Invalid);
    stop(started, rx, tx).detach().unwrap();

    // A device without queues: `Async` does not start, `Auto` does without.
    let port = Port::attach(&bed.eal, "net_eswitch1", "queues=0").unwrap();
    let (port, error) = port.start(&config(FlowEngine::Async(queues(8))), &bed.pool).map(|_| ()).unwrap_err();
    let PortError::FlowQueues { error, .. } = error else { panic!("{error}") };
    assert_eq!(error.cause, Cause::Unsupported);
    let (port, rx, tx) = start(port, &config(FlowEngine::Auto(queues(8))), &bed.pool);
    let mut device = FlowDevice::new(&port).unwrap();
    assert!(!device.is_queued());
    let id = device.create(&rule(1, 1, None)).unwrap();
    assert_eq!(held(&port), BTreeSet::from([1]));
    device.destroy(id).unwrap();
    drop(device);
    well_behaved(&port);
    stop(port, rx, tx).detach().unwrap();
}

#[test]
fn the_proxy_is_known_before_it_starts_and_stops_last() {
    let bed = Bed::new();
    let attach = |name, args| Port::attach(&bed.eal, name, args).unwrap();
    let representor = attach("net_eswitch1", "representor=0");
    assert_eq!(representor.transfer_proxy().unwrap_err().cause, Cause::NoDevice, "its uplink is not there");
    let uplink = attach("net_eswitch0", "");
    assert_eq!(representor.transfer_proxy().unwrap(), uplink.id());
    assert_eq!(uplink.transfer_proxy().unwrap(), uplink.id());
    let (representor, error) = representor.start(&PortConfig::default(), &bed.pool).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("transfer proxy port must be started first"), "{error}");

    let config = PortConfig { flow_engine: FlowEngine::Async(queues(8)), ..PortConfig::default() };
    let (uplink, uplink_rx, uplink_tx) = start(uplink, &config, &bed.pool);
    let (representor, rx, tx) = start(representor, &PortConfig::default(), &bed.pool);
    let mut device = FlowDevice::new(&uplink).unwrap();
    device.join(&representor).unwrap();
    assert!(device.is_queued());
    let error = FlowDevice::new(&representor).map(|_| ()).unwrap_err();
    assert!(error.message.contains("start that one first"), "{error}");
    // A rule from one to the other.
    let to = Action::RepresentedPort { port: representor.id().get() };
    device.create(&FlowRule { actions: vec![Action::Count, to], ..rule(1, 7, None) }).unwrap();
    device.drain().unwrap();
    assert_eq!(held(&uplink), BTreeSet::from([7]));
    let error = representor.flows().create(&rule(1, 8, None)).unwrap_err();
    assert_eq!(error.at, Where::AttrTransfer);
    drop(device);
    let (uplink, uplink_rx, uplink_tx, error) = uplink.stop(uplink_rx, uplink_tx).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("EBUSY"), "{error}");
    stop(representor, rx, tx).detach().unwrap();
    well_behaved(&uplink);
    stop(uplink, uplink_rx, uplink_tx).detach().unwrap();
}
