//! Rules made by hand at the console: read as testpmd reads them, given to a port's driver, and its refusal told in words.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use tests::{Family, Scene};

const DROP: &str = "ingress pattern eth / ipv4 dst is 10.0.0.9 / end actions drop / end";

#[test]
fn offload_rules_by_hand_are_read_and_the_drivers_words_come_back() {
    let mut scene = Scene::start(Family::V4, "", "");
    let ports: Value = scene.daemon.json("port list");
    let ports = ports.as_array().unwrap();
    let refusals = ports.iter().map(|port| {
        let name = port["name"].as_str().unwrap();
        let driver = port["driver"].as_str().unwrap().to_owned();
        (driver, scene.daemon.try_ctl(&format!("flow create {name} {DROP}")).map(|_| ()))
    });
    for (driver, refusal) in refusals {
        let words = match driver.as_str() {
            // DPDK does not know it.
            "tap" => "No such device",
            _ => "Function not implemented",
        };
        let error = refusal.err().unwrap_or_else(|| words.to_owned());
        assert!(error.contains(words), "{driver}: {error}");
    }
    let name = ports[0]["name"].as_str().unwrap();
    let said = |command: String, words: &str| {
        let error = scene.daemon.try_ctl(&command).expect_err(&command);
        assert!(error.contains(words), "'{command}': {error}");
    };
    said(
        format!("flow create {name} ingress pattern ether / end actions drop / end"),
        "\"ether\" is none of eth, vlan",
    );
    said(format!("flow create {name} pattern eth / end actions drop / end"), "ingress, egress, transfer");
    said(
        format!("flow create {name} ingress pattern eth / end actions raw_encap index 3 / end"),
        "set raw_encap 3",
    );
    said(format!("flow destroy {name} rule 77"), "no rule 77");
    said(format!("flow query {name} 77 count"), "no rule 77");
    said(format!("flow create nobody {DROP}"), "nobody");
    let header = "eth dst is 02:00:00:00:77:02 type is 0x0800 / ipv4 ttl is 64 proto is 17 dst is 172.16.0.2 / udp dst is 4789 / vxlan vni is 100 / end_set";
    assert!(scene.daemon.ctl(&format!("set raw_encap 3 {header}")).contains("50 bytes"));
    assert!(scene.daemon.ctl(&format!("flow flush {name}")).contains("gone from port"));
    assert_eq!(scene.daemon.json(&format!("flow list {name}")), Value::Array(Vec::new()));
    // Nothing of this came between packets and their ways.
    scene.inbound(&["to_red()"]).assert_passed();
    scene.stop();
}
