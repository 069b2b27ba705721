//! The outer UDP source port as a NIC chooses it, so that a flow keeps its path through the underlay when it moves
//! between software and the NIC.
//!
//! A NIC that puts packets into tunnels writes a hash of their inner headers as outer source port, and its driver says
//! which (`rte_flow_calc_encap_hash`, DPDK 24.03 and later; mlx5 alone has it, with hardware steering). That call is not
//! for workers. But the hash of mlx5 is a CRC: affine over GF(2), each input bit that is set toggles the same bits of the
//! port, whatever the others are. So control [learns](EncapHash::learn) once which bits each of them toggles, and tries
//! that on random tuples. From then on the port of a flow is computed here, at a miss; and the share of the inner source
//! port, which the key of RoCEv2 leaves out, for each packet, from two tables of 256 entries.
//!
//! Knows no driver: whoever calls brings the function that asks one.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rules::{FlowError, InnerProtocol, InnerTuple};
use thiserror::Error;
use wire::protocol;

use crate::burst::Burst;
use crate::flow_key::{FlowAddresses, FlowKey, outer_source_port};

/// Tuples of each family and protocol on which what was learned is tried. A function that answers one
/// tuple in ten otherwise is found out but for one time in 10^11.
const TRIED: u64 = 256;

/// Ports that the random tuples must get at least, of all families and protocols together. With fewer, all tunnels between two hosts
/// would take a few paths, where software's own choice spreads them over 16,384 ports. The driver of mlx5 keeps its answer within the
/// range of source ports that firmware reports for RoCE (`mlx5dr_crc32.c`): where that reports none, every answer is 0.
const SPREAD: usize = 64;

/// Why software does not choose the outer source port as the NIC does.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EncapHashError {
    /// The device does not tell, in its words.
    #[error("{0}")]
    Untold(#[from] FlowError),
    /// What it tells does not follow from the single bits of the headers: no CRC.
    #[error(
        "the device's hash is not affine in the inner headers (no CRC): {tuple} gets port {told}, and its other answers lead to {computed}"
    )]
    NotAffine {
        /// The inner headers.
        tuple: InnerTuple,
        /// The device's answer.
        told: u16,
        /// What follows from its answers for single bits.
        computed: u16,
    },
    /// It hardly depends on the headers.
    #[error(
        "the device's hash spreads flows over too few source ports: {tuples} random flows get {ports}, and at least {SPREAD} are wanted"
    )]
    Narrow {
        /// Tuples that it was tried on.
        tuples: usize,
        /// Ports that they got.
        ports: usize,
    },
}

/// What the inner headers of one family and protocol contribute.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TupleHash {
    /// The port where all of the tuple is zero.
    zero: u16,
    /// What each bit of the source address toggles, the lowest first.
    source: Vec<u16>,
    /// The same of the destination address.
    destination: Vec<u16>,
    /// The same of the destination port.
    destination_port: Vec<u16>,
}

/// A NIC's outer UDP source port as a function of the inner headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncapHash {
    /// What the low byte of the inner source port toggles.
    low: [u16; 256],
    /// The same of the high byte.
    high: [u16; 256],
    /// IPv4 and IPv6, of each TCP and UDP.
    tuples: [[TupleHash; 2]; 2],
}

const FAMILIES: [Family; 2] = [Family { is_v6: false, bits: 32 }, Family { is_v6: true, bits: 128 }];
const PROTOCOLS: [InnerProtocol; 2] = [InnerProtocol::Tcp, InnerProtocol::Udp];

#[derive(Clone, Copy)]
struct Family {
    is_v6: bool,
    bits: u32,
}

impl Family {
    fn address(self, number: u128) -> IpAddr {
        if self.is_v6 { Ipv6Addr::from(number).into() } else { Ipv4Addr::from(number as u32).into() }
    }

    fn tuple(self, protocol: InnerProtocol, addresses: [u128; 2], ports: [u16; 2]) -> InnerTuple {
        let [source, destination] = addresses.map(|number| self.address(number));
        InnerTuple { source, destination, protocol, source_port: ports[0], destination_port: ports[1] }
    }
}

impl EncapHash {
    /// Learns the hash of a device from its answers: 726 for single bits, then 1024 for random tuples, other ones for each
    /// `seed`, by which it is tried. Half of those of UDP are to `rdma_port`, of which a NIC might make something else.
    ///
    /// # Errors
    /// Why software cannot follow it.
    pub fn learn<F>(rdma_port: u16, seed: u64, mut ask: F) -> Result<Self, EncapHashError>
    where
        F: FnMut(&InnerTuple) -> Result<u16, FlowError>,
    {
        let [v4, v6] = FAMILIES;
        let [tcp, udp] = PROTOCOLS;
        let hash = Self {
            low: toggles(&mut ask, |port| port)?,
            high: toggles(&mut ask, |port| port << 8)?,
            tuples: [
                [TupleHash::learn(&mut ask, v4, tcp)?, TupleHash::learn(&mut ask, v4, udp)?],
                [TupleHash::learn(&mut ask, v6, tcp)?, TupleHash::learn(&mut ask, v6, udp)?],
            ],
        };
        let (mut random, mut ports) = (seed, HashSet::new());
        for (family, protocol) in FAMILIES.into_iter().flat_map(|family| PROTOCOLS.map(|one| (family, one))) {
            for number in 0..TRIED {
                let mut address = || u128::from(next(&mut random)) << 64 | u128::from(next(&mut random));
                let addresses = [address(), address()];
                let both = next(&mut random);
                let to = if protocol == udp && number % 2 == 0 { rdma_port } else { (both >> 16) as u16 };
                let tuple = family.tuple(protocol, addresses, [both as u16, to]);
                let (told, computed) = (ask(&tuple)?, hash.of(&tuple));
                if told != computed {
                    return Err(EncapHashError::NotAffine { tuple, told, computed });
                }
                ports.insert(told);
            }
        }
        if ports.len() < SPREAD {
            let tuples = TRIED as usize * FAMILIES.len() * PROTOCOLS.len();
            return Err(EncapHashError::Narrow { tuples, ports: ports.len() });
        }
        Ok(hash)
    }

    /// The port of a packet with these inner headers.
    pub fn of(&self, tuple: &InnerTuple) -> u16 {
        let rest = &self.tuples[usize::from(tuple.source.is_ipv6())]
            [usize::from(tuple.protocol == InnerProtocol::Udp)];
        let port = rest.zero
            ^ toggled(&rest.source, number(tuple.source))
            ^ toggled(&rest.destination, number(tuple.destination))
            ^ toggled(&rest.destination_port, tuple.destination_port.into());
        port ^ self.share(tuple.source_port)
    }

    /// What [`PortMix::NIC`](crate::flow_key::PortMix::NIC) needs of a flow: its port but for the share of the inner source port.
    /// Flows that no NIC has rules for keep software's own [`outer_source_port`].
    pub fn entropy(&self, key: &FlowKey) -> u16 {
        let ports = key.ports();
        let protocol = match key.proto() {
            protocol::TCP => Some(InnerProtocol::Tcp),
            protocol::UDP => Some(InnerProtocol::Udp),
            _ => None,
        };
        let port = match (key.addresses(), protocol) {
            (Some(FlowAddresses { source, destination }), Some(protocol)) => self.of(&InnerTuple {
                source,
                destination,
                protocol,
                source_port: ports.source,
                destination_port: ports.destination,
            }),
            _ => outer_source_port(key.entropy(), ports.source),
        };
        // Toggled once more by the packet's own, which the key has but for RoCEv2.
        port ^ self.share(ports.source)
    }

    /// What an inner source port toggles.
    #[inline(always)]
    fn share(&self, inner: u16) -> u16 {
        let [high, low] = inner.to_be_bytes();
        self.low[usize::from(low)] ^ self.high[usize::from(high)]
    }

    /// Puts the share of its inner source port into the place of that port for each packet of a burst, as [`PortMix::NIC`](crate::flow_key::PortMix::NIC)
    /// takes it.
    #[cold]
    #[inline(never)]
    pub(crate) fn prepare<P>(&self, burst: &mut Burst<P>) {
        for i in burst.pending() {
            burst.metas[i].entropy_port = self.share(burst.metas[i].entropy_port);
        }
    }
}

impl TupleHash {
    fn learn<F>(ask: &mut F, family: Family, protocol: InnerProtocol) -> Result<Self, FlowError>
    where
        F: FnMut(&InnerTuple) -> Result<u16, FlowError>,
    {
        let mut one = |addresses: [u128; 2], to: u16| ask(&family.tuple(protocol, addresses, [0, to]));
        let zero = one([0, 0], 0)?;
        Ok(Self {
            zero,
            source: (0..family.bits)
                .map(|bit| Ok(zero ^ one([1 << bit, 0], 0)?))
                .collect::<Result<_, _>>()?,
            destination: (0..family.bits)
                .map(|bit| Ok(zero ^ one([0, 1 << bit], 0)?))
                .collect::<Result<_, _>>()?,
            destination_port: (0..16)
                .map(|bit| Ok(zero ^ one([0, 0], 1 << bit)?))
                .collect::<Result<_, _>>()?,
        })
    }
}

/// What a byte of the inner source port toggles, in UDP over IPv4: the other packets show whether it is the same there.
fn toggles<F>(ask: &mut F, port: impl Fn(u16) -> u16) -> Result<[u16; 256], FlowError>
where
    F: FnMut(&InnerTuple) -> Result<u16, FlowError>,
{
    let mut one = |source| ask(&FAMILIES[0].tuple(InnerProtocol::Udp, [0, 0], [source, 0]));
    let zero = one(0)?;
    let bits = (0..8).map(|bit| Ok(zero ^ one(port(1 << bit))?)).collect::<Result<Vec<_>, FlowError>>()?;
    Ok(std::array::from_fn(|byte| toggled(&bits, byte as u128)))
}

/// What the bits of a number toggle, of which each one toggles what its column says.
fn toggled(columns: &[u16], number: u128) -> u16 {
    let bytes = columns.chunks(8).zip(number.to_le_bytes());
    let bits = bytes.flat_map(|(columns, byte)| columns.iter().zip(0..8).map(move |pair| (pair, byte)));
    bits.fold(0, |port, ((column, bit), byte)| port ^ column & u16::from(byte >> bit & 1).wrapping_neg())
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::{Cause, Where};

    /// A CRC of the tuple, bit by bit, in the dynamic range.
    fn crc(tuple: &InnerTuple) -> u16 {
        let protocol = match tuple.protocol {
            InnerProtocol::Tcp => 6,
            InnerProtocol::Udp => 17,
        };
        let mut bytes = [tuple.source, tuple.destination].map(|ip| number(ip).to_be_bytes()).concat();
        bytes.push(protocol);
        bytes.extend([tuple.source_port, tuple.destination_port].map(u16::to_be_bytes).concat());
        let bits = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| u16::from(byte >> bit & 1)));
        0xc000 | bits.fold(0xffff, |crc: u16, bit| crc << 1 ^ if crc >> 15 == bit { 0 } else { 0x1021 })
    }

    /// As many as a learner tries on its own, and others.
    fn tuples() -> impl Iterator<Item = InnerTuple> {
        let mut state = 99;
        let mut random = move || next(&mut state);
        (0..2000).map(move |n: usize| {
            let family = FAMILIES[n % 2];
            let mut address = || u128::from(random()) << 64 | u128::from(random());
            let addresses = [address(), address()];
            family.tuple(PROTOCOLS[n / 2 % 2], addresses, [random() as u16, random() as u16])
        })
    }

    #[test]
    fn a_crc_is_learned_and_then_computed() {
        let mut asked = 0;
        let hash = EncapHash::learn(4791, 1, |tuple| {
            asked += 1;
            Ok(crc(tuple))
        })
        .unwrap();
        assert_eq!(asked, 726 + 1024);
        for tuple in tuples() {
            assert_eq!(hash.of(&tuple), crc(&tuple), "{tuple}");
        }
        // Not one port for all.
        let ports: std::collections::BTreeSet<u16> = tuples().map(|tuple| hash.of(&tuple)).collect();
        assert!(ports.len() > 1700, "{}", ports.len());
    }

    #[test]
    fn what_is_no_crc_is_found_out() {
        let product = |tuple: &InnerTuple| 0xc000 | crc(tuple).wrapping_mul(40_503) >> 2;
        let unlike_families =
            |tuple: &InnerTuple| crc(tuple) ^ if tuple.source.is_ipv6() { tuple.source_port & 1 } else { 0 };
        let unlike_rdma = |tuple: &InnerTuple| {
            crc(tuple) ^ u16::from(tuple.destination_port == 4791 && tuple.source_port & 3 == 3)
        };
        for seed in 0..20 {
            for device in [&product as &dyn Fn(&InnerTuple) -> u16, &unlike_families, &unlike_rdma] {
                let learned = EncapHash::learn(4791, seed, |tuple| Ok(device(tuple)));
                let Err(EncapHashError::NotAffine { tuple, told, computed }) = learned else {
                    panic!("{learned:?}");
                };
                assert_eq!(told, device(&tuple));
                assert_ne!(told, computed);
            }
        }
    }

    #[test]
    fn a_hash_that_would_put_all_flows_on_a_few_paths_is_not_followed() {
        let few = |tuple: &InnerTuple| 0xc000 | crc(tuple) & 0x1f;
        for (device, most) in [(&(|_: &InnerTuple| 0u16) as &dyn Fn(&InnerTuple) -> u16, 1), (&few, 32)] {
            let learned = EncapHash::learn(4791, 1, |tuple| Ok(device(tuple)));
            assert_eq!(learned, Err(EncapHashError::Narrow { tuples: 1024, ports: most }));
        }
        let enough = EncapHash::learn(4791, 1, |tuple| Ok(0xc000 | crc(tuple) & 0xff));
        assert!(enough.is_ok(), "{enough:?}");
    }

    #[test]
    fn a_device_that_does_not_tell_is_quoted() {
        let no = FlowError::new(Cause::Unsupported, Where::Unspecified, "no calc encap hash handler");
        let learned = EncapHash::learn(4791, 1, |_| Err(no.clone()));
        assert_eq!(learned, Err(EncapHashError::Untold(no)));
    }
}
