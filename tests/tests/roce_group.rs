//! Group traffic as replicated services make it with RDMA: eight members on two switches, all to all, with `perf` as
//! every member. No packet may be lost, repeated or out of sequence, at the members and in the switches' own views; and
//! every counter of both switches must have moved by what the rounds are made of, and no other one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use tests::counters::Moved;
use tests::{Counters, Workdir, binary, process};

const SWITCHES: usize = 2;
/// Members on each switch.
const HERE: i64 = 4;
/// Members that each of them talks with.
const OTHERS: i64 = 7;
/// To each of those in every round: a write, an acknowledgement, a datagram.
const KINDS: i64 = 3;

fn counters(answers: &Value) -> Counters {
    let mut counters = Counters::default();
    for part in ["fwd", "port", "vnic"] {
        assert!(!answers[part].is_null(), "no {part} in {answers}");
        counters.add(part, &answers[part]);
    }
    counters
}

#[test]
fn roce_group_of_eight_loses_nothing_over_two_switches() {
    process::need_root();
    let dir = Workdir::new("group");
    let json = dir.path().join("group.json").display().to_string();
    let (perf, vswitch) = (binary::release("perf"), binary::release("vswitch"));
    let (perf, vswitch) = (perf.display().to_string(), vswitch.display().to_string());
    let text = process::run(&[
        "timeout",
        "120",
        &perf,
        "group",
        "--vswitch",
        &vswitch,
        "--switches",
        "2",
        "--seconds",
        "3",
        "--rounds",
        "500",
        "--json",
        &json,
    ]);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let number = |path: &str| {
        report.pointer(path).and_then(Value::as_i64).unwrap_or_else(|| panic!("no {path} in\n{text}"))
    };

    let rounds = number("/rounds");
    assert!(rounds > 10, "{text}");
    let members = SWITCHES as i64 * HERE;
    assert_eq!(number("/sent"), rounds * members * OTHERS * KINDS, "{text}");
    assert_eq!(number("/received"), number("/sent"), "{text}");
    for fault in [
        "/lost",
        "/gaps",
        "/strays",
        "/damaged",
        "/unsent",
        "/queue_pairs/gaps",
        "/queue_pairs/retransmissions",
    ] {
        assert_eq!(number(fault), 0, "{fault}\n{text}");
    }
    // Each member sends to one queue pair of each other one, writes and acknowledgements alike. What stays on a switch
    // is counted at the sender's; what crosses the tunnel once more where it arrives.
    assert_eq!(number("/queue_pairs/in_use"), members * OTHERS, "{text}");
    assert_eq!(number("/queue_pairs/out"), members * OTHERS, "{text}");
    assert_eq!(number("/queue_pairs/from_wire"), members * HERE, "{text}");
    assert_eq!(number("/queue_pairs/packets"), rounds * 2 * members * (OTHERS + HERE), "{text}");

    let own = HERE * OTHERS * KINDS * rounds;
    let across = HERE * HERE * KINDS * rounds;
    for switch in 0..SWITCHES {
        let counted = &report["counted"][switch];
        let (before, after) = (counters(&counted["before"]), counters(&counted["after"]));
        let mut expected = vec![
            ("fwd.received".to_owned(), Moved::By(own + across)),
            ("fwd.sent".to_owned(), Moved::By(own + across)),
            ("fwd.encapsulated".to_owned(), Moved::By(across)),
            ("fwd.decapsulated".to_owned(), Moved::By(across)),
            ("fwd.local".to_owned(), Moved::By(own - across)),
            // Every packet is looked up once; how many flows were new is the table's business.
            ("fwd.nft-*".to_owned(), Moved::By(own + across)),
            ("port.up.rx-packets".to_owned(), Moved::By(across)),
            ("port.up.tx-packets".to_owned(), Moved::By(across)),
            ("port.up.rx-bytes".to_owned(), Moved::AtLeast(1)),
            ("port.up.tx-bytes".to_owned(), Moved::AtLeast(1)),
        ];
        for member in (0..members).filter(|member| member / HERE == switch as i64) {
            for (path, moved) in [
                ("rx-packets", Moved::By(OTHERS * KINDS * rounds)),
                ("tx-packets", Moved::By(OTHERS * KINDS * rounds)),
                ("rx-bytes", Moved::AtLeast(1)),
                ("tx-bytes", Moved::AtLeast(1)),
            ] {
                for part in ["port", "vnic"] {
                    expected.push((format!("{part}.member{member}.{path}"), moved));
                }
            }
            // All of it is RoCEv2, and each other member is one queue pair to send to.
            for (path, moved) in [
                ("rdma-rx-packets", Moved::By(OTHERS * KINDS * rounds)),
                ("rdma-tx-packets", Moved::By(OTHERS * KINDS * rounds)),
                ("qps-opened", Moved::By(OTHERS)),
                ("nft-misses", Moved::Anyhow),
            ] {
                expected.push((format!("vnic.member{member}.{path}"), moved));
            }
        }
        let expected: Vec<(&str, Moved)> =
            expected.iter().map(|(name, moved)| (name.as_str(), *moved)).collect();
        after.assert_moved(&before, &expected);
    }
}
