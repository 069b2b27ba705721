//! Slots of the VLT: taken, freed, and written when a next hop or a location changes.

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
        |lab: &Lab| [lab.slot("a", 2), lab.slot("a", 3), lab.slot("b", 2)].map(|slot| lab.place(slot));
    let start = slots(&lab);
    assert!(start.iter().all(|place| matches!(place, Place::Unresolved { uplink: 0, .. })));
    lab.hear(2, 7);
    let known = slots(&lab);
    assert!(matches!(known[..2], [Place::Remote(_), Place::Remote(_)]) && known[2] == start[2]);
    lab.hear(2, 8);
    let changed = slots(&lab);
    assert!(changed[0] != known[0] && changed[1] != known[1] && changed[2] == start[2]);
    let (_, lost) = lab.neighbours.tick(Instant::now() + std::time::Duration::from_secs(600));
    assert_eq!(lost, [(0, vtep(2))]);
    lab.topology.next_hop_changed(0, vtep(2), &mut lab.neighbours);
    assert_eq!(slots(&lab), start);
    // A configured neighbour is used, and forgotten when it is configured no more.
    let mut fixed = with(&[location(1, b'a', 3, 3, 2)]);
    let mac = MacAddr([2, 0, 0, 0, 2, 9]);
    fixed.uplinks[0].neighbours.push(config::StaticNeighbour { ip: vtep(2), mac });
    lab.set(&fixed);
    let Place::Remote(tunnel) = slots(&lab)[0] else { panic!("not resolved") };
    assert_eq!(tunnel.header[..6], mac.0);
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
