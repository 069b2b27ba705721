//! From the tables to rules: NFT, RCFT, DHTB and VLT as chained groups.
//!
//! ```text
//!  root 0       vNIC or uplink: facts of single packets that software checks on every hit
//!  9            framing, of IPv6 and out of the tunnel: sender's VTEP and network, destination MAC, VLAN
//!  NFT 1, 2     5-tuple or RoCEv2 class: count, age, class and adjacency into registers     (1 out, 2 out of the tunnel)
//!  RCFT 3, 4    queue pair: the same                                                  (3 out, 4 out of the tunnel)
//!  DHTB 5, 6    meter of a class; by colour: on, on with CE, to software
//!  VLT 7        adjacency: encapsulate or decapsulate, rewrite, out of a port
//!  8            nothing: what is sent here is software's
//! ```
//! The tunnel's header is taken off in the last group, not in the first: a packet that meets no rule on the way, or
//! that a meter turns away, comes to software as it was received, and no packet is lost between the two. An adjacency is a
//! place of the VLT and how packets go there; a location that moves changes the rules of its adjacencies, and no others.
//!
//! Knows no back end and touches no table. Frames longer than the way out are the NIC's to drop (unconfirmed), where
//! [`OffloadRefusal::Mtu`] does not exclude them; rules count what an outer frame has behind its datagram, which no sender of
//! VxLAN puts there. What a meter turns away is counted by the flow's rule before and by software after, and by a rule
//! of its own, by which the manager takes it off; it may be overtaken in software by what the meter lets through later.
//! [`meter`] is in bytes that are paid; what the device's meter sees of them, the manager works out.

mod find;
mod numbers;
mod patterns;
mod refusal;
mod shared;

pub use refusal::OffloadRefusal;

use std::net::IpAddr;

use wire::roce::RoceClass;
use wire::{Dscp, MacAddr, Qpn, protocol};

use super::arrival::{FlowOrigin, flow_of};
use crate::direction::Direction;
use crate::flow_key::{FlowKey, Scope, outer_source_port};
use crate::qos::{Class, Leaf, Tree};
use crate::snapshot::Snapshot;
use crate::vlt::{Place, SlotRef};
use find::{ArrivalTunnel, ResolvedFlow, find, roce_of};
use numbers::RegisterNumbers;
use patterns::{RoceMatch, TAG_ADJACENCY, TAG_CLASS, TAG_FRAMING, flow, frame, from, tagged};
use rules::{Action, Attr, FlowRule, Item, ItemKind, Meter};
pub use shared::meter;
use shared::{adjacencies, classes, framed, guards, roots, unassigned};

/// Groups of the rules.
pub mod group {
    /// Where packets begin: rte_flow has every packet enter group 0.
    pub const ROOT: u32 = 0;
    /// NFT, packets of vNICs.
    pub const OUT: u32 = 1;
    /// NFT, packets out of the tunnel.
    pub const IN: u32 = 2;
    /// RCFT, packets of vNICs.
    pub const QP_OUT: u32 = 3;
    /// RCFT, packets out of the tunnel.
    pub const QP_IN: u32 = 4;
    /// DHTB: a meter colours the packets of a class.
    pub const CLASS: u32 = 5;
    /// DHTB: what meters said.
    pub const COLOUR: u32 = 6;
    /// VLT: the header goes on or off, and the packet leaves.
    pub const ADJACENCY: u32 = 7;
    /// Without rules: packets that are sent here go to software as they are, from the port that they came from.
    pub const SOFTWARE: u32 = 8;
    /// Framing: what is in front of the tenant's IP header, where that and the flow do not go into one match.
    pub const FRAMING: u32 = 9;
}

/// Where the outer UDP source port comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EntropySource {
    /// As in software: an adjacency for each source port in use.
    #[default]
    Exact,
    /// The NIC's own choice, or none: one adjacency for all flows to a place. A declared difference; queue pairs may take
    /// another path than in software.
    Hardware,
}

/// Settings of the translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranslateOptions {
    /// Where the outer UDP source port comes from.
    pub entropy: EntropySource,
    /// DSCPs of tenants' packets that are offloaded, where the outer DSCP is a copy: headers in hardware are constant,
    /// so that each takes rules of its own. Packets with others stay in software.
    pub dscps: Vec<Dscp>,
    /// A flow without packets for so many seconds is reported.
    pub age: u32,
}

impl Default for TranslateOptions {
    fn default() -> Self {
        Self { entropy: EntropySource::Exact, dscps: vec![Dscp::default()], age: 30 }
    }
}

/// What a translation reads.
#[derive(Clone, Copy)]
pub struct Tables<'a> {
    /// Policy, topology and locations.
    pub snapshot: &'a Snapshot,
    /// DHTB, for the rates of the classes.
    pub tree: &'a Tree,
    /// DPDK port ids of ports that are on the e-switch.
    pub ports: &'a [Option<u16>],
    /// What the config says of offload.
    pub options: &'a TranslateOptions,
}

/// Which packets are to be offloaded: an NFT flow, narrowed to a queue pair where rules have to tell queue pairs
/// apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowSelector {
    /// Key of the NFT flow.
    pub key: FlowKey,
    /// Reliable connections: the queue pair.
    pub qpn: Option<Qpn>,
    /// RoCEv2: the UDP source port, which the key leaves out.
    pub source_port: Option<u16>,
}

/// How packets go to a place of the VLT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Adjacency {
    /// The VLT slot that says where it is.
    pub slot: SlotRef,
    /// From the tunnel (then the header comes off) or from a vNIC.
    pub direction: Direction,
    /// Outer UDP source port, where a tunnel begins.
    pub source_port: Option<u16>,
    /// New MACs (source, destination) of routed packets, whose TTL is decremented.
    pub macs: Option<(MacAddr, MacAddr)>,
    /// The packets are IPv6.
    pub ipv6: bool,
}

/// What is in front of a tenant's IP header. Addresses of IPv6 leave no room beside them in the match formats of mlx5's
/// hardware steering, so a group of its own looks at it, and later rules at the number that it puts into a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Framing {
    /// DPDK port that stands for where packets come from.
    pub from: u16,
    /// The tunnel that they come out of: the sender's VTEP, and the VNI.
    pub tunnel: Option<(IpAddr, u32)>,
    /// Destination MAC of the tenant's frame.
    pub destination: MacAddr,
    /// VLAN of the tenant's frame.
    pub vlan: Option<u16>,
    /// The tenant's packets are IPv6.
    pub ipv6: bool,
}

/// The rules of one flow, in the order in which they are made; they go in the opposite one. The last is the flow's own
/// and its gate: it counts, ages, and leads on to rules that are there by then. Without it packets go to software.
///
/// Rules with the same attributes and pattern are the same rule, which several chains may share; where the actions
/// differ, the newer chain knows better.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Rules of its adjacency.
    pub adjacencies: Vec<FlowRule>,
    /// Rules between the root and the adjacency that flows share.
    pub path: Vec<FlowRule>,
    /// The flow's own rules; the last is the gate.
    pub own: Vec<FlowRule>,
    /// The meter that the rules of the path refer to, to be set before they are made.
    pub meter: Option<(u32, Meter)>,
    /// Facts of the flow.
    pub facts: ChainFacts,
}

/// What there is to know of a chain but for its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainFacts {
    /// Bytes of each counted packet that are the tunnel's, which software does not count.
    pub tunnel_len: usize,
    /// The class that pays, where one does.
    pub leaf: Option<Leaf>,
    /// How its packets leave.
    pub adjacency: Adjacency,
    /// Its framing, where that has a number.
    pub framing: Option<Framing>,
    /// The flow that its gate matches, as the e-switch counts arrivals.
    pub flow: u64,
}

impl Chain {
    /// All rules in order.
    pub fn rules(&self) -> Vec<&FlowRule> {
        self.adjacencies.iter().chain(&self.path).chain(&self.own).collect()
    }
}

/// What the rules of a path follow from: flows with the same share them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathKey {
    scope: Scope,
    from: u16,
    routed: bool,
    ipv6: bool,
    tunnel: Option<ArrivalTunnel>,
    pub(super) framing: Option<Framing>,
    limited: Option<Leaf>,
    /// The class of its queue pairs.
    reliable: Option<RoceClass>,
}

/// A flow that can be offloaded, and what its rules are made of.
pub struct ChainPlan {
    selector: FlowSelector,
    found: ResolvedFlow,
    qpn: Option<Qpn>,
    roce: Option<RoceMatch>,
    source_port: Option<u16>,
    limited: Option<Leaf>,
    number: u32,
    framing: Option<u32>,
    /// What its path follows from.
    pub path: PathKey,
    /// Facts of the flow.
    pub facts: ChainFacts,
}

/// Makes rules, and numbers the adjacencies and framings that they share.
#[derive(Default)]
pub struct Translator {
    adjacencies: RegisterNumbers<Adjacency>,
    framings: RegisterNumbers<Framing>,
}

impl Translator {
    /// The chain of a flow.
    ///
    /// # Errors
    /// Why it stays in software.
    pub fn chain(&mut self, tables: &Tables, selector: &FlowSelector) -> Result<Chain, OffloadRefusal> {
        let plan = self.plan(tables, selector)?;
        let chain = plan.chain(tables);
        if chain.is_err() {
            self.forget(&plan.facts);
        }
        chain
    }

    /// What the chain of a flow is made of. Its adjacency and its framing have numbers then, to be [held](Self::hold) or
    /// [forgotten](Self::forget).
    ///
    /// # Errors
    /// Why it stays in software.
    pub fn plan(&mut self, tables: &Tables, selector: &FlowSelector) -> Result<ChainPlan, OffloadRefusal> {
        let found = find(tables, &selector.key)?;
        let reliable = found.decision.rcft != 0;
        // Queue pairs 0 and 1 are not connections.
        let qpn = selector.qpn.filter(|qpn| reliable && qpn.get() > 1);
        if reliable && qpn.is_none() {
            return Err(OffloadRefusal::QueuePair);
        }
        let roce = roce_of(&selector.key)?;
        if roce.is_none() && !matches!(selector.key.proto(), protocol::TCP | protocol::UDP) {
            return Err(OffloadRefusal::Protocol);
        }
        let remote = matches!(found.place, Place::Remote(_));
        let exact = remote && tables.options.entropy == EntropySource::Exact;
        let inner_port = match (roce, selector.source_port) {
            (None, _) => Some(selector.key.ports().source),
            (Some(_), port) if exact => Some(port.ok_or(OffloadRefusal::SourcePort)?),
            _ => None,
        };
        let adjacency = Adjacency {
            slot: SlotRef { slot: found.decision.slot, generation: found.decision.slot_generation },
            direction: selector.key.direction(),
            source_port: inner_port
                .filter(|_| exact)
                .map(|port| outer_source_port(selector.key.entropy(), port)),
            macs: found.decision.macs(),
            ipv6: found.family.is_v6(),
        };
        let limited = found.leaf.filter(|leaf| tables.tree.is_limited(*leaf));
        let origin =
            found.tunnel.as_ref().map_or(FlowOrigin::Port(found.from), |tunnel| FlowOrigin::Vni(tunnel.vni));
        let framing = framing(&selector.key, &found);
        let path = PathKey {
            scope: selector.key.scope(),
            from: found.from,
            routed: found.routed,
            ipv6: adjacency.ipv6,
            tunnel: found.tunnel.clone(),
            framing,
            limited,
            reliable: match (qpn, roce) {
                (Some(_), Some(RoceMatch::Class(class))) => Some(class),
                _ => None,
            },
        };
        let facts = ChainFacts {
            tunnel_len: found.tunnel.as_ref().map_or(0, |tunnel| tunnel.len),
            leaf: found.leaf,
            adjacency,
            framing,
            flow: flow_of(selector, origin),
        };
        let source_port = inner_port.filter(|_| roce.is_some());
        let number = self.adjacencies.of(adjacency);
        let framing = framing.map(|framing| self.framings.of(framing));
        Ok(ChainPlan {
            selector: *selector,
            found,
            qpn,
            roce,
            source_port,
            limited,
            number,
            framing,
            path,
            facts,
        })
    }

    /// Keeps the numbers of a chain: it was installed.
    pub fn hold(&mut self, facts: &ChainFacts) {
        self.hold_adjacency(&facts.adjacency);
        self.hold_framing(facts.framing.as_ref());
    }

    /// Keeps the number of an adjacency: its rules were made.
    pub fn hold_adjacency(&mut self, adjacency: &Adjacency) {
        self.adjacencies.hold(adjacency);
    }

    /// Keeps the number of a framing: a path with its rule was made.
    pub fn hold_framing(&mut self, framing: Option<&Framing>) {
        framing.into_iter().for_each(|framing| self.framings.hold(framing));
    }

    /// The opposite of [`hold`](Self::hold).
    pub fn release(&mut self, facts: &ChainFacts) {
        self.release_adjacency(&facts.adjacency);
        self.release_framing(facts.framing.as_ref());
    }

    /// The opposite of [`hold_adjacency`](Self::hold_adjacency).
    pub fn release_adjacency(&mut self, adjacency: &Adjacency) {
        self.adjacencies.release(adjacency);
    }

    /// The opposite of [`hold_framing`](Self::hold_framing).
    pub fn release_framing(&mut self, framing: Option<&Framing>) {
        framing.into_iter().for_each(|framing| self.framings.release(framing));
    }

    /// Forgets the numbers of a chain that was not installed, where no other holds them.
    pub fn forget(&mut self, facts: &ChainFacts) {
        self.adjacencies.forget(&facts.adjacency);
        facts.framing.iter().for_each(|framing| self.framings.forget(framing));
    }

    /// Adjacencies and framings that have a number: those that chains hold, and those of plans not decided on yet.
    pub fn numbered(&self) -> usize {
        self.adjacencies.len() + self.framings.len()
    }
}

/// The framing of a flow that has one: of IPv6, and all that comes out of a tunnel, where the outer header alone leads on
/// from the root.
fn framing(key: &FlowKey, found: &ResolvedFlow) -> Option<Framing> {
    let tunnel = found.tunnel.as_ref().map(|tunnel| (tunnel.ends.0, tunnel.vni));
    let ipv6 = found.family.is_v6();
    let framing =
        Framing { from: found.from, tunnel, destination: found.destination(key), vlan: key.vlan(), ipv6 };
    (ipv6 || tunnel.is_some()).then_some(framing)
}

fn rule(group: u32, priority: u32, pattern: Vec<Item>, actions: Vec<Action>) -> FlowRule {
    FlowRule { attr: Attr::transfer(group, priority), pattern, actions }
}

/// To software, as it was received: by way of a group that has no rules. What finds no rule on an e-switch goes to the
/// representor of where it came from; the action `port_representor`, which says the same, is in no mlx5 before DPDK 24.03
/// and with hardware steering only after it.
const TO_SOFTWARE: Action = Action::Jump { group: group::SOFTWARE };

/// What a path is made of.
pub struct PathRules {
    /// Its rules, in the order in which they are made.
    pub rules: Vec<FlowRule>,
    /// The meter that they refer to, by its id: to be set before they are made.
    pub meter: Option<(u32, Meter)>,
}

/// Items of a pattern at most: room for them is made once.
const ITEMS: usize = 12;

impl ChainPlan {
    /// All of the flow's rules.
    fn chain(&self, tables: &Tables) -> Result<Chain, OffloadRefusal> {
        let PathRules { rules: path, meter } = self.path(tables)?;
        Ok(Chain {
            adjacencies: self.adjacencies(tables)?,
            path,
            own: self.own(tables)?,
            meter,
            facts: self.facts,
        })
    }

    /// The rules of the adjacency, which follow from that alone.
    ///
    /// # Errors
    /// Why the flow stays in software.
    pub fn adjacencies(&self, tables: &Tables) -> Result<Vec<FlowRule>, OffloadRefusal> {
        adjacencies(tables, &self.found, &self.facts.adjacency, self.number)
    }

    /// The rules of the path, which follow from that alone, and the meter that they refer to.
    ///
    /// # Errors
    /// Why the flow stays in software.
    pub fn path(&self, tables: &Tables) -> Result<PathRules, OffloadRefusal> {
        let found = &self.found;
        let meter = self.limited.map(|leaf| Ok((leaf.0 + 1, meter(tables, leaf)?))).transpose()?;
        let mut rules = guards(tables, found);
        if let Some(leaf) = self.limited {
            rules.extend(classes(tables, found, leaf));
        }
        let (nft, rcft) = self.groups();
        if let Some(class) = self.path.reliable {
            rules.extend(unassigned(tables, found, class, rcft));
        }
        if let Some((framing, number)) = self.framing() {
            rules.push(framed(&framing, number, nft));
        }
        let first = if self.framing.is_some() { group::FRAMING } else { nft };
        rules.extend(roots(tables, found, first));
        Ok(PathRules { rules, meter })
    }

    fn framing(&self) -> Option<(Framing, u32)> {
        self.facts.framing.zip(self.framing)
    }

    /// Groups of the NFT and of the RCFT.
    fn groups(&self) -> (u32, u32) {
        if self.found.tunnel.is_some() { (group::IN, group::QP_IN) } else { (group::OUT, group::QP_OUT) }
    }

    /// The flow's own rules; the last is its gate.
    ///
    /// # Errors
    /// Why the flow stays in software.
    pub fn own(&self, tables: &Tables) -> Result<Vec<FlowRule>, OffloadRefusal> {
        let Self { found, limited, .. } = self;
        let (nft, rcft) = self.groups();
        let ecn_capable = limited.is_some_and(|leaf| leaf.class() == Class::Rdma);
        let whole = |source_port, ecn_capable, roce: Option<RoceMatch>| {
            let mut pattern = Vec::with_capacity(ITEMS);
            match self.framing {
                Some(number) => {
                    pattern.push(tagged(TAG_FRAMING, number));
                    if let Some(tunnel) = &found.tunnel {
                        pattern.extend(
                            [ItemKind::Eth, tunnel.outer.kind(), ItemKind::Udp, ItemKind::Vxlan]
                                .map(Item::any),
                        );
                    }
                    pattern.push(Item::any(ItemKind::Eth));
                    pattern.extend(self.selector.key.vlan().map(|_| Item::any(ItemKind::Vlan)));
                }
                None => {
                    pattern.push(from(found.from));
                    pattern.extend(frame(
                        found.destination(&self.selector.key),
                        self.selector.key.vlan(),
                        found.family,
                    ));
                }
            }
            flow(&self.selector.key, source_port, ecn_capable, &mut pattern)
                .ok_or(OffloadRefusal::Protocol)?;
            pattern.extend(roce.and_then(RoceMatch::item));
            Ok(pattern)
        };
        let on = Action::Jump { group: if limited.is_some() { group::CLASS } else { group::ADJACENCY } };
        let mut actions = Vec::with_capacity(5);
        actions.extend([Action::Count, Action::Age { timeout: tables.options.age }]);
        actions.extend(limited.map(|leaf| Action::set_tag(TAG_CLASS, leaf.0 + 1)));
        actions.extend([Action::set_tag(TAG_ADJACENCY, self.number), on]);
        match (self.qpn, self.roce) {
            (Some(qpn), Some(RoceMatch::Class(class))) => {
                // All queue pairs of the flow share this one, whatever their source ports and their ECN.
                let all = whole(None, false, self.roce)?;
                let gate = whole(self.source_port, ecn_capable, Some(RoceMatch::QueuePair(class, qpn)))?;
                let jump = rule(nft, 1, all, vec![Action::Jump { group: rcft }]);
                Ok(vec![jump, rule(rcft, 1, gate, actions)])
            }
            (_, Some(RoceMatch::Class(RoceClass::Ud))) => {
                // The connection manager's messages are UD, too, and software reads them.
                let cm = whole(self.source_port, ecn_capable, Some(RoceMatch::ConnectionManager))?;
                let gate = whole(self.source_port, ecn_capable, self.roce)?;
                Ok(vec![rule(nft, 0, cm, vec![TO_SOFTWARE]), rule(nft, 1, gate, actions)])
            }
            _ => Ok(vec![rule(nft, 1, whole(self.source_port, ecn_capable, self.roce)?, actions)]),
        }
    }
}
