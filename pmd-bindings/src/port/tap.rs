//! A port that is a tap: a kernel interface of its own making.

use std::path::PathBuf;
use std::sync::Arc;

use wire::{MacAddr, TunnelTso};

use super::attach::{Claim, Kind};
use super::config::Started;
use super::socket::refused;
use super::{Link, Port, PortConfig, PortId, PortInfo, PortStats, Running, StartedPort};
use crate::eal::Eal;
use crate::error::PortError;
use crate::mempool::Mempool;
use crate::namespace::Namespace;
use crate::queue::{RxQueue, TxQueue};
use crate::tap::{Queue, Receiver, Tap};
use crate::vnet::Sender;
use crate::{interface, process};

/// The largest MTU of a tap: the kernel counts the Ethernet header.
pub const MAX_TAP_MTU: u16 = u16::MAX - 14;

/// How a tap is made, or taken.
#[derive(Clone, Debug)]
pub struct TapConfig {
    /// The interface's name.
    pub iface: String,
    /// The network namespace that it is in, as a file; `None` for that of the process. The namespace stays while the port is there,
    /// which is down as soon as this file is no more that of its namespace.
    pub namespace: Option<PathBuf>,
    /// Queue pairs.
    pub queues: u16,
    /// The address of the kernel's end; as it is when not given.
    pub mac: Option<MacAddr>,
    /// The interface stays when the port goes, once that was started.
    pub persist: bool,
    /// The kernel leaves checksums and segmentation to the port; else frames come as they are on a wire. Where
    /// [`PortConfig::tunnel_tso`] is asked for, that goes for TCP inside VxLAN, too, both ways (Linux 6.17).
    pub offloads: bool,
}

/// Where the interface of a tap is: it may have been renamed or moved since it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapPlace {
    /// What it is called there.
    pub iface: String,
    /// Device and number of its network namespace, where the kernel says.
    pub namespace: Option<(u64, u64)>,
}

/// The interface behind a port.
#[derive(Clone, Debug)]
pub(super) struct TapPort {
    tap: Arc<Tap>,
    /// Where it was made or found.
    namespace: Option<Arc<Namespace>>,
    persist: bool,
}

impl TapPort {
    pub fn info(&self, id: PortId, name: &str) -> PortInfo {
        let queues = self.tap.queues.len() as u16;
        PortInfo {
            mac: self.mac(),
            mtu_range: 68..=MAX_TAP_MTU,
            if_index: self.tap.at_home(interface::index).ok(),
            ..PortInfo::without_ethdev(id, name, "tap", queues)
        }
    }

    pub fn place(&self) -> Option<TapPlace> {
        self.tap.place().ok()
    }

    pub fn mac(&self) -> MacAddr {
        self.tap.mac().unwrap_or_default()
    }

    pub fn set_mac(&self, port: &str, mac: MacAddr) -> Result<(), PortError> {
        self.tap.set_mac(mac).map_err(|error| refused(port, "set the MAC address", &error))
    }

    /// Has the interface stay when the port goes.
    pub fn persist(&self, port: &str) -> Result<(), PortError> {
        self.tap.persist().map_err(|error| refused(port, "make the interface persistent", &error))
    }

    pub fn link(&self) -> Link {
        Link { up: self.tap.is_up(), full_duplex: true, ..Link::default() }
    }

    pub fn mtu(&self, port: &str) -> Result<u16, PortError> {
        let mtu = self.tap.at_home(process::interface_mtu);
        let mtu = mtu.map_err(|error| refused(port, "read the MTU", &error))?;
        Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
    }

    pub fn set_mtu(&self, port: &str, mtu: u16) -> Result<(), PortError> {
        let set = self.tap.at_home(|iface| process::set_interface_mtu(iface, mtu.into()));
        set.map_err(|error| refused(port, "set the MTU", &error))
    }

    pub fn fault(&self) -> Option<&'static str> {
        if self.namespace.as_ref().is_some_and(|namespace| !namespace.is_there()) {
            return Some("its network namespace was removed, or is another one by now");
        }
        self.tap.is_gone().then_some("its interface was deleted")
    }

    /// What it counted since it is there.
    pub fn counted(&self) -> PortStats {
        self.tap.stats()
    }

    /// Agrees with the kernel on headers: how long they are, and whether super-frames go inside tunnels, if that is wanted.
    fn agree(&self, port: &str, tunnels: bool) -> Result<(usize, Option<TunnelTso>), PortError> {
        if tunnels
            && self.tap.offloads
            && let Ok(bytes) = self.tap.agree(true)
        {
            let max_segments = Sender::<Queue>::MAX_SEGMENTS;
            return Ok((bytes, Some(TunnelTso { outer_udp_checksum: true, max_segments })));
        }
        let agreed = self.tap.agree(false).map(|bytes| (bytes, None));
        agreed.map_err(|error| refused(port, "agree on offloads with the kernel", &error))
    }

    /// Does what a port that starts wants of its interface.
    fn prepare(&self, port: &str, mtu: Option<u16>) -> Result<(), PortError> {
        if let Some(mtu) = mtu {
            self.set_mtu(port, mtu)?;
        }
        let up = self.tap.at_home(interface::set_up);
        up.map_err(|error| refused(port, "set the interface up", &error))?;
        // Last: what cannot start leaves nothing behind.
        if self.persist { self.persist(port) } else { Ok(()) }
    }
}

impl Port {
    /// A port on a tap, which is made, or taken if there is one of this name in its network namespace: there may be thousands, for it
    /// is no ethdev. Frames come and go with the kernel's offloads, so that a TCP segment of 64 KB may be one packet. The
    /// interface goes with the port unless it persists; it may be renamed, or moved into another network namespace.
    ///
    /// # Errors
    /// [`PortError::Operation`] with the kernel's refusal, [`PortError::LimitReached`].
    pub fn on_tap(eal: &Eal, name: &str, config: &TapConfig) -> Result<Self, PortError> {
        let namespace = config.namespace.as_deref().map(Namespace::open).transpose();
        let namespace = namespace.map_err(|error| refused(name, "open its network namespace", &error))?;
        let tap = match &namespace {
            Some(namespace) => namespace.within(|| Tap::open(config)).and_then(|opened| opened),
            None => Tap::open(config),
        };
        let tap = tap.map_err(|error| refused(name, "open a tap interface", &error))?;
        let port =
            TapPort { tap: Arc::new(tap), namespace: namespace.map(Arc::new), persist: config.persist };
        Ok(Self { claim: Claim::without_ethdev(eal, name, Kind::Tap(port))? })
    }

    /// Gives each pair of queues its descriptor.
    #[allow(clippy::result_large_err, reason = "once per port, and the port must come back")]
    pub(super) fn start_tap(
        self,
        tap: TapPort,
        config: &PortConfig,
        pool: &Mempool,
    ) -> Result<Started, (Self, PortError)> {
        let queues = tap.tap.queues.len() as u16;
        let name = &self.claim.name;
        let agreed = config.exactly(name, queues).and_then(|()| tap.agree(name, config.tunnel_tso));
        let ready = agreed.and_then(|agreed| tap.prepare(name, config.mtu).map(|()| agreed));
        let (header_bytes, tunnel_tso) = match ready {
            Ok(agreed) => agreed,
            Err(error) => return Err((self, error)),
        };
        let (id, pairs) = (self.claim.id, tap.tap.queues.clone());
        let running = Arc::new(Running::on_tap(self.claim, pool.clone(), tap, tunnel_tso));
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for (number, queue) in (0..).zip(pairs) {
            let receiver = Receiver::new(queue.clone(), id, pool.clone(), header_bytes);
            rx.push(RxQueue::on_tap(&running, number, receiver));
            tx.push(TxQueue::on_tap(&running, number, Sender::new(queue, header_bytes)));
        }
        Ok((StartedPort::new(running, queues, queues), rx, tx))
    }
}
