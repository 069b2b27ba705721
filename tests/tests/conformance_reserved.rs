//! All 64 bits of the VxLAN header, one by one (RFC 7348 section 5): 39 reserved ones, which a receiver ignores unless it is told
//! to be strict; the I flag, without which nothing is a VxLAN packet; and the 24 of the VNI, each of which is another network.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use tests::{Family, Scene};

/// The place of the I flag, and of the VNI's first and last bits, counted from the first bit of the header.
const I_FLAG: u32 = 4;
const VNI_BITS: std::ops::RangeInclusive<u32> = 32..=55;

/// A packet of VNI 100 with this bit of its header turned over, and the bit's number inside.
fn turned(bit: u32, family: u8) -> String {
    let header: u64 = 0x0800_0000_0000_6400 ^ 1 << (63 - bit);
    format!("outer(({header}).to_bytes(8, 'big') + bytes(from_far(datagram('{bit:02}'), family={family})))")
}

/// The numbers in the packets that arrived.
fn numbers(seen: &[Value]) -> Vec<u32> {
    let number = |fact: &Value| {
        let digits = u32::from_str_radix(fact["payload"].as_str().unwrap(), 16).unwrap();
        (digits >> 8 & 15) * 10 + (digits & 15)
    };
    seen.iter().map(number).collect()
}

fn bits(underlay: Family, strict: bool) {
    let policy = if strict { "strict" } else { "ignore" };
    let mut scene = Scene::start(underlay, "", &format!("[vxlan]\nreserved = \"{policy}\"\n"));
    let reserved: Vec<u32> = (0..64).filter(|bit| *bit != I_FLAG && !VNI_BITS.contains(bit)).collect();
    assert_eq!(reserved.len(), 39);
    let both = |bits: &[u32]| -> Vec<String> {
        [4, 6].iter().flat_map(|family| bits.iter().map(|bit| turned(*bit, *family))).collect()
    };
    let outcome = scene.inbound(&both(&reserved));
    if strict {
        assert_eq!(numbers(&outcome.seen), [0_u32; 0]);
        outcome.assert_inbound(&[("vxlan-reserved", 78)], &[]);
    } else {
        assert_eq!(numbers(&outcome.seen), [&reserved[..], &reserved[..]].concat());
        outcome.assert_inbound(&[], &[("fwd.decapsulated", 78)]);
    }
    let mut others: Vec<u32> = VNI_BITS.collect();
    others.push(I_FLAG);
    let outcome = scene.inbound(&both(&others));
    outcome.assert_inbound(&[("vxlan-flags", 2), ("unknown-vni", 48)], &[]);
    // Untouched they pass; what the switch sends has no bit of them set.
    let outcome = scene.inbound(&["to_red()", "to_red(family=6)"]);
    outcome.assert_passed();
    outcome.assert_inbound(&[], &[("fwd.decapsulated", 2)]);
    let outcome = scene.outbound(&["from_red(datagram())", "from_red(datagram(), family=6)"]);
    outcome.assert_passed();
    outcome.assert_outbound(&[], &[]);
    for fact in &outcome.seen {
        assert!(fact["payload"].as_str().unwrap().starts_with("0800000000006400"), "{fact}");
    }
    scene.stop();
}

#[test]
fn conformance_reserved_bits_are_ignored() {
    bits(Family::V4, false);
    bits(Family::V6, false);
}

#[test]
fn conformance_reserved_bits_are_refused_when_strict() {
    bits(Family::V4, true);
    bits(Family::V6, true);
}
