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

/// Traffic of one vNIC on one worker, seen from the switch: `rx` came from the vNIC. The
/// first cache line is the one of every packet.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct VnicCounters {
    /// Packets received from the vNIC.
    pub rx_packets: Counter,
    /// Bytes received from the vNIC.
    pub rx_bytes: Counter,
    /// Packets handed to the vNIC's port.
    pub tx_packets: Counter,
    /// Bytes handed to the vNIC's port.
    pub tx_bytes: Counter,
    /// Packets from or to the vNIC that were dropped with a reason.
    pub drops: Counter,
    /// NFT misses caused by the vNIC.
    pub misses: Counter,
    /// RoCEv2 packets received from the vNIC.
    pub rdma_rx_packets: Counter,
    /// RoCEv2 packets handed to the vNIC's port.
    pub rdma_tx_packets: Counter,
    /// RC queue pairs that the vNIC opened.
    pub qps_opened: Counter,
    /// RC queue pairs that it was refused.
    pub qps_refused: Counter,
    /// Packets of refused queue pairs, which were dropped.
    pub qp_drops: Counter,
    /// Connection requests answered with a reject.
    pub qps_rejected: Counter,
    /// Connection manager messages from or to the vNIC.
    pub cm_messages: Counter,
}

/// What one worker counts in the pipeline.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct PipelineCounters {
    /// Packets taken from rx queues.
    pub received: Counter,
    /// Packets made by the switch (ARP requests, ICMP errors).
    pub originated: Counter,
    /// Packets that the simulated e-switch sent past the pipeline.
    pub offloaded: Counter,
    /// Further copies made by replication.
    pub copies: Counter,
    /// Packets accepted by a tx queue.
    pub sent: Counter,
    /// Packets taken in by the switch itself (ARP replies, ...).
    pub consumed: Counter,
    /// Packets now in hand-over rings or tx buffers.
    pub queued: Counter,
    /// Packets now waiting for tokens.
    pub waiting: Counter,
    /// Packets that had to wait.
    pub waited: Counter,
    /// RoCEv2 packets that were given congestion experienced for being over their rates.
    pub rdma_marked: Counter,
    /// Other packets that were given it for having waited long.
    pub tcp_marked: Counter,
    /// NFT hits.
    pub nft_hits: Counter,
    /// NFT misses that reached the slow path.
    pub nft_misses: Counter,
    /// NFT entries recomputed because their generation was stale.
    pub nft_stale: Counter,
    /// Encapsulated packets.
    pub encapsulated: Counter,
    /// Decapsulated packets.
    pub decapsulated: Counter,
    /// Packets delivered from vNIC to vNIC without a tunnel.
    pub local: Counter,
    /// Inner packets that arrived with or were given CE by decapsulation.
    pub ecn_ce: Counter,
    /// Later fragments that found the verdict of their first one.
    pub fragments: Counter,
    /// Packets to the RoCEv2 port that are no RoCEv2 known here: unassigned opcodes, a BTH cut short, reliable
    /// connection to queue pair 0 or 1. They are forwarded.
    pub roce_odd: Counter,
    /// Packets to queue pair 1 that are no message of the connection manager. They are forwarded.
    pub cm_odd: Counter,
    /// Checksums completed in software.
    pub checksums_filled: Counter,
    /// ARP and ND questions of vNICs answered.
    pub neighbours_answered: Counter,
    drops: Box<[Counter]>,
    vnics: Rows<VnicCounters>,
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
    pub fn scalars(&self) -> [(&'static str, u64); 23] {
        [
            ("received", self.received.get()),
            ("originated", self.originated.get()),
            ("offloaded", self.offloaded.get()),
            ("copies", self.copies.get()),
            ("sent", self.sent.get()),
            ("consumed", self.consumed.get()),
            ("queued", self.queued.get()),
            ("waiting", self.waiting.get()),
            ("waited", self.waited.get()),
            ("rdma-marked", self.rdma_marked.get()),
            ("tcp-marked", self.tcp_marked.get()),
            ("nft-hits", self.nft_hits.get()),
            ("nft-misses", self.nft_misses.get()),
            ("nft-stale", self.nft_stale.get()),
            ("encapsulated", self.encapsulated.get()),
            ("decapsulated", self.decapsulated.get()),
            ("local", self.local.get()),
            ("ecn-ce", self.ecn_ce.get()),
            ("fragments", self.fragments.get()),
            ("roce-odd", self.roce_odd.get()),
            ("cm-odd", self.cm_odd.get()),
            ("checksums-filled", self.checksums_filled.get()),
            ("neighbours-answered", self.neighbours_answered.get()),
        ]
    }

    /// The conservation law: received + originated + offloaded + copies - sent - drops - consumed - queued -
    /// waiting. Zero whenever the worker is between bursts.
    pub fn imbalance(&self) -> i64 {
        let sum = |terms: [u64; 4]| terms.into_iter().fold(0, u64::wrapping_add);
        let in_ = sum([self.received.get(), self.originated.get(), self.offloaded.get(), self.copies.get()]);
        // What a worker has queued is less than nothing when it took it out of others' rings.
        let held = self.queued.get().wrapping_add(self.waiting.get());
        let out = sum([self.sent.get(), self.dropped(), self.consumed.get(), held]);
        in_.wrapping_sub(out) as i64
    }
}
