//! One network with two vNICs here and a machine behind either of two other hosts, as a bridge with a vxlan device joins them.
//!
//! ```text
//!  h1 (10.0.0.1) ─┐                          ╔═ vtep2 ── r1 (10.0.0.3)
//!  h2 (10.0.0.2) ─┤ switch ── up0 ══ bridge ═╝
//!                 │                          ╚═ vtep3 ── r2 (10.0.0.4)
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::counters::Moved;
use tests::lab::{self, Lab};
use tests::{Agent, Daemon, Family, Netns, traffic, vteps};

const VNI: u32 = 1000;
const NAMES: [&str; 4] = ["h1", "h2", "r1", "r2"];

fn mac(n: usize) -> String {
    format!("02:00:00:00:0c:0{}", n + 1)
}

fn addresses(n: usize) -> [String; 2] {
    [format!("10.0.0.{}/24", n + 1), format!("fd00:1::{}/64", n + 1)]
}

/// Gives a machine its addresses, on the interface that has been silent so far.
fn speak(netns: &Netns, n: usize) {
    netns.sysctl(&["net.ipv6.conf.all.disable_ipv6=0", "net.ipv6.conf.eth0.disable_ipv6=0"]);
    netns.ip(&format!("link set eth0 address {}", mac(n)));
    let [four, six] = addresses(n);
    netns.ip(&format!("addr add {four} dev eth0"));
    netns.ip(&format!("addr add {six} dev eth0 nodad"));
}

fn bridge(underlay: Family) {
    let lab = Lab::new(underlay);
    vteps::bridge(&lab);
    let remotes = [vteps::machine(&lab, "vtep2", 2, VNI), vteps::machine(&lab, "vtep3", 3, VNI)];
    let tenants = [0, 1].map(|n| {
        let [four, six] = addresses(n);
        lab.tenant(NAMES[n], "one", &mac(n), &[&four, &six])
    });
    let locations: String = [2, 3]
        .iter()
        .map(|&n| {
            let [four, six] = addresses(n);
            lab::location(&vteps::address(underlay, n), VNI, &mac(n), &[&four, &six])
        })
        .collect();
    let rest = [
        lab.uplink(&vteps::neighbours(&lab, &[(&remotes[0], 2), (&remotes[1], 3)])),
        lab::vpc("one", VNI, &["10.0.0.0/24", "fd00:1::/64"], ""),
        tenants[0].vnic(),
        tenants[1].vnic(),
    ]
    .concat();
    let whole = [rest.clone(), locations].concat();
    let mut daemon = Daemon::start(&lab.host, &whole);
    tenants.iter().for_each(|tenant| tenant.plug_mute(&lab.host));
    daemon.settled();

    // Nobody answers yet. Ten packets to one machine reach it, and no other.
    let machines = [&tenants[0].netns, &tenants[1].netns, &remotes[0], &remotes[1]];
    let wires: Vec<(&str, &Netns)> = NAMES.into_iter().zip(machines).collect();
    let mut agent = Agent::start(&lab, &wires, &[]);
    for to in 1..4 {
        let frame = format!(
            "[Ether(src='{}', dst='{}')/IP(src='10.0.0.1', dst='10.0.0.{}')/datagram() for _ in range(10)]",
            mac(0),
            mac(to),
            to + 1
        );
        let before = daemon.counters();
        let seen = agent.exchange("h1", &[frame], &["h2", "r1", "r2"]);
        let counted = ["h2", "r1", "r2"].map(|wire| seen.on(wire).len());
        let mut wanted = [0; 3];
        wanted[to - 1] = 10;
        assert_eq!(counted, wanted, "to {}", NAMES[to]);
        let (path, port) = if to == 1 { ("fwd.local", "h2") } else { ("fwd.encapsulated", "up") };
        let after = daemon.counters();
        // Kernels report their multicast groups to the whole underlay, now and then.
        let other = "fwd.drops.underlay-other";
        let reports = after.get(other) - before.get(other);
        after.assert_moved(
            &before,
            &[
                (other, Moved::By(reports)),
                ("fwd.dropped", Moved::By(reports)),
                ("port.up.rx-packets", Moved::By(reports)),
                ("fwd.received", Moved::By(10 + reports)),
                ("fwd.sent", Moved::By(10)),
                (path, Moved::By(10)),
                ("fwd.nft-*", Moved::By(10)),
                ("port.h1.rx-packets", Moved::By(10)),
                (&format!("port.{port}.tx-packets"), Moved::By(10)),
                ("port.h1.rx-bytes", Moved::Anyhow),
                ("port.up.rx-bytes", Moved::Anyhow),
                (&format!("port.{port}.tx-bytes"), Moved::Anyhow),
            ],
        );
    }
    drop(agent);

    // Everybody with everybody, both families; and again after the locations have gone and come back.
    machines.into_iter().enumerate().for_each(|(n, machine)| speak(machine, n));
    let talk = || {
        for n in 1..4 {
            for address in addresses(n) {
                traffic::ping(machines[0], address.split('/').next().unwrap(), 56, 3);
            }
        }
        traffic::ping(machines[2], "10.0.0.2", 1400, 3);
        traffic::ping(machines[3], "fd00:1::1", 1400, 3);
    };
    talk();
    daemon.rewrite_config(&rest);
    daemon.ctl("config reload");
    let before = daemon.drops("no-location");
    traffic::no_ping(machines[0], "10.0.0.3");
    assert!(daemon.drops("no-location") > before);
    traffic::ping(machines[0], "10.0.0.2", 56, 3);
    daemon.rewrite_config(&whole);
    daemon.ctl("config reload");
    talk();
    daemon.stop();
}

#[test]
fn conformance_bridge_over_ipv4() {
    bridge(Family::V4);
}

#[test]
fn conformance_bridge_over_ipv6() {
    bridge(Family::V6);
}
