//! Names that follow from the network, the container and its interface, so that every call finds what an earlier one made.

use wire::MacAddr;

use crate::error::{Error, Result, quote};

/// Characters of a vNIC's name at most.
const LONGEST: usize = 63;
/// Characters of a network's name that stay readable when it is too long for a vNIC's.
const SHORTENED: usize = 12;
/// Characters of a container's id in a vNIC's name.
const OF_CONTAINER: usize = 12;
/// Characters of a network's name that fit beside "cni-", ".", the container's and "-" with a hash.
const OF_NETWORK: usize = LONGEST - 4 - 1 - OF_CONTAINER - 1 - 16;

/// The names of one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The vNIC: `cni-<network>.<container>-<hash>`.
    pub vnic: String,
    /// The end of the veth at the switch.
    pub host_end: String,
    /// The MAC address where nobody asks for one: locally administered.
    pub mac: MacAddr,
}

impl Names {
    pub fn of(network: &str, container: &str, interface: &str) -> Self {
        let hash = hash(&[network, container, interface]);
        // No dot: what stands before the last one is the network.
        let id = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        let container: String = container.chars().take(OF_CONTAINER).map(id).collect();
        let [_, _, a, b, c, d, e, f] = (hash.rotate_left(32)).to_be_bytes();
        Self {
            vnic: format!("{}{container}-{hash:016x}", prefix(network)),
            host_end: format!("cni{:012x}", hash & 0xffff_ffff_ffff),
            mac: MacAddr([a & 0xfc | 0x02, b, c, d, e, f]),
        }
    }
}

/// How the names of a network's vNICs begin; no dot comes after it.
fn prefix(network: &str) -> String {
    if network.len() <= OF_NETWORK {
        return format!("cni-{network}.");
    }
    let start: String = network.chars().take(SHORTENED).collect();
    format!("cni-{start}-{:016x}.", hash(&[network]))
}

/// True for the vNICs of a network, by their names.
pub fn is_of_network(vnic: &str, network: &str) -> bool {
    vnic.strip_prefix(&prefix(network)).is_some_and(|rest| !rest.contains('.'))
}

/// FNV-1a of 128 bits, folded and mixed: the same with every build, which names that stay need.
fn hash(parts: &[&str]) -> u64 {
    let mut state: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for part in parts {
        // No part has a zero in it.
        for byte in part.bytes().chain([0]) {
            state = (state ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
    let folded = (state >> 64) as u64 ^ state as u64;
    let mixed = (folded ^ folded >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// Checks a text against the rule of container ids and network names: a letter or digit, then those, `_`, `.` and `-`.
pub fn check_id(text: &str, longest: usize) -> std::result::Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if text.len() > longest {
        return Err(format!("{} is longer than {longest} characters", quote(text)));
    }
    if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) || !text.chars().all(good) {
        return Err(format!(
            "{} is not a letter or digit with letters, digits, _ . - behind it",
            quote(text)
        ));
    }
    Ok(())
}

/// Checks the name of an interface, as the kernel takes it.
pub fn check_interface(text: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_graphic() && c != '/' && c != ':';
    if text.is_empty() || text.len() > 15 || text == "." || text == ".." || !text.chars().all(good) {
        let wrong = format!("{} is no name of an interface", quote(text));
        return Err(Error::environment(
            "CNI_IFNAME",
            wrong,
            "give 1 to 15 characters without blanks, / and :",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_stay_as_they_are() {
        let names = Names::of("blue", "0123456789abcdef", "eth0");
        assert!(names.vnic.starts_with("cni-blue.0123456789ab-"), "{names:?}");
        // Another build must find what this one made.
        let want = ["cni-blue.0123456789ab-460968287ace0045", "cni68287ace0045", "02:45:46:09:68:28"]
            .map(str::to_owned);
        assert_eq!([names.vnic, names.host_end, names.mac.to_string()], want);
    }

    #[test]
    fn a_network_has_no_vnics_of_another() {
        for (one, other) in [("a", "a.b"), ("a", "ab"), ("a.b", "a"), (&*"x".repeat(40), &*"x".repeat(41))] {
            let vnic = Names::of(one, "c.d", "eth0").vnic;
            assert!(is_of_network(&vnic, one) && !is_of_network(&vnic, other), "{vnic}");
        }
    }

    #[test]
    fn ids_and_interfaces_are_checked() {
        for bad in ["", "-a", ".a", "a/b", "a b", "\u{e4}", &"a".repeat(300)] {
            assert!(check_id(bad, 255).is_err(), "{bad}");
        }
        assert!(check_id("a_b.c-9", 255).is_ok());
        for bad in ["", ".", "..", "a/b", "a:b", "a b", "sixteen-letters-"] {
            assert!(check_interface(bad).is_err(), "{bad}");
        }
        assert!(check_interface("eth0.5").is_ok());
    }

    proptest! {
        #[test]
        fn names_are_valid_and_differ(
            network in "[a-z0-9][a-zA-Z0-9_.-]{0,80}",
            containers in prop::array::uniform2("[a-z0-9][a-zA-Z0-9_.-]{0,80}"),
            interfaces in prop::array::uniform2("[a-z0-9.]{1,15}"),
        ) {
            let names = [0, 1].map(|at| Names::of(&network, &containers[at], &interfaces[at]));
            for names in &names {
                let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
                prop_assert!(names.vnic.len() <= 63 && names.vnic.chars().all(good), "{}", names.vnic);
                prop_assert!(is_of_network(&names.vnic, &network));
                prop_assert!(check_interface(&names.host_end).is_ok());
                prop_assert!(names.mac.is_station() && names.mac.0[0] & 2 != 0);
            }
            let same = containers[0] == containers[1] && interfaces[0] == interfaces[1];
            prop_assert_eq!(names[0] == names[1], same);
            prop_assert_eq!(names[0].host_end == names[1].host_end, same);
        }
    }
}
