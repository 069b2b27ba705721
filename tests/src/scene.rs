//! The scene of scenarios with crafted frames: the switch with one tenant, and nobody else who might answer.
//!
//! ```text
//!  red (10.0.0.1, fd00:1::1) ── switch ── up0 ── "far" (10.0.0.2, fd00:1::2) behind the other VTEP
//! ```
//! Neither the tenant nor the other host has an address of its own, so that no kernel adds packets to the counters: what
//! moves is what the scenario sent. The underlay neighbour is static for the same reason.

use crate::counters::Moved;
use crate::{Agent, Counters, Daemon, Family, Lab, Tenant, lab};
use std::time::Duration;

/// The VNI of the tenant's VPC.
pub const VNI: u32 = 100;
const RED_MAC: &str = "02:00:00:00:01:01";
const FAR_MAC: &str = "02:00:00:00:01:02";
const RED: [&str; 2] = ["10.0.0.1/24", "fd00:1::1/64"];
const FAR: [&str; 2] = ["10.0.0.2/24", "fd00:1::2/64"];

/// What crafted frames call the stations.
const NAMES: [(&str, &str); 6] = [
    ("red_mac", RED_MAC),
    ("red_ip", "10.0.0.1"),
    ("red_ip6", "fd00:1::1"),
    ("far_mac", FAR_MAC),
    ("far_ip", "10.0.0.2"),
    ("far_ip6", "fd00:1::2"),
];

/// A running scene. The fields go in this order: the switch stops before its ports vanish.
#[derive(Debug)]
pub struct Scene {
    /// The switch.
    pub daemon: Daemon,
    /// The sender and watcher of frames: wires "red" and "peer".
    pub agent: Agent,
    /// The tenant.
    pub red: Tenant,
    /// The network.
    pub lab: Lab,
}

impl Scene {
    /// Starts the switch; `vpc` are further lines of the `[[vpc]]`, `more` is further config.
    #[track_caller]
    pub fn start(underlay: Family, vpc: &str, more: &str) -> Scene {
        Scene::start_on(underlay, "", &[], vpc, more)
    }

    /// As `start`; `uplink` are further lines of the `[[uplink]]`, `neighbours` are further stations of the underlay (address,
    /// MAC), for VTEPs that nobody plays.
    #[track_caller]
    pub fn start_on(
        underlay: Family,
        uplink: &str,
        neighbours: &[(String, String)],
        vpc: &str,
        more: &str,
    ) -> Scene {
        let lab = Lab::new(underlay);
        let red = lab.tenant("red", "red", RED_MAC, &RED);
        lab.peer.ip("addr flush dev up0");
        lab.peer.sysctl(&["net.ipv6.conf.all.disable_ipv6=1"]);
        let other = (underlay.remote_vtep().to_owned(), lab.peer_mac());
        let rows: Vec<String> = std::iter::once(&other)
            .chain(neighbours)
            .map(|(ip, mac)| format!("{{ ip = \"{ip}\", mac = \"{mac}\" }}"))
            .collect();
        let config = [
            lab.uplink(&format!("neighbours = [{}]\n{uplink}", rows.join(", "))),
            lab::vpc("red", VNI, &["10.0.0.0/24", "fd00:1::/64"], vpc),
            red.vnic(),
            lab::location(underlay.remote_vtep(), VNI, FAR_MAC, &FAR),
            more.to_owned(),
        ]
        .concat();
        let mut daemon = Daemon::start(&lab.host, &config);
        red.plug_mute(&lab.host);
        daemon.settled();
        let agent = Agent::start(&lab, &[("red", &red.netns)], &NAMES);
        Scene { daemon, agent, red, lab }
    }

    /// As `start`, with a tap that is made where the tenant is and outlives the switch.
    #[track_caller]
    pub fn start_lasting(underlay: Family, more: &str) -> Scene {
        let lab = Lab::new(underlay);
        let red = lab.tenant("red", "red", RED_MAC, &RED);
        red.netns.sysctl(&["net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"]);
        lab.peer.ip("addr flush dev up0");
        lab.peer.sysctl(&["net.ipv6.conf.all.disable_ipv6=1"]);
        let other = format!("{{ ip = \"{}\", mac = \"{}\" }}", underlay.remote_vtep(), lab.peer_mac());
        let netns = red.netns.name();
        let config = [
            lab.uplink(&format!("neighbours = [{other}]")),
            lab::vpc("red", VNI, &["10.0.0.0/24", "fd00:1::/64"], ""),
            red.vnic_on(&format!(
                "{{ kind = \"tap\", iface = \"eth0\", netns = \"{netns}\", persist = true }}"
            )),
            lab::location(underlay.remote_vtep(), VNI, FAR_MAC, &FAR),
            more.to_owned(),
        ]
        .concat();
        let mut daemon = Daemon::start(&lab.host, &config);
        daemon.settled();
        let agent = Agent::start(&lab, &[("red", &red.netns)], &NAMES);
        Scene { daemon, agent, red, lab }
    }

    /// Kills the switch as a crash would, and starts it again on the same config.
    #[track_caller]
    pub fn crash_and_restart(&mut self) {
        let process = self.daemon.process();
        process.signal("KILL");
        process.wait(Duration::from_secs(10));
        self.daemon.restart(&self.lab.host);
        // The tap went with the process, and the agent's socket with the tap.
        self.red.plug_mute(&self.lab.host);
        self.daemon.settled();
        self.agent = Agent::start(&self.lab, &[("red", &self.red.netns)], &NAMES);
    }

    /// Sends frames from the underlay and returns what the tenant saw, with the counters before and after.
    #[track_caller]
    pub fn inbound<S: AsRef<str>>(&mut self, frames: &[S]) -> Outcome {
        self.through("peer", frames, "red")
    }

    /// Sends frames from the tenant and returns what the other host saw, with the counters before and after.
    #[track_caller]
    pub fn outbound<S: AsRef<str>>(&mut self, frames: &[S]) -> Outcome {
        self.through("red", frames, "peer")
    }

    #[track_caller]
    fn through<S: AsRef<str>>(&mut self, from: &str, frames: &[S], watch: &str) -> Outcome {
        let before = self.daemon.counters();
        let exchange = self.agent.exchange(from, frames, &[watch]);
        let after = self.daemon.counters();
        Outcome { sent: exchange.sent, seen: exchange.on(watch).to_vec(), before, after }
    }

    /// Stops the switch with every check a scenario owes.
    #[track_caller]
    pub fn stop(self) {
        self.daemon.stop();
    }
}

/// What came of frames sent through the switch.
#[derive(Debug)]
pub struct Outcome {
    /// How many frames went in.
    pub sent: i64,
    /// What came out, as facts.
    pub seen: Vec<serde_json::Value>,
    /// The counters before.
    pub before: Counters,
    /// The counters after.
    pub after: Counters,
}

impl Outcome {
    /// How often a drop reason was counted.
    pub fn drops(&self, reason: &str) -> i64 {
        let path = format!("fwd.drops.{reason}");
        self.after.get(&path) - self.before.get(&path)
    }

    /// All drops, by reason, that were counted.
    pub fn all_drops(&self) -> Vec<(String, i64)> {
        let moved = self.after.since(&self.before);
        moved
            .into_iter()
            .filter_map(|(path, n)| Some((path.strip_prefix("fwd.drops.")?.to_owned(), n)))
            .collect()
    }

    /// Asserts that these counters moved so, besides those of an exchange from the underlay, and no others: every frame was
    /// received at the uplink, those seen were delivered to the tenant, `drops` are the others.
    #[track_caller]
    pub fn assert_inbound(&self, drops: &[(&str, i64)], more: &[(&str, i64)]) {
        let came = self.seen.len() as i64;
        self.assert_counted(
            &[("port.up.rx-packets", self.sent), ("port.red.tx-packets", came), ("fwd.sent", came)],
            drops,
            more,
        );
    }

    /// As `assert_inbound`, for an exchange from the tenant.
    #[track_caller]
    pub fn assert_outbound(&self, drops: &[(&str, i64)], more: &[(&str, i64)]) {
        let came = self.seen.len() as i64;
        let wire = [("port.red.rx-packets", self.sent), ("port.up.tx-packets", came), ("fwd.sent", came)];
        self.assert_counted(&[&wire[..], &[("fwd.encapsulated", came)]].concat(), drops, more);
    }

    #[track_caller]
    fn assert_counted(&self, wire: &[(&str, i64)], drops: &[(&str, i64)], more: &[(&str, i64)]) {
        let dropped = drops.iter().map(|(_, n)| n).sum();
        let names: Vec<String> = drops.iter().map(|(reason, _)| format!("fwd.drops.{reason}")).collect();
        let mut expected = vec![("fwd.received", Moved::By(self.sent)), ("fwd.dropped", Moved::By(dropped))];
        expected.extend(wire.iter().chain(more).map(|(name, n)| (*name, Moved::By(*n))));
        expected.extend(names.iter().zip(drops).map(|(name, (_, n))| (name.as_str(), Moved::By(*n))));
        // How long frames are and which of them found their flow known is not what an exchange is about.
        let sizes = ["port.up.rx-bytes", "port.up.tx-bytes", "port.red.rx-bytes", "port.red.tx-bytes"];
        expected.extend(sizes.iter().chain(&["fwd.nft-*"]).map(|name| (*name, Moved::Anyhow)));
        self.after.assert_moved(&self.before, &expected);
    }

    /// Asserts that nothing came out and that every frame was dropped for this one reason.
    #[track_caller]
    pub fn assert_dropped(&self, reason: &str) {
        assert!(self.seen.is_empty(), "expected drops for {reason}, but this came out: {:#?}", self.seen);
        assert_eq!(self.all_drops(), [(reason.to_owned(), self.sent)]);
    }

    /// Asserts that every frame came out, and nothing was dropped.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert_eq!(self.all_drops(), [], "nothing should have been dropped");
        assert_eq!(self.seen.len() as i64, self.sent, "{:#?}", self.seen);
    }
}
