//! More than the switch has room for.

use super::{GOOD, said};
use crate::config::*;
use worker::{MAX_VNICS, MAX_VPCS};

/// The good config with so many more entries of a list as text.
fn with(count: usize, entry: impl Fn(usize) -> String) -> String {
    GOOD.to_owned() + &(0..count).map(entry).collect::<String>()
}

#[track_caller]
fn good(text: &str) {
    Config::parse(text, "test").unwrap_or_else(|errors| panic!("{errors}"));
}

fn mac(n: usize) -> String {
    format!("02:00:00:00:{:02x}:{:02x}", n >> 8, n & 0xff)
}

fn location(n: usize) -> String {
    let mac = mac(n);
    format!("[[location]]\nvni = 100\nvip = \"10.1.0.{n}\"\nmac = \"{mac}\"\nvtep = \"172.16.0.2\"\n")
}

fn entries(count: usize, text: &str) -> String {
    format!("{text}[vlt]\nentries = {count}\n")
}

#[test]
pub(in crate::config::tests) fn vpcs_are_as_many_as_there_are_nodes_for() {
    let vpc = |n| format!("[[vpc]]\nname = \"n{n}\"\nvni = {}\n", 1000 + n);
    good(&with(MAX_VPCS - 1, vpc));
    let all = format!("has {} VPCs", MAX_VPCS + 1);
    said(&with(MAX_VPCS, vpc), (23 + 3 * (MAX_VPCS - 1), 1), &[&all, "vpc n", "remove"]);
}

#[test]
pub(in crate::config::tests) fn vnics_are_as_many_as_the_switch_takes() {
    let parse = |text: &str| Config::parse(text, "test").unwrap_or_else(|errors| panic!("{errors}"));
    let trunk =
        |n: usize| format!("[[trunk]]\nname = \"t{n}\"\nport = {{ kind = \"veth\", iface = \"e{n}\" }}\n");
    let mut config = parse(&with(MAX_VNICS / 4000 + 1, trunk));
    let first = config.vnics[0].clone();
    for n in 1..MAX_VNICS {
        let port = VnicPort::Trunk(Name::new(&format!("t{}", n / 4000)).unwrap());
        let (name, mac, vlan) = (Name::new(&format!("n{n}")).unwrap(), mac(n).parse().unwrap(), n % 4000 + 1);
        let vlan = Some(vlan as u16);
        config
            .vnics
            .push_back(VnicConfig { name, mac, port, vlan, vips: Vec::new(), ..(*first).clone() }.into());
    }
    assert_eq!(config.validate(), Ok(()));
    let name = Name::new("last").unwrap();
    let mac = "02:00:00:00:ff:ff".parse().unwrap();
    config
        .vnics
        .push_back(VnicConfig { name, mac, vlan: Some(4001), vips: Vec::new(), ..(*first).clone() }.into());
    let ConfigErrors(errors) = config.validate().unwrap_err();
    let [ConfigError { path, message, .. }] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!(path, "vnic[name=last]");
    assert!(
        message.contains(&format!("has {} vNICs", MAX_VNICS + 1)) && message.contains("another host"),
        "{message}"
    );
}

#[test]
pub(in crate::config::tests) fn vnics_and_locations_are_as_many_as_the_vlt_has_entries() {
    let text = with(3, |n| location(n + 1));
    let last = text.lines().count();
    good(&entries(4, &text));
    // Five lines each, and its head is the first of them.
    let words =
        ["location 10.1.0.3 of VNI 100", "4 vNICs and locations", "the 3 entries of [vlt]", "raise entries"];
    said(&entries(3, &text), (last - 4, 1), &words);
    said(&entries(1, &text), (last - 14, 1), &["location 10.1.0.1 of", "the 1 entries"]);
    let second = "[[vnic]]\nname = \"vm2\"\nvpc = \"blue\"\nmac = \"52:54:00:00:00:02\"\nvips = []\nport = \"lab\"\nvlan = 2\n";
    let line = format!("(line {})", last + 7 + 2);
    said(
        &entries(1, &format!("{text}{second}")),
        (last + 1, 1),
        &["vnic vm2", "5 vNICs and locations", &line],
    );
}
