//! Control's side of DHTB: the config's rates as limits of the tree's nodes, and how fast each of them goes.
//!
//! Only what differs is written: the tree is shared with workers, and a node that is written is looked up anew for
//! every vNIC below it. Decides about no packet, and divides nothing: workers do.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use pipelines::Direction;
use pipelines::qos::{Class, NodeId, NodeLimits, NodeView, Tree};
use pipelines::snapshot::{Snapshot, Vnic};

use crate::config::{BothWays, Config, LimitsConfig, VnicConfig};

/// Nanoseconds over which rates are measured.
const SAMPLE_NS: u64 = 1_000_000_000;

/// Control's side of the tree.
pub struct Control {
    tree: Arc<Tree>,
    /// What nodes have that are not free.
    applied: HashMap<NodeId, NodeLimits>,
    /// Assured to the vNICs of each VPC.
    promised: [HashMap<u32, u64>; 2],
    vnics: HashMap<u32, Placed>,
    /// Nodes of what is there now, in no particular order.
    nodes: Vec<NodeId>,
    samples: Samples,
    /// Where letting buckets rest goes on.
    hand: usize,
}

/// A vNIC in the tree.
#[derive(Clone, PartialEq, Eq)]
struct Placed {
    name: String,
    vpc: u32,
    /// Rates of its control packets, out and in.
    control: [u64; 2],
    /// What it is assured itself, out and in.
    assured: [u64; 2],
}

/// What one direction of a vNIC comes to.
struct Wanted {
    /// Limits of its classes, and of itself.
    nodes: [(NodeId, NodeLimits); 3],
    control: u64,
}

impl Wanted {
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
struct Given<'c> {
    vnic: &'c VnicConfig,
    vpc: Option<&'c BothWays>,
}

impl Placed {
    fn new(name: &str, vpc: u32) -> Self {
        Self { name: name.to_owned(), vpc, control: [0; 2], assured: [0; 2] }
    }
}

/// The ceiling of the link.
fn link(config: &Config, direction: Direction) -> u64 {
    let rate = match direction {
        Direction::Out => config.qos.link.out,
        Direction::In => config.qos.link.into,
    };
    rate.map_or(0, |rate| rate.0)
}

impl Control {
    /// Control of the tree that workers share.
    pub fn new(tree: Arc<Tree>) -> Self {
        Self {
            tree,
            applied: HashMap::new(),
            promised: [HashMap::new(), HashMap::new()],
            vnics: HashMap::new(),
            nodes: Vec::new(),
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

    /// Takes over the limits of a config. To be called before the workers have the snapshot, so that no packet of a
    /// new vNIC comes before its limits.
    pub fn configure(&mut self, config: &Config, snapshot: &Snapshot) {
        let vnic_configs: HashMap<&str, &VnicConfig> =
            config.vnics.iter().map(|vnic| (vnic.name.as_str(), vnic)).collect();
        let vpc_configs: HashMap<&str, &BothWays> =
            config.vpcs.iter().map(|vpc| (vpc.name.as_str(), &vpc.qos)).collect();
        let (mut wanted, mut vnics) = (HashMap::new(), HashMap::new());
        let mut nodes = Vec::new();
        for direction in Direction::ALL {
            let node = self.tree.link_node(direction);
            nodes.push(node);
            wanted.insert(node, NodeLimits { ceil: link(config, direction), ..NodeLimits::FREE });
            let mut promised: HashMap<u32, u64> = HashMap::new();
            for vnic in snapshot.vnics.iter().flatten() {
                let Some(given) = vnic_configs.get(vnic.name.as_str()) else { continue };
                let vpc = snapshot.vpc(vnic.vpc).and_then(|vpc| vpc_configs.get(vpc.name.as_str()).copied());
                let new = self.wanted(config, vnic.index, &Given { vnic: given, vpc }, direction);
                nodes.extend(new.nodes.map(|(node, _)| node));
                wanted.extend(new.nodes);
                let sum = promised.entry(vnic.vpc).or_default();
                *sum = sum.saturating_add(new.assured());
                let placed = vnics.entry(vnic.index).or_insert_with(|| Placed::new(&vnic.name, vnic.vpc));
                placed.control[direction as usize] = new.control;
                placed.assured[direction as usize] = new.assured();
            }
            for vpc in snapshot.vpcs.iter().flatten() {
                let Some(both) = vpc_configs.get(vpc.name.as_str()) else { continue };
                let below = promised.get(&vpc.index).copied().unwrap_or(0);
                let node = self.tree.tenant_node(direction, vpc.index);
                nodes.push(node);
                wanted.insert(node, limits(of_way(both, direction), below));
            }
            self.promised[direction as usize] = promised;
        }
        wanted.retain(|_, limits| *limits != NodeLimits::FREE);
        self.write(wanted, vnics);
        self.nodes = nodes;
    }

    /// What a direction of a vNIC is to have.
    fn wanted(&self, config: &Config, index: u32, given: &Given<'_>, direction: Direction) -> Wanted {
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
        Wanted { nodes: [first, second, (node, own)], control: config.qos.control_rate.of(base) }
    }

    /// As [`configure`](Self::configure), for one vNIC that comes.
    pub fn add_vnic(&mut self, config: &Config, given: &VnicConfig, vnic: &Vnic) {
        let vpc = config.vpcs.iter().find(|vpc| vpc.name == given.vpc).map(|vpc| &vpc.qos);
        let mut placed = Placed::new(&vnic.name, vnic.vpc);
        self.tree.set_tenant(vnic.index, vnic.vpc);
        for direction in Direction::ALL {
            let new = self.wanted(config, vnic.index, &Given { vnic: given, vpc }, direction);
            placed.control[direction as usize] = new.control;
            placed.assured[direction as usize] = new.assured();
            self.tree.set_control_rate(direction, vnic.index, new.control);
            self.promise(vpc, vnic.vpc, direction, |sum| sum.saturating_add(new.assured()));
            for (node, limits) in new.nodes {
                self.nodes.push(node);
                self.set(node, limits);
            }
        }
        self.vnics.insert(vnic.index, placed);
    }

    /// As [`configure`](Self::configure), for one vNIC that goes.
    pub fn remove_vnic(&mut self, config: &Config, given: &VnicConfig, index: u32) {
        let Some(placed) = self.vnics.remove(&index) else { return };
        let vpc = config.vpcs.iter().find(|vpc| vpc.name == given.vpc).map(|vpc| &vpc.qos);
        self.tree.forget(index);
        let mut gone = Vec::new();
        for direction in Direction::ALL {
            let assured = placed.assured[direction as usize];
            self.promise(vpc, placed.vpc, direction, |sum| sum.saturating_sub(assured));
            gone.extend(Class::ALL.map(|class| self.tree.leaf_node(self.tree.leaf(direction, index, class))));
            gone.push(self.tree.vnic_node(direction, index));
        }
        gone.iter().for_each(|&node| self.set(node, NodeLimits::FREE));
        self.nodes.retain(|node| !gone.contains(node));
    }

    /// Changes what the vNICs of a VPC are promised, and so what the VPC needs itself.
    fn promise(
        &mut self,
        both: Option<&BothWays>,
        vpc: u32,
        direction: Direction,
        change: impl FnOnce(u64) -> u64,
    ) {
        let sum = self.promised[direction as usize].entry(vpc).or_default();
        let new = change(*sum);
        if std::mem::replace(sum, new) != new
            && let Some(both) = both
        {
            self.set(self.tree.tenant_node(direction, vpc), limits(of_way(both, direction), new));
        }
    }

    /// Writes the limits of a node where they are others.
    fn set(&mut self, node: NodeId, limits: NodeLimits) {
        if self.limits(node) == limits {
            return;
        }
        self.tree.set(node, &limits);
        if limits == NodeLimits::FREE {
            self.applied.remove(&node);
        } else {
            self.applied.insert(node, limits);
        }
    }

    fn write(&mut self, wanted: HashMap<NodeId, NodeLimits>, vnics: HashMap<u32, Placed>) {
        for (&index, known) in &self.vnics {
            if vnics.get(&index).is_none_or(|vnic| vnic.name != known.name) {
                self.tree.forget(index);
            }
        }
        for (&index, vnic) in &vnics {
            let known = self.vnics.get(&index);
            if known.is_none_or(|known| known.vpc != vnic.vpc) {
                self.tree.set_tenant(index, vnic.vpc);
            }
            for direction in Direction::ALL {
                let rate = vnic.control[direction as usize];
                if known.is_none_or(|known| known.control[direction as usize] != rate) {
                    self.tree.set_control_rate(direction, index, rate);
                }
            }
        }
        let gone = self.applied.keys().filter(|node| !wanted.contains_key(node));
        let gone: BTreeSet<NodeId> = gone.copied().collect();
        for node in gone {
            self.tree.set(node, &NodeLimits::FREE);
        }
        for (node, limits) in &wanted {
            if self.applied.get(node) != Some(limits) {
                self.tree.set(*node, limits);
            }
        }
        (self.applied, self.vnics) = (wanted, vnics);
    }

    /// Measures rates. To be called a few times a second.
    pub fn tend(&mut self, now_ns: u64) {
        let Self { tree, nodes, samples, hand, .. } = self;
        *hand = tree.rest(*hand, now_ns);
        let elapsed = now_ns.saturating_sub(samples.at_ns);
        if tree.is_free() {
            samples.rates.clear();
        }
        if tree.is_free() || elapsed < SAMPLE_NS {
            return;
        }
        let first = samples.at_ns == 0;
        samples.at_ns = now_ns;
        let before = std::mem::take(&mut samples.drawn);
        samples.rates.clear();
        for &node in nodes.iter() {
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
