//! Rules as messages: what comes back, and what is refused.

use proptest::prelude::*;
use prost::Message as _;
use rules::{
    Action, Attr, Domain, Encap, Field, FlowRule, Item, ItemKind, Modify,
    testpmd::{self, Encaps},
};
use vswitch_api::v1::{self, flow_action, flow_item};
use wire::{Ecn, MacAddr};

use super::{message, rule};
use crate::api::bridge::descriptor;

const HEADER: &str = "eth src is 02:00:00:00:00:01 dst is 02:00:00:00:00:02 type is 0x0800 / ipv4 proto is 17 ttl is 64 src is 192.0.2.1 dst is 192.0.2.2 / udp src is 49152 dst is 4789 / vxlan vni is 7 / end_set";

/// A field with its spec, mask and last.
type FieldValues = (Field, u128, u128, Option<u128>);

fn fields() -> impl Strategy<Value = (ItemKind, Vec<FieldValues>)> {
    let value = |field: Field| {
        let number = move || any::<u128>().prop_map(move |value| value & field.ones());
        let mask = prop_oneof![Just(field.ones()), number()];
        (Just(field), number(), mask, proptest::option::of(number()))
    };
    proptest::sample::select(ItemKind::ALL).prop_flat_map(move |kind| {
        let fields = proptest::sample::subsequence(kind.fields(), 0..=kind.fields().len());
        fields.prop_flat_map(move |fields| {
            let values: Vec<_> = fields.into_iter().map(value).collect();
            (Just(kind), values)
        })
    })
}

fn item() -> impl Strategy<Value = Item> {
    fields().prop_map(|(kind, fields)| {
        let empty = || vec![0; kind.size()];
        let (mut spec, mut mask, mut last, mut is_range) = (empty(), empty(), empty(), false);
        for (field, value, bits, upper) in fields {
            field.set(&mut spec, value);
            field.set(&mut mask, bits);
            field.set(&mut last, upper.unwrap_or(value));
            is_range |= upper.is_some();
        }
        Item::from_bytes(kind, &spec, &mask, is_range.then_some(&last[..])).unwrap()
    })
}

fn modify() -> impl Strategy<Value = Modify> {
    let ecn = proptest::sample::select(&Ecn::ALL[..]);
    prop_oneof![
        any::<[u8; 6]>().prop_map(|mac| Modify::MacSrc(MacAddr(mac))),
        any::<[u8; 6]>().prop_map(|mac| Modify::MacDst(MacAddr(mac))),
        (any::<bool>(), ecn).prop_map(|(ipv6, ecn)| Modify::Ecn { ipv6, ecn }),
        any::<bool>().prop_map(|ipv6| Modify::Ttl { ipv6 }),
        any::<(u8, u32)>().prop_map(|(index, data)| Modify::Tag { index, data }),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let encap = testpmd::encap(HEADER).unwrap();
    prop_oneof![
        Just(Action::VxlanDecap),
        Just(Action::RawEncap(encap)),
        Just(Action::Count),
        (0..1u32 << 24).prop_map(|timeout| Action::Age { timeout }),
        any::<u32>().prop_map(|group| Action::Jump { group }),
        any::<u32>().prop_map(|mtr_id| Action::Meter { mtr_id }),
        modify().prop_map(Action::ModifyField),
        any::<u32>().prop_map(|id| Action::Mark { id }),
        any::<u16>().prop_map(|port| Action::RepresentedPort { port }),
        any::<u16>().prop_map(|port| Action::PortRepresentor { port }),
        any::<u32>().prop_map(|id| Action::PortId { id }),
        any::<u16>().prop_map(|index| Action::Queue { index }),
        Just(Action::Drop),
    ]
}

fn any_rule() -> impl Strategy<Value = FlowRule> {
    let domain = proptest::sample::select(&[Domain::Ingress, Domain::Egress, Domain::Transfer][..]);
    let attr = (any::<(u32, u32)>(), domain).prop_map(|((group, priority), domain)| Attr {
        group,
        priority,
        domain,
    });
    let pattern = proptest::collection::vec(item(), 0..8);
    let actions = proptest::collection::vec(action(), 0..8);
    (attr, pattern, actions).prop_map(|(attr, pattern, actions)| FlowRule { attr, pattern, actions })
}

/// Words of rules in any order, which are rules now and then.
fn text() -> impl Strategy<Value = String> {
    let field = |kind: ItemKind| {
        let fields = proptest::sample::select(kind.fields());
        let how = proptest::sample::select(&["is", "spec", "mask", "last", "prefix"][..]);
        let value = proptest::sample::select(
            &[
                "0",
                "1",
                "7",
                "0xff",
                "10.0.0.1",
                "255.255.0.0",
                "fd00::1",
                "02:00:00:00:00:01",
                "green",
                "red",
            ][..],
        );
        (fields, how, value).prop_map(|(field, how, value)| format!("{} {how} {value}", field.name))
    };
    let item = proptest::sample::select(ItemKind::ALL).prop_flat_map(move |kind| {
        proptest::collection::vec(field(kind), 0..4)
            .prop_map(move |fields| format!("{} {}", kind.name(), fields.join(" ")))
    });
    let action = prop_oneof![
        action().prop_map(|action| action.to_string()),
        Just("jump group 4294967296".to_owned()),
        Just("age timeout 16777216".to_owned()),
    ];
    (proptest::collection::vec(item, 1..3), proptest::collection::vec(action, 0..3)).prop_map(
        |(items, actions)| {
            let actions: String = actions.iter().map(|action| format!("{action} / ")).collect();
            format!("transfer pattern {} / end actions {actions}end", items.join(" / "))
        },
    )
}

proptest! {
    #[test]
    fn a_rule_comes_back_from_its_message(wanted in any_rule()) {
        let bytes = message(&wanted).encode_to_vec();
        prop_assert_eq!(rule(&v1::FlowRule::decode(&bytes[..]).unwrap()), Ok(wanted));
    }

    #[test]
    fn whatever_the_parser_makes_of_words_comes_back(text in text()) {
        let encaps = Encaps::from([(0, testpmd::encap(HEADER).unwrap())]);
        if let Ok(read) = testpmd::rule(&text, &encaps) {
            prop_assert_eq!(rule(&message(&read)), Ok(read));
        }
    }

    #[test]
    fn whatever_bytes_say_is_a_rule_or_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(message) = v1::FlowRule::decode(&bytes[..]) {
            let _ = rule(&message);
        }
    }
}

#[test]
fn messages_have_the_names_of_testpmd() {
    let items = descriptor("FlowItem").unwrap();
    for kind in ItemKind::ALL {
        let field = items.get_field_by_name(kind.name()).unwrap_or_else(|| panic!("{}", kind.name()));
        let prost_reflect::Kind::Message(item) = field.kind() else { panic!("{}", kind.name()) };
        let known: Vec<String> = item.fields().map(|field| field.name().to_owned()).collect();
        let wanted: Vec<&str> = kind.fields().iter().map(|field| field.name).collect();
        assert_eq!(known, wanted, "{}", kind.name());
    }
    assert_eq!(items.fields().count(), ItemKind::ALL.len());
}

fn item_of(item: flow_item::Item) -> v1::FlowItem {
    v1::FlowItem { item: Some(item) }
}

#[test]
fn what_is_no_rule_is_refused_by_its_path() {
    let good =
        "ingress group 1 pattern eth / ipv4 src is 192.0.2.1 / end actions raw_encap index 0 / drop / end";
    let encaps = Encaps::from([(0, testpmd::encap(HEADER).unwrap())]);
    let good = message(&testpmd::rule(good, &encaps).unwrap());
    assert!(rule(&good).is_ok());
    let refused = |change: &dyn Fn(&mut v1::FlowRule)| {
        let mut changed = good.clone();
        change(&mut changed);
        let problem = rule(&changed).unwrap_err();
        format!("{}: {}", problem.field, problem.message)
    };
    let address = |spec: &str, mask: Option<&str>| flow_item::Address {
        spec: spec.into(),
        last: None,
        mask: mask.map(str::to_owned),
    };
    let ipv4 = |src: flow_item::Address| {
        item_of(flow_item::Item::Ipv4(flow_item::Ipv4 { src: Some(src), ..flow_item::Ipv4::default() }))
    };
    let udp = |spec: u32, last: Option<u32>| {
        let dst = Some(flow_item::Number { spec, last, mask: None });
        item_of(flow_item::Item::Udp(flow_item::Udp { src: None, dst }))
    };
    let act = |action: flow_action::Action| v1::FlowAction { action: Some(action) };
    macro_rules! refusals {
        ($((&|$rule:ident| $change:expr, $wanted:literal $(,)?),)*) => {$(
            let told = refused(&|$rule: &mut v1::FlowRule| { $change; });
            assert!(told.starts_with($wanted), "{told}");
        )*};
    }
    refusals! {
        (&|rule| rule.domain = 0, "domain: a rule is one of ingress, egress, transfer"),
        (&|rule| rule.domain = 77, "domain: a rule is one of"),
        (&|rule| rule.items[1].item = None, "items[1]: there is no item"),
        (&|rule| rule.items = vec![v1::FlowItem::default(); 65], "items: 65 are too many"),
        (
            &|rule| rule.items[1] = ipv4(address("1.2.3", None)),
            "items[1].ipv4.src.spec: \"1.2.3\" is not an IPv4 address",
        ),
        (&|rule| rule.items[1] = ipv4(address("", None)), "items[1].ipv4.src.spec: \"\" is not"),
        (
            &|rule| rule.items[1] = ipv4(address("1.2.3.4", Some("24"))),
            "items[1].ipv4.src.mask: \"24\" is not",
        ),
        (
            &|rule| rule.items[0] = udp(65_536, None),
            "items[0].udp.dst.spec: 65536 is over its 16 bits; give at most 65535",
        ),
        (&|rule| rule.items[0] = udp(5, Some(4)), "items[0].udp.dst.last: the end of the range"),
        (&|rule| rule.actions[0].action = None, "actions[0]: there is no action"),
        (
            &|rule| {
                rule.actions[0] =
                    act(flow_action::Action::RawEncap(flow_action::RawEncap { header: vec![0; 9] }))
            },
            "actions[0].raw_encap.header: no IP header followed by UDP at byte 14",
        ),
        (
            &|rule| rule.actions[1] = act(flow_action::Action::Age(flow_action::Age { timeout: 1 << 24 })),
            "actions[1].age.timeout: 16777216 s are over",
        ),
        (
            &|rule| rule.actions[1] = act(flow_action::Action::Queue(flow_action::Queue { index: 70_000 })),
            "actions[1].queue.index: 70000 is too large; give at most 65535",
        ),
        (
            &|rule| {
                rule.actions[1] =
                    act(flow_action::Action::ModifyField(flow_action::ModifyField { write: None }));
            },
            "actions[1].modify_field: it writes nothing",
        ),
        (
            &|rule| {
                let write = Some(flow_action::modify_field::Write::Ipv4Ecn(4));
                rule.actions[1] = act(flow_action::Action::ModifyField(flow_action::ModifyField { write }));
            },
            "actions[1].modify_field.ipv4_ecn: 4 is no ECN codepoint",
        ),
    }
}

#[test]
fn headers_of_any_length_are_taken_or_refused() {
    for length in 0..100 {
        for first in [0, 0x45, 0x81, 0xff] {
            let _ = Encap::new(&vec![first; length]);
        }
    }
}
