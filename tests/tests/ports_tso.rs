//! TCP super-frames of a container that leave whole for the uplink, whose device cuts them inside the tunnel: the device `net_eswitch` of
//! the crate `testdev` does it as NICs do, and the kernel's own vxlan device and TCP judge the pieces.
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
    _lab: Lab,
    _folder: Workdir,
}

/// A container here and the kernel's vxlan device behind an uplink whose device cuts; `uplink` are further lines of it.
fn hosts(underlay: Family, uplink: &str) -> Hosts {
    let folder = Workdir::new("tso");
    let plugin = ESWITCH.build(folder.path()).unwrap_or_else(|error| panic!("{error}"));
    let lab = Lab::new(underlay);
    let red = lab.cabled_tenant("red", "red", pair::MACS[0], &pair::NEAR);
    for (netns, iface) in [(&red.netns, "eth0"), (&lab.host, "red")] {
        netns.run(&["ethtool", "-K", iface, "tx", "on"]);
    }
    // It verifies what the device computes.
    let options = if underlay == Family::V6 { "udp6zerocsumrx" } else { "" };
    let far = lab.remote("redfar", pair::VNIS[0], pair::MACS[2], &pair::FAR, options);
    let config = [
        format!("[eal]\nplugins = [\"{}\"]\n", plugin.display()),
        lab.uplink_on("{ kind = \"raw\", vdev = \"net_eswitch0,iface=up0,tso=1\" }", uplink),
        vpc("red", pair::VNIS[0], &["10.0.0.0/24", "fd00:1::/64"], ""),
        far.location(),
        red.vnic_on("{ kind = \"veth\", iface = \"red\" }"),
    ]
    .concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    traffic::ping(&red.netns, "10.0.0.2", 56, 3);
    traffic::ping(&red.netns, "fd00:1::2", 56, 3);
    daemon.settled();
    Hosts { daemon, red, far, config, _lab: lab, _folder: folder }
}

impl Hosts {
    /// Transfers both ways, over both families; how many pieces were cut in software, and how many super-frames by the device.
    fn transfer(&self) -> (i64, i64) {
        let (daemon, red, far) = (&self.daemon, &self.red.netns, &self.far.netns);
        let (before, cut) = (daemon.counters(), self.device("tx_super_frames"));
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
        (after.get("fwd.copies") - before.get("fwd.copies"), self.device("tx_super_frames") - cut)
    }

    fn device(&self, name: &str) -> i64 {
        self.daemon.figure("show port xstats up", &format!("/0/xstats/{name}"))
    }

    fn cuts_in(&self) -> String {
        self.daemon.json("show port info up")[0]["tunnel-tso"].as_str().unwrap_or_default().to_owned()
    }

    fn stop(mut self) {
        assert_eq!((self.device("flow_misused"), self.device("tx_errors")), (0, 0), "{}", self.daemon.log());
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
