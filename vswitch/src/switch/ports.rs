//! The ports of a switch: opened, started, their queues handed to workers, and all of it taken back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::queue::ArrayQueue;
use pipelines::snapshot::{NO_PORT, PortIndex};
use pmd::{Eal, Mempool, PortConfig as StartConfig, RxQueue, StartedPort, TxQueue};
use wire::MacAddr;

use super::topology::{Ports, punt_mtu, punt_name};
use crate::config::{Config, HostTraffic, OffloadDevice, PortSpec, VnicPort};
use crate::port::{self, OpenError, Opened, QueueError, Request, Traits};
use crate::worker::eswitch::{Device, Front};
use crate::worker::tx::HAND_OFF_SLOTS;
use crate::worker::{Command, MAX_PORTS, Pool, RemovedPort};

/// A port that the config wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// What stands behind it.
    pub spec: PortSpec,
    /// Receive queues, where given.
    pub rx_queues: Option<u16>,
    /// Transmit queues, where given.
    pub tx_queues: Option<u16>,
    /// Largest IP packet, where the config says.
    pub mtu: Option<u16>,
    /// What holds its rules.
    pub offload: Option<OffloadDevice>,
}

/// The ports that a config wants, by name.
pub fn wanted(config: &Config) -> BTreeMap<String, Wanted> {
    let mut ports = BTreeMap::new();
    for uplink in &config.uplinks {
        let (rx_queues, tx_queues) = (uplink.rx_queues, uplink.tx_queues);
        let (spec, mtu, offload) = (uplink.port.clone(), Some(uplink.mtu), uplink.offload);
        ports.insert(uplink.name.to_string(), Wanted { spec, rx_queues, tx_queues, mtu, offload });
        if uplink.host == Some(HostTraffic::Punt) {
            let iface = uplink.host_tap.clone().unwrap_or_else(|| format!("{}-host", uplink.name));
            let tap = crate::config::port_spec::TapPort { iface, queues: 1, mac: uplink.mac, persist: false };
            let wanted = Wanted {
                spec: PortSpec::Tap(tap),
                rx_queues: Some(1),
                tx_queues: Some(1),
                mtu: Some(punt_mtu(uplink.mtu)),
                offload: None,
            };
            ports.insert(punt_name(&uplink.name), wanted);
        }
    }
    for trunk in &config.trunks {
        let spec = trunk.port.clone();
        let (rx_queues, tx_queues) = (trunk.rx_queues, trunk.tx_queues);
        ports.insert(trunk.name.to_string(), Wanted { spec, rx_queues, tx_queues, mtu: None, offload: None });
    }
    for vnic in &config.vnics {
        if let VnicPort::Own(spec) = &vnic.port {
            let queues = vnic.queues;
            let (spec, mtu, offload) = (spec.clone(), Some(vnic.mtu), vnic.offload);
            let wanted = Wanted { spec, rx_queues: queues, tx_queues: queues, mtu, offload };
            ports.insert(vnic.name.to_string(), wanted);
        }
    }
    for port in &config.ports {
        let spec = port.port.clone();
        let (rx_queues, tx_queues) = (port.rx_queues, port.tx_queues);
        ports.insert(port.name.to_string(), Wanted { spec, rx_queues, tx_queues, mtu: None, offload: None });
    }
    ports
}

/// An attached port.
pub struct Attached {
    /// Its name in the config.
    pub name: String,
    /// What was wanted.
    pub wanted: Wanted,
    /// What the switch must know of its kind.
    pub traits: Traits,
    /// The ethdev.
    pub port: StartedPort,
    /// Worker of each receive queue.
    pub rx_workers: Vec<usize>,
    /// Worker of each transmit queue.
    pub tx_workers: Vec<usize>,
    /// False after `port stop`: it is not polled.
    pub running: bool,
    mac: MacAddr,
    /// What stands in front of its receive queues.
    front: Option<Arc<Device>>,
    cleanup: port::Cleanup,
    /// Queues that no worker has yet.
    idle_rx: Vec<RxQueue>,
    /// Transmit queues beyond the number of workers.
    idle_tx: Vec<TxQueue>,
    /// Receive queues taken from workers by `port stop`.
    parked: Vec<RxQueue>,
}

impl Attached {
    /// Its MAC address.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }
}

/// What went wrong with a port.
#[derive(Debug, thiserror::Error)]
pub enum PortsError {
    /// It could not be opened.
    #[error("port {name}: {source}")]
    Open {
        /// The port.
        name: String,
        /// Why, and what to do.
        source: OpenError,
    },
    /// It has not that many queues.
    #[error("port {name}: {source}")]
    Queues {
        /// The port.
        name: String,
        /// What it takes.
        source: QueueError,
    },
    /// The packet buffers are too small for it.
    #[error(
        "port {name}: its driver needs packet buffers of {wanted} bytes, these have {room}; buffers are sized at start by \
         the largest `mtu` of the config: put the port (or one with its MTU) into the config and restart"
    )]
    SmallBuffers {
        /// The port.
        name: String,
        /// Bytes of a buffer.
        room: usize,
        /// Bytes that the driver needs.
        wanted: u16,
    },
    /// Its peer did not come.
    #[error("port {name}: no peer connected within {seconds} s; start the peer, then attach the port again")]
    NoPeer {
        /// The port.
        name: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// No thread to open it on.
    #[error("port {name}: cannot start a thread to open it: {source}")]
    Thread {
        /// The port.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// It could not be started, stopped or removed.
    #[error("port {name}: {source}")]
    Ethdev {
        /// The port.
        name: String,
        /// Why.
        source: pmd::PortError,
    },
    /// There is no such port.
    #[error("no port {0:?}; `port list` shows the ports")]
    Unknown(String),
    /// A name is taken.
    #[error("there is a port {0:?} already; detach it first or choose another name")]
    Duplicate(String),
    /// No more ports.
    #[error("the switch has its largest number of ports, {MAX_PORTS}; put tenants on a trunk port, by VLAN")]
    TooMany,
    /// It is in that state already.
    #[error("port {0} is {1} already")]
    AlreadySo(String, &'static str),
    /// Workers are gone.
    #[error(transparent)]
    Worker(#[from] crate::worker::mailbox::WorkerError),
}

/// The table of attached ports, by index.
#[derive(Default)]
pub struct PortTable {
    slots: Vec<Option<Attached>>,
    /// Numbers for device names, never used twice.
    unique: u32,
    /// Partners for the `io` and `mac` modes.
    partners: Vec<PortIndex>,
}

impl Ports for PortTable {
    fn find(&self, name: &str) -> Option<(PortIndex, MacAddr)> {
        let index = self.index(name)?;
        Some((index, self.get(index)?.mac))
    }

    fn partial_checksums(&self, port: PortIndex) -> bool {
        self.get(port).is_some_and(|port| port.traits.partial_checksums)
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
        self.index(text)
            .or_else(by_number)
            .ok_or_else(|| PortsError::Unknown(text.chars().take(64).collect()))
    }

    /// All ports, in order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = (PortIndex, &Attached)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| Some((index as PortIndex, slot.as_ref()?)))
    }

    /// Pairs ports in order for `io` and `mac`: 0-1, 2-3, ...; an odd one sends back to itself, as testpmd does.
    pub fn pair(&mut self) {
        let ports: Vec<PortIndex> = self.iter().map(|(index, _)| index).collect();
        self.partners = vec![NO_PORT; self.slots.len()];
        for pair in ports.chunks(2) {
            let (a, b) = (pair[0], pair[pair.len() - 1]);
            self.partners[usize::from(a)] = b;
            self.partners[usize::from(b)] = a;
        }
    }

    /// Opens and starts a port and gives its tx queues to workers. It is polled after [`poll`](Self::poll).
    ///
    /// # Errors
    /// [`PortsError`], with nothing left behind.
    pub fn attach(
        &mut self,
        (eal, pool, mempool): (&Eal, &Pool, &Mempool),
        name: &str,
        wanted: &Wanted,
        front: Option<Arc<Device>>,
    ) -> Result<PortIndex, PortsError> {
        if self.index(name).is_some() {
            return Err(PortsError::Duplicate(name.into()));
        }
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if slot >= MAX_PORTS {
            return Err(PortsError::TooMany);
        }
        self.unique += 1;
        let workers = pool.workers.len() as u16;
        let queues = wanted.rx_queues.unwrap_or(workers).max(wanted.tx_queues.unwrap_or(workers));
        let opened = open(eal, wanted, name, (self.unique, queues))?;
        let (rx, tx, mut attached) = start(opened, name, wanted, workers, mempool)?;
        let index = slot as PortIndex;
        attached.idle_rx = rx;
        attached.front = front;
        (attached.tx_workers, attached.idle_tx) = give_tx(pool, index, tx)?;
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot] = Some(attached);
        self.pair();
        Ok(index)
    }

    /// Gives the rx queues of a new (or stopped) port to the workers that have fewest.
    ///
    /// # Errors
    /// [`PortsError::Worker`].
    pub fn poll(&mut self, pool: &Pool, index: PortIndex) -> Result<(), PortsError> {
        let mut load = vec![0usize; pool.workers.len()];
        for (_, port) in self.iter() {
            port.rx_workers.iter().for_each(|&worker| load[worker] += 1);
        }
        let Some(port) = self.slots.get_mut(usize::from(index)).and_then(Option::as_mut) else {
            return Ok(());
        };
        let queues: Vec<RxQueue> = port.idle_rx.drain(..).chain(port.parked.drain(..)).collect();
        for queue in queues {
            let worker = (0..load.len()).min_by_key(|&worker| load[worker]).unwrap_or(0);
            load[worker] += 1;
            port.rx_workers.push(worker);
            let front = port.front.clone().map(|device| Box::new(Front::new(device, port.port.id().get())));
            pool.workers[worker].mailbox().post(Command::AddRx(index, queue, front))?;
        }
        port.running = true;
        Ok(())
    }

    /// Takes a port's rx queues back: it is not polled until [`poll`](Self::poll).
    ///
    /// # Errors
    /// [`PortsError`].
    pub fn park(&mut self, pool: &Pool, index: PortIndex) -> Result<(), PortsError> {
        let Some(port) = self.slots.get_mut(usize::from(index)).and_then(Option::as_mut) else {
            return Ok(());
        };
        for worker in &pool.workers {
            let removed = worker.mailbox().ask(|reply| Command::RemoveRx(index, reply))?;
            port.parked.extend(removed.rx);
        }
        port.rx_workers.clear();
        port.running = false;
        Ok(())
    }

    /// Takes a port away: its queues from the workers, itself from DPDK, its traces from the machine.
    ///
    /// # Errors
    /// [`PortsError`].
    pub fn detach(&mut self, pool: &Pool, index: PortIndex) -> Result<(), PortsError> {
        let Some(port) = self.slots.get_mut(usize::from(index)).and_then(Option::take) else { return Ok(()) };
        self.pair();
        let mut queues = RemovedPort { rx: port.idle_rx, tx: port.idle_tx };
        queues.rx.extend(port.parked);
        // First those who hand packets over, then the owners, who empty the rings.
        let owners: Vec<usize> = port.tx_workers.clone();
        let others = (0..pool.workers.len()).filter(|worker| !owners.contains(worker));
        let order: Vec<usize> = others.chain(owners.iter().copied()).collect();
        let mut asked = vec![false; pool.workers.len()];
        for worker in order {
            if std::mem::replace(&mut asked[worker], true) {
                continue;
            }
            let removed = pool.workers[worker].mailbox().ask(|reply| Command::RemovePort(index, reply))?;
            queues.rx.extend(removed.rx);
            queues.tx.extend(removed.tx);
        }
        let name = port.name;
        let stopped = port
            .port
            .stop(queues.rx, queues.tx)
            .map_err(|(.., source)| PortsError::Ethdev { name: name.clone(), source })?;
        port::close(stopped, port.cleanup).map_err(|source| PortsError::Open { name, source })
    }

    /// Takes all ports away; goes on after errors, which are logged.
    pub fn detach_all(&mut self, pool: &Pool) {
        for index in 0..self.slots.len() {
            if let Err(error) = self.detach(pool, index as PortIndex) {
                tracing::error!(%error, "a port could not be removed");
            }
        }
    }
}

/// How long an attachment may wait for the port's peer.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a port; one that waits for its peer does so on a thread of its own, and no longer than
/// [`PEER_TIMEOUT`].
fn open(eal: &Eal, wanted: &Wanted, name: &str, (unique, queues): (u32, u16)) -> Result<Opened, PortsError> {
    let wrong = |source| PortsError::Open { name: name.into(), source };
    if !port::may_block(&wanted.spec) {
        let request = Request { name, unique, queues, mtu: wanted.mtu };
        return port::open(eal, &wanted.spec, &request).map_err(wrong);
    }
    let (done, result) = crossbeam::channel::bounded(0);
    let (eal, spec, mtu, own_name) = (eal.clone(), wanted.spec.clone(), wanted.mtu, name.to_string());
    let body = move || {
        let request = Request { name: &own_name, unique, queues, mtu };
        let opened = port::open(&eal, &spec, &request);
        // Nobody waits any more: the port must not stay half attached.
        if let Err(crossbeam::channel::SendError(Ok(Opened { port, cleanup, .. }))) = done.send(opened)
            && let Err(error) = port::close(port, cleanup)
        {
            tracing::warn!(port = own_name, %error, "a port that came too late could not be removed");
        }
    };
    std::thread::Builder::new()
        .name("attach".into())
        .spawn(body)
        .map_err(|source| PortsError::Thread { name: name.into(), source })?;
    match result.recv_timeout(PEER_TIMEOUT) {
        Ok(opened) => opened.map_err(wrong),
        Err(_) => {
            // Else the waiting thread would keep every other port from being attached.
            port::give_up(&wanted.spec);
            Err(PortsError::NoPeer { name: name.into(), seconds: PEER_TIMEOUT.as_secs() })
        }
    }
}

fn start(
    opened: Opened,
    name: &str,
    wanted: &Wanted,
    workers: u16,
    mempool: &Mempool,
) -> Result<(Vec<RxQueue>, Vec<TxQueue>, Attached), PortsError> {
    let Opened { port, traits, cleanup } = opened;
    if mempool.segment_room() < usize::from(traits.min_segment) {
        let (room, wanted) = (mempool.segment_room(), traits.min_segment);
        discard(name, port, cleanup);
        return Err(PortsError::SmallBuffers { name: name.into(), room, wanted });
    }
    let (rx_queues, tx_queues) = match traits.queues(wanted.rx_queues, wanted.tx_queues, workers) {
        Ok(queues) => queues,
        Err(source) => {
            discard(name, port, cleanup);
            return Err(PortsError::Queues { name: name.into(), source });
        }
    };
    let config = StartConfig {
        rx_queues,
        tx_queues,
        rx_desc: traits.rx_desc,
        tx_desc: traits.tx_desc,
        mtu: traits.start_mtu(wanted.mtu),
        promiscuous: true,
        rss: (rx_queues > 1).then(Default::default),
        ..StartConfig::default()
    };
    match port.start(&config, mempool) {
        Ok((port, rx, tx)) => {
            let mac = port.mac();
            let attached = Attached {
                name: name.into(),
                wanted: wanted.clone(),
                traits,
                port,
                rx_workers: Vec::new(),
                tx_workers: Vec::new(),
                running: false,
                mac,
                front: None,
                cleanup,
                idle_rx: Vec::new(),
                idle_tx: Vec::new(),
                parked: Vec::new(),
            };
            Ok((rx, tx, attached))
        }
        Err((port, source)) => {
            discard(name, port, cleanup);
            Err(PortsError::Ethdev { name: name.into(), source })
        }
    }
}

/// Takes back a port that did not start.
fn discard(name: &str, port: pmd::Port, cleanup: port::Cleanup) {
    if let Err(error) = port::close(port, cleanup) {
        tracing::warn!(port = name, %error, "the port that did not start could not be removed");
    }
}

/// One owner per tx queue; workers without a queue of their own hand over to the owner of queue (worker mod
/// queues).
fn give_tx(
    pool: &Pool,
    index: PortIndex,
    mut tx: Vec<TxQueue>,
) -> Result<(Vec<usize>, Vec<TxQueue>), PortsError> {
    // More queues than workers: the others rest.
    let idle = tx.split_off(tx.len().min(pool.workers.len()));
    let count = tx.len();
    let mut rings: Vec<Vec<Arc<ArrayQueue<pmd::Mbuf>>>> = vec![Vec::new(); count];
    for (number, worker) in pool.workers.iter().enumerate().skip(count) {
        let ring = Arc::new(ArrayQueue::new(HAND_OFF_SLOTS));
        rings[number % count].push(ring.clone());
        worker.mailbox().post(Command::AddHandOff(index, ring))?;
    }
    let mut owners = Vec::new();
    for (number, (queue, rings)) in tx.into_iter().zip(rings).enumerate() {
        pool.workers[number].mailbox().post(Command::AddTx(index, queue, rings))?;
        owners.push(number);
    }
    Ok((owners, idle))
}
