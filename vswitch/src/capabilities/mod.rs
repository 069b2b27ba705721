//! What a device makes of the rules that the switch would give it: asked, tried out, and said in its own words.
//!
//! ```text
//!   sample.rs: chains of flows that nobody has --> probe: validate, create, destroy --> Report
//! ```
//! Works on any back end. Some drivers say yes to a question and no to the rule itself, so each rule is also made, and
//! taken away again: in groups that nothing leads to, or for addresses that nobody has, with a meter of its own. Decides
//! nothing: which flows are offloaded follows from what becomes of their own rules.

pub mod sample;

use rules::{
    Action, Attr, BackEnd, Cause, FlowError, FlowRule, Item, ItemKind, Meter, Modify, RuleId, Where, items,
};
use wire::{Ecn, MacAddr, Qpn};

use sample::SampleChain;

/// So far above the groups in use are those of a probe.
const ABOVE: u32 = 16;
/// Group of the rules that stand alone.
const ALONE: u32 = 2 * ABOVE;
/// The meter of a probe.
const METER: u32 = 0x7fff_fff0;

/// What was asked, and the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapabilityAnswer {
    /// What was asked about.
    pub name: &'static str,
    /// `Err`: the rule that was refused (none for a meter), and the device's words.
    pub taken: Result<(), (Option<FlowRule>, FlowError)>,
}

impl CapabilityAnswer {
    /// `yes`, or the device's words.
    pub fn words(&self) -> String {
        self.taken.as_ref().map_or_else(|(_, error)| error.to_string(), |()| "yes".into())
    }
}

/// Answers for programs: the device's words, and the rule that was refused, in testpmd's syntax.
pub fn json(answers: &[CapabilityAnswer]) -> serde_json::Value {
    let one = |answer: &CapabilityAnswer| match &answer.taken {
        Ok(()) => serde_json::json!({ "name": answer.name, "taken": true }),
        Err((rule, error)) => serde_json::json!({
            "name": answer.name, "taken": false, "words": error.to_string(),
            "rule": rule.as_ref().map(ToString::to_string),
        }),
    };
    answers.iter().map(one).collect()
}

/// What a device takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapabilityReport {
    /// Single items and actions.
    pub features: Vec<CapabilityAnswer>,
    /// Whole chains, by the flow that they are for.
    pub chains: Vec<CapabilityAnswer>,
}

/// Asks a device about packets that come from DPDK port `from` and go out of DPDK port `to`.
///
/// # Errors
/// In words, when there is nothing to ask.
pub fn probe<B: BackEnd>(back_end: &mut B, from: u16, to: u16) -> Result<CapabilityReport, String> {
    let chains = sample::chains(from, to)?;
    let encap = chains.iter().flat_map(|sample| &sample.rules).flat_map(|rule| &rule.actions);
    let encap = encap.copied().find(|action| matches!(action, Action::RawEncap(_)));
    let features = features(from, to, encap.ok_or("no sample is put into a tunnel")?);
    let single = |(name, meter, rule): (&'static str, bool, FlowRule)| {
        let meter = meter.then_some(Meter { cir: 125_000_000, cbs: 150_000, eir: 0, ebs: 150_000 });
        CapabilityAnswer { name, taken: taken(back_end, meter, &[rule]) }
    };
    let features = features.into_iter().map(single).collect();
    let whole = |SampleChain { name, rules, meter }: SampleChain| {
        let rules: Vec<FlowRule> = rules.into_iter().map(aside).collect();
        CapabilityAnswer { name, taken: taken(back_end, meter, &rules) }
    };
    Ok(CapabilityReport { features, chains: chains.into_iter().map(whole).collect() })
}

/// The same rule, where it leads no packet astray.
fn aside(mut rule: FlowRule) -> FlowRule {
    let above = |group: u32| if group == 0 { 0 } else { group + ABOVE };
    rule.attr.group = above(rule.attr.group);
    for action in &mut rule.actions {
        match action {
            Action::Jump { group } => *group = above(*group),
            Action::Meter { mtr_id } => *mtr_id = METER,
            _ => {}
        }
    }
    rule
}

/// Whether the device takes all of these rules, the first upstream. Nothing of them is left.
fn taken<B: BackEnd>(
    back_end: &mut B,
    meter: Option<Meter>,
    rules: &[FlowRule],
) -> Result<(), (Option<FlowRule>, FlowError)> {
    if let Some(meter) = meter {
        back_end.set_meter(METER, Some(meter)).map_err(|error| (None, error))?;
    }
    let mut made = Vec::with_capacity(rules.len());
    let result = rules.iter().try_for_each(|rule| {
        match back_end.validate(rule).and_then(|()| back_end.create(rule)) {
            Ok(id) => made.push((id, rule)),
            // Where packets begin it may be there for a flow that somebody has: that is an answer, too.
            Err(error) if error.cause == Cause::Exists && rule.attr.group == 0 => {}
            Err(error) => return Err((Some(rule.clone()), error)),
        }
        Ok(())
    });
    // What a queue has not done yet it has done then; what it did not do is gone, which is told below.
    let _ = back_end.drain();
    let gone =
        made.into_iter().rev().map(|(id, rule)| give_back(back_end, id, rule)).fold(Ok(()), Result::and);
    if meter.is_some() {
        // One that the device will not give back is used again by the next probe.
        let _ = back_end.set_meter(METER, None);
    }
    result.and(gone)
}

/// A device that takes a rule and then fails to put it into force has none to give back.
fn give_back<B: BackEnd>(
    back_end: &mut B,
    id: RuleId,
    rule: &FlowRule,
) -> Result<(), (Option<FlowRule>, FlowError)> {
    back_end.destroy(id).map(|_| ()).map_err(|error| match error.cause {
        Cause::Gone => {
            let message = "taken, and then not put into force";
            (Some(rule.clone()), FlowError::new(Cause::Other(0), Where::Handle, message))
        }
        _ => (Some(rule.clone()), error),
    })
}

/// Single items and actions: name, whether it needs the meter, and a rule that needs little else.
fn features(from: u16, to: u16, encap: Action) -> Vec<(&'static str, bool, FlowRule)> {
    let eth = Item::any(ItemKind::Eth);
    let ipv4 = Item::any(ItemKind::Ipv4);
    let udp = |port: u16| Item::with(items::udp::DST, port);
    let on = Action::Jump { group: ALONE + 1 };
    let out = Action::RepresentedPort { port: to };
    let vni = Item::with(items::vxlan::VNI, 0x00ff_fffeu32);
    let pair = Item::with(items::ib_bth::DST_QP, Qpn::truncated(17).get());
    let tag = Item::with(items::tag::DATA, 1u32).is(items::tag::INDEX, 1u8);
    let mac = MacAddr([2, 0, 0x5e, 0x10, 1, 1]);
    let ce = Action::set_ecn(false, Ecn::Ce);
    let parts: Vec<(&'static str, Vec<Item>, Vec<Action>)> = vec![
        (
            "match where packets come from",
            vec![Item::with(items::represented_port::ETHDEV_PORT_ID, from)],
            vec![on],
        ),
        ("match the VNI", vec![eth, ipv4, udp(4789), vni], vec![on]),
        ("match queue pairs (ib_bth)", vec![eth, ipv4, udp(4791), pair], vec![on]),
        ("match ECN", vec![eth, Item::any(ItemKind::Ipv4).masked(items::ipv4::TOS, 2u8, 3)], vec![on]),
        ("registers", vec![tag], vec![Action::set_tag(1, 1), on]),
        ("count", vec![eth], vec![Action::Count, on]),
        ("age", vec![eth], vec![Action::Age { timeout: 30 }, on]),
        ("meter", vec![eth], vec![Action::Meter { mtr_id: METER }, on]),
        ("match a meter's colour", vec![Item::with(items::meter_color::COLOR, 0u8)], vec![on]),
        ("set ECN", vec![eth, ipv4], vec![ce, on]),
        (
            "rewrite MACs and TTL",
            vec![eth, ipv4],
            vec![
                Action::ModifyField(Modify::Ttl { ipv6: false }),
                Action::ModifyField(Modify::MacSrc(mac)),
                Action::ModifyField(Modify::MacDst(mac)),
                on,
            ],
        ),
        ("raw_encap", vec![eth], vec![encap, out]),
        ("vxlan_decap", vec![eth, ipv4, udp(4789), vni], vec![Action::VxlanDecap, out]),
        ("back to software (a group without rules)", vec![eth], vec![Action::Jump { group: ALONE + 1 }]),
    ];
    let alone = |(name, pattern, actions): (&'static str, Vec<Item>, Vec<Action>)| {
        let meter = name == "meter";
        (name, meter, FlowRule { attr: Attr::transfer(ALONE, 0), pattern, actions })
    };
    parts.into_iter().map(alone).collect()
}

/// Writes into the log what a device takes, when flows are to go into it.
pub fn log(port: &str, device: &str, report: &CapabilityReport) {
    let count = |answers: &[CapabilityAnswer]| {
        let taken = answers.iter().filter(|answer| answer.taken.is_ok()).count();
        format!("{taken} of {}", answers.len())
    };
    let lines = report.features.iter().chain(&report.chains);
    let table: String = lines.map(|answer| format!("\n  {:<36} {}", answer.name, answer.words())).collect();
    let (chains, features) = (count(&report.chains), count(&report.features));
    tracing::info!(port, device, chains, features, "what the device takes:{table}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipelines::offload::sim::{Eswitch, EswitchConfig};
    use pipelines::offload::translate::group;

    fn asked(config: EswitchConfig) -> (CapabilityReport, Eswitch) {
        let mut eswitch = Eswitch::new(config);
        let report = probe(&mut eswitch, 7, 8).unwrap();
        (report, eswitch)
    }

    fn refused(answers: &[CapabilityAnswer]) -> Vec<&'static str> {
        answers.iter().filter(|answer| answer.taken.is_err()).map(|answer| answer.name).collect()
    }

    #[test]
    fn a_device_that_can_all_takes_all_and_keeps_nothing() {
        let (report, mut eswitch) = asked(EswitchConfig::default());
        assert_eq!((refused(&report.features), refused(&report.chains)), (vec![], vec![]));
        assert!(eswitch.stats().created > 100 && eswitch.is_empty());
        assert_eq!(eswitch.set_meter(METER, None).unwrap_err().cause, Cause::Gone);
    }

    #[test]
    fn what_a_device_lacks_is_told_in_its_words() {
        let (report, eswitch) =
            asked(EswitchConfig { ib_bth: false, modify_ecn: false, ..EswitchConfig::default() });
        assert_eq!(refused(&report.features), ["match queue pairs (ib_bth)", "set ECN"]);
        // Marks out of the tunnel, and yellow packets of RDMA, need ECN to be set.
        let chains = [
            "tcp-decap",
            "vlan-decap",
            "ipv6-decap",
            "rc-encap",
            "rc-decap",
            "rc-ipv6-encap",
            "rc-ipv6-decap",
            "ud-encap",
            "rc-metered",
        ];
        assert_eq!(refused(&report.chains), chains);
        let by_name = |name: &str| report.chains.iter().find(|answer| answer.name == name).unwrap().clone();
        assert!(by_name("rc-encap").words().contains("this device does not match ib_bth"));
        let (rule, error) = by_name("tcp-decap").taken.unwrap_err();
        assert_eq!((error.cause, error.at), (Cause::Unsupported, Where::Action(1)));
        assert!(rule.unwrap().to_string().contains("vxlan_decap / modify_field"));
        assert_eq!(eswitch.len(), 0, "nothing is left of a chain that was refused half way");
    }

    #[test]
    fn a_device_without_any_rule_is_asked_no_further_than_the_first() {
        let (report, eswitch) = asked(EswitchConfig { refuse_all: true, ..EswitchConfig::default() });
        assert!(report.chains.iter().all(|answer| answer.words().contains("this device takes no rules")));
        assert_eq!(eswitch.len(), 0);
    }

    #[test]
    fn a_device_without_room_says_so() {
        let (report, eswitch) = asked(EswitchConfig { capacity: 3, ..EswitchConfig::default() });
        assert_eq!(refused(&report.features), Vec::<&str>::new());
        assert!(report.chains.iter().all(|answer| answer.taken.as_ref().unwrap_err().1.cause == Cause::Full));
        assert_eq!(eswitch.len(), 0);
    }

    #[test]
    fn rules_of_a_probe_are_where_no_flow_goes() {
        for SampleChain { name, rules, .. } in sample::chains(7, 8).unwrap() {
            for rule in rules.into_iter().map(aside) {
                assert!(rule.attr.group == 0 || rule.attr.group > ABOVE, "{name}: {rule}");
                let jumps = rule.actions.iter().filter_map(|action| match action {
                    Action::Jump { group } => Some(*group),
                    _ => None,
                });
                assert!(jumps.into_iter().all(|group| group > ABOVE), "{name}: {rule}");
                // Where live packets begin, only documentation addresses are led anywhere but to software.
                let software = Action::Jump { group: group::SOFTWARE + ABOVE };
                if rule.attr.group == 0 && rule.actions != [software] {
                    assert!(rule.to_string().contains("02:00:5e:10:"), "{name}: {rule}");
                }
            }
        }
    }
}
