//! Opening and closing of ports, on a thread of its own: a driver's probing, or a server that waits for its client, may
//! take seconds, and control goes on meanwhile.
//!
//! One port at a time, since DPDK attaches one device at a time. What closes goes first, for it may hold the device that
//! the next one wants; what may wait for a peer goes last, and gives way when others come. A port whose rules another one
//! takes (a representor, whose transfer proxy is the uplink) starts after that one, and stops before it.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, TryRecvError, bounded};
use pmd::{
    Eal, FlowEngine, Mempool, PortConfig as StartConfig, PortId, RssConfig, RssLevel, RxQueue, StartedPort,
    TxQueue,
};

use super::error::PortsError;
use super::ports::{PortOf, WantedPort};
use crate::config::OffloadDevice;
use crate::port::{self, Cleanup, OpenError, OpenRequest, OpenedPort, Presence, Traits};

/// How long an attachment may wait for the port's peer.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may while other ports wait for it.
const PEER_TIMEOUT_WITH_OTHERS: Duration = Duration::from_millis(500);
/// Between two attempts to end a wait.
const GIVE_UP_EVERY: Duration = Duration::from_millis(100);
/// How long the end of the switch waits for what is under way.
pub(super) const FAREWELL: Duration = Duration::from_secs(20);

/// A port that is to be opened and started.
#[derive(Clone)]
pub(super) struct OpenOrder {
    /// Tells this attempt from others under the same name.
    pub ticket: u64,
    pub name: String,
    /// A number that no device name has had.
    pub unique: u32,
    pub wanted: WantedPort,
    pub workers: u16,
    pub eal: Eal,
    pub mempool: Mempool,
    /// Which API its rules go through, when it takes rules itself.
    pub flow_engine: FlowEngine,
    /// It was opened once, and the port that takes its rules was not started.
    pub deferred: bool,
}

impl OpenOrder {
    fn has_rules(&self) -> bool {
        self.wanted.offload == Some(OffloadDevice::RteFlow)
    }

    /// The path of what stands behind the port.
    fn path(&self) -> String {
        self.wanted.of.port(&self.name)
    }

    fn refused(&self, source: OpenError) -> PortsError {
        PortsError::Open {
            name: self.name.clone(),
            path: self.wanted.path_of(&self.name, &source),
            source: source.into(),
        }
    }
}

/// A port that runs, and that no worker knows yet.
pub(super) struct Ready {
    pub name: String,
    pub wanted: WantedPort,
    pub traits: Traits,
    pub port: StartedPort,
    pub presence: Presence,
    pub cleanup: Cleanup,
    pub rx: Vec<RxQueue>,
    pub tx: Vec<TxQueue>,
    /// The DPDK port that takes its rules, where that is another one.
    pub proxy: Option<PortId>,
}

enum Job {
    Open(Box<OpenOrder>),
    Close(Box<Ready>),
    /// A tap that stayed when its port went.
    RemoveTap(String),
}

/// What came of a job.
pub(super) enum JobResult {
    /// The ticket, the name, and the port.
    Opened(u64, String, Result<Box<Ready>, PortsError>),
    /// The name of a port that is gone, or of a tap.
    Closed(String, Result<(), PortsError>),
}

impl JobResult {
    /// Whose port it was.
    pub fn name(&self) -> &str {
        match self {
            Self::Opened(_, name, _) | Self::Closed(name, _) => name,
        }
    }
}

struct Helper {
    jobs: Sender<Job>,
    done: Receiver<JobResult>,
}

/// What the helper does now.
struct Running {
    name: String,
    /// Of an order, and what it waits for.
    order: Option<Box<OpenOrder>>,
    since: Instant,
    gave_up: Option<Instant>,
    cancelled: bool,
}

impl Running {
    fn may_wait(&self) -> bool {
        self.order.as_ref().is_some_and(|order| port::may_block(&order.wanted.spec))
    }

    fn failed(self, error: PortsError) -> JobResult {
        match self.order {
            Some(order) => JobResult::Opened(order.ticket, self.name, Err(error)),
            None => JobResult::Closed(self.name, Err(error)),
        }
    }
}

/// The thread that opens and closes ports, and what waits for it.
#[derive(Default)]
pub(super) struct Opener {
    helper: Option<Helper>,
    waiting: VecDeque<Job>,
    running: Option<Running>,
    /// To be closed at the end: another process has them open, too.
    kept: Vec<Ready>,
}

impl Opener {
    /// Has a port opened and started; [`poll`](Self::poll) tells what came of it.
    pub fn open(&mut self, order: OpenOrder) {
        self.waiting.push_back(Job::Open(Box::new(order)));
    }

    /// Has a port stopped and closed. No worker has a queue of it any more.
    pub fn close(&mut self, port: Ready) {
        self.waiting.push_back(Job::Close(Box::new(port)));
    }

    /// Has a tap removed that stays without a port, when those that were to be closed are.
    pub fn remove_tap(&mut self, iface: String) {
        self.waiting.push_back(Job::RemoveTap(iface));
    }

    /// Keeps a port open until [`close_kept`](Self::close_kept) or the end. No worker has a queue of it any more.
    pub fn keep(&mut self, port: Ready) {
        self.kept.push(port);
    }

    /// The ports that are kept open.
    pub fn kept(&mut self) -> &mut [Ready] {
        &mut self.kept
    }

    /// Has the ports closed that were kept open.
    pub fn close_kept(&mut self) {
        for port in std::mem::take(&mut self.kept) {
            self.close(port);
        }
    }

    /// Nobody wants the port of this ticket any more: it is not opened, or closed again.
    pub fn cancel(&mut self, ticket: u64) {
        self.waiting.retain(|job| !matches!(job, Job::Open(order) if order.ticket == ticket));
        if let Some(running) = &mut self.running
            && running.order.as_ref().is_some_and(|order| order.ticket == ticket)
        {
            running.cancelled = true;
        }
    }

    /// True with nothing to do and nothing under way.
    pub fn is_idle(&self) -> bool {
        self.running.is_none() && self.waiting.is_empty()
    }

    /// True while a port or a tap is on its way out.
    pub fn is_closing(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.order.is_none() || running.cancelled)
            || self.waiting.iter().any(|job| matches!(job, Job::Close(_) | Job::RemoveTap(_)))
    }

    /// Goes on without waiting: the next result, if there is one.
    pub fn poll(&mut self, now: Instant) -> Option<JobResult> {
        loop {
            if let Some(failed) = self.feed(now) {
                return Some(failed);
            }
            let done = match self.helper.as_ref()?.done.try_recv() {
                Ok(done) => done,
                Err(TryRecvError::Empty) => {
                    self.press(now);
                    return None;
                }
                Err(TryRecvError::Disconnected) => {
                    self.helper = None;
                    let running = self.running.take()?;
                    let ended = PortsError::Ended { name: running.name.clone() };
                    return Some(running.failed(ended));
                }
            };
            let Some(mut running) = self.running.take() else { continue };
            match done {
                // Too late: nobody wants it.
                JobResult::Opened(_, _, Ok(ready)) if running.cancelled => self.close(*ready),
                JobResult::Opened(..) if running.cancelled => {}
                JobResult::Opened(_, _, Err(PortsError::NoProxy { .. })) if self.others_may_be_proxy() => {
                    if let Some(mut order) = running.order.take() {
                        order.deferred = true;
                        self.waiting.push_back(Job::Open(order));
                    }
                }
                JobResult::Opened(ticket, name, Err(_)) if running.gave_up.is_some() => {
                    let seconds = running.since.elapsed().as_secs();
                    let path = running.order.map(|order| order.path()).unwrap_or_default();
                    let no_peer = PortsError::NoPeer { name: name.clone(), path, seconds };
                    return Some(JobResult::Opened(ticket, name, Err(no_peer)));
                }
                done => return Some(done),
            }
        }
    }

    /// True while a port waits that may be the one that takes the rules of another.
    fn others_may_be_proxy(&self) -> bool {
        self.waiting.iter().any(|job| matches!(job, Job::Open(order) if order.has_rules() && !order.deferred))
    }

    /// Gives the helper its next job when it has none.
    fn feed(&mut self, now: Instant) -> Option<JobResult> {
        if self.running.is_some() {
            return None;
        }
        let rank = |job: &Job| match job {
            Job::Close(port) if port.proxy.is_some() => 0,
            Job::Close(_) => 1,
            Job::RemoveTap(_) => 2,
            Job::Open(order) if port::may_block(&order.wanted.spec) => 6,
            Job::Open(order) if order.deferred => 5,
            Job::Open(order) if order.wanted.spec.kind() == "representor" => 4,
            Job::Open(_) => 3,
        };
        let first = (0..self.waiting.len()).min_by_key(|&at| rank(&self.waiting[at]))?;
        let job = self.waiting.remove(first)?;
        let (name, order) = match &job {
            Job::Open(order) => (order.name.clone(), Some(order.clone())),
            Job::Close(port) => (port.name.clone(), None),
            Job::RemoveTap(iface) => (iface.clone(), None),
        };
        let running = Running { name, order, since: now, gave_up: None, cancelled: false };
        if self.helper.is_none() {
            match helper() {
                Ok(helper) => self.helper = Some(helper),
                Err(source) => {
                    let error = PortsError::Thread { name: running.name.clone(), source };
                    return Some(running.failed(error));
                }
            }
        }
        self.running = Some(running);
        if let Some(helper) = &self.helper {
            // Should the helper have ended, the missing answer tells.
            let _ = helper.jobs.send(job);
        }
        None
    }

    /// Ends a wait for a peer that has lasted long enough.
    fn press(&mut self, now: Instant) {
        let others = !self.waiting.is_empty();
        let Some(running) = self.running.as_mut().filter(|running| running.may_wait()) else { return };
        let limit = if others { PEER_TIMEOUT_WITH_OTHERS } else { PEER_TIMEOUT };
        let over = running.cancelled || now.saturating_duration_since(running.since) >= limit;
        let asked = running.gave_up.is_some_and(|at| now.saturating_duration_since(at) < GIVE_UP_EVERY);
        if let Some(order) = running.order.as_ref().filter(|_| over && !asked) {
            port::give_up(&order.wanted.spec);
            running.gave_up = Some(now);
        }
    }

    /// Closes what is to be closed, but for what is kept, opens nothing more, and waits for the end of that, so long at most; `false` when
    /// something is still under way.
    pub fn finish(&mut self, limit: Duration) -> bool {
        self.waiting.retain(|job| matches!(job, Job::Close(_) | Job::RemoveTap(_)));
        if let Some(running) = &mut self.running {
            running.cancelled |= running.order.is_some();
        }
        let began = Instant::now();
        while !self.is_idle() && began.elapsed() < limit {
            match self.poll(Instant::now()) {
                Some(JobResult::Closed(_, Err(error))) => {
                    tracing::error!(%error, "a port could not be removed")
                }
                Some(_) => {}
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        self.is_idle()
    }

    /// The names of what is under way or waits.
    pub fn names(&self) -> Vec<String> {
        let waiting = self.waiting.iter().map(|job| match job {
            Job::Open(order) => order.name.clone(),
            Job::Close(port) => port.name.clone(),
            Job::RemoveTap(iface) => iface.clone(),
        });
        self.running.iter().map(|running| running.name.clone()).chain(waiting).collect()
    }
}

fn helper() -> io::Result<Helper> {
    let (jobs, work) = bounded::<Job>(1);
    let (report, done) = bounded(1);
    std::thread::Builder::new().name("ports".into()).spawn(move || {
        while let Ok(job) = work.recv() {
            let done = match job {
                Job::Open(order) => {
                    let (ticket, name) = (order.ticket, order.name.clone());
                    JobResult::Opened(ticket, name, open(*order).map(Box::new))
                }
                Job::Close(port) => JobResult::Closed(port.name.clone(), close(*port)),
                Job::RemoveTap(iface) => {
                    let removed = port::remove_tap(&iface);
                    // Its uplink is out of the config by now.
                    let failed = |source| PortsError::Open {
                        name: iface.clone(),
                        path: String::new(),
                        source: Box::new(source),
                    };
                    let removed = removed.map_err(failed);
                    JobResult::Closed(iface, removed)
                }
            };
            if report.send(done).is_err() {
                break;
            }
        }
    })?;
    Ok(Helper { jobs, done })
}

fn open(order: OpenOrder) -> Result<Ready, PortsError> {
    let queues = order.wanted.rx_queues.unwrap_or(order.workers);
    let queues = queues.max(order.wanted.tx_queues.unwrap_or(order.workers));
    let request = OpenRequest {
        name: &order.name,
        unique: order.unique,
        queues,
        mtu: order.wanted.mtu,
        before_device: order.wanted.offload == Some(OffloadDevice::Simulated),
    };
    let opened =
        port::open(&order.eal, &order.wanted.spec, &request).map_err(|source| order.refused(source))?;
    start(opened, order)
}

fn start(opened: OpenedPort, order: OpenOrder) -> Result<Ready, PortsError> {
    let OpenedPort { port, traits, mut cleanup, presence, access } = opened;
    let proxy = match proxy(&port, &order) {
        Ok(proxy) => proxy,
        Err(error) => {
            discard(&order.name, port, cleanup);
            return Err(error);
        }
    };
    let of_port = order.path();
    let OpenOrder { name, wanted, workers, mempool, flow_engine, .. } = order;
    if mempool.segment_room() < usize::from(traits.min_segment) {
        let (path, room, wanted) = (wanted.of.mtu(&name), mempool.segment_room(), traits.min_segment);
        discard(&name, port, cleanup);
        return Err(PortsError::SmallBuffers { name, path, room, wanted });
    }
    let (rx_queues, tx_queues) = match traits.queues(wanted.rx_queues, wanted.tx_queues, workers) {
        Ok(queues) => queues,
        Err(source) => {
            discard(&name, port, cleanup);
            let path = wanted.path_of_queues(&name, &source);
            return Err(PortsError::Queues { name, path, source });
        }
    };
    let mut config = start_config(&traits, &wanted, rx_queues, tx_queues);
    if wanted.offload == Some(OffloadDevice::RteFlow) && proxy.is_none() {
        config.flow_engine = flow_engine;
    }
    let traits = traits.started(config.mtu, mempool.segment_room());
    match port.start(&config, &mempool) {
        Ok((port, rx, tx)) => {
            let fitted = port::fit_interfaces(&traits, &mut cleanup, wanted.mtu);
            // The driver makes the socket when it starts.
            let accessible = access.map_or(Ok(()), |access| access.apply());
            if let Err(source) = fitted.and(accessible) {
                match port.stop(rx, tx) {
                    Ok(stopped) => discard(&name, stopped, cleanup),
                    Err((.., error)) => tracing::warn!(port = name, %error, "the port did not stop"),
                }
                let path = wanted.path_of(&name, &source);
                return Err(PortsError::Open { name, path, source: source.into() });
            }
            if rx_queues > 1 && traits.is_nic && port.rss().applied.is_empty() {
                tracing::warn!(port = name, rx_queues, "the device cannot spread packets over its queues");
            }
            Ok(Ready { name, wanted, traits, port, presence, cleanup, rx, tx, proxy })
        }
        Err((port, source)) => {
            discard(&name, port, cleanup);
            Err(PortsError::Ethdev { name, path: of_port, source: source.into() })
        }
    }
}

/// The port that takes the rules of a port that has some, where that is another one. It must be started; a port that
/// was put off for that before is tried without, for then no port of the switch is the one: its driver decides.
fn proxy(port: &pmd::Port, order: &OpenOrder) -> Result<Option<PortId>, PortsError> {
    if !order.has_rules() {
        return Ok(None);
    }
    let (proxy, words) = match port.transfer_proxy() {
        Ok(proxy) if proxy == port.id() => return Ok(None),
        Ok(proxy) if proxy.is_started() => return Ok(Some(proxy)),
        Ok(proxy) => (Some(proxy), format!("it is DPDK port {}, which is not started", proxy.get())),
        Err(error) => (None, error.to_string()),
    };
    if order.deferred {
        tracing::warn!(port = order.name, words, "the port that takes the rules of this one is not there");
        return Ok(proxy);
    }
    Err(PortsError::NoProxy { name: order.name.clone(), path: order.path(), words })
}

/// What a port is started with.
fn start_config(traits: &Traits, wanted: &WantedPort, rx_queues: u16, tx_queues: u16) -> StartConfig {
    // A flow belongs to one worker, whose table knows it and which keeps its order. On an uplink flows are in tunnels, and
    // are told by what is inside: that spreads the tunnels of a VTEP whose source ports do not differ, and a flow whose source
    // port changes, as when it goes into the sender's NIC, stays where it is. A vNIC's flows are told by its own headers, and
    // a tunnel of the tenant's is one flow. Where the port cannot be told, source ports spread the tunnels.
    let level = if wanted.of == PortOf::Uplink { RssLevel::Innermost } else { RssLevel::Outermost };
    StartConfig {
        rx_queues,
        tx_queues,
        rx_desc: traits.rx_desc,
        tx_desc: traits.tx_desc,
        mtu: traits.start_mtu(wanted.mtu),
        promiscuous: true,
        tunnel_tso: wanted.tunnel_tso,
        rss: (rx_queues > 1).then(|| RssConfig::usual(level)),
        ..StartConfig::default()
    }
}

/// Takes back a port that did not start.
fn discard(name: &str, port: pmd::Port, cleanup: Cleanup) {
    if let Err(error) = port::close(port, cleanup) {
        tracing::warn!(port = name, %error, "the port that did not start could not be removed");
    }
}

fn close(port: Ready) -> Result<(), PortsError> {
    let Ready { name, wanted, port, cleanup, rx, tx, .. } = port;
    let path = wanted.of.port(&name);
    match port.stop(rx, tx) {
        Ok(stopped) => port::close(stopped, cleanup).map_err(|source| PortsError::Open {
            name,
            path,
            source: source.into(),
        }),
        Err((.., source)) => Err(PortsError::Ethdev { name, path, source: source.into() }),
    }
}
