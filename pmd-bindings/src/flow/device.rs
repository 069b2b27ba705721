//! [`FlowDevice`]: the e-switch behind a set of ports, as one back end for the offload manager.
//!
//! ```text
//!   manager --rules--> FlowDevice --> FlowQueue | Flows of the transfer proxy, for all ports that joined
//! ```
//! Rules of an e-switch are given to one of its ports, the transfer proxy, and name the others. A device takes only its
//! own rules away: those made by hand on the same port stay. It must go before the proxy stops, as its queue does.

use std::collections::BTreeSet;

use dpdk_sys as sys;
use rules::{BackEnd, Cause, FlowError, FlowRule, InnerTuple, Meter, Removal, RuleId, Usage, Where};

use super::{error, port};
use crate::port::{Port, PortId, StartedPort};

/// How often a driver that does not let all rules go is asked for that, when nobody can ask later.
const FAREWELLS: usize = 8;

/// The port that takes `transfer` rules for this one: itself, where the driver does not say.
///
/// # Errors
/// The driver's words.
pub fn transfer_proxy(port: &StartedPort) -> Result<PortId, FlowError> {
    proxy_of(port.id())
}

impl Port {
    /// The port that takes `transfer` rules for this one, before either is started: itself, where the driver does not
    /// say. That one starts first and stops last.
    ///
    /// # Errors
    /// The driver's words.
    pub fn transfer_proxy(&self) -> Result<PortId, FlowError> {
        proxy_of(self.id())
    }
}

fn proxy_of(port: PortId) -> Result<PortId, FlowError> {
    match port::pick_transfer_proxy(port.get()) {
        Err(error) if error.cause == Cause::Unsupported => Ok(port),
        answer => answer.map(PortId::new),
    }
}

/// An e-switch.
pub struct FlowDevice {
    /// The port that takes the rules.
    proxy: PortId,
    /// Which e-switch it says it is of.
    domain: Option<u16>,
    queued: bool,
    /// Ports whose packets rules may be about.
    ports: BTreeSet<u16>,
    rules: BTreeSet<RuleId>,
    meters: BTreeSet<u32>,
    api: Box<dyn BackEnd + Send>,
}

impl FlowDevice {
    /// The e-switch whose rules this port takes, with no other port yet. A port that was started with flow queues is
    /// used through the first of them, another one through the synchronous API.
    ///
    /// # Errors
    /// The driver's words; [`Cause::Invalid`] when another port takes the rules of this one, or its queue is in use.
    pub fn new(proxy: &StartedPort) -> Result<Self, FlowError> {
        let id = transfer_proxy(proxy)?;
        if id != proxy.id() {
            let message = format!(
                "rules of port {} are given to DPDK port {}: start that one first",
                proxy.name(),
                id.get()
            );
            return Err(FlowError::new(Cause::Invalid, Where::AttrTransfer, message));
        }
        let queued = proxy.running().flow_queues().is_some();
        let api: Box<dyn BackEnd + Send> =
            if queued { Box::new(proxy.flow_queue(0)?) } else { Box::new(proxy.flows()) };
        Ok(Self {
            proxy: id,
            domain: domain(proxy),
            queued,
            ports: BTreeSet::from([id.get()]),
            rules: BTreeSet::new(),
            meters: BTreeSet::new(),
            api,
        })
    }

    /// The port that takes the rules.
    pub fn proxy(&self) -> PortId {
        self.proxy
    }

    /// True when rules go through a flow queue, false through the synchronous API.
    pub fn is_queued(&self) -> bool {
        self.queued
    }

    /// Adds a port of the same e-switch. Where neither driver knows of e-switches, the one that takes the rules is left
    /// to refuse those about other ports, in its words.
    ///
    /// # Errors
    /// [`Cause::Unsupported`] for a port of another e-switch, or the driver's words.
    pub fn join(&mut self, port: &StartedPort) -> Result<(), FlowError> {
        let proxy = transfer_proxy(port)?;
        let neither_knows = self.domain.is_none() && domain(port).is_none() && proxy == port.id();
        if proxy != self.proxy && !neither_knows {
            let message = format!(
                "rules of port {} are given to DPDK port {}, those of this e-switch to {}: another NIC",
                port.name(),
                proxy.get(),
                self.proxy.get()
            );
            return Err(FlowError::new(Cause::Unsupported, Where::AttrTransfer, message));
        }
        self.ports.insert(port.id().get());
        Ok(())
    }

    /// Takes a port away, by its number. Rules about it are the caller's to destroy before.
    pub fn leave(&mut self, port: u16) {
        self.ports.remove(&port);
    }

    /// True for a port that joined, by its number.
    pub fn has(&self, port: u16) -> bool {
        self.ports.contains(&port)
    }

    /// Rules that it holds.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// True without any rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    fn describe(&self, error: FlowError) -> FlowError {
        // SAFETY: asks for a port's number; of one that is not there it says so.
        error::of_device(error, || unsafe { sys::rte_eth_dev_is_removed(self.proxy.get()) == 1 })
    }
}

fn domain(port: &StartedPort) -> Option<u16> {
    port.info().ok().and_then(|info| info.switch_domain)
}

impl BackEnd for FlowDevice {
    fn validate(&mut self, rule: &FlowRule) -> Result<(), FlowError> {
        self.api.validate(rule).map_err(|error| self.describe(error))
    }

    fn create(&mut self, rule: &FlowRule) -> Result<RuleId, FlowError> {
        let id = self.api.create(rule).map_err(|error| self.describe(error))?;
        self.rules.insert(id);
        Ok(id)
    }

    fn completed(&mut self, results: &mut Vec<(RuleId, Result<(), FlowError>)>) {
        let before = results.len();
        self.api.completed(results);
        for (id, result) in &results[before..] {
            if result.is_err() {
                self.rules.remove(id);
            }
        }
    }

    fn destroy(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        let result = self.api.destroy(rule).map_err(|error| self.describe(error));
        // One that the driver will not let go is still there.
        if result.as_ref().map_or_else(|error| error.cause == Cause::Gone, |_| true) {
            self.rules.remove(&rule);
        }
        result
    }

    fn removal(&mut self, rule: RuleId) -> Removal {
        self.api.removal(rule)
    }

    fn query(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        self.api.query(rule).map_err(|error| self.describe(error))
    }

    fn push(&mut self) {
        self.api.push();
    }

    fn drain(&mut self) -> Result<(), FlowError> {
        self.api.drain()
    }

    fn aged(&mut self, rules: &mut Vec<RuleId>) {
        let before = rules.len();
        self.api.aged(rules);
        let ours = |id: &RuleId| self.rules.contains(id);
        let kept: Vec<RuleId> = rules.drain(before..).filter(ours).collect();
        rules.extend(kept);
    }

    fn flush(&mut self) -> Result<(), FlowError> {
        let mut first = None;
        // The newest first: none leads on to one that is gone.
        for rule in self.rules.clone().into_iter().rev() {
            match self.destroy(rule) {
                Err(error) if error.cause != Cause::Gone => drop(first.get_or_insert(error)),
                _ => {}
            }
        }
        let drained = self.api.drain();
        first.map_or(drained, Err)
    }

    fn set_meter(&mut self, mtr_id: u32, meter: Option<Meter>) -> Result<(), FlowError> {
        self.api.set_meter(mtr_id, meter)?;
        match meter {
            Some(_) => self.meters.insert(mtr_id),
            None => self.meters.remove(&mtr_id),
        };
        Ok(())
    }

    fn failed_meters(&mut self, failed: &mut Vec<(u32, FlowError)>) {
        self.api.failed_meters(failed);
    }

    fn encap_source_port(&mut self, inner: &InnerTuple) -> Result<u16, FlowError> {
        self.api.encap_source_port(inner)
    }
}

impl Drop for FlowDevice {
    fn drop(&mut self) {
        let port = self.proxy.get();
        let mut flushed = self.flush();
        for _ in 1..FAREWELLS {
            match &flushed {
                Err(error) if !self.queued && error.cause != Cause::NoDevice => flushed = self.flush(),
                _ => break,
            }
        }
        match flushed {
            // A queue goes on with what is left when it goes itself.
            Err(error) if self.queued && error.cause == Cause::Again => {}
            Err(error) if error.cause != Cause::NoDevice => {
                tracing::warn!(port, %error, "rules of an e-switch were left");
            }
            _ => {}
        }
        for meter in std::mem::take(&mut self.meters) {
            match self.api.set_meter(meter, None) {
                Err(error) if !matches!(error.cause, Cause::NoDevice | Cause::Gone) => {
                    tracing::warn!(port, meter, %error, "a meter of an e-switch was left");
                }
                _ => {}
            }
        }
    }
}
