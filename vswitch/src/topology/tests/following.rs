//! What other hosts say, by the batch: the outcome is that of a config with the same locations, whatever came before; a bad one is
//! nobody's hostage taker.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

impl Lab {
    fn follow(
        &mut self,
        config: &Config,
        come: &[LocationConfig],
        gone: &[(Vni, IpAddr)],
    ) -> BTreeMap<usize, TopologyError> {
        let refused = self.topology.follow_locations(config, come, gone, &self.neighbours).unwrap();
        self.topology.commit();
        self.topology.settle(&mut self.neighbours);
        refused
    }

    fn members(&mut self, config: &Config, vni: u32, hosts: &[u8]) -> bool {
        let members =
            BTreeMap::from([(Vni::new(vni).unwrap(), hosts.iter().map(|&host| vtep(host)).collect())]);
        let changed = self.topology.follow_vteps(config, &members, &self.neighbours).unwrap();
        self.topology.commit();
        self.topology.settle(&mut self.neighbours);
        changed
    }
}

fn heard_at(vni: u32, net: u8, host: u8, mac: u8, behind: u8) -> LocationConfig {
    LocationConfig {
        vni: Vni::new(vni).unwrap(),
        vip: ip(net, host),
        mac: MacAddr([2, 0, 0, 0, 0, mac]),
        vtep: vtep(behind),
        groups: Vec::new(),
    }
}

fn networks(more: &[String]) -> Config {
    let base = [vpc("a", 1, "flood = true"), vpc("b", 2, ""), vnic("va", "a", 1)];
    config(&[&base[..], more].concat())
}

#[test]
fn hosts_bad_locations_of_a_batch_are_refused_alone() {
    let config = networks(&[]);
    let mut lab = Lab::new(64);
    lab.set(&config);
    let mut batch = vec![
        heard_at(1, b'a', 2, 2, 2),
        // The address of a vNIC here; of a network that is not here; behind this switch; behind nobody; of no station.
        heard_at(1, b'a', 1, 9, 2),
        heard_at(7, b'a', 3, 3, 2),
        heard_at(1, b'a', 4, 4, 1),
        LocationConfig { vtep: "192.0.2.1".parse().unwrap(), ..heard_at(1, b'a', 5, 5, 2) },
        LocationConfig { mac: MacAddr([1, 0, 0x5e, 0, 0, 1]), ..heard_at(1, b'a', 6, 6, 2) },
        heard_at(2, b'b', 7, 7, 3),
    ];
    let refused = lab.follow(&config, &batch, &[]);
    assert_eq!(refused.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert!(matches!(refused[&1], TopologyError::LocalVip { .. }), "{refused:?}");
    assert!(matches!(refused[&2], TopologyError::UnknownVni { .. }), "{refused:?}");
    assert!(matches!(refused[&3], TopologyError::OwnVtep { .. }), "{refused:?}");
    assert!(matches!(refused[&4], TopologyError::NoRoute { .. }), "{refused:?}");
    batch.retain(|location| [2, 7].contains(&location.mac.0[5]));
    let mut twin = Lab::new(64);
    twin.set(&Config { locations: batch, ..config });
    assert_eq!(lab.decisions(), twin.decisions());
    assert_eq!(lab.used(), twin.used());
}

#[test]
fn hosts_a_full_table_refuses_what_does_not_fit_and_keeps_the_rest() {
    let config = networks(&[]);
    let mut lab = Lab::new(4);
    lab.set(&config);
    let free = 4 - lab.used() as u8;
    // In a network that does not flood each takes one slot.
    let batch: Vec<_> = (2..8).map(|host| heard_at(2, b'b', host, host, 2)).collect();
    let refused = lab.follow(&config, &batch, &[]);
    assert_eq!(refused.len(), 6 - usize::from(free));
    assert!(
        refused.values().all(|error| matches!(error, TopologyError::VltFull { entries: 4, .. })),
        "{refused:?}"
    );
    assert_eq!(lab.topology.locations().count(), usize::from(free));
    // Those that go make room at once for others, in the same batch or in the next.
    let all: Vec<_> = batch.iter().map(|location| (location.vni, location.vip)).collect();
    lab.follow(&config, &[], &all);
    assert_eq!((lab.topology.locations().count(), lab.used()), (0, 4 - usize::from(free)));
}

#[test]
fn hosts_of_a_network_whose_flood_list_does_not_fit_hold_no_other_network_up() {
    let config = networks(&[]);
    let mut lab = Lab::new(12);
    lab.set(&config);
    // One station of each network that moves or goes later.
    let known = [heard_at(1, b'a', 2, 2, 2), heard_at(2, b'b', 2, 2, 2), heard_at(2, b'b', 3, 3, 2)];
    assert!(lab.follow(&config, &known, &[]).is_empty());
    // In the network that floods, each new host takes a slot for its station and one for its list: half as many as fit by themselves.
    let free = 12 - lab.used() as u8;
    let mut batch: Vec<_> = (10..10 + free).map(|host| heard_at(1, b'a', host, host, host)).collect();
    batch.push(heard_at(2, b'b', 2, 2, 4));
    let refused = lab.follow(&config, &batch, &[(known[2].vni, known[2].vip)]);
    let (fit, of_a) = (usize::from(free / 2), usize::from(free));
    assert!(fit > 0 && fit < of_a);
    assert_eq!(refused.keys().copied().collect::<Vec<_>>(), (fit..of_a).collect::<Vec<_>>(), "{refused:?}");
    assert!(
        refused.values().all(|error| matches!(error, TopologyError::VltFull { entries: 12, .. })),
        "{refused:?}"
    );
    let places: Vec<_> = lab.topology.locations().cloned().collect();
    let left: Vec<_> =
        std::iter::once(known[0].clone()).chain(batch[..fit].to_vec()).chain([batch[of_a].clone()]).collect();
    assert_eq!(places, left);
    assert_eq!(lab.vpc("a").flood_slots.len(), 1 + fit);
    // As if the others had never been said.
    let mut twin = Lab::new(64);
    twin.set(&Config { locations: left, ..config.clone() });
    assert_eq!((lab.decisions(), lab.used()), (twin.decisions(), twin.used()));
    // One that is behind a VTEP of the list takes one slot, where two would be too many.
    let more: Vec<_> = (40..52).map(|host| heard_at(1, b'a', host, host, 2)).collect();
    let room = 12 - lab.used();
    assert_eq!(lab.follow(&config, &more, &[]).len(), more.len() - room);
}

#[test]
fn hosts_for_which_there_is_no_slot_are_left_out_alone_and_have_one_when_there_is() {
    let config = networks(&[]);
    let mut lab = Lab::new(12);
    lab.set(&config);
    let vni = |number| Vni::new(number).unwrap();
    let stations: Vec<_> = (2..12 - lab.used() as u8).map(|host| heard_at(2, b'b', host, host, 2)).collect();
    assert!(lab.follow(&config, &stations, &[]).is_empty());
    let left_out = |lab: &Lab| lab.topology.left_out().collect::<Vec<_>>();
    let heard = |lab: &Lab| [3, 4, 5].map(|host| lab.topology.snapshot().vteps.find(vtep(host)).is_some());
    // Two slots are free.
    assert!(lab.members(&config, 2, &[3, 4, 5]));
    assert_eq!((left_out(&lab), heard(&lab)), (vec![(vni(2), vtep(5))], [true, true, false]));
    assert!(!lab.members(&config, 2, &[5, 4, 3]), "the same again is no change");
    // What others say of another network, and what goes, is taken in all the same; so is a change of the config.
    assert!(lab.members(&config, 1, &[3]));
    assert_eq!(left_out(&lab), [(vni(1), vtep(3)), (vni(2), vtep(5))]);
    assert!(lab.follow(&config, &[heard_at(2, b'b', 2, 99, 2)], &[]).is_empty());
    lab.set(&Config { locations: lab.topology.locations().cloned().collect(), ..networks(&[]) });
    let neighbours = Neighbours::default();
    assert_eq!(lab.topology.place_left_out(&config, &neighbours), Ok(false), "there is no room");
    // One place for two, then one for the other.
    for left in [vec![(vni(2), vtep(5))], Vec::new()] {
        let gone = lab.topology.locations().last().map(|location| (location.vni, location.vip)).unwrap();
        lab.follow(&config, &[], &[gone]);
        assert_eq!(lab.topology.place_left_out(&config, &neighbours), Ok(true));
        lab.topology.commit();
        lab.topology.settle(&mut lab.neighbours);
        assert_eq!((left_out(&lab), lab.used()), (left, 12));
    }
    assert_eq!((heard(&lab), lab.vpc("a").flood_slots.len()), ([true; 3], 1));
    assert_eq!(lab.topology.place_left_out(&config, &neighbours), Ok(false), "nobody waits");
    // Those that leave wait no more.
    assert!(lab.members(&config, 2, &[3, 4, 5, 6]) && left_out(&lab).len() == 1);
    assert!(lab.members(&config, 2, &[3]));
    assert_eq!((left_out(&lab), lab.used()), (Vec::new(), 10));
}

#[test]
fn hosts_that_take_part_in_a_network_are_flooded_to_and_heard_there() {
    let config = networks(&[]);
    let mut lab = Lab::new(64);
    lab.set(&config);
    let used = lab.used();
    assert!(lab.members(&config, 1, &[2, 3]));
    assert!(!lab.members(&config, 1, &[3, 2]), "the same again is no change");
    let floods = |lab: &Lab| lab.vpc("a").flood_slots.len();
    assert_eq!((floods(&lab), lab.used()), (2, used + 2));
    let heard = |lab: &Lab, host| lab.topology.snapshot().vteps.find(vtep(host)).is_some();
    assert!(heard(&lab, 2) && heard(&lab, 3) && !heard(&lab, 4));
    // One copy for a host, however many stations are known behind it.
    lab.follow(&config, &[heard_at(1, b'a', 2, 2, 2), heard_at(1, b'a', 3, 3, 4)], &[]);
    assert_eq!(floods(&lab), 3);
    // A change of the config keeps them; one's own address is in no list.
    lab.members(&config, 1, &[1, 2]);
    lab.set(&networks(&[vnic("vb", "a", 5)]));
    assert_eq!((floods(&lab), heard(&lab, 3)), (1, false));
    lab.members(&config, 1, &[]);
    assert_eq!((floods(&lab), lab.used()), (0, used + 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Batches in any order come to what a config says that has what is left.
    #[test]
    fn hosts_batches_come_to_what_a_config_of_the_rest_says(
        batches in proptest::collection::vec(
            (
                proptest::collection::vec((2u8..8, 2u8..8, 2u8..5, any::<bool>()), 0..6),
                proptest::collection::vec((2u8..8, any::<bool>()), 0..4),
            ),
            1..8,
        ),
    ) {
        let config = networks(&[]);
        let mut lab = Lab::new(64);
        lab.set(&config);
        let network = |is_a: bool| if is_a { (1, b'a') } else { (2, b'b') };
        let mut left: BTreeMap<(u32, u8), LocationConfig> = BTreeMap::new();
        for (come, gone) in batches {
            let come: Vec<_> = come.into_iter().map(|(host, mac, behind, is_a)| {
                let (vni, net) = network(is_a);
                ((vni, host), heard_at(vni, net, host, mac, behind))
            }).collect();
            let gone: Vec<_> = gone.into_iter().map(|(host, is_a)| (network(is_a), host)).collect();
            let gone_keys: Vec<_> =
                gone.iter().map(|&((vni, net), host)| (Vni::new(vni).unwrap(), ip(net, host))).collect();
            // Within a batch what goes goes first.
            gone.iter().for_each(|((vni, _), host)| drop(left.remove(&(*vni, *host))));
            left.extend(come.iter().cloned());
            let come: Vec<_> = come.into_iter().map(|(_, location)| location).collect();
            prop_assert!(lab.follow(&config, &come, &gone_keys).is_empty());
            let mut twin = Lab::new(64);
            twin.set(&Config { locations: left.values().cloned().collect(), ..config.clone() });
            prop_assert_eq!(lab.decisions(), twin.decisions());
            prop_assert_eq!(lab.used(), twin.used());
        }
    }
}
