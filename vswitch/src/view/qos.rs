//! Rates, as data: nodes of the tree with what goes through them and what waits at them.
//!
//! What waits is asked of the workers, some thousand classes at a time; everything else is read from shared counters.

use std::collections::HashMap;
use std::iter::Sum;

use pipelines::Direction;
use pipelines::qos::{Class, Depth, Leaf, NodeId, NodeLimits, NodeView, Tree};
use pipelines::snapshot::Vnic;
use worker::mailbox::WorkerError;
use worker::{Pool, WorkerCommand};

use crate::switch::Switch;

/// Classes of one request.
const PAGE: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QosOwner {
    Link,
    Vpc(String),
    Vnic(String),
    /// A class of a vNIC.
    Class(String, Class),
}

impl QosOwner {
    /// The name of its level.
    pub fn level(&self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Vpc(_) => "vpc",
            Self::Vnic(_) => "vnic",
            Self::Class(..) => "class",
        }
    }

    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Link => None,
            Self::Vpc(name) | Self::Vnic(name) | Self::Class(name, _) => Some(name),
        }
    }
}

#[derive(Clone, Debug)]
pub struct QosNode {
    pub owner: QosOwner,
    pub direction: Direction,
    /// What is configured, with what is assured to its children.
    pub limits: NodeLimits,
    /// What the tree has.
    pub view: NodeView,
    /// Bits per second lately.
    pub rate: Option<f64>,
    /// What happened to its packets.
    pub held: Held,
}

/// What happened to packets that found no tokens: of a class, or of all below a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Packets that wait now.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that went with congestion experienced.
    pub marked: u64,
    /// Packets for which there was no room.
    pub dropped: u64,
}

impl Sum for Held {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            packets: sum.packets + one.packets,
            bytes: sum.bytes + one.bytes,
            marked: sum.marked + one.marked,
            dropped: sum.dropped + one.dropped,
        })
    }
}

impl QosNode {
    /// True when it has no limits and has seen nothing.
    pub fn is_idle(&self) -> bool {
        self.limits == NodeLimits::FREE && self.view.drawn == 0 && self.held == Held::default()
    }
}

/// What waits, by class, on all workers; classes without anything are left out.
pub(super) fn depths(pool: &Pool, leaves: &[Leaf]) -> Result<HashMap<Leaf, Depth>, WorkerError> {
    let mut found: HashMap<Leaf, Depth> = HashMap::new();
    for page in leaves.chunks(PAGE) {
        for worker in &pool.workers {
            let depths = worker.mailbox().ask(|reply| WorkerCommand::Depths(page.to_vec(), reply))?;
            for (leaf, depth) in page.iter().zip(depths).filter(|(_, depth)| depth.packets > 0) {
                let sum = found.entry(*leaf).or_default();
                sum.packets += depth.packets;
                sum.bytes = sum.bytes.saturating_add(depth.bytes);
                sum.buffers += depth.buffers;
            }
        }
    }
    Ok(found)
}

/// The classes of a vNIC, in both directions.
pub(super) fn leaves(tree: &Tree, vnic: &Vnic) -> impl Iterator<Item = Leaf> + use<> {
    let of = |direction| Class::ALL.map(|class| tree.leaf(direction, vnic.index, class));
    Direction::ALL.map(of).into_iter().flatten()
}

/// The whole tree, from the link down: each VPC is followed by its vNICs, each vNIC by its classes. And the time, of
/// the workers' clock.
///
/// # Errors
/// [`WorkerError`].
pub fn nodes(switch: &Switch) -> Result<(Vec<QosNode>, u64), WorkerError> {
    let (qos, snapshot) = (switch.qos(), switch.snapshot());
    let tree = qos.tree();
    let mut vnics: Vec<&Vnic> = snapshot.vnics.iter().flatten().map(AsRef::as_ref).collect();
    vnics.sort_by(|a, b| (a.vpc, &a.name).cmp(&(b.vpc, &b.name)));
    let all: Vec<Leaf> = vnics.iter().flat_map(|vnic| leaves(tree, vnic)).collect();
    let depths = depths(switch.pool(), &all)?;
    let now_ns = switch.pool().now().ns;
    let node = |owner: QosOwner, direction: Direction, id: NodeId, held: Held| QosNode {
        owner,
        direction,
        limits: qos.limits(id),
        view: qos.view(id, now_ns),
        rate: qos.rate(id),
        held,
    };
    let held = |direction: Direction, vnic: &Vnic, class: Class| {
        let leaf = tree.leaf(direction, vnic.index, class);
        let depth = depths.get(&leaf).copied().unwrap_or_default();
        let (packets, bytes) = (depth.packets.into(), depth.bytes.into());
        let (marked, dropped) = tree.fate(leaf);
        Held { packets, bytes, marked, dropped }
    };
    let sum = |direction: Direction, vnics: &[&Vnic]| -> Held {
        vnics.iter().flat_map(|vnic| Class::ALL.map(|class| held(direction, vnic, class))).sum()
    };
    let mut nodes = Vec::new();
    for direction in Direction::ALL {
        nodes.push(node(QosOwner::Link, direction, tree.link_node(direction), sum(direction, &vnics)));
    }
    for vpc in snapshot.vpcs.iter().flatten() {
        let from = vnics.partition_point(|vnic| vnic.vpc < vpc.index);
        let to = vnics.partition_point(|vnic| vnic.vpc <= vpc.index);
        let vnics = &vnics[from..to];
        for direction in Direction::ALL {
            let id = tree.tenant_node(direction, vpc.index);
            nodes.push(node(QosOwner::Vpc(vpc.name.clone()), direction, id, sum(direction, vnics)));
        }
        for &vnic in vnics {
            for direction in Direction::ALL {
                let id = tree.vnic_node(direction, vnic.index);
                nodes.push(node(QosOwner::Vnic(vnic.name.clone()), direction, id, sum(direction, &[vnic])));
            }
            for class in Class::ALL {
                for direction in Direction::ALL {
                    let id = tree.leaf_node(tree.leaf(direction, vnic.index, class));
                    let owner = QosOwner::Class(vnic.name.clone(), class);
                    nodes.push(node(owner, direction, id, held(direction, vnic, class)));
                }
            }
        }
    }
    Ok((nodes, now_ns))
}
