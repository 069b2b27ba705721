//! A switch with a port of each kind, and traffic that tells for how long each was out of reach.

use std::time::{Duration, Instant};

use super::{Echo, Probe, Seen, VhostEcho};
use crate::lab::{Lab, Remote, Tenant, vpc};
use crate::vhost::Station;
use crate::{Daemon, Family, Workdir, pair};

const PATIENCE: Duration = Duration::from_secs(15);
/// Between two datagrams to each machine.
const PACE: Duration = Duration::from_millis(5);
/// Who sends, behind another host.
pub const FAR: &str = "10.0.0.200/16";
/// On a veth, on a tap, on packet sockets of DPDK's.
pub const VETH: &str = "10.0.0.11";
const TAP: &str = "10.0.0.12";
const PACKET: &str = "10.0.0.13";
/// On a vhost-user socket of the switch's, and on one of its own.
const SERVED: Station = Station(0x201);
const ASKED: Station = Station(0x202);
/// What each is, by address.
pub const KINDS: [(&str, &str); 5] = [
    (VETH, "veth"),
    (TAP, "tap"),
    (PACKET, "af-packet"),
    ("10.0.2.1", "vhost-user, server"),
    ("10.0.2.2", "vhost-user, client"),
];
/// The container on the veth is asked, and asks; nobody else may begin anything with it.
const GROUPS: &str = "[[security-group]]\nname = \"asked\"\nvpc = \"red\"\nrules = [\n\
     { direction = \"in\", protocol = \"udp\", ports = \"7791\" },\n\
     { direction = \"in\", protocol = \"tcp\", ports = \"7799\" },\n]\n";

/// The switch, its tenants, and a machine behind another host.
#[derive(Debug)]
pub struct Site {
    /// The switch.
    pub daemon: Daemon,
    /// A container on a veth, under rules.
    pub veth: Tenant,
    /// Who sends.
    pub far: Remote,
    _tap: Tenant,
    _packet: Tenant,
    _echoes: Vec<Echo>,
    peers: [VhostEcho; 2],
    _dir: Workdir,
    /// The hosts.
    pub lab: Lab,
}

fn mac(last: u8) -> String {
    format!("02:00:00:00:05:{last:02x}")
}

impl Site {
    /// Starts it.
    #[track_caller]
    pub fn start() -> Site {
        let (lab, dir) = (Lab::new(Family::V4), Workdir::new("restart"));
        let at = |address: &str| format!("{address}/16");
        let veth = lab.cabled_tenant("ve", "red", &mac(1), &[&at(VETH)]);
        let tap = lab.tenant("ta", "red", &mac(2), &[&at(TAP)]);
        let packet = lab.cabled_tenant("pa", "red", &mac(3), &[&at(PACKET)]);
        let far = lab.remote("far", pair::VNIS[0], &mac(9), &[FAR], "");
        let peers = [
            VhostEcho::connecting(&SERVED.socket(dir.path())),
            VhostEcho::listening(&ASKED.socket(dir.path())),
        ];
        let config = [
            lab.uplink(""),
            vpc("red", pair::VNIS[0], &["10.0.0.0/16"], ""),
            GROUPS.to_owned(),
            veth.vnic_on("{ kind = \"veth\", iface = \"ve\" }").replacen("mac =", "security-groups = [\"asked\"]\nmac =", 1),
            tap.vnic_on(&format!(
                "{{ kind = \"tap\", iface = \"eth0\", netns = \"/run/netns/{}\", mac = \"{}\", persist = true }}",
                tap.netns.name(),
                tap.mac
            )),
            packet.vnic_on("{ kind = \"af-packet\", iface = \"pa\" }"),
            SERVED.vnic_by("red", dir.path(), true),
            ASKED.vnic_by("red", dir.path(), false),
            far.location(),
            format!("[control]\nstate = \"{}\"\n", dir.path().join("state").display()),
        ];
        let daemon = Daemon::start(&lab.host, &config.concat());
        tap.netns.ip(&format!("addr add {TAP}/16 dev eth0"));
        let machines = [(&veth, VETH), (&tap, TAP), (&packet, PACKET)];
        let echoes = machines.map(|(tenant, address)| Echo::start(&tenant.netns, address)).into();
        Site { daemon, veth, far, _tap: tap, _packet: packet, _echoes: echoes, peers, _dir: dir, lab }
    }

    /// Ends the switch by a signal and starts it again at once; how long it took to end, and until it answered.
    #[track_caller]
    pub fn restart(&mut self, signal: &str) -> [Duration; 2] {
        let began = Instant::now();
        let process = self.daemon.process();
        process.signal(signal);
        process.wait(PATIENCE);
        let ended = began.elapsed();
        self.daemon.restart(&self.lab.host);
        [ended, began.elapsed()]
    }

    /// Datagrams to a machine on each kind of port.
    #[track_caller]
    pub fn probe(&self) -> Probe {
        Probe::start(&self.far.netns, PACE, &KINDS.map(|(address, _)| address))
    }

    /// Ends it with the checks that every scenario owes.
    #[track_caller]
    pub fn stop(self) {
        let Site { daemon, peers, lab: _lab, .. } = self;
        daemon.stop();
        let connections = peers.map(VhostEcho::stop);
        assert!(connections.iter().all(|&count| count > 1), "{connections:?}");
    }
}

/// Everybody answers after it, and did not have to wait for longer than that.
#[track_caller]
pub fn assert_short(what: &str, probe: Probe, most: Duration) {
    let longest = longest(what, probe);
    assert!(longest < most, "{what}: out for {longest:?}");
}

/// The longest outage of all kinds of port; that of each is printed.
#[track_caller]
pub fn longest(what: &str, probe: Probe) -> Duration {
    let seen = probe.stop();
    for (address, kind) in KINDS {
        let Seen { sent, came, longest } = seen[address];
        eprintln!("{what}: {kind}: out for {longest:?}, {came} of {sent} came back");
    }
    KINDS.iter().map(|(address, _)| seen[*address].longest).max().unwrap_or_default()
}
