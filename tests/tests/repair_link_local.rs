//! Link-local addresses and router discovery between kernels of one VPC that floods, with one tenant that lies.
//!
//! ```text
//!  evil ──┐
//!  victim ┤ switch ══ up0 ══ kernel (vxlan) ── far
//!  good ──┘
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;
use tests::lab::{Lab, vpc};
use tests::{Agent, Daemon, Family, Netns, traffic, wait_for};

const MACS: [&str; 4] = ["02:00:00:00:0e:01", "02:00:00:00:0e:02", "02:00:00:00:0e:03", "02:00:00:00:0e:04"];
const LINK_LOCAL: [&str; 4] =
    ["fe80::ff:fe00:e01", "fe80::ff:fe00:e02", "fe80::ff:fe00:e03", "fe80::ff:fe00:e04"];
/// One of RFC 7217, which follows from no MAC.
const STABLE: &str = "fe80::8d3c:1234:5678:1";

/// What every lie is sent as: neighbour discovery from the liar's MAC.
fn discovery(source: &str, to: &str, message: &str) -> String {
    format!("Ether(src=evil_mac, dst='{to}')/IPv6(src='{source}', dst='ff02::1', hlim=255)/{message}")
}

fn neighbour(of: &Netns, address: &str) -> String {
    of.ip(&format!("-6 neigh show {address} dev eth0"))
}

#[test]
fn repair_link_local_addresses_are_guarded_and_routers_are_not_played() {
    let lab = Lab::new(Family::V4);
    let tenant = |n: usize, name| {
        let (v4, v6) = (format!("10.0.0.{}/24", n + 1), format!("fd00:1::{}/64", n + 1));
        lab.tenant(name, "red", MACS[n], &[&v4, &v6])
    };
    let (evil, victim, good) = (tenant(0, "evil"), tenant(1, "victim"), tenant(2, "good"));
    let far = lab.remote("far", 100, MACS[3], &["10.0.0.4/24", "fd00:1::4/64"], "");
    let subnets = ["10.0.0.0/24", "fd00:1::/64"];
    let all =
        [lab.uplink(""), vpc("red", 100, &subnets, "flood = true"), evil.vnic(), victim.vnic(), good.vnic()];
    let daemon = Daemon::start(&lab.host, &[all.concat(), far.location()].concat());
    for tenant in [&evil, &victim, &good] {
        tenant.plug(&lab.host);
    }
    victim.netns.sysctl(&["net.ipv6.conf.eth0.accept_ra=2"]);

    // Link-local addresses work among all without a word of configuration, the virtual router's among them.
    for (from, to) in
        [(&victim.netns, LINK_LOCAL[2]), (&good.netns, LINK_LOCAL[3]), (&far.netns, LINK_LOCAL[1])]
    {
        traffic::ping(from, &format!("{to}%eth0"), 56, 3);
    }
    traffic::ping(&victim.netns, "fe80::5eff:fe00:64%eth0", 56, 1);

    // A router that is none, the gateway's redirects, and every way to claim somebody's address.
    let mut agent = Agent::start(&lab, &[("evil", &evil.netns)], &[("evil_mac", &evil.mac)]);
    let all_nodes = "33:33:00:00:00:01";
    let router = "ICMPv6ND_RA(routerlifetime=1800)/ICMPv6NDOptSrcLLAddr(lladdr=evil_mac)/ICMPv6NDOptPrefixInfo(prefix='fd66::', prefixlen=64)";
    let claim = |target: &str| {
        format!("ICMPv6ND_NA(tgt='{target}', R=0, S=0, O=1)/ICMPv6NDOptDstLLAddr(lladdr=evil_mac)")
    };
    traffic::ping(&victim.netns, "fd00:1::3", 56, 1);
    let routes = victim.netns.ip("-6 route");
    let lies = [
        (discovery(LINK_LOCAL[0], all_nodes, router), "guard-ra"),
        (discovery(LINK_LOCAL[0], MACS[1], router), "guard-ra"),
        (discovery(LINK_LOCAL[0], all_nodes, &format!("IPv6ExtHdrDestOpt()/{router}")), "guard-ra"),
        (discovery(LINK_LOCAL[0], all_nodes, &format!("IPv6ExtHdrFragment()/{router}")), "guard-ra"),
        (
            discovery(LINK_LOCAL[0], MACS[1], "ICMPv6ND_Redirect(tgt='fd00:1::1', dst='fd00:1::3')"),
            "guard-ra",
        ),
        (discovery("fe80::5eff:fe00:64", all_nodes, router), "guard-vip"),
        (discovery("fd00:1::1", all_nodes, &claim("fd00:1::3")), "guard-vip"),
        (discovery("fd00:1::1", all_nodes, &claim(LINK_LOCAL[2])), "guard-vip"),
        (discovery(LINK_LOCAL[2], all_nodes, &claim(LINK_LOCAL[2])), "guard-vip"),
        (discovery(LINK_LOCAL[0], all_nodes, &claim("fe80::5eff:fe00:64")), "guard-vip"),
        (
            discovery("fd00:1::1", all_nodes, &format!("IPv6ExtHdrFragment()/{}", claim("fd00:1::3"))),
            "neighbour-unsound",
        ),
        (
            discovery(
                "fd00:1::1",
                all_nodes,
                "ICMPv6ND_NA(tgt='fd00:1::1', S=0, O=1)/ICMPv6NDOptDstLLAddr(lladdr=evil_mac)/ICMPv6NDOptDstLLAddr(lladdr='02:00:00:00:0e:03')",
            ),
            "neighbour-unsound",
        ),
    ];
    let before = daemon.counters();
    let frames: Vec<&str> = lies.iter().map(|(lie, _)| lie.as_str()).collect();
    assert_eq!(agent.exchange("evil", &frames, &[]).sent, lies.len() as i64);
    let dropped = || {
        let after = daemon.counters();
        let of = |reason| {
            let path = format!("fwd.drops.{reason}");
            (reason, after.get(&path) - before.get(&path))
        };
        ["guard-ra", "guard-vip", "neighbour-unsound"].map(of)
    };
    let told = |reason| (reason, lies.iter().filter(|(_, said)| *said == reason).count() as i64);
    let expected = ["guard-ra", "guard-vip", "neighbour-unsound"].map(told);
    wait_for("every lie to be dropped by its name", Duration::from_secs(10), || {
        (dropped() == expected).then_some(())
    });
    assert_eq!(victim.netns.ip("-6 route"), routes, "no route came or went");
    assert!(!victim.netns.ip("-6 addr").contains("fd66:"), "nor an address");
    for address in ["fd00:1::3", LINK_LOCAL[2]] {
        let known = neighbour(&victim.netns, address);
        assert!(known.contains(MACS[2]) && !known.contains(MACS[0]), "{known}");
    }

    // An address that nobody has is taken by whoever asks first, and is guarded from then on.
    good.netns.sysctl(&["net.ipv6.conf.eth0.accept_dad=1"]);
    good.netns.ip(&format!("addr add {STABLE}/64 dev eth0"));
    let learned = || daemon.ctl("show vnic good").contains(STABLE).then_some(());
    wait_for("the switch to have heard of the address", Duration::from_secs(10), learned);
    wait_for("the kernel to have taken it", Duration::from_secs(10), || {
        good.netns.ip("addr show dev eth0 tentative").is_empty().then_some(())
    });
    traffic::ping(&victim.netns, &format!("{STABLE}%eth0"), 56, 3);
    let before = daemon.counters().get("fwd.drops.guard-vip");
    let lies = [
        discovery("fd00:1::1", all_nodes, &claim(STABLE)),
        discovery(STABLE, all_nodes, "ICMPv6EchoRequest()"),
    ];
    agent.exchange("evil", &lies, &[]);
    wait_for("both to be dropped", Duration::from_secs(10), || {
        (daemon.counters().get("fwd.drops.guard-vip") == before + 2).then_some(())
    });
    assert!(neighbour(&victim.netns, STABLE).contains(MACS[2]));
    daemon.stop();
}
