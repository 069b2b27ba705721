//! Whether a match fits the format that the hardware has for it: words and bytes chosen out of one long list of header fields.
//!
//! A match is nine 32-bit words and eight single bytes. Words of headers without addresses may be taken whole or byte by byte;
//! addresses, tunnel headers and registers lie beyond the reach of bytes, and on ConnectX-6 Dx of three of the words. What an
//! item costs are the fields that it matches, and what says that its layer is there.

use super::Nic;
use crate::items::{eth, ib_bth, ipv4, ipv6, tag, tcp, udp, vlan, vxlan};
use crate::{Cause, Field, FlowError, Item, ItemKind, Where};

/// Words of a match.
pub(super) const WORDS: usize = 9;
/// Bytes beside them.
const BYTES: u32 = 8;

/// Words of one level's headers that bytes reach, in any order.
const DMAC: usize = 0;
/// The rest of the destination MAC, then the EtherType.
const DMAC_TYPE: usize = 1;
/// Fragments, which layers there are, then the VLAN tag.
const LAYERS: usize = 2;
const SMAC: usize = 3;
const SMAC_REST: usize = 4;
/// Header length, traffic class, TTL, protocol.
const IP: usize = 5;
const FRAGMENT: usize = 6;
const FLOW_LABEL: usize = 7;
const PORTS: usize = 8;
/// Fragments of IPv6, TCP's flags.
const LAYER4: usize = 9;
/// Operation and destination queue pair, of the innermost packet.
const BTH: usize = 10;
const NEAR: usize = 11;

/// What says which layer 4 it is: a protocol number in the IP header, or the kind of layer, which needs no byte of its own.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Protocol {
    #[default]
    Any,
    Number,
    Layer,
}

/// The headers outside or inside of a tunnel.
#[derive(Clone, Copy, Default)]
struct Level {
    /// Bytes of each word, bit 3 for the first one.
    near: [u8; NEAR],
    has_type: bool,
    protocol: Protocol,
    has_port: bool,
    fragment: Option<(usize, u8)>,
    /// Which words of addresses.
    far: u16,
}

impl Level {
    fn take(&mut self, wanted: bool, word: usize, bytes: u8) {
        if wanted {
            self.near[word] |= bytes;
        }
    }

    fn layer(&mut self) {
        self.near[LAYERS] |= 0b0100;
    }

    /// The bytes of each word, with what only the last item decides.
    fn bytes(mut self) -> [u8; NEAR] {
        self.take(self.has_type, DMAC_TYPE, 0b0011);
        self.take(self.protocol == Protocol::Number, IP, 0b0001);
        self.take(self.protocol == Protocol::Layer, LAYERS, 0b0100);
        if let Some((word, bytes)) = self.fragment {
            self.take(true, word, bytes);
        }
        self.near
    }
}

/// Whether the pattern fits.
///
/// # Errors
/// [`Cause::Unsupported`], about the pattern as a whole.
pub(super) fn check(pattern: &[Item], nic: Nic) -> Result<(), FlowError> {
    let mut levels = [Level::default(); 2];
    let (mut inside, mut shared) = (0, 0u32);
    for item in pattern {
        let level = &mut levels[inside];
        match item.kind() {
            ItemKind::Vxlan => {
                over_udp(level);
                shared |= u32::from(has(item, vxlan::VNI));
                inside = 1;
            }
            ItemKind::RepresentedPort => shared |= 1 << 1,
            ItemKind::MeterColor => shared |= u32::from(!item.is_any()) << 2,
            ItemKind::Tag => shared |= 1 << (3 + (tag::INDEX.get(item.spec()) & 0xf)),
            _ => header(level, item),
        }
    }
    let far = shared.count_ones() + levels.iter().map(|level| level.far.count_ones()).sum::<u32>();
    let mut near: Vec<u32> = levels
        .iter()
        .flat_map(|level| level.bytes())
        .map(u8::count_ones)
        .filter(|bytes| *bytes > 0)
        .collect();
    near.sort_unstable();
    // Words that are left go to those that would cost most bytes.
    let words = WORDS.saturating_sub(far as usize);
    let by_bytes: u32 = near.iter().rev().skip(words).sum();
    if far as usize <= nic.far_words() && by_bytes <= BYTES {
        return Ok(());
    }
    let words = format!(
        "the match does not fit {nic}: {far} words of addresses, tunnel and registers, {} of other headers",
        near.len()
    );
    Err(FlowError::new(Cause::Unsupported, Where::ItemNum, words))
}

fn has(item: &Item, field: Field) -> bool {
    item.field(field).1 != 0
}

/// VxLAN and BTH say that there is UDP, and to which port.
fn over_udp(level: &mut Level) {
    if level.protocol == Protocol::Any {
        level.protocol = Protocol::Layer;
    }
    level.take(!level.has_port, PORTS, 0b0011);
}

fn header(level: &mut Level, item: &Item) {
    let bits = |field: Field| item.field(field).1;
    let has = |field: Field| has(item, field);
    match item.kind() {
        ItemKind::Eth => {
            level.has_type |= has(eth::TYPE);
            level.take(bits(eth::DST) >> 16 != 0, DMAC, 0b1111);
            level.take(bits(eth::DST) & 0xffff != 0, DMAC_TYPE, 0b1100);
            level.take(bits(eth::SRC) >> 16 != 0, SMAC, 0b1111);
            level.take(bits(eth::SRC) & 0xffff != 0, SMAC_REST, 0b1100);
            level.take(has(eth::HAS_VLAN), LAYERS, 0b0100);
        }
        ItemKind::Vlan => {
            level.layer();
            level.take(has(vlan::PCP) || has(vlan::DEI) || has(vlan::VID), LAYERS, 0b0011);
            level.has_type |= has(vlan::INNER_TYPE);
        }
        ItemKind::Ipv4 => {
            level.layer();
            level.has_type = false;
            level.take(bits(ipv4::VERSION_IHL) & 0xf != 0, IP, 0b1000);
            level.take(has(ipv4::TOS), IP, 0b0100);
            level.take(has(ipv4::TTL), IP, 0b0010);
            match bits(ipv4::FRAGMENT_OFFSET) {
                0 => {}
                // Any fragment at all is one bit.
                0x3fff => level.fragment = Some((LAYERS, 0b1000)),
                _ => level.fragment = Some((FRAGMENT, 0b0011)),
            }
            if has(ipv4::PROTO) {
                level.protocol = Protocol::Number;
            }
            level.far |= u16::from(has(ipv4::SRC)) | u16::from(has(ipv4::DST)) << 1;
        }
        ItemKind::Ipv6 => {
            level.layer();
            level.has_type = false;
            level.take(has(ipv6::TC), IP, 0b0100);
            level.take(has(ipv6::FLOW), FLOW_LABEL, 0b0111);
            level.take(has(ipv6::HOP), IP, 0b0010);
            if has(ipv6::HAS_FRAG_EXT) {
                level.fragment = Some((LAYER4, 0b1000));
            }
            if has(ipv6::PROTO) {
                level.protocol = Protocol::Number;
            }
            for (field, first) in [(ipv6::SRC, 2), (ipv6::DST, 6)] {
                let words = (0..4).filter(|word| bits(field) >> (32 * word) & 0xffff_ffff != 0);
                words.for_each(|word| level.far |= 1 << (first + word));
            }
        }
        ItemKind::Udp => ports(level, has(udp::SRC), has(udp::DST)),
        ItemKind::Tcp => {
            ports(level, has(tcp::SRC), has(tcp::DST));
            level.take(has(tcp::FLAGS), LAYER4, 0b0100);
        }
        ItemKind::IbBth => {
            over_udp(level);
            level.take(has(ib_bth::OPCODE), BTH, 0b1000);
            level.take(has(ib_bth::DST_QP), BTH, 0b0111);
        }
        ItemKind::Vxlan
        | ItemKind::RepresentedPort
        | ItemKind::PortId
        | ItemKind::MeterColor
        | ItemKind::Tag
        | ItemKind::Mark => {}
    }
}

fn ports(level: &mut Level, source: bool, destination: bool) {
    level.protocol = Protocol::Layer;
    level.take(source, PORTS, 0b1100);
    level.take(destination, PORTS, 0b0011);
    level.has_port |= destination;
}
