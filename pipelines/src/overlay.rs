//! The overlay: a burst's way from rx to tx, between vNICs and the tunnel.
//!
//! [`Overlay::run`] is the house's hallway: it calls the stages one after another and does nothing itself.

use std::sync::Arc;

use wire::PacketBuf;

use crate::burst::{Burst, MAX_BURST};
use crate::connections::WorkerConnections;
use crate::counters::PipelineCounters;
use crate::direction::Direction;
use crate::drops::DropReason;
use crate::event::Events;
use crate::fragments::Fragments;
use crate::hot::{self, Hints};
use crate::miss::MissLimits;
use crate::nft::{Nft, NftParams};
use crate::offload::translate::FlowSelector;
use crate::qos::{Dhtb, Leaf, RedProfile};
use crate::rcft::Rcft;
use crate::snapshot::{NO_PORT, PortIndex, PortRole, PortRow, Snapshot};
use crate::stage::dhtb::Parked;
use crate::stage::fast_inner::{self, Read};
use crate::stage::key::RoceMasks;
use crate::stage::rcft::{RoceBurst, RoceTables};
use crate::stage::slow_path::SlowTables;
use crate::stage::{
    Cx, bind, dhtb, forward, guard, host, key, lookup, mtu, neighbour, outer, parse, rcft, security,
    slow_path, super_frame, underlay,
};
use crate::watch::{Stage, StageWatch};
use crate::{Now, Sink};
use rules::Usage;

/// Entries that aging looks at per poll.
const AGE_BUDGET: usize = 8;

/// Sizes of one worker's overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlayConfig {
    /// Entries, idle time and seed of the NFT.
    pub nft: NftParams,
    /// vNICs that may be configured at a time: rows are made for so many.
    pub vnics: usize,
    /// VPCs that may be configured at a time.
    pub vpcs: usize,
}

/// What the overlay of a worker is put together from. `fragments`, `events`, and what `rcft` and `dhtb` refer to, all
/// workers share.
pub struct OverlayParts<P> {
    /// First fragments, by which later ones are known.
    pub fragments: Arc<Fragments>,
    /// The worker's part of the connection table.
    pub connections: WorkerConnections,
    /// The worker's part of the RC flow table.
    pub rcft: Rcft,
    /// The worker's part of the token buckets.
    pub dhtb: Dhtb<Parked<P>>,
    /// Where control hears of what happens.
    pub events: Events,
    /// The worker's own counters.
    pub counters: Arc<PipelineCounters>,
}

/// What one worker holds to forward the overlay.
pub struct Overlay<P> {
    nft: Nft,
    fragments: Arc<Fragments>,
    limits: MissLimits,
    connections: WorkerConnections,
    rcft: Rcft,
    said: RoceBurst,
    dhtb: Dhtb<Parked<P>>,
    /// Packets that have waited, on their way on.
    released: Burst<P>,
    events: Events,
    counters: Arc<PipelineCounters>,
    /// Where it tells of flows, while somebody listens.
    hints: Option<Hints>,
}

impl<P: PacketBuf> Overlay<P> {
    /// The overlay of one worker. `advise` is told the address ranges of large tables before they are touched: start and
    /// length in bytes.
    pub fn new(config: &OverlayConfig, parts: OverlayParts<P>, advise: &dyn Fn(usize, usize)) -> Self {
        let OverlayParts { fragments, connections, rcft, dhtb, events, counters } = parts;
        Self {
            nft: Nft::new(config.nft, advise).shared_by(config.vnics, config.vpcs),
            fragments,
            limits: MissLimits::new(config.vnics, config.vpcs),
            connections,
            rcft,
            said: RoceBurst::default(),
            dhtb,
            released: Burst::default(),
            events,
            counters,
            hints: None,
        }
    }

    /// Tells of flows from now on, or no more.
    pub fn set_hints(&mut self, hints: Option<Hints>) {
        self.hints = hints;
    }

    /// What was counted of a flow in all; `None` when it is not known here.
    pub fn usage(&self, selector: &FlowSelector) -> Option<Usage> {
        hot::usage(&self.nft, &self.rcft, selector)
    }

    /// Adds what hardware did of a flow to its entries and to the vNICs' counters, and keeps it from aging. `false`
    /// when the flow is not known here.
    pub fn account(&mut self, snapshot: &Snapshot, selector: &FlowSelector, usage: Usage, now: Now) -> bool {
        let known =
            hot::account(&mut self.nft, &mut self.rcft, &self.counters, snapshot, selector, usage, now);
        if known && usage.packets > 0 && !snapshot.security.is_off() {
            let slot = self.nft.find(&selector.key, selector.key.hash(self.nft.seed()));
            let action = &self.nft.entry(slot).action;
            security::keep_alive(snapshot, &self.connections.shared, &selector.key, action, now.tick);
        }
        known
    }

    /// The flow table.
    pub fn nft(&self) -> &Nft {
        &self.nft
    }

    /// The flow table, to change it.
    pub fn nft_mut(&mut self) -> &mut Nft {
        &mut self.nft
    }

    /// The RC flow table.
    pub fn rcft(&self) -> &Rcft {
        &self.rcft
    }

    /// The RC flow table, to change it.
    pub fn rcft_mut(&mut self) -> &mut Rcft {
        &mut self.rcft
    }

    /// The worker's counters, which others may read at any time.
    pub fn counters(&self) -> &PipelineCounters {
        &self.counters
    }

    /// Forwards a burst that was received from `port`. Afterwards nothing is pending.
    #[inline]
    pub fn run<S: Sink<P>>(
        &mut self,
        snapshot: &Snapshot,
        now: Now,
        port: PortIndex,
        burst: &mut Burst<P>,
        sink: &mut S,
    ) {
        self.run_watched(snapshot, now, port, burst, sink, &mut ());
    }

    /// [`run`](Self::run), watched stage by stage.
    #[inline(always)]
    pub fn run_watched<S: Sink<P>, W: StageWatch>(
        &mut self,
        snapshot: &Snapshot,
        now: Now,
        port: PortIndex,
        burst: &mut Burst<P>,
        sink: &mut S,
        watch: &mut W,
    ) {
        watch.start();
        let cx = Cx { snapshot, counters: &self.counters, events: &self.events, now, port };
        cx.counters.received.add(u64::from(burst.pending.count_ones()));
        let row = snapshot.ports.get(usize::from(port)).copied().unwrap_or_default();
        let tables = ReadTables { fragments: &self.fragments, nft: &self.nft };
        let tunnels = matches!(row.role, PortRole::Uplink(_));
        let mut roce = match row.role {
            PortRole::Uplink(index) => from_wire(&cx, burst, index, row, tables, sink, watch),
            PortRole::Punt(index) => from_host(&cx, burst, index, sink),
            PortRole::Unbound | PortRole::Vnic(_) | PortRole::Trunk(_) => {
                from_vnic(&cx, burst, row, tables, &mut self.limits, sink, watch)
            }
        };
        let n = burst.pending.count_ones();
        if n == 0 {
            return;
        }
        let connections = &*self.connections.shared;
        let misses = lookup::run(&cx, burst, &self.nft, connections, tunnels);
        watch.lap(Stage::Lookup, n);
        if misses != 0 {
            let tables = SlowTables { nft: &mut self.nft, limits: &mut self.limits, connections };
            roce.opening = slow_path::run(&cx, burst, tables, misses, false);
            watch.lap(Stage::SlowPath, misses.count_ones());
        }
        if roce != RoceMasks::default() {
            let (rcft, said, nft) = (&mut self.rcft, &mut self.said, &mut self.nft);
            let tables = RoceTables { rcft, said, nft, connections };
            let direction = if tunnels { Direction::In } else { Direction::Out };
            rcft::run(&cx, burst, tables, direction, roce, sink);
            watch.lap(Stage::Rcft, n);
        }
        let n = burst.pending.count_ones();
        dhtb::run(&cx, burst, &mut self.dhtb, &self.nft);
        watch.lap(Stage::Dhtb, n);
        if let Some(hints) = &mut self.hints {
            hints.pick(burst, &self.nft);
        }
        let n = burst.pending.count_ones();
        forward::run(&cx, burst, &mut self.nft, &mut self.limits, sink);
        watch.lap(Stage::Forward, n);
    }

    /// Sends on what has waited for tokens and has them now, at most a burst of it. `true`: there may be more.
    #[inline(always)]
    pub fn release<S: Sink<P>>(&mut self, snapshot: &Snapshot, now: Now, sink: &mut S) -> bool {
        self.dhtb.waiting() != 0 && self.go_on(snapshot, now, sink, |dhtb, red| dhtb.release(red, now.ns))
    }

    /// Sends on what waits, tokens or not: the worker ends.
    pub fn flush<S: Sink<P>>(&mut self, snapshot: &Snapshot, now: Now, sink: &mut S) {
        while self
            .go_on(snapshot, now, sink, |dhtb, _| dhtb.flush().map(|(parked, leaf)| (parked, leaf, false)))
        {
        }
    }

    #[inline(never)]
    fn go_on<S: Sink<P>>(
        &mut self,
        snapshot: &Snapshot,
        now: Now,
        sink: &mut S,
        mut next: impl FnMut(&mut Dhtb<Parked<P>>, &RedProfile) -> Option<(Parked<P>, Leaf, bool)>,
    ) -> bool {
        let burst = &mut self.released;
        // No port: what is sent back to a vNIC goes to the vNIC's own.
        let cx = Cx { snapshot, counters: &self.counters, events: &self.events, now, port: NO_PORT };
        let (mut n, mut stale, mut super_frames) = (0, 0u64, 0u64);
        while n < MAX_BURST {
            let Some((mut parked, leaf, marked)) = next(&mut self.dhtb, &snapshot.settings.red) else {
                break;
            };
            if marked {
                dhtb::mark(&cx, &mut parked.packet, &mut parked.meta, self.dhtb.tree(), leaf);
            }
            stale |= u64::from(!parked.has_valid_indices(&cx)) << n;
            super_frames |= u64::from(super_frame::of(&parked.packet, &parked.meta.headers).is_some()) << n;
            self.nft.prefetch(parked.meta.hash);
            burst.packets[n] = Some(parked.packet);
            burst.metas[n] = parked.meta;
            n += 1;
        }
        if n == 0 {
            return false;
        }
        cx.counters.waiting.set(u64::from(self.dhtb.waiting()));
        burst.begin(n);
        burst.super_frames = super_frames;
        for i in (0..n).filter(|i| stale & 1 << i != 0) {
            burst.drop(i, DropReason::PORT_UNBOUND, cx.counters);
        }
        let connections = &*self.connections.shared;
        let misses = lookup::run(&cx, burst, &self.nft, connections, true);
        if misses != 0 {
            let tables = SlowTables { nft: &mut self.nft, limits: &mut self.limits, connections };
            let opening = slow_path::run(&cx, burst, tables, misses, true);
            if opening != 0 {
                // The RCFT has admitted them before they waited.
                security::open(&cx, burst, &mut self.nft, connections, opening);
            }
        }
        forward::run(&cx, burst, &mut self.nft, &mut self.limits, sink);
        n == MAX_BURST
    }

    /// When something that waits is looked at, nanoseconds of the worker's clock.
    #[inline(always)]
    pub fn next_due_ns(&self) -> Option<u64> {
        self.dhtb.next_due_ns()
    }

    /// The token buckets.
    pub fn dhtb(&self) -> &Dhtb<Parked<P>> {
        &self.dhtb
    }

    /// Work between bursts: aging of a few entries, and what control takes out of shared tables.
    #[inline]
    pub fn idle(&mut self, now: Now) {
        self.nft.age(now.tick, AGE_BUDGET);
        self.rcft.tend(now);
        self.connections.tend();
    }
}

/// What reading a packet takes.
#[derive(Clone, Copy)]
struct ReadTables<'a> {
    fragments: &'a Fragments,
    nft: &'a Nft,
}

/// From an uplink to the keys of the inner packets. Returns which of them are RoCEv2, as its two neighbours do.
#[inline]
fn from_wire<P: PacketBuf, S: Sink<P>, W: StageWatch>(
    cx: &Cx,
    burst: &mut Burst<P>,
    index: u16,
    row: PortRow,
    tables: ReadTables,
    sink: &mut S,
    watch: &mut W,
) -> RoceMasks {
    let Some(uplink) = cx.snapshot.uplink(index) else {
        bind::run(cx, burst, PortRole::Unbound);
        return RoceMasks::default();
    };
    // A NIC writes to memory, or to a cache far from the core; what vNICs send, the core has copied itself.
    for packet in burst.pending().filter_map(|i| burst.packets[i].as_ref()) {
        packet.prefetch();
    }
    let n = burst.pending.count_ones();
    let others = outer::run(cx, burst, uplink, row.partial_checksums);
    watch.lap(Stage::Outer, n);
    if others != 0 {
        underlay::run(cx, burst, others, index, uplink, sink);
        watch.lap(Stage::Underlay, others.count_ones());
    }
    let n = burst.pending.count_ones();
    let read =
        if row.partial_checksums { Read::default() } else { fast_inner::from_tunnels(cx, burst, tables.nft) };
    watch.lap(Stage::FastPath, n);
    let rest = burst.pending & !read.taken;
    if rest == 0 {
        return read.roce;
    }
    let neighbours = parse::run(cx, burst, rest, row.partial_checksums);
    outer::finish(cx, burst, rest);
    read.roce.with(rest_of(cx, burst, rest, neighbours, tables, sink, watch))
}

#[inline]
fn from_vnic<P: PacketBuf, S: Sink<P>, W: StageWatch>(
    cx: &Cx,
    burst: &mut Burst<P>,
    row: PortRow,
    tables: ReadTables,
    limits: &mut MissLimits,
    sink: &mut S,
    watch: &mut W,
) -> RoceMasks {
    let n = burst.pending.count_ones();
    bind::run(cx, burst, row.role);
    watch.lap(Stage::Bind, n);
    let n = burst.pending.count_ones();
    let read =
        if row.partial_checksums { Read::default() } else { fast_inner::from_vnics(cx, burst, tables.nft) };
    watch.lap(Stage::FastPath, n);
    let rest = burst.pending & !read.taken;
    if rest == 0 {
        return read.roce;
    }
    let neighbours = parse::run(cx, burst, rest, row.partial_checksums);
    guard::run(cx, burst, rest);
    mtu::run(cx, burst, rest, limits, sink);
    read.roce.with(rest_of(cx, burst, rest, neighbours, tables, sink, watch))
}

/// Neighbour protocols, and the keys of what did not take the fast path.
#[inline(never)]
fn rest_of<P: PacketBuf, S: Sink<P>, W: StageWatch>(
    cx: &Cx,
    burst: &mut Burst<P>,
    rest: u64,
    neighbours: u64,
    tables: ReadTables,
    sink: &mut S,
    watch: &mut W,
) -> RoceMasks {
    neighbour::run(cx, burst, neighbours, sink);
    let roce = key::run(cx, burst, rest, tables.fragments, tables.nft);
    watch.lap(Stage::Parse, rest.count_ones());
    roce
}

/// What the host sends by an uplink.
fn from_host<P: PacketBuf, S: Sink<P>>(cx: &Cx, burst: &mut Burst<P>, index: u16, sink: &mut S) -> RoceMasks {
    match cx.snapshot.uplink(index) {
        Some(uplink) => host::run(cx, burst, uplink, sink),
        None => bind::run(cx, burst, PortRole::Unbound),
    }
    RoceMasks::default()
}
