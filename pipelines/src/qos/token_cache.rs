//! What a worker has drawn from the tree but not yet spent, and what becomes of a packet: sent, marked, or kept
//! waiting.

use std::sync::atomic::Ordering::Relaxed;

use super::bucket::{RateLimit, Stamp};
use super::tree::{Leaf, Node, Tree};
use crate::mem::Slab;

/// A draw is at most this part of a node's burst ...
const QUANTUM_PART: u64 = 100;
/// ... and at most so many bytes: as many where rates are high.
pub const QUANTUM_MAX: u64 = 64 << 10;

/// Draws for debts of a class at a time, and the bytes of one at least.
const SETTLE: u32 = 16;
const SETTLE_LEAST: u64 = 1500;

/// How RDMA that is over its rates is marked and bounded. Bytes are of the class's own debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedProfile {
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

impl Default for RedProfile {
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

impl RedProfile {
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
pub enum TrafficKind {
    /// Whatever is not RoCEv2: it waits when it is over its rate.
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
pub enum TokenDecision {
    /// Its tokens were there, or it may go ahead of them: send it.
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

/// The buckets that a class draws from, at a time.
struct Tokens<'t> {
    path: &'t [&'t Node; 4],
    limits: [RateLimit; 4],
    assured: RateLimit,
    share: RateLimit,
    now: Stamp,
}

impl<'t> Tokens<'t> {
    fn new(path: &'t [&'t Node; 4], now: Stamp) -> Self {
        let own = path[0];
        let limits = path.map(|node| node.ceil.get());
        Self { path, limits, assured: own.assured.get(), share: own.share.get(), now }
    }

    /// How long until there are `n`, in nanoseconds.
    fn wait(&self, n: u64) -> u64 {
        let own = self.path[0];
        if !self.assured.is_free() && own.assured_bucket.wait(n, self.assured, self.now) == 0 {
            return 0;
        }
        let nodes = self.path.iter().zip(&self.limits);
        let above = nodes.map(|(node, limit)| node.ceil_bucket.wait(n, *limit, self.now)).max();
        above.unwrap_or(0).max(own.share_bucket.wait(n, self.share, self.now))
    }

    /// As many as are drawn at once.
    fn quantum(&self) -> u64 {
        let limits = self.limits.iter().chain([&self.share]).filter(|limit| !limit.is_free());
        let least = limits.map(|limit| limit.burst()).min();
        least.map_or(QUANTUM_MAX, |burst| (burst / QUANTUM_PART).min(QUANTUM_MAX))
    }

    /// Takes `n`, and `tunnels` more of the link.
    fn take(&self, n: u64, tunnels: u64) {
        let own = self.path[0];
        own.assured_bucket.take(n, self.assured, self.now);
        own.share_bucket.take(n, self.share, self.now);
        for (level, (node, limit)) in self.path.iter().zip(self.limits).enumerate() {
            let n = if level == LINK { n + tunnels } else { n };
            node.ceil_bucket.take(n, limit, self.now);
            node.drawn.fetch_add(n, Relaxed);
        }
    }
}

/// Pays what a class owes that sends nothing now, as far as there are tokens.
pub(super) fn settle(tree: &Tree, leaf: Leaf, now: Stamp) {
    let path = tree.path(leaf);
    let tokens = Tokens::new(&path, now);
    for _ in 0..SETTLE {
        let debt = path[0].debt.load(Relaxed);
        let n = debt.min(tokens.quantum().max(SETTLE_LEAST));
        if n == 0 || tokens.wait(n) != 0 {
            return;
        }
        tokens.take(n, 0);
        pay(path[0], n);
    }
}

/// Lowers what a class owes by up to `most`, whoever else does so just now; how much it was.
fn pay(own: &Node, most: u64) -> u64 {
    let before = own.debt.fetch_update(Relaxed, Relaxed, |debt| Some(debt - debt.min(most)));
    before.map_or(0, |debt| debt.min(most))
}

/// The token caches of one worker, one a class.
pub(super) struct TokenCaches {
    /// Tokens by class.
    caches: Slab<u64>,
    random: u64,
}

impl TokenCaches {
    pub fn new(leaves: u32, seed: u64) -> Self {
        Self { caches: Slab::zeroed(leaves as usize, &|_, _| {}), random: seed | 1 }
    }

    /// Spends tokens that are there already.
    #[inline(always)]
    pub fn spend(&mut self, leaf: Leaf, n: u64) -> bool {
        let cached = &mut self.caches[leaf.0 as usize];
        if *cached < n {
            return false;
        }
        *cached -= n;
        true
    }

    /// A packet of `n` bytes for which the token cache did not suffice.
    #[inline(never)]
    pub fn ask(
        &mut self,
        tree: &Tree,
        leaf: Leaf,
        need: Need,
        kind: TrafficKind,
        red: &RedProfile,
        now: Stamp,
    ) -> TokenDecision {
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
            self.caches[leaf.0 as usize] += quantum - n;
            return TokenDecision::Send;
        }
        tree.wake(leaf);
        let wait = loop {
            match self.draw(&path, leaf, need, now) {
                Ok(()) => {
                    self.repay(own, leaf);
                    if self.spend(leaf, n) {
                        return TokenDecision::Send;
                    }
                }
                Err(wait) => break wait,
            }
        };
        own.held_back.fetch_add(1, Relaxed);
        match kind {
            TrafficKind::Tcp | TrafficKind::RdmaUnmarkable => TokenDecision::Wait(wait),
            // They are owed by the class alone, so what may be owed is bounded: else the ceilings above would not hold.
            TrafficKind::Control | TrafficKind::Notice if own.debt.load(Relaxed) > 2 * red.hard_limit => {
                TokenDecision::Wait(wait)
            }
            TrafficKind::Control | TrafficKind::Notice => {
                own.debt.fetch_add(n, Relaxed);
                TokenDecision::Send
            }
            TrafficKind::Rdma => {
                let debt = own.debt.load(Relaxed) + n;
                if debt > red.hard_limit {
                    return TokenDecision::Wait(wait);
                }
                own.debt.fetch_add(n, Relaxed);
                if self.chance() < red.probability(debt) { TokenDecision::Mark } else { TokenDecision::Send }
            }
        }
    }

    /// Draws a quantum, at least `n` tokens, for a class and all that is above it; or says how long to wait.
    fn draw(&mut self, path: &[&Node; 4], leaf: Leaf, need: Need, now: Stamp) -> Result<(), u64> {
        let tokens = Tokens::new(path, now);
        match tokens.wait(need.bytes) {
            0 => {}
            wait => return Err(wait),
        }
        // There are tokens: as many as a quantum has, if there are that many.
        let quantum = tokens.quantum();
        let n = if quantum > need.bytes && tokens.wait(quantum) == 0 { quantum } else { need.bytes };
        // A quantum is for more such packets: each of them has its tunnel.
        tokens.take(n, n * need.tunnel / need.bytes.max(1));
        self.caches[leaf.0 as usize] += n;
        Ok(())
    }

    /// Debts come first.
    fn repay(&mut self, own: &Node, leaf: Leaf) {
        if own.debt.load(Relaxed) > 0 {
            let cached = &mut self.caches[leaf.0 as usize];
            *cached -= pay(own, *cached);
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
