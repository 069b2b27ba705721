//! Rates that were set live: they outlast the process, however it ends; what is refused changes nothing; and a vNIC that goes
//! while its packets wait leaves none of them behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;
use tests::{Counters, Family, Scene, Workdir, wait_for};

/// A datagram of a thousand bytes of the tenant.
const OUT: &str =
    "Ether(src=red_mac, dst=far_mac)/IP(src=red_ip, dst=far_ip)/UDP(sport=7, dport=8)/Raw(b'x'*1000)";
/// The same from the far machine, in the tunnel.
const IN: &str = "outer(vxlan(100, Ether(src=far_mac, dst=red_mac)/IP(src=far_ip, dst=red_ip)/UDP(sport=8, dport=7)/Raw(b'x'*1000)))";

/// As many packets as may wait at any rate.
const WAITS: usize = 16;

/// What is configured for every node: name, direction, class and the four limits.
fn limits(scene: &Scene) -> Vec<String> {
    let answer = scene.daemon.json("show qos");
    let nodes = answer["nodes"].as_array().expect("nodes");
    let keys = ["level", "name", "class", "direction", "assured", "ceil", "weight", "burst"];
    nodes.iter().map(|node| keys.map(|key| format!("{key} {}", node[key])).join(", ")).collect()
}

fn waiting(scene: &Scene) -> i64 {
    scene.daemon.json("show fwd stats all")["waiting"].as_i64().expect("waiting")
}

#[test]
fn dhtb_restart_rates_outlast_the_process() {
    let folder = Workdir::new("state");
    let state = folder.path().join("state");
    let more = format!("[control]\nstate = \"{}\"\n[qos]\nlink = \"1Gbit\"\n", state.display());
    let mut scene = Scene::start(Family::V4, "", &more);
    let as_configured = limits(&scene);
    for change in [
        "qos set link out ceil 2Gbit",
        "qos set link in ceil none",
        "qos set vpc red out ceil 500Mbit",
        "qos set vpc red in weight 7",
        "qos set vnic red out assured 500bit",
        "qos set vnic red out ceil 1kbit",
        "qos set vnic red out burst 4KiB",
        "qos set vnic red in ceil 30Mbit",
        "qos set class red rdma out weight 5",
        "qos set class red tcp in assured 2Mbit",
    ] {
        scene.daemon.ctl(change);
    }
    let set = limits(&scene);
    let changed = set.iter().zip(&as_configured).filter(|(now, before)| now != before).count();
    // The link both ways, the VPC both ways (in also promises what its vNIC's class is assured), the vNIC, two classes.
    assert_eq!(changed, 8, "{set:#?}\nbefore: {as_configured:#?}");

    scene.daemon.process().signal("TERM");
    scene.daemon.assert_clean_end();
    scene.daemon.restart(&scene.lab.host);
    assert_eq!(limits(&scene), set, "after an ordered end");
    scene.crash_and_restart();
    assert_eq!(limits(&scene), set, "after a crash");

    // And they are in force: what was saved up, and one kilobit a second, of the switch's own clock.
    let now_ns = |scene: &Scene| scene.daemon.json("show qos")["now-ns"].as_u64().expect("now-ns");
    let start_ns = now_ns(&scene);
    let outcome = scene.outbound(&[OUT; WAITS]);
    let (passed, seconds) = (outcome.seen.len() as f64, (now_ns(&scene) - start_ns) as f64 / 1e9);
    let most = (4096.0 + 1_000.0 / 8.0 * seconds) / 1066.0 + 1.0;
    assert!(passed <= most, "{passed} of {WAITS} came in {seconds} s, at most {most}");
    assert!(waiting(&scene) > 0);
    scene.daemon.ctl("qos set vnic red out ceil none");
    wait_for("the rest to go", Duration::from_secs(10), || (waiting(&scene) == 0).then_some(()));
    let counters = scene.daemon.counters();
    let sent = counters.get("fwd.sent") - counters.get("fwd.originated");
    assert_eq!((sent, counters.get("fwd.dropped")), (WAITS as i64, 0));
    scene.stop();
}

#[test]
fn dhtb_restart_refused_rates_change_nothing() {
    let folder = Workdir::new("state");
    let state = folder.path().join("state");
    let more = format!("[control]\nstate = \"{}\"\n[qos]\nlink = \"1Gbit\"\n", state.display());
    let scene = Scene::start(Family::V4, "qos = { out = { ceil = \"600Mbit\" } }", &more);
    scene.daemon.ctl("qos set vnic red out assured 300Mbit");
    let (before, config) = (limits(&scene), scene.daemon.ctl("show config"));
    let saved = std::fs::read_to_string(&state).unwrap();
    // What is asked for, and what the refusal has to say.
    let refused: [(&str, &[&str]); 16] = [
        ("qos set vnic red out ceil 0bit", &["vnic red", "ceil", "0", "leave it out"]),
        ("qos set vnic red out assured 0bit", &["vnic red", "assured", "0"]),
        ("qos set link out ceil 0bit", &["link", "0"]),
        ("qos set vnic red out weight 0", &["vnic red", "weight 0"]),
        ("qos set vnic red out burst 0B", &["vnic red", "burst 0"]),
        ("qos set vnic red out ceil 2Gbit", &["vnic red", "2Gbit", "link", "1Gbit"]),
        ("qos set class red rdma in ceil 1001Mbit", &["vnic red: rdma", "1001Mbit", "1Gbit"]),
        ("qos set vnic red out ceil 10Mbits", &["10Mbits", "Mbit"]),
        ("qos set vnic red out ceil 10MB", &["10MB", "Mbit"]),
        ("qos set vnic red out burst 10Mbit", &["10Mbit", "KiB"]),
        ("qos set vnic red out ceil -5Mbit", &["-5Mbit"]),
        ("qos set vnic blue out ceil 5Mbit", &["blue", "show vnic"]),
        ("qos set vpc blue out ceil 5Mbit", &["blue", "show vpc"]),
        // More than its own ceil, than the VPC's ceil, than the link: each with both numbers.
        ("qos set vnic red out ceil 200Mbit", &["vnic red", "300Mbit", "200Mbit"]),
        ("qos set class red rdma out assured 700Mbit", &["vpc red", "700Mbit", "600Mbit"]),
        ("qos set link out ceil 250Mbit", &["300Mbit", "250Mbit"]),
    ];
    for (command, words) in refused {
        let error = match scene.daemon.try_ctl(command) {
            Ok(said) => panic!("'{command}' was taken: {said}"),
            Err(error) => error,
        };
        for word in words {
            assert!(error.contains(word), "'{command}' says nothing of {word}: {error}");
        }
    }
    // The same by way of the file, with a good change beside the bad one.
    let text = std::fs::read_to_string(scene.daemon.config()).unwrap();
    let bad = text.replace("600Mbit", "200Gbit").replace("mtu = 1450", "mtu = 1400");
    assert_ne!(bad, text);
    std::fs::write(scene.daemon.config(), bad).unwrap();
    let error = scene.daemon.try_ctl("config reload").unwrap_err();
    assert!(error.contains("200Gbit") && error.contains("1Gbit"), "{error}");
    assert_eq!(limits(&scene), before);
    assert_eq!(scene.daemon.ctl("show config"), config);
    assert_eq!(std::fs::read_to_string(&state).unwrap(), saved, "the state file");
    let mut scene = scene;
    scene.outbound(&[OUT]).assert_passed();
    scene.stop();
}

/// How many packets ended since: sent, or dropped by name.
fn ended(after: &Counters, before: &Counters) -> (i64, i64) {
    let moved = after.since(before);
    let drops = moved.iter().filter(|(path, _)| path.starts_with("fwd.drops.")).map(|(_, n)| n).sum();
    (after.get("fwd.sent") - before.get("fwd.sent"), drops)
}

/// A vNIC goes while most of the packets of a direction wait for its tokens.
fn goes(frame: &str, direction: &str, by_reload: bool) {
    let mut scene = Scene::start(Family::V4, "", "[qos]\nlink = \"1Gbit\"\n");
    for limit in ["ceil 1kbit", "burst 2KiB"] {
        scene.daemon.ctl(&format!("qos set vnic red {direction} {limit}"));
    }
    let start = scene.daemon.counters();
    let frames = vec![frame; WAITS];
    if direction == "out" {
        scene.outbound(&frames);
    } else {
        scene.inbound(&frames);
    }
    let held = waiting(&scene);
    assert!((10..=WAITS as i64).contains(&held), "{held} of {WAITS} wait");
    assert!(scene.daemon.buffers_in_use() >= held);
    if by_reload {
        let text = std::fs::read_to_string(scene.daemon.config()).unwrap();
        let without = text.replace(&scene.red.vnic(), "");
        assert_ne!(without, text);
        std::fs::write(scene.daemon.config(), without).unwrap();
        scene.daemon.ctl("config reload");
    } else {
        scene.daemon.ctl("vnic del red");
    }
    wait_for("the packets of a vNIC that went to end", Duration::from_secs(10), || {
        (waiting(&scene) == 0).then_some(())
    });
    let end = scene.daemon.counters();
    let (sent, dropped) = ended(&end, &start);
    eprintln!(
        "{direction}, by reload {by_reload}: {held} waited, {sent} of {WAITS} sent, {dropped} dropped: {:?}",
        drops(&end, &start)
    );
    assert_eq!(sent + dropped, WAITS as i64, "{:#?}", end.since(&start));
    let totals = scene.daemon.json("show fwd stats all");
    let of = |name: &str| totals[name].as_i64().expect("a number");
    let made = of("received") + of("originated") + of("copies");
    assert_eq!(
        made,
        of("sent") + of("dropped") + of("consumed") + of("queued") + of("waiting"),
        "{totals:#}"
    );
    // What belongs to nobody is nobody's: the node is gone from the tree, and the name unknown.
    let qos = scene.daemon.json("show qos");
    assert!(
        qos["nodes"].as_array().unwrap().iter().all(|node| node["name"] != "red" || node["level"] == "vpc")
    );
    assert!(scene.daemon.try_ctl("qos set vnic red out ceil 1Mbit").is_err());
    // The stop asks for every buffer.
    scene.stop();
}

fn drops(after: &Counters, before: &Counters) -> Vec<(String, i64)> {
    let moved = after.since(before);
    moved.into_iter().filter_map(|(path, n)| Some((path.strip_prefix("fwd.drops.")?.to_owned(), n))).collect()
}

#[test]
fn dhtb_restart_a_vnic_removed_leaves_no_packet_waiting() {
    goes(OUT, "out", false);
    goes(IN, "in", false);
}

#[test]
fn dhtb_restart_a_vnic_reloaded_away_leaves_no_packet_waiting() {
    goes(OUT, "out", true);
    goes(IN, "in", true);
}
