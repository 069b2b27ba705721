//! RCFT under any sequence of operations of its workers and of control, each step whole, against a linear twin: a
//! list of who is admitted, and one due time for each vNIC.
//!
//! Four bytes an operation, behind two that choose the sizes. What two threads do to each other in the middle of a
//! step is loom's to check (`pipelines/tests/rcft_loom`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use pipelines::Direction;
use pipelines::drops::DropReason;
use pipelines::flow_key::Scope;
use pipelines::rcft::{
    Keeper, Ledger, LedgerLimits, QpKey, QpOutcome, Rcft, RcftParams, RcftShared, RocePacketFacts,
};
use pipelines::{Now, TICK_MS};
use wire::Qpn;

const VNICS: usize = 3;
/// What the ledger lets a vNIC run ahead of its rate, and for how many ticks a worker remembers a refusal.
const TOLERANCE_NS: u64 = 100_000_000;
const HOLDS: u32 = 10;
/// Any but zero: the switch draws one at random.
const SEED: u64 = 0x5eed_0000_0000_0001;

/// The input is the sizes and the operations.
pub fn run(data: &[u8]) {
    let Some((sizes, rest)) = data.split_first_chunk::<2>() else { return };
    let mut test = Test::new(sizes);
    let (operations, _) = rest.as_chunks::<4>();
    for operation in operations.iter().take(400) {
        test.step(*operation);
        test.agree();
    }
    test.finish();
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Admitted,
    Leaving,
}

/// The rules of one vNIC.
#[derive(Clone, Copy)]
struct Row {
    quota: u32,
    interval: u64,
    due: u64,
}

struct Test {
    entries: u32,
    shared: Arc<RcftShared>,
    keeper: Keeper<Arc<Ledger>>,
    /// `None`: ended.
    workers: Vec<Option<Rcft>>,
    now: Now,
    twin: HashMap<QpKey, Place>,
    rows: [Row; VNICS],
    /// Places given back whose slots cannot be used again yet.
    drying: usize,
    /// What a worker refused, why and when.
    refused: HashMap<(usize, QpKey), (DropReason, u32)>,
}

impl Test {
    fn new(&[size, workers]: &[u8; 2]) -> Self {
        let entries = [1, 4, 16, 1024][usize::from(size) % 4];
        let workers = u32::from(workers) % 3 + 1;
        let config = RcftParams { entries, vnics: VNICS as u32, workers, seed: SEED };
        let shared = RcftShared::new(config, &|_, _| {});
        shared.set_times(100, 20, 50);
        let worker = |number| Some(Rcft::new(shared.clone(), number, &|_, _| {}));
        Self {
            entries,
            keeper: Keeper::new(shared.ledger.clone()),
            workers: (0..workers).map(worker).collect(),
            now: Now::from_ns(1_000_000_000),
            twin: HashMap::new(),
            rows: [Row { quota: u32::MAX, interval: 0, due: 0 }; VNICS],
            drying: 0,
            refused: HashMap::new(),
            shared,
        }
    }

    fn key(vnic: u32, qpn: u8) -> QpKey {
        // Half of them over IPv6; few enough to meet again.
        let address = match qpn & 1 {
            0 => std::net::IpAddr::from([10, 0, 0, 1 + (qpn >> 5)]),
            _ => std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(qpn >> 5)).into(),
        };
        QpKey::new(Scope::Vnic(vnic), address, Qpn::truncated(2 + u32::from(qpn & 0x1f)))
    }

    fn step(&mut self, [what, who, a, b]: [u8; 4]) {
        let vnic = u32::from(who) % VNICS as u32;
        let worker = usize::from(who >> 4) % self.workers.len();
        match what % 16 {
            0..=5 => self.offer(worker, vnic, a, b),
            6 => self.receive(worker, vnic, a, b),
            7 => {
                let key = Self::key(vnic, a);
                let removed = self.keeper.remove(key.words());
                assert_eq!(removed, self.twin.get(&key) == Some(&Place::Admitted), "removal of {key:?}");
                if removed {
                    self.twin.insert(key, Place::Leaving);
                }
            }
            8 | 9 => self.advance(),
            10 => {
                let now = self.now;
                if let Some(worker) = &mut self.workers[worker] {
                    worker.tend(now);
                }
            }
            11 => self.limit(vnic, a, b),
            12 => self.sweep(a, b),
            13 => self.now = Now::from_ns(self.now.ns + (u64::from(b) << (a % 36))),
            14 => self.shared.went_idle(Self::key(vnic, a).words(), self.now.tick),
            // The last worker goes on.
            _ if a == 0xff && self.workers.iter().flatten().count() > 1 => self.workers[worker] = None,
            _ => {
                let views = (u32::from(a), usize::from(b) % 8 + 1);
                if let Some(worker) = &self.workers[worker] {
                    let (views, _) = worker.scan(Direction::Out, views.0 % 8, views.1);
                    assert!(views.iter().all(|view| self.twin.contains_key(&view.key)));
                }
            }
        }
    }

    fn facts(a: u8, b: u8) -> RocePacketFacts {
        RocePacketFacts {
            opcode: a,
            psn: u32::from(b) << 16 | u32::from(a),
            bytes: 60 + u32::from(b),
            payload: u32::from(b) << (a & 7),
            detail: u32::from(b).wrapping_mul(0x0101_0101),
            ce: a & 0x40 != 0,
        }
    }

    fn offer(&mut self, worker: usize, vnic: u32, a: u8, b: u8) {
        let Some(rcft) = &mut self.workers[worker] else { return };
        let (key, now) = (Self::key(vnic, a), self.now);
        let mut probe = rcft.probe(Direction::Out, key);
        if a & 1 != 0 {
            // As of one that came in while it was looked for, or whose place another one has.
            probe.slot = u32::from(b);
        }
        let outcome = rcft.sent(vnic, &probe, &Self::facts(b, a), now);
        if self.twin.contains_key(&key) {
            assert_eq!(outcome, QpOutcome::Pass, "{key:?} is admitted");
            return;
        }
        let in_use = self.twin.keys().filter(|known| known.scope() == key.scope()).count();
        let no_place = in_use as u64 >= u64::from(self.rows[vnic as usize].quota);
        let no_slot = self.twin.len() + self.drying >= self.entries as usize;
        let row = &mut self.rows[vnic as usize];
        let start = row.due.max(now.ns);
        let in_time = row.interval == 0 || start - now.ns <= TOLERANCE_NS;
        if !no_place && in_time && row.interval != 0 {
            row.due = start + row.interval;
        }
        let reason = match outcome {
            QpOutcome::Pass => panic!("{key:?} passes and is not admitted"),
            QpOutcome::Opened => {
                // Beyond its rate only one that went idle may come back; which ones is a memory with gaps.
                assert!(!no_place, "{key:?} opened over the quota");
                self.twin.insert(key, Place::Admitted);
                return;
            }
            QpOutcome::RefusedNew(reason) => reason,
            QpOutcome::Refused(reason) => {
                let known = self.refused.get(&(worker, key));
                let lately = known.is_some_and(|(why, tick)| *why == reason && now.tick - tick <= HOLDS);
                assert!(lately, "{key:?} was not refused for {reason:?} lately");
                reason
            }
        };
        match reason {
            DropReason::QP_QUOTA => assert!(no_place, "{key:?} refused within the quota"),
            DropReason::QP_RATE => assert!(!no_place && !in_time, "{key:?} refused within the rate"),
            DropReason::QP_TABLE_FULL => {
                assert!(!no_place && no_slot, "{key:?} has a place and finds no slot");
            }
            other => panic!("{key:?}: {other:?}"),
        }
        // A used-up quota is remembered from its first packet on, the others from their last.
        if reason != DropReason::QP_QUOTA || matches!(outcome, QpOutcome::RefusedNew(_)) {
            self.refused.insert((worker, key), (reason, now.tick));
        }
    }

    fn receive(&mut self, worker: usize, vnic: u32, a: u8, b: u8) {
        let Some(rcft) = &mut self.workers[worker] else { return };
        let address = std::net::IpAddr::from([10, 0, 1, vnic as u8]);
        let key = QpKey::new(Scope::Vpc(1), address, Qpn::truncated(u32::from(a) + 2));
        let probe = rcft.probe(Direction::In, key);
        if b == 0 {
            rcft.notified(Direction::In, &probe);
        } else {
            rcft.received(&probe, &Self::facts(b, a), self.now, || (a != 0xff).then_some(vnic));
        }
        let stats = rcft.stats();
        assert!(stats.into <= self.entries && stats.out <= self.entries);
    }

    fn limit(&mut self, vnic: u32, a: u8, b: u8) {
        let quota = if a == 0xff { u32::MAX } else { u32::from(a % 12) };
        let new_rate = match b % 4 {
            0 | 1 => 0,
            2 => u32::from(b >> 2),
            _ => u32::MAX >> ((b >> 2) % 32),
        };
        self.keeper.set_limits(vnic, LedgerLimits { quota, new_rate, reject: b & 0x80 != 0 });
        let row = &mut self.rows[vnic as usize];
        row.quota = quota;
        row.interval = if new_rate == 0 { 0 } else { 1_000_000_000 / u64::from(new_rate) };
    }

    fn sweep(&mut self, a: u8, b: u8) {
        let twin = &mut self.twin;
        let now = self.now.tick;
        let mut marked = 0;
        let (count, _) = self.keeper.sweep(u32::from(a), |seen| {
            let key = QpKey::from_words(seen.key);
            assert!(twin.get(&key) == Some(&Place::Admitted), "{key:?} is swept over");
            assert!(!seen.leaving && seen.born <= seen.seen && seen.seen <= now);
            let goes = key.qpn().get() % 8 == u32::from(b % 8);
            if goes {
                twin.insert(key, Place::Leaving);
                marked += 1;
            }
            goes
        });
        assert_eq!(count, marked);
    }

    fn advance(&mut self) {
        let mut released = 0;
        let (twin, workers) = (&mut self.twin, &self.workers);
        self.keeper.advance(|words| {
            let key = QpKey::from_words(words);
            assert!(twin.remove(&key) == Some(Place::Leaving), "{key:?} was not leaving");
            // Nobody remembers it: the next packet asks for a place again.
            for worker in workers.iter().flatten() {
                assert!(worker.view(Direction::Out, &key).is_none(), "{key:?} is still known");
            }
            released += 1;
        });
        // Whether this call went on depends on the workers. A bound that holds either way:
        self.drying = if self.keeper.is_busy() { self.drying + released } else { 0 };
    }

    fn agree(&self) {
        let ledger = self.keeper.ledger();
        for vnic in 0..VNICS as u32 {
            let in_use = self.twin.keys().filter(|key| key.scope() == Scope::Vnic(vnic)).count();
            assert_eq!(ledger.count(vnic) as usize, in_use, "vNIC {vnic}");
            let row = &self.rows[vnic as usize];
            assert_eq!(ledger.limits(vnic).quota, row.quota);
            let stay = self
                .twin
                .iter()
                .filter(|(key, place)| key.scope() == Scope::Vnic(vnic) && **place == Place::Admitted);
            assert_eq!(ledger.staying(vnic) as usize, stay.count(), "vNIC {vnic}");
        }
    }

    /// Everything that is on its way out gets there, and then the lists are the same.
    fn finish(mut self) {
        for _ in 0..64 {
            let now = self.now;
            self.workers.iter_mut().flatten().for_each(|worker| worker.tend(now));
            self.advance();
        }
        assert!(!self.keeper.is_busy(), "something never leaves");
        self.agree();
        let (seen, rest) = self.keeper.scan(0, usize::MAX);
        assert!(rest.is_none() && seen.iter().all(|found| !found.leaving));
        let seen: HashSet<QpKey> = seen.iter().map(|found| QpKey::from_words(found.key)).collect();
        assert_eq!(seen, self.twin.keys().copied().collect());
        for worker in self.workers.iter().flatten() {
            let (views, _) = worker.scan(Direction::Out, 0, usize::MAX);
            assert!(views.iter().all(|view| seen.contains(&view.key)), "a worker knows more than the ledger");
            let stats = worker.stats();
            assert_eq!(stats.out as usize, views.len());
        }
        // Half-open entries from the wire go when nothing more comes.
        self.now = Now::from_ns(self.now.ns + 1000 * u64::from(TICK_MS) * 1_000_000);
        for worker in self.workers.iter_mut().flatten() {
            for _ in 0..2 * self.entries / 8 + 2 {
                worker.tend(self.now);
            }
            assert_eq!(worker.stats().into, 0);
        }
    }
}
