//! What BFD may be asked for, and what bad wishes are told.

use std::net::IpAddr;
use std::time::Duration;

use crate::config::bfd::WantedBfd;
use crate::config::*;

/// Two uplinks that are routed to; `bfd` is what the first one says of BFD.
fn routed(bfd: &str) -> String {
    format!(
        r#"
[[uplink]]
name = "left"
port = {{ kind = "tap", iface = "left" }}
addresses = ["10.255.0.1/32", "192.168.0.1/29", "fd01::1/64"]
gateway = ["192.168.0.2", "192.168.0.3", "fd01::2"]
routes = [{{ to = "10.9.0.0/16", via = "192.168.0.3" }}, {{ to = "10.8.0.0/16", via = "192.168.0.4" }}]
bfd = {bfd}
[[uplink]]
name = "right"
port = {{ kind = "tap", iface = "right" }}
addresses = ["10.255.0.1/32", "192.168.1.1/29"]
"#
    )
}

fn left(bfd: &str) -> UplinkConfig {
    Config::parse(&routed(bfd), "f.toml").unwrap_or_else(|errors| panic!("{bfd}: {errors}")).uplinks[0]
        .clone()
}

#[test]
pub(super) fn bfd_asks_gateways_and_next_hops_unless_others_are_listed() {
    let asked = |bfd: &str| -> Vec<(String, bool)> {
        let sessions = left(bfd).bfd_sessions().into_iter();
        sessions.map(|session| (session.peer.to_string(), session.multihop)).collect()
    };
    let on_link = |peer: &str| (peer.to_string(), false);
    let routers = ["192.168.0.2", "192.168.0.3", "fd01::2", "192.168.0.4"].map(on_link);
    assert_eq!(asked("{}"), routers);
    let only = "{ peers = [\"192.168.0.3\"], vteps = [\"10.255.0.2\"] }";
    assert_eq!(asked(only), [on_link("192.168.0.3"), ("10.255.0.2".into(), true)]);
    let bfd = left("{}").bfd.unwrap();
    assert_eq!((bfd.min_tx, bfd.min_rx, bfd.multiplier), (Duration::from_millis(300), bfd.min_tx, 3));
    let bfd = left("{ min-tx = \"80ms\", min-rx = \"30s\", multiplier = 255 }").bfd.unwrap();
    assert_eq!((bfd.min_tx, bfd.min_rx), (Duration::from_millis(80), Duration::from_secs(30)));
}

#[test]
pub(super) fn bfd_speaks_from_an_address_that_no_other_uplink_has() {
    let config = Config::parse(&routed("{ vteps = [\"10.255.0.2\"] }"), "f.toml").unwrap();
    let source = |peer: &str, multihop| {
        let wanted = WantedBfd { peer: peer.parse().unwrap(), multihop };
        config.uplinks[0].bfd_source(wanted, config.uplinks[1..].iter())
    };
    let address = |text: &str| text.parse::<IpAddr>().ok();
    assert_eq!(source("192.168.0.2", false), address("192.168.0.1"));
    assert_eq!(source("10.255.0.2", true), address("192.168.0.1"), "not the shared one");
    assert_eq!(source("fd01::2", false), address("fd01::1"));
    assert_eq!(source("192.168.1.2", false), None);
}

#[test]
pub(super) fn bfd_that_cannot_work_is_refused() {
    let refused = [
        ("{ min-tx = \"79ms\" }", "min-tx 79ms is shorter than 80ms"),
        ("{ min-rx = \"1ms\" }", "control, which has a turn every 20ms"),
        ("{ min-rx = \"0s\" }", "is shorter than 80ms"),
        ("{ min-tx = \"31s\" }", "not in whole microseconds up to 30s"),
        ("{ min-tx = \"80000001ns\" }", "not in whole microseconds"),
        ("{ min-tx = 100 }", "30s"),
        ("{ multiplier = 1 }", "3 is usual"),
        ("{ multiplier = 0 }", "3 is usual"),
        ("{ multiplier = 256 }", "256"),
        ("{ interval = \"1s\" }", "unknown field"),
        ("true", "expected"),
        ("{ peers = [\"192.168.0.1\"] }", "is the uplink's own address"),
        ("{ peers = [\"192.168.9.1\"] }", "is outside the uplink's networks"),
        ("{ peers = [\"224.0.0.1\"] }", "is not a unicast address"),
        ("{ peers = [\"192.168.0.2\", \"192.168.0.2\"] }", "is listed twice"),
        ("{ peers = [\"192.168.0.300\"] }", "is not an IP address"),
        ("{ vteps = [\"192.168.0.5\"] }", "list it under peers"),
        ("{ vteps = [\"10.255.0.1\"] }", "is one of our own"),
        ("{ vteps = [\"224.0.0.1\"] }", "not the address of a VTEP"),
        ("{ vteps = [\"fe80::1\"] }", "not the address of a VTEP"),
        ("{ vteps = [\"10.255.0.2\", \"10.255.0.2\"] }", "is listed twice"),
    ];
    for (bfd, words) in refused {
        let errors = Config::parse(&routed(bfd), "f.toml").unwrap_err();
        assert_eq!(errors.0.len(), 1, "{bfd}: {errors}");
        assert!(errors.to_string().contains(words), "{words:?} is not in {errors}");
        assert_eq!(errors.0[0].place.map(|place| place.0), Some(8), "{errors}");
    }
    // Nobody to ask, nobody who would find the way back, and far too many.
    let bare = |more: &str| {
        let text = routed("{}").replace("gateway", "#gateway").replace("routes", "#routes");
        Config::parse(&text.replace("bfd = {}", more), "f.toml").unwrap_err().to_string()
    };
    assert!(bare("bfd = {}").contains("nobody to ask"));
    assert!(
        bare("bfd = { peers = [\"192.168.0.2\"], vteps = [\"10.7.0.1\"] }")
            .contains("is not reached by the uplink")
    );
    let shared = routed("{ peers = [\"192.168.1.2\"] }")
        .replace("\"fd01::1/64\"]", "\"fd01::1/64\", \"192.168.1.1/29\"]");
    let error = Config::parse(&shared, "f.toml").unwrap_err().to_string();
    assert!(error.contains("from an address that no other uplink has"), "{error}");
    let many: Vec<String> = (0..130).map(|n| format!("\"10.9.1.{n}\"")).collect();
    let many = routed(&format!("{{ vteps = [{}] }}", many.join(", ")));
    let error = Config::parse(&many, "f.toml").unwrap_err().to_string();
    assert!(error.contains("134 BFD sessions, and a switch has 128 at most"), "{error}");
}
