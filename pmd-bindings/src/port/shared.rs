//! [`Running`]: what a started port and its queues share, whatever the port is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;
use wire::TunnelTso;

use super::attach::Claim;
use super::config::Plan;
use super::socket::Sockets;
use super::tap::TapPort;
use super::vhost::Vhost;
use super::{Port, PortId, PortStats, RssReport, stats};
use crate::error::{Errno, PortError, Words};
use crate::flags::MAX_PORTS;
use crate::flow::{FlowQueues, Held};
use crate::log;
use crate::mempool::Mempool;

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
pub(super) enum Backend {
    Ethdev,
    Sockets(Sockets),
    Tap(TapPort),
    Vhost(Vhost),
}

/// What a started port and its queues share. When the last of them goes without a proper stop, the port stops
/// then.
#[derive(Debug)]
pub(crate) struct Running {
    pub(super) id: PortId,
    pub(super) name: String,
    pub(super) rss: RssReport,
    /// Receive queues to be emptied before the device stops, for a driver that forgets packets in them.
    drained_queues: u16,
    looks: bool,
    /// Its driver blocks while it sends, unless it must not.
    is_blocking: bool,
    /// What its device does with super-frames inside VxLAN.
    pub(super) tunnel_tso: Option<TunnelTso>,
    is_bond: bool,
    _pool: Mempool,
    flow_queues: Option<FlowQueues>,
    flow: Mutex<Held>,
    pub(super) backend: Backend,
    /// What a port that is no ethdev had counted when its statistics were reset.
    reset: Mutex<PortStats>,
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
            is_blocking: plan.is_blocking,
            tunnel_tso: plan.tunnel_tso,
            is_bond: !claim.members.is_empty(),
            _pool: pool,
            flow_queues,
            flow: Mutex::default(),
            backend: Backend::Ethdev,
            reset: Mutex::default(),
            claim: Mutex::new(Some(claim)),
        }
    }

    pub(super) fn on_sockets(claim: Claim, pool: Mempool, sockets: Sockets) -> Self {
        Self::without_ethdev(claim, pool, false, Backend::Sockets(sockets))
    }

    pub(super) fn on_tap(claim: Claim, pool: Mempool, tap: TapPort, tunnel_tso: Option<TunnelTso>) -> Self {
        let mut running = Self::without_ethdev(claim, pool, false, Backend::Tap(tap));
        running.tunnel_tso = tunnel_tso;
        running
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
            is_blocking: false,
            tunnel_tso: None,
            is_bond: false,
            _pool: pool,
            flow_queues: None,
            flow: Mutex::default(),
            backend,
            reset: Mutex::default(),
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

    /// Whether packets may be sent with requests that the driver wants to see before (`rte_eth_tx_prepare`).
    pub(crate) fn has_requests(&self) -> bool {
        self.tunnel_tso.is_some()
    }

    /// Whether its driver blocks while it sends, unless it must not.
    pub(crate) fn is_blocking(&self) -> bool {
        self.is_blocking
    }

    /// Whether transmit queues are to be called although there is nothing to send.
    pub(crate) fn is_bond(&self) -> bool {
        self.is_bond
    }

    /// What is to be said of each port that this one is made of.
    pub(super) fn members<T>(&self, say: impl Fn(&Port) -> T) -> Vec<T> {
        let claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        claim.iter().flat_map(|claim| &claim.members).map(say).collect()
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

    pub(super) fn call(
        &self,
        operation: &'static str,
        call: impl FnOnce(u16) -> i32,
    ) -> Result<(), PortError> {
        if !self.is_ethdev() {
            return Err(self.unsupported(operation));
        }
        let (ret, words) = log::captured(|| call(self.id.get()));
        Errno::check(ret).map(|_| ()).map_err(|errno| self.error_with(operation, errno, words))
    }

    /// Stops the device. Nobody polls its queues any more: the caller has them all.
    pub(super) fn halt(&self) -> Result<(), PortError> {
        match &self.backend {
            // Sockets are closed with the queues, and a tap with its port.
            Backend::Sockets(_) | Backend::Tap(_) => return Ok(()),
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

    pub(super) fn is_ethdev(&self) -> bool {
        matches!(self.backend, Backend::Ethdev)
    }

    /// What DPDK is not asked about a port that it does not know.
    pub(super) fn unsupported(&self, operation: &'static str) -> PortError {
        self.error(operation, Errno::ENOTSUP)
    }

    /// What a port that is no ethdev has counted since it is there.
    fn counted(&self) -> Option<PortStats> {
        match &self.backend {
            Backend::Sockets(sockets) => Some(sockets.counted()),
            Backend::Tap(tap) => Some(tap.counted()),
            Backend::Vhost(vhost) => Some(vhost.counted()),
            Backend::Ethdev => None,
        }
    }

    /// The port's statistics.
    pub(super) fn stats(&self) -> Result<PortStats, PortError> {
        match self.counted() {
            Some(counted) => Ok(counted.minus(*self.reset.lock().unwrap_or_else(PoisonError::into_inner))),
            None => stats::basic(self.id).map_err(|errno| self.error("read statistics", errno)),
        }
    }

    /// Sets them to zero.
    pub(super) fn reset_stats(&self) -> Result<(), PortError> {
        match self.counted() {
            Some(counted) => {
                *self.reset.lock().unwrap_or_else(PoisonError::into_inner) = counted;
                Ok(())
            }
            // SAFETY: a port that we hold.
            None => self.call("reset statistics", |id| unsafe { sys::rte_eth_stats_reset(id) }),
        }
    }

    pub(super) fn take_claim(&self) -> Option<Claim> {
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
