//! DHTB, the distributed hierarchical token bucket: link -> tenant -> vNIC -> class {rdma, tcp}, in both directions.
//!
//! ```text
//!   packet -> token caches (worker's own) -- empty --> tree (shared): assured, else ceilings and share
//!                                                 |  no tokens
//!                                                 v
//!                         RDMA: sent in debt, marked by its size      TCP: queue, looked at when tokens are due
//! ```
//! Every epoch the [`Divider`] divides the rates anew among the classes in use, so that what one leaves the others have.

mod bucket;
mod divide;
mod divider;
mod hardware;
mod node;
mod queue;
mod token_cache;
mod tree;

pub use bucket::BitsPerSec;
pub use divider::{Divider, EPOCH_NS};
pub use hardware::HardwareWork;
pub use node::{LeafRates, NodeLimits, NodeView};
pub use queue::{Depth, Full};
pub use token_cache::{QUANTUM_MAX, RedProfile, TokenDecision, TrafficKind};
pub use tree::{Class, Leaf, NodeId, Tree, TreeSize};

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bucket::Stamp;
use queue::{Queues, Room, Size};
use token_cache::{Need, TokenCaches, spend};
pub(crate) use tree::Paths;

/// How much may wait on one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Packets of a class; a packet in several buffers counts as so many.
    pub packets: u32,
    /// Bytes of a class.
    pub bytes: u32,
    /// Bytes of a class that is not RDMA that its ceiling, or one above it, lets go in so many nanoseconds; but
    /// [`Self::LEAST`] packets may always wait.
    pub time_ns: u64,
}

impl QueueLimits {
    /// Packets for which there is room at any rate.
    pub const LEAST: u32 = 16;
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { packets: 1024, bytes: 2 << 20, time_ns: 100_000_000 }
    }
}

/// What a packet costs, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Bytes of the frame with [`RedProfile::overhead`].
    pub bytes: u32,
    /// Bytes of the tunnel's headers, which only the link pays for.
    pub tunnel: u32,
    /// Packet buffers that it is in.
    pub buffers: u32,
    /// Which of the classes' rules hold for it: what keeps RDMA alive goes first, what cannot be marked waits.
    pub kind: TrafficKind,
}

/// A packet in a class's queue, and what it has to pay when it goes on.
struct WaitingPacket<T> {
    item: T,
    kind: TrafficKind,
    tunnel: u32,
    since_ns: u64,
}

/// One worker's part. `T` is a packet and what is known of it.
pub struct Dhtb<T> {
    tree: Arc<Tree>,
    caches: TokenCaches,
    queues: Queues<WaitingPacket<T>>,
}

impl<T> Dhtb<T> {
    /// The part of a worker, which keeps packets of up to so many buffers waiting.
    pub fn new(tree: Arc<Tree>, buffers: u32, seed: u64) -> Self {
        let leaves = tree.leaves();
        Self { caches: TokenCaches::new(&tree, seed), queues: Queues::new(leaves, buffers), tree }
    }

    /// The tree that all workers draw from.
    #[inline(always)]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Packets waiting here.
    #[inline(always)]
    pub fn waiting(&self) -> u32 {
        self.queues.waiting()
    }

    /// When the next waiting packet is looked at, nanoseconds of the worker's clock.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.queues.due_ns()
    }

    /// What waits here of a class.
    pub fn depth(&self, leaf: Leaf) -> Depth {
        self.queues.depth(leaf)
    }

    /// Pays for a packet, or for several of a class together, out of the token caches: so many bytes of frames with
    /// [`RedProfile::overhead`], and of tunnels' headers. `false`: nothing is paid; it is for [`Self::pays_together`] to try, and
    /// for [`Self::ask`] to say.
    #[inline(always)]
    pub fn pays(&mut self, leaf: Leaf, bytes: u64, tunnel: u64) -> bool {
        self.payer().pays(leaf, bytes, tunnel)
    }

    /// What pays for the packets of a burst.
    #[inline(always)]
    pub(crate) fn payer(&mut self) -> Payer<'_, T> {
        Payer { paths: self.tree.paths(), held: self.caches.held_mut(), queues: &self.queues }
    }

    /// Pays for several packets of a class with tokens that are drawn for all of them at once, as long as there are enough
    /// for all, and all of them are within its burst. `false`: nothing is paid, and each packet is to [ask](Self::ask) for itself.
    #[inline(never)]
    pub fn pays_together(&mut self, leaf: Leaf, bytes: u64, tunnel: u64, now_ns: u64) -> bool {
        let need = Need { bytes, tunnel };
        !self.queues.has(leaf) && self.caches.draw_for_all(&self.tree, leaf, need, Stamp::from_ns(now_ns))
    }

    /// Asks for the tokens of a packet that the token cache did not pay for. What has to wait is to be [kept](Self::keep), whole or
    /// in pieces.
    pub fn ask(&mut self, leaf: Leaf, offer: &Offer, red: &RedProfile, now_ns: u64) -> TokenDecision {
        if self.queues.has(leaf) && offer.kind != TrafficKind::Notice {
            return TokenDecision::Wait(0);
        }
        let n = Need { bytes: u64::from(offer.bytes), tunnel: u64::from(offer.tunnel) };
        match self.caches.ask(&self.tree, leaf, n, offer.kind, red, Stamp::from_ns(now_ns)) {
            TokenDecision::Wait(wait) => TokenDecision::Wait(self.look(wait)),
            decision => decision,
        }
    }

    /// Puts a packet into its class's queue, to be looked at in `wait` nanoseconds if it is the first.
    ///
    /// # Errors
    /// What is full, and the packet.
    pub fn keep(
        &mut self,
        leaf: Leaf,
        item: T,
        Offer { bytes, tunnel, buffers, kind }: Offer,
        limits: QueueLimits,
        now_ns: u64,
        wait: u64,
    ) -> Result<(), (Full, T)> {
        // What keeps connections alive is never dropped for want of room, up to its own rate.
        let room = if matches!(kind, TrafficKind::Control | TrafficKind::Notice) { 2 } else { 1 };
        // TCP slows down by what it loses. RDMA does not: it has all the room that there is.
        let depth = self.queues.depth(leaf);
        let held = u64::from(depth.bytes.saturating_add(bytes));
        let late = |limit: u64| self.tree.slowest(leaf).time_ns(held) > limit;
        if kind == TrafficKind::Tcp && depth.packets >= QueueLimits::LEAST && late(limits.time_ns) {
            return Err((Full::Class, item));
        }
        let most = Room { buffers: limits.packets * room, bytes: limits.bytes * room };
        let waiting = WaitingPacket { item, kind, tunnel, since_ns: now_ns };
        let pushed = self.queues.push(leaf, waiting, Size { bytes, buffers }, most, now_ns + wait);
        pushed.map_err(|(full, waiting)| (full, waiting.item))
    }

    /// When to look at a class that has to wait so long at its present share. One that waits asks for tokens in every
    /// epoch: that is how the division knows of it.
    fn look(&self, wait: u64) -> u64 {
        wait.min(self.tree.epoch.look_ns.load(Relaxed))
    }

    /// The next waiting packet for which there are tokens now, its class, and whether it is to be marked: RDMA that had
    /// to wait is far over, and its sender must hear of it; other traffic when it waited for long and that is wished
    /// for.
    pub fn release(&mut self, red: &RedProfile, now_ns: u64) -> Option<(T, Leaf, bool)> {
        let now = Stamp::from_ns(now_ns);
        while let Some(leaf) = self.queues.next_due(now_ns) {
            let Some((first, bytes)) = self.queues.front(leaf) else { continue };
            let n = Need { bytes: u64::from(bytes), tunnel: u64::from(first.tunnel) };
            // What waits is not sent ahead of its tokens any more.
            let paid = spend(self.caches.held_mut(), self.tree.paths().of(leaf), n);
            let answer = if paid {
                TokenDecision::Send
            } else {
                self.caches.ask(&self.tree, leaf, n, TrafficKind::Tcp, red, now)
            };
            match answer {
                TokenDecision::Wait(wait) => self.queues.again(leaf, now_ns + self.look(wait)),
                TokenDecision::Send | TokenDecision::Mark => {
                    let item = self.queues.pop(leaf);
                    self.queues.again(leaf, now_ns);
                    return item.map(|WaitingPacket { item, kind, since_ns, .. }| {
                        let long = red.tcp_ecn_ns > 0 && now_ns.saturating_sub(since_ns) > red.tcp_ecn_ns;
                        (item, leaf, kind == TrafficKind::Rdma || (kind == TrafficKind::Tcp && long))
                    });
                }
            }
        }
        None
    }

    /// Takes out a waiting packet and its class, tokens or not.
    pub fn flush(&mut self) -> Option<(T, Leaf)> {
        while let Some(leaf) = self.queues.next_due(u64::MAX) {
            if let Some(waiting) = self.queues.pop(leaf) {
                self.queues.again(leaf, 0);
                return Some((waiting.item, leaf));
            }
        }
        None
    }
}

/// Pays out of the token caches, with all that it takes at hand.
pub(crate) struct Payer<'d, T> {
    /// From classes up to the link.
    pub paths: Paths<'d>,
    held: &'d mut [u64],
    queues: &'d Queues<WaitingPacket<T>>,
}

impl<T> Payer<'_, T> {
    /// As [`Dhtb::pays`] does.
    #[inline(always)]
    pub fn pays(&mut self, leaf: Leaf, bytes: u64, tunnel: u64) -> bool {
        !self.queues.has(leaf) && spend(self.held, self.paths.of(leaf), Need { bytes, tunnel })
    }
}

#[cfg(test)]
mod tests;
