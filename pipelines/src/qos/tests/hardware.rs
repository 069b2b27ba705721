//! Classes with flows in hardware, of which the tree hears ten times a second.

use super::*;

const MBIT: u64 = 1_000_000;
const SYNC_NS: u64 = 100_000_000;
const SYNC_MS: u64 = SYNC_NS / 1_000_000;

/// A tenant that is greedy in software, and one that is to go into hardware, below one link.
fn neighbours() -> (Sim, Leaf) {
    let mut sim = Sim::new(2, 4);
    sim.link(GBIT);
    sim.vnic(0, 0, NodeLimits::FREE);
    sim.vnic(1, 1, NodeLimits::FREE);
    sim.senders = vec![
        Sender::new(0, Class::Tcp, Manner::Greedy),
        Sender::new(1, Class::Tcp, Manner::Blind(400 * MBIT)).on(1),
    ];
    let leaf = sim.tree.leaf(Direction::Out, 1, Class::Tcp);
    sim.run(SYNC_MS);
    (sim, leaf)
}

/// What control says after a turn of counters, of a class that did so much in hardware since the one before.
fn sync(sim: &Sim, leaf: Leaf, rate: u64, expected: u64) {
    let bytes = rate / 8 * SYNC_NS / 1_000_000_000;
    sim.tree.debit(leaf, HardwareWork { bytes, over_ns: SYNC_NS, unread_ns: SYNC_NS }, sim.now_ns);
    sim.tree.expect(leaf, expected, sim.now_ns + 2 * SYNC_NS);
}

#[test]
fn dhtb_debits_from_outside_count() {
    for every_ms in [1, SYNC_MS] {
        let mut sim = Sim::new(1, 4);
        sim.link(10 * GBIT);
        sim.vnic(0, 0, ceil(GBIT));
        sim.senders = vec![Sender::new(0, Class::Tcp, Manner::Greedy)];
        let leaf = sim.tree.leaf(Direction::Out, 0, Class::Tcp);
        let mut rates = Vec::new();
        for _ in 0..500 / every_ms {
            // 600 Mbit/s in hardware.
            let every_ns = every_ms * 1_000_000;
            let work = HardwareWork { bytes: 75_000 * every_ms, over_ns: every_ns, unread_ns: every_ns };
            sim.tree.debit(leaf, work, sim.now_ns);
            rates.push(sim.run(every_ms)[0]);
        }
        // The first ones begin with what was saved up.
        let rates = &rates[rates.len() / 5..];
        near(rates.iter().sum::<f64>() / rates.len() as f64, 0.4 * GBIT as f64, 2.0);
        let meter = sim.tree.meter(leaf);
        assert!(meter.peak > 0 && meter.burst > 0);
    }
}

/// A class whose packets a device forwards is not taken for one that sends nothing: a greedy neighbour is lent only what it
/// leaves, its meter is not set below what it sends, and when it comes back to software, its share is there.
#[test]
fn dhtb_a_class_in_hardware_keeps_its_share() {
    let (mut sim, leaf) = neighbours();
    // Its chain is made: from now on its packets may go by at any time.
    sync(&sim, leaf, 0, 400 * MBIT);
    sim.run(20);
    sim.senders[1].manner = Manner::Silent;
    sim.run(SYNC_MS - 20);
    for turn in 0..20 {
        // The meter is set first.
        let peak = sim.tree.meter(leaf).peak;
        assert!(peak >= 399 * MBIT, "{peak} in turn {turn}");
        sync(&sim, leaf, if turn == 0 { 320 * MBIT } else { 400 * MBIT }, 400 * MBIT);
        // Nobody waits for what comes in one piece.
        for _ in 0..SYNC_MS / 10 {
            let rate = sim.run(10)[0];
            assert!(turn < 2 || rate > 580e6, "{:.0} Mbit/s in turn {turn}", rate / 1e6);
        }
    }
    near(sim.run(SYNC_MS)[0], 600e6, 2.0);
    sync(&sim, leaf, 400 * MBIT, 400 * MBIT);
    sim.senders[1].manner = Manner::Greedy;
    sim.run(SYNC_MS);
    near(sim.run(SYNC_MS)[1], 500e6, 2.0);
}

/// A class that its meter holds back wants more than it did.
#[test]
fn dhtb_a_class_that_its_meter_holds_back_gets_what_is_fair() {
    let (mut sim, leaf) = neighbours();
    sim.senders[1].manner = Manner::Silent;
    for _ in 0..4 {
        sync(&sim, leaf, 100 * MBIT, 100 * MBIT);
        sim.run(SYNC_MS);
    }
    near(sim.tree.meter(leaf).peak as f64, 100e6, 2.0);
    sync(&sim, leaf, 100 * MBIT, u64::MAX);
    sim.run(10);
    near(sim.tree.meter(leaf).peak as f64, 500e6, 2.0);
}

/// What left hardware is lent again, and forgotten.
#[test]
fn dhtb_what_hardware_leaves_is_lent() {
    let (mut sim, leaf) = neighbours();
    sim.senders[1].manner = Manner::Silent;
    for _ in 0..3 {
        sync(&sim, leaf, 400 * MBIT, 400 * MBIT);
        sim.run(SYNC_MS);
    }
    sim.run(SYNC_MS + 10);
    near(sim.run(SYNC_MS)[0], 1e9, 2.0);
    assert_eq!(sim.tree.node(sim.tree.leaf_node(leaf)).awake.load(Relaxed), 0);
    // A vNIC that goes takes along what is owed.
    sync(&sim, leaf, 400 * MBIT, 400 * MBIT);
    sim.tree.forget(1);
    near(sim.run(SYNC_MS)[0], 1e9, 2.0);
    assert_eq!(sim.tree.view(sim.tree.leaf_node(leaf), sim.now_ns).drawn, 0);
}

/// Headers of tunnels are the link's alone to pay for, in hardware as in software.
#[test]
fn dhtb_the_link_pays_for_the_tunnels_of_hardware() {
    let (mut sim, leaf) = neighbours();
    sim.vnic(1, 1, ceil(400 * MBIT));
    sim.senders[1].manner = Manner::Silent;
    let drawn = |sim: &Sim, id| sim.tree.view(id, sim.now_ns).drawn;
    let (own, link) = (sim.tree.leaf_node(leaf), sim.tree.link_node(Direction::Out));
    let bytes = 100 * MBIT / 8 * SYNC_NS / 1_000_000_000;
    let headers = HardwareWork { bytes, over_ns: SYNC_NS, unread_ns: SYNC_NS };
    for _ in 0..10 {
        sync(&sim, leaf, 400 * MBIT, 400 * MBIT);
        sim.tree.debit_link(leaf, headers, sim.now_ns);
        sim.run(SYNC_MS);
    }
    let before = [own, link].map(|id| drawn(&sim, id));
    sync(&sim, leaf, 400 * MBIT, 400 * MBIT);
    sim.tree.debit_link(leaf, headers, sim.now_ns);
    near(sim.run(SYNC_MS)[0], 500e6, 3.0);
    let after = [own, link].map(|id| drawn(&sim, id));
    near((after[0] - before[0]) as f64 * 80.0, 400e6, 2.0);
    near((after[1] - before[1]) as f64 * 80.0, 1e9, 2.0);
    // Without a limit it is counted at once.
    let free = Sim::new(1, 4);
    free.vnic(0, 0, NodeLimits::FREE);
    let leaf = free.tree.leaf(Direction::Out, 0, Class::Tcp);
    free.tree.debit_link(leaf, headers, free.now_ns);
    let drawn = [free.tree.leaf_node(leaf), free.tree.link_node(Direction::Out)].map(|id| drawn(&free, id));
    assert_eq!(drawn, [0, bytes]);
}

/// Control that had something else to do for five seconds asks nobody to pay for all of them at once: a vNIC at its ceiling in hardware
/// sends at it in software a second later, and its neighbour on the link has what it had.
#[test]
fn dhtb_a_long_time_without_readings_is_not_paid_in_one_piece() {
    const STALL_MS: u64 = 5_000;
    let (mut sim, leaf) = neighbours();
    sim.vnic(1, 1, ceil(400 * MBIT));
    sim.senders[1].manner = Manner::Silent;
    for _ in 0..5 {
        sync(&sim, leaf, 400 * MBIT, u64::MAX);
        sim.run(SYNC_MS);
    }
    sim.run(STALL_MS - SYNC_MS);
    let unread_ns = STALL_MS * 1_000_000;
    let bytes = 400 * MBIT / 8 * STALL_MS / 1000;
    sim.tree.debit(leaf, HardwareWork { bytes, over_ns: unread_ns, unread_ns }, sim.now_ns);
    sim.senders[1].manner = Manner::Greedy;
    sim.run(1_200);
    let rates = sim.run(500);
    near(rates[1], 400e6, 5.0);
    near(rates[0], 600e6, 5.0);
    // A device that is slow to tell is no such time: what it hid is paid.
    let hidden = HardwareWork { bytes, over_ns: unread_ns, unread_ns: SYNC_NS };
    sim.tree.debit(leaf, hidden, sim.now_ns);
    sim.run(1_200);
    assert!(sim.run(500)[1] < 1e6);
}
