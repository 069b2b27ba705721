//! A broadcast storm into a thousand VTEPs: each of them gets each packet that is flooded, once; a neighbour of the storm loses
//! nothing, and the storm gets no more than a vNIC may.
//!
//! ```text
//!  red (storms) ─┐                        ╔═ VTEPs 172.16.4.1 to 172.16.7.231: one kernel, which counts
//!  blue ─────────┤ switch ══ underlay ════╣
//!  green ────────┘                        ╚═ VTEP 172.16.0.2, the same kernel's vxlan device: far, blue's partner
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::{Duration, Instant};

use tests::lab::{Lab, vpc};
use tests::steady::Flows;
use tests::{Counters, Daemon, Family, Process, Workdir, script, traffic};

const MACS: [&str; 4] = ["02:00:00:00:0a:01", "02:00:00:00:0a:02", "02:00:00:00:0a:03", "02:00:00:00:0a:13"];
const VTEPS: usize = 1000;
/// Copies a second that a vNIC may have, and what it may save up: a quarter of a second's.
const RATE: i64 = 40_000;
const SECONDS: u64 = 6;
const LIMIT: Duration = Duration::from_secs(60);

fn vtep(n: usize) -> String {
    format!("172.16.{}.{}", 4 + n / 250, 1 + n % 250)
}

/// The JSON of a helper's last line, after it ended well.
fn said(process: &mut Process) -> serde_json::Value {
    let status = process.wait(LIMIT);
    let text = process.output();
    assert!(status.success(), "{text}");
    serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn moved(after: &Counters, before: &Counters, path: &str) -> i64 {
    after.get(path) - before.get(path)
}

#[test]
fn bum_a_storm_into_a_thousand_vteps_gives_each_its_copy_and_costs_a_neighbour_nothing() {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    lab.peer.ip("addr add 172.16.0.2/16 dev up0");
    let far = lab.remote("far", 100, MACS[3], &["10.0.0.13/24"], "");
    let tenant =
        |n: usize, name: &str| lab.cabled_tenant(name, "red", MACS[n], &[&format!("10.0.0.{}/24", n + 1)]);
    let tenants = [tenant(0, "red"), tenant(1, "blue"), tenant(2, "green")];
    let list: Vec<String> = (0..VTEPS).map(|n| format!("\"{}\"", vtep(n))).collect();
    let there = lab.peer_mac();
    let neighbours = std::iter::once("172.16.0.2".to_owned()).chain((0..VTEPS).map(vtep));
    let neighbours: Vec<_> = neighbours.map(|ip| format!("{{ ip = \"{ip}\", mac = \"{there}\" }}")).collect();
    // The uplink's peer gets a copy, too: that of the partner's host, so a packet has as many places as the list, this one, and
    // the two other vNICs.
    let places = VTEPS as i64 + 3;
    let config = [
        format!("[nft]\nflood-budget = {}\nflood-rate = {RATE}\n", places + 1),
        lab.uplink(&format!("neighbours = [{}]", neighbours.join(", ")))
            .replace("172.16.0.1/24", "172.16.0.1/16"),
        vpc("red", 100, &["10.0.0.0/24"], &format!("flood = true\nvteps = [{}]", list.join(", "))),
        tenants
            .iter()
            .map(|t| t.vnic_on(&format!("{{ kind = \"veth\", iface = \"{}\" }}", t.name)))
            .collect(),
        far.location(),
    ];
    let daemon = Daemon::start(&lab.host, &config.concat());
    let [red, blue, green] = &tenants;
    traffic::ping(&blue.netns, "10.0.0.13", 56, 3);
    traffic::ping(&blue.netns, "10.0.0.3", 56, 3);

    let dir = Workdir::new("storm");
    let helper = script::path("copies.py").display().to_string();
    let until = dir.path().join("until").display().to_string();
    let mut counter =
        lab.peer.spawn("count", &[script::PYTHON, &helper, "count", "up0", "4789", &until], &dir);
    counter.wait_output("ready", LIMIT);
    let before = daemon.counters();
    let flows = [
        (Flows::start(&blue.netns, &far.netns, "10.0.0.13", 8), 8),
        (Flows::start(&green.netns, &blue.netns, "10.0.0.2", 8), 8),
    ];
    let began = Instant::now();
    let storm = [script::PYTHON, &helper, "storm", "10.0.0.255", &SECONDS.to_string()];
    let mut storm = red.netns.spawn("storm", &storm, &dir);
    let sent = said(&mut storm)["sent"].as_i64().unwrap();
    let passed = flows.map(|(flows, n)| flows.stop_in_any_order(n));
    let lasted = began.elapsed();
    // All that the storm left behind is through when nothing moves any more.
    let mut last = daemon.counters();
    let after = tests::wait_for("the storm to be over", LIMIT, || {
        std::thread::sleep(Duration::from_millis(200));
        let now = daemon.counters();
        let still = now.get("fwd.received") == last.get("fwd.received");
        last = now.clone();
        still.then_some(now)
    });
    std::fs::write(&until, "").unwrap();
    let counted = said(&mut counter);
    let count = |name: &str| counted[name].as_i64().unwrap();

    // One copy for each VTEP and broadcast: the list, and the uplink's peer.
    assert_eq!((count("missed"), count("uneven")), (0, 0), "{counted}");
    let flooded = count("numbers");
    assert!(flooded > 20, "{flooded} broadcasts were flooded");
    assert_eq!(count("vteps"), VTEPS as i64 + 1);
    assert_eq!(count("packets"), flooded * (VTEPS as i64 + 1));
    assert_eq!(moved(&after, &before, "fwd.copies"), flooded * (places - 1));
    // The others are dropped whole, by name; and nothing of anybody is for another reason.
    let refused =
        ["flood-limit", "flood-budget"].map(|reason| moved(&after, &before, &format!("fwd.drops.{reason}")));
    let heard = moved(&after, &before, "port.red.rx-packets");
    assert_eq!(flooded + refused.iter().sum::<i64>(), heard, "{refused:?}");
    assert_eq!(moved(&after, &before, "fwd.dropped"), refused.iter().sum::<i64>());
    // What the switch does not come to read is its sender's loss, too.
    assert!(sent > 10 * flooded && heard > flooded, "{sent} sent, {heard} heard, {flooded} flooded");
    // No more than its rate, and what it may save up.
    let most = RATE * (lasted.as_millis() as i64 + 1000) / 1000;
    assert!(flooded * places <= most, "{} copies in {lasted:?}, at most {most}", flooded * places);
    assert!(passed.iter().all(|&n| n > 1000), "{passed:?} datagrams beside the storm");
    eprintln!(
        "{sent} broadcasts sent, {heard} heard in {lasted:?}; {flooded} flooded to {places} places; refused {refused:?}; {passed:?} datagrams of \
         neighbours, none lost"
    );
    daemon.stop();
}
