//! A VLAN tag inside the tunnel: dropped by default (RFC 7348 section 6.1), kept where the VPC says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::{Family, Scene};

#[test]
fn interop_inner_vlan_is_dropped_by_default() {
    let mut scene = Scene::start(Family::V4, "", "");
    for family in [4, 6] {
        scene.inbound(&[format!("to_red(tag=7, family={family})")]).assert_dropped("inner-vlan");
        scene
            .outbound(&[format!("from_red(datagram(), tag=7, family={family})")])
            .assert_dropped("inner-vlan");
        scene.inbound(&[format!("to_red(family={family})")]).assert_passed();
        scene.outbound(&[format!("from_red(datagram(), family={family})")]).assert_passed();
    }
    scene.stop();
}

#[test]
fn interop_inner_vlan_is_kept_where_allowed() {
    let mut scene = Scene::start(Family::V4, "inner-vlan = \"keep\"", "");
    for family in [4, 6] {
        let outcome = scene.inbound(&[format!("to_red(tag=7, family={family})")]);
        outcome.assert_passed();
        assert_eq!(outcome.seen[0]["vlans"], serde_json::json!([7]));
        assert_eq!(outcome.seen[0]["l4_sum_ok"], true);
        let outcome = scene.outbound(&[format!("from_red(datagram(), tag=7, family={family})")]);
        outcome.assert_passed();
        assert_eq!(outcome.seen[0]["inner"]["vlans"], serde_json::json!([7]));
        // The tag is part of the flow: the same addresses without it are another flow, which stays untagged.
        let outcome = scene.outbound(&[format!("from_red(datagram(), family={family})")]);
        outcome.assert_passed();
        assert_eq!(outcome.seen[0]["inner"]["vlans"], serde_json::json!([]));
    }
    scene.stop();
}
