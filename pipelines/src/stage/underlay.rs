//! underlay: what arrives at an uplink and is not VxLAN. The VTEP answers ARP, neighbour discovery and ping for its
//! own addresses and tells control what it learns, what BFD says and what answers its path probes; the rest goes to the punt port or is dropped by name.

use wire::{MacAddr, PacketBuf};

use super::neighbour::is_neighbour_protocol;
use super::outer::addresses;
use super::reply::{self, NeighbourMessage};
use super::{Cx, bfd, probe, super_frame};
use crate::Sink;
use crate::burst::Burst;
use crate::drops::DropReason;
use crate::event::{Binding, Claim, Event, Events};
use crate::nft::Bits;
use crate::snapshot::{NO_PORT, Uplink, mac_from};

/// Handles the packets whose bits are in `others`; none of them stays pending.
#[cold]
#[inline(never)]
pub fn run<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    others: u64,
    index: u16,
    uplink: &Uplink,
    sink: &mut S,
) {
    let probing = cx.events.probes.mark();
    for i in Bits(others) {
        let headers = burst.metas[i].headers;
        let Some(packet) = burst.packets[i].as_mut() else { continue };
        let mut longest = packet.len();
        if packet.rx_facts().gso_size != 0 {
            match super_frame::admit(cx.counters, packet, &headers) {
                Ok(None) => {}
                Ok(Some(frame)) => longest = frame.frame_len(),
                Err(reason) => {
                    burst.drop(i, reason, cx.counters);
                    continue;
                }
            }
        }
        let vid = (headers.vlan_count > 0).then_some(headers.vlan_tci[0] & 0xfff).filter(|&vid| vid != 0);
        if vid == uplink.vlan && bfd::is_for_us(cx, packet.head(), &headers, index, uplink) {
            match bfd::take(cx, packet, &headers, index, uplink) {
                Ok(()) => {
                    burst.take(i);
                    cx.counters.consumed.add(1);
                    cx.counters.bfd_packets.add(1);
                }
                Err(reason) => burst.drop(i, reason, cx.counters),
            }
            continue;
        }
        let probed = probing.filter(|_| vid == uplink.vlan);
        let answer =
            probed.and_then(|mark| Some((probe::find(packet.head(), &headers, uplink, mark)?, mark)));
        if let Some((answer, mark)) = answer {
            match probe::take(cx, packet, &headers, &answer, mark) {
                Ok(()) => {
                    burst.take(i);
                    cx.counters.consumed.add(1);
                    cx.counters.probe_answers.add(1);
                }
                Err(reason) => burst.drop(i, reason, cx.counters),
            }
            continue;
        }
        let replied = vid == uplink.vlan
            && match classify(packet.head(), &headers, uplink) {
                UnderlayPacket::Solicitation(question) => {
                    learn(cx.events, index, uplink, question.asker(), question.claim);
                    reply::answer(packet, &headers, mac_of(uplink), false)
                }
                UnderlayPacket::Overheard(question) => {
                    learn(cx.events, index, uplink, question.asker(), question.claim);
                    false
                }
                UnderlayPacket::Unanswered(question) => {
                    learn(cx.events, index, uplink, question.asker(), question.claim);
                    // The host behind the punt port would answer it.
                    burst.drop(i, DropReason::UNDERLAY_OTHER, cx.counters);
                    continue;
                }
                UnderlayPacket::Advertisement(answer) => {
                    learn(cx.events, index, uplink, answer.binding, answer.claim);
                    if uplink.punt == NO_PORT {
                        burst.take(i);
                        cx.counters.consumed.add(1);
                        continue;
                    }
                    false
                }
                UnderlayPacket::Echo => reply::echo(packet, &headers, mac_of(uplink)),
                UnderlayPacket::Other => false,
            };
        let out = if replied { uplink.port } else { uplink.punt };
        if out == NO_PORT {
            burst.drop(i, DropReason::UNDERLAY_OTHER, cx.counters);
        } else if !replied && longest > longest_frame(&headers, uplink.punt_mtu) {
            // The tap would never take it, and hold up what comes behind it.
            burst.drop(i, DropReason::MTU_EXCEEDED, cx.counters);
        } else if let Some(packet) = burst.take(i) {
            super_frame::send_finished(cx.snapshot, cx.counters, sink, out, packet);
        }
    }
}

/// Length of a frame with the packet's own link header and an IP packet of this size.
fn longest_frame(headers: &wire::Headers, mtu: u16) -> usize {
    14 + 4 * usize::from(headers.vlan_count) + usize::from(mtu)
}

enum UnderlayPacket {
    /// It asks for an address of the uplink: answered here.
    Solicitation(reply::Solicitation),
    /// For somebody else, or an announcement: it says where the asker is all the same.
    Overheard(reply::Solicitation),
    /// It asks for an address of the uplink that another one answers for.
    Unanswered(reply::Solicitation),
    Advertisement(reply::Advertisement),
    Echo,
    Other,
}

fn classify(head: &[u8], headers: &wire::Headers, uplink: &Uplink) -> UnderlayPacket {
    if is_neighbour_protocol(headers) {
        return match reply::read(head, headers) {
            // So is who has no address yet, and would take this one (RFC 4862 section 5.4.3, RFC 5227 section 2.1.1); an ARP probe
            // may also be how a backup asks.
            NeighbourMessage::Solicitation(q) if uplink.answers_for(q.target) => {
                UnderlayPacket::Solicitation(q)
            }
            NeighbourMessage::Solicitation(q) if uplink.is_silent_about(q.target) => {
                UnderlayPacket::Unanswered(q)
            }
            NeighbourMessage::Solicitation(q) if !q.asker.is_unspecified() => UnderlayPacket::Overheard(q),
            // A host behind a punt port asks for its own neighbours: it sees the answers too.
            NeighbourMessage::Advertisement(answer) => UnderlayPacket::Advertisement(answer),
            _ => UnderlayPacket::Other,
        };
    }
    if reply::is_echo_request(headers) && uplink.owns(addresses(head, headers).1) {
        return UnderlayPacket::Echo;
    }
    UnderlayPacket::Other
}

/// Tells control, which knows whose MAC addresses matter: nobody becomes a neighbour by speaking.
fn learn(events: &Events, index: u16, uplink: &Uplink, binding: Binding, claim: Claim) {
    if binding.mac.is_station() && !binding.address.is_unspecified() && !uplink.owns(binding.address) {
        events.push(Event::Neighbour { uplink: index, binding, claim });
    }
}

fn mac_of(uplink: &Uplink) -> MacAddr {
    mac_from(uplink.mac)
}
