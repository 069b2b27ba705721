//! An uplink that the host itself shares (`host = "punt"`): what is not the tunnel's goes to a tap and comes from it. The host's
//! own TCP works beside the tunnel, over either family; ARP and ping of the VTEP are still answered by the switch. What the host has made
//! of the tap outlives the process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::outage::{Echo, Probe};
use tests::steady::{Flows, Stream};
use tests::{Agent, Daemon, Family, Lab, Netns, lab, pair, runtime, traffic};

/// The switch with one tenant, a partner behind the kernel's vxlan, and the host's stack on the punt tap.
fn start(family: Family, workers: &str) -> (Lab, Daemon, tests::Tenant, tests::Remote) {
    let lab = Lab::new(family);
    let far = lab.remote("redfar", pair::VNIS[0], pair::MACS[2], &["10.0.0.2/24"], "");
    let red = lab.tenant("red", "red", pair::MACS[0], &["10.0.0.1/24"]);
    let config = [
        lab.uplink("host = \"punt\"\nhost-tap = \"host0\""),
        lab::vpc("red", pair::VNIS[0], &["10.0.0.0/24"], ""),
        red.vnic(),
        far.location(),
        workers.to_owned(),
    ]
    .concat();
    deafen_cable(&lab);
    let mut daemon = Daemon::start(&lab.host, &config);
    daemon.leaves("host0");
    red.plug(&lab.host);
    if family == Family::V6 {
        lab.host.sysctl(&["net.ipv6.conf.host0.disable_ipv6=0"]);
    }
    lab.host.ip("link set host0 up");
    lab.host.ip(&format!("addr add {}/{} dev host0", family.local_vtep(), family.prefix_len()));
    traffic::ping(&red.netns, "10.0.0.2", 56, 3);
    daemon.settled();
    (lab, daemon, red, far)
}

/// A packet socket takes a copy: the host's stack hears the veth end, too, and must not answer what it hears there. Its way back to the peer
/// is the tap, which is what a strict filter of sources goes by.
fn deafen_cable(lab: &Lab) {
    lab.host.sysctl(&[
        "net.ipv6.conf.up0.disable_ipv6=1",
        "net.ipv4.conf.up0.arp_ignore=8",
        "net.ipv4.conf.up0.rp_filter=1",
    ]);
}

/// TCP to the host and from it, at the same time as the tunnel's.
fn beside_the_tunnel(family: Family, workers: &str) {
    let (lab, daemon, red, far) = start(family, workers);
    let (host, peer): (&Netns, &Netns) = (&lab.host, &lab.peer);
    let tunnel = Stream::start(&red.netns, &far.netns, "10.0.0.2");
    // TCP finds the tap's smaller packets by itself.
    for (client, server, address) in [(peer, host, family.local_vtep()), (host, peer, family.remote_vtep())] {
        let stream = Stream::start(client, server, address);
        traffic::ping(&red.netns, "10.0.0.2", 1400, 5);
        traffic::ping(&far.netns, "10.0.0.1", 56, 5);
        assert!(stream.stop() > 100_000, "bytes of the host's own");
    }
    assert!(tunnel.stop() > 0);
    traffic::ping(peer, family.local_vtep(), 56, 3);
    traffic::ping(host, family.remote_vtep(), 56, 3);
    let drops = daemon.json("show drops");
    assert_eq!(drops.get("underlay-other"), None, "nothing of the host's is dropped: {drops}");
    let error = daemon.try_ctl("port detach up:punt").unwrap_err();
    assert!(error.contains("up:punt") && error.contains("uplink up"), "{error}");
    assert!(runtime::port_count(&daemon, "up:punt", "rx-packets") > 20);
    assert!(runtime::port_count(&daemon, "up:punt", "tx-packets") > 20);
    daemon.stop();
}

#[test]
fn runtime_punt_shares_the_uplink_over_ipv4() {
    beside_the_tunnel(Family::V4, "");
}

#[test]
fn runtime_punt_shares_the_uplink_over_ipv6() {
    beside_the_tunnel(Family::V6, "");
}

#[test]
fn runtime_punt_shares_the_uplink_of_two_workers() {
    beside_the_tunnel(Family::V4, runtime::TWO_WORKERS);
}

#[test]
fn runtime_punt_keeps_what_the_vtep_owes() {
    let (lab, daemon, red, far) = start(Family::V4, "");
    // The host falls silent: its tap is there and up, nobody listens. ARP and echo of the VTEP are the switch's own.
    lab.host.ip("addr flush dev host0");
    let before = daemon.counters();
    let punted = runtime::port_count(&daemon, "up:punt", "tx-packets");
    let mut agent = Agent::start(&lab, &[], &[]);
    let asked = agent.exchange_with_discovery(
        "peer",
        &["Ether(src=peer_mac, dst='ff:ff:ff:ff:ff:ff')/ARP(hwsrc=peer_mac, psrc='172.16.0.2', pdst='172.16.0.1')"],
        &["peer"],
    );
    let answers: Vec<_> = asked.on("peer").iter().filter(|fact| fact["type"] == 0x0806).collect();
    assert_eq!(answers.len(), 1, "{asked:?}");
    assert_eq!(answers[0]["src"], lab.uplink_mac(), "{asked:?}");
    let echo = "Ether(src=peer_mac, dst=up_mac)/IP(src='172.16.0.2', dst='172.16.0.1')/ICMP(id=5, seq=6)/Raw(b'echo')";
    let echoed = agent.exchange("peer", &[echo], &["peer"]);
    assert_eq!(echoed.on("peer").len(), 1, "{echoed:?}");
    // What is neither the tunnel's nor the VTEP's goes to the tap, all of it, and is nobody's loss.
    let others = [
        "Ether(src=peer_mac, dst=up_mac)/IP(src='172.16.0.2', dst='172.16.0.1')/UDP(sport=9, dport=4790)",
        "Ether(src=peer_mac, dst=up_mac)/IP(src='172.16.0.2', dst='172.16.0.77')/UDP(sport=9, dport=9)",
        "Ether(src=peer_mac, dst='ff:ff:ff:ff:ff:ff')/ARP(hwsrc=peer_mac, psrc='172.16.0.2', pdst='172.16.0.77')",
        "Ether(src=peer_mac, dst='01:80:c2:00:00:0e', type=0x88cc)/Raw(b'x' * 50)",
    ];
    agent.exchange("peer", &others, &["peer"]);
    let after = daemon.counters();
    assert_eq!(after.get("fwd.dropped"), before.get("fwd.dropped"), "{:?}", after.since(&before));
    assert_eq!(runtime::port_count(&daemon, "up:punt", "tx-packets") - punted, others.len() as i64);
    // The tap has the uplink's MTU. What is longer has a name, and does not hold up the rest.
    for netns in [&lab.host, &lab.peer] {
        netns.ip("link set up0 mtu 1800");
    }
    let of_length = |length: usize| {
        let before =
            "Ether(src=peer_mac, dst=up_mac)/IP(src='172.16.0.2', dst='172.16.0.1')/UDP(sport=9, dport=9)";
        format!("{before}/Raw(b'x' * {})", length - 28)
    };
    let (long, longer) = (of_length(1600), of_length(1601));
    agent.exchange("peer", &[&longer, &long], &["peer"]);
    assert_eq!(daemon.drops("mtu-exceeded"), 1);
    assert_eq!(runtime::port_count(&daemon, "up:punt", "tx-packets") - punted, others.len() as i64 + 1);
    // The tunnel's own mistakes are still the tunnel's, and not handed to the host.
    agent.exchange("peer", &["outer(vxlan(999, b'x' * 60))"], &["peer"]);
    assert_eq!(daemon.drops("unknown-vni"), 1);
    assert_eq!(runtime::port_count(&daemon, "up:punt", "tx-packets") - punted, others.len() as i64 + 1);
    Flows::exchange(&red.netns, &far.netns, "10.0.0.2", 4, 50);
    daemon.stop();
}

/// The host's own address, which the switch knows nothing of.
const OWN: &str = "172.16.0.77";
/// What is aimed at is a tenth of a second for an upgrade and a second for a restart; this bounds what a machine with other work to do may make
/// of it.
const MOST: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(20);

/// The tap's addresses, routes, MAC address, and number: all but whether there is a carrier.
#[track_caller]
fn facts(host: &Netns) -> String {
    let asked = ["-4 -o addr show dev host0", "route show dev host0"].map(|line| host.ip(line));
    let words = asked.iter().flat_map(|text| text.split_whitespace()).filter(|word| *word != "linkdown");
    let mac = lab::interface_mac(host, "host0");
    words.chain([mac.as_str()]).collect::<Vec<_>>().join(" ")
}

#[test]
fn runtime_punt_the_hosts_tap_outlives_the_switch() {
    let lab = Lab::new(Family::V4);
    let (host, peer) = (&lab.host, &lab.peer);
    deafen_cable(&lab);
    let mut daemon = Daemon::start(host, &lab.uplink("host = \"punt\"\nhost-tap = \"host0\""));
    host.ip(&format!("addr add {OWN}/24 dev host0"));
    host.ip("route add 198.51.100.0/24 via 172.16.0.2 dev host0");
    let before = facts(host);
    assert!(before.ends_with(&lab.uplink_mac()), "{before}");
    let _echo = Echo::start(host, OWN);
    let stream = Stream::start(peer, host, OWN);
    for change in ["upgrade", "upgrade", "TERM", "KILL"] {
        let probe = Probe::start(peer, Duration::from_millis(5), &[OWN]);
        if change == "upgrade" {
            daemon.upgrade(host);
        } else {
            let process = daemon.process();
            process.signal(change);
            process.wait(PATIENCE);
            assert_eq!(facts(host), before, "while there is no switch, after {change}");
            daemon.restart(host);
        }
        std::thread::sleep(MOST);
        let seen = probe.stop()[OWN];
        eprintln!("{change}: {seen:?}");
        assert!(seen.longest < MOST, "{change}: {seen:?}");
        assert_eq!(facts(host), before, "after {change}");
    }
    assert!(stream.stop() > 0, "the connection of before goes on");
    // It goes with the punt, and not before.
    daemon.rewrite_config(&lab.uplink(""));
    daemon.ctl("config reload");
    assert!(!host.interfaces().contains(&"host0".to_owned()), "{:?}", host.interfaces());
    daemon.stop();
}
