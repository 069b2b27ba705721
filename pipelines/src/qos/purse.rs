//! What a worker has drawn from the tree but not yet spent, and what becomes of a packet: sent, marked, or kept
//! waiting.

use std::sync::atomic::Ordering::Relaxed;

use super::bucket::Stamp;
use super::tree::{Leaf, Node, Tree};
use crate::mem::Slab;

/// A draw is at most this part of a node's burst ...
const QUANTUM_PART: u64 = 100;
/// ... and at most so many bytes.
const QUANTUM_MAX: u64 = 64 << 10;

/// How RDMA that is over its rates is marked and bounded. Bytes are of the class's own debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Law {
    /// Up to here nothing is marked.
    pub kmin: u64,
    /// From here on everything is.
    pub kmax: u64,
    /// Probability of a mark just below `kmax`, in millionths.
    pub pmax_ppm: u32,
    /// Beyond this packets wait.
    pub hard_limit: u64,
    /// Bytes added to every packet on the wire: preamble, gap, FCS.
    pub overhead: u32,
    /// Packets that are not RDMA, listen to ECN and waited for longer than this (nanoseconds) are marked; 0: none.
    pub tcp_ecn_ns: u64,
}

impl Default for Law {
    fn default() -> Self {
        Self {
            kmin: 5_000,
            kmax: 200_000,
            pmax_ppm: 10_000,
            hard_limit: 256 << 10,
            overhead: 24,
            tcp_ecn_ns: 0,
        }
    }
}

impl Law {
    /// The probability of a mark at a debt.
    pub fn probability(&self, debt: u64) -> f32 {
        if debt <= self.kmin {
            0.0
        } else if debt >= self.kmax {
            1.0
        } else {
            self.pmax_ppm as f32 * 1e-6 * (debt - self.kmin) as f32 / (self.kmax - self.kmin) as f32
        }
    }
}

/// What a packet is to the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Not RoCEv2.
    Tcp,
    /// RoCEv2 data whose sender hears marks.
    Rdma,
    /// RoCEv2 data that cannot be marked (Not-ECT).
    RdmaUnmarkable,
    /// RoCEv2 that keeps connections alive, within its own rate: ACK, NAK, connection manager.
    Control,
    /// The same, but in no order with anything else: CNP.
    Notice,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Send it.
    Send,
    /// Send it with congestion experienced.
    Mark,
    /// Keep it; tokens come after so many nanoseconds.
    Wait(u64),
}

/// Where the link is in a path.
const LINK: usize = 3;

/// Tokens that a packet needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    /// Of every node.
    pub bytes: u64,
    /// Of the link besides.
    pub tunnel: u64,
}

/// The purses of one worker.
pub(super) struct Purses {
    /// Tokens by class.
    purses: Slab<u64>,
    random: u64,
}

impl Purses {
    pub fn new(leaves: u32, seed: u64) -> Self {
        Self { purses: Slab::zeroed(leaves as usize), random: seed | 1 }
    }

    /// Spends tokens that are there already.
    #[inline(always)]
    pub fn spend(&mut self, leaf: Leaf, n: u64) -> bool {
        let purse = &mut self.purses[leaf.0 as usize];
        let enough = *purse >= n;
        *purse -= if enough { n } else { 0 };
        enough
    }

    /// A packet of `n` bytes for which the purse did not suffice.
    #[inline(never)]
    pub fn ask(&mut self, tree: &Tree, leaf: Leaf, need: Need, kind: Kind, law: &Law, now: Stamp) -> Answer {
        let n = need.bytes;
        let path = tree.path(leaf);
        let own = path[0];
        if own.limited.load(Relaxed) == 0 {
            // What was owed to a limit that is gone is owed no more.
            if own.debt.load(Relaxed) != 0 {
                own.debt.store(0, Relaxed);
            }
            // Nothing to pay; counted all the same, a quantum at a time.
            let quantum = n.max(QUANTUM_MAX);
            path.iter().for_each(|node| {
                node.drawn.fetch_add(quantum, Relaxed);
            });
            self.purses[leaf.0 as usize] += quantum - n;
            return Answer::Send;
        }
        tree.wake(leaf);
        let wait = loop {
            match self.draw(&path, leaf, need, now) {
                Ok(()) => {
                    self.repay(own, leaf);
                    if self.spend(leaf, n) {
                        return Answer::Send;
                    }
                }
                Err(wait) => break wait,
            }
        };
        own.held_back.fetch_add(1, Relaxed);
        match kind {
            Kind::Tcp | Kind::RdmaUnmarkable => Answer::Wait(wait),
            Kind::Control | Kind::Notice => {
                own.debt.fetch_add(n, Relaxed);
                Answer::Send
            }
            Kind::Rdma => {
                let debt = own.debt.load(Relaxed) + n;
                if debt > law.hard_limit {
                    return Answer::Wait(wait);
                }
                own.debt.fetch_add(n, Relaxed);
                if self.chance() < law.probability(debt) { Answer::Mark } else { Answer::Send }
            }
        }
    }

    /// Draws a quantum, at least `n` tokens, for a class and all that is above it; or says how long to wait.
    fn draw(&mut self, path: &[&Node; 4], leaf: Leaf, need: Need, now: Stamp) -> Result<(), u64> {
        let n = need.bytes;
        let own = path[0];
        let (assured, share) = (own.assured.get(), own.share.get());
        let paces = path.map(|node| node.ceil.get());
        let wait = |n: u64| {
            if !assured.is_free() && own.assured_bucket.wait(n, assured, now) == 0 {
                return 0;
            }
            let above = path.iter().zip(&paces).map(|(node, pace)| node.ceil_bucket.wait(n, *pace, now));
            above.max().unwrap_or(0).max(own.share_bucket.wait(n, share, now))
        };
        match wait(n) {
            0 => {}
            wait => return Err(wait),
        }
        // There are tokens: as many as a quantum has, if there are that many.
        let bursts = paces.iter().chain([&share]).filter(|pace| !pace.is_free()).map(|pace| pace.burst());
        let quantum = bursts.min().map_or(QUANTUM_MAX, |burst| (burst / QUANTUM_PART).min(QUANTUM_MAX));
        let n = if quantum > n && wait(quantum) == 0 { quantum } else { n };
        own.assured_bucket.take(n, assured, now);
        own.share_bucket.take(n, share, now);
        for (level, (node, pace)) in path.iter().zip(paces).enumerate() {
            // A quantum is for more such packets: each of them has its tunnel.
            let tunnels = if level == LINK { n * need.tunnel / need.bytes.max(1) } else { 0 };
            node.ceil_bucket.take(n + tunnels, pace, now);
            node.drawn.fetch_add(n + tunnels, Relaxed);
        }
        self.purses[leaf.0 as usize] += n;
        Ok(())
    }

    /// Debts come first.
    fn repay(&mut self, own: &Node, leaf: Leaf) {
        let purse = &mut self.purses[leaf.0 as usize];
        let mut debt = own.debt.load(Relaxed);
        while debt > 0 && *purse > 0 {
            let paid = debt.min(*purse);
            match own.debt.compare_exchange(debt, debt - paid, Relaxed, Relaxed) {
                Ok(_) => {
                    *purse -= paid;
                    return;
                }
                Err(now) => debt = now,
            }
        }
    }

    /// A number from 0 to 1 (xorshift64*; Marsaglia 2003, Vigna 2016).
    fn chance(&mut self) -> f32 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32 / (1u32 << 24) as f32
    }
}
