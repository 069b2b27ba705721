//! The layers of a packet as items see them: which there are, and their bytes.
//!
//! A layer has a place: outside the tunnel or inside it, and for VLAN tags first or second. Items in front of a VxLAN
//! item are about the outside, those behind it about the inside.

use wire::parse::parse_into;
use wire::roce::BTH_LEN;
use wire::{Flags, Headers, L3, PacketBuf, protocol, vxlan};

use rules::items::{ITEM_BYTES, ItemBytes, eth, ipv6, tag, vlan};
use rules::{Cause, FlowError, Item, ItemKind, Where};

/// Number of tag registers.
pub const TAGS: usize = 4;
/// What stands in front of a frame in the payload of an outer UDP datagram.
const VXLAN: usize = vxlan::HEADER_LEN;

/// Items of a pattern at most.
pub const MAX_ITEMS: usize = 16;

/// Which layer or piece of metadata an item is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerSlot {
    kind: ItemKind,
    /// Headers: 1 inside the tunnel; tags of a VLAN: 2 more for the second; tag registers: which.
    place: u8,
}

impl Default for LayerSlot {
    fn default() -> Self {
        Self { kind: ItemKind::Eth, place: 0 }
    }
}

/// The slots of a pattern.
#[derive(Clone, Copy, Default)]
pub struct LayerSlots {
    slots: [LayerSlot; MAX_ITEMS],
    len: usize,
}

impl LayerSlots {
    /// In the order of the pattern.
    pub fn as_slice(&self) -> &[LayerSlot] {
        &self.slots[..self.len]
    }

    fn push(&mut self, slot: LayerSlot) {
        if let Some(place) = self.slots.get_mut(self.len) {
            *place = slot;
            self.len += 1;
        }
    }
}

/// The slots of a pattern, in its order.
///
/// # Errors
/// When an item stands where no packet has it, or twice.
pub fn slots_of(pattern: &[Item]) -> Result<LayerSlots, FlowError> {
    if pattern.len() > MAX_ITEMS {
        let text = format!("the simulated e-switch takes patterns of {MAX_ITEMS} items at most");
        return Err(FlowError::new(Cause::Unsupported, Where::ItemNum, text));
    }
    let mut slots = LayerSlots::default();
    let (mut inside, mut deepest) = (0, 0);
    for (index, item) in pattern.iter().enumerate() {
        let error = |text: &str| FlowError::new(Cause::Invalid, Where::Item(index), text);
        let kind = item.kind();
        let place = match kind {
            ItemKind::Tag => match item.field(tag::INDEX) {
                (register, 0xff) if register < TAGS as u128 => register as u8,
                _ => return Err(error("a tag item names one of registers 0 to 3, all bits of its index")),
            },
            _ if is_metadata(kind) => 0,
            _ => {
                let depth = depth(kind) + inside * 10;
                let second_tag = kind == ItemKind::Vlan
                    && slots.as_slice().last().is_some_and(|last| last.kind == ItemKind::Vlan);
                if depth < deepest || depth == deepest && deepest > 0 && !second_tag {
                    return Err(error(
                        "the item stands behind a layer that is not in front of it in packets",
                    ));
                }
                deepest = depth;
                inside | if second_tag { 2 } else { 0 }
            }
        };
        let slot = LayerSlot { kind, place };
        if slots.as_slice().contains(&slot) {
            return Err(error("the item is there twice"));
        }
        slots.push(slot);
        if kind == ItemKind::Vxlan {
            if inside == 1 {
                return Err(error("a tunnel within a tunnel"));
            }
            inside = 1;
        }
    }
    Ok(slots)
}

const fn is_metadata(kind: ItemKind) -> bool {
    matches!(
        kind,
        ItemKind::RepresentedPort | ItemKind::PortId | ItemKind::MeterColor | ItemKind::Tag | ItemKind::Mark
    )
}

/// Order of headers in a packet.
const fn depth(kind: ItemKind) -> u8 {
    match kind {
        ItemKind::Eth => 1,
        ItemKind::Vlan => 2,
        ItemKind::Ipv4 | ItemKind::Ipv6 => 3,
        ItemKind::Udp | ItemKind::Tcp => 4,
        ItemKind::IbBth | ItemKind::Vxlan => 5,
        _ => 0,
    }
}

/// What the e-switch carries along with a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// DPDK port that stands for where the packet came from.
    pub port: u16,
    /// Tag registers, zero until a rule writes them.
    pub tags: [u32; TAGS],
    /// 0 green, 1 yellow, 2 red.
    pub colour: u8,
    /// What a `mark` action gave the packet for whoever receives it in software.
    pub mark: Option<u32>,
    /// The flow of the packet as it was received; 0 for those that the e-switch does not judge.
    pub flow: u64,
}

/// UDP ports that mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpPorts {
    /// Destination port behind which the device looks for VxLAN.
    pub vxlan: u16,
    /// Destination port behind which it looks for an InfiniBand base transport header.
    pub rdma: u16,
}

/// Where the layers of a packet begin.
#[derive(Clone, Copy, Debug)]
pub struct Layers {
    outer: Headers,
    /// Offset of the frame in the tunnel, its network, and its headers.
    inner: Option<(usize, u32, Headers)>,
    rdma_port: u16,
}

impl Layers {
    /// Finds the layers. `None` for a packet that is not for the e-switch to judge: malformed, with a wrong outer
    /// checksum, not finished, or larger than a packet of the wire. Hardware would know some of these by an integrity
    /// item (unconfirmed).
    pub fn of<P: PacketBuf>(packet: &P, ports: UdpPorts) -> Option<Self> {
        if packet.is_unfinished() {
            return None;
        }
        let head = packet.head();
        let mut layers = Self { outer: Headers::default(), inner: None, rdma_port: ports.rdma };
        parse_into(head, packet.len(), &mut layers.outer).ok()?;
        if !layers.outer.is_udp_to(ports.vxlan) {
            return Some(layers);
        }
        let header = vxlan::Header::parse(layers.outer.payload(head)).filter(|header| header.has_vni());
        if let Some(header) = header {
            let outer = &layers.outer;
            let wrong = wire::l4::verify(outer, packet.segments()) == wire::l4::ChecksumVerdict::Bad;
            let end = outer.udp(head).map(|udp| usize::from(outer.l4_offset) + usize::from(udp.len.get()))?;
            let front = outer.payload_offset() + VXLAN;
            if wrong || !outer.ipv4_checksum_ok(head) || end < front {
                return None;
            }
            let mut inner = Headers::default();
            parse_into(head.get(front..)?, end - front, &mut inner).ok()?;
            layers.inner = Some((front, header.vni().get(), inner));
        }
        Some(layers)
    }

    /// The headers that are outermost.
    pub fn outer(&self) -> &Headers {
        &self.outer
    }

    /// Bytes in front of the frame in the tunnel.
    pub fn tunnel_len(&self) -> Option<usize> {
        self.inner.map(|(at, ..)| at)
    }

    /// Offset of the frame in the tunnel, its network, and its headers.
    pub fn inner(&self) -> Option<(usize, u32, &Headers)> {
        self.inner.as_ref().map(|(at, vni, headers)| (*at, *vni, headers))
    }

    /// The UDP port of RoCEv2.
    pub const fn rdma_port(&self) -> u16 {
        self.rdma_port
    }

    /// The bytes of a layer; `None` when the packet has no such layer.
    pub fn bytes(&self, slot: LayerSlot, head: &[u8], registers: &Registers) -> Option<ItemBytes> {
        let mut bytes = [0; ITEM_BYTES];
        let mut put = |source: &[u8]| bytes[..source.len()].copy_from_slice(source);
        match slot.kind {
            ItemKind::RepresentedPort => put(&registers.port.to_be_bytes()),
            ItemKind::PortId => put(&u32::from(registers.port).to_be_bytes()),
            ItemKind::MeterColor => put(&[registers.colour]),
            ItemKind::Mark => put(&registers.mark?.to_be_bytes()),
            ItemKind::Tag => {
                put(&registers.tags.get(usize::from(slot.place))?.to_be_bytes());
                bytes[4] = slot.place;
            }
            kind => self.header(kind, slot.place, head, &mut bytes)?,
        }
        Some(bytes)
    }

    fn header(&self, kind: ItemKind, place: u8, head: &[u8], bytes: &mut ItemBytes) -> Option<()> {
        let (start, headers) = match (place & 1, &self.inner) {
            (0, _) => (0, &self.outer),
            (_, Some((at, _, headers))) => (*at, headers),
            _ => return None,
        };
        let (l3, l4) = (start + usize::from(headers.l3_offset), start + usize::from(headers.l4_offset));
        let second = place >> 1;
        let (at, len) = match kind {
            ItemKind::Eth => (start, 14),
            ItemKind::Vlan if headers.vlan_count > second => (start + 14 + 4 * usize::from(second), 4),
            ItemKind::Ipv4 if headers.l3 == L3::Ipv4 => (l3, 20),
            ItemKind::Ipv6 if headers.l3 == L3::Ipv6 => (l3, 40),
            ItemKind::Udp if headers.is_udp() => (l4, 8),
            ItemKind::Tcp if headers.is_tcp() => (l4, 20),
            ItemKind::Vxlan if self.inner.is_some() && place == 0 => (l4 + 8, VXLAN),
            ItemKind::IbBth if headers.is_udp_to(self.rdma_port) && headers.l4_total_len() >= 8 + BTH_LEN => {
                (l4 + 8, BTH_LEN)
            }
            _ => return None,
        };
        bytes[..len].copy_from_slice(head.get(at..at + len)?);
        match kind {
            ItemKind::Eth => eth::HAS_VLAN.set(bytes, u128::from(headers.vlan_count > 0)),
            ItemKind::Vlan => vlan::HAS_MORE_VLAN.set(bytes, u128::from(headers.vlan_count > second + 1)),
            ItemKind::Ipv6 => {
                let fragment = headers.is(Flags::FRAGMENT) || head.get(l3 + 6) == Some(&protocol::FRAGMENT);
                ipv6::HAS_FRAG_EXT.set(bytes, u128::from(fragment));
            }
            _ => {}
        }
        Some(())
    }
}
