//! The ledger and the worker's tables against their linear twins, and under real threads.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use wire::Qpn;
use wire::roce::opcode;

use super::qp::QpLine;
use super::*;

fn shared(entries: u32, workers: u32) -> Arc<RcftShared> {
    let shared = RcftShared::new(RcftParams { entries, vnics: 4, workers, seed: 7 }, &|_, _| {});
    shared.set_times(6000, 50, 600);
    shared
}

fn key(vnic: u32, peer: u8, qpn: u32) -> QpKey {
    QpKey::new(Scope::Vnic(vnic), Ipv4Addr::new(10, 0, 0, peer).into(), Qpn::truncated(qpn))
}

fn at(tick: u32) -> Now {
    Now::from_ns(u64::from(tick) * u64::from(TICK_MS) * 1_000_000)
}

fn write(psn: u32) -> RocePacketFacts {
    RocePacketFacts { opcode: opcode::RC_WRITE_ONLY, psn, bytes: 100, payload: 42, detail: 0, ce: false }
}

fn offer(rcft: &mut Rcft, vnic: u32, key: QpKey, tick: u32) -> QpOutcome {
    let probe = rcft.probe(Direction::Out, key);
    rcft.sent(vnic, &probe, &write(0), at(tick))
}

/// Lets the workers attend and the keeper go on until nothing is on its way out.
fn settle(keeper: &mut Keeper<Arc<Ledger>>, workers: &mut [Rcft], tick: u32) {
    while keeper.is_busy() {
        keeper.advance(|_| {});
        workers.iter_mut().for_each(|worker| worker.tend(at(tick)));
    }
}

#[test]
fn rcft_keys_hold_what_they_were_made_of() {
    for address in ["10.1.2.3", "fd00::9", "::ffff:1.2.3.4", "::1"] {
        let address: IpAddr = address.parse().unwrap();
        for scope in [Scope::Vnic(3), Scope::Vpc(16_000)] {
            let key = QpKey::new(scope, address, Qpn::truncated(0xabcdef));
            let expected = match address {
                IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::from),
                v4 => v4,
            };
            assert_eq!((key.scope(), key.address(), key.qpn().get()), (scope, expected, 0xabcdef));
        }
    }
}

/// The default table: a million queue pairs, at most 256 bytes each in all, whatever the number of workers.
#[test]
fn rcft_at_most_256_bytes_a_queue_pair() {
    for workers in 1..=16 {
        let entries = 1_000_000;
        let config = RcftParams { entries, vnics: 16_384, workers, seed: 1 };
        let bytes = RcftShared::new(config, &|_, _| {}).total_bytes();
        assert!(bytes <= 256 * entries as usize, "{workers} workers: {}", bytes as f64 / f64::from(entries));
    }
}

#[derive(Clone, Debug)]
enum Op {
    Offer { worker: usize, vnic: u32, qpn: u32 },
    Remove { vnic: u32, qpn: u32 },
    Quota { vnic: u32, quota: u32 },
    Settle,
    Sweep,
}

fn op() -> impl Strategy<Value = Op> {
    let (vnic, qpn) = (0..3u32, 2..12u32);
    prop_oneof![
        8 => (0..2usize, vnic.clone(), qpn.clone()).prop_map(|(worker, vnic, qpn)| Op::Offer { worker, vnic, qpn }),
        3 => (vnic.clone(), qpn).prop_map(|(vnic, qpn)| Op::Remove { vnic, qpn }),
        1 => (vnic, 0..6u32).prop_map(|(vnic, quota)| Op::Quota { vnic, quota }),
        2 => Just(Op::Settle),
        1 => Just(Op::Sweep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Any sequence of packets, removals and changes of quota does what a set for each vNIC would do.
    #[test]
    fn rcft_agrees_with_a_set(ops in prop::collection::vec(op(), 1..120)) {
        let shared = shared(1024, 2);
        let mut keeper = Keeper::new(shared.ledger.clone());
        let mut workers = [Rcft::new(shared.clone(), 0, &|_, _| {}), Rcft::new(shared, 1, &|_, _| {})];
        let mut twin: HashMap<u32, HashSet<u32>> = HashMap::new();
        let mut quotas: HashMap<u32, u32> = HashMap::new();
        for op in ops {
            match op {
                Op::Offer { worker, vnic, qpn } => {
                    let set = twin.entry(vnic).or_default();
                    let quota = quotas.get(&vnic).copied().unwrap_or(u32::MAX) as usize;
                    let outcome = offer(&mut workers[worker], vnic, key(vnic, 1, qpn), 1);
                    let expected = set.contains(&qpn) || set.len() < quota;
                    let passes = matches!(outcome, QpOutcome::Pass | QpOutcome::Opened);
                    prop_assert_eq!(passes, expected, "{:?} {} {}", outcome, vnic, qpn);
                    prop_assert_eq!(outcome == QpOutcome::Opened, expected && set.insert(qpn));
                    if !expected { set.remove(&qpn); }
                }
                Op::Remove { vnic, qpn } => {
                    let removed = keeper.remove(key(vnic, 1, qpn).words());
                    let had = twin.entry(vnic).or_default().remove(&qpn);
                    prop_assert_eq!(removed, had);
                    settle(&mut keeper, &mut workers, 1);
                }
                Op::Quota { vnic, quota } => {
                    quotas.insert(vnic, quota);
                    keeper.set_limits(vnic, LedgerLimits { quota, ..LedgerLimits::NONE });
                }
                Op::Settle => settle(&mut keeper, &mut workers, 1),
                Op::Sweep => {
                    let mut counted = HashMap::<u32, usize>::new();
                    let (seen, rest) = keeper.scan(0, 1000);
                    prop_assert!(rest.is_none());
                    for found in seen {
                        let key = QpKey::from_words(found.key);
                        let Scope::Vnic(vnic) = key.scope() else { panic!() };
                        prop_assert!(twin[&vnic].contains(&key.qpn().get()));
                        *counted.entry(vnic).or_default() += 1;
                    }
                    for vnic in 0..3 {
                        let expected = twin.get(&vnic).map_or(0, HashSet::len);
                        prop_assert_eq!(counted.get(&vnic).copied().unwrap_or(0), expected);
                        prop_assert_eq!(keeper.ledger().count(vnic) as usize, expected);
                    }
                    keeper.sweep(u32::MAX, |_| false);
                }
            }
        }
    }

    /// The worker's table against a map, filled beyond its size.
    #[test]
    fn rcft_table_agrees_with_a_map(ops in prop::collection::vec((0..200u32, 0..4u8), 1..600)) {
        let mut table = QpTable::new(64, 3, &|_, _| {});
        let mut twin: HashMap<u32, u64> = HashMap::new();
        for (qpn, what) in ops {
            let key = key(1, 1, qpn);
            let hash = table.hash(&key);
            let slot = table.find(&key, hash);
            prop_assert_eq!(slot == NONE, !twin.contains_key(&qpn));
            match what {
                0 => {
                    table.remove(&key);
                    twin.remove(&qpn);
                }
                _ if slot != NONE => {
                    table.count(slot, &write(0), 1);
                    *twin.get_mut(&qpn).unwrap() += 1;
                }
                _ => {
                    let new = table.insert(key, hash, 0, 1);
                    // The index may give up a little before the lines run out.
                    prop_assert!(new != NONE || twin.len() > 48);
                    if new != NONE { twin.insert(qpn, 0); }
                }
            }
            prop_assert_eq!(table.len() as usize, twin.len());
        }
        let (views, rest) = table.scan(0, 1000);
        prop_assert!(rest.is_none());
        let seen: HashMap<u32, u64> = views.iter().map(|view| (view.key.qpn().get(), view.packets)).collect();
        prop_assert_eq!(seen, twin);
    }

    /// Gaps, retransmissions and the next PSN against a twin that keeps every PSN, for requests of one PSN each.
    #[test]
    fn rcft_sequence_agrees_with_a_list(start in 0..0x100_0000u32, steps in prop::collection::vec(-3i32..5, 0..60)) {
        let mut line = QpLine::default();
        let mut events = QpEvents::default();
        let mut next = start;
        let (mut gaps, mut again) = (0, 0);
        for (i, step) in steps.iter().enumerate() {
            let psn = next.wrapping_add_signed(if i == 0 { 0 } else { *step }) & 0xff_ffff;
            if i > 0 {
                gaps += u32::from(*step > 0);
                again += u32::from(*step < 0);
            }
            if i == 0 || *step >= 0 {
                next = psn.wrapping_add(1) & 0xff_ffff;
            }
            line.count(&write(psn), 1, &mut events);
        }
        prop_assert_eq!((events.gaps, events.retransmissions), (gaps, again));
        if !steps.is_empty() {
            prop_assert_eq!(line.view(&events).next_psn, Some(next));
        }
    }
}

fn facts(opcode: u8, psn: u32, payload: u32, detail: u32) -> RocePacketFacts {
    RocePacketFacts { opcode, psn, bytes: payload + 42, payload, detail, ce: false }
}

#[test]
fn rcft_reads_take_the_psns_of_their_answers() {
    let (mut line, mut events) = (QpLine::default(), QpEvents::default());
    // The MTU is not known: nothing is claimed about what follows a long read.
    line.count(&facts(opcode::RC_READ_REQUEST, 10, 32, 5000), 1, &mut events);
    line.count(&facts(opcode::RC_WRITE_ONLY, 99, 40, 0), 1, &mut events);
    assert_eq!((events.gaps, events.retransmissions), (0, 0));
    // A WRITE First of 1024 bytes tells the MTU: BTH, RETH, ICRC around it.
    line.count(&facts(opcode::RC_WRITE_FIRST, 100, 1024 + 12 + 16 + 4, 2000), 1, &mut events);
    assert_eq!(line.view(&events).path_mtu, Some(1024));
    line.count(&facts(opcode::RC_WRITE_LAST, 101, 990, 0), 1, &mut events);
    line.count(&facts(opcode::RC_READ_REQUEST, 102, 32, 5000), 1, &mut events);
    assert_eq!(line.view(&events).next_psn, Some(107));
    line.count(&facts(opcode::RC_WRITE_ONLY, 107, 40, 0), 1, &mut events);
    assert_eq!((events.gaps, events.retransmissions), (0, 0));
    line.count(&facts(opcode::RC_WRITE_ONLY, 110, 40, 0), 1, &mut events);
    line.count(&facts(opcode::RC_WRITE_ONLY, 107, 40, 0), 1, &mut events);
    assert_eq!((events.gaps, events.retransmissions), (1, 1));
}

/// A number that is used anew, with another first PSN and a smaller MTU: no retransmissions are claimed.
#[test]
fn rcft_a_number_used_anew_starts_anew() {
    let (mut line, mut events) = (QpLine::default(), QpEvents::default());
    for start in [0x70_0000, 0x10_0000, 0xff_fff0, 0x7f_0000] {
        for n in 0..1000 {
            line.count(&write((start + n) & 0xff_ffff), 1, &mut events);
        }
        assert_eq!(events.retransmissions, 0, "{start:x}");
        assert_eq!(line.view(&events).next_psn, Some((start + 1000) & 0xff_ffff));
    }
    // Responses: a read, then millions of packets the other way, then a read.
    for psn in [100, 9_000_000, 17 << 20] {
        line.count(&facts(0x10, psn & 0xff_ffff, 20, 0), 1, &mut events);
    }
    assert_eq!(events.retransmissions, 0);
}

#[test]
fn rcft_responses_and_acknowledgements_have_a_sequence_of_their_own() {
    let (mut line, mut events) = (QpLine::default(), QpEvents::default());
    let mut go = |opcode, psn, detail| line.count(&facts(opcode, psn, 20, detail), 1, &mut events);
    // Requests at 500; acknowledgements jump; a read's answer at 40 to 42, and its Middle lost once.
    go(opcode::RC_SEND_ONLY, 500, 0);
    go(opcode::RC_ACK, 7, 0x1f);
    go(opcode::RC_ACK, 30, 0x1f);
    go(0x0d, 40, 0);
    go(0x0e, 41, 0);
    go(0x0f, 42, 0);
    go(opcode::RC_SEND_ONLY, 501, 0);
    go(0x0d, 60, 0);
    go(0x0f, 62, 0);
    go(0x0d, 60, 0);
    go(opcode::RC_ACK, 31, 0x60);
    go(opcode::RC_ACK, 31, 0x20);
    go(opcode::RC_ACK, 31, 0x62);
    let view = line.view(&events);
    assert_eq!((view.packets, view.acks, view.last_opcode), (13, 2, opcode::RC_ACK));
    let expected = QpEvents {
        gaps: 1,
        retransmissions: 1,
        nak_sequence: 1,
        rnr: 1,
        nak_fatal: [0, 1, 0, 0],
        ..QpEvents::default()
    };
    assert_eq!(view.events, expected);
}

#[test]
fn rcft_quota_of_zero_and_below_what_is_in_use() {
    let shared = shared(1024, 1);
    let mut keeper = Keeper::new(shared.ledger.clone());
    let mut workers = [Rcft::new(shared, 0, &|_, _| {})];
    keeper.set_limits(0, LedgerLimits { quota: 0, ..LedgerLimits::NONE });
    assert_eq!(offer(&mut workers[0], 0, key(0, 1, 9), 1), QpOutcome::RefusedNew(DropReason::QP_QUOTA));
    assert_eq!(offer(&mut workers[0], 0, key(0, 1, 9), 1), QpOutcome::Refused(DropReason::QP_QUOTA));
    keeper.set_limits(0, LedgerLimits { quota: 3, ..LedgerLimits::NONE });
    for qpn in 2..5 {
        assert_eq!(offer(&mut workers[0], 0, key(0, 1, qpn), 1), QpOutcome::Opened);
    }
    // Lowered: nobody is thrown out, nobody new gets in until it is under.
    keeper.set_limits(0, LedgerLimits { quota: 2, ..LedgerLimits::NONE });
    assert!((2..5).all(|qpn| offer(&mut workers[0], 0, key(0, 1, qpn), 2) == QpOutcome::Pass));
    assert!(matches!(offer(&mut workers[0], 0, key(0, 1, 5), 2), QpOutcome::RefusedNew(_)));
    keeper.remove(key(0, 1, 2).words());
    settle(&mut keeper, &mut workers, 2);
    assert!(matches!(offer(&mut workers[0], 0, key(0, 1, 5), 2), QpOutcome::RefusedNew(_)));
    keeper.remove(key(0, 1, 3).words());
    settle(&mut keeper, &mut workers, 2);
    assert_eq!(offer(&mut workers[0], 0, key(0, 1, 5), 2), QpOutcome::Opened);
    assert_eq!(offer(&mut workers[0], 0, key(0, 1, 6), 2), QpOutcome::RefusedNew(DropReason::QP_QUOTA));
    // Another vNIC's places are its own.
    assert_eq!(offer(&mut workers[0], 1, key(1, 1, 6), 2), QpOutcome::Opened);
}

#[test]
fn rcft_rate_of_new_queue_pairs_and_grace() {
    let shared = shared(4096, 1);
    let keeper = Keeper::new(shared.ledger.clone());
    let mut worker = Rcft::new(shared.clone(), 0, &|_, _| {});
    keeper.set_limits(0, LedgerLimits { new_rate: 100, ..LedgerLimits::NONE });
    let opened = |worker: &mut Rcft, from: u32, ticks: std::ops::Range<u32>| {
        let mut count = 0;
        for tick in ticks {
            for n in 0..50 {
                count +=
                    u32::from(offer(worker, 0, key(0, 1, from + tick * 50 + n), tick) == QpOutcome::Opened);
            }
        }
        count
    };
    let count = opened(&mut worker, 2, 10..30);
    assert!((190..=215).contains(&count), "{count} in two seconds at 100 a second");
    // One that went idle returns at once; another that never was here does not.
    let back = key(0, 1, 9_999);
    assert_eq!(offer(&mut worker, 0, back, 29), QpOutcome::RefusedNew(DropReason::QP_RATE));
    shared.went_idle(back.words(), 28);
    assert_eq!(offer(&mut worker, 0, back, 29), QpOutcome::Opened);
    assert_eq!(offer(&mut worker, 0, key(0, 1, 9_998), 29), QpOutcome::RefusedNew(DropReason::QP_RATE));
}

/// Strangers who spray queue pair numbers at a vNIC use up neither its quota nor more than a few lines.
#[test]
fn rcft_spraying_uses_up_nothing() {
    let shared = shared(4096, 1);
    let keeper = Keeper::new(shared.ledger.clone());
    keeper.set_limits(0, LedgerLimits { quota: 5, ..LedgerLimits::NONE });
    let mut worker = Rcft::new(shared, 0, &|_, _| {});
    let from_wire = |qpn| QpKey::new(Scope::Vpc(1), Ipv4Addr::new(10, 0, 0, 1).into(), Qpn::truncated(qpn));
    let receive = |worker: &mut Rcft, qpn, tick| {
        let probe = worker.probe(Direction::In, from_wire(qpn));
        worker.received(&probe, &write(0), at(tick), || Some(0));
    };
    for qpn in 2..10_000 {
        receive(&mut worker, qpn, 1);
    }
    assert_eq!((keeper.ledger().count(0), worker.stats().into), (0, STRANGERS));
    assert_eq!(worker.stats().unknown, 9_998 - u64::from(STRANGERS));
    for qpn in 2..7 {
        assert_eq!(offer(&mut worker, 0, key(0, 9, qpn), 1), QpOutcome::Opened);
    }
    // Half-open ones leave soon; one that is spoken to goes on.
    for tick in 1..60 {
        (0..64).for_each(|_| worker.tend(at(tick)));
        receive(&mut worker, 3, tick);
    }
    assert_eq!(worker.stats().into, 1);
    assert_eq!(worker.view(Direction::In, &from_wire(3)).unwrap().packets, 60);
}

/// What came from the wire is forgotten when its connection ends, and gives its share back; what hardware took is said.
#[test]
fn repair_ended_queue_pairs_from_the_wire_are_forgotten() {
    let mut worker = Rcft::new(shared(4096, 1), 0, &|_, _| {});
    let from_wire = |qpn| QpKey::new(Scope::Vpc(1), Ipv4Addr::new(10, 0, 0, 1).into(), Qpn::truncated(qpn));
    for qpn in [2, 3] {
        let probe = worker.probe(Direction::In, from_wire(qpn));
        worker.received(&probe, &write(0), at(1), || Some(0));
    }
    assert!(!worker.view(Direction::In, &from_wire(3)).unwrap().in_part);
    worker.account(Direction::In, &from_wire(3), 0, 0, 1);
    assert!(!worker.view(Direction::In, &from_wire(3)).unwrap().in_part);
    worker.account(Direction::In, &from_wire(3), 7, 700, 1);
    let view = worker.view(Direction::In, &from_wire(3)).unwrap();
    assert!(view.in_part && view.packets == 8);
    for _ in 0..2 {
        worker.forget(&from_wire(2));
        assert_eq!((worker.stats().into, worker.guests()[0]), (1, 1));
    }
    assert!(worker.view(Direction::In, &from_wire(2)).is_none());
}

/// Four threads offer the same queue pairs in different orders while control removes some: at every moment at most
/// the quota is admitted, and in the end exactly it.
#[test]
fn rcft_four_workers_and_control() {
    const WORKERS: usize = 4;
    const QUOTA: u32 = 300;
    let shared = shared(1024, WORKERS as u32);
    let mut keeper = Keeper::new(shared.ledger.clone());
    keeper.set_limits(0, LedgerLimits { quota: QUOTA, ..LedgerLimits::NONE });
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..WORKERS {
            let (shared, done) = (shared.clone(), &done);
            scope.spawn(move || {
                let mut worker = Rcft::new(shared, n as u32, &|_, _| {});
                let mut at_ = n as u32 * 77;
                while !done.load(Relaxed) {
                    for _ in 0..32 {
                        at_ = at_.wrapping_mul(1_103_515_245).wrapping_add(12_345);
                        offer(&mut worker, 0, key(0, 1, 2 + (at_ >> 8) % 400), 1);
                    }
                    worker.tend(at(1));
                }
                // Let control finish what it has begun.
                drop(worker);
            });
        }
        let mut order: VecDeque<u32> = (2..402).collect();
        for _ in 0..3000 {
            order.rotate_left(7);
            keeper.remove(key(0, 1, order[0]).words());
            keeper.advance(|_| {});
            keeper.sweep(64, |_| false);
            let count = keeper.ledger().count(0);
            assert!(count <= QUOTA, "{count}");
        }
        done.store(true, Relaxed);
    });
    while keeper.is_busy() {
        keeper.advance(|_| {});
    }
    let (seen, _) = keeper.scan(0, 10_000);
    let distinct: HashSet<_> = seen.iter().map(|found| found.key).collect();
    assert_eq!((seen.len(), distinct.len() as u32), (distinct.len(), keeper.ledger().count(0)));
    let mut worker = Rcft::new(shared, 0, &|_, _| {});
    let passed = (2..402).filter(|qpn| {
        matches!(offer(&mut worker, 0, key(0, 1, *qpn), 100), QpOutcome::Pass | QpOutcome::Opened)
    });
    assert_eq!(passed.count() as u32, QUOTA);
}

/// However many queue pairs leave at once, a worker forgets a few of them between two bursts.
#[test]
fn rcft_a_worker_forgets_a_few_at_a_time() {
    let shared = shared(8192, 1);
    let mut keeper = Keeper::new(shared.ledger.clone());
    let mut worker = Rcft::new(shared, 0, &|_, _| {});
    for qpn in 2..5002 {
        assert_eq!(offer(&mut worker, 0, key(0, 1, qpn), 1), QpOutcome::Opened);
    }
    assert_eq!(keeper.sweep(u32::MAX, |_| true), (5000, true));
    let mut turns = 0;
    while keeper.is_busy() {
        keeper.advance(|_| {});
        let before = worker.stats().out;
        worker.tend(at(1));
        assert!(before - worker.stats().out <= 32);
        turns += 1;
    }
    assert!((5000 / 32..400).contains(&turns), "{turns}");
    assert_eq!((worker.stats().out, keeper.ledger().count(0), keeper.ledger().staying(0)), (0, 0, 0));
}
