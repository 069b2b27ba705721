//! RFC 6040 cell by cell: the four of encapsulation in normal mode (section 4.1) and the sixteen of decapsulation (section 4.2),
//! with IPv4 and IPv6 inside and outside. The DSCP is copied outward and left alone inward, and the outer TTL is its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::{Family, Scene};

const CODEPOINTS: [&str; 4] = ["Not-ECT", "ECT(1)", "ECT(0)", "CE"];

/// What leaves decapsulation: a row for each inner codepoint, a column for each outer one, both as numbered on the wire. `None`
/// is a drop. Written down as in the RFC's figure 4, not computed.
const DECAPSULATED: [[Option<i64>; 4]; 4] = [
    [Some(0), Some(0), Some(0), None],
    [Some(1), Some(1), Some(1), Some(3)],
    [Some(2), Some(1), Some(2), Some(3)],
    [Some(3), Some(3), Some(3), Some(3)],
];

const DSCP: [i64; 2] = [10, 46];

fn matrix(underlay: Family) {
    let mut scene = Scene::start(underlay, "", "[vxlan]\nttl = 99\n");
    for family in [4, 6] {
        let field = if family == 4 { "tos" } else { "tc" };
        let mut frames = Vec::new();
        let mut expected = Vec::new();
        for (inner, row) in DECAPSULATED.iter().enumerate() {
            for (outer, left) in row.iter().enumerate() {
                let (inside, outside) = (DSCP[0] << 2 | inner as i64, DSCP[1] << 2 | outer as i64);
                frames.push(format!(
                    "to_red(datagram('{inner}{outer}'), family={family}, inner={{'{field}': {inside}}}, tos={outside})"
                ));
                if let Some(left) = left {
                    // The payload says which cell it was, as two digits.
                    expected.push((format!("3{inner}3{outer}"), DSCP[0] << 2 | left));
                }
            }
        }
        let outcome = scene.inbound(&frames);
        let came: Vec<_> = outcome
            .seen
            .iter()
            .map(|fact| {
                assert_ne!(fact["ip_sum_ok"], false, "{fact}");
                assert_eq!(fact["l4_sum_ok"], true, "{fact}");
                (fact["payload"].as_str().unwrap().to_owned(), fact["tos"].as_i64().unwrap())
            })
            .collect();
        assert_eq!(came, expected, "inner IPv{family}: (cell, traffic class)");
        // Six leave with CE: four that had it, two that got it outside.
        outcome.assert_inbound(&[("ecn-decap", 1)], &[("fwd.decapsulated", 16), ("fwd.ecn-ce", 6)]);

        let frames: Vec<String> = (0..4)
            .map(|inner| {
                format!(
                    "from_red(datagram(), family={family}, {field}={}, {})",
                    DSCP[1] << 2 | inner,
                    ttl(family)
                )
            })
            .collect();
        let outcome = scene.outbound(&frames);
        outcome.assert_outbound(&[], &[]);
        for (inner, fact) in outcome.seen.iter().enumerate() {
            let wanted = DSCP[1] << 2 | inner as i64;
            let name = CODEPOINTS[inner];
            assert_eq!(
                (&fact["tos"], &fact["inner"]["tos"]),
                (&wanted.into(), &wanted.into()),
                "{name}: {fact}"
            );
            assert_eq!((&fact["ttl"], &fact["inner"]["ttl"]), (&99.into(), &17.into()), "{name}: {fact}");
            assert_ne!(fact["ip_sum_ok"], false, "{name}: {fact}");
        }
        assert_eq!(outcome.seen.len(), 4);
    }
    scene.stop();
}

fn ttl(family: u8) -> &'static str {
    if family == 4 { "ttl=17" } else { "hlim=17" }
}

#[test]
fn conformance_ecn_matrix_over_ipv4() {
    matrix(Family::V4);
}

#[test]
fn conformance_ecn_matrix_over_ipv6() {
    matrix(Family::V6);
}

/// What is a tunnel already (RFC 2003, RFC 4213, RFC 2473) is carried as any packet, and marked as its own outer header is.
#[test]
fn conformance_ecn_tunnels_of_tenants_are_carried() {
    let inside = [
        (4, "IP(src='192.0.2.1', dst='192.0.2.2', tos=0)/datagram('tunnel')"),
        (41, "IPv6(src='2001:db8::1', dst='2001:db8::2', tc=0)/datagram('tunnel')"),
    ];
    let mut scene = Scene::start(Family::V4, "", "");
    for family in [4, 6] {
        for (protocol, transport) in inside {
            let field = if family == 4 { "tos" } else { "tc" };
            let marked = DSCP[0] << 2 | 2;
            let outcome =
                scene.outbound(&[format!("from_red({transport}, family={family}, {field}={marked})")]);
            outcome.assert_outbound(&[], &[]);
            let [fact] = &outcome.seen[..] else { panic!("{outcome:?}") };
            assert_eq!((&fact["tos"], &fact["inner"]["tos"]), (&marked.into(), &marked.into()), "{fact}");
            assert_eq!(fact["inner"]["proto"], protocol, "{fact}");
            assert!(fact["payload"].as_str().unwrap().ends_with("74756e6e656c"), "{fact}");
            let outcome = scene.inbound(&[format!("to_red({transport}, family={family})")]);
            outcome.assert_inbound(&[], &[("fwd.decapsulated", 1)]);
            assert_eq!(outcome.seen[0]["proto"], protocol, "{outcome:?}");
        }
    }
    scene.stop();
}
