//! [`StartedPort`]: what can be done with a port while its queues are polled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;
use wire::MacAddr;

use super::attach::Claim;
use super::config::Plan;
use super::socket::Sockets;
use super::vhost::{self, Vhost};
use super::{ConfiguredRss, Port, PortId, PortInfo, PortStats, RssReport, info, stats};
use crate::error::{Errno, PortError, Words};
use crate::flags::MAX_PORTS;
use crate::flow::{FlowQueues, Held};
use crate::log;
use crate::mempool::Mempool;
use crate::queue::{RxQueue, TxQueue};

/// Ports that run.
static STARTED: [AtomicBool; MAX_PORTS] = [const { AtomicBool::new(false) }; MAX_PORTS];

impl PortId {
    /// True while the port is started by this process.
    pub fn is_started(self) -> bool {
        STARTED.get(self.index()).is_some_and(|started| started.load(Ordering::Acquire))
    }

    fn set_started(self, is: bool) {
        if let Some(started) = STARTED.get(self.index()) {
            started.store(is, Ordering::Release);
        }
    }
}

/// What a started port is.
#[derive(Debug)]
enum Backend {
    Ethdev,
    Sockets(Sockets),
    Vhost(Vhost),
}

/// What a started port and its queues share. When the last of them goes without a proper stop, the port stops
/// then.
#[derive(Debug)]
pub(crate) struct Running {
    id: PortId,
    name: String,
    rss: RssReport,
    /// Receive queues to be emptied before the device stops, for a driver that forgets packets in them.
    drained_queues: u16,
    looks: bool,
    _pool: Mempool,
    flow_queues: Option<FlowQueues>,
    flow: Mutex<Held>,
    backend: Backend,
    claim: Mutex<Option<Claim>>,
}

impl Running {
    pub(super) fn new(
        claim: Claim,
        pool: Mempool,
        plan: &Plan,
        rx_queues: u16,
        flow_queues: Option<FlowQueues>,
    ) -> Self {
        let (id, name) = (claim.id, claim.name.clone());
        id.set_started(true);
        Self {
            id,
            name,
            rss: plan.rss,
            drained_queues: if plan.forgets_packets { rx_queues } else { 0 },
            looks: plan.looks_at_packets,
            _pool: pool,
            flow_queues,
            flow: Mutex::default(),
            backend: Backend::Ethdev,
            claim: Mutex::new(Some(claim)),
        }
    }

    pub(super) fn on_sockets(claim: Claim, pool: Mempool, sockets: Sockets) -> Self {
        Self::without_ethdev(claim, pool, false, Backend::Sockets(sockets))
    }

    /// What comes of a guest is looked at.
    pub(super) fn on_vhost(claim: Claim, pool: Mempool, vhost: Vhost) -> Self {
        Self::without_ethdev(claim, pool, true, Backend::Vhost(vhost))
    }

    fn without_ethdev(claim: Claim, pool: Mempool, looks: bool, backend: Backend) -> Self {
        Self {
            id: claim.id,
            name: claim.name.clone(),
            rss: RssReport::default(),
            drained_queues: 0,
            looks,
            _pool: pool,
            flow_queues: None,
            flow: Mutex::default(),
            backend,
            claim: Mutex::new(Some(claim)),
        }
    }

    /// Whether receive queues look at each packet for a short head or a second owner.
    pub(crate) fn looks_at_packets(&self) -> bool {
        self.looks
    }

    pub(crate) fn id(&self) -> PortId {
        self.id
    }

    /// The flow queues that the port was started with.
    pub(crate) fn flow_queues(&self) -> Option<FlowQueues> {
        self.flow_queues
    }

    /// What the port holds of rte_flow.
    pub(crate) fn flow(&self) -> MutexGuard<'_, Held> {
        self.flow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error for a failed operation on this port.
    pub(crate) fn error(&self, operation: &'static str, errno: Errno) -> PortError {
        self.error_with(operation, errno, Words::default())
    }

    fn error_with(&self, operation: &'static str, errno: Errno, words: Words) -> PortError {
        let name = self.name.clone();
        if errno.is_unsupported() {
            return PortError::Unsupported { name, operation };
        }
        PortError::Operation { name, operation, errno, words }
    }

    fn call(&self, operation: &'static str, call: impl FnOnce(u16) -> i32) -> Result<(), PortError> {
        if !self.is_ethdev() {
            return Err(self.unsupported(operation));
        }
        let (ret, words) = log::captured(|| call(self.id.get()));
        Errno::check(ret).map(|_| ()).map_err(|errno| self.error_with(operation, errno, words))
    }

    /// Stops the device. Nobody polls its queues any more: the caller has them all.
    fn halt(&self) -> Result<(), PortError> {
        match &self.backend {
            // They are closed with the queues.
            Backend::Sockets(_) => return Ok(()),
            Backend::Vhost(vhost) => {
                vhost.close();
                return Ok(());
            }
            Backend::Ethdev => {}
        }
        self.drain();
        self.flow().close(self.id.get());
        // SAFETY: a started port without users of its queues.
        self.call("stop", |id| unsafe { sys::rte_eth_dev_stop(id) })?;
        self.flow().stopped(self.id.get());
        self.id.set_started(false);
        Ok(())
    }

    /// Frees what waits in the receive queues.
    fn drain(&self) {
        const AT_ONCE: u16 = 64;
        const ROUNDS: usize = 1024;
        for queue in 0..self.drained_queues {
            for _ in 0..ROUNDS {
                let mut packets = [std::ptr::null_mut(); AT_ONCE as usize];
                let slots = packets.as_mut_ptr();
                // SAFETY: a queue of the started port, which nobody else polls; room for so many pointers.
                let received = unsafe { sys::dpdk_sys_rx_burst(self.id.get(), queue, slots, AT_ONCE) };
                // SAFETY: so many packets that nobody else has.
                unsafe { sys::rte_pktmbuf_free_bulk(slots, received.into()) };
                if received == 0 {
                    break;
                }
            }
        }
    }

    fn is_ethdev(&self) -> bool {
        matches!(self.backend, Backend::Ethdev)
    }

    /// What DPDK is not asked about a port that it does not know.
    fn unsupported(&self, operation: &'static str) -> PortError {
        self.error(operation, Errno::ENOTSUP)
    }

    fn take_claim(&self) -> Option<Claim> {
        self.claim.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(claim) = self.take_claim() {
            if let Err(error) = self.halt() {
                tracing::warn!(%error, "a port that was let go did not stop");
            }
            drop(claim);
        }
    }
}

/// State of a port's link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Up.
    pub up: bool,
    /// Megabits per second; not given when the driver does not know.
    pub mbps: Option<u32>,
    /// Full duplex.
    pub full_duplex: bool,
    /// Autonegotiated.
    pub autoneg: bool,
}

/// A port whose queues are out.
#[derive(Debug)]
pub struct StartedPort {
    running: Arc<Running>,
    rx_queues: u16,
    tx_queues: u16,
}

/// A port that could not be stopped, with the queues that were handed in, and why.
pub type NotStopped = (StartedPort, Vec<RxQueue>, Vec<TxQueue>, PortError);

impl StartedPort {
    pub(super) fn new(running: Arc<Running>, rx_queues: u16, tx_queues: u16) -> Self {
        Self { running, rx_queues, tx_queues }
    }

    /// Stops the port. It needs all its queues back, in any order.
    ///
    /// # Errors
    /// Everything that was handed in, and [`PortError::QueuesMissing`], [`PortError::ForeignQueues`] or the
    /// driver's refusal.
    #[allow(clippy::result_large_err, reason = "once per port, and the port must come back")]
    pub fn stop(self, rx: Vec<RxQueue>, tx: Vec<TxQueue>) -> Result<Port, NotStopped> {
        if let Err(error) = self.check_queues(&rx, &tx).and_then(|()| self.running.halt()) {
            return Err((self, rx, tx, error));
        }
        let Some(claim) = self.running.take_claim() else {
            // The claim leaves once, and with it the StartedPort: there is no second stop.
            let error = self.running.error("stop", Errno::EINVAL);
            return Err((self, rx, tx, error));
        };
        Ok(Port { claim })
    }

    fn check_queues(&self, rx: &[RxQueue], tx: &[TxQueue]) -> Result<(), PortError> {
        let ours = |running: &Arc<Running>| Arc::ptr_eq(running, &self.running);
        let foreign = rx.iter().filter(|queue| !ours(queue.running())).count()
            + tx.iter().filter(|queue| !ours(queue.running())).count();
        let name = || self.running.name.clone();
        if foreign > 0 {
            return Err(PortError::ForeignQueues { name: name(), count: foreign });
        }
        let flow = self.running.flow().queues_out();
        if !flow.is_empty() {
            return Err(PortError::FlowQueuesOut { name: name(), queues: flow });
        }
        let missing_rx = (0..self.rx_queues).filter(|id| rx.iter().all(|queue| queue.queue() != *id));
        let missing_tx = (0..self.tx_queues).filter(|id| tx.iter().all(|queue| queue.queue() != *id));
        let (missing_rx, missing_tx): (Vec<u16>, Vec<u16>) = (missing_rx.collect(), missing_tx.collect());
        if missing_rx.is_empty() && missing_tx.is_empty() {
            return Ok(());
        }
        Err(PortError::QueuesMissing { name: name(), rx: missing_rx, tx: missing_tx })
    }

    pub(crate) fn running(&self) -> &Arc<Running> {
        &self.running
    }

    /// The port's number.
    pub fn id(&self) -> PortId {
        self.running.id
    }

    /// The port's name.
    pub fn name(&self) -> &str {
        &self.running.name
    }

    /// What the port is and can do.
    ///
    /// # Errors
    /// [`PortError::Operation`] when the driver does not say.
    pub fn info(&self) -> Result<PortInfo, PortError> {
        let (id, name) = (self.running.id, &self.running.name);
        match &self.running.backend {
            Backend::Sockets(sockets) => Ok(sockets.interface.info(id, name)),
            Backend::Vhost(vhost) => Ok(vhost.socket.info(id, name)),
            Backend::Ethdev => PortInfo::of(id, name),
        }
    }

    /// What became of the RSS configuration.
    pub fn rss(&self) -> RssReport {
        self.running.rss
    }

    /// How DPDK has configured the port to spread packets: what is in force, not what was asked for.
    ///
    /// # Errors
    /// [`PortError::Operation`].
    pub fn configured_rss(&self) -> Result<ConfiguredRss, PortError> {
        if !self.running.is_ethdev() {
            return Err(self.running.unsupported("read the configuration"));
        }
        ConfiguredRss::of(self.running.id)
            .map_err(|errno| self.running.error("read the configuration", errno))
    }

    /// Counters that every driver has.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] or [`PortError::Operation`].
    pub fn stats(&self) -> Result<PortStats, PortError> {
        match &self.running.backend {
            Backend::Sockets(sockets) => Ok(sockets.stats()),
            Backend::Vhost(vhost) => Ok(vhost.stats()),
            Backend::Ethdev => {
                stats::basic(self.running.id).map_err(|errno| self.running.error("read statistics", errno))
            }
        }
    }

    /// Sets [`stats`](Self::stats) to zero.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] or [`PortError::Operation`].
    pub fn reset_stats(&self) -> Result<(), PortError> {
        match &self.running.backend {
            Backend::Sockets(sockets) => sockets.reset_stats(),
            Backend::Vhost(vhost) => vhost.reset_stats(),
            Backend::Ethdev => {
                // SAFETY: a port that we hold.
                let reset = |id| unsafe { sys::rte_eth_stats_reset(id) };
                return self.running.call("reset statistics", reset);
            }
        }
        Ok(())
    }

    /// The driver's counters, by name.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] or [`PortError::Operation`].
    pub fn xstats(&self) -> Result<Vec<(String, u64)>, PortError> {
        if !self.running.is_ethdev() {
            return Err(self.running.unsupported("read extended statistics"));
        }
        stats::extended(self.running.id)
            .map_err(|errno| self.running.error("read extended statistics", errno))
    }

    /// Sets [`xstats`](Self::xstats) to zero.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] or [`PortError::Operation`].
    pub fn reset_xstats(&self) -> Result<(), PortError> {
        // SAFETY: a port that we hold.
        self.running.call("reset extended statistics", |id| unsafe { sys::rte_eth_xstats_reset(id) })
    }

    /// The link's state, without waiting for it to settle.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] or [`PortError::Operation`].
    pub fn link(&self) -> Result<Link, PortError> {
        match &self.running.backend {
            Backend::Sockets(sockets) => return sockets.link(&self.running.name),
            Backend::Vhost(vhost) => return Ok(vhost.link()),
            Backend::Ethdev => {}
        }
        let (mut mbps, mut duplex, mut autoneg, mut up) = (0, 0, 0, 0);
        self.running.call("read the link state", |id| {
            // SAFETY: four valid places.
            unsafe {
                sys::dpdk_sys_link_get(id, &raw mut mbps, &raw mut duplex, &raw mut autoneg, &raw mut up)
            }
        })?;
        let known = mbps != 0 && mbps != u32::MAX;
        Ok(Link { up: up != 0, mbps: known.then_some(mbps), full_duplex: duplex != 0, autoneg: autoneg != 0 })
    }

    /// Which transmit queues the peer reads, for a port whose peer chooses that: a guest enables as many pairs as it likes. None while
    /// there is no peer.
    pub fn read_queues(&self) -> Option<Vec<bool>> {
        match &self.running.backend {
            Backend::Vhost(vhost) => Some(vhost.read_queues()),
            Backend::Ethdev | Backend::Sockets(_) => None,
        }
    }

    /// Whether a peer that chooses so takes TCP super-frames now, and unfinished checksums.
    pub fn peer_takes_super_frames(&self) -> Option<bool> {
        match &self.running.backend {
            Backend::Vhost(vhost) => Some(vhost.takes_super_frames()),
            Backend::Ethdev | Backend::Sockets(_) => None,
        }
    }

    /// Sets the link up.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] or [`PortError::Operation`].
    pub fn set_link_up(&self) -> Result<(), PortError> {
        // SAFETY: a port that we hold.
        self.running.call("set the link up", |id| unsafe { sys::rte_eth_dev_set_link_up(id) })
    }

    /// Sets the link down.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] or [`PortError::Operation`].
    pub fn set_link_down(&self) -> Result<(), PortError> {
        // SAFETY: a port that we hold.
        self.running.call("set the link down", |id| unsafe { sys::rte_eth_dev_set_link_down(id) })
    }

    /// The MTU.
    ///
    /// # Errors
    /// [`PortError::Operation`].
    pub fn mtu(&self) -> Result<u16, PortError> {
        if let Backend::Sockets(sockets) = &self.running.backend {
            return sockets.interface.mtu(&self.running.name);
        }
        let mut mtu = 0;
        // SAFETY: a valid place.
        self.running.call("read the MTU", |id| unsafe { sys::rte_eth_dev_get_mtu(id, &raw mut mtu) })?;
        Ok(mtu)
    }

    /// Sets the MTU.
    ///
    /// # Errors
    /// [`PortError::Range`] outside of what the port takes, [`PortError::Unsupported`] for a driver that has
    /// none or cannot change it while running, or [`PortError::Operation`].
    pub fn set_mtu(&self, mtu: u16) -> Result<(), PortError> {
        if let Backend::Sockets(sockets) = &self.running.backend {
            return sockets.interface.set_mtu(&self.running.name, mtu);
        }
        let info = self.info()?;
        let (min, max) = (*info.mtu_range.start(), *info.mtu_range.end());
        if !info.mtu_range.contains(&mtu) {
            let (value, min, max) = (mtu.into(), min.into(), max.into());
            return Err(PortError::Range { name: info.name, what: "MTU", value, min, max });
        }
        // SAFETY: a port that we hold.
        self.running.call("set the MTU", |id| unsafe { sys::rte_eth_dev_set_mtu(id, mtu) })
    }

    /// The MAC address.
    pub fn mac(&self) -> MacAddr {
        match &self.running.backend {
            Backend::Sockets(sockets) => sockets.interface.mac(),
            Backend::Vhost(_) => vhost::mac(self.running.id),
            Backend::Ethdev => info::mac_of(self.running.id),
        }
    }

    /// Receives frames for any address, or not.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] or [`PortError::Operation`].
    pub fn set_promiscuous(&self, on: bool) -> Result<(), PortError> {
        if on {
            // SAFETY: a port that we hold.
            return self
                .running
                .call("set promiscuous mode", |id| unsafe { sys::rte_eth_promiscuous_enable(id) });
        }
        // SAFETY: a port that we hold.
        self.running.call("clear promiscuous mode", |id| unsafe { sys::rte_eth_promiscuous_disable(id) })
    }

    /// Why the port is of no use until it is opened anew, in words; `None` while it is. To be asked a few times a second: what a packet
    /// socket does not tell shows between two looks, and a vhost-user peer that holds up a polling thread is found so. That a
    /// device was unplugged is unconfirmed on hardware; virtual ones never are.
    pub fn fault(&self) -> Option<&'static str> {
        match &self.running.backend {
            Backend::Sockets(sockets) => sockets.fault(),
            Backend::Vhost(vhost) => vhost.fault(),
            Backend::Ethdev => {
                // SAFETY: a port that we hold.
                let removed = unsafe { sys::rte_eth_dev_is_removed(self.running.id.get()) == 1 };
                removed.then_some("its driver says that the device was removed")
            }
        }
    }
}
