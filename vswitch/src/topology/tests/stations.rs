//! Stations that are known by their MAC addresses alone: whoever else has one comes first, whatever came in which order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

impl Lab {
    fn stations(
        &mut self,
        config: &Config,
        changes: &[(u32, u8, Option<u8>)],
    ) -> BTreeMap<(Vni, MacAddr), TopologyError> {
        let of = |&(vni, number, behind): &(u32, u8, Option<u8>)| {
            ((Vni::new(vni).unwrap(), mac(number)), behind.map(vtep))
        };
        let changes = changes.iter().map(of).collect();
        let refused = self.topology.follow_stations(config, &changes, &self.neighbours).unwrap();
        self.topology.commit();
        self.topology.settle(&mut self.neighbours);
        refused
    }

    /// Behind which VTEP a MAC address is; nothing where it is a vNIC of this host.
    fn behind(&self, vpc: &str, number: u8) -> Option<Option<IpAddr>> {
        let index = self.vpc(vpc).index;
        let found = self.topology.snapshot().location(index, Destination::Mac(mac(number)))?;
        Some(match self.place(found.slot) {
            Place::Local { .. } => None,
            _ => self.topology.draft.remotes.get(&found.slot.slot).map(|remote| remote.vtep),
        })
    }
}

#[test]
fn evpn_a_station_is_bridged_to_and_moves_in_place() {
    let config = config(&[vpc("a", 1, "flood = true"), vpc("b", 2, ""), vnic("va", "a", 1)]);
    let mut lab = Lab::new(64);
    lab.set(&config);
    let before = lab.used();
    // Of a network that is not here; behind this switch; behind nobody.
    let refused = lab.stations(&config, &[(1, 9, Some(2)), (7, 8, Some(2)), (2, 7, Some(1))]);
    assert_eq!(refused.keys().map(|(vni, _)| vni.get()).collect::<Vec<_>>(), [2], "{refused:?}");
    assert_eq!(lab.behind("a", 9), Some(Some(vtep(2))));
    // Its VTEP is one of those that the network floods to.
    assert_eq!(lab.vpc("a").flood_slots.len(), 1);
    let slot = |lab: &Lab| {
        lab.topology.snapshot().location(lab.vpc("a").index, Destination::Mac(mac(9))).unwrap().slot
    };
    let first = slot(&lab);
    lab.stations(&config, &[(1, 9, Some(3))]);
    assert_eq!((slot(&lab), lab.behind("a", 9)), (first, Some(Some(vtep(3)))));
    // A change of the config leaves it; its network takes it along, and gives all slots back.
    let other = super::config(&[vpc("a", 1, "flood = true"), vpc("b", 2, "")]);
    lab.set(&other);
    assert_eq!(lab.behind("a", 9), Some(Some(vtep(3))));
    let renumbered = super::config(&[vpc("a", 3, "flood = true"), vpc("b", 2, "")]);
    lab.set(&renumbered);
    assert_eq!(lab.behind("a", 9), None);
    lab.set(&config);
    lab.stations(&config, &[(1, 9, Some(2))]);
    lab.set(&super::config(&[vpc("b", 2, "")]));
    lab.set(&config);
    assert_eq!((lab.used(), lab.topology.stations().count()), (before, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Station(u8, Option<u8>),
    Location { host: u8, mac: u8, behind: Option<u8> },
    Vnic(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let behind = prop::option::weighted(0.7, 2..5u8);
    prop_oneof![
        3 => (1..4u8, behind.clone()).prop_map(|(mac, behind)| Step::Station(mac, behind)),
        3 => (10..13u8, 1..4u8, behind).prop_map(|(host, mac, behind)| Step::Location { host, mac, behind }),
        1 => any::<bool>().prop_map(Step::Vnic),
    ]
}

proptest! {
    #[test]
    fn evpn_who_has_a_mac_address_follows_from_what_is_known(steps in prop::collection::vec(step(), 1..40)) {
        // The vNIC of host 1 has MAC address 1.
        let with = |vnic_here: bool| {
            let parts = [vpc("a", 1, "flood = true"), if vnic_here { vnic("va", "a", 1) } else { String::new() }];
            config(&parts)
        };
        let mut lab = Lab::new(64);
        let mut here = false;
        lab.set(&with(here));
        let (mut stations, mut locations) = (BTreeMap::new(), BTreeMap::new());
        for step in steps {
            match step {
                Step::Station(number, behind) => {
                    lab.stations(&with(here), &[(1, number, behind)]);
                    match behind {
                        Some(behind) => drop(stations.insert(number, behind)),
                        None => drop(stations.remove(&number)),
                    }
                }
                Step::Location { host, mac: number, behind } => {
                    let vni = Vni::new(1).unwrap();
                    let vip = ip(b'a', host);
                    let (come, gone) = match behind {
                        Some(behind) => {
                            locations.insert(host, (number, behind));
                            let (mac, vtep) = (mac(number), vtep(behind));
                            (vec![LocationConfig { vni, vip, mac, vtep, groups: Vec::new() }], vec![])
                        }
                        None => {
                            locations.remove(&host);
                            (vec![], vec![(vni, vip)])
                        }
                    };
                    lab.topology.follow_locations(&with(here), &come, &gone, &lab.neighbours).unwrap();
                    lab.topology.commit();
                    lab.topology.settle(&mut lab.neighbours);
                }
                Step::Vnic(there) => {
                    here = there;
                    let mut config = with(here);
                    config.locations = lab.topology.locations().cloned().collect();
                    lab.set(&config);
                }
            }
            for number in 1..4u8 {
                let by_location = locations.values().find(|(of, _)| *of == number).map(|(_, behind)| *behind);
                let behind = by_location.or_else(|| stations.get(&number).copied());
                let wanted = match number == 1 && here {
                    true => Some(None),
                    false => behind.map(|behind| Some(vtep(behind))),
                };
                prop_assert_eq!(lab.behind("a", number), wanted, "{}", number);
            }
            let vteps: BTreeSet<u8> =
                stations.values().copied().chain(locations.values().map(|(_, behind)| *behind)).collect();
            prop_assert_eq!(lab.vpc("a").flood_slots.len(), vteps.len());
            let slots = stations.len() + locations.len() + vteps.len() + usize::from(here);
            prop_assert_eq!(lab.used(), slots);
        }
    }
}
