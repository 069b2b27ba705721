//! What the simulated e-switch refuses, and which part of a rule it names.

use pipelines::offload::sim::{Eswitch, EswitchConfig};
use rules::items::*;
use rules::{Action, BackEnd, Cause, FlowRule, Item, ItemKind, Where, mlx5};
use wire::Ecn;

use crate::sim::{out, rule};

#[test]
fn sim_refusals_name_what_they_are_about() {
    let strict = EswitchConfig {
        meter_mark: false,
        ib_bth: false,
        modify_ecn: false,
        groups: 8,
        ..EswitchConfig::default()
    };
    let bth = Item::with(ib_bth::DST_QP, 17u8);
    let any = Item::any(ItemKind::Eth);
    let tag = |index: u8| Item::with(tag::DATA, 1u8).is(tag::INDEX, index);
    let meter = Action::Meter { mtr_id: 1 };
    let ecn = Action::set_ecn(false, Ecn::Ce);
    let cases: Vec<(FlowRule, Where)> = vec![
        (rule(0, 0, &[bth], &[Action::Drop]), Where::Item(0)),
        (rule(1, 0, &[any, bth], &[Action::Drop]), Where::Item(1)),
        (rule(8, 0, &[any], &[Action::Drop]), Where::AttrGroup),
        (rule(0, 0, &[any, Item::with(meter_color::COLOR, 1u8)], &[Action::Drop]), Where::Item(1)),
        (
            rule(0, 0, &[Item::any(ItemKind::Udp).between(udp::SRC, 1u8, 2u8)], &[Action::Drop]),
            Where::ItemLast(0),
        ),
        (rule(0, 0, &[tag(4)], &[Action::Drop]), Where::Item(0)),
        (rule(0, 0, &[Item::any(ItemKind::Udp), Item::any(ItemKind::Ipv4)], &[Action::Drop]), Where::Item(1)),
        (
            rule(0, 0, &[Item::any(ItemKind::Ipv4), Item::any(ItemKind::Ipv6)], &[Action::Drop]),
            Where::Item(1),
        ),
        (rule(0, 0, &[any], &[]), Where::ActionNum),
        (rule(0, 0, &[any], &[Action::Drop, out(1)]), Where::ActionNum),
        (rule(0, 0, &[any], &[meter, Action::Count, Action::Drop]), Where::Action(1)),
        (rule(0, 0, &[any], &[meter, meter, Action::Drop]), Where::Action(1)),
        (rule(0, 0, &[any], &[Action::Mark { id: 1 }, Action::Drop]), Where::Action(0)),
        (rule(0, 0, &[any], &[Action::PortId { id: 1 }]), Where::Action(0)),
        (rule(0, 0, &[any, Item::with(mark::ID, 1u8)], &[Action::Drop]), Where::Item(1)),
        (rule(0, 0, &[any], &[Action::set_tag(0, 1), Action::VxlanDecap, Action::Drop]), Where::Action(1)),
        (rule(0, 0, &[any], &[Action::Count, Action::Count, Action::Drop]), Where::Action(1)),
        (rule(0, 0, &[any], &[ecn, Action::Drop]), Where::Action(0)),
        (rule(3, 0, &[any], &[Action::Jump { group: 3 }]), Where::Action(0)),
        (rule(3, 0, &[any], &[Action::Jump { group: 8 }]), Where::Action(0)),
        (rule(0, 0, &[any], &[Action::Age { timeout: 1 << 24 }, Action::Drop]), Where::Action(0)),
    ];
    let mut strict = Eswitch::new(strict);
    for (rule, at) in &cases {
        let error = strict.create(rule).expect_err(&rule.to_string());
        assert_eq!(error.at, *at, "{rule}: {error}");
        assert_eq!(strict.validate(rule), Err(error));
    }
    let egress = rules::Domain::Egress;
    let mut wrong = rule(0, 0, &[any], &[Action::Drop]);
    wrong.attr.domain = egress;
    assert_eq!(strict.create(&wrong).unwrap_err().at, Where::AttrEgress);
    assert_eq!((strict.stats().refused, strict.len()), (cases.len() as u64 + 1, 0));
    let mut nothing = Eswitch::new(EswitchConfig { refuse_all: true, ..EswitchConfig::default() });
    assert_eq!(nothing.create(&rule(0, 0, &[any], &[Action::Drop])).unwrap_err().cause, Cause::Unsupported);
}

/// What one engine of mlx5 takes the other may refuse, both ways.
#[test]
fn sim_refusals_are_those_of_the_steering() {
    let text = |pattern: &str, actions: &str| {
        let command = format!(
            "flow create 0 group 1 priority 0 transfer pattern {pattern} / end actions {actions} / end"
        );
        rules::testpmd::commands(&command).unwrap().remove(0)
    };
    let out = "jump group 2";
    let cases = [
        // Rule, taken with software steering, with hardware steering.
        (text("eth / ipv4 / tcp dst is 80", out), true, true),
        (text("eth / ipv6 src is fd00::1 dst is fd00::2 / tcp src is 1 dst is 2", out), true, false),
        (text("eth / ipv4", &format!("age timeout 3 / count / meter mtr_id 1 / {out}")), true, true),
        (text("eth / ipv4", &format!("age timeout 3 / meter mtr_id 1 / {out}")), false, true),
        (text("eth / ipv4", &format!("meter mtr_id 1 / count / {out}")), true, false),
        (text("eth / ipv4 proto is 6 / udp", out), false, true),
        (text("eth / ipv4", "vxlan_decap / jump group 2"), false, true),
        (text("eth / ipv4 / udp dst is 4791 / ib_bth pkey is 1", out), false, false),
    ];
    for (steering, column) in [(mlx5::Engine::Software, 0), (mlx5::Engine::Hardware, 1)] {
        let nic = Some(mlx5::Nic::ConnectX6Dx);
        let mut eswitch = Eswitch::new(EswitchConfig { nic, steering, ..EswitchConfig::default() });
        for (rule, software, hardware) in &cases {
            let answer = eswitch.validate(rule);
            assert_eq!(answer.is_ok(), [*software, *hardware][column], "{steering}: {rule}: {answer:?}");
        }
    }
}
