//! Slots of the VLT: taken, freed, and written when a next hop or a location changes.

use super::super::paths::{NextHop, RankedHop};
use super::*;

#[test]
fn slots_are_freed_by_release_and_all_come_back() {
    let mut lab = Lab::new(32);
    lab.set(&with(&[location(1, b'a', 3, 3, 4)]));
    let used = lab.used();
    let without = with(&[]);
    lab.topology.rebuild(&without, &PORTS, &lab.neighbours).unwrap();
    lab.topology.commit();
    assert_eq!(lab.used(), used);
    lab.topology.settle(&mut lab.neighbours);
    assert_eq!(lab.used(), used - 1);
    // The remote location becomes a vNIC of this host, and goes back.
    let (before, used) = (lab.decisions(), lab.used());
    let mut parts = base();
    parts[4] = vnic("vc", "a", 2);
    lab.set(&config(&parts));
    assert!(matches!(lab.place(lab.slot("a", 2)), Place::Local { .. }));
    lab.set(&without);
    assert_eq!((lab.decisions(), lab.used()), (before, used));
    lab.set(&config(&[]));
    assert_eq!(lab.used(), 0);
}

#[test]
fn next_hops_change_the_slots_behind_them_and_only_those() {
    let mut lab = Lab::new(32);
    lab.set(&with(&[location(1, b'a', 3, 3, 2)]));
    let slots =
        |lab: &Lab| [lab.slot("a", 2), lab.slot("a", 3), lab.slot("b", 2)].map(|slot| lab.hop_of(slot));
    let written = |lab: &Lab| ["a", "b"].map(|vpc| lab.place(lab.slot(vpc, 2)));
    let (start, before) = (slots(&lab), written(&lab));
    assert_eq!(start, [None; 3]);
    let by = |last| Some((0, MacAddr([2, 0, 0, 0, 2, last])));
    lab.hear(2, 7);
    assert_eq!(slots(&lab), [by(7), by(7), None]);
    lab.hear(2, 8);
    assert_eq!(slots(&lab), [by(8), by(8), None]);
    assert_eq!(written(&lab), before, "what is behind a next hop is not written for it");
    let (_, lost) = lab.neighbours.tick(Instant::now() + std::time::Duration::from_secs(600));
    assert_eq!(lost, [(0, vtep(2))]);
    lab.topology.next_hop_changed(0, vtep(2), &mut lab.neighbours);
    assert_eq!(slots(&lab), start);
    // A configured neighbour is used, and forgotten when it is configured no more.
    let mut fixed = with(&[location(1, b'a', 3, 3, 2)]);
    let mac = MacAddr([2, 0, 0, 0, 2, 9]);
    fixed.uplinks[0].neighbours.push(config::StaticNeighbour { ip: vtep(2), mac });
    lab.set(&fixed);
    assert_eq!(slots(&lab)[0], Some((0, mac)));
    lab.set(&with(&[location(1, b'a', 3, 3, 2)]));
    assert_eq!(slots(&lab), start);
    // Nobody needs the neighbour of a location that is gone.
    let vni = Vni::new(2).unwrap();
    assert!(lab.topology.remove_location(&with(&[]), vni, ip(b'b', 2), &lab.neighbours).unwrap());
    lab.topology.commit();
    lab.topology.settle(&mut lab.neighbours);
    assert_eq!(lab.neighbours.list().iter().map(|n| n.1).collect::<Vec<_>>(), [vtep(2)]);
}

#[test]
fn single_locations_decide_as_a_whole_config_and_floods_follow_the_vni() {
    let flood = |vni| config(&[vec![vpc("a", vni, "flood = true")], vec![vnic("va", "a", 1)]].concat());
    let places = [location(1, b'a', 3, 4, 4), location(1, b'a', 2, 4, 2), location(1, b'a', 3, 5, 2)];
    let mut lab = Lab::new(32);
    lab.set(&flood(1));
    for text in &places {
        let one = config(&[vpc("a", 1, ""), text.clone()]).locations.remove(0);
        lab.topology.set_location(&flood(1), &one, &lab.neighbours).unwrap();
        lab.topology.commit();
        lab.topology.settle(&mut lab.neighbours);
    }
    let mut whole = flood(1);
    whole.locations = lab.topology.locations().cloned().collect();
    let mut fresh = Lab::new(32);
    fresh.set(&whole);
    assert_eq!((lab.decisions(), lab.used()), (fresh.decisions(), fresh.used()));
    lab.hear(2, 2);
    whole.vpcs[0].vni = Vni::new(9).unwrap();
    whole.locations.iter_mut().for_each(|location| location.vni = whole.vpcs[0].vni);
    lab.set(&whole);
    let floods = lab.vpc("a").flood_slots.clone();
    assert_eq!(floods.len(), 1);
    let Place::Remote(tunnel) = lab.place(floods[0]) else { panic!("not resolved") };
    assert_eq!(tunnel.header[46..49], [0, 0, 9]);
}

/// Two uplinks of one address; the second one is the backup.
fn two_uplinks(metric: u32) -> Config {
    let second = format!(
        "[[uplink]]\nname = \"second\"\nport = {{ kind = \"null\" }}\naddresses = [\"172.16.0.1/24\"]\nmetric = {metric}\n"
    );
    config(&[vec![second], base()].concat())
}

/// Has a VTEP answer on both links.
fn hear_both(lab: &mut Lab) {
    for uplink in 0..2 {
        let mac = MacAddr([2, 0, 0, 0, 2, uplink as u8]);
        let binding = Binding { address: vtep(2), mac };
        assert!(lab.neighbours.learn(uplink, binding, ANSWER, Instant::now()));
        lab.topology.next_hop_changed(uplink, vtep(2), &mut lab.neighbours);
    }
}

#[test]
fn failover_to_the_other_uplink_writes_groups_and_no_slot() {
    let mut lab = Lab::new(32);
    lab.set(&two_uplinks(1));
    hear_both(&mut lab);
    let slot = lab.slot("a", 2);
    let (place, cells) = (lab.place(slot), lab.topology.snapshot().cells.clone());
    let by = |uplink: u16| Some((uplink, MacAddr([2, 0, 0, 0, 2, uplink as u8])));
    let speakers = |lab: &Lab| lab.topology.speakers().map(|(uplink, _)| uplink).collect::<Vec<_>>();
    assert_eq!((lab.hop_of(slot), speakers(&lab)), (by(0), vec![0]));
    assert!(lab.topology.stands_in(1, 0));
    assert!(lab.topology.set_uplink(0, false, &mut lab.neighbours));
    assert!(!lab.topology.set_uplink(0, false, &mut lab.neighbours), "nothing new");
    assert_eq!((lab.hop_of(slot), lab.place(slot)), (by(1), place));
    assert!(lab.topology.settle_speakers(&lab.neighbours) && !lab.topology.settle_speakers(&lab.neighbours));
    assert_eq!(speakers(&lab), [1]);
    assert!(!lab.topology.stands_in(0, 1));
    // Changes of something else, and none at all, keep what the links are.
    lab.topology.commit();
    lab.topology.settle(&mut lab.neighbours);
    lab.set(&two_uplinks(1));
    assert_eq!((lab.hop_of(slot), speakers(&lab)), (by(1), vec![1]));
    assert!(
        lab.topology.set_uplink(0, true, &mut lab.neighbours)
            && lab.topology.settle_speakers(&lab.neighbours)
    );
    assert_eq!((lab.hop_of(slot), speakers(&lab)), (by(0), vec![0]));
    assert_eq!(lab.topology.snapshot().cells, cells, "no decision became stale");
}

/// One VTEP behind a router that each turn has another address: so each change gives its slot a new group.
fn by_router(turn: u8) -> Config {
    let mut changed = config(&[vpc("b", 2, ""), vnic("vb", "b", 1), location(2, b'b', 2, 2, 3)]);
    changed.uplinks[0].routes =
        vec![config::UnderlayRoute { to: "172.16.0.0/28".parse().unwrap(), via: vtep(100 + turn) }];
    changed
}

#[test]
fn failover_groups_suffice_for_changes_of_all_ways_in_a_row() {
    // Three for each slot: two changes hold theirs while a third one is made.
    let mut lab = Lab::new(3);
    assert_eq!(lab.topology.writer.table().next_hops().capacity(), 10);
    for turn in 0..40 {
        lab.set(&by_router(turn));
        let Place::Remote(tunnel) = lab.place(lab.slot("b", 2)) else { panic!("not behind a VTEP") };
        assert_ne!(tunnel.group, 0, "change {turn}");
    }
}

#[test]
fn failover_slots_that_found_no_group_get_one_when_there_is_one() {
    let mut lab = Lab::new(3);
    lab.set(&by_router(0));
    // All others are taken, until a change has settled.
    let groups = lab.topology.writer.table().next_hops().capacity();
    let taken = |n: u16| RankedHop {
        rank: 0,
        hop: NextHop { uplink: 0, address: vtep(n as u8), source: vtep(1) },
        beyond: None,
    };
    assert!((200..=220).map(|n| lab.topology.ways.group(&[taken(n)], groups)).any(|group| group.is_none()));
    lab.set(&by_router(1));
    let slot = lab.slot("b", 2);
    assert!(matches!(lab.place(slot), Place::Remote(Tunnel { group: 0, .. })));
    assert_eq!(lab.topology.starved, [slot.slot]);
    for _ in 0..3 {
        lab.set(&by_router(1));
    }
    let Place::Remote(tunnel) = lab.place(slot) else { panic!("not behind a VTEP") };
    assert!(tunnel.group != 0 && lab.topology.starved.is_empty());
}

#[test]
fn failover_uplinks_of_one_metric_share_the_flows_and_both_answer() {
    let mut lab = Lab::new(32);
    lab.set(&two_uplinks(0));
    hear_both(&mut lab);
    let Place::Remote(tunnel) = lab.place(lab.slot("a", 2)) else { panic!("not behind a VTEP") };
    let uplinks = |lab: &Lab| -> Vec<u16> {
        let table = lab.topology.writer.table().next_hops();
        (0..8).filter_map(|port| table.find(tunnel.group, port)).map(|hop| hop.uplink()).collect()
    };
    assert_eq!(uplinks(&lab), [0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!(lab.topology.speakers().count(), 2);
    lab.topology.set_uplink(1, false, &mut lab.neighbours);
    assert_eq!(uplinks(&lab), [0; 8]);
    // Without the second uplink nothing is left of it.
    lab.set(&with(&[]));
    let Place::Remote(tunnel) = lab.place(lab.slot("a", 2)) else { panic!("not behind a VTEP") };
    assert!(lab.neighbours.list().iter().all(|(uplink, ..)| *uplink == 0));
    assert_eq!(lab.hop(tunnel.group).map(|(uplink, _)| uplink), Some(0));
}

#[test]
fn failover_an_uplink_that_hears_nobody_any_more_answers_for_no_shared_address() {
    let mut lab = Lab::new(32);
    lab.set(&two_uplinks(1));
    let speakers = |lab: &mut Lab| {
        let changed = lab.topology.settle_speakers(&lab.neighbours);
        (changed, lab.topology.speakers().map(|(uplink, _)| uplink).collect::<Vec<_>>())
    };
    // Nobody has answered yet: that the backup's link is the faster one to do so is no reason.
    let start = Instant::now();
    let answer = |lab: &mut Lab, uplink: u16, at| {
        let binding = Binding { address: vtep(2), mac: MacAddr([2, 0, 0, 0, 2, uplink as u8]) };
        lab.neighbours.learn(uplink, binding, ANSWER, at);
        lab.topology.next_hop_changed(uplink, vtep(2), &mut lab.neighbours);
    };
    answer(&mut lab, 1, start);
    assert_eq!(speakers(&mut lab), (false, vec![0]));
    answer(&mut lab, 0, start);
    assert_eq!(speakers(&mut lab), (false, vec![0]));
    // The path behind the first uplink is cut, and its link stays.
    let after = |seconds| start + std::time::Duration::from_secs(seconds);
    answer(&mut lab, 1, after(60));
    assert_eq!(lab.neighbours.tick(after(91)).1, [(0, vtep(2))]);
    lab.topology.next_hop_changed(0, vtep(2), &mut lab.neighbours);
    assert_eq!(lab.hop_of(lab.slot("a", 2)).map(|(uplink, _)| uplink), Some(1), "flows leave by the backup");
    assert_eq!(speakers(&mut lab), (true, vec![1]), "and come by it");
    lab.set(&two_uplinks(1));
    assert_eq!(speakers(&mut lab), (false, vec![1]), "a change of something else changes nothing about it");
    // Nobody answers anywhere: the metric counts again. So it does when the path is mended.
    lab.neighbours.tick(after(151));
    assert_eq!(speakers(&mut lab), (true, vec![0]));
    answer(&mut lab, 1, after(152));
    assert_eq!(speakers(&mut lab), (true, vec![1]));
    answer(&mut lab, 0, after(153));
    assert_eq!(speakers(&mut lab), (true, vec![0]));
}

#[test]
fn failover_an_uplink_whose_path_was_dead_from_the_start_is_given_up_after_a_few_questions() {
    let mut lab = Lab::new(32);
    lab.set(&two_uplinks(1));
    let start = Instant::now();
    let binding = Binding { address: vtep(2), mac: MacAddr([2, 0, 0, 0, 2, 1]) };
    lab.neighbours.learn(1, binding, ANSWER, start);
    let given_up = (0..1000).find(|&turn| {
        lab.neighbours.tick(start + std::time::Duration::from_millis(20 * turn));
        lab.topology.settle_speakers(&lab.neighbours)
    });
    let ms = given_up.expect("it is given up") * 20;
    assert!((2000..5000).contains(&ms), "after {ms} ms");
    assert_eq!(lab.topology.speakers().map(|(uplink, _)| uplink).collect::<Vec<_>>(), [1]);
}

#[test]
fn an_uplink_with_another_mac_speaks_of_it_and_asks_its_neighbours_at_once() {
    let mut lab = Lab::new(32);
    let of_mac = |last: u8| {
        let mut config = with(&[]);
        config.uplinks[0].mac = Some(MacAddr([2, 0, 0, 0, 9, last]));
        config
    };
    lab.set(&of_mac(1));
    lab.hear(2, 7);
    lab.hear(3, 8);
    let speakers: Vec<_> = lab.topology.speakers().collect();
    assert_eq!(speakers, [(0, vtep(1))], "an address that it alone has");
    assert!(lab.neighbours.tick(Instant::now()).0.is_empty());
    lab.set(&of_mac(1));
    assert!(lab.neighbours.tick(Instant::now()).0.is_empty());
    lab.set(&of_mac(2));
    let asked: Vec<_> = lab.neighbours.tick(Instant::now()).0.iter().map(|probe| probe.to).collect();
    assert_eq!(asked.len(), 2, "both");
    assert!(asked.iter().all(Option::is_some), "where they are used meanwhile: {asked:?}");
    assert!(lab.hop_of(lab.slot("a", 2)).is_some());
}
