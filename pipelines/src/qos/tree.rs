//! The tree of rates: link -> tenant -> vNIC -> class, once for each direction, shared by all workers.
//!
//! A [node](Node) is two cache lines: what control sets, and what workers take. Workers come here once for a quantum of
//! tokens, not for each packet.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crossbeam::utils::CachePadded;
use zerocopy::FromZeros;

use super::bucket::{BitsPerSec, RateLimit, RateLimitCell, Stamp, TokenBucket};
use super::divider::EPOCH_NS;
use super::hardware::HardwareUse;
use super::node::{LeafRates, Node, NodeLimits, NodeView};
use crate::direction::Direction;
use crate::mem::Slab;

/// Class of traffic of a vNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Class {
    /// RoCEv2, connection manager's messages included.
    Rdma = 0,
    /// Whatever is not RoCEv2.
    Tcp = 1,
}

impl Class {
    /// Both classes, each at the index that its number is.
    pub const ALL: [Self; 2] = [Self::Rdma, Self::Tcp];

    /// The name in config, console and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        }
    }
}

/// A class of a vNIC in a direction, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Leaf(pub u32);

impl Leaf {
    /// Its class: even numbers are RDMA.
    pub const fn class(self) -> Class {
        if self.0 & 1 == Class::Rdma as u32 { Class::Rdma } else { Class::Tcp }
    }

    /// The place of its vNIC among those of both directions.
    const fn row(self) -> u32 {
        self.0 / 2
    }
}

/// A node, whatever its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// Its index in whatever has something for each node.
    #[inline(always)]
    pub(super) const fn place(self) -> usize {
        self.0 as usize
    }
}

/// What classes have besides their nodes.
#[derive(Debug, FromZeros)]
#[repr(C)]
struct ClassCell {
    /// RDMA: what keeps connections alive has a rate of its own.
    control: RateLimitCell,
    control_bucket: TokenBucket,
    marked: AtomicU64,
    dropped: AtomicU64,
}

/// Number of tenants and vNICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeSize {
    /// Most tenants (VPCs); those past the end share the last one's node.
    pub tenants: u32,
    /// Most vNICs; those past the end share the last one's nodes.
    pub vnics: u32,
}

/// Where the nodes of each level begin: both links, the tenants of both directions, then their vNICs, then their classes.
impl TreeSize {
    const fn nodes(self) -> usize {
        (2 + 2 * self.tenants + 6 * self.vnics) as usize
    }

    #[inline(always)]
    const fn link(direction: Direction) -> NodeId {
        NodeId(direction as u32)
    }

    #[inline(always)]
    const fn tenant(self, direction: Direction, tenant: u32) -> NodeId {
        NodeId(2 + direction as u32 * self.tenants + tenant)
    }

    /// `row`: those of one direction come after those of the other.
    #[inline(always)]
    const fn vnic(self, row: u32) -> NodeId {
        NodeId(2 + 2 * self.tenants + row)
    }

    #[inline(always)]
    const fn class(self, leaf: Leaf) -> NodeId {
        NodeId(2 + 2 * self.tenants + 2 * self.vnics + leaf.0)
    }

    /// Direction and vNIC of a class.
    #[inline(always)]
    const fn owner(self, leaf: Leaf) -> (Direction, u32) {
        let row = leaf.row();
        if row < self.vnics { (Direction::Out, row) } else { (Direction::In, row - self.vnics) }
    }
}

/// The tree of both directions.
pub struct Tree {
    size: TreeSize,
    pub(super) nodes: Slab<Node>,
    classes: Slab<ClassCell>,
    /// What classes do in hardware.
    hardware: Slab<HardwareUse>,
    /// Tenant of each vNIC.
    tenants: Box<[AtomicU32]>,
    /// Workers that draw from it.
    drawing: AtomicU32,
    /// Nodes with a limit: while there is none, nothing is looked up for a packet.
    limits: AtomicU32,
    /// Written in every epoch, so not beside what is read for every burst.
    pub(super) epoch: CachePadded<Epoch>,
}

/// What the division and the classes tell each other.
#[derive(Debug)]
pub(super) struct Epoch {
    /// Classes that woke up since the division looked: number + 1 of the last, 0: none.
    pub woken: AtomicU32,
    /// Longest time until a class that waits is looked at again, nanoseconds: its share may have grown.
    pub look_ns: AtomicU64,
}

impl Tree {
    /// A tree without limits.
    pub fn new(size: TreeSize, advise: &dyn Fn(usize, usize)) -> Self {
        let size = TreeSize { tenants: size.tenants.max(1), vnics: size.vnics.max(1) };
        let nodes = Slab::zeroed(size.nodes(), advise);
        Self {
            size,
            nodes,
            classes: Slab::zeroed(4 * size.vnics as usize, advise),
            hardware: Slab::zeroed(4 * size.vnics as usize, advise),
            tenants: (0..size.vnics).map(|_| AtomicU32::new(0)).collect(),
            drawing: AtomicU32::new(0),
            limits: AtomicU32::new(0),
            epoch: CachePadded::new(Epoch {
                woken: AtomicU32::new(0),
                look_ns: AtomicU64::new(EPOCH_NS / 2),
            }),
        }
    }

    /// Bytes of a node.
    pub const NODE_BYTES: usize = size_of::<Node>();

    /// Bytes of all that is shared.
    pub fn bytes(&self) -> usize {
        let classes = size_of_val(&*self.classes) + size_of_val(&*self.hardware);
        size_of_val(&*self.nodes) + classes + size_of_val(&*self.tenants)
    }

    /// Lets the buckets of one place rest; which place is next. To be called again and again: they all
    /// want to be passed within a year.
    pub fn rest(&self, place: usize, now_ns: u64) -> usize {
        let now = Stamp::from_ns(now_ns);
        if let Some(node) = self.nodes.get(place) {
            node.buckets().iter().for_each(|(bucket, limit)| bucket.rest(*limit, now));
        }
        if let Some(class) = self.classes.get(place) {
            class.control_bucket.rest(class.control.get(), now);
        }
        // There are more nodes than classes.
        if place + 1 < self.nodes.len() { place + 1 } else { 0 }
    }

    /// Number of classes, numbered from 0.
    pub fn leaves(&self) -> u32 {
        4 * self.size.vnics
    }

    /// A class of a vNIC. vNICs past the end share the last one's.
    #[inline(always)]
    pub fn leaf(&self, direction: Direction, vnic: u32, class: Class) -> Leaf {
        self.paths().leaf(direction, vnic, class)
    }

    /// The link in a direction.
    pub fn link_node(&self, direction: Direction) -> NodeId {
        TreeSize::link(direction)
    }

    /// A tenant in a direction.
    pub fn tenant_node(&self, direction: Direction, tenant: u32) -> NodeId {
        self.size.tenant(direction, tenant.min(self.size.tenants - 1))
    }

    /// A vNIC in a direction.
    pub fn vnic_node(&self, direction: Direction, vnic: u32) -> NodeId {
        let vnic = vnic.min(self.size.vnics - 1);
        self.size.vnic(direction as u32 * self.size.vnics + vnic)
    }

    /// A class as a node.
    #[inline(always)]
    pub fn leaf_node(&self, leaf: Leaf) -> NodeId {
        self.size.class(leaf)
    }

    /// Direction and vNIC of a class.
    pub fn owner(&self, leaf: Leaf) -> (Direction, u32) {
        self.size.owner(leaf)
    }

    #[inline(always)]
    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.place()]
    }

    /// What a class does in hardware.
    pub(super) fn hardware(&self, leaf: Leaf) -> &HardwareUse {
        &self.hardware[leaf.0 as usize]
    }

    /// The way from classes up to the link.
    #[inline(always)]
    pub(crate) fn paths(&self) -> Paths<'_> {
        Paths { size: self.size, tenants: &self.tenants }
    }

    /// Class, vNIC, tenant, link.
    #[inline]
    pub(super) fn path(&self, leaf: Leaf) -> [&Node; 4] {
        self.nodes_at(self.paths().of(leaf))
    }

    /// The nodes of a path.
    #[inline(always)]
    pub(super) fn nodes_at(&self, [class, vnic, tenant, link]: [NodeId; 4]) -> [&Node; 4] {
        [self.node(class), self.node(vnic), self.node(tenant), self.node(link)]
    }

    /// One more worker draws from the tree.
    pub(super) fn join(&self) {
        self.drawing.fetch_add(1, Relaxed);
    }

    /// How many workers draw from it, as the power of two that is at least as many.
    pub(super) fn workers(&self) -> u32 {
        self.drawing.load(Relaxed).max(1).next_power_of_two().trailing_zeros()
    }

    /// The lowest of the ceilings that a class is under.
    pub(super) fn slowest(&self, leaf: Leaf) -> RateLimit {
        let limits = self.path(leaf).map(|node| node.ceil.get());
        limits.into_iter().fold(RateLimit::FREE, RateLimit::slower)
    }

    /// The tenant of a vNIC.
    #[inline]
    pub fn tenant_of(&self, vnic: u32) -> u32 {
        self.paths().tenant_of(vnic)
    }

    /// Puts a vNIC under a tenant.
    pub fn set_tenant(&self, vnic: u32, tenant: u32) {
        if let Some(cell) = self.tenants.get(vnic as usize) {
            cell.store(tenant.min(self.size.tenants - 1), Relaxed);
        }
        self.mark_limited(vnic);
    }

    /// Sets what a node may do. Takes effect with the next packets. `now_ns` is the workers' time: what was taken until then
    /// is owed in bytes; before anything was taken it does not matter.
    pub fn set(&self, id: NodeId, limits: &NodeLimits, now_ns: u64) {
        let node = self.node(id);
        let had = node.has_limit();
        node.set(limits, Stamp::from_ns(now_ns));
        match (had, node.has_limit()) {
            (false, true) => self.limits.fetch_add(1, Relaxed),
            (true, false) => self.limits.fetch_sub(1, Relaxed),
            _ => 0,
        };
        let above = self.size.vnic(0).0;
        let tenant = id.0.checked_sub(2).map(|row| row % self.size.tenants).filter(|_| id.0 < above);
        let vnics = match id.0.checked_sub(above) {
            None => 0..self.size.vnics,
            Some(row) => {
                let row = row.checked_sub(2 * self.size.vnics).map_or(row, |leaf| leaf / 2);
                let vnic = row % self.size.vnics;
                vnic..vnic + 1
            }
        };
        vnics
            .filter(|vnic| tenant.is_none_or(|tenant| self.tenant_of(*vnic) == tenant))
            .for_each(|vnic| self.mark_limited(vnic));
    }

    fn mark_limited(&self, vnic: u32) {
        for direction in Direction::ALL {
            for class in Class::ALL {
                let [leaf, rest @ ..] = self.path(self.leaf(direction, vnic, class));
                let limited =
                    !leaf.ceil.get().is_free() || rest.iter().any(|node| !node.ceil.get().is_free());
                leaf.limited.store(u32::from(limited), Relaxed);
            }
        }
    }

    /// Sets the rate up to which a vNIC's CNPs, ACKs, NAKs and connection manager's messages are not treated as
    /// data; 0: no limit.
    pub fn set_control_rate(&self, direction: Direction, vnic: u32, rate: BitsPerSec, now_ns: u64) {
        let class = &self.classes[self.leaf(direction, vnic, Class::Rdma).0 as usize];
        let limit = RateLimit::new(rate, (rate / 800).max(16 << 10));
        class.control.change(&class.control_bucket, limit, Stamp::from_ns(now_ns));
    }

    /// True while a vNIC's control packets keep to their rate; then this one is counted against it.
    #[inline]
    pub fn may_control(&self, leaf: Leaf, bytes: u32, now_ns: u64) -> bool {
        let (class, now) = (&self.classes[leaf.0 as usize], Stamp::from_ns(now_ns));
        let limit = class.control.get();
        let within = class.control_bucket.wait(u64::from(bytes), limit, now) == 0;
        if within {
            class.control_bucket.take(u64::from(bytes), &class.control, now);
        }
        within
    }

    /// True when nothing in the tree has a limit.
    #[inline(always)]
    pub fn is_free(&self) -> bool {
        self.limits.load(Relaxed) == 0
    }

    /// The weight of a node.
    pub fn weight(&self, id: NodeId) -> u32 {
        self.node(id).weight()
    }

    /// A node as it is now.
    pub fn view(&self, id: NodeId, now_ns: u64) -> NodeView {
        let (node, now) = (self.node(id), Stamp::from_ns(now_ns));
        let (ceil, assured, share) = (node.ceil.get(), node.assured.get(), node.share.get());
        NodeView {
            assured: assured.rate(),
            ceil: ceil.rate(),
            share: share.rate(),
            weight: self.weight(id),
            burst: node.burst(),
            tokens: node.ceil_bucket.level(ceil, now),
            debt: node.debt.load(Relaxed),
            drawn: node.drawn.load(Relaxed),
            held_back: node.held_back.load(Relaxed),
        }
    }

    /// Counts a packet of a class that was marked.
    pub fn count_mark(&self, leaf: Leaf) {
        self.classes[leaf.0 as usize].marked.fetch_add(1, Relaxed);
    }

    /// Counts a packet of a class for which there was no room to wait.
    pub fn count_drop(&self, leaf: Leaf) {
        self.classes[leaf.0 as usize].dropped.fetch_add(1, Relaxed);
    }

    /// Packets of a class that were marked, and that were dropped.
    pub fn fate(&self, leaf: Leaf) -> (u64, u64) {
        let class = &self.classes[leaf.0 as usize];
        (class.marked.load(Relaxed), class.dropped.load(Relaxed))
    }

    /// Forgets what a vNIC that is gone did and owed: its number may be another's next.
    pub fn forget(&self, vnic: u32) {
        for direction in Direction::ALL {
            let leaves = Class::ALL.map(|class| self.leaf(direction, vnic, class));
            for leaf in leaves {
                let class = &self.classes[leaf.0 as usize];
                class.control_bucket.fill();
                class.marked.store(0, Relaxed);
                class.dropped.store(0, Relaxed);
                self.hardware(leaf).forget();
            }
            let ids = leaves.map(|leaf| self.leaf_node(leaf)).into_iter();
            ids.chain([self.vnic_node(direction, vnic)]).for_each(|id| self.node(id).forget());
        }
    }

    /// True when a class or something above it has a limit.
    pub fn is_limited(&self, leaf: Leaf) -> bool {
        self.node(self.leaf_node(leaf)).limited.load(Relaxed) != 0
    }

    /// What a meter for a class would be set to: its rates now and its burst.
    pub fn meter(&self, leaf: Leaf) -> LeafRates {
        let node = self.node(self.leaf_node(leaf));
        let (share, assured) = (node.share.get(), node.assured.get());
        LeafRates {
            committed: assured.rate(),
            peak: if share.is_free() { node.ceil.get().rate() } else { share.rate() },
            burst: share.burst().max(node.burst()),
        }
    }

    /// Tells the division that a class is in use.
    #[inline]
    pub(super) fn wake(&self, leaf: Leaf) {
        let node = self.node(self.leaf_node(leaf));
        if node.awake.load(Relaxed) != 0 || node.awake.swap(1, Relaxed) != 0 {
            return;
        }
        let mut last = self.epoch.woken.load(Relaxed);
        loop {
            node.next_woken.store(last, Relaxed);
            let pushed = self.epoch.woken.compare_exchange(
                last,
                leaf.0 + 1,
                std::sync::atomic::Ordering::AcqRel,
                Relaxed,
            );
            match pushed {
                Ok(_) => return,
                Err(now) => last = now,
            }
        }
    }
}

/// The way from classes up to the link; what does not change of the tree, to be kept at hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paths<'t> {
    size: TreeSize,
    /// Tenant of each vNIC.
    tenants: &'t [AtomicU32],
}

impl Paths<'_> {
    /// As [`Tree::leaf`] does.
    #[inline(always)]
    pub fn leaf(&self, direction: Direction, vnic: u32, class: Class) -> Leaf {
        let vnic = vnic.min(self.size.vnics - 1);
        Leaf((direction as u32 * self.size.vnics + vnic) * 2 + class as u32)
    }

    /// Class, vNIC, tenant, link.
    #[inline(always)]
    pub fn of(&self, leaf: Leaf) -> [NodeId; 4] {
        let (size, (direction, vnic)) = (self.size, self.size.owner(leaf));
        let tenant = size.tenant(direction, self.tenant_of(vnic));
        [size.class(leaf), size.vnic(leaf.row()), tenant, TreeSize::link(direction)]
    }

    /// The tenant of a vNIC.
    #[inline(always)]
    fn tenant_of(&self, vnic: u32) -> u32 {
        self.tenants.get(vnic as usize).map_or(0, |tenant| tenant.load(Relaxed))
    }
}
