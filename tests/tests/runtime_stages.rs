//! Where the cycles go: stages are watched while somebody asks, and traffic does not notice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::collections::BTreeMap;

use tests::{Family, Scene};

/// Packets by stage, as `show runtime` has them.
fn stages(scene: &Scene) -> BTreeMap<String, u64> {
    let answer = scene.daemon.json("show runtime");
    let rows = answer["stages"].as_array().unwrap();
    let one = |row: &serde_json::Value| {
        assert!(row["bursts"].as_u64().unwrap() > 0 && row["share"].as_f64().unwrap() <= 1.0, "{row}");
        (row["stage"].as_str().unwrap().to_owned(), row["packets"].as_u64().unwrap())
    };
    rows.iter().map(one).collect()
}

#[test]
fn runtime_stages_are_counted_from_on_to_off() {
    let mut scene = Scene::start(Family::V4, "", "");
    scene.outbound(&["from_red(datagram())".to_owned()]).assert_passed();
    assert!(scene.daemon.ctl("show runtime").contains("say `runtime on`"), "nobody asked yet");
    scene.daemon.ctl("runtime on");
    for _ in 0..3 {
        scene.outbound(&["from_red(datagram())".to_owned()]).assert_passed();
        scene.inbound(&["to_red()".to_owned()]).assert_passed();
    }
    let seen = stages(&scene);
    // Six packets of the scene at least: the kernels say something themselves.
    for stage in ["rx", "lookup", "dhtb", "forward", "tx"] {
        assert!(seen[stage] >= 6, "{stage}: {seen:?}");
    }
    assert!(seen["bind"] >= 3 && seen["outer"] >= 3, "{seen:?}");
    assert!(!seen.contains_key("rcft"), "no queue pair is here: {seen:?}");
    let text = scene.daemon.ctl("show runtime");
    assert!(text.contains("cycles/packet") && text.contains("forward") && text.contains("all"), "{text}");
    let polls = scene.daemon.json("show runtime")["polls"].clone();
    assert!(polls[0]["longest-gap-us"].as_f64().unwrap() > 0.0 && polls[0]["long-gaps"].is_u64(), "{polls}");
    assert!(text.contains("us between two polls"), "{text}");
    scene.daemon.ctl("runtime off");
    let before = stages(&scene);
    scene.outbound(&["from_red(datagram())".to_owned()]).assert_passed();
    assert_eq!(stages(&scene), before, "not watched any more, but what was seen stays");
    scene.daemon.ctl("runtime on");
    assert!(stages(&scene).values().all(|&packets| packets < 6), "from zero on");
    scene.stop();
}
