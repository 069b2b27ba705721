//! key: the NFT key of each packet; fragments take the ports of their first one.

use wire::roce::opcode::UD_SEND_ONLY;
use wire::roce::{Bth, QP_GSI, RoceClass};
use wire::{Flags, Headers, L3, PacketBuf, Qpn, View, protocol};

use super::Cx;
use crate::burst::{Burst, NO_INDEX};
use crate::direction::Direction;
use crate::drops::DropReason;
use crate::flow_key::{FlowKey, FlowPorts, Scope, be64, fragment_key};
use crate::fragments::{FirstFragment, Fragments};
use crate::nft::{Bits, Nft};

/// Key class of RoCEv2 reliable connection.
pub const CLASS_RC: u8 = code(RoceClass::Rc);
/// Key class of extended reliable connection, which counts as reliable connection.
pub const CLASS_XRC: u8 = code(RoceClass::Xrc);
/// Key class of congestion notification packets.
pub const CLASS_CNP: u8 = code(RoceClass::Cnp);
/// Key class of the connection manager's messages.
pub const CLASS_CM: u8 = code(RoceClass::Cm);
/// Key class of an opcode outside the known classes, and of a BTH cut short.
pub const CLASS_OTHER: u8 = code(RoceClass::Unknown);

/// Key class of vendor opcodes that are configured to count as reliable connection.
pub const CLASS_VENDOR_RC: u8 = CLASS_OTHER + 1;

/// Names of the classes, by code; 0 is traffic that is not RoCEv2.
pub const CLASS_NAMES: [&str; 11] =
    ["-", "rc", "uc", "rd", "ud", "cnp", "xrc", "cm", "vendor", "other", "vendor-rc"];

/// True for the classes whose queue pairs RCFT admits.
#[inline(always)]
pub const fn is_reliable(class: u8) -> bool {
    matches!(class, CLASS_RC | CLASS_XRC | CLASS_VENDOR_RC)
}

/// Which packets of a burst are what RCFT looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoceMasks {
    /// Bits of packets of reliable connections.
    pub reliable: u64,
    /// Bits of congestion notification packets.
    pub cnp: u64,
    /// Bits of connection manager messages.
    pub cm: u64,
    /// Bits of packets whose sender's connection opens once the RCFT has admitted their queue pairs, as the slow path says.
    pub opening: u64,
}

impl RoceMasks {
    /// The packets of either.
    #[inline(always)]
    pub const fn with(self, more: Self) -> Self {
        Self {
            reliable: self.reliable | more.reliable,
            cnp: self.cnp | more.cnp,
            cm: self.cm | more.cm,
            opening: self.opening | more.opening,
        }
    }

    #[inline(always)]
    pub(super) fn add(&mut self, class: u8, bit: u64, cx: &Cx) {
        match class {
            CLASS_RC | CLASS_XRC | CLASS_VENDOR_RC => self.reliable |= bit,
            CLASS_CNP => self.cnp |= bit,
            CLASS_CM => self.cm |= bit,
            CLASS_OTHER => cx.counters.roce_unknown.add(1),
            _ => {}
        }
    }
}

/// A class as the key holds it.
const fn code(class: RoceClass) -> u8 {
    class as u8 + 1
}

/// The class of every opcode, but for messages of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoceClasses([u8; 256]);

impl RoceClasses {
    /// As the standard has them.
    pub const STANDARD: Self = {
        let mut classes = [0; 256];
        let mut opcode = 0;
        while opcode < classes.len() {
            classes[opcode] = code(RoceClass::of(opcode as u8, Qpn::truncated(0)));
            opcode += 1;
        }
        Self(classes)
    };

    /// The same, but that these opcodes count as reliable connection; of them, those that the standard leaves to vendors.
    pub fn counting(opcodes: impl IntoIterator<Item = u8>) -> Self {
        let mut classes = Self::STANDARD;
        for opcode in opcodes {
            if RoceClass::of(opcode, Qpn::truncated(0)) == RoceClass::Vendor {
                classes.0[usize::from(opcode)] = CLASS_VENDOR_RC;
            }
        }
        classes
    }
}

impl Default for RoceClasses {
    fn default() -> Self {
        Self::STANDARD
    }
}

/// The class of a RoCEv2 packet from its UDP payload.
#[inline(always)]
pub fn class_code(payload: &[u8], classes: &RoceClasses) -> u8 {
    match Bth::view(payload) {
        Some((bth, _)) if bth.opcode == UD_SEND_ONLY && bth.dest_qp() == QP_GSI => CLASS_CM,
        Some((bth, _)) => classes.0[usize::from(bth.opcode)],
        None => CLASS_OTHER,
    }
}

/// Builds the keys of the packets whose bits are in `mask`. A frame to the MAC of its VPC's virtual router is routed; of every other
/// one the key has the destination MAC, by which `decide` bridges it, or routes what other hosts' routers sent to this one's.
#[inline]
pub fn run<P: PacketBuf>(
    cx: &Cx,
    burst: &mut Burst<P>,
    mask: u64,
    fragments: &Fragments,
    nft: &Nft,
) -> RoceMasks {
    let mut roce = RoceMasks::default();
    let (rdma_port, classes) = (cx.snapshot.settings.rdma_port, &cx.snapshot.settings.roce_classes);
    // The scope and the router's MAC are the same for runs of packets.
    let mut last = (NO_INDEX, NO_INDEX);
    let (mut scope, mut router) = (Scope::Vnic(NO_INDEX), 0);
    for i in Bits(mask & burst.pending) {
        let Some(packet) = burst.packets[i].as_ref() else { continue };
        let head = packet.head();
        let meta = &mut burst.metas[i];
        let headers = &meta.headers;
        if (meta.vnic, meta.vpc) != last {
            last = (meta.vnic, meta.vpc);
            (scope, router) = if meta.direction() == Direction::In {
                let vpc = cx.snapshot.vpc(meta.vpc);
                (Scope::Vpc(meta.vpc), vpc.map_or(0, |vpc| vpc.router_mac.to_u64()))
            } else {
                (Scope::Vnic(meta.vnic), cx.snapshot.row(meta.vnic).router_mac)
            };
        }
        let routed = be64(head, 0) >> 16 == router;
        let (mut sport, mut dport, mut class) = (headers.sport, headers.dport, 0);
        if headers.proto == protocol::UDP && dport == rdma_port && headers.is(Flags::L4) {
            class = class_code(headers.payload(head), classes);
            roce.add(class, 1 << i, cx);
        }
        if headers.flags.intersects(Flags::FRAGMENT) {
            if class == CLASS_OTHER {
                // RoCEv2 is not fragmented; a fragment that hides its queue pair would slip past a quota.
                burst.drop(i, DropReason::ROCE_FRAGMENT, cx.counters);
                continue;
            }
            match fragment(cx, fragments, head, &mut meta.headers, scope, class) {
                Some(first) => (sport, dport, class) = (first.sport, first.dport, first.class),
                None => {
                    burst.drop(i, DropReason::FRAGMENT_UNKNOWN, cx.counters);
                    continue;
                }
            }
        }
        let ports = match meta.headers.l3 {
            // Only protocols with ports (or ICMP's type and id) have them in the key.
            L3::Ipv4 | L3::Ipv6 => FlowPorts { source: sport, destination: dport },
            L3::None | L3::Arp => FlowPorts::default(),
        };
        if class != 0 && meta.direction() == Direction::Out {
            cx.counters.vnic(meta.vnic as usize).rdma_rx_packets.add(1);
        }
        meta.key = FlowKey::build(head, &meta.headers, scope, ports, class, routed);
        meta.hash = meta.key.hash(nft.seed());
        nft.prefetch(meta.hash);
        meta.entropy_port = sport;
    }
    roce
}

#[cold]
fn fragment(
    cx: &Cx,
    fragments: &Fragments,
    head: &[u8],
    headers: &mut Headers,
    scope: Scope,
    class: u8,
) -> Option<FirstFragment> {
    let key = fragment_key(head, headers, scope);
    if headers.is(Flags::FRAGMENT_LATER) {
        let first = fragments.find(&key, cx.now.tick)?;
        cx.counters.fragments.add(1);
        headers.proto = first.proto;
        return Some(first);
    }
    let first = FirstFragment { sport: headers.sport, dport: headers.dport, proto: headers.proto, class };
    fragments.store(&key, first, cx.now.tick);
    Some(first)
}

#[cfg(test)]
mod tests {
    use wire::Psn;
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn the_class_of_a_payload_is_that_of_its_opcode_and_queue_pair() {
        for opcode in 0..=u8::MAX {
            for qpn in [0, 1, 2, 0xff_ffff].map(Qpn::truncated) {
                let mut payload = Bth::new(opcode, qpn, Psn::truncated(7)).as_bytes().to_vec();
                assert_eq!(
                    class_code(&payload, &RoceClasses::STANDARD),
                    code(RoceClass::of(opcode, qpn)),
                    "{opcode:#x} to {qpn:?}"
                );
                let counted = class_code(&payload, &RoceClasses::counting([0xc4, opcode]));
                assert_eq!(counted == CLASS_VENDOR_RC, opcode >= 0xc0, "of vendors' alone: {opcode:#x}");
                payload.pop();
                assert_eq!(class_code(&payload, &RoceClasses::STANDARD), CLASS_OTHER);
            }
        }
    }
}
