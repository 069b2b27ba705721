//! A node of the tree of rates: what it may do, and what was taken of it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use zerocopy::FromZeros;

use super::bucket::{BitsPerSec, RateLimit, RateLimitCell, Stamp, TokenBucket};

/// What is configured for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// What it always gets; 0: nothing in particular.
    pub assured: BitsPerSec,
    /// What it never exceeds; 0: only its parent's limits.
    pub ceil: BitsPerSec,
    /// Its part of what its siblings leave.
    pub weight: u32,
    /// Bytes that it may save up; 0: a millisecond of its ceil, 128 KiB at least.
    pub burst: u64,
}

impl NodeLimits {
    /// Nothing assured, no ceiling, weight 1.
    pub const FREE: Self = Self { assured: 0, ceil: 0, weight: 1, burst: 0 };

    /// Bytes that a node saves up at a rate.
    fn burst_at(&self, rate: BitsPerSec) -> u64 {
        if self.burst > 0 { self.burst } else { (rate / 8_000).max(128 << 10) }
    }
}

/// A node of the tree: link, tenant, vNIC or class. Limits are control's, buckets all workers'.
#[derive(Debug, FromZeros)]
#[repr(C, align(128))]
pub(super) struct Node {
    pub ceil: RateLimitCell,
    pub assured: RateLimitCell,
    /// What the division gives it: classes only.
    pub share: RateLimitCell,
    weight: AtomicU32,
    /// 1 when it or something above it has a limit: classes only.
    pub limited: AtomicU32,
    /// Next class in the list of those that woke up; 0: none, else number + 1.
    pub next_woken: AtomicU32,
    /// 1 while the division knows the class, or is about to.
    pub awake: AtomicU32,

    pub ceil_bucket: TokenBucket,
    pub assured_bucket: TokenBucket,
    pub share_bucket: TokenBucket,
    /// Bytes that RDMA sent ahead of its tokens.
    pub debt: AtomicU64,
    /// Bytes for which tokens were taken.
    pub drawn: AtomicU64,
    /// Times that a class found no tokens.
    pub held_back: AtomicU64,
    /// Bytes that all workers together may hold under its ceiling, and under its share; 0: as they like.
    pub quantum: AtomicU32,
    pub share_quantum: AtomicU32,
    /// Until when a class has something in hardware, workers' time; 0: it has nothing there.
    pub hardware_until_ns: AtomicU64,
}

impl Node {
    /// What it may do from now on.
    pub fn set(&self, limits: &NodeLimits, now: Stamp) {
        self.weight.store(limits.weight.max(1), Relaxed);
        let burst = limits.burst_at(limits.ceil);
        let quantum = RateLimit::new(limits.ceil, burst).quantum();
        // What workers hold is part of the burst: with it, it is as much as was asked for.
        let ceil = RateLimit::new(limits.ceil, burst - u64::from(quantum));
        self.ceil.change(&self.ceil_bucket, ceil, now);
        self.quantum.store(quantum, Relaxed);
        let assured = RateLimit::new(limits.assured, limits.burst_at(limits.assured));
        self.assured.change(&self.assured_bucket, assured, now);
    }

    /// Its share of what is left over, in proportion to its siblings' weights.
    pub fn weight(&self) -> u32 {
        self.weight.load(Relaxed).max(1)
    }

    /// What the division gives a class from now on.
    pub fn set_share(&self, share: RateLimit, now: Stamp) {
        self.share.change(&self.share_bucket, share, now);
        self.share_quantum.store(share.quantum(), Relaxed);
    }

    /// What the ceiling saves up, in its bucket and in the token caches of workers. Bytes.
    pub fn burst(&self) -> u64 {
        self.ceil.get().burst() + u64::from(self.quantum.load(Relaxed))
    }

    /// As if nothing had ever been sent.
    pub fn forget(&self) {
        self.share.lift(&self.share_bucket);
        self.share_quantum.store(0, Relaxed);
        self.buckets().iter().for_each(|(bucket, _)| bucket.fill());
        for count in [&self.debt, &self.drawn, &self.held_back, &self.hardware_until_ns] {
            count.store(0, Relaxed);
        }
    }

    /// Its buckets, each with its rate and burst.
    pub fn buckets(&self) -> [(&TokenBucket, RateLimit); 3] {
        [
            (&self.ceil_bucket, self.ceil.get()),
            (&self.assured_bucket, self.assured.get()),
            (&self.share_bucket, self.share.get()),
        ]
    }

    /// True with a ceiling or an assured rate of its own.
    pub fn has_limit(&self) -> bool {
        !self.ceil.get().is_free() || !self.assured.get().is_free()
    }
}

const _: () = assert!(size_of::<Node>() == 128);
const _: () = assert!(std::mem::offset_of!(Node, ceil_bucket) == 64);

/// A node, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// What it always gets, bits per second.
    pub assured: BitsPerSec,
    /// What it never exceeds; 0: no limit of its own.
    pub ceil: BitsPerSec,
    /// What the last division gave it (classes).
    pub share: BitsPerSec,
    /// Its share of what is left over, in proportion to its siblings' weights.
    pub weight: u32,
    /// Bytes that it may save up.
    pub burst: u64,
    /// Bytes that it has saved up; negative: taken ahead.
    pub tokens: i64,
    /// Bytes sent ahead of tokens (RDMA).
    pub debt: u64,
    /// Bytes for which tokens were taken, ever.
    pub drawn: u64,
    /// Times that no tokens were found.
    pub held_back: u64,
}

/// Parameters of a hardware meter that stands for a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafRates {
    /// Rate that is always green.
    pub committed: BitsPerSec,
    /// Rate beyond which everything is red; 0: none.
    pub peak: BitsPerSec,
    /// Bytes that may pass at once above the rate.
    pub burst: u64,
}
