//! Security groups: who is in which, what they come to, and what their changes make stale.

use pipelines::Direction;
use pipelines::event::Floating;
use pipelines::security::{Subject, groups_at};
use wire::protocol;

use super::*;

const GROUP: &str = "[[security-group]]\nname = \"g\"\nvpc = \"a\"\nrules = [{ direction = \"in\", protocol = \"tcp\", ports = \"80\" }]\n\
     [[security-group]]\nname = \"h\"\nvpc = \"a\"\nrules = [{ direction = \"in\", protocol = \"udp\", group = \"g\" }]\n";

/// VPC a with two vNICs and a location, in these groups.
fn grouped(groups: &str, va: &str, vb: &str, far: &str) -> Config {
    let member = |text: String, key: &str, of: &str| match of {
        "" => text,
        of => text + key + " = [" + of + "]\n",
    };
    config(&[
        vpc("a", 1, ""),
        groups.to_owned(),
        member(vnic("va", "a", 1), "security-groups", va),
        member(vnic("vb", "a", 2), "security-groups", vb),
        member(location(1, b'a', 3, 3, 3), "groups", far),
    ])
}

/// Whether rules let a vNIC get TCP to a port, or UDP, from a host of the VPC.
fn admits(lab: &Lab, name: &str, proto: u8, port: u16, from: u8) -> bool {
    let snapshot = lab.topology.snapshot();
    let vnic = snapshot.vnics.iter().flatten().find(|vnic| vnic.name == name).unwrap();
    assert_eq!(snapshot.row(vnic.index).group_set, vnic.group_set);
    let peer = ip(b'a', from);
    let groups = || groups_at(snapshot, vnic.vpc, peer);
    let subject = Subject { peer: Some(peer), proto, port, rdma: false };
    let policy = snapshot.security.policy(vnic.group_set);
    policy.is_none_or(|policy| policy.of(Direction::In).allows(&subject, groups))
}

#[test]
fn security_groups_of_the_config_are_those_of_the_snapshot() {
    let mut lab = Lab::new(32);
    lab.set(&grouped("", "", "", ""));
    assert!(lab.topology.snapshot().security.is_off());
    lab.set(&grouped(GROUP, "\"g\"", "\"h\", \"g\"", "\"g\""));
    let seen = |lab: &Lab| {
        ["va", "vb"].map(|vnic| {
            [(protocol::TCP, 80, 9), (protocol::TCP, 81, 9), (protocol::UDP, 5, 3), (protocol::UDP, 5, 9)]
                .map(|(proto, port, from)| admits(lab, vnic, proto, port, from))
        })
    };
    assert_eq!(seen(&lab), [[true, false, false, false], [true, false, true, false]]);
    // Members here and elsewhere, by their addresses.
    let of = |lab: &Lab, host: u8| groups_at(lab.topology.snapshot(), 0, ip(b'a', host)).len();
    assert_eq!([1, 2, 3, 9].map(|host| of(&lab, host)), [1, 2, 1, 0]);
    // The location leaves the group, and a rule goes.
    lab.set(&grouped(GROUP, "\"g\"", "\"h\", \"g\"", ""));
    assert_eq!(seen(&lab)[1], [true, false, false, false]);
    lab.set(&grouped(&GROUP.replace("80", "8080"), "\"g\"", "\"h\"", "\"g\""));
    assert_eq!(seen(&lab), [[false; 4], [false, false, true, false]]);
    lab.set(&grouped("", "", "", ""));
    assert_eq!(seen(&lab), [[true; 4]; 2]);
}

#[test]
fn security_changes_make_all_decisions_stale_and_nothing_else_does() {
    let mut lab = Lab::new(32);
    let both = |far: &str| grouped(GROUP, "\"g\"", "\"h\"", far);
    lab.set(&both("\"g\""));
    let all = lab.all_cells("a", &["va", "vb"]);
    let epoch = |lab: &Lab| lab.topology.snapshot().security.epoch;
    let before = epoch(&lab);
    assert_eq!(lab.cells_after(&both("\"g\"")), NONE);
    assert_eq!(epoch(&lab), before);
    let changes = [
        both(""),
        both("\"g\""),
        grouped(GROUP, "\"h\"", "\"h\"", "\"g\""),
        grouped(&GROUP.replace("tcp", "sctp"), "\"h\"", "\"h\"", "\"g\""),
        grouped(GROUP, "", "\"h\"", "\"g\""),
    ];
    for (number, change) in changes.iter().enumerate() {
        let before = epoch(&lab);
        assert_eq!(lab.cells_after(change), all, "change {number}");
        assert_ne!(epoch(&lab), before, "change {number}");
        assert_eq!(lab.cells_after(change), NONE, "change {number}");
    }
}

#[test]
fn security_connections_of_a_station_that_goes_are_not_those_of_the_next() {
    let mut lab = Lab::new(32);
    let both = |far: &str| grouped(GROUP, "\"g\"", "\"h\"", far);
    lab.set(&both("\"g\""));
    let epoch = |lab: &Lab| lab.topology.snapshot().security.epoch;
    let without = config(&[
        vpc("a", 1, ""),
        GROUP.to_owned(),
        vnic("va", "a", 1) + "security-groups = [\"g\"]\n",
        vnic("vb", "a", 2) + "security-groups = [\"h\"]\n",
    ]);
    let before = epoch(&lab);
    lab.set(&without);
    assert_ne!(epoch(&lab), before, "the location was in a group");
    let before = epoch(&lab);
    lab.set(&both(""));
    lab.set(&without);
    assert_eq!(epoch(&lab), before, "it was in none");
    let one =
        config(&[vpc("a", 1, ""), GROUP.to_owned(), vnic("va", "a", 1) + "security-groups = [\"g\"]\n"]);
    lab.set(&one);
    assert_ne!(epoch(&lab), before, "the vNIC was in one");
}

#[test]
fn security_floating_addresses_are_in_the_groups_of_their_vnic() {
    let mut lab = Lab::new(32);
    let with = |groups: &str| {
        config(&[
            vpc("a", 1, ""),
            vpc("b", 2, ""),
            GROUP.to_owned(),
            vnic("va", "a", 1) + "allowed = [{ ip = \"10.97.0.100\" }]\nsecurity-groups = [" + groups + "]\n",
            vnic("vb", "b", 1),
        ])
    };
    lab.set(&with("\"g\", \"h\""));
    let of_b = lab.all_cells("b", &["vb"]);
    let vnic = lab.topology.vnic("va").unwrap().index;
    let binding = Binding { address: ip(b'a', 100), mac: MacAddr([2, 0, 0, 0, 0, 1]) };
    let cells = lab.topology.snapshot().cells.clone();
    assert!(lab.topology.float(&Floating { vnic, binding, here: true }));
    lab.topology.commit();
    let snapshot = lab.topology.snapshot();
    assert!(
        of_b.iter().all(|&cell| snapshot.generation(cell) == cells[cell as usize]),
        "another tenant's flows stay"
    );
    let groups = |lab: &Lab| groups_at(lab.topology.snapshot(), 0, ip(b'a', 100)).len();
    assert_eq!(groups(&lab), 2);
    lab.set(&with("\"g\""));
    assert_eq!(groups(&lab), 1, "it floats on, in the groups of now");
    lab.set(&with(""));
    assert_eq!(groups(&lab), 0);
}

/// Whose an address is follows from routes and subnets.
#[test]
fn security_connections_are_held_against_the_rules_again_when_addresses_are_somebody_elses() {
    let mut lab = Lab::new(32);
    let with = |groups: &str, subnets: &str, routes: &str| {
        let member = match groups {
            "" => "",
            _ => "security-groups = [\"g\"]\n",
        };
        config(&[
            vpc("a", 1, routes),
            vpc("b", 2, "routes = [{ to = \"10.97.0.0/24\", vpc = \"a\" }]"),
            subnets.to_owned(),
            groups.to_owned(),
            vnic("va", "a", 1) + member,
            vnic("vb", "b", 1),
        ])
    };
    let hole = "routes = [{ to = \"10.97.0.8/29\", blackhole = true }]";
    let subnet = "[[subnet]]\nvpc = \"a\"\nprefix = \"10.200.0.0/24\"\n";
    let epoch = |lab: &Lab| lab.topology.snapshot().security.epoch;
    lab.set(&with(GROUP, "", ""));
    let mut all = lab.all_cells("a", &["va"]);
    all.extend(lab.all_cells("b", &["vb"]));
    all.sort_unstable();
    for (subnets, routes) in [("", hole), (subnet, hole), (subnet, ""), ("", "")] {
        let before = epoch(&lab);
        let mut cells = lab.cells_after(&with(GROUP, subnets, routes));
        cells.sort_unstable();
        assert_eq!(cells, all, "{subnets:?} {routes:?}");
        assert_ne!(epoch(&lab), before, "{subnets:?} {routes:?}");
    }
    let mut lab = Lab::new(32);
    lab.set(&with("", "", ""));
    let before = epoch(&lab);
    lab.set(&with("", "", hole));
    assert_eq!(epoch(&lab), before, "nobody is in a group");
}

/// A station elsewhere with two addresses and one MAC: who sends there by the MAC hears that one address is gone.
#[test]
fn security_flows_bridged_to_a_station_that_gives_up_an_address_are_decided_again() {
    let mut lab = Lab::new(32);
    let with = |groups: &str, second: bool| {
        let mut parts = vec![
            vpc("a", 1, ""),
            GROUP.to_owned(),
            vnic("va", "a", 1) + "security-groups = [\"h\"]\n",
            location(1, b'a', 4, 9, 3) + groups,
        ];
        if second {
            parts.push(location(1, b'a', 5, 9, 3) + groups);
        }
        config(&parts)
    };
    for (groups, is_touched) in [("", false), ("groups = [\"g\"]\n", true)] {
        lab.set(&with(groups, true));
        let own = lab.vnic_cell("va");
        assert_eq!(lab.cells_after(&with(groups, false)).contains(&own), is_touched, "{groups:?}");
    }
}

/// Who asks for a link-local address that another vNIC had gets none of its connections.
#[test]
fn security_connections_of_a_learned_address_do_not_change_hands_with_it() {
    let mut lab = Lab::new(32);
    lab.set(&grouped(GROUP, "\"g\"", "", ""));
    let index = |name: &str, lab: &Lab| {
        lab.topology.snapshot().vnics.iter().flatten().find(|vnic| vnic.name == name).unwrap().index
    };
    let learn = |lab: &mut Lab, name: &str, n: u16| {
        let vnic = index(name, lab);
        assert!(lab.topology.learn(vnic, Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, n)), "{name} {n}");
        lab.topology.commit();
        let snapshot = lab.topology.snapshot();
        (snapshot.security.epoch, snapshot.generation(lab.vnic_cell("vb")))
    };
    let first = learn(&mut lab, "va", 1);
    for n in 2..=4 {
        assert_eq!(learn(&mut lab, "va", n), first, "nobody's address is taken");
    }
    let later = learn(&mut lab, "va", 5);
    assert!(later.0 != first.0 && later.1 != first.1, "the first is free for others");
    assert_eq!(learn(&mut lab, "vb", 1), later);
}
