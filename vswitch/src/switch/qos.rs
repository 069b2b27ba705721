//! Control's side of DHTB: the config's rates as limits of the tree's nodes, and how fast each of them goes.
//!
//! Only what differs is written: the tree is shared with workers, and a node that is written is looked up anew for
//! every vNIC below it. Decides about no packet, and divides nothing: workers do.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use pipelines::qos::{Class, Direction, NodeId, NodeLimits, NodeView, Tree};
use pipelines::snapshot::Snapshot;

use crate::config::{BothWays, Config, LimitsConfig, VnicConfig};

/// Nanoseconds over which rates are measured.
const SAMPLE_NS: u64 = 1_000_000_000;

/// Control's side of the tree.
pub struct Control {
    tree: Arc<Tree>,
    /// What nodes have that are not free.
    applied: HashMap<NodeId, NodeLimits>,
    /// VPC of each vNIC, and its rates of control packets, out and in.
    vnics: HashMap<u32, (u32, [u64; 2])>,
    /// Nodes of what is there now, in no particular order.
    nodes: Vec<NodeId>,
    samples: Samples,
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

impl Control {
    /// Control of the tree that workers share.
    pub fn new(tree: Arc<Tree>) -> Self {
        Self {
            tree,
            applied: HashMap::new(),
            vnics: HashMap::new(),
            nodes: Vec::new(),
            samples: Samples::default(),
        }
    }

    /// The tree.
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
            let link = match direction {
                Direction::Out => config.qos.link.out,
                Direction::In => config.qos.link.into,
            };
            let link = link.map_or(0, |rate| rate.0);
            let node = self.tree.link_node(direction);
            nodes.push(node);
            wanted.insert(node, NodeLimits { ceil: link, ..NodeLimits::FREE });
            // Assured to vNICs of each VPC.
            let mut promised: HashMap<u32, u64> = HashMap::new();
            for vnic in snapshot.vnics.iter().flatten() {
                let Some(given) = vnic_configs.get(vnic.name.as_str()) else { continue };
                let mut below = 0u64;
                for class in Class::ALL {
                    let new = limits(of_way(of_class(given, class), direction), 0);
                    below = below.saturating_add(new.assured);
                    let node = self.tree.leaf_node(self.tree.leaf(direction, vnic.index, class));
                    nodes.push(node);
                    wanted.insert(node, new);
                }
                let new = limits(of_way(&of_vnic(given), direction), below);
                let sum = promised.entry(vnic.vpc).or_default();
                *sum = sum.saturating_add(new.assured);
                let node = self.tree.vnic_node(direction, vnic.index);
                nodes.push(node);
                wanted.insert(node, new);
                // The nearest limit above: a vNIC must not send all that its VPC may as packets that nobody stops.
                let vpc = snapshot.vpc(vnic.vpc).and_then(|vpc| vpc_configs.get(vpc.name.as_str()));
                let of_vpc = vpc.and_then(|both| of_way(both, direction).ceil).map_or(0, |rate| rate.0);
                let base = [new.ceil, of_vpc, link].into_iter().find(|rate| *rate > 0).unwrap_or(0);
                let entry = vnics.entry(vnic.index).or_insert((vnic.vpc, [0; 2]));
                entry.1[direction as usize] = config.qos.control_rate.of(base);
            }
            for vpc in snapshot.vpcs.iter().flatten() {
                let Some(both) = vpc_configs.get(vpc.name.as_str()) else { continue };
                let below = promised.get(&vpc.index).copied().unwrap_or(0);
                let node = self.tree.tenant_node(direction, vpc.index);
                nodes.push(node);
                wanted.insert(node, limits(of_way(both, direction), below));
            }
        }
        wanted.retain(|_, limits| *limits != NodeLimits::FREE);
        self.write(wanted, vnics);
        self.nodes = nodes;
    }

    fn write(&mut self, wanted: HashMap<NodeId, NodeLimits>, vnics: HashMap<u32, (u32, [u64; 2])>) {
        for (&vnic, &(vpc, rates)) in &vnics {
            let known = self.vnics.get(&vnic);
            if known.map(|known| known.0) != Some(vpc) {
                self.tree.set_tenant(vnic, vpc);
            }
            for direction in Direction::ALL {
                let rate = rates[direction as usize];
                if known.map(|known| known.1[direction as usize]) != Some(rate) {
                    self.tree.set_control_rate(direction, vnic, rate);
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
        let Self { tree, nodes, samples, .. } = self;
        let elapsed = now_ns.saturating_sub(samples.at_ns);
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
                let bits = drawn.wrapping_sub(*before) as f64 * 8.0;
                samples.rates.insert(node, bits * 1e9 / elapsed as f64);
            }
        }
    }
}
