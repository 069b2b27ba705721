//! Frames of all kinds through the whole overlay: from vNICs, a trunk, the wire, and out of tunnels.
//!
//! The first byte of an input says what the host is like. Then come packets: a byte of kind, a byte of what the receiver
//! says of it, two bytes of length, and the frame. The hosts and stations are those of the pipeline's own tests.

use pipelines::Now;
use pipelines::snapshot::PortIndex;
use wire::build::Path;
use wire::build::control::{arp_request, neighbour_solicitation};
use wire::roce::Bth;
use wire::{ChecksumState, HeapBuf, MacAddr, Psn, Qpn, RxFacts, Vni};

use testkit::{
    A, B, C, R, S, Station, UNDERLAYS, UPLINK, Underlay, World, host_mac, host_v4, host_v6, lab, outer,
    routed, v4, v6,
};

/// Most packets of an input.
const PACKETS: usize = 64;
/// Ports of the first tenant, and the trunk with those of the second.
const RED: std::ops::RangeInclusive<PortIndex> = 1..=3;
const TRUNK: PortIndex = 4;

/// Where a packet comes in.
#[derive(Clone, Copy)]
enum From {
    Vnic,
    Trunk,
    Wire,
    Tunnel(u32),
}

impl From {
    const fn of(kind: u8) -> Self {
        match kind & 7 {
            0 | 1 => Self::Vnic,
            2 => Self::Trunk,
            3 => Self::Wire,
            4 => Self::Tunnel(200),
            _ => Self::Tunnel(100),
        }
    }
}

/// Runs an input: nothing panics, every packet is accounted for, and none of one tenant's leaves for another.
pub fn run(data: &[u8]) {
    let Some((&choice, mut rest)) = data.split_first() else { return };
    let underlay = UNDERLAYS[usize::from(choice & 7) % UNDERLAYS.len()];
    let mut world = world(underlay, choice);
    for _ in 0..PACKETS {
        let Some((&[kind, facts, high, low], after)) = rest.split_first_chunk::<4>() else { return };
        let len = (usize::from(high & 0x1f) << 8 | usize::from(low)).min(after.len());
        let (frame, after) = after.split_at(len);
        rest = after;
        let from = From::of(kind);
        let (port, frame) = match from {
            From::Vnic => (1, frame.to_vec()),
            From::Trunk => (TRUNK, frame.to_vec()),
            From::Wire => (UPLINK, frame.to_vec()),
            From::Tunnel(vni) => {
                let path = outer(2, 1, underlay).with_tos(kind >> 3 & 3);
                (UPLINK, path.vxlan(50_000, Vni::truncated(vni), frame))
            }
        };
        // The run checks the conservation law, and that nothing is left in the burst.
        let sent = world.run(port, vec![packet(&frame, kind, facts)]);
        for (to, out) in &sent {
            check(from, &frame, *to, out);
        }
        world.now = Now::from_ns(world.now.ns + 1_000_000 * u64::from(1 + (facts >> 5)));
        world.worker.overlay.idle(world.now);
        while world.shared.events.pop().is_some() {}
    }
}

fn world(underlay: Underlay, choice: u8) -> World {
    let mut world = lab(1, underlay);
    let blue = world.add_vpc(200);
    let trunk = world.add_trunk();
    assert_eq!(trunk, TRUNK);
    world.add_vnic(blue, A, Some(trunk));
    world.add_vnic(blue, B, Some(trunk));
    let place = world.tunnel(blue, 2);
    world.locate_station(blue, R, place);
    if choice & 8 != 0 {
        world.flood(0, &[2, 3]);
        world.flood(blue, &[2]);
    }
    if choice & 16 != 0 {
        world.keep_vlan(0);
    }
    if choice & 32 != 0 {
        world.add_punt();
    }
    world.snapshot.settings.vxlan_strict = choice & 64 != 0;
    world.snapshot.ports[1].partial_checksums = choice & 128 != 0;
    // The second vNIC of the first tenant takes less than others send, the third whole super-frames.
    world.snapshot.vnic_rows[1].mtu = 1280;
    world.snapshot.ports[3].takes_super_frames = true;
    world
}

fn packet(frame: &[u8], kind: u8, facts: u8) -> HeapBuf {
    // All headers lie in the first segment, as receive queues see to.
    const HEADERS: usize = 256;
    let mut packet = match frame.len() {
        len if len > HEADERS + 2 && kind & 0x40 != 0 => {
            let second = HEADERS + 1 + usize::from(facts) * (len - HEADERS - 2) / 255;
            HeapBuf::segmented(&frame[..HEADERS], &[&frame[HEADERS..second], &frame[second..]])
        }
        _ => HeapBuf::new(frame),
    };
    packet.set_shared(kind & 0x80 != 0);
    let state = |n: u8| match n & 3 {
        0 => ChecksumState::Unknown,
        1 => ChecksumState::Good,
        2 => ChecksumState::Bad,
        _ => ChecksumState::Partial,
    };
    // 8 to 1800 bytes of data.
    let gso_size = if facts & 0x10 != 0 && kind & 0x20 != 0 { 8 + u16::from(facts & 0xe0) * 8 } else { 0 };
    packet.with_facts(RxFacts {
        l3_checksum: state(facts & 1),
        l4_checksum: state(facts >> 1),
        gso_size,
        ..RxFacts::default()
    })
}

/// The network of a VxLAN packet.
fn network(frame: &[u8]) -> Option<u32> {
    let headers = wire::parse::parse(frame, frame.len()).ok()?;
    let vni = frame.get(usize::from(headers.l4_offset) + 12..)?.first_chunk::<3>()?;
    (headers.proto == 17 && headers.dport == 4789).then(|| u32::from_be_bytes([0, vni[0], vni[1], vni[2]]))
}

/// A packet that left must be its own tenant's.
fn check(from: From, frame: &[u8], to: PortIndex, out: &[u8]) {
    let tenant = match from {
        From::Vnic => Some(100),
        From::Trunk => Some(200),
        From::Wire => network(frame),
        From::Tunnel(vni) => Some(vni),
    };
    let theirs = match to {
        UPLINK => match (network(out), from) {
            (Some(vni), _) => Some(vni),
            // The host's own answers, to whoever asks on the underlay.
            (None, From::Wire) => return,
            (None, _) => None,
        },
        TRUNK => Some(200),
        port if RED.contains(&port) => Some(100),
        // The host's share of the uplink.
        _ => {
            return assert!(
                matches!(from, From::Wire | From::Tunnel(_)),
                "a tenant's packet reached the host"
            );
        }
    };
    assert!(tenant.is_some() && tenant == theirs, "a packet of {tenant:?} left for {theirs:?} by port {to}");
}

/// Inputs to begin with: sequences of sound packets of every kind.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (name, from, kind) in
        [("vnic", A, 0), ("trunk", A, 2), ("tunnel-100", R, 5), ("tunnel-200", R, 4), ("tunnel-far", S, 6)]
    {
        for (choice, options) in [(0, "plain"), (8 + 16 + 1, "flood"), (32 + 2, "punt"), (128 + 3, "partial")]
        {
            for (n, part) in frames(from).chunks(8).enumerate() {
                let mut input = vec![choice];
                for frame in part {
                    let frame = match kind {
                        2 => [&frame[..12], &[0x81, 0, 0, 103], &frame[12..]].concat(),
                        _ => frame.clone(),
                    };
                    let segmented = if n % 2 == 1 { 0x40 } else { 0 };
                    input.extend([kind | segmented, 0]);
                    input.extend((frame.len() as u16).to_be_bytes());
                    input.extend(frame);
                }
                seeds.push((format!("{name}-{options}-{n}"), input));
            }
        }
    }
    let underlay = Underlay::default();
    let mut input = vec![32];
    for frame in [
        arp_request((host_mac(2), host_v4(2)), host_v4(1)),
        neighbour_solicitation((host_mac(2), host_v6(2)), host_v6(1), None),
        outer(2, 1, underlay).echo_request(1, 2, b"ping"),
        outer(2, 1, underlay).tcp(1, 22, 2, b""),
        outer(2, 1, underlay).vxlan(50_000, Vni::truncated(100), &v4(R, A).udp(1, 2, b"x")),
    ] {
        input.extend([3, 0]);
        input.extend((frame.len() as u16).to_be_bytes());
        input.extend(frame);
    }
    seeds.push(("underlay".into(), input));
    seeds
}

fn frames(from: Station) -> Vec<Vec<u8>> {
    let bth = Bth::new(0x0a, Qpn::truncated(5), Psn::truncated(1));
    let mut frames = vec![
        arp_request((from.mac, from.v4), B.v4),
        arp_request((from.mac, from.v4), "10.0.0.254".parse().unwrap_or(B.v4)),
        neighbour_solicitation((from.mac, from.v6), B.v6, None),
    ];
    let others = [
        v4(from, R),
        v6(from, B),
        routed(v4(from, C)),
        routed(v6(from, C)),
        v4(from, B).tagged(5),
        v4(from, A),
    ];
    for path in others {
        frames.push(path.tcp(1000, 80, 0x18, b"payload"));
        frames.push(path.udp(1, 2, &[0; 1600]));
        frames.push(path.clone().with_ttl(1).udp(1, 2, &[7; 300]));
        frames.push(path.roce(5555, bth, &[1; 64]));
        let loose = Path { dont_fragment: false, ..path.clone() };
        frames.extend(loose.fragments(17, &[3; 900], 9, 500));
        let quoted = path.udp(1, 2, b"quoted");
        frames.push(path.ip(1, &[&[3, 4, 0, 0, 0, 0, 5, 0], &quoted[14..]].concat()));
        frames.push(Path { dst_mac: MacAddr::BROADCAST, ..path }.ethernet(0x88b5, &[1; 46]));
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_the_seeds_and_damaged_ones_pass() {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = |n: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize % n.max(1)
        };
        for (name, input) in seeds() {
            println!("{name}");
            run(&input);
            for _ in 0..20 {
                let mut damaged = input.clone();
                for _ in 0..=next(8) {
                    let at = next(damaged.len());
                    damaged[at] = next(256) as u8;
                }
                damaged.truncate(1 + next(2 * input.len()));
                run(&damaged);
            }
        }
    }
}
