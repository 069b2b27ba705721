//! What bad configs are told of pairs that vNICs are allowed, and of VTEPs of networks.

use super::bad::GOOD;
use crate::config::*;

#[test]
pub(super) fn guard_pairs_are_of_stations_and_of_nobody_else() {
    let allowed = |pairs: &str| GOOD.replacen("vips = [", &format!("allowed = [{pairs}]\nvips = ["), 1);
    for good in [
        "{ ip = \"10.0.0.100\" }",
        "{ ip = \"10.9.0.0/16\" }, { ip = \"fd00:9::1\", mac = \"00:00:5e:00:01:33\" }",
        "{ ip = \"fe80::7\", mac = \"00:00:5e:00:02:33\" }",
    ] {
        let config = Config::parse(&allowed(good), "f.toml");
        assert!(config.is_ok(), "{good}: {}", config.unwrap_err());
    }
    let refused = [
        ("{ ip = \"10.0.0.300\" }", "neither an address nor a prefix"),
        ("{ ip = \"10.9.0.1/16\" }", "write 10.9.0.0/16"),
        ("{ ip = \"0.0.0.0/0\" }", "guard = \"off\""),
        ("{ ip = \"224.0.0.0/8\" }", "not of stations' addresses"),
        ("{ ip = \"127.0.0.1\" }", "not of stations' addresses"),
        ("{ ip = \"10.0.0.100\", mac = \"01:00:5e:00:00:01\" }", "not the address of one station"),
        ("{ ip = \"10.0.0.100\", mac = \"02:00:5e:00:00:64\" }", "that of the virtual router"),
        ("{ ip = \"10.0.0.100\", mac = \"0a:5e:ac:10:00:01\" }", "that of this host's virtual routers"),
        ("{ ip = \"10.0.0.100\", port = 1 }", "unknown field"),
    ];
    for (bad, words) in refused {
        let error = Config::parse(&allowed(bad), "f.toml").unwrap_err().to_string();
        assert!(error.contains(words), "{bad}: {error}");
    }
    let many = vec!["{ ip = \"10.0.0.100\" }"; 65].join(", ");
    assert!(Config::parse(&allowed(&many), "f.toml").unwrap_err().to_string().contains("more than 64"));
    let other = GOOD.replacen(
        "vips = [",
        "allowed = [{ ip = \"10.0.0.100\", mac = \"52:54:00:00:00:77\" }]\nvips = [",
        1,
    ) + "[[vnic]]\nname = \"other\"\nvpc = \"blue\"\nmac = \"52:54:00:00:00:77\"\nport = { kind = \"tap\", iface = \"tap77\" }\n";
    assert!(Config::parse(&other, "f.toml").unwrap_err().to_string().contains("is that of vnic other"));
}

#[test]
pub(super) fn bum_vteps_of_a_vpc_are_other_hosts() {
    let listed = |vteps: &str| GOOD.replacen("vni = 100", &format!("vni = 100\nvteps = [{vteps}]"), 1);
    assert!(Config::parse(&listed("\"172.16.0.2\", \"172.16.0.3\""), "f.toml").is_ok());
    let refused = [
        ("\"172.16.0.1\"", "is our own"),
        ("\"224.0.0.1\"", "not a unicast address"),
        ("\"fd16::2\"", "no uplink has an IPv6 address"),
        ("\"172.16.0.2\", \"172.16.0.2\"", "listed twice"),
    ];
    for (bad, words) in refused {
        let error = Config::parse(&listed(bad), "f.toml").unwrap_err().to_string();
        assert!(error.contains(words), "{bad}: {error}");
    }
}

#[test]
pub(super) fn evpn_names_an_end_point_of_this_host() {
    let with = |evpn: &str| Config::parse(&format!("{GOOD}[control]\nevpn = {{ {evpn} }}\n"), "f.toml");
    let text = with(
        "gobgpd = \"[::1]:50051\", vtep = \"172.16.0.1\", route-target = \"rfc8365\", stale-time = \"10s\"",
    );
    let config = text.unwrap_or_else(|errors| panic!("{errors}"));
    let again =
        Config::parse(&config.to_toml().unwrap(), "again").unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(again.control, config.control);
    for (bad, words) in [
        ("vtep = \"172.16.0.1\"", "gobgpd"),
        ("gobgpd = \"localhost\"", "neither an address with a port"),
        ("gobgpd = \"unix:here\"", "neither an address with a port"),
        ("gobgpd = \"127.0.0.1:1\", vtep = \"172.16.0.2\"", "no uplink's address"),
        ("gobgpd = \"127.0.0.1:1\", vtep = \"here\"", "not an IP address"),
        ("gobgpd = \"127.0.0.1:1\", asn = 0", "asn 0 is none"),
        ("gobgpd = \"127.0.0.1:1\", route-target = \"auto\"", "plain"),
        ("gobgpd = \"127.0.0.1:1\", stale-time = 120", "has no unit"),
        ("gobgpd = \"127.0.0.1:1\", duplicate-moves = 1", "from 2 to 1000"),
        ("gobgpd = \"127.0.0.1:1\", duplicate-time = \"0s\"", "from 1s to 24h"),
        ("gobgpd = \"127.0.0.1:1\", peers = []", "unknown field"),
    ] {
        let error = with(bad).unwrap_err().to_string();
        assert!(error.contains(words), "{bad}: {error}");
    }
}

#[test]
pub(super) fn etcd_is_somewhere_and_is_not_asked_in_the_open() {
    let with = |etcd: &str| Config::parse(&format!("{GOOD}[control]\netcd = {{ {etcd} }}\n"), "f.toml");
    const GOOD_ONE: &str = "endpoints = [\"https://192.0.2.1:2379\"], host = \"h1\", tls = { ca = \"ca.pem\" }, \
        user = { name = \"u\", password-file = \"p\" }, lease = \"5s\", grace = \"1min\"";
    let config = with(GOOD_ONE).unwrap_or_else(|errors| panic!("{errors}"));
    let again =
        Config::parse(&config.to_toml().unwrap(), "again").unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(again.control, config.control);
    let plain = "endpoints = [\"http://192.0.2.1:2379\"]";
    assert!(with(plain).is_ok());
    for (bad, words) in [
        ("endpoints = []".to_owned(), "no endpoints"),
        ("endpoints = [\"192.0.2.1:2379\"]".to_owned(), "no URL of a member"),
        ("endpoints = [\"https://192.0.2.1:2379\"]".to_owned(), "https endpoints and no tls"),
        (format!("{plain}, tls = {{ ca = \"ca.pem\" }}"), "anybody could read"),
        (GOOD_ONE.replace("ca = \"ca.pem\"", "ca = \"ca.pem\", key = \"k\""), "give both"),
        (format!("{plain}, prefix = \"/x\""), "does not end with /"),
        (format!("{plain}, vteps = [\"224.0.0.1\"]"), "not a unicast address"),
        (format!("{plain}, lease = \"500ms\""), "not whole seconds"),
        (format!("{plain}, lease = \"20min\""), "not whole seconds"),
        (format!("{plain}, grace = 30"), "has no unit"),
        (format!("{plain}, host = \"a b\""), "is not a name"),
        (format!("{plain}, hosts = []"), "unknown field"),
    ] {
        let error = with(&bad).unwrap_err().to_string();
        assert!(error.contains(words), "{bad}: {error}");
    }
}
