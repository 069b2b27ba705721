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
        let (victim, storm) = (&trial["streams"][0], &trial["streams"][1]);
        let number =
            |row: &Value, name: &str| row[name].as_u64().unwrap_or_else(|| panic!("no {name} in\n{text}"));
        assert!(number(victim, "sent") > 1000, "{text}");
        assert_eq!(number(trial, "received_by_switch"), number(victim, "sent"), "{text}");
        for (row, faults) in [
            (victim, &["lost", "gaps", "reordered", "duplicates", "psn_gaps", "psn_back"][..]),
            (trial, &["lost_by_switch", "steady_drops", "foreign", "misplaced", "stale"]),
        ] {
            for fault in faults {
                assert_eq!(number(row, fault), 0, "{fault}\n{text}");
            }
        }
        let drops = trial["drops"].as_object().unwrap();
        if trial["disturbed"] == false {
            assert!(drops.is_empty() && number(storm, "sent") == 0, "{text}");
            continue;
        }
        let refused = drops["qp-quota"].as_u64().unwrap();
        assert_eq!(drops.len(), 1, "{drops:?}\n{text}");
        let admitted = number(storm, "sent") - number(storm, "lost");
        assert_eq!(number(storm, "sent"), admitted + refused, "{text}");
        // Places given back for idleness (after a second at the least) are taken again.
        let seconds = trial["seconds"].as_f64().unwrap().ceil() as u64;
        assert!((QUOTA..=QUOTA * (1 + seconds)).contains(&admitted), "{admitted} admitted\n{text}");
        assert!(refused > 1000, "{text}");
    }
}
