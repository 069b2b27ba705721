//! The simulated e-switch: what rules do to packets, and what the device does not do.

use pipelines::next_hop::LinkHeader;
use pipelines::offload::sim::{Eswitch, EswitchConfig, Fate};
use pipelines::stage::tunnel::{self, Patch};
use pipelines::vlt::Place;
use proptest::prelude::*;
use rules::items::*;
use rules::{Action, Attr, BackEnd, Cause, Encap, FlowRule, Item, ItemKind, Meter, Modify, RuleId, Where};
use wire::roce::Bth;
use wire::{Ecn, HeapBuf, MacAddr, PacketBuf, Psn, Qpn, Vni};

use testkit::*;

const SECOND: u64 = 1_000_000_000;

/// All that it can execute, whether a NIC takes it or not.
fn eswitch() -> Eswitch {
    Eswitch::new(EswitchConfig { ranges: true, nic: None, ..EswitchConfig::default() })
}

pub(crate) fn rule(group: u32, priority: u32, pattern: &[Item], actions: &[Action]) -> FlowRule {
    FlowRule { attr: Attr::transfer(group, priority), pattern: pattern.to_vec(), actions: actions.to_vec() }
}

fn made(eswitch: &mut Eswitch, rule: &FlowRule) -> RuleId {
    eswitch.create(rule).unwrap_or_else(|error| panic!("{rule}: {error}"))
}

pub(crate) fn out(port: u16) -> Action {
    Action::RepresentedPort { port }
}

fn from(port: u16) -> Item {
    Item::with(represented_port::ETHDEV_PORT_ID, port)
}

fn sent(eswitch: &mut Eswitch, port: u16, frame: &[u8]) -> (Fate, Vec<u8>) {
    let mut packet = HeapBuf::new(frame);
    let mut fate = eswitch.run(&mut packet, port);
    if let Fate::Software { flow, .. } = &mut fate {
        *flow = 0;
    }
    (fate, packet.to_vec())
}

fn software(port: u16, missed: bool) -> Fate {
    Fate::Software { port, queue: None, mark: None, missed, flow: 0 }
}

/// Frames that differ in every way that items can tell.
fn frames() -> Vec<Vec<u8>> {
    let bth = |opcode, qpn| Bth::new(opcode, Qpn::truncated(qpn), Psn::truncated(1));
    let mut plain = Vec::new();
    for path in [v4(A, B), v4(B, A), v6(A, B), v4(A, B).with_tos(2), v4(A, B).with_ttl(1)] {
        plain.push(path.tcp(1000, 80, 0x10, b"data"));
        plain.push(path.tcp(1001, 80, 0x02, b"data"));
        plain.push(path.udp(1000, 53, b"data"));
        plain.push(path.clone().tagged(5).udp(1000, 53, b"data"));
        plain.push(path.roce(50_000, bth(0x0a, 17), &[0; 32]));
        plain.push(path.roce(50_000, bth(0x11, 18), &[0; 8]));
    }
    plain.push(v4(A, B).echo_request(1, 1, b"ping"));
    plain.push(v4(A, B).ethernet(0x88b5, &[1; 46]));
    let underlays = UNDERLAYS.into_iter().map(|underlay| outer(2, 1, underlay));
    let tunnelled: Vec<_> = underlays
        .flat_map(|path| {
            let vnis = [100, 101].map(|vni| Vni::new(vni).unwrap());
            plain
                .iter()
                .zip(vnis.into_iter().cycle())
                .map(move |(inner, vni)| path.vxlan(50_000, vni, inner))
                .collect::<Vec<_>>()
        })
        .collect();
    plain.into_iter().chain(tunnelled).collect()
}

fn field() -> impl Strategy<Value = (ItemKind, usize, u8)> {
    (prop::sample::select(ItemKind::ALL), any::<usize>(), 0..4u8)
}

/// A pattern that some of the frames match: layers and values are taken from frame `like`.
fn pattern(like: &[u8], fields: &[(ItemKind, usize, u8)]) -> Vec<Item> {
    let headers = wire::parse::parse(like, like.len()).unwrap();
    let l3 = usize::from(headers.l3_offset);
    let mut items: Vec<Item> = Vec::new();
    for kind in [
        ItemKind::RepresentedPort,
        ItemKind::Eth,
        ItemKind::Vlan,
        ItemKind::Ipv4,
        ItemKind::Ipv6,
        ItemKind::Udp,
        ItemKind::Tcp,
        ItemKind::IbBth,
    ] {
        let Some((_, index, how)) = fields.iter().find(|field| field.0 == kind) else { continue };
        let there = match kind {
            ItemKind::Vlan => headers.vlan_count > 0,
            ItemKind::Ipv4 => headers.l3 == wire::L3::Ipv4,
            ItemKind::Ipv6 => headers.l3 == wire::L3::Ipv6,
            ItemKind::Udp => headers.is_udp(),
            ItemKind::Tcp => headers.is_tcp(),
            ItemKind::IbBth => headers.is_udp_to(4791),
            _ => true,
        };
        if !there {
            continue;
        }
        let mut bytes = vec![0; kind.size()];
        let l4 = usize::from(headers.l4_offset);
        let at = match kind {
            ItemKind::Eth => 0,
            ItemKind::Vlan => 14,
            ItemKind::Ipv4 | ItemKind::Ipv6 => l3,
            ItemKind::IbBth => l4 + 8,
            _ => l4,
        };
        let source = like.get(at..).unwrap_or_default();
        let n = source.len().min(bytes.len());
        bytes[..n].copy_from_slice(&source[..n]);
        match kind {
            ItemKind::RepresentedPort => bytes = vec![0, 1],
            ItemKind::Eth => bytes[14] = headers.vlan_count,
            ItemKind::Vlan => bytes[4] = 0,
            ItemKind::Ipv6 => bytes[40] = 0,
            _ => {}
        }
        let field = kind.fields()[index % kind.fields().len()];
        let value = field.get(&bytes);
        items.push(match how {
            0 => Item::any(kind),
            1 => Item::with(field, value),
            2 => Item::any(kind).masked(field, value, field.ones() & 0x0f0f),
            _ => Item::any(kind).between(field, value.saturating_sub(1), (value + 1).min(field.ones())),
        });
    }
    items
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sim_the_index_finds_what_looking_at_every_rule_finds(
        rules in prop::collection::vec((any::<usize>(), prop::collection::vec(field(), 1..5), 0..3u32, any::<bool>()), 1..60),
        gone in prop::collection::vec(any::<usize>(), 0..20),
    ) {
        let frames = frames();
        let mut eswitch = eswitch();
        let mut ids = Vec::new();
        for (like, fields, priority, inside) in &rules {
            let like = &frames[like % 30];
            let mut items = pattern(like, fields);
            if *inside {
                items.retain(|item| item.kind() != ItemKind::RepresentedPort);
                items.insert(0, Item::with(vxlan::VNI, 100u8));
            }
            ids.push(made(&mut eswitch, &rule(1, *priority, &items, &[out(1)])));
        }
        for index in gone {
            let index = index % ids.len();
            let removed = eswitch.destroy(ids[index]);
            if let Err(error) = removed {
                prop_assert_eq!(error.cause, Cause::Gone);
            }
        }
        let mut found = 0;
        for frame in &frames {
            for port in [0, 1] {
                let packet = HeapBuf::new(frame);
                let expected = eswitch.first_match_linear(&packet, port, 1);
                prop_assert_eq!(eswitch.first_match(&packet, port, 1), expected);
                found += usize::from(expected.is_some());
            }
        }
        // A rule without a tunnel matches the frame that it was made from.
        prop_assert!(found > 0 || eswitch.len() < rules.len() || rules.iter().all(|rule| rule.3));
    }
}

#[test]
fn sim_tunnels_are_put_on_and_taken_off_as_software_does() {
    for underlay in UNDERLAYS.into_iter().filter(|underlay| !underlay.v6 || underlay.zero_checksum6) {
        let world = lab(1, underlay);
        let Place::Remote(way) = world.tunnel(0, 2) else { panic!() };
        let mut header = way.header;
        let udp = usize::from(way.len) - 16;
        header[udp..udp + 2].copy_from_slice(&50_000u16.to_be_bytes());
        let encap = Encap::new(&header[..usize::from(way.len)]).unwrap();
        for inner in [v4(A, R).tcp(1, 2, 0, b"odd"), v6(A, R).udp(1, 2, &[7; 900])] {
            let mut eswitch = eswitch();
            made(&mut eswitch, &rule(0, 0, &[from(3)], &[Action::RawEncap(encap), out(0)]));
            made(&mut eswitch, &rule(0, 1, &[Item::with(vxlan::VNI, 100u8)], &[Action::VxlanDecap, out(3)]));
            let mut expected = HeapBuf::new(&inner);
            let patch =
                Patch { tos: 0, source_port: 50_000, zero_checksum6: true, link: LinkHeader::default() };
            assert!(tunnel::encapsulate(&mut expected, &way, patch));
            let (fate, wire) = sent(&mut eswitch, 3, &inner);
            assert_eq!((fate, &wire), (Fate::Out { port: 0 }, &expected.to_vec()));
            sound(&wire);
            // Back again, with padding behind the outer datagram.
            let padded = [&wire[..], &[0; 9]].concat();
            assert_eq!(sent(&mut eswitch, 0, &padded), (Fate::Out { port: 3 }, inner));
        }
    }
}

#[test]
fn sim_actions_change_what_they_say() {
    let mut eswitch = eswitch();
    let ect = Item::any(ItemKind::Ipv4).masked(ipv4::TOS, 2u8, 3);
    let mac = MacAddr([2, 9, 9, 9, 9, 9]);
    let change = [
        Action::set_ecn(false, Ecn::Ce),
        Action::ModifyField(Modify::Ttl { ipv6: false }),
        Action::ModifyField(Modify::MacSrc(ROUTER)),
        Action::ModifyField(Modify::MacDst(mac)),
        out(2),
    ];
    made(&mut eswitch, &rule(0, 0, &[Item::any(ItemKind::Eth), ect], &change));
    made(&mut eswitch, &rule(0, 1, &[Item::any(ItemKind::Ipv6)], &[Action::Drop]));
    let queue = [Action::Mark { id: 9 }, Action::Queue { index: 3 }];
    made(&mut eswitch, &rule(0, 1, &[Item::any(ItemKind::Tcp)], &queue));
    let (fate, bytes) = sent(&mut eswitch, 1, &v4(A, B).with_tos(2).udp(1, 2, b"x"));
    let mut expected = v4(A, B).with_tos(3).with_ttl(63);
    (expected.src_mac, expected.dst_mac) = (ROUTER, mac);
    assert_eq!((fate, bytes), (Fate::Out { port: 2 }, expected.udp(1, 2, b"x")));
    assert_eq!(sent(&mut eswitch, 1, &v6(A, B).udp(1, 2, b"x")).0, Fate::Dropped);
    let frame = v4(A, B).tcp(1, 2, 0, b"x");
    let queued = Fate::Software { port: 1, queue: Some(3), mark: Some(9), missed: false, flow: 0 };
    assert_eq!(sent(&mut eswitch, 1, &frame), (queued, frame));
    let other = v4(A, B).udp(1, 2, b"x");
    assert_eq!(sent(&mut eswitch, 7, &other), (software(7, true), other));
    let stats = eswitch.stats();
    assert_eq!(
        (stats.forwarded, stats.dropped, stats.to_software, stats.missed, stats.errors),
        (1, 1, 1, 1, 0)
    );
}

#[test]
fn sim_packets_that_no_hardware_should_judge_go_to_software() {
    let mut eswitch = eswitch();
    made(&mut eswitch, &rule(0, 0, &[Item::any(ItemKind::Eth)], &[Action::Drop]));
    let good = tunnelled(&v4(R, A).udp(1, 2, b"x"));
    assert_eq!(sent(&mut eswitch, 0, &good).0, Fate::Dropped);
    let mut checksum = good.clone();
    checksum[14 + 10] ^= 1;
    let mut inner = good.clone();
    inner[50 + 14] = 0x35;
    for bad in [checksum, inner, good[..40].to_vec()] {
        assert_eq!(sent(&mut eswitch, 0, &bad).0, software(0, true));
    }
    // What its sender has not finished: checksums, super-frames.
    for gso_size in [0, 1428] {
        let facts =
            wire::RxFacts { gso_size, l4_checksum: wire::ChecksumState::Partial, ..Default::default() };
        let frame = v4(A, R).tcp(1, 2, 0x10, &[3; 5000]);
        let mut packet = HeapBuf::new(&frame).with_facts(facts);
        let fate = eswitch.run(&mut packet, 1);
        assert!(matches!(fate, Fate::Software { port: 1, missed: true, .. }), "{fate:?}");
        assert_eq!((packet.rx_facts(), packet.to_vec()), (facts, frame));
    }
}

#[test]
fn sim_tags_and_jumps_lead_from_group_to_group() {
    let mut eswitch = eswitch();
    let tag = |index: u8, data: u32| Item::with(tag::DATA, data).is(tag::INDEX, index);
    let bits = Action::set_tag(0, 0x1f);
    made(&mut eswitch, &rule(0, 0, &[from(1)], &[Action::set_tag(0, 0xff), Action::Jump { group: 5 }]));
    made(&mut eswitch, &rule(5, 0, &[tag(0, 0xff), tag(1, 0)], &[bits, Action::Jump { group: 6 }]));
    let seven = Item::any(ItemKind::Tag).masked(tag::DATA, 0x1fu8, 0x1f).is(tag::INDEX, 0u8);
    let last = made(&mut eswitch, &rule(6, 0, &[seven], &[Action::Count, out(2)]));
    let frame = v4(A, B).udp(1, 2, b"x");
    assert_eq!(sent(&mut eswitch, 1, &frame).0, Fate::Out { port: 2 });
    assert_eq!(eswitch.destroy(last).unwrap().packets, 1);
    assert_eq!(sent(&mut eswitch, 1, &frame).0, software(1, true), "half a chain");
    // Rules that lead in a circle end.
    made(&mut eswitch, &rule(6, 0, &[Item::any(ItemKind::Eth)], &[Action::Jump { group: 7 }]));
    made(&mut eswitch, &rule(7, 0, &[Item::any(ItemKind::Eth)], &[Action::Jump { group: 6 }]));
    assert_eq!(sent(&mut eswitch, 1, &frame).0, software(1, true));
}

#[test]
fn sim_meters_colour_and_later_groups_decide() {
    let mut eswitch = eswitch();
    let frame = v4(A, B).with_tos(2).udp(1, 2, &[0; 58]);
    assert_eq!(frame.len(), 100);
    eswitch.set_meter(7, Some(Meter { cir: 1000, cbs: 200, eir: 0, ebs: 300 })).unwrap();
    made(&mut eswitch, &rule(0, 0, &[from(1)], &[Action::Meter { mtr_id: 7 }, Action::Jump { group: 1 }]));
    let colour = |colour: u8| Item::with(meter_color::COLOR, colour);
    let mark = [Action::set_ecn(false, Ecn::Ce), out(2)];
    made(&mut eswitch, &rule(1, 0, &[colour(0)], &[out(2)]));
    made(&mut eswitch, &rule(1, 0, &[colour(1)], &mark));
    let red =
        made(&mut eswitch, &rule(1, 0, &[colour(2)], &[Action::Count, Action::PortRepresentor { port: 1 }]));
    let burst = |eswitch: &mut Eswitch| -> Vec<(bool, u8)> {
        (0..6)
            .map(|_| {
                let (fate, bytes) = sent(eswitch, 1, &frame);
                (fate == Fate::Out { port: 2 }, bytes[15])
            })
            .collect()
    };
    let expected = [(true, 2), (true, 2), (true, 3), (true, 3), (true, 3), (false, 2)];
    assert_eq!(burst(&mut eswitch), expected);
    eswitch.advance(SECOND);
    assert_eq!(burst(&mut eswitch), expected, "full again");
    eswitch.set_meter(7, None).unwrap();
    assert_eq!(eswitch.set_meter(7, None).unwrap_err().cause, Cause::Gone);
    assert_eq!(burst(&mut eswitch), [(false, 2); 6], "a meter that is gone lets nothing pass");
    assert_eq!(eswitch.destroy(red).unwrap().packets, 8);
}

#[test]
fn sim_counters_are_shown_as_of_the_last_refresh() {
    let mut eswitch = eswitch();
    let id = made(&mut eswitch, &rule(0, 0, &[from(1)], &[Action::Count, out(2)]));
    let silent = made(&mut eswitch, &rule(0, 0, &[from(2)], &[out(2)]));
    let frame = v4(A, B).udp(1, 2, b"x");
    let mut at = |ms: u64, packets: usize| {
        eswitch.advance(ms * 1_000_000);
        (0..packets).for_each(|_| drop(sent(&mut eswitch, 1, &frame)));
        let usage = eswitch.query(id).unwrap();
        assert_eq!(usage.bytes, usage.packets * frame.len() as u64);
        usage.packets
    };
    assert_eq!([at(0, 3), at(499, 2), at(500, 4), at(700, 0), at(1000, 0), at(2500, 1)], [0, 0, 5, 5, 9, 9]);
    assert_eq!(eswitch.query(silent).unwrap_err().at, Where::Action(0));
    assert_eq!(eswitch.destroy(id).unwrap().packets, 10, "all of them");
    assert_eq!(eswitch.query(id).unwrap_err().cause, Cause::Gone);
    assert_eq!(eswitch.destroy(id).unwrap_err().cause, Cause::Gone);
}

#[test]
fn sim_rules_age_once() {
    let mut eswitch = eswitch();
    let age = |timeout| [Action::Age { timeout }, out(2)];
    let short = made(&mut eswitch, &rule(0, 0, &[from(1)], &age(2)));
    let long = made(&mut eswitch, &rule(0, 0, &[from(2)], &age(5)));
    let mut at = |ms: u64, port: Option<u16>| {
        eswitch.advance(ms * 1_000_000);
        if let Some(port) = port {
            sent(&mut eswitch, port, &v4(A, B).udp(1, 2, b"x"));
        }
        let mut aged = Vec::new();
        eswitch.aged(&mut aged);
        aged
    };
    assert_eq!(at(1500, Some(1)), []);
    assert_eq!(at(2500, None), []);
    assert_eq!(at(3499, None), []);
    assert_eq!(at(3500, None), [short]);
    assert_eq!(at(4000, Some(1)), []);
    assert_eq!(at(9000, None), [long], "each once");
}

#[test]
fn sim_rules_come_into_force_one_after_another() {
    let config = EswitchConfig {
        insertion_rate: 1000,
        latency_ns: 5_000_000,
        fail_one_in: 4,
        ..EswitchConfig::default()
    };
    let mut eswitch = Eswitch::new(config);
    let ids: Vec<_> =
        (0..4).map(|port| made(&mut eswitch, &rule(0, 0, &[from(port)], &[Action::Count, out(9)]))).collect();
    let frame = v4(A, B).udp(1, 2, b"x");
    assert_eq!(sent(&mut eswitch, 0, &frame).0, software(0, true), "not before its time");
    assert_eq!(eswitch.query(ids[0]).unwrap_err().cause, Cause::Again);
    let mut results = Vec::new();
    let mut at = |us: u64| {
        eswitch.advance(us * 1000);
        eswitch.completed(&mut results);
        results.drain(..).map(|(id, result)| (id, result.is_ok())).collect::<Vec<_>>()
    };
    assert_eq!(at(5_999), []);
    assert_eq!(at(6_000), [(ids[0], true)]);
    assert_eq!(at(8_500), [(ids[1], true), (ids[2], true)]);
    assert_eq!(at(20_000), [(ids[3], false)], "taken, and failed");
    assert_eq!(sent(&mut eswitch, 2, &frame).0, Fate::Out { port: 9 });
    assert_eq!(sent(&mut eswitch, 3, &frame).0, software(3, true));
    assert_eq!((eswitch.len(), eswitch.stats().failed), (3, 1));
    // One that is destroyed while it waits never comes.
    let waiting = made(&mut eswitch, &rule(0, 0, &[from(5)], &[out(9)]));
    eswitch.destroy(waiting).unwrap();
    eswitch.advance(SECOND);
    assert_eq!(sent(&mut eswitch, 5, &frame).0, software(5, true));
}

#[test]
fn sim_room_is_limited_and_comes_back() {
    let mut eswitch = Eswitch::new(EswitchConfig { capacity: 2, ..EswitchConfig::default() });
    let any = rule(0, 0, &[Item::any(ItemKind::Eth)], &[Action::Drop]);
    let ids = [made(&mut eswitch, &any), made(&mut eswitch, &any)];
    assert_eq!(eswitch.create(&any).unwrap_err().cause, Cause::Full);
    assert!(eswitch.validate(&any).is_ok(), "room aside");
    eswitch.destroy(ids[0]).unwrap();
    let again = made(&mut eswitch, &any);
    assert!(!ids.contains(&again), "ids are not used again");
    eswitch.flush().unwrap();
    assert!(eswitch.is_empty());
    assert_eq!(eswitch.query(again).unwrap_err().cause, Cause::Gone);
    assert_ne!(made(&mut eswitch, &any), ids[0]);
    let mut nothing = Eswitch::new(EswitchConfig { capacity: 0, ..EswitchConfig::default() });
    assert_eq!(nothing.create(&any).unwrap_err().cause, Cause::Full);
}

#[test]
fn sim_a_lost_rule_is_gone_without_a_word() {
    let mut eswitch = eswitch();
    let id = made(&mut eswitch, &rule(0, 0, &[from(1)], &[Action::Count, out(2)]));
    let mut results = Vec::new();
    eswitch.completed(&mut results);
    assert!(eswitch.lose(id) && !eswitch.lose(id));
    assert_eq!(sent(&mut eswitch, 1, &v4(A, B).udp(1, 2, b"x")).0, software(1, true));
    assert_eq!(eswitch.query(id).unwrap_err().cause, Cause::Gone);
}
