//! What librte_vhost tells of peers, on its own threads: they came, their guests are ready, rings were enabled, they went.
//!
//! Some of these calls come while the library holds the locks of a peer's rings. Nothing here asks for those, and none may panic.

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dpdk_sys as sys;

use super::guard::{self, Shared};
use super::notify::CallFile;
use super::{Device, MAX_RING, MOST_PEERS, Peer, WAITED_FOR, devices, wait_for_one_more};

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

/// Called for each message of a peer when the library has handled it.
static MESSAGES: sys::rte_vhost_user_extern_ops =
    sys::rte_vhost_user_extern_ops { pre_msg_handle: Some(coming), post_msg_handle: Some(handled) };

/// Messages of the protocol that change what is mapped ("Front-end message types" of QEMU's docs/interop/vhost-user.rst).
const RESET_OWNER: u32 = 4;
const SET_MEM_TABLE: u32 = 5;
const SET_LOG_BASE: u32 = 6;
/// The one that says how large a ring is: behind its head of three words the number of the ring and its size.
const SET_VRING_NUM: u32 = 8;

/// The library has read a message. One that asks for a larger ring than any guest has is refused: what a look into a ring
/// may cost grows with the square of its size.
unsafe extern "C" fn coming(vid: i32, message: *mut c_void) -> i32 {
    guard::on_library_thread();
    // SAFETY: a message begins with its number, and has room for any kind of it.
    let [number, _, _, _, size] = unsafe { message.cast::<[u32; 5]>().read_unaligned() };
    if number == SET_VRING_NUM && size > MAX_RING {
        tracing::warn!(
            vid,
            size,
            "a vhost-user peer asks for a ring of more than {MAX_RING} descriptors, which is refused: give it smaller ones \
             (rx_queue_size and tx_queue_size of QEMU, queue_size of virtio-user)"
        );
        return sys::RTE_VHOST_MSG_RESULT_ERR;
    }
    sys::RTE_VHOST_MSG_RESULT_NOT_HANDLED
}

/// The library has done what a message asks for, or does not know the message. Of one that failed nobody is told: what was mapped
/// before stays guarded then. It is asked for the memory only after it has mapped some; else it would look for it at address 0.
unsafe extern "C" fn handled(vid: i32, message: *mut c_void) -> i32 {
    // SAFETY: a message begins with its number.
    let number = unsafe { message.cast::<u32>().read_unaligned() };
    let change: fn(&mut Shared, i32) = match number {
        SET_MEM_TABLE => Shared::memory_changed,
        SET_LOG_BASE => Shared::log_changed,
        RESET_OWNER => |shared, _| shared.forget(),
        _ => return sys::RTE_VHOST_MSG_RESULT_NOT_HANDLED,
    };
    if let Some(device) = device(vid)
        && let Some(peer) = device.peers().known.iter_mut().find(|peer| peer.vid == vid)
    {
        change(&mut peer.shared, vid);
    }
    sys::RTE_VHOST_MSG_RESULT_NOT_HANDLED
}

/// A peer connected.
unsafe extern "C" fn connected(vid: i32) -> i32 {
    let Some(device) = device(vid) else { return -1 };
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
