//! A port that is a vhost-user socket.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use wire::MacAddr;

use super::attach::{Claim, Kind};
use super::config::Started;
use super::{Link, Port, PortConfig, PortId, PortInfo, PortStats, Running, StartedPort};
use crate::eal::Eal;
use crate::error::{Errno, PortError, Words, cut};
use crate::mempool::Mempool;
use crate::queue::{RxQueue, TxQueue};
use crate::vhost::{Open, Socket};

/// The longest path of a Unix socket (unix(7)), without the zero at its end.
const LONGEST_PATH: usize = 107;

/// How a vhost-user port is opened.
#[derive(Clone, Debug)]
pub struct VhostConfig {
    /// The socket.
    pub path: PathBuf,
    /// The port makes the socket, and its peer connects to it; else the other way round.
    pub is_server: bool,
    /// Pairs of virtqueues.
    pub queues: u16,
    /// Guests may leave checksums and segmentation to the port; else their frames come as they are on a wire.
    pub offloads: bool,
}

/// The socket that a port is, and its queues.
#[derive(Clone, Debug)]
pub(super) struct VhostSocket {
    socket: Socket,
    queues: u16,
}

impl VhostSocket {
    pub fn info(&self, id: PortId, name: &str) -> PortInfo {
        let info = PortInfo::without_ethdev(id, name, "vhost_user", self.queues);
        PortInfo { mac: mac(id), ..info }
    }
}

/// An address for the end of the link that is ours: nobody else gives one.
pub(super) fn mac(id: PortId) -> MacAddr {
    let [high, low] = id.get().to_be_bytes();
    MacAddr([0x02, 0, 0, 0, high, low])
}

/// The socket of a started port.
#[derive(Debug)]
pub(super) struct Vhost {
    pub socket: VhostSocket,
    open: Mutex<Option<Open>>,
    device: Arc<crate::vhost::Device>,
}

impl Vhost {
    fn new(socket: VhostSocket, open: Open) -> Self {
        Self { socket, device: open.device.clone(), open: Mutex::new(Some(open)) }
    }

    /// Sends the peer away and closes the socket. The queues that are left find nobody.
    pub fn close(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(open);
    }

    pub fn link(&self) -> Link {
        Link { up: self.device.has_peer(), full_duplex: true, ..Link::default() }
    }

    pub fn fault(&self) -> Option<&'static str> {
        self.device.fault()
    }

    pub fn takes_super_frames(&self) -> bool {
        self.device.takes_super_frames()
    }

    pub fn read_queues(&self) -> Vec<bool> {
        self.device.read_queues()
    }

    /// What was counted since the port is there.
    pub fn counted(&self) -> PortStats {
        self.device.stats()
    }
}

impl Port {
    /// A port on a vhost-user socket, with so many pairs of queues and without an ethdev: the guest behind it uses as many of them
    /// as it likes. Frames come and go with its offloads, so that a TCP segment of 64 KB may be one packet. The socket is made,
    /// or connected to again and again, while the port runs; nobody waits for the peer.
    ///
    /// # Errors
    /// [`PortError::Name`] for a path that no socket can have, [`PortError::LimitReached`].
    pub fn on_vhost_user(eal: &Eal, name: &str, config: &VhostConfig) -> Result<Self, PortError> {
        let bytes = config.path.as_os_str().as_bytes();
        let why = match bytes.len() {
            0 => Some("the path of its socket is empty"),
            length if length > LONGEST_PATH => Some("the path of its socket is over 107 bytes long"),
            _ => None,
        };
        let bad = |why| PortError::Name { name: cut(name), why };
        let path = CString::new(bytes).map_err(|_| bad("the path of its socket holds a NUL byte"))?;
        if let Some(why) = why {
            return Err(bad(why));
        }
        let socket = Socket { path, is_server: config.is_server, offloads: config.offloads };
        let socket = VhostSocket { socket, queues: config.queues };
        Ok(Self { claim: Claim::without_ethdev(eal, name, Kind::Vhost(socket))? })
    }

    /// Opens the socket.
    #[allow(clippy::result_large_err, reason = "once per port, and the port must come back")]
    pub(super) fn start_vhost(
        self,
        vhost: VhostSocket,
        config: &PortConfig,
        pool: &Mempool,
    ) -> Result<Started, (Self, PortError)> {
        let queues = vhost.queues;
        if let Err(error) = config.exactly(&self.claim.name, queues) {
            return Err((self, error));
        }
        let (open, pairs) = match Open::new(&vhost.socket, self.claim.id, queues, pool) {
            Ok(opened) => opened,
            Err((operation, words)) => {
                return Err(self.refused(operation, words));
            }
        };
        let running = Arc::new(Running::on_vhost(self.claim, pool.clone(), Vhost::new(vhost, open)));
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for (queue, (receiver, sender)) in (0..).zip(pairs) {
            rx.push(RxQueue::on_vhost(&running, queue, receiver));
            tx.push(TxQueue::on_vhost(&running, queue, sender));
        }
        Ok((StartedPort::new(running, queues, queues), rx, tx))
    }

    fn refused(self, operation: &'static str, words: Words) -> (Self, PortError) {
        let name = self.claim.name.clone();
        (self, PortError::Operation { name, operation, errno: Errno::EINVAL, words })
    }
}
