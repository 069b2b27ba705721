//! A virtual machine of libvirt's, by the domain that the how-to shows: it reaches its neighbour, and is there again by itself when
//! the switch was killed, and when another one took over.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::guest::{self, libvirt};
use tests::lab::{Lab, vpc};
use tests::{Daemon, Family, Workdir, pair};

const MAC: &str = "02:00:00:00:05:01";
const VM: &str = "10.0.0.9";
const RED: &str = "10.0.0.1";
/// An emulated machine beside others.
const PATIENCE: Duration = Duration::from_secs(60);

fn pings(machine: &libvirt::Libvirt) {
    machine.guest.until(&format!("ping -c 1 -W 1 {RED}"), PATIENCE);
    machine.guest.run(&format!("ping -c 3 -i 0.2 -W 10 {RED}"));
}

#[test]
fn guest_of_libvirt_is_there_again_after_a_kill_and_an_upgrade_of_the_switch() {
    if !guest::can_run() {
        return;
    }
    let (lab, dir) = (Lab::new(Family::V4), Workdir::new("sockets"));
    let red = lab.cabled_tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let socket = dir.path().join("vm1.sock");
    let port = format!(
        "{{ kind = \"vhost-user\", path = \"{}\", queues = 2, owner = \"{}\", mode = \"0600\" }}",
        socket.display(),
        libvirt::USER
    );
    let config = [
        lab.uplink(""),
        vpc("red", pair::VNIS[0], &["10.0.0.0/24", "fd00:1::/64"], ""),
        red.vnic_on("{ kind = \"veth\", iface = \"red\" }"),
        format!(
            "[[vnic]]\nname = \"vm1\"\nvpc = \"red\"\nmac = \"{MAC}\"\nvips = [\"{VM}\"]\nmtu = 1450\nport = {port}\n"
        ),
    ];
    let mut daemon = Daemon::start(&lab.host, &config.concat());
    let machine = libvirt::Libvirt::boot("vm1", MAC, &socket);
    // libvirt hands the MTU on, and both queues are there.
    assert_eq!(machine.guest.run("cat /sys/class/net/eth0/mtu").trim(), "1450");
    assert_eq!(machine.guest.run("ls -d /sys/class/net/eth0/queues/rx-* | wc -l").trim(), "2");
    machine.guest.run(&format!("ip link set eth0 up && ip addr add {VM}/24 dev eth0"));
    pings(&machine);
    assert!(machine.virsh(&["domiflist", "vm1"]).contains("vhostuser"));
    let process = daemon.process();
    process.signal("KILL");
    process.wait(PATIENCE);
    daemon.restart(&lab.host);
    pings(&machine);
    daemon.upgrade(&lab.host);
    pings(&machine);
    assert_eq!(machine.virsh(&["domstate", "vm1"]).trim(), "running");
    machine.virsh(&["destroy", "vm1"]);
    drop(machine);
    daemon.settled();
    daemon.stop();
}
