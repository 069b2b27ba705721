//! Fragments of tenants' packets, both families and both directions: they follow the verdict of their first fragment, and
//! one whose first fragment was never seen is dropped by name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::Family;
use tests::scene::{Outcome, Scene};

/// Expressions for the fragments of one datagram of 3000 bytes, told apart by `id`; `pick` is a slice such as "[1:]".
fn fragments(family: u8, id: u32, inbound: bool, pick: &str) -> String {
    let build = if inbound { "from_far" } else { "from_red" };
    let wrap = if inbound { "outer(vxlan(100, f))" } else { "f" };
    let cut = match family {
        4 => format!("[p[Ether].copy() for p in fragment({build}(datagram('x' * 3000), id={id}), 1400)]"),
        _ => format!(
            "(lambda p: in_ether(Ether(src=p.src, dst=p.dst), fragment6(IPv6(src=p[IPv6].src, dst=p[IPv6].dst)/IPv6ExtHdrFragment(id={id})/p[UDP], 1450)))({build}(datagram('x' * 3000), family=6))"
        ),
    };
    format!("[{wrap} for f in ({cut}){pick}]")
}

fn send(scene: &mut Scene, inbound: bool, frames: &str) -> Outcome {
    if inbound { scene.inbound(&[frames]) } else { scene.outbound(&[frames]) }
}

fn fragments_follow_their_first(underlay: Family, family: u8) {
    let mut scene = Scene::start(underlay, "", "");
    for inbound in [true, false] {
        let whole = send(&mut scene, inbound, &fragments(family, 1, inbound, ""));
        assert_eq!(whole.sent, 3, "3008 bytes make three fragments");
        whole.assert_passed();
        let offsets: Vec<i64> = whole
            .seen
            .iter()
            .map(|f| if inbound { &f["offset"] } else { &f["inner"]["offset"] }.as_i64().unwrap())
            .collect();
        assert!(offsets[0] == 0 && offsets[1] > 0 && offsets[2] > offsets[1], "in their order: {offsets:?}");
        // Another datagram's later fragments, without their first.
        let orphans = send(&mut scene, inbound, &fragments(family, 2, inbound, "[1:]"));
        assert_eq!(orphans.sent, 2);
        orphans.assert_dropped("fragment-unknown");
        // Its first fragment comes at last; from then on they pass.
        send(&mut scene, inbound, &fragments(family, 2, inbound, "")).assert_passed();
        send(&mut scene, inbound, &fragments(family, 2, inbound, "[2:]")).assert_passed();
    }
    scene.stop();
}

#[test]
fn interop_fragments_ipv4() {
    fragments_follow_their_first(Family::V4, 4);
}

#[test]
fn interop_fragments_ipv6() {
    fragments_follow_their_first(Family::V6, 6);
}
