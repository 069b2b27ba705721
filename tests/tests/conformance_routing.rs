//! Asymmetric routing: either host routes between the networks by itself and sends under the VNI of where the packet goes, so an
//! answer comes back under another VNI than the question went.
//!
//! ```text
//!  h1 10.1.1.101 (VNI 1000) ─┐                      ┌─ h3 10.1.1.102 (VNI 1000)
//!                     switch ├─ up0 ══ underlay ════┤ switch
//!  h2 10.1.2.101 (VNI 2000) ─┘                      └─ h4 10.1.2.102 (VNI 2000)
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use tests::lab::{self, Lab, Tenant};
use tests::{Agent, Daemon, Family, traffic};

const ROUTER: &str = "00:00:5e:00:01:01";
/// Name, network, address; the first two are here and the others there.
const MACHINES: [(&str, &str, [&str; 2]); 4] = [
    ("h1", "ten", ["10.1.1.101/24", "fd01:1::101/64"]),
    ("h2", "twenty", ["10.1.2.101/24", "fd01:2::101/64"]),
    ("h3", "ten", ["10.1.1.102/24", "fd01:1::102/64"]),
    ("h4", "twenty", ["10.1.2.102/24", "fd01:2::102/64"]),
];

fn mac(n: usize) -> String {
    format!("02:00:00:00:0e:0{}", n + 1)
}

fn vni(vpc: &str) -> u32 {
    if vpc == "ten" { 1000 } else { 2000 }
}

fn networks() -> String {
    let network = |name: &str, number: u32, other: &str, there: u32| {
        let routes = format!(
            "routes = [{{ to = \"10.1.{there}.0/24\", vpc = \"{other}\" }}, {{ to = \"fd01:{there}::/64\", vpc = \"{other}\" }}]"
        );
        let subnets = format!(
            "[[subnet]]\nvpc = \"{name}\"\nprefix = \"10.1.{number}.0/24\"\ngateway = \"10.1.{number}.1\"\n\
             [[subnet]]\nvpc = \"{name}\"\nprefix = \"fd01:{number}::/64\"\ngateway = \"fd01:{number}::1\"\n"
        );
        lab::vpc(name, vni(name), &[], &format!("router-mac = \"{ROUTER}\"\n{routes}")) + &subnets
    };
    network("ten", 1, "twenty", 2) + &network("twenty", 2, "ten", 1)
}

fn routed(underlay: Family) {
    let here = Lab::new(underlay);
    here.peer.ip("addr flush dev up0");
    let there = here.reversed();
    let tenants: Vec<Tenant> = MACHINES
        .iter()
        .enumerate()
        .map(|(n, (name, vpc, addresses))| {
            let lab = if n < 2 { &here } else { &there };
            lab.tenant(name, vpc, &mac(n), addresses)
        })
        .collect();
    let config = |lab: &Lab, own: std::ops::Range<usize>| {
        let mut text = lab.uplink("") + &networks();
        for (n, (_, vpc, addresses)) in MACHINES.iter().enumerate() {
            text += &if own.contains(&n) {
                tenants[n].vnic()
            } else {
                lab::location(lab.remote_vtep(), vni(vpc), &mac(n), addresses)
            };
        }
        text
    };
    let mut near = Daemon::start_alone(&here.host, &config(&here, 0..2));
    let far = Daemon::start(&there.host, &config(&there, 2..4));
    near.wait_until_resolved();
    for (n, tenant) in tenants.iter().enumerate() {
        tenant.plug(if n < 2 { &here.host } else { &there.host });
        let net = if MACHINES[n].1 == "ten" { 1 } else { 2 };
        tenant.netns.ip(&format!("route add default via 10.1.{net}.1"));
        tenant.netns.ip(&format!("-6 route add default via fd01:{net}::1"));
    }
    for (from, to) in [(0, 1), (0, 2), (1, 3), (0, 3), (1, 2), (3, 0), (2, 1)] {
        for address in MACHINES[to].2 {
            let address = address.split('/').next().unwrap();
            traffic::ping(&tenants[from].netns, address, 56, 3);
            traffic::ping(&tenants[from].netns, address, 1400, 3);
        }
    }
    // On the wire, either way: routed once, and under the VNI of where the packet goes.
    for (lab, from, to, there) in [(&here, 0, 3, 2000), (&there, 3, 0, 1000)] {
        let (name, _, [source, _]) = MACHINES[from];
        let [source, target] = [source, MACHINES[to].2[0]].map(|address| address.split('/').next().unwrap());
        let mut agent = Agent::start(lab, &[(name, &tenants[from].netns)], &[]);
        let echo = format!(
            "Ether(src='{}', dst='{ROUTER}')/IP(src='{source}', dst='{target}')/ICMP(id=4321)/Raw(b'asymmetric')",
            mac(from)
        );
        let seen = agent.exchange(name, &[echo], &["peer", name]);
        let ours =
            |fact: &&Value| fact["payload"].as_str().is_some_and(|bytes| bytes.ends_with("6d6d6574726963"));
        let wire: Vec<_> = seen
            .on("peer")
            .iter()
            .filter(|fact| ours(&&fact["inner"]))
            .map(|fact| (fact["vni"].as_i64().unwrap(), fact["inner"]["ttl"].as_i64().unwrap()))
            .collect();
        assert_eq!(wire, [(there, 63)], "{seen:?}");
        // The answer, from the router's address.
        let answers: Vec<_> = seen.on(name).iter().filter(ours).collect();
        assert_eq!(answers.len(), 1, "{seen:?}");
        assert_eq!((&answers[0]["src"], &answers[0]["ttl"]), (&ROUTER.into(), &63.into()));
    }
    for daemon in [&near, &far] {
        for reason in
            ["unknown-vni", "unknown-vtep", "inner-source", "no-route", "no-location", "ttl-expired"]
        {
            assert_eq!(daemon.drops(reason), 0, "{reason}");
        }
    }
    far.stop();
    near.stop();
}

#[test]
fn conformance_routing_is_asymmetric() {
    routed(Family::V4);
}

#[test]
fn conformance_routing_is_asymmetric_over_ipv6() {
    routed(Family::V6);
}
