//! The header that `raw_encap` puts in front of a frame: Ethernet, at most one VLAN tag, IPv4 or IPv6, UDP, VxLAN.
//!
//! What the device fills in (lengths, checksums) is zero here: see [`Encap::new`].

use std::fmt;

use thiserror::Error;
use wire::protocol;

use crate::items::{Item, ItemKind, eth, ipv4, ipv6, vlan};

/// The longest header: Ethernet 14, VLAN 4, IPv6 40, UDP 8, VxLAN 8.
const MAX_BYTES: usize = 74;

/// Bytes that are no header to encapsulate with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EncapError {
    /// Too short or too long.
    #[error("{0} bytes are no outer header: Ethernet, IP, UDP and VxLAN have 50 to 74")]
    Length(usize),
    /// Another protocol than the one expected at a byte.
    #[error(
        "no {expected} at byte {at} of the outer header; write Ethernet, one VLAN tag at most, IPv4 without options or IPv6, UDP, VxLAN"
    )]
    Protocol {
        /// What should be there.
        expected: &'static str,
        /// Offset in bytes from the start of the Ethernet header.
        at: usize,
    },
}

/// An outer header, normalised: two headers that a device would send alike are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Encap {
    len: u8,
    bytes: [u8; MAX_BYTES],
}

impl Encap {
    /// The header in `bytes`. IPv4 total length and checksum, IPv6 payload length, UDP length and checksum are the
    /// device's and are cleared; so are reserved bits of VxLAN, whose I flag is set.
    ///
    /// # Errors
    /// When it is no such header.
    pub fn new(bytes: &[u8]) -> Result<Self, EncapError> {
        let mut encap = Self { len: 0, bytes: [0; MAX_BYTES] };
        let Some(copy) = encap.bytes.get_mut(..bytes.len()) else {
            return Err(EncapError::Length(bytes.len()));
        };
        copy.copy_from_slice(bytes);
        encap.len = bytes.len() as u8;
        let ip = encap.ip_offset();
        let header = &mut encap.bytes;
        let clear = |header: &mut [u8; MAX_BYTES], from: usize, to: usize| header[from..to].fill(0);
        let udp = match (&header[ip - 2..ip], header[ip] >> 4) {
            ([0x08, 0x00], 4) if header[ip] == 0x45 && header[ip + 9] == protocol::UDP => {
                clear(header, ip + 2, ip + 4);
                clear(header, ip + 10, ip + 12);
                ip + 20
            }
            ([0x86, 0xdd], 6) if header[ip + 6] == protocol::UDP => {
                clear(header, ip + 4, ip + 6);
                ip + 40
            }
            _ => return Err(EncapError::Protocol { expected: "IP header followed by UDP", at: ip }),
        };
        if usize::from(encap.len) != udp + 16 {
            return Err(EncapError::Length(bytes.len()));
        }
        clear(header, udp + 4, udp + 12);
        header[udp + 8] = wire::vxlan::FLAG_VNI;
        header[udp + 15] = 0;
        Ok(encap)
    }

    /// The header in network order, from the Ethernet destination to the end of VxLAN; lengths and checksums are the device's.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Offset of the IP header.
    pub fn ip_offset(&self) -> usize {
        if self.bytes[12..14] == [0x81, 0x00] { 18 } else { 14 }
    }

    /// True when the outer IP header is IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.bytes[self.ip_offset()] >> 4 == 6
    }

    /// Its layers as items whose fields all count.
    fn layers(&self) -> Vec<Item> {
        let mut kinds = vec![ItemKind::Eth];
        if self.ip_offset() == 18 {
            kinds.push(ItemKind::Vlan);
        }
        kinds.extend([
            if self.is_ipv6() { ItemKind::Ipv6 } else { ItemKind::Ipv4 },
            ItemKind::Udp,
            ItemKind::Vxlan,
        ]);
        let mut at = 0;
        kinds
            .into_iter()
            .map(|kind| {
                // Flags of an item are no part of the header.
                let flags = [eth::HAS_VLAN, vlan::HAS_MORE_VLAN, ipv6::HAS_FRAG_EXT];
                let flagged = flags.iter().any(|flag| flag.kind == kind);
                let header = &self.bytes[at..at + kind.size() - usize::from(flagged)];
                at += header.len();
                // What testpmd fills in by itself: version and length. Zero is what a field is unless it is written.
                let implied = |field| flags.contains(&field) || field == ipv4::VERSION_IHL;
                let fields = kind.fields().iter().filter(|field| !implied(**field) && field.get(header) != 0);
                fields.fold(Item::any(kind), |item, field| item.is(*field, field.get(header)))
            })
            .collect()
    }
}

impl fmt::Debug for Encap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// As in testpmd's `set raw_encap`.
impl fmt::Display for Encap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.layers().iter().try_for_each(|layer| write!(f, "{layer} / "))?;
        write!(f, "end_set")
    }
}
