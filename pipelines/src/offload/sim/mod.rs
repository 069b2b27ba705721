//! The simulated e-switch: executes rules on packets, for a lab without a NIC. A lab device, no claim about hardware.
//!
//! ```text
//!   packet, port -> group 0 -- rule: actions, jump --> group n ... --> out of a port | to software | dropped
//!                      \------------- no rule: to software ------------/
//! ```
//! Pure: it knows the time by [`Eswitch::advance`] alone. Rules come into force at a configured rate and after a
//! configured time, one after another; counters are shown as of their last refresh; refusals are in `refuse`.

mod arrival;
mod encap_hash;
mod execute;
mod layers;
mod meter;
mod refuse;
mod rule_set;
mod table;

pub use encap_hash::EncapHashKind;
pub use execute::Fate;
pub use layers::UdpPorts;

use std::collections::HashMap;
use std::sync::Arc;

use wire::PacketBuf;

use rules::mlx5::{Engine, Nic};
use rules::{
    ArrivalCount, BackEnd, Cause, FlowError, FlowRule, Guard, InnerTuple, Meter, RuleId, Usage, Where,
};

use super::arrival::Arrivals;
use layers::{LayerSlots, Layers, Registers};
use meter::Metered;
use rule_set::RuleTable;

/// What the device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EswitchConfig {
    /// Rules that it has room for.
    pub capacity: u32,
    /// Groups it has, numbered from 0.
    pub groups: u32,
    /// Rules that come into force a second; 0: any number.
    pub insertion_rate: u32,
    /// From creation until a rule is in force, nanoseconds.
    pub latency_ns: u64,
    /// Time between two refreshes of counters, nanoseconds; 0: they are always fresh.
    pub refresh_ns: u64,
    /// UDP ports that mean something.
    pub udp: UdpPorts,
    /// The NIC that it stands for: it takes no rule that this one's driver refuses. `None`: whatever it can execute.
    pub nic: Option<Nic>,
    /// How that driver writes rules, which decides what it refuses.
    pub steering: Engine,
    /// It matches InfiniBand headers.
    pub ib_bth: bool,
    /// It matches the colours that meters give.
    pub meter_mark: bool,
    /// It changes ECN fields.
    pub modify_ecn: bool,
    /// Where outer source ports come from.
    pub encap_hash: EncapHashKind,
    /// It matches ranges: items with a `last`.
    pub ranges: bool,
    /// It refuses every rule: a device that is there and of no use.
    pub refuse_all: bool,
    /// Of so many rules that it takes, one never comes into force; 0: none.
    pub fail_one_in: u32,
}

impl Default for EswitchConfig {
    fn default() -> Self {
        Self {
            capacity: 1 << 20,
            groups: 64,
            insertion_rate: 0,
            latency_ns: 0,
            refresh_ns: 500_000_000,
            udp: UdpPorts { vxlan: 4789, rdma: 4791 },
            nic: Some(Nic::ConnectX7),
            steering: Engine::Hardware,
            ib_bth: true,
            meter_mark: true,
            modify_ecn: true,
            encap_hash: EncapHashKind::None,
            ranges: false,
            refuse_all: false,
            fail_one_in: 0,
        }
    }
}

/// What the device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EswitchStats {
    /// Rules that it took.
    pub created: u64,
    /// Rules that it refused at once.
    pub refused: u64,
    /// Rules that were taken and failed.
    pub failed: u64,
    /// Packets sent out of a port.
    pub forwarded: u64,
    /// Packets dropped by a rule.
    pub dropped: u64,
    /// Packets that a rule sent to software.
    pub to_software: u64,
    /// Packets that met no rule in some group, and went to software.
    pub missed: u64,
    /// Packets that were lost because an action could not be carried out (no headroom).
    pub errors: u64,
}

/// The simulated device: rules, meters, counters, and the time that it was told.
pub struct Eswitch {
    config: EswitchConfig,
    now_ns: u64,
    rules: RuleTable,
    meters: HashMap<u32, Metered>,
    arrivals: Arc<Arrivals>,
    completed: Vec<(RuleId, Result<(), FlowError>)>,
    stats: EswitchStats,
}

impl Eswitch {
    /// A device without rules.
    pub fn new(config: EswitchConfig) -> Self {
        Self {
            config,
            now_ns: 0,
            rules: RuleTable::default(),
            meters: HashMap::new(),
            arrivals: Arc::default(),
            completed: Vec::new(),
            stats: EswitchStats::default(),
        }
    }

    /// What the device is like.
    pub fn config(&self) -> &EswitchConfig {
        &self.config
    }

    /// Rules and packets counted since it was made.
    pub fn stats(&self) -> EswitchStats {
        self.stats
    }

    /// Rules it holds, those not yet in force included.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// True without any rule.
    pub fn is_empty(&self) -> bool {
        self.rules.len() == 0
    }

    /// What it remembers of rules beside the rules: when they come into force, when they age, meters, results that
    /// nobody has asked for. What would grow if something were left behind.
    pub fn remembered(&self) -> usize {
        self.rules.remembered() + self.meters.len() + self.completed.len()
    }

    /// Tells the time, nanoseconds of a clock that does not go back; rules whose time has come are in force.
    pub fn advance(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        let Self { completed, stats, config, arrivals, .. } = self;
        let holds = |guard: &Guard| ArrivalCount(arrivals.of(guard.flow)) == guard.arrivals;
        self.rules.activate(self.now_ns, config.fail_one_in, holds, |id, result| {
            stats.failed += u64::from(result.is_err());
            completed.push((id, result));
        });
    }

    /// Sends a packet through. `port` is the DPDK port that stands for where it came from.
    pub fn run<P: PacketBuf>(&mut self, packet: &mut P, port: u16) -> Fate {
        let mut registers = Registers { port, ..Registers::default() };
        let fate = match Layers::of(packet, self.config.udp) {
            Some(mut layers) => {
                registers.flow = arrival::flow_of_packet(&layers, packet.head(), &registers);
                execute::run(self, packet, &mut layers, &mut registers)
            }
            None => Fate::unmatched(&registers, true),
        };
        let counter = match fate {
            Fate::Out { .. } => &mut self.stats.forwarded,
            Fate::Software { missed: true, .. } => &mut self.stats.missed,
            Fate::Software { .. } => &mut self.stats.to_software,
            Fate::Dropped => &mut self.stats.dropped,
            Fate::Failed => &mut self.stats.errors,
        };
        *counter += 1;
        if let Fate::Software { flow, .. } = fate {
            self.arrivals.add(flow);
        }
        fate
    }

    /// Packets that went to software, of this flow and of those that share its slot.
    pub fn arrivals(&self, flow: u64) -> u64 {
        self.arrivals.of(flow)
    }

    /// The same, for whoever does not hold the device.
    pub fn all_arrivals(&self) -> Arc<Arrivals> {
        self.arrivals.clone()
    }

    fn check(&self, rule: &FlowRule) -> Result<LayerSlots, FlowError> {
        refuse::check(rule, &self.config)?;
        layers::slots_of(&rule.pattern)
    }

    fn take(&mut self, rule: &FlowRule, guard: Option<Guard>) -> Result<RuleId, FlowError> {
        let room = self.rules.len() < self.config.capacity as usize;
        let taken = self.check(rule).and_then(|slots| {
            if room {
                self.rules.add(rule, slots, guard, self.now_ns, &self.config)
            } else {
                let text = format!("no room: {} rules are in use", self.config.capacity);
                Err(FlowError::new(Cause::Full, Where::Unspecified, text))
            }
        });
        match &taken {
            Ok(_) => self.stats.created += 1,
            Err(_) => self.stats.refused += 1,
        }
        self.advance(self.now_ns);
        taken
    }

    /// The first rule of group 0 on that matches a packet as it is, by looking at every rule: for tests of the index.
    pub fn first_match_linear<P: PacketBuf>(&self, packet: &P, port: u16, group: u32) -> Option<RuleId> {
        let layers = Layers::of(packet, self.config.udp)?;
        let registers = Registers { port, ..Registers::default() };
        self.rules.find_linear(group, &layers, packet.head(), &registers)
    }

    /// The same by the index.
    pub fn first_match<P: PacketBuf>(&self, packet: &P, port: u16, group: u32) -> Option<RuleId> {
        let layers = Layers::of(packet, self.config.udp)?;
        let registers = Registers { port, ..Registers::default() };
        self.rules.find(group, &layers, packet.head(), &registers).map(|number| self.rules.id(number))
    }

    /// Ids of the rules that it holds, in no particular order.
    pub fn ids(&self) -> Vec<RuleId> {
        self.rules.ids()
    }

    /// A DPDK port is gone: rules about it go with it, whoever made them, as its number may be another port's next.
    pub fn forget_port(&mut self, port: u16) {
        for id in self.rules.naming(port) {
            self.rules.remove(id);
        }
    }

    /// Loses a rule without telling anybody: for tests of an audit.
    pub fn lose(&mut self, rule: RuleId) -> bool {
        self.rules.remove(rule).is_some()
    }
}

impl BackEnd for Eswitch {
    fn validate(&mut self, rule: &FlowRule) -> Result<(), FlowError> {
        self.check(rule).map(|_| ())
    }

    fn create(&mut self, rule: &FlowRule) -> Result<RuleId, FlowError> {
        self.take(rule, None)
    }

    fn create_gate(&mut self, rule: &FlowRule, guard: &Guard) -> Result<RuleId, FlowError> {
        self.take(rule, Some(*guard))
    }

    fn completed(&mut self, results: &mut Vec<(RuleId, Result<(), FlowError>)>) {
        let there = |(id, result): &(RuleId, Result<(), FlowError>)| result.is_err() || self.rules.has(*id);
        results.extend(self.completed.drain(..).filter(there));
    }

    fn destroy(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        self.rules.remove(rule).ok_or_else(gone)
    }

    fn query(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        self.rules.query(rule, self.now_ns, self.config.refresh_ns)
    }

    fn aged(&mut self, rules: &mut Vec<RuleId>) {
        self.rules.aged(self.now_ns, rules);
    }

    fn flush(&mut self) -> Result<(), FlowError> {
        self.rules.clear();
        self.completed.clear();
        Ok(())
    }

    fn set_meter(&mut self, mtr_id: u32, meter: Option<Meter>) -> Result<(), FlowError> {
        let Some(meter) = meter else {
            return self.meters.remove(&mtr_id).map(|_| ()).ok_or_else(|| {
                FlowError::new(Cause::Gone, Where::Unspecified, format!("there is no meter {mtr_id}"))
            });
        };
        let now_ns = self.now_ns;
        self.meters
            .entry(mtr_id)
            .and_modify(|metered| metered.set(meter, now_ns))
            .or_insert_with(|| Metered::new(meter, now_ns));
        Ok(())
    }

    fn encap_source_port(&mut self, inner: &InnerTuple) -> Result<u16, FlowError> {
        self.config.encap_hash.source_port(inner).ok_or_else(|| {
            let message = "the device chooses no outer source port: it sends the header's";
            FlowError::new(Cause::Unsupported, Where::Unspecified, message)
        })
    }
}

fn gone() -> FlowError {
    FlowError::new(Cause::Gone, Where::Handle, "there is no such rule")
}
