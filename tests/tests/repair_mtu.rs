//! Packets that are too long for somebody on their way are answered with the number that fits, whoever knows it.
//!
//! ```text
//!  a1 a2 a3 a4 ── here (vswitch) ══ up0 ══ there (vswitch) ── b1 b2 b3
//!                      ╚══════════ up1 ══ kernel (vxlan) ── k1
//! ```
//! The MTUs of vNICs, of uplinks and of the machines' own kernels differ in all ways. Each row is tried with whole packets just
//! below and just above what fits, both ways, over IPv4 and IPv6, and by TCP, which must find the number by itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::{Counters, Daemon, Family, Lab, Netns, lab, netns, traffic};

const VNI: u32 = 100;
const SUBNETS: [&str; 2] = ["10.0.0.0/24", "fd00:1::/64"];
const TCP_BYTES: u32 = 100_000;

/// Where a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Host {
    Here,
    There,
    /// Behind the kernel's vxlan device, which has no MTU for what it receives.
    Kernel,
}

/// A machine: its name, its host, the MTU of its vNIC, the MTU of its own kernel.
const MACHINES: [(&str, Host, u32, u32); 8] = [
    // What ships: a vNIC of 1450, an uplink of 1600, a guest that knows of neither.
    ("a1", Host::Here, 1450, 1500),
    ("a2", Host::Here, 1450, 1450),
    ("a3", Host::Here, 1500, 1500),
    ("a4", Host::Here, 1400, 1500),
    ("b1", Host::There, 1450, 1500),
    ("b2", Host::There, 1400, 1500),
    ("b3", Host::There, 1500, 1500),
    ("k1", Host::Kernel, u32::MAX, 1500),
];

/// Who talks to whom.
const ROWS: [(&str, &str); 13] = [
    ("a1", "b1"),
    ("a1", "b2"),
    ("a1", "b3"),
    ("a2", "b2"),
    ("a3", "b1"),
    ("a3", "b3"),
    ("a4", "b1"),
    ("a1", "a3"),
    ("a2", "a1"),
    ("a4", "a3"),
    ("k1", "a1"),
    ("k1", "a3"),
    ("k1", "a4"),
];

struct Machine {
    netns: Netns,
    host: Host,
    mac: String,
    addresses: [String; 2],
    vnic: u32,
    guest: u32,
    name: &'static str,
}

impl Machine {
    fn new(index: usize, (name, host, vnic, guest): (&'static str, Host, u32, u32)) -> Machine {
        let netns = Netns::new(name);
        netns.enable_ipv6();
        let addresses = [format!("10.0.0.{}", index + 1), format!("fd00:1::{}", index + 1)];
        Machine {
            netns,
            host,
            mac: format!("02:00:00:00:01:{:02x}", index + 1),
            addresses,
            vnic,
            guest,
            name,
        }
    }

    fn vnic(&self) -> String {
        let [v4, v6] = &self.addresses;
        format!(
            "[[vnic]]\nname = \"{0}\"\nvpc = \"red\"\nmac = \"{1}\"\nvips = [\"{v4}\", \"{v6}\"]\nmtu = {2}\nport = {{ kind = \"tap\", iface = \"{0}\" }}\n",
            self.name, self.mac, self.vnic
        )
    }

    fn location(&self, vtep: &str) -> String {
        lab::location(vtep, VNI, &self.mac, &[&self.addresses[0], &self.addresses[1]])
    }

    /// Its device, from wherever it was made, becomes its `eth0`.
    fn plug(&self, from: &Netns, device: &str) {
        from.ip(&format!("link set {device} netns {}", self.netns.name()));
        self.netns.ip(&format!("link set {device} name eth0"));
        self.netns.ip(&format!("link set eth0 address {} mtu {} up", self.mac, self.guest));
        self.netns.ip(&format!("addr add {}/24 dev eth0", self.addresses[0]));
        self.netns.ip(&format!("addr add {}/64 dev eth0", self.addresses[1]));
    }

    /// Forgets what it learned of ways.
    fn forget(&self) {
        self.netns.ip("-4 route flush cache");
        self.netns.ip("-6 route flush cache");
    }
}

/// The drops since a snapshot, but those of reports of multicast groups, which no kernel can be told to leave: from vNICs, and
/// from the kernel's link-local address behind its tunnel.
fn drops(daemon: &Daemon, before: &Counters) -> Vec<(String, i64)> {
    let moved = daemon.counters().since(before);
    let drop = |(path, n): (String, i64)| Some((path.strip_prefix("fwd.drops.")?.to_owned(), n));
    moved
        .into_iter()
        .filter_map(drop)
        .filter(|(reason, _)| !["bum-disabled", "inner-source"].contains(&reason.as_str()))
        .collect()
}

/// Every row both ways, with both families: what fits passes, one byte more is answered with what fits. How many answers came
/// from the switch here, and from the one there.
fn whole_packets(machines: &[Machine]) -> [i64; 2] {
    let machine = |name: &str| machines.iter().find(|m| m.name == name).unwrap();
    let mut answers = [0; 2];
    let both = ROWS.iter().flat_map(|&(one, other)| [(one, other), (other, one)]);
    for (from, to) in both.map(|(from, to)| (machine(from), machine(to))) {
        let fits = from.guest.min(from.vnic).min(to.vnic);
        for to_address in &to.addresses {
            let what = format!("{} to {} ({to_address}), {fits} bytes", from.name, to.name);
            assert_eq!(traffic::ping_whole(&from.netns, to_address, fits), None, "{what}");
            assert_eq!(traffic::ping_whole(&from.netns, to_address, fits + 1), Some(fits), "{what} and one");
            let host = if fits == from.guest {
                continue;
            } else if fits == from.vnic {
                from.host
            } else {
                to.host
            };
            answers[usize::from(host == Host::There)] += 1;
        }
    }
    answers
}

fn mtu(underlay: Family) {
    let lab = Lab::new(underlay);
    lab.peer.ip("addr flush dev up0");
    let there = lab.reversed();
    let machines: Vec<Machine> = MACHINES.iter().enumerate().map(|(i, m)| Machine::new(i, *m)).collect();
    let kernel = Netns::new("kernel");
    kernel.enable_ipv6();
    netns::cable((&lab.host, "up1"), (&kernel, "up1"), lab::UNDERLAY_MTU);
    let (here_vtep, kernel_vtep, length) = match underlay {
        Family::V4 => ("172.17.0.1", "172.17.0.2", 24),
        Family::V6 => ("fd00:17::1", "fd00:17::2", 64),
    };
    kernel.ip(&format!("addr add {kernel_vtep}/{length} dev up1"));
    kernel.ip(&format!(
        "link add vx0 type vxlan id {VNI} dstport 4789 local {kernel_vtep} remote {here_vtep} dev up1"
    ));
    let on = |host: Host| machines.iter().filter(move |m| m.host == host);
    let vnics = |host: Host| on(host).map(Machine::vnic).collect::<String>();
    let behind = |host: Host, vtep: &str| on(host).map(|m| m.location(vtep)).collect::<String>();
    let vpc = lab::vpc("red", VNI, &SUBNETS, "");
    let second = format!(
        "[[uplink]]\nname = \"up1\"\nport = {{ kind = \"af-packet\", iface = \"up1\" }}\naddresses = [\"{here_vtep}/{length}\"]\nmtu = {}\n",
        lab::UNDERLAY_MTU
    );
    let here_config = [
        lab.uplink(""),
        second,
        vpc.clone(),
        vnics(Host::Here),
        behind(Host::There, underlay.remote_vtep()),
        behind(Host::Kernel, kernel_vtep),
    ]
    .concat();
    // The smallest uplink that holds these vNICs.
    let overhead = if underlay == Family::V4 { 50 } else { 70 };
    let there_uplink = there.uplink("").replace("mtu = 1600", &format!("mtu = {}", 1500 + overhead));
    let there_config =
        [there_uplink, vpc, vnics(Host::There), behind(Host::Here, underlay.local_vtep())].concat();
    let mut here = Daemon::start_alone(&lab.host, &here_config);
    let over_there = Daemon::start(&lab.peer, &there_config);
    here.wait_until_resolved();
    for machine in &machines {
        match machine.host {
            Host::Here => machine.plug(&lab.host, machine.name),
            Host::There => machine.plug(&lab.peer, machine.name),
            Host::Kernel => machine.plug(&kernel, "vx0"),
        }
    }

    let before = [here.counters(), over_there.counters()];
    let [from_here, from_there] = whole_packets(&machines);
    let answered = |n: i64| vec![("mtu-exceeded".to_owned(), n)];
    assert_eq!(drops(&here, &before[0]), answered(from_here));
    assert_eq!(drops(&over_there, &before[1]), answered(from_there));

    machines.iter().for_each(Machine::forget);
    let before = [here.counters(), over_there.counters()];
    for (one, other) in ROWS {
        let machine = |name: &str| machines.iter().find(|m| m.name == name).unwrap();
        let (one, other) = (machine(one), machine(other));
        for address in &other.addresses {
            traffic::transfer_by(&["tcp"], &one.netns, &other.netns, address, TCP_BYTES);
        }
    }
    for (daemon, before) in [(&here, &before[0]), (&over_there, &before[1])] {
        let dropped = drops(daemon, before);
        assert!(matches!(&dropped[..], [(reason, n)] if reason == "mtu-exceeded" && *n > 0), "{dropped:?}");
    }
    over_there.stop();
    here.stop();
}

#[test]
fn repair_mtu_is_answered_over_an_ipv4_underlay() {
    mtu(Family::V4);
}

#[test]
fn repair_mtu_is_answered_over_an_ipv6_underlay() {
    mtu(Family::V6);
}
