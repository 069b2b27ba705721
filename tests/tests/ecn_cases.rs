//! ECN through the whole switch: all 16 cases of decapsulation (RFC 6040 section 4.2), and the four of encapsulation in
//! each of the three modes, over both underlays and with both inner families. DSCP and checksums are looked at beside.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::scene::Scene;
use tests::{Family, counters::Moved};

const NOT_ECT: i64 = 0;
const ECT_1: i64 = 1;
const ECT_0: i64 = 2;
const CE: i64 = 3;

/// What decapsulation makes of (inner, outer); None is a drop. Written from the RFC's table, row by row.
fn decapsulated(inner: i64, outer: i64) -> Option<i64> {
    match (inner, outer) {
        (NOT_ECT, CE) => None,
        (NOT_ECT, _) => Some(NOT_ECT),
        (ECT_0, ECT_1) => Some(ECT_1),
        (ECT_0, CE) | (ECT_1, CE) => Some(CE),
        (inner, _) => Some(inner),
    }
}

/// What encapsulation writes outside for an inner codepoint, by mode.
fn encapsulated(mode: &str, inner: i64) -> i64 {
    match mode {
        "rfc6040" => inner,
        "rfc3168" if inner == CE => ECT_0,
        "rfc3168" => inner,
        "rfc6040-compat" => NOT_ECT,
        other => panic!("no such mode: {other}"),
    }
}

fn decap(underlay: Family, inner_family: u8) {
    let mut scene = Scene::start(underlay, "", "");
    // DSCP 10 inside, 20 outside: decapsulation leaves the inner one alone.
    let (inner_dscp, outer_dscp) = (10, 20);
    let field = if inner_family == 4 { "tos" } else { "tc" };
    for inner in [NOT_ECT, ECT_1, ECT_0, CE] {
        for outer in [NOT_ECT, ECT_1, ECT_0, CE] {
            let (inside, outside) = (inner_dscp << 2 | inner, outer_dscp << 2 | outer);
            let frame =
                format!("to_red(family={inner_family}, inner={{'{field}': {inside}}}, tos={outside})");
            let outcome = scene.inbound(&[frame]);
            let case = format!("inner {inner}, outer {outer}");
            match decapsulated(inner, outer) {
                None => outcome.assert_dropped("ecn-decap"),
                Some(wanted) => {
                    outcome.assert_passed();
                    let fact = &outcome.seen[0];
                    assert_eq!(fact["tos"], inner_dscp << 2 | wanted, "{case}: {fact}");
                    assert_ne!(
                        fact["ip_sum_ok"], false,
                        "{case}: the inner checksum follows the change: {fact}"
                    );
                    assert_eq!(fact["l4_sum_ok"], true, "{case}: {fact}");
                }
            }
            outcome.after.assert_moved(
                &outcome.before,
                &[
                    ("fwd.received", Moved::By(1)),
                    ("fwd.sent", Moved::By(outcome.seen.len() as i64)),
                    ("fwd.*", Moved::Anyhow),
                    ("port.*", Moved::Anyhow),
                ],
            );
        }
    }
    scene.stop();
}

fn encap(underlay: Family, inner_family: u8, mode: &str) {
    let mut scene = Scene::start(underlay, "", &format!("[vxlan]\necn-encap = \"{mode}\"\n"));
    let dscp = 10;
    let field = if inner_family == 4 { "tos" } else { "tc" };
    for inner in [NOT_ECT, ECT_1, ECT_0, CE] {
        let outcome = scene.outbound(&[format!(
            "from_red(datagram(), family={inner_family}, {field}={})",
            dscp << 2 | inner
        )]);
        outcome.assert_passed();
        let fact = &outcome.seen[0];
        assert_eq!(
            fact["tos"],
            dscp << 2 | encapsulated(mode, inner),
            "{mode}, inner {inner}: outer of {fact}"
        );
        assert_eq!(
            fact["inner"]["tos"],
            dscp << 2 | inner,
            "{mode}, inner {inner}: the inside stays: {fact}"
        );
        assert_ne!(fact["ip_sum_ok"], false, "{fact}");
        assert_ne!(fact["inner"]["ip_sum_ok"], false, "{fact}");
    }
    scene.stop();
}

#[test]
fn ecn_decap_ipv4_in_ipv4() {
    decap(Family::V4, 4);
}

#[test]
fn ecn_decap_ipv6_in_ipv4() {
    decap(Family::V4, 6);
}

#[test]
fn ecn_decap_ipv4_in_ipv6() {
    decap(Family::V6, 4);
}

#[test]
fn ecn_decap_ipv6_in_ipv6() {
    decap(Family::V6, 6);
}

#[test]
fn ecn_encap_rfc6040() {
    encap(Family::V4, 4, "rfc6040");
    encap(Family::V6, 6, "rfc6040");
}

#[test]
fn ecn_encap_rfc3168() {
    encap(Family::V4, 4, "rfc3168");
    encap(Family::V6, 6, "rfc3168");
}

#[test]
fn ecn_encap_rfc6040_compat() {
    encap(Family::V4, 4, "rfc6040-compat");
    encap(Family::V6, 6, "rfc6040-compat");
}
