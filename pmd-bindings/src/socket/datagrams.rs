//! [`Datagrams`]: how a frame that is to be cut into UDP datagrams is cut (`UDP_SEGMENT` of udp(7)).
//!
//! Every datagram has the headers of the frame, with its own lengths and an identification that counts up (RFC 791), and in the
//! checksum field the sum of its pseudo header (RFC 768): whoever sends it on to a wire completes it. VxLAN over IPv4 needs no
//! checksum (RFC 7348 section 5), and gets none: it was on no wire yet, and the packet inside has its own.

use wire::checksum;

use super::ring::Slot;
use crate::vnet::pseudo_header;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const PROTO_UDP: u8 = 17;
const VXLAN_PORT: [u8; 2] = 4789u16.to_be_bytes();

/// How a frame is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagrams<'a> {
    /// Ethernet, IP and UDP.
    pub headers: &'a [u8],
    /// Bytes of the frame.
    pub len: usize,
    /// Bytes of payload of each datagram but the last.
    size: usize,
}

impl<'a> Datagrams<'a> {
    /// Datagrams of a frame at most, as the kernel has it (`UDP_MAX_SEGMENTS`).
    pub const MOST: usize = 128;
    /// Bytes of headers at most.
    pub const HEADERS: usize = ETHERNET + IPV6 + UDP;

    /// The plan for a frame, of which at least the beginning is in the ring, into buffers with so much room; `None` for one that is not
    /// cut here: it has a tag or options, or its datagrams are too many or too long.
    pub fn of(frame: Slot<'a>, size: usize, room: usize) -> Option<Self> {
        let bytes = frame.bytes;
        let l4 = match bytes.get(12..14)? {
            [0x08, 0x00] if bytes.get(14) == Some(&0x45) && bytes.get(23) == Some(&PROTO_UDP) => {
                ETHERNET + IPV4
            }
            [0x86, 0xdd] if bytes.get(20) == Some(&PROTO_UDP) => ETHERNET + IPV6,
            _ => return None,
        };
        // Not of datagrams inside a tunnel, whose headers are further in.
        if !frame.vnet.is_datagram_at(l4) {
            return None;
        }
        let plan = Self { headers: bytes.get(..l4 + UDP)?, len: frame.len, size };
        let payload = frame.len.checked_sub(plan.headers.len()).filter(|payload| *payload > 0)?;
        let is_there = if frame.queued { frame.len > bytes.len() } else { frame.len == bytes.len() };
        let fits = is_there
            && frame.tag.is_none()
            && frame.len <= ETHERNET + usize::from(u16::MAX)
            && payload.div_ceil(size) <= Self::MOST
            && plan.headers.len() + size.min(payload) <= room;
        fits.then_some(plan)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        (self.len - self.headers.len()).div_ceil(self.size)
    }

    /// Bytes of payload of one, counted from 0.
    pub fn payload(&self, number: usize) -> usize {
        (self.len - self.headers.len() - number * self.size).min(self.size)
    }

    /// Whether the datagrams are left with a checksum that somebody must complete.
    pub fn is_partial(&self) -> bool {
        let l4 = self.headers.len() - UDP;
        l4 != ETHERNET + IPV4 || self.headers.get(l4 + 2..l4 + 4) != Some(&VXLAN_PORT)
    }

    /// Writes the headers of one into its bytes.
    pub fn write(&self, number: usize, datagram: &mut [u8]) {
        let l4 = self.headers.len() - UDP;
        let length = (UDP + self.payload(number)) as u16;
        let Some(head) = datagram.get_mut(..self.headers.len()) else { return };
        head.copy_from_slice(self.headers);
        if let Some((ip, [])) = head[ETHERNET..l4].split_first_chunk::<IPV4>() {
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(number as u16);
            head[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&(IPV4 as u16 + length).to_be_bytes());
            head[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&id.to_be_bytes());
            head[ETHERNET + 10..ETHERNET + 12].fill(0);
            let sum = checksum::of(&head[ETHERNET..l4]);
            head[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
        } else {
            head[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&length.to_be_bytes());
        }
        head[l4 + 4..l4 + 6].copy_from_slice(&length.to_be_bytes());
        let pseudo = pseudo_header(&head[ETHERNET..l4], PROTO_UDP, length.into());
        let sum = pseudo.filter(|_| self.is_partial()).unwrap_or(0);
        head[l4 + 6..l4 + 8].copy_from_slice(&sum.to_be_bytes());
    }
}
