//! Quotas of queue pairs on real ports: who passes and who is refused, and what gives a place back. RoCEv2 frames are
//! crafted, with right ICRCs; the tenant's port is a tap, the other station is behind the tunnel.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tests::counters::Moved;
use tests::scene::Outcome;
use tests::{Family, Scene, Workdir, wait_for};

/// The numbers of the queue pairs to which frames came out of the tunnel.
fn numbers(outcome: &Outcome) -> Vec<u32> {
    let number = |fact: &Value| {
        let payload = fact["inner"]["payload"].as_str().expect("RoCEv2 in a tunnel");
        u32::from_str_radix(&payload[10..16], 16).unwrap()
    };
    outcome.seen.iter().map(number).collect()
}

/// One packet of the tenant to each of these queue pairs.
fn send(scene: &mut Scene, numbers: impl IntoIterator<Item = u32>) -> Outcome {
    let frames: Vec<String> = numbers.into_iter().map(|n| format!("rc('red', 'far', {n})")).collect();
    scene.outbound(&frames)
}

/// The row of the tenant in `show rcft`.
fn row(scene: &Scene) -> Value {
    scene.daemon.json("show rcft")["vnics"][0].clone()
}

fn in_use(scene: &Scene) -> u64 {
    row(scene)["in-use"].as_u64().unwrap()
}

fn wait_in_use(scene: &Scene, number: u64, limit: u64) {
    let what = format!("{number} queue pairs in use");
    wait_for(&what, Duration::from_secs(limit), || (in_use(scene) == number).then_some(()));
}

fn events(scene: &Scene, kind: &str) -> Vec<Value> {
    let all = scene.daemon.json("show events 256");
    let of_kind = all["events"].as_array().unwrap().iter().filter(|event| event["event"] == kind);
    of_kind.map(|event| event["facts"].clone()).collect()
}

#[test]
fn quota_n_pass_and_the_rest_are_refused_by_name() {
    let mut scene = Scene::start(Family::V4, "", "[rcft]\nquota = 3\n");
    let outcome = send(&mut scene, 17..22);
    assert_eq!(numbers(&outcome), [17, 18, 19]);
    assert_eq!(outcome.all_drops(), [("qp-quota".to_owned(), 2)]);
    outcome.after.assert_moved(
        &outcome.before,
        &[
            ("fwd.received", Moved::By(5)),
            ("fwd.sent", Moved::By(3)),
            ("fwd.encapsulated", Moved::By(3)),
            ("fwd.dropped", Moved::By(2)),
            ("fwd.drops.qp-quota", Moved::By(2)),
            ("fwd.nft-*", Moved::By(5)),
            ("port.*", Moved::Anyhow),
        ],
    );
    // Again and again: the admitted ones stay, the others stay out, and other traffic is none of it.
    for _ in 0..3 {
        assert_eq!(numbers(&send(&mut scene, [21, 17, 20, 18, 19])), [17, 18, 19]);
    }
    scene.outbound(&["from_red(datagram())", "rc('red', 'far', 99, opcode=0x24)"]).assert_passed();
    let row = row(&scene);
    assert_eq!((&row["in-use"], &row["quota"], &row["opened"]), (&json!(3), &json!(3), &json!(3)), "{row}");
    assert_eq!(row["packets-dropped"], 8, "{row}");
    // Asked again when the memory of a refusal is over, and then counted again.
    assert!(row["refused"].as_i64().unwrap() >= 2, "{row}");
    let refused = wait_for("an event about a refusal", Duration::from_secs(2), || {
        events(&scene, "qp-refused").first().cloned()
    });
    assert_eq!((&refused["vnic"], &refused["peer"]), (&json!("red"), &json!("10.0.0.2")), "{refused}");
    assert_eq!((&refused["reason"], &refused["quota"]), (&json!("qp-quota"), &json!(3)), "{refused}");
    assert_eq!(events(&scene, "quota-reached").len(), 1);
    assert!(scene.daemon.log().contains("queue pair refused"), "the log says so, too");
    scene.stop();
}

#[test]
fn quota_changes_live_and_disconnects_give_places_back() {
    let mut scene = Scene::start(Family::V4, "", "[rcft]\nquota = 3\n");
    assert_eq!(numbers(&send(&mut scene, 17..22)), [17, 18, 19]);
    let said = scene.daemon.ctl("rcft set red quota 4");
    assert!(said.contains("red may have 4 queue pairs; 3 in use"), "{said}");
    assert_eq!(numbers(&send(&mut scene, 17..22)), [17, 18, 19, 20]);
    // The far side cannot end the tenant's connections, nor can the tenant end one it does not have.
    scene.inbound(&["tunnel(dreq('far', 'red', 1, 2, 18))"]).assert_passed();
    scene.outbound(&["dreq('red', 'far', 2, 1, 4711)"]).assert_passed();
    assert_eq!(numbers(&send(&mut scene, 17..22)), [17, 18, 19, 20]);
    scene.outbound(&["dreq('red', 'far', 2, 1, 18)"]).assert_passed();
    wait_in_use(&scene, 3, 1);
    assert_eq!(numbers(&send(&mut scene, [21, 17, 19, 20, 18])), [21, 17, 19, 20]);
    let said = scene.daemon.ctl("rcft set red quota 2");
    assert!(said.contains("4 in use, quota 2: no new queue pairs until under 2"), "{said}");
    assert_eq!(numbers(&send(&mut scene, [17, 19, 20, 21, 18])), [17, 19, 20, 21], "nobody lost a place");
    for gone in [17, 19, 20] {
        scene.outbound(&[format!("dreq('red', 'far', 2, 1, {gone})")]).assert_passed();
    }
    wait_in_use(&scene, 1, 1);
    assert_eq!(numbers(&send(&mut scene, [21, 30, 31])), [21, 30]);
    // None of its own: that of [rcft].
    let said = scene.daemon.ctl("rcft set red quota none");
    assert!(said.contains("red has the quota of [rcft]: 3; 2 in use"), "{said}");
    assert_eq!(numbers(&send(&mut scene, [31, 32])), [31]);
    scene.stop();
}

#[test]
fn quota_places_come_back_when_the_peer_disconnects() {
    let mut scene = Scene::start(Family::V4, "", "[rcft]\nquota = 1\n");
    // The far side asks, the tenant answers; both name their queue pairs.
    scene.inbound(&["tunnel(req('far', 'red', 9, 17))"]).assert_passed();
    scene.outbound(&["rep('red', 'far', 5, 9, 33)"]).assert_passed();
    assert_eq!(numbers(&send(&mut scene, [17, 18])), [17]);
    // Forged: ids that are not the connection's.
    for forged in ["drep('red', 'far', 6, 9)", "drep('red', 'far', 5, 8)"] {
        scene.outbound(&[forged]).assert_passed();
    }
    scene.inbound(&["tunnel(dreq('far', 'red', 9, 5, 33))"]).assert_passed();
    assert_eq!(numbers(&send(&mut scene, [18, 17])), [17]);
    scene.outbound(&["drep('red', 'far', 5, 9)"]).assert_passed();
    wait_in_use(&scene, 0, 1);
    assert_eq!(numbers(&send(&mut scene, [18, 17])), [18]);
    assert_eq!(row(&scene)["cm-messages"], 6);
    scene.stop();
}

#[test]
fn quota_places_of_idle_queue_pairs_come_back() {
    let mut scene = Scene::start(Family::V6, "", "[rcft]\nquota = 2\nidle-timeout = \"1s\"\n");
    let six = |n: u32| format!("rc('red', 'far', {n}, family=6)");
    assert_eq!(numbers(&scene.outbound(&[six(17), six(18), six(19)])), [17, 18]);
    wait_in_use(&scene, 0, 10);
    assert_eq!(numbers(&scene.outbound(&[six(19), six(18), six(17)])), [19, 18]);
    scene.stop();
}

#[test]
fn quota_places_outlive_a_crash() {
    let folder = Workdir::new("state");
    let state = folder.path().join("state");
    let control = format!("[control]\nstate = \"{}\"\n[rcft]\nquota = 3\n", state.display());
    let mut scene = Scene::start(Family::V4, "", &control);
    assert_eq!(numbers(&send(&mut scene, 17..19)), [17, 18]);
    scene.daemon.ctl("rcft set red quota 4");
    assert_eq!(numbers(&send(&mut scene, 19..22)), [19, 20]);
    let saved = folder.path().join("state.rcft");
    wait_for("four saved queue pairs", Duration::from_secs(30), || {
        std::fs::read_to_string(&saved).ok().filter(|text| text.contains("\nend 4 "))
    });
    scene.crash_and_restart();
    assert_eq!(in_use(&scene), 4);
    assert_eq!(row(&scene)["quota"], 4, "the quota was saved as well");
    // New ones first: the places are taken by those that had them.
    assert_eq!(numbers(&send(&mut scene, [30, 31, 20, 19, 18, 17])), [20, 19, 18, 17]);
    let restored = &events(&scene, "qps-restored")[0];
    assert_eq!(restored["admitted"], 4, "{restored}");
    // A damaged file is left out, and said so.
    std::fs::write(&saved, "vswitch rcft 2\nvnic red 100\n10.0.0.2 0x11\n").unwrap();
    scene.crash_and_restart();
    assert!(scene.daemon.log().contains("saved queue pairs"), "{}", scene.daemon.log());
    assert_eq!(in_use(&scene), 0);
    assert_eq!(numbers(&send(&mut scene, [30])), [30]);
    scene.stop();
    let text = std::fs::read_to_string(&saved).unwrap();
    assert!(text.contains("\nend 1 "), "the end of the switch saves, too: {text}");
}

#[test]
fn quota_is_one_for_two_workers() {
    let workers = "[workers]\ncores = [0, 1]\nidle = \"sleep\"\n";
    let mut scene = Scene::start(Family::V4, "", &format!("{workers}[rcft]\nquota = 20\n"));
    // Each queue pair from a port of its own, so that queues and workers share them; and all in two orders.
    let frame = |n: u32| format!("rc('red', 'far', {n}, sport={})", 50_000 + 37 * n);
    let first: Vec<String> = (100..160).map(frame).collect();
    let passed: BTreeSet<u32> = numbers(&scene.outbound(&first)).into_iter().collect();
    assert_eq!(passed.len(), 20);
    assert_eq!(in_use(&scene), 20);
    // From other ports, which may come to the other worker: the same ones pass.
    let frame = |n: u32| format!("rc('red', 'far', {n}, sport={})", 50_001 + 37 * n);
    let again: Vec<String> = (100..160).rev().map(frame).collect();
    let passed_again: BTreeSet<u32> = numbers(&scene.outbound(&again)).into_iter().collect();
    assert_eq!(passed_again, passed);
    assert_eq!(in_use(&scene), 20);
    let answer = scene.daemon.json("show rcft red");
    let packets = |row: &Value| row["packets"].as_u64().unwrap();
    let out: Vec<u64> = answer["queue-pairs"].as_array().unwrap().iter().map(packets).collect();
    assert_eq!(out, vec![2; 20], "what two workers saw of a queue pair is one: {answer:#}");
    scene.stop();
}

#[test]
fn quota_places_go_with_the_location() {
    let mut scene = Scene::start(Family::V4, "", "[rcft]\nquota = 3\n");
    assert_eq!(numbers(&send(&mut scene, 17..20)), [17, 18, 19]);
    scene.daemon.ctl("vlt set 100 10.0.0.2 vtep 172.16.0.2");
    assert_eq!(in_use(&scene), 3, "a location that is set anew or moves takes no place");
    scene.daemon.ctl("vlt del 100 10.0.0.2");
    wait_in_use(&scene, 0, 1);
    let purged = &events(&scene, "qps-purged")[0];
    assert_eq!((&purged["vnic"], &purged["count"]), (&json!("red"), &json!(3)), "{purged}");
    // The station is still known by its other address, and so by its MAC: bridged packets go on, with new places.
    assert_eq!(numbers(&send(&mut scene, 17..21)), [17, 18, 19]);
    scene.daemon.ctl("vlt del 100 fd00:1::2");
    wait_in_use(&scene, 0, 1);
    // Established ones stop as well as new ones.
    let outcome = send(&mut scene, 17..20);
    outcome.assert_dropped("no-location");
    assert_eq!(in_use(&scene), 0);
    scene.daemon.ctl("vlt set 100 10.0.0.2 mac 02:00:00:00:01:02 vtep 172.16.0.2");
    assert_eq!(numbers(&send(&mut scene, 40..44)), [40, 41, 42]);
    scene.stop();
}

#[test]
fn quota_evicted_queue_pairs_must_find_a_place_anew() {
    let mut scene = Scene::start(Family::V4, "", "[rcft]\nquota = 2\n");
    assert_eq!(numbers(&send(&mut scene, 17..20)), [17, 18]);
    let said = scene.daemon.ctl("rcft evict red 10.0.0.2 0x11");
    assert!(said.contains("the queue pair of red to 10.0.0.2 qp 0x11 lost its place"), "{said}");
    wait_in_use(&scene, 1, 1);
    assert_eq!(numbers(&send(&mut scene, [19, 17, 18])), [19, 18]);
    let said = scene.daemon.try_ctl("rcft evict red 10.0.0.2 17").unwrap_err();
    assert!(said.contains("red has no queue pair to 10.0.0.2 qp 0x11"), "{said}");
    assert_eq!(scene.daemon.json("rcft evict red all")["evicted"], 2);
    wait_in_use(&scene, 0, 1);
    assert_eq!(numbers(&send(&mut scene, [17, 18, 19])), [17, 18]);
    scene.stop();
}
