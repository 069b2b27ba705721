//! What is announced, and how it goes on when others say the same.

use std::time::Duration;

use super::*;

const SPEAKER: Speaker =
    Speaker { vtep: IpAddr::V4(Ipv4Addr::new(172, 16, 0, 5)), router_id: Ipv4Addr::new(192, 0, 2, 1) };

fn mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

fn ip(number: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, number])
}

fn local(stations: &[(u32, u8, &[u8])]) -> Local {
    let of = |&(vni, of, addresses): &(u32, u8, &[u8])| {
        ((vni, mac(of)), addresses.iter().map(|number| ip(*number)).collect())
    };
    Local { stations: stations.iter().map(of).collect(), prefixes: BTreeSet::new() }
}

/// Takes all steps; what they were, and the news.
fn go(publisher: &mut Publisher, local: &Local, book: &Book) -> (Vec<Step>, Vec<News>) {
    go_at(publisher, local, book, Instant::now())
}

/// The same at a time.
fn go_at(publisher: &mut Publisher, local: &Local, book: &Book, now: Instant) -> (Vec<Step>, Vec<News>) {
    let mut news = Vec::new();
    let steps = publisher.steps(local, book, SPEAKER, now, &mut news);
    steps.iter().for_each(|step| publisher.took(step));
    // What was held is taken in before the next ones.
    if !news.iter().any(|news| matches!(news, News::Released { .. })) {
        assert!(
            publisher.steps(local, book, SPEAKER, now, &mut Vec::new()).is_empty(),
            "nothing is left to do"
        );
    }
    (steps, news)
}

fn heard(from: u8, of: u8, sequence: u32) -> Route {
    let rd = Distinguisher::Address(Ipv4Addr::new(172, 16, 0, from), 2);
    let key = Key::Station { rd, tag: 0, mac: mac(of), ip: None };
    Route { sequence, ..Route::new(key, Vni::new(7).unwrap(), IpAddr::from([172, 16, 0, from])) }
}

fn sequence(publisher: &Publisher) -> Option<u32> {
    let station = |route: &&Route| matches!(route.key, Key::Station { .. });
    publisher.announced().find(station).map(|route| route.sequence)
}

#[test]
fn evpn_a_vnic_is_announced_with_each_address_and_its_network_for_what_is_flooded() {
    let mut publisher = Publisher::default();
    let (steps, news) =
        go(&mut publisher, &local(&[(7, 1, &[1, 2]), (7, 2, &[]), (65543, 1, &[1])]), &Book::default());
    let told: Vec<String> = steps
        .iter()
        .map(|step| match step {
            Step::Announce(route) => format!("{} vni {}", route.key, route.vni),
            Step::Withdraw(route) => format!("not {}", route.key),
        })
        .collect();
    // VNI 65543 has the lower bits of 7, and gets a number of its own.
    assert_eq!(
        told,
        [
            "[2] 192.0.2.1:7 02:00:00:00:00:01 10.0.0.1 vni 7",
            "[2] 192.0.2.1:7 02:00:00:00:00:01 10.0.0.2 vni 7",
            "[2] 192.0.2.1:7 02:00:00:00:00:02 vni 7",
            "[2] 192.0.2.1:8 02:00:00:00:00:01 10.0.0.1 vni 65543",
            "[3] 192.0.2.1:7 172.16.0.5 vni 7",
            "[3] 192.0.2.1:8 172.16.0.5 vni 65543",
        ]
    );
    assert!(news.is_empty());
    // The first network goes; the second keeps its number.
    let (steps, _) = go(&mut publisher, &local(&[(65543, 1, &[1])]), &Book::default());
    assert!(
        steps.iter().all(|step| matches!(step, Step::Withdraw(route) if route.vni.get() == 7)),
        "{steps:?}"
    );
    assert_eq!(steps.len(), 4);
}

#[test]
fn evpn_a_station_that_comes_and_goes_counts_up() {
    let (mut publisher, mut book) = (Publisher::default(), Book::default());
    let here = local(&[(7, 1, &[1])]);
    book.set(heard(9, 1, 4));
    let (_, news) = go(&mut publisher, &here, &book);
    assert_eq!(sequence(&publisher), Some(5));
    assert!(matches!(news[..], [News::Came { sequence: 5, .. }]), "{news:?}");
    // It moves on, though its vNIC is still here.
    book.set(heard(9, 1, 6));
    let (steps, news) = go(&mut publisher, &here, &book);
    assert!(matches!(steps[..], [Step::Withdraw(_)]), "{steps:?}");
    assert!(matches!(news[..], [News::Left { sequence: 6, .. }]), "{news:?}");
    // Whatever is said there does not bring it back.
    book.set(heard(9, 1, 7));
    assert_eq!(go(&mut publisher, &here, &book), (vec![], vec![]));
    // The vNIC goes, and comes anew.
    go(&mut publisher, &Local::default(), &book);
    let (_, news) = go(&mut publisher, &here, &book);
    assert!(matches!(news[..], [News::Came { sequence: 8, .. }]), "{news:?}");
    assert_eq!(sequence(&publisher), Some(8));
}

#[test]
fn evpn_a_station_that_nobody_else_has_any_more_is_here_again() {
    let (mut publisher, mut book) = (Publisher::default(), Book::default());
    let here = local(&[(7, 1, &[1])]);
    go(&mut publisher, &here, &book);
    book.set(heard(9, 1, 3));
    go(&mut publisher, &here, &book);
    assert_eq!(sequence(&publisher), None);
    book.withdraw(&heard(9, 1, 3).key);
    go(&mut publisher, &here, &book);
    assert_eq!(sequence(&publisher), Some(4));
}

#[test]
fn evpn_of_equal_numbers_the_lower_end_point_keeps_the_station() {
    for (from, keeps) in [(9, true), (2, false)] {
        let (mut publisher, mut book) = (Publisher::default(), Book::default());
        let here = local(&[(7, 1, &[1])]);
        go(&mut publisher, &here, &book);
        book.set(heard(from, 1, 0));
        go(&mut publisher, &here, &book);
        assert_eq!(sequence(&publisher).is_some(), keeps, "172.16.0.{from}");
    }
    // One that must not move is theirs, whatever the number.
    let (mut publisher, mut book) = (Publisher::default(), Book::default());
    book.set(heard(9, 1, 5));
    go(&mut publisher, &local(&[(7, 1, &[1])]), &book);
    book.set(Route { sticky: true, ..heard(9, 1, 5) });
    go(&mut publisher, &local(&[(7, 1, &[1])]), &book);
    assert_eq!(sequence(&publisher), None);
}

#[test]
fn evpn_a_switch_that_starts_anew_goes_on_with_what_it_announced() {
    let (mut publisher, mut book) = (Publisher::default(), Book::default());
    book.set(heard(9, 1, 4));
    let here = local(&[(7, 1, &[1])]);
    go(&mut publisher, &here, &book);
    let known: Vec<Route> = publisher.announced().copied().collect();
    let mut next = Publisher::default();
    next.begin(known);
    assert_eq!(go(&mut next, &here, &book), (vec![], vec![]));
    // gobgpd was started anew, too: all of it again.
    next.begin(Vec::new());
    assert_eq!(go(&mut next, &here, &book).0.len(), 2);
    assert_eq!(sequence(&next), Some(5));
    // What it has that nobody wants goes.
    let mut third = Publisher::default();
    third.begin(next.announced().copied().collect());
    assert_eq!(go(&mut third, &Local::default(), &book).0.len(), 2);
}

#[test]
fn evpn_a_number_that_gobgpd_refuses_is_raised() {
    let mut publisher = Publisher::default();
    let here = local(&[(7, 1, &[1])]);
    let book = Book::default();
    let steps = publisher.steps(&here, &book, SPEAKER, Instant::now(), &mut Vec::new());
    let Some(Step::Announce(route)) = steps.first() else { panic!("{steps:?}") };
    publisher.refused(route);
    // Told of by a second route of the same station.
    publisher.refused(route);
    go(&mut publisher, &here, &book);
    assert_eq!(sequence(&publisher), Some(1));
}

#[test]
fn evpn_a_route_to_a_vnic_is_a_prefix_where_that_is_wanted() {
    let text = "[[vpc]]\nname = \"red\"\nvni = 7\nroutes = [{ to = \"10.9.0.0/24\", vnic = \"fw\" }, { to = \"10.8.0.0/24\", blackhole = true }]\n\
        [[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n\
        [[vnic]]\nname = \"fw\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:01\"\nvips = [\"10.0.0.1\"]\nguard = \"off\"\nport = { kind = \"null\" }\n";
    let config = Config::parse(text, "test").unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(Local::of(&config, false).prefixes.len(), 0);
    let local = Local::of(&config, true);
    let mut publisher = Publisher::default();
    go(&mut publisher, &local, &Book::default());
    let prefixes: Vec<&Route> =
        publisher.announced().filter(|route| matches!(route.key, Key::Prefix { .. })).collect();
    let [prefix] = prefixes[..] else { panic!("{prefixes:?}") };
    assert_eq!(prefix.key.to_string(), "[5] 192.0.2.1:7 10.9.0.0/24");
    let Speaker { vtep, .. } = SPEAKER;
    assert_eq!(prefix.router_mac, Some(pipelines::vtep::router_mac(vtep)));
    // The same with the vNIC's own address: a router that keeps one of a VTEP keeps no other.
    assert!(publisher.announced().all(|route| {
        let is_of_none = matches!(route.key, Key::Flood { .. } | Key::Station { ip: None, .. });
        route.router_mac == prefix.router_mac.filter(|_| !is_of_none)
    }));
}

/// A host that has the same MAC address as this one, and says so and takes it back; as the client does, the book holds what is held.
struct Flapping {
    publisher: Publisher,
    book: Book,
    here: Local,
    now: Instant,
}

impl Flapping {
    fn new() -> Self {
        let here = local(&[(7, 1, &[1])]);
        let mut flapping =
            Self { publisher: Publisher::default(), book: Book::default(), here, now: Instant::now() };
        flapping.turn();
        flapping
    }

    fn turn(&mut self) -> (Vec<Step>, Vec<News>) {
        let (steps, news) = go_at(&mut self.publisher, &self.here, &self.book, self.now);
        for news in &news {
            match *news {
                News::Held { vni, mac, .. } => self.book.hold(vni, mac),
                News::Released { vni, mac } => self.book.release(vni, mac),
                News::Came { .. } | News::Left { .. } => {}
            }
        }
        (steps, news)
    }

    /// It says so with the next number, and takes it back, each some time after the other.
    fn flap(&mut self, time: Duration) -> Vec<News> {
        let theirs = heard(9, 1, sequence(&self.publisher).map_or(0, |ours| ours + 1));
        self.now += time;
        self.book.set(theirs);
        let (_, mut news) = self.turn();
        self.now += time;
        self.book.withdraw(&theirs.key);
        news.extend(self.turn().1);
        news
    }
}

#[test]
fn evpn_a_station_that_moves_five_times_in_three_minutes_is_a_duplicate() {
    let mut flapping = Flapping::new();
    let second = Duration::from_secs(1);
    assert!(matches!(flapping.flap(second)[..], [News::Left { .. }]));
    assert!(matches!(flapping.flap(second)[..], [News::Left { .. }]));
    assert_eq!(sequence(&flapping.publisher), Some(4));
    // The fifth: away, and what follows is not looked at.
    let news = flapping.flap(second);
    let [News::Held { vni: 7, mac: of, duplicate }] = news[..] else { panic!("{news:?}") };
    let held_at = flapping.now - second;
    assert_eq!((of, duplicate.vtep), (mac(1), IpAddr::from([172, 16, 0, 9])));
    assert_eq!(duplicate.until, held_at + Duration::from_secs(180));
    for _ in 0..80 {
        assert_eq!(flapping.flap(second), []);
        assert_eq!(sequence(&flapping.publisher), Some(4), "it is left as it is");
        assert!(!flapping.publisher.is_due(flapping.now));
    }
    assert_eq!(flapping.publisher.duplicates().count(), 1);
    // A new address of it is not announced either; another station is.
    flapping.here = local(&[(7, 1, &[1, 2]), (7, 3, &[3])]);
    let (steps, _) = flapping.turn();
    let told = |step: &Step| matches!(step, Step::Announce(route) if matches!(route.key, Key::Station { mac: of, .. } if of == mac(3)));
    assert!(steps.len() == 1 && steps.iter().all(told), "{steps:?}");
    // Its time is over: it is looked at again, with all that was said last, and five moves are too many again.
    let theirs = heard(9, 1, 70);
    flapping.book.set(theirs);
    flapping.now = duplicate.until;
    assert!(flapping.publisher.is_due(flapping.now));
    let (steps, news) = flapping.turn();
    assert!(matches!(news[..], [News::Released { vni: 7, .. }]), "{news:?}");
    // The address that waited.
    assert!(matches!(steps[..], [Step::Announce(_)]), "{steps:?}");
    assert!(!flapping.publisher.is_due(flapping.now));
    assert!(matches!(flapping.turn().1[..], [News::Left { sequence: 70, .. }]));
    flapping.book.withdraw(&theirs.key);
    flapping.turn();
    assert_eq!(sequence(&flapping.publisher), Some(71));
    assert!(matches!(flapping.flap(second)[..], [News::Left { .. }]));
    assert!(matches!(flapping.flap(second)[..], [News::Held { .. }]));
}

#[test]
fn evpn_a_station_that_moves_seldom_is_no_duplicate() {
    let mut flapping = Flapping::new();
    for _ in 0..50 {
        // Four moves in 180 s, not five.
        assert!(matches!(flapping.flap(Duration::from_secs(45))[..], [News::Left { .. }]));
    }
    assert_eq!(flapping.publisher.duplicates().count(), 0);
}

#[test]
fn evpn_a_duplicate_is_looked_at_when_its_vnic_comes_anew() {
    let mut flapping = Flapping::new();
    let news: Vec<News> = (0..3).flat_map(|_| flapping.flap(Duration::from_secs(1))).collect();
    assert!(matches!(news[..], [.., News::Held { .. }]), "{news:?}");
    flapping.book.set(heard(9, 1, 9));
    let here = std::mem::take(&mut flapping.here);
    let (steps, news) = flapping.turn();
    assert!(matches!(news[..], [News::Released { .. }]), "{news:?}");
    assert_eq!(steps.len(), 2, "it, and its network: {steps:?}");
    flapping.here = here;
    let (_, news) = flapping.turn();
    assert!(matches!(news[..], [News::Came { sequence: 10, .. }]), "{news:?}");
    assert_eq!((sequence(&flapping.publisher), flapping.publisher.duplicates().count()), (Some(10), 0));
}
