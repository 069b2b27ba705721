//! Path probes at an uplink: what is handed to control, and the name under which everything else is dropped.

use std::net::IpAddr;

use pipelines::probe::{MOST_WAITING, ProbeAnswer, ProbeHeard, ProbeMark};
use wire::build::{Pair, Path};
use wire::{HeapBuf, icmp, icmpv6, protocol};

use testkit::*;

const MARK: ProbeMark = ProbeMark { id: 0x4a4b, cookie: 0x0102_0304_0506_0708 };
const TAKEN: [(&str, u64); 2] = [("consumed", 1), ("probe-answers", 1)];

fn vtep(host: u8, underlay: Underlay) -> IpAddr {
    if underlay.v6 { host_v6(host).into() } else { host_v4(host).into() }
}

fn probing(underlay: Underlay) -> World {
    let world = lab(1, underlay);
    world.shared.events.probes.set(Some(MARK));
    world
}

/// An echo reply from host 2, or from another.
fn reply(from: u8, underlay: Underlay, id: u16, sequence: u16, data: &[u8]) -> Vec<u8> {
    outer(from, 1, underlay).echo_reply(id, sequence, data)
}

fn data(len: usize) -> Vec<u8> {
    let mut data = MARK.cookie.to_be_bytes().to_vec();
    data.resize(len, 0);
    data
}

/// "Too big", of a router, about a request to host 2.
fn too_big(underlay: Underlay, mtu: u16, id: u16, quoted: usize) -> Vec<u8> {
    let request = outer(1, 2, Underlay { vlan: None, ..underlay }).echo_request(id, 9, &data(1400));
    let quoted = &request[14..][..quoted];
    let path = outer(9, 1, underlay);
    let header = if underlay.v6 {
        [icmpv6::kind::TOO_BIG, 0, 0, 0, 0, 0, (mtu >> 8) as u8, mtu as u8]
    } else {
        [icmp::kind::UNREACHABLE, icmp::CODE_FRAGMENTATION_NEEDED, 0, 0, 0, 0, (mtu >> 8) as u8, mtu as u8]
    };
    let proto = if underlay.v6 { protocol::ICMPV6 } else { protocol::ICMP };
    path.ip(proto, &[&header, quoted].concat())
}

#[test]
fn mtu_probes_hear_what_comes_back() {
    for underlay in UNDERLAYS {
        let mut world = probing(underlay);
        let header = if underlay.v6 { 48 } else { 28 };
        for len in [8, 100, 1472] {
            let frame = reply(2, underlay, MARK.id, 77, &data(len));
            let heard = ProbeHeard {
                from: vtep(2, underlay),
                sequence: 77,
                answer: ProbeAnswer::Reply((len + header) as u16),
            };
            world.expect(UPLINK, std::slice::from_ref(&frame), &TAKEN);
            assert_eq!(world.shared.events.probes.heard(), Some(heard));
            // In two buffers, cut in the middle of what is looked at.
            for cut in [frame.len() - len + 1, frame.len() - 1] {
                let packet = HeapBuf::segmented(&frame[..cut], &[&frame[cut..]]);
                world.expect_packets(UPLINK, vec![packet], &TAKEN);
                assert_eq!(world.shared.events.probes.heard(), Some(heard));
            }
        }
        // A router quotes as much as it must, or more.
        for quoted in [header, 200, 500] {
            world.expect(UPLINK, &[too_big(underlay, 1400, MARK.id, quoted)], &TAKEN);
            let answer = ProbeAnswer::TooBig(vtep(2, underlay), 1400);
            let heard = ProbeHeard { from: vtep(9, underlay), sequence: 9, answer };
            assert_eq!(world.shared.events.probes.heard(), Some(heard));
        }
    }
}

#[test]
fn mtu_probes_hear_no_lies() {
    for underlay in UNDERLAYS {
        let mut world = probing(underlay);
        let right = reply(2, underlay, MARK.id, 1, &data(100));
        let flipped = |at: usize| {
            let mut frame = right.clone();
            let last = frame.len() - at;
            frame[last] ^= 1;
            frame
        };
        let mut other = data(100);
        other[7] ^= 1;
        let mut spoilt = too_big(underlay, 1400, MARK.id, 200);
        let end = spoilt.len() - 1;
        spoilt[end] ^= 1;
        let cases = [
            // Somebody who saw none of it, and what was damaged on its way.
            (reply(2, underlay, MARK.id, 1, &other), "probe-unknown"),
            (reply(2, underlay, MARK.id, 1, &[]), "probe-unknown"),
            (reply(2, underlay, MARK.id, 1, &data(8)[..7]), "probe-unknown"),
            (flipped(1), "probe-unknown"),
            (spoilt, "probe-unknown"),
            // Pings of others, and errors about theirs.
            (reply(2, underlay, MARK.id ^ 1, 1, &data(100)), "underlay-other"),
            (too_big(underlay, 1400, MARK.id ^ 1, 200), "underlay-other"),
            // Cut off within what is quoted.
            (too_big(underlay, 1400, MARK.id, if underlay.v6 { 47 } else { 27 }), "underlay-other"),
            (too_big(underlay, 1400, MARK.id, 3), "underlay-other"),
        ];
        for (frame, name) in cases {
            world.expect(UPLINK, std::slice::from_ref(&frame), &[(name, 1)]);
            assert!(world.shared.events.probes.heard().is_none(), "{name}");
        }
        // To another host; to the MAC address of a group; in another VLAN; to an address that is not the uplink's.
        let elsewhere = outer(2, 3, underlay).echo_reply(MARK.id, 1, &data(100));
        let mut wrong_mac = outer(2, 1, underlay);
        wrong_mac.dst_mac = wire::MacAddr([1, 0, 0x5e, 0, 0, 1]);
        let other_vlan = outer(2, 1, Underlay { vlan: Some(99), ..underlay });
        let mut other_address = outer(2, 1, underlay);
        other_address.ip = match (host_v4(7), host_v6(7), underlay.v6) {
            (v4, _, false) => Pair::V4(host_v4(2), v4),
            (_, v6, true) => Pair::V6(host_v6(2), v6),
        };
        let replies = [wrong_mac, other_vlan, other_address];
        let frames = replies.map(|path: Path| path.echo_reply(MARK.id, 1, &data(100)));
        world.expect(UPLINK, &[elsewhere], &[("underlay-mac", 1)]);
        for frame in frames {
            world.expect(UPLINK, &[frame], &[("underlay-other", 1)]);
        }
        // In fragments.
        if !underlay.v6 && underlay.vlan.is_none() {
            let mut first = reply(2, underlay, MARK.id, 1, &data(104));
            first[14 + 6] = 0x20;
            assert!(wire::ipv4::fill_checksum(&mut first[14..34]));
            world.expect(UPLINK, &[first], &[("underlay-other", 1)]);
        }
        assert!(world.shared.events.probes.heard().is_none());
    }
}

#[test]
fn mtu_answers_are_the_hosts_own_while_nobody_probes() {
    let underlay = Underlay::default();
    let frame = reply(2, underlay, MARK.id, 1, &data(100));
    let mut world = plain();
    world.expect(UPLINK, std::slice::from_ref(&frame), &[("underlay-other", 1)]);
    let punt = world.add_punt();
    assert_eq!(world.one(UPLINK, &frame, &[]), (punt, frame.clone()));
    world.shared.events.probes.set(Some(MARK));
    world.expect(UPLINK, std::slice::from_ref(&frame), &TAKEN);
    // The host's own pings are its own.
    let own = reply(2, underlay, 5, 1, &data(100));
    assert_eq!(world.one(UPLINK, &own, &[]), (punt, own.clone()));
    world.shared.events.probes.set(None);
    assert!(world.shared.events.probes.heard().is_none(), "what waited went with its run");
    assert_eq!(world.one(UPLINK, &frame, &[]), (punt, frame));
}

#[test]
fn mtu_a_storm_of_answers_is_dropped_by_name() {
    let mut world = probing(Underlay::default());
    let storm = vec![reply(2, Underlay::default(), MARK.id, 1, &data(100)); 32];
    for _ in 0..MOST_WAITING / 32 {
        world.expect(UPLINK, &storm, &[("consumed", 32), ("probe-answers", 32)]);
    }
    for _ in 0..100 {
        world.expect(UPLINK, &storm, &[("probe-limit", 32)]);
    }
    assert!(world.shared.events.probes.heard().is_some());
    world.expect(UPLINK, &storm, &[("consumed", 1), ("probe-answers", 1), ("probe-limit", 31)]);
}
