//! The checksum matrix: inner IPv4 and IPv6, outer IPv4 and IPv6, TCP, UDP and ICMP. First with crafted frames, where every
//! counter is known, then with the kernel's vxlan device on the other side, which verifies and fills in checksums itself.
//!
//! The outer one may be zero over IPv4 (RFC 7348 section 5), and over IPv6 where both ends say so (RFC 6935); where it is there
//! it must be right. The inner ones are the tenants' own: the switch carries them as they are, right or wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use tests::{Counters, Daemon, Family, Lab, Netns, Scene, lab, pair, traffic};

/// The protocols: number over IPv4, number over IPv6, and the transport as an expression for either.
const PROTOCOLS: [(i64, i64, [&str; 2]); 3] = [
    (6, 6, ["TCP(sport=1000, dport=2000, flags='A')/Raw(b'odd')"; 2]),
    (17, 17, ["datagram('odd')"; 2]),
    (1, 58, ["ICMP(id=7)/Raw(b'odd')", "ICMPv6EchoRequest(id=7, data=b'odd')"]),
];

/// Every inner family with every protocol: (family, IP protocol, transport).
fn insides() -> Vec<(u8, i64, &'static str)> {
    let both = |(four, six, [over_four, over_six]): (i64, i64, [&'static str; 2])| {
        [(4, four, over_four), (6, six, over_six)]
    };
    PROTOCOLS.into_iter().flat_map(both).collect()
}

/// What frames are, sorted: (EtherType, protocol, whether the transport's checksum is right).
fn kinds<'a>(facts: impl Iterator<Item = &'a Value>) -> Vec<(i64, i64, bool)> {
    let mut kinds: Vec<_> = facts
        .map(|fact| {
            assert_ne!(fact["ip_sum_ok"], false, "{fact}");
            let number = |name: &str| fact[name].as_i64().unwrap();
            (number("type"), number("proto"), fact["l4_sum_ok"].as_bool().unwrap())
        })
        .collect();
    kinds.sort_unstable();
    kinds
}

fn all_right(times: usize) -> Vec<(i64, i64, bool)> {
    let kind = |(family, protocol, _): &(u8, i64, &str)| {
        (if *family == 4 { 0x0800 } else { 0x86dd }, *protocol, true)
    };
    let mut all: Vec<_> = insides().iter().flat_map(|inside| vec![kind(inside); times]).collect();
    all.sort_unstable();
    all
}

fn crafted(underlay: Family, zero_over_ipv6: bool) {
    let uplink = if zero_over_ipv6 { "udp6-zero-checksum = true" } else { "" };
    let mut scene = Scene::start_on(underlay, uplink, &[], "", "");
    let zero_is_fine = underlay == Family::V4 || zero_over_ipv6;

    let inbound = |sum: &str| -> Vec<String> {
        let frame = |(family, _, transport): (u8, i64, &str)| {
            format!("to_red({transport}, family={family}, udp={{'chksum': {sum}}})")
        };
        insides().into_iter().map(frame).collect()
    };
    // Computed, as it must always be accepted; none at all; and a wrong one.
    let right = scene.inbound(&inbound("None"));
    assert_eq!(kinds(right.seen.iter()), all_right(1));
    right.assert_inbound(&[], &[("fwd.decapsulated", 6)]);
    let zero = scene.inbound(&inbound("0"));
    if zero_is_fine {
        assert_eq!(kinds(zero.seen.iter()), all_right(1));
        zero.assert_inbound(&[], &[("fwd.decapsulated", 6)]);
    } else {
        zero.assert_dropped("outer-checksum-zero");
        zero.assert_inbound(&[("outer-checksum-zero", 6)], &[]);
    }
    let wrong = scene.inbound(&inbound("0x1234"));
    wrong.assert_dropped("outer-checksum");
    wrong.assert_inbound(&[("outer-checksum", 6)], &[]);
    if underlay == Family::V4 {
        let header = scene.inbound(&["to_red(chksum=0x1234)"]);
        header.assert_inbound(&[("outer-checksum", 1)], &[]);
    }

    // The tenant's frames: the outer checksum is zero or right, the inner one is the tenant's.
    let frame = |(family, _, transport): (u8, i64, &str)| format!("from_red({transport}, family={family})");
    let frames: Vec<String> = insides().into_iter().map(frame).collect();
    let outbound = scene.outbound(&frames);
    outbound.assert_outbound(&[], &[]);
    assert_eq!(kinds(outbound.seen.iter().map(|fact| &fact["inner"])), all_right(1));
    for fact in &outbound.seen {
        assert_ne!(fact["ip_sum_ok"], false, "{fact}");
        if zero_is_fine {
            assert_eq!(fact["l4_sum"], 0, "{fact}");
        } else {
            assert_ne!(fact["l4_sum"], 0, "{fact}");
            assert_eq!(fact["l4_sum_ok"], true, "{fact}");
        }
    }

    // An inner checksum that is wrong is the receiver's to find: it arrives as it was sent, either way.
    let bad = "UDP(sport=1000, dport=2000, chksum=0x1234)/Raw(b'odd')";
    for family in [4, 6] {
        let inbound = scene.inbound(&[format!("to_red({bad}, family={family})")]);
        inbound.assert_inbound(&[], &[("fwd.decapsulated", 1)]);
        let outbound = scene.outbound(&[format!("from_red({bad}, family={family})")]);
        outbound.assert_outbound(&[], &[]);
        for fact in [&inbound.seen[0], &outbound.seen[0]["inner"]] {
            assert_eq!((&fact["l4_sum"], &fact["l4_sum_ok"]), (&0x1234.into(), &false.into()), "{fact}");
        }
    }
    scene.stop();
}

#[test]
fn conformance_checksums_over_ipv4() {
    crafted(Family::V4, false);
}

#[test]
fn conformance_checksums_over_ipv6() {
    crafted(Family::V6, false);
}

#[test]
fn conformance_checksums_over_ipv6_may_be_zero() {
    crafted(Family::V6, true);
}

/// How many packets a kernel found with wrong checksums, in all its protocols.
fn kernel_errors(netns: &Netns) -> u64 {
    let text = netns.run(&["cat", "/proc/net/snmp", "/proc/net/snmp6"]);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    // IPv4: a line of names, then one of numbers. IPv6: one of each.
    let four = lines.windows(2).filter(|pair| pair[0].first() == pair[1].first()).flat_map(|pair| {
        pair[0].iter().zip(&pair[1]).filter(|(name, _)| name.contains("CsumErrors")).map(|(_, n)| *n)
    });
    let six = lines.iter().filter(|line| line[0].contains("CsumErrors")).map(|line| line[1]);
    four.chain(six).map(|n| n.parse::<u64>().unwrap_or(0)).sum()
}

/// Drops of what kernels say of themselves to all: reports of multicast groups.
const CHATTER: [&str; 2] = ["fwd.drops.bum-disabled", "fwd.drops.underlay-other"];

#[track_caller]
fn assert_nothing_dropped(before: &Counters, after: &Counters) {
    let moved = after.since(before);
    let dropped: Vec<_> = moved
        .iter()
        .filter(|(path, _)| path.starts_with("fwd.drops.") && !CHATTER.contains(&path.as_str()))
        .collect();
    assert!(dropped.is_empty(), "{dropped:?}");
    // Echoes of three sizes and bytes by TCP and UDP, both ways.
    assert!(after.get("fwd.encapsulated") - before.get("fwd.encapsulated") > 30, "{moved:#?}");
    assert!(after.get("fwd.decapsulated") - before.get("fwd.decapsulated") > 30, "{moved:#?}");
}

/// The kernel as the other VTEP; red's device writes the outer checksum and blue's does not.
fn kernel(underlay: Family, zero_over_ipv6: bool) {
    let (with, without, uplink) = match (underlay, zero_over_ipv6) {
        (Family::V4, _) => ("udpcsum", "noudpcsum", ""),
        (Family::V6, false) => ("", "", ""),
        (Family::V6, true) => {
            ("udp6zerocsumrx", "udp6zerocsumtx udp6zerocsumrx", "udp6-zero-checksum = true")
        }
    };
    let lab = Lab::new(underlay);
    let tenants = ["red", "blue"].map(|name| {
        let i = usize::from(name == "blue");
        lab.tenant(name, name, pair::MACS[i], &pair::NEAR)
    });
    let remotes = [("redfar", with), ("bluefar", without)];
    let remotes: Vec<_> = remotes
        .iter()
        .enumerate()
        .map(|(i, (name, sums))| lab.remote(name, pair::VNIS[i], pair::MACS[i + 2], &pair::FAR, sums))
        .collect();
    let subnets = ["10.0.0.0/24", "fd00:1::/64"];
    let mut config = lab.uplink(uplink);
    for (i, name) in ["red", "blue"].into_iter().enumerate() {
        config += &lab::vpc(name, pair::VNIS[i], &subnets, "");
        config += &tenants[i].vnic();
        config += &remotes[i].location();
    }
    let daemon = Daemon::start(&lab.host, &config);
    tenants.iter().for_each(|tenant| tenant.plug(&lab.host));
    for (tenant, remote) in tenants.iter().zip(&remotes) {
        for inner in [Family::V4, Family::V6] {
            let [near, far] = pair::addresses(inner);
            // The first echo finds the neighbours.
            traffic::ping(&tenant.netns, far, 56, 1);
            let before = daemon.counters();
            for size in [1, 1001, 3000] {
                traffic::ping(&tenant.netns, far, size, 3);
                traffic::ping(&remote.netns, near, size, 3);
            }
            traffic::transfer(&tenant.netns, &remote.netns, far, 20_001);
            assert_nothing_dropped(&before, &daemon.counters());
        }
    }
    let machines = remotes.iter().map(|remote| &remote.netns).chain(tenants.iter().map(|t| &t.netns));
    for machine in machines.chain([&*lab.peer]) {
        assert_eq!(kernel_errors(machine), 0, "{} found wrong checksums", machine.name());
    }
    daemon.stop();
}

#[test]
fn conformance_checksums_with_the_kernel_over_ipv4() {
    kernel(Family::V4, false);
}

#[test]
fn conformance_checksums_with_the_kernel_over_ipv6() {
    kernel(Family::V6, false);
}

#[test]
fn conformance_checksums_with_the_kernel_over_ipv6_may_be_zero() {
    kernel(Family::V6, true);
}
