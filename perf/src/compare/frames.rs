//! The frames a comparison sends, and the one addressing plan that all switches are set up for.
//!
//! One tenant port with one address talks with up to 16 addresses of the same VNI; for the tunnel cases they are
//! behind one remote VTEP. Each flow is one frame; the order is shuffled (with a fixed seed), because visiting flows
//! in the order in which they were installed walks memory in a line and flatters every table.

use std::net::Ipv4Addr;

use wire::build::Path;
use wire::{MacAddr, Psn, Qpn, View, Vni, roce, tcp};

use super::cases::{Case, Job, TENANTS, Traffic};
use crate::generator::choice::Dice;
use crate::generator::frame::FCS;
use crate::live::testbed::{self, Station};

/// The tenant network's id.
pub const VNI: Vni = Vni::truncated(testbed::VNI);
/// The VTEP of the switch under test, and that at the other end.
pub const NEAR_VTEP: Station = testbed::vtep(1);
pub const FAR_VTEP: Station = testbed::vtep(2);
/// The tenant port that sends (l2, encap) or receives (decap).
pub const TENANT: Station = testbed::station(1);
/// The MAC address of the second local port (l2), which holds all the other addresses there.
pub const SECOND_MAC: MacAddr = testbed::station(2).0;
/// How many addresses the flows are spread over.
pub const PEERS: usize = 16;
/// Shortest and longest inner frame, with frame check sequence.
pub const INNER_BYTES: std::ops::RangeInclusive<usize> = 64..=1454;

/// Ethernet, IPv4 and TCP.
const TCP_HEADERS: usize = 54;
/// Ethernet, IPv4, UDP and BTH, and the ICRC at the end.
const ROCE_HEADERS: usize = 58;
/// The header of a read request.
const RETH: usize = 16;
/// Where the frames of RoCEv2 go when they are to be plain UDP.
const OTHER_PORT: u16 = 4792;
/// TCP source ports that are used before the destination port changes.
pub(crate) const TCP_PORTS: usize = 32_768;
/// UDP source ports of RoCEv2.
pub(crate) const UDP_PORTS: usize = 16_384;
/// A source port per flow, as a sender's entropy would choose.
pub(crate) const OUTER_PORT: Field = Field { shift: 0, values: 16_384, base: 49_152 };
/// Counterparts of each tenant of a trunk.
pub const TRUNK_PEERS: usize = 4;
/// Bytes of a VLAN tag.
pub(crate) const TAG: usize = 4;

/// The lower halves of the addresses of the first counterpart: its MAC address behind the tunnel, and its IPv4 address.
const FIRST_PEER: [usize; 2] = [0x0201, 0x8101];
/// The lower half of the address of the first VTEP where there are many.
const FIRST_VTEP: usize = 0x0001;

/// The address of the i-th counterpart.
pub fn peer_ip(index: usize) -> Ipv4Addr {
    let [high, low] = low_word(FIRST_PEER[1] + index).to_be_bytes();
    Ipv4Addr::new(10, 0, high, low)
}

/// Its MAC address when it is behind the tunnel.
pub fn peer_mac(index: usize) -> MacAddr {
    let [high, low] = low_word(FIRST_PEER[0] + index).to_be_bytes();
    MacAddr([0x02, 0, 0, 0, high, low])
}

/// The VTEP that the i-th counterpart is behind where each has its own: all of them behind one router, which is [`FAR_VTEP`].
pub fn routed_vtep(index: usize) -> Station {
    let [high, low] = low_word(FIRST_VTEP + index).to_be_bytes();
    (FAR_VTEP.0, Ipv4Addr::new(172, 17, high, low))
}

/// How many counterparts a job has, of each of its tenants.
pub fn peers(job: &Job) -> usize {
    match job.tenants {
        Some(_) => TRUNK_PEERS,
        None if job.mix.vteps > 0 => job.mix.vteps,
        None => job.flows.count.min(PEERS),
    }
}

/// The lower halves of counterparts' addresses, MAC and IPv4, where each has a VTEP.
pub(crate) fn counterparts(job: &Job) -> Option<[Field; 2]> {
    let many = job.mix.vteps;
    (many > 0).then(|| FIRST_PEER.map(|base| Field { shift: 0, values: many, base }))
}

/// The lower halves of these VTEPs' addresses.
pub(crate) fn vteps(job: &Job) -> Option<Field> {
    let many = job.mix.vteps;
    (many > 0).then_some(Field { shift: 0, values: many, base: FIRST_VTEP })
}

/// Inner lengths by turns: 37, 21 and 6 of 64 frames are of the lengths of the simple IMIX, which has 7 : 4 : 1 of them; the longest as
/// long as an MTU of 1500 bytes and the tunnel leave room for.
pub(crate) const LENGTHS: usize = 64;

/// Length of a flow's inner frame, with its frame check sequence.
pub fn length(job: &Job, flow: usize) -> usize {
    if !job.mix.imix {
        return job.inner_bytes;
    }
    // Odd, so that all 64 come, and those of each address differ.
    match flow * 29 % LENGTHS {
        0..37 => *INNER_BYTES.start(),
        37..58 => 594,
        _ => *INNER_BYTES.end(),
    }
}

/// A tenant of a trunk port, or the only one. Tenants have the same addresses, each in its own network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenant(pub u32);

impl Tenant {
    pub fn vni(self) -> Vni {
        Vni::truncated(VNI.get() + self.0)
    }

    pub fn vlan(self) -> u16 {
        low_word(100 + self.0 as usize)
    }

    /// Where its counterparts are.
    pub fn vtep(self) -> Station {
        testbed::vtep(2 + low_byte(self.0 as usize))
    }
}

/// Makes the frames of a job for a file, in random order; a job of one way and with a port for its tenant.
pub fn replayed(job: &Job) -> Vec<Vec<u8>> {
    let mut flows: Vec<usize> = (0..job.flows.count).collect();
    // Every run and every switch sees the same order.
    Dice::new(1).shuffle(&mut flows);
    flows.into_iter().map(|flow| input_frame(job, job.case, flow, Sent::Replayed)).collect()
}

/// The frame with the tunnel's headers, as the other end sends it.
fn tunnelled(from: FlowIdentity, source_port: u16, frame: &[u8]) -> Vec<u8> {
    Path::v4(from.vtep, NEAR_VTEP).vxlan(source_port, from.tenant.vni(), frame)
}

/// Whether a frame comes again and again as it is, or with the next sequence number each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    Replayed,
    /// By a device that counts; this is the first.
    Counted,
}

/// A field by which flows differ: a base, and on top of it so many values (a power of two) of the flow's number, from a bit on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub shift: u32,
    pub values: usize,
    pub base: usize,
}

impl Field {
    const fn of(self, flow: usize) -> usize {
        self.base + (flow >> self.shift & (self.values - 1))
    }
}

/// The fields by which flows of a job differ.
#[derive(Debug)]
pub(crate) struct Fields {
    /// Source and destination port.
    pub tcp: [Field; 2],
    /// Source port of RoCEv2.
    pub udp: Field,
    /// The queue pair that RoCEv2 is for.
    pub queue_pair: Field,
}

pub(crate) fn fields(job: &Job) -> Fields {
    let field = |shift, values, base| Field { shift, values, base };
    let low = low_bits(job);
    let (destination, pair) = match job.tenants {
        // The destination port tells tenants apart, so that one alone has as many flows.
        Some(_) => (field(0, TENANTS as usize, 5001), 0),
        None => (field(low + TCP_PORTS.ilog2(), TCP_PORTS, 5001), low),
    };
    let udp = if job.traffic == Traffic::UdpFew { 1 } else { UDP_PORTS };
    Fields {
        tcp: [field(low, TCP_PORTS, 1024), destination],
        udp: field(low, udp, 49_152),
        queue_pair: field(pair, 1 << 24, 0x100),
    }
}

/// The bits of a flow's number below its number among those with the same addresses: [`PEERS`] counterparts, or
/// those of a trunk's tenants.
fn low_bits(job: &Job) -> u32 {
    match job.tenants {
        Some(_) => TENANTS.ilog2() + TRUNK_PEERS.ilog2(),
        None => job.mix.vteps.max(PEERS).ilog2(),
    }
}

/// Whose a flow is, with whom, and what it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowIdentity {
    pub tenant: Tenant,
    pub counterpart: usize,
    /// Where the counterpart is.
    pub vtep: Station,
    pub roce: bool,
}

pub fn identity(job: &Job, flow: usize) -> FlowIdentity {
    let roce = match job.traffic {
        Traffic::Tcp => false,
        Traffic::Rocev2 | Traffic::Udp | Traffic::UdpFew => true,
        Traffic::Mixed => (flow >> low_bits(job)) % 2 == 1,
    };
    let (tenant, counterpart) = match job.tenants {
        Some(tenants) => (flow as u32 % TENANTS % tenants, flow / TENANTS as usize % TRUNK_PEERS),
        None => (0, flow % job.mix.vteps.max(PEERS)),
    };
    let tenant = Tenant(tenant);
    let vtep = if job.mix.vteps > 0 { routed_vtep(counterpart) } else { tenant.vtep() };
    FlowIdentity { tenant, counterpart, vtep, roce }
}

/// The frame of a flow as it goes in.
pub fn input_frame(job: &Job, way: Case, flow: usize, sent: Sent) -> Vec<u8> {
    let who = identity(job, flow);
    let mut frame = inner_frame(job, way, flow, sent);
    match way {
        Case::Decap => tunnelled(who, low_word(OUTER_PORT.of(flow)), &frame),
        Case::L2 | Case::Encap | Case::Both => {
            if job.tenants.is_some() {
                frame.splice(12..12, tag(who.tenant));
            }
            frame
        }
    }
}

/// The VLAN tag of a tenant.
pub(crate) fn tag(tenant: Tenant) -> [u8; TAG] {
    let tci = tenant.vlan().to_be_bytes();
    [0x81, 0x00, tci[0], tci[1]]
}

fn inner_frame(job: &Job, way: Case, flow: usize, sent: Sent) -> Vec<u8> {
    let who = identity(job, flow);
    let far_mac = if way == Case::L2 { SECOND_MAC } else { peer_mac(who.counterpart) };
    let (near, far) = (TENANT, (far_mac, peer_ip(who.counterpart)));
    let (source, destination) = if way == Case::Decap { (far, near) } else { (near, far) };
    let length = length(job, flow) - FCS;
    let path = Path::v4(source, destination);
    let Fields { tcp, udp, queue_pair } = fields(job);
    let mut frame = if who.roce {
        let queue_pair = Qpn::truncated(queue_pair.of(flow) as u32);
        let room = length.saturating_sub(ROCE_HEADERS) / 4 * 4;
        request(&path, low_word(udp.of(flow)), queue_pair, room, sent)
    } else {
        let payload = vec![0; length.saturating_sub(TCP_HEADERS)];
        let [source, destination] = tcp.map(|port| low_word(port.of(flow)));
        path.tcp(source, destination, tcp::flags::ACK | tcp::flags::PSH, &payload)
    };
    if matches!(job.traffic, Traffic::Udp | Traffic::UdpFew) {
        // Ethernet, IPv4 without options, source port. The ICRC covers the port, but nobody reads it here.
        frame[36..38].copy_from_slice(&OTHER_PORT.to_be_bytes());
    }
    frame.resize(length, 0);
    frame
}

/// A request to a queue pair of its own. A frame that comes again and again has a sequence number that never moves on:
/// a read of a megabyte is what a switch that does not know the path MTU can claim neither gaps nor repetitions of.
/// Where its header does not fit, a send, which the switch then counts as repeated.
fn request(path: &Path, port: u16, queue_pair: Qpn, room: usize, sent: Sent) -> Vec<u8> {
    let (opcode, psn, body) = if room >= RETH && sent == Sent::Replayed {
        let reth = roce::Reth::new(0, 1, 1 << 20);
        (roce::opcode::RC_READ_REQUEST, 1, [reth.bytes(), &vec![0; room - RETH]].concat())
    } else {
        (roce::opcode::RC_SEND_ONLY, u32::from(sent == Sent::Replayed), vec![0; room])
    };
    path.roce(port, roce::Bth::new(opcode, queue_pair, Psn::truncated(psn)), &body)
}

fn low_byte(number: usize) -> u8 {
    (number & 0xff) as u8
}

fn low_word(number: usize) -> u16 {
    (number & 0xffff) as u16
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    use crate::compare::check::OUTER;

    fn made(case: Case, flows: &str, traffic: Traffic, inner_bytes: usize) -> Vec<Vec<u8>> {
        replayed(&Job { inner_bytes, traffic, ..Job::plain(case, flows) })
    }

    #[test]
    fn every_flow_is_one_different_frame() {
        for traffic in [Traffic::Tcp, Traffic::Rocev2, Traffic::Mixed, Traffic::Udp, Traffic::UdpFew] {
            for (case, front) in [(Case::L2, 0), (Case::Encap, 0), (Case::Decap, OUTER)] {
                let made = made(case, "5k", traffic, 64);
                let different: HashSet<&[u8]> = made.iter().map(|frame| &frame[front..]).collect();
                assert_eq!((made.len(), different.len()), (5000, 5000), "{case} {traffic}");
            }
        }
    }

    #[test]
    fn frames_have_the_length_asked_for_without_their_check_sequence() {
        for (case, front) in [(Case::L2, 0), (Case::Encap, 0), (Case::Decap, OUTER)] {
            for inner_bytes in [64, 65, 67, 128, 1454] {
                for traffic in [Traffic::Tcp, Traffic::Rocev2] {
                    let made = made(case, "20", traffic, inner_bytes);
                    assert!(made.iter().all(|frame| frame.len() == front + inner_bytes - 4), "{inner_bytes}");
                }
            }
        }
    }

    #[test]
    fn the_order_is_shuffled_and_the_same_each_time() {
        let (first, second) =
            (made(Case::L2, "1k", Traffic::Tcp, 64), made(Case::L2, "1k", Traffic::Tcp, 64));
        assert_eq!(first, second);
        let ports: Vec<u16> = first.iter().map(|frame| u16::from_be_bytes([frame[34], frame[35]])).collect();
        assert!(!ports.is_sorted());
    }

    #[test]
    fn a_flow_of_roce_is_a_queue_pair() {
        for inner_bytes in [64, 96] {
            let made = made(Case::Encap, "100k", Traffic::Rocev2, inner_bytes);
            let pairs: HashSet<(&[u8], &[u8])> =
                made.iter().map(|frame| (&frame[30..34], &frame[47..50])).collect();
            assert_eq!(pairs.len(), 100_000);
            assert!(made.iter().all(|frame| frame[36..38] == 4791_u16.to_be_bytes()));
        }
    }

    #[test]
    fn the_udp_twins_differ_in_ports_alone() {
        let roce = made(Case::Encap, "1k", Traffic::Rocev2, 96);
        for (traffic, ports) in [(Traffic::Udp, 63), (Traffic::UdpFew, 1)] {
            let udp = made(Case::Encap, "1k", traffic, 96);
            for (one, other) in roce.iter().zip(&udp) {
                // The ICRC, which covers the source port, is at 86.
                assert!(one[..34] == other[..34] && one[38..86] == other[38..86]);
                assert_eq!(other[36..38], OTHER_PORT.to_be_bytes());
            }
            let used: HashSet<&[u8]> = udp.iter().map(|frame| &frame[34..36]).collect();
            assert_eq!(used.len(), ports);
        }
    }

    #[test]
    fn mixed_is_half_and_half() {
        let made = made(Case::L2, "1600", Traffic::Mixed, 64);
        let tcp = made.iter().filter(|frame| frame[23] == 6).count();
        assert_eq!((tcp, made.len() - tcp), (800, 800));
    }
}
