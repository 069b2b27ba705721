//! The two ways between both hosts, and a stream of numbered datagrams over them.

use std::time::{Duration, Instant};

use serde_json::Value;
use tests::frr::Bfdd;
use tests::lab::{Lab, Remote, Tenant, UNDERLAY_MTU, vpc};
use tests::netns::cable;
use tests::runtime::port_count;
use tests::{Counters, Daemon, Family, Netns, Process, Workdir, pair, process, script, traffic, wait_for};

pub const PATIENCE: Duration = Duration::from_secs(15);
/// Flows of the stream, and milliseconds between two datagrams of each.
pub const FLOWS: usize = 16;
pub const EVERY_MS: u32 = 5;
/// Both ends send every 100 ms and are missed after three of those.
pub const DETECTION_MS: u32 = 300;
/// A turn of control, and what a machine that does other things besides may add: the others are late too then.
pub const SLACK_MS: u32 = 300;

pub struct Ways {
    pub daemon: Daemon,
    pub near: Tenant,
    pub far: Remote,
    pub fabric: Netns,
    pub dir: Workdir,
    pub lab: Lab,
}

/// The address of an end of a way: 1 the switch's, 2 the peer's.
pub fn address(family: Family, way: usize, end: u8) -> String {
    match family {
        Family::V4 => format!("192.168.{way}.{end}"),
        Family::V6 => format!("fd01:{}::{end}", way + 1),
    }
}

/// The lines of bfdd for both ways.
pub fn both_ways(family: Family) -> String {
    let peer = |way: usize| {
        format!(
            " peer {} local-address {}\n  receive-interval 100\n  transmit-interval 100\n  detect-multiplier 3\n exit\n",
            address(family, way, 1),
            address(family, way, 2)
        )
    };
    [0, 1].map(peer).concat()
}

/// The config of the switch; `bfd` is what its uplinks say of BFD.
pub fn config(family: Family, near: &Tenant, far: &Remote, bfd: &str) -> String {
    let (host, prefix) = if family == Family::V6 { (128, 64) } else { (32, 30) };
    let uplink = |n: usize| {
        format!(
            "[[uplink]]\nname = \"up{n}\"\nport = {{ kind = \"veth\", iface = \"up{n}\" }}\nmtu = {UNDERLAY_MTU}\n\
             addresses = [\"{}/{host}\", \"{}/{prefix}\"]\ngateway = [\"{}\"]\npeers = [\"{}\"]\n{bfd}\n",
            family.local_vtep(),
            address(family, n, 1),
            address(family, n, 2),
            family.remote_vtep()
        )
    };
    let networks = vpc("red", pair::VNIS[0], &["10.0.0.0/24"], "");
    let near = near.vnic_on("{ kind = \"veth\", iface = \"near\" }");
    [uplink(0), uplink(1), networks, near, far.location()].concat()
}

pub const BFD: &str = "bfd = { min-tx = \"100ms\", min-rx = \"100ms\" }";

impl Ways {
    /// With an end that has to answer in time.
    #[track_caller]
    pub fn start(family: Family, bfd: &str) -> Ways {
        process::hurry();
        Self::start_beside_others(family, bfd)
    }

    /// With all processes at the priority that they have everywhere: under a real-time one the switch's threads would take turns of 100 ms.
    #[track_caller]
    pub fn start_beside_others(family: Family, bfd: &str) -> Ways {
        let lab = Lab::new(family);
        let fabric = Netns::new("fabric");
        lay(&lab, &fabric);
        let near = lab.cabled_tenant("near", "red", pair::MACS[0], &["10.0.0.1/24"]);
        let options = if family == Family::V6 { "udp6zerocsumrx" } else { "" };
        let far = lab.routed_remote("far", pair::VNIS[0], pair::MACS[2], &["10.0.0.2/24"], options);
        let mut daemon = Daemon::start(&lab.host, &config(family, &near, &far, bfd));
        daemon.settled();
        traffic::ping(&near.netns, "10.0.0.2", 100, 3);
        Ways { daemon, near, far, fabric, dir: Workdir::new("bfd"), lab }
    }

    /// What the switch says of its session on a way.
    pub fn session(&self, way: usize) -> Value {
        let shown = self.daemon.json("show bfd");
        let mut rows = shown.as_array().unwrap().iter();
        rows.find(|row| row["uplink"] == format!("up{way}")).cloned().unwrap_or_default()
    }

    #[track_caller]
    pub fn await_session(&self, way: usize, state: &str, path: &str) {
        wait_for(&format!("the session of way {way} to be {state}"), PATIENCE, || {
            let shown = self.session(way);
            (shown["state"] == state && shown["path"] == path).then_some(())
        });
    }

    /// Waits until a session is up at both ends, and checks that they mean the same one and agree about times.
    #[track_caller]
    pub fn await_up(&self, bfdd: &Bfdd, way: usize) {
        let peer = address(self.lab.family(), way, 1);
        wait_for("both ends to be up and to have agreed", PATIENCE, || {
            let (own, theirs) = (self.session(way), bfdd.peer(&peer));
            let up = own["state"] == "up" && own["peer-state"] == "up" && theirs["status"] == "up";
            (up && own["interval-ms"] == 100.0 && theirs["remote-transmit-interval"] == 100).then_some(())
        });
        let (own, theirs) = (self.session(way), bfdd.peer(&peer));
        assert_eq!(own["peer-discriminator"], theirs["id"], "{own} {theirs}");
        assert_eq!(own["discriminator"], theirs["remote-id"], "{own} {theirs}");
        assert_eq!(own["detection-ms"], f64::from(DETECTION_MS), "{own} {theirs}");
        assert_eq!(theirs["remote-receive-interval"], 100, "{own} {theirs}");
        assert_eq!(theirs["remote-detect-multiplier"], 3, "{own} {theirs}");
        assert_eq!((&own["path"], &own["diagnostic"]), (&"used".into(), &"none".into()));
    }

    /// A way dies between the two switches of the fabric, or is mended: no end of a cable notices.
    pub fn cut(&self, way: usize, cut: bool) {
        let word = if cut { "nomaster".to_owned() } else { format!("master br{way}") };
        self.fabric.ip(&format!("link set p{way} {word}"));
        let shown = self.daemon.json("show uplink");
        assert!(shown.as_array().unwrap().iter().all(|row| row["link"] == "up"), "a link was lost: {shown}");
    }

    pub fn sent(&self) -> [i64; 2] {
        ["up0", "up1"].map(|name| port_count(&self.daemon, name, "tx-packets"))
    }

    pub fn stream(&self) -> Stream {
        Stream::start(&self.near.netns, &self.far.netns, &self.dir)
    }

    /// Has the peer's kernel answer by some of the ways, as a routing daemon would that listens to its bfdd.
    pub fn answer_by(&self, ways: &[usize]) {
        let family = self.lab.family();
        let hops: Vec<String> =
            ways.iter().map(|way| format!("nexthop via {}", address(family, *way, 1))).collect();
        let (version, host) = if family == Family::V6 { ("-6", 128) } else { ("-4", 32) };
        self.lab.peer.ip(&format!(
            "{version} route replace {}/{host} {}",
            family.local_vtep(),
            hops.join(" ")
        ));
    }

    /// The counters as they are: those of packets that BFD sends and hears never stand still.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        counters.add("fwd", &self.daemon.json("show fwd stats all"));
        counters.add("port", &self.daemon.json("show port stats all"));
        counters
    }

    /// Ends all that sends without being asked, then the switch.
    #[track_caller]
    pub fn stop(self, bfdd: Bfdd) {
        drop(bfdd);
        let quiet = config(self.lab.family(), &self.near, &self.far, "");
        self.daemon.rewrite_config(&quiet);
        self.daemon.ctl("config reload");
        let Ways { daemon, .. } = self;
        daemon.stop();
    }
}

/// Puts a bridge into the lab's cable and a second way beside it.
pub fn lay(lab: &Lab, fabric: &Netns) {
    let (peer, family) = (&lab.peer, lab.family());
    peer.ip(&format!("link set up0 netns {} name f0", fabric.name()));
    cable((&lab.host, "up1"), (fabric, "f1"), UNDERLAY_MTU);
    for way in [0, 1] {
        cable((fabric, &format!("p{way}")), (peer, &format!("u{way}")), UNDERLAY_MTU);
        for line in [
            &format!("link add br{way} mtu {UNDERLAY_MTU} type bridge forward_delay 0 mcast_snooping 0"),
            &format!("link set f{way} master br{way}"),
            &format!("link set p{way} master br{way}"),
            &format!("link set f{way} up"),
            &format!("link set br{way} up"),
        ] {
            fabric.ip(line);
        }
        let (prefix, nodad) = if family == Family::V6 { (64, "nodad") } else { (30, "") };
        peer.ip(&format!("addr add {}/{prefix} dev u{way} {nodad}", address(family, way, 2)));
    }
    let (host, version, nodad) = if family == Family::V6 { (128, "ipv6", "nodad") } else { (32, "ipv4", "") };
    peer.ip(&format!("addr add {}/{host} dev lo {nodad}", family.remote_vtep()));
    peer.sysctl(&[&format!("net.{version}.fib_multipath_hash_policy=1"), "net.ipv4.conf.all.rp_filter=0"]);
    let ways = [0, 1].map(|way| format!("nexthop via {}", address(family, way, 1))).join(" ");
    let flag = if family == Family::V6 { "-6" } else { "-4" };
    peer.ip(&format!("{flag} route add {}/{host} {ways}", family.local_vtep()));
}

/// Numbered datagrams from the tenant to the far end.
pub struct Stream {
    sender: Process,
    receiver: Process,
    until: std::path::PathBuf,
    started: Instant,
}

impl Stream {
    #[track_caller]
    pub fn start(near: &Netns, far: &Netns, dir: &Workdir) -> Stream {
        let helper = script::path("paced.py").display().to_string();
        let until = dir.path().join("until");
        let _ = std::fs::remove_file(&until);
        let mut receiver = far.spawn("paced-serve", &[script::PYTHON, &helper, "serve", "10.0.0.2"], dir);
        receiver.wait_output("ready", PATIENCE);
        let (flows, every) = (FLOWS.to_string(), EVERY_MS.to_string());
        let path = until.display().to_string();
        let args = [script::PYTHON, &helper, "send", "10.0.0.2", &flows, &every, &path];
        Stream { sender: near.spawn("paced-send", &args, dir), receiver, until, started: Instant::now() }
    }

    /// Ends it: of each flow, how many datagrams were lost, and most of them in a row.
    #[track_caller]
    pub fn stop(mut self) -> Vec<(u32, u32)> {
        std::fs::write(&self.until, "").unwrap();
        assert!(self.sender.wait(PATIENCE).success() && self.receiver.wait(PATIENCE).success());
        let last = |process: &Process| -> Value {
            let text = process.output();
            serde_json::from_str(text.lines().last().unwrap()).unwrap_or_else(|e| panic!("{e}: {text}"))
        };
        let rounds = last(&self.sender)["rounds"].as_u64().unwrap() as u32;
        let flows: Vec<(u32, u32)> = last(&self.receiver)
            .as_array()
            .unwrap()
            .iter()
            .map(|flow| {
                let count = |name: &str| flow[name].as_u64().unwrap() as u32;
                // What is missing at the end counts, too.
                (rounds - count("datagrams"), count("longest"))
            })
            .collect();
        assert_eq!(flows.len(), FLOWS, "{flows:?}");
        println!("{rounds} datagrams of each flow in {:?}", self.started.elapsed());
        flows
    }
}

/// Packets of the tenant that its kernel could not hand to the switch, whose worker had no core for a while.
pub fn missed(ways: &Ways) -> i64 {
    ways.counters().get("port.near.imissed")
}

/// Ends a stream, of which nothing was lost but what was [`missed`] meanwhile; `before`: what had been by its start.
#[track_caller]
pub fn assert_none_lost(ways: &Ways, stream: Stream, before: i64) {
    let flows = stream.stop();
    let (lost, missed) = (flows.iter().map(|flow| i64::from(flow.0)).sum::<i64>(), missed(ways) - before);
    println!("{lost} lost, {missed} not received");
    assert!(lost <= missed, "{lost} lost, {missed} not received: {flows:?}");
}

/// Waits until the stream goes by both ways.
#[track_caller]
pub fn await_both(ways: &Ways) {
    let before = ways.sent();
    wait_for("the stream to take both ways", PATIENCE, || {
        let after = ways.sent();
        after.iter().zip(&before).all(|(after, before)| after - before > 100).then_some(())
    });
}
