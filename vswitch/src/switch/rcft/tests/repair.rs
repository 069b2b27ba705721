//! Silent queue pairs give way to new ones, and nobody else does.

use std::collections::HashMap;

use super::*;
use proptest::prelude::*;

/// Ten seconds of silence, idle only after minutes; times of last use lag by eight ticks, hardware's by two.
const TIMES: &str = "silent-after = \"10s\"\n";
const LIMIT: u32 = 100;
const LAG: u32 = 8 + 2;

fn gave_way(world: &World) -> Vec<serde_json::Value> {
    world.events.iter().filter(|event| event.kind == "qps-gave-way").map(|event| event.json()).collect()
}

/// A program without a connection manager runs again and again: the dead queue pairs of its former runs make room.
#[test]
fn repair_silent_queue_pairs_give_way_to_new_ones() {
    let mut world = World::new(TIMES, "qp-quota = 2");
    world.opens("one", FAR, 10..11);
    world.pass(20);
    world.opens("one", FAR, 11..12);
    world.pass(60);
    assert!(refused(world.send("one", FAR, 12)));
    world.pass(20);
    assert!(refused(world.send("one", FAR, 12)), "nobody was silent for long enough");
    assert!(gave_way(&world).is_empty());
    world.pass(LAG + 1);
    assert_eq!(
        world.send("one", FAR, 12),
        QpOutcome::Opened,
        "the one that was silent for longest made room"
    );
    assert_eq!(world.send("one", FAR, 11), QpOutcome::Pass, "the other one did not");
    assert_eq!(world.used("one"), 2);
    let [event] = &gave_way(&world)[..] else { panic!("one event") };
    assert_eq!((&event["vnic"], &event["count"]), (&json!("one"), &json!(1)), "{event}");
}

/// As many as are wanted leave, not all that could.
#[test]
fn repair_silent_ones_leave_one_for_one() {
    let mut world = World::new(TIMES, "qp-quota = 100");
    world.opens("one", FAR, 100..200);
    world.pass(LIMIT + LAG + 1);
    assert_eq!(world.used("one"), 100, "nobody wants their places");
    for number in 300..303 {
        assert!(refused(world.send("one", FAR, number)));
    }
    world.pass(0);
    assert_eq!(world.used("one"), 97);
    world.opens("one", FAR, 300..303);
    world.pass(50);
    assert_eq!(world.used("one"), 100, "those who got in want nothing any more");
}

/// A job restarts at its quota: all of its former queue pairs go at once, not one a second.
#[test]
fn repair_silent_job_restarts_at_its_quota() {
    let mut world = World::with_state(TIMES, "qp-quota = 3000", None, 16_384);
    world.opens("one", FAR, 2..3002);
    world.pass(LIMIT + LAG + 1);
    let mut turns = 0;
    let mut waiting: Vec<u32> = (10_000..13_000).collect();
    while !waiting.is_empty() {
        waiting.retain(|&number| refused(world.send("one", FAR, number)));
        world.pass(1);
        turns += 1;
        assert!(turns < 10, "{} still wait", waiting.len());
    }
    assert_eq!(world.used("one"), 3000);
    assert!(refused(world.send("one", FAR, 1)) && world.used("one") == 3000, "and not one more");
}

/// Below a lowered quota nobody gets in: so nobody leaves, unless enough are silent for one to get in.
#[test]
fn repair_silent_under_a_lowered_quota() {
    let mut world = World::new(TIMES, "qp-quota = 5");
    world.opens("one", FAR, 10..15);
    world.change(&text(TIMES, "qp-quota = 3"));
    world.tick += LIMIT;
    assert_eq!(world.send("one", FAR, 10), QpOutcome::Pass);
    assert_eq!(world.send("one", FAR, 11), QpOutcome::Pass);
    assert_eq!(world.send("one", FAR, 12), QpOutcome::Pass);
    world.tick += LAG + 1;
    assert!(refused(world.send("one", FAR, 20)));
    world.pass(0);
    assert_eq!(world.used("one"), 5, "two over the quota, two silent: it would help nobody");
    assert!(!world.shared.ledger.makes_room(world.index("one")), "nor would it to let a request pass");
    world.pass(LIMIT + LAG + 1);
    assert!(refused(world.send("one", FAR, 20)));
    world.pass(0);
    assert_eq!(world.used("one"), 2);
    assert_eq!(world.send("one", FAR, 20), QpOutcome::Opened);
}

/// Strangers cannot have anybody leave: only what the vNIC sends itself is wanted.
#[test]
fn repair_silent_ones_stay_whatever_comes_in() {
    let mut world = World::new(&format!("{TIMES}refuse = \"reject\""), "qp-quota = 2");
    world.opens("one", FAR, 10..12);
    world.pass(LIMIT + LAG + 1);
    let vpc = world.topology.snapshot().vnics.iter().flatten().next().unwrap().vpc;
    let vnic = world.index("one");
    let said = RocePacketFacts {
        opcode: opcode::RC_SEND_ONLY,
        psn: 1,
        bytes: 100,
        payload: 60,
        detail: 0,
        ce: false,
    };
    for number in 2..500 {
        let key = QpKey::new(Scope::Vpc(vpc), ip("10.0.0.1"), qp(number));
        let (probe, now) = (world.worker.probe(Direction::In, key), world.now());
        world.worker.received(&probe, &said, now, || Some(vnic));
    }
    world.pass(20);
    assert_eq!(world.used("one"), 2);
    // But a request for a connection is let through: it can have a place.
    assert!(world.shared.ledger.makes_room(vnic));
    for number in [10, 11] {
        assert_eq!(world.send("one", FAR, number), QpOutcome::Pass);
        world.tick += LAG;
    }
    world.pass(0);
    assert!(!world.shared.ledger.makes_room(vnic), "all of them speak: a reject is the answer again");
}

#[derive(Clone, Debug)]
enum Step {
    /// A vNIC sends to one of these queue pairs.
    Send(u32),
    /// So many ticks pass.
    Wait(u32),
    /// Control has a turn.
    Control,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (2u32..14).prop_map(Step::Send),
        3 => (0u32..60).prop_map(Step::Wait),
        3 => Just(Step::Control),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is sent whenever: never more than the quota have places, no queue pair that has one and sent within the
    /// time of silence is refused, and where one was silent for too long another one gets in.
    #[test]
    fn repair_silent_never_evicts_a_queue_pair_with_traffic(steps in steps()) {
        let mut world = World::new(TIMES, "qp-quota = 5");
        // When each queue pair that has a place sent last.
        let mut places: HashMap<u32, u32> = HashMap::new();
        for step in steps {
            match step {
                Step::Send(number) => match world.send("one", FAR, number) {
                    outcome if refused(outcome) => {
                        let last = places.remove(&number);
                        let lively = last.is_some_and(|last| world.tick - last <= LIMIT);
                        prop_assert!(!lively, "{number} spoke at {last:?}, and was refused at {}", world.tick);
                    }
                    QpOutcome::Opened => {
                        let last = places.insert(number, world.tick);
                        prop_assert!(last.is_none_or(|last| world.tick - last > LIMIT), "{number} had lost its place");
                    }
                    _ => {
                        places.insert(number, world.tick);
                    }
                },
                Step::Wait(ticks) => world.tick += ticks,
                Step::Control => world.pass(0),
            }
            prop_assert!(world.used("one") <= 5);
            let lively = places.values().filter(|last| world.tick - **last <= LIMIT).count();
            prop_assert!(lively <= 5 && lively as u32 <= world.used("one"));
        }
        // Whoever goes on asking gets in as soon as somebody was silent for long enough.
        let mut waited = 0;
        while refused(world.send("one", FAR, 99)) {
            world.pass(11);
            waited += 11;
            prop_assert!(waited <= LIMIT + LAG + 22, "everybody is silent, and it still waits");
        }
    }
}
