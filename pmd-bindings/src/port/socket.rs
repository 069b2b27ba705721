//! A port that is packet sockets on a kernel interface.

use std::io;
use std::sync::Arc;

use wire::MacAddr;

use super::config::Started;
use super::{DescriptorLimits, Link, Port, PortConfig, PortId, PortInfo, PortStats, Running, StartedPort};
use crate::error::{Errno, PortError, Words};
use crate::mempool::Mempool;
use crate::queue::{RxQueue, TxQueue};
use crate::socket::{self, Fault, Setup, Socket};
use crate::{interface, process};

/// Sockets of a port at most: `rx-queues` of as many workers.
const MAX_QUEUES: u16 = 64;

/// The interface behind a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interface {
    /// Its index, which no later interface gets.
    pub index: u32,
}

impl Interface {
    pub fn info(&self, id: PortId, name: &str) -> PortInfo {
        PortInfo {
            mac: self.mac(),
            rx_descriptors: DescriptorLimits { min: 16, max: 16_384, align: 16 },
            if_index: Some(self.index),
            ..PortInfo::without_ethdev(id, name, "packet_socket", MAX_QUEUES)
        }
    }

    /// By its index: it may have been renamed.
    fn now(&self) -> io::Result<String> {
        interface::name_of(self.index)
    }

    pub fn mac(&self) -> MacAddr {
        self.now().and_then(|name| interface::mac(&name)).unwrap_or_default()
    }

    fn link(&self, port: &str) -> Result<Link, PortError> {
        let up = self.now().and_then(|name| interface::has_carrier(&name));
        // An interface that is gone has none.
        let gone = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO));
        let up = up.or_else(|error| if gone(&error) { Ok(false) } else { Err(error) });
        let up = up.map_err(|error| refused(port, "read the link state", &error))?;
        Ok(Link { up, ..Link::default() })
    }

    pub fn mtu(&self, port: &str) -> Result<u16, PortError> {
        let mtu = self.now().and_then(|name| process::interface_mtu(&name));
        let mtu = mtu.map_err(|error| refused(port, "read the MTU", &error))?;
        Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
    }

    pub fn set_mtu(&self, port: &str, mtu: u16) -> Result<(), PortError> {
        let set = self.now().and_then(|name| process::set_interface_mtu(&name, mtu.into()));
        set.map_err(|error| refused(port, "set the MTU", &error))
    }
}

/// The kernel's refusal.
pub(super) fn refused(port: &str, operation: &'static str, error: &io::Error) -> PortError {
    let errno = error.raw_os_error().map_or(Errno::EINVAL, Errno::new);
    PortError::Operation { name: port.into(), operation, errno, words: Words::default() }
}

/// The sockets of a started port, whose two halves are queues.
#[derive(Debug)]
pub(super) struct Sockets {
    pub interface: Interface,
    sockets: Vec<Arc<Socket>>,
}

impl Sockets {
    /// That of the interface, unless the sockets have lost it.
    pub fn link(&self, port: &str) -> Result<Link, PortError> {
        if self.sockets.iter().all(|socket| socket.is_bound()) {
            self.interface.link(port)
        } else {
            Ok(Link::default())
        }
    }

    /// Why the port receives nothing any more, in words.
    pub fn fault(&self) -> Option<&'static str> {
        // Of each, for each remembers what it saw.
        let faults = self.sockets.iter().map(|socket| socket.fault()).fold(None, Option::or)?;
        Some(match faults {
            Fault::Unbound => "its interface was deleted, or moved to another network namespace",
            Fault::Still => {
                "the kernel receives nothing more for it: a super-frame of a kind that packet sockets do not know"
            }
        })
    }

    /// What they counted since they are there.
    pub fn counted(&self) -> PortStats {
        self.sockets.iter().map(|socket| socket.stats()).fold(PortStats::default(), PortStats::plus)
    }
}

impl Port {
    /// One socket for each pair of queues.
    #[allow(clippy::result_large_err, reason = "once per port, and the port must come back")]
    pub(super) fn start_sockets(
        self,
        interface: Interface,
        config: &PortConfig,
        pool: &Mempool,
    ) -> Result<Started, (Self, PortError)> {
        let queues = config.rx_queues;
        if queues == 0 || queues > MAX_QUEUES || config.tx_queues > queues {
            let (what, value) = ("number of queues", config.tx_queues.max(queues).into());
            let error = PortError::Range {
                name: self.claim.name.clone(),
                what,
                value,
                min: 1,
                max: MAX_QUEUES.min(queues.max(1)).into(),
            };
            return Err((self, error));
        }
        if let Some(mtu) = config.mtu
            && let Err(error) = interface.set_mtu(&self.claim.name, mtu)
        {
            return Err((self, error));
        }
        let setup = Setup {
            port: self.claim.id,
            interface: interface.index,
            queues,
            slots: config.rx_desc,
            promiscuous: config.promiscuous,
            cuts_tunnels: !config.tunnel_tso,
            pool,
        };
        let (sockets, pairs) = match socket::open(setup) {
            Ok(opened) => opened,
            Err(error) => {
                let error = refused(&self.claim.name, "open a packet socket", &error);
                return Err((self, error));
            }
        };
        let sockets = Sockets { interface, sockets };
        let running = Arc::new(Running::on_sockets(self.claim, pool.clone(), sockets));
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for (queue, (receiver, sender)) in (0..).zip(pairs) {
            rx.push(RxQueue::on_socket(&running, queue, receiver));
            if queue < config.tx_queues {
                tx.push(TxQueue::on_socket(&running, queue, sender));
            }
        }
        Ok((StartedPort::new(running, queues, config.tx_queues), rx, tx))
    }
}
