//! [`Counters`] and [`Refused`]: what queues count that no driver counts for.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::port::PortStats;

/// A count that one thread adds to and others read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a queue of a port that is no ethdev counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) rx_packets: Count,
    pub(crate) rx_bytes: Count,
    pub(crate) rx_no_mbuf: Count,
    /// Frames of which a part was lost.
    pub(crate) rx_errors: Count,
    pub(crate) tx_packets: Count,
    pub(crate) tx_bytes: Count,
    pub(crate) tx_errors: Count,
}

impl Counters {
    pub(crate) fn stats(&self) -> PortStats {
        PortStats {
            rx_packets: self.rx_packets.get(),
            tx_packets: self.tx_packets.get(),
            rx_bytes: self.rx_bytes.get(),
            tx_bytes: self.tx_bytes.get(),
            rx_errors: self.rx_errors.get(),
            tx_errors: self.tx_errors.get(),
            rx_no_mbuf: self.rx_no_mbuf.get(),
            ..PortStats::default()
        }
    }
}

/// Packets that were taken as sent and went nowhere: refused for what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refused {
    pub packets: u64,
    pub bytes: u64,
}

impl Refused {
    pub(crate) fn add(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
    }
}
