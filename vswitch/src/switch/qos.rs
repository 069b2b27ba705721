//! Control's side of DHTB: the config's rates as limits of the tree's nodes, and how fast each of them goes.
//!
//! Only what differs is written: the tree is shared with workers, and a node that is written is looked up anew for
//! every vNIC below it. Decides about no packet, and divides nothing: workers do.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use pipelines::Direction;
use pipelines::qos::{Class, NodeId, NodeLimits, NodeView, Tree};
use pipelines::snapshot::{Snapshot, Vnic};

use super::concerned::Concerned;
use crate::config::{BothWays, Config, LimitsConfig, VnicConfig};

/// Nanoseconds over which rates are measured.
const SAMPLE_NS: u64 = 1_000_000_000;

/// Control's side of the tree.
pub struct QosControl {
    tree: Arc<Tree>,
    /// What nodes have that are not free.
    applied: HashMap<NodeId, NodeLimits>,
    /// Assured to the vNICs of each VPC.
    promised: [HashMap<u32, u64>; 2],
    vnics: HashMap<u32, Placed>,
    /// Indices of the VPCs.
    vpcs: HashSet<u32>,
    samples: Samples,
    /// Where letting buckets rest goes on.
    hand: usize,
}

/// A vNIC in the tree.
#[derive(Clone, Copy)]
struct Placed {
    vpc: u32,
    /// Rates of its control packets, out and in.
    control: [u64; 2],
    /// What it is assured itself, out and in.
    assured: [u64; 2],
}

/// What one direction of a vNIC comes to.
struct WantedLimits {
    /// Limits of its classes, and of itself.
    nodes: [(NodeId, NodeLimits); 3],
    control: u64,
}

impl WantedLimits {
    /// What the vNIC is assured itself.
    fn assured(&self) -> u64 {
        self.nodes[2].1.assured
    }
}

/// Bytes that nodes let through, a second ago and now.
#[derive(Default)]
struct Samples {
    at_ns: u64,
    drawn: HashMap<NodeId, u64>,
    rates: HashMap<NodeId, f64>,
}

/// A direction's limits.
pub fn of_way(both: &BothWays, direction: Direction) -> &LimitsConfig {
    match direction {
        Direction::Out => &both.out,
        Direction::In => &both.into,
    }
}

/// A vNIC's own limits, those of its classes aside.
pub fn of_vnic(vnic: &VnicConfig) -> BothWays {
    BothWays { out: vnic.qos.out, into: vnic.qos.into }
}

/// A class's limits.
pub fn of_class(vnic: &VnicConfig, class: Class) -> &BothWays {
    match class {
        Class::Rdma => &vnic.qos.rdma,
        Class::Tcp => &vnic.qos.tcp,
    }
}

/// As the tree has it. Who promises a rate to children needs it itself, so `children` is the least that is assured.
fn limits(config: &LimitsConfig, children: u64) -> NodeLimits {
    NodeLimits {
        assured: config.assured.map_or(0, |rate| rate.0).max(children),
        ceil: config.ceil.map_or(0, |rate| rate.0),
        weight: config.weight.unwrap_or(1),
        burst: config.burst.map_or(0, |burst| burst.0),
    }
}

/// What the config gives a vNIC: its own limits and those of its VPC.
struct VnicAndVpcLimits<'c> {
    vnic: &'c VnicConfig,
    vpc: Option<&'c BothWays>,
}

/// The ceiling of the link.
fn link(config: &Config, direction: Direction) -> u64 {
    let rate = match direction {
        Direction::Out => config.qos.link.out,
        Direction::In => config.qos.link.into,
    };
    rate.map_or(0, |rate| rate.0)
}

impl QosControl {
    /// Control of the tree that workers share.
    pub fn new(tree: Arc<Tree>) -> Self {
        Self {
            tree,
            applied: HashMap::new(),
            promised: [HashMap::new(), HashMap::new()],
            vnics: HashMap::new(),
            vpcs: HashSet::new(),
            samples: Samples::default(),
            hand: 0,
        }
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// What a node may do.
    pub fn limits(&self, node: NodeId) -> NodeLimits {
        self.applied.get(&node).copied().unwrap_or(NodeLimits::FREE)
    }

    /// A node as it is now.
    pub fn view(&self, node: NodeId, now_ns: u64) -> NodeView {
        self.tree.view(node, now_ns)
    }

    /// Bits per second that a node let through during the last whole second; nothing before there was one.
    pub fn rate(&self, node: NodeId) -> Option<f64> {
        self.samples.rates.get(&node).copied()
    }

    /// Takes over the limits of a config, for the vNICs that a change `concerned`; `gone` are indices of those that it took
    /// away. To be called before the workers have the snapshot, so that no packet of a new vNIC comes before its limits.
    pub fn configure(
        &mut self,
        config: &Config,
        gone: &[u32],
        concerned: &[Concerned<'_>],
        snapshot: &Snapshot,
        now_ns: u64,
    ) {
        let vpcs: HashMap<&str, &BothWays> =
            config.vpcs.iter().map(|vpc| (vpc.name.as_str(), &vpc.qos)).collect();
        for direction in Direction::ALL {
            let limits = NodeLimits { ceil: link(config, direction), ..NodeLimits::FREE };
            self.set(self.tree.link_node(direction), limits, now_ns);
        }
        gone.iter().for_each(|&index| self.forget(index, now_ns));
        for &Concerned { vnic, config: given } in concerned {
            let vpc = vpcs.get(given.vpc.as_str()).copied();
            self.put(config, vnic, &VnicAndVpcLimits { vnic: given, vpc }, now_ns);
        }
        let before = std::mem::take(&mut self.vpcs);
        for vpc in snapshot.vpcs.iter().flatten() {
            let Some(both) = vpcs.get(vpc.name.as_str()) else { continue };
            self.vpcs.insert(vpc.index);
            for direction in Direction::ALL {
                let below = self.promised[direction as usize].get(&vpc.index).copied().unwrap_or(0);
                let limits = limits(of_way(both, direction), below);
                self.set(self.tree.tenant_node(direction, vpc.index), limits, now_ns);
            }
        }
        for index in before {
            if !self.vpcs.contains(&index) {
                for direction in Direction::ALL {
                    self.set(self.tree.tenant_node(direction, index), NodeLimits::FREE, now_ns);
                }
            }
        }
    }

    /// What a direction of a vNIC is to have.
    fn wanted(
        &self,
        config: &Config,
        index: u32,
        given: &VnicAndVpcLimits<'_>,
        direction: Direction,
    ) -> WantedLimits {
        let class_node = |class| self.tree.leaf_node(self.tree.leaf(direction, index, class));
        let of_class = |class| of_way(of_class(given.vnic, class), direction);
        let [first, second] = Class::ALL.map(|class| (class_node(class), limits(of_class(class), 0)));
        let below = first.1.assured.saturating_add(second.1.assured);
        let own = limits(of_way(&of_vnic(given.vnic), direction), below);
        // The nearest limit above: a vNIC must not send all that its VPC may as packets that nobody stops.
        let of_vpc = given.vpc.and_then(|both| of_way(both, direction).ceil).map_or(0, |rate| rate.0);
        let of_rdma = of_class(Class::Rdma).ceil.map_or(0, |rate| rate.0);
        let ceilings = [of_rdma, own.ceil, of_vpc, link(config, direction)];
        let base = ceilings.into_iter().find(|rate| *rate > 0).unwrap_or(0);
        let node = self.tree.vnic_node(direction, index);
        WantedLimits { nodes: [first, second, (node, own)], control: config.qos.control_rate.of(base) }
    }

    /// Gives a vNIC its limits, where they are others than before.
    fn put(&mut self, config: &Config, vnic: &Vnic, given: &VnicAndVpcLimits<'_>, now_ns: u64) {
        let known = self.vnics.get(&vnic.index).copied();
        let mut placed = Placed { vpc: vnic.vpc, control: [0; 2], assured: [0; 2] };
        if known.is_none_or(|known| known.vpc != vnic.vpc) {
            self.tree.set_tenant(vnic.index, vnic.vpc);
        }
        for direction in Direction::ALL {
            let way = direction as usize;
            let new = self.wanted(config, vnic.index, given, direction);
            (placed.control[way], placed.assured[way]) = (new.control, new.assured());
            if known.is_none_or(|known| known.control[way] != new.control) {
                self.tree.set_control_rate(direction, vnic.index, new.control, now_ns);
            }
            new.nodes.into_iter().for_each(|(node, limits)| self.set(node, limits, now_ns));
        }
        self.promise(known, Some(placed));
        self.vnics.insert(vnic.index, placed);
    }

    /// Takes its limits from a vNIC that is gone.
    fn forget(&mut self, index: u32, now_ns: u64) {
        let Some(known) = self.vnics.remove(&index) else { return };
        self.tree.forget(index);
        self.promise(Some(known), None);
        self.nodes_of(index).into_iter().for_each(|node| self.set(node, NodeLimits::FREE, now_ns));
    }

    /// Changes what VPCs' vNICs are assured by what one of them is.
    fn promise(&mut self, old: Option<Placed>, new: Option<Placed>) {
        for direction in Direction::ALL {
            let promised = &mut self.promised[direction as usize];
            if let Some(old) = old {
                let sum = promised.entry(old.vpc).or_default();
                *sum = sum.saturating_sub(old.assured[direction as usize]);
            }
            if let Some(new) = new {
                let sum = promised.entry(new.vpc).or_default();
                *sum = sum.saturating_add(new.assured[direction as usize]);
            }
        }
    }

    /// The nodes of a vNIC: of its classes, and its own, out and in.
    fn nodes_of(&self, index: u32) -> [NodeId; 6] {
        let of = |direction| {
            let class = |class| self.tree.leaf_node(self.tree.leaf(direction, index, class));
            let [first, second] = Class::ALL.map(class);
            [first, second, self.tree.vnic_node(direction, index)]
        };
        let ([a, b, c], [d, e, f]) = (of(Direction::Out), of(Direction::In));
        [a, b, c, d, e, f]
    }

    /// All nodes of what is there now.
    fn nodes(&self) -> Vec<NodeId> {
        let links = Direction::ALL.map(|direction| self.tree.link_node(direction));
        let of_vpc = |&vpc: &u32| Direction::ALL.map(|direction| self.tree.tenant_node(direction, vpc));
        let of_vpcs = self.vpcs.iter().flat_map(of_vpc);
        let of_vnics = self.vnics.keys().flat_map(|&index| self.nodes_of(index));
        links.into_iter().chain(of_vpcs).chain(of_vnics).collect()
    }

    /// Writes the limits of a node where they are others.
    fn set(&mut self, node: NodeId, limits: NodeLimits, now_ns: u64) {
        if self.limits(node) == limits {
            return;
        }
        self.tree.set(node, &limits, now_ns);
        if limits == NodeLimits::FREE {
            self.applied.remove(&node);
        } else {
            self.applied.insert(node, limits);
        }
    }

    /// Measures rates. To be called a few times a second.
    pub fn tend(&mut self, now_ns: u64) {
        self.hand = self.tree.rest(self.hand, now_ns);
        let elapsed = now_ns.saturating_sub(self.samples.at_ns);
        if self.tree.is_free() {
            self.samples.rates.clear();
        }
        if self.tree.is_free() || elapsed < SAMPLE_NS {
            return;
        }
        let nodes = self.nodes();
        let Self { tree, samples, .. } = self;
        let first = samples.at_ns == 0;
        samples.at_ns = now_ns;
        let before = std::mem::take(&mut samples.drawn);
        samples.rates.clear();
        for node in nodes {
            let drawn = tree.view(node, now_ns).drawn;
            samples.drawn.insert(node, drawn);
            if let (false, Some(before)) = (first, before.get(&node)) {
                // A node may be another's since, and start anew.
                let bits = drawn.saturating_sub(*before) as f64 * 8.0;
                samples.rates.insert(node, bits * 1e9 / elapsed as f64);
            }
        }
    }
}

#[cfg(test)]
mod tests;
