//! vhost-user ports by librte_vhost itself, without an ethdev: as many as the library holds.
//!
//! A port is a Unix socket, made or connected to, behind which a peer (the monitor of a virtual machine, a virtio-user) shares
//! memory and virtqueues by the vhost-user protocol. The library speaks the protocol on threads of its own and tells of a peer
//! by callbacks (`callbacks.rs`), which keep a `Device` up to date; polling threads read from it which peer there is
//! (`queue.rs`), and hold nothing back from the library: a peer that goes is gone when they have left (`quiesce.rs`). What a peer may
//! say next, `setup.rs` knows: the library does not ask whether it makes sense. One that takes back memory under the switch (`guard.rs`), or holds up who notifies it (`notify.rs`), or fills its rings with what takes
//! long and is nothing (`look.rs`), or has more of them used at a time than there is (`shadow.rs`), harms its own port only.
//!
//! Virtqueues come in pairs: the even ones are received on by the guest, which is what we send into, the odd ones we receive
//! from (VIRTIO 1.2 section 5.1.2). A guest enables as many pairs as it likes.

mod callbacks;
mod descriptors;
mod files;
mod guard;
mod look;
mod message;
mod moat;
mod notify;
mod queue;
mod quiesce;
mod setup;
mod shadow;
mod trial;
mod wake;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;
use guard::Shared;
use moat::Moats;
use notify::CallFile;
use quiesce::Gate;
use setup::Setup;

use crate::counters::Counters;
use crate::error::Words;
use crate::log;
use crate::mempool::Mempool;
use crate::port::{PortId, PortStats};
pub(crate) use queue::{Receiver, Sender};

/// Descriptors that the library's one thread waits for (`MAX_FDS` of lib/vhost/fd_man.h), less its own.
const DESCRIPTORS: usize = 1023;
/// Of a socket that we make: the one that listens, and that of its peer.
const PER_SERVER: usize = 2;
/// Of a socket that we connect to.
const PER_CLIENT: usize = 1;

/// Whether so many sockets made and connected to are too many for librte_vhost; else `None`, and if so how many descriptors they
/// need and how many there are: two for each that is made, one for each that is connected to.
pub fn too_many(servers: usize, clients: usize) -> Option<(usize, usize)> {
    let needed = servers * PER_SERVER + clients * PER_CLIENT;
    (needed > DESCRIPTORS).then_some((needed, DESCRIPTORS))
}

/// Descriptors that it waits for, with room kept for the first peer of each socket.
static WAITED_FOR: AtomicUsize = AtomicUsize::new(0);

/// Takes room for one more, if there is some.
fn wait_for_one_more() -> bool {
    let more = |waited_for: usize| (waited_for < DESCRIPTORS).then_some(waited_for + 1);
    WAITED_FOR.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

/// Pairs of virtqueues that the library knows (`VHOST_MAX_QUEUE_PAIRS`).
pub const MAX_PAIRS: usize = 128;

/// Descriptors of a virtqueue at most: QEMU's own bound (`VIRTQUEUE_MAX_SIZE`).
pub const MAX_RING: u32 = 1024;

/// Bits of negotiated features (VIRTIO 1.2 sections 5.1.3 and 6).
mod feature {
    pub const GUEST_CSUM: u64 = 1 << 1;
    pub const GUEST_TSO4: u64 = 1 << 7;
    pub const GUEST_TSO6: u64 = 1 << 8;
    pub const GUEST_UFO: u64 = 1 << 10;
    pub const HOST_UFO: u64 = 1 << 14;
    pub const MQ: u64 = 1 << 22;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const RING_PACKED: u64 = 1 << 34;
    /// What a guest leaves to its device: checksums (CSUM), and TCP segments (HOST_TSO4, HOST_TSO6, HOST_ECN).
    pub const LEFT_TO_US: u64 = 1 << 0 | 1 << 11 | 1 << 12 | 1 << 13;
    /// A guest with all of them takes super-frames.
    pub const SUPER_FRAMES: u64 = GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6;
}

/// No peer.
const NOBODY: i32 = -1;

/// A port's devices by the paths of their sockets, for the library's callbacks.
static DEVICES: Mutex<BTreeMap<CString, Arc<Device>>> = Mutex::new(BTreeMap::new());

fn devices() -> MutexGuard<'static, BTreeMap<CString, Arc<Device>>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a port has of its peer.
#[derive(Debug)]
pub(crate) struct Device {
    socket: Socket,
    /// The library's number of the peer whose rings are used, or [`NOBODY`].
    vid: AtomicI32,
    /// What was negotiated with it.
    features: AtomicU64,
    /// Which of its virtqueues are enabled.
    rings: [AtomicBool; 2 * MAX_PAIRS],
    /// One more than the highest pair that was ever enabled.
    pairs: AtomicU32,
    /// Changes with the peer and with its rings.
    generation: AtomicU32,
    /// The library has a packet of its own to be received, of which the rings say nothing: the announcement of a guest that migrated.
    announces: AtomicBool,
    /// Of the receive queues, and of the transmit queues.
    gates: Vec<[Gate; 2]>,
    counters: Vec<Counters>,
    /// What a polling thread caught the peer at: an [`Offence`], or 0.
    offence: AtomicU8,
    peers: Mutex<Peers>,
}

/// What no guest does whose driver is sound, and costs the switch too much to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offence {
    /// Frames that take more buffers than any frame has.
    EndlessFrames = 1,
    /// Buffers for received frames that are long chains of nothing.
    EmptyChains = 2,
}

impl Offence {
    fn words(offence: u8) -> Option<&'static str> {
        if offence == Self::EndlessFrames as u8 {
            Some("its peer sends frames that are longer than any IP packet")
        } else if offence == Self::EmptyChains as u8 {
            Some("its peer offers buffers that are chains of descriptors without length")
        } else {
            None
        }
    }
}

/// Connections to the socket.
#[derive(Debug, Default)]
struct Peers {
    connected: usize,
    /// What is known of each; those whose guests are ready, in the order in which they were.
    known: Vec<Peer>,
    /// Who was inside when [`Device::fault`] was last asked.
    visits: Vec<Option<u32>>,
}

#[derive(Debug)]
struct Peer {
    vid: i32,
    is_ready: bool,
    rings: [bool; 2 * MAX_PAIRS],
    shared: Shared,
    moats: Moats,
    setup: Setup,
    /// What the guest is notified by, of each virtqueue.
    calls: BTreeMap<u16, CallFile>,
    /// It did what no peer does; its port is to be taken down.
    is_hostile: bool,
    /// It had its guest announced.
    announces: bool,
}

impl Peer {
    fn new(vid: i32) -> Self {
        Self {
            vid,
            is_ready: false,
            rings: [false; 2 * MAX_PAIRS],
            shared: Shared::default(),
            moats: Moats::default(),
            setup: Setup::default(),
            calls: BTreeMap::new(),
            is_hostile: false,
            announces: false,
        }
    }

    /// Its rings beyond the first pair are there no more.
    fn keep_first_pair(&mut self) {
        self.rings[2..].fill(false);
        self.calls.retain(|ring, _| *ring < 2);
    }

    /// Frees pollers that hang in a notification of its guest; `true` if there was one for them to hang in.
    fn free_pollers(&self) -> bool {
        self.calls.values().filter(|call| call.drain()).count() > 0
    }
}

/// One peer, and one that waits for it to go: it may have come before the library noticed that the other has left.
const MOST_PEERS: usize = 2;

impl Device {
    fn new(socket: Socket, queues: u16) -> Self {
        Self {
            socket,
            vid: AtomicI32::new(NOBODY),
            features: AtomicU64::new(0),
            rings: [const { AtomicBool::new(false) }; 2 * MAX_PAIRS],
            pairs: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            announces: AtomicBool::new(false),
            gates: (0..queues).map(|_| Default::default()).collect(),
            counters: (0..queues).map(|_| Counters::default()).collect(),
            offence: AtomicU8::new(0),
            peers: Mutex::default(),
        }
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a guest is there.
    pub(crate) fn has_peer(&self) -> bool {
        self.vid.load(Ordering::Relaxed) != NOBODY
    }

    /// What a peer did that takes its port down. Asked a few times a second: it also frees a polling thread that hangs in a
    /// notification, which a peer may see to.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let mut peers = self.peers();
        let visits: Vec<Option<u32>> = self.gates.iter().flatten().map(Gate::visit).collect();
        let hangs = visits.iter().zip(&peers.visits).any(|(now, before)| now.is_some() && now == before);
        peers.visits = visits;
        if hangs {
            let active = self.vid.load(Ordering::Relaxed);
            for peer in peers.known.iter_mut().filter(|peer| peer.vid == active) {
                peer.is_hostile |= peer.free_pollers();
            }
        }
        if peers.known.iter().any(|peer| peer.is_hostile) {
            return Some("its peer gave a file to be notified by that holds up whoever writes to it");
        }
        if let Some(words) = Offence::words(self.offence.load(Ordering::Relaxed)) {
            return Some(words);
        }
        let broken = peers.known.iter().any(|peer| peer.shared.is_broken());
        broken.then_some("its peer has taken back memory that it shared with the switch")
    }

    /// Called by a polling thread that caught the peer: its rings are used no more, and [`Self::fault`] tells.
    #[cold]
    fn caught(&self, offence: Offence) {
        self.offence.store(offence as u8, Ordering::Relaxed);
        for ring in &self.rings {
            ring.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the guest takes super-frames and unfinished checksums.
    pub(crate) fn takes_super_frames(&self) -> bool {
        let features = self.features.load(Ordering::Relaxed);
        self.has_peer() && features & feature::SUPER_FRAMES == feature::SUPER_FRAMES
    }

    fn is_packed(&self) -> bool {
        self.features.load(Ordering::Relaxed) & feature::RING_PACKED != 0
    }

    /// Which transmit queues the guest reads.
    pub(crate) fn read_queues(&self) -> Vec<bool> {
        let is_read = |queue| self.has_peer() && self.is_enabled(2 * queue);
        (0..self.gates.len()).map(is_read).collect()
    }

    fn is_enabled(&self, ring: usize) -> bool {
        self.rings.get(ring).is_some_and(|ring| ring.load(Ordering::Relaxed))
    }

    pub(crate) fn stats(&self) -> PortStats {
        self.counters.iter().map(Counters::stats).fold(PortStats::default(), PortStats::plus)
    }

    /// Has the rings of a peer used from now on; nobody's are.
    fn use_peer(&self, peer: &Peer) {
        let mut features = 0;
        // SAFETY: asks for a peer that the library just told of; a valid place.
        let ret = unsafe { sys::rte_vhost_get_negotiated_features(peer.vid, &raw mut features) };
        self.features.store(if ret == 0 { features } else { 0 }, Ordering::Relaxed);
        self.offence.store(0, Ordering::Relaxed);
        self.announces.store(peer.announces, Ordering::Relaxed);
        self.tell_rings(Some(peer));
        self.vid.store(peer.vid, Ordering::Release);
    }

    /// Has the rings of a peer used no more: nobody does when this returns.
    fn leave_peer(&self, peer: &Peer) {
        self.vid.store(NOBODY, Ordering::Relaxed);
        quiesce::wait(self.gates.iter().flatten(), || {
            peer.free_pollers();
        });
        self.tell_rings(None);
    }

    fn tell_rings(&self, peer: Option<&Peer>) {
        let enabled = |ring| peer.is_some_and(|peer| peer.rings[ring]);
        for (number, ring) in self.rings.iter().enumerate() {
            ring.store(enabled(number), Ordering::Relaxed);
        }
        let highest = (0..self.rings.len()).rev().find(|&ring| enabled(ring));
        self.pairs.store(highest.map_or(0, |ring| ring as u32 / 2 + 1), Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// How the socket of a port is made.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    /// Its path.
    pub path: CString,
    /// We make it; else we connect to it, again and again until somebody is there.
    pub is_server: bool,
    /// Guests may leave checksums and segmentation to us.
    pub offloads: bool,
}

impl Socket {
    /// Descriptors that it has, with those of its first peer.
    fn descriptors(&self) -> usize {
        if self.is_server { PER_SERVER } else { PER_CLIENT }
    }
}

/// A queue pair.
pub(crate) type Pair = (Receiver, Sender);

/// A socket that is open until this goes.
#[derive(Debug)]
pub(crate) struct Open {
    pub device: Arc<Device>,
}

impl Open {
    /// Opens a socket, and makes the queues of its port. A server's socket is there then; nobody is waited for.
    ///
    /// # Errors
    /// The step that failed, and the library's words: a path that is in use, no room for one more.
    pub fn new(
        socket: &Socket,
        port: PortId,
        queues: u16,
        pool: &Mempool,
    ) -> Result<(Self, Vec<Pair>), (&'static str, Words)> {
        quiesce::prepare();
        guard::install();
        let path = socket.path.as_ptr();
        // Facts of received packets as those of any other driver, instead of requests.
        let compliant = u64::from(sys::RTE_VHOST_USER_NET_COMPLIANT_OL_FLAGS);
        let client = if socket.is_server { 0 } else { u64::from(sys::RTE_VHOST_USER_CLIENT) };
        let device = Arc::new(Device::new(socket.clone(), queues));
        let mut open = None;
        let (step, words) = log::captured(|| {
            // The library would take a second one, and call it by the first one's name.
            if devices().contains_key(&socket.path) {
                return Some("open the socket, which another port has");
            }
            // SAFETY: a C string, which the library copies.
            if unsafe { sys::rte_vhost_driver_register(path, compliant | client) } != 0 {
                return Some("open the socket");
            }
            devices().insert(socket.path.clone(), device.clone());
            WAITED_FOR.fetch_add(socket.descriptors(), Ordering::Relaxed);
            open = Some(Self { device });
            // Fragments of datagrams that nobody is ever asked for.
            let mut unwanted = feature::GUEST_UFO | feature::HOST_UFO;
            if !socket.offloads {
                unwanted |= feature::LEFT_TO_US;
            }
            // SAFETY: a C string; the socket was registered.
            if unsafe { sys::rte_vhost_driver_disable_features(path, unwanted) } != 0 {
                return Some("choose its features");
            }
            // SAFETY: as above; the callbacks are there for ever.
            if unsafe { sys::rte_vhost_driver_callback_register(path, &raw const callbacks::OPS.0) } != 0 {
                return Some("register its callbacks");
            }
            // SAFETY: as above.
            if unsafe { sys::rte_vhost_driver_start(path) } != 0 {
                return Some("listen on the socket");
            }
            wake::added();
            None
        });
        let open = match (open, step) {
            (Some(open), None) => open,
            (_, step) => return Err((step.unwrap_or_default(), words)),
        };
        let queue = |queue| {
            let device = &open.device;
            (Receiver::new(device.clone(), queue, port, pool.clone()), Sender::new(device.clone(), queue))
        };
        let queues = (0..usize::from(queues)).map(queue).collect();
        Ok((open, queues))
    }
}

impl Drop for Open {
    /// The peers are sent away first: the library tells so by the callbacks.
    fn drop(&mut self) {
        // SAFETY: a C string. The library knows nothing of the path when it could not be registered, and says so.
        let ((), _) = log::captured(|| unsafe {
            sys::rte_vhost_driver_unregister(self.device.socket.path.as_ptr());
        });
        wake::closed();
        devices().remove(&self.device.socket.path);
        // Of peers that are sent away so, nobody tells that they are gone.
        let waiting = self.device.peers().connected.saturating_sub(1);
        WAITED_FOR.fetch_sub(self.device.socket.descriptors() + waiting, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_vhost_peers_that_wait_take_no_descriptors_of_others() {
        let sockets = 511;
        assert_eq!(too_many(sockets, 0), None);
        WAITED_FOR.store(sockets * PER_SERVER, Ordering::Relaxed);
        assert!(wait_for_one_more(), "the 1,023rd");
        assert!(!wait_for_one_more() && !wait_for_one_more());
        assert_eq!(WAITED_FOR.load(Ordering::Relaxed), DESCRIPTORS);
    }
}
