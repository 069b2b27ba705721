//! The tree in simulation: ceilings, weights, what is assured, lent and returned, with many seeds.

mod caches;
mod changes;
mod hardware;
mod sim;

use super::*;
use crate::direction::Direction;
use sim::*;

#[track_caller]
fn near(what: f64, wanted: f64, percent: f64) {
    let error = (what / wanted - 1.0).abs() * 100.0;
    assert!(error <= percent, "{:.1} Mbit/s, wanted {:.1} (off by {error:.2} %)", what / 1e6, wanted / 1e6);
}

fn ceil(rate: u64) -> NodeLimits {
    NodeLimits { ceil: rate, ..NodeLimits::FREE }
}

fn at_once(bytes: u64) -> HardwareWork {
    HardwareWork { bytes, over_ns: 0, unread_ns: 0 }
}

fn weight(weight: u32) -> NodeLimits {
    NodeLimits { weight, ..NodeLimits::FREE }
}

#[test]
fn dhtb_without_limits_everything_passes() {
    let mut sim = Sim::new(1, 1);
    sim.senders = vec![
        Sender::new(0, Class::Tcp, Manner::Blind(GBIT)),
        Sender::new(1, Class::Rdma, Manner::Blind(GBIT)),
    ];
    assert!(sim.tree.is_free());
    for rate in sim.run(50) {
        near(rate, GBIT as f64, 1.0);
    }
    assert!(sim.senders.iter().all(|sender| sender.marked + sender.waited + sender.dropped == 0));
}

/// vNIC and tenant ceilings hold within 1 % against TCP, against RDMA that ignores marks, and against both.
#[test]
fn dhtb_ceilings_hold_against_any_mix() {
    for seed in 0..6 {
        for classes in [vec![Class::Tcp], vec![Class::Rdma], vec![Class::Tcp, Class::Rdma]] {
            for of_tenant in [false, true] {
                let mut sim = Sim::new(2, seed);
                sim.link(10 * GBIT);
                if of_tenant {
                    sim.tenant(3, ceil(GBIT));
                    sim.vnic(0, 3, NodeLimits::FREE);
                    sim.vnic(1, 3, NodeLimits::FREE);
                } else {
                    sim.vnic(0, 3, ceil(GBIT));
                }
                for (n, class) in classes.iter().enumerate() {
                    let manner = if *class == Class::Tcp { Manner::Greedy } else { Manner::Blind(3 * GBIT) };
                    let vnic = if of_tenant { n as u32 } else { 0 };
                    sim.senders.push(Sender::new(vnic, *class, manner).on(n % 2));
                }
                sim.run(50);
                let total: f64 = sim.run(500).iter().sum();
                near(total, GBIT as f64, 1.0);
            }
        }
    }
}

/// Shares by weight within 2 %: of two tenants, of two classes, with RDMA that ignores its marks.
#[test]
fn dhtb_weights_are_kept() {
    for seed in 0..8 {
        for heavy in [1, 2, 4, 8] {
            let mut sim = Sim::new(2, seed);
            sim.link(GBIT);
            sim.tenant(0, weight(1));
            sim.tenant(1, weight(heavy));
            sim.vnic(0, 0, NodeLimits::FREE);
            sim.vnic(1, 1, NodeLimits::FREE);
            sim.senders = vec![
                Sender::new(0, Class::Tcp, Manner::Greedy),
                Sender::new(1, Class::Tcp, Manner::Greedy).on(1),
            ];
            sim.run(50);
            let rates = sim.run(400);
            near(rates[0], GBIT as f64 / f64::from(1 + heavy), 2.0);
            near(rates[1], GBIT as f64 * f64::from(heavy) / f64::from(1 + heavy), 2.0);

            let mut sim = Sim::new(1, seed);
            sim.link(GBIT);
            sim.class(0, Class::Rdma, weight(heavy));
            sim.senders = vec![
                Sender::new(0, Class::Tcp, Manner::Greedy),
                Sender::new(0, Class::Rdma, Manner::Blind(2 * GBIT)),
            ];
            sim.run(50);
            let rates = sim.run(400);
            near(rates[0], GBIT as f64 / f64::from(1 + heavy), 2.0);
            near(rates[1], GBIT as f64 * f64::from(heavy) / f64::from(1 + heavy), 2.0);
        }
    }
}

/// The same at rates at which a packet takes longer than an epoch, with senders that wait for what they sent.
#[test]
fn dhtb_weights_are_kept_at_low_rates() {
    const MBIT: u64 = 1_000_000;
    for seed in 0..2 {
        for (link, heavy) in [(40 * MBIT, 1), (40 * MBIT, 3), (5 * MBIT, 2), (2 * MBIT, 1)] {
            for round_ns in [100_000, 1_300_000, 20_000_000] {
                let mut sim = Sim::new(2, seed);
                sim.link(link);
                sim.tenant(1, weight(heavy));
                sim.vnic(0, 0, NodeLimits::FREE);
                sim.vnic(1, 1, NodeLimits::FREE);
                // Some more than fits into the round.
                let packets = 8 + link * round_ns / 1_000_000_000 / 12_000 * 2;
                let window = Manner::Window { packets, round_ns };
                sim.senders =
                    vec![Sender::new(0, Class::Tcp, window), Sender::new(1, Class::Tcp, window).on(1)];
                sim.run(500);
                let rates = sim.run(4_000);
                let whole = link as f64;
                near(rates[0] + rates[1], whole, 1.0);
                near(rates[0], whole / f64::from(1 + heavy), 2.0);
                near(rates[1], whole * f64::from(heavy) / f64::from(1 + heavy), 2.0);
            }
        }
    }
}

/// The link pays for tunnels too; what is left for tenants is still divided by weight.
#[test]
fn dhtb_weights_are_kept_inside_tunnels() {
    for (size, heavy) in [(1464, 1), (1464, 3), (64, 1), (64, 4)] {
        let mut sim = Sim::new(2, 11);
        sim.tunnel = 50;
        sim.link(100_000_000);
        sim.tenant(1, weight(heavy));
        sim.vnic(0, 0, NodeLimits::FREE);
        sim.vnic(1, 1, NodeLimits::FREE);
        sim.senders = vec![
            Sender::new(0, Class::Tcp, Manner::Greedy).sized(size),
            Sender::new(1, Class::Tcp, Manner::Greedy).sized(size).on(1),
        ];
        sim.run(100);
        let rates = sim.run(500);
        let whole = 1e8 * f64::from(size + OVERHEAD) / f64::from(size + OVERHEAD + sim.tunnel);
        near(rates[0] + rates[1], whole, 1.0);
        near(rates[0], whole / f64::from(1 + heavy), 2.0);
        near(rates[1], whole * f64::from(heavy) / f64::from(1 + heavy), 2.0);
    }
}

/// What was owed to a limit that is gone is not owed to the next one.
#[test]
fn dhtb_debts_end_with_their_limit() {
    let mut sim = Sim::new(1, 3);
    sim.vnic(0, 0, ceil(10_000_000));
    sim.senders = vec![Sender::new(0, Class::Rdma, Manner::Blind(100_000_000))];
    sim.run(20);
    let leaf = sim.tree.leaf_node(sim.tree.leaf(Direction::Out, 0, Class::Rdma));
    assert!(sim.tree.view(leaf, sim.now_ns).debt > 0);
    sim.vnic(0, 0, NodeLimits::FREE);
    sim.run(20);
    assert_eq!(sim.tree.view(leaf, sim.now_ns).debt, 0);
}

/// Below a ceiling that is not the link's, however low, nobody starves.
#[test]
fn dhtb_weights_are_kept_below_low_ceilings() {
    let tenant_of = |vnics: u32, rate: u64, heavy: u32, ms: u64| {
        let mut sim = Sim::new(2, 6);
        sim.step_ns = 20_000;
        sim.tenant(0, ceil(rate));
        for n in 0..vnics {
            sim.vnic(n, 0, weight(if n == 0 { heavy } else { 1 }));
            sim.senders.push(Sender::new(n, Class::Tcp, Manner::Greedy).on(n as usize % 2));
        }
        sim.run(ms / 4);
        sim.run(ms)
    };
    for rates in [tenant_of(5, 1_000_000, 1, 5_000), tenant_of(32, 32_000_000, 1, 1_000)] {
        let fair = rates.iter().sum::<f64>() / rates.len() as f64;
        rates.iter().for_each(|rate| near(*rate, fair, 4.0));
    }
    let rates = tenant_of(2, 2_000_000, 3, 8_000);
    near(rates[0], 1.5e6, 2.0);
    near(rates[1], 0.5e6, 2.0);
}

/// Packets that nobody may stop do not lift the ceiling of their tenant, however many vNICs send them.
#[test]
fn dhtb_control_packets_keep_to_the_ceiling_of_their_tenant() {
    let mut sim = Sim::new(1, 6);
    sim.tenant(0, ceil(100_000_000));
    for n in 0..20 {
        sim.vnic(n, 0, NodeLimits::FREE);
        let mut sender = Sender::new(n, Class::Rdma, Manner::Blind(20_000_000)).sized(64);
        sender.kind = TrafficKind::Control;
        sim.senders.push(sender);
    }
    // Until each has owed as much as it may, and paid it.
    sim.run(3_000);
    near(sim.run(1_000).iter().sum(), 1e8, 1.0);
}

/// Who was over its rate and then quiet starts afresh: nothing of what is assured is marked or kept waiting.
#[test]
fn dhtb_debts_are_paid_while_nothing_is_sent() {
    let mut sim = Sim::new(1, 6);
    sim.vnic(0, 0, ceil(8_000_000));
    sim.class(0, Class::Rdma, NodeLimits { assured: 8_000_000, ..NodeLimits::FREE });
    sim.senders = vec![Sender::new(0, Class::Rdma, Manner::Blind(100_000_000))];
    sim.run(30);
    let leaf = sim.tree.leaf_node(sim.tree.leaf(Direction::Out, 0, Class::Rdma));
    let debt = sim.tree.view(leaf, sim.now_ns).debt;
    assert!(debt > 200_000, "{debt}");
    sim.senders[0].manner = Manner::Silent;
    sim.run(1_000);
    assert_eq!(sim.tree.view(leaf, sim.now_ns).debt, 0);
    let (marked, waited) = (sim.senders[0].marked, sim.senders[0].waited);
    sim.senders[0].manner = Manner::Blind(7_000_000);
    sim.run(1_000);
    assert_eq!((sim.senders[0].marked, sim.senders[0].waited), (marked, waited));
}

/// Who has all of a ceiling saves up what the ceiling does, and sends it at once.
#[test]
fn dhtb_a_burst_is_there_for_who_is_alone() {
    let mut sim = Sim::new(1, 3);
    sim.link(100 * GBIT);
    sim.vnic(0, 0, NodeLimits { burst: 512 << 10, ..ceil(1_000_000) });
    sim.senders = vec![Sender::new(0, Class::Tcp, Manner::Greedy)];
    sim.run(20);
    // The time in which the burst fills up again.
    sim.senders[0].manner = Manner::Silent;
    sim.run(5_000);
    let before = sim.senders[0].sent;
    sim.senders[0].manner = Manner::Greedy;
    sim.run(10);
    let burst = sim.senders[0].sent - before;
    assert!(burst.abs_diff(512 << 10) < 16 << 10, "{burst}");
}

/// Clocks of cores that differ by what is left of it after they agreed change neither ceilings nor shares.
#[test]
fn dhtb_clocks_may_differ() {
    for ahead_ns in [[0, 300, 0, 0], [0, 20_000, 0, 0], [50_000, 0, 5_000, 0], [0, 0, 0, 200_000]] {
        let mut sim = Sim::new(4, 21);
        sim.ahead_ns = ahead_ns;
        sim.link(GBIT);
        for n in 0..4 {
            sim.tenant(n, weight(1 + n % 2));
            sim.vnic(n, n, NodeLimits::FREE);
            sim.senders.push(Sender::new(n, Class::Tcp, Manner::Greedy).on(n as usize));
        }
        sim.vnic(3, 3, ceil(100_000_000));
        // Until what the ceiling had saved up is spent.
        sim.run(1_000);
        let rates = sim.run(400);
        near(rates.iter().sum(), 1e9, 1.0);
        near(rates[3], 1e8, 1.0);
        for n in 0..3 {
            near(rates[n], 9e8 * [0.25, 0.5, 0.25][n], 2.0);
        }
    }
}

/// Workers that lose their core for 20 ms at a time lose no tokens.
#[test]
fn dhtb_a_worker_may_be_away() {
    let mut sim = Sim::new(2, 4);
    sim.turns = Some((7_000_000, 20_000_000));
    sim.link(40_000_000);
    sim.tenant(1, weight(3));
    sim.vnic(0, 0, NodeLimits::FREE);
    sim.vnic(1, 1, NodeLimits::FREE);
    // A round takes as long as the worker is away.
    let window = Manner::Window { packets: 200, round_ns: 1_000_000 };
    sim.senders = vec![Sender::new(0, Class::Tcp, window), Sender::new(1, Class::Tcp, window).on(1)];
    sim.run(500);
    let rates = sim.run(3_000);
    near(rates[0] + rates[1], 40e6, 1.0);
    near(rates[0], 10e6, 2.0);
    near(rates[1], 30e6, 2.0);
}

/// Of a vNIC that is gone nothing is left for the next with its number; without limits the tree is out of the way.
#[test]
fn dhtb_nothing_is_inherited() {
    let mut sim = Sim::new(1, 8);
    assert!(sim.tree.is_free());
    sim.vnic(0, 0, ceil(10_000_000));
    sim.class(0, Class::Rdma, NodeLimits { assured: 1_000_000, ..NodeLimits::FREE });
    sim.senders = vec![Sender::new(0, Class::Rdma, Manner::Blind(100_000_000))];
    sim.run(100);
    let leaf = sim.tree.leaf(Direction::Out, 0, Class::Rdma);
    sim.tree.count_mark(leaf);
    sim.tree.count_drop(leaf);
    let views = |tree: &Tree, now| {
        [tree.vnic_node(Direction::Out, 0), tree.leaf_node(leaf)].map(|node| tree.view(node, now))
    };
    assert!(views(&sim.tree, sim.now_ns).iter().all(|view| view.drawn > 0));
    assert!(views(&sim.tree, sim.now_ns)[1].debt > 0);
    sim.tree.forget(0);
    for view in views(&sim.tree, sim.now_ns) {
        assert_eq!((view.drawn, view.debt, view.held_back), (0, 0, 0));
        assert!(view.tokens >= 0, "{view:?}");
    }
    assert_eq!(sim.tree.fate(leaf), (0, 0));
    // The division does not take what is gone for use: a neighbour gets all.
    sim.vnic(0, 0, NodeLimits::FREE);
    sim.class(0, Class::Rdma, NodeLimits::FREE);
    assert!(sim.tree.is_free());
    sim.link(40_000_000);
    sim.senders = vec![Sender::new(1, Class::Tcp, Manner::Greedy)];
    sim.run(20);
    near(sim.run(500)[0], 40e6, 1.0);
    sim.link(0);
    assert!(sim.tree.is_free());
}

#[test]
fn dhtb_sixty_four_tenants() {
    let mut sim = Sim::new(2, 9);
    sim.link(10 * GBIT);
    let mut weights = 0;
    for n in 0..64 {
        let w = 1 + n % 4;
        weights += w;
        sim.tenant(n, weight(w));
        sim.vnic(n, n, NodeLimits::FREE);
        sim.senders.push(Sender::new(n, Class::Tcp, Manner::Greedy).on(n as usize % 2));
    }
    sim.run(50);
    for (n, rate) in sim.run(300).into_iter().enumerate() {
        near(rate, 10.0 * GBIT as f64 * f64::from(1 + n as u32 % 4) / f64::from(weights), 2.0);
    }
}

/// Small packets against large ones, many flows against one: bytes count, not packets or flows.
#[test]
fn dhtb_sizes_and_numbers_of_flows_do_not_matter() {
    let mut sim = Sim::new(1, 5);
    sim.link(GBIT);
    sim.vnic(0, 0, NodeLimits::FREE);
    sim.vnic(1, 1, NodeLimits::FREE);
    sim.senders = vec![
        Sender::new(0, Class::Tcp, Manner::Greedy),
        Sender::new(1, Class::Tcp, Manner::Greedy).sized(64),
    ];
    sim.run(50);
    let rates = sim.run(300);
    near(rates[0], GBIT as f64 / 2.0, 2.0);
    near(rates[1], GBIT as f64 / 2.0, 2.0);
    // A hundred senders of one tenant against one of the other.
    sim.senders.truncate(1);
    sim.senders.extend((0..100).map(|_| Sender::new(1, Class::Tcp, Manner::Blind(GBIT / 50))));
    sim.run(50);
    near(sim.run(300)[0], GBIT as f64 / 2.0, 2.0);
}

/// A class under its assured rate is never marked, queued or dropped, whatever its siblings do.
#[test]
fn dhtb_an_assured_class_is_left_alone() {
    for seed in 0..4 {
        for class in Class::ALL {
            let mut sim = Sim::new(2, seed);
            sim.link(GBIT);
            sim.class(0, class, NodeLimits { assured: GBIT / 4, ..NodeLimits::FREE });
            sim.senders = vec![
                Sender::new(0, class, Manner::Blind(GBIT / 4 - GBIT / 100)),
                Sender::new(
                    0,
                    if class == Class::Tcp { Class::Rdma } else { Class::Tcp },
                    Manner::Blind(2 * GBIT),
                ),
                Sender::new(1, Class::Rdma, Manner::Blind(2 * GBIT)).on(1),
                Sender::new(2, Class::Tcp, Manner::Greedy).on(1),
                Sender::new(
                    3,
                    Class::Rdma,
                    Manner::OnOff { rate: 2 * GBIT, on_ns: 1_000_000, period_ns: 5_000_000 },
                ),
            ];
            let rates = sim.run(300);
            near(rates[0], (GBIT / 4 - GBIT / 100) as f64, 1.0);
            let sender = &sim.senders[0];
            assert_eq!((sender.marked, sender.waited, sender.dropped), (0, 0, 0), "{class:?} {seed}");
            let rest: f64 = rates.iter().sum();
            near(rest, GBIT as f64, 2.0);
        }
    }
}

/// Bursts tuned to the burst size gain nothing in the long run.
#[test]
fn dhtb_on_off_bursts_gain_nothing() {
    for period_us in [300, 1_000, 3_000, 9_000] {
        let mut sim = Sim::new(1, 3);
        sim.link(10 * GBIT);
        sim.vnic(0, 0, ceil(GBIT));
        // 128 KiB are a millisecond of it: sent at once, then a pause.
        let on_ns = 105_000;
        let manner = Manner::OnOff { rate: 10 * GBIT, on_ns, period_ns: period_us * 1_000 };
        sim.senders = vec![Sender::new(0, Class::Rdma, manner)];
        sim.run(50);
        let rate = sim.run(500)[0];
        assert!(rate <= 1.01 * GBIT as f64, "{period_us} us: {:.1} Mbit/s", rate / 1e6);
    }
}

/// Marks begin at kmin and are certain at kmax; a sender within its share gets none.
#[test]
fn dhtb_marks_follow_the_law() {
    let red = RedProfile::default();
    assert_eq!(red.probability(red.kmin), 0.0);
    assert_eq!(red.probability(red.kmax), 1.0);
    assert!((red.probability((red.kmin + red.kmax) / 2) - 0.005).abs() < 1e-6);
    let mut sim = Sim::new(1, 4);
    sim.link(10 * GBIT);
    sim.vnic(0, 0, ceil(GBIT));
    sim.senders = vec![Sender::new(0, Class::Rdma, Manner::Blind(GBIT * 9 / 10))];
    sim.run(300);
    let sender = &sim.senders[0];
    assert_eq!((sender.marked, sender.waited, sender.dropped), (0, 0, 0));
    // A little over: the debt grows until all is marked, then until packets wait.
    sim.senders[0].manner = Manner::Blind(GBIT * 11 / 10);
    sim.run(300);
    let sender = &sim.senders[0];
    assert!(sender.marked > 1_000 && sender.waited > 0, "{sender:?}");
}

/// A sender that cannot be marked waits instead.
#[test]
fn dhtb_what_cannot_be_marked_waits() {
    let mut sim = Sim::new(1, 4);
    sim.link(10 * GBIT);
    sim.vnic(0, 0, ceil(GBIT));
    sim.senders =
        vec![Sender { kind: TrafficKind::RdmaUnmarkable, ..Sender::new(0, Class::Rdma, Manner::Greedy) }];
    sim.run(50);
    near(sim.run(300)[0], GBIT as f64, 1.0);
    assert_eq!((sim.senders[0].marked, sim.senders[0].dropped), (0, 0));
    assert!(sim.senders[0].waited > 1000);
}
