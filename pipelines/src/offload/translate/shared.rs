//! Rules that flows share: those of ports, of classes, of adjacencies.

use wire::roce::{Operation, RoceClass, opcode};
use wire::{Ecn, MacAddr, Qpn, protocol};

use super::find::ResolvedFlow;
use super::patterns::{Family, RoceMatch, TAG_ADJACENCY, TAG_CE, TAG_CLASS};
use super::patterns::{coloured, from, tagged, to_udp};
use super::{Adjacency, OffloadRefusal, TO_SOFTWARE, Tables, group, rule};
use crate::qos::{Class, Leaf};
use crate::snapshot::{DscpPolicy, Settings};
use crate::stage::tunnel::outer_tos;
use crate::vlt::{Place, Tunnel};
use rules::Colour;
use rules::items::eth;
use rules::{Action, Encap, FlowRule, Item, ItemKind, Meter, Modify};

const BOTH_BITS: u8 = 3;

/// TOS bytes that packets to be offloaded have, and which of their bits matter: where the outer DSCP is a copy, all.
fn codepoints(tables: &Tables) -> Vec<(u8, u8)> {
    let dscps: Vec<u8> = match tables.snapshot.settings.dscp {
        DscpPolicy::Copy => tables.options.dscps.iter().map(|dscp| dscp.get() << 2).collect(),
        DscpPolicy::Fixed(_) => vec![0],
    };
    let mask = match tables.snapshot.settings.dscp {
        DscpPolicy::Copy => u8::MAX,
        DscpPolicy::Fixed(_) => BOTH_BITS,
    };
    dscps.into_iter().flat_map(|dscp| Ecn::ALL.map(|ecn| (ecn.into_tos(dscp), mask))).collect()
}

/// What routed packets have done to them.
fn rewrite(adjacency: &Adjacency) -> Vec<Action> {
    let Some((source, destination)) = adjacency.macs else { return Vec::new() };
    let writes = [Modify::Ttl { ipv6: adjacency.ipv6 }, Modify::MacSrc(source), Modify::MacDst(destination)];
    writes.map(Action::ModifyField).to_vec()
}

/// The rules of an adjacency.
pub(super) fn adjacencies(
    tables: &Tables,
    found: &ResolvedFlow,
    adjacency: &Adjacency,
    number: u32,
) -> Result<Vec<FlowRule>, OffloadRefusal> {
    let mine = tagged(TAG_ADJACENCY, number);
    let last = Action::RepresentedPort { port: found.to };
    if let Some(from) = &found.tunnel {
        // Drivers want to see in the pattern what is taken off.
        let tunnel = under(tables, from.outer.any());
        let to_decap = |marked: u32| [&[mine, tagged(TAG_CE, marked)], &tunnel[..]].concat();
        let plain = [&[Action::VxlanDecap], &rewrite(adjacency)[..], &[last]].concat();
        let ce = Action::set_ecn(adjacency.ipv6, Ecn::Ce);
        let marked = [&[Action::VxlanDecap, ce], &rewrite(adjacency)[..], &[last]].concat();
        return Ok(vec![
            rule(group::ADJACENCY, 0, to_decap(0), plain),
            rule(group::ADJACENCY, 0, to_decap(1), marked),
        ]);
    }
    let Place::Remote(tunnel) = found.place else {
        // Drivers want to see the header in the pattern whose TTL they decrement.
        let mut pattern = vec![mine];
        if adjacency.macs.is_some() {
            pattern.extend([Item::any(ItemKind::Eth), found.family.any()]);
        }
        return Ok(vec![rule(group::ADJACENCY, 0, pattern, [&rewrite(adjacency)[..], &[last]].concat())]);
    };
    let settings = &tables.snapshot.settings;
    let (uplink, hop) =
        tables.snapshot.way(tunnel.group, adjacency.bucket).ok_or(OffloadRefusal::Unresolved)?;
    let mut tunnel = tunnel;
    hop.link_header(uplink.source).write(&mut tunnel.header);
    let by_codepoint = codepoints(tables).into_iter().map(|(tos, mask)| {
        let encap = outer(&tunnel, settings, tos, adjacency.source_port)?;
        if encap.is_ipv6() && !uplink.udp6_zero_checksum {
            return Err(OffloadRefusal::UdpChecksum);
        }
        let actions = [&rewrite(adjacency)[..], &[Action::RawEncap(encap), last]].concat();
        Ok(rule(
            group::ADJACENCY,
            0,
            vec![mine, Item::any(ItemKind::Eth), found.family.tos(tos, mask)],
            actions,
        ))
    });
    by_codepoint.collect()
}

/// Source port of tunnels whose NIC chooses none: the first of those that software uses.
const NO_ENTROPY: u16 = 0xc000;

/// The outer header for packets with a TOS byte.
fn outer(
    tunnel: &Tunnel,
    settings: &Settings,
    tos: u8,
    source_port: Option<u16>,
) -> Result<Encap, OffloadRefusal> {
    let len = usize::from(tunnel.len);
    let mut header = tunnel.header;
    let ip = if header[12..14] == [0x81, 0] { 18 } else { 14 };
    let tos = outer_tos(settings, tos);
    if header[ip] >> 4 == 4 {
        header[ip + 1] = tos;
    } else {
        header[ip] = 0x60 | tos >> 4;
        header[ip + 1] = tos << 4;
    }
    header[len - 16..len - 14].copy_from_slice(&source_port.unwrap_or(NO_ENTROPY).to_be_bytes());
    Encap::new(&header[..len]).map_err(|_| OffloadRefusal::Gone)
}

/// Rates that a class may have now, as a meter: green up to its share, then RDMA yellow up to the debt that the RED profile
/// allows, then red. Without a yellow part where nothing can be marked.
///
/// # Errors
/// [`OffloadRefusal::NoShare`].
pub fn meter(tables: &Tables, leaf: Leaf) -> Result<Meter, OffloadRefusal> {
    let rates = tables.tree.meter(leaf);
    let cir = rates.peak.max(rates.committed) / 8;
    if cir == 0 {
        return Err(OffloadRefusal::NoShare);
    }
    let red = &tables.snapshot.settings.red;
    let (kmin, ebs) = match leaf.class() {
        Class::Rdma => (red.kmin, red.hard_limit.saturating_sub(red.kmin)),
        Class::Tcp => (0, 0),
    };
    Ok(Meter { cir, cbs: rates.burst + kmin, eir: 0, ebs })
}

/// The rules of a class with a rate: downstream first.
pub(super) fn classes(tables: &Tables, found: &ResolvedFlow, leaf: Leaf) -> Vec<FlowRule> {
    let class = leaf.class();
    let mine = tagged(TAG_CLASS, leaf.0 + 1);
    let on = Action::Jump { group: group::ADJACENCY };
    let away = vec![Action::Count, TO_SOFTWARE];
    let colour = |colour, more: &[Item], actions| {
        rule(group::COLOUR, 0, [&[from(found.from), mine, coloured(colour)], more].concat(), actions)
    };
    let mut rules = Vec::new();
    if class == Class::Rdma {
        rules.extend(control(tables, found, mine, on));
    }
    rules.push(colour(Colour::Green, &[], vec![on]));
    match (class, &found.tunnel) {
        (Class::Rdma, None) => {
            let ce = Action::set_ecn(found.family.is_v6(), Ecn::Ce);
            let layers = [Item::any(ItemKind::Eth), found.family.any()];
            rules.push(colour(Colour::Yellow, &layers, vec![Action::Count, ce, on]));
        }
        // The header to be marked is still inside.
        (Class::Rdma, Some(_)) => {
            rules.push(colour(Colour::Yellow, &[], vec![Action::Count, Action::set_tag(TAG_CE, 1), on]));
        }
        (Class::Tcp, _) => rules.push(colour(Colour::Yellow, &[], away.clone())),
    }
    rules.push(colour(Colour::Red, &[], away));
    let metered = vec![Action::Meter { mtr_id: leaf.0 + 1 }, Action::Jump { group: group::COLOUR }];
    rules.push(rule(group::CLASS, 1, vec![mine], metered));
    rules
}

/// What keeps connections alive goes past the meter, counted.
fn control(tables: &Tables, found: &ResolvedFlow, mine: Item, on: Action) -> Vec<FlowRule> {
    let opcodes =
        [RoceMatch::Opcode(opcode::RC_ACK), RoceMatch::Opcode(opcode::CNP), RoceMatch::ConnectionManager];
    let above = opcodes
        .into_iter()
        .map(|roce| rule(group::CLASS, 0, rdma(tables, found, mine, roce), vec![Action::Count, on]));
    above.collect()
}

/// Opcodes of a class that mean nothing are no queue pair's: software counts them apart.
pub(super) fn unassigned(
    tables: &Tables,
    found: &ResolvedFlow,
    class: RoceClass,
    rcft: u32,
) -> Vec<FlowRule> {
    let of_class = |opcode: &u8| RoceClass::of(*opcode, Qpn::default()) == class;
    let opcodes = (0..=u8::MAX).filter(of_class).filter(|opcode| Operation::of(*opcode).is_none());
    let software = |opcode| {
        let pattern = rdma(tables, found, from(found.from), RoceMatch::Opcode(opcode));
        rule(rcft, 0, pattern, vec![TO_SOFTWARE])
    };
    opcodes.map(software).collect()
}

/// RoCEv2 packets of a kind, whosesoever.
fn rdma(tables: &Tables, found: &ResolvedFlow, first: Item, roce: RoceMatch) -> Vec<Item> {
    let outside = found.tunnel.as_ref().map(|tunnel| under(tables, tunnel.outer.any()).to_vec());
    let udp = to_udp(tables.snapshot.settings.rdma_port);
    let inside = [Item::any(ItemKind::Eth), found.family.any(), udp];
    [&[first], outside.as_deref().unwrap_or_default(), &inside, roce.item().as_slice()].concat()
}

/// Outer layers of what comes out of a tunnel.
fn under(tables: &Tables, ip: Item) -> [Item; 4] {
    let udp = to_udp(tables.snapshot.settings.vxlan_port);
    [Item::any(ItemKind::Eth), ip, udp, Item::any(ItemKind::Vxlan)]
}

/// Packets that software looks at one by one go there from the root. These rules come first and go last: they lead
/// nothing astray.
pub(super) fn guards(tables: &Tables, found: &ResolvedFlow) -> Vec<FlowRule> {
    let port = from(found.from);
    let outside = found.tunnel.as_ref().map(|tunnel| under(tables, tunnel.outer.any()).to_vec());
    let outside = outside.unwrap_or_default();
    let guard = |pattern| rule(group::ROOT, 0, pattern, vec![TO_SOFTWARE]);
    let mut rules = Vec::new();
    if found.routed {
        let to_router = Item::with(eth::DST, found.destination.to_u64());
        rules.push(guard([&[port], &outside[..], &[to_router, found.family.expiring()]].concat()));
    }
    if let Some(tunnel) = &found.tunnel {
        rules.push(guard([&[port], &under(tables, tunnel.outer.expired())[..]].concat()));
        // Congestion that the sender cannot hear of: dropped by name (RFC 6040).
        let marked = under(tables, tunnel.outer.tos(Ecn::Ce as u8, BOTH_BITS));
        let not_ect = found.family.tos(Ecn::NotEct as u8, BOTH_BITS);
        rules.push(guard([&[port], &marked[..], &[Item::any(ItemKind::Eth), not_ect]].concat()));
    }
    rules
}

/// Rules of group 0: packets of a vNIC by source MAC and codepoint, those of a tunnel by outer destination, lead on
/// to `next`.
pub(super) fn roots(tables: &Tables, found: &ResolvedFlow, next: u32) -> Vec<FlowRule> {
    let port = from(found.from);
    let on = Action::Jump { group: next };
    let Some(tunnel) = &found.tunnel else {
        let source = Item::with(eth::SRC, found.source_mac.to_u64());
        let known = codepoints(tables).into_iter().map(|(tos, mask)| {
            rule(group::ROOT, 1, vec![port, source, found.family.tos(tos, mask)], vec![on])
        });
        return known.collect();
    };
    let udp = to_udp(tables.snapshot.settings.vxlan_port);
    let arriving = |tos: u8, mask: u8, actions| {
        let frame = underlay(tunnel.mac, tunnel.vlan, tunnel.outer);
        let ip = tunnel.outer.with_tos(Family::whole_to(tunnel.ends.1, protocol::UDP), tos, mask);
        rule(group::ROOT, 1, [&[port], &frame[..], &[ip, udp, Item::any(ItemKind::Vxlan)]].concat(), actions)
    };
    // Outer Not-ECT and ECT(0) change nothing inside, CE does; ECT(1) is left to software (RFC 6040).
    vec![
        arriving(Ecn::NotEct as u8, 1, vec![on]),
        arriving(Ecn::Ce as u8, BOTH_BITS, vec![Action::set_tag(TAG_CE, 1), on]),
    ]
}

/// Ethernet of a packet to a VTEP.
fn underlay(mac: MacAddr, vlan: Option<u16>, family: Family) -> Vec<Item> {
    let frame = Item::with(eth::DST, mac.to_u64()).is(eth::HAS_VLAN, vlan.is_some());
    match vlan {
        None => vec![frame.is(eth::TYPE, family.ethertype())],
        Some(vid) => vec![frame, super::patterns::tag_of(vid, family)],
    }
}
