//! Containers on ports of kind `veth` and `tap`: nobody ran ethtool, so their kernels leave checksums and segmentation to the device.
//! TCP among themselves, and through tunnels with the kernel's own vxlan device and with another switch.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;
use tests::lab::{Lab, Remote, TENANT_MTU, Tenant, location, vpc};
use tests::runtime::{TWO_WORKERS, port_row};
use tests::{Counters, Daemon, Family, pair, traffic, wait_for};

const SUBNETS: [&str; 2] = ["10.0.0.0/24", "fd00:1::/64"];
/// Bytes of a transfer: enough for a window that is worth a super-frame.
const BYTES: u32 = 8_000_000;
const UPLINK: &str = "{ kind = \"veth\", iface = \"up0\" }";

/// A config's words for a tap of two queues.
const TWO_QUEUES: &str = "queues = 2";

fn veth(tenant: &Tenant) -> String {
    tenant.vnic_on(&format!("{{ kind = \"veth\", iface = \"{}\" }}", tenant.name))
}

fn tap(tenant: &Tenant, more: &str) -> String {
    tenant.vnic_on(&format!("{{ kind = \"tap\", iface = \"{}\", {more} }}", tenant.name))
}

/// The cables of containers, and the underlay's over IPv4, are as the kernel makes them: with all offloads.
fn untouched(lab: &Lab, tenants: &[&Tenant]) {
    let on = |netns: &tests::Netns, iface: &str| {
        netns.run(&["ethtool", "-K", iface, "tx", "on"]);
    };
    for tenant in tenants {
        on(&tenant.netns, "eth0");
        on(&lab.host, &tenant.name);
    }
    if lab.family() == Family::V4 {
        on(&lab.host, "up0");
        on(&lab.peer, "up0");
    }
}

const BLUE: [&str; 2] = ["10.0.0.3/24", "fd00:1::3/64"];

/// Two containers of one host, and one behind the kernel's vxlan device on another.
struct Three {
    daemon: Daemon,
    red: Tenant,
    blue: Tenant,
    far: Remote,
    lab: Lab,
}

impl Three {
    fn start(underlay: Family) -> Three {
        let lab = Lab::new(underlay);
        let red = lab.cabled_tenant("red", "red", pair::MACS[0], &pair::NEAR);
        let blue = lab.cabled_tenant("blue", "red", pair::MACS[1], &BLUE);
        untouched(&lab, &[&red, &blue]);
        let vnics = [veth(&red), veth(&blue)].concat();
        Self::on(lab, red, blue, &vnics)
    }

    /// On taps of two queues, for two workers.
    fn on_taps(underlay: Family) -> Three {
        let lab = Lab::new(underlay);
        let red = lab.tenant("red", "red", pair::MACS[0], &pair::NEAR);
        let blue = lab.tenant("blue", "red", pair::MACS[1], &BLUE);
        untouched(&lab, &[]);
        let vnics = [tap(&red, TWO_QUEUES), tap(&blue, TWO_QUEUES), TWO_WORKERS.to_owned()].concat();
        let three = Self::on(lab, red, blue, &vnics);
        for tenant in [&three.red, &three.blue] {
            tenant.plug(&three.lab.host);
        }
        three
    }

    fn on(lab: Lab, red: Tenant, blue: Tenant, vnics: &str) -> Three {
        let underlay = lab.family();
        // The kernel's device verifies what we send, and computes what we verify.
        let options = if underlay == Family::V6 { "udp6zerocsumrx" } else { "" };
        let far = lab.remote("redfar", pair::VNIS[0], pair::MACS[2], &pair::FAR, options);
        let config = [
            lab.uplink_on(UPLINK, ""),
            vpc("red", pair::VNIS[0], &SUBNETS, ""),
            far.location(),
            vnics.to_owned(),
        ]
        .concat();
        let mut daemon = Daemon::start(&lab.host, &config);
        daemon.settled();
        Three { daemon, red, blue, far, lab }
    }

    /// Transfers both ways between two of them, over both families; what moved meanwhile.
    fn transfer(&self, near: &tests::Netns, far: &tests::Netns, [here, there]: [&str; 2]) -> Counters {
        let before = self.daemon.counters();
        traffic::transfer_by(&["tcp"], near, far, there, BYTES);
        traffic::transfer_by(&["tcp"], far, near, here, BYTES);
        let after = self.daemon.counters();
        let dropped = lost(&before, &after);
        assert_eq!(dropped, [], "TCP between {here} and {there} lost packets");
        before
    }
}

/// What was dropped between two looks, but for what kernels say to all now and then: multicast groups, which neither the VPC floods
/// nor the underlay hears.
fn lost(before: &Counters, after: &Counters) -> Vec<(String, i64)> {
    let chatter = ["fwd.drops.bum-disabled", "fwd.drops.underlay-other"];
    let moved = after.since(before).into_iter();
    moved.filter(|(path, _)| path.starts_with("fwd.drops.") && !chatter.contains(&path.as_str())).collect()
}

fn moved(daemon: &Daemon, before: &Counters, path: &str) -> i64 {
    daemon.counters().get(path) - before.get(path)
}

fn containers(three: &Three) {
    let Three { daemon, red, blue, far, .. } = three;
    // Fragments, too.
    for size in pair::PING_SIZES {
        traffic::ping(&red.netns, "10.0.0.3", size, 3);
        traffic::ping(&red.netns, "10.0.0.2", size, 3);
        traffic::ping(&far.netns, "fd00:1::1", size, 3);
    }
    for addresses in [["10.0.0.1", "10.0.0.3"], ["fd00:1::1", "fd00:1::3"]] {
        let before = three.transfer(&red.netns, &blue.netns, addresses);
        let packets = moved(daemon, &before, "fwd.received");
        // Of 1,398 bytes of data each they would be 11,400, and as many acknowledgements for each second of them.
        assert!(
            packets < 6_000,
            "{packets} packets for {BYTES} bytes both ways: they were not sent in super-frames"
        );
        assert_eq!(moved(daemon, &before, "fwd.copies"), 0, "on one host nothing is cut");
    }
    for addresses in [["10.0.0.1", "10.0.0.2"], ["fd00:1::1", "fd00:1::2"]] {
        let before = three.transfer(&red.netns, &far.netns, addresses);
        let pieces = moved(daemon, &before, "fwd.copies");
        assert!(pieces > 2_000, "{pieces} pieces: super-frames are cut for the tunnel");
    }
}

fn on_veths(underlay: Family) {
    let three = Three::start(underlay);
    containers(&three);
    three.daemon.stop();
}

fn on_taps(underlay: Family) {
    let three = Three::on_taps(underlay);
    containers(&three);
    // Which of them hears a connection is the kernel's choice.
    assert_eq!(port_row(&three.daemon, "red")["rx-queues"], 2);
    three.daemon.stop();
}

#[test]
fn veth_gso_containers_talk_over_ipv4() {
    on_veths(Family::V4);
}

#[test]
fn veth_gso_containers_talk_over_ipv6() {
    on_veths(Family::V6);
}

#[test]
fn tap_gso_containers_talk_over_ipv4() {
    on_taps(Family::V4);
}

#[test]
fn tap_gso_containers_talk_over_ipv6() {
    on_taps(Family::V6);
}

#[test]
fn tap_gso_containers_have_jumbo_frames() {
    let lab = Lab::new(Family::V4);
    let red = lab.tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let blue = lab.tenant("blue", "red", pair::MACS[1], &BLUE);
    let jumbo = |tenant| tap(tenant, "queues = 1").replace(&format!("mtu = {TENANT_MTU}"), "mtu = 9000");
    let config = [vpc("red", pair::VNIS[0], &SUBNETS, ""), jumbo(&red), jumbo(&blue)];
    let daemon = Daemon::start(&lab.host, &config.concat());
    for tenant in [&red, &blue] {
        let made = lab.host.ip(&format!("-o link show {}", tenant.name));
        assert!(made.contains("mtu 9000"), "{made}");
        tenant.plug(&lab.host);
        tenant.netns.ip("link set eth0 mtu 9000");
    }
    let before = daemon.counters();
    for size in [8_972, 8_973, 30_000] {
        traffic::ping(&red.netns, "10.0.0.3", size, 3);
    }
    traffic::transfer_by(&["tcp"], &red.netns, &blue.netns, "10.0.0.3", BYTES);
    assert_eq!(lost(&before, &daemon.counters()), []);
    daemon.stop();
}

#[test]
fn veth_gso_two_switches() {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    let there = lab.reversed();
    let red = lab.cabled_tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let far = there.cabled_tenant("far", "red", pair::MACS[2], &pair::FAR);
    untouched(&lab, &[&red]);
    untouched(&there, &[&far]);
    let config = |lab: &Lab, own: &Tenant, other: &Tenant, addresses: &[&str]| {
        let remote = location(lab.remote_vtep(), pair::VNIS[0], &other.mac, addresses);
        [lab.uplink_on(UPLINK, ""), vpc("red", pair::VNIS[0], &SUBNETS, ""), veth(own), remote].concat()
    };
    let mut one = Daemon::start(&lab.host, &config(&lab, &red, &far, &pair::FAR));
    let mut two = Daemon::start(&there.host, &config(&there, &far, &red, &pair::NEAR));
    one.settled();
    two.settled();
    for [here, away] in [["10.0.0.1", "10.0.0.2"], ["fd00:1::1", "fd00:1::2"]] {
        let before = one.counters();
        traffic::transfer_by(&["tcp"], &red.netns, &far.netns, away, BYTES);
        traffic::transfer_by(&["tcp"], &far.netns, &red.netns, here, BYTES);
        assert!(moved(&one, &before, "fwd.copies") > 1_000, "super-frames are cut");
    }
    for daemon in [&one, &two] {
        assert_eq!(lost(&Counters::default(), &daemon.counters()), []);
    }
    one.stop();
    two.stop();
}

#[test]
fn veth_outlives_the_switch_and_comes_back() {
    let mut three = Three::start(Family::V4);
    traffic::ping(&three.red.netns, "10.0.0.2", 56, 3);
    let before = three.red.netns.ip("-o link show eth0");
    let process = three.daemon.process();
    process.signal("KILL");
    process.wait(Duration::from_secs(10));
    assert_eq!(three.red.netns.interfaces(), ["eth0", "lo"], "the container's interface is its own");
    three.daemon.restart(&three.lab.host);
    three.daemon.settled();
    traffic::ping(&three.red.netns, "10.0.0.2", 56, 3);
    traffic::transfer_by(&["tcp"], &three.red.netns, &three.blue.netns, "10.0.0.3", BYTES);
    assert_eq!(three.red.netns.ip("-o link show eth0"), before, "nobody touched it");

    // Without the other end there is no link; with it there is, and nobody else noticed.
    let Three { daemon, red, blue, far, lab } = three;
    red.netns.ip("link set eth0 down");
    wait_for("the link to go", Duration::from_secs(5), || {
        (port_row(&daemon, "red")["link"] == "down").then_some(())
    });
    traffic::ping(&blue.netns, "10.0.0.2", 56, 3);
    red.netns.ip("link set eth0 up");
    wait_for("the link to come", Duration::from_secs(5), || {
        (port_row(&daemon, "red")["link"] == "up").then_some(())
    });
    traffic::ping(&red.netns, "10.0.0.2", 56, 3);

    // A container that goes takes its interface along; one that comes under the same name is plugged in by itself.
    lab.host.ip("link del red");
    wait_for("the port to go down", Duration::from_secs(5), || {
        daemon.ctl("port list").contains("was deleted").then_some(())
    });
    traffic::ping(&blue.netns, "10.0.0.2", 56, 3);
    tests::netns::cable((&red.netns, "eth0"), (&lab.host, "red"), TENANT_MTU);
    untouched(&lab, &[&red]);
    red.netns.ip(&format!("link set eth0 address {}", red.mac));
    red.netns.ip("addr add 10.0.0.1/24 dev eth0");
    wait_for("the port to come up", Duration::from_secs(20), || {
        (port_row(&daemon, "red")["link"] == "up").then_some(())
    });
    traffic::ping(&red.netns, "10.0.0.2", 56, 3);
    traffic::transfer_by(&["tcp"], &far.netns, &red.netns, "10.0.0.1", BYTES);

    // So too when it has gone and come between two looks, under the same name and index.
    let index = lab.host.ip("-o link show red").split_once(':').unwrap().0.to_owned();
    let (mtu, netns) = (TENANT_MTU, red.netns.name());
    let dir = tests::Workdir::new("batch");
    let file = dir.path().join("links");
    let lines = format!(
        "link del red\nlink add red index {index} mtu {mtu} type veth peer name eth0 address {} netns {netns}\nlink set red up\n",
        red.mac
    );
    std::fs::write(&file, lines).unwrap();
    lab.host.ip(&format!("-batch {}", file.display()));
    red.netns.ip("link set eth0 up");
    red.netns.ip("addr add 10.0.0.1/24 dev eth0");
    wait_for("the port to be opened anew", Duration::from_secs(5), || {
        daemon.ctl("port list").contains("was deleted").then_some(())
    });
    wait_for("the port to come up", Duration::from_secs(20), || {
        (port_row(&daemon, "red")["link"] == "up").then_some(())
    });
    traffic::ping(&red.netns, "10.0.0.2", 56, 3);
    daemon.stop();
}

/// A tap that stays with the host, and one that is a container's.
#[test]
fn tap_outlives_the_switch_and_comes_back() {
    let lab = Lab::new(Family::V4);
    let red = lab.tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let own = lab.tenant("own", "red", pair::MACS[1], &BLUE);
    let config = [
        lab.uplink(""),
        vpc("red", pair::VNIS[0], &SUBNETS, ""),
        tap(&red, TWO_QUEUES),
        tap(&own, &format!("mac = \"{}\", persist = true", own.mac)),
    ];
    let mut daemon = Daemon::start(&lab.host, &config.concat());
    red.plug(&lab.host);
    lab.host.ip("addr add 10.0.0.3/24 dev own");
    traffic::ping(&red.netns, "10.0.0.3", 1400, 3);
    let index = lab.host.ip("-o link show own").split_once(':').unwrap().0.to_owned();
    let process = daemon.process();
    process.signal("KILL");
    process.wait(Duration::from_secs(10));
    assert_eq!(red.netns.interfaces(), ["lo"], "what does not persist goes with the switch");
    daemon.restart(&lab.host);
    assert!(lab.host.ip("-o link show own").starts_with(&index), "it is the same interface");
    red.plug(&lab.host);
    traffic::ping(&red.netns, "10.0.0.3", 1400, 3);
    traffic::transfer_by(&["tcp"], &red.netns, &lab.host, "10.0.0.3", BYTES);

    // Its link is that of the interface, wherever that is.
    red.netns.ip("link set eth0 down");
    wait_for("the link to go", Duration::from_secs(5), || {
        (port_row(&daemon, "red")["link"] == "down").then_some(())
    });
    red.netns.ip("link set eth0 up");
    wait_for("the link to come", Duration::from_secs(5), || {
        (port_row(&daemon, "red")["link"] == "up").then_some(())
    });
    // A container that goes takes its interface along; the switch makes a new one.
    red.netns.ip("link del eth0");
    wait_for("the port to go down", Duration::from_secs(5), || {
        daemon.ctl("port list").contains("was deleted").then_some(())
    });
    wait_for("the interface to be made anew", Duration::from_secs(20), || {
        lab.host.interfaces().contains(&"red".to_owned()).then_some(())
    });
    red.plug(&lab.host);
    traffic::ping(&red.netns, "10.0.0.3", 1400, 3);
    daemon.ctl("vnic del own");
    assert!(lab.host.interfaces().contains(&"own".to_owned()), "it outlives its port");
    lab.host.ip("link del own");
    daemon.stop();
}

/// Far more ports than DPDK has devices: most of them idle, two that talk, and one that comes and goes meanwhile.
#[test]
fn veth_three_hundred_containers() {
    const IDLE: u32 = 300;
    let lab = Lab::new(Family::V4);
    let red = lab.cabled_tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let blue = lab.cabled_tenant("blue", "red", pair::MACS[1], &BLUE);
    untouched(&lab, &[&red, &blue]);
    let others = tests::Netns::new("idle");
    let name = others.name();
    let batch = |line: &dyn Fn(u32) -> String| (0..IDLE).map(|n| line(n) + "\n").collect::<String>();
    let dir = tests::Workdir::new("batch");
    let file = dir.path().join("links");
    let host: &tests::Netns = &lab.host;
    for (netns, lines) in [
        (host, batch(&|n| format!("link add idle{n} mtu 1450 type veth peer name other{n} netns {name}"))),
        (host, batch(&|n| format!("link set idle{n} up"))),
        (&others, batch(&|n| format!("link set other{n} up"))),
    ] {
        std::fs::write(&file, lines).unwrap();
        netns.ip(&format!("-batch {}", file.display()));
    }
    let idle = batch(&|n| {
        let (high, low) = (n / 200, n % 200 + 1);
        format!(
            "[[vnic]]\nname = \"idle{n}\"\nvpc = \"red\"\nmac = \"02:00:00:01:{high:02x}:{low:02x}\"\nvips = [\"10.1.{high}.{low}\"]\n\
             mtu = 1450\nport = {{ kind = \"veth\", iface = \"idle{n}\" }}"
        )
    });
    let config = [
        lab.uplink_on(UPLINK, ""),
        vpc("red", pair::VNIS[0], &[SUBNETS[0], SUBNETS[1], "10.1.0.0/16"], ""),
        veth(&red),
        veth(&blue),
        idle,
    ]
    .concat();
    let daemon = Daemon::start(&lab.host, &config);
    wait_for("all ports to come up", Duration::from_secs(60), || {
        let ports = daemon.json("port list");
        let up = ports.as_array()?.iter().filter(|row| row["link"] == "up").count();
        (up == IDLE as usize + 3).then_some(())
    });
    traffic::ping(&red.netns, "10.0.0.3", 1400, 5);
    traffic::transfer_by(&["tcp"], &red.netns, &blue.netns, "10.0.0.3", BYTES);
    let before = daemon.counters();
    for _ in 0..3 {
        daemon.ctl("vnic del idle7");
        daemon
            .ctl("vnic add idle7 vpc red mac 02:00:00:01:00:08 vips 10.1.0.8 mtu 1450 port veth iface=idle7");
    }
    traffic::ping(&blue.netns, "10.0.0.1", 56, 5);
    assert_eq!(lost(&before, &daemon.counters()), []);
    daemon.stop();
}
