//! The simulated e-switch refuses what mlx5 refuses: the table that it asks (`rules::mlx5`), and itself, against the driver.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::collections::BTreeSet;

use mlx5_gate::chains::{self, Chain};
use mlx5_gate::{Engine, GateError, Nic, Verdict, judge, wrong};
use pipelines::offload::sim::{Eswitch, EswitchConfig};
use rules::items::{eth, ib_bth, ipv6, udp};
use rules::{BackEnd, FlowError, FlowRule, Item, ItemKind, mlx5};

/// What the table refuses and the driver of 22.11 takes, by the table's words. The driver makes nothing good of it.
fn stricter_table(engine: Engine) -> BTreeSet<&'static str> {
    match engine {
        Engine::Software => BTreeSet::from([mlx5::NO_RANGES]),
        Engine::Hardware => BTreeSet::from([mlx5::ONE_HEADER, mlx5::VLAN_TWICE, mlx5::PART_OF_PROTOCOL]),
    }
}

/// What the simulated e-switch refuses besides, by its words: it cannot execute it, or no packet would match.
fn stricter_simulation(engine: Engine) -> BTreeSet<&'static str> {
    match engine {
        Engine::Software => BTreeSet::from(["the action is there twice", "the item is there twice"]),
        Engine::Hardware => BTreeSet::from([
            "no action says where packets go",
            "the action is there twice",
            "the item is there twice",
            "the item stands behind a layer that is not in front of it in packets",
            "a tag item names one of registers 0 to 3, all bits of its index",
        ]),
    }
}

fn eswitch(nic: Nic, steering: Engine) -> Eswitch {
    Eswitch::new(EswitchConfig { nic: Some(nic), steering, ..EswitchConfig::default() })
}

/// Each rule once.
fn once(rules: impl IntoIterator<Item = FlowRule>) -> Vec<FlowRule> {
    let mut seen = BTreeSet::new();
    rules.into_iter().filter(|rule| seen.insert(rule.testpmd(0))).collect()
}

fn of(chains: &[Chain]) -> Vec<FlowRule> {
    once(chains.iter().flat_map(|chain| chain.rules.clone()))
}

/// What the driver says of rules, those left out that this DPDK has no words for.
fn asked(rules: &[FlowRule], nic: Nic, engine: Engine) -> Option<Vec<(&FlowRule, Verdict)>> {
    match judge(rules, nic, engine) {
        Ok(verdicts) => {
            let asked = rules.iter().zip(verdicts);
            Some(asked.filter(|(_, verdict)| !matches!(verdict, Verdict::Unsaid(_))).collect())
        }
        Err(error @ GateError::NoSources { .. }) => {
            println!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Which of the known differences an answer is about; none where both say the same. Ends the test at any other one.
#[track_caller]
fn difference<'a>(
    rule: &FlowRule,
    nic: Nic,
    verdict: &Verdict,
    answer: Result<(), FlowError>,
    known: &BTreeSet<&'a str>,
) -> Option<&'a str> {
    match (verdict, answer) {
        (Verdict::Accepted, Ok(())) | (Verdict::Refused(_), Err(_)) => None,
        (Verdict::Accepted, Err(error)) => {
            let stricter = known.iter().copied().find(|words| error.message == *words);
            Some(stricter.unwrap_or_else(|| panic!("{nic}: mlx5 takes it, and not so here: {error}: {rule}")))
        }
        (verdict, Ok(())) => panic!("{nic}: taken here, and mlx5 says: {verdict}: {rule}"),
        (Verdict::Unsaid(_), Err(_)) => None,
    }
}

#[test]
fn mlx5_refuses_what_the_table_and_the_simulation_refuse_and_nothing_else() {
    let chains = chains::all().unwrap();
    let wrong = wrong::mutants(&chains).into_iter().chain(wrong::fields(&chains));
    let rules = once(of(&chains).into_iter().chain(wrong));
    for (engine, nic) in Engine::ALL.into_iter().flat_map(|engine| Nic::ALL.map(|nic| (engine, nic))) {
        let table = stricter_table(engine);
        let simulation = stricter_simulation(engine);
        let stricter = &table | &simulation;
        let mut eswitch = eswitch(nic, engine);
        let Some(asked) = asked(&rules, nic, engine) else { return };
        let mut refused = 0;
        let (mut by_table, mut by_simulation) = (BTreeSet::new(), BTreeSet::new());
        for (rule, verdict) in &asked {
            refused += usize::from(*verdict != Verdict::Accepted);
            by_table.extend(difference(rule, nic, verdict, mlx5::check(rule, nic, engine), &table));
            by_simulation.extend(difference(rule, nic, verdict, eswitch.validate(rule), &stricter));
        }
        assert!(refused > 4000 && asked.len() - refused > 4000, "{nic}: {refused} of {}", asked.len());
        // A difference that is none any more is to be forgotten.
        assert_eq!(by_table, table);
        assert!(by_simulation.is_superset(&simulation), "{engine}: {by_simulation:?}");
    }
}

/// Every rule that the switch gives a NIC is taken, by the driver and in the lab, and on ConnectX-6 Dx too.
#[test]
fn mlx5_takes_every_rule_of_the_switch_and_so_does_the_simulation() {
    let rules = of(&chains::all().unwrap());
    for (engine, nic) in Engine::ALL.into_iter().flat_map(|engine| Nic::ALL.map(|nic| (engine, nic))) {
        let mut eswitch = eswitch(nic, engine);
        for rule in &rules {
            eswitch.validate(rule).unwrap_or_else(|error| panic!("{engine}, {nic}: {rule}: {error}"));
        }
        let Some(asked) = asked(&rules, nic, engine) else { return };
        assert!(asked.len() > 2000, "{}", asked.len());
        for (rule, verdict) in &asked {
            assert_eq!(*verdict, Verdict::Accepted, "{engine}, {nic}: {rule}");
        }
    }
}

/// A rule about an operation or a queue pair with another match of the same size, which this DPDK has words for: four bytes of
/// a MAC stand for both. Of an operation alone it is the larger one.
fn stand_in(rule: &FlowRule) -> Option<FlowRule> {
    let bth = rule.pattern.iter().position(|item| item.kind() == ItemKind::IbBth)?;
    let inner = rule.pattern.iter().rposition(|item| item.kind() == ItemKind::Eth)?;
    let mut pattern = rule.pattern.clone();
    pattern.remove(bth);
    let free = pattern[inner].field(eth::SRC).1 == 0;
    pattern[inner] = pattern[inner].masked(eth::SRC, 0x0200_0000_0000u64, 0xffff_ffff_0000);
    free.then(|| FlowRule { pattern, ..rule.clone() })
}

/// A rule of one queue pair.
fn is_gate(rule: &FlowRule) -> bool {
    let both = |item: &Item| [ib_bth::OPCODE, ib_bth::DST_QP].iter().all(|field| item.field(*field).1 != 0);
    rule.pattern.iter().any(|item| item.kind() == ItemKind::IbBth && both(item))
}

/// What 22.11 cannot be asked itself, its solver says of matches of the same size: each queue pair has room. With both IPv6
/// addresses in one match it would not, in a tunnel or with its source port on any NIC, on ConnectX-6 Dx never: that is what
/// they are split for. The formats of 24.11 have as many words and bytes (its `mlx5dr_definer.h`).
#[test]
fn mlx5_has_room_for_every_queue_pair_and_would_not_if_ipv6_were_not_split() {
    let rules = of(&chains::all().unwrap());
    let about = rules.iter().filter(|rule| rule.pattern.iter().any(|item| item.kind() == ItemKind::IbBth));
    let split: Vec<FlowRule> = about.cloned().collect();
    let gates = split.iter().filter(|rule| is_gate(rule));
    let unsplit: Vec<FlowRule> = gates.filter_map(wrong::unsplit).collect();
    assert!(split.len() > 600 && unsplit.len() > 200, "{} and {}", split.len(), unsplit.len());
    for nic in Nic::ALL {
        for rules in [&split, &unsplit] {
            let stand_ins: Vec<FlowRule> = rules.iter().filter_map(stand_in).collect();
            let Some(asked) = asked(&stand_ins, nic, Engine::Hardware) else { return };
            assert_eq!(asked.len(), rules.len());
            let mut refused = 0;
            for (rule, (stand_in, verdict)) in rules.iter().zip(asked) {
                let has = |kind, field| {
                    rule.pattern.iter().any(|item: &Item| item.kind() == kind && item.field(field).1 != 0)
                };
                let large = has(ItemKind::Udp, udp::SRC)
                    || rule.pattern.iter().any(|item| item.kind() == ItemKind::Vxlan);
                let both = has(ItemKind::Ipv6, ipv6::SRC) && has(ItemKind::Ipv6, ipv6::DST);
                let fits = !both || (!large && nic != Nic::ConnectX6Dx);
                assert_eq!(verdict == Verdict::Accepted, fits, "{nic}: {stand_in}: {verdict}");
                refused += usize::from(!fits);
                for rule in [rule, stand_in] {
                    let answer = mlx5::check(rule, nic, Engine::Hardware);
                    assert_eq!(difference(rule, nic, &verdict, answer, &BTreeSet::new()), None);
                }
            }
            assert_eq!(refused > 100, std::ptr::eq(rules, &unsplit), "{nic}: {refused}");
        }
    }
}
