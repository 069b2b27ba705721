//! The book against a twin that looks at all routes for every question.

use std::net::Ipv4Addr;

use proptest::prelude::*;
use wire::Vni;

use super::*;
use crate::evpn::route::Distinguisher;

fn rd(number: u8) -> Distinguisher {
    Distinguisher::Address(Ipv4Addr::new(10, 0, 0, number), 1)
}

fn mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

fn ip(number: u8) -> IpAddr {
    IpAddr::from([10, 1, 0, number])
}

fn vtep(number: u8) -> IpAddr {
    IpAddr::from([172, 16, 0, number])
}

fn vni(number: u8) -> Vni {
    Vni::new(u32::from(number)).unwrap()
}

fn station(from: u8, of: u8, address: Option<u8>, sequence: u32) -> Route {
    let key = Key::Station { rd: rd(from), tag: 0, mac: mac(of), ip: address.map(ip) };
    Route { sequence, ..Route::new(key, vni(1), vtep(from)) }
}

#[test]
fn evpn_a_station_is_where_it_moved_last() {
    let mut book = Book::default();
    book.set(station(1, 7, Some(7), 0));
    assert_eq!(book.address(1, ip(7)), Some(Place { mac: mac(7), vtep: vtep(1) }));
    // The new place has said nothing but the MAC address yet.
    book.set(station(2, 7, None, 1));
    assert_eq!(book.address(1, ip(7)), Some(Place { mac: mac(7), vtep: vtep(2) }));
    assert!(book.take_dirty().addresses.contains(&(1, ip(7))));
    // The old one says it again, late, and is not believed.
    book.set(station(1, 7, Some(7), 0));
    assert!(book.take_dirty().is_empty(), "what is said twice changes nothing");
    // The new place forgets it: it is at the old one after all.
    book.withdraw(&station(2, 7, None, 1).key);
    assert_eq!(book.address(1, ip(7)).unwrap().vtep, vtep(1));
    book.withdraw(&station(1, 7, Some(7), 0).key);
    assert_eq!(book.address(1, ip(7)), None);
    assert_eq!(book.routes().count(), 0);
}

#[test]
fn evpn_a_held_station_stays_where_it_is_and_goes_where_it_was_said_last() {
    let mut book = Book::default();
    book.set(station(1, 7, Some(7), 0));
    book.hold(1, mac(7));
    book.take_dirty();
    for sequence in 1..100 {
        book.set(station(2, 7, Some(7), sequence));
        book.set(station(2, 7, Some(8), sequence));
        book.withdraw(&station(2, 7, Some(7), 0).key);
        book.withdraw(&station(1, 7, Some(7), 0).key);
    }
    // Its twin in another network and others are not held.
    let elsewhere = Route { vni: vni(2), ..station(3, 7, Some(9), 0) };
    book.set(elsewhere);
    book.set(station(3, 6, Some(6), 0));
    assert_eq!(book.address(1, ip(7)), Some(Place { mac: mac(7), vtep: vtep(1) }));
    assert_eq!((book.address(2, ip(9)).is_some(), book.address(1, ip(6)).is_some()), (true, true));
    let dirty = book.take_dirty();
    assert!(dirty.addresses.iter().all(|(_, address)| [ip(9), ip(6)].contains(address)), "{dirty:?}");
    // The speaker comes back meanwhile, and says one of the three again.
    book.begin();
    book.set(elsewhere);
    book.set(station(3, 6, Some(6), 0));
    book.set(station(4, 7, Some(5), 0));
    assert_eq!(book.stale(), 2, "the one that was here, and the one that came meanwhile");
    book.release(1, mac(7));
    assert_eq!((book.address(1, ip(7)), book.address(1, ip(8)).unwrap().vtep), (None, vtep(2)));
    book.sweep();
    assert_eq!((book.address(1, ip(8)), book.address(1, ip(5)).unwrap().vtep), (None, vtep(4)));
    book.release(1, mac(7));
    assert_eq!(book.routes().count(), 3);
}

#[test]
fn evpn_of_equal_numbers_the_lower_end_point_wins_and_what_is_sticky_before_all() {
    let mut book = Book::default();
    book.set(station(3, 7, Some(7), 4));
    book.set(station(2, 7, Some(7), 4));
    assert_eq!(book.address(1, ip(7)).unwrap().vtep, vtep(2));
    book.set(Route { sticky: true, ..station(9, 7, Some(7), 0) });
    assert_eq!(book.address(1, ip(7)).unwrap().vtep, vtep(9));
}

#[test]
fn evpn_a_speaker_that_comes_back_takes_away_only_what_it_does_not_say_again() {
    let mut book = Book::default();
    let all: Vec<Route> = (1..=9).map(|number| station(1, number, Some(number), 0)).collect();
    all.iter().for_each(|route| book.set(*route));
    book.take_dirty();
    book.begin();
    all[..6].iter().for_each(|route| book.set(*route));
    // It withdraws one that was not said again, which is no news afterwards.
    book.withdraw(&all[6].key);
    assert!(book.take_dirty().addresses.len() == 1);
    assert_eq!((book.stale(), book.sweep()), (2, 2));
    let gone = book.take_dirty().addresses;
    assert_eq!(gone.into_iter().collect::<Vec<_>>(), [(1, ip(8)), (1, ip(9))]);
    // Away a second time before it has said anything.
    book.begin();
    book.begin();
    assert_eq!(book.sweep(), 6);
}

#[test]
fn evpn_a_prefix_is_behind_its_routers_or_a_station() {
    let to: IpNet = "10.9.0.0/24".parse().unwrap();
    let prefix = |from: u8| Route::new(Key::Prefix { rd: rd(from), tag: 0, to }, vni(1), vtep(from));
    let mut book = Book::default();
    book.set(Route { gateway: Some(ip(7)), ..prefix(1) });
    assert_eq!(book.prefix(1, to), None, "nobody knows where the gateway is");
    book.take_dirty();
    book.set(station(4, 7, Some(7), 0));
    assert!(book.take_dirty().prefixes.contains(&(1, to)));
    assert_eq!(book.prefix(1, to), Some(Lead::Station(mac(7))));
    let routers = |from: &[u8]| {
        Some(Lead::Routers(from.iter().map(|from| Place { mac: mac(99), vtep: vtep(*from) }).collect()))
    };
    book.set(Route { router_mac: Some(mac(99)), ..prefix(3) });
    book.set(Route { router_mac: Some(mac(99)), ..prefix(2) });
    assert_eq!(book.prefix(1, to), routers(&[2, 3]));
    book.withdraw(&prefix(3).key);
    assert_eq!(book.prefix(1, to), routers(&[2]));
    book.withdraw(&prefix(2).key);
    book.withdraw(&prefix(1).key);
    assert_eq!(book.prefix(1, to), None);
}

/// The same questions, answered from a list.
#[derive(Default)]
struct Twin {
    routes: Vec<Route>,
    stale: Vec<Key>,
}

impl Twin {
    fn set(&mut self, route: Route) {
        self.withdraw(&route.key);
        self.routes.push(route);
    }

    fn withdraw(&mut self, key: &Key) {
        self.routes.retain(|route| route.key != *key);
        self.stale.retain(|stale| stale != key);
    }

    fn best(&self, is: impl Fn(&Route) -> bool) -> Option<Route> {
        let mut best: Option<Route> = None;
        for route in self.routes.iter().filter(|route| is(route)) {
            let wins = best.is_none_or(|best| {
                let by = [
                    route.sticky.cmp(&best.sticky),
                    route.sequence.cmp(&best.sequence),
                    best.vtep.cmp(&route.vtep),
                    best.key.cmp(&route.key),
                ];
                by.into_iter().find(|order| order.is_ne()).is_some_and(std::cmp::Ordering::is_gt)
            });
            if wins {
                best = Some(*route);
            }
        }
        best
    }

    fn address(&self, vni: u32, ip: IpAddr) -> Option<Place> {
        let bound = self.best(|route| {
            route.vni.get() == vni && matches!(route.key, Key::Station { ip: Some(of), .. } if of == ip)
        })?;
        let mac = station_of(&bound.key)?;
        let at = self.best(|route| route.vni.get() == vni && station_of(&route.key) == Some(mac))?;
        Some(Place { mac, vtep: at.vtep })
    }

    fn bare(&self, vni: u32, mac: MacAddr) -> Option<IpAddr> {
        let of = |route: &&Route| route.vni.get() == vni && station_of(&route.key) == Some(mac);
        if self.routes.iter().filter(of).any(|route| address_of(&route.key).is_some()) {
            return None;
        }
        self.best(|route| of(&route)).map(|route| route.vtep)
    }

    fn floods(&self, vni: u32) -> BTreeSet<IpAddr> {
        let of = |route: &&Route| route.vni.get() == vni && matches!(route.key, Key::Flood { .. });
        self.routes.iter().filter(of).map(|route| route.vtep).collect()
    }

    fn prefix(&self, vni: u32, to: IpNet) -> Option<Lead> {
        let of = |route: &&Route| {
            route.vni.get() == vni && matches!(route.key, Key::Prefix { to: of, .. } if of == to)
        };
        let routes: Vec<Route> = self.routes.iter().filter(of).copied().collect();
        let mut routers: Vec<Place> = routes
            .iter()
            .filter_map(|route| Some(Place { mac: route.router_mac?, vtep: route.vtep }))
            .collect();
        routers.sort_by_key(|place| (place.vtep, place.mac));
        routers.dedup();
        if !routers.is_empty() {
            routers.truncate(MOST_GATEWAYS);
            return Some(Lead::Routers(routers));
        }
        let macs = routes.iter().filter_map(|route| Some(self.address(vni, route.gateway?)?.mac));
        macs.min().map(Lead::Station)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Set(Route),
    Withdraw(Key),
    Begin,
    Sweep,
}

fn key() -> impl Strategy<Value = Key> {
    let small = 1..4u8;
    prop_oneof![
        4 => (small.clone(), small.clone(), prop::option::of(small.clone()))
            .prop_map(|(from, of, at)| Key::Station { rd: rd(from), tag: 0, mac: mac(of), ip: at.map(ip) }),
        1 => (small.clone(), small.clone())
            .prop_map(|(from, of)| Key::Flood { rd: rd(from), tag: 0, originator: vtep(of) }),
        2 => (small.clone(), small).prop_map(|(from, of)| {
            let to = IpNet::new(IpAddr::from([10, 9, of, 0]), 24).unwrap();
            Key::Prefix { rd: rd(from), tag: 0, to }
        }),
    ]
}

fn route() -> impl Strategy<Value = Route> {
    let facts = (1..3u8, 1..4u8, 0..3u32, prop::bool::weighted(0.1));
    let router = (prop::option::of(8..10u8), prop::option::of(1..4u8));
    (key(), facts, router).prop_map(|(key, (network, at, sequence, sticky), (router, gateway))| Route {
        sequence,
        sticky,
        router_mac: router.map(mac),
        gateway: gateway.map(ip),
        ..Route::new(key, vni(network), vtep(at))
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => route().prop_map(Step::Set),
        6 => key().prop_map(Step::Withdraw),
        1 => Just(Step::Begin),
        1 => Just(Step::Sweep),
    ]
}

/// All answers, and what nobody may have overlooked: an answer that changed without being dirty.
fn compare(book: &mut Book, twin: &Twin, told: &mut Told) -> Result<(), TestCaseError> {
    let dirty = book.take_dirty();
    for network in 1..3u32 {
        for number in 1..4u8 {
            let answers = Answers {
                address: book.address(network, ip(number)),
                bare: book.bare_station(network, mac(number)),
                prefix: book.prefix(network, IpNet::new(IpAddr::from([10, 9, number, 0]), 24).unwrap()),
                floods: book.floods(network),
            };
            let to = IpNet::new(IpAddr::from([10, 9, number, 0]), 24).unwrap();
            prop_assert_eq!(answers.address, twin.address(network, ip(number)));
            prop_assert_eq!(answers.bare, twin.bare(network, mac(number)));
            prop_assert_eq!(&answers.prefix, &twin.prefix(network, to));
            prop_assert_eq!(&answers.floods, &twin.floods(network));
            let before = told.insert((network, number), answers.clone()).unwrap_or_default();
            prop_assert!(
                before.address == answers.address || dirty.addresses.contains(&(network, ip(number)))
            );
            prop_assert!(before.bare == answers.bare || dirty.stations.contains(&(network, mac(number))));
            prop_assert!(before.prefix == answers.prefix || dirty.prefixes.contains(&(network, to)));
            prop_assert!(before.floods == answers.floods || dirty.floods.contains(&network));
        }
    }
    let highest = |of: u8| {
        let of_mac = |route: &&Route| station_of(&route.key) == Some(mac(of));
        twin.routes.iter().filter(of_mac).map(|route| route.sequence).max()
    };
    for number in 1..4u8 {
        prop_assert_eq!(book.highest_sequence(mac(number)), highest(number));
    }
    prop_assert_eq!(book.stale(), twin.stale.len());
    Ok(())
}

#[derive(Clone, Debug, Default)]
struct Answers {
    address: Option<Place>,
    bare: Option<IpAddr>,
    prefix: Option<Lead>,
    floods: BTreeSet<IpAddr>,
}

type Told = BTreeMap<(u32, u8), Answers>;

proptest! {
    #[test]
    fn evpn_the_book_says_what_a_list_says(steps in prop::collection::vec(step(), 1..60)) {
        let (mut book, mut twin, mut told) = (Book::default(), Twin::default(), Told::new());
        for step in steps {
            match step {
                Step::Set(route) => {
                    book.set(route);
                    twin.set(route);
                }
                Step::Withdraw(key) => {
                    book.withdraw(&key);
                    twin.withdraw(&key);
                }
                Step::Begin => {
                    book.begin();
                    twin.stale = twin.routes.iter().map(|route| route.key).collect();
                }
                Step::Sweep => {
                    book.sweep();
                    for key in std::mem::take(&mut twin.stale) {
                        twin.withdraw(&key);
                    }
                }
            }
            compare(&mut book, &twin, &mut told)?;
        }
        // All of it goes in the end, and nothing is left of it in any index.
        book.begin();
        book.sweep();
        let empty = Book { dirty: Dirty::default(), ..book.clone() };
        prop_assert_eq!(format!("{empty:?}"), format!("{:?}", Book::default()));
    }
}
