//! Fields of items: where a value lies in the item's bytes, and how testpmd writes it.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use wire::MacAddr;

use crate::items::ItemKind;

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// A decimal number; masks are written in hexadecimal.
    Number,
    /// A hexadecimal number.
    Hex,
    /// A MAC address.
    Mac,
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// The colour that a meter gave: 0 green, 1 yellow, 2 red.
    Colour,
}

/// A field of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// The item it belongs to.
    pub kind: ItemKind,
    /// Its name in testpmd.
    pub name: &'static str,
    /// First bit, counted from the most significant bit of the item's first byte.
    pub bit: u16,
    /// Number of bits, at most 128.
    pub bits: u16,
    /// How values are written.
    pub format: Format,
}

impl Field {
    pub(super) const fn new(kind: ItemKind, name: &'static str, bit: u16, bits: u16, format: Format) -> Self {
        Self { kind, name, bit, bits, format }
    }

    /// The largest value: all bits set.
    pub const fn ones(&self) -> u128 {
        u128::MAX >> (128 - self.bits)
    }

    /// First byte, byte behind the last, bits behind the field in its last byte.
    const fn window(&self) -> (usize, usize, u16) {
        let end = self.bit + self.bits;
        let last = end.div_ceil(8);
        (self.bit as usize / 8, last as usize, last * 8 - end)
    }

    /// The value in the bytes of an item.
    pub fn get(&self, bytes: &[u8]) -> u128 {
        let (start, end, shift) = self.window();
        let window = bytes.get(start..end).unwrap_or_default();
        window.iter().fold(0, |value, byte| value << 8 | u128::from(*byte)) >> shift & self.ones()
    }

    /// Writes a value; bits that the field has no room for are left out.
    pub fn set(&self, bytes: &mut [u8], value: u128) {
        let (start, end, shift) = self.window();
        let (mut field, mut value) = (self.ones() << shift, (value & self.ones()) << shift);
        for byte in bytes.get_mut(start..end).unwrap_or_default().iter_mut().rev() {
            *byte = *byte & !(field as u8) | value as u8;
            (field, value) = (field >> 8, value >> 8);
        }
    }

    /// A value as testpmd takes it.
    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>, value: u128, is_mask: bool) -> fmt::Result {
        match self.format {
            Format::Mac => {
                let [_, _, mac @ ..] = (value as u64).to_be_bytes();
                write!(f, "{}", MacAddr(mac))
            }
            Format::Ipv4 => write!(f, "{}", Ipv4Addr::from(value as u32)),
            Format::Ipv6 => write!(f, "{}", Ipv6Addr::from(value)),
            Format::Colour => match value {
                0 => write!(f, "green"),
                1 => write!(f, "yellow"),
                _ => write!(f, "red"),
            },
            Format::Number if !is_mask => write!(f, "{value}"),
            Format::Number | Format::Hex => {
                let digits = usize::from(self.bits).div_ceil(4);
                write!(f, "0x{value:0digits$x}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::*;

    #[test]
    fn values_lie_where_the_field_says_and_nowhere_else() {
        let flow = Field::new(ItemKind::Ipv6, "flow", 12, 20, Format::Hex);
        let mut bytes = [0xff; 8];
        flow.set(&mut bytes, 0x1_2345);
        assert_eq!(bytes, [0xff, 0xf1, 0x23, 0x45, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(flow.get(&bytes), 0x1_2345);
        flow.set(&mut bytes, 0xf0_0000);
        assert_eq!(flow.get(&bytes), 0, "no room for the upper bits");
        assert_eq!(bytes[1] & 0xf0, 0xf0);
        let whole = Field::new(ItemKind::Ipv6, "src", 0, 128, Format::Ipv6);
        let mut bytes = [0; 16];
        whole.set(&mut bytes, u128::MAX - 1);
        assert_eq!(whole.get(&bytes), u128::MAX - 1);
    }
}
