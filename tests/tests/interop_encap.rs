//! What the switch puts on the wire: every field of the outer header, the source port as a function of the inner flow,
//! tenants that claim what is not theirs, neighbours asked and answered on both sides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::collections::HashSet;
use tests::{Family, Scene};

#[test]
fn interop_outer_header_is_as_promised() {
    for underlay in [Family::V4, Family::V6] {
        let mut scene = Scene::start(underlay, "", "");
        let outcome = scene.outbound(&["from_red(datagram('hello'))"]);
        outcome.assert_passed();
        let fact = &outcome.seen[0];
        assert_eq!(fact["src"].as_str().unwrap(), scene.lab.uplink_mac(), "{fact}");
        assert_eq!(fact["dst"].as_str().unwrap(), scene.lab.peer_mac(), "{fact}");
        assert_eq!(fact["ip_src"], underlay.local_vtep(), "{fact}");
        assert_eq!(fact["ip_dst"], underlay.remote_vtep(), "{fact}");
        assert_eq!((&fact["ttl"], &fact["dport"]), (&64.into(), &4789.into()), "{fact}");
        assert_eq!((&fact["vxlan_flags"], &fact["vxlan_reserved"]), (&8.into(), &0.into()), "{fact}");
        assert_eq!(fact["vni"], 100, "{fact}");
        let port = fact["sport"].as_i64().unwrap();
        assert!((49152..=65535).contains(&port), "{fact}");
        match underlay {
            Family::V4 => {
                assert_eq!(
                    (&fact["id"], &fact["df"], &fact["l4_sum"]),
                    (&0.into(), &true.into(), &0.into()),
                    "{fact}"
                );
                assert_eq!(fact["ip_sum_ok"], true, "{fact}");
            }
            Family::V6 => assert_eq!(fact["l4_sum_ok"], true, "{fact}"),
        }
        let inner = &fact["inner"];
        assert_eq!(
            (&inner["src"], &inner["dst"]),
            (&"02:00:00:00:01:01".into(), &"02:00:00:00:01:02".into()),
            "{inner}"
        );
        assert_eq!((&inner["payload"], &inner["ttl"]), (&"68656c6c6f".into(), &64.into()), "{inner}");
        scene.stop();
    }
}

#[test]
fn interop_source_port_follows_the_inner_flow() {
    let mut scene = Scene::start(Family::V4, "", "");
    let ports = |frames: &[String], scene: &mut Scene| -> Vec<i64> {
        let outcome = scene.outbound(frames);
        outcome.assert_passed();
        outcome.seen.iter().map(|f| f["sport"].as_i64().unwrap()).collect()
    };
    let flows: Vec<String> = (0..64).map(|n| format!("from_red(datagram(sport={}))", 1000 + n)).collect();
    let first = ports(&flows, &mut scene);
    assert_eq!(first, ports(&flows, &mut scene), "a flow keeps its port");
    let distinct: HashSet<i64> = first.iter().copied().collect();
    assert!(distinct.len() > 48, "64 flows share {} source ports: {first:?}", distinct.len());
    assert!(distinct.iter().all(|port| (49152..=65535).contains(port)));
    // Queue pairs of RoCEv2 differ by their UDP source port alone, which is not part of the flow key.
    let pairs: Vec<String> = (0..64)
        .map(|n| {
            format!(
                "from_red(UDP(sport={}, dport=4791)/Raw(bytes.fromhex('0a00ffff00000012800000010badcafe')))",
                49152 + n
            )
        })
        .collect();
    let spread: HashSet<i64> = ports(&pairs, &mut scene).into_iter().collect();
    assert!(spread.len() > 48, "64 queue pairs share {} source ports", spread.len());
    scene.stop();
}

#[test]
fn interop_tenants_cannot_pose_as_others() {
    let mut scene = Scene::start(Family::V4, "", "");
    scene.outbound(&["from_red(datagram(), ether={'src': '02:00:00:00:01:99'})"]).assert_dropped("guard-mac");
    scene.outbound(&["from_red(datagram(), src='10.0.0.7')"]).assert_dropped("guard-vip");
    scene.outbound(&["from_red(datagram(), family=6, src='fd00:1::7')"]).assert_dropped("guard-vip");
    scene.outbound(&["from_red(datagram())", "from_red(datagram(), family=6)"]).assert_passed();
    scene.stop();
}

#[test]
fn interop_tenants_questions_for_neighbours_are_answered_by_the_switch() {
    let mut scene = Scene::start(Family::V4, "", "");
    let before = scene.daemon.counters();
    let question = "Ether(src=red_mac, dst='ff:ff:ff:ff:ff:ff')/ARP(op=1, hwsrc=red_mac, psrc=red_ip, hwdst='00:00:00:00:00:00', pdst=far_ip)";
    let exchange = scene.agent.exchange_with_discovery("red", &[question], &["red", "peer"]);
    let [reply] = exchange.on("red") else { panic!("{exchange:?}") };
    let payload = reply["payload"].as_str().unwrap();
    // Operation 2, sender MAC and address of the remote machine, target the tenant.
    assert!(payload.starts_with("00010800060400020200000001020a0000020200000001010a000001"), "{reply}");
    assert!(exchange.on("peer").is_empty(), "the question leaves the host neither plain nor in a tunnel");
    let question = "Ether(src=red_mac, dst='33:33:ff:00:00:02')/IPv6(src=red_ip6, dst='ff02::1:ff00:2')/ICMPv6ND_NS(tgt=far_ip6)/Raw(bytes([1, 1]) + bytes.fromhex(red_mac.replace(':', '')))";
    let exchange = scene.agent.exchange_with_discovery("red", &[question], &["red", "peer"]);
    let [reply] = exchange.on("red") else { panic!("{exchange:?}") };
    assert_eq!(
        (&reply["ip_src"], &reply["ip_dst"], &reply["ttl"]),
        (&"fd00:1::2".into(), &"fd00:1::1".into(), &255.into())
    );
    let payload = reply["payload"].as_str().unwrap();
    assert!(payload.starts_with("88") && payload.ends_with("0201020000000102"), "{reply}");
    assert!(exchange.on("peer").is_empty());
    let after = scene.daemon.counters();
    assert_eq!(after.get("fwd.neighbours-answered") - before.get("fwd.neighbours-answered"), 2);
    scene.stop();
}

#[test]
fn interop_underlay_questions_are_answered_for_the_vtep_alone() {
    let mut scene = Scene::start(Family::V4, "", "");
    let question = |target: &str| {
        format!(
            "Ether(src=peer_mac, dst='ff:ff:ff:ff:ff:ff')/ARP(op=1, hwsrc=peer_mac, psrc=remote_vtep, hwdst='00:00:00:00:00:00', pdst={target})"
        )
    };
    let asked = question("local_vtep");
    let exchange = scene.agent.exchange_with_discovery("peer", &[asked.as_str()], &["peer"]);
    let [reply] = exchange.on("peer") else { panic!("{exchange:?}") };
    assert_eq!(reply["src"].as_str().unwrap(), scene.lab.uplink_mac());
    let asked = question("'172.16.0.77'");
    let exchange = scene.agent.exchange_with_discovery("peer", &[asked.as_str()], &["peer"]);
    assert!(exchange.on("peer").is_empty(), "no answer for somebody else's address: {exchange:?}");
    let ping = "Ether(src=peer_mac, dst=up_mac)/IP(src=remote_vtep, dst=local_vtep)/ICMP(id=7)/Raw(b'abc')";
    let exchange = scene.agent.exchange("peer", &[ping], &["peer"]);
    let [reply] = exchange.on("peer") else { panic!("{exchange:?}") };
    assert!(reply["payload"].as_str().unwrap().starts_with("0000"), "an echo reply: {reply}");
    assert_eq!((&reply["ip_dst"], &reply["ip_sum_ok"]), (&"172.16.0.2".into(), &true.into()));
    scene.stop();
}
