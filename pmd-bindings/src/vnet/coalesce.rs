//! [`Run`]: consecutive frames that a socket or tap takes as one, which the kernel, or whoever receives, cuts into the same frames again.
//!
//! Segments of one TCP connection that follow each other become a super-frame, as the kernel's own GRO would make it; VxLAN datagrams
//! of one length and one outer header become a datagram for UDP segmentation. One call of the network stack, one wake-up of
//! the receiver and one acknowledgement then serve dozens of frames. Nothing is copied but headers.
//!
//! A frame that joins is one that could be made again from the headers of the first: same addresses, TTL, ECN field, options; DF, or an
//! identification that counts up. Checksums of IPv4 and TCP are verified before they are given up for that of the whole; datagrams are
//! joined only without one. Nothing else is joined; RoCEv2 is never looked into.

use wire::checksum;

use super::{VnetHeader, pseudo_header};
use crate::mbuf::Segment;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const PROTO_TCP: u8 = 6;
const PROTO_UDP: u8 = 17;
const VXLAN_PORT: [u8; 2] = 4789u16.to_be_bytes();
/// Flags of the TCP header (RFC 9293 section 3.1).
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
/// Frames of a run at most, as the kernel has it (`UDP_MAX_SEGMENTS`).
const MOST: usize = 64;
/// Ethernet, IPv6 and TCP headers with all options.
pub(crate) const HEADERS: usize = ETHERNET + IPV6 + 60;

/// What the headers of a frame say, as far as it may be joined with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    is_ipv6: bool,
    is_tcp: bool,
    /// Bytes of all headers.
    headers: usize,
    payload: usize,
}

impl Shape {
    /// Of a frame in one segment that asks for nothing.
    fn of(frame: &[u8]) -> Option<Self> {
        let (is_ipv6, protocol, l4) = match frame.get(12..14)? {
            [0x08, 0x00] => {
                let ip = frame.get(ETHERNET..ETHERNET + IPV4)?;
                let length = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
                // No options, no fragment, no padding behind it.
                let whole = ip[0] == 0x45
                    && ip[6] & 0x3f == 0
                    && ip[7] == 0
                    && ETHERNET + length == frame.len()
                    && checksum::sum(ip).fold() == 0xffff;
                (false, whole.then_some(ip[9])?, ETHERNET + IPV4)
            }
            [0x86, 0xdd] => {
                let ip = frame.get(ETHERNET..ETHERNET + IPV6)?;
                let length = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
                let whole = ip[0] >> 4 == 6 && ETHERNET + IPV6 + length == frame.len();
                (true, whole.then_some(ip[6])?, ETHERNET + IPV6)
            }
            _ => return None,
        };
        let headers = match protocol {
            PROTO_TCP => {
                let tcp = frame.get(l4..l4 + 20)?;
                let length = usize::from(tcp[12] >> 4) * 4;
                (length >= 20 && tcp[13] & !PSH == ACK).then_some(l4 + length)?
            }
            PROTO_UDP => {
                let udp = frame.get(l4..l4 + UDP)?;
                let length = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
                let fits = udp[2..4] == VXLAN_PORT && udp[6..8] == [0, 0] && l4 + length == frame.len();
                fits.then_some(l4 + UDP)?
            }
            _ => return None,
        };
        let payload = frame.len().checked_sub(headers).filter(|payload| *payload > 0)?;
        Some(Self { is_ipv6, is_tcp: protocol == PROTO_TCP, headers, payload })
    }

    /// Where the L4 header begins.
    const fn l4(self) -> usize {
        ETHERNET + if self.is_ipv6 { IPV6 } else { IPV4 }
    }

    /// The folded sum of the pseudo header, over so many bytes of L4.
    fn pseudo(self, headers: &[u8], length: usize) -> Option<u16> {
        let protocol = if self.is_tcp { PROTO_TCP } else { PROTO_UDP };
        pseudo_header(headers.get(ETHERNET..)?, protocol, length)
    }

    /// Whether a frame's TCP checksum is right. Datagrams have none.
    fn is_sound(self, frame: &[u8]) -> bool {
        if !self.is_tcp {
            return true;
        }
        let l4 = self.l4();
        let Some(pseudo) = self.pseudo(frame, frame.len() - l4) else { return false };
        // The pseudo header first: it is of even length.
        let mut sum = checksum::Sum::ZERO;
        sum.add_u16(pseudo);
        sum.add(&frame[l4..]);
        sum.fold() == 0xffff
    }
}

/// Frames that go as one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    shape: Shape,
    /// Frames in it.
    pub frames: usize,
    /// Bytes of payload of all of them.
    payload: usize,
    /// The last frame has PSH.
    pushes: bool,
}

/// The bytes of a packet of one segment that asks its device for nothing.
fn plain<'a>(packet: Segment) -> Option<&'a [u8]> {
    let is_plain = packet.nb_segs() == 1 && VnetHeader::of(packet) == VnetHeader::default();
    // SAFETY: whoever made the handle has the packet for as long as this module looks at it, and nobody writes it meanwhile.
    is_plain.then(|| unsafe { packet.bytes() })
}

impl Run {
    /// The run that begins with the first of `packets`, if at least two of them go as one.
    pub fn of(mut packets: impl Iterator<Item = Segment>) -> Option<Self> {
        let first = plain(packets.next()?)?;
        let shape = Shape::of(first)?;
        let mut run = Self { shape, frames: 1, payload: shape.payload, pushes: is_pushing(shape, first) };
        // A short frame or one that pushes ends a run, so one of them alone is none.
        while !run.pushes && run.frames < MOST {
            let Some(next) = packets.next().and_then(plain) else { break };
            let Some(length) = run.follows(first, next) else { break };
            if run.frames == 1 && !shape.is_sound(first) || !shape.is_sound(next) {
                break;
            }
            run.frames += 1;
            run.payload += length;
            run.pushes = is_pushing(shape, next);
            if length < shape.payload {
                break;
            }
        }
        (run.frames > 1).then_some(run)
    }

    /// The payload of the frame that comes next in the run, or `None` when this one does not.
    fn follows(&self, first: &[u8], next: &[u8]) -> Option<usize> {
        let shape = Shape::of(next)?;
        let same_kind = (shape.is_ipv6, shape.is_tcp, shape.headers)
            == (self.shape.is_ipv6, self.shape.is_tcp, self.shape.headers);
        let l4 = shape.l4();
        let whole = shape.headers - ETHERNET + self.payload + shape.payload;
        if !same_kind || shape.payload > self.shape.payload || whole > usize::from(u16::MAX) {
            return None;
        }
        let step = self.frames as u16;
        let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        // Addresses and everything between them that does not follow from the length or the place in the run.
        let same_ip = if shape.is_ipv6 {
            first[..ETHERNET + 4] == next[..ETHERNET + 4] && first[ETHERNET + 6..l4] == next[ETHERNET + 6..l4]
        } else {
            let at = ETHERNET + 4;
            let counts = word(next, at) == word(first, at).wrapping_add(step);
            let same_id = first[ETHERNET + 6] & 0x40 != 0 && word(next, at) == word(first, at);
            (counts || same_id)
                && first[..ETHERNET + 2] == next[..ETHERNET + 2]
                && first[ETHERNET + 6..ETHERNET + 10] == next[ETHERNET + 6..ETHERNET + 10]
                && first[ETHERNET + 12..l4] == next[ETHERNET + 12..l4]
        };
        // Ports.
        if !same_ip || first[l4..l4 + 4] != next[l4..l4 + 4] {
            return None;
        }
        if shape.is_tcp {
            let number = |frame: &[u8]| {
                u32::from_be_bytes([frame[l4 + 4], frame[l4 + 5], frame[l4 + 6], frame[l4 + 7]])
            };
            // Acknowledgement and data offset; flags but PSH are ACK alone; window; urgent pointer and options.
            let same = number(next) == number(first).wrapping_add(self.payload as u32)
                && first[l4 + 8..l4 + 13] == next[l4 + 8..l4 + 13]
                && first[l4 + 14..l4 + 16] == next[l4 + 14..l4 + 16]
                && first[l4 + 18..shape.headers] == next[l4 + 18..shape.headers];
            same.then_some(shape.payload)
        } else {
            Some(shape.payload)
        }
    }

    /// Bytes of each frame that are headers.
    pub fn headers(&self) -> usize {
        self.shape.headers
    }

    /// Writes the headers of the whole into `space`, from those of the first frame, and says what the kernel is to do with it.
    pub fn write(&self, first: Segment, space: &mut [u8; HEADERS]) -> Option<VnetHeader> {
        let Shape { is_ipv6, is_tcp, headers, payload } = self.shape;
        let l4 = self.shape.l4();
        let whole = headers - l4 + self.payload;
        let space = &mut space[..headers];
        space.copy_from_slice(plain(first)?.get(..headers)?);
        if is_ipv6 {
            space[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&u16::try_from(whole).ok()?.to_be_bytes());
        } else {
            space[ETHERNET + 2..ETHERNET + 4]
                .copy_from_slice(&u16::try_from(IPV4 + whole).ok()?.to_be_bytes());
            space[ETHERNET + 10..ETHERNET + 12].fill(0);
            let sum = checksum::of(&space[ETHERNET..l4]);
            space[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
        }
        let pseudo = self.shape.pseudo(space, whole)?.to_be_bytes();
        if is_tcp {
            space[l4 + 13] |= if self.pushes { PSH } else { 0 };
            space[l4 + 16..l4 + 18].copy_from_slice(&pseudo);
        } else {
            space[l4 + 4..l4 + 6].copy_from_slice(&u16::try_from(whole).ok()?.to_be_bytes());
            space[l4 + 6..l4 + 8].copy_from_slice(&pseudo);
        }
        Some(VnetHeader::of_run(is_ipv6, is_tcp, headers as u16, payload as u16, l4 as u16))
    }
}

fn is_pushing(shape: Shape, frame: &[u8]) -> bool {
    shape.is_tcp && frame[shape.l4() + 13] & PSH != 0
}
