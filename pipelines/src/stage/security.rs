//! security: what the groups of both ends say of a packet ([`crate::security`]), and the connections that come of it.
//!
//! Called by the slow path for a flow that is new, that rests on a connection which changed, or of which a packet changes
//! its connection (SYN, FIN, RST). A flow between two vNICs of this host is judged for both, and rests on the receiver's
//! connection: TCP ends both at once.

mod ends;
mod errors;
mod queue_pairs;

use std::net::IpAddr;

use wire::roce::Bth;
use wire::roce::opcode::{Operation, OperationKind};
use wire::tcp::flags;
use wire::{MacAddr, View, icmp, icmpv6, protocol};

pub(super) use ends::prefetch;
use ends::{Side, receiver_of, sides};
pub(crate) use queue_pairs::open;

use super::Cx;
use super::neighbour::is_neighbour_protocol;
use crate::burst::{Burst, Meta};
use crate::connections::{
    ConnectionKey, ConnectionState, Connections, Found, HashedKey, Kind, Made, Phase, Record, SEEN_SHIFT,
    Versions, Watch,
};
use crate::direction::Direction;
use crate::drops::DropReason;
use crate::flow_key::{FlowKey, Scope};
use crate::nft::{Bits, FlowAction, FlowVerdict, Nft, NftEntry};
use crate::security::{self, Policy, Subject};
use crate::snapshot::{Destination, Route, RouteTarget, Snapshot};
use crate::vlt::Place;

/// How far behind its cell the generation of a flow is that is judged packet by packet.
pub(super) const PER_PACKET: u32 = 1 << 31;
/// How often a connection is looked at again that others change meanwhile.
const ATTEMPTS: u32 = 8;

/// Flags that change a connection: such packets never pass by what the NFT remembers alone.
const STEPS: u8 = flags::SYN | flags::FIN | flags::RST;

/// Before when a flow was last seen whose connection is to be noted as in use again. When ticks wrap, after 13 years, a connection
/// is noted once less.
pub(super) const fn due_before(tick: u32) -> u32 {
    tick >> SEEN_SHIFT << SEEN_SHIFT
}

/// True for a packet of a known flow that may go on without a look at its connection: that holds, takes no step, and was noted to
/// be in use a short while ago. Says so of flows that rest on none, too, or sends them to [`unsettled`], which knows better.
#[inline(always)]
pub(super) fn is_settled(versions: Versions<'_>, due_before: u32, meta: &Meta, entry: &NftEntry) -> bool {
    meta.headers.tcp_flags & STEPS == 0 && entry.last_seen >= due_before && versions.holds(entry.watch())
}

/// Of these packets that are not [settled](is_settled), those whose flow must be decided again, or whose connection takes a step. The
/// connections of the others are noted to be in use.
#[cold]
#[inline(never)]
pub(super) fn unsettled<P>(
    cx: &Cx,
    burst: &Burst<P>,
    nft: &Nft,
    connections: &Connections,
    packets: u64,
) -> u64 {
    let mut unsettled = 0;
    for i in Bits(packets) {
        let meta = &burst.metas[i];
        let entry = nft.entry(meta.entry);
        let watch = entry.watch();
        if watch.is_none() {
            continue;
        }
        if meta.headers.tcp_flags & STEPS != 0 || !connections.holds(watch) {
            unsettled |= 1 << i;
        } else {
            keep_alive(cx.snapshot, connections, &meta.key, &entry.action, cx.now.tick);
        }
    }
    unsettled
}

/// Notes on the connections of a flow that it is in use.
#[cold]
#[inline(never)]
pub(crate) fn keep_alive(
    snapshot: &Snapshot,
    connections: &Connections,
    key: &FlowKey,
    action: &FlowAction,
    tick: u32,
) {
    for Side { vnic, out } in sides(snapshot, key, action) {
        let found = ConnectionKey::of(vnic, key, out).and_then(|key| Some((key, connections.find(&key)?)));
        if let Some((key, found)) = found {
            touch(connections, &key, found.slot, out, tick);
        }
    }
}

/// What comes for a vNIC keeps no RoCEv2 alive; nor, for queue pairs, does what it sends, which the RCFT may refuse: control knows
/// which of them that has ([`open`]).
fn touch(connections: &Connections, key: &ConnectionKey, slot: u32, out: bool, tick: u32) {
    let keeps_alive = match key.kind() {
        Kind::QueuePairs => false,
        Kind::UnreliableRdma => out,
        Kind::Tcp | Kind::Icmp | Kind::Other => true,
    };
    if keeps_alive {
        connections.touch(slot, tick);
    }
}

/// What is said of a packet and of its flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judgement {
    /// Why it is dropped.
    pub refused: Option<DropReason>,
    /// What that rests on.
    pub watch: Watch,
    /// The next packet of the flow need not be judged.
    pub lasts: bool,
    /// The sender's connection is [opened](open) once the RCFT has admitted the packet's queue pair.
    pub opens: bool,
}

impl Judgement {
    const PASSES: Self = Self { refused: None, watch: Watch::NONE, lasts: true, opens: false };

    /// The decision with what is said of it.
    pub fn applied(self, snapshot: &Snapshot, meta: &Meta, mut action: FlowAction) -> FlowAction {
        if let Some(reason) = self.refused {
            action.verdict = FlowVerdict::Drop;
            action.reason = reason.index() as u8;
            // A station that comes may be in a group that is let in.
            if let Some(vpc) = snapshot.vpc(meta.vpc) {
                action.cell = vpc.topology_cell;
                action.generation = snapshot.generation(action.cell);
            }
        }
        if !self.lasts {
            action.generation = snapshot.generation(action.cell).wrapping_sub(PER_PACKET);
        }
        action
    }
}

/// Judges a packet that a decision would send on.
#[inline(never)]
pub(super) fn judge(
    cx: &Cx,
    connections: &Connections,
    meta: &Meta,
    head: &[u8],
    action: &FlowAction,
) -> Judgement {
    let is_judged = matches!(action.verdict, FlowVerdict::Forward | FlowVerdict::Flood);
    // Neighbour discovery stays on its link (RFC 4861): what the router is to send on is none.
    let is_neighbours = is_neighbour_protocol(&meta.headers) && action.rewrite == 0;
    if !is_judged || is_neighbours {
        return Judgement::PASSES;
    }
    let end = |side: Side| {
        let row = cx.snapshot.row(side.vnic);
        let policy = cx.snapshot.security.policy(row.group_set)?;
        Some(End { cx, connections, meta, head, side, vpc: row.vpc, policy })
    };
    let sender = match meta.key.scope() {
        Scope::Vnic(vnic) => end(Side { vnic, out: true }),
        Scope::Vpc(_) => None,
    };
    let receiver = receiver_of(cx.snapshot, action).and_then(|vnic| end(Side { vnic, out: false }));
    let Some(sender) = sender else {
        return receiver.map_or(Judgement::PASSES, |receiver| receiver.judge(receiver.key().as_ref()));
    };
    let Some(receiver) = receiver else { return sender.judge_sender(action) };
    let key = receiver.key();
    if let Some(key) = &key {
        // Loaded while the sender is judged.
        connections.prefetch(key.chain());
    }
    let sent = sender.judge_sender(action);
    if sent.refused.is_some() {
        return sent;
    }
    let got = receiver.judge(key.as_ref());
    let watch = if got.watch.is_none() { sent.watch } else { got.watch };
    Judgement { watch, lasts: sent.lasts && got.lasts, opens: sent.opens || got.opens, ..got }
}

/// True when a copy of a flooded packet may go to a place: of connections nothing is known there, so it goes by rules. What
/// neighbours ask each other always may.
pub(super) fn admits_copy(cx: &Cx, meta: &Meta, place: Place) -> bool {
    let Place::Local { vnic } = place else { return true };
    let row = cx.snapshot.row(vnic);
    let Some(policy) = cx.snapshot.security.policy(row.group_set) else { return true };
    if is_neighbour_protocol(&meta.headers) {
        return true;
    }
    let peer = meta.key.addresses().map(|ip| ip.source);
    let groups = || peer_groups(cx.snapshot, row.vpc, peer);
    policy.of(Direction::In).allows(&subject(&meta.key, peer, true, None), groups)
}

/// A flow as rules see it. `by_opener`: the packet is of the side that opened it; `note`: type and code of the first packet
/// of ICMP.
fn subject(key: &FlowKey, peer: Option<IpAddr>, by_opener: bool, note: Option<u16>) -> Subject {
    let ports = key.ports();
    let port = match key.proto() {
        protocol::ICMP | protocol::ICMPV6 => note.unwrap_or(ports.source),
        _ if by_opener => ports.destination,
        _ => ports.source,
    };
    Subject { peer, proto: key.proto(), port, rdma: key.class() != 0 }
}

/// The groups of the other end, as a VPC sees it.
fn peer_groups(snapshot: &Snapshot, vpc: u32, peer: Option<IpAddr>) -> &[u32] {
    peer.map_or(&[], |peer| security::groups_at(snapshot, vpc, peer))
}

/// One end of a packet's way, whose groups are asked.
struct End<'a> {
    cx: &'a Cx<'a>,
    connections: &'a Connections,
    meta: &'a Meta,
    head: &'a [u8],
    side: Side,
    vpc: u32,
    policy: &'a Policy,
}

impl End<'_> {
    /// The key of the packet's connection; `None` for what is not IP.
    #[inline]
    fn key(&self) -> Option<HashedKey> {
        let Side { vnic, out } = self.side;
        let key = ConnectionKey::of(vnic, &self.meta.key, out)?;
        Some(self.connections.hashed(key))
    }

    /// [`judge`](Self::judge) of who sends the packet.
    #[inline]
    fn judge_sender(&self, action: &FlowAction) -> Judgement {
        if self.goes_where_its_address_is(action) {
            self.judge(self.key().as_ref())
        } else {
            self.refused(Watch::NONE, false)
        }
    }

    /// Judges a packet by its [`key`](Self::key).
    fn judge(&self, key: Option<&HashedKey>) -> Judgement {
        let (Some(ip), Some(key)) = (self.meta.key.addresses(), key) else {
            return self.by_rules_alone(true);
        };
        if self.meta.key.is_icmp_error() {
            return self.judge_error();
        }
        let is_broadcast = self.meta.key.dst_mac() == MacAddr::BROADCAST;
        if ip.destination.is_multicast() || is_broadcast {
            return self.by_rules_alone(true);
        }
        // Read before the table: what a worker enters meanwhile makes it void.
        let refusal = self.connections.refusal(self.side.vnic);
        for _ in 0..ATTEMPTS {
            let Some(found) = self.connections.find_hashed(key) else { return self.unknown(key, refusal) };
            if let Some(judgement) = self.known(key.key(), found, refusal) {
                return judgement;
            }
        }
        self.refused(Watch::NONE, false)
    }

    fn is_tcp(&self) -> bool {
        self.meta.key.proto() == protocol::TCP && self.meta.key.class() == 0
    }

    fn tcp_flags(&self) -> u8 {
        if self.is_tcp() { self.meta.headers.tcp_flags } else { 0 }
    }

    /// True for an ICMP message of a type, by the numbers of ICMP and ICMPv6.
    fn is_icmp(&self, v4: u8, v6: u8) -> bool {
        let kind = (self.meta.key.ports().source >> 8) as u8;
        match self.meta.key.proto() {
            protocol::ICMP => kind == v4,
            protocol::ICMPV6 => kind == v6,
            _ => false,
        }
    }

    /// True for a packet that asks and does not answer: a SYN, an echo request.
    fn begins(&self) -> bool {
        self.tcp_flags() & (flags::SYN | flags::ACK) == flags::SYN
            || self.is_icmp(icmp::kind::ECHO_REQUEST, icmpv6::kind::ECHO_REQUEST)
    }

    fn is_echo_reply(&self) -> bool {
        self.is_icmp(icmp::kind::ECHO_REPLY, icmpv6::kind::ECHO_REPLY)
    }

    /// True for a packet that may open a connection, if rules allow it: of TCP a SYN, of RoCEv2 what no answer is, of an echo the
    /// request. So what is still on its way as an answer when a rule goes does not open in the other direction what the rule has
    /// closed. Of other protocols every packet may; [`known`](Self::known) keeps their answers from it.
    fn opens(&self) -> bool {
        if self.meta.key.class() != 0 {
            let payload = self.meta.headers.payload(self.head);
            let operation = Bth::view(payload).and_then(|(bth, _)| Operation::of(bth.opcode));
            return operation.is_none_or(|operation| operation.kind() == OperationKind::Request);
        }
        if self.is_tcp() { self.begins() } else { !self.is_echo_reply() }
    }

    /// True when rules allow the flow to who opened it: this end or its peer.
    fn allows(&self, opened_here: bool, note: Option<u16>) -> bool {
        self.allows_flow(&self.meta.key, self.side.out, opened_here, note)
    }

    /// The same of another flow of this end, which it sends (`out`) or gets.
    fn allows_flow(&self, key: &FlowKey, out: bool, opened_here: bool, note: Option<u16>) -> bool {
        let peer = key.addresses().map(|ip| if out { ip.destination } else { ip.source });
        let by_opener = opened_here == out;
        let direction = if opened_here { Direction::Out } else { Direction::In };
        let groups = || peer_groups(self.cx.snapshot, self.vpc, peer);
        self.policy.of(direction).allows(&subject(key, peer, by_opener, note), groups)
    }

    fn refused(&self, watch: Watch, lasts: bool) -> Judgement {
        let reason = if self.side.out { DropReason::SECURITY_OUT } else { DropReason::SECURITY_IN };
        Judgement { refused: Some(reason), watch, lasts, opens: false }
    }

    /// What has no connection.
    fn by_rules_alone(&self, lasts: bool) -> Judgement {
        if self.allows(self.side.out, None) {
            Judgement { lasts, ..Judgement::PASSES }
        } else {
            self.refused(Watch::NONE, lasts)
        }
    }

    fn unknown(&self, key: &HashedKey, refusal: Watch) -> Judgement {
        // Never by an answer: whoever sends one may make it up, and rules let nobody begin that way.
        let is_under_way = self.is_tcp() && self.connections.picks_up(self.side.vnic, self.cx.now.tick);
        if !((self.opens() || is_under_way) && self.allows(self.side.out, None)) {
            if self.notifies_of_congestion() {
                return Judgement { lasts: false, ..Judgement::PASSES };
            }
            // Of queue pairs, requests and answers are one flow.
            return self.refused(refusal, self.meta.key.class() == 0);
        }
        if self.waits_for_its_queue_pair() {
            return self.opens_later();
        }
        let state = self.opened();
        if self.tcp_flags() & flags::RST != 0 {
            return Judgement { lasts: false, ..Judgement::PASSES };
        }
        let record = Record { state, epoch: self.cx.snapshot.security.epoch };
        match self.connections.make_hashed(key, record, self.cx.now) {
            Made::In(watch) => self.rests_on(watch, state),
            Made::Leaving => Judgement { lasts: false, ..Judgement::PASSES },
            Made::Refused => {
                let refused = Some(DropReason::CONNECTION_LIMIT);
                Judgement { refused, lasts: false, ..Judgement::PASSES }
            }
        }
    }

    /// A connection that this packet opens.
    fn opened(&self) -> ConnectionState {
        let is_icmp = matches!(self.meta.key.proto(), protocol::ICMP | protocol::ICMPV6);
        let note = if is_icmp { self.meta.key.ports().source } else { 0 };
        ConnectionState::opened(self.side.out, self.tcp_flags(), self.is_tcp(), note)
    }

    fn rests_on(&self, watch: Watch, state: ConnectionState) -> Judgement {
        Judgement { watch, lasts: !self.is_tcp() || state.is_settled(), ..Judgement::PASSES }
    }

    /// A packet of a connection that is known; `None` when another worker has changed that meanwhile.
    #[inline(never)]
    fn known(&self, key: &ConnectionKey, found: Found, refusal: Watch) -> Option<Judgement> {
        let connections = self.connections;
        let Found { slot, watch, record } = found;
        let record = self.up_to_date(slot, record)?;
        let Record { state, epoch } = record;
        let tcp_flags = self.tcp_flags();
        let by_opener = state.is_out() == self.side.out;
        let begins = self.begins();
        let is_over = state.phase() == Phase::Reset || state.phase() == Phase::TimeWait && begins;
        if is_over && !by_opener && !begins && !self.is_tcp() && self.meta.key.class() == 0 {
            // Of UDP and the like an answer looks like a question: as long as the other side of a flow that rules have ended goes
            // on with it, it opens no new one.
            connections.remember(slot, self.cx.now.tick);
            return Some(self.refused(refusal, false));
        }
        if is_over || begins && !by_opener {
            // As if it were the first of a connection, and not a reply.
            if !self.opens() || !self.allows(self.side.out, None) {
                return Some(self.refused(refusal, tcp_flags == 0 && self.meta.key.class() == 0));
            }
            if !is_over {
                return Some(Judgement { lasts: false, ..Judgement::PASSES });
            }
            if self.waits_for_its_queue_pair() {
                return Some(self.opens_later());
            }
            let state = self.opened();
            let anew = Record { state, epoch: self.cx.snapshot.security.epoch };
            connections.change(slot, record, anew).then_some(())?;
            connections.opened(self.side.vnic);
            connections.touch(slot, self.cx.now.tick);
            return Some(self.rests_on(watch, state));
        }
        let next =
            if self.is_tcp() { state.after_tcp(tcp_flags, by_opener) } else { state.after_other(by_opener) };
        if next != state {
            connections.change(slot, record, Record { state: next, epoch }).then_some(())?;
        }
        touch(connections, key, slot, self.side.out, self.cx.now.tick);
        Some(self.rests_on(watch, next))
    }

    /// What is known of a connection once it was held against the rules of this snapshot, where those are newer. A worker that
    /// has an older one takes the word of whoever has the newer.
    fn up_to_date(&self, slot: u32, record: Record) -> Option<Record> {
        let epoch = self.cx.snapshot.security.epoch;
        let age = epoch.wrapping_sub(record.epoch);
        if age == 0 || age > u32::MAX / 2 {
            return Some(record);
        }
        let stands = self.allows(record.state.is_out(), Some(record.state.note()));
        let state = if stands { record.state } else { record.state.with_phase(Phase::Reset) };
        let now = Record { state, epoch };
        self.connections.change(slot, record, now).then_some(now)
    }

    /// False for a packet that this end sends in a frame to another station than the one that is known to have its destination
    /// address, or that the VPC routes the address to: rules judge by the address who gets it.
    fn goes_where_its_address_is(&self, action: &FlowAction) -> bool {
        let snapshot = self.cx.snapshot;
        let Some(ip) = self.meta.key.addresses() else { return true };
        let is_bridged = action.verdict == FlowVerdict::Forward && action.rewrite == 0;
        if !is_bridged || self.policy.of(Direction::Out).allows_all() {
            return true;
        }
        let Some(station) = snapshot.location(self.vpc, Destination::Ip(ip.destination)) else { return true };
        let mac = self.meta.key.dst_mac();
        let place = |slot: u32| snapshot.vlt.read(slot).place;
        let route = || snapshot.vpc(self.vpc)?.route(ip.destination);
        // A vNIC of this host may have several MAC addresses.
        station.mac == mac
            || matches!(place(action.slot), here @ Place::Local { .. } if here == place(station.slot.slot))
            || matches!(route(), Some(Route::Via(_, RouteTarget::Station(router))) if *router == mac)
    }
}
