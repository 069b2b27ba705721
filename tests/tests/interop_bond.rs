//! An uplink that is a bond whose members speak LACP with Open vSwitch; the kernel's own vxlan device is behind that.
//!
//! ```text
//!  near ── switch ── bond { m0, m1 } ═══ { p0, p1 } bond ── up0 (bridge of OVS) ── vxlan ── far
//! ```
//! DPDK's packet sockets do not tell that a link is gone, so no link is taken away here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use serde_json::{Value, json};
use tests::lab::{Lab, Remote, Tenant, UNDERLAY_MTU, vpc};
use tests::netns::cable;
use tests::ovs::Ovs;
use tests::steady::{Flows, Stream};
use tests::{Daemon, Family, pair, traffic, wait_for};

/// Both ends agree with their first words, where they are heard; else with those of 30 s later.
const PATIENCE: Duration = Duration::from_secs(60);
/// Enough for a hash to use both members.
const FLOWS: u32 = 64;

/// Sends frames of slow protocols (IEEE 802.3 annex 57A) that are no LACP: of a foreign subtype, or cut off before its partner.
const GARBAGE: &str = "import random, socket, sys\n\
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\nout.bind((sys.argv[1], 0))\nrandom.seed(7)\n\
    head = bytes.fromhex('0180c2000002' + '02000000dead' + '8809')\n\
    for n in range(3000):\n    subtype = random.choice([0, 2, 3, 4, 10, 255]) if n % 2 else 1\n\
    \x20   most = 1400 if subtype != 1 else 20\n\
    \x20   out.send(head + bytes([subtype]) + random.randbytes(random.randrange(most)))\n";

/// The network, with the switch in place.
struct Bonded {
    daemon: Daemon,
    near: Tenant,
    far: Remote,
    lab: Lab,
}

/// Two cables between the hosts, and what has the other host's VTEP address to be made of p0 and p1.
fn cables() -> Lab {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    // The kernel is not to answer for the bridge's address by the cables.
    lab.peer.sysctl(&["net.ipv4.conf.all.arp_ignore=1"]);
    for (netns, name) in [(&lab.host, "m0"), (&lab.peer, "p0")] {
        netns.ip("link set up0 down");
        netns.ip(&format!("link set up0 name {name}"));
        netns.ip(&format!("link set {name} up"));
    }
    cable((&lab.host, "m1"), (&lab.peer, "p1"), UNDERLAY_MTU);
    for (netns, names) in [(&lab.host, ["m0", "m1"]), (&lab.peer, ["p0", "p1"])] {
        for name in names {
            netns.run(&["ethtool", "-K", name, "tx", "off", "tso", "off", "gso", "off", "gro", "off"]);
        }
    }
    lab
}

impl Bonded {
    /// The switch, once `up0` of the other host is there.
    fn start(lab: Lab) -> Bonded {
        let address = format!("{}/24", Family::V4.remote_vtep());
        lab.peer.ip(&format!("link set up0 mtu {UNDERLAY_MTU} up"));
        lab.peer.ip(&format!("addr add {address} dev up0"));
        let near = lab.cabled_tenant("near", "red", pair::MACS[0], &pair::NEAR);
        let far = lab.remote("far", pair::VNIS[0], pair::MACS[2], &pair::FAR, "");
        let member = |name| format!("{{ kind = \"af-packet\", iface = \"{name}\" }}");
        let bond = format!("{{ kind = \"bond\", members = [{}, {}] }}", member("m0"), member("m1"));
        let config = [
            lab.uplink_on(&bond, ""),
            vpc("red", pair::VNIS[0], &["10.0.0.0/24", "fd00:1::/64"], ""),
            near.vnic_on("{ kind = \"veth\", iface = \"near\" }"),
            far.location(),
        ]
        .concat();
        let daemon = Daemon::start(&lab.host, &config);
        Bonded { daemon, near, far, lab }
    }

    fn members(&self) -> Vec<Value> {
        self.daemon.json("show port info up")[0]["members"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until so many members send, as the switch and, by LACP, its partner see it.
    #[track_caller]
    fn wait_distributing(&self, wanted: usize) {
        wait_for(&format!("{wanted} members to distribute"), PATIENCE, || {
            let members = self.members();
            let sends = |member: &&Value| {
                ["actor", "partner"].iter().all(|end| {
                    let states = member["lacp"][end].as_array();
                    member["up"] == true
                        && states.is_some_and(|states| states.contains(&json!("distributing")))
                })
            };
            (members.iter().filter(sends).count() == wanted).then_some(())
        });
    }

    /// Frames that came to each of p0 and p1, and that went out of them.
    fn frames(&self) -> [[u64; 2]; 2] {
        ["p0", "p1"].map(|name| {
            ["rx_packets", "tx_packets"].map(|count| {
                let path = format!("/sys/class/net/{name}/statistics/{count}");
                self.lab.peer.run(&["cat", &path]).trim().parse().unwrap()
            })
        })
    }

    /// Frames that each of p0 and p1 got while many flows were exchanged, and those that they sent.
    fn spread(&self) -> [[u64; 2]; 2] {
        let before = self.frames();
        Flows::exchange(&self.near.netns, &self.far.netns, "10.0.0.2", FLOWS, 10);
        let after = self.frames();
        [0, 1].map(|way| [0, 1].map(|n| after[n][way] - before[n][way]))
    }
}

#[test]
fn ports_bond_speaks_lacp_with_open_vswitch() {
    let lab = cables();
    let ovs = Ovs::start(&lab.peer);
    ovs.vsctl("add-br up0 -- set bridge up0 datapath_type=netdev");
    ovs.vsctl("add-bond up0 bond0 p0 p1 lacp=active bond_mode=balance-tcp");
    ovs.vsctl(&format!("set interface up0 mtu_request={UNDERLAY_MTU}"));
    let mut bonded = Bonded::start(lab);
    bonded.wait_distributing(2);
    let theirs = ovs.appctl("lacp/show bond0");
    assert_eq!(theirs.matches("current attached").count(), 2, "{theirs}");
    wait_for("the underlay to be resolved", PATIENCE, || {
        let shown = bonded.daemon.json("show neigh");
        let mut rows = shown.as_array().into_iter().flatten();
        rows.any(|row| row["state"] == "reachable").then_some(())
    });
    bonded.daemon.settled();
    traffic::ping(&bonded.near.netns, "10.0.0.2", 1400, 3);
    traffic::ping(&bonded.near.netns, "fd00:1::2", 1400, 3);
    let stream = Stream::start(&bonded.near.netns, &bonded.far.netns, "10.0.0.2");
    for _ in 0..3 {
        let [sent, received] = bonded.spread();
        assert!(sent.iter().all(|&frames| frames > 100), "both members send: {sent:?}");
        assert!(received.iter().all(|&frames| frames > 100), "both members receive: {received:?}");
    }
    // What is no LACP comes by both cables as such, of every length and subtype: nobody is harmed, and nothing is believed.
    let before = bonded.members();
    for name in ["p0", "p1"] {
        bonded.lab.peer.run(&["/usr/bin/python3", "-c", GARBAGE, name]);
    }
    bonded.wait_distributing(2);
    assert_eq!(bonded.members(), before, "no member left its aggregate");
    // Nobody speaks for a stopped switch, but three of the partner's intervals of 30 s are not over soon.
    bonded.daemon.ctl("stop");
    bonded.daemon.ctl("start");
    assert!(stream.stop() > 0);
    bonded.wait_distributing(2);
    for reason in ["tx-stalled", "tx-refused", "link-down"] {
        assert!(bonded.daemon.drops(reason) < 20, "{reason}: only before both ends had agreed");
    }
    bonded.daemon.assert_conserved();
    bonded.daemon.stop();
}
