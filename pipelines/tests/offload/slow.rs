//! Devices that take their time for each call: no turn keeps control waiting for long, what must not wait does not, and
//! all of it is done in the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pipelines::flow_key::FlowKey;
use pipelines::offload::arrival::{FlowOrigin, flow_of};
use pipelines::offload::manager::*;
use pipelines::offload::sim::{Eswitch, EswitchConfig, Fate};
use pipelines::offload::translate::{EntropySource, FlowSelector};
use pipelines::snapshot::Destination;
use rules::*;
use wire::HeapBuf;

use crate::host::*;
use testkit::*;

const MS: u64 = 1_000_000;
const SYNC_NS: u64 = 100 * MS;
/// What a turn may take.
const LIMIT: u64 = 25 * MS;
const FLOWS: u16 = 200;

/// An e-switch that takes so long for each call, by a clock of its own.
struct Slow {
    eswitch: Eswitch,
    call_ns: u64,
    clock: Arc<AtomicU64>,
}

impl Slow {
    fn wait(&self) {
        self.clock.fetch_add(self.call_ns, Ordering::Relaxed);
    }
}

impl BackEnd for Slow {
    fn validate(&mut self, rule: &FlowRule) -> Result<(), FlowError> {
        self.eswitch.validate(rule)
    }

    fn create(&mut self, rule: &FlowRule) -> Result<RuleId, FlowError> {
        self.wait();
        self.eswitch.create(rule)
    }

    fn create_gate(&mut self, rule: &FlowRule, guard: &Guard) -> Result<RuleId, FlowError> {
        self.wait();
        self.eswitch.create_gate(rule, guard)
    }

    fn completed(&mut self, results: &mut Vec<(RuleId, Result<(), FlowError>)>) {
        self.eswitch.completed(results);
    }

    fn destroy(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        self.wait();
        self.eswitch.destroy(rule)
    }

    fn query(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        self.wait();
        self.eswitch.query(rule)
    }

    fn aged(&mut self, rules: &mut Vec<RuleId>) {
        self.eswitch.aged(rules);
    }

    fn flush(&mut self) -> Result<(), FlowError> {
        self.eswitch.flush()
    }

    fn set_meter(&mut self, mtr_id: u32, meter: Option<Meter>) -> Result<(), FlowError> {
        self.wait();
        self.eswitch.set_meter(mtr_id, meter)
    }
}

/// A host with hot flows of one vNIC to one station.
struct Lab {
    host: Host,
    device: Slow,
    manager: Manager,
    base: FlowKey,
    now_ns: u64,
    told: u64,
    debited: u64,
}

fn frame(port: u16) -> Vec<u8> {
    v4(A, R).tcp(port, 80, 0x10, b"data")
}

impl Lab {
    fn new(call_ns: u64, limit: Option<u64>, entropy: EntropySource) -> Self {
        let mut host = Host::new(plain());
        host.options.entropy = entropy;
        host.options.age = 1_000_000;
        let base = host.flow(1, &frame(1));
        let clock = Arc::new(AtomicU64::new(0));
        let policy = Policy {
            packets: 1000,
            bytes: u64::MAX,
            rules_per_second: 1_000_000,
            cool_ns: u64::MAX,
            ..Policy::default()
        };
        let mut manager = Manager::new(policy);
        if let Some(limit) = limit {
            let clock = clock.clone();
            manager.limit_turns(Box::new(move || clock.load(Ordering::Relaxed)), limit);
        }
        let eswitch = Eswitch::new(EswitchConfig { refresh_ns: 0, ..EswitchConfig::default() });
        let device = Slow { eswitch, call_ns, clock };
        Self { host, device, manager, base, now_ns: SYNC_NS, told: 0, debited: 0 }
    }

    fn key(&self, port: u16) -> FlowKey {
        let mut words = *self.base.words();
        words[4] = words[4] & !0xffff_0000 | u64::from(port) << 16;
        FlowKey::from_words(words)
    }

    fn clock(&self) -> u64 {
        self.device.clock.load(Ordering::Relaxed)
    }

    /// A turn of reconciling; how long it took by the device's clock.
    fn sync(&mut self, flows: u16) -> u64 {
        self.now_ns += SYNC_NS;
        self.told += 500;
        self.device.eswitch.advance(self.now_ns);
        let (packets, bytes) = (self.told, self.told * 64);
        let samples: Vec<FlowSample> =
            (1..=flows).map(|port| FlowSample { selector: whole(self.key(port)), packets, bytes }).collect();
        let tables = self.host.tables();
        let arrivals = self.device.eswitch.all_arrivals();
        let quiet = |selector: &FlowSelector| {
            Some(ArrivalCount(arrivals.of(flow_of(selector, FlowOrigin::of(&tables, &selector.key)?))))
        };
        let began = self.device.clock.load(Ordering::Relaxed);
        let debits = self.manager.reconcile(&mut self.device, &tables, &samples, quiet, self.now_ns);
        self.debited += debits.iter().map(|debit| debit.packets).sum::<u64>();
        self.clock() - began
    }

    /// Turns until so many flows are in hardware; the longest of them.
    fn sync_until(&mut self, flows: u64, inside: u64) -> u64 {
        let mut longest = 0;
        for _ in 0..4 * u64::from(FLOWS) {
            longest = longest.max(self.sync(flows as u16));
            if self.manager.states().hardware == inside && self.manager.states().installing == 0 {
                return longest;
            }
        }
        panic!("{:?}", self.manager.states());
    }

    fn follow(&mut self) -> u64 {
        let began = self.clock();
        let tables = self.host.tables();
        self.manager.follow(&mut self.device, &tables);
        self.clock() - began
    }

    /// Sends a packet of each flow through the e-switch: how many hardware sent to this host.
    fn reach(&mut self, host: u8) -> usize {
        let arrives = |port: &u16| {
            let mut packet = HeapBuf::new(&frame(*port));
            let fate = self.device.eswitch.run(&mut packet, dpdk(1));
            fate == Fate::Out { port: dpdk(UPLINK) } && packet.to_vec()[..6] == host_mac(host).0
        };
        (1..=FLOWS).filter(arrives).count()
    }

    fn move_station(&mut self, host: u8) {
        let place = self.host.world.tunnel(0, host);
        let slot = self.host.world.snapshot.location(0, Destination::Mac(R.mac)).unwrap().slot;
        self.host.world.writer.update(slot.slot, place);
    }
}

#[test]
fn slow_devices_keep_nobody_waiting() {
    let mut lab = Lab::new(MS, None, EntropySource::Hardware);
    let longest = (0..4).map(|_| lab.sync(FLOWS)).max().unwrap();
    assert!(longest >= 200 * MS, "without a limit all goes in at once: {} ms", longest / MS);
    // Beyond its limit a turn takes what is under way: the rules of one chain at first, one call of each kind later.
    for (call_ns, chain) in [(MS / 10, 15), (MS, 15), (10 * MS, 15)] {
        let mut lab = Lab::new(call_ns, Some(LIMIT), EntropySource::Hardware);
        let longest = lab.sync_until(FLOWS.into(), FLOWS.into());
        assert!(longest <= LIMIT + chain * call_ns, "{} ms", longest / MS);
        // All counters are read, in some turns.
        assert_eq!(lab.reach(2), usize::from(FLOWS));
        for _ in 0..250 {
            let took = lab.sync(FLOWS);
            assert!(took <= LIMIT + 5 * call_ns, "{} ms", took / MS);
        }
        assert_eq!(lab.debited, u64::from(FLOWS));
        // Off, which takes its turns, too; nothing comes back meanwhile.
        lab.manager.switch(false);
        let longest = lab.sync_until(FLOWS.into(), 0);
        assert!(longest <= LIMIT + chain * call_ns, "{} ms", longest / MS);
        assert!(lab.device.eswitch.is_empty());
        assert_eq!((lab.debited, lab.manager.counters().withdrawn), (u64::from(FLOWS), u64::from(FLOWS)));
    }
}

#[test]
fn slow_devices_follow_a_move_bit_by_bit() {
    let mut lab = Lab::new(MS / 4, Some(LIMIT), EntropySource::Exact);
    lab.sync_until(FLOWS.into(), FLOWS.into());
    assert_eq!(lab.reach(2), usize::from(FLOWS));
    lab.move_station(3);
    let took = lab.follow();
    assert!(took <= LIMIT + 20 * MS / 4, "{} ms", took / MS);
    let moved = lab.reach(3);
    assert!(moved > 0 && lab.reach(2) + moved <= usize::from(FLOWS), "{moved} have moved");
    assert!(moved < usize::from(FLOWS));
    let longest = (0..100).map(|_| lab.sync(FLOWS)).max().unwrap();
    assert!(longest <= LIMIT + 20 * MS / 4, "{} ms", longest / MS);
    assert_eq!(lab.reach(3), usize::from(FLOWS), "all of them in the end");
    // Whoever cannot go on before it is done says so.
    lab.move_station(2);
    lab.follow();
    assert!(lab.reach(2) < usize::from(FLOWS));
    let tables = lab.host.tables();
    lab.manager.settle_all(&mut lab.device, &tables);
    lab.device.eswitch.advance(lab.now_ns);
    assert_eq!(lab.reach(2), usize::from(FLOWS));
}

/// What is forbidden does not wait.
#[test]
fn slow_devices_let_go_at_once_what_may_not_stay() {
    let mut lab = Lab::new(MS, Some(LIMIT), EntropySource::Exact);
    lab.sync_until(100, 100);
    lab.move_station(3);
    lab.follow();
    lab.host.world.forget(0, Destination::Mac(R.mac));
    assert!(lab.follow() > LIMIT);
    assert!(lab.device.eswitch.is_empty());
    assert_eq!((lab.reach(2), lab.reach(3)), (0, 0));
}

#[test]
fn slow_devices_are_audited_bit_by_bit() {
    let mut lab = Lab::new(MS, Some(LIMIT), EntropySource::Hardware);
    lab.sync_until(FLOWS.into(), FLOWS.into());
    let rules = lab.device.eswitch.len();
    let lost = *lab.device.eswitch.ids().iter().max().unwrap();
    assert!(lab.device.eswitch.lose(lost));
    let mut parts = 0;
    let found = loop {
        let began = lab.clock();
        let audited = lab.manager.go_on_with_audit(&mut lab.device);
        assert!(lab.clock() - began <= LIMIT + 5 * MS);
        parts += 1;
        if let Some(audited) = audited {
            break audited;
        }
    };
    assert_eq!((found, lab.device.eswitch.len()), (Ok(1), rules - 1), "its gate waits for a gap");
    assert!(parts >= FLOWS / 25, "{parts}");
    lab.sync_until(FLOWS.into(), FLOWS.into());
    assert_eq!(lab.device.eswitch.len(), rules);
    // Whoever asks for all of it waits for all of it.
    assert_eq!(lab.manager.audit(&mut lab.device), Ok(0));
}
