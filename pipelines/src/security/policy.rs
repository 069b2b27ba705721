//! The rules of a set of groups, so that a flow is judged in a few lookups however many rules there are: by the groups of
//! the other end, and by the prefixes around its address, one lookup for each length that rules have.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use foldhash::fast::FixedState;
use wire::protocol;

use super::{Group, Peer, Subject, Traffic};
use crate::Direction;

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
            set.of(rule.peer).add(rule.traffic);
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
    any: Allowed,
    groups: Keyed<u32>,
    v4: Prefixes,
    v6: Prefixes,
}

impl RuleSet {
    fn of(&mut self, peer: Peer) -> &mut Allowed {
        match peer {
            Peer::Any => &mut self.any,
            Peer::Group(group) => self.groups.of(group),
            Peer::Prefix(prefix) => {
                let prefixes = if prefix.address().is_ipv4() { &mut self.v4 } else { &mut self.v6 };
                prefixes.of(prefix.address(), prefix.len())
            }
        }
    }

    fn finish(&mut self) {
        self.any.finish();
        self.groups.finish();
        let lengths = self.v4.lengths.iter_mut().chain(&mut self.v6.lengths);
        lengths.for_each(|(_, prefixes)| prefixes.finish());
    }

    /// True where what no rule names is allowed, and so everything: there are no rules that refuse.
    #[must_use]
    pub const fn allows_all(&self) -> bool {
        self.default
    }

    /// True when a flow is allowed. `groups` says in which groups its other end is; it is asked only where that matters.
    pub fn allows<'g>(&self, subject: &Subject, groups: impl FnOnce() -> &'g [u32]) -> bool {
        self.default
            || self.any.holds(subject)
            || match subject.peer {
                Some(peer @ IpAddr::V4(_)) => self.v4.allow(peer, subject),
                Some(peer @ IpAddr::V6(_)) => self.v6.allow(peer, subject),
                None => false,
            }
            || self.groups.some.holds(subject)
                && groups().iter().any(|group| self.groups.allows(*group, subject))
    }
}

/// Rules by what the other end is one of many of.
#[derive(Clone, Debug)]
struct Keyed<K> {
    /// What is allowed with some of them: what is not, as most of what a scanner tries, is allowed with none, and known by
    /// one look.
    some: Allowed,
    each: HashMap<K, Allowed, FixedState>,
}

impl<K> Default for Keyed<K> {
    fn default() -> Self {
        Self { some: Allowed::default(), each: HashMap::default() }
    }
}

impl<K: Eq + Hash> Keyed<K> {
    fn of(&mut self, key: K) -> &mut Allowed {
        self.each.entry(key).or_default()
    }

    fn finish(&mut self) {
        for allowed in self.each.values_mut() {
            allowed.finish();
            self.some.add_all(allowed);
        }
        self.some.finish();
    }

    fn allows(&self, key: K, subject: &Subject) -> bool {
        self.each.get(&key).is_some_and(|allowed| allowed.holds(subject))
    }
}

/// Prefixes by length.
#[derive(Clone, Debug, Default)]
struct Prefixes {
    lengths: Vec<(u8, Keyed<u128>)>,
}

/// The bits of an address that a prefix of some length fixes.
fn fixed(address: IpAddr, len: u8) -> u128 {
    let (bits, width) = match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    bits.checked_shr(width - u32::from(len)).unwrap_or(0)
}

impl Prefixes {
    fn of(&mut self, address: IpAddr, len: u8) -> &mut Allowed {
        let at = match self.lengths.iter().position(|(known, _)| *known == len) {
            Some(at) => at,
            None => {
                self.lengths.push((len, Keyed::default()));
                self.lengths.len() - 1
            }
        };
        self.lengths[at].1.of(fixed(address, len))
    }

    fn allow(&self, peer: IpAddr, subject: &Subject) -> bool {
        self.lengths.iter().any(|(len, prefixes)| {
            prefixes.some.holds(subject) && prefixes.allows(fixed(peer, *len), subject)
        })
    }
}

/// What is allowed with one kind of peer.
#[derive(Clone, Debug, Default)]
struct Allowed {
    all: bool,
    rdma: bool,
    /// Protocols by number, whole.
    protocols: [u64; 4],
    tcp: Ranges,
    udp: Ranges,
    sctp: Ranges,
    icmp: Ranges,
    icmpv6: Ranges,
}

impl Allowed {
    fn add(&mut self, traffic: Traffic) {
        match traffic {
            Traffic::Any => self.all = true,
            Traffic::Rdma => self.rdma = true,
            Traffic::Protocol(number) => self.protocols[usize::from(number >> 6)] |= 1 << (number & 63),
            Traffic::Tcp(from, to) => self.tcp.add(from, to),
            Traffic::Udp(from, to) => self.udp.add(from, to),
            Traffic::Sctp(from, to) => self.sctp.add(from, to),
            Traffic::Icmp(from, to) => self.icmp.add(from, to),
            Traffic::Icmpv6(from, to) => self.icmpv6.add(from, to),
        }
    }

    /// Adds what another allows.
    fn add_all(&mut self, other: &Self) {
        self.all |= other.all;
        self.rdma |= other.rdma;
        self.protocols.iter_mut().zip(other.protocols).for_each(|(own, more)| *own |= more);
        let own = [&mut self.tcp, &mut self.udp, &mut self.sctp, &mut self.icmp, &mut self.icmpv6];
        let more = [&other.tcp, &other.udp, &other.sctp, &other.icmp, &other.icmpv6];
        own.into_iter().zip(more).for_each(|(own, more)| own.0.extend(&more.0));
    }

    fn finish(&mut self) {
        let ranges = [&mut self.tcp, &mut self.udp, &mut self.sctp, &mut self.icmp, &mut self.icmpv6];
        ranges.into_iter().for_each(Ranges::finish);
    }

    #[inline]
    fn holds(&self, subject: &Subject) -> bool {
        if self.all || subject.peer.is_none() {
            return self.all;
        }
        if subject.rdma {
            return self.rdma;
        }
        let number = subject.proto;
        if self.protocols[usize::from(number >> 6)] & 1 << (number & 63) != 0 {
            return true;
        }
        match number {
            protocol::TCP => self.tcp.hold(subject.port),
            protocol::UDP => self.udp.hold(subject.port),
            protocol::SCTP => self.sctp.hold(subject.port),
            protocol::ICMP => self.icmp.hold(subject.port),
            protocol::ICMPV6 => self.icmpv6.hold(subject.port),
            _ => false,
        }
    }
}

/// Ranges of numbers, both ends included.
#[derive(Clone, Debug, Default)]
struct Ranges(Vec<(u16, u16)>);

impl Ranges {
    fn add(&mut self, from: u16, to: u16) {
        if from <= to {
            self.0.push((from, to));
        }
    }

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
