//! dhtb: each packet across the tunnel pays its class, vNIC, tenant and link; RDMA over its rates is marked, other
//! traffic waits.
//!
//! What goes from vNIC to vNIC on one host crosses no link and pays nothing. A super-frame pays for all that it becomes on the
//! wire, at once: headers, tunnel and the wire's overhead of each piece. Where there are no tokens for all of it, it is cut, and
//! its pieces wait, and are dropped, one by one: a queue of whole ones would be full with a few of them, and a TCP that loses 64 KB
//! at a time gets less than its part.

use wire::parse::parse_into;
use wire::roce::opcode::Operation;
use wire::roce::{Bth, opcode};
use wire::segment::SuperFrame;
use wire::{Ecn, Headers, PacketBuf, View, Vni, udp};

use super::forward::Origin;
use super::outer::set_ecn;
use super::{Cx, super_frame};
use crate::burst::{Burst, Meta, NO_INDEX};
use crate::direction::Direction;
use crate::drops::DropReason;
use crate::nft::{Bits, FlowVerdict, NONE, Nft};
use crate::qos::{Class, Dhtb, Full, Leaf, Offer, Paths, TokenDecision, TrafficKind, Tree};
use crate::vlt::{Hot, Place};

/// A packet that waits for tokens.
pub struct Parked<P> {
    /// The packet, without the outer header where it came out of a tunnel.
    pub packet: P,
    /// What the stages before knew of it; its indices may mean others when it goes on.
    pub meta: Meta,
    /// Its VPC, which outlives indices.
    vni: Option<Vni>,
}

impl<P> Parked<P> {
    fn new(cx: &Cx, packet: P, meta: Meta) -> Self {
        Self { packet, meta, vni: cx.snapshot.vpc(meta.vpc).map(|vpc| vpc.vni) }
    }

    /// True while the indices of a packet still mean what they meant when it began to wait: they may be of another
    /// tenant by now.
    pub(crate) fn has_valid_indices(&self, cx: &Cx) -> bool {
        let vpc = cx.snapshot.vpc(self.meta.vpc);
        let vnic = cx.snapshot.vnic(self.meta.vnic);
        vpc.map(|vpc| vpc.vni) == self.vni && vnic.is_none_or(|vnic| vnic.vpc == self.meta.vpc)
    }
}

/// Lets the packets of a burst pay.
#[inline(always)]
pub fn run<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, dhtb: &mut Dhtb<Parked<P>>, nft: &Nft) {
    // What waits goes first, even when the last limit is gone.
    if !dhtb.tree().is_free() || dhtb.waiting() > 0 {
        if burst.has_super_frames() {
            pay::<P, true>(cx, burst, dhtb, nft);
        } else {
            pay::<P, false>(cx, burst, dhtb, nft);
        }
    }
}

/// `SUPER_FRAMES`: some of the packets are, and pay for what they will be on the wire.
#[inline(never)]
fn pay<P: PacketBuf, const SUPER_FRAMES: bool>(
    cx: &Cx,
    burst: &mut Burst<P>,
    dhtb: &mut Dhtb<Parked<P>>,
    nft: &Nft,
) {
    let mut left = burst.pending;
    while let Some(run) = first_unpaid::<P, SUPER_FRAMES>(cx, burst, &mut left, dhtb, nft) {
        if !run.has_several() && !SUPER_FRAMES {
            let charge = Charge { leaf: run.leaf, bytes: run.bytes as u32, tunnel: run.tunnel as u32 };
            over(cx, burst, run.packets.trailing_zeros() as usize, dhtb, charge);
        } else if !dhtb.pays_together(run.leaf, run.bytes, run.tunnel, cx.now.ns) {
            pay_each::<P, SUPER_FRAMES>(cx, burst, &run, dhtb, nft);
        }
    }
}

/// Packets of one class that follow each other, and pay together as long as there are tokens for all of them.
#[derive(Default)]
struct Run {
    leaf: Leaf,
    /// Bits of the packets in the burst.
    packets: u64,
    bytes: u64,
    tunnel: u64,
}

impl Run {
    const fn has_several(&self) -> bool {
        self.packets & self.packets.wrapping_sub(1) != 0
    }
}

/// Pays out of the token caches for the packets in `left`, run by run, up to the first run that they do not suffice for. What
/// comes behind that is looked at after it: packets of a flow stay in their order.
#[inline(always)]
fn first_unpaid<P: PacketBuf, const SUPER_FRAMES: bool>(
    cx: &Cx,
    burst: &Burst<P>,
    left: &mut u64,
    dhtb: &mut Dhtb<Parked<P>>,
    nft: &Nft,
) -> Option<Run> {
    let mut payer = dhtb.payer();
    let paths = payer.paths;
    let overhead = cx.snapshot.settings.red.overhead;
    let mut run = Run::default();
    for i in Bits(*left) {
        let Some((charge, _)) = charge::<P, SUPER_FRAMES>(cx, burst, i, paths, nft, overhead) else {
            continue;
        };
        if run.leaf != charge.leaf {
            if run.packets != 0 && !payer.pays(run.leaf, run.bytes, run.tunnel) {
                *left &= u64::MAX << i;
                return Some(run);
            }
            run = Run { leaf: charge.leaf, ..Run::default() };
        }
        run.packets |= 1 << i;
        run.bytes += u64::from(charge.bytes);
        run.tunnel += u64::from(charge.tunnel);
    }
    *left = 0;
    (run.packets != 0 && !payer.pays(run.leaf, run.bytes, run.tunnel)).then_some(run)
}

/// Each packet of a run for itself: some of them may find tokens.
#[inline(never)]
fn pay_each<P: PacketBuf, const SUPER_FRAMES: bool>(
    cx: &Cx,
    burst: &mut Burst<P>,
    run: &Run,
    dhtb: &mut Dhtb<Parked<P>>,
    nft: &Nft,
) {
    let overhead = cx.snapshot.settings.red.overhead;
    for i in Bits(run.packets) {
        let paths = dhtb.tree().paths();
        let Some((charge, frame)) = charge::<P, SUPER_FRAMES>(cx, burst, i, paths, nft, overhead) else {
            continue;
        };
        if dhtb.pays(charge.leaf, u64::from(charge.bytes), u64::from(charge.tunnel)) {
            continue;
        }
        match frame {
            Some(frame) => super_frame_over(cx, burst, i, dhtb, charge, &frame),
            None => over(cx, burst, i, dhtb, charge),
        }
    }
}

/// What a packet that crosses the tunnel costs; and the super-frame that it is, if it goes once, so that it may be cut.
#[inline(always)]
fn charge<P: PacketBuf, const SUPER_FRAMES: bool>(
    cx: &Cx,
    burst: &Burst<P>,
    i: usize,
    paths: Paths<'_>,
    nft: &Nft,
    overhead: u32,
) -> Option<(Charge, Option<SuperFrame>)> {
    let packet = burst.packets[i].as_ref()?;
    let meta = &burst.metas[i];
    let Crossing { direction, vnic, tunnel, copies } = across(cx, meta, nft)?;
    let class = if meta.key.class() != 0 { Class::Rdma } else { Class::Tcp };
    let leaf = paths.leaf(direction, vnic, class);
    let frame = if SUPER_FRAMES { super_frame::of(packet, &meta.headers) } else { None };
    let (bytes, tunnel) = match &frame {
        // Up to 128 pieces to each end of a tunnel that a flood has.
        Some(frame) => (
            (frame.total_len(overhead as usize) as u32).saturating_mul(copies),
            tunnel * frame.pieces() as u32,
        ),
        None => ((packet.len() as u32 + overhead) * copies, tunnel),
    };
    Some((Charge { leaf, bytes, tunnel: tunnel * copies }, frame.filter(|_| copies == 1)))
}

/// How a packet crosses the tunnel.
struct Crossing {
    direction: Direction,
    /// Whose it is there.
    vnic: u32,
    /// Bytes of the tunnel's headers.
    tunnel: u32,
    /// How many times it goes.
    copies: u32,
}

impl Crossing {
    #[inline(always)]
    const fn out(vnic: u32, tunnel: u32) -> Option<Self> {
        if vnic == NO_INDEX {
            return None;
        }
        Some(Self { direction: Direction::Out, vnic, tunnel, copies: 1 })
    }
}

#[inline(always)]
fn across(cx: &Cx, meta: &Meta, nft: &Nft) -> Option<Crossing> {
    if meta.entry == NONE {
        return Crossing::out(meta.vnic, 0);
    }
    let action = &nft.entry(meta.entry).action;
    match action.verdict {
        FlowVerdict::Forward => {}
        FlowVerdict::Flood => return flooded(cx, meta),
        _ => return None,
    }
    let local = match cx.snapshot.vlt.read_hot(action.slot, action.slot_generation) {
        Hot::Tunnel4(_) => return Crossing::out(meta.vnic, V4_TUNNEL),
        Hot::Local { vnic } => Some(vnic),
        Hot::Other => match cx.snapshot.vlt.read(action.slot).place {
            Place::Local { vnic } => Some(vnic),
            Place::Remote(tunnel) => return Crossing::out(meta.vnic, u32::from(tunnel.len)),
            Place::Empty => None,
        },
    };
    match local {
        Some(vnic) if meta.direction() == Direction::In => {
            Some(Crossing { direction: Direction::In, vnic, tunnel: V4_TUNNEL, copies: 1 })
        }
        _ => None,
    }
}

/// A copy for each tunnel end point of the VPC.
#[inline(never)]
fn flooded(cx: &Cx, meta: &Meta) -> Option<Crossing> {
    let copies = cx.snapshot.vpc(meta.vpc)?.flood_slots.len() as u32;
    let crossing = Crossing::out(meta.vnic, V4_TUNNEL)?;
    (copies > 0).then_some(Crossing { copies, ..crossing })
}

/// Outer headers over untagged IPv4.
pub(crate) const V4_TUNNEL: u32 = 50;

/// What a packet costs, and the class that pays.
struct Charge {
    leaf: Leaf,
    /// Bytes of the frame, or of all that a super-frame becomes, with [`RedProfile::overhead`](crate::qos::RedProfile::overhead)
    /// for each packet.
    bytes: u32,
    /// Bytes of the tunnel's headers.
    tunnel: u32,
}

/// A packet for which no tokens were at hand.
#[inline(never)]
fn over<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, i: usize, dhtb: &mut Dhtb<Parked<P>>, charge: Charge) {
    let Charge { leaf, bytes, tunnel } = charge;
    let meta = &mut burst.metas[i];
    let Some(packet) = burst.packets[i].as_mut() else { return };
    let kind = kind(cx, meta, packet.head(), dhtb.tree(), leaf, bytes);
    let settings = &cx.snapshot.settings;
    let offer = Offer { bytes, tunnel, buffers: packet.segments().count() as u32, kind };
    let wait = match dhtb.ask(leaf, &offer, &settings.red, cx.now.ns) {
        TokenDecision::Send => return,
        TokenDecision::Mark => return mark(cx, packet, meta, dhtb.tree(), leaf),
        TokenDecision::Wait(wait) => wait,
    };
    let meta = *meta;
    let Some(packet) = burst.take(i) else { return };
    let parked = Parked::new(cx, packet, meta);
    let kept = dhtb.keep(leaf, parked, offer, settings.queues, cx.now.ns, wait);
    let Err((full, parked)) = kept else {
        cx.counters.waited.add(1);
        cx.counters.waiting.set(u64::from(dhtb.waiting()));
        return;
    };
    let reason = no_room(full, kind);
    burst.put_back(i, parked.packet);
    dhtb.tree().count_drop(leaf);
    burst.drop(i, reason, cx.counters);
}

/// Why a packet is dropped for which there is no room to wait.
fn no_room(full: Full, kind: TrafficKind) -> DropReason {
    match (full, kind) {
        (Full::Worker, _) => DropReason::SHAPER_FULL,
        (Full::Class, TrafficKind::Tcp) => DropReason::TCP_SHAPED,
        (Full::Class, _) => DropReason::RDMA_OVERRUN,
    }
}

/// A super-frame for which no tokens were at hand: it goes whole if there are some, and waits in pieces.
#[inline(never)]
fn super_frame_over<P: PacketBuf>(
    cx: &Cx,
    burst: &mut Burst<P>,
    i: usize,
    dhtb: &mut Dhtb<Parked<P>>,
    Charge { leaf, bytes, tunnel }: Charge,
    frame: &SuperFrame,
) {
    let settings = &cx.snapshot.settings;
    let whole = Offer { bytes, tunnel, buffers: 0, kind: TrafficKind::Tcp };
    if !matches!(dhtb.ask(leaf, &whole, &settings.red, cx.now.ns), TokenDecision::Wait(_)) {
        return;
    }
    let meta = burst.metas[i];
    let Some(packet) = burst.take(i) else { return };
    let pieces = frame.pieces() as u64;
    let origin = Origin { vnic: meta.vnic, direction: meta.direction() };
    let mut kept = 0;
    // Why the rest is dropped: nothing leaves the queue meanwhile, so what comes behind a piece that finds no room is not cut.
    let mut reason = DropReason::NO_BUFFER;
    for piece in frame.cut(&packet).map_while(|piece| piece) {
        let offer = Offer {
            bytes: piece.len() as u32 + settings.red.overhead,
            tunnel: tunnel / pieces as u32,
            buffers: piece.segments().count() as u32,
            kind: TrafficKind::Tcp,
        };
        let mut headers = Headers::default();
        // What was sound as a whole is so in pieces.
        let parsed = parse_into(piece.head(), piece.len(), &mut headers);
        let meta = Meta { headers: parsed.map_or(meta.headers, |()| headers), ..meta };
        // The next look is at once: for one piece there may be tokens.
        let parked = Parked::new(cx, piece, meta);
        let Err((full, _)) = dhtb.keep(leaf, parked, offer, settings.queues, cx.now.ns, 0) else {
            kept += 1;
            continue;
        };
        reason = no_room(full, offer.kind);
        (kept..pieces).for_each(|_| dhtb.tree().count_drop(leaf));
        break;
    }
    super_frame::lost(cx, origin, reason, pieces - kept);
    cx.counters.copies.add(pieces - 1);
    cx.counters.waited.add(kept);
    cx.counters.waiting.set(u64::from(dhtb.waiting()));
}

/// Sets congestion experienced in a packet that listens to it.
pub(crate) fn mark<P: PacketBuf>(cx: &Cx, packet: &mut P, meta: &mut Meta, tree: &Tree, leaf: Leaf) {
    let rdma = meta.key.class() != 0;
    let headers = &mut meta.headers;
    if headers.is_ip() && matches!(headers.tos & 3, 1 | 2) && set_ecn(packet, headers, Ecn::Ce) {
        headers.tos = Ecn::Ce.into_tos(headers.tos);
        let marked = if rdma { &cx.counters.rdma_marked } else { &cx.counters.tcp_marked };
        marked.add(1);
        tree.count_mark(leaf);
    }
}

fn kind(cx: &Cx, meta: &Meta, head: &[u8], tree: &Tree, leaf: Leaf, bytes: u32) -> TrafficKind {
    if meta.key.class() == 0 {
        return TrafficKind::Tcp;
    }
    let headers = &meta.headers;
    if let Some((bth, _)) = Bth::view(headers.payload(head)) {
        let len = headers.l4_total_len().saturating_sub(udp::HEADER_LEN);
        // Opcodes are the guest's choice: beyond their legal length and their rate, packets are data.
        if opcode::control_len(bth.opcode, bth.dest_qp()) == Some(len)
            && tree.may_control(leaf, bytes, cx.now.ns)
        {
            let cnp = Operation::of(bth.opcode) == Some(Operation::Cnp);
            return if cnp { TrafficKind::Notice } else { TrafficKind::Control };
        }
    }
    if headers.tos & 3 == 0 { TrafficKind::RdmaUnmarkable } else { TrafficKind::Rdma }
}
