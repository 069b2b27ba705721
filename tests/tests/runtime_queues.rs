//! One worker and two, one queue and two: flows are spread, packets cross to the worker that owns a queue, each flow stays
//! in order, and what comes out does not depend on how many workers there are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::collections::BTreeMap;
use tests::runtime::{self, ONE_WORKER, TWO_WORKERS};
use tests::steady::Flows;
use tests::{Daemon, Family, Lab, Scene, Tenant, lab, traffic};

const FLOWS: u32 = 40;
const EACH: u32 = 50;

/// Two tenants of one VPC on one switch, each on the given kind of port; `plug` says whether it is a tap.
fn neighbours(ports: [&str; 2], taps: bool) -> (Lab, Daemon, [Tenant; 2]) {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    let tenant = |name: &str, mac: &str, address: &str| {
        if taps {
            lab.tenant(name, "red", mac, &[address])
        } else {
            lab.cabled_tenant(name, "red", mac, &[address])
        }
    };
    let one = tenant("one", "02:00:00:00:0a:01", "10.0.0.1/24");
    let two = tenant("two", "02:00:00:00:0a:02", "10.0.0.2/24");
    let config = [
        lab.uplink(""),
        lab::vpc("red", 100, &["10.0.0.0/24"], ""),
        one.vnic_on(ports[0]),
        two.vnic_on(ports[1]),
        TWO_WORKERS.to_owned(),
    ]
    .concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    if taps {
        one.plug(&lab.host);
        two.plug(&lab.host);
    }
    traffic::ping(&one.netns, "10.0.0.2", 56, 3);
    daemon.settled();
    (lab, daemon, [one, two])
}

/// Many flows both ways; both workers get their share, and the ports count every datagram.
fn spread(ports: [&str; 2], taps: bool) {
    let (_lab, daemon, [one, two]) = neighbours(ports, taps);
    for name in ["one", "two"] {
        let row = runtime::port_row(&daemon, name);
        assert_eq!(row["rx-queues"], 2, "{row}");
        assert_eq!(row["tx-queues"], 2, "{row}");
        assert_eq!(row["rx-workers"], serde_json::json!([0, 1]), "{row}");
    }
    let (before, workers_before) = (daemon.counters(), runtime::received_by_workers(&daemon));
    Flows::exchange(&one.netns, &two.netns, "10.0.0.2", FLOWS, EACH);
    let (after, workers) = (daemon.counters(), runtime::received_by_workers(&daemon));
    let share: Vec<i64> = workers.iter().zip(&workers_before).map(|(now, then)| now - then).collect();
    let all = i64::from(FLOWS * EACH) * 2;
    // Of 40 flows, by a hash, one worker has fewer than 4 once in 10^8 runs.
    assert!(share.iter().all(|n| *n > all / 10), "both workers have their share: {share:?}");
    let moved = |path: &str| after.get(path) - before.get(path);
    assert_eq!(share.iter().sum::<i64>(), moved("fwd.received"), "the workers' packets are all packets");
    for port in ["one", "two"] {
        let (rx, tx) = (moved(&format!("port.{port}.rx-packets")), moved(&format!("port.{port}.tx-packets")));
        // Neighbour discovery of the tenants' kernels may add a few.
        assert!((all / 2..all / 2 + 20).contains(&rx), "{port} received {rx}");
        assert!((all / 2..all / 2 + 20).contains(&tx), "{port} sent {tx}");
    }
    assert_eq!(moved("fwd.dropped"), 0, "{:?}", after.since(&before));
    daemon.stop();
}

#[test]
fn runtime_queues_of_taps_spread_flows_over_workers() {
    let [one, two] = ["one", "two"].map(|n| format!("{{ kind = \"tap\", iface = \"{n}\", queues = 2 }}"));
    spread([&one, &two], true);
}

#[test]
fn runtime_queues_of_a_fanout_group_spread_flows_over_workers() {
    let [one, two] =
        ["one", "two"].map(|n| format!("{{ kind = \"af-packet\", iface = \"{n}\", queues = 2 }}"));
    spread([&one, &two], false);
}

#[test]
fn runtime_queues_fewer_than_workers_hand_packets_over_in_order() {
    let [one, two] = ["one", "two"].map(|n| format!("{{ kind = \"tap\", iface = \"{n}\" }}"));
    let (_lab, daemon, [one, two]) = neighbours([&one, &two], true);
    // Each port has one queue; they are polled by different workers and sent to by the same one: the way from the one
    // to the other crosses workers, the way back does not.
    let rows = ["one", "two"].map(|name| runtime::port_row(&daemon, name));
    assert_ne!(rows[0]["rx-workers"], rows[1]["rx-workers"], "{rows:?}");
    for row in &rows {
        assert_eq!(row["tx-queues"], 1, "{row}");
    }
    assert_eq!(rows[0]["tx-workers"], rows[1]["tx-workers"], "{rows:?}");
    let before = daemon.counters();
    Flows::exchange(&one.netns, &two.netns, "10.0.0.2", FLOWS, EACH);
    Flows::exchange(&two.netns, &one.netns, "10.0.0.1", 1, FLOWS * EACH);
    let after = daemon.counters();
    assert_eq!(after.get("fwd.dropped"), before.get("fwd.dropped"), "{:?}", after.since(&before));
    let workers = runtime::received_by_workers(&daemon);
    assert!(workers.iter().all(|n| *n >= i64::from(FLOWS * EACH) * 2), "{workers:?}");
    traffic::transfer(&one.netns, &two.netns, "10.0.0.2", 60_000);
    traffic::transfer(&two.netns, &one.netns, "10.0.0.1", 60_000);
    daemon.stop();
}

/// Good and bad frames of many flows, both ways.
const OUTBOUND: [&str; 7] = [
    "[from_red(datagram('a' * (n % 300), sport=1000 + n)) for n in range(200)]",
    "[from_red(datagram('b', sport=2000 + n), family=6) for n in range(50)]",
    "[from_red(TCP(sport=3000 + n, dport=80, flags='S')) for n in range(50)]",
    "[from_red(datagram(), ether={'src': '02:00:00:00:01:66'}) for n in range(7)]",
    "[from_red(datagram(), src='10.0.0.66') for n in range(6)]",
    "[from_red(datagram(), dst='10.0.0.77') for n in range(5)]",
    "cuts(from_red(datagram('0123456789')))",
];
const INBOUND: [&str; 6] = [
    "[to_red(datagram('c' * (n % 300), sport=1000 + n), sport=50000 + n) for n in range(200)]",
    "[to_red(datagram('d', sport=2000 + n), family=6, sport=51000 + n) for n in range(50)]",
    "[to_red(vni=101 + n) for n in range(9)]",
    "[to_red(src='172.16.0.9') for n in range(8)]",
    "[to_red(flags=0) for n in range(7)]",
    "header_cuts()",
];

/// What came out, each frame as text with how often it came, and how many were dropped for which reason.
type Results = (BTreeMap<String, usize>, Vec<(String, i64)>);

fn results(workers: &str, count: usize) -> [Results; 2] {
    let mut scene = Scene::start(Family::V4, "", workers);
    assert_eq!(runtime::received_by_workers(&scene.daemon).len(), count);
    // The uplink's MAC is another one in each network.
    let (up, peer) = (scene.lab.uplink_mac(), scene.lab.peer_mac());
    let mut of = |inbound: bool| {
        let outcome = if inbound { scene.inbound(&INBOUND) } else { scene.outbound(&OUTBOUND) };
        assert_eq!(
            outcome.seen.len() as i64 + outcome.all_drops().iter().map(|(_, n)| n).sum::<i64>(),
            outcome.sent,
            "every frame came out or has a name: {:?}",
            outcome.all_drops()
        );
        let mut frames = BTreeMap::new();
        for fact in &outcome.seen {
            *frames.entry(fact.to_string().replace(&up, "up").replace(&peer, "peer")).or_insert(0) += 1;
        }
        (frames, outcome.all_drops())
    };
    let both = [of(true), of(false)];
    scene.stop();
    both
}

#[test]
fn runtime_queues_and_workers_change_no_result() {
    let one = results(ONE_WORKER, 1);
    let two = results(TWO_WORKERS, 2);
    let [(inbound, drops), (outbound, more)] = &one;
    // Each frame of a list is a flow of its own or has a length of its own: enough to tell them apart.
    assert!(inbound.len() >= 250 && outbound.len() >= 300, "{} and {}", inbound.len(), outbound.len());
    assert!(drops.len() >= 4 && more.len() >= 3, "{drops:?} {more:?}");
    for (one, two) in one.iter().zip(&two) {
        assert_eq!(one.1, two.1, "the same drops by the same names");
        assert_eq!(one.0, two.0, "the same frames, as often");
    }
}
