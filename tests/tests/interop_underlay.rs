//! What the underlay may send and what the switch makes of it: known and foreign VTEPs and VNIs, flags and reserved bits
//! under both policies, outer checksums and fragments, and packets cut short at every byte. Every drop has its own name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::{Family, Scene};

#[test]
fn interop_good_packets_arrive_unchanged() {
    for family in [Family::V4, Family::V6] {
        let mut scene = Scene::start(family, "", "");
        for inner in [4, 6] {
            let outcome = scene.inbound(&[format!("to_red(family={inner}, transport=datagram('payload'))")]);
            outcome.assert_passed();
            let fact = &outcome.seen[0];
            assert_eq!(fact["payload"], "7061796c6f6164", "{fact}");
            assert_eq!(fact["src"], "02:00:00:00:01:02", "{fact}");
            assert_eq!(fact["ttl"], 64, "bridged packets keep their TTL: {fact}");
        }
        scene.stop();
    }
}

#[test]
fn interop_unknown_vni_and_foreign_vtep_are_dropped() {
    let mut scene = Scene::start(Family::V4, "", "");
    scene
        .inbound(&["to_red(vni=101)", "to_red(vni=0)", "to_red(vni=0xffffff)"])
        .assert_dropped("unknown-vni");
    scene.inbound(&["to_red(src='172.16.0.9')"]).assert_dropped("unknown-vtep");
    scene.inbound(&["to_red(dst='172.16.0.77')"]).assert_dropped("underlay-address");
    scene.inbound(&["to_red(ether={'dst': '02:00:00:00:99:99'})"]).assert_dropped("underlay-mac");
    scene.inbound(&["to_red(dport=4790)"]).assert_dropped("underlay-other");
    scene
        .inbound(&["to_red(inner={'dst': '10.0.0.9', 'ether': {'dst': '02:00:00:00:01:09'}})"])
        .assert_dropped("not-local");
    scene.inbound(&["to_red()"]).assert_passed();
    scene.stop();
}

#[test]
fn interop_foreign_vtep_over_ipv6_is_dropped() {
    let mut scene = Scene::start(Family::V6, "", "");
    scene.inbound(&["to_red(src='fd00::9')"]).assert_dropped("unknown-vtep");
    scene.inbound(&["to_red(vni=101)"]).assert_dropped("unknown-vni");
    scene.inbound(&["to_red()"]).assert_passed();
    scene.stop();
}

/// Every reserved bit by itself: seven flags, 24 bits behind them, the last byte.
fn reserved_bits() -> Vec<String> {
    let flags = (0..8).filter(|bit| *bit != 3).map(|bit| format!("to_red(flags={})", 0x08 | 1 << bit));
    let middle = (0..24).map(|bit| format!("to_red(reserved1={})", 1 << bit));
    let last = (0..8).map(|bit| format!("to_red(reserved2={})", 1 << bit));
    flags.chain(middle).chain(last).collect()
}

#[test]
fn interop_reserved_bits_are_ignored_by_default() {
    let mut scene = Scene::start(Family::V4, "", "");
    scene.inbound(&reserved_bits()).assert_passed();
    scene.inbound(&["to_red(flags=0)", "to_red(flags=0xf7)"]).assert_dropped("vxlan-flags");
    scene.stop();
}

#[test]
fn interop_reserved_bits_are_dropped_when_strict() {
    let mut scene = Scene::start(Family::V4, "", "[vxlan]\nreserved = \"strict\"\n");
    scene.inbound(&reserved_bits()).assert_dropped("vxlan-reserved");
    scene.inbound(&["to_red(flags=0)"]).assert_dropped("vxlan-flags");
    scene.inbound(&["to_red()"]).assert_passed();
    scene.stop();
}

#[test]
fn interop_outer_checksums_are_checked() {
    let mut scene = Scene::start(Family::V4, "", "");
    // None makes scapy compute the right one; zero is none at all; both are fine over IPv4.
    scene.inbound(&["to_red(udp={'chksum': None})", "to_red(udp={'chksum': 0})"]).assert_passed();
    scene.inbound(&["to_red(udp={'chksum': 0x1234})"]).assert_dropped("outer-checksum");
    scene.inbound(&["to_red(chksum=0x1234)"]).assert_dropped("outer-checksum");
    scene.stop();

    let mut scene = Scene::start(Family::V6, "", "");
    scene.inbound(&["to_red()"]).assert_passed();
    scene.inbound(&["to_red(udp={'chksum': 0x1234})"]).assert_dropped("outer-checksum");
    scene.inbound(&["to_red(udp={'chksum': 0})"]).assert_dropped("outer-checksum-zero");
    scene.stop();
}

#[test]
fn interop_outer_fragments_are_dropped() {
    // Over IPv6: of IPv4 fragments the kernel makes whole packets again before DPDK 22.11's packet socket sees them.
    let mut scene = Scene::start(Family::V6, "", "");
    let fragments = "in_ether(Ether(src=peer_mac, dst=up_mac), fragment6(IPv6(src=remote_vtep, dst=local_vtep)/IPv6ExtHdrFragment(id=9)/UDP(sport=51000, dport=4789)/Raw(vxlan(100, from_far(datagram('x' * 1400)))), 1280))";
    let outcome = scene.inbound(&[fragments]);
    assert!(outcome.sent >= 2, "{outcome:?}");
    outcome.assert_dropped("outer-fragment");
    scene.stop();
}

#[test]
fn interop_packets_cut_at_every_byte_are_dropped_by_name() {
    for (underlay, inner) in [(Family::V4, 4), (Family::V4, 6), (Family::V6, 4), (Family::V6, 6)] {
        let mut scene = Scene::start(underlay, "", "");
        let whole = format!("to_red(family={inner}, transport=datagram('0123456789'))");
        scene.inbound(&[&whole]).assert_passed();
        // The wire cut the frame: outer lengths promise more than there is.
        let cut = scene.inbound(&[format!("cuts({whole})")]);
        assert!(cut.sent > 60);
        assert_all_dropped(&cut);
        // A sender cut the inside: outer lengths are right.
        let cut =
            scene.inbound(&[format!("inner_cuts(100, from_far(datagram('0123456789'), family={inner}))")]);
        assert!(cut.sent > 40);
        assert_all_dropped(&cut);
        let cut = scene.inbound(&["header_cuts()"]);
        assert_eq!(cut.sent, 8);
        assert_all_dropped(&cut);
        assert_eq!(cut.drops("vxlan-truncated"), 8, "{:?}", cut.all_drops());
        // The tenant cuts its own frames.
        let cut = scene.outbound(&[format!("cuts(from_red(datagram('0123456789'), family={inner}))")]);
        assert!(cut.sent > 30);
        assert_all_dropped(&cut);
        scene.inbound(&[&whole]).assert_passed();
        scene.stop();
    }
}

#[track_caller]
fn assert_all_dropped(outcome: &tests::scene::Outcome) {
    assert!(outcome.seen.is_empty(), "a cut packet came out: {:#?}", outcome.seen);
    let total: i64 = outcome.all_drops().iter().map(|(_, n)| n).sum();
    assert_eq!(total, outcome.sent, "every cut packet is dropped by a name: {:?}", outcome.all_drops());
}
