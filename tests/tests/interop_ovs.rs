//! Open vSwitch with DPDK as the other VTEP: its own bridge, its own vxlan port, two partners behind it.
//!
//! It needs hugepages, which are reserved for the run and given back; scripts/bootstrap installs the package.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::lab::{Lab, TENANT_MTU, location, vpc};
use tests::{Daemon, Family, Netns, netns, ovs::Ovs, pair};

#[test]
fn interop_ovs_dpdk_is_the_other_vtep() {
    let lab = Lab::new(Family::V4);
    let red = lab.tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let blue = lab.tenant("blue", "blue", pair::MACS[1], &pair::NEAR);
    lab.peer.ip("addr flush dev up0");
    // The address is the bridge's alone. The kernel would answer for it on this interface, too: OVS would see the answer go out, learn that
    // the bridge is behind its own port, and drop what comes for it.
    lab.peer.sysctl(&["net.ipv4.conf.up0.arp_ignore=8"]);

    let ovs = Ovs::start(&lab.peer);
    // The uplink is a DPDK port of OVS, as the switch's is one of ours.
    ovs.vsctl("add-br phy0 -- set bridge phy0 datapath_type=netdev");
    ovs.vsctl(
        "add-port phy0 dp0 -- set Interface dp0 type=dpdk options:dpdk-devargs=net_af_packet0,iface=up0",
    );
    let mac = lab.peer_mac();
    ovs.vsctl(&format!("set bridge phy0 other-config:hwaddr={mac}"));
    lab.peer.ip(&format!("addr add {}/24 dev phy0", Family::V4.remote_vtep()));
    lab.peer.ip("link set phy0 mtu 1600 up");
    ovs.appctl(&format!("tnl/neigh/set phy0 {} {}", Family::V4.local_vtep(), lab.uplink_mac()));
    let mut partners = Vec::new();
    for (index, name) in ["red", "blue"].into_iter().enumerate() {
        let (partner, vni) = (Netns::new(&format!("{name}far")), pair::VNIS[index]);
        partner.enable_ipv6();
        netns::cable((&partner, "eth0"), (&lab.peer, &format!("{name}0")), TENANT_MTU);
        partner.ip(&format!("link set eth0 address {}", pair::MACS[index + 2]));
        for far in pair::FAR {
            partner.ip(&format!("addr add {far} dev eth0"));
        }
        ovs.vsctl(&format!("add-br {name} -- set bridge {name} datapath_type=netdev"));
        ovs.vsctl(&format!("add-port {name} {name}0"));
        let (remote, tunnel) = (Family::V4.local_vtep(), format!("{name}vx"));
        ovs.vsctl(&format!(
            "add-port {name} {tunnel} -- set Interface {tunnel} type=vxlan options:remote_ip={remote} options:key={vni}"
        ));
        partners.push(partner);
    }

    ovs.wait_for_tunnels_of(Family::V4.remote_vtep());

    let subnets = ["10.0.0.0/24", "fd00:1::/64"];
    let config = [
        lab.uplink(""),
        vpc("red", pair::VNIS[0], &subnets, ""),
        vpc("blue", pair::VNIS[1], &subnets, ""),
        red.vnic(),
        blue.vnic(),
        location(Family::V4.remote_vtep(), pair::VNIS[0], pair::MACS[2], &pair::FAR),
        location(Family::V4.remote_vtep(), pair::VNIS[1], pair::MACS[3], &pair::FAR),
    ]
    .concat();
    let daemon = Daemon::start(&lab.host, &config);
    red.plug(&lab.host);
    blue.plug(&lab.host);
    for inner in [Family::V4, Family::V6] {
        pair::talk(inner, [(&red.netns, &partners[0]), (&blue.netns, &partners[1])]);
    }
    let flows = ovs.appctl("dpctl/dump-flows");
    assert!(flows.contains("tnl_pop"), "OVS did not take the tunnel for its own:\n{flows}");
    daemon.stop();
}
