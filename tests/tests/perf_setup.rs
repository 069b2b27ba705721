//! `perf setup` and `perf latency`, short: every packet of a scanner is a new flow that is there afterwards, its neighbour
//! loses none, and frames with a time stamp come back through whoever forwards them. Nothing is asserted on rates or delays.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use tests::{Workdir, binary, process};

fn perf(command: &str, more: &[&str]) -> (Value, String) {
    process::need_root();
    let dir = Workdir::new(command);
    let json = dir.path().join("report.json").display().to_string();
    let (perf, vswitch) = (binary::release("perf"), binary::release("vswitch"));
    let (perf, vswitch) = (perf.display().to_string(), vswitch.display().to_string());
    let words = [&[perf.as_str(), command, "--vswitch", &vswitch, "--json", &json], more].concat();
    let text = process::run(&words);
    (serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap(), text)
}

#[track_caller]
fn number(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or_else(|| panic!("no {name} in {row:#}"))
}

#[test]
fn setup_leaves_every_flow_and_a_scanner_costs_its_neighbour_no_packet() {
    let more = ["--flows", "200000", "--rounds", "1", "--pairs", "1", "--seconds", "0.5", "--share", "20"];
    let (report, text) = perf("setup", &more);
    let kinds = report["misses"]["kinds"].as_array().unwrap();
    assert_eq!(kinds.len(), 8, "{text}");
    for kind in kinds {
        assert_eq!(
            (number(&kind["miss"], "packets"), number(&kind["hit"], "packets")),
            (200_000, 200_000),
            "{text}"
        );
    }
    let round = &report["rounds"][0];
    assert_eq!((number(round, "flows"), number(round, "misses_again")), (200_000, 0), "{text}");
    let trials = report["beside"].as_array().unwrap();
    assert_eq!(trials.len(), 2, "{text}");
    for trial in trials {
        let neighbour = &trial["streams"][0];
        assert!(number(neighbour, "sent") > 1000, "{text}");
        assert_eq!(number(trial, "received_by_switch"), number(neighbour, "sent"), "{text}");
        assert_eq!((number(neighbour, "lost"), number(trial, "steady_drops")), (0, 0), "{text}");
    }
    let scanned = trials.iter().find(|trial| trial["disturbed"] == true).unwrap();
    let refused = number(&scanned["drops"], "miss-limit");
    assert_eq!(scanned["drops"].as_object().unwrap().len(), 1, "{text}");
    let scanner = &scanned["streams"][1];
    let set_up = number(scanner, "sent") - number(scanner, "lost");
    assert_eq!(set_up + refused, number(scanner, "sent"), "{text}");
    // The limit is 100,000 a second and vNIC; the flows of the neighbour may have to be found again.
    assert!(set_up > 1000 && refused > 1000, "{text}");
}

#[test]
fn latency_is_of_frames_that_all_come_back() {
    for ports in ["memif", "vhost"] {
        let more = ["--turns", "1", "--seconds", "0.3", "--loads", "5", "--ports", ports];
        let (report, text) = perf("latency", &more);
        let rows = report["rows"].as_array().unwrap();
        let forwarders: Vec<_> = rows.iter().map(|row| row["forwarder"].as_str().unwrap()).collect();
        assert_eq!(forwarders, ["ours", "testpmd", "empty-loop"], "{text}");
        for row in rows {
            assert_eq!(number(row, "lost"), 0, "{ports}\n{text}");
            assert!(number(&row["delay"], "packets") > 1000, "{ports}\n{text}");
            // The empty loop alone can tell of its core.
            assert_eq!(row["stalls"]["share"].is_number(), row["forwarder"] == "empty-loop", "{text}");
        }
    }
}
