//! Which flows are in hardware: the manager of hot flows, between the workers that see flows and the device that holds
//! rules.
//!
//! ```text
//!   workers --hints, usage--> watch --samples--> manager --rules--> device
//!      ^------- account ---------+<--debits--------+------> DHTB
//! ```
//! Runs on control's turn, and waits for a worker's next look at its mailbox and for single calls of the device: when these
//! have taken their part of the turn, what is left is for the next one. Only what may not be in hardware any more leaves at
//! once. A device with a flow queue that does not answer is waited for a second then (`late.rs`); a call of the synchronous API
//! returns when its driver lets it.

mod device;
mod gap;
mod gone;
mod holder;
pub mod late;
mod ports;
mod source_ports;
mod watch;

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use pipelines::Direction;
use pipelines::hot::queue_pair;
use pipelines::offload::manager::{Debit, Manager, ManagerCounters, Pin, Rate, States, Status, Why};
use pipelines::offload::sim;
use pipelines::offload::translate::{FlowSelector, Tables, TranslateOptions};
use pipelines::qos::HardwareWork;
use pipelines::security::stays_in_hardware;
use pipelines::snapshot::{PortIndex, Snapshot};
use pmd::PortId;
use rules::{BackEnd, FlowError, Usage};

use device::nanos;
pub use device::{Simulated, flow_engine};
use gap::{ArrivalSource, begin_anew, quiet};
use gone::Gone;
use holder::Holder;
use ports::DevicePorts;
pub use source_ports::{SourcePorts, note};
use watch::FlowWatch;
use worker::Pool;
use worker::mailbox::WorkerError;

use crate::capabilities::{self, CapabilityReport};
use crate::config::{Config, OffloadConfig};

/// How long a flow that nobody tells of is looked at, in turns of counters.
const REMEMBERED: u64 = 10;
/// What part of the time between two turns of counters the device may keep control waiting for.
const BUSY: u64 = 4;

/// Offload, as control holds it.
pub struct OffloadControl {
    config: OffloadConfig,
    options: TranslateOptions,
    /// UDP port of RoCEv2.
    rdma_port: u16,
    /// What software makes of the source ports that the device chooses which was asked last.
    source_ports: Option<SourcePorts>,
    /// That is the device which is there.
    asked_source_ports: bool,
    /// What holds the rules, once a port is on it.
    holder: Option<Holder>,
    /// The ports that are on the device.
    ports: DevicePorts,
    /// Software forwards packets between vNICs and tunnels, so that hardware may.
    forwards: bool,
    manager: Manager,
    watch: FlowWatch,
    last_sync_ns: u64,
    /// When it was paid last for what hardware did.
    booked_ns: u64,
    last_audit_ns: u64,
    /// An audit is under way.
    is_auditing: bool,
    /// Rules that the device did not let go when that was looked at last.
    kept: usize,
    /// Rules that a change has waited for in vain.
    late: late::Late,
    /// What the last audit came to.
    audited: Option<Result<usize, FlowError>>,
    /// Packets and bytes that hardware did.
    done: Usage,
}

/// A flow and where it is.
#[derive(Clone, Debug)]
pub struct FlowState {
    /// The flow.
    pub selector: FlowSelector,
    /// Where it is, and why.
    pub status: Status,
    /// How fast it was lately.
    pub rate: Rate,
}

impl OffloadControl {
    /// Without ports.
    pub fn new(config: &Config) -> Self {
        let offload = &config.offload;
        let mut manager = Manager::new(device::policy(offload));
        // Until packets are forwarded.
        manager.switch(false);
        let began = Instant::now();
        manager.limit_turns(Box::new(move || nanos(began.elapsed())), nanos(offload.sync_every) / BUSY);
        Self {
            config: offload.clone(),
            options: device::options(offload),
            rdma_port: config.rdma.udp_port,
            source_ports: None,
            asked_source_ports: false,
            holder: None,
            ports: DevicePorts::default(),
            forwards: false,
            manager,
            watch: FlowWatch::default(),
            last_sync_ns: 0,
            booked_ns: 0,
            last_audit_ns: 0,
            is_auditing: false,
            kept: 0,
            late: late::Late::default(),
            audited: None,
            done: Usage::default(),
        }
    }

    /// After a change of policy, topology, locations or limits. What is forbidden now is out of hardware; what leads elsewhere
    /// in its tunnel may do so a few turns later.
    pub fn follow(&mut self, pool: &Pool, snapshot: &Snapshot) {
        let Self { manager, holder: Some(device), ports, options, .. } = self else { return };
        let ports = ports.polled();
        manager.follow(
            device,
            &Tables { snapshot, tree: &pool.tree, ports, connections: Some(&pool.connections), options },
        );
    }

    /// Has hardware do all that the tables say, however long that takes.
    fn settle_all(&mut self, pool: &Pool, snapshot: &Snapshot) {
        let Self { manager, holder: Some(device), ports, options, .. } = self else { return };
        let ports = ports.polled();
        manager.settle_all(
            device,
            &Tables { snapshot, tree: &pool.tree, ports, connections: Some(&pool.connections), options },
        );
    }

    /// Forgets the flows of vNICs and VPCs that one snapshot has and the next one has not, and where an operator wanted them:
    /// whoever gets their numbers begins with none. Behind [`follow`](Self::follow), which has taken their rules away.
    pub fn forget_gone(&mut self, before: &Snapshot, after: &Snapshot) {
        let gone = Gone::between(before, after);
        if !gone.is_empty() {
            self.manager.forget(|selector| gone.has(selector));
            self.watch.forget_all(|selector| gone.has(selector));
        }
    }

    /// As [`follow`](Self::follow), for a change that is acknowledged then: what it forbids is not in hardware any more, unless
    /// [`late_in_change`](Self::late_in_change) says otherwise.
    pub fn follow_at_once(&mut self, pool: &Pool, snapshot: &Snapshot) {
        let before = self.manager.removals();
        self.follow(pool, snapshot);
        if let Some(device) = self.holder.as_mut().filter(|_| self.manager.removals() != before) {
            self.manager.await_removals(device);
            self.waited();
        }
    }

    /// One turn.
    ///
    /// # Errors
    /// [`WorkerError`] of the first worker that does not answer; all others have told and counted.
    pub fn tend(&mut self, pool: &Pool, snapshot: &Snapshot) -> Result<(), WorkerError> {
        let Some(mut device) = self.holder.take() else { return Ok(()) };
        let result = self.turn(&mut device, pool, snapshot);
        // What the turn asked for goes out now, and what was asked for earlier is heard of.
        device.push();
        self.holder = Some(device);
        self.tell_kept();
        result
    }

    /// Says in the log when the device begins to keep rules that nobody wants, and when it has let all of them go.
    fn tell_kept(&mut self) {
        let (rules, words) = self.manager.kept().unwrap_or_default();
        match (self.kept, rules) {
            (0, 1..) => {
                tracing::warn!(
                    rules,
                    words,
                    "the device does not let rules go; it is asked again until they go"
                );
            }
            (1.., 0) => tracing::info!("the device has let go the rules that it kept"),
            _ => {}
        }
        self.kept = rules;
    }

    fn turn(&mut self, device: &mut Holder, pool: &Pool, snapshot: &Snapshot) -> Result<(), WorkerError> {
        let now_ns = pool.now().ns;
        let sync_ns = nanos(self.config.sync_every);
        let Self { ports, options, watch, .. } = self;
        let ports = ports.polled();
        let tables =
            Tables { snapshot, tree: &pool.tree, ports, connections: Some(&pool.connections), options };
        watch.hear(now_ns, |selector| selector.canonical(&tables));
        if let Holder::Simulated(simulated) = device {
            simulated.0.lock().eswitch.advance(now_ns);
        }
        if now_ns.saturating_sub(self.last_sync_ns) < sync_ns {
            self.open_gates(device, pool, snapshot, now_ns);
            return Ok(());
        }
        self.last_sync_ns = now_ns;
        let (samples, sampled) = self.watch.samples(pool);
        // What is on its way to software: the simulated e-switch knows; of a NIC, only what has come is known.
        let gap = match device {
            Holder::Simulated(simulated) => Some(simulated.clone()),
            Holder::Nic(nic) => {
                nic.look(&samples);
                None
            }
        };
        let arrivals = ArrivalSource { simulated: gap.as_ref(), idle: &device.idle() };
        let Self { manager, ports, options, config, watch, .. } = self;
        let ports = ports.polled();
        let tables =
            Tables { snapshot, tree: &pool.tree, ports, connections: Some(&pool.connections), options };
        let stays = |selector: &FlowSelector| {
            is_admitted(pool, selector) && stays_in_hardware(snapshot, &pool.connections, &selector.key)
        };
        let left = manager.withdraw_all(device, |selector| !stays(selector), Why::NotAdmitted);
        manager.hold_back(|selector| !is_admitted(pool, selector), Why::NotAdmitted, now_ns);
        let barrier = config.barrier;
        let quiet = |selector: &FlowSelector| {
            let count = quiet(pool, &tables, &arrivals, barrier, selector)?;
            begin_anew(pool, watch, selector).then_some(count)
        };
        let mut debits = manager.reconcile(device, &tables, &samples, quiet, now_ns);
        debits.extend(left);
        let (forgotten, booked) = self.book(pool, snapshot, &debits);
        let mut result = sampled.and(booked);
        if !forgotten.is_empty() {
            // Their next packets are counted where all others are.
            let left = self.manager.withdraw_unknown(device, &forgotten);
            result = result.and(self.book(pool, snapshot, &left).1);
        }
        let manager = &self.manager;
        let inside: HashSet<FlowSelector> = manager
            .flows()
            .filter(|(_, status, _)| matches!(status, Status::Hardware | Status::Installing))
            .map(|(selector, ..)| *selector)
            .collect();
        self.watch.forget(now_ns.saturating_sub(REMEMBERED * sync_ns), |selector| inside.contains(selector));
        if now_ns.saturating_sub(self.last_audit_ns) >= nanos(self.config.audit_every) {
            (self.last_audit_ns, self.is_auditing) = (now_ns, true);
        }
        if self.is_auditing
            && let Some(audited) = self.manager.go_on_with_audit(device)
        {
            (self.audited, self.is_auditing) = (Some(audited), false);
        }
        result
    }

    /// Short gaps are found by looking often. Of a NIC nothing new is known between two turns of counters.
    fn open_gates(&mut self, device: &mut Holder, pool: &Pool, snapshot: &Snapshot, now_ns: u64) {
        let Holder::Simulated(gap) = &*device else { return };
        let gap = gap.clone();
        let Self { manager, ports, options, config, watch, .. } = self;
        let ports = ports.polled();
        let tables =
            Tables { snapshot, tree: &pool.tree, ports, connections: Some(&pool.connections), options };
        let arrivals = ArrivalSource { simulated: Some(&gap), idle: &HashSet::new() };
        let quiet = |selector: &FlowSelector| {
            let count = quiet(pool, &tables, &arrivals, config.barrier, selector)?;
            begin_anew(pool, watch, selector).then_some(count)
        };
        manager.open_gates(device, quiet, now_ns);
    }

    /// Has everybody pay and count what hardware did. Flows that their worker does not know any more; and the first error of a worker that
    /// does not answer.
    fn book(
        &mut self,
        pool: &Pool,
        snapshot: &Snapshot,
        debits: &[Debit],
    ) -> (HashSet<FlowSelector>, Result<(), WorkerError>) {
        let now_ns = pool.now().ns;
        let unread_ns = now_ns.saturating_sub(self.booked_ns);
        self.booked_ns = now_ns;
        let mut done: HashMap<FlowSelector, Usage> = HashMap::new();
        let turn_ns = nanos(self.config.sync_every);
        for &Debit { selector, packets, bytes, leaf, link_len, over_ns } in debits {
            let usage = done.entry(selector).or_default();
            *usage = sum(*usage, packets, bytes);
            self.done = sum(self.done, packets, bytes);
            if let Some(leaf) = leaf {
                let overhead = u64::from(snapshot.settings.red.overhead);
                let overheads = packets.saturating_mul(overhead);
                let work = HardwareWork {
                    bytes: bytes.saturating_add(overheads),
                    over_ns: over_ns.max(turn_ns),
                    unread_ns,
                };
                pool.tree.debit(leaf, work, now_ns);
                let headers = HardwareWork { bytes: packets.saturating_mul(u64::from(link_len)), ..work };
                pool.tree.debit_link(leaf, headers, now_ns);
            }
        }
        self.watch.account(pool, &done.into_iter().collect::<Vec<_>>())
    }

    /// Takes all flows back in the next turns, or lets them go into hardware again.
    pub fn switch(&mut self, on: bool) {
        self.config.enabled = on;
        self.manager.switch(on && self.forwards);
    }

    /// Compares all of the device's rules with what should be there, and puts back what is lost; how many were. Takes as long as
    /// the device takes.
    ///
    /// # Errors
    /// The device's words when it does not take a rule again.
    pub fn audit(&mut self) -> Result<usize, FlowError> {
        let Some(device) = &mut self.holder else { return Ok(0) };
        let result = self.manager.audit(device);
        (self.audited, self.is_auditing) = (Some(result.clone()), false);
        result
    }

    /// Says where a flow has to be; `None`: where it belongs.
    pub fn pin(&mut self, selector: FlowSelector, pin: Option<Pin>, now_ns: u64) {
        self.manager.pin(selector, pin, now_ns);
    }

    /// Flows go into hardware.
    pub fn is_on(&self) -> bool {
        self.config.enabled
    }

    /// The simulated e-switch, when a port is on it.
    pub fn simulated(&self) -> Option<&Simulated> {
        match self.holder.as_ref()? {
            Holder::Simulated(simulated) => Some(simulated),
            Holder::Nic(_) => None,
        }
    }

    /// What holds the rules, in a word; `None` while no port is on a device.
    pub fn device(&self) -> Option<&'static str> {
        self.holder.as_ref().map(Holder::name)
    }

    /// Which API of rte_flow the rules of a NIC go through, in the word of `[offload] engine`.
    pub fn engine(&self) -> Option<&'static str> {
        self.holder.as_ref().and_then(Holder::engine)
    }

    /// What the device that a port is on makes of sample rules about it, some of which lead to the port `to`; `None`
    /// for a port that is on none.
    pub fn ask(&mut self, port: PortIndex, to: PortId) -> Option<Result<CapabilityReport, String>> {
        let own = self.ports.get(port)?;
        let holder = self.holder.as_mut()?;
        Some(capabilities::probe(holder, own, to.get()))
    }

    /// The port that takes the rules of a NIC.
    pub fn proxy(&self) -> Option<PortId> {
        self.holder.as_ref().and_then(Holder::proxy)
    }

    /// True for a port that is on a device.
    pub fn has(&self, port: PortIndex) -> bool {
        self.ports.get(port).is_some()
    }

    /// The ports on the device, with their DPDK port ids.
    pub fn ports(&self) -> impl Iterator<Item = (PortIndex, u16)> {
        self.ports.iter()
    }

    /// What the device did with packets and rules.
    pub fn device_stats(&self) -> Option<(sim::EswitchStats, usize)> {
        let state = self.simulated()?.0.lock();
        Some((state.eswitch.stats(), state.eswitch.len()))
    }

    /// Rules that are ours.
    pub fn rules(&self) -> usize {
        self.manager.rules()
    }

    /// What has happened so far.
    pub fn counters(&self) -> ManagerCounters {
        self.manager.counters()
    }

    /// Flows by where they are.
    pub fn states(&self) -> States {
        self.manager.states()
    }

    /// Refusals by reason.
    pub fn refusals(&self) -> Vec<(String, u64)> {
        self.manager.refusals()
    }

    /// What the last audit came to; `None` before the first one.
    pub fn audited(&self) -> Option<&Result<usize, FlowError>> {
        self.audited.as_ref()
    }

    /// What hardware did in all.
    pub fn done(&self) -> Usage {
        self.done
    }

    /// What hardware did of flows that no worker knew any more.
    pub fn unknown(&self) -> u64 {
        self.watch.unknown
    }

    /// The flows that the manager knows of, those in hardware among them.
    pub fn flows(&self) -> impl Iterator<Item = FlowState> {
        self.manager.flows().map(|(selector, status, rate)| FlowState { selector: *selector, status, rate })
    }
}

fn sum(usage: Usage, packets: u64, bytes: u64) -> Usage {
    Usage { packets: usage.packets.saturating_add(packets), bytes: usage.bytes.saturating_add(bytes) }
}

/// True unless the flow is a queue pair of a vNIC that RCFT does not admit any more.
fn is_admitted(pool: &Pool, selector: &FlowSelector) -> bool {
    match selector.qpn.and_then(|qpn| queue_pair(&selector.key, qpn)) {
        Some((Direction::Out, key)) => pool.rcft.ledger.lookup(key.words()).is_some(),
        _ => true,
    }
}

#[cfg(test)]
mod tests;
