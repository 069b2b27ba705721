//! Rates that change under those that use them: by the operator, and by the division.

use super::*;

const MBIT: u64 = 1_000_000;

/// Who waits at a low rate hears of a higher one at once.
#[test]
fn dhtb_a_raised_rate_counts_for_those_that_wait() {
    let mut sim = Sim::new(1, 8);
    sim.vnic(0, 0, NodeLimits { burst: 2_000, ..ceil(8_000) });
    sim.senders = vec![Sender::new(0, Class::Tcp, Manner::Greedy)];
    sim.run(1_000);
    // A packet takes 1.5 s at this rate.
    sim.vnic(0, 0, ceil(100_000_000));
    assert!(sim.run(20)[0] > 50e6);
    near(sim.run(200)[0], 100e6, 1.0);
}

/// What was charged at a low rate is owed in bytes: at a higher one it is paid as fast as that is.
#[test]
fn dhtb_what_is_owed_at_a_low_rate_is_paid_at_a_raised_one() {
    // A packet that is larger than the burst.
    let mut sim = Sim::new(1, 8);
    sim.vnic(0, 0, NodeLimits { burst: 1_000, ..ceil(8_000) });
    sim.senders = vec![Sender::new(0, Class::Tcp, Manner::Greedy)];
    sim.run(300);
    sim.vnic(0, 0, ceil(100 * MBIT));
    assert!(sim.run(20)[0] > 50e6);
    near(sim.run(200)[0], 100e6, 1.0);
    // What hardware did before it heard of the low rate: 80 ms of the high one, 80 s of the low one.
    let mut sim = Sim::new(1, 8);
    sim.vnic(0, 0, ceil(GBIT));
    sim.senders = vec![Sender::new(0, Class::Tcp, Manner::Greedy)];
    sim.run(20);
    sim.vnic(0, 0, ceil(MBIT));
    sim.tree.debit(sim.tree.leaf(Direction::Out, 0, Class::Tcp), at_once(10_000_000), sim.now_ns);
    sim.run(200);
    sim.vnic(0, 0, ceil(GBIT));
    sim.run(90);
    near(sim.run(100)[0], GBIT as f64, 1.0);
}

/// What is owed to a limit that is gone is not owed to the next one: not by a node either that had none meanwhile.
#[test]
fn dhtb_nothing_is_owed_after_a_time_without_a_limit() {
    let mut sim = Sim::new(1, 8);
    sim.vnic(0, 0, ceil(MBIT));
    sim.tree.debit(sim.tree.leaf(Direction::Out, 0, Class::Tcp), at_once(10_000_000), sim.now_ns);
    sim.run(5);
    sim.vnic(0, 0, NodeLimits::FREE);
    sim.run(5);
    sim.vnic(0, 0, ceil(100 * MBIT));
    sim.senders = vec![Sender::new(0, Class::Tcp, Manner::Greedy)];
    assert!(sim.run(20)[0] > 50e6);
}

/// What an idle sibling leaves is lent within 10 ms, and back within 10 ms.
#[test]
fn dhtb_lent_and_returned_within_ten_milliseconds() {
    for (class, manner) in [(Class::Tcp, Manner::Greedy), (Class::Rdma, Manner::Blind(2 * GBIT))] {
        for seed in 0..5 {
            let mut sim = Sim::new(2, seed);
            sim.link(GBIT);
            sim.vnic(0, 0, NodeLimits::FREE);
            sim.vnic(1, 1, NodeLimits { assured: GBIT / 2, ..NodeLimits::FREE });
            sim.senders =
                vec![Sender::new(0, class, manner), Sender::new(1, Class::Tcp, Manner::Silent).on(1)];
            sim.run(100);
            near(sim.run(50)[0], GBIT as f64, 2.0);
            sim.senders[1].manner = Manner::Greedy;
            sim.run(10);
            near(sim.run(20)[1], GBIT as f64 / 2.0, 5.0);
            sim.senders[1].manner = Manner::Silent;
            sim.run(10);
            near(sim.run(20)[0], GBIT as f64, 5.0);
        }
    }
}

/// The same as often as it happens, whatever the size of frames: one larger than what the idle class could save up is
/// not owed at the rate that it had then.
#[test]
fn dhtb_lent_and_returned_as_often_as_it_happens() {
    for size in [1_500, 9_000] {
        for (class, manner) in [(Class::Tcp, Manner::Greedy), (Class::Rdma, Manner::Blind(2 * GBIT))] {
            let mut sim = Sim::new(2, 7);
            sim.link(GBIT);
            sim.vnic(1, 1, NodeLimits::FREE);
            sim.senders = vec![
                Sender::new(0, class, manner),
                Sender::new(1, Class::Tcp, Manner::Greedy).sized(size).on(1),
            ];
            sim.run(100);
            for _ in 0..3 {
                sim.senders[1].manner = Manner::Silent;
                sim.run(150);
                sim.senders[1].manner = Manner::Greedy;
                sim.run(10);
                near(sim.run(20)[1], GBIT as f64 / 2.0, 5.0);
            }
        }
    }
}

/// The same below a low ceiling, with many others in use on the host.
#[test]
fn dhtb_lent_and_returned_below_low_ceilings() {
    for rate in [10 * MBIT, 100 * MBIT] {
        let mut sim = Sim::new(2, 7);
        sim.step_ns = 20_000;
        sim.link(10 * GBIT);
        sim.vnic(0, 1, ceil(rate));
        let (rdma, tcp) = (Manner::Blind(2 * rate), Manner::Greedy);
        sim.senders = vec![Sender::new(0, Class::Rdma, rdma), Sender::new(0, Class::Tcp, tcp).on(1)];
        sim.senders.extend((1..128).map(|vnic| Sender::new(vnic, Class::Tcp, Manner::Blind(MBIT))));
        sim.run(500);
        for _ in 0..2 {
            sim.senders[1].manner = Manner::Silent;
            sim.run(500);
            sim.senders[1].manner = Manner::Greedy;
            sim.run(10);
            near(sim.run(100)[1], rate as f64 / 2.0, 6.0);
        }
    }
}
