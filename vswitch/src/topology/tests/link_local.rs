//! Link-local addresses that vNICs ask for.

use proptest::prelude::*;

use super::super::link_local::MOST;
use super::*;

fn random(n: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, n)
}

impl Lab {
    fn vnic(&self, name: &str) -> Arc<pipelines::snapshot::Vnic> {
        let found = self.topology.snapshot().vnics.iter().flatten().find(|vnic| vnic.name == name);
        found.unwrap_or_else(|| panic!("no vNIC {name}")).clone()
    }

    fn learn(&mut self, name: &str, address: Ipv6Addr) -> bool {
        let learned = self.topology.learn(self.vnic(name).index, address);
        self.topology.commit();
        self.topology.settle(&mut self.neighbours);
        learned
    }

    /// The vNIC of this host to which a VPC's link-local address leads.
    fn holder(&self, vpc: &str, address: Ipv6Addr) -> Option<String> {
        let snapshot = self.topology.snapshot();
        let vnic = snapshot.local_vnic(self.vpc(vpc).index, address.into())?;
        Some(snapshot.vnic(vnic)?.name.clone())
    }
}

fn far(vni: u32, vip: Ipv6Addr, vtep: u8) -> String {
    format!(
        "[[location]]\nvni = {vni}\nvip = \"{vip}\"\nmac = \"02:00:00:00:00:77\"\nvtep = \"172.16.0.{vtep}\"\n"
    )
}

fn owning(name: &str, vpc: &str, host: u8, more: &str) -> String {
    vnic(name, vpc, host).replace("vips = [", &format!("{more}\nvips = ["))
}

#[test]
fn repair_a_vnic_gets_the_link_local_addresses_it_asks_for_and_only_those() {
    let mut lab = Lab::new(32);
    let two = config(&[
        vpc("a", 1, ""),
        vpc("b", 2, ""),
        vnic("va", "a", 1),
        vnic("vb", "a", 2),
        vnic("vc", "b", 1),
    ]);
    lab.set(&two);
    let used = lab.used();
    for address in [random(1), random(2)] {
        assert!(lab.learn("va", address));
        assert_eq!(lab.holder("a", address).as_deref(), Some("va"));
        assert!(lab.vnic("va").has(address.into()));
    }
    assert!(!lab.learn("va", random(1)) && !lab.learn("vb", random(1)), "it has an owner");
    assert!(lab.learn("vc", random(1)), "another VPC is another network");
    let taken =
        [lab.vnic("va").mac, lab.vpc("a").router_mac, MacAddr([2, 0, 0, 0, 0, 99])].map(MacAddr::link_local);
    for address in
        taken.into_iter().chain(["fd00::1", "::1", "fe80::", "ff02::1"].map(|text| text.parse().unwrap()))
    {
        assert!(!lab.learn("vb", address), "{address}");
    }
    assert_eq!(lab.used(), used, "they take no slot");
    // A change of something else leaves them; a row knows that there are more addresses.
    lab.set(&config(&[vpc("a", 1, "flood = true"), vpc("b", 2, ""), vnic("va", "a", 1), vnic("vb", "a", 2)]));
    assert_eq!(lab.holder("a", random(1)).as_deref(), Some("va"));
    let row = *lab.topology.snapshot().row(lab.vnic("va").index);
    assert!(row.more_vips == 1 || row.v6 == u128::from(random(1)));
    // The oldest gives way.
    (3..3 + MOST as u16 - 1).for_each(|n| assert!(lab.learn("va", random(n))));
    assert_eq!((lab.holder("a", random(1)), lab.holder("a", random(2)).as_deref()), (None, Some("va")));
    assert_eq!(lab.vnic("va").vips.len(), 1 + MOST);
    assert!(lab.learn("vb", random(1)), "nobody has it any more");
}

#[test]
fn repair_the_config_goes_before_what_was_learned() {
    let base = || vec![vpc("a", 1, ""), vpc("b", 2, ""), vnic("va", "a", 1), vnic("vb", "a", 2)];
    let holds = |change: &[String], by: Option<&str>| {
        let mut lab = Lab::new(32);
        lab.set(&config(&base()));
        assert!(lab.learn("va", random(1)) && lab.learn("va", random(2)));
        lab.set(&config(change));
        assert_eq!(lab.holder("a", random(1)).as_deref(), by, "{change:?}");
        lab
    };
    holds(&base(), Some("va"));
    holds(&[base(), vec![vnic("vd", "b", 5)]].concat(), Some("va"));
    // Given to somebody else, here or there; no longer wanted; another MAC, another VPC, gone and come back.
    let given = vnic("vb", "a", 2).replace("vips = [", &format!("vips = [\"{}\", ", random(1)));
    let lab = holds(&[vpc("a", 1, ""), vpc("b", 2, ""), vnic("va", "a", 1), given.clone()], Some("vb"));
    assert_eq!(lab.holder("a", random(2)).as_deref(), Some("va"), "the other one stays");
    holds(&[vpc("a", 1, ""), given, vnic("va", "a", 1)], Some("vb"));
    let lab = holds(&[base(), vec![far(1, random(1), 2)]].concat(), None);
    let there = lab.topology.snapshot().location(lab.vpc("a").index, Destination::Ip(random(1).into()));
    assert_eq!(there.unwrap().mac, MacAddr([2, 0, 0, 0, 0, 0x77]));
    holds(&[base(), vec![far(2, random(1), 2)]].concat(), Some("va"));
    let strict = owning("va", "a", 1, "link-local = \"eui64\"");
    let mut lab = holds(&[vpc("a", 1, ""), strict, vnic("vb", "a", 2)], None);
    assert!(!lab.learn("va", random(3)), "the config does not have it");
    let other = vnic("va", "a", 1).replace("00:01\"", "00:09\"");
    holds(&[vpc("a", 1, ""), other, vnic("vb", "a", 2)], None);
    let moved = vnic("va", "b", 1);
    let lab = holds(&[vpc("a", 1, ""), vpc("b", 2, ""), moved], None);
    assert_eq!(lab.holder("b", random(1)), None);
    let mut lab = holds(&[vpc("a", 1, ""), vnic("vb", "a", 2)], None);
    lab.set(&config(&base()));
    assert_eq!(lab.holder("a", random(1)), None);
    // So does a location that is set while the switch runs.
    assert!(lab.learn("va", random(1)));
    let placed = config(&[base(), vec![far(1, random(1), 2)]].concat());
    lab.topology.set_location(&config(&base()), &placed.locations[0], &lab.neighbours).unwrap();
    lab.topology.commit();
    lab.topology.settle(&mut lab.neighbours);
    assert_eq!(lab.holder("a", random(1)), None);
    assert!(!lab.vnic("va").has(random(1).into()) && !lab.learn("va", random(1)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn repair_a_link_local_address_has_one_holder_and_a_vnic_few_whatever_happens(
        steps in prop::collection::vec((0u8..6, 0u16..8, 0u8..4), 1..60),
    ) {
        let mut lab = Lab::new(32);
        let names = ["va", "vb", "vc"];
        let hosts = [1, 2, 3];
        let mut parts = vec![true; 3];
        let mut places: Vec<(u16, u8)> = Vec::new();
        let make = |parts: &[bool], places: &[(u16, u8)]| {
            let here = (0..3).filter(|&n| parts[n]).map(|n| vnic(names[n], "a", hosts[n]));
            let there = places.iter().map(|&(n, vtep)| far(1, random(n), vtep));
            config(&std::iter::once(vpc("a", 1, "")).chain(here).chain(there).collect::<Vec<_>>())
        };
        lab.set(&make(&parts, &places));
        for (what, n, who) in steps {
            let who = usize::from(who);
            match what {
                0..=2 if who < 3 && parts[who] => {
                    let before = lab.holder("a", random(n));
                    let elsewhere = places.iter().any(|&(place, _)| place == n);
                    let learned = lab.learn(names[who], random(n));
                    prop_assert_eq!(learned, before.is_none() && !elsewhere);
                }
                3 if who < 3 => {
                    parts[who] = !parts[who];
                    lab.set(&make(&parts, &places));
                }
                4 => {
                    places.retain(|&(place, _)| place != n);
                    places.push((n, 2 + who as u8));
                    lab.set(&make(&parts, &places));
                }
                5 => {
                    places.retain(|&(place, _)| place != n);
                    lab.set(&make(&parts, &places));
                }
                _ => {}
            }
            for vnic in lab.topology.snapshot().vnics.iter().flatten() {
                let own: Vec<IpAddr> = vnic.vips.iter().copied().filter(IpAddr::is_ipv6).collect();
                prop_assert!(own.len() <= MOST);
                for address in own {
                    prop_assert_eq!(lab.topology.snapshot().local_vnic(vnic.vpc, address), Some(vnic.index));
                    prop_assert!(!places.iter().any(|&(place, _)| IpAddr::from(random(place)) == address));
                }
            }
            let locations = lab.topology.snapshot().locations.keys();
            let held = locations.filter(|(_, at)| matches!(at, Destination::Ip(IpAddr::V6(_)))).count();
            let known = lab.topology.snapshot().vnics.iter().flatten().flat_map(|vnic| &vnic.vips);
            prop_assert_eq!(held, places.len() + known.filter(|vip| vip.is_ipv6()).count(), "nothing is left over");
        }
        lab.set(&config(&[]));
        prop_assert_eq!((lab.used(), lab.topology.snapshot().locations.len()), (0, 0));
    }
}
