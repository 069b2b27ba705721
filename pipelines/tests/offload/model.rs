//! The rule model: normalisation, and what testpmd is told.

use pipelines::stage::tunnel::{TemplateSpec, TunnelEnds, template};
use proptest::prelude::*;
use rules::items::{ITEM_BYTES, eth, ib_bth, ipv4, ipv6, meter_color, represented_port, tag, tcp};
use rules::items::{udp, vlan, vxlan};
use rules::{Action, Attr, Encap, EncapError, Field, FlowRule, Item, ItemKind, Modify};
use wire::{Ecn, MacAddr, Vni};

fn kind() -> impl Strategy<Value = ItemKind> {
    prop::sample::select(ItemKind::ALL)
}

/// Bytes of an item, of which only those bits are set that a field has.
fn bytes(kind: ItemKind) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![2 => any::<u8>(), 1 => Just(0), 1 => Just(0xff)], kind.size()).prop_map(
        move |mut bytes| {
            let mut named = vec![0; bytes.len()];
            kind.fields().iter().for_each(|field| field.set(&mut named, field.ones()));
            bytes.iter_mut().zip(named).for_each(|(byte, named)| *byte &= named);
            bytes
        },
    )
}

fn item() -> impl Strategy<Value = Item> {
    kind().prop_flat_map(|kind| {
        (bytes(kind), bytes(kind), prop::option::of(bytes(kind))).prop_map(move |(spec, mask, last)| {
            Item::from_bytes(kind, &spec, &mask, last.as_deref()).unwrap()
        })
    })
}

fn number(text: &str, field: Field) -> u128 {
    use rules::Format;
    match field.format {
        Format::Mac => text.parse::<MacAddr>().unwrap().to_u64().into(),
        Format::Ipv4 => u32::from(text.parse::<std::net::Ipv4Addr>().unwrap()).into(),
        Format::Ipv6 => text.parse::<std::net::Ipv6Addr>().unwrap().into(),
        Format::Colour if !text.starts_with("0x") => {
            ["green", "yellow", "red"].iter().position(|name| *name == text).unwrap() as u128
        }
        _ => match text.strip_prefix("0x") {
            Some(hex) => u128::from_str_radix(hex, 16).unwrap(),
            None => text.parse().unwrap(),
        },
    }
}

/// Reads an item back as testpmd's grammar means it.
fn parse(text: &str) -> Item {
    let mut words = text.split(' ');
    let name = words.next().unwrap();
    let kind = *ItemKind::ALL.iter().find(|kind| kind.name() == name).unwrap();
    let [mut spec, mut mask, mut last] = [[0; ITEM_BYTES]; 3];
    while let Some(name) = words.next() {
        let field = *kind.fields().iter().find(|field| field.name == name).unwrap();
        let (how, value) = (words.next().unwrap(), number(words.next().unwrap(), field));
        match how {
            "is" => {
                field.set(&mut spec, value);
                field.set(&mut mask, field.ones());
            }
            "spec" => field.set(&mut spec, value),
            "mask" => field.set(&mut mask, value),
            "last" => field.set(&mut last, value),
            other => panic!("{other}"),
        }
    }
    let n = kind.size();
    Item::from_bytes(kind, &spec[..n], &mask[..n], Some(&last[..n])).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn model_normalised_once_is_normalised(item in item()) {
        let again = Item::from_bytes(item.kind(), item.spec(), item.mask(), item.last());
        prop_assert_eq!(again, Some(item));
        for (spec, mask) in item.spec().iter().zip(item.mask()) {
            prop_assert_eq!(spec & !mask, 0);
        }
        for field in item.kind().fields() {
            prop_assert!(item.upper(*field).is_none_or(|upper| upper > item.field(*field).0));
        }
    }

    #[test]
    fn model_what_is_printed_says_all(item in item()) {
        // A colour is a name: a part of one cannot be written.
        prop_assume!(item.kind() != ItemKind::MeterColor);
        prop_assert_eq!(parse(&item.to_string()), item);
    }

    #[test]
    fn model_an_item_matches_what_each_field_allows(item in item(), noise in prop::collection::vec(any::<u8>(), ITEM_BYTES), near in any::<bool>()) {
        let mut layer = [0; ITEM_BYTES];
        let n = item.kind().size();
        for (at, byte) in layer[..n].iter_mut().enumerate() {
            // Near what the item asks for, or anything.
            *byte = if near { item.spec()[at] | noise[at] & !item.mask()[at] } else { noise[at] };
        }
        let expected = item.kind().fields().iter().all(|field| {
            let (spec, mask) = item.field(*field);
            let value = field.get(&layer) & mask;
            value >= spec && value <= item.upper(*field).unwrap_or(spec)
        });
        prop_assert_eq!(item.matches(&layer), expected);
        prop_assert!(!near || expected);
    }
}

#[test]
fn model_bits_without_a_name_are_refused() {
    let mut mask = [0; 20];
    mask[3] = 1;
    assert_eq!(Item::from_bytes(ItemKind::Ipv4, &[0; 20], &mask, None), None, "total length");
    assert_eq!(Item::from_bytes(ItemKind::Ipv4, &[0; 19], &[0; 19], None), None, "too short");
    assert!(Item::from_bytes(ItemKind::Ipv4, &[0xff; 20], &[0; 20], None).unwrap().is_any());
}

#[test]
fn model_items_as_testpmd_takes_them() {
    let mac = MacAddr([2, 0, 0, 0, 0, 1]).to_u64();
    let cases = [
        (Item::any(ItemKind::Eth), "eth"),
        (
            Item::with(eth::DST, mac).is(eth::TYPE, 0x800u16).is(eth::HAS_VLAN, false),
            "eth dst is 02:00:00:00:00:01 type is 0x0800 has_vlan is 0",
        ),
        (
            Item::with(vlan::VID, 5u8).is(vlan::INNER_TYPE, 0x86ddu16).is(vlan::HAS_MORE_VLAN, 0u8),
            "vlan vid is 5 inner_type is 0x86dd has_more_vlan is 0",
        ),
        (
            Item::with(ipv4::DST, 0x0a00_0002u32).masked(ipv4::TOS, 0xb9u8, 3).masked(
                ipv4::FRAGMENT_OFFSET,
                0u8,
                0x3fff,
            ),
            "ipv4 tos spec 0x01 tos mask 0x03 fragment_offset spec 0x0000 fragment_offset mask 0x3fff \
             dst is 10.0.0.2",
        ),
        (Item::any(ItemKind::Ipv4).between(ipv4::TTL, 2u8, 9u8), "ipv4 ttl spec 2 ttl last 9 ttl mask 0xff"),
        (
            Item::with(ipv6::TC, 2u8).is(ipv6::PROTO, 6u8).is(ipv6::SRC, 1u8).is(ipv6::HAS_FRAG_EXT, 0u8),
            "ipv6 tc is 0x02 proto is 6 src is ::1 has_frag_ext is 0",
        ),
        (Item::with(udp::DST, 4791u16), "udp dst is 4791"),
        (
            Item::with(tcp::SRC, 1u8).masked(tcp::FLAGS, 2u8, 7),
            "tcp src is 1 flags spec 0x02 flags mask 0x07",
        ),
        (Item::with(vxlan::VNI, 100u8), "vxlan vni is 100"),
        (
            Item::with(ib_bth::DST_QP, 0x11u8).masked(ib_bth::OPCODE, 0u8, 0xe0),
            "ib_bth opcode spec 0x00 opcode mask 0xe0 dst_qp is 0x000011",
        ),
        (Item::with(represented_port::ETHDEV_PORT_ID, 3u8), "represented_port ethdev_port_id is 3"),
        (Item::with(meter_color::COLOR, 1u8), "meter color is yellow"),
        (Item::with(tag::DATA, 7u8).is(tag::INDEX, 1u8), "tag data is 0x00000007 index is 1"),
    ];
    for (item, expected) in cases {
        assert_eq!(item.to_string(), expected);
        assert_eq!(parse(expected), item);
    }
}

fn outer(ends: TunnelEnds, vlan: Option<u16>) -> Vec<u8> {
    let spec =
        TemplateSpec { group: 0, vlan, ends, ttl: 64, udp_port: 4789, vni: Vni::new(100).unwrap(), vtep: 2 };
    let tunnel = template(&spec);
    let mut header = tunnel.header[..usize::from(tunnel.len)].to_vec();
    header[..12].copy_from_slice(&[2, 0, 0, 0, 1, 2, 2, 0, 0, 0, 1, 1]);
    header
}

fn over_ipv4(vlan: Option<u16>) -> Vec<u8> {
    outer(TunnelEnds::V4([172, 16, 0, 1].into(), [172, 16, 0, 2].into()), vlan)
}

#[test]
fn model_a_rule_as_commands() {
    let rule = FlowRule {
        attr: Attr::transfer(4, 1),
        pattern: vec![Item::with(tag::DATA, 7u8).is(tag::INDEX, 0u8), Item::with(meter_color::COLOR, 2u8)],
        actions: vec![
            Action::VxlanDecap,
            Action::Count,
            Action::Age { timeout: 10 },
            Action::Meter { mtr_id: 3 },
            Action::set_ecn(false, Ecn::Ce),
            Action::set_tag(1, 9),
            Action::ModifyField(Modify::Ttl { ipv6: false }),
            Action::ModifyField(Modify::MacDst(MacAddr([2, 0, 0, 0, 0, 1]))),
            Action::RawEncap(Encap::new(&over_ipv4(Some(7))).unwrap()),
            Action::RepresentedPort { port: 2 },
        ],
    };
    assert_eq!(
        rule.testpmd(5),
        "set raw_encap 0 eth dst is 02:00:00:00:01:02 src is 02:00:00:00:01:01 type is 0x8100 / \
         vlan vid is 7 inner_type is 0x0800 / ipv4 fragment_offset is 0x4000 ttl is 64 proto is 17 \
         src is 172.16.0.1 dst is 172.16.0.2 / udp dst is 4789 / vxlan vni is 100 / end_set\n\
         flow create 5 group 4 priority 1 transfer pattern tag data is 0x00000007 index is 0 / \
         meter color is red / end actions vxlan_decap / count / age timeout 10 / meter mtr_id 3 / \
         modify_field op set dst_type ipv4_ecn src_type value src_value 03 width 2 / \
         modify_field op set dst_type tag dst_level 1 src_type value src_value 09000000 width 32 / \
         modify_field op add dst_type ipv4_ttl src_type value src_value ff width 8 / \
         modify_field op set dst_type mac_dst src_type value src_value 020000000001 width 48 / raw_encap index 0 / \
         represented_port ethdev_port_id 2 / end\n"
    );
}

#[test]
fn model_an_outer_header_holds_only_what_the_device_does_not_fill_in() {
    for (header, len) in [
        (over_ipv4(None), 50),
        (over_ipv4(Some(7)), 54),
        (outer(TunnelEnds::V6("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()), None), 70),
    ] {
        let encap = Encap::new(&header).unwrap();
        assert_eq!(encap.bytes().len(), len);
        let (mut filled, ip) = (header.clone(), encap.ip_offset());
        if encap.is_ipv6() {
            filled[ip + 4..ip + 6].fill(7);
        } else {
            filled[ip + 2..ip + 4].fill(7);
            filled[ip + 10..ip + 12].fill(7);
        }
        let udp = len - 16;
        filled[udp + 4..udp + 12].fill(7);
        assert_eq!(Encap::new(&filled), Ok(encap), "lengths, checksums and reserved bits do not matter");
        filled[udp + 12] ^= 1;
        assert_ne!(Encap::new(&filled), Ok(encap), "the VNI does");
        assert_eq!(Encap::new(&header[..len - 1]), Err(EncapError::Length(len - 1)));
        filled[ip - 1] ^= 1;
        assert!(matches!(Encap::new(&filled), Err(EncapError::Protocol { .. })));
    }
    assert_eq!(Encap::new(&[0; 81]), Err(EncapError::Length(81)));
    assert!(Encap::new(&[]).is_err());
}
