//! [`PortStats`] and the driver's own counters by name.

use std::ffi::CStr;

use dpdk_sys as sys;

use super::PortId;
use crate::error::Errno;

/// What a port counted since it was attached or reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets that the device dropped because nobody fetched them (`imissed`).
    pub rx_missed: u64,
    /// Packets received in error (`ierrors`).
    pub rx_errors: u64,
    /// Packets that failed to be sent (`oerrors`). Some drivers count here what they hand back as unsent.
    pub tx_errors: u64,
    /// Failed buffer allocations of the driver (`rx_nombuf`).
    pub rx_no_mbuf: u64,
}

impl PortStats {
    /// Field by field.
    fn with(self, other: Self, each: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            rx_packets: each(self.rx_packets, other.rx_packets),
            tx_packets: each(self.tx_packets, other.tx_packets),
            rx_bytes: each(self.rx_bytes, other.rx_bytes),
            tx_bytes: each(self.tx_bytes, other.tx_bytes),
            rx_missed: each(self.rx_missed, other.rx_missed),
            rx_errors: each(self.rx_errors, other.rx_errors),
            tx_errors: each(self.tx_errors, other.tx_errors),
            rx_no_mbuf: each(self.rx_no_mbuf, other.rx_no_mbuf),
        }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        self.with(other, u64::wrapping_add)
    }

    /// What was counted since then.
    pub(super) fn minus(self, then: Self) -> Self {
        self.with(then, u64::wrapping_sub)
    }
}

/// Counters by the names that DPDK gives them.
pub(super) fn by_name(stats: PortStats) -> Vec<(String, u64)> {
    let named = [
        ("rx_good_packets", stats.rx_packets),
        ("tx_good_packets", stats.tx_packets),
        ("rx_good_bytes", stats.rx_bytes),
        ("tx_good_bytes", stats.tx_bytes),
        ("rx_missed_errors", stats.rx_missed),
        ("rx_errors", stats.rx_errors),
        ("tx_errors", stats.tx_errors),
        ("rx_mbuf_allocation_errors", stats.rx_no_mbuf),
    ];
    named.map(|(name, value)| (name.to_owned(), value)).into()
}

pub(super) fn basic(id: PortId) -> Result<PortStats, Errno> {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut raw: sys::rte_eth_stats = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place; the function checks the id.
    let ret = unsafe { sys::rte_eth_stats_get(id.get(), &raw mut raw) };
    Errno::check(ret).map(|_| PortStats {
        rx_packets: raw.ipackets,
        tx_packets: raw.opackets,
        rx_bytes: raw.ibytes,
        tx_bytes: raw.obytes,
        rx_missed: raw.imissed,
        rx_errors: raw.ierrors,
        tx_errors: raw.oerrors,
        rx_no_mbuf: raw.rx_nombuf,
    })
}

pub(super) fn extended(id: PortId) -> Result<Vec<(String, u64)>, Errno> {
    // SAFETY: with no room, the function returns how many there are.
    let ret = unsafe { sys::rte_eth_xstats_get_names(id.get(), std::ptr::null_mut(), 0) };
    let wanted = Errno::check(ret)?.cast_unsigned();
    // SAFETY: characters, for which zero is a value.
    let empty: sys::rte_eth_xstat_name = unsafe { std::mem::zeroed() };
    let mut names = vec![empty; wanted as usize];
    // SAFETY: room for `wanted` names.
    let ret = unsafe { sys::rte_eth_xstats_get_names(id.get(), names.as_mut_ptr(), wanted) };
    let named = Errno::check(ret)?.cast_unsigned().min(wanted);
    let mut values = vec![sys::rte_eth_xstat { id: 0, value: 0 }; wanted as usize];
    // SAFETY: room for `wanted` values.
    let ret = unsafe { sys::rte_eth_xstats_get(id.get(), values.as_mut_ptr(), wanted) };
    let valued = Errno::check(ret)?.cast_unsigned().min(named);
    values.truncate(valued as usize);
    let name = |raw: &sys::rte_eth_xstat_name| {
        // SAFETY: DPDK ends names with a NUL byte inside the array.
        unsafe { CStr::from_ptr(raw.name.as_ptr()) }.to_string_lossy().into_owned()
    };
    let find =
        |value: sys::rte_eth_xstat| Some((name(names.get(usize::try_from(value.id).ok()?)?), value.value));
    Ok(values.into_iter().filter_map(find).collect())
}
