//! The store of rules: what chains share, and that no packet meets half a chain.

use pipelines::Direction;
use pipelines::offload::sim::{Eswitch, EswitchConfig, Fate};
use pipelines::offload::translate::{Chain, FlowSelector};
use pipelines::offload::*;
use pipelines::qos::Class;
use rules::*;
use wire::roce::Bth;
use wire::{HeapBuf, Psn, Qpn};

use crate::host::*;
use testkit::*;

/// An e-switch through which a frame is sent after each rule that comes or goes.
struct Probed {
    eswitch: Eswitch,
    port: u16,
    frame: Vec<u8>,
    /// How often hardware forwarded it, and how often it came to software.
    seen: (u64, u64),
}

impl Probed {
    fn probe(&mut self) {
        let mut packet = HeapBuf::new(&self.frame);
        match self.eswitch.run(&mut packet, self.port) {
            Fate::Out { .. } => self.seen.0 += 1,
            Fate::Software { .. } => {
                assert_eq!(packet.to_vec(), self.frame, "as it was received");
                self.seen.1 += 1;
            }
            fate => panic!("{fate:?}"),
        }
    }
}

impl BackEnd for Probed {
    fn validate(&mut self, rule: &FlowRule) -> Result<(), FlowError> {
        self.eswitch.validate(rule)
    }

    fn create(&mut self, rule: &FlowRule) -> Result<RuleId, FlowError> {
        let made = self.eswitch.create(rule);
        self.probe();
        made
    }

    fn completed(&mut self, results: &mut Vec<(RuleId, Result<(), FlowError>)>) {
        self.eswitch.completed(results);
    }

    fn destroy(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        let gone = self.eswitch.destroy(rule);
        self.probe();
        gone
    }

    fn query(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        self.eswitch.query(rule)
    }

    fn aged(&mut self, rules: &mut Vec<RuleId>) {
        self.eswitch.aged(rules);
    }

    fn flush(&mut self) -> Result<(), FlowError> {
        self.eswitch.flush()
    }

    fn set_meter(&mut self, mtr_id: u32, meter: Option<Meter>) -> Result<(), FlowError> {
        self.eswitch.set_meter(mtr_id, meter)
    }
}

fn eswitch() -> Eswitch {
    Eswitch::new(EswitchConfig { refresh_ns: 0, ..EswitchConfig::default() })
}

fn rdma(opcode: u8) -> Vec<u8> {
    v4(A, R).with_tos(2).roce(1000, Bth::new(opcode, Qpn::truncated(17), Psn::truncated(1)), &[0; 32])
}

fn chain(host: &mut Host, selector: FlowSelector) -> Chain {
    host.chain(selector).unwrap()
}

/// True when all rules of a chain are in force.
fn in_force(store: &mut RuleStore, back_end: &mut impl BackEnd, installed: &InstalledChain) -> bool {
    store.poll(back_end);
    store.state(installed) == RuleState::InForce
}

#[test]
fn store_no_packet_meets_half_a_chain() {
    let tcp = |path: wire::build::Path| path.tcp(1000, 80, 0x10, b"data");
    let back = tunnelled(&tcp(v4(R, A)));
    let frames: [(u16, Vec<u8>, bool); 6] = [
        (1, tcp(v4(A, R)), false),
        (1, tcp(routed(v4(A, S))), false),
        (1, tcp(v4(A, B)), false),
        (0, back, false),
        (1, rdma(0x0a), false),
        (1, rdma(0x0a), true),
    ];
    for (port, frame, metered) in frames {
        let mut host = Host::new(plain());
        if metered {
            host.limit(Direction::Out, 0, Class::Rdma, 8_000_000_000);
        }
        let key = host.flow(port, &frame);
        let selector = if key.class() == 0 { whole(key) } else { pair(key, 17, 1000) };
        let mut probed = Probed { eswitch: eswitch(), port: dpdk(port), frame, seen: (0, 0) };
        let mut store = RuleStore::default();
        let chain = chain(&mut host, selector);
        let rules = chain.rules().len() as u64;
        assert_eq!(store.missing(chain.rules()), chain.rules().len());
        let installed = store.install(&mut probed, chain.clone()).unwrap();
        assert!(in_force(&mut store, &mut probed, &installed));
        assert_eq!(store.missing(chain.rules()), 0);
        assert!(probed.seen.0 > 0, "the whole chain takes packets");
        probed.probe();
        let usage = store.remove(&mut probed, installed);
        assert_eq!(usage.packets, probed.seen.0, "what hardware forwarded, and nothing else, is counted");
        assert_eq!(probed.seen.0 + probed.seen.1, 2 * rules + 1);
        assert!(store.is_empty() && probed.eswitch.is_empty());
        assert!(probed.set_meter(1, None).is_err(), "no meter is left");
    }
}

#[test]
fn store_chains_share_rules_and_the_last_one_takes_them_along() {
    let mut host = Host::new(plain());
    let (mut eswitch, mut store) = (eswitch(), RuleStore::default());
    let keys = [1000, 1001].map(|port| host.flow(1, &v4(A, R).tcp(port, 80, 0x10, b"data")));
    let chains = keys.map(|key| chain(&mut host, whole(key)));
    let [a, b] = chains.clone().map(|chain| store.install(&mut eswitch, chain).unwrap());
    // Four roots are common.
    assert_eq!(store.len(), chains[0].rules().len() + chains[1].rules().len() - 4);
    store.remove(&mut eswitch, a);
    assert_eq!(store.len(), chains[1].rules().len());
    store.remove(&mut eswitch, b);
    assert!(store.is_empty() && eswitch.is_empty());
}

#[test]
fn store_a_rule_that_changes_keeps_its_count_at_every_stage() {
    let frame = v4(A, R).tcp(1000, 80, 0x10, b"data");
    for stage in 0..3 {
        let mut host = Host::new(plain());
        let key = host.flow(1, &frame);
        let config = EswitchConfig { refresh_ns: 0, latency_ns: 1000, ..EswitchConfig::default() };
        let (mut eswitch, mut store) = (Eswitch::new(config), RuleStore::default());
        let send = |eswitch: &mut Eswitch, n: usize| {
            (0..n).for_each(|_| {
                let fate = eswitch.run(&mut HeapBuf::new(&frame), dpdk(1));
                assert_eq!(fate, Fate::Out { port: dpdk(0) });
            });
        };
        let first = chain(&mut host, whole(key));
        let old = store.install(&mut eswitch, first.clone()).unwrap();
        assert!(!in_force(&mut store, &mut eswitch, &old));
        assert_eq!(store.query(&mut eswitch, &old).unwrap_err().cause, Cause::Again);
        eswitch.advance(1000);
        assert!(in_force(&mut store, &mut eswitch, &old));
        send(&mut eswitch, 3);
        // Another way: the counting rule says so in its actions.
        host.translator.forget(&first.facts);
        let second = chain(&mut host, whole(key));
        assert_ne!(first.rules().last().unwrap().actions, second.rules().last().unwrap().actions);
        let new = store.install(&mut eswitch, second).unwrap();
        send(&mut eswitch, 2);
        assert_eq!(store.query(&mut eswitch, &new).unwrap().packets, 5, "the old one still counts");
        if stage > 0 {
            eswitch.advance(2000);
            assert!(in_force(&mut store, &mut eswitch, &new));
            send(&mut eswitch, 4);
            assert_eq!(store.query(&mut eswitch, &new).unwrap().packets, 9);
        }
        if stage > 1 {
            // And back.
            let third = store.install(&mut eswitch, first).unwrap();
            let gone = store.remove(&mut eswitch, third);
            assert_eq!(gone.packets, 0, "the others still need it");
        }
        assert_eq!(store.remove(&mut eswitch, old).packets, 0);
        let usage = store.remove(&mut eswitch, new);
        assert_eq!(
            usage,
            Usage { packets: if stage > 0 { 9 } else { 5 }, bytes: usage.packets * frame.len() as u64 }
        );
        assert!(store.is_empty() && eswitch.is_empty(), "stage {stage}: {} rules are left", eswitch.len());
    }
}

#[test]
fn store_nothing_is_left_of_a_chain_that_finds_no_room() {
    let mut host = Host::new(plain());
    let key = host.flow(1, &v4(A, R).tcp(1000, 80, 0x10, b"data"));
    let chain = chain(&mut host, whole(key));
    for capacity in 0..chain.rules().len() as u32 {
        let mut eswitch = Eswitch::new(EswitchConfig { capacity, ..EswitchConfig::default() });
        let mut store = RuleStore::default();
        let error = store.install(&mut eswitch, chain.clone()).unwrap_err();
        assert_eq!(error.cause, Cause::Full);
        assert!(store.is_empty() && eswitch.is_empty());
    }
}

#[test]
fn store_a_rule_that_fails_later_is_known_and_made_again() {
    let mut host = Host::new(plain());
    let key = host.flow(1, &v4(A, R).tcp(1000, 80, 0x10, b"data"));
    let chain = chain(&mut host, whole(key));
    let mut eswitch = Eswitch::new(EswitchConfig { fail_one_in: 7, ..EswitchConfig::default() });
    let mut store = RuleStore::default();
    let installed = store.install(&mut eswitch, chain.clone()).unwrap();
    store.poll(&mut eswitch);
    assert!(matches!(store.state(&installed), RuleState::Failed(_)));
    // The same again makes what failed anew: its serial number is not one that fails.
    let again = store.install(&mut eswitch, chain).unwrap();
    store.remove(&mut eswitch, installed);
    assert!(in_force(&mut store, &mut eswitch, &again));
    store.remove(&mut eswitch, again);
    assert!(store.is_empty() && eswitch.is_empty());
}

#[test]
fn store_lost_rules_are_found_and_put_back() {
    let mut host = Host::new(plain());
    let key = host.flow(1, &v4(A, R).tcp(1000, 80, 0x10, b"data"));
    let (mut eswitch, mut store) = (eswitch(), RuleStore::default());
    let installed = store.install(&mut eswitch, chain(&mut host, whole(key))).unwrap();
    assert!(in_force(&mut store, &mut eswitch, &installed));
    assert_eq!(store.audit(&mut eswitch), 0);
    let rules = eswitch.len();
    assert!(eswitch.lose(store.counting(&installed).unwrap()));
    assert_eq!(store.audit(&mut eswitch), 1);
    assert!(matches!(store.state(&installed), RuleState::Failed(error) if error.cause == Cause::Gone));
    store.repair(&mut eswitch).unwrap();
    assert!(in_force(&mut store, &mut eswitch, &installed));
    assert_eq!((eswitch.len(), store.audit(&mut eswitch)), (rules, 0));
}

/// Two flows behind one gate would each count all that it sees.
#[test]
fn store_a_gate_has_one_flow() {
    let mut host = Host::new(plain());
    let key = host.flow(1, &v4(A, R).tcp(1000, 80, 0x10, b"data"));
    let (mut eswitch, mut store) = (eswitch(), RuleStore::default());
    let chain = chain(&mut host, whole(key));
    let first = store.install(&mut eswitch, chain.clone()).unwrap();
    let mut second = store.prepare(&mut eswitch, chain).unwrap();
    for _ in 0..2 {
        let error = store.open(&mut eswitch, &mut second, None).unwrap_err();
        assert_eq!(error.cause, Cause::Exists, "{error}");
    }
    assert_eq!(store.counting(&second), None);
    assert_eq!(store.remove(&mut eswitch, first), Usage::default());
    store.open(&mut eswitch, &mut second, None).unwrap();
    assert!(in_force(&mut store, &mut eswitch, &second));
    store.remove(&mut eswitch, second);
    assert!(store.is_empty() && eswitch.is_empty());
}
