//! DHCPv6 (RFC 8415): messages between clients and servers, and their options.
//!
//! Reads what clients send. Which message deserves which answer is decided above.

use std::net::Ipv6Addr;

/// Bytes before the options: the message type and the transaction id.
pub const HEADER_LEN: usize = 4;
/// Where clients send to: all relay agents and servers on the link (RFC 8415 section 7.1).
pub const ALL_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// Message types of clients (RFC 8415 section 7.3).
pub mod kind {
    /// Which servers are there?
    pub const SOLICIT: u8 = 1;
    /// I would have addresses, of this server.
    pub const REQUEST: u8 = 3;
    /// Are these addresses right on this link?
    pub const CONFIRM: u8 = 4;
    /// I would go on having these, of the server that I have them of.
    pub const RENEW: u8 = 5;
    /// I would go on having these, of any server.
    pub const REBIND: u8 = 6;
    /// I give these back.
    pub const RELEASE: u8 = 8;
    /// Somebody else has these.
    pub const DECLINE: u8 = 9;
    /// I ask for the rest only.
    pub const INFORMATION_REQUEST: u8 = 11;
}

/// Codes of the options that a server reads (RFC 8415 section 21).
pub mod option {
    /// Who asks.
    pub const CLIENT_ID: u16 = 1;
    /// Who is asked.
    pub const SERVER_ID: u16 = 2;
    /// Addresses for an interface.
    pub const IA_NA: u16 = 3;
    /// Temporary addresses for it.
    pub const IA_TA: u16 = 4;
    /// An address, within IA_NA and IA_TA.
    pub const IA_ADDRESS: u16 = 5;
    /// The client takes a reply for an advertisement.
    pub const RAPID_COMMIT: u16 = 14;
    /// Prefixes to delegate.
    pub const IA_PD: u16 = 25;
}

/// True for a message type that clients send to servers, without a relay.
const fn is_of_clients(kind: u8) -> bool {
    use self::kind::{CONFIRM, DECLINE, INFORMATION_REQUEST, REBIND, RELEASE, RENEW, REQUEST, SOLICIT};
    matches!(kind, SOLICIT | REQUEST | CONFIRM | RENEW | REBIND | RELEASE | DECLINE | INFORMATION_REQUEST)
}

/// A message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The message type.
    pub kind: u8,
    /// The transaction id.
    pub transaction: [u8; 3],
    /// Its options.
    pub options: Options<'a>,
}

impl<'a> Request<'a> {
    /// The message in a UDP payload. `None` for one that is not a client's, and when an option ends behind the payload, or one
    /// within an identity association behind that.
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let (&[kind, a, b, c], options) = payload.split_first_chunk::<HEADER_LEN>()?;
        let request = Self { kind, transaction: [a, b, c], options: Options(options) };
        let sound = request.options.is_sound()
            && request
                .options
                .associations()
                .all(|association| association.is_some_and(|ia| ia.options.is_sound()));
        (is_of_clients(kind) && sound).then_some(request)
    }

    /// The identity associations.
    pub fn associations(&self) -> impl Iterator<Item = Association<'a>> {
        self.options.associations().flatten()
    }
}

/// What a client asks addresses or prefixes for (RFC 8415 sections 21.4, 21.5, 21.21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Association<'a> {
    /// [`option::IA_NA`], [`option::IA_TA`] or [`option::IA_PD`].
    pub code: u16,
    /// Its id, unique among those of the client.
    pub id: u32,
    /// Its options.
    pub options: Options<'a>,
}

impl<'a> Association<'a> {
    fn parse(code: u16, content: &'a [u8]) -> Option<Self> {
        let (id, rest) = content.split_first_chunk::<4>()?;
        // Those of temporary addresses have no times.
        let times = if code == option::IA_TA { 0 } else { 8 };
        Some(Self { code, id: u32::from_be_bytes(*id), options: Options(rest.get(times..)?) })
    }

    /// The addresses that the client names in it.
    pub fn addresses(&self) -> impl Iterator<Item = Ipv6Addr> + use<'a> {
        let contents = self.options.iter().filter(|(code, _)| *code == option::IA_ADDRESS);
        contents.filter_map(|(_, content)| content.first_chunk::<16>().map(|bytes| Ipv6Addr::from(*bytes)))
    }
}

/// Options one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options<'a>(&'a [u8]);

impl<'a> Options<'a> {
    /// Each with its code; ends at one that is cut short.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (option, after) = next(rest)?;
            rest = after;
            Some(option)
        })
    }

    /// The content of the first option with a code.
    pub fn find(&self, code: u16) -> Option<&'a [u8]> {
        self.iter().find(|(found, _)| *found == code).map(|(_, content)| content)
    }

    fn is_sound(&self) -> bool {
        let mut rest = self.0;
        while let Some((_, after)) = next(rest) {
            rest = after;
        }
        rest.is_empty()
    }

    fn associations(&self) -> impl Iterator<Item = Option<Association<'a>>> + use<'a> {
        let associations =
            self.iter().filter(|(code, _)| matches!(*code, option::IA_NA | option::IA_TA | option::IA_PD));
        associations.map(|(code, content)| Association::parse(code, content))
    }
}

/// An option's code and content.
type CodedOption<'a> = (u16, &'a [u8]);

/// The first option, and what follows it.
fn next(bytes: &[u8]) -> Option<(CodedOption<'_>, &[u8])> {
    let (&[a, b, c, d], rest) = bytes.split_first_chunk::<4>()?;
    let (content, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([c, d])))?;
    Some(((u16::from_be_bytes([a, b]), content), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A solicitation with a client id, an association with an address, one of temporary addresses, and rapid commit.
    fn solicit() -> Vec<u8> {
        let address: Ipv6Addr = "fd00:1::7".parse().unwrap();
        let mut bytes = vec![1, 0xaa, 0xbb, 0xcc, 0, 1, 0, 3, 9, 8, 7];
        bytes.extend([0, 3, 0, 40, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 24]);
        bytes.extend(address.octets());
        bytes.extend([0; 8]);
        bytes.extend([0, 4, 0, 4, 0, 0, 0, 6, 0, 14, 0, 0]);
        bytes
    }

    #[test]
    fn a_message_is_read_and_what_is_cut_within_an_option_refused() {
        let sample = solicit();
        let request = Request::parse(&sample).unwrap();
        assert_eq!((request.kind, request.transaction), (kind::SOLICIT, [0xaa, 0xbb, 0xcc]));
        assert_eq!(request.options.find(option::CLIENT_ID), Some(&[9, 8, 7][..]));
        assert!(request.options.find(option::RAPID_COMMIT).is_some());
        assert_eq!(request.options.find(option::SERVER_ID), None);
        let found: Vec<_> =
            request.associations().map(|ia| (ia.code, ia.id, ia.addresses().collect::<Vec<_>>())).collect();
        let address: Ipv6Addr = "fd00:1::7".parse().unwrap();
        assert_eq!(found, [(option::IA_NA, 5, vec![address]), (option::IA_TA, 6, vec![])]);
        let whole: Vec<usize> =
            (0..=sample.len()).filter(|&end| Request::parse(&sample[..end]).is_some()).collect();
        assert_eq!(whole, [4, 11, 55, 63, 67]);
    }

    #[test]
    fn what_is_no_clients_message_is_refused() {
        // An advertisement, a reply, a reconfiguration, and what relays send.
        for kind in [0, 2, 7, 10, 12, 13, 14, 255] {
            let mut sample = solicit();
            sample[0] = kind;
            assert!(Request::parse(&sample).is_none(), "{kind}");
        }
        // An association too short for its times, and an option that ends behind its association.
        for (at, value) in [(14, 8), (30, 200)] {
            let mut sample = solicit();
            sample[at] = value;
            assert!(Request::parse(&sample).is_none(), "{at}");
        }
    }
}
