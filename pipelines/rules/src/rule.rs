//! A rule: where it stands, what it matches, what it does.

use std::fmt;

use crate::actions::Action;
use crate::items::{Item, ItemKind, port_id, represented_port};

/// Whose packets a rule sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Domain {
    /// What a port receives.
    Ingress,
    /// What a port sends.
    Egress,
    /// What crosses the e-switch, between any of its ports.
    Transfer,
}

/// Where a rule stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attr {
    /// The group; packets begin in group 0.
    pub group: u32,
    /// Priority within the group, 0 first.
    pub priority: u32,
    /// Whether it sees what a port receives, what it sends, or what crosses the e-switch.
    pub domain: Domain,
}

impl Attr {
    /// A rule of the e-switch.
    pub const fn transfer(group: u32, priority: u32) -> Self {
        Self { group, priority, domain: Domain::Transfer }
    }
}

/// A rule as `rte_flow` knows it: packets that match all items of the pattern meet all actions, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FlowRule {
    /// Group, priority and domain.
    pub attr: Attr,
    /// What a packet must have, outermost layer first.
    pub pattern: Vec<Item>,
    /// What is done with it.
    pub actions: Vec<Action>,
}

impl FlowRule {
    /// True for a rule about what a DPDK port stands for: packets from there, or to there.
    pub fn names_port(&self, port: u16) -> bool {
        let from = |item: &Item| match item.kind() {
            ItemKind::RepresentedPort => item.field(represented_port::ETHDEV_PORT_ID).0 == u128::from(port),
            ItemKind::PortId => item.field(port_id::ID).0 == u128::from(port),
            _ => false,
        };
        let to = |action: &Action| match *action {
            Action::RepresentedPort { port: to } | Action::PortRepresentor { port: to } => to == port,
            Action::PortId { id } => id == u32::from(port),
            _ => false,
        };
        self.pattern.iter().any(from) || self.actions.iter().any(to)
    }

    /// The commands that make testpmd create this rule on a port, one a line.
    pub fn testpmd(&self, port: u16) -> String {
        let encaps = self.actions.iter().filter_map(|action| match action {
            Action::RawEncap(encap) => Some(format!("set raw_encap 0 {encap}\n")),
            _ => None,
        });
        encaps.chain([format!("flow create {port} {self}\n")]).collect()
    }
}

/// What testpmd's `flow create` and `flow validate` take behind the port.
impl fmt::Display for FlowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attr { group, priority, domain } = self.attr;
        let domain = match domain {
            Domain::Ingress => "ingress",
            Domain::Egress => "egress",
            Domain::Transfer => "transfer",
        };
        write!(f, "group {group} priority {priority} {domain} pattern ")?;
        self.pattern.iter().try_for_each(|item| write!(f, "{item} / "))?;
        write!(f, "end actions ")?;
        self.actions.iter().try_for_each(|action| write!(f, "{action} / "))?;
        write!(f, "end")
    }
}
