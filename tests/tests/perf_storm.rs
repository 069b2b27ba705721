//! A storm of queue pairs in real time, as `perf storm` makes it: one tenant opens a hundred thousand queue pairs a
//! second while another one's admitted ones carry traffic. The other one loses no packet, and every packet of the storm
//! was either admitted under the quota or dropped by that name. Nothing is asserted on rates or delays.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use tests::{Workdir, binary, process};

const QUOTA: u64 = 500;

#[test]
fn quota_storm_costs_an_admitted_neighbour_no_packet() {
    process::need_root();
    let dir = Workdir::new("storm");
    let json = dir.path().join("storm.json").display().to_string();
    let (perf, vswitch) = (binary::release("perf"), binary::release("vswitch"));
    let (perf, vswitch) = (perf.display().to_string(), vswitch.display().to_string());
    let quota = QUOTA.to_string();
    let text = process::run(&[
        "timeout",
        "120",
        &perf,
        "storm",
        "--vswitch",
        &vswitch,
        "--pairs",
        "1",
        "--seconds",
        "1.5",
        "--quota",
        &quota,
        "--json",
        &json,
    ]);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let trials = report["trials"].as_array().unwrap();
    assert_eq!(trials.len(), 2, "{text}");
    for trial in trials {
        let number = |name: &str| trial[name].as_u64().unwrap_or_else(|| panic!("no {name} in\n{text}"));
        assert!(number("victim_sent") > 1000, "{text}");
        for name in ["victim_received_by_switch", "victim_served"] {
            assert_eq!(number(name), number("victim_sent"), "{name}\n{text}");
        }
        for fault in ["victim_lost", "victim_gaps", "victim_drops", "odd"] {
            assert_eq!(number(fault), 0, "{fault}\n{text}");
        }
        let drops = trial["drops"].as_object().unwrap();
        if trial["storm"] == false {
            assert!(drops.is_empty() && number("storm_sent") == 0, "{text}");
            continue;
        }
        let refused = drops["qp-quota"].as_u64().unwrap();
        assert_eq!(drops.len(), 1, "{drops:?}\n{text}");
        assert_eq!(number("storm_sent"), number("storm_admitted") + refused, "{text}");
        // Places given back for idleness (after a second at the least) are taken again.
        let seconds = trial["seconds"].as_f64().unwrap().ceil() as u64;
        let admitted = number("storm_admitted");
        assert!((QUOTA..=QUOTA * (1 + seconds)).contains(&admitted), "{admitted} admitted\n{text}");
        assert!(refused > 1000, "{text}");
    }
}
