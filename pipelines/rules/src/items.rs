//! Items: what a rule matches, one layer or one piece of metadata each.
//!
//! An item holds spec, mask and last as bytes in one layout: the header as it is on the wire, then rte_flow's flags
//! that are no part of a header, one byte each; for metadata, its numbers in network byte order. So matching a packet
//! is comparing bytes, and lowering a rule is copying them. All bits that an item can match belong to a named field.

use std::fmt;

use crate::field::Field;

/// Bytes of the longest item.
pub const ITEM_BYTES: usize = 41;

/// Spec, mask or last of an item; bytes behind the item's length are zero.
pub type ItemBytes = [u8; ITEM_BYTES];

macro_rules! items {
    ($($(#[$doc:meta])* $kind:ident $module:ident $text:literal $len:literal {
        $($(#[$fdoc:meta])* $field:ident = $name:literal $bit:literal $bits:literal $format:ident,)*
    })*) => {
        /// What an item is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ItemKind { $($(#[$doc])* $kind,)* }

        $($(#[$doc])*
        pub mod $module {
            use crate::{Field, Format, ItemKind};
            $($(#[$fdoc])* pub const $field: Field = Field::new(ItemKind::$kind, $name, $bit, $bits, Format::$format);)*
            pub(super) const FIELDS: &[Field] = &[$($field),*];
        })*

        impl ItemKind {
            /// All kinds, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The name in rte_flow and testpmd.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $text,)* }
            }

            /// Bytes of spec, mask and last.
            pub const fn size(self) -> usize {
                match self { $(Self::$kind => $len,)* }
            }

            /// The fields that can be matched.
            pub const fn fields(self) -> &'static [Field] {
                match self { $(Self::$kind => $module::FIELDS,)* }
            }
        }
    };
}

items! {
    /// Ethernet: header 14 bytes, has_vlan.
    Eth eth "eth" 15 {
        /// Destination MAC.
        DST = "dst" 0 48 Mac,
        /// Source MAC.
        SRC = "src" 48 48 Mac,
        /// EtherType behind the MACs: that of the first tag, where there is one.
        TYPE = "type" 96 16 Hex,
        /// 1 when a VLAN tag follows.
        HAS_VLAN = "has_vlan" 119 1 Number,
    }
    /// VLAN: tag control information 2 bytes, EtherType behind it 2 bytes, has_more_vlan.
    Vlan vlan "vlan" 5 {
        /// Priority code point (IEEE 802.1Q).
        PCP = "pcp" 0 3 Number,
        /// Drop eligible.
        DEI = "dei" 3 1 Number,
        /// VLAN id.
        VID = "vid" 4 12 Number,
        /// EtherType behind the tag.
        INNER_TYPE = "inner_type" 16 16 Hex,
        /// 1 when another tag follows.
        HAS_MORE_VLAN = "has_more_vlan" 39 1 Number,
    }
    /// IPv4: header without options, 20 bytes.
    Ipv4 ipv4 "ipv4" 20 {
        /// Version and header length; 0x45 is a header without options.
        VERSION_IHL = "version_ihl" 0 8 Hex,
        /// DSCP and ECN.
        TOS = "tos" 8 8 Hex,
        /// Flags and fragment offset.
        FRAGMENT_OFFSET = "fragment_offset" 48 16 Hex,
        /// Time to live.
        TTL = "ttl" 64 8 Number,
        /// Protocol number of what follows (IANA).
        PROTO = "proto" 72 8 Number,
        /// Source address.
        SRC = "src" 96 32 Ipv4,
        /// Destination address.
        DST = "dst" 128 32 Ipv4,
    }
    /// IPv6: header 40 bytes, has_frag_ext.
    Ipv6 ipv6 "ipv6" 41 {
        /// Traffic class: DSCP and ECN.
        TC = "tc" 4 8 Hex,
        /// Flow label.
        FLOW = "flow" 12 20 Hex,
        /// Next header.
        PROTO = "proto" 48 8 Number,
        /// Hop limit.
        HOP = "hop" 56 8 Number,
        /// Source address.
        SRC = "src" 64 128 Ipv6,
        /// Destination address.
        DST = "dst" 192 128 Ipv6,
        /// 1 when there is a fragment header.
        HAS_FRAG_EXT = "has_frag_ext" 327 1 Number,
    }
    /// UDP: header 8 bytes.
    Udp udp "udp" 8 {
        /// Source port.
        SRC = "src" 0 16 Number,
        /// Destination port.
        DST = "dst" 16 16 Number,
    }
    /// TCP: header without options, 20 bytes.
    Tcp tcp "tcp" 20 {
        /// Source port.
        SRC = "src" 0 16 Number,
        /// Destination port.
        DST = "dst" 16 16 Number,
        /// Control bits.
        FLAGS = "flags" 104 8 Hex,
    }
    /// VxLAN: header 8 bytes.
    Vxlan vxlan "vxlan" 8 {
        /// Network identifier.
        VNI = "vni" 32 24 Number,
    }
    /// InfiniBand base transport header, 12 bytes. In rte_flow since DPDK 23.07.
    IbBth ib_bth "ib_bth" 12 {
        /// Opcode: transport in the upper three bits, operation in the lower five.
        OPCODE = "opcode" 0 8 Hex,
        /// Partition key.
        PKEY = "pkey" 16 16 Hex,
        /// Destination queue pair.
        DST_QP = "dst_qp" 40 24 Hex,
    }
    /// The e-switch port that a packet came from: DPDK port id, 2 bytes.
    RepresentedPort represented_port "represented_port" 2 {
        /// DPDK port id.
        ETHDEV_PORT_ID = "ethdev_port_id" 0 16 Number,
    }
    /// The older way to name the port that a packet came from: DPDK port id, 4 bytes.
    PortId port_id "port_id" 4 {
        /// DPDK port id.
        ID = "id" 0 32 Number,
    }
    /// The colour that a meter gave, 1 byte, of which the two lower bits count.
    MeterColor meter_color "meter" 1 {
        /// The colour: 0 green, 1 yellow, 2 red.
        COLOR = "color" 6 2 Colour,
    }
    /// What an earlier rule wrote into a tag register: data 4 bytes, index of the register 1 byte.
    Tag tag "tag" 5 {
        /// What an action before wrote into the register; 0 when none did.
        DATA = "data" 0 32 Hex,
        /// Number of the register.
        INDEX = "index" 32 8 Number,
    }
    /// The mark that an earlier rule set, 4 bytes.
    Mark mark "mark" 4 {
        /// The number that a `mark` action before gave.
        ID = "id" 0 32 Number,
    }
}

/// One layer or piece of metadata that a packet must have, and what its fields must be.
///
/// Normalised at all times: spec and last have no bit outside mask, and last is there only where a field's upper bound
/// is above its lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    kind: ItemKind,
    spec: ItemBytes,
    mask: ItemBytes,
    last: Option<ItemBytes>,
}

impl Item {
    /// Any packet that has this layer.
    pub const fn any(kind: ItemKind) -> Self {
        Self { kind, spec: [0; ITEM_BYTES], mask: [0; ITEM_BYTES], last: None }
    }

    /// An item with one field of one value.
    pub fn with(field: Field, value: impl Into<u128>) -> Self {
        Self::any(field.kind).is(field, value)
    }

    /// The field has this value.
    #[must_use]
    pub fn is(self, field: Field, value: impl Into<u128>) -> Self {
        self.masked(field, value, field.ones())
    }

    /// The field has this value in the bits of `mask`. A mask of zero matches everything.
    #[must_use]
    pub fn masked(mut self, field: Field, value: impl Into<u128>, mask: u128) -> Self {
        debug_assert_eq!(self.kind, field.kind, "{} is no field of {}", field.name, self.kind.name());
        let value = value.into();
        field.set(&mut self.spec, value & mask);
        field.set(&mut self.mask, mask);
        // Nothing else can be outside the mask.
        let Some(last) = &mut self.last else { return self };
        field.set(last, value & mask);
        self.normalised()
    }

    /// The field is between two values, both included.
    #[must_use]
    pub fn between(mut self, field: Field, low: impl Into<u128>, high: impl Into<u128>) -> Self {
        self = self.is(field, low);
        let mut last = self.last.unwrap_or(self.spec);
        field.set(&mut last, high.into());
        self.last = Some(last);
        self.normalised()
    }

    /// An item from its bytes: bits outside mask are cleared. `None` when a length is not the kind's, or when a bit
    /// that no field has is to be matched.
    pub fn from_bytes(kind: ItemKind, spec: &[u8], mask: &[u8], last: Option<&[u8]>) -> Option<Self> {
        let copy = |bytes: &[u8]| -> Option<ItemBytes> {
            let mut copy = [0; ITEM_BYTES];
            copy.get_mut(..bytes.len())?.copy_from_slice(bytes);
            (bytes.len() == kind.size()).then_some(copy)
        };
        let mut item = Self { kind, spec: copy(spec)?, mask: copy(mask)?, last: None };
        if let Some(last) = last {
            item.last = Some(copy(last)?);
        }
        let mut named = [0; ITEM_BYTES];
        kind.fields().iter().for_each(|field| field.set(&mut named, field.ones()));
        let known = item.mask.iter().zip(named).all(|(mask, named)| mask & !named == 0);
        known.then(|| item.normalised())
    }

    fn normalised(mut self) -> Self {
        let mask = self.mask;
        let clear = |bytes: &mut ItemBytes| bytes.iter_mut().zip(mask).for_each(|(byte, mask)| *byte &= mask);
        clear(&mut self.spec);
        if let Some(mut last) = self.last {
            clear(&mut last);
            for field in self.kind.fields() {
                // A bound that is not above the value is none (rte_flow guide, "Pattern item").
                let spec = field.get(&self.spec);
                if field.get(&last) < spec {
                    field.set(&mut last, spec);
                }
            }
            self.last = (last != self.spec).then_some(last);
        }
        self
    }

    /// The header or register that it matches.
    pub const fn kind(&self) -> ItemKind {
        self.kind
    }

    /// Values, the kind's length of them.
    pub fn spec(&self) -> &[u8] {
        &self.spec[..self.kind.size()]
    }

    /// Bits of the spec that a packet must have; the others may be anything.
    pub fn mask(&self) -> &[u8] {
        &self.mask[..self.kind.size()]
    }

    /// Mask and values, filled up with zeros.
    pub const fn bytes(&self) -> (ItemBytes, ItemBytes) {
        (self.mask, self.spec)
    }

    /// Upper bounds, where there are any.
    pub fn last(&self) -> Option<&[u8]> {
        self.last.as_ref().map(|last| &last[..self.kind.size()])
    }

    /// Value and mask of a field.
    pub fn field(&self, field: Field) -> (u128, u128) {
        (field.get(&self.spec), field.get(&self.mask))
    }

    /// Upper bound of a field, where that is above its value.
    pub fn upper(&self, field: Field) -> Option<u128> {
        self.last.map(|last| field.get(&last)).filter(|&last| last > field.get(&self.spec))
    }

    /// True when no field counts.
    pub fn is_any(&self) -> bool {
        self.mask == [0; ITEM_BYTES]
    }

    /// True when the bytes of a packet's layer are what the item asks for.
    pub fn matches(&self, bytes: &ItemBytes) -> bool {
        let Some(last) = self.last else {
            return bytes
                .iter()
                .zip(self.mask)
                .zip(self.spec)
                .all(|((byte, mask), spec)| byte & mask == spec);
        };
        self.kind.fields().iter().all(|field| {
            let value = field.get(bytes) & field.get(&self.mask);
            (field.get(&self.spec)..=field.get(&last)).contains(&value)
        })
    }
}

/// As in a pattern of testpmd's `flow create`.
impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind.name())?;
        for field in self.kind.fields() {
            let (value, mask) = self.field(*field);
            let upper = self.upper(*field);
            if mask == 0 {
                continue;
            }
            if mask == field.ones() && upper.is_none() {
                write!(f, " {} is ", field.name)?;
                field.write(f, value, false)?;
                continue;
            }
            write!(f, " {} spec ", field.name)?;
            field.write(f, value, false)?;
            if let Some(upper) = upper {
                write!(f, " {} last ", field.name)?;
                field.write(f, upper, false)?;
            }
            write!(f, " {} mask ", field.name)?;
            field.write(f, mask, true)?;
        }
        Ok(())
    }
}
