//! Every epoch, the rates of the tree are divided anew among the classes that are in use. It takes hundreds of
//! microseconds with thousands of classes, so no worker does it: whoever owns the [`Divider`] has a thread for it.
//!
//! Only classes that are in use cost anything: they announce themselves ([`Tree::wake`]) and are forgotten when
//! they have been quiet for a while, in hardware too.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::bucket::{RateLimit, Stamp};
use super::divide::{ChildShare, divide};
use super::node::Node;
use super::token_cache::settle;
use super::tree::{Leaf, NodeId, Tree};
use crate::direction::Direction;

/// Time between two divisions.
pub const EPOCH_NS: u64 = 1_000_000;
/// More of it for each class in use: with many, dividing must not take all of a core.
const EPOCH_PER_CLASS_NS: u64 = 500;
/// But what was lent must be back in time.
const EPOCH_MAX_NS: u64 = 8_000_000;
/// Time between two looks at a tree without any limit.
const REST_NS: u64 = 10_000_000;
/// A class without a packet for so many epochs is forgotten.
const QUIET_EPOCHS: u32 = 64;
/// A class that was not held back is expected to use what it used, or this part of what was expected before: what it
/// leaves is lent at once, and a pause of a few packets gives nothing away.
const MEMORY: f64 = 0.75;
/// What a class with a low rate saves up while nobody looks at its queue: so long, and so much.
const AWAY_NS: f64 = 50e6;
const AWAY_BYTES: f64 = (128 << 10) as f64;
/// A class may save up a jumbo frame, whatever its rate: one with an odd packet has it pass at once.
const FRAME_BYTES: f64 = 9_216.0;
/// A class with this part of the lowest ceiling that it is under has it to itself.
const ALONE: f64 = 0.9;
/// The least rate that anybody wakes up with, bits per second ...
const FLOOR: f64 = 1e6;
/// ... as long as all of them together have but this part of whatever is above them.
const FLOORS: f64 = 0.1;

/// A class in use.
#[derive(Clone, Copy, Debug)]
struct Awake {
    leaf: Leaf,
    direction: Direction,
    tenant: u32,
    vnic: u32,
    drawn: u64,
    held_back: u64,
    expected: f64,
    quiet: u32,
}

/// What went over a link, and what of it its children paid for: the rest are headers of tunnels. Bytes, of the last
/// epochs.
#[derive(Clone, Copy, Debug, Default)]
struct Tunnels {
    drawn: u64,
    link: f64,
    children: f64,
}

impl Tunnels {
    /// One more epoch; the part of the link's rate that is there for its children.
    fn part(&mut self, drawn: u64, children: u64) -> f64 {
        self.link = self.link * MEMORY + drawn.saturating_sub(self.drawn) as f64;
        self.children = self.children * MEMORY + children as f64;
        self.drawn = drawn;
        if self.link >= 1.0 { (self.children / self.link).clamp(0.5, 1.0) } else { 1.0 }
    }
}

/// Divides the rates of a tree. A tree has one, and nobody waits for it: workers take tokens meanwhile, at the rates of
/// the last epoch.
pub struct Divider {
    tree: Arc<Tree>,
    /// How much of the link's rate is left beside tunnels' headers, by direction.
    tunnels: [Tunnels; 2],
    /// Sorted by direction, tenant, vNIC, class.
    awake: Vec<Awake>,
    /// Claims of classes, of vNICs and of tenants; scratch.
    claims: [Vec<ChildShare>; 3],
    /// Where the classes of each vNIC, and the vNICs of each tenant, end; scratch.
    ends: [Vec<usize>; 2],
    due_ns: u64,
    last_ns: u64,
}

impl Divider {
    /// The one of a tree, with room for all of its classes: dividing allocates nothing.
    pub fn new(tree: Arc<Tree>) -> Self {
        let room = tree.leaves() as usize;
        Self {
            tree,
            tunnels: [Tunnels::default(); 2],
            awake: Vec::with_capacity(room),
            claims: [Vec::with_capacity(room), Vec::with_capacity(room), Vec::with_capacity(room)],
            ends: [Vec::with_capacity(room), Vec::with_capacity(room)],
            due_ns: 0,
            last_ns: 0,
        }
    }

    /// Divides if it is time. Returns when it will be, nanoseconds of the workers' clock as `now_ns` is: an epoch, longer
    /// with many classes in use.
    pub fn tick(&mut self, now_ns: u64) -> u64 {
        if now_ns >= self.due_ns || now_ns < self.last_ns {
            let tree = self.tree.clone();
            self.run(&tree, now_ns);
        }
        self.due_ns
    }

    fn run(&mut self, tree: &Tree, now_ns: u64) {
        let elapsed = now_ns.saturating_sub(self.last_ns).clamp(1, 100 * EPOCH_NS) as f64;
        let since_ns = std::mem::replace(&mut self.last_ns, now_ns);
        let epoch = (EPOCH_NS + EPOCH_PER_CLASS_NS * self.awake.len() as u64).min(EPOCH_MAX_NS);
        let resting = self.awake.is_empty() && tree.is_free();
        self.due_ns = now_ns + if resting { REST_NS } else { epoch };
        tree.epoch.look_ns.store(epoch / 2, Relaxed);
        self.welcome(tree);
        self.awake.retain_mut(|awake| {
            let node = tree.node(tree.leaf_node(awake.leaf));
            let quiet =
                node.drawn.load(Relaxed) == awake.drawn && node.held_back.load(Relaxed) == awake.held_back;
            awake.quiet = if quiet { awake.quiet + 1 } else { 0 };
            let owes = node.debt.load(Relaxed) > 0;
            if quiet && owes {
                settle(tree, awake.leaf, Stamp::from_ns(now_ns));
                awake.drawn = node.drawn.load(Relaxed);
            }
            let in_hardware = tree.take_owed(awake.leaf, since_ns, now_ns);
            let in_use = owes || in_hardware || awake.quiet < QUIET_EPOCHS;
            // One that moved to another tenant announces itself anew.
            let stays = in_use && tree.tenant_of(awake.vnic) == awake.tenant;
            if !stays {
                node.awake.store(0, Relaxed);
                if in_hardware {
                    tree.wake(awake.leaf);
                }
            }
            stays
        });
        for direction in Direction::ALL {
            let from = self.awake.partition_point(|awake| (awake.direction as u32) < direction as u32);
            let to = self.awake.partition_point(|awake| awake.direction as u32 <= direction as u32);
            self.divide(tree, direction, from..to, elapsed);
        }
    }

    /// Takes in the classes that woke up.
    fn welcome(&mut self, tree: &Tree) {
        let mut next = tree.epoch.woken.swap(0, Acquire);
        if next == 0 {
            return;
        }
        while next != 0 && self.awake.len() < self.awake.capacity() {
            let leaf = Leaf(next - 1);
            let node = tree.node(tree.leaf_node(leaf));
            next = node.next_woken.load(Relaxed);
            let (direction, vnic) = tree.owner(leaf);
            let awake = Awake {
                leaf,
                direction,
                tenant: tree.tenant_of(vnic),
                vnic,
                // What it drew before is not counted as of this epoch; that it is here says that it wants more.
                drawn: node.drawn.load(Relaxed),
                held_back: u64::MAX,
                expected: 0.0,
                quiet: 0,
            };
            self.awake.push(awake);
        }
        self.awake
            .sort_unstable_by_key(|awake| (awake.direction as u32, awake.tenant, awake.vnic, awake.leaf));
    }

    fn divide(&mut self, tree: &Tree, direction: Direction, range: std::ops::Range<usize>, elapsed_ns: f64) {
        let [classes, vnics, tenants] = &mut self.claims;
        let [class_ends, vnic_ends] = &mut self.ends;
        classes.clear();
        vnics.clear();
        tenants.clear();
        class_ends.clear();
        vnic_ends.clear();
        let list = &mut self.awake[range];
        let mut children = 0;
        for awake in list.iter_mut() {
            let node = tree.node(tree.leaf_node(awake.leaf));
            let (drawn, held_back) = (node.drawn.load(Relaxed), node.held_back.load(Relaxed));
            // A vNIC that is gone starts anew.
            let bytes = drawn.saturating_sub(awake.drawn);
            let used = bytes as f64 * 8e9 / elapsed_ns;
            children += bytes;
            let greedy = held_back != awake.held_back;
            (awake.drawn, awake.held_back) = (drawn, held_back);
            awake.expected = used.max(awake.expected * MEMORY);
            let elsewhere = tree.expected_in_hardware(awake.leaf, self.last_ns);
            let demand = if greedy { f64::INFINITY } else { awake.expected.max(elsewhere) };
            classes.push(claim(tree, node, tree.leaf_node(awake.leaf), demand));
        }
        // Upwards: what the children want, their parent wants.
        let mut at = 0;
        while at < list.len() {
            let (tenant, vnic) = (list[at].tenant, list[at].vnic);
            let end = at + list[at..].iter().take_while(|other| other.vnic == vnic).count();
            let id = tree.vnic_node(direction, vnic);
            let claim = claim(tree, tree.node(id), id, demand(&classes[at..end]));
            class_ends.push(end);
            vnics.push(claim);
            let last_of_tenant = list.get(end).is_none_or(|next| next.tenant != tenant);
            if last_of_tenant {
                let from = vnic_ends.last().copied().unwrap_or(0);
                let id = tree.tenant_node(direction, tenant);
                tenants.push(self::claim(tree, tree.node(id), id, demand(&vnics[from..])));
                vnic_ends.push(vnics.len());
            }
            at = end;
        }
        // Downwards.
        let link = tree.node(tree.link_node(direction));
        let part = self.tunnels[direction as usize].part(link.drawn.load(Relaxed), children);
        let link = link.ceil.get();
        let link = if link.is_free() { f64::INFINITY } else { link.rate() as f64 * part };
        share_out(link, tenants);
        let mut from = 0;
        for (tenant, &end) in tenants.iter().zip(vnic_ends.iter()) {
            share_out(tenant.share, &mut vnics[from..end]);
            from = end;
        }
        let mut from = 0;
        for (vnic, &end) in vnics.iter().zip(class_ends.iter()) {
            share_out(vnic.share, &mut classes[from..end]);
            from = end;
        }
        let now = Stamp::from_ns(self.last_ns);
        let floors = FLOORS / list.len().max(1) as f64;
        for (awake, claim) in list.iter().zip(classes.iter()) {
            let node = tree.node(tree.leaf_node(awake.leaf));
            let limit = if claim.share.is_finite() {
                let ceiling = tree.slowest(awake.leaf);
                let rate = claim.share.max(FLOOR.min(ceiling.rate() as f64 * floors).max(1.0));
                // Saved up over a few epochs, and where they hold few packets, over as long as a worker may be away;
                // the ceilings bound bursts.
                let bytes = |ns: f64| rate / 8e9 * ns;
                let epochs = bytes(4.0 * EPOCH_NS as f64);
                let burst = epochs.max(bytes(AWAY_NS).min(AWAY_BYTES)).max(FRAME_BYTES) as u64;
                // Who has all of a ceiling saves up what the ceiling does.
                let alone = rate >= ALONE * ceiling.rate() as f64;
                RateLimit::new(rate as u64, if alone { burst.max(ceiling.burst()) } else { burst })
            } else {
                RateLimit::FREE
            };
            node.set_share(limit, now);
        }
    }
}

fn claim(tree: &Tree, node: &Node, id: NodeId, demand: f64) -> ChildShare {
    let ceil = node.ceil.get();
    let ceil = if ceil.is_free() { f64::INFINITY } else { ceil.rate() as f64 };
    ChildShare {
        demand: demand.min(ceil),
        assured: node.assured.get().rate() as f64,
        ceil,
        weight: f64::from(tree.weight(id)),
        share: 0.0,
    }
}

fn demand(claims: &[ChildShare]) -> f64 {
    claims.iter().map(|claim| claim.demand.max(claim.assured.min(claim.demand))).sum()
}

/// Divides a rate that may be without limit: then everybody gets their ceilings.
fn share_out(rate: f64, claims: &mut [ChildShare]) {
    if rate.is_finite() {
        divide(rate, claims);
    } else {
        claims.iter_mut().for_each(|claim| claim.share = claim.ceil);
    }
}
