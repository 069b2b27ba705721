//! An e-switch that misbehaves, and a host with flows on it.

use std::collections::HashMap;

use pipelines::flow_key::FlowKey;
use pipelines::offload::manager::*;
use pipelines::offload::sim::{Eswitch, EswitchConfig, Fate};
use pipelines::offload::translate::{EntropySource, FlowSelector};
use pipelines::offload::*;
use rules::*;
use wire::HeapBuf;

use crate::host::*;
use testkit::*;

const SYNC_NS: u64 = 100_000_000;

/// An e-switch that misbehaves.
pub struct Bad {
    pub eswitch: Eswitch,
    /// Counters read so much less, and so much more.
    pub less: u64,
    pub more: u64,
    /// Counters are to be asked for again.
    pub is_silent: bool,
    /// Rules that are not let go, and how often more.
    pub keeps: HashMap<RuleId, u32>,
    /// Removals are taken on, and answered later, as by a flow queue.
    pub is_late: bool,
    /// Rules whose removal was taken on, and whether it came to nothing so far.
    leaving: HashMap<RuleId, bool>,
    /// Aged rules that nobody has.
    pub unknown_aged: Vec<RuleId>,
    /// So many calls more, and the device is gone.
    pub calls: Option<u32>,
    pub gone: bool,
    /// Meters are neither made nor changed.
    pub keeps_rates: bool,
    /// No meter is left.
    pub lacks_meters: bool,
    /// No place for a tunnel's header is left; what is named where one is asked for.
    pub lacks_headers: Option<Where>,
    /// Meters are to be asked for again, and how often they were.
    pub is_busy: bool,
    pub asked: Vec<u32>,
    /// What is told of meters that were taken.
    pub failed_meters: Vec<(u32, FlowError)>,
}

impl Bad {
    pub fn new(config: EswitchConfig) -> Self {
        let eswitch = Eswitch::new(config);
        Self {
            eswitch,
            less: 0,
            more: 0,
            is_silent: false,
            keeps: HashMap::new(),
            is_late: false,
            leaving: HashMap::new(),
            unknown_aged: Vec::new(),
            calls: None,
            gone: false,
            keeps_rates: false,
            lacks_meters: false,
            lacks_headers: None,
            is_busy: false,
            asked: Vec::new(),
            failed_meters: Vec::new(),
        }
    }

    /// Answers removals.
    fn answer(&mut self) {
        let Self { eswitch, keeps, leaving, .. } = self;
        leaving.retain(|rule, refused| {
            *refused = keeps.get_mut(rule).is_some_and(|times| {
                let keeps = *times > 0;
                *times = times.saturating_sub(1);
                keeps
            });
            if !*refused {
                // One that the device has lost is gone, too.
                let _ = eswitch.destroy(*rule);
            }
            *refused
        });
    }

    fn call(&mut self) -> Result<(), FlowError> {
        if let Some(left) = &mut self.calls {
            self.gone |= *left == 0;
            *left = left.saturating_sub(1);
        }
        let error = || FlowError::new(Cause::NoDevice, Where::Unspecified, "the port is gone");
        if self.gone { Err(error()) } else { Ok(()) }
    }

    fn seen(&self, usage: Usage) -> Usage {
        Usage {
            packets: usage.packets.saturating_sub(self.less).saturating_add(self.more),
            bytes: usage.bytes.saturating_sub(self.less * 60).saturating_add(self.more.saturating_mul(60)),
        }
    }
}

impl BackEnd for Bad {
    fn validate(&mut self, rule: &FlowRule) -> Result<(), FlowError> {
        self.eswitch.validate(rule)
    }

    fn create(&mut self, rule: &FlowRule) -> Result<RuleId, FlowError> {
        self.call()?;
        let enters_tunnel = rule.actions.iter().any(|action| matches!(action, Action::RawEncap(_)));
        if let Some(at) = self.lacks_headers.filter(|_| enters_tunnel) {
            return Err(FlowError::new(Cause::Full, at, "no header is left"));
        }
        self.eswitch.create(rule)
    }

    fn create_gate(&mut self, rule: &FlowRule, guard: &Guard) -> Result<RuleId, FlowError> {
        self.call()?;
        self.eswitch.create_gate(rule, guard)
    }

    fn completed(&mut self, results: &mut Vec<(RuleId, Result<(), FlowError>)>) {
        self.answer();
        self.eswitch.completed(results);
    }

    fn removal(&mut self, rule: RuleId) -> Removal {
        match self.leaving.get(&rule) {
            None => Removal::Done,
            Some(false) => Removal::UnderWay,
            Some(true) => Removal::Refused(not_now()),
        }
    }

    fn drain(&mut self) -> Result<(), FlowError> {
        self.answer();
        let stay = || FlowError::new(Cause::Other(5), Where::Handle, "some rules stay");
        if self.leaving.is_empty() { Ok(()) } else { Err(stay()) }
    }

    fn destroy(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        self.call()?;
        if self.is_late {
            let gone = || FlowError::new(Cause::Gone, Where::Handle, "there is no such rule");
            if !self.eswitch.ids().contains(&rule) || self.leaving.insert(rule, false).is_some() {
                return Err(gone());
            }
            return Ok(self.eswitch.query(rule).map(|usage| self.seen(usage)).unwrap_or_default());
        }
        if let Some(times) = self.keeps.get_mut(&rule).filter(|times| **times > 0) {
            *times -= 1;
            return Err(not_now());
        }
        self.eswitch.destroy(rule).map(|usage| self.seen(usage))
    }

    fn query(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        self.call()?;
        if self.is_silent {
            return Err(FlowError::new(Cause::Again, Where::Handle, "no figures yet"));
        }
        self.eswitch.query(rule).map(|usage| self.seen(usage))
    }

    fn aged(&mut self, rules: &mut Vec<RuleId>) {
        rules.append(&mut self.unknown_aged);
        self.eswitch.aged(rules);
    }

    fn flush(&mut self) -> Result<(), FlowError> {
        self.call()?;
        self.eswitch.flush()
    }

    fn set_meter(&mut self, mtr_id: u32, meter: Option<Meter>) -> Result<(), FlowError> {
        self.call()?;
        if self.keeps_rates && meter.is_some() {
            return Err(FlowError::new(Cause::Invalid, Where::Unspecified, "meters stay as they are"));
        }
        if self.lacks_meters && meter.is_some() {
            return Err(FlowError::new(Cause::Full, Where::Unspecified, "no meter is left"));
        }
        self.asked.push(mtr_id);
        if self.is_busy && meter.is_some() {
            return Err(FlowError::new(Cause::Again, Where::Unspecified, "not now"));
        }
        self.eswitch.set_meter(mtr_id, meter)
    }

    fn failed_meters(&mut self, failed: &mut Vec<(u32, FlowError)>) {
        failed.append(&mut self.failed_meters);
    }
}

fn not_now() -> FlowError {
    FlowError::new(Cause::Again, Where::Handle, "not now")
}

pub struct Lab {
    pub host: Host,
    pub device: Bad,
    pub manager: Manager,
    pub now_ns: u64,
    debited: HashMap<FlowSelector, u64>,
    /// Packets of all flows that left, by whom.
    pub by_hardware: u64,
    pub by_software: u64,
}

fn frame(from: Station, port: u16) -> Vec<u8> {
    v4(from, R).tcp(port, 80, 0x10, b"data")
}

impl Lab {
    pub fn new(config: EswitchConfig) -> Self {
        let mut host = Host::new(plain());
        host.options.entropy = EntropySource::Hardware;
        let policy = Policy {
            packets: 1000,
            bytes: u64::MAX,
            rules_per_second: 1_000_000,
            retry_ns: 2_000_000_000,
            ..Policy::default()
        };
        Self {
            host,
            device: Bad::new(config),
            manager: Manager::new(policy),
            now_ns: 1_000_000_000,
            debited: HashMap::new(),
            by_hardware: 0,
            by_software: 0,
        }
    }

    /// So many tenths of a second, with 200 packets of each of these flows in each; all of them leave.
    pub fn run(&mut self, tenths: usize, ports: &[u16]) {
        self.run_from(tenths, &ports.iter().map(|port| (1, *port)).collect::<Vec<_>>());
    }

    /// As [`run`](Self::run), with flows from the vNICs behind these ports of ours.
    pub fn run_from(&mut self, tenths: usize, flows: &[(u16, u16)]) {
        for _ in 0..tenths {
            for (vnic, port) in flows {
                let from = if *vnic == 1 { A } else { B };
                for _ in 0..200 {
                    let mut packet = HeapBuf::new(&frame(from, *port));
                    // A device that is gone hands everything to software.
                    let fate = if self.device.gone {
                        None
                    } else {
                        Some(self.device.eswitch.run(&mut packet, dpdk(*vnic)))
                    };
                    match fate {
                        Some(Fate::Out { .. }) => self.by_hardware += 1,
                        None | Some(Fate::Software { .. }) => {
                            assert_eq!(self.host.world.run(*vnic, vec![packet]).len(), 1);
                            self.by_software += 1;
                        }
                        Some(fate) => panic!("{fate:?}"),
                    }
                }
            }
            self.sync();
        }
    }

    fn sync(&mut self) {
        self.now_ns += SYNC_NS;
        self.device.eswitch.advance(self.now_ns);
        let entries = self.host.entries();
        let samples = entries.iter().map(|entry| {
            let selector = whole(entry.key);
            let hardware = self.debited.get(&selector).copied().unwrap_or_default();
            FlowSample { selector, packets: entry.packets + hardware, bytes: 0 }
        });
        let samples: Vec<_> = samples.collect();
        let tables = self.host.tables();
        let arrivals = self.device.eswitch.all_arrivals();
        let quiet = |selector: &FlowSelector| {
            Some(ArrivalCount(
                arrivals.of(arrival::flow_of(selector, arrival::FlowOrigin::of(&tables, &selector.key)?)),
            ))
        };
        let debits = self.manager.reconcile(&mut self.device, &tables, &samples, quiet, self.now_ns);
        self.book(&debits);
    }

    fn book(&mut self, debits: &[Debit]) {
        for debit in debits {
            *self.debited.entry(debit.selector).or_default() += debit.packets;
        }
    }

    /// Says where a flow has to be.
    pub fn pin(&mut self, port: u16, pin: Option<Pin>) {
        let key = self.key(port);
        self.manager.pin(whole(key), pin, self.now_ns);
    }

    /// Takes a flow out of hardware at once.
    pub fn withdraw(&mut self, port: u16) {
        let of_port = |selector: &FlowSelector| selector.key.ports().source == port;
        let debits = self.manager.withdraw_all(&mut self.device, of_port, Why::NotAdmitted);
        self.book(&debits);
    }

    /// Packets of all flows that were debited.
    pub fn debited(&self) -> u64 {
        self.debited.values().sum()
    }

    fn key(&self, port: u16) -> FlowKey {
        let of_port = |key: &FlowKey| key.ports().source == port;
        self.host.entries().iter().map(|entry| entry.key).find(of_port).expect("a flow")
    }

    /// The station that the flows are with goes to another host.
    pub fn move_station(&mut self) {
        let place = self.host.world.tunnel(0, 3);
        let destination = pipelines::snapshot::Destination::Mac(R.mac);
        let slot = self.host.world.snapshot.location(0, destination).unwrap().slot;
        self.host.world.writer.update(slot.slot, place);
        let tables = self.host.tables();
        self.manager.follow(&mut self.device, &tables);
    }

    pub fn status(&self, port: u16) -> Status {
        self.manager.why(&self.key(port))
    }
}
