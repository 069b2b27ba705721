//! Taps in the network namespaces of pods: made there, found there again by the switch that comes after one that was killed, with all
//! that the pod has made of them; and what a pod may do to its own, beside one that pays for nothing of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;
use tests::lab::{Lab, Tenant, vpc};
use tests::runtime::port_row;
use tests::steady::{Flows, Stream};
use tests::{Daemon, Family, Netns, Workdir, pair, process, script, traffic, wait_for};

const SUBNETS: [&str; 2] = ["10.0.0.0/24", "fd00:1::/64"];
const BLUE: [&str; 2] = ["10.0.0.3/24", "fd00:1::3/64"];
const PATIENCE: Duration = Duration::from_secs(20);
/// The interface of every pod.
const IFACE: &str = "eth0";

/// A pod's vNIC, on a tap that persists in its namespace.
fn vnic(pod: &Tenant, netns: &str) -> String {
    pod.vnic_on(&format!(
        "{{ kind = \"tap\", iface = \"{IFACE}\", netns = \"{netns}\", mac = \"{}\", persist = true }}",
        pod.mac
    ))
}

fn pods(lab: &Lab) -> (Tenant, Tenant) {
    let red = lab.tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let blue = lab.tenant("blue", "red", pair::MACS[1], &BLUE);
    (red, blue)
}

fn start(lab: &Lab, vnics: &[String]) -> Daemon {
    let config = [lab.uplink(""), vpc("red", pair::VNIS[0], &SUBNETS, ""), vnics.concat()];
    Daemon::start(&lab.host, &config.concat())
}

/// What a container runtime does in the pod, once.
#[track_caller]
fn set_up(pod: &Tenant, addresses: &[&str]) {
    for address in addresses {
        pod.netns.ip(&format!("addr add {address} dev {IFACE}"));
    }
    pod.netns.ip(&format!("route add 192.0.2.0/24 via 10.0.0.254 dev {IFACE} onlink metric 7"));
    pod.netns.ip(&format!("-6 route add 2001:db8::/32 via fd00:1::fe dev {IFACE} onlink metric 7"));
}

/// The pod's addresses and routes, and the number of its interface: all but whether there is a carrier.
#[track_caller]
fn facts(pod: &Tenant) -> String {
    let asked = ["-o addr show dev eth0", "route show", "-6 route show"].map(|line| pod.netns.ip(line));
    let words: Vec<&str> =
        asked.iter().flat_map(|text| text.split_whitespace()).filter(|word| *word != "linkdown").collect();
    words.join(" ")
}

#[track_caller]
fn kill(daemon: &mut Daemon) {
    let process = daemon.process();
    process.signal("KILL");
    process.wait(PATIENCE);
}

/// Waits until a port is down for a reason with these words.
#[track_caller]
fn down(daemon: &Daemon, port: &str, words: &str) {
    let mut last = String::new();
    let is_so = || {
        last = port_row(daemon, port).to_string();
        last.contains(words).then_some(())
    };
    wait_for(&format!("port {port} to be down: {words}"), PATIENCE, is_so);
}

#[track_caller]
fn up(daemon: &Daemon, port: &str) {
    wait_for(&format!("port {port}"), PATIENCE, || (port_row(daemon, port)["link"] == "up").then_some(()));
}

#[test]
fn ports_netns_a_pods_tap_outlives_the_switch() {
    let lab = Lab::new(Family::V4);
    let (red, blue) = pods(&lab);
    // One by its name, one by the path of its file.
    let path = format!("/run/netns/{}", blue.netns.name());
    let mut daemon = start(&lab, &[vnic(&red, red.netns.name()), vnic(&blue, &path)]);
    assert!(!lab.host.interfaces().contains(&IFACE.to_owned()), "nothing of it is in the switch's namespace");
    set_up(&red, &pair::NEAR);
    set_up(&blue, &BLUE);
    traffic::ping(&red.netns, "10.0.0.3", 1400, 3);
    traffic::ping(&red.netns, "fd00:1::3", 1400, 3);
    let before = [facts(&red), facts(&blue)];
    for _ in 0..3 {
        let stream = Stream::start(&red.netns, &blue.netns, "10.0.0.3");
        kill(&mut daemon);
        assert_eq!([facts(&red), facts(&blue)], before, "while there is no switch");
        daemon.restart(&lab.host);
        for name in ["red", "blue"] {
            up(&daemon, name);
        }
        traffic::ping(&red.netns, "10.0.0.3", 1400, 3);
        traffic::ping(&blue.netns, "fd00:1::1", 1400, 3);
        assert_eq!([facts(&red), facts(&blue)], before, "with the switch that came after");
        assert!(stream.stop() > 0, "the connection of before goes on");
    }
    // The vNIC goes, and the pod's interface is the pod's; then another vNIC is on it.
    daemon.ctl("vnic del red");
    assert_eq!(facts(&red), before[0]);
    daemon.ctl(&format!(
        "vnic add red vpc red mac {} vips 10.0.0.1,fd00:1::1 mtu 1450 port tap iface={IFACE} netns={} persist=true",
        red.mac,
        red.netns.name()
    ));
    traffic::ping(&blue.netns, "10.0.0.1", 1400, 3);
    daemon.stop();
}

#[test]
fn hostile_netns_pods_harm_their_own_taps_only() {
    let lab = Lab::new(Family::V4);
    let (red, blue) = pods(&lab);
    let own = lab.tenant("own", "red", "02:00:00:00:0a:09", &["10.0.0.9/24", "fd00:1::9/64"]);
    let vnics = [(&red, red.netns.name()), (&blue, blue.netns.name()), (&own, own.netns.name())];
    let mut daemon = start(&lab, &vnics.map(|(pod, netns)| vnic(pod, netns)));
    set_up(&red, &pair::NEAR);
    set_up(&blue, &BLUE);
    set_up(&own, &["10.0.0.9/24"]);
    traffic::ping(&own.netns, "10.0.0.3", 56, 3);
    let honest = Flows::start(&red.netns, &blue.netns, "10.0.0.3", 8);
    // It deletes its interface: there is a new one.
    own.netns.ip("link del eth0");
    down(&daemon, "own", "was deleted");
    up(&daemon, "own");
    set_up(&own, &["10.0.0.9/24"]);
    traffic::ping(&own.netns, "10.0.0.3", 56, 3);
    // It puts something else in its place.
    own.netns.ip("link del eth0");
    own.netns.ip("link add eth0 type veth peer name other");
    down(&daemon, "own", "is no free tap");
    own.netns.ip("link del eth0");
    up(&daemon, "own");
    // Its namespace goes, and one of the same name comes. Nothing keeps the old one.
    let name = own.netns.name();
    let inode = own.netns.run(&["stat", "-Lc", "%i", "/proc/self/ns/net"]);
    process::run(&["ip", "netns", "del", name]);
    down(&daemon, "own", "network namespace");
    let pid = daemon.process().pid();
    let held = process::try_run(&[
        "sh",
        "-c",
        &format!("ls -lL /proc/{pid}/fd /proc/{pid}/task/*/ns/net 2>/dev/null"),
    ]);
    assert!(!String::from_utf8_lossy(&held.stdout).contains(inode.trim()), "no descriptor of the old one");
    process::run(&["ip", "netns", "add", name]);
    up(&daemon, "own");
    own.netns.ip("addr add 10.0.0.9/24 dev eth0");
    traffic::ping(&own.netns, "10.0.0.3", 56, 3);
    // A busy machine moves senders between its processors, whose queues have no order among them.
    assert!(honest.stop_in_any_order(8) > 0);
    daemon.assert_conserved();

    // A program of the pod has it open when the switch comes: each would get half of the packets.
    kill(&mut daemon);
    let dir = Workdir::new("thief");
    let mut thief = hold(&own.netns, &dir);
    daemon.restart(&lab.host);
    down(&daemon, "own", "has it open");
    traffic::ping(&red.netns, "10.0.0.3", 56, 3);
    thief.signal("KILL");
    thief.wait(PATIENCE);
    up(&daemon, "own");
    traffic::ping(&own.netns, "10.0.0.3", 56, 3);
    daemon.stop();
}

/// A program that opens the tap of a pod, of which the switch's namespace shows no process.
#[track_caller]
fn hold(netns: &Netns, dir: &Workdir) -> tests::Process {
    // TUNSETIFF with IFF_TAP | IFF_NO_PI | IFF_MULTI_QUEUE.
    let text = "import fcntl, struct, time\nf = open('/dev/net/tun', 'r+b', buffering=0)\n\
                fcntl.ioctl(f, 0x400454ca, struct.pack('16sH22x', b'eth0', 0x1102))\nprint('open', flush=True)\ntime.sleep(600)";
    let mut process = netns.spawn("thief", &[script::PYTHON, "-c", text], dir);
    process.wait_output("open", PATIENCE);
    process
}
