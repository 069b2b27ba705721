//! Bonds that cannot be.

use super::{GOOD, errors};

/// Asserts that a bond with these keys is refused with one error, at its line.
#[track_caller]
fn bond(inside: &str, words: &[&str]) {
    let port = format!("[[port]]\nname = \"b\"\nport = {{ kind = \"bond\", {inside} }}\n");
    let errors = errors(&format!("{GOOD}{port}"));
    let [error] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!(error.place.map(|(line, _)| line), Some(25), "{error}");
    for word in words {
        assert!(error.message.contains(word), "{word:?} is not in: {error}");
    }
}

#[test]
pub(in crate::config::tests) fn bonds_are_made_of_nics_of_one_kind() {
    let nic = |n| format!("{{ kind = \"pci\", address = \"0000:02:00.{n}\" }}");
    let iface = |n, queues| format!("{{ kind = \"af-packet\", iface = \"m{n}\", queues = {queues} }}");
    let members = |list: &[String]| format!("members = [{}]", list.join(", "));
    bond(&members(&[]), &["port b", "members are 0", "1 to 8"]);
    bond(&members(&["{ kind = \"tap\", iface = \"t0\" }".into()]), &["kind \"tap\"", "\"pci\""]);
    bond(&members(&[nic(0), iface(1, 1)]), &["different kinds"]);
    bond(&members(&[iface(0, 1), iface(1, 2)]), &["different numbers of queues"]);
    bond(&members(&[nic(0), nic(1).replace("0000:02:00.1", "eth0")]), &["have one whose address", "eth0"]);
    bond(&members(&[nic(0), nic(0)]), &["PCI device 0000:02:00.0 twice"]);
    let backup = format!("mode = \"active-backup\", {}", members(&[iface(0, 1), iface(1, 1)]));
    bond(&backup, &["mode needs members of kind \"pci\"", "802.3ad"]);
    bond(&format!("mode = \"lacp\", {}", members(&[nic(0)])), &["802.3ad", "active-backup"]);
}
