//! Forwarding modes and switches: pairs of plain ports in `io` and `mac`, the same ports in `overlay`, `start` and `stop`, `port
//! start` and `port stop`, and counters that are set back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use tests::{Agent, Daemon, Family, Lab, Tenant, lab, runtime};

/// Three plain taps beside an uplink: `p0` and `p1` would be partners if there were no uplink in front of them.
struct Modes {
    daemon: Daemon,
    agent: Agent,
    taps: Vec<Tenant>,
    macs: Vec<String>,
    _lab: Lab,
}

fn start(mode: &str, workers: &str) -> Modes {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    let ports: String = (0..3)
        .map(|n| format!("[[port]]\nname = \"p{n}\"\nport = {{ kind = \"tap\", iface = \"p{n}\" }}\n"))
        .collect();
    let mut daemon = Daemon::start(&lab.host, &format!("[forward]\nmode = \"{mode}\"\n{ports}{workers}"));
    let macs =
        (0..3).map(|n| runtime::port_row(&daemon, &format!("p{n}"))["mac"].as_str().unwrap().to_owned());
    let macs: Vec<String> = macs.collect();
    let taps: Vec<Tenant> = (0..3).map(|n| lab.tenant(&format!("p{n}"), "", "", &[])).collect();
    taps.iter().for_each(|tap| tap.plug_mute(&lab.host));
    daemon.settled();
    let wires: Vec<(&str, &tests::Netns)> = taps.iter().map(|tap| (tap.name.as_str(), &tap.netns)).collect();
    let agent = Agent::start(&lab, &wires, &[]);
    Modes { daemon, agent, taps, macs, _lab: lab }
}

/// A frame that says where it came from.
fn frame(text: &str) -> String {
    format!(
        "Ether(src='02:00:00:00:00:aa', dst='02:00:00:00:00:bb')/IP(src='10.1.0.1', dst='10.1.0.2', id=7)/UDP(sport=1, dport=2)/Raw(b'{text}')"
    )
}

const WIRES: [&str; 3] = ["p0", "p1", "p2"];

impl Modes {
    /// Sends frames into a port; (port, fact) of whatever came out, anywhere.
    fn send(&mut self, from: &str, frames: &[String]) -> Vec<(&'static str, Value)> {
        let exchange = self.agent.exchange(from, frames, &WIRES);
        WIRES.iter().flat_map(|wire| exchange.on(wire).iter().map(|fact| (*wire, fact.clone()))).collect()
    }

    #[track_caller]
    fn one(&mut self, from: &str) -> (&'static str, Value) {
        let mut seen = self.send(from, &[frame(from)]);
        assert_eq!(seen.len(), 1, "from {from}: {seen:#?}");
        seen.remove(0)
    }
}

fn io_and_mac(workers: &str) {
    let mut modes = start("io", workers);
    // Partners are 0-1; the odd one sends back to itself. In io nothing changes but the way.
    for (from, to) in [("p0", "p1"), ("p1", "p0"), ("p2", "p2")] {
        let (port, fact) = modes.one(from);
        assert_eq!(port, to, "{fact}");
        assert_eq!((&fact["src"], &fact["dst"]), (&"02:00:00:00:00:aa".into(), &"02:00:00:00:00:bb".into()));
        assert_eq!((&fact["ttl"], &fact["id"]), (&64.into(), &7.into()), "{fact}");
    }
    modes.daemon.ctl("set fwd mac");
    assert_eq!(modes.daemon.json("show fwd stats all")["mode"], "mac");
    for (from, to, number) in [("p0", "p1", 1usize), ("p1", "p0", 0), ("p2", "p2", 2)] {
        let (port, fact) = modes.one(from);
        assert_eq!(port, to, "{fact}");
        assert_eq!(fact["src"], modes.macs[number].as_str(), "the MAC of the way out: {fact}");
        assert_eq!(fact["dst"], format!("02:00:00:00:00:{number:02x}"), "{fact}");
        assert_eq!((&fact["ttl"], &fact["l4_sum_ok"]), (&64.into(), &true.into()), "{fact}");
    }
    // Partners are drawn anew when a port comes or goes.
    modes.daemon.ctl("set fwd io");
    modes.daemon.ctl("port detach p0");
    assert_eq!(modes.taps[0].netns.interfaces(), ["lo"]);
    for (from, to) in [("p1", "p2"), ("p2", "p1")] {
        let seen = modes.agent.exchange(from, &[frame(from)], &["p1", "p2"]);
        assert_eq!(seen.on(to).len(), 1, "{from} -> {to}: {seen:?}");
    }
    // A plain port has no place in the virtual network.
    modes.daemon.ctl("set fwd overlay");
    let before = modes.daemon.drops("port-unbound");
    let seen = modes.agent.exchange("p1", &[frame("p1")], &["p1", "p2"]);
    assert!(seen.on("p1").is_empty() && seen.on("p2").is_empty(), "{seen:?}");
    assert_eq!(modes.daemon.drops("port-unbound") - before, 1);
    let error = modes.daemon.try_ctl("set fwd upwards").unwrap_err();
    assert!(error.contains("upwards") && error.contains("overlay"), "{error}");
    modes.daemon.stop();
}

#[test]
fn runtime_modes_io_and_mac_forward_between_partners() {
    io_and_mac("");
}

#[test]
fn runtime_modes_io_and_mac_forward_between_partners_of_two_workers() {
    io_and_mac(runtime::TWO_WORKERS);
}

#[test]
fn runtime_modes_start_and_stop() {
    let mut modes = start("io", "");
    modes.daemon.ctl("stop");
    assert_eq!(modes.daemon.json("show fwd stats all")["state"], "stopped");
    let before = modes.daemon.counters();
    assert_eq!(modes.send("p0", &[frame("a"), frame("b")]), [], "a stopped switch forwards nothing");
    assert_eq!(modes.daemon.counters().since(&before), Default::default(), "and receives nothing");
    // What waited in the tap's queue comes through, in order.
    modes.daemon.ctl("start");
    let after = modes.daemon.counters();
    assert_eq!(after.get("fwd.received") - before.get("fwd.received"), 2);
    assert_eq!(modes.one("p0").0, "p1");
    // Twice is no fault.
    modes.daemon.ctl("start");
    modes.daemon.ctl("stop");
    modes.daemon.ctl("stop");
    modes.daemon.ctl("start");

    // A stopped port is not polled, but sent to.
    modes.daemon.ctl("port stop p0");
    assert_eq!(runtime::port_row(&modes.daemon, "p0")["state"], "stopped");
    let received = runtime::port_count(&modes.daemon, "p0", "rx-packets");
    assert_eq!(modes.send("p0", &[frame("c")]), [], "a stopped port is not polled");
    assert_eq!(runtime::port_count(&modes.daemon, "p0", "rx-packets"), received);
    assert_eq!(modes.one("p1").0, "p0");
    let error = modes.daemon.try_ctl("port stop p0").unwrap_err();
    assert!(error.contains("p0") && error.contains("already"), "{error}");
    // Other changes do not start it.
    modes.daemon.ctl("port attach spare ring");
    assert_eq!(runtime::port_row(&modes.daemon, "p0")["state"], "stopped");
    modes.daemon.ctl("port detach spare");
    modes.daemon.ctl("port start p0");
    modes.daemon.counters();
    assert_eq!(runtime::port_count(&modes.daemon, "p0", "rx-packets"), received + 1, "it waited in the tap");
    assert_eq!(modes.one("p0").0, "p1");
    let error = modes.daemon.try_ctl("port start p0").unwrap_err();
    assert!(error.contains("p0") && error.contains("already"), "{error}");
    modes.daemon.stop();
}

#[test]
fn runtime_modes_a_stopped_switch_and_a_stopped_port_end_cleanly() {
    let mut modes = start("io", runtime::TWO_WORKERS);
    assert_eq!(modes.one("p0").0, "p1");
    modes.daemon.ctl("port stop p0");
    modes.daemon.ctl("port detach p0");
    modes.daemon.ctl("port stop p1");
    modes.daemon.ctl("stop");
    modes.daemon.stop();
}

#[test]
fn runtime_modes_counters_are_set_back() {
    let mut modes = start("io", "");
    let frames: Vec<String> = (0..5).map(|n| frame(&n.to_string())).collect();
    assert_eq!(modes.send("p0", &frames).len(), 5);
    assert_eq!(runtime::port_count(&modes.daemon, "p0", "rx-packets"), 5);
    assert_eq!(runtime::port_count(&modes.daemon, "p1", "tx-packets"), 5);
    // Each of the two sets back its own, and only its own.
    modes.daemon.ctl("clear port stats all");
    assert_eq!(runtime::port_count(&modes.daemon, "p0", "rx-packets"), 0);
    assert_eq!(runtime::port_count(&modes.daemon, "p1", "tx-bytes"), 0);
    assert_eq!(modes.daemon.counters().get("fwd.received"), 5);
    modes.daemon.ctl("clear fwd stats all");
    let counters = modes.daemon.counters();
    assert!(
        counters.iter().filter(|(path, _)| path.starts_with("fwd.")).all(|(_, n)| n == 0),
        "{counters:#?}"
    );
    modes.daemon.ctl("clear port xstats all");
    // They count on from there, and the law holds for what they count.
    assert_eq!(modes.send("p1", &frames[..3]).len(), 3);
    let counters = modes.daemon.counters();
    assert_eq!((counters.get("fwd.received"), counters.get("fwd.sent")), (3, 3), "{counters:#?}");
    assert_eq!(runtime::port_count(&modes.daemon, "p1", "rx-packets"), 3);
    assert_eq!(runtime::port_count(&modes.daemon, "p0", "tx-packets"), 3);
    // A port in the place of an earlier one begins at zero.
    modes.daemon.ctl("port detach p0");
    modes.daemon.ctl("port attach fresh ring");
    assert_eq!(runtime::port_row(&modes.daemon, "fresh")["id"], 0, "the free place is taken");
    for counter in ["rx-packets", "tx-packets", "rx-bytes", "tx-bytes"] {
        assert_eq!(runtime::port_count(&modes.daemon, "fresh", counter), 0, "{counter}");
    }
    modes.daemon.stop();
}

#[test]
fn runtime_modes_overlay_and_io_take_turns_on_one_switch() {
    let lab = Lab::new(Family::V4);
    let far = lab.remote("redfar", 100, "02:00:00:00:0a:02", &["10.0.0.2/24"], "");
    let red = lab.tenant("red", "red", "02:00:00:00:0a:01", &["10.0.0.1/24"]);
    let config =
        [lab.uplink(""), lab::vpc("red", 100, &["10.0.0.0/24"], ""), red.vnic(), far.location()].concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    red.plug(&lab.host);
    daemon.settled();
    for _ in 0..3 {
        tests::traffic::ping(&red.netns, "10.0.0.2", 56, 3);
        daemon.ctl("set fwd io");
        tests::traffic::no_ping(&red.netns, "10.0.0.2");
        daemon.ctl("set fwd overlay");
    }
    tests::traffic::ping(&far.netns, "10.0.0.1", 1400, 3);
    daemon.stop();
}
