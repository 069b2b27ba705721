use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(30);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn ip(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

fn vteps(host: u8) -> Arc<[IpAddr]> {
    Arc::from([IpAddr::from([172, 16, 0, host])])
}

fn said(mac: u8, vips: &[u8], generation: u64) -> Published {
    let vips = vips.iter().map(|&vip| ip(vip)).collect();
    Published { mac: MacAddr([2, 0, 0, 0, 0, mac]), vips, groups: Vec::new(), generation }
}

fn joins(host: &str, at: u8) -> Change {
    Change::Member(name(host), Some(vteps(at)))
}

fn has(host: &str, vnic: &str, said: Published) -> Change {
    Change::Vnic(name(host), name(vnic), Some(said))
}

fn ends(host: &str, vnic: &str) -> Change {
    Change::Vnic(name(host), name(vnic), None)
}

fn leaves(host: &str) -> Change {
    Change::Member(name(host), None)
}

/// A book of host `me`, and where it says addresses are.
struct Desk {
    book: Book,
    places: BTreeMap<IpAddr, (u8, IpAddr)>,
    now: Instant,
}

impl Desk {
    fn new() -> Self {
        Self { book: Book::new(name("me"), GRACE), places: BTreeMap::new(), now: Instant::now() }
    }

    fn hear(&mut self, changes: &[Change]) -> &BTreeMap<IpAddr, (u8, IpAddr)> {
        self.book.hear(vni(1), changes.to_vec(), self.now);
        self.read()
    }

    fn read(&mut self) -> &BTreeMap<IpAddr, (u8, IpAddr)> {
        let news = self.book.take(usize::MAX, self.now);
        for station in news.stations {
            self.places.insert(station.vip, (station.mac.0[5], station.vteps[0]));
        }
        for (_, vip) in news.gone {
            self.places.remove(&vip);
        }
        &self.places
    }

    fn later(&mut self, time: Duration) -> &BTreeMap<IpAddr, (u8, IpAddr)> {
        self.now += time;
        self.book.tick(self.now);
        self.read()
    }
}

fn at(places: &[(u8, u8, u8)]) -> BTreeMap<IpAddr, (u8, IpAddr)> {
    places.iter().map(|&(vip, mac, host)| (ip(vip), (mac, vteps(host)[0]))).collect()
}

#[test]
fn etcd_the_later_generation_has_an_address_and_both_are_told_of() {
    let mut desk = Desk::new();
    desk.hear(&[joins("a", 1), joins("b", 2), has("a", "vm", said(1, &[5], 10))]);
    assert_eq!(desk.hear(&[has("b", "vm", said(1, &[5], 20))]), &at(&[(5, 1, 2)]));
    let contest = desk.book.contests()[&(vni(1), ip(5))].clone();
    assert_eq!((contest.winner, contest.others, contest.same_mac), (name("b"), vec![name("a")], true));
    // Said again with what it had, in whichever order: an earlier generation wins nothing back.
    assert_eq!(desk.hear(&[has("a", "vm", said(1, &[5, 6], 10))]), &at(&[(5, 1, 2), (6, 1, 1)]));
    assert_eq!(desk.hear(&[ends("b", "vm")]), &at(&[(5, 1, 1), (6, 1, 1)]));
    assert!(desk.book.contests().is_empty());
    // This host's own is where no location leads.
    assert_eq!(desk.hear(&[joins("me", 9), has("me", "vm", said(7, &[5], 30))]), &at(&[(6, 1, 1)]));
    assert!(!desk.book.contests()[&(vni(1), ip(5))].same_mac);
    assert_eq!(desk.book.own_generation(vni(1), "vm"), Some(30));
}

#[test]
fn etcd_a_lost_host_is_believed_for_the_grace_and_what_it_took_back_is_not() {
    let mut desk = Desk::new();
    let all = [joins("a", 1), has("a", "x", said(1, &[1], 1)), has("a", "y", said(2, &[2], 2))];
    desk.hear(&all);
    // Taken back by itself: at once.
    assert_eq!(desk.hear(&[ends("a", "y")]), &at(&[(1, 1, 1)]));
    desk.hear(&all[2..]);
    // Its lease ends: all keys at one revision.
    let lost = [leaves("a"), ends("a", "x"), ends("a", "y")];
    assert_eq!(desk.hear(&lost), &at(&[(1, 1, 1), (2, 2, 1)]));
    assert_eq!(desk.later(GRACE / 2), &at(&[(1, 1, 1), (2, 2, 1)]));
    // It is back with one of them: the other is gone.
    assert_eq!(desk.hear(&[has("a", "x", said(1, &[1], 1))]), &at(&[(1, 1, 1), (2, 2, 1)]));
    assert_eq!(desk.hear(&[joins("a", 1)]), &at(&[(1, 1, 1)]));
    assert_eq!(desk.later(GRACE * 2), &at(&[(1, 1, 1)]));
    // Not back: withdrawn after the grace, which begins once.
    desk.hear(&[leaves("a"), ends("a", "x")]);
    desk.later(GRACE / 2);
    desk.hear(&[leaves("a")]);
    assert_eq!(desk.later(GRACE / 2), &at(&[]));
    assert_eq!(desk.book.size(), (0, 0));
}

#[test]
fn etcd_everything_anew_is_a_difference() {
    let mut desk = Desk::new();
    desk.hear(&[
        joins("a", 1),
        has("a", "x", said(1, &[1], 1)),
        has("a", "y", said(2, &[2], 2)),
        joins("b", 2),
        has("b", "z", said(3, &[3], 3)),
    ]);
    // a said otherwise meanwhile; b's lease ended meanwhile.
    let now = desk.now;
    desk.book.hear_all(vni(1), vec![joins("a", 4), has("a", "x", said(1, &[1], 1))], now);
    assert_eq!(desk.read(), &at(&[(1, 1, 4), (3, 3, 2)]));
    assert_eq!(desk.later(GRACE), &at(&[(1, 1, 4)]));
    // The same again tells nothing.
    let now = desk.now;
    desk.book.hear_all(vni(1), vec![joins("a", 4), has("a", "x", said(1, &[1], 1))], now);
    assert!(!desk.book.has_news());
    desk.book.leave(vni(1));
    assert_eq!(desk.read(), &at(&[]));
}

#[test]
fn etcd_a_vnic_waits_for_its_host() {
    let mut desk = Desk::new();
    assert_eq!(desk.hear(&[has("a", "x", said(1, &[1], 1))]), &at(&[]));
    assert_eq!(desk.hear(&[joins("a", 1)]), &at(&[(1, 1, 1)]));
    assert_eq!(desk.hear(&[joins("a", 7)]), &at(&[(1, 1, 7)]), "a host that moves takes all along");
}

/// What may happen at one revision.
#[derive(Clone, Debug)]
enum Step {
    Joins(u8, u8),
    Says(u8, u8, Published),
    TakesBack(u8, u8),
    /// The lease of a host ends.
    Ends(u8),
    Waits(u8),
    /// Everything is read anew; some hosts' leases ended, and some vNICs were taken back, without anybody having heard it.
    Anew(Vec<u8>, Vec<(u8, u8)>),
}

fn step() -> impl Strategy<Value = Step> {
    let said = (1u8..4, proptest::collection::btree_set(1u8..5, 0..3), 1u64..20)
        .prop_map(|(mac, vips, generation)| said(mac, &vips.into_iter().collect::<Vec<_>>(), generation));
    prop_oneof![
        3 => (0u8..4, 1u8..4).prop_map(|(host, at)| Step::Joins(host, at)),
        6 => (0u8..4, 0u8..3, said).prop_map(|(host, vnic, said)| Step::Says(host, vnic, said)),
        2 => (0u8..4, 0u8..3).prop_map(|(host, vnic)| Step::TakesBack(host, vnic)),
        2 => (0u8..4).prop_map(Step::Ends),
        2 => (1u8..40).prop_map(Step::Waits),
        1 => (proptest::collection::vec(0u8..4, 0..2), proptest::collection::vec((0u8..4, 0u8..3), 0..2))
            .prop_map(|(ended, gone)| Step::Anew(ended, gone)),
    ]
}

/// The same by lists, and nothing remembered of what was told.
#[derive(Default)]
struct Twin {
    /// Host, where, when it was lost.
    members: Vec<(u8, u8, Option<u64>)>,
    /// Host, vNIC, what was said, whether it was lost.
    claims: Vec<(u8, u8, Published, bool)>,
    now: u64,
}

impl Twin {
    fn member(&mut self, host: u8) -> Option<&mut (u8, u8, Option<u64>)> {
        self.members.iter_mut().find(|member| member.0 == host)
    }

    fn lose(&mut self, host: u8) {
        let now = self.now;
        match self.claims.iter().any(|claim| claim.0 == host) {
            true => {
                self.claims.iter_mut().filter(|claim| claim.0 == host).for_each(|claim| claim.3 = true);
                if let Some(member) = self.member(host) {
                    member.2.get_or_insert(now);
                }
            }
            false => self.members.retain(|member| member.0 != host),
        }
    }

    fn places(&self) -> BTreeMap<IpAddr, (u8, IpAddr)> {
        let mut places = BTreeMap::new();
        for vip in (1..5).map(ip) {
            let claims = self.claims.iter().filter(|claim| claim.2.vips.contains(&vip));
            let here = claims.filter(|claim| self.members.iter().any(|member| member.0 == claim.0));
            // Two vNICs of one host are told apart by nobody: either is where the host is.
            let Some(best) = here.max_by_key(|claim| (claim.2.generation, claim.0)) else { continue };
            let at = self.members.iter().find(|member| member.0 == best.0).unwrap().1;
            if best.0 != 0 {
                places.insert(vip, (0, vteps(at)[0]));
            }
        }
        places
    }
}

const HOSTS: [&str; 4] = ["a-me", "b", "c", "d"];
const VNICS: [&str; 3] = ["x", "y", "z"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// What was told, change by change, is what follows from all that was said.
    #[test]
    fn etcd_books_are_those_of_a_linear_twin(steps in proptest::collection::vec(step(), 0..40)) {
        let mut book = Book::new(name(HOSTS[0]), GRACE);
        let (mut places, mut twin) = (BTreeMap::new(), Twin::default());
        let start = Instant::now();
        for step in steps {
            let now = start + Duration::from_secs(twin.now);
            match step {
                Step::Joins(host, at) => {
                    book.hear(vni(1), vec![joins(HOSTS[host as usize], at)], now);
                    twin.members.retain(|member| member.0 != host);
                    twin.members.push((host, at, None));
                    twin.claims.retain(|claim| claim.0 != host || !claim.3);
                }
                Step::Says(host, vnic, said) => {
                    book.hear(vni(1), vec![has(HOSTS[host as usize], VNICS[vnic as usize], said.clone())], now);
                    twin.claims.retain(|claim| (claim.0, claim.1) != (host, vnic));
                    twin.claims.push((host, vnic, said, false));
                }
                Step::TakesBack(host, vnic) => {
                    book.hear(vni(1), vec![ends(HOSTS[host as usize], VNICS[vnic as usize])], now);
                    twin.claims.retain(|claim| (claim.0, claim.1) != (host, vnic));
                }
                Step::Ends(host) => {
                    let of_host = twin.claims.iter().filter(|claim| claim.0 == host && !claim.3);
                    let vnics = of_host.map(|claim| ends(HOSTS[host as usize], VNICS[claim.1 as usize]));
                    let mut all: Vec<Change> = vnics.collect();
                    all.push(leaves(HOSTS[host as usize]));
                    book.hear(vni(1), all, now);
                    twin.lose(host);
                }
                Step::Waits(seconds) => {
                    twin.now += u64::from(seconds);
                    book.tick(start + Duration::from_secs(twin.now));
                    let over: Vec<u8> = twin.members.iter()
                        .filter(|member| member.2.is_some_and(|lost| lost + GRACE.as_secs() <= twin.now))
                        .map(|member| member.0).collect();
                    twin.members.retain(|member| !over.contains(&member.0));
                    twin.claims.retain(|claim| !over.contains(&claim.0) || !claim.3);
                }
                Step::Anew(ended, gone) => {
                    // What etcd has: what was said and not lost, but for what ended unheard.
                    let there: Vec<(u8, u8)> = twin.members.iter()
                        .filter(|member| member.2.is_none() && !ended.contains(&member.0))
                        .map(|member| (member.0, member.1)).collect();
                    let is_there = |host: u8| there.iter().any(|member| member.0 == host);
                    twin.claims.retain(|claim| !(is_there(claim.0) && gone.contains(&(claim.0, claim.1))));
                    let mut all: Vec<Change> =
                        there.iter().map(|&(host, at)| joins(HOSTS[host as usize], at)).collect();
                    let said = twin.claims.iter().filter(|claim| is_there(claim.0));
                    all.extend(said.map(|claim| {
                        has(HOSTS[claim.0 as usize], VNICS[claim.1 as usize], claim.2.clone())
                    }));
                    book.hear_all(vni(1), all, now);
                    for host in 0..4 {
                        if !is_there(host) {
                            twin.lose(host);
                        }
                    }
                }
            }
            let now = start + Duration::from_secs(twin.now);
            let news = book.take(usize::MAX, now);
            for station in news.stations {
                places.insert(station.vip, (0, station.vteps[0]));
            }
            for (_, vip) in news.gone {
                places.remove(&vip);
            }
            prop_assert_eq!(&places, &twin.places());
        }
    }
}
