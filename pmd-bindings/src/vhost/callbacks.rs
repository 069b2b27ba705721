//! What librte_vhost tells of peers, on its own threads: they came, their guests are ready, rings were enabled, they went.
//!
//! Some of these calls come while the library holds the locks of a peer's rings. Nothing here asks for those, and none may panic.

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dpdk_sys as sys;

use super::message::{self, Message};
use super::moat::Moats;
use super::notify::CallFile;
use super::{Device, MOST_PEERS, Peer, WAITED_FOR, descriptors, devices, guard, shadow, wait_for_one_more};

/// The library keeps a pointer to it.
pub(super) static OPS: Ops = Ops(sys::rte_vhost_device_ops {
    new_device: Some(ready),
    destroy_device: Some(stopped),
    vring_state_changed: Some(ring_changed),
    new_connection: Some(connected),
    destroy_connection: Some(disconnected),
    ..NO_OPS
});

/// The callbacks, in the library's form.
#[repr(transparent)]
pub(super) struct Ops(pub sys::rte_vhost_device_ops);

// SAFETY: functions, and reserved pointers that are null; nobody writes it.
unsafe impl Sync for Ops {}

// SAFETY: function pointers that may be null, and reserved pointers.
const NO_OPS: sys::rte_vhost_device_ops = unsafe { std::mem::zeroed() };

/// The port of a peer.
fn device(vid: i32) -> Option<Arc<Device>> {
    let mut path = [0u8; libc::PATH_MAX as usize];
    // SAFETY: a place of the size that is said.
    let ret = unsafe { sys::rte_vhost_get_ifname(vid, path.as_mut_ptr().cast(), path.len()) };
    let path: CString = CStr::from_bytes_until_nul(&path).ok().filter(|_| ret == 0)?.to_owned();
    devices().get(&path).cloned()
}

/// Called for each message of a peer, before the library handles it and after that.
static MESSAGES: sys::rte_vhost_user_extern_ops =
    sys::rte_vhost_user_extern_ops { pre_msg_handle: Some(coming), post_msg_handle: Some(handled) };

/// The library has read a message, and has not begun with it.
unsafe extern "C" fn coming(vid: i32, place: *mut c_void) -> i32 {
    guard::on_library_thread();
    // SAFETY: the library's message, until this returns.
    let message = unsafe { Message::at(place) };
    let device = device(vid);
    let mut peers = device.as_ref().map(|device| device.peers());
    // Of a message that failed: what it has mapped may be looked at until its peer goes.
    let (of, left) = Moats::end();
    if let Some(peer) = peers.as_mut().and_then(|peers| peers.known.iter_mut().find(|peer| peer.vid == of)) {
        peer.moats.keep(left);
    }
    let peer = peers.as_mut().and_then(|peers| peers.known.iter_mut().find(|peer| peer.vid == vid));
    let checked = peer.ok_or("nobody knows the peer").and_then(|peer| {
        if peer.setup.is_lost() {
            peer.shared.lose();
        }
        peer.setup.check(&message)
    });
    let Err(why) = checked else {
        shadow::begin(&message, device.as_ref().map_or(0, |device| device.gates.len()));
        if message.number() == message::SET_MEM_TABLE {
            Moats::begin(vid);
        }
        return sys::RTE_VHOST_MSG_RESULT_NOT_HANDLED;
    };
    tracing::warn!(vid, message = message.number(), why, "a message of a vhost-user peer is refused");
    message.close_files();
    sys::RTE_VHOST_MSG_RESULT_ERR
}

/// The library has done what a message asks for, or does not know the message. Of one that failed nobody is told: what was mapped
/// before stays guarded then. It is asked for the memory only after it has mapped some; else it would look for it at address 0.
unsafe extern "C" fn handled(vid: i32, place: *mut c_void) -> i32 {
    // SAFETY: the library's message, until this returns.
    let message = unsafe { Message::at(place) };
    if let Some(device) = device(vid)
        && let Some(peer) = device.peers().known.iter_mut().find(|peer| peer.vid == vid)
    {
        peer.setup.done(&message);
        match message.number() {
            message::SET_MEM_TABLE => {
                peer.setup.regions = peer.shared.memory_changed(vid);
                // None are made where the table says what is mapped already.
                let (_, made) = Moats::end();
                if made.count() > 0 {
                    peer.moats = made;
                }
                if peer.moats.count() < peer.setup.regions.len() {
                    tracing::warn!(vid, "there is no room of ours behind the memory of a vhost-user guest");
                }
            }
            message::SET_FEATURES if peer.setup.has_one_pair() => {
                // The library has freed the others, and tells nobody.
                peer.keep_first_pair();
                if device.vid.load(Ordering::Relaxed) == vid {
                    device.tell_rings(Some(peer));
                }
            }
            message::SET_LOG_BASE => peer.shared.log_changed(vid),
            message::RESET_OWNER => peer.shared.forget(),
            message::SEND_RARP => {
                let is_used = device.vid.load(Ordering::Relaxed) == vid;
                peer.announces = !is_used;
                device.announces.fetch_or(is_used, Ordering::Relaxed);
            }
            _ => {}
        }
    }
    sys::RTE_VHOST_MSG_RESULT_NOT_HANDLED
}

/// A peer connected.
unsafe extern "C" fn connected(vid: i32) -> i32 {
    let Some(device) = device(vid) else { return -1 };
    if let Err(error) = descriptors::never_block(&device.socket) {
        tracing::warn!(vid, %error, "a vhost-user peer is turned away, which might hold all others up");
        return -1;
    }
    let mut peers = device.peers();
    // The first one's descriptor is reckoned with.
    if peers.connected > 0 && (peers.connected >= MOST_PEERS || !wait_for_one_more()) {
        tracing::warn!(
            vid,
            "a vhost-user socket has a peer, and one that waits for it to go or no room for that; one more is turned away"
        );
        return -1;
    }
    peers.connected += 1;
    peers.known.push(Peer::new(vid));
    // SAFETY: a peer that the library just told of; the functions are there for ever.
    unsafe { sys::rte_vhost_extern_callback_register(vid, &raw const MESSAGES, std::ptr::null_mut()) }
}

/// A peer has gone.
unsafe extern "C" fn disconnected(vid: i32) {
    let Some(device) = device(vid) else { return };
    let mut peers = device.peers();
    if peers.connected > 1 {
        WAITED_FOR.fetch_sub(1, Ordering::Relaxed);
    }
    peers.connected = peers.connected.saturating_sub(1);
    peers.known.retain(|peer| peer.vid != vid);
}

/// The guest of a peer can be talked to.
unsafe extern "C" fn ready(vid: i32) -> i32 {
    let Some(device) = device(vid) else { return -1 };
    let mut peers = device.peers();
    let others = peers.known.iter().any(|peer| peer.is_ready);
    let Some(at) = peers.known.iter().position(|peer| peer.vid == vid) else { return -1 };
    // The first to be ready is the first to be used.
    let mut peer = peers.known.remove(at);
    peer.is_ready = true;
    if !others {
        device.use_peer(&peer);
    }
    peers.known.push(peer);
    0
}

/// The guest of a peer is not to be talked to any more; nobody does when this returns.
unsafe extern "C" fn stopped(vid: i32) {
    let Some(device) = device(vid) else { return };
    let mut peers = device.peers();
    let Some(peer) = peers.known.iter_mut().find(|peer| peer.vid == vid) else { return };
    peer.is_ready = false;
    if device.vid.load(Ordering::Relaxed) == vid {
        device.leave_peer(peer);
        if let Some(next) = peers.known.iter().find(|peer| peer.is_ready) {
            device.use_peer(next);
        }
    }
}

/// A guest enabled a virtqueue, or disabled it.
unsafe extern "C" fn ring_changed(vid: i32, ring: u16, enabled: i32) -> i32 {
    let Some(device) = device(vid) else { return -1 };
    let mut peers = device.peers();
    let Some(peer) = peers.known.iter_mut().find(|peer| peer.vid == vid) else { return -1 };
    let Some(place) = peer.rings.get_mut(usize::from(ring)) else { return -1 };
    *place = enabled != 0;
    peer.calls.remove(&ring);
    if enabled != 0 {
        match CallFile::of(vid, ring) {
            Ok(call) => peer.calls.extend(call.map(|call| (ring, call))),
            // Nothing is sent to it, nor received: both end in a notification.
            Err(()) => {
                peer.is_hostile = true;
                peer.rings[usize::from(ring)] = false;
            }
        }
    }
    if device.vid.load(Ordering::Relaxed) == vid {
        device.tell_rings(Some(peer));
    }
    0
}
