//! Queue pairs under the manager: those that RCFT has admitted go into hardware, one by one, and leave it when they are
//! not admitted any more.

use std::collections::HashMap;

use pipelines::Direction;
use pipelines::flow_key::FlowKey;
use pipelines::offload::arrival::{FlowOrigin, flow_of};
use pipelines::offload::manager::*;
use pipelines::offload::sim::{Eswitch, EswitchConfig, Fate};
use pipelines::offload::translate::{EntropySource, FlowSelector};
use pipelines::rcft::{Keeper, LedgerLimits, QpKey};
use rules::ArrivalCount;
use wire::roce::{Bth, opcode};
use wire::{HeapBuf, Psn, Qpn};

use crate::host::*;
use testkit::*;

const SYNC_NS: u64 = 100_000_000;
const QPNS: [u32; 3] = [17, 18, 19];

struct Lab {
    host: Host,
    key: FlowKey,
    eswitch: Eswitch,
    manager: Manager,
    now_ns: u64,
    debited: HashMap<FlowSelector, (u64, u64)>,
    by_hardware: HashMap<u32, u64>,
}

fn frame(qpn: u32) -> Vec<u8> {
    let bth = Bth::new(opcode::RC_WRITE_ONLY, Qpn::truncated(qpn), Psn::truncated(0));
    v4(A, R).roce(50_000, bth, &[0; 64])
}

impl Lab {
    /// A vNIC with a quota of two queue pairs.
    fn new() -> Self {
        let mut host = Host::new(plain());
        host.options.entropy = EntropySource::Hardware;
        let limits = LedgerLimits { quota: 2, ..LedgerLimits::NONE };
        Keeper::new(host.world.shared.rcft.ledger.clone()).set_limits(0, limits);
        let key = host.flow(1, &frame(QPNS[0]));
        let policy =
            Policy { packets: 1000, bytes: u64::MAX, rules_per_second: 1_000_000, ..Policy::default() };
        Self {
            host,
            key,
            eswitch: Eswitch::new(EswitchConfig::default()),
            manager: Manager::new(policy),
            now_ns: 1_000_000_000,
            debited: HashMap::new(),
            by_hardware: HashMap::new(),
        }
    }

    fn selector(&self, qpn: u32) -> FlowSelector {
        FlowSelector { key: self.key, qpn: Some(Qpn::truncated(qpn)), source_port: None }
    }

    fn qp_key(&self, qpn: u32) -> QpKey {
        QpKey::new(self.key.scope(), self.key.addresses().unwrap().destination, Qpn::truncated(qpn))
    }

    /// What RCFT has counted; `None` for a queue pair that it does not know.
    fn view(&self, qpn: u32) -> Option<(u64, u64)> {
        let view = self.host.world.worker.overlay.rcft().view(Direction::Out, &self.qp_key(qpn))?;
        Some((view.packets, view.bytes))
    }

    fn send(&mut self, qpn: u32, n: u64) {
        for _ in 0..n {
            let mut packet = HeapBuf::new(&frame(qpn));
            match self.eswitch.run(&mut packet, dpdk(1)) {
                Fate::Out { .. } => *self.by_hardware.entry(qpn).or_default() += 1,
                Fate::Software { .. } => drop(self.host.world.run(1, vec![packet])),
                fate => panic!("{fate:?}"),
            }
        }
    }

    fn book(&mut self, debits: Vec<Debit>) {
        for Debit { selector, packets, bytes, .. } in debits {
            let sum = self.debited.entry(selector).or_default();
            *sum = (sum.0 + packets, sum.1 + bytes);
        }
    }

    /// A tenth of a second, with so many packets of each queue pair.
    fn run(&mut self, tenths: usize, flows: &[(u32, u64)]) {
        for _ in 0..tenths {
            flows.iter().for_each(|(qpn, n)| self.send(*qpn, *n));
            self.now_ns += SYNC_NS;
            self.eswitch.advance(self.now_ns);
            let sample = |&qpn: &u32| {
                let (own, selector) = (self.view(qpn)?, self.selector(qpn));
                let hardware = self.debited.get(&selector).copied().unwrap_or_default();
                Some(FlowSample { selector, packets: own.0 + hardware.0, bytes: own.1 + hardware.1 })
            };
            let samples: Vec<_> = QPNS.iter().filter_map(sample).collect();
            let tables = self.host.tables();
            let arrivals = self.eswitch.all_arrivals();
            let quiet = |selector: &FlowSelector| {
                Some(ArrivalCount(arrivals.of(flow_of(selector, FlowOrigin::of(&tables, &selector.key)?))))
            };
            let debits = self.manager.reconcile(&mut self.eswitch, &tables, &samples, quiet, self.now_ns);
            self.book(debits);
        }
    }

    /// Where each queue pair is.
    fn places(&self) -> [Option<Status>; 3] {
        QPNS.map(|qpn| {
            let selector = self.selector(qpn);
            self.manager.flows().find(|(other, ..)| **other == selector).map(|(_, status, _)| status)
        })
    }
}

#[test]
fn queue_pairs_go_in_one_by_one_and_only_when_admitted() {
    let mut lab = Lab::new();
    lab.run(5, &[(17, 200), (18, 10), (19, 200)]);
    // 17 is hot, 18 is not, and 19 is over the quota: its packets never ride on the others' rules.
    let cold = Status::Software(Why::Cold);
    assert_eq!(lab.places(), [Some(Status::Hardware), Some(cold), None]);
    assert_eq!(lab.manager.why(&lab.key), Status::Partial);
    assert_eq!(lab.manager.why(&lab.key).to_string(), "partial: some of its queue pairs are in hardware");
    assert_eq!(lab.manager.states(), States { partial: 1, ..States::default() });
    assert_eq!(lab.by_hardware.keys().copied().collect::<Vec<_>>(), [17]);
    lab.run(5, &[(17, 200), (18, 200), (19, 200)]);
    assert_eq!(lab.places(), [Some(Status::Hardware), Some(Status::Hardware), None]);
    assert_eq!(lab.manager.why(&lab.key), Status::Hardware);
    assert_eq!(lab.manager.states(), States { hardware: 1, ..States::default() });
    assert!(!lab.by_hardware.contains_key(&19));
    lab.run(40, &[]);
    for (qpn, sent) in [(17, 1 + 2000), (18, 5 * 10 + 5 * 200)] {
        let (own, debited) = (lab.view(qpn).unwrap().0, lab.debited[&lab.selector(qpn)].0);
        assert_eq!(own + debited, sent, "queue pair {qpn}: {own} in software, {debited} debited");
    }
    assert!(lab.eswitch.is_empty());
}

#[test]
fn queue_pairs_that_are_evicted_leave_at_once() {
    let mut lab = Lab::new();
    lab.run(5, &[(17, 200), (18, 200)]);
    assert_eq!(lab.manager.why(&lab.key), Status::Hardware);
    lab.send(17, 50);
    let before = lab.by_hardware[&17];
    // Control evicts one, and has its rules taken out.
    let mut keeper = Keeper::new(lab.host.world.shared.rcft.ledger.clone());
    assert!(keeper.remove(lab.qp_key(17).words()));
    while keeper.is_busy() {
        keeper.advance(|_| {});
        let now = lab.host.world.now;
        lab.host.world.worker.overlay.idle(now);
    }
    let gone = lab.selector(17);
    let debits = lab.manager.withdraw_all(&mut lab.eswitch, |selector| *selector == gone, Why::NotAdmitted);
    assert_eq!(debits.len(), 1);
    assert!(debits[0].selector == gone && debits[0].packets >= 50, "what it did last is told: {debits:?}");
    lab.book(debits);
    assert_eq!(lab.debited[&gone].0, before, "all that hardware did, once");
    assert!(
        lab.manager.withdraw_all(&mut lab.eswitch, |selector| *selector == gone, Why::NotAdmitted).is_empty()
    );
    assert_eq!(lab.manager.why(&lab.key), Status::Partial);
    let status = lab.places()[0].clone().unwrap();
    assert_eq!(status.to_string(), "software: its queue pair is not admitted");
    lab.run(1, &[(18, 200)]);
    assert_eq!(lab.places()[0], Some(status), "as long as software does not know it");
    // 19 takes the place: 17 is over the quota from now on.
    lab.run(5, &[(19, 200), (17, 200), (18, 200)]);
    assert_eq!(lab.by_hardware[&17], before);
    assert!(lab.by_hardware[&19] > 0);
    let places = lab.places();
    assert_eq!((&places[1], &places[2]), (&Some(Status::Hardware), &Some(Status::Hardware)));
}

#[test]
fn queue_pairs_that_are_pinned_stay_in_software_until_they_are_admitted() {
    let mut lab = Lab::new();
    lab.run(2, &[(17, 10), (18, 10)]);
    let selector = lab.selector(19);
    lab.manager.pin(selector, Some(Pin::Hardware), lab.now_ns);
    let status = Status::Software(Why::NotAdmitted);
    // It is looked at again after ten seconds.
    for tenths in [1, 98] {
        lab.manager.hold_back(|other| *other == selector, Why::NotAdmitted, lab.now_ns + SYNC_NS);
        lab.run(tenths, &[]);
        assert_eq!((lab.places()[2].clone(), lab.eswitch.is_empty()), (Some(status.clone()), true));
    }
    lab.run(5, &[]);
    assert_eq!(lab.places()[2], Some(Status::Hardware));
}
