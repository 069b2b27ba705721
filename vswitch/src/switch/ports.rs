//! The ports of a switch: opened, started, their queues handed to workers, and all of it taken back.

mod leaving;
mod mtu;
mod polling;
mod punt;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::Receiver;
use pipelines::snapshot::{NO_PORT, PortIndex};
use pmd::{Eal, FlowEngine, Mempool, PortId, RxQueue, StartedPort, TxQueue};
use wire::{MacAddr, TunnelTso};
use worker::eswitch::SimulatedDevice;
use worker::{MAX_PORTS, Pool, RemovedPort};

use self::leaving::Departing;
use super::error::PortsError;
use super::opening::{JobResult, OpenOrder, Opener, Ready};
use super::queues::TxQueues;
pub use super::wanted::{PortOf, WantedPort, resized, wanted};
use crate::port::{Cleanup, Presence, Traits};
use crate::topology::{Ports, Topology};

/// An attached port.
pub struct Attached {
    /// Its name in the config.
    pub name: String,
    /// What was wanted.
    pub wanted: WantedPort,
    /// What the switch must know of its kind.
    pub traits: Traits,
    pub port: StartedPort,
    /// Worker of each receive queue.
    pub rx_workers: Vec<usize>,
    /// Worker of each transmit queue.
    pub tx_workers: Vec<usize>,
    /// The transmit queues, and who hands over to whom.
    tx: TxQueues,
    /// False after `port stop`: it is not polled.
    pub running: bool,
    /// Not polled yet.
    fresh: bool,
    /// The next snapshot is made without it.
    leaving: bool,
    mac: MacAddr,
    /// It is a punt tap whose interface stays when the process ends.
    stays: bool,
    /// The DPDK port that takes its rules, where that is another one.
    pub(super) proxy: Option<PortId>,
    /// What stands in front of its receive queues.
    front: Option<Arc<SimulatedDevice>>,
    presence: Presence,
    cleanup: Cleanup,
    /// Queues that no worker has yet.
    idle_rx: Vec<RxQueue>,
    /// Transmit queues beyond the number of workers.
    idle_tx: Vec<TxQueue>,
    /// Receive queues taken from workers by `port stop`.
    parked: Vec<RxQueue>,
    /// Those that were asked for them and have not answered, with the answers to come.
    asked: Vec<(usize, Receiver<RemovedPort>)>,
}

impl Attached {
    /// Packets in rings of the process that it has sent and that nobody has fetched; `None` for other kinds.
    pub fn sent_into_rings(&self) -> Option<usize> {
        self.cleanup.sent_into_rings()
    }

    /// Its MAC address.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// It is not polled, as `port stop` left it.
    pub(crate) fn is_stopped(&self) -> bool {
        !self.running && !self.fresh
    }

    /// It is polled, or is about to be, and has a link as far as its kind can tell.
    pub(crate) fn has_link(&self) -> bool {
        (self.running || self.fresh) && self.tx.has_link()
    }

    /// Whether its device takes super-frames, and its peer where that has a say.
    pub(super) fn takes_super_frames(&self) -> bool {
        self.traits.super_frames && self.port.peer_takes_super_frames().unwrap_or(true)
    }

    /// Of an uplink: whether its device cuts TCP super-frames inside tunnels.
    pub(crate) fn cuts_in_tunnels(&self) -> Option<bool> {
        (self.wanted.of == PortOf::Uplink).then(|| self.port.tunnel_tso().is_some())
    }

    /// Why it is to be opened anew: its interface or device is not there any more, or of no use to it.
    pub(super) fn fault(&self) -> Option<String> {
        self.presence.fault().or_else(|| self.port.fault().map(str::to_owned))
    }
}

#[cfg(test)]
type BeforeRemoval = Box<dyn FnOnce(&Pool) + Send>;

/// The table of attached ports, by index.
#[derive(Default)]
pub struct PortTable {
    slots: Vec<Option<Attached>>,
    /// Numbers for device names, never used twice.
    unique: u32,
    /// Partners for the `io` and `mac` modes.
    partners: Vec<PortIndex>,
    /// Those that the config wants and that are not there, by name.
    absent: BTreeMap<String, Absent>,
    /// Those that are not polled when they come: they were stopped when they were let go in an upgrade.
    stopped: BTreeSet<String>,
    opener: Opener,
    /// Those that have gone, and that a silent worker has not given back.
    departing: Vec<Departing>,
    /// Punt taps that the config has no more, and whose interfaces are still there.
    taps_left: BTreeSet<String>,
    /// Counts that ports came, went, or got another reason for not being there.
    generation: u64,
    /// Of attempts to open a port, never used twice.
    tickets: u64,
    /// Which API the rules of ports go through.
    flow_engine: FlowEngine,
    /// What happens before the next port is taken from the workers.
    #[cfg(test)]
    pub(super) before_removal: Option<BeforeRemoval>,
}

/// A port that the config wants and that is not there (yet).
#[derive(Clone, Debug)]
pub struct Absent {
    pub wanted: WantedPort,
    /// Why it is not there; `None` before the first attempt has ended.
    pub reason: Option<String>,
    /// The attempt under way.
    pub(super) ticket: Option<u64>,
    /// When it is tried again.
    retry: Option<Instant>,
    /// How long after the next failure.
    pause: Duration,
}

impl Absent {
    /// In a word: `pending` before the first attempt has ended, then `down`.
    pub fn state(&self) -> &'static str {
        if self.reason.is_some() { "down" } else { "pending" }
    }
}

/// Between the first two attempts to open a port that is not there; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Between two attempts at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

impl Ports for PortTable {
    fn find(&self, name: &str) -> Option<(PortIndex, MacAddr)> {
        let index = self.index(name)?;
        let port = self.get(index)?;
        (!port.leaving).then_some((index, port.mac))
    }

    fn partial_checksums(&self, port: PortIndex) -> bool {
        self.get(port).is_some_and(|port| port.traits.partial_checksums)
    }

    fn takes_super_frames(&self, port: PortIndex) -> bool {
        self.get(port).is_some_and(Attached::takes_super_frames)
    }

    fn tunnel_tso(&self, port: PortIndex) -> Option<TunnelTso> {
        self.get(port)?.port.tunnel_tso()
    }

    fn partner(&self, port: PortIndex) -> PortIndex {
        self.partners.get(usize::from(port)).copied().unwrap_or(NO_PORT)
    }

    fn count(&self) -> usize {
        self.slots.len()
    }

    fn mac(&self, port: PortIndex) -> MacAddr {
        self.get(port).map(|port| port.mac).unwrap_or_default()
    }
}

impl PortTable {
    /// Without ports; the rules of those that come go through this API.
    pub fn new(flow_engine: FlowEngine) -> Self {
        Self { flow_engine, ..Self::default() }
    }

    /// The ports whose rules this one takes, by name: they stop before it does.
    pub(super) fn followers(&self, name: &str) -> Vec<String> {
        let own = self.index(name).and_then(|index| self.get(index)).map(|port| port.port.id());
        let follows = |port: &&Attached| port.proxy.is_some() && port.proxy == own;
        self.slots.iter().flatten().filter(follows).map(|port| port.name.clone()).collect()
    }

    /// A port by index.
    pub fn get(&self, index: PortIndex) -> Option<&Attached> {
        self.slots.get(usize::from(index))?.as_ref()
    }

    /// Index of a port by name, or by its number in text.
    pub fn index(&self, name: &str) -> Option<PortIndex> {
        let by_name = self.slots.iter().position(|slot| slot.as_ref().is_some_and(|port| port.name == name));
        by_name.map(|index| index as PortIndex)
    }

    /// Index of a port by name or number.
    ///
    /// # Errors
    /// [`PortsError::Unknown`].
    pub fn resolve(&self, text: &str) -> Result<PortIndex, PortsError> {
        let by_number = || text.parse().ok().filter(|&index| self.get(index).is_some());
        self.index(text).or_else(by_number).ok_or_else(|| match self.absent.contains_key(text) {
            true => PortsError::NotThere(text.into()),
            false => PortsError::Unknown(text.chars().take(64).collect()),
        })
    }

    /// The ports that the config wants and that are not there, by name.
    pub fn absent(&self) -> impl Iterator<Item = (&str, &Absent)> {
        self.absent.iter().map(|(name, absent)| (name.as_str(), absent))
    }

    /// What came of an attempt to open or close a port, if one has ended.
    pub(super) fn done(&mut self, now: Instant) -> Option<JobResult> {
        self.opener.poll(now)
    }

    /// Closes a port that runs and that nobody wants any more.
    pub(super) fn discard(&mut self, ready: Ready) {
        self.opener.close(ready);
    }

    /// The absent port that an attempt was for, unless it was given up.
    pub(super) fn awaited(&self, name: &str, ticket: u64) -> Option<&Absent> {
        self.absent.get(name).filter(|absent| absent.ticket == Some(ticket))
    }

    /// An absent port is wanted no more.
    pub(super) fn forget(&mut self, name: &str) {
        self.stopped.remove(name);
        if let Some(ticket) = self.absent.remove(name).and_then(|absent| absent.ticket) {
            self.opener.cancel(ticket);
        }
    }

    /// A port is not there, and why; it is tried again after a while, and after a longer one each time. True when that is
    /// news.
    pub(super) fn down(&mut self, name: &str, wanted: &WantedPort, reason: &str, now: Instant) -> bool {
        let fresh =
            || Absent { wanted: wanted.clone(), reason: None, ticket: None, retry: None, pause: FIRST_PAUSE };
        let absent = self.absent.entry(name.to_owned()).or_insert_with(fresh);
        (absent.ticket, absent.retry) = (None, Some(now + absent.pause));
        absent.pause = (absent.pause * 2).min(LONGEST_PAUSE);
        let is_news = absent.reason.replace(reason.to_owned()).as_deref() != Some(reason);
        self.generation += u64::from(is_news);
        is_news
    }

    /// A number that is another one whenever a port came, went, or got another reason for not being there.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// The absent ports whose time has come to be tried again.
    pub(super) fn due(&self, now: Instant) -> Vec<(String, WantedPort)> {
        let is_due = |absent: &Absent| absent.retry.is_some_and(|at| at <= now);
        // Its device is free when the port of before is closed.
        let due = self.absent.iter().filter(|(name, absent)| is_due(absent) && !self.is_departing(name));
        due.map(|(name, absent)| (name.clone(), absent.wanted.clone())).collect()
    }

    /// True for the name of a port that is there, and with the device that is wanted.
    pub(super) fn is_as_wanted(&self, name: &str, wanted: &WantedPort) -> bool {
        let port = self.index(name).and_then(|index| self.get(index));
        port.is_some_and(|port| wanted.is_device_of(&port.wanted))
    }

    /// True while a port is on its way that is likely to be there soon, or one on its way out.
    pub(super) fn is_busy(&self) -> bool {
        let soon = |absent: &Absent| absent.reason.is_none() && !crate::port::may_block(&absent.wanted.spec);
        self.opener.is_closing() || self.absent.values().any(soon)
    }

    /// All ports that the config wants, there or not, with their names.
    pub(super) fn all_wanted(&self) -> impl Iterator<Item = (&str, &WantedPort)> {
        let there = self.iter().map(|(_, port)| (port.name.as_str(), &port.wanted));
        there.chain(self.absent().map(|(name, absent)| (name, &absent.wanted)))
    }

    /// All ports, in order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = (PortIndex, &Attached)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| Some((index as PortIndex, slot.as_ref()?)))
    }

    /// Pairs ports in order for `io` and `mac`: 0-1, 2-3, ...; an odd one sends back to itself, as testpmd does.
    pub fn pair(&mut self) {
        let stay = self.iter().filter(|(_, port)| !port.leaving);
        let ports: Vec<PortIndex> = stay.map(|(index, _)| index).collect();
        self.partners = vec![NO_PORT; self.slots.len()];
        for pair in ports.chunks(2) {
            let (a, b) = (pair[0], pair[pair.len() - 1]);
            self.partners[usize::from(a)] = b;
            self.partners[usize::from(b)] = a;
        }
    }

    /// Has a port opened, under this name; until it runs it is [absent](Self::absent).
    pub(super) fn request(
        &mut self,
        eal: &Eal,
        pool: &Pool,
        mempool: &Mempool,
        name: &str,
        wanted: &WantedPort,
    ) {
        let ticket = self.open_ahead(eal, pool, mempool, name, wanted);
        self.await_ahead(name, wanted, ticket);
    }

    /// Has a port opened that the config does not want yet. The ticket of the attempt.
    pub(super) fn open_ahead(
        &mut self,
        eal: &Eal,
        pool: &Pool,
        mempool: &Mempool,
        name: &str,
        wanted: &WantedPort,
    ) -> u64 {
        self.tickets += 1;
        self.unique += 1;
        self.opener.open(OpenOrder {
            ticket: self.tickets,
            name: name.to_owned(),
            unique: self.unique,
            wanted: wanted.clone(),
            workers: pool.workers.len() as u16,
            eal: eal.clone(),
            mempool: mempool.clone(),
            flow_engine: self.flow_engine,
            deferred: false,
        });
        self.tickets
    }

    /// The port of this ticket is wanted now; until it runs it is [absent](Self::absent).
    pub(super) fn await_ahead(&mut self, name: &str, wanted: &WantedPort, ticket: u64) {
        let fresh =
            Absent { wanted: wanted.clone(), reason: None, ticket: None, retry: None, pause: FIRST_PAUSE };
        let absent = self.absent.entry(name.to_owned()).or_insert(fresh);
        (absent.ticket, absent.retry) = (Some(ticket), None);
    }

    /// A port that is not there any more is not opened again for as long as this is said of it.
    pub(super) fn hold_out(&mut self, name: &str, wanted: &WantedPort, reason: &str) {
        let (wanted, reason) = (wanted.clone(), Some(reason.to_owned()));
        let absent = Absent { wanted, reason, ticket: None, retry: None, pause: FIRST_PAUSE };
        self.absent.insert(name.to_owned(), absent);
        self.generation += 1;
    }

    /// The port of this ticket is not wanted after all.
    pub(super) fn cancel_ahead(&mut self, ticket: u64) {
        self.opener.cancel(ticket);
    }

    /// Gives a port that runs an index, and its tx queues to workers. It is polled after [`poll`](Self::poll). The index
    /// is one that no worker knows, as far as the snapshots in use go.
    ///
    /// # Errors
    /// [`PortsError`]; the port is closed again, when the workers have given back what they got of it.
    pub(super) fn place(
        &mut self,
        pool: &Pool,
        topology: &Topology,
        ready: Ready,
        front: Option<Arc<SimulatedDevice>>,
    ) -> Result<PortIndex, PortsError> {
        let free = |index: &usize| {
            let port = *index as PortIndex;
            let is_free = self.slots.get(*index).is_none_or(Option::is_none);
            is_free && !topology.uses_port(port) && !self.is_taken(port)
        };
        let Some(slot) = (0..MAX_PORTS).find(free) else {
            let path = ready.wanted.of.port(&ready.name);
            self.opener.close(ready);
            return Err(PortsError::TooMany { path });
        };
        let index = slot as PortIndex;
        let Ready { name, wanted, traits, port, presence, cleanup, rx, tx, proxy } = ready;
        let queues = TxQueues::new(pool, tx.len(), &port, &traits);
        let mut attached = Attached {
            mac: port.mac(),
            name,
            wanted,
            traits,
            port,
            rx_workers: Vec::new(),
            tx_workers: queues.owners(),
            tx: queues,
            running: false,
            fresh: true,
            leaving: false,
            stays: false,
            proxy,
            front,
            presence,
            cleanup,
            idle_rx: rx,
            idle_tx: tx,
            parked: Vec::new(),
            asked: Vec::new(),
        };
        if let Err(error) = attached.tx.give(pool, index, &mut attached.idle_tx, &attached.port) {
            self.let_out(pool, index, attached);
            return Err(error.into());
        }
        self.generation += 1;
        let absent = self.absent.remove(&attached.name);
        if let Some(absent) = absent
            && attached.wanted.mtu != absent.wanted.mtu
        {
            // The vNICs of a trunk changed while it was opened.
            attached.settle_mtu(absent.wanted.mtu);
        }
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some(attached);
        self.pair();
        Ok(index)
    }

    /// The ports that were placed and not polled yet.
    pub(super) fn fresh(&self) -> impl Iterator<Item = (PortIndex, &Attached)> {
        self.iter().filter(|(_, port)| port.fresh)
    }

    /// A port is about to go, or stays after all: the next snapshot is made without it, or with it.
    pub(super) fn leave(&mut self, name: &str, leaving: bool) {
        for port in self.slots.iter_mut().flatten().filter(|port| port.name == name) {
            port.leaving = leaving;
        }
        self.pair();
    }

    /// Looks after links, and after the queues that peers read. Called a few times a second.
    pub(super) fn tend(&mut self, pool: &Pool) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(port) = slot else { continue };
            if let Err(error) = port.tx.tend(pool, index as PortIndex, &port.port) {
                tracing::error!(port = port.name, %error, "queues could not be given to workers");
            }
        }
    }
}
