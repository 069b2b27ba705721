//! The rules of a set of groups, so that a flow is judged in a few lookups however many rules there are: by the groups of
//! the other end, and by the prefixes around its address, one lookup for each length that rules have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::protocol;

use super::{Group, Peer, Subject, Traffic};
use crate::Direction;
use crate::flat::FlatMap;

/// What a vNIC may do.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    incoming: RuleSet,
    outgoing: RuleSet,
}

impl Policy {
    /// Of the groups that a vNIC is in. A default allows only where all of them do.
    pub fn compile<'g>(groups: impl Iterator<Item = &'g Group> + Clone) -> Self {
        let mut policy = Self::default();
        policy.incoming.default = groups.clone().all(|group| group.allows_in);
        policy.outgoing.default = groups.clone().all(|group| group.allows_out);
        for rule in groups.flat_map(|group| &group.rules) {
            let set = match rule.direction {
                Direction::In => &mut policy.incoming,
                Direction::Out => &mut policy.outgoing,
            };
            set.add(rule.peer, rule.traffic);
        }
        policy.incoming.finish();
        policy.outgoing.finish();
        policy
    }

    /// The rules of a direction.
    #[inline]
    pub const fn of(&self, direction: Direction) -> &RuleSet {
        match direction {
            Direction::In => &self.incoming,
            Direction::Out => &self.outgoing,
        }
    }
}

/// The rules of one direction.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    default: bool,
    /// By kind of traffic: who is asked about one kind passes no rule of another.
    kinds: [Rules; KINDS],
}

impl RuleSet {
    fn add(&mut self, peer: Peer, traffic: Traffic) {
        let (kinds, from, to) = match traffic {
            Traffic::Any => (0..KINDS, 0, u16::MAX),
            Traffic::Rdma => (RDMA..RDMA + 1, 0, 0),
            Traffic::Protocol(proto) => match ported(proto) {
                Some(kind) => (kind..kind + 1, 0, u16::MAX),
                None => (OTHER_IP..OTHER_IP + 1, u16::from(proto), u16::from(proto)),
            },
            Traffic::Tcp(from, to) => (TCP..TCP + 1, from, to),
            Traffic::Udp(from, to) => (UDP..UDP + 1, from, to),
            Traffic::Sctp(from, to) => (SCTP..SCTP + 1, from, to),
            Traffic::Icmp(from, to) => (ICMP..ICMP + 1, from, to),
            Traffic::Icmpv6(from, to) => (ICMPV6..ICMPV6 + 1, from, to),
        };
        if from <= to {
            self.kinds[kinds].iter_mut().for_each(|rules| rules.of(peer).0.push((from, to)));
        }
    }

    fn finish(&mut self) {
        self.kinds.iter_mut().for_each(Rules::finish);
    }

    /// True where what no rule names is allowed, and so everything: there are no rules that refuse.
    #[must_use]
    pub const fn allows_all(&self) -> bool {
        self.default
    }

    /// True when a flow is allowed. `groups` says in which groups its other end is; it is asked only where that matters.
    #[inline]
    pub fn allows<'g>(&self, subject: &Subject, groups: impl FnOnce() -> &'g [u32]) -> bool {
        if self.default {
            return true;
        }
        let (kind, number) = kind_of(subject);
        let rules = &self.kinds[kind];
        rules.any.hold(number)
            || match subject.peer {
                Some(IpAddr::V4(peer)) => rules.v4.allow(number, |len| fixed_v4(peer, len)),
                Some(IpAddr::V6(peer)) => rules.v6.allow(number, |len| fixed_v6(peer, len)),
                None => false,
            }
            || rules.groups.some.hold(number)
                && groups().iter().any(|group| rules.groups.allow(u128::from(*group), number))
    }
}

// Kinds of traffic, in each of which a flow is known by one number: its port; of ICMP type and code; the protocol of what has no
// ports; 0 where there is nothing to tell apart.
const TCP: usize = 0;
const UDP: usize = 1;
const SCTP: usize = 2;
const ICMP: usize = 3;
const ICMPV6: usize = 4;
const RDMA: usize = 5;
const OTHER_IP: usize = 6;
const NOT_IP: usize = 7;
const KINDS: usize = 8;

/// The kind of a protocol with ports, or with types and codes.
const fn ported(proto: u8) -> Option<usize> {
    match proto {
        protocol::TCP => Some(TCP),
        protocol::UDP => Some(UDP),
        protocol::SCTP => Some(SCTP),
        protocol::ICMP => Some(ICMP),
        protocol::ICMPV6 => Some(ICMPV6),
        _ => None,
    }
}

/// The kind of a flow, and its number there.
#[inline]
const fn kind_of(subject: &Subject) -> (usize, u16) {
    if subject.peer.is_none() {
        return (NOT_IP, 0);
    }
    if subject.rdma {
        return (RDMA, 0);
    }
    match ported(subject.proto) {
        Some(kind) => (kind, subject.port),
        None => (OTHER_IP, subject.proto as u16),
    }
}

/// The rules for one kind of traffic, by the other end.
#[derive(Clone, Debug, Default)]
struct Rules {
    any: Ranges,
    groups: Keyed,
    v4: Prefixes,
    v6: Prefixes,
}

impl Rules {
    fn of(&mut self, peer: Peer) -> &mut Ranges {
        match peer {
            Peer::Any => &mut self.any,
            Peer::Group(group) => self.groups.of(u128::from(group)),
            Peer::Prefix(prefix) => match prefix.address() {
                IpAddr::V4(address) => self.v4.of(prefix.len(), fixed_v4(address, prefix.len())),
                IpAddr::V6(address) => self.v6.of(prefix.len(), fixed_v6(address, prefix.len())),
            },
        }
    }

    fn finish(&mut self) {
        self.any.finish();
        self.groups.finish();
        let lengths = self.v4.lengths.iter_mut().chain(&mut self.v6.lengths);
        lengths.for_each(|(_, prefixes)| prefixes.finish());
    }
}

/// What is allowed by what the other end is one of many of: groups by their numbers, prefixes of a length by the bits that they fix.
#[derive(Clone, Debug, Default)]
struct Keyed {
    /// What is allowed with some of them: what is not, as most of what a scanner tries, is allowed with none, and known by
    /// one look.
    some: Ranges,
    /// Where in `each` the numbers for one of them are.
    index: FlatMap,
    each: Vec<Ranges>,
}

impl Keyed {
    fn of(&mut self, key: u128) -> &mut Ranges {
        let new = self.each.len() as u32;
        let at = self.index.get(key).unwrap_or(new);
        if at == new {
            self.index.insert(key, new);
            self.each.push(Ranges::default());
        }
        &mut self.each[at as usize]
    }

    fn finish(&mut self) {
        for numbers in &mut self.each {
            numbers.finish();
            self.some.0.extend(&numbers.0);
        }
        self.some.finish();
    }

    #[inline]
    fn allow(&self, key: u128, number: u16) -> bool {
        let numbers = self.index.get(key).and_then(|at| self.each.get(at as usize));
        numbers.is_some_and(|numbers| numbers.hold(number))
    }
}

/// Prefixes of one IP version by length.
#[derive(Clone, Debug, Default)]
struct Prefixes {
    lengths: Vec<(u8, Keyed)>,
}

/// The bits of an address that a prefix of some length fixes.
#[inline]
fn fixed_v4(address: Ipv4Addr, len: u8) -> u128 {
    u128::from(u64::from(address.to_bits()) >> (32 - u32::from(len.min(32))))
}

/// The same of IPv6.
#[inline]
fn fixed_v6(address: Ipv6Addr, len: u8) -> u128 {
    address.to_bits().checked_shr(128 - u32::from(len.min(128))).unwrap_or(0)
}

impl Prefixes {
    /// What is allowed with the prefix of a length that fixes these bits.
    fn of(&mut self, len: u8, bits: u128) -> &mut Ranges {
        let at = match self.lengths.iter().position(|(known, _)| *known == len) {
            Some(at) => at,
            None => {
                self.lengths.push((len, Keyed::default()));
                self.lengths.len() - 1
            }
        };
        self.lengths[at].1.of(bits)
    }

    /// `fixed`: the bits of the other end's address that a prefix of some length would have to fix.
    #[inline]
    fn allow(&self, number: u16, fixed: impl Fn(u8) -> u128) -> bool {
        let allow =
            |(len, prefixes): &(u8, Keyed)| prefixes.some.hold(number) && prefixes.allow(fixed(*len), number);
        self.lengths.iter().any(allow)
    }
}

/// Ranges of numbers, both ends included.
#[derive(Clone, Debug, Default)]
struct Ranges(Vec<(u16, u16)>);

impl Ranges {
    /// Sorts them, and makes one of those that touch.
    fn finish(&mut self) {
        self.0.sort_unstable();
        self.0.dedup_by(|next, before| {
            let touches = next.0 <= before.1.saturating_add(1);
            if touches {
                before.1 = before.1.max(next.1);
            }
            touches
        });
    }

    #[inline]
    fn hold(&self, number: u16) -> bool {
        let after = self.0.partition_point(|(from, _)| *from <= number);
        after > 0 && number <= self.0[after - 1].1
    }
}
