//! Several hosts of the underlay besides the switch's own: kernels with a vxlan device each, on one bridge.
//!
//! ```text
//!  switch ── up0 ══ bridge ═ vtep2 ── vxlan eth0
//!                          ╚ vtep3 ── vxlan eth0
//! ```

use crate::{Family, Lab, Netns, lab, netns};

/// The underlay address of a host by its number.
pub fn address(family: Family, host: usize) -> String {
    match family {
        Family::V4 => format!("172.16.0.{host}"),
        Family::V6 => format!("fd00::{host}"),
    }
}

/// Makes the other host of a lab a bridge between the switch and the hosts that are added.
#[track_caller]
pub fn bridge(lab: &Lab) {
    lab.peer.ip("addr flush dev up0");
    lab.peer.ip("link add bridge mtu 1600 type bridge mcast_snooping 0");
    lab.peer.ip("link set up0 master bridge");
    lab.peer.ip("link set bridge up");
}

/// A host on the bridge whose kernel has a vxlan device, `eth0`; it says nothing by itself.
#[track_caller]
pub fn machine(lab: &Lab, name: &str, host: usize, vni: u32) -> Netns {
    let machine = Netns::new(name);
    let family = lab.family();
    if family == Family::V6 {
        machine.enable_ipv6();
    }
    netns::cable((&machine, "up0"), (&lab.peer, name), lab::UNDERLAY_MTU);
    lab.peer.ip(&format!("link set {name} master bridge"));
    let (own, switch) = (address(family, host), family.local_vtep());
    machine.ip(&format!(
        "addr add {own}/{} dev up0 {}",
        family.prefix_len(),
        if family == Family::V6 { "nodad" } else { "" }
    ));
    machine.ip(&format!("neigh add {switch} lladdr {} dev up0 nud permanent", lab.uplink_mac()));
    let mtu = lab::TENANT_MTU;
    machine.ip(&format!(
        "link add eth0 mtu {mtu} type vxlan id {vni} dstport 4789 local {own} remote {switch} dev up0"
    ));
    machine.sysctl(&["net.ipv6.conf.eth0.disable_ipv6=1"]);
    machine.ip("link set eth0 up");
    machine
}

/// The static neighbours of an uplink ("neighbours = [...]"): the hosts, by number.
#[track_caller]
pub fn neighbours(lab: &Lab, machines: &[(&Netns, usize)]) -> String {
    let rows: Vec<String> = machines
        .iter()
        .map(|(machine, host)| {
            let (ip, mac) = (address(lab.family(), *host), lab::interface_mac(machine, "up0"));
            format!("{{ ip = \"{ip}\", mac = \"{mac}\" }}")
        })
        .collect();
    format!("neighbours = [{}]", rows.join(", "))
}
