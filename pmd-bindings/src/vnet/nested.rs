//! Super-frames inside tunnels of a container's own, cut into the packets that they stand for; and datagrams whose headers are unusual.
//!
//! A veth takes such frames, and packet sockets have no name for the tunnel: they call it a frame of TCP, or of datagrams, whose header
//! begins further in. So the tunnel is found here, by its headers: VxLAN (RFC 7348) on any port, Geneve (RFC 8926), GRE (RFC 2784, keys
//! of RFC 2890), and IP in IP (RFC 2003, RFC 2473, RFC 4213), one in another. Each piece has headers of its own, whose lengths, IPv4
//! identifications and checksums are right; nothing is left to anybody.

use wire::ethernet::ethertype;
use wire::segment::{MAX_HEADERS, MAX_PIECES, MIN_SEGMENT, share_out};
use wire::tcp::flags;
use wire::{PacketBuf, checksum, ipv4, ipv6, protocol, tcp, udp, vxlan};

use super::{ETHERNET, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, TCP_CHECKSUM};
use super::{TCP_FLAGS, UDP_CHECKSUM, VnetHeader, pseudo_header, put_word};
use crate::mbuf::Mbuf;

/// Ethernet in GRE and Geneve (transparent Ethernet bridging, RFC 1701).
const BRIDGED: u16 = 0x6558;
const GENEVE_PORT: u16 = 6081;
/// Bit K of GRE, behind which a key comes; with any other bit a piece would want a number or a checksum of its own.
const GRE_KEY: u16 = 0x2000;
/// No piece but one could have them.
const ALONE: u8 = flags::SYN | flags::RST | flags::URG;
/// Headers with a length of their own at most: those of three tunnels.
const MOST: usize = 8;

/// A header whose fields follow from the length of what is behind it, and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Ipv4(usize),
    Ipv6(usize),
    Udp(usize),
}

/// How a frame is cut.
#[derive(Debug)]
pub(crate) struct Nested {
    layers: [Option<Layer>; MOST],
    /// Where the header of what is cut begins, and where its data do.
    l4: usize,
    data: usize,
    is_tcp: bool,
    /// Bytes of data of each piece but the last.
    size: usize,
    /// Bytes of data in all.
    all: usize,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes)
}

impl Nested {
    /// The plan for a frame, of which `head` is the first segment and `len` the length; `None` for one that is not in a tunnel that is
    /// known, or cannot be cut.
    pub(crate) fn of(vnet: VnetHeader, head: &[u8], len: usize) -> Option<Self> {
        if vnet.gso_type == GSO_NONE {
            return None;
        }
        let (l4, field) = (usize::from(vnet.checksum_start), vnet.checksum_offset);
        let (is_tcp, header) = match (vnet.gso_type & !GSO_ECN, field) {
            (GSO_TCPV4 | GSO_TCPV6, TCP_CHECKSUM) => (true, usize::from(head.get(l4 + 12)? >> 4) * 4),
            (GSO_UDP_L4, UDP_CHECKSUM) => (false, udp::HEADER_LEN),
            _ => return None,
        };
        let layers = layers(head, l4, if is_tcp { protocol::TCP } else { protocol::UDP })?;
        let (data, size) = (l4 + header, usize::from(vnet.gso_size));
        let all = len.checked_sub(data).filter(|all| *all > 0)?;
        let is_sound = vnet.flags & NEEDS_CSUM != 0
            && vnet.gso_size >= MIN_SEGMENT
            && header >= if is_tcp { tcp::HEADER_LEN } else { udp::HEADER_LEN }
            && data <= MAX_HEADERS.min(head.len())
            && all.div_ceil(size) <= MAX_PIECES
            && !(is_tcp && head[l4 + TCP_FLAGS] & ALONE != 0);
        is_sound.then_some(Self { layers, l4, data, is_tcp, size, all })
    }

    /// The packets that the frame stands for, in order; `None` in place of one for which there is no memory.
    pub(crate) fn cut<'a>(&'a self, packet: &'a Mbuf) -> impl Iterator<Item = Option<Mbuf>> + 'a {
        share_out(packet, self.data, self.all, self.size).enumerate().map(|(number, piece)| {
            let mut piece = piece?;
            self.write(number, &mut piece)?;
            Some(piece)
        })
    }

    /// Writes the headers of a piece, which has those of the whole, from the outside in, and then checksums from the inside out.
    fn write(&self, number: usize, piece: &mut Mbuf) -> Option<()> {
        let len = piece.len();
        let head = piece.head_mut();
        for layer in self.layers.iter().flatten() {
            match *layer {
                Layer::Ipv4(at) => {
                    put_word(head, at + 2, u16::try_from(len - at).ok()?)?;
                    let id = word(head, at + 4)?.wrapping_add(number as u16);
                    put_word(head, at + 4, id)?;
                    ipv4::fill_checksum(&mut head[at..]).then_some(())?;
                }
                Layer::Ipv6(at) => put_word(head, at + 4, u16::try_from(len - at - ipv6::HEADER_LEN).ok()?)?,
                Layer::Udp(at) => put_word(head, at + 4, u16::try_from(len - at).ok()?)?,
            }
        }
        if self.is_tcp {
            let at = self.l4 + 4;
            let place: &mut [u8; 4] = head.get_mut(at..at + 4)?.try_into().ok()?;
            *place = u32::from_be_bytes(*place).wrapping_add((number * self.size) as u32).to_be_bytes();
            let is_last = (number + 1) * self.size >= self.all;
            let gone =
                if number > 0 { flags::CWR } else { 0 } | if is_last { 0 } else { flags::FIN | flags::PSH };
            head[self.l4 + TCP_FLAGS] &= !gone;
        } else {
            put_word(head, self.l4 + 4, u16::try_from(len - self.l4).ok()?)?;
        }
        let mut ip = None;
        let mut sums = [None; MOST];
        for (place, layer) in sums.iter_mut().zip(self.layers.iter().flatten()) {
            match *layer {
                // What has no checksum gets none.
                Layer::Udp(at) if word(head, at + usize::from(UDP_CHECKSUM))? != 0 => {
                    *place = Some((ip?, at))
                }
                Layer::Udp(_) => {}
                Layer::Ipv4(at) | Layer::Ipv6(at) => ip = Some(at),
            }
        }
        let field = if self.is_tcp { TCP_CHECKSUM } else { UDP_CHECKSUM };
        complete(piece, ip?, self.l4, field)?;
        sums.into_iter().rev().flatten().try_for_each(|(ip, at)| complete(piece, ip, at, UDP_CHECKSUM))
    }
}

/// Writes the checksum of TCP or UDP that begins at `l4`, behind the IP header that begins at `ip`.
fn complete(piece: &mut Mbuf, ip: usize, l4: usize, field: u16) -> Option<()> {
    let (len, at) = (piece.len() - l4, l4 + usize::from(field));
    let protocol = if field == TCP_CHECKSUM { protocol::TCP } else { protocol::UDP };
    let head = piece.head_mut();
    // With the sum of the pseudo header in the field, summing everything as it is gives the whole.
    let pseudo = pseudo_header(head.get(ip..)?, protocol, len)?;
    put_word(head, at, pseudo)?;
    let sum = checksum::sum_range(piece.segments(), l4, len)?.checksum();
    let value = if protocol == protocol::UDP { checksum::udp(sum) } else { sum };
    put_word(piece.head_mut(), at, value)
}

/// The headers in front of the one that begins at `l4` and is of this protocol, from the outside in; `None` unless they lead there, to TCP
/// through one tunnel at least, for the pipeline cuts it where there is none.
fn layers(head: &[u8], l4: usize, protocol: u8) -> Option<[Option<Layer>; MOST]> {
    let mut layers = [None; MOST];
    let mut free = layers.iter_mut();
    let mut tunnels = 0;
    let (mut kind, mut at) = (word(head, 12)?, ETHERNET);
    loop {
        let (next, behind) = match kind {
            ethertype::VLAN | ethertype::QINQ => {
                (kind, at) = (word(head, at + 2)?, at + 4);
                continue;
            }
            ethertype::IPV4 => {
                let ip = head.get(at..at + ipv4::HEADER_LEN)?;
                let length = usize::from(ip[0] & 0x0f) * 4;
                let is_whole =
                    ip[0] >> 4 == 4 && length >= ipv4::HEADER_LEN && ip[6] & 0x3f == 0 && ip[7] == 0;
                *free.next()? = is_whole.then_some(Layer::Ipv4(at));
                (is_whole.then_some(ip[9])?, at + length)
            }
            ethertype::IPV6 => {
                let ip = head.get(at..at + ipv6::HEADER_LEN)?;
                *free.next()? = Some(Layer::Ipv6(at));
                (ip[6], at + ipv6::HEADER_LEN)
            }
            _ => return None,
        };
        if behind >= l4 {
            let is_ours = tunnels > 0 || protocol == protocol::UDP;
            return (behind == l4 && next == protocol && is_ours).then_some(layers);
        }
        tunnels += 1;
        (kind, at) = match next {
            protocol::IPV4 => (ethertype::IPV4, behind),
            protocol::IPV6 => (ethertype::IPV6, behind),
            protocol::GRE => {
                let flags = word(head, behind)?;
                let inside = behind + if flags & GRE_KEY == 0 { 4 } else { 8 };
                inside_of(head, word(head, behind + 2).filter(|_| flags & !GRE_KEY == 0)?, inside)?
            }
            protocol::UDP => {
                *free.next()? = Some(Layer::Udp(behind));
                let tunnel = behind + udp::HEADER_LEN;
                if word(head, behind + 2)? == GENEVE_PORT {
                    let options = usize::from(head.get(tunnel)? & 0x3f) * 4;
                    inside_of(head, word(head, tunnel + 2)?, tunnel + 8 + options)?
                } else {
                    // The VNI is there.
                    (head.get(tunnel)? & vxlan::FLAG_VNI != 0).then_some(())?;
                    inside_of(head, BRIDGED, tunnel + vxlan::HEADER_LEN)?
                }
            }
            _ => return None,
        };
    }
}

/// Type and place of the header behind that of a tunnel, and behind that of Ethernet if it is inside.
fn inside_of(head: &[u8], kind: u16, at: usize) -> Option<(u16, usize)> {
    match kind {
        BRIDGED => Some((word(head, at + 12)?, at + ETHERNET)),
        _ => Some((kind, at)),
    }
}

#[cfg(test)]
mod tests;
