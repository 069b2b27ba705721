//! What a worker has drawn from the tree but not yet spent, and what becomes of a packet: sent, marked, or kept
//! waiting.

use std::sync::atomic::Ordering::Relaxed;

use super::bucket::{RateLimit, Stamp};
use super::node::Node;
use super::tree::{Leaf, NodeId, Tree};
use crate::mem::Slab;

/// The most bytes that are drawn at once: as many where rates are high, or there are none.
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

/// Tokens that a packet needs, or several of one class together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    /// Of every node.
    pub bytes: u64,
    /// Of the link besides.
    pub tunnel: u64,
}

impl Need {
    /// Of class, vNIC, tenant and link.
    #[inline(always)]
    const fn by_level(self) -> [u64; 4] {
        [self.bytes, self.bytes, self.bytes, self.bytes + self.tunnel]
    }
}

/// A node of a path, with its limits as they are now. Only classes have a share and an assured rate.
struct Level<'t> {
    node: &'t Node,
    ceil: RateLimit,
    share: RateLimit,
    assured: RateLimit,
}

impl<'t> Level<'t> {
    /// A vNIC, a tenant or the link.
    #[inline(always)]
    fn above(node: &'t Node) -> Self {
        Self { node, ceil: node.ceil.get(), share: RateLimit::FREE, assured: RateLimit::FREE }
    }

    /// A class. One that is under no limit pays nothing, whatever its last share was.
    #[inline(always)]
    fn class(node: &'t Node) -> Self {
        let level = Self::above(node);
        if node.limited.load(Relaxed) == 0 {
            return level;
        }
        Self { share: node.share.get(), assured: node.assured.get(), ..level }
    }

    /// The one at a place in a path.
    #[inline(always)]
    fn at(path: &[&'t Node; 4], place: usize) -> Self {
        if place == 0 { Self::class(path[0]) } else { Self::above(path[place]) }
    }

    /// How long until there are `n`, in nanoseconds.
    fn wait(&self, n: u64, now: Stamp) -> u64 {
        let ceil = self.node.ceil_bucket.wait(n, self.ceil, now);
        if self.share.is_free() { ceil } else { ceil.max(self.node.share_bucket.wait(n, self.share, now)) }
    }

    /// True when `n` are within what is assured.
    fn is_assured(&self, n: u64, now: Stamp) -> bool {
        !self.assured.is_free() && self.node.assured_bucket.wait(n, self.assured, now) == 0
    }

    /// True when `n` are no more than may be saved up.
    fn has_room_for(&self, n: u64) -> bool {
        self.ceil.has_room_for(n) && self.share.has_room_for(n)
    }

    /// As many as one of 2^`workers` draws at once.
    fn quantum(&self, workers: u32) -> u64 {
        let least = match (self.node.quantum.load(Relaxed), self.node.share_quantum.load(Relaxed)) {
            (0, 0) => return QUANTUM_MAX,
            (0, one) | (one, 0) => one,
            (one, other) => one.min(other),
        };
        u64::from(least >> workers).min(QUANTUM_MAX)
    }

    /// Takes `n`, there or not.
    fn take(&self, n: u64, now: Stamp) {
        let node = self.node;
        if !self.ceil.is_free() {
            node.ceil_bucket.take(n, &node.ceil, now);
        }
        if !self.share.is_free() {
            node.share_bucket.take(n, &node.share, now);
        }
        if !self.assured.is_free() {
            node.assured_bucket.take(n, &node.assured, now);
        }
        node.drawn.fetch_add(n, Relaxed);
    }
}

/// Takes the tokens of a class and of all above it, there or not.
pub(super) fn take(tree: &Tree, leaf: Leaf, need: Need, now: Stamp) {
    let path = tree.path(leaf);
    for (place, n) in need.by_level().into_iter().enumerate() {
        Level::at(&path, place).take(n, now);
    }
}

/// Pays what a class owes that sends nothing now, as far as there are tokens.
pub(super) fn settle(tree: &Tree, leaf: Leaf, now: Stamp) {
    let path = tree.path(leaf);
    let own = path[0];
    let levels: [Level; 4] = std::array::from_fn(|place| Level::at(&path, place));
    let quantum = levels.iter().map(|level| level.quantum(0)).min().unwrap_or_default();
    for _ in 0..SETTLE {
        let n = own.debt.load(Relaxed).min(quantum.max(SETTLE_LEAST));
        let there = levels[0].is_assured(n, now) || levels.iter().all(|level| level.wait(n, now) == 0);
        if n == 0 || !there {
            return;
        }
        levels.iter().for_each(|level| level.take(n, now));
        pay(own, n);
    }
}

/// Lowers what a class owes by up to `most`, whoever else does so just now; how much it was.
fn pay(own: &Node, most: u64) -> u64 {
    let before = own.debt.fetch_update(Relaxed, Relaxed, |debt| Some(debt - debt.min(most)));
    before.map_or(0, |debt| debt.min(most))
}

/// Spends tokens that are there already, of each node of a path. `held`: those of a worker by node.
#[inline(always)]
pub(super) fn spend(held: &mut [u64], path: [NodeId; 4], need: Need) -> bool {
    // Written out: this is done for each packet where many classes are on their way at once, and `map` is a call.
    let [class, vnic, tenant, link] = path;
    let left = [
        held[class.place()].wrapping_sub(need.bytes),
        held[vnic.place()].wrapping_sub(need.bytes),
        held[tenant.place()].wrapping_sub(need.bytes),
        held[link.place()].wrapping_sub(need.bytes + need.tunnel),
    ];
    // The highest bit is set where there were not enough: nobody has 2^63 of them.
    if (left[0] | left[1] | left[2] | left[3]).cast_signed() < 0 {
        return false;
    }
    held[class.place()] = left[0];
    held[vnic.place()] = left[1];
    held[tenant.place()] = left[2];
    held[link.place()] = left[3];
    true
}

/// The token caches of one worker, one a node: what it has drawn of a vNIC, a tenant or the link is there for all classes
/// below, so what all workers hold of a node is bounded by its own quantum, however many children it has.
pub(super) struct TokenCaches {
    /// Tokens by node.
    held: Slab<u64>,
    /// By class, how many of its tokens were drawn within its assured rate, or more: for these the nodes above pay,
    /// whether they have tokens or not.
    promised: Slab<u64>,
    random: u64,
}

impl TokenCaches {
    pub fn new(tree: &Tree, seed: u64) -> Self {
        tree.join();
        Self {
            held: Slab::zeroed(tree.nodes.len(), &|_, _| {}),
            promised: Slab::zeroed(tree.leaves() as usize, &|_, _| {}),
            random: seed | 1,
        }
    }

    /// Tokens of a node that are here.
    #[cfg(test)]
    pub fn held(&self, id: NodeId) -> u64 {
        self.held[id.place()]
    }

    /// Tokens by node, to [spend].
    #[inline(always)]
    pub fn held_mut(&mut self) -> &mut [u64] {
        &mut self.held
    }

    /// Draws tokens for several packets together, and spends them; `false`: each is to ask for its own.
    #[inline(never)]
    pub fn draw_for_all(&mut self, tree: &Tree, leaf: Leaf, need: Need, now: Stamp) -> bool {
        let ids = tree.paths().of(leaf);
        let path = tree.nodes_at(ids);
        if path[0].limited.load(Relaxed) != 0 {
            tree.wake(leaf);
            // A single packet may be larger than a burst, several are not.
            let wanted = need.by_level();
            let has_room = (0..4).all(|place| Level::at(&path, place).has_room_for(wanted[place]));
            if !has_room || path[0].debt.load(Relaxed) > 0 {
                return false;
            }
        }
        self.draw(tree, ids, &path, leaf, need, now).is_ok() && spend(&mut self.held, ids, need)
    }

    /// A packet for which the token caches did not suffice.
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
        let ids = tree.paths().of(leaf);
        let path = tree.nodes_at(ids);
        let own = path[0];
        if own.limited.load(Relaxed) != 0 {
            tree.wake(leaf);
        } else if own.debt.load(Relaxed) != 0 {
            // What was owed to a limit that is gone is owed no more.
            own.debt.store(0, Relaxed);
        }
        let wait = loop {
            match self.draw(tree, ids, &path, leaf, need, now) {
                Ok(()) => {
                    self.repay(own, ids, need);
                    if spend(&mut self.held, ids, need) {
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

    /// Fills the caches of a path so far that a need can be met, each with a quantum of its node where there is one; or says
    /// how long to wait, and takes nothing.
    fn draw(
        &mut self,
        tree: &Tree,
        ids: [NodeId; 4],
        path: &[&Node; 4],
        leaf: Leaf,
        need: Need,
        now: Stamp,
    ) -> Result<(), u64> {
        let wanted = need.by_level();
        let mut missing = wanted;
        for (missing, id) in missing.iter_mut().zip(ids) {
            *missing = missing.saturating_sub(self.held[id.place()]);
        }
        let own = Level::class(path[0]);
        let promised = &mut self.promised[leaf.0 as usize];
        *promised = (*promised).min(self.held[ids[0].place()]);
        let assured = !own.assured.is_free()
            && (*promised >= need.bytes || own.is_assured(need.bytes - *promised, now));
        if !assured {
            let mut wait = if missing[0] > 0 { own.wait(missing[0], now) } else { 0 };
            for place in 1..4 {
                if missing[place] > 0 {
                    wait = wait.max(Level::above(path[place]).wait(missing[place], now));
                }
            }
            if wait > 0 {
                return Err(wait);
            }
        }
        // There are tokens: as many as a quantum has, if there are that many.
        let workers = tree.workers();
        for (place, missing) in missing.into_iter().enumerate() {
            if missing == 0 {
                continue;
            }
            let level = Level::at(path, place);
            let quantum = level.quantum(workers);
            let has_quantum =
                quantum > missing && (level.wait(quantum, now) == 0 || level.is_assured(quantum, now));
            let n = if has_quantum { quantum } else { missing };
            if level.is_assured(n, now) || (place == 0 && assured && !has_quantum) {
                *promised += n;
            }
            level.take(n, now);
            self.held[ids[place].place()] += n;
        }
        Ok(())
    }

    /// Debts come first: pays what a class owes out of what is there of all its nodes.
    fn repay(&mut self, own: &Node, ids: [NodeId; 4], need: Need) {
        if own.debt.load(Relaxed) == 0 {
            return;
        }
        // What is owed had tunnels as this packet has.
        let (bytes, whole) = (need.bytes.max(1), need.bytes.max(1) + need.tunnel);
        let [class, vnic, tenant, link] = ids;
        let least = self.held[class.place()].min(self.held[vnic.place()]).min(self.held[tenant.place()]);
        let paid = pay(own, least.min(self.held[link.place()] * bytes / whole));
        let costs = Need { bytes: paid, tunnel: paid * need.tunnel / bytes }.by_level();
        for (id, cost) in ids.into_iter().zip(costs) {
            self.held[id.place()] -= cost;
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
