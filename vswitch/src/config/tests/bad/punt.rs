//! Taps for what uplinks leave to the host, which are named after them unless the config says otherwise.

use super::{GOOD, said};
use crate::config::*;

/// The port of its trunk.
const TRUNK: &str = "{ kind = \"tap\", iface = \"lab0\" }";

/// The good config with an uplink of this name that leaves packets to the host; what is said of that is line 6.
fn punting(name: &str, more: &str) -> String {
    let uplink = format!("addresses = [\"172.16.0.1/24\"]\nhost = \"punt\"\n{more}");
    let text = GOOD.replacen("addresses = [\"172.16.0.1/24\"]\n", &uplink, 1);
    text.replacen("name = \"up0\"", &format!("name = \"{name}\""), 1)
}

#[test]
pub(in crate::config::tests) fn a_punt_tap_has_a_name_that_interfaces_can_have() {
    for (name, more) in [("uplink-eas", ""), ("uplink-east", "host-tap = \"east-host\"\n")] {
        Config::parse(&punting(name, more), "test").unwrap_or_else(|errors| panic!("{errors}"));
    }
    let words = ["uplink uplink-east: without host-tap", "\"uplink-east-host\"", "at most 15 bytes"];
    said(&punting("uplink-east", ""), (6, 8), &words);
}

#[test]
pub(in crate::config::tests) fn a_punt_tap_is_nobody_elses_interface() {
    let tap = |name: &str| TRUNK.replace("lab0", name);
    let words = ["trunk lab: interface up0-host", "the punt tap of uplink up0 (line 6)"];
    said(&punting("up0", "").replacen(TRUNK, &tap("up0-host"), 1), (16, 8), &words);
    let words = ["trunk lab: interface east", "the punt tap of uplink up0 (line 7)"];
    let named = punting("up0", "host-tap = \"east\"\n");
    said(&named.replacen(TRUNK, &tap("east"), 1), (17, 8), &words);
    let words = ["the punt tap of uplink up0: interface up0", "uplink up0 (line 4)"];
    said(&punting("up0", "host-tap = \"up0\"\n"), (7, 12), &words);
}

#[test]
pub(in crate::config::tests) fn a_punt_tap_counts_as_a_port() {
    let with = |uplink: String| {
        let port = |n| format!("[[port]]\nname = \"p{n}\"\nport = {{ kind = \"veth\", iface = \"e{n}\" }}\n");
        uplink + &(2..MAX_PORTS).map(port).collect::<String>()
    };
    Config::parse(&with(GOOD.to_owned()), "test").unwrap_or_else(|errors| panic!("{errors}"));
    let last = 23 + 3 * (MAX_PORTS - 2);
    let all = format!("has {} ports", MAX_PORTS + 1);
    said(&with(punting("up0", "")), (last, 8), &[&all, "trunk port"]);
}
