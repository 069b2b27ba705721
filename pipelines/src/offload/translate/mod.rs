//! From the tables to rules: NFT, RCFT, DHTB and VLT as chained groups.
//!
//! ```text
//!  root 0       vNIC or uplink: facts of single packets that software checks on every hit
//!  1            framing, of IPv6 and out of the tunnel: sender's VTEP and network, destination MAC, VLAN; source address of a
//!               vNIC's IPv6
//!  NFT 2, 3     5-tuple or RoCEv2 class: count, age, class and adjacency into registers     (2 out, 3 out of the tunnel)
//!  4            IPv6 out of the tunnel: the same, where 3 has matched the source address alone
//!  RCFT 5, 6    queue pair: the same                                                  (5 out, 6 out of the tunnel)
//!  DHTB 7, 8    meter of a class; by colour: on, on with CE, to software
//!  VLT 9        adjacency: encapsulate or decapsulate, rewrite, out of a port
//!  10           nothing: what is sent here is software's
//! ```
//! Each rule leads to a higher group: a queue takes rules away by their groups, those of the lowest first.
//!
//! The tunnel's header is taken off in the last group, not in the first: a packet that meets no rule on the way, or
//! that a meter turns away, comes to software as it was received, and no packet is lost between the two. An adjacency is a
//! place of the VLT and how packets go there; a location that moves changes the rules of its adjacencies, and no others.
//!
//! Knows no back end and touches no table. Frames longer than the way out are the NIC's to drop (unconfirmed), where
//! [`OffloadRefusal::Mtu`] does not exclude them; rules count what an outer frame has behind its datagram, which no sender of
//! VxLAN puts there. What a meter turns away is counted by the flow's rule before and by software after, and by a rule
//! of its own, by which the manager takes it off; it may be overtaken in software by what the meter lets through later.
//! [`meter`] is in bytes that are paid; what the device's meter sees of them, the manager works out.

mod chain;
mod find;
mod framing;
mod numbers;
mod patterns;
mod refusal;
mod shared;

pub use chain::{Chain, ChainFacts, ChainPlan, PathKey, PathRules};
pub use framing::Framing;
pub(in crate::offload) use patterns::{TAG_ADJACENCY, tagged};
pub use refusal::OffloadRefusal;
pub use shared::meter;

use wire::{Dscp, MacAddr, Qpn, protocol};

use super::arrival::{FlowOrigin, flow_of};
use crate::connections::Connections;
use crate::decide::decide;
use crate::direction::Direction;
use crate::flow_key::{FlowKey, Scope, outer_source_port};
use crate::nft::FlowVerdict;
use crate::qos::Tree;
use crate::snapshot::Snapshot;
use crate::stage::dhtb::V4_TUNNEL;
use crate::vlt::{Place, SlotRef};
use chain::PlannedFlow;
use find::{find, roce_of};
use framing::FramingNumbers;
use numbers::RegisterNumbers;
use rules::{Action, Attr, FlowRule, Item};

/// Groups of the rules: each leads to higher ones only.
pub mod group {
    /// Where packets begin: rte_flow has every packet enter group 0.
    pub const ROOT: u32 = 0;
    /// Framing: what is in front of the tenant's IP header, where that and the flow do not go into one match.
    pub const FRAMING: u32 = 1;
    /// NFT, packets of vNICs.
    pub const OUT: u32 = 2;
    /// NFT, packets out of the tunnel; of IPv6 their source address.
    pub const IN: u32 = 3;
    /// NFT, IPv6 packets out of the tunnel whose source address is known: destination address and ports.
    pub const DESTINATION: u32 = 4;
    /// RCFT, packets of vNICs.
    pub const QP_OUT: u32 = 5;
    /// RCFT, packets out of the tunnel.
    pub const QP_IN: u32 = 6;
    /// DHTB: a meter colours the packets of a class.
    pub const CLASS: u32 = 7;
    /// DHTB: what meters said.
    pub const COLOUR: u32 = 8;
    /// VLT: the header goes on or off, and the packet leaves.
    pub const ADJACENCY: u32 = 9;
    /// Without rules: packets that are sent here go to software as they are, from the port that they came from.
    pub const SOFTWARE: u32 = 10;
}

/// Where the outer UDP source port comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EntropySource {
    /// As in software: an adjacency for each source port in use.
    #[default]
    Exact,
    /// The NIC's own choice, or none: one adjacency for all flows to a place. Where the NIC tells what it chooses, software
    /// follows ([`EncapHash`](crate::encap_hash::EncapHash)), and flows keep their path when they move; elsewhere that is a
    /// declared difference.
    Hardware,
    /// The same, but for RoCEv2, which is exact: the NIC tells what it chooses, and software cannot follow. A queue pair keeps its path if
    /// the NIC sends the header's port all the same (unconfirmed on hardware).
    HardwareButRoce,
}

impl EntropySource {
    /// True where rules tell the source ports of flows apart.
    pub const fn is_exact(self, roce: bool) -> bool {
        match self {
            Self::Exact => true,
            Self::Hardware => false,
            Self::HardwareButRoce => roce,
        }
    }
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
    /// Connections of vNICs in security groups; without them no flow of such a vNIC is for hardware.
    pub connections: Option<&'a Connections>,
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

impl FlowSelector {
    /// The selector of the rules that these packets meet: without the UDP source port of RoCEv2 where rules do not match
    /// it, which is everywhere but in front of a tunnel whose outer source port follows it. Flows with the same one are one
    /// flow to hardware, with one gate.
    pub fn canonical(self, tables: &Tables) -> Self {
        if self.source_port.is_none() || self.is_matched_with_source_port(tables) {
            return self;
        }
        Self { source_port: None, ..self }
    }

    fn is_matched_with_source_port(&self, tables: &Tables) -> bool {
        let is_exact = tables.options.entropy.is_exact(self.key.class() != 0);
        if !is_exact || self.key.class() == 0 || matches!(self.key.scope(), Scope::Vpc(_)) {
            return false;
        }
        let decision = decide(tables.snapshot, &self.key);
        decision.verdict == FlowVerdict::Forward
            && matches!(tables.snapshot.vlt.read(decision.slot).place, Place::Remote(_))
    }
}

/// How packets go to a place of the VLT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Adjacency {
    /// The VLT slot that says where it is.
    pub slot: SlotRef,
    /// Where a tunnel begins: a source port whose bucket of the slot's next-hop group has its way; the lowest of them.
    pub bucket: u16,
    /// From the tunnel (then the header comes off) or from a vNIC.
    pub direction: Direction,
    /// Outer UDP source port, where a tunnel begins.
    pub source_port: Option<u16>,
    /// New MACs (source, destination) of routed packets, whose TTL is decremented.
    pub macs: Option<(MacAddr, MacAddr)>,
    /// The packets are IPv6.
    pub ipv6: bool,
}

/// Makes rules, and numbers the adjacencies and framings that they share.
#[derive(Default)]
pub struct Translator {
    adjacencies: RegisterNumbers<Adjacency>,
    framings: FramingNumbers,
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
        // Keys of RoCEv2 have none: queue pairs of one flow may differ in it.
        let source_port = match selector.key.class() {
            0 => selector.key.ports().source,
            _ => selector.source_port.unwrap_or(0),
        };
        let found = find(tables, &selector.key, source_port)?;
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
        let exact = remote && tables.options.entropy.is_exact(roce.is_some());
        let inner_port = match (roce, selector.source_port) {
            (None, _) => Some(selector.key.ports().source),
            (Some(_), port) if exact => Some(port.ok_or(OffloadRefusal::SourcePort)?),
            _ => None,
        };
        let adjacency = Adjacency {
            slot: SlotRef { slot: found.decision.slot, generation: found.decision.slot_generation },
            bucket: found.bucket,
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
        let framing = Framing::of(&selector.key, &found);
        // As the stage dhtb has it.
        let link_len = match (&found.tunnel, &found.place) {
            (Some(_), _) => V4_TUNNEL,
            (None, Place::Remote(tunnel)) => u32::from(tunnel.len),
            (None, _) => 0,
        };
        let facts = ChainFacts {
            tunnel_len: found.tunnel.as_ref().map_or(0, |tunnel| tunnel.len),
            link_len,
            leaf: found.leaf,
            adjacency,
            framing,
            flow: flow_of(selector, origin),
        };
        let source_port = inner_port.filter(|_| roce.is_some());
        let number = self.adjacencies.of(adjacency);
        let framing = framing.map(|framing| self.framings.of(framing));
        let flow = PlannedFlow { key: selector.key, qpn, roce, source_port, limited };
        Ok(ChainPlan::new(found, flow, number, framing, facts))
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

fn rule(group: u32, priority: u32, pattern: Vec<Item>, actions: Vec<Action>) -> FlowRule {
    FlowRule { attr: Attr::transfer(group, priority), pattern, actions }
}

/// To software, as it was received: by way of a group that has no rules. What finds no rule on an e-switch goes to the
/// representor of where it came from; the action `port_representor`, which says the same, is in no mlx5 before DPDK 24.03
/// and with hardware steering only after it.
const TO_SOFTWARE: Action = Action::Jump { group: group::SOFTWARE };
