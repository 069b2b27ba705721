//! Rates, as data: nodes of the tree with what goes through them and what waits at them.
//!
//! What waits is asked of the workers, some thousand classes at a time; everything else is read from shared counters.

use std::collections::HashMap;

use pipelines::qos::{Class, Direction, Leaf, NodeId, NodeLimits, NodeView, Tree};
use pipelines::snapshot::Vnic;

use crate::switch::Switch;
use crate::worker::mailbox::WorkerGone;
use crate::worker::{Command, Pool};

/// Classes of one request.
const PAGE: usize = 4096;

/// What a node is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// The uplinks.
    Link,
    /// A VPC.
    Vpc(String),
    /// A vNIC.
    Vnic(String),
    /// A class of a vNIC.
    Class(String, Class),
}

impl Who {
    /// The name of its level.
    pub fn level(&self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Vpc(_) => "vpc",
            Self::Vnic(_) => "vnic",
            Self::Class(..) => "class",
        }
    }

    /// Its name.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Link => None,
            Self::Vpc(name) | Self::Vnic(name) | Self::Class(name, _) => Some(name),
        }
    }
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is of.
    pub who: Who,
    /// The direction.
    pub direction: Direction,
    /// What is configured, with what is assured to its children.
    pub limits: NodeLimits,
    /// What the tree has.
    pub view: NodeView,
    /// Bits per second lately.
    pub rate: Option<f64>,
    /// Packets and bytes that wait.
    pub waiting: (u64, u64),
}

impl Node {
    /// True when it has no limits and has seen nothing.
    pub fn is_idle(&self) -> bool {
        self.limits == NodeLimits::FREE && self.view.drawn == 0 && self.waiting.0 == 0
    }
}

/// What waits, by class; classes without anything are left out.
fn depths(pool: &Pool, leaves: &[Leaf]) -> Result<HashMap<Leaf, (u64, u64)>, WorkerGone> {
    let mut found: HashMap<Leaf, (u64, u64)> = HashMap::new();
    for page in leaves.chunks(PAGE) {
        for worker in &pool.workers {
            let depths = worker.mailbox().ask(|reply| Command::Depths(page.to_vec(), reply))?;
            for (leaf, (packets, bytes)) in page.iter().zip(depths).filter(|(_, depth)| depth.0 > 0) {
                let sum = found.entry(*leaf).or_default();
                *sum = (sum.0 + u64::from(packets), sum.1 + u64::from(bytes));
            }
        }
    }
    Ok(found)
}

fn leaves<'v>(tree: &Tree, vnics: impl Iterator<Item = &'v Vnic>) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    for vnic in vnics {
        for direction in Direction::ALL {
            leaves.extend(Class::ALL.map(|class| tree.leaf(direction, vnic.index, class)));
        }
    }
    leaves
}

/// The whole tree, from the link down: each VPC is followed by its vNICs, each vNIC by its classes. And the time, of
/// the workers' clock.
///
/// # Errors
/// [`WorkerGone`].
pub fn nodes(switch: &Switch) -> Result<(Vec<Node>, u64), WorkerGone> {
    let (qos, snapshot) = (switch.qos(), switch.snapshot());
    let tree = qos.tree();
    let mut vnics: Vec<&Vnic> = snapshot.vnics.iter().flatten().map(AsRef::as_ref).collect();
    vnics.sort_by(|a, b| (a.vpc, &a.name).cmp(&(b.vpc, &b.name)));
    let depths = depths(switch.pool(), &leaves(tree, vnics.iter().copied()))?;
    let now_ns = switch.pool().now().ns;
    let node = |who: Who, direction: Direction, id: NodeId, waiting: (u64, u64)| Node {
        who,
        direction,
        limits: qos.limits(id),
        view: qos.view(id, now_ns),
        rate: qos.rate(id),
        waiting,
    };
    let waits = |direction: Direction, vnic: &Vnic, class: Class| {
        depths.get(&tree.leaf(direction, vnic.index, class)).copied().unwrap_or_default()
    };
    let sum = |direction: Direction, vnics: &[&Vnic]| {
        let all = vnics.iter().flat_map(|vnic| Class::ALL.map(|class| waits(direction, vnic, class)));
        all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    };
    let mut nodes = Vec::new();
    for direction in Direction::ALL {
        nodes.push(node(Who::Link, direction, tree.link_node(direction), sum(direction, &vnics)));
    }
    for vpc in snapshot.vpcs.iter().flatten() {
        let from = vnics.partition_point(|vnic| vnic.vpc < vpc.index);
        let to = vnics.partition_point(|vnic| vnic.vpc <= vpc.index);
        let vnics = &vnics[from..to];
        for direction in Direction::ALL {
            let id = tree.tenant_node(direction, vpc.index);
            nodes.push(node(Who::Vpc(vpc.name.clone()), direction, id, sum(direction, vnics)));
        }
        for &vnic in vnics {
            for direction in Direction::ALL {
                let id = tree.vnic_node(direction, vnic.index);
                nodes.push(node(Who::Vnic(vnic.name.clone()), direction, id, sum(direction, &[vnic])));
            }
            for class in Class::ALL {
                for direction in Direction::ALL {
                    let id = tree.leaf_node(tree.leaf(direction, vnic.index, class));
                    let who = Who::Class(vnic.name.clone(), class);
                    nodes.push(node(who, direction, id, waits(direction, vnic, class)));
                }
            }
        }
    }
    Ok((nodes, now_ns))
}
