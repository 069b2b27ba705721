//! The judge refuses what it should, and in which words; and the table in BRINGUP.md is what it says now.
//!
//! Where the driver's headers are not at hand nothing is judged, and `scripts/test` says so.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use mlx5_gate::{Engine, GateError, Nic, Verdict, chains, judge, table};
use rules::{FlowRule, testpmd};

const ENCAP: &str = "set raw_encap 0 eth dst is 02:00:00:00:77:02 src is 02:00:00:00:77:01 type is 0x0800 / ipv4 ttl is 64 \
     proto is 17 src is 172.16.0.1 dst is 172.16.0.2 / udp src is 55172 dst is 4789 / vxlan vni is 100 / end_set";
const CE: &str = "modify_field op set dst_type ipv4_ecn src_type value src_value 03 width 2";
const OUT: &str = "represented_port ethdev_port_id 11";

/// False, loudly, where there is no judge.
fn at_hand<T>(result: Result<T, GateError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error @ GateError::NoSources { .. }) => {
            println!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A rule of the e-switch, in group 1.
fn rule(pattern: &str, actions: &str) -> FlowRule {
    let text = format!(
        "{ENCAP}\nflow create 0 group 1 priority 0 transfer pattern {pattern} / end actions {actions} / end"
    );
    testpmd::commands(&text).unwrap().remove(0)
}

/// What is expected of a rule: words of the driver, or none where it takes the rule.
type Expected = Option<&'static str>;

/// Holds verdicts against what is expected of them with software and with hardware steering.
#[track_caller]
fn judged(nic: Nic, cases: &[(FlowRule, Expected, Expected)]) {
    let rules: Vec<_> = cases.iter().map(|(rule, ..)| rule.clone()).collect();
    for engine in Engine::ALL {
        let Some(verdicts) = at_hand(judge(&rules, nic, engine)) else { return };
        assert_eq!(verdicts.len(), cases.len());
        for ((rule, software, hardware), verdict) in cases.iter().zip(verdicts) {
            let expected = if engine == Engine::Software { software } else { hardware };
            match (expected, &verdict) {
                (None, Verdict::Accepted) => {}
                (Some(words), Verdict::Refused(_)) if verdict.to_string().contains(words) => {}
                _ => panic!("{nic}, {engine}: {rule}: {verdict}; expected: {expected:?}"),
            }
        }
    }
}

const NO_ORDER: Expected = Some("Invalid action_type sequence");
const NO_FIT: Expected = Some("Failed to create definer from header layout");

#[test]
fn mlx5_refuses_actions_in_the_wrong_order() {
    let vxlan = "eth / ipv4 / udp dst is 4789 / vxlan";
    let encap = "raw_encap index 0";
    judged(
        Nic::ConnectX7,
        &[
            (rule("eth / ipv4", &format!("count / {CE} / {encap} / {OUT}")), None, None),
            (
                rule("eth / ipv4", &format!("{encap} / {CE} / {OUT}")),
                Some("encap action before modify"),
                NO_ORDER,
            ),
            (rule("eth / ipv4", &format!("{CE} / count / {OUT}")), None, NO_ORDER),
            (rule(vxlan, &format!("vxlan_decap / count / {CE} / {OUT}")), None, None),
            (
                rule(vxlan, &format!("{CE} / vxlan_decap / {OUT}")),
                Some("decap action after modify"),
                NO_ORDER,
            ),
            (rule("eth", "drop / jump group 3"), Some("2 fate actions"), NO_ORDER),
        ],
    );
}

#[test]
fn mlx5_refuses_what_it_does_not_have() {
    judged(
        Nic::ConnectX7,
        &[
            (rule("eth", OUT), None, None),
            (
                rule("eth", &format!("count / count / {OUT}")),
                Some("duplicate count"),
                Some("duplicate count"),
            ),
            (
                rule("eth", "meter mtr_id 1 / meter mtr_id 2 / jump group 2"),
                Some("meter chaining not support"),
                Some("not supported in template API"),
            ),
            (rule("eth", "count"), Some("no fate action"), None),
            (rule("eth / ipv4 / ipv4", OUT), Some("multiple L3 layers"), None),
            (
                rule("eth", "represented_port ethdev_port_id 200"),
                Some("failed to obtain E-Switch"),
                Some("fail to create rte flow"),
            ),
            (
                rule("eth", "port_representor port_id 10"),
                Some("action not supported"),
                Some("not supported in template API"),
            ),
            (rule("port_id id is 11 / eth", OUT), None, Some("Unsupported item type")),
        ],
    );
}

/// The sizes are those of the facts about the hardware's formats: nine words and eight bytes of headers, and three of the
/// words only where ConnectX-7 has them.
#[test]
fn mlx5_refuses_matches_that_do_not_fit() {
    let tuple4 = "ipv4 src is 10.0.0.1 dst is 10.0.0.2 tos spec 0x02 tos mask 0x03 / tcp src is 1 dst is 2";
    let tuple6 = "ipv6 src is fd00::1 dst is fd00::2 / tcp src is 1 dst is 2";
    let over4 = "eth / ipv4 src is 172.16.0.1 dst is 172.16.0.2 / udp / vxlan vni is 100 / eth";
    let over6 = "eth / ipv6 src is fd00::1 dst is fd00::2 / udp / vxlan vni is 100 / eth";
    for nic in Nic::ALL {
        let large = if nic == Nic::ConnectX6Dx { NO_FIT } else { None };
        judged(
            nic,
            &[
                (rule(&format!("{over4} / {tuple4}"), "drop"), None, None),
                (rule(&format!("eth / {tuple6}"), "drop"), None, large),
                (rule(&format!("{over6} / {tuple4}"), "drop"), None, NO_FIT),
                (rule(&format!("{over6} / {tuple6}"), "drop"), None, NO_FIT),
            ],
        );
    }
}

/// What pmd makes of masks reaches the driver: without the mask of its width a `modify_field` is refused.
#[test]
fn mlx5_sees_the_masks_of_templates() {
    let rule = rule("eth / ipv4", &format!("{CE} / {OUT}"));
    let mut whole = Vec::new();
    pmd::flow::flatten(&rule, true, &mut whole).unwrap();
    // From the end: the end of the masks (12 bytes), the mask of the way out (12 and 128), "no data" (4), the width and what fills up
    // its structure (8).
    let mut without = whole.clone();
    let width = whole.len() - 12 - 140 - 12;
    assert_eq!(without[width..width + 4], [0xff; 4]);
    without[width] = 0x02;
    let Some(verdicts) = at_hand(judge::ask([whole, without].concat(), 2, Nic::ConnectX7, Engine::Hardware))
    else {
        return;
    };
    assert_eq!(verdicts[0], Verdict::Accepted);
    assert!(verdicts[1].to_string().contains("width field must be fully masked"), "{}", verdicts[1]);
}

/// An action of a flattened rule, or its mask.
struct Entry {
    type_: u32,
    conf: Option<Vec<u8>>,
    data: Option<Vec<u8>>,
}

/// The actions and masks of a flattened rule, and what is before them.
fn actions_of(bytes: &[u8]) -> (Vec<u8>, [Vec<Entry>; 2]) {
    let mut at = 13;
    let number = |at: &mut usize| {
        let number = u32::from_ne_bytes(bytes[*at..*at + 4].try_into().unwrap());
        *at += 4;
        number
    };
    let blob = |at: &mut usize| {
        let length = number(at);
        (length != u32::MAX).then(|| {
            *at += length as usize;
            bytes[*at - length as usize..*at].to_vec()
        })
    };
    for _ in 0..2 {
        for _ in 0..number(&mut at) {
            number(&mut at);
            (0..3).for_each(|_| drop(blob(&mut at)));
        }
    }
    let before = bytes[..at].to_vec();
    let lists = [(), ()].map(|()| {
        let entries = (0..number(&mut at)).map(|_| (number(&mut at), blob(&mut at), blob(&mut at)));
        entries.map(|(type_, conf, data)| Entry { type_, conf, data }).collect()
    });
    assert_eq!(at, bytes.len());
    (before, lists)
}

fn flattened((mut bytes, lists): (Vec<u8>, [Vec<Entry>; 2])) -> Vec<u8> {
    for list in lists {
        bytes.extend((list.len() as u32).to_ne_bytes());
        for Entry { type_, conf, data } in list {
            bytes.extend(type_.to_ne_bytes());
            for part in [conf, data] {
                bytes.extend(part.as_ref().map_or(u32::MAX, |part| part.len() as u32).to_ne_bytes());
                bytes.extend(part.unwrap_or_default());
            }
        }
    }
    bytes
}

/// Numbers of actions in DPDK's interface, where they do not change.
const METER: u32 = 13;
const INDIRECT: u32 = 51;
const METER_MARK: u32 = 56;

/// Hardware steering meters with METER_MARK, which the judge has profiles and indirect meters for: at its place, once.
#[test]
fn mlx5_takes_a_meter_as_hardware_steering_has_it() {
    let with_meter = |actions: &str, type_: u32, conf: Option<Vec<u8>>| {
        let mut bytes = Vec::new();
        pmd::flow::flatten(&rule("eth / ipv4", actions), true, &mut bytes).unwrap();
        let (before, [mut actions, mut masks]) = actions_of(&bytes);
        for (action, mask) in actions.iter_mut().zip(&mut masks).filter(|(action, _)| action.type_ == METER) {
            *action = Entry { type_, conf: conf.clone(), data: None };
            *mask = Entry { type_: METER_MARK, conf: conf.clone(), data: None };
        }
        flattened((before, [actions, masks]))
    };
    let meter = "meter mtr_id 1";
    let rules = [
        with_meter(&format!("{meter} / {CE} / jump group 2"), INDIRECT, None),
        with_meter(&format!("{meter} / {CE} / jump group 2"), METER_MARK, Some(vec![0; 32])),
        with_meter(&format!("{CE} / {meter} / jump group 2"), INDIRECT, None),
        with_meter(&format!("{meter} / {meter} / jump group 2"), INDIRECT, None),
    ];
    let Some(verdicts) = at_hand(judge::ask(rules.concat(), 4, Nic::ConnectX7, Engine::Hardware)) else {
        return;
    };
    assert_eq!(verdicts[..2], [Verdict::Accepted, Verdict::Accepted]);
    for refused in &verdicts[2..] {
        assert!(refused.to_string().contains(NO_ORDER.unwrap()), "{refused}");
    }
}

#[test]
fn mlx5_rules_without_words_for_them_are_not_judged() {
    let rules = [rule("eth / ipv4 / udp dst is 4791 / ib_bth opcode is 0x11", "drop"), rule("eth", "drop")];
    let Some(verdicts) = at_hand(judge(&rules, Nic::BlueField3, Engine::Software)) else { return };
    assert_eq!(matches!(verdicts[0], Verdict::Unsaid(_)), !pmd::flow::BUILD.ib_bth);
    assert_eq!(verdicts[1], Verdict::Accepted);
}

/// Counters and ages of rules that are gone come back late: that there are none left is no judgement.
#[test]
fn mlx5_has_room_for_the_rules_of_a_run() {
    let rules = vec![rule("eth / ipv4", &format!("count / age timeout 30 / {OUT}")); 3000];
    for engine in Engine::ALL {
        let Some(verdicts) = at_hand(judge(&rules, Nic::ConnectX7, engine)) else { return };
        assert_eq!(verdicts.iter().find(|verdict| **verdict != Verdict::Accepted), None, "{engine}");
    }
}

#[test]
fn mlx5_a_judge_that_ends_early_is_an_error() {
    let mut rule = Vec::new();
    pmd::flow::flatten(&self::rule("eth", "drop"), true, &mut rule).unwrap();
    let half = rule[..rule.len() - 5].to_vec();
    let error = match judge::ask([rule, half].concat(), 2, Nic::ConnectX7, Engine::Hardware) {
        Err(GateError::NoSources { .. }) => return,
        other => other.unwrap_err(),
    };
    assert!(matches!(error, GateError::Died { answers: 1, questions: 2, .. }), "{error}");
    assert!(error.to_string().contains("in the middle of a rule"), "{error}");
}

#[test]
fn mlx5_says_what_the_table_says() {
    let chains = chains::all().unwrap();
    let count: usize = chains.iter().map(|chain| chain.rules.len()).sum();
    assert!(chains.len() > 15 && count > 1000, "{} chains, {count} rules", chains.len());
    let Some(table) = at_hand(table::table(&chains)) else { return };
    let (now, _) = table::in_file(&table).unwrap();
    // The table is of one release; another one is judged by what it says itself, as above.
    let release = |table: &str| table.trim().lines().next().unwrap().to_owned();
    if release(&now) != release(&table) {
        println!(
            "SKIPPED: the table in {} is of another DPDK than this: {}",
            table::file().display(),
            release(&now)
        );
        return;
    }
    assert!(
        now == table.trim(),
        "the table in {} is not what mlx5 says now; write it with `cargo run -p mlx5-gate -- table`:\n{table}",
        table::file().display()
    );
}
