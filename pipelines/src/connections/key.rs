//! By what a connection is known: a vNIC, its own address and its peer's, the protocol, and the ports as the vNIC has them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::{L3, icmp, icmpv6, protocol};

use crate::flow_key::{FlowAddresses, FlowKey, FlowPorts};
use crate::ledger::Chain;
use crate::snapshot::ip_key;
use crate::stage::key::{CLASS_CNP, is_reliable};

/// What the life of a connection depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP.
    Tcp,
    /// Pairs of requests and replies of ICMP and ICMPv6.
    Icmp,
    /// All queue pairs that a vNIC has with one peer, of those that the RCFT admits, and congestion notifications: it lives while
    /// the RCFT has one of them.
    QueuePairs,
    /// All other RoCEv2 between a vNIC's address and a peer: UC, UD, the connection manager.
    UnreliableRdma,
    /// UDP and every other protocol.
    Other,
}

/// The key of a connection. Both directions of a flow have the same for a vNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionKey {
    /// Own address (two words), peer's (two), protocol, and vNIC with the own port and the peer's. Queue pairs are a vNIC's
    /// whatever address it sends from, as in the RCFT: their own address is the unspecified one.
    words: [u64; 6],
}

/// The protocol word of RoCEv2, which has no ports here.
const RDMA: u64 = 1 << 8;
/// In that word, too, for RoCEv2 of which the RCFT admits nothing.
const UNRELIABLE: u64 = 1 << 10;
/// In the protocol word of echo requests and replies of ICMP, whose identifiers are no type and code.
const ECHO: u64 = 1 << 9;

impl ConnectionKey {
    /// Of a packet that a vNIC sends (`out`) or gets, from its key in the NFT; `None` for what is not IP.
    #[inline(always)]
    pub fn of(vnic: u32, key: &FlowKey, out: bool) -> Option<Self> {
        if key.class() != 0 {
            return Self::of_rdma(vnic, key, out);
        }
        let [source, destination] = key.ip_keys()?;
        let addresses = if out { [source, destination] } else { [destination, source] };
        let (ports, echo) = ports(key);
        let ports = if out { [ports.source, ports.destination] } else { [ports.destination, ports.source] };
        Some(Self::new(vnic, addresses, ports, u64::from(key.proto()) | echo))
    }

    #[inline(never)]
    fn of_rdma(vnic: u32, key: &FlowKey, out: bool) -> Option<Self> {
        let FlowAddresses { source, destination } = key.addresses()?;
        let addresses = if out { [source, destination] } else { [destination, source] };
        let class = key.class();
        Some(match is_reliable(class) || class == CLASS_CNP {
            true => Self::queue_pairs(vnic, addresses[1]),
            false => Self::unreliable(vnic, addresses),
        })
    }

    /// Of the queue pairs that a vNIC has with a peer.
    pub fn queue_pairs(vnic: u32, peer: IpAddr) -> Self {
        let own = match peer {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        Self::new(vnic, [own, peer].map(ip_key), [0; 2], u64::from(protocol::UDP) | RDMA)
    }

    /// Of other RoCEv2 between a vNIC's address and its peer's.
    pub(crate) fn unreliable(vnic: u32, addresses: [IpAddr; 2]) -> Self {
        Self::new(vnic, addresses.map(ip_key), [0; 2], u64::from(protocol::UDP) | RDMA | UNRELIABLE)
    }

    /// From addresses (of [`ip_key`]) and ports as the vNIC has them: its own first.
    #[inline]
    fn new(vnic: u32, [own, peer]: [u128; 2], [own_port, peer_port]: [u16; 2], proto: u64) -> Self {
        let ports = u64::from(own_port) << 16 | u64::from(peer_port);
        let halves = |address: u128| ((address >> 64) as u64, address as u64);
        let ((a, b), (c, d)) = (halves(own), halves(peer));
        Self { words: [a, b, c, d, proto, u64::from(vnic) << 32 | ports] }
    }

    /// The words, as the ledger keeps them.
    pub const fn words(&self) -> &[u64; 6] {
        &self.words
    }

    /// From its words.
    pub const fn from_words(words: [u64; 6]) -> Self {
        Self { words }
    }

    /// The same as it is known now, of a process that knew all RoCEv2 between two addresses as one.
    #[must_use]
    pub fn renewed(self) -> Self {
        match self.kind() {
            Kind::QueuePairs => Self::queue_pairs(self.vnic(), self.addresses()[1]),
            _ => self,
        }
    }

    /// The same, of a vNIC that has another number in this process.
    #[must_use]
    pub const fn of_vnic(mut self, vnic: u32) -> Self {
        self.words[5] = (vnic as u64) << 32 | self.words[5] & 0xffff_ffff;
        self
    }

    /// The vNIC.
    pub const fn vnic(&self) -> u32 {
        (self.words[5] >> 32) as u32
    }

    /// The vNIC's own address, and its peer's.
    pub fn addresses(&self) -> [IpAddr; 2] {
        let address = |at: usize| {
            let bits = u128::from(self.words[at]) << 64 | u128::from(self.words[at + 1]);
            Ipv6Addr::from_bits(bits).to_canonical()
        };
        [address(0), address(2)]
    }

    /// The vNIC's own port, and its peer's; of ICMP the identifier of a request (own), or type and code of what has none.
    pub const fn ports(&self) -> [u16; 2] {
        [(self.words[5] >> 16) as u16, self.words[5] as u16]
    }

    /// IP protocol.
    pub const fn proto(&self) -> u8 {
        self.words[4] as u8
    }

    /// What its life depends on.
    pub const fn kind(&self) -> Kind {
        match self.proto() {
            _ if self.words[4] & UNRELIABLE != 0 => Kind::UnreliableRdma,
            _ if self.words[4] & RDMA != 0 => Kind::QueuePairs,
            protocol::TCP => Kind::Tcp,
            protocol::ICMP | protocol::ICMPV6 => Kind::Icmp,
            _ => Kind::Other,
        }
    }
}

/// A key, and the chain of the table in which it is looked for ([`Connections::hashed`](super::Connections::hashed)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashedKey {
    pub(super) key: ConnectionKey,
    pub(super) chain: Chain,
}

impl HashedKey {
    /// The key.
    #[inline]
    pub const fn key(&self) -> &ConnectionKey {
        &self.key
    }

    /// The chain.
    #[inline]
    pub const fn chain(&self) -> Chain {
        self.chain
    }
}

/// The ports of a flow. A request of ICMP and its reply have the same: the identifier twice. Other messages have no reply:
/// type and code stand for both.
fn ports(key: &FlowKey) -> (FlowPorts, u64) {
    let ports = key.ports();
    let kind = (ports.source >> 8) as u8;
    let echo = match (key.l3(), key.proto()) {
        (L3::Ipv4, protocol::ICMP) => icmp::is_echo(kind),
        (L3::Ipv6, protocol::ICMPV6) => icmpv6::is_echo(kind),
        _ => return (ports, 0),
    };
    let both = if echo { ports.destination } else { ports.source };
    (FlowPorts { source: both, destination: both }, if echo { ECHO } else { 0 })
}
