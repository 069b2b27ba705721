//! Chains: the rules of one flow, and what they follow from.

use wire::Qpn;
use wire::roce::RoceClass;

use super::find::{ArrivalTunnel, ResolvedFlow};
use super::framing::NumberedFraming;
use super::patterns::{RoceMatch, TAG_ADJACENCY, TAG_CLASS, flow, frame, from};
use super::shared::{adjacencies, classes, guards, roots, unassigned};
use super::{Adjacency, Framing, OffloadRefusal, TO_SOFTWARE, Tables, group, meter, rule};
use crate::flow_key::{FlowKey, Scope};
use crate::qos::{Class, Leaf};
use crate::vlt::Place;
use rules::{Action, FlowRule, Item, Meter};

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
    /// Bytes of the tunnel's headers around each packet on the link, which nobody but the link pays for.
    pub link_len: u32,
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
    pub(in crate::offload) framing: Option<Framing>,
    limited: Option<Leaf>,
    /// The class of its queue pairs.
    reliable: Option<RoceClass>,
}

/// A flow, as its own rules match it.
pub(super) struct PlannedFlow {
    pub key: FlowKey,
    /// The queue pair, of reliable connections.
    pub qpn: Option<Qpn>,
    pub roce: Option<RoceMatch>,
    /// The UDP source port of RoCEv2, where that is matched.
    pub source_port: Option<u16>,
    /// The class that has a rate.
    pub limited: Option<Leaf>,
}

impl PlannedFlow {
    /// The class whose queue pairs it is one of.
    fn reliable(&self) -> Option<(RoceClass, Qpn)> {
        match (self.qpn, self.roce) {
            (Some(qpn), Some(RoceMatch::Class(class))) => Some((class, qpn)),
            _ => None,
        }
    }
}

/// A flow that can be offloaded, and what its rules are made of.
pub struct ChainPlan {
    found: ResolvedFlow,
    flow: PlannedFlow,
    /// The adjacency's.
    number: u32,
    framing: Option<NumberedFraming>,
    /// What its path follows from.
    pub path: PathKey,
    /// Facts of the flow.
    pub facts: ChainFacts,
}

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
    pub(super) fn new(
        found: ResolvedFlow,
        flow: PlannedFlow,
        number: u32,
        framing: Option<NumberedFraming>,
        facts: ChainFacts,
    ) -> Self {
        let reliable = flow.reliable().map(|(class, _)| class);
        // Of queue pairs the source, where that has a rule of its own, is no part of the path.
        let before =
            facts.framing.filter(|_| reliable.is_some()).and_then(|framing| framing.without_source());
        let path = PathKey {
            scope: flow.key.scope(),
            from: found.from,
            routed: found.routed,
            ipv6: found.family.is_v6(),
            tunnel: found.tunnel.clone(),
            framing: before.or(facts.framing),
            limited: flow.limited,
            reliable,
        };
        Self { found, flow, number, framing, path, facts }
    }

    /// True when its packets go into a tunnel.
    pub fn enters_tunnel(&self) -> bool {
        matches!(self.found.place, Place::Remote(_))
    }

    /// All of the flow's rules.
    pub(super) fn chain(&self, tables: &Tables) -> Result<Chain, OffloadRefusal> {
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
        let limited = self.flow.limited;
        let meter = limited.map(|leaf| Ok((leaf.0 + 1, meter(tables, leaf)?))).transpose()?;
        let mut rules = guards(tables, found);
        if let Some(leaf) = limited {
            rules.extend(classes(tables, found, leaf));
        }
        let (nft, rcft) = self.groups();
        match self.flow.reliable() {
            Some((class, _)) => rules.extend(unassigned(tables, found, class, rcft)),
            None => rules.extend(self.framing.as_ref().and_then(|framing| framing.source_rule(nft))),
        }
        rules.extend(self.framing.as_ref().map(|framing| framing.rule(nft)));
        let first = if self.framing.is_some() { group::FRAMING } else { nft };
        rules.extend(roots(tables, found, first));
        Ok(PathRules { rules, meter })
    }

    /// Groups of the NFT and of the RCFT.
    fn groups(&self) -> (u32, u32) {
        if self.found.tunnel.is_some() { (group::IN, group::QP_IN) } else { (group::OUT, group::QP_OUT) }
    }

    /// Packets of the flow, from this source port if one is named.
    fn pattern(
        &self,
        source_port: Option<u16>,
        ecn_capable: bool,
        roce: Option<RoceMatch>,
    ) -> Result<Vec<Item>, OffloadRefusal> {
        let (found, key) = (&self.found, &self.flow.key);
        let mut pattern = Vec::with_capacity(ITEMS);
        match &self.framing {
            Some(framing) => framing.begin(&mut pattern),
            None => {
                pattern.push(from(found.from));
                pattern.extend(frame(found.destination, key.vlan(), found.family));
            }
        }
        flow(key, source_port, ecn_capable, &mut pattern).ok_or(OffloadRefusal::Protocol)?;
        pattern.extend(roce.and_then(RoceMatch::item));
        Ok(pattern)
    }

    /// The flow's own rules; the last is its gate.
    ///
    /// # Errors
    /// Why the flow stays in software.
    pub fn own(&self, tables: &Tables) -> Result<Vec<FlowRule>, OffloadRefusal> {
        let PlannedFlow { roce, source_port, limited, .. } = self.flow;
        let ecn_capable = limited.is_some_and(|leaf| leaf.class() == Class::Rdma);
        let on = Action::Jump { group: if limited.is_some() { group::CLASS } else { group::ADJACENCY } };
        let mut actions = Vec::with_capacity(5);
        actions.extend([Action::Count, Action::Age { timeout: tables.options.age }]);
        actions.extend(limited.map(|leaf| Action::set_tag(TAG_CLASS, leaf.0 + 1)));
        actions.extend([Action::set_tag(TAG_ADJACENCY, self.number), on]);
        let (nft, rcft) = self.groups();
        if let Some((class, qpn)) = self.flow.reliable() {
            let gate = self.pattern(source_port, ecn_capable, Some(RoceMatch::QueuePair(class, qpn)))?;
            return Ok(vec![self.to_rcft(class, nft, rcft)?, rule(rcft, 1, gate, actions)]);
        }
        let is_split = self.framing.as_ref().is_some_and(NumberedFraming::is_split);
        let nft = if is_split { group::DESTINATION } else { nft };
        let mut own = Vec::with_capacity(2);
        if let Some(RoceMatch::Class(RoceClass::Ud)) = roce {
            // The connection manager's messages are UD, too, and software reads them.
            let cm = self.pattern(source_port, ecn_capable, Some(RoceMatch::ConnectionManager))?;
            own.push(rule(nft, 0, cm, vec![TO_SOFTWARE]));
        }
        own.push(rule(nft, 1, self.pattern(source_port, ecn_capable, roce)?, actions));
        Ok(own)
    }

    /// The rule of the NFT in front of queue pairs: all of the flow's share it, whatever their source ports and their ECN; where
    /// it has room for the source address alone, all from there.
    fn to_rcft(&self, class: RoceClass, nft: u32, rcft: u32) -> Result<FlowRule, OffloadRefusal> {
        let port = self.flow.key.ports().destination;
        let source = self.framing.as_ref();
        let source = source.and_then(|framing| framing.reliable_source_rule(nft, port, class, rcft));
        if let Some(source) = source {
            return Ok(source);
        }
        let all = self.pattern(None, false, self.flow.roce)?;
        Ok(rule(nft, 1, all, vec![Action::Jump { group: rcft }]))
    }
}
