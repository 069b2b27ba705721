//! [`StartedPort`]: what can be done with a port while its queues are polled.

use std::sync::Arc;

use dpdk_sys as sys;
use wire::{MacAddr, TunnelTso};

use super::shared::{Backend, Running};
use super::{ConfiguredRss, Port, PortId, PortInfo, PortStats, RssReport, TapPlace, info, stats, vhost};
use crate::error::{Errno, PortError};
use crate::queue::{RxQueue, TxQueue};

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
            Backend::Tap(tap) => Ok(tap.info(id, name)),
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
        self.running.stats()
    }

    /// Sets [`stats`](Self::stats) to zero.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] or [`PortError::Operation`].
    pub fn reset_stats(&self) -> Result<(), PortError> {
        self.running.reset_stats()
    }

    /// The driver's counters, by name. A port that is no ethdev has those that every driver has.
    ///
    /// # Errors
    /// [`PortError::Operation`].
    pub fn xstats(&self) -> Result<Vec<(String, u64)>, PortError> {
        if !self.running.is_ethdev() {
            return self.stats().map(stats::by_name);
        }
        stats::extended(self.running.id)
            .map_err(|errno| self.running.error("read extended statistics", errno))
    }

    /// Sets [`xstats`](Self::xstats) to zero.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] or [`PortError::Operation`].
    pub fn reset_xstats(&self) -> Result<(), PortError> {
        if !self.running.is_ethdev() {
            return self.reset_stats();
        }
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
            Backend::Tap(tap) => return Ok(tap.link()),
            Backend::Vhost(vhost) => return Ok(vhost.link()),
            Backend::Ethdev => {}
        }
        link_of(self.running.id.get()).map_err(|errno| self.running.error("read the link state", errno))
    }

    /// What its device does with TCP super-frames inside VxLAN; none when it was not asked to cut them ([`PortConfig::tunnel_tso`]), or
    /// cannot.
    ///
    /// [`PortConfig::tunnel_tso`]: super::PortConfig::tunnel_tso
    pub fn tunnel_tso(&self) -> Option<TunnelTso> {
        self.running.tunnel_tso
    }

    /// Which transmit queues the peer reads, for a port whose peer chooses that: a guest enables as many pairs as it likes. None while
    /// there is no peer.
    pub fn read_queues(&self) -> Option<Vec<bool>> {
        match &self.running.backend {
            Backend::Vhost(vhost) => Some(vhost.read_queues()),
            Backend::Ethdev | Backend::Sockets(_) | Backend::Tap(_) => None,
        }
    }

    /// Whether a peer that chooses so takes TCP super-frames now, and unfinished checksums.
    pub fn peer_takes_super_frames(&self) -> Option<bool> {
        match &self.running.backend {
            Backend::Vhost(vhost) => Some(vhost.takes_super_frames()),
            Backend::Ethdev | Backend::Sockets(_) | Backend::Tap(_) => None,
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
        match &self.running.backend {
            Backend::Sockets(sockets) => return sockets.interface.mtu(&self.running.name),
            Backend::Tap(tap) => return tap.mtu(&self.running.name),
            Backend::Ethdev | Backend::Vhost(_) => {}
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
        match &self.running.backend {
            Backend::Sockets(sockets) => return sockets.interface.set_mtu(&self.running.name, mtu),
            Backend::Tap(tap) => return tap.set_mtu(&self.running.name, mtu),
            Backend::Ethdev | Backend::Vhost(_) => {}
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
            Backend::Tap(tap) => tap.mac(),
            Backend::Vhost(_) => vhost::mac(self.running.id),
            Backend::Ethdev => info::mac_of(self.running.id),
        }
    }

    /// Gives the interface of a tap another MAC address.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] for a port of another kind, or [`PortError::Operation`].
    pub fn set_mac(&self, mac: MacAddr) -> Result<(), PortError> {
        let name = &self.running.name;
        match &self.running.backend {
            Backend::Tap(tap) => tap.set_mac(name, mac),
            _ => Err(PortError::Unsupported { name: name.clone(), operation: "set the MAC address" }),
        }
    }

    /// Has the interface of a tap stay when the port goes.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] for a port of another kind, or [`PortError::Operation`].
    pub fn persist(&self) -> Result<(), PortError> {
        let name = &self.running.name;
        match &self.running.backend {
            Backend::Tap(tap) => tap.persist(name),
            _ => {
                Err(PortError::Unsupported { name: name.clone(), operation: "make the interface persistent" })
            }
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

    /// Where the interface of a tap is now; `None` for other kinds, and where it cannot be told.
    pub fn tap_place(&self) -> Option<TapPlace> {
        match &self.running.backend {
            Backend::Tap(tap) => tap.place(),
            _ => None,
        }
    }

    /// Why the port is of no use until it is opened anew, in words; `None` while it is. To be asked a few times a second: what a packet
    /// socket does not tell shows between two looks, and a vhost-user peer that holds up a polling thread is found so. That a
    /// device was unplugged is unconfirmed on hardware; virtual ones never are.
    pub fn fault(&self) -> Option<&'static str> {
        match &self.running.backend {
            Backend::Sockets(sockets) => sockets.fault(),
            Backend::Tap(tap) => tap.fault(),
            Backend::Vhost(vhost) => vhost.fault(),
            Backend::Ethdev => {
                // SAFETY: a port that we hold.
                let removed = unsafe { sys::rte_eth_dev_is_removed(self.running.id.get()) == 1 };
                removed.then_some("its driver says that the device was removed")
            }
        }
    }
}

/// The state of an ethdev's link, without waiting for it to settle.
pub(super) fn link_of(id: u16) -> Result<Link, Errno> {
    let (mut mbps, mut duplex, mut autoneg, mut up) = (0, 0, 0, 0);
    // SAFETY: four valid places.
    let ret =
        unsafe { sys::dpdk_sys_link_get(id, &raw mut mbps, &raw mut duplex, &raw mut autoneg, &raw mut up) };
    Errno::check(ret)?;
    let known = mbps != 0 && mbps != u32::MAX;
    Ok(Link { up: up != 0, mbps: known.then_some(mbps), full_duplex: duplex != 0, autoneg: autoneg != 0 })
}
