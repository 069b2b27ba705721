//! Counters: one writer (the worker that owns the block), any number of readers.
//!
//! A worker adds with a plain load and store, no locked instruction; control reads with relaxed loads and sums
//! over workers. One cache-aligned block per worker, so that no two workers share a line.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::drops::DropReason;
use crate::rows::Rows;

/// A counter with a single writer.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning worker calls this.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Sets the value. Only the owning worker calls this.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// The value now.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Declares a block of counters, their sums over workers, and how they are called, all from one list: a counter that is in
/// it is added up, set back by `clear` and shown, and one that is not does not exist. A `level` is what there is now: it is
/// no sum over time, and `clear` leaves it alone.
#[macro_export]
macro_rules! counters {
    (@since sum $now:expr, $base:expr) => { $now.wrapping_sub($base) };
    (@since level $now:expr, $base:expr) => { $now };
    (
        $(#[$block_meta:meta])*
        block $block:ident { $($(#[$rest_meta:meta])* $rest:ident: $rest_type:ty,)* }
        $(#[$totals_meta:meta])*
        totals $totals:ident
        $($(#[$doc:meta])* $kind:ident $field:ident = $name:literal,)*
    ) => {
        $(#[$block_meta])*
        pub struct $block {
            $($(#[$doc])* pub $field: $crate::counters::Counter,)*
            $($(#[$rest_meta])* $rest: $rest_type,)*
        }

        impl $block {
            /// The values now.
            pub fn totals(&self) -> $totals {
                $totals { $($field: self.$field.get(),)* }
            }
        }

        $(#[$totals_meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $totals {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl $totals {
            /// Every value with its name, in the order of display.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$(($name, self.$field),)*].into_iter()
            }

            /// What came since an earlier reading; levels are as they are.
            #[must_use]
            pub fn since(&self, base: &Self) -> Self {
                Self { $($field: $crate::counters!(@since $kind self.$field, base.$field),)* }
            }
        }

        impl ::std::iter::Sum for $totals {
            fn sum<I: Iterator<Item = Self>>(rows: I) -> Self {
                rows.fold(Self::default(), |sum, row| Self { $($field: sum.$field.wrapping_add(row.$field),)* })
            }
        }
    };
}

counters! {
    /// Traffic of one vNIC on one worker, seen from the switch: `rx` came from the vNIC. The
    /// first cache line is the one of every packet.
    #[derive(Debug, Default)]
    #[repr(C, align(64))]
    block VnicCounters {}
    /// [`VnicCounters`] summed over workers.
    totals VnicTotals
    /// Packets received from the vNIC.
    sum rx_packets = "rx-packets",
    /// Bytes received from the vNIC.
    sum rx_bytes = "rx-bytes",
    /// Packets handed to the vNIC's port.
    sum tx_packets = "tx-packets",
    /// Bytes handed to the vNIC's port.
    sum tx_bytes = "tx-bytes",
    /// Packets from or to the vNIC that were dropped with a reason.
    sum drops = "drops",
    /// NFT misses caused by the vNIC.
    sum nft_misses = "nft-misses",
    /// RoCEv2 packets received from the vNIC.
    sum rdma_rx_packets = "rdma-rx-packets",
    /// RoCEv2 packets handed to the vNIC's port.
    sum rdma_tx_packets = "rdma-tx-packets",
    /// RC queue pairs that the vNIC opened.
    sum qps_opened = "qps-opened",
    /// RC queue pairs that it was refused.
    sum qps_refused = "qps-refused",
    /// Packets of refused queue pairs, which were dropped.
    sum qp_drops = "qp-drops",
    /// Connection requests answered with a reject.
    sum qps_rejected = "qps-rejected",
    /// Connection manager messages from or to the vNIC.
    sum cm_messages = "cm-messages",
    /// Those of them that control did not hear of, as there were too many of the vNIC's. They are forwarded all the same.
    sum cm_unheard = "cm-unheard",
}

counters! {
    /// What one worker counts in the pipeline.
    #[derive(Debug, Default)]
    #[repr(C, align(128))]
    block PipelineCounters {
        drops: Box<[Counter]>,
        vnics: Rows<VnicCounters>,
    }
    /// [`PipelineCounters`] summed over workers, without the drops.
    totals PipelineTotals
    /// Packets taken from rx queues.
    sum received = "received",
    /// Packets made by the switch (ARP requests, ICMP errors).
    sum originated = "originated",
    /// Packets that the simulated e-switch sent past the pipeline.
    sum offloaded = "offloaded",
    /// Further packets made of one: copies of floods, pieces of super-frames.
    sum copies = "copies",
    /// Packets accepted by a tx queue.
    sum sent = "sent",
    /// Packets taken in by the switch itself (ARP replies, ...).
    sum consumed = "consumed",
    /// Packets now in hand-over rings or tx buffers.
    level queued = "queued",
    /// Packets now waiting for tokens.
    level waiting = "waiting",
    /// Packets that had to wait.
    sum waited = "waited",
    /// RoCEv2 packets that were given congestion experienced for being over their rates.
    sum rdma_marked = "rdma-marked",
    /// Other packets that were given it for having waited long.
    sum tcp_marked = "tcp-marked",
    /// Packets whose flow had an NFT entry.
    sum nft_hits = "nft-hits",
    /// NFT misses that reached the slow path.
    sum nft_misses = "nft-misses",
    /// NFT entries recomputed because their generation was stale.
    sum nft_stale = "nft-stale",
    /// Packets that were put into a tunnel.
    sum encapsulated = "encapsulated",
    /// Packets that were taken out of a tunnel.
    sum decapsulated = "decapsulated",
    /// Packets delivered from vNIC to vNIC without a tunnel.
    sum local = "local",
    /// Inner packets that arrived with or were given CE by decapsulation.
    sum ecn_ce = "ecn-ce",
    /// Later fragments that found the verdict of their first one.
    sum fragments = "fragments",
    /// Packets to the RoCEv2 port that are no RoCEv2 known here: unassigned opcodes, a BTH cut short, reliable
    /// connection to queue pair 0 or 1. They are forwarded.
    sum roce_unknown = "roce-unknown",
    /// Packets to queue pair 1 that are no message of the connection manager. They are forwarded.
    sum cm_unknown = "cm-unknown",
    /// Checksums completed in software.
    sum checksums_filled = "checksums-filled",
    /// ARP and ND questions of vNICs answered.
    sum neighbours_answered = "neighbours-answered",
    /// DHCP requests and router solicitations of vNICs that were taken in for control to answer.
    sum service_requests = "service-requests",
    /// BFD packets of sessions that were taken in for control.
    sum bfd_packets = "bfd-packets",
    /// Answers to path probes that were taken in for control.
    sum probe_answers = "probe-answers",
    /// BFD packets that workers sent once more because control was late with the next. They are among those originated.
    sum bfd_repeated = "bfd-repeated",
}

impl PipelineTotals {
    /// The conservation law: received + originated + offloaded + copies - sent - drops - consumed - queued -
    /// waiting. Zero when no packet is on its way through a stage.
    pub fn imbalance(&self, dropped: u64) -> i64 {
        let sum = |terms: [u64; 4]| terms.into_iter().fold(0, u64::wrapping_add);
        let came = sum([self.received, self.originated, self.offloaded, self.copies]);
        // What a worker has queued is less than nothing when it took it out of others' rings.
        let held = self.queued.wrapping_add(self.waiting);
        came.wrapping_sub(sum([self.sent, dropped, self.consumed, held])) as i64
    }
}

impl PipelineCounters {
    /// Counters for up to `vnics` vNICs.
    pub fn new(vnics: usize) -> Self {
        Self {
            drops: (0..DropReason::COUNT).map(|_| Counter::default()).collect(),
            vnics: Rows::new(vnics, VnicCounters::default),
            ..Self::default()
        }
    }

    /// Counts a dropped packet.
    #[inline(always)]
    pub fn drop(&self, reason: DropReason) {
        self.drop_many(reason, 1);
    }

    /// Counts `n` packets dropped for one reason.
    #[inline(always)]
    pub fn drop_many(&self, reason: DropReason, n: u64) {
        self.drops[reason.index()].add(n);
    }

    /// Packets dropped for a reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()].get()
    }

    /// Packets dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.drops.iter().map(Counter::get).sum()
    }

    /// The counters of a vNIC. Indices past the end share the last row rather than fail.
    #[inline(always)]
    pub fn vnic(&self, index: usize) -> &VnicCounters {
        self.vnics.at(index as u32)
    }

    /// Every scalar counter with its name, for display.
    pub fn scalars(&self) -> Vec<(&'static str, u64)> {
        self.totals().iter().collect()
    }

    /// [`PipelineTotals::imbalance`] of this worker alone: zero whenever it is between bursts.
    pub fn imbalance(&self) -> i64 {
        self.totals().imbalance(self.dropped())
    }
}
