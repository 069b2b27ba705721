//! What a vNIC may not send inside of LLC and SNAP either, where nobody looks whose address is in it.

use wire::arp::ArpPacket;
use wire::build::Path;
use wire::build::control::{arp_request, neighbour_announcement};
use wire::ethernet::ethertype;
use wire::llc::{SnapHeader, oui};
use wire::{HeapBuf, MacAddr, View};

use super::guard::change;
use testkit::*;

const VIP: [(&str, u64); 1] = [("guard-vip", 1)];

/// An Ethernet II frame without tags, with LLC and SNAP in place of its EtherType.
fn in_snap(frame: &[u8], length: u16, oui: [u8; 3]) -> Vec<u8> {
    let ethertype = u16::from_be_bytes([frame[12], frame[13]]);
    let header = SnapHeader::new(oui, ethertype);
    [&frame[..12], &length.to_be_bytes(), header.bytes(), &frame[14..]].concat()
}

/// A world that passes on whatever nobody forbids.
fn open_world() -> World {
    let mut world = plain();
    world.flood(0, &[2]);
    world.keep_vlan(0);
    world
}

/// There are stations that take LLC and SNAP for what is in it, whatever its length field says.
#[test]
fn guard_claims_nothing_in_llc_and_snap() {
    let mut world = open_world();
    let path = |address| Path::v4((A.mac, address), (B.mac, B.v4));
    let answer = ArpPacket::new(4, (A.mac, R.v4), (B.mac, B.v4));
    let claims = [
        arp_request((A.mac, B.v4), B.v4),
        neighbour_announcement(A.mac, B.v6),
        path(R.v4).udp(1, 2, b"x"),
        Path::v6((A.mac, R.v6), (B.mac, B.v6)).udp(1, 2, b"x"),
        path(A.v4).ethernet(ethertype::RARP, answer.bytes()),
        // A tag that the parser does not see.
        path(R.v4).tagged(0).udp(1, 2, b"x"),
        // Not its own either: nobody looks.
        arp_request((A.mac, A.v4), A.v4),
    ];
    for frame in &claims {
        for (oui, length) in [(oui::ETHERNET, 8), (oui::BRIDGE_TUNNEL, 0), (oui::ETHERNET, 0x5ff)] {
            let hidden = in_snap(frame, length, oui);
            let tagged = |tags: &[u8]| [&hidden[..12], tags, &hidden[12..]].concat();
            let (one, two) = (tagged(&[0x81, 0, 0, 7]), tagged(&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 0]));
            for frame in [hidden, one, two] {
                world.expect(1, &[frame], &VIP);
            }
        }
    }
}

#[test]
fn guard_lets_llc_pass_that_claims_nothing() {
    let mut world = open_world();
    let frame = |payload: &[u8]| v4(A, B).ethernet(46, payload);
    let mut spanning_tree = [0; 46];
    spanning_tree[..3].copy_from_slice(&[0x42, 0x42, 3]);
    let snap = |oui, protocol| [SnapHeader::new(oui, protocol).bytes(), &[0; 38]].concat();
    for payload in
        [&spanning_tree[..], &snap([0, 0, 0xc], 0x2000), &snap(oui::ETHERNET, 0x88b5), &[0xaa, 0xaa, 3, 0]]
    {
        assert!(!world.run(1, vec![HeapBuf::new(&frame(payload))]).is_empty(), "{payload:x?}");
    }
}

#[test]
fn guard_that_is_off_lets_snap_pass_and_another_mac_does_not() {
    let mut world = open_world();
    let nested = MacAddr([0, 0, 0x5e, 0, 1, 51]);
    let claim = in_snap(&arp_request((nested, B.v4), B.v4), 36, oui::ETHERNET);
    change(&mut world, 0, &[("10.0.0.100", 32, nested)], true);
    world.expect(1, std::slice::from_ref(&claim), &VIP);
    change(&mut world, 0, &[], false);
    assert!(!world.run(1, vec![HeapBuf::new(&claim)]).is_empty());
}
