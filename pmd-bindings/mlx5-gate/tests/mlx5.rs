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
            (rule("eth / ipv4", "meter mtr_id 1 / count / jump group 3"), None, NO_ORDER),
            (rule("eth / ipv4", &format!("{encap} / count / {OUT}")), None, NO_ORDER),
            (rule("eth", "drop / drop"), None, NO_ORDER),
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
                NO_ORDER,
            ),
            (
                rule("eth", &format!("age timeout 3 / age timeout 4 / {OUT}")),
                Some("duplicate age"),
                Some("duplicate AGE"),
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

/// A rule of hardware steering whose flattened actions and masks were changed.
fn edited(actions: &str, edit: impl FnOnce(&mut [Entry], &mut [Entry])) -> Vec<u8> {
    let mut bytes = Vec::new();
    pmd::flow::flatten(&rule("eth / ipv4", actions), true, &mut bytes).unwrap();
    let (before, [mut actions, mut masks]) = actions_of(&bytes);
    edit(&mut actions, &mut masks);
    flattened((before, [actions, masks]))
}

/// The same with one byte changed: of the first action, or of its mask.
fn with_byte(actions: &str, of_mask: bool, at: usize, byte: u8) -> Vec<u8> {
    edited(actions, |actions, masks| {
        let entry = if of_mask { &mut masks[0] } else { &mut actions[0] };
        entry.conf.as_mut().unwrap()[at] = byte;
    })
}

/// Where the parts of `modify_field` and `raw_encap` are, in structures that do not change within a release.
const LEVEL: usize = 16;
const OFFSET: usize = 20;
const WIDTH: usize = 56;
const SIZE: usize = 16;

/// What pmd makes of masks reaches the driver: it is refused with one bit less.
#[test]
fn mlx5_sees_the_masks_of_templates() {
    let field = format!("{CE} / {OUT}");
    let refused = [
        (with_byte(&field, true, LEVEL, 0xfe), "level must be fully masked"),
        (with_byte(&field, true, OFFSET, 0xfe), "offset level must be fully masked"),
        (with_byte(&field, true, WIDTH, 0xfe), "width field must be fully masked"),
        (with_byte(&field, false, OFFSET, 1), "invalid modification flow item"),
    ];
    let asked = |rule: Vec<u8>| judge::ask(rule, 1, Nic::ConnectX7, Engine::Hardware);
    let Some(whole) = at_hand(asked(edited(&field, |_, _| {}))) else { return };
    assert_eq!(whole, [Verdict::Accepted]);
    for (rule, words) in refused {
        let verdict = asked(rule).unwrap().remove(0);
        assert!(verdict.to_string().contains(words), "{verdict}; expected: {words}");
    }
}

#[test]
fn mlx5_takes_rules_of_the_e_switch_on_its_proxy_port_only() {
    let mut bytes = Vec::new();
    pmd::flow::flatten(&rule("eth", "drop"), true, &mut bytes).unwrap();
    let ask = |engine| at_hand(judge::ask_representor(bytes.clone(), 1, Nic::ConnectX7, engine));
    let Some(verdicts) = ask(Engine::Hardware) else { return };
    let words = verdicts[0].to_string();
    assert!(
        words.contains("pattern template: transfer attribute cannot be used with port representors"),
        "{words}"
    );
    assert!(words.contains("actions template: transfer actions are only valid to proxy port"), "{words}");
    // The other engine asks no port who it is.
    assert_eq!(ask(Engine::Software).unwrap(), [Verdict::Accepted]);
}

#[test]
fn mlx5_refuses_priorities_and_registers_beyond_the_last() {
    let of_priority = |priority: u32| {
        let mut rule = rule("eth", "drop");
        rule.attr.priority = priority;
        rule
    };
    let tag = |index: u8| rule(&format!("tag data is 1 index is {index} / eth"), "drop");
    judged(
        Nic::ConnectX7,
        &[
            (of_priority(21_843), None, None),
            // Two fewer than the guide says. The other engine looks at no priority, nor does that of 24.11.4 (asked by hand).
            (of_priority(21_844), Some("priority out of range"), None),
            (of_priority(70_000), Some("priority out of range"), None),
            (tag(3), None, None),
            (tag(20), Some("invalid tag id"), Some("Failed processing item type")),
            (rule("mark id is 1 / eth", "drop"), Some("extended metadata"), Some("Unsupported item type")),
            (rule("eth", &format!("mark id 1 / {OUT}")), None, NO_ORDER),
            (rule("eth", "queue index 1"), Some("No Rx queues"), NO_ORDER),
        ],
    );
}

/// What can do no good, and is taken with hardware steering: no rule of the switch relies on its refusal. Asked by hand, 24.11.4
/// takes the first two as well; it refuses the register, the second header taken off, ECN at level 2 and the size without a mask.
#[test]
fn mlx5_of_22_11_takes_what_can_do_no_good() {
    let register = "modify_field op set dst_type tag dst_level 20 src_type value src_value 01000000 width 32";
    judged(
        Nic::ConnectX7,
        &[
            // Group 0 is table 1 of the e-switch here (fdb_def_rule_en=1): no jump leads to the root.
            (rule("eth", "jump group 0"), None, None),
            (rule("represented_port ethdev_port_id is 200 / eth", "drop"), Some("failed to obtain"), None),
            (rule("eth", &format!("{register} / {OUT}")), Some("invalid modification flow item"), None),
            (rule("eth", &format!("vxlan_decap / vxlan_decap / {OUT}")), Some("VXLAN item"), None),
        ],
    );
    let inner_ecn = with_byte(&format!("{CE} / {OUT}"), false, LEVEL, 2);
    let encap = format!("raw_encap index 0 / {OUT}");
    let unmasked_size = edited(&encap, |_, masks| masks[0].conf.as_mut().unwrap()[SIZE..].fill(0));
    let rules = [inner_ecn, unmasked_size].concat();
    let Some(verdicts) = at_hand(judge::ask(rules, 2, Nic::ConnectX7, Engine::Hardware)) else { return };
    assert_eq!(verdicts, [Verdict::Accepted, Verdict::Accepted]);
}

/// Meters are legacy ones with software steering, and handles of METER_MARK with hardware steering (tests/meters.rs).
#[test]
fn mlx5_takes_one_meter_at_its_place() {
    let meter = "meter mtr_id 1";
    judged(
        Nic::ConnectX7,
        &[
            (rule("eth / ipv4", &format!("{meter} / jump group 2")), None, None),
            (rule("eth / ipv4", &format!("count / {meter} / {CE} / jump group 2")), None, None),
            (rule("eth / ipv4", &format!("{CE} / {meter} / jump group 2")), None, NO_ORDER),
            (
                rule("eth / ipv4", &format!("{meter} / {meter} / jump group 2")),
                Some("meter chaining"),
                NO_ORDER,
            ),
        ],
    );
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
