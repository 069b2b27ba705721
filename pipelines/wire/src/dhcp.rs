//! DHCPv4 (RFC 2131): the fixed header, and the options behind it (RFC 2132).
//!
//! Reads what clients send. Which message deserves which answer is decided above.

use std::net::Ipv4Addr;

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::types::MacAddr;
use crate::view::View;

/// Bytes of the header, the magic cookie included.
pub const HEADER_LEN: usize = 240;
/// The operation of clients, BOOTREQUEST.
pub const REQUEST: u8 = 1;
/// The hardware type of Ethernet (RFC 1700).
pub const ETHERNET: u8 = 1;
/// What stands before the options (RFC 2131 section 3).
pub const COOKIE: [u8; 4] = [99, 130, 83, 99];

/// Codes of the options that a server reads (RFC 2132).
pub mod option {
    /// A byte of nothing, without a length.
    pub const PAD: u8 = 0;
    /// The address that the client would have.
    pub const REQUESTED_ADDRESS: u8 = 50;
    /// What the message is.
    pub const MESSAGE_TYPE: u8 = 53;
    /// The server that the client means.
    pub const SERVER_ID: u8 = 54;
    /// The longest message that the client takes.
    pub const MAX_MESSAGE_SIZE: u8 = 57;
    /// The client's own name for itself, which its server repeats (RFC 6842).
    pub const CLIENT_ID: u8 = 61;
    /// The last byte of the options, without a length.
    pub const END: u8 = 255;
}

/// Message types of clients (RFC 2132 section 9.6).
pub mod kind {
    /// Who has an address for me?
    pub const DISCOVER: u8 = 1;
    /// I would have this address, or go on having it.
    pub const REQUEST: u8 = 3;
    /// Somebody else has this address.
    pub const DECLINE: u8 = 4;
    /// I give the address back.
    pub const RELEASE: u8 = 7;
    /// I have an address, and ask for the rest.
    pub const INFORM: u8 = 8;
}

/// The header (RFC 2131 section 2) up to the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`REQUEST`], or a server's reply.
    pub op: u8,
    /// Hardware type.
    pub htype: u8,
    /// Length of the hardware address, bytes.
    pub hlen: u8,
    /// Relays on the way.
    pub hops: u8,
    /// Transaction id.
    pub xid: U32,
    /// Seconds since the client began.
    pub secs: U16,
    /// The broadcast flag and fifteen reserved bits.
    pub flags: U16,
    /// The client's address, when it has one.
    pub ciaddr: [u8; 4],
    /// The address that the client gets.
    pub yiaddr: [u8; 4],
    /// The next server of a network boot.
    pub siaddr: [u8; 4],
    /// The relay, when there is one.
    pub giaddr: [u8; 4],
    /// The client's hardware address, padded.
    pub chaddr: [u8; 16],
    /// Server name, or further options.
    pub sname: [u8; 64],
    /// Boot file, or further options.
    pub file: [u8; 128],
    /// [`COOKIE`].
    pub cookie: [u8; 4],
}

const _: () = assert!(size_of::<Header>() == HEADER_LEN);

impl Header {
    /// The bit of [`flags`](Self::flags) that asks for answers by broadcast.
    pub const BROADCAST: u16 = 0x8000;

    /// The client's address; unspecified when it has none.
    pub const fn client(&self) -> Ipv4Addr {
        let [a, b, c, d] = self.ciaddr;
        Ipv4Addr::new(a, b, c, d)
    }

    /// The client's MAC address.
    pub const fn mac(&self) -> MacAddr {
        let [a, b, c, d, e, f, ..] = self.chaddr;
        MacAddr([a, b, c, d, e, f])
    }

    /// True when the client cannot hear unicast before it has its address.
    pub fn wants_broadcast(&self) -> bool {
        self.flags.get() & Self::BROADCAST != 0
    }
}

/// A request of a client on Ethernet that came without a relay.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The header.
    pub header: &'a Header,
    options: &'a [u8],
}

impl<'a> Request<'a> {
    /// The request in a UDP payload. `None` for anything else, and when an option ends behind the payload or the message
    /// type is missing.
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let (header, options) = Header::view(payload)?;
        let direct = header.giaddr == [0; 4] && header.hlen == 6 && header.htype == ETHERNET;
        let request = Self { header, options };
        (header.op == REQUEST && header.cookie == COOKIE && direct).then_some(())?;
        request.is_sound().then_some(request)
    }

    fn is_sound(&self) -> bool {
        let mut walk = self.walk();
        walk.by_ref().for_each(drop);
        walk.rest.is_empty() && self.kind().is_some()
    }

    fn walk(&self) -> Walk<'a> {
        Walk { rest: self.options }
    }

    /// The content of the first option with a code.
    pub fn option(&self, code: u8) -> Option<&'a [u8]> {
        self.walk().find(|(found, _)| *found == code).map(|(_, content)| content)
    }

    /// The message type.
    pub fn kind(&self) -> Option<u8> {
        match self.option(option::MESSAGE_TYPE)? {
            [kind] => Some(*kind),
            _ => None,
        }
    }

    /// The address in an option, if it holds one.
    pub fn address(&self, code: u8) -> Option<Ipv4Addr> {
        let bytes: [u8; 4] = self.option(code)?.try_into().ok()?;
        Some(bytes.into())
    }

    /// The longest message that the client takes, if it says so.
    pub fn max_message_size(&self) -> Option<u16> {
        let bytes: [u8; 2] = self.option(option::MAX_MESSAGE_SIZE)?.try_into().ok()?;
        Some(u16::from_be_bytes(bytes))
    }
}

/// The options one after another, up to the end or to one that is cut short, which stays in `rest`.
struct Walk<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Walk<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match *self.rest {
                [] => return None,
                [option::PAD, ref rest @ ..] => self.rest = rest,
                [option::END, ..] => {
                    self.rest = &[];
                    return None;
                }
                [code, len, ref rest @ ..] => {
                    let (content, rest) = rest.split_at_checked(usize::from(len))?;
                    self.rest = rest;
                    return Some((code, content));
                }
                [_] => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::check;

    fn discover() -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[..8].copy_from_slice(&[1, 1, 6, 0, 1, 2, 3, 4]);
        bytes[10] = 0x80;
        bytes[28..34].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        bytes[236..].copy_from_slice(&COOKIE);
        bytes.extend([0, 53, 1, 1, 50, 4, 10, 0, 0, 7, 57, 2, 5, 0xdc, 61, 3, 0xff, 1, 2, 255]);
        bytes
    }

    #[test]
    fn layout() {
        let sample = discover();
        let header: Header = check::layout(&sample[..HEADER_LEN]);
        assert_eq!((header.op, header.htype, header.hlen, header.xid.get()), (1, 1, 6, 0x0102_0304));
        assert_eq!((header.mac(), header.client()), (MacAddr([2, 0, 0, 0, 0, 9]), Ipv4Addr::UNSPECIFIED));
        assert!(header.wants_broadcast());
    }

    #[test]
    fn a_request_is_read_and_every_prefix_of_it_refused() {
        let sample = discover();
        let request = Request::parse(&sample).unwrap();
        assert_eq!(request.kind(), Some(kind::DISCOVER));
        assert_eq!(request.address(option::REQUESTED_ADDRESS), Some(Ipv4Addr::new(10, 0, 0, 7)));
        assert_eq!(request.max_message_size(), Some(1500));
        assert_eq!(request.option(option::CLIENT_ID), Some(&[0xff, 1, 2][..]));
        assert_eq!((request.option(option::SERVER_ID), request.address(option::CLIENT_ID)), (None, None));
        // Without the end it is whole, and so it is where an option ends.
        let whole: Vec<usize> =
            (0..=sample.len()).filter(|&end| Request::parse(&sample[..end]).is_some()).collect();
        assert_eq!(whole, [244, 250, 254, 259, 260]);
    }

    #[test]
    fn what_is_no_clients_request_is_refused() {
        // A reply, another hardware type, a long address, a relay, no cookie.
        for (at, value) in [(0, 2), (1, 6), (2, 16), (24, 10), (237, 0)] {
            let mut sample = discover();
            sample[at] = value;
            assert!(Request::parse(&sample).is_none(), "{at}");
        }
        // Plain BOOTP, and a message type of two bytes.
        let mut sample = discover();
        sample[241] = 52;
        assert!(Request::parse(&sample).is_none());
        let mut sample = discover();
        sample.truncate(HEADER_LEN);
        sample.extend([53, 2, 1, 1, 255]);
        assert!(Request::parse(&sample).is_none());
    }
}
