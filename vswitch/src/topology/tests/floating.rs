//! Floating addresses: who has them, and that nothing is left of them where they were.

use pipelines::event::Floating;
use proptest::prelude::*;

use super::super::floating::MOST;
use super::*;

const VIRTUAL: MacAddr = MacAddr([0, 0, 0x5e, 0, 1, 51]);

fn float(n: u8) -> IpAddr {
    ip(b'a', n)
}

/// A vNIC with pairs.
fn allowed(name: &str, host: u8, pairs: &str) -> String {
    vnic(name, "a", host).replace("vips = [", &format!("allowed = [{pairs}]\nvips = ["))
}

const PAIRS: &str = "{ ip = \"10.97.0.100\" }, { ip = \"10.97.0.100\", mac = \"00:00:5e:00:01:33\" }, { ip = \"10.97.0.128/25\" }";

impl Lab {
    fn index(&self, name: &str) -> u32 {
        self.topology.vnic(name).unwrap().index
    }
    fn mac(&self, name: &str) -> MacAddr {
        self.topology.vnic(name).unwrap().mac
    }
    fn float(&mut self, name: &str, address: IpAddr, mac: MacAddr, here: bool) -> bool {
        let floating = Floating { vnic: self.index(name), binding: Binding { address, mac }, here };
        let news = self.topology.float(&floating);
        self.topology.commit();
        self.topology.settle(&mut self.neighbours);
        news
    }
    /// Where an address or a MAC of VPC a leads on this host, and with which MAC.
    fn at(&self, destination: Destination) -> Option<(String, MacAddr)> {
        let snapshot = self.topology.snapshot();
        let location = snapshot.location(self.vpc("a").index, destination)?;
        let Place::Local { vnic } = self.place(location.slot) else { return None };
        Some((snapshot.vnic(vnic)?.name.clone(), location.mac))
    }
    fn two() -> Self {
        let mut lab = Self::new(32);
        lab.set(&config(&[
            vpc("a", 1, ""),
            allowed("va", 1, PAIRS),
            allowed("vb", 2, PAIRS),
            vnic("vc", "a", 3),
        ]));
        lab
    }
}

#[test]
fn guard_a_floating_address_is_at_who_announced_it_last() {
    let mut lab = Lab::two();
    let (a, b, used) = (lab.mac("va"), lab.mac("vb"), lab.used());
    assert!(lab.float("va", float(100), a, true) && !lab.float("va", float(100), a, true), "known");
    assert_eq!(lab.at(Destination::Ip(float(100))), Some(("va".into(), a)));
    assert!(lab.float("vb", float(100), VIRTUAL, true));
    for destination in [Destination::Ip(float(100)), Destination::Mac(VIRTUAL)] {
        assert_eq!(lab.at(destination), Some(("vb".into(), VIRTUAL)));
    }
    assert!(lab.float("va", float(100), VIRTUAL, true));
    for destination in [Destination::Ip(float(100)), Destination::Mac(VIRTUAL)] {
        assert_eq!(lab.at(destination), Some(("va".into(), VIRTUAL)));
    }
    assert!(lab.float("va", float(100), a, true));
    assert_eq!(lab.at(Destination::Mac(VIRTUAL)), None, "nothing floats with it any more");
    // Who is not allowed it, what is somebody's, and what another host has.
    assert!(!lab.float("vc", float(100), lab.mac("vc"), true) && !lab.float("vb", float(5), b, true));
    assert!(!lab.float("vb", float(1), b, true) && !lab.float("vb", float(128), VIRTUAL, true));
    assert!(!lab.float("vb", float(100), b, false), "it is not there");
    assert!(lab.float("va", float(100), b, false) && lab.at(Destination::Ip(float(100))).is_none());
    assert_eq!(lab.used(), used, "they take no slot");
    assert_eq!(lab.topology.floating().count(), 0);
}

#[test]
fn guard_the_oldest_of_many_floating_addresses_gives_way() {
    let mut lab = Lab::new(32);
    let wide = "{ ip = \"10.97.0.0/16\" }";
    lab.set(&config(&[vpc("a", 1, ""), allowed("va", 1, wide)]));
    let mac = lab.mac("va");
    let nth = |n: usize| IpAddr::from([10, 97, 1 + (n / 200) as u8, (n % 200) as u8 + 1]);
    (0..MOST + 3).for_each(|n| assert!(lab.float("va", nth(n), mac, true)));
    assert_eq!(lab.topology.floating().count(), MOST);
    let known: Vec<bool> = (0..5).map(|n| lab.at(Destination::Ip(nth(n))).is_some()).collect();
    assert_eq!(known, [false, false, false, true, true]);
}

#[test]
fn guard_the_config_goes_before_what_floats() {
    let given = |name: &str, host: u8| vnic(name, "a", host).replace("vips = [", "vips = [\"10.97.0.100\", ");
    let holds = |change: &[String], by: Option<&str>| {
        let mut lab = Lab::two();
        let mac = lab.mac("va");
        assert!(lab.float("va", float(100), mac, true) && lab.float("va", float(200), mac, true));
        let cells = lab.cells_after(&config(&[&[vpc("a", 1, "")], change].concat()));
        assert_eq!(lab.at(Destination::Ip(float(100))).map(|at| at.0).as_deref(), by, "{change:?}");
        (lab, cells)
    };
    let others = || [allowed("vb", 2, PAIRS), vnic("vc", "a", 3)];
    let (_, cells) = holds(&[&[allowed("va", 1, PAIRS)], &others()[..]].concat(), Some("va"));
    assert_eq!(cells, NONE, "nothing changed");
    // No longer allowed; another MAC; gone; given to another one, here or there.
    let (lab, cells) =
        holds(&[&[allowed("va", 1, "{ ip = \"10.97.0.200\" }")], &others()[..]].concat(), None);
    assert!(lab.at(Destination::Ip(float(200))).is_some(), "the other one stays");
    assert_eq!(cells, lab.all_cells("a", &["va", "vb", "vc"]));
    holds(&[&[allowed("va", 9, PAIRS)], &others()[..]].concat(), None);
    holds(&others(), None);
    let (lab, _) = holds(&[allowed("va", 1, PAIRS), given("vb", 2), vnic("vc", "a", 3)], Some("vb"));
    assert_eq!(lab.topology.floating().count(), 1);
    let there = location(1, b'a', 100, 0x77, 2);
    let (mut lab, _) = holds(&[&[allowed("va", 1, PAIRS), there.clone()], &others()[..]].concat(), None);
    let mac = lab.mac("va");
    assert!(!lab.float("va", float(100), mac, true), "it is given to another host");
    // The same while the switch runs; and back.
    let mut lab = Lab::two();
    assert!(lab.float("va", float(100), mac, true));
    let base =
        config(&[vpc("a", 1, ""), allowed("va", 1, PAIRS), allowed("vb", 2, PAIRS), vnic("vc", "a", 3)]);
    let placed = config(&[vpc("a", 1, ""), there]);
    lab.topology.set_location(&base, &placed.locations[0], &lab.neighbours).unwrap();
    lab.topology.commit();
    lab.topology.settle(&mut lab.neighbours);
    assert_eq!((lab.at(Destination::Ip(float(100))), lab.topology.floating().count()), (None, 0));
    // A guard that goes off is told to what was decided.
    let mut lab = Lab::two();
    let off = vnic("vc", "a", 3).replace("vips = [", "guard = \"off\"\nvips = [");
    let cells =
        lab.cells_after(&config(&[vpc("a", 1, ""), allowed("va", 1, PAIRS), allowed("vb", 2, PAIRS), off]));
    assert_eq!(cells, [lab.vnic_cell("vc")]);
    assert_eq!(lab.topology.snapshot().row(lab.index("vc")).guard, pipelines::snapshot::GUARD_OFF);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn guard_floating_addresses_leave_nothing_behind(
        steps in prop::collection::vec((0u8..6, 0u8..4, 0usize..3, any::<bool>()), 1..60),
    ) {
        let mut lab = Lab::new(32);
        let (names, hosts) = (["va", "vb", "vc"], [1, 2, 3]);
        let (mut there, mut pairs): (Vec<bool>, Vec<bool>) = (vec![true; 3], vec![true; 3]);
        let mut far: Option<u8> = None;
        let addresses = [float(100), float(130), float(131), float(200)];
        let make = |there: &[bool], pairs: &[bool], far: Option<u8>| {
            let here = (0..3).filter(|&n| there[n]).map(|n| allowed(names[n], hosts[n], if pairs[n] { PAIRS } else { "" }));
            let place = far.map(|n| location(1, b'a', n, 0x77, 2));
            config(&std::iter::once(vpc("a", 1, "")).chain(here).chain(place).collect::<Vec<_>>())
        };
        lab.set(&make(&there, &pairs, far));
        for (what, which, who, other_mac) in steps {
            let address = addresses[usize::from(which)];
            match what {
                0..=2 if there[who] => {
                    let mac = if other_mac { VIRTUAL } else { lab.mac(names[who]) };
                    let may = pairs[who] && (!other_mac || which == 0) && far.is_none_or(|far| float(far) != address);
                    let known = lab.at(Destination::Ip(address)) == Some((names[who].into(), mac));
                    prop_assert_eq!(lab.float(names[who], address, mac, true), may && !known);
                }
                3 => { there[who] = !there[who]; lab.set(&make(&there, &pairs, far)); }
                4 => { pairs[who] = !pairs[who]; lab.set(&make(&there, &pairs, far)); }
                5 => { far = other_mac.then_some([100, 130, 131, 200][usize::from(which)]); lab.set(&make(&there, &pairs, far)); }
                _ => {}
            }
            // Each location is a VIP's, a vNIC's MAC, the far station's, or one that floats and is allowed.
            let snapshot = lab.topology.snapshot();
            let floating: Vec<(String, Binding)> = lab.topology.floating().map(|(vnic, at)| (vnic.name.clone(), at)).collect();
            for (name, at) in &floating {
                prop_assert!(lab.topology.vnic(name).unwrap().allows(*at));
                prop_assert_eq!(lab.at(Destination::Ip(at.address)), Some((name.clone(), at.mac)));
            }
            let virtuals = usize::from(floating.iter().any(|(_, at)| at.mac == VIRTUAL));
            let own = there.iter().filter(|there| **there).count() * 2 + usize::from(far.is_some()) * 2;
            prop_assert_eq!(snapshot.locations.len(), own + floating.len() + virtuals);
        }
        lab.set(&config(&[]));
        prop_assert_eq!((lab.used(), lab.topology.snapshot().locations.len()), (0, 0));
    }
}
