//! Rates with hardware steering, on a device of our own (`testdev`, net_eswitch) whose meters are as mlx5's: each gets the
//! rates that a profile has when it is made or changed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::collections::BTreeMap;

use common::eswitch::{Bed, answers, count, rule, well_behaved};
use common::stop;
use pmd::StartedPort;
use rules::{Action, BackEnd, Cause, FlowRule, Meter, Where};

/// A driver with one profile for all meters, as mlx5 of 22.11, and one with as many as wanted, as later releases.
const DRIVERS: [&str; 2] = ["profiles=1", "profiles=0"];

fn meter(cir: u64) -> Meter {
    Meter { cir, cbs: 4096, eir: 0, ebs: 8192 }
}

/// A rule about this address whose packets this meter colours.
fn metered(address: u32, mtr_id: u32) -> FlowRule {
    let actions = vec![Action::Count, Action::Meter { mtr_id }, Action::Jump { group: 2 }];
    FlowRule { actions, ..rule(1, address, None) }
}

/// The committed rate by which packets of each address are metered in the device.
fn rates(port: &StartedPort) -> BTreeMap<u32, u64> {
    let dump = port.flow_dump().unwrap();
    let meters: BTreeMap<u32, u64> = dump
        .lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("meter ")?.split(' ');
            let number = words.next()?.parse().ok()?;
            Some((number, words.nth(1)?.parse().ok()?))
        })
        .collect();
    let hex = |text: &str| u32::from_str_radix(text, 16).unwrap();
    let of_rule = |line: &str| {
        let number = &line.split_once(" indirect conf=")?.1[..8];
        let address = &line.split_once("ipv4 spec=")?.1[32..40];
        Some((hex(address), *meters.get(&hex(number).swap_bytes())?))
    };
    dump.lines().filter_map(of_rule).collect()
}

#[test]
fn each_rule_is_metered_by_its_own_rate() {
    let bed = Bed::new();
    for driver in DRIVERS {
        let (port, rx, tx) = bed.uplink(&format!("{driver},delay=300,busy=3"), 8);
        let mut queue = port.flow_queue(0).unwrap();
        queue.create(&rule(2, 0, None)).unwrap();
        queue.drain().unwrap();
        for mtr_id in [7, 9] {
            queue.set_meter(mtr_id, Some(meter(u64::from(mtr_id) * 1000))).unwrap();
        }
        for address in 0..20 {
            queue.create(&metered(address, if address < 10 { 7 } else { 9 })).unwrap();
        }
        assert!(answers(&mut queue, 21).values().all(|fine| *fine));
        let expected = |low, high| (0..20).map(|n| (n, if n < 10 { low } else { high })).collect();
        assert_eq!(rates(&port), expected(7000, 9000), "{driver}");
        assert_eq!(count(&port, "flow_tables"), 2, "rules of two meters share a table");

        // New rates are those of rules that are there, and of no others.
        queue.set_meter(7, Some(meter(50_000))).unwrap();
        assert_eq!(rates(&port), expected(50_000, 9000), "{driver}");
        queue.set_meter(9, Some(meter(1))).unwrap();
        assert_eq!(rates(&port), expected(50_000, 1), "{driver}");
        queue.flush().unwrap();
        assert_eq!(count(&port, "flow_meters"), 2);
        queue.set_meter(7, None).unwrap();
        assert_eq!(
            (queue.set_meter(7, None).unwrap_err().cause, count(&port, "flow_meters")),
            (Cause::Gone, 1)
        );
        // A number that comes again is another meter.
        queue.set_meter(7, Some(meter(3))).unwrap();
        queue.create(&rule(2, 0, None)).unwrap();
        queue.drain().unwrap();
        queue.create(&metered(1, 7)).unwrap();
        queue.drain().unwrap();
        assert_eq!(rates(&port), BTreeMap::from([(1, 3)]), "{driver}");
        well_behaved(&port);
        drop(queue);
        assert_eq!((count(&port, "flow_rules"), count(&port, "flow_meters")), (0, 0), "{driver}");
        well_behaved(&port);
        stop(port, rx, tx).detach().unwrap();
    }
}

/// Meters are asked to go before the rules that name them have gone, as the store does it.
#[test]
fn a_meter_goes_behind_the_rules_that_name_it() {
    let bed = Bed::new();
    for driver in DRIVERS {
        let (port, rx, tx) = bed.uplink(&format!("{driver},delay=200,late=5,late-us=3000"), 4);
        let mut queue = port.flow_queue(0).unwrap();
        queue.create(&rule(2, 0, None)).unwrap();
        queue.drain().unwrap();
        for round in 0..20 {
            queue.set_meter(1, Some(meter(1000 + round))).unwrap();
            let made: Vec<_> = (0..8).map(|n| queue.create(&metered(n, 1)).unwrap()).collect();
            if round % 2 == 0 {
                queue.drain().unwrap();
                assert_eq!(rates(&port), (0..8).map(|n| (n, 1000 + round)).collect(), "{driver}");
            }
            for id in made {
                queue.destroy(id).unwrap();
            }
            queue.set_meter(1, None).unwrap();
        }
        queue.drain().unwrap();
        assert_eq!((count(&port, "flow_rules"), count(&port, "flow_meters")), (1, 0), "{driver}");
        well_behaved(&port);
        drop(queue);
        stop(port, rx, tx).detach().unwrap();
    }
}

#[test]
fn a_meter_that_is_refused_is_named_and_no_rule_gets_it() {
    let bed = Bed::new();
    for driver in DRIVERS {
        let (port, rx, tx) = bed.uplink(&format!("{driver},meters=2"), 8);
        let mut queue = port.flow_queue(0).unwrap();
        let error = queue.create(&metered(1, 1)).unwrap_err();
        assert_eq!((error.cause, error.at), (Cause::Gone, Where::Action(1)));
        assert!(error.message.contains("there is no meter 1"), "{error}");
        for mtr_id in [1, 2] {
            queue.set_meter(mtr_id, Some(meter(1000))).unwrap();
        }
        let error = queue.set_meter(3, Some(meter(9000))).unwrap_err();
        assert_eq!((error.cause, error.message.as_str()), (Cause::Full, "there is no meter left"));
        assert_eq!(queue.validate(&metered(1, 3)).unwrap_err().cause, Cause::Gone);
        // What was written for it changes nothing for the others.
        queue.create(&metered(1, 1)).unwrap();
        queue.drain().unwrap();
        assert_eq!(rates(&port), BTreeMap::from([(1, 1000)]));
        queue.set_meter(2, None).unwrap();
        queue.set_meter(3, Some(meter(9000))).unwrap();
        queue.create(&metered(2, 3)).unwrap();
        queue.drain().unwrap();
        assert_eq!(rates(&port), BTreeMap::from([(1, 1000), (2, 9000)]));
        drop(queue);
        assert_eq!(count(&port, "flow_misused"), 0);
        stop(port, rx, tx).detach().unwrap();
    }
}

/// Every third operation comes to nothing: a meter is there with its rates, or not at all.
#[test]
fn a_meter_that_the_device_does_not_make_is_given_back() {
    let bed = Bed::new();
    for driver in DRIVERS {
        let (port, rx, tx) = bed.uplink(&format!("{driver},fail=3,delay=50"), 8);
        let mut queue = port.flow_queue(0).unwrap();
        let made: Vec<bool> = (0..9).map(|n| queue.set_meter(n, Some(meter(1000))).is_ok()).collect();
        assert_eq!(made, [true, true, false].repeat(3));
        assert_eq!(count(&port, "flow_meters"), 6);
        // A change that comes to nothing is told of, and can be asked for again.
        let changed: Vec<bool> = [0, 1, 3, 3].map(|n| queue.set_meter(n, Some(meter(2000))).is_ok()).to_vec();
        assert_eq!(changed, [true, true, false, true]);
        queue.create(&metered(3, 3)).unwrap();
        queue.drain().unwrap();
        assert_eq!(rates(&port), BTreeMap::from([(3, 2000)]));
        drop(queue);
        assert_eq!((count(&port, "flow_meters"), count(&port, "flow_misused")), (0, 0));
        stop(port, rx, tx).detach().unwrap();
    }
}

/// Given back, it would be given out again, and the rule metered by the rates of others.
#[test]
fn a_meter_stays_as_long_as_a_rule_that_the_device_keeps() {
    let bed = Bed::new();
    let (port, rx, tx) = bed.uplink("keep=1", 8);
    let mut queue = port.flow_queue(0).unwrap();
    queue.set_meter(1, Some(meter(1000))).unwrap();
    let id = queue.create(&metered(1, 1)).unwrap();
    answers(&mut queue, 1);
    queue.destroy(id).unwrap();
    queue.set_meter(1, None).unwrap();
    for _ in 0..2 {
        let error = queue.drain().unwrap_err();
        assert!(error.message.contains("does not let 1 rules go"), "{error}");
        assert_eq!((rates(&port), count(&port, "flow_meters")), (BTreeMap::from([(1, 1000)]), 1));
    }
    // Wanted again before it went, it is the same one.
    queue.set_meter(1, Some(meter(2000))).unwrap();
    assert_eq!((rates(&port), count(&port, "flow_meters")), (BTreeMap::from([(1, 2000)]), 1));
    assert_eq!(count(&port, "flow_misused"), 0);
    drop(queue);
    stop(port, rx, tx).detach().unwrap();
}

/// A device that never answers holds nobody up for long.
#[test]
fn a_meter_that_the_device_never_answers_for_is_no_meter() {
    let bed = Bed::new();
    let (port, rx, tx) = bed.uplink("delay=60000000", 8);
    let mut queue = port.flow_queue(0).unwrap();
    let began = std::time::Instant::now();
    let error = queue.set_meter(1, Some(meter(1000))).unwrap_err();
    assert!(error.message.contains("has not answered for a second"), "{error}");
    drop(queue);
    assert!(began.elapsed() < std::time::Duration::from_secs(15), "{:?}", began.elapsed());
    stop(port, rx, tx).detach().unwrap();
}
