//! The harness against the kernel alone: the same networks, pings and transfers with no switch in between.
//!
//! When these fail, the machine or the harness is at fault, and no other scenario says anything about the switch.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::{Agent, Family, Lab, netns, ovs::Ovs, traffic};

/// Gives the host namespace a kernel VTEP of its own, in the place of the switch.
fn kernel_on_both_sides(family: Family) {
    let lab = Lab::new(family);
    if family == Family::V6 {
        lab.host.enable_ipv6();
    }
    lab.host.ip(&format!("addr add {}/{} dev up0", family.local_vtep(), family.prefix_len()));
    let left = netns::Netns::new("left");
    let (local, remote) = (family.local_vtep(), family.remote_vtep());
    lab.host.ip(&format!(
        "link add vx100 mtu 1450 type vxlan id 100 dstport 4789 local {local} remote {remote} dev up0"
    ));
    lab.host.ip(&format!("link set vx100 netns {}", left.name()));
    left.ip("addr add 10.0.0.1/24 dev vx100");
    left.ip("link set vx100 up");
    let right = lab.remote("right", 100, "02:00:00:00:01:02", &["10.0.0.2/24"], "");
    for size in [56, 1400, 1600, 8000] {
        traffic::ping(&left, "10.0.0.2", size, 2);
    }
    traffic::no_ping(&left, "10.0.0.3");
    traffic::transfer(&left, &right.netns, "10.0.0.2", 60_000);
    traffic::transfer(&right.netns, &left, "10.0.0.1", 60_000);
}

#[test]
fn kernel_to_kernel_over_ipv4() {
    kernel_on_both_sides(Family::V4);
}

#[test]
fn kernel_to_kernel_over_ipv6() {
    kernel_on_both_sides(Family::V6);
}

#[test]
fn ovs_starts_and_gives_its_hugepages_back() {
    let pages = || std::fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap();
    let before = pages();
    let host = netns::Netns::new("ovshost");
    let ovs = Ovs::start(&host);
    ovs.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev");
    assert!(ovs.appctl("dpif/show").contains("netdev@"));
    drop(ovs);
    assert_eq!(pages(), before);
}

#[test]
fn crafted_frames_arrive_as_they_were_sent() {
    let lab = Lab::new(Family::V4);
    let host = &lab.host;
    host.ip("addr add 172.16.0.1/24 dev up0");
    let names = [("answer", "42")];
    let mut agent = Agent::start(&lab, &[], &names);
    host.ip("neigh replace 172.16.0.2 lladdr 02:00:00:00:00:02 dev up0 nud permanent");
    // The host's kernel answers a ping that was made by hand.
    let ping =
        "Ether(src=peer_mac, dst=up_mac)/IP(src=remote_vtep, dst=local_vtep)/ICMP(id=7)/Raw(answer.encode())";
    let exchange = agent.exchange("peer", &[ping], &["peer"]);
    assert_eq!(exchange.sent, 1);
    // The answer goes to a made-up station, which a wire with promiscuity off still shows: veth filters nothing.
    let [reply] = exchange.on("peer") else { panic!("{exchange:?}") };
    assert_eq!(reply["ip_src"], "172.16.0.1");
    assert_eq!(reply["ip_sum_ok"], true);
    assert!(reply["payload"].as_str().unwrap().ends_with("3432"), "{reply}");
    let cut = agent.exchange("peer", &[format!("cuts({ping})")], &["peer"]);
    assert_eq!((cut.sent, cut.on("peer").len()), (30, 0), "14 + 20 + 8 + 2 bytes, cut from byte 14 on");
}

#[test]
fn crafted_vlan_tags_survive_the_kernel() {
    let lab = Lab::new(Family::V4);
    let (near, far) = (netns::Netns::new("near"), netns::Netns::new("far"));
    netns::cable((&near, "eth0"), (&far, "eth0"), 1500);
    let mut agent = Agent::start(&lab, &[("near", &near), ("far", &far)], &[]);
    let tagged = "Ether(src='02:00:00:00:00:07', dst='02:00:00:00:00:08')/Dot1Q(vlan=7)/IP(dst='10.0.0.1')/UDP()/Raw(b'x')";
    let exchange = agent.exchange("near", &[tagged], &["far"]);
    let [seen] = exchange.on("far") else { panic!("{exchange:?}") };
    assert_eq!(seen["vlans"], serde_json::json!([7]));
}
