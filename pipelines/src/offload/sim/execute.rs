//! A packet's way through the groups.

use wire::{L3, PacketBuf, ipv4, ipv6};

use super::Eswitch;
use super::encap_hash::{EncapHashKind, tuple_of};
use super::layers::{Layers, Registers};
use crate::stage::outer::set_ecn;
use rules::{Action, Encap, Modify};

/// Jumps after which a packet is given up to software: rules that lead in a circle.
const MAX_JUMPS: usize = 32;

/// Where a packet went: what follows from its last action, or from the lack of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Out to what a DPDK port stands for.
    Out {
        /// DPDK port whose represented end it left through.
        port: u16,
    },
    /// To software, as it was received but for what actions before changed.
    Software {
        /// The port that receives it.
        port: u16,
        /// Into this rx queue, when a rule says so.
        queue: Option<u16>,
        /// The mark that a rule set.
        mark: Option<u32>,
        /// No rule sent it there: some group had none for it.
        missed: bool,
        /// The flow whose arrivals it was counted with.
        flow: u64,
    },
    /// Dropped by a rule.
    Dropped,
    /// Lost: an action could not be carried out.
    Failed,
}

impl Fate {
    /// Without a rule a packet goes to software, as received from where it came. `missed` says that there were others.
    pub(super) fn unmatched(registers: &Registers, missed: bool) -> Self {
        Self::Software {
            port: registers.port,
            queue: None,
            mark: registers.mark,
            missed,
            flow: registers.flow,
        }
    }
}

/// Sends a packet through the groups.
pub(super) fn run<P: PacketBuf>(
    eswitch: &mut Eswitch,
    packet: &mut P,
    layers: &mut Layers,
    registers: &mut Registers,
) -> Fate {
    let mut group = 0;
    for _ in 0..MAX_JUMPS {
        let Some(number) = eswitch.rules.find(group, layers, packet.head(), registers) else {
            // A group without rules is a way to software that a rule chose.
            return Fate::unmatched(registers, group == 0 || eswitch.rules.has_group(group));
        };
        let (now_ns, refresh_ns) = (eswitch.now_ns, eswitch.config.refresh_ns);
        eswitch.rules.hit(number, packet.len(), now_ns, refresh_ns);
        let Some(held) = eswitch.rules.get(number) else { break };
        let mut next = None;
        for action in &held.rule.actions {
            let Registers { mark, flow, .. } = *registers;
            let software = |port, queue| Fate::Software { port, queue, mark, missed: false, flow };
            let mut done = true;
            match *action {
                Action::Count | Action::Age { .. } => {}
                Action::Jump { group } => next = Some(group),
                Action::Meter { mtr_id } => {
                    let meter = eswitch.meters.get_mut(&mtr_id);
                    // A meter that is gone lets nothing pass.
                    registers.colour = meter.map_or(2, |meter| meter.colour(packet.len(), now_ns) as u8);
                }
                Action::ModifyField(modify) => done = write(packet, layers, registers, modify),
                Action::Mark { id } => registers.mark = Some(id),
                Action::VxlanDecap => done = decap(packet, layers),
                Action::RawEncap(ref header) => {
                    let port = source_port(eswitch.config.encap_hash, layers, packet.head());
                    done = encap(packet, header, port);
                }
                Action::RepresentedPort { port } => return Fate::Out { port },
                Action::PortId { id } => return Fate::Out { port: id as u16 },
                Action::PortRepresentor { port } => return software(port, None),
                Action::Queue { index } => return software(registers.port, Some(index)),
                Action::Drop => return Fate::Dropped,
            }
            if matches!(action, Action::VxlanDecap | Action::RawEncap(_)) {
                match Layers::of(packet, eswitch.config.udp) {
                    Some(again) => *layers = again,
                    None => done = false,
                }
            }
            if !done {
                return Fate::Failed;
            }
        }
        match next {
            Some(next) => group = next,
            None => break,
        }
    }
    Fate::unmatched(registers, true)
}

/// Takes the outer headers off, and what the outer frame has behind the datagram.
fn decap<P: PacketBuf>(packet: &mut P, layers: &Layers) -> bool {
    let Some(front) = layers.tunnel_len() else { return false };
    let outer = layers.outer();
    let udp_len = outer.udp(packet.head()).map_or(0, |udp| usize::from(udp.len.get()));
    let back = packet.len() - (usize::from(outer.l4_offset) + udp_len);
    (back == 0 || packet.trim_back(back)) && packet.trim_front(front)
}

/// The outer source port that the device chooses itself.
fn source_port(kind: EncapHashKind, layers: &Layers, head: &[u8]) -> Option<u16> {
    match kind {
        EncapHashKind::None => None,
        _ => kind.source_port(&tuple_of(layers, head)?),
    }
}

/// Puts a header in front and fills in lengths, the IPv4 checksum and the source port that the device chose; UDP goes without
/// a checksum.
fn encap<P: PacketBuf>(packet: &mut P, encap: &Encap, source_port: Option<u16>) -> bool {
    let (header, ip) = (encap.bytes(), encap.ip_offset());
    let Some(head) = packet.prepend(header.len()) else { return false };
    head[..header.len()].copy_from_slice(header);
    let total = packet.len();
    let udp = header.len() - 16;
    let len = |from: usize| ((total - from) as u16).to_be_bytes();
    let head = packet.head_mut();
    head[udp + 4..udp + 6].copy_from_slice(&len(udp));
    if let Some(port) = source_port {
        head[udp..udp + 2].copy_from_slice(&port.to_be_bytes());
    }
    if encap.is_ipv6() {
        head[ip + 4..ip + 6].copy_from_slice(&len(udp));
        return true;
    }
    head[ip + 2..ip + 4].copy_from_slice(&len(ip));
    let checksum = wire::checksum::sum(&head[ip..ip + ipv4::HEADER_LEN]).checksum();
    head[ip + 10..ip + 12].copy_from_slice(&checksum.to_be_bytes());
    true
}

/// Writes a field or a register. A packet without the field is lost.
fn write<P: PacketBuf>(packet: &mut P, layers: &Layers, registers: &mut Registers, modify: Modify) -> bool {
    let is_ipv6 = |ipv6: bool| layers.outer().l3 == if ipv6 { L3::Ipv6 } else { L3::Ipv4 };
    match modify {
        Modify::Ecn { ipv6, ecn } => is_ipv6(ipv6) && set_ecn(packet, layers.outer(), ecn),
        Modify::Ttl { ipv6 } => is_ipv6(ipv6) && decrement(packet, layers),
        Modify::MacDst(mac) => write_at(packet, 0, &mac.0),
        Modify::MacSrc(mac) => write_at(packet, 6, &mac.0),
        Modify::Tag { index, data } => {
            registers.tags.get_mut(usize::from(index)).map(|tag| *tag = data).is_some()
        }
    }
}

fn decrement<P: PacketBuf>(packet: &mut P, layers: &Layers) -> bool {
    let (outer, head) = (layers.outer(), packet.head_mut());
    match outer.l3 {
        L3::Ipv4 => outer.ipv4_mut(head).is_some_and(ipv4::Header::decrement_ttl),
        L3::Ipv6 => outer.ipv6_mut(head).is_some_and(ipv6::Header::decrement_hop_limit),
        L3::None | L3::Arp => false,
    }
}

fn write_at<P: PacketBuf>(packet: &mut P, at: usize, bytes: &[u8]) -> bool {
    match packet.head_mut().get_mut(at..at + bytes.len()) {
        Some(place) => {
            place.copy_from_slice(bytes);
            true
        }
        None => false,
    }
}
