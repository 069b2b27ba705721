//! Ports made of rings: packets sent into a [`Ring`] are received by whichever port has it on its other side.
//!
//! A ring that a port both sends into and receives from loops back; two rings cross two ports. Rings are of the
//! kind that any number of threads may use at once, so that no way of sharing them is unsound.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};

use dpdk_sys as sys;

use super::attach::{Claim, HOTPLUG, checked_name, find, in_use, limit};
use super::{Port, PortId};
use crate::eal::Eal;
use crate::error::{Errno, PortError};
use crate::flags::ANY_NODE;
use crate::log;
use crate::mbuf::Mbuf;

/// DPDK puts a prefix and a number before and behind a ring's name.
const MAX_NAME: usize = 20;
/// What the driver calls a port of rings: this and the name it is given.
const PREFIX: &str = "net_ring_";

#[derive(Debug)]
struct RingInner {
    raw: NonNull<sys::rte_ring>,
    _eal: Eal,
}

// SAFETY: the ring is made for any number of producers and consumers.
unsafe impl Send for RingInner {}
// SAFETY: as above.
unsafe impl Sync for RingInner {}

impl RingInner {
    fn clear(&self) {
        loop {
            // SAFETY: a live ring that holds nothing but packets: only ports put things in.
            let raw = unsafe { sys::dpdk_sys_ring_take(self.raw.as_ptr()) };
            let Some(raw) = NonNull::new(raw) else { return };
            // SAFETY: a packet in a ring belongs to whoever takes it out; its pool is kept while it is outside.
            drop(unsafe { Mbuf::from_raw(raw) });
        }
    }
}

impl Drop for RingInner {
    fn drop(&mut self) {
        self.clear();
        // SAFETY: the last handle; ports that used the ring held one each.
        unsafe { sys::rte_ring_free(self.raw.as_ptr()) };
    }
}

/// A queue of packets inside the process. A handle; the ring goes with its last one and the ports made of it,
/// and the packets in it are freed then.
#[derive(Clone, Debug)]
pub struct Ring {
    inner: Arc<RingInner>,
}

impl Ring {
    /// Makes a ring for at least `packets` packets. Names are unique in the process, of 1 to 20 bytes.
    ///
    /// # Errors
    /// [`PortError::Name`], or [`PortError::Operation`] for a name that is in use and for too little memory.
    pub fn new(eal: &Eal, name: &str, packets: u16) -> Result<Self, PortError> {
        let c_name = checked_name(name)?;
        if name.len() > MAX_NAME {
            return Err(PortError::Name { name: name.into(), why: "a ring's name has at most 20 bytes" });
        }
        // One slot of a ring stays empty.
        let slots = (u32::from(packets) + 1).next_power_of_two();
        let create = || {
            // SAFETY: a C string, a power of two, and no flags: any number of producers and consumers.
            unsafe { sys::rte_ring_create(c_name.as_ptr(), slots, ANY_NODE, 0) }
        };
        let (raw, words) = log::captured(create);
        let raw = NonNull::new(raw).ok_or_else(|| PortError::Operation {
            name: name.into(),
            operation: "create a ring",
            errno: Errno::last(),
            words,
        })?;
        Ok(Self { inner: Arc::new(RingInner { raw, _eal: eal.clone() }) })
    }

    /// Packets in the ring now.
    pub fn packets(&self) -> usize {
        // SAFETY: a live ring; the count is read without locks.
        let count = unsafe { sys::dpdk_sys_ring_count(self.inner.raw.as_ptr()) };
        count as usize
    }

    /// Frees the packets in the ring.
    pub fn clear(&self) {
        self.inner.clear();
    }

    /// True when both are handles on the same ring.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Port {
    /// Makes a port that receives from `rx` and sends into `tx`, a queue each. It is named `net_ring_<name>`.
    ///
    /// # Errors
    /// [`PortError::Name`], [`PortError::Exists`], [`PortError::LimitReached`], [`PortError::Range`] for no
    /// rings or more than a port has queues, or [`PortError::Attach`].
    pub fn from_rings(eal: &Eal, name: &str, rx: &[Ring], tx: &[Ring]) -> Result<Self, PortError> {
        let full = format!("{PREFIX}{name}");
        let c_full = checked_name(&full)?;
        let c_name = CString::new(name)
            .map_err(|_| PortError::Name { name: full.clone(), why: "it holds a NUL byte" })?;
        let max = u64::from(sys::RTE_PMD_RING_MAX_RX_RINGS);
        for (what, rings) in [("number of receive rings", rx), ("number of transmit rings", tx)] {
            let value = rings.len() as u64;
            if !(1..=max).contains(&value) {
                return Err(PortError::Range { name: full, what, value, min: 1, max });
            }
        }
        let pointers = |rings: &[Ring]| rings.iter().map(|ring| ring.inner.raw.as_ptr()).collect::<Vec<_>>();
        let (rx_raw, tx_raw) = (pointers(rx), pointers(tx));

        let _hotplug = HOTPLUG.lock().unwrap_or_else(PoisonError::into_inner);
        if in_use() >= limit() {
            return Err(PortError::LimitReached { name: full, limit: limit() });
        }
        if find(&c_full).is_some() {
            return Err(PortError::Exists(full));
        }
        let attach = || {
            // SAFETY: a C string and two arrays of live rings with their lengths; the port's claim keeps the
            // rings as long as the driver has pointers to them.
            unsafe {
                sys::rte_eth_from_rings(
                    c_name.as_ptr(),
                    rx_raw.as_ptr(),
                    rx_raw.len() as u32,
                    tx_raw.as_ptr(),
                    tx_raw.len() as u32,
                    0,
                )
            }
        };
        let (ret, words) = log::captured(attach);
        let Ok(id) = u16::try_from(ret) else {
            let (errno, args) = (Errno::last(), String::new());
            return Err(PortError::Attach { name: full, args, errno, words });
        };
        let mut claim = Claim::take(eal, PortId::new(id), &full)?;
        claim.rings = rx.iter().chain(tx).cloned().collect();
        Ok(Self { claim })
    }
}
