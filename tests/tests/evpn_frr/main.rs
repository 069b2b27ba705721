//! EVPN with FRR at the other end, unmodified, and the kernel's own vxlan device: stations are known on both sides by BGP alone, move,
//! go, and come back.
//!
//! ```text
//!  near ── host (vswitch, gobgpd) ══ underlay ══ peer (zebra, bgpd, vx100, br100) ── far
//!                     └────────── BGP ──────────────┘
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

mod site;

use std::time::Instant;

use serde_json::Value;
use site::*;
use tests::bgp::{ASN, fdb};
use tests::lab::{Lab, vpc};
use tests::{Family, pair, traffic, wait_for};
use vswitch_api::v1::Owner;

/// Nothing is flooded: the bridge answers ARP from what FRR told it, the switch from what gobgpd did.
#[test]
fn evpn_frr_and_the_switch_reach_each_other_and_forget_what_is_withdrawn() {
    let site = Site::start();
    site.await_fdb(pair::MACS[0], true);
    site.speak();
    site.await_place(STATION, "vtep 172.16.0.2");
    assert_eq!(site.owner(STATION), Owner::Evpn);
    traffic::ping(&site.near.netns, STATION, 1000, 20);
    traffic::ping(&site.station, NEAR, 1000, 20);
    assert_eq!(site.daemon.counters().get("fwd.copies"), 0, "nothing was flooded");
    let shown = site.evpn();
    assert_eq!(
        shown["announced"],
        serde_json::json!({ "stations": 1, "floods": 1, "prefixes": 0 }),
        "{shown}"
    );
    assert_eq!((&shown["asn"], &shown["vtep"]), (&Value::from(ASN), &"172.16.0.1".into()), "{shown}");
    assert_eq!(shown["heard"]["floods"], 1, "{shown}");
    assert!(shown["heard"]["stations"].as_u64() >= Some(2), "with and without an IP address: {shown}");
    assert_eq!((&shown["refused"], &shown["unusable"]), (&0.into(), &0.into()), "{shown}");
    assert!(site.daemon.ctl("show evpn").contains("gobgpd 127.0.0.1:50051 answers"));
    // A route target as FRR makes its own.
    let routes = site.frr.routes().to_string();
    assert!(routes.contains("RT:65000:100"), "{routes}");
    // The station goes; what is sent to it is dropped by name.
    site.lab.peer.ip("link del far");
    site.await_place(STATION, "");
    let before = site.daemon.drops("no-location");
    traffic::no_ping(&site.near.netns, STATION);
    assert!(site.daemon.drops("no-location") >= before);
    // The vNIC goes.
    site.daemon.ctl("vnic del near");
    site.await_fdb(pair::MACS[0], false);
    wait_for("the network to be announced no more", PATIENCE, || {
        let routes = site.gobgpd.routes();
        (!routes.contains("rd:172.16.0.1:100")).then_some(())
    });
    site.stop();
}

/// A MAC address comes here, goes back, and comes again: each time with the next sequence number.
#[test]
fn evpn_frr_a_station_moves_here_and_back() {
    let site = Site::start();
    site.speak();
    site.await_place(STATION, "vtep 172.16.0.2");
    assert_eq!(site.sequence(pair::MACS[2], VTEPS[1]), Some(0));
    let twin = site.lab.cabled_tenant("twin", "red", pair::MACS[2], &["10.0.0.2/24"]);
    let add = format!("vnic add twin vpc red mac {} vips {STATION} port veth iface=twin", pair::MACS[2]);
    let mut expected = 0;
    for round in 1..=2 {
        // Here.
        site.daemon.ctl(&add);
        expected += 1;
        wait_for("the next number of ours", PATIENCE, || {
            (site.sequence(pair::MACS[2], VTEPS[0]) == Some(expected)).then_some(())
        });
        site.await_fdb(pair::MACS[2], true);
        wait_for("FRR to have withdrawn its own", PATIENCE, || {
            site.sequence(pair::MACS[2], VTEPS[1]).is_none().then_some(())
        });
        assert_eq!(site.place(STATION), "vnic twin");
        traffic::ping(&site.near.netns, STATION, 100, 3);
        assert_eq!(site.evpn()["came"], round, "round {round}");
        // The machine at the other host speaks again: it has gone back, and the vNIC is still here.
        site.speak();
        expected += 1;
        wait_for("the next number of theirs", PATIENCE, || {
            (site.sequence(pair::MACS[2], VTEPS[1]) == Some(expected)).then_some(())
        });
        wait_for("ours to be withdrawn", PATIENCE, || {
            site.sequence(pair::MACS[2], VTEPS[0]).is_none().then_some(())
        });
        assert_eq!(site.place(STATION), "vnic twin", "what is configured here stays here");
        assert_eq!(site.evpn()["left"], round);
        site.daemon.ctl("vnic del twin");
        // FRR has announced the MAC address alone so far.
        site.speak();
        site.await_place(STATION, "vtep 172.16.0.2");
        traffic::ping(&site.near.netns, STATION, 100, 3);
    }
    let events = site.daemon.json("show events").to_string();
    assert_eq!(events.matches("\"evpn-came\"").count(), 2, "{events}");
    assert_eq!(events.matches("\"evpn-left\"").count(), 2, "{events}");
    drop(twin);
    site.stop();
}

/// bgpd dies and comes back: its stations go and come, and nobody else's are touched. gobgpd dies: everything stays.
#[test]
fn evpn_frr_a_flapping_peer_takes_away_its_own_only() {
    let mut site = Site::start();
    site.speak();
    site.await_place(STATION, "vtep 172.16.0.2");
    // A third host, known by gobgpd without a peer, and one that the operator entered.
    let third = "02:00:00:00:0c:03";
    let words = format!(
        "global rib add -a evpn macadv {third} 10.0.0.3 etag 0 label {VNI} rd 172.16.0.3:1 rt {ASN}:{VNI} encap vxlan nexthop 172.16.0.3"
    );
    site.gobgpd.gobgp(&words.split(' ').collect::<Vec<_>>());
    site.daemon.ctl(&format!("vlt set {VNI} 10.0.0.4 mac 02:00:00:00:0c:04 vtep 172.16.0.4"));
    site.await_place("10.0.0.3", "vtep 172.16.0.3");
    let others_stay = |site: &Site| {
        assert_eq!(site.place("10.0.0.3"), "vtep 172.16.0.3");
        assert_eq!(site.place("10.0.0.4"), "vtep 172.16.0.4");
        assert_eq!(site.owner("10.0.0.4"), Owner::Api);
    };
    for _ in 0..3 {
        site.frr.kill_bgpd();
        site.await_place(STATION, "");
        others_stay(&site);
        site.frr.again(&site.lab.peer);
        site.await_peer();
        site.speak();
        site.await_place(STATION, "vtep 172.16.0.2");
        site.await_fdb(pair::MACS[0], true);
        others_stay(&site);
        traffic::ping(&site.near.netns, STATION, 100, 3);
    }
    // Away is not gone.
    site.gobgpd.kill();
    wait_for("the switch to notice", PATIENCE, || (site.evpn()["connected"] == false).then_some(()));
    assert_eq!(site.place(STATION), "vtep 172.16.0.2");
    others_stay(&site);
    // What was given to it by hand is gone with it; what its peer says is there again.
    site.gobgpd.again(&site.lab.host);
    site.await_peer();
    site.await_fdb(pair::MACS[0], true);
    traffic::ping(&site.near.netns, STATION, 100, 3);
    site.await_place("10.0.0.3", "");
    assert_eq!(site.place("10.0.0.4"), "vtep 172.16.0.4");
    assert_eq!(site.place(STATION), "vtep 172.16.0.2");
    assert_eq!(site.evpn()["stale"], 0);
    site.stop();
}

/// A switch that is started anew goes on with what it announced, and with what it heard.
#[test]
fn evpn_frr_a_restart_of_the_switch_takes_nothing_away() {
    let mut site = Site::start();
    site.speak();
    site.await_place(STATION, "vtep 172.16.0.2");
    site.await_fdb(pair::MACS[0], true);
    site.daemon.process().signal("TERM");
    site.daemon.assert_clean_end();
    let known = fdb(&site.lab.peer, "vx100");
    assert!(known.contains(pair::MACS[0]), "the other end keeps it meanwhile: {known}");
    site.daemon.restart(&site.lab.host);
    site.await_place(STATION, "vtep 172.16.0.2");
    assert_eq!(site.owner(STATION), Owner::Evpn);
    traffic::ping(&site.near.netns, STATION, 100, 3);
    assert_eq!(site.sequence(pair::MACS[0], VTEPS[0]), Some(0), "it has not moved");
    site.stop();
}

/// Prefixes both ways (type 5), by FRR's layer 3 VNI: those behind a router of the kernel, and those that a VPC routes to a vNIC.
#[test]
fn evpn_frr_prefixes_are_routed_both_ways() {
    const L3: u32 = 4000;
    let lab = Lab::new(Family::V4);
    lay_network(&lab, L3);
    lab.peer.ip("addr add 10.8.0.1/24 dev lo");
    let router = lab.cabled_tenant("router", "outer", pair::MACS[1], &["10.20.0.1/24"]);
    let other = lab.cabled_tenant("other", "outer", pair::MACS[3], &["10.20.0.2/24"]);
    other.netns.ip("route add default via 10.20.0.254");
    router.netns.ip("addr add 10.9.0.1/24 dev lo");
    router.netns.ip("route add default via 10.20.0.254 src 10.9.0.1");
    let routes =
        "routes = [{ to = \"10.7.0.0/24\", blackhole = true }, { to = \"10.9.0.0/24\", vnic = \"router\" }]";
    let outer = vpc("outer", L3, &[], routes);
    let subnet = "[[subnet]]\nvpc = \"outer\"\nprefix = \"10.20.0.0/24\"\ngateway = \"10.20.0.254\"\n";
    let vnics = [
        &(router.vnic_on("{ kind = \"veth\", iface = \"router\" }") + "guard = \"off\"\n"),
        &other.vnic_on("{ kind = \"veth\", iface = \"other\" }"),
    ]
    .map(String::as_str)
    .concat();
    let site = Site::start_in(
        lab,
        &Besides {
            evpn: ", prefixes = true",
            sections: &[&outer, subnet, &vnics].concat(),
            zebra: &format!("vni {L3}\n"),
            family: "  advertise ipv4 unicast\n",
            bgp: " address-family ipv4 unicast\n  network 10.8.0.0/24\n exit-address-family\n",
            ..Besides::default()
        },
    );
    let leads = |to: &str| -> Value {
        let shown = site.daemon.json("show route outer");
        let mut rows = shown.as_array().into_iter().flatten();
        rows.find(|row| row["to"] == to).cloned().unwrap_or_default()
    };
    wait_for("the prefix of the other host", PATIENCE, || {
        (leads("10.8.0.0/24")["next-hops"][0]["vtep"] == VTEPS[1]).then_some(())
    });
    // The prefix, and the addresses of stations as routes of their own.
    for to in ["10.9.0.0/24", "10.20.0.1", "10.20.0.2"] {
        wait_for("the other host to have ours", PATIENCE, || {
            let routes = site.lab.peer.ip(&format!("route show {to}"));
            routes.contains("via 172.16.0.1 dev br4000 proto bgp").then_some(())
        });
    }
    let until = Instant::now() + PATIENCE;
    while !router.netns.try_run(&["ping", "-n", "-c", "1", "-W", "1", "10.8.0.1"]).status.success() {
        let peer = &site.lab.peer;
        assert!(
            Instant::now() < until,
            "nothing comes back; the other host has\n{}\n{}\n{}\nand here\n{}",
            peer.ip("neigh show"),
            peer.run(&["bridge", "fdb", "show"]),
            peer.ip("-s link show"),
            site.daemon.ctl("show route outer")
        );
    }
    traffic::ping(&router.netns, "10.8.0.1", 1000, 5);
    traffic::ping(&other.netns, "10.8.0.1", 1000, 5);
    for to in ["10.9.0.1", "10.20.0.1", "10.20.0.2"] {
        site.lab.peer.run(&["ping", "-n", "-c", "3", "-W", "3", "-I", "10.8.0.1", to]);
    }
    let shown = site.evpn();
    assert_eq!(
        (&shown["announced"]["prefixes"], &shown["heard"]["prefixes"]),
        (&1.into(), &1.into()),
        "{shown}"
    );
    // A route that somebody has made here stays as it is, whatever others say.
    let announce = |network: &str, no: &str| {
        site.frr.vtysh(
            "bgpd",
            &[
                "configure terminal",
                "router bgp 65000",
                "address-family ipv4 unicast",
                &format!("{no}network {network}"),
            ],
        );
    };
    site.lab.peer.ip("addr add 10.7.0.1/24 dev lo");
    announce("10.7.0.0/24", "");
    wait_for("the other prefix to be heard", PATIENCE, || {
        (site.evpn()["heard"]["prefixes"] == 2 && site.evpn()["others"] == 1).then_some(())
    });
    assert_eq!(leads("10.7.0.0/24")["kind"], "blackhole");
    // Both are withdrawn.
    announce("10.8.0.0/24", "no ");
    wait_for("the prefix to go", PATIENCE, || leads("10.8.0.0/24").is_null().then_some(()));
    site.daemon.ctl("route del outer 10.9.0.0/24");
    wait_for("ours to go", PATIENCE, || site.lab.peer.ip("route show 10.9.0.0/24").is_empty().then_some(()));
    assert_eq!(leads("10.7.0.0/24")["kind"], "blackhole");
    site.stop();
}
