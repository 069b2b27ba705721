//! The manager of hot flows: what goes into hardware, what leaves it, and that nothing is counted twice or lost.

use std::collections::HashMap;

use pipelines::Direction;
use pipelines::offload::arrival::{FlowOrigin, flow_of};
use pipelines::offload::manager::*;
use pipelines::offload::sim::{Eswitch, EswitchConfig, Fate};
use pipelines::offload::translate::{EntropySource, FlowSelector, OffloadRefusal};
use pipelines::qos::Class;
use pipelines::snapshot::{Destination, PortIndex};
use rules::ArrivalCount;
use wire::HeapBuf;

use crate::host::*;
use testkit::*;

const SYNC_NS: u64 = 100_000_000;

/// A host, its e-switch, and a manager that runs ten times a second.
struct Lab {
    host: Host,
    eswitch: Eswitch,
    manager: Manager,
    now_ns: u64,
    quiet: bool,
    /// What hardware did, by flow.
    debited: HashMap<FlowSelector, (u64, u64)>,
    /// Frames sent, by how they went: hardware, software.
    fates: (u64, u64),
}

fn policy() -> Policy {
    Policy { packets: 1000, bytes: u64::MAX, rules_per_second: 1_000_000, ..Policy::default() }
}

impl Lab {
    fn new(config: EswitchConfig, policy: Policy) -> Self {
        let mut host = Host::new(plain());
        host.options.entropy = EntropySource::Hardware;
        Self {
            host,
            eswitch: Eswitch::new(config),
            manager: Manager::new(policy),
            now_ns: 1_000_000_000,
            quiet: true,
            debited: HashMap::new(),
            fates: (0, 0),
        }
    }

    fn send(&mut self, port: PortIndex, frame: &[u8], n: u64) {
        for _ in 0..n {
            let mut packet = HeapBuf::new(frame);
            match self.eswitch.run(&mut packet, dpdk(port)) {
                Fate::Out { .. } => self.fates.0 += 1,
                Fate::Software { .. } => {
                    self.fates.1 += 1;
                    self.host.world.run(port, vec![packet]);
                }
                fate => panic!("{fate:?}"),
            }
        }
    }

    /// A tenth of a second goes by.
    fn sync(&mut self) {
        self.now_ns += SYNC_NS;
        self.eswitch.advance(self.now_ns);
        let samples: Vec<FlowSample> = self
            .host
            .entries()
            .iter()
            .map(|entry| {
                let selector = whole(entry.key);
                let (packets, bytes) = self.debited.get(&selector).copied().unwrap_or_default();
                FlowSample { selector, packets: entry.packets + packets, bytes: entry.bytes + bytes }
            })
            .collect();
        let tables = self.host.tables();
        let arrivals = self.eswitch.all_arrivals();
        // Software is done with a packet at once.
        let count = |selector: &FlowSelector| {
            Some(ArrivalCount(arrivals.of(flow_of(selector, FlowOrigin::of(&tables, &selector.key)?))))
        };
        let quiet = |selector: &FlowSelector| count(selector).filter(|_| self.quiet);
        let debits = self.manager.reconcile(&mut self.eswitch, &tables, &samples, quiet, self.now_ns);
        for Debit { selector, packets, bytes, .. } in debits {
            let sum = self.debited.entry(selector).or_default();
            *sum = (sum.0 + packets, sum.1 + bytes);
        }
    }

    fn follow(&mut self) {
        let tables = self.host.tables();
        self.manager.follow(&mut self.eswitch, &tables);
    }

    /// So many tenths of a second, with these flows at so many packets in each.
    fn run(&mut self, tenths: usize, flows: &[(u16, u64)]) {
        for _ in 0..tenths {
            for &(port, n) in flows {
                self.send(1, &frame(port), n);
            }
            self.sync();
        }
    }

    fn status(&self, port: u16) -> Status {
        self.manager.why(&self.key(port))
    }

    fn key(&self, port: u16) -> pipelines::flow_key::FlowKey {
        let of = |key: &pipelines::flow_key::FlowKey| key.ports().source == port;
        self.host.entries().iter().map(|entry| entry.key).find(of).expect("a flow")
    }

    /// Every packet of a flow is in software's counter or debited.
    #[track_caller]
    fn counted(&self, port: u16, packets: u64) {
        let key = self.key(port);
        let own = self.host.entries().iter().find(|entry| entry.key == key).unwrap().packets;
        let (debited, bytes) = self.debited.get(&whole(key)).copied().unwrap_or_default();
        assert_eq!(own + debited, packets, "{own} in software, {debited} debited");
        assert_eq!(bytes, debited * frame(port).len() as u64);
    }
}

fn frame(port: u16) -> Vec<u8> {
    v4(A, R).tcp(port, 80, 0x10, b"data")
}

fn cold() -> Status {
    Status::Software(Why::Cold)
}

#[test]
fn manager_hot_flows_go_in_and_leave_when_they_have_cooled() {
    let mut lab = Lab::new(EswitchConfig::default(), policy());
    // 50 packets a tenth are 500 a second, 200 are 2000.
    lab.run(5, &[(1, 50), (2, 200)]);
    assert_eq!((lab.status(1), lab.status(2)), (cold(), Status::Hardware));
    assert_eq!(lab.status(1).to_string(), "software: not hot");
    // Between half and all: it stays where it is, on either side.
    lab.run(30, &[(1, 70), (2, 70)]);
    assert_eq!((lab.status(1), lab.status(2)), (cold(), Status::Hardware));
    lab.run(5, &[(2, 10)]);
    assert_eq!(lab.status(2), Status::Hardware, "not yet");
    lab.run(25, &[(2, 10)]);
    assert_eq!(lab.status(2), cold());
    assert!(lab.eswitch.is_empty());
    lab.counted(1, 5 * 50 + 30 * 70);
    lab.counted(2, 5 * 200 + 30 * 70 + 30 * 10);
    let counters = lab.manager.counters();
    assert_eq!((counters.installed, counters.withdrawn), (1, 1));
}

#[test]
fn manager_a_flow_that_goes_up_and_down_is_counted_once() {
    let mut lab = Lab::new(EswitchConfig { insertion_rate: 100, ..EswitchConfig::default() }, policy());
    let mut sent = 0;
    for round in 0..60u64 {
        let n = if round / 15 % 2 == 0 { 200 + round } else { round % 5 };
        lab.run(1, &[(1, n)]);
        sent += n;
    }
    lab.run(30, &[]);
    lab.counted(1, sent);
    let counters = lab.manager.counters();
    assert!(counters.installed >= 2 && counters.installed == counters.withdrawn, "{counters:?}");
    assert!(lab.fates.0 > sent / 4, "{:?}", lab.fates);
    assert!(lab.eswitch.is_empty());
}

#[test]
fn manager_the_hottest_come_first_and_only_clearly_hotter_ones_displace() {
    // Four ways and four roots are common; each flow has one rule of its own: room for two.
    let mut lab = Lab::new(EswitchConfig { capacity: 10, ..EswitchConfig::default() }, policy());
    lab.run(6, &[(1, 200), (2, 400), (3, 300)]);
    assert_eq!(
        [1, 2, 3].map(|port| lab.status(port)),
        [Status::Software(Why::NoRoom), Status::Hardware, Status::Hardware]
    );
    lab.run(10, &[(1, 500), (2, 400), (3, 300)]);
    assert_eq!(lab.status(1), Status::Software(Why::NoRoom), "hotter, but not clearly");
    lab.run(10, &[(1, 900), (2, 400), (3, 300)]);
    assert_eq!(
        [1, 2, 3].map(|port| lab.status(port)),
        [Status::Hardware, Status::Hardware, Status::Software(Why::NoRoom)]
    );
    assert_eq!(lab.manager.counters().displaced, 1);
    lab.run(30, &[]);
    lab.counted(1, 6 * 200 + 10 * 500 + 10 * 900);
    lab.counted(3, 26 * 300);
    // The limit of the policy works like that of the device.
    let mut lab = Lab::new(EswitchConfig::default(), Policy { rules: 9, ..policy() });
    lab.run(6, &[(1, 200), (2, 300)]);
    assert_eq!([1, 2].map(|port| lab.status(port)), [Status::Software(Why::NoRoom), Status::Hardware]);
    assert_eq!(lab.manager.rules(), 9);
}

#[test]
fn manager_rules_are_made_at_a_limited_rate() {
    let mut lab = Lab::new(EswitchConfig::default(), Policy { rules_per_second: 10, ..policy() });
    let flows: Vec<_> = (1..=10).map(|port| (port, 200)).collect();
    lab.run(4, &flows);
    let inside = |lab: &Lab| (1..=10).filter(|port| lab.status(*port) != Status::Software(Why::Turn)).count();
    // Nine rules for the first, one for each other; eleven may be made at first, then one in a tenth.
    assert_eq!(inside(&lab), 6);
    lab.run(12, &flows);
    assert_eq!(inside(&lab), 10);
}

#[test]
fn manager_no_gap_no_hardware() {
    let mut lab = Lab::new(EswitchConfig::default(), policy());
    lab.quiet = false;
    lab.run(8, &[(1, 200)]);
    assert_eq!(lab.status(1), Status::Installing);
    assert_eq!(lab.fates.0, 0, "the gate is shut");
    lab.run(10, &[(1, 200)]);
    assert_eq!(lab.status(1).to_string(), "software: no gap");
    assert!(lab.eswitch.is_empty());
    lab.quiet = true;
    lab.run(50, &[(1, 200)]);
    assert_eq!(lab.status(1).to_string(), "software: no gap", "not again so soon");
    lab.run(60, &[(1, 200)]);
    assert_eq!(lab.status(1), Status::Hardware);
    assert_eq!(lab.manager.counters().no_gap, 1);
}

#[test]
fn manager_refusals_are_explained_and_traffic_goes_on() {
    let sent = |config: EswitchConfig| {
        let mut lab = Lab::new(config, policy());
        lab.run(20, &[(1, 200)]);
        lab.counted(1, 4000);
        assert_eq!(lab.fates.0, 0);
        assert!(lab.eswitch.is_empty() && lab.manager.rules() == 0);
        (lab.status(1).to_string(), lab.manager.counters())
    };
    let (words, counters) = sent(EswitchConfig { refuse_all: true, ..EswitchConfig::default() });
    assert_eq!(words, "refused: this device takes no rules (unspecified)");
    assert_eq!(counters.refused_by_device, 1, "asked once, then left alone for a while");
    assert_eq!(
        sent(EswitchConfig { capacity: 0, ..EswitchConfig::default() }).0,
        "software: no room for its rules"
    );
    let (words, counters) = sent(EswitchConfig { fail_one_in: 1, ..EswitchConfig::default() });
    assert_eq!((words.as_str(), counters.refused_by_device), ("refused: the device failed (unspecified)", 1));
    let mut lab = Lab::new(EswitchConfig::default(), policy());
    lab.host.ports[0] = None;
    lab.run(20, &[(1, 200)]);
    assert_eq!(lab.status(1), Status::Refused(OffloadRefusal::Port));
}

#[test]
fn manager_pins_and_the_switch_are_obeyed() {
    let mut lab = Lab::new(EswitchConfig::default(), policy());
    lab.run(5, &[(1, 200), (2, 1)]);
    let [hot, slow] = [1, 2].map(|port| whole(lab.key(port)));
    lab.manager.pin(hot, Some(Pin::Software), lab.now_ns);
    lab.manager.pin(slow, Some(Pin::Hardware), lab.now_ns);
    lab.run(30, &[(1, 200), (2, 1)]);
    assert_eq!((lab.status(1).to_string(), lab.status(2)), ("software: pinned".into(), Status::Hardware));
    lab.manager.pin(hot, None, lab.now_ns);
    lab.manager.pin(slow, None, lab.now_ns);
    lab.run(30, &[(1, 200), (2, 1)]);
    assert_eq!((lab.status(1), lab.status(2)), (Status::Hardware, cold()));
    lab.manager.switch(false);
    lab.run(2, &[(1, 200), (2, 1)]);
    assert_eq!(lab.status(1).to_string(), "software: offload is off");
    assert!(lab.eswitch.is_empty());
    lab.counted(1, 67 * 200);
    lab.counted(2, 67);
}

#[test]
fn manager_a_moved_location_changes_its_ways_and_a_change_of_policy_purges() {
    let mut lab = Lab::new(EswitchConfig::default(), policy());
    lab.run(5, &[(1, 200), (2, 200)]);
    let rules = lab.eswitch.stats().created;
    let place = lab.host.world.tunnel(0, 3);
    let slot = lab.host.world.snapshot.location(0, Destination::Mac(R.mac)).unwrap().slot;
    lab.host.world.writer.update(slot.slot, place);
    lab.follow();
    assert_eq!(lab.eswitch.stats().created - rules, 4, "one rule for each codepoint, whatever the flows");
    let mut packet = HeapBuf::new(&frame(1));
    assert_eq!(lab.eswitch.run(&mut packet, dpdk(1)), Fate::Out { port: dpdk(UPLINK) });
    assert_eq!(packet.to_vec()[..6], host_mac(3).0, "to the new host");
    lab.run(3, &[(1, 200), (2, 200)]);
    assert_eq!(lab.manager.counters().updated, 1);
    lab.host.world.forget(0, Destination::Mac(R.mac));
    lab.follow();
    assert!(lab.eswitch.is_empty(), "at once");
    assert_eq!(lab.status(1), Status::Refused(OffloadRefusal::NotForwarded));
    lab.run(1, &[]);
    lab.counted(1, 8 * 200 + 1);
}

#[test]
fn manager_meters_follow_the_shares_of_classes() {
    let mut lab = Lab::new(EswitchConfig::default(), policy());
    lab.host.limit(Direction::Out, 0, Class::Tcp, 80_000_000_000);
    lab.run(5, &[(1, 200)]);
    assert_eq!(lab.status(1), Status::Hardware);
    let before = lab.fates.0;
    lab.run(1, &[(1, 200)]);
    assert_eq!(lab.fates.0, before + 200);
    lab.host.limit(Direction::Out, 0, Class::Tcp, 8_000);
    let rules = lab.eswitch.stats().created;
    // The burst of the new limit is used up, then the meter turns packets away.
    lab.run(3, &[(1, 20_000)]);
    assert!(lab.fates.0 < before + 200 + 30_000, "{:?}", lab.fates);
    assert_eq!(lab.eswitch.stats().created, rules, "an update of the meter, no rule");
}

#[test]
fn manager_lost_rules_are_put_back_and_a_lost_device_is_survived() {
    let mut lab = Lab::new(EswitchConfig::default(), policy());
    lab.run(5, &[(1, 200)]);
    let rules = lab.eswitch.len();
    let lost = lab.eswitch.ids();
    assert!(lost.iter().all(|id| lab.eswitch.lose(*id)));
    lab.run(10, &[(1, 200)]);
    assert_eq!((lab.eswitch.len(), lab.manager.counters().repaired), (rules, rules as u64));
    assert_eq!(lab.status(1), Status::Hardware);
    let (hardware, software) = lab.fates;
    lab.run(1, &[(1, 200)]);
    assert_eq!(lab.fates, (hardware + 200, software));
    // The device goes, and a new one comes without rules.
    lab.eswitch = Eswitch::new(EswitchConfig::default());
    lab.eswitch.advance(lab.now_ns);
    lab.manager.lost();
    assert_eq!(lab.status(1).to_string(), "software: offload is off");
    lab.run(5, &[(1, 200)]);
    assert_eq!(lab.status(1), Status::Hardware, "it is as hot as before");
}

#[test]
fn manager_idle_flows_age_out() {
    let mut lab = Lab::new(EswitchConfig::default(), Policy { cool_ns: u64::MAX, ..policy() });
    lab.host.options.age = 2;
    lab.run(5, &[(1, 200)]);
    lab.run(30, &[]);
    assert_eq!((lab.status(1), lab.manager.counters().aged), (cold(), 1));
    assert!(lab.eswitch.is_empty());
    lab.counted(1, 1000);
}

#[test]
fn manager_many_flows_come_and_go_and_leave_nothing() {
    let mut lab = Lab::new(EswitchConfig::default(), Policy { cool_ns: 200_000_000, ..policy() });
    lab.host.options.entropy = EntropySource::Exact;
    for generation in 0..20u16 {
        let flows: Vec<_> = (0..10).map(|n| (100 + generation * 10 + n, 150)).collect();
        lab.run(5, &flows);
    }
    let counters = lab.manager.counters();
    assert!(counters.installed >= 190, "{counters:?}");
    lab.run(30, &[]);
    (100..300).for_each(|port| lab.counted(port, 5 * 150));
    assert!(lab.eswitch.is_empty() && lab.manager.rules() == 0);
    assert_eq!(lab.manager.adjacencies_and_bundles(), (0, 0));
    assert_eq!(lab.manager.flows().count(), 200, "those that the NFT still knows");
    lab.host.world.worker.overlay.nft_mut().clear();
    lab.run(102, &[]);
    assert_eq!(lab.manager.flows().count(), 0);
    assert_eq!(lab.manager.counters().installed, lab.manager.counters().withdrawn);
}

#[test]
fn manager_a_flow_that_software_forgot_is_not_hot() {
    let mut lab = Lab::new(EswitchConfig::default(), Policy { retry_ns: 500_000_000, ..policy() });
    lab.quiet = false;
    while lab.manager.counters().no_gap == 0 {
        lab.run(1, &[(1, 200)]);
    }
    let key = lab.key(1);
    lab.host.world.worker.overlay.nft_mut().clear();
    lab.run(5, &[]);
    assert_eq!(lab.manager.why(&key), cold());
    assert!(lab.eswitch.is_empty());
}
