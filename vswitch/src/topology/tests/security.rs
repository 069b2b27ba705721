//! Security groups: who is in which, what they come to, and what their changes make stale.

use pipelines::Direction;
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
    let peer_groups = groups_at(snapshot, vnic.vpc, peer);
    let subject = Subject { peer: Some(peer), peer_groups, proto, port, rdma: false };
    snapshot.security.policy(vnic.group_set).is_none_or(|policy| policy.of(Direction::In).allows(&subject))
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
