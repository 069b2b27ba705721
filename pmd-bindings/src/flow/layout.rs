//! Where the bytes of each kind of item lie in DPDK's structures.
//!
//! The rule model keeps an item as its header on the wire, flags behind it, or as numbers in network byte order; DPDK
//! has C structures with bit fields and numbers of this machine. One table says how the two lie; lowering reads it one
//! way, the tests' raising the other.

use dpdk_sys as sys;
use rules::ItemKind;

/// Bytes of the largest structure, rounded up.
const STRUCTURE_BYTES: usize = 48;

/// Spec, mask or last of an item, as DPDK has it: aligned for any of its structures, zero behind the one it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub(super) struct Structure(pub(super) [u8; STRUCTURE_BYTES]);

impl Structure {
    /// All bytes zero.
    pub(super) const EMPTY: Self = Self([0; STRUCTURE_BYTES]);
}

/// A piece of an item: `at` in the model's bytes, `to` in the C structure.
#[derive(Clone, Copy, Debug)]
enum Piece {
    /// Bytes that are the same in both.
    Bytes { at: usize, to: usize, len: usize },
    /// A number: `len` bytes in network order there, a field of `width` bytes in this machine's order here.
    Number { at: usize, len: usize, to: usize, width: usize },
    /// A flag: a byte there, a bit of a bit field here.
    Flag { at: usize, to: usize, bit: u8 },
}

/// How a kind of item lies in C.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// DPDK's number of the kind.
    pub(super) type_: sys::rte_flow_item_type,
    pieces: &'static [Piece],
}

/// The layout of a kind; `None` when this DPDK has no such item.
pub(super) fn of(kind: ItemKind) -> Option<Layout> {
    use Piece::{Bytes, Flag, Number};
    let (type_, pieces): (_, &'static [Piece]) = match kind {
        ItemKind::Eth => (
            sys::RTE_FLOW_ITEM_TYPE_ETH,
            // The ABI puts the first bit of the bit field right behind the header.
            &[Bytes { at: 0, to: 0, len: 14 }, Flag { at: 14, to: 14, bit: 0 }],
        ),
        ItemKind::Vlan => {
            (sys::RTE_FLOW_ITEM_TYPE_VLAN, &[Bytes { at: 0, to: 0, len: 4 }, Flag { at: 4, to: 4, bit: 0 }])
        }
        ItemKind::Ipv4 => (sys::RTE_FLOW_ITEM_TYPE_IPV4, &[Bytes { at: 0, to: 0, len: 20 }]),
        ItemKind::Ipv6 => (
            sys::RTE_FLOW_ITEM_TYPE_IPV6,
            &[Bytes { at: 0, to: 0, len: 40 }, Flag { at: 40, to: 40, bit: 2 }],
        ),
        ItemKind::Udp => (sys::RTE_FLOW_ITEM_TYPE_UDP, &[Bytes { at: 0, to: 0, len: 8 }]),
        ItemKind::Tcp => (sys::RTE_FLOW_ITEM_TYPE_TCP, &[Bytes { at: 0, to: 0, len: 20 }]),
        ItemKind::Vxlan => (sys::RTE_FLOW_ITEM_TYPE_VXLAN, &[Bytes { at: 0, to: 0, len: 8 }]),
        ItemKind::IbBth => (sys::ITEM_IB_BTH?, &[Bytes { at: 0, to: 0, len: 12 }]),
        ItemKind::RepresentedPort => {
            (sys::RTE_FLOW_ITEM_TYPE_REPRESENTED_PORT, &[Number { at: 0, len: 2, to: 0, width: 2 }])
        }
        ItemKind::PortId => (sys::RTE_FLOW_ITEM_TYPE_PORT_ID, &[Number { at: 0, len: 4, to: 0, width: 4 }]),
        ItemKind::MeterColor => {
            (sys::RTE_FLOW_ITEM_TYPE_METER_COLOR, &[Number { at: 0, len: 1, to: 0, width: 4 }])
        }
        ItemKind::Tag => (
            sys::RTE_FLOW_ITEM_TYPE_TAG,
            &[Number { at: 0, len: 4, to: 0, width: 4 }, Bytes { at: 4, to: 4, len: 1 }],
        ),
        ItemKind::Mark => (sys::RTE_FLOW_ITEM_TYPE_MARK, &[Number { at: 0, len: 4, to: 0, width: 4 }]),
    };
    Some(Layout { type_, pieces })
}

impl Layout {
    /// The C structure of an item's bytes.
    pub(super) fn lower(&self, model: &[u8]) -> Structure {
        let mut structure = Structure::EMPTY;
        for piece in self.pieces {
            match *piece {
                Piece::Bytes { at, to, len } => {
                    structure.0[to..to + len].copy_from_slice(&model[at..at + len]);
                }
                Piece::Number { at, len, to, width } => {
                    let field = &mut structure.0[to..to + width];
                    field.iter_mut().zip(model[at..at + len].iter().rev()).for_each(|(c, byte)| *c = *byte);
                }
                Piece::Flag { at, to, bit } => structure.0[to] |= (model[at] & 1) << bit,
            }
        }
        structure
    }

    /// Bytes of the C structure that hold something.
    #[cfg(test)]
    pub(super) fn extent(&self) -> usize {
        let end = |piece: &Piece| match *piece {
            Piece::Bytes { to, len, .. } => to + len,
            Piece::Number { to, width, .. } => to + width,
            Piece::Flag { to, .. } => to + 1,
        };
        self.pieces.iter().map(end).max().unwrap_or(0)
    }

    /// The item's bytes of a C structure.
    #[cfg(test)]
    pub(super) fn raise(&self, structure: &Structure, model: &mut [u8]) {
        for piece in self.pieces {
            match *piece {
                Piece::Bytes { at, to, len } => {
                    model[at..at + len].copy_from_slice(&structure.0[to..to + len]);
                }
                Piece::Number { at, len, to, .. } => {
                    let field = structure.0[to..to + len].iter().rev();
                    model[at..at + len].iter_mut().zip(field).for_each(|(byte, c)| *byte = *c);
                }
                Piece::Flag { at, to, bit } => model[at] = structure.0[to] >> bit & 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::{Item, items};

    /// Bytes of one of DPDK's structures.
    fn bytes_of<T>(value: &T) -> Vec<u8> {
        // SAFETY: a value that was zeroed in its place, of which only fields were set since: its padding is zero too.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }.to_vec()
    }

    /// In a place of its own: a value that is moved may leave its padding behind.
    fn zeroed<T>() -> Box<T> {
        // SAFETY: used here for DPDK's structures of integers only, for which zero is a value.
        unsafe { Box::new_zeroed().assume_init() }
    }

    #[track_caller]
    fn same<T>(item: Item, expected: &T) {
        let structure = of(item.kind()).unwrap().lower(item.spec());
        assert!(size_of::<T>() <= STRUCTURE_BYTES);
        assert_eq!(structure.0[..size_of::<T>()], bytes_of(expected), "{item}");
    }

    #[test]
    fn flags_are_the_bits_that_the_compiler_chose() {
        let mut eth = zeroed::<sys::rte_flow_item_eth>();
        eth.set_has_vlan(1);
        same(Item::with(items::eth::HAS_VLAN, 1u8), &*eth);
        let mut vlan = zeroed::<sys::rte_flow_item_vlan>();
        vlan.set_has_more_vlan(1);
        same(Item::with(items::vlan::HAS_MORE_VLAN, 1u8), &*vlan);
        let mut ipv6 = zeroed::<sys::rte_flow_item_ipv6>();
        ipv6.set_has_frag_ext(1);
        same(Item::with(items::ipv6::HAS_FRAG_EXT, 1u8), &*ipv6);
    }

    #[test]
    fn numbers_are_this_machines_and_headers_the_wires() {
        let mut tag = zeroed::<sys::rte_flow_item_tag>();
        (tag.data, tag.index) = (0x0102_0304, 7);
        let item = Item::with(items::tag::DATA, 0x0102_0304u32).is(items::tag::INDEX, 7u8);
        same(item, &*tag);
        let mut mark = zeroed::<sys::rte_flow_item_mark>();
        mark.id = 0x0a0b_0c0d;
        same(Item::with(items::mark::ID, 0x0a0b_0c0du32), &*mark);
        let mut port = zeroed::<sys::rte_flow_item_ethdev>();
        port.port_id = 0x0102;
        same(Item::with(items::represented_port::ETHDEV_PORT_ID, 0x0102u16), &*port);
        let mut port = zeroed::<sys::rte_flow_item_port_id>();
        port.id = 0x0102_0304;
        same(Item::with(items::port_id::ID, 0x0102_0304u32), &*port);
        let mut meter = zeroed::<sys::rte_flow_item_meter_color>();
        meter.color = sys::RTE_COLOR_RED;
        same(Item::with(items::meter_color::COLOR, 2u8), &*meter);
        let mut udp = zeroed::<sys::rte_flow_item_udp>();
        (udp.hdr.src_port, udp.hdr.dst_port) = (0x1234u16.to_be(), 4791u16.to_be());
        same(Item::with(items::udp::SRC, 0x1234u16).is(items::udp::DST, 4791u16), &*udp);
        let mut ipv4 = zeroed::<sys::rte_flow_item_ipv4>();
        (ipv4.hdr.time_to_live, ipv4.hdr.dst_addr) = (64, 0x0a00_0001u32.to_be());
        same(Item::with(items::ipv4::TTL, 64u8).is(items::ipv4::DST, 0x0a00_0001u32), &*ipv4);
        let mut tcp = zeroed::<sys::rte_flow_item_tcp>();
        (tcp.hdr.tcp_flags, tcp.hdr.dst_port) = (0x12, 443u16.to_be());
        same(Item::with(items::tcp::FLAGS, 0x12u8).is(items::tcp::DST, 443u16), &*tcp);
    }

    #[test]
    fn only_this_dpdks_items_have_a_layout() {
        for kind in ItemKind::ALL {
            assert_eq!(of(*kind).is_some(), *kind != ItemKind::IbBth || sys::HAS_ITEM_IB_BTH, "{kind:?}");
        }
    }
}
