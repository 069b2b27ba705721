//! What holds the rules: the simulated e-switch, or a NIC's through rte_flow. One for all ports of the switch.

use std::collections::{HashMap, HashSet};

use pipelines::offload::manager::FlowSample;
use pipelines::offload::translate::FlowSelector;
use pmd::{FlowDevice, PortId, StartedPort};
use rules::{BackEnd, Cause, FlowError, FlowRule, Guard, InnerTuple, Meter, Removal, RuleId, Usage, Where};

use super::Simulated;
use crate::capabilities;

/// A NIC.
pub struct Nic {
    device: FlowDevice,
    /// Packets that software had seen of each flow one turn ago.
    before: HashMap<FlowSelector, u64>,
    /// Flows that software has seen no packet of since.
    idle: HashSet<FlowSelector>,
}

impl Nic {
    fn new(device: FlowDevice) -> Self {
        Self { device, before: HashMap::new(), idle: HashSet::new() }
    }

    /// Takes in what software has seen of flows, once a turn.
    pub(super) fn look(&mut self, samples: &[FlowSample]) {
        let now: HashMap<FlowSelector, u64> =
            samples.iter().map(|sample| (sample.selector, sample.packets)).collect();
        let still = now.iter().filter(|(selector, packets)| self.before.get(selector) == Some(packets));
        self.idle = still.map(|(selector, _)| *selector).collect();
        self.before = now;
    }
}

/// What holds the rules.
pub enum Holder {
    /// The simulated e-switch.
    Simulated(Simulated),
    /// A NIC, or what stands for one: the driver decides.
    Nic(Box<Nic>),
}

impl Holder {
    /// What it is, in a word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Simulated(_) => "simulated",
            Self::Nic(_) => "rte_flow",
        }
    }

    /// Which API of rte_flow a NIC's rules go through, in the word of `[offload] engine`.
    pub fn engine(&self) -> Option<&'static str> {
        match self {
            Self::Simulated(_) => None,
            Self::Nic(nic) => Some(if nic.device.is_queued() { "async" } else { "sync" }),
        }
    }

    /// The port that takes the rules of a NIC.
    pub fn proxy(&self) -> Option<PortId> {
        match self {
            Self::Simulated(_) => None,
            Self::Nic(nic) => Some(nic.device.proxy()),
        }
    }

    fn back_end(&mut self) -> &mut dyn BackEnd {
        match self {
            Self::Simulated(simulated) => simulated,
            Self::Nic(nic) => &mut nic.device,
        }
    }

    /// Brings a port to the NIC, and says in the log what its driver takes. The first port begins the NIC.
    ///
    /// # Errors
    /// Why its flows stay in software.
    pub(super) fn join(holder: &mut Option<Self>, port: &StartedPort) -> Result<(), FlowError> {
        let nic = match holder {
            None => {
                let nic = Box::new(Nic::new(FlowDevice::new(port)?));
                match holder.insert(Self::Nic(nic)) {
                    Self::Nic(nic) => nic,
                    Self::Simulated(_) => return Ok(()),
                }
            }
            Some(Self::Nic(nic)) => {
                nic.device.join(port)?;
                nic
            }
            Some(Self::Simulated(_)) => {
                let message = "other ports are on the simulated e-switch: a switch has one device";
                return Err(FlowError::new(Cause::Invalid, Where::Unspecified, message));
            }
        };
        let to = if nic.device.proxy() == port.id() { port.id() } else { nic.device.proxy() };
        match capabilities::probe(&mut nic.device, port.id().get(), to.get()) {
            Ok(report) => capabilities::log(port.name(), "rte_flow", &report),
            Err(words) => tracing::error!(port = port.name(), words, "the device could not be asked"),
        }
        Ok(())
    }

    /// A port goes. Without the one that takes the rules a NIC is none.
    pub(super) fn leave(&mut self, dpdk_port: u16) {
        match self {
            Self::Simulated(Simulated(device)) => device.lock().disconnect(dpdk_port),
            Self::Nic(nic) => nic.device.leave(dpdk_port),
        }
    }

    /// Flows of which nothing came to software in the last turn. A NIC cannot say what is on its way there: a packet that
    /// comes between this and the rule may be overtaken (unconfirmed on hardware).
    pub(super) fn idle(&self) -> HashSet<FlowSelector> {
        match self {
            Self::Simulated(_) => HashSet::new(),
            Self::Nic(nic) => nic.idle.clone(),
        }
    }
}

impl BackEnd for Holder {
    fn validate(&mut self, rule: &FlowRule) -> Result<(), FlowError> {
        self.back_end().validate(rule)
    }

    fn create(&mut self, rule: &FlowRule) -> Result<RuleId, FlowError> {
        self.back_end().create(rule)
    }

    fn create_gate(&mut self, rule: &FlowRule, guard: &Guard) -> Result<RuleId, FlowError> {
        self.back_end().create_gate(rule, guard)
    }

    fn completed(&mut self, results: &mut Vec<(RuleId, Result<(), FlowError>)>) {
        self.back_end().completed(results);
    }

    fn destroy(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        self.back_end().destroy(rule)
    }

    fn removal(&mut self, rule: RuleId) -> Removal {
        self.back_end().removal(rule)
    }

    fn query(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        self.back_end().query(rule)
    }

    fn push(&mut self) {
        self.back_end().push();
    }

    fn drain(&mut self) -> Result<(), FlowError> {
        self.back_end().drain()
    }

    fn aged(&mut self, rules: &mut Vec<RuleId>) {
        self.back_end().aged(rules);
    }

    fn flush(&mut self) -> Result<(), FlowError> {
        self.back_end().flush()
    }

    fn set_meter(&mut self, mtr_id: u32, meter: Option<Meter>) -> Result<(), FlowError> {
        self.back_end().set_meter(mtr_id, meter)
    }

    fn failed_meters(&mut self, failed: &mut Vec<(u32, FlowError)>) {
        self.back_end().failed_meters(failed);
    }

    fn encap_source_port(&mut self, inner: &InnerTuple) -> Result<u16, FlowError> {
        self.back_end().encap_source_port(inner)
    }
}
