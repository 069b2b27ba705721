//! Rates that cannot be: refused at their place, with the numbers.

use crate::config::*;

/// A VPC with two vNICs on a trunk; `{...}` are places for what is tried.
const TEXT: &str = r#"[qos]
link = { out = "10Gbit", in = "8Gbit" }
[[uplink]]
name = "up0"
port = { kind = "tap", iface = "up0" }
addresses = ["172.16.0.1/24"]
[[trunk]]
name = "lab"
port = { kind = "tap", iface = "lab0" }
[[subnet]]
vpc = "blue"
prefix = "10.0.0.0/24"
[[vpc]]
name = "blue"
vni = 100
qos = { out = { ceil = "5Gbit" } }
[[vnic]]
name = "vm1"
vpc = "blue"
mac = "52:54:00:00:00:01"
vips = ["10.0.0.1"]
port = "lab"
vlan = 1
qos = { out = { assured = "2Gbit" }, in = { ceil = "8Gbit" } }
[[vnic]]
name = "vm2"
vpc = "blue"
mac = "52:54:00:00:00:02"
vips = ["10.0.0.2"]
port = "lab"
vlan = 2
qos = { rdma = { out = { assured = "1Gbit", weight = 3, burst = "64KiB" } } }
"#;

/// Asserts that the text with `from` replaced by `to` is refused with one error, at the last `at` in it, saying `words`.
#[track_caller]
fn refused(from: &str, to: &str, at: &str, words: &[&str]) {
    assert_eq!(TEXT.matches(from).count(), 1, "{from}");
    let text = TEXT.replace(from, to);
    let errors = match Config::parse(&text, "f.toml") {
        Ok(config) => panic!("{to} was taken: {config:?}"),
        Err(errors) => errors.0,
    };
    assert_eq!(errors.len(), 1, "{}", ConfigErrors(errors));
    let before = &text[..text.rfind(at).unwrap()];
    let line = before.lines().count() + usize::from(before.ends_with('\n'));
    let column = before.len() - before.rfind('\n').map_or(0, |end| end + 1) + 1;
    assert_eq!(errors[0].place, Some((line, column)), "{}", errors[0]);
    for word in words {
        assert!(errors[0].message.contains(word), "{word:?} is not in: {}", errors[0]);
    }
}

const VM2: &str = r#"{ rdma = { out = { assured = "1Gbit", weight = 3, burst = "64KiB" } } }"#;

#[test]
pub(super) fn dhtb_good_limits_are_read() {
    let config = match Config::parse(TEXT, "f.toml") {
        Ok(config) => config,
        Err(errors) => panic!("{errors}"),
    };
    let gigabits = |n: u64| Some(BitRate(n * 1_000_000_000));
    assert_eq!(config.qos.link, LinkConfig { out: gigabits(10), into: gigabits(8) });
    assert_eq!(config.vpcs[0].qos.out.ceil, gigabits(5));
    assert_eq!(config.vnics[0].qos.into.ceil, gigabits(8));
    let rdma = config.vnics[1].qos.rdma.out;
    assert_eq!((rdma.assured, rdma.weight, rdma.burst), (gigabits(1), Some(3), Some(ByteSize(65_536))));
    let both = Config::parse("[qos]\nlink = \"25Gbit\"\npmax = \"0.5%\"\n", "f").unwrap().qos;
    assert_eq!(both.link, LinkConfig { out: gigabits(25), into: gigabits(25) });
    assert_eq!(both.pmax.ppm(), 5_000);
    assert_eq!(both.control_rate.of(25_000_000_000), 500_000_000);
}

#[test]
pub(super) fn dhtb_single_values_that_are_wrong() {
    for (from, to, at, words) in [
        (r#"ceil = "5Gbit""#, r#"ceil = "0Gbit""#, "\"0Gbit", ["vpc blue", "ceil", "is 0"]),
        (r#"ceil = "5Gbit""#, r#"ceil = "11Gbit""#, "\"11Gbit", ["11Gbit (out)", "link's 10Gbit", "line 2"]),
        (
            r#"ceil = "5Gbit""#,
            r#"ceil = "5Gb""#,
            "\"5Gb\"",
            ["\"5Gb\"", "rate in bits per second", "\"25Gbit\""],
        ),
        (r#"ceil = "5Gbit""#, "ceil = 5", "5 } }", ["5 has no unit", "rate", "Gbit"]),
        (r#"ceil = "5Gbit""#, r#"ciel = "5Gbit""#, "ciel", ["`ciel`", "`ceil`", "`assured`"]),
        (r#"ceil = "8Gbit""#, r#"ceil = "9Gbit""#, "\"9Gbit", ["vm1", "9Gbit (in)", "8Gbit"]),
        ("weight = 3", "weight = 0", "0, burst", ["vnic vm2: rdma", "weight 0", "1..="]),
        (r#"burst = "64KiB""#, r#"burst = "0B""#, "\"0B", ["vm2", "burst 0B", "1GiB"]),
        (r#"out = "10Gbit""#, r#"out = "0bit""#, "\"0bit", ["link", "out 0bit", "no limit"]),
        (r#"out = "10Gbit""#, r#"uot = "10Gbit""#, "uot", ["`uot`", "`out`", "`in`"]),
    ] {
        refused(from, to, at, &words);
    }
}

#[test]
pub(super) fn dhtb_promises_that_cannot_be_kept() {
    // 2 + 4 Gbit under 5: a class's promise is its vNIC's and its VPC's.
    refused(
        VM2,
        r#"{ rdma = { out = { assured = "4Gbit" } } }"#,
        "\"5Gbit",
        &["vpc blue", "6Gbit in all", "vm1 2Gbit, vm2 4Gbit", "ceil 5Gbit"],
    );
    refused(
        VM2,
        r#"{ out = { ceil = "1Gbit" }, rdma = { out = { assured = "800Mbit" } }, tcp = { out = { assured = "300Mbit" } } }"#,
        "\"1Gbit",
        &["vnic vm2", "1100Mbit in all", "rdma 800Mbit, tcp 300Mbit", "ceil 1Gbit"],
    );
    refused(
        VM2,
        r#"{ out = { ceil = "1Gbit", assured = "1500Mbit" } }"#,
        "\"1500Mbit",
        &["vm2", "assured 1500Mbit", "ceil 1Gbit", "line 32"],
    );
    // Without a ceil of its own a VPC has the link's.
    refused(
        VM2,
        r#"{ in = { assured = "5Gbit" } }
[[vpc]]
name = "red"
vni = 7
qos = { in = { assured = "4Gbit" } }"#,
        "\"8Gbit\" }\n[[uplink",
        &["[qos] link", "9Gbit in all", "blue 5Gbit, red 4Gbit", "8Gbit"],
    );
}

#[test]
pub(super) fn dhtb_laws_that_make_no_sense() {
    let link = "link = { out = \"10Gbit\", in = \"8Gbit\" }";
    for (key, value, words) in [
        ("kmin", "\"201kB\"", ["kmin 201kB", "kmax 200kB"]),
        ("hard-limit", "\"200kB\"", ["hard-limit 200kB", "kmax 200kB"]),
        ("hard-limit", "\"2GiB\"", ["hard-limit 2GiB", "1GiB"]),
        ("pmax", "\"0%\"", ["\"0%\"", "\"2%\""]),
        ("pmax", "\"101%\"", ["\"101%\"", "100%"]),
        ("control-rate", "2", ["percentage", "\"2%\""]),
        ("queue-packets", "0", ["queue-packets 0", "1..="]),
        ("queue-bytes", "\"1KiB\"", ["queue-bytes 1KiB", "64KiB..=1GiB"]),
        ("queue-time", "\"11s\"", ["queue-time 11s", "1ms..=10s"]),
        ("overhead", "2000", ["overhead 2000", "24"]),
    ] {
        refused(link, &format!("{link}\n{key} = {value}"), &format!("{value}\n[[uplink"), &words);
    }
}
