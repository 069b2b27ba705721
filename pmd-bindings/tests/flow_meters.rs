//! Rates with hardware steering, on a device of our own (`testdev`, net_eswitch) whose meters are as mlx5's: each gets the
//! rates that a profile has when it is made or changed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::eswitch::{Bed, Left, answers, count, queues, rule, well_behaved};
use pmd::{FlowQueue, StartedPort};
use rules::{Action, BackEnd, Cause, FlowError, FlowRule, Meter, RuleId, Where};

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

/// Makes or changes a meter, and waits for the device. What that said.
fn set(queue: &mut FlowQueue, mtr_id: u32, cir: u64) -> Result<(), FlowError> {
    queue.set_meter(mtr_id, Some(meter(cir)))?;
    queue.drain().unwrap();
    failed(queue).into_iter().find(|(failed, _)| *failed == mtr_id).map_or(Ok(()), |(_, error)| Err(error))
}

fn failed(queue: &mut FlowQueue) -> Vec<(u32, FlowError)> {
    let mut failed = Vec::new();
    queue.failed_meters(&mut failed);
    failed
}

/// Makes a rule, and waits until it is in force.
fn enter(queue: &mut FlowQueue, rule: &FlowRule) -> RuleId {
    let id = queue.create(rule).unwrap();
    queue.drain().unwrap();
    id
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
        let left = bed.run(&format!("{driver},delay=300,busy=3"), 8, |port, queue| {
            enter(queue, &rule(2, 0, None));
            for mtr_id in [7, 9] {
                queue.set_meter(mtr_id, Some(meter(u64::from(mtr_id) * 1000))).unwrap();
            }
            for address in 0..20 {
                queue.create(&metered(address, if address < 10 { 7 } else { 9 })).unwrap();
            }
            assert!(answers(queue, 21).values().all(|fine| *fine));
            let expected = |low, high| (0..20).map(|n| (n, if n < 10 { low } else { high })).collect();
            assert_eq!(rates(port), expected(7000, 9000), "{driver}");
            assert_eq!(count(port, "flow_tables"), 2, "rules of two meters share a table");

            // New rates are those of rules that are there, and of no others.
            set(queue, 7, 50_000).unwrap();
            assert_eq!(rates(port), expected(50_000, 9000), "{driver}");
            set(queue, 9, 1).unwrap();
            assert_eq!(rates(port), expected(50_000, 1), "{driver}");
            // Of rates that follow each other faster than the device the last ones hold.
            for cir in [2, 3, 4] {
                queue.set_meter(9, Some(meter(cir))).unwrap();
            }
            queue.drain().unwrap();
            assert_eq!(rates(port), expected(50_000, 4), "{driver}");
            queue.flush().unwrap();
            assert_eq!(count(port, "flow_meters"), 2);
            queue.set_meter(7, None).unwrap();
            queue.drain().unwrap();
            assert_eq!(
                (queue.set_meter(7, None).unwrap_err().cause, count(port, "flow_meters")),
                (Cause::Gone, 1)
            );
            // A number that comes again is another meter.
            queue.set_meter(7, Some(meter(3))).unwrap();
            enter(queue, &rule(2, 0, None));
            enter(queue, &metered(1, 7));
            assert_eq!(rates(port), BTreeMap::from([(1, 3)]), "{driver}");
        });
        assert_eq!(left, Left::default(), "{driver}");
    }
}

/// Meters are asked to go before the rules that name them have gone, as the store does it.
#[test]
fn a_meter_goes_behind_the_rules_that_name_it() {
    let bed = Bed::new();
    for driver in DRIVERS {
        let left = bed.run(&format!("{driver},delay=200,late=5,late-us=3000"), 4, |port, queue| {
            enter(queue, &rule(2, 0, None));
            for round in 0..20 {
                queue.set_meter(1, Some(meter(1000 + round))).unwrap();
                let made: Vec<_> = (0..8).map(|n| queue.create(&metered(n, 1)).unwrap()).collect();
                if round % 2 == 0 {
                    queue.drain().unwrap();
                    assert_eq!(rates(port), (0..8).map(|n| (n, 1000 + round)).collect(), "{driver}");
                }
                for id in made {
                    queue.destroy(id).unwrap();
                }
                queue.set_meter(1, None).unwrap();
            }
            queue.drain().unwrap();
            assert_eq!((count(port, "flow_rules"), count(port, "flow_meters")), (1, 0), "{driver}");
        });
        assert_eq!(left, Left::default(), "{driver}");
    }
}

#[test]
fn a_meter_that_is_refused_is_named_and_no_rule_gets_it() {
    let bed = Bed::new();
    for driver in DRIVERS {
        let left = bed.run(&format!("{driver},meters=2"), 8, |port, queue| {
            let error = queue.create(&metered(1, 1)).unwrap_err();
            assert_eq!((error.cause, error.at), (Cause::Gone, Where::Action(1)));
            assert!(error.message.contains("there is no meter 1"), "{error}");
            for mtr_id in [1, 2] {
                queue.set_meter(mtr_id, Some(meter(1000))).unwrap();
            }
            let error = queue.set_meter(3, Some(meter(9000))).unwrap_err();
            assert_eq!((error.cause, error.message.as_str()), (Cause::Full, "there is no meter left"));
            assert_eq!(queue.validate(&metered(1, 3)).unwrap_err().cause, Cause::Gone);
            enter(queue, &rule(2, 0, None));
            // What was written for it changes nothing for the others.
            enter(queue, &metered(1, 1));
            assert_eq!(rates(port), BTreeMap::from([(1, 1000)]));
            queue.set_meter(2, None).unwrap();
            queue.set_meter(3, Some(meter(9000))).unwrap();
            enter(queue, &metered(2, 3));
            assert_eq!(rates(port), BTreeMap::from([(1, 1000), (2, 9000)]));
        });
        assert_eq!(left, Left::default(), "{driver}");
    }
}

/// Every third operation comes to nothing: a meter is there with its rates, or not at all.
#[test]
fn a_meter_that_the_device_does_not_make_is_given_back() {
    let bed = Bed::new();
    for driver in DRIVERS {
        let left = bed.run(&format!("{driver},fail=3,delay=50"), 8, |port, queue| {
            let made: Vec<bool> = (0..9).map(|n| set(queue, n, 1000).is_ok()).collect();
            assert_eq!(made, [true, true, false].repeat(3));
            assert_eq!(count(port, "flow_meters"), 6);
            // A change that comes to nothing is told of, and can be asked for again.
            let changed: Vec<bool> = [0, 1, 3, 3].map(|n| set(queue, n, 2000).is_ok()).to_vec();
            assert_eq!(changed, [true, true, false, true]);
            queue.create(&metered(3, 3)).unwrap();
            assert!(answers(queue, 1).values().all(|fine| *fine));
            assert_eq!(rates(port), BTreeMap::from([(3, 2000)]));
            // Rules that wait for a meter that is not made fail with it; the others go on.
            queue.set_meter(20, Some(meter(1000))).unwrap();
            let rule = queue.create(&metered(4, 20)).unwrap();
            assert_eq!(answers(queue, 1), BTreeMap::from([(rule, false)]));
            let [(20, error)] = &failed(queue)[..] else { panic!("meter 20 was made") };
            assert_eq!(error.cause, Cause::Other(libc::EIO));
            assert_eq!(queue.create(&metered(4, 20)).unwrap_err().cause, Cause::Gone);
        });
        // Nothing is in force where those rules lead to.
        assert_eq!(left, Left { dangling_jumps: 1, ..Left::default() }, "{driver}");
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
    queue.drain().unwrap_err();
    assert_eq!((rates(&port), count(&port, "flow_meters")), (BTreeMap::from([(1, 2000)]), 1));
    assert_eq!(count(&port, "flow_misused"), 0);
    drop(queue);
    // The rule is there, hence its meter, hence the profile that this was made with.
    assert_eq!((rates(&port), count(&port, "flow_meters")), (BTreeMap::from([(1, 2000)]), 1));
    assert_eq!((count(&port, "flow_profiles"), count(&port, "flow_misused")), (1, 0));
    let (port, rx, tx) = bed.start(common::stop(port, rx, tx), 8);
    assert_eq!((count(&port, "flow_meters"), count(&port, "flow_profiles")), (0, 0));
    common::stop(port, rx, tx).detach().unwrap();
}

/// Every second removal comes to nothing, and is asked for again: meters and their profiles are not used up.
#[test]
fn a_meter_that_the_device_keeps_is_asked_for_until_it_goes() {
    let bed = Bed::new();
    for driver in DRIVERS {
        let left = bed.run(&format!("{driver},meters=4,keep=2,delay=20"), 8, |port, queue| {
            for round in 0..50 {
                queue.set_meter(round, Some(meter(1000))).unwrap();
                queue.set_meter(round, None).unwrap();
                queue.push();
            }
            queue.drain().unwrap();
            assert!(count(port, "flow_destroy_failed") >= 40);
            assert_eq!(count(port, "flow_meters"), 0);
        });
        assert_eq!(left, Left::default(), "{driver}");
    }
    // One that never goes is told of, and asked for once in a while.
    let left = bed.run("keep=1", 8, |port, queue| {
        set(queue, 1, 1000).unwrap();
        queue.set_meter(1, None).unwrap();
        let error = queue.drain().unwrap_err();
        assert!(error.message.contains("does not let 1 meters go"), "{error}");
        assert_eq!(queue.create(&metered(1, 1)).unwrap_err().cause, Cause::Gone);
        // Its number can be another's.
        queue.set_meter(1, Some(meter(2000))).unwrap();
        queue.drain().unwrap_err();
        assert_eq!((failed(queue), count(port, "flow_meters")), (Vec::new(), 2));
        let asked = count(port, "flow_destroy_failed");
        std::thread::sleep(Duration::from_millis(600));
        queue.push();
        queue.push();
        assert_eq!(count(port, "flow_destroy_failed"), asked + 1, "once in a while, not all the time");
    });
    assert_eq!(left, Left { meters: 2, profiles: 2, ..Left::default() });
}

/// Control has other things to do: with a device that stops answering it asks for all changes and goes on.
#[test]
fn nobody_waits_for_meters_that_the_device_does_not_answer_for() {
    const CLASSES: u32 = 300;
    let bed = Bed::new();
    let began = Instant::now();
    for driver in DRIVERS {
        bed.run(&format!("{driver},mute={CLASSES}"), 1024, |port, queue| {
            for mtr_id in 0..CLASSES {
                queue.set_meter(mtr_id, Some(meter(1000))).unwrap();
            }
            queue.drain().unwrap();
            for mtr_id in 0..CLASSES {
                queue.set_meter(mtr_id, Some(meter(2000))).unwrap();
            }
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
            let told = told(queue, CLASSES as usize);
            assert!(told.iter().all(|(_, error)| error.cause == Cause::Again), "{told:?}");
            assert!(told[0].1.message.contains("has not answered for a second"), "{told:?}");
            // Nothing more is begun, and nobody waits to learn that.
            for mtr_id in CLASSES..2 * CLASSES {
                assert_eq!(queue.set_meter(mtr_id, Some(meter(1))).unwrap_err().cause, Cause::Again);
            }
            for mtr_id in 0..CLASSES {
                queue.set_meter(mtr_id, None).unwrap();
            }
            queue.push();
            assert_eq!(count(port, "flow_misused"), 0);
        });
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

/// Waits until so many meters were told of as failed.
#[track_caller]
fn told(queue: &mut FlowQueue, wanted: usize) -> Vec<(u32, FlowError)> {
    let (began, mut told) = (Instant::now(), Vec::new());
    while told.len() < wanted && began.elapsed() < Duration::from_secs(20) {
        queue.push();
        queue.failed_meters(&mut told);
    }
    assert_eq!(told.len(), wanted);
    told
}

#[test]
fn nobody_waits_for_meters_that_do_not_go() {
    let bed = Bed::new();
    let began = Instant::now();
    bed.run("mute=500", 1024, |_, queue| {
        for mtr_id in 0..500 {
            queue.set_meter(mtr_id, Some(meter(1000))).unwrap();
        }
        queue.drain().unwrap();
        for mtr_id in 0..500 {
            queue.set_meter(mtr_id, None).unwrap();
        }
        queue.push();
        assert_eq!(queue.outstanding(), 500);
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert_eq!(queue.drain().unwrap_err().cause, Cause::Again);
    });
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// A rule that names a meter before the device has made it would be refused, or metered by nobody knows what.
#[test]
fn rules_wait_for_their_meter() {
    let bed = Bed::new();
    let left = bed.run("delay=100000", 8, |port, queue| {
        queue.create(&rule(2, 0, None)).unwrap();
        queue.set_meter(1, Some(meter(1000))).unwrap();
        let made: Vec<RuleId> = (0..20).map(|n| queue.create(&metered(n, 1)).unwrap()).collect();
        // Those that are not wanted any more before it is made never come.
        for id in &made[5..] {
            assert_eq!(queue.destroy(*id), Ok(rules::Usage::default()));
        }
        assert_eq!(count(port, "flow_rules"), 1);
        assert!(answers(queue, 6).values().all(|fine| *fine));
        assert_eq!(rates(port), (0..5).map(|n| (n, 1000)).collect());
        well_behaved(port);
    });
    assert_eq!(left, Left::default());
}

/// The answer comes when nobody counts on it any more: the meter goes, and its number can be used again.
#[test]
fn a_meter_that_comes_too_late_is_no_meter() {
    let bed = Bed::new();
    for driver in DRIVERS {
        let left = bed.run(&format!("{driver},delay=1300000"), 8, |port, queue| {
            queue.set_meter(1, Some(meter(1000))).unwrap();
            let rule = queue.create(&metered(1, 1)).unwrap();
            assert_eq!(answers(queue, 1), BTreeMap::from([(rule, false)]));
            let [(1, error)] = &failed(queue)[..] else { panic!("meter 1 was made") };
            assert!(error.message.contains("has not answered for a second"), "{error}");
            assert_eq!(queue.create(&metered(1, 1)).unwrap_err().cause, Cause::Gone);
            assert_eq!(queue.set_meter(1, Some(meter(1000))).unwrap_err().cause, Cause::Again);
            assert_eq!(count(port, "flow_meters"), 1);
            let began = Instant::now();
            while count(port, "flow_meters") > 0 {
                queue.push();
                assert!(began.elapsed() < Duration::from_secs(20));
            }
            queue.push();
            assert_eq!((queue.outstanding(), failed(queue)), (0, Vec::new()));
            queue.set_meter(1, Some(meter(1000))).unwrap();
            assert_eq!(count(port, "flow_meters"), 1);
            assert_eq!(count(port, "flow_misused"), 0);
        });
        // The last one was on its way when the queue went.
        assert_eq!((left.meters, left.misused), (1, 0), "{driver}");
    }
}

/// What was left of a run of the port is in nobody's way in the next one.
#[test]
fn a_port_that_starts_again_has_rates_again() {
    let bed = Bed::new();
    for driver in DRIVERS {
        let (mut port, mut rx, mut tx) = bed.uplink(&format!("{driver},mute=1"), 8);
        for _ in 0..3 {
            let mut queue = port.flow_queue(0).unwrap();
            queue.set_meter(1, Some(meter(1000))).unwrap();
            queue.set_meter(2, Some(meter(1000))).unwrap();
            drop(queue);
            (port, rx, tx) = bed.start(common::stop(port, rx, tx), 8);
            assert_eq!((count(&port, "flow_meters"), count(&port, "flow_misused")), (0, 0));
            assert!(count(&port, "flow_profiles") <= u64::from(driver == "profiles=1"), "{driver}");
        }
        common::stop(port, rx, tx).detach().unwrap();
    }
}

/// The device answers late, when somebody else has the queue.
#[test]
fn answers_for_an_earlier_queue_are_nobody_elses() {
    let bed = Bed::new();
    let (port, rx, tx) = bed.uplink("delay=1500000", 8);
    let began = Instant::now();
    let mut queue = port.flow_queue(0).unwrap();
    queue.set_meter(1, Some(meter(1000))).unwrap();
    queue.create(&rule(2, 0, None)).unwrap();
    drop(queue);
    let mut queue = port.flow_queue(0).unwrap();
    queue.set_meter(1, Some(meter(2000))).unwrap();
    let rule = queue.create(&metered(1, 1)).unwrap();
    let (asked, mut results) = (Instant::now(), Vec::new());
    while results.is_empty() && asked.elapsed() < Duration::from_secs(20) {
        queue.completed(&mut results);
        // As long as it surely has not answered for this queue, and is not thought to be silent.
        if asked.elapsed() < Duration::from_millis(900) {
            assert_eq!((queue.outstanding(), results.len()), (1, 0), "{:?}", began.elapsed());
        }
    }
    // It took the device more than a second, which is too long.
    let [(told, Err(_))] = &results[..] else { panic!("{results:?}") };
    assert_eq!(*told, rule);
    assert_eq!(count(&port, "flow_misused"), 0);
    drop(queue);
    common::stop(port, rx, tx).detach().unwrap();
}

/// Profiles of all meters of a port are under one lock, and the driver looks at all meters before it deletes one.
#[test]
fn queues_of_two_threads_make_and_remove_meters() {
    let bed = Bed::new();
    let two = pmd::FlowQueues { queues: 2, ..queues(64) };
    let (port, rx, tx) = bed.uplink_with("delay=1", two);
    let work = |mut queue: FlowQueue| {
        for round in 0..3000 {
            queue.set_meter(round % 16, Some(meter(1000 + u64::from(round)))).unwrap();
            if round % 16 >= 8 {
                queue.set_meter(round % 16, None).unwrap();
            }
        }
        queue.drain().unwrap();
    };
    std::thread::scope(|scope| {
        for number in 0..2 {
            let queue = port.flow_queue(number).unwrap();
            scope.spawn(move || work(queue));
        }
    });
    assert_eq!((count(&port, "flow_meters"), count(&port, "flow_profiles")), (0, 0));
    well_behaved(&port);
    common::stop(port, rx, tx).detach().unwrap();
}
