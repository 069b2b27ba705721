//! BFD on uplinks, with bfdd of FRR at the other end: a path that dies behind a switch, with all links up, is left within the
//! detection time; who forges packets moves nothing.
//!
//! ```text
//!            ┌─ up0 ── bridge 0 ── u0 ─┐
//!  host (vswitch)       fabric        peer (bfdd, kernel vxlan)
//!            └─ up1 ── bridge 1 ── u1 ─┘
//! ```
//! Each way is a network; the VTEP addresses of both hosts are routed over either.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::{Duration, Instant};

use serde_json::Value;
use tests::frr::Bfdd;
use tests::lab::{Lab, Remote, Tenant, UNDERLAY_MTU, interface_mac, vpc};
use tests::netns::cable;
use tests::runtime::port_count;
use tests::{Counters, Daemon, Family, Netns, Process, Workdir, pair, process, script, traffic, wait_for};

const PATIENCE: Duration = Duration::from_secs(15);
/// Flows of the stream, and milliseconds between two datagrams of each.
const FLOWS: usize = 16;
const EVERY_MS: u32 = 5;
/// Both ends send every 100 ms and are missed after three of those.
const DETECTION_MS: u32 = 300;
/// A turn of control, and what a machine that does other things besides may add: the others are late too then.
const SLACK_MS: u32 = 300;

struct Ways {
    daemon: Daemon,
    near: Tenant,
    far: Remote,
    fabric: Netns,
    dir: Workdir,
    lab: Lab,
}

/// The address of an end of a way: 1 the switch's, 2 the peer's.
fn address(family: Family, way: usize, end: u8) -> String {
    match family {
        Family::V4 => format!("192.168.{way}.{end}"),
        Family::V6 => format!("fd01:{}::{end}", way + 1),
    }
}

/// The lines of bfdd for both ways.
fn both_ways(family: Family) -> String {
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
fn config(family: Family, near: &Tenant, far: &Remote, bfd: &str) -> String {
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

const BFD: &str = "bfd = { min-tx = \"100ms\", min-rx = \"100ms\" }";

impl Ways {
    #[track_caller]
    fn start(family: Family, bfd: &str) -> Ways {
        process::hurry();
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
    fn session(&self, way: usize) -> Value {
        let shown = self.daemon.json("show bfd");
        let mut rows = shown.as_array().unwrap().iter();
        rows.find(|row| row["uplink"] == format!("up{way}")).cloned().unwrap_or_default()
    }

    #[track_caller]
    fn await_session(&self, way: usize, state: &str, path: &str) {
        wait_for(&format!("the session of way {way} to be {state}"), PATIENCE, || {
            let shown = self.session(way);
            (shown["state"] == state && shown["path"] == path).then_some(())
        });
    }

    /// Waits until a session is up at both ends, and checks that they mean the same one and agree about times.
    #[track_caller]
    fn await_up(&self, bfdd: &Bfdd, way: usize) {
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
    fn cut(&self, way: usize, cut: bool) {
        let word = if cut { "nomaster".to_owned() } else { format!("master br{way}") };
        self.fabric.ip(&format!("link set p{way} {word}"));
        let shown = self.daemon.json("show uplink");
        assert!(shown.as_array().unwrap().iter().all(|row| row["link"] == "up"), "a link was lost: {shown}");
    }

    fn sent(&self) -> [i64; 2] {
        ["up0", "up1"].map(|name| port_count(&self.daemon, name, "tx-packets"))
    }

    fn stream(&self) -> Stream {
        Stream::start(&self.near.netns, &self.far.netns, &self.dir)
    }

    /// Has the peer's kernel answer by some of the ways, as a routing daemon would that listens to its bfdd.
    fn answer_by(&self, ways: &[usize]) {
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
    fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        counters.add("fwd", &self.daemon.json("show fwd stats all"));
        counters.add("port", &self.daemon.json("show port stats all"));
        counters
    }

    /// Ends all that sends without being asked, then the switch.
    #[track_caller]
    fn stop(self, bfdd: Bfdd) {
        drop(bfdd);
        let quiet = config(self.lab.family(), &self.near, &self.far, "");
        self.daemon.rewrite_config(&quiet);
        self.daemon.ctl("config reload");
        let Ways { daemon, .. } = self;
        daemon.stop();
    }
}

/// Puts a bridge into the lab's cable and a second way beside it.
fn lay(lab: &Lab, fabric: &Netns) {
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
struct Stream {
    sender: Process,
    receiver: Process,
    until: std::path::PathBuf,
    started: Instant,
}

impl Stream {
    #[track_caller]
    fn start(near: &Netns, far: &Netns, dir: &Workdir) -> Stream {
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
    fn stop(mut self) -> Vec<(u32, u32)> {
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
fn missed(ways: &Ways) -> i64 {
    ways.counters().get("port.near.imissed")
}

/// Ends a stream, of which nothing was lost but what was [`missed`] meanwhile; `before`: what had been by its start.
#[track_caller]
fn assert_none_lost(ways: &Ways, stream: Stream, before: i64) {
    let flows = stream.stop();
    let (lost, missed) = (flows.iter().map(|flow| i64::from(flow.0)).sum::<i64>(), missed(ways) - before);
    println!("{lost} lost, {missed} not received");
    assert!(lost <= missed, "{lost} lost, {missed} not received: {flows:?}");
}

/// Waits until the stream goes by both ways.
#[track_caller]
fn await_both(ways: &Ways) {
    let before = ways.sent();
    wait_for("the stream to take both ways", PATIENCE, || {
        let after = ways.sent();
        after.iter().zip(&before).all(|(after, before)| after - before > 100).then_some(())
    });
}

fn dies_behind_a_switch(family: Family) {
    let ways = Ways::start(family, BFD);
    let bfdd = Bfdd::start(&ways.lab.peer, &both_ways(family));
    [0, 1].into_iter().for_each(|way| ways.await_up(&bfdd, way));
    for way in [0, 1] {
        let stream = ways.stream();
        await_both(&ways);
        let before = ways.counters();
        ways.cut(way, true);
        ways.await_session(way, "down", "left");
        let shown = ways.session(way);
        assert_eq!(shown["diagnostic"], "detection-time-expired", "{shown}");
        assert_eq!(ways.session(1 - way)["path"], "used");
        // All goes by the other one.
        let sent = ways.sent();
        wait_for("the other way to take the stream", PATIENCE, || {
            let now = ways.sent();
            assert!(now[way] - sent[way] < 50, "{sent:?} {now:?}: packets are still sent into the hole");
            (now[1 - way] - sent[1 - way] > 500).then_some(())
        });
        let peer = address(family, way, 1);
        wait_for("the other end to notice", PATIENCE, || {
            (bfdd.peer(&peer)["status"] == "down").then_some(())
        });
        let after = ways.counters();
        // The far end answers by what is left, and there is no tenant who notices.
        ways.answer_by(&[1 - way]);
        traffic::ping(&ways.near.netns, "10.0.0.2", 100, 20);
        let flows = stream.stop();
        for count in ["fwd.nft-misses", "fwd.nft-stale", "fwd.drops.no-neighbour", "fwd.drops.link-down"] {
            assert_eq!(after.get(count), before.get(count), "{count}");
        }
        let longest = flows.iter().map(|flow| flow.1).max().unwrap();
        // Of the others none is missing for as long as that takes.
        let hit = flows.iter().filter(|flow| flow.1 * EVERY_MS >= DETECTION_MS / 2).count();
        println!(
            "way {way}: {hit} of {FLOWS} flows lost datagrams, {longest} in a row at most: {} ms; all: {flows:?}",
            longest * EVERY_MS
        );
        assert!(
            (1..FLOWS).contains(&hit),
            "{flows:?}: only the flows of the way that died may lose anything"
        );
        assert!(longest * EVERY_MS <= DETECTION_MS + SLACK_MS, "{flows:?}");
        // It comes back, at both ends, and has its flows again; nothing is lost for it.
        let (stream, missed) = (ways.stream(), missed(&ways));
        ways.cut(way, false);
        ways.await_up(&bfdd, way);
        await_both(&ways);
        ways.answer_by(&[0, 1]);
        traffic::ping(&ways.near.netns, "10.0.0.2", 100, 20);
        assert_none_lost(&ways, stream, missed);
    }
    let events = ways.daemon.json("show events").to_string();
    for (word, count) in [("\"bfd-down\"", 2), ("\"bfd-up\"", 4)] {
        assert_eq!(events.matches(word).count(), count, "{word}: {events}");
    }
    assert!(!events.contains("uplink-down"), "{events}");
    ways.stop(bfdd);
}

#[test]
fn failover_bfd_leaves_a_way_that_died_behind_a_switch_over_ipv4() {
    dies_behind_a_switch(Family::V4);
}

#[test]
fn failover_bfd_leaves_a_way_that_died_behind_a_switch_over_ipv6() {
    dies_behind_a_switch(Family::V6);
}

/// The switch asks whoever it is told to, and takes no silence for an answer that was never given.
#[test]
fn failover_bfd_of_peers_that_never_spoke_or_stand_aside_moves_nothing() {
    let ways = Ways::start(Family::V4, BFD);
    let none_lost = |during: &dyn Fn()| {
        let missed = missed(&ways);
        let stream = ways.stream();
        await_both(&ways);
        during();
        await_both(&ways);
        assert_none_lost(&ways, stream, missed);
    };
    // Nobody speaks BFD there: for well over a detection time.
    none_lost(&|| {
        wait_for("three questions", PATIENCE, || (ways.session(0)["sent"].as_i64() > Some(2)).then_some(()));
        assert_eq!(
            (ways.session(0)["state"].clone(), ways.session(0)["path"].clone()),
            ("down".into(), "used".into())
        );
    });
    let mut bfdd = Bfdd::start(&ways.lab.peer, &both_ways(Family::V4));
    [0, 1].into_iter().for_each(|way| ways.await_up(&bfdd, way));
    // Somebody there takes one session down, and up again.
    let configure = |bfdd: &Bfdd, line: &str| {
        bfdd.vtysh(&["configure terminal", "bfd", "peer 192.168.0.1 local-address 192.168.0.2", line]);
    };
    none_lost(&|| {
        configure(&bfdd, "shutdown");
        ways.await_session(0, "down", "used");
        assert_eq!(ways.session(0)["peer-state"], "admin-down");
    });
    configure(&bfdd, "no shutdown");
    ways.await_up(&bfdd, 0);
    // It dies on both ways: there is nothing to be won by giving both up.
    drop(bfdd);
    [0, 1].into_iter().for_each(|way| ways.await_session(way, "down", "left"));
    none_lost(&|| ());
    bfdd = Bfdd::start(&ways.lab.peer, &both_ways(Family::V4));
    [0, 1].into_iter().for_each(|way| ways.await_up(&bfdd, way));
    ways.stop(bfdd);
}

/// Intervals change under sessions that are up, and sessions go and come with the config; a restart begins anew.
#[test]
fn failover_bfd_follows_the_config_while_it_runs() {
    let mut ways = Ways::start(Family::V4, BFD);
    let bfdd = Bfdd::start(&ways.lab.peer, &both_ways(Family::V4));
    [0, 1].into_iter().for_each(|way| ways.await_up(&bfdd, way));
    let reload = |ways: &Ways, bfd: &str| {
        ways.daemon.rewrite_config(&config(Family::V4, &ways.near, &ways.far, bfd));
        ways.daemon.ctl("config reload");
    };
    reload(&ways, "bfd = { min-tx = \"400ms\", min-rx = \"200ms\", multiplier = 5 }");
    wait_for("both ends to keep to the new intervals", PATIENCE, || {
        let (own, theirs) = (ways.session(0), bfdd.peer("192.168.0.1"));
        let ours = own["interval-ms"] == 400.0 && own["detection-ms"] == 600.0;
        let told = theirs["remote-transmit-interval"] == 400 && theirs["remote-receive-interval"] == 200;
        (ours && told && theirs["remote-detect-multiplier"] == 5).then_some(())
    });
    for way in [0, 1] {
        let (own, theirs) = (ways.session(way), bfdd.peer(&address(Family::V4, way, 1)));
        assert_eq!((own["ups"].as_i64(), &theirs["status"]), (Some(1), &"up".into()), "{own} {theirs}");
    }
    let refused = ways.daemon.try_ctl("config reload").is_ok();
    assert!(refused, "the same config again");
    ways.daemon.rewrite_config(&config(Family::V4, &ways.near, &ways.far, "bfd = { min-tx = \"10ms\" }"));
    let error = ways.daemon.try_ctl("config reload").unwrap_err();
    assert!(error.contains("min-tx 10ms is shorter than 80ms"), "{error}");
    assert_eq!(ways.session(1)["state"], "up", "a refused config changes nothing");
    // Without BFD its peers are told that it was wanted so, and paths stay.
    reload(&ways, "");
    assert_eq!(ways.daemon.json("show bfd").as_array().map(Vec::len), Some(0));
    wait_for("the other end to hear why", PATIENCE, || {
        let theirs = bfdd.peer("192.168.0.1");
        let told = theirs["remote-diagnostic"] == "administratively down";
        (theirs["status"] == "down" && told).then_some(())
    });
    traffic::ping(&ways.near.netns, "10.0.0.2", 100, 20);
    reload(&ways, BFD);
    [0, 1].into_iter().for_each(|way| ways.await_up(&bfdd, way));
    // The end of the switch is told, too, and its start begins with nothing known.
    ways.daemon.process().signal("TERM");
    ways.daemon.assert_clean_end();
    wait_for("the other end to hear of the end", PATIENCE, || {
        let theirs = bfdd.peer("192.168.1.1");
        (theirs["status"] == "down" && theirs["remote-diagnostic"] == "administratively down").then_some(())
    });
    ways.daemon.restart(&ways.lab.host);
    [0, 1].into_iter().for_each(|way| ways.await_up(&bfdd, way));
    traffic::ping(&ways.near.netns, "10.0.0.2", 100, 20);
    ways.stop(bfdd);
}

/// A VTEP behind routers is asked through each uplink; its path alone is left.
#[test]
fn failover_bfd_asks_vteps_over_several_hops() {
    let family = Family::V4;
    let asks = "bfd = { min-tx = \"100ms\", min-rx = \"100ms\", peers = [\"192.168.WAY.2\"], vteps = [\"172.16.0.2\"] }";
    let ways = Ways::start(family, "");
    let text = config(family, &ways.near, &ways.far, asks);
    // Each uplink has a peer on its own link.
    let (first, second) = text.split_once("name = \"up1\"").unwrap();
    let text = [first.replace("WAY", "0"), "name = \"up1\"".into(), second.replace("WAY", "1")].concat();
    ways.daemon.rewrite_config(&text);
    ways.daemon.ctl("config reload");
    let peer = |way: usize| {
        format!(
            " peer {} multihop local-address 172.16.0.2\n  receive-interval 100\n  transmit-interval 100\n exit\n",
            address(family, way, 1)
        )
    };
    let bfdd = Bfdd::start(&ways.lab.peer, &[0, 1].map(peer).concat());
    let far = |way: usize| -> Value {
        let shown = ways.daemon.json("show bfd");
        let is_far = |row: &&Value| row["multihop"] == true && row["uplink"] == format!("up{way}");
        shown.as_array().unwrap().iter().find(is_far).cloned().unwrap()
    };
    let await_up = |way: usize| {
        wait_for("both ends to be up", PATIENCE, || {
            let (own, theirs) = (far(way), bfdd.peer(&address(family, way, 1)));
            (own["state"] == "up" && own["interval-ms"] == 100.0 && theirs["status"] == "up").then_some(())
        });
    };
    [0, 1].into_iter().for_each(await_up);
    let stream = ways.stream();
    await_both(&ways);
    ways.cut(1, true);
    wait_for("the way to be left", PATIENCE, || (far(1)["path"] == "left").then_some(()));
    let sent = ways.sent();
    wait_for("the other way to take the stream", PATIENCE, || {
        let now = ways.sent();
        assert!(now[1] - sent[1] < 50, "{sent:?} {now:?}: packets are still sent into the hole");
        (now[0] - sent[0] > 500).then_some(())
    });
    let longest = stream.stop().iter().map(|flow| flow.1).max().unwrap();
    println!("{} ms without packets", longest * EVERY_MS);
    assert!(longest * EVERY_MS <= DETECTION_MS + SLACK_MS, "{longest} in a row");
    ways.cut(1, false);
    await_up(1);
    assert_eq!(far(1)["path"], "used");
    ways.stop(bfdd);
}

fn withstands_forged_packets(family: Family) {
    let ways = Ways::start(family, BFD);
    let bfdd = Bfdd::start(&ways.lab.peer, &both_ways(family));
    [0, 1].into_iter().for_each(|way| ways.await_up(&bfdd, way));
    let stream = ways.stream();
    await_both(&ways);
    let before = ways.counters();
    let heard = ways.session(0)["heard"].as_i64().unwrap();
    // Out of the bridge to the switch: on its link, and with a look at what its peer says.
    let helper = script::path("bfd_storm.py").display().to_string();
    let mac = interface_mac(&ways.lab.host, "up0");
    let (own, peer) = (address(family, 0, 1), address(family, 0, 2));
    let known = ways.session(0)["discriminator"].to_string();
    let args = [script::PYTHON, &helper, "br0", &mac, &own, &peer, "10000", "5", &known];
    let mut storm = ways.fabric.spawn("storm", &args, &ways.dir);
    // Control answers meanwhile, and sends in time: with the far end, which misses it after 300 ms, it is up all along.
    let mut slowest = Duration::ZERO;
    let mut asked = 0;
    while storm.exited().is_none() {
        let start = Instant::now();
        let shown = ways.session(0);
        slowest = slowest.max(start.elapsed());
        asked += 1;
        assert_eq!((&shown["state"], &shown["path"]), (&"up".into(), &"used".into()), "{shown}");
    }
    println!("asked {asked} times under the storm, {slowest:?} at the slowest");
    assert!(storm.wait(PATIENCE).success(), "{}", storm.output());
    let text = storm.output();
    let names: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    println!("forged: {names}");
    for way in [0, 1] {
        let (shown, theirs) = (ways.session(way), bfdd.peer(&address(family, way, 1)));
        assert_eq!((shown["ups"].as_i64(), &theirs["status"]), (Some(1), &"up".into()), "{shown} {theirs}");
    }
    let gained = ways.session(0)["heard"].as_i64().unwrap() - heard;
    assert!(gained >= 30, "only {gained} packets of the true peer were heard");
    assert_none_lost(&ways, stream, before.get("port.near.imissed"));
    let after = ways.counters();
    // What the kernel's ring for the switch could not hold is not the switch's, and nobody knows which packets those were.
    let missed = after.get("port.up0.imissed") - before.get("port.up0.imissed");
    let (mut dropped, mut forged) = (0, 0);
    for (name, sent) in names.as_object().unwrap() {
        let path = format!("fwd.drops.{name}");
        let (here, sent) = (after.get(&path) - before.get(&path), sent.as_i64().unwrap());
        assert!(
            here <= sent && here >= sent - missed,
            "{name}: {here} of {sent} dropped, {missed} not received"
        );
        (dropped, forged) = (dropped + here, forged + sent);
    }
    println!("{dropped} of {forged} forged packets dropped by name, {missed} not received");
    assert!(dropped > 20_000 && dropped + missed == forged, "{names}");
    assert_eq!(after.get("fwd.drops.bfd-limit"), before.get("fwd.drops.bfd-limit"));
    ways.stop(bfdd);
}

#[test]
fn failover_bfd_withstands_forged_packets_over_ipv4() {
    withstands_forged_packets(Family::V4);
}

#[test]
fn failover_bfd_withstands_forged_packets_over_ipv6() {
    withstands_forged_packets(Family::V6);
}
