//! TCP super-frames of a container that leave whole for the uplink, whose device cuts them inside the tunnel: the device `net_eswitch` of
//! the crate `testdev` does it as NICs do, and the kernel's own vxlan device and TCP judge the pieces. Where the uplink is a tap, the
//! kernel takes them as they are, hands them on whole, or cuts them for an interface that does not take them; and what comes whole, the
//! container gets whole.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use testdev::ESWITCH;
use tests::lab::{Lab, Remote, Tenant, vpc};
use tests::{Daemon, Family, Workdir, pair, traffic};

/// Bytes of a transfer: enough for a window that is worth a super-frame.
const BYTES: u32 = 8_000_000;

struct Hosts {
    daemon: Daemon,
    red: Tenant,
    far: Remote,
    config: String,
    lab: Lab,
    _folder: Workdir,
}

/// What was counted while data went both ways: pieces that software made of super-frames, and packets at the uplink.
#[derive(Debug)]
struct Moved {
    copies: i64,
    sent: i64,
    received: i64,
}

/// A container here and the kernel's vxlan device behind an uplink whose device cuts; `uplink` are further lines of it.
fn hosts(underlay: Family, uplink: &str) -> Hosts {
    let folder = Workdir::new("tso");
    let plugin = ESWITCH.build(folder.path()).unwrap_or_else(|error| panic!("{error}"));
    let eal = format!("[eal]\nplugins = [\"{}\"]\n", plugin.display());
    let lab = Lab::new(underlay);
    let port = lab.uplink_on("{ kind = \"raw\", vdev = \"net_eswitch0,iface=up0,tso=1\" }", uplink);
    start(folder, lab, eal + &port)
}

/// As [`hosts`], with a tap behind the uplink, which a bridge joins with what leads to the other host.
fn hosts_on_tap(underlay: Family) -> Hosts {
    let lab = Lab::new(underlay);
    for netns in [&lab.host, &lab.peer] {
        let on = ["tx", "on", "tso", "on", "gso", "on", "tx-udp_tnl-segmentation", "on"];
        netns.run(&[&["ethtool", "-K", "up0"][..], &on].concat());
        netns.run(&["ethtool", "-K", "up0", "tx-udp_tnl-csum-segmentation", "on"]);
    }
    lab.host.ip("link add br0 mtu 1600 type bridge");
    lab.host.ip("link set br0 up");
    lab.host.ip("link set up0 master br0");
    lab.host.ip("tuntap add ut0 mode tap multi_queue");
    lab.host.ip("link set ut0 mtu 1600 master br0 up");
    // The kernel's end of the tap has another address: a bridge keeps what is for its own interfaces.
    let uplink = lab.uplink_on("{ kind = \"tap\", iface = \"ut0\" }", "mac = \"52:54:00:00:00:10\"");
    start(Workdir::new("tso"), lab, uplink)
}

/// Starts the switch with these sections of its config for the uplink, and those for a container.
fn start(folder: Workdir, lab: Lab, uplink: String) -> Hosts {
    let red = lab.cabled_tenant("red", "red", pair::MACS[0], &pair::NEAR);
    for (netns, iface) in [(&red.netns, "eth0"), (&lab.host, "red")] {
        netns.run(&["ethtool", "-K", iface, "tx", "on"]);
    }
    // It verifies what the device computes.
    let options = if lab.family() == Family::V6 { "udp6zerocsumrx" } else { "" };
    let far = lab.remote("redfar", pair::VNIS[0], pair::MACS[2], &pair::FAR, options);
    let config = [
        uplink,
        vpc("red", pair::VNIS[0], &["10.0.0.0/24", "fd00:1::/64"], ""),
        far.location(),
        red.vnic_on("{ kind = \"veth\", iface = \"red\" }"),
    ]
    .concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    traffic::ping(&red.netns, "10.0.0.2", 56, 3);
    traffic::ping(&red.netns, "fd00:1::2", 56, 3);
    daemon.settled();
    Hosts { daemon, red, far, config, lab, _folder: folder }
}

impl Hosts {
    /// Transfers both ways, over both families; how many pieces were cut in software, and how many super-frames by the device.
    fn transfer(&self) -> (i64, i64) {
        let cut = self.device("tx_super_frames");
        let moved = self.moved();
        (moved.copies, self.device("tx_super_frames") - cut)
    }

    /// Transfers both ways, over both families.
    fn moved(&self) -> Moved {
        let (daemon, red, far) = (&self.daemon, &self.red.netns, &self.far.netns);
        let before = daemon.counters();
        for [here, there] in [["10.0.0.1", "10.0.0.2"], ["fd00:1::1", "fd00:1::2"]] {
            traffic::transfer_by(&["tcp"], red, far, there, BYTES);
            traffic::transfer_by(&["tcp"], far, red, here, BYTES);
        }
        let after = daemon.counters();
        let dropped: Vec<_> = after
            .since(&before)
            .into_iter()
            .filter(|(path, _)| path.starts_with("fwd.drops.") || path.ends_with("tx-errors"))
            .filter(|(path, _)| {
                !["fwd.drops.bum-disabled", "fwd.drops.underlay-other"].contains(&path.as_str())
            })
            .collect();
        assert_eq!(dropped, []);
        let counted = |name: &str| after.get(name) - before.get(name);
        let [sent, received] = ["tx-packets", "rx-packets"].map(|what| counted(&format!("port.up.{what}")));
        Moved { copies: counted("fwd.copies"), sent, received }
    }

    fn device(&self, name: &str) -> i64 {
        self.daemon.figure("show port xstats up", &format!("/0/xstats/{name}"))
    }

    fn cuts_in(&self) -> String {
        self.daemon.json("show port info up")[0]["tunnel-tso"].as_str().unwrap_or_default().to_owned()
    }

    fn stop(self) {
        assert_eq!((self.device("flow_misused"), self.device("tx_errors")), (0, 0), "{}", self.daemon.log());
        self.end();
    }

    fn end(mut self) {
        self.daemon.assert_conserved();
        self.daemon.process().signal("TERM");
        self.daemon.assert_clean_end();
    }
}

fn cut_by_the_device(underlay: Family) {
    let hosts = hosts(underlay, "");
    assert_eq!(hosts.cuts_in(), "device");
    let (pieces, super_frames) = hosts.transfer();
    assert_eq!(pieces, 0, "software cuts nothing for the tunnel");
    assert!(super_frames > 300, "{super_frames} super-frames for {BYTES} bytes twice");
    hosts.stop();
}

#[test]
fn gso_super_frames_are_cut_by_the_uplinks_device() {
    cut_by_the_device(Family::V4);
}

#[test]
fn gso_super_frames_are_cut_by_the_uplinks_device_over_ipv6() {
    cut_by_the_device(Family::V6);
}

#[test]
fn gso_of_the_device_is_switched_off_and_on_by_a_reload() {
    let mut hosts = hosts(Family::V4, "software-tso = true\n");
    assert_eq!(hosts.cuts_in(), "software");
    let (pieces, super_frames) = hosts.transfer();
    assert!(pieces > 2_000 && super_frames == 0, "{pieces} pieces, {super_frames} super-frames");
    hosts.daemon.rewrite_config(&hosts.config.replace("software-tso = true\n", ""));
    hosts.daemon.ctl("config reload");
    hosts.daemon.settled();
    traffic::ping(&hosts.red.netns, "10.0.0.2", 56, 3);
    traffic::ping(&hosts.red.netns, "fd00:1::2", 56, 3);
    assert_eq!(hosts.cuts_in(), "device");
    let (pieces, super_frames) = hosts.transfer();
    assert!(pieces == 0 && super_frames > 300, "{pieces} pieces, {super_frames} super-frames");
    hosts.stop();
}

/// Segments that the data of all transfers of one direction take, at least.
const SEGMENTS: i64 = 2 * BYTES as i64 / 1450;

fn taken_whole_by_a_tap(underlay: Family) {
    let hosts = hosts_on_tap(underlay);
    assert_eq!(hosts.cuts_in(), "device");
    let whole = hosts.moved();
    assert_eq!(whole.copies, 0, "software cuts nothing for the tunnel");
    // Acknowledgements of what comes the other way are among them.
    assert!(whole.sent < SEGMENTS / 2 && whole.received < SEGMENTS / 2, "{whole:?}");
    // Who does not take them gets pieces, which the far kernel judges.
    let off =
        ["ethtool", "-K", "up0", "tx-udp_tnl-segmentation", "off", "tx-udp_tnl-csum-segmentation", "off"];
    hosts.lab.host.run(&off);
    let cut = hosts.moved();
    assert!(cut.copies == 0 && cut.sent < SEGMENTS / 2, "{cut:?}");
    // The far kernel cuts what it sends before it gets here.
    hosts.lab.peer.run(&off);
    let pieces = hosts.moved();
    assert!(pieces.copies == 0 && pieces.received > SEGMENTS, "{pieces:?}");
    hosts.end();
}

#[test]
fn gso_super_frames_are_taken_whole_by_a_tap() {
    taken_whole_by_a_tap(Family::V4);
}

#[test]
fn gso_super_frames_are_taken_whole_by_a_tap_over_ipv6() {
    taken_whole_by_a_tap(Family::V6);
}
