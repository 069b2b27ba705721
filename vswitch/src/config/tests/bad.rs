//! What bad configs are told: the place, the thing, the remedy.

use crate::config::*;

pub(super) mod bonds;
pub(super) mod punt;
pub(super) mod room;
pub(super) mod routing;

/// A small valid config to spoil; the spoilt line is the last.
pub(super) const GOOD: &str = r#"
[[uplink]]
name = "up0"
port = { kind = "tap", iface = "up0" }
addresses = ["172.16.0.1/24"]
[[vpc]]
name = "blue"
vni = 100
[[subnet]]
vpc = "blue"
prefix = "10.0.0.0/24"
gateway = "10.0.0.254"
[[trunk]]
name = "lab"
port = { kind = "tap", iface = "lab0" }
[[vnic]]
name = "vm1"
vpc = "blue"
mac = "52:54:00:00:00:01"
vips = ["10.0.0.1"]
port = "lab"
vlan = 1
"#;

fn errors(text: &str) -> Vec<ConfigError> {
    Config::parse(text, "f.toml").map(|config| format!("{config:?}")).unwrap_err().0
}

/// Asserts that the config with `from` replaced is refused with one error, at `place`, saying all of `words`.
#[track_caller]
fn refused(from: &str, to: &str, place: (usize, usize), words: &[&str]) {
    assert!(GOOD.contains(from), "{from}");
    said(&GOOD.replacen(from, to, 1), place, words);
}

#[track_caller]
fn said(text: &str, place: (usize, usize), words: &[&str]) {
    let errors = errors(text);
    assert_eq!(errors.len(), 1, "{}", ConfigErrors(errors));
    assert_eq!(errors[0].place, Some(place), "{}", errors[0]);
    for word in words {
        assert!(errors[0].message.contains(word), "{word:?} is not in: {}", errors[0]);
    }
}

/// As `refused`, with text added at the end, whose first line is line 23.
#[track_caller]
fn added(text: &str, place: (usize, usize), words: &[&str]) {
    said(&format!("{GOOD}{text}"), place, words);
}

#[test]
pub(super) fn the_good_one_is_good() {
    if let Err(errors) = Config::parse(GOOD, "f.toml") {
        panic!("{errors}");
    }
}

#[test]
pub(super) fn text_that_is_no_toml() {
    let errors = errors("[eal\nmemory = \"512MiB\"\n");
    assert_eq!(errors[0].place.map(|(line, _)| line), Some(1), "{errors:?}");
    assert!(errors[0].to_string().starts_with("f.toml:1:"), "{}", errors[0]);
    let nested = format!("a = {}1{}", "[".repeat(50_000), "]".repeat(50_000));
    assert!(Config::parse(&nested, "f.toml").is_err());
}

#[test]
pub(super) fn files_that_cannot_be_read() {
    let load = |path: &std::path::Path| Document::load(path).map(|_| ()).unwrap_err().to_string();
    let folder = std::env::temp_dir();
    assert!(
        load(&folder.join("no-such.toml")).contains("no-such.toml: cannot read the config: No such file")
    );
    assert!(load(&folder).contains("cannot read the config"));
    let file = folder.join(format!("vswitch-config-{}.toml", std::process::id()));
    std::fs::write(&file, b"# \xc3\xa4\n# \xff\n").unwrap();
    let error = load(&file);
    std::fs::write(&file, GOOD).unwrap();
    let good = Document::load(&file).is_ok();
    std::fs::remove_file(&file).unwrap();
    assert!(good && error.contains(".toml:2:3: this is not UTF-8"), "{error}");
}

#[test]
pub(super) fn unknown_sections_and_keys() {
    added("[quos]\nx = 1\n", (23, 2), &["\"quos\"", "eal, workers", "location, port"]);
    said("[nft]\nentrys = 1\n", (2, 1), &["`entrys`", "`entries`"]);
    said("[workers]\nidle = \"nap\"\n", (2, 8), &["`nap`", "`poll`", "`sleep`"]);
    said("[[nft]]\nentries = 1\n", (1, 1), &["[nft], not [[nft]]"]);
    said("[vpc]\nname = \"a\"\n", (1, 1), &["[[vpc]], not [vpc]"]);
    refused("vni = 100", "", (6, 1), &["missing field `vni`"]);
    refused(r#"iface = "up0""#, r#"ifaec = "up0""#, (4, 24), &["`ifaec`", "`iface`"]);
    refused(
        r#"kind = "tap", iface = "up0""#,
        r#"iface = "up0", queues = "x", kind = "tap""#,
        (4, 34),
        &["u16"],
    );
    refused(r#"kind = "tap", iface = "up0""#, r#"kind = "tun""#, (4, 17), &["\"tun\"", "virtio-user, tap"]);
}

#[test]
pub(super) fn all_errors_are_shown_in_order() {
    let text = GOOD.replace("vni = 100", "vni = -1").replace("172.16.0.1/24", "172.16.0.1") + "[x]\n";
    let errors = errors(&text);
    let places: Vec<_> = errors.iter().filter_map(|error| error.place).collect();
    assert_eq!(places, [(5, 14), (8, 7), (23, 2)], "{}", ConfigErrors(errors));
    let text = GOOD.replace("vlan = 1", "vlan = 0").replace("10.0.0.1\"", "10.0.1.1\"");
    assert_eq!(Config::parse(&text, "f").unwrap_err().0.len(), 2);
    // Names are checked before ports, and shown in the order of the text all the same.
    let text = GOOD.replace("addresses", "rx-queues = 0\naddresses") + "[[vpc]]\nname = \"red\"\nvni = 100\n";
    let places: Vec<_> = self::errors(&text).iter().filter_map(|error| error.place).collect();
    assert_eq!(places, [(5, 13), (26, 7)]);
}

#[test]
pub(super) fn bare_numbers_where_units_are_due() {
    said("[eal]\nmemory = 512\n", (2, 10), &["512 has no unit", "\"512MiB\""]);
    said("[nft]\nidle-timeout = 30\n", (2, 16), &["30 has no unit", "\"30s\""]);
    said("[nft]\nidle-timeout = \"30\"\n", (2, 16), &["\"30\"", "\"30s\""]);
}

#[test]
pub(super) fn names() {
    refused(r#"name = "vm1""#, r#"name = """#, (17, 8), &["1 to 63"]);
    let long = format!("name = \"{}\"", "x".repeat(10_240));
    refused(r#"name = "vm1""#, &long, (17, 8), &["10240 bytes", "1 to 63"]);
    let long =
        errors(&GOOD.replace("vpc = \"blue\"\nmac", &format!("vpc = \"{}\"\nmac", "x".repeat(10_240))));
    assert!(long[0].message.len() < 300, "{}", long[0]);
    let key = format!("{} = 1", "y".repeat(10_240));
    let long = errors(&GOOD.replace("vlan = 1", &key));
    assert!(long[0].message.len() < 500, "{}", long[0]);
}

#[test]
pub(super) fn duplicates() {
    added("[[vpc]]\nname = \"blue\"\nvni = 5\n", (24, 8), &["vpc blue", "(line 7)"]);
    added("[[vpc]]\nname = \"green\"\nvni = 100\n", (25, 7), &["VNI 100", "VPC blue (line 8)"]);
    added(
        "[[port]]\nname = \"vm1\"\nport = { kind = \"null\" }\n",
        (24, 8),
        &["vnic (line 17)", "another name"],
    );
    let vnic = |mac: &str, vip: &str, vlan: u16| {
        format!(
            "[[vnic]]\nname = \"vm2\"\nvpc = \"blue\"\nmac = \"{mac}\"\nvips = [\"{vip}\"]\nport = \"lab\"\nvlan = {vlan}\n"
        )
    };
    added(&vnic("52:54:00:00:00:01", "10.0.0.2", 2), (26, 7), &["vm2", "vm1 (line 19)", "VPC blue"]);
    added(&vnic("52:54:00:00:00:02", "10.0.0.1", 2), (27, 9), &["VIP 10.0.0.1", "vm1 (line 20)"]);
    added(&vnic("52:54:00:00:00:02", "10.0.0.2", 1), (29, 8), &["VLAN 1 of trunk lab", "vm1 (line 22)"]);
}

#[test]
pub(super) fn devices_used_twice() {
    let twice = |port: &str, words: &[&str]| {
        let text = format!("[[port]]\nname = \"a\"\nport = {port}\n[[port]]\nname = \"b\"\nport = {port}\n");
        said(&text, (6, 8), words);
    };
    twice(r#"{ kind = "tap", iface = "t0" }"#, &["interface t0", "port a (line 3)"]);
    twice(r#"{ kind = "vhost-user", path = "/run/v" }"#, &["socket /run/v (server)"]);
    twice(r#"{ kind = "pci", address = "0000:01:00.0" }"#, &["PCI device 0000:01:00.0"]);
    twice(r#"{ kind = "memif", socket = "/run/m" }"#, &["memif 0 of socket /run/m"]);
    twice(r#"{ kind = "raw", vdev = "net_x0,a=1" }"#, &["virtual device net_x0"]);
    let ends = "[[port]]\nname = \"a\"\nport = { kind = \"vhost-user\", path = \"/v\" }\n\
                [[port]]\nname = \"b\"\nport = { kind = \"virtio-user\", path = \"/v\" }\n";
    assert!(Config::parse(ends, "f").is_ok(), "the two ends of a socket are no conflict");
}

#[test]
pub(super) fn networks() {
    refused("vni = 100", "vni = 16777216", (8, 7), &["VNI 16777216", "24 bits"]);
    refused("10.0.0.1\"", "10.0.1.1\"", (20, 9), &["VIP 10.0.1.1", "VPC blue (10.0.0.0/24)", "[[subnet]]"]);
    refused("10.0.0.1\"", "10.0.0.254\"", (20, 9), &["gateway of subnet 10.0.0.0/24"]);
    refused("10.0.0.1\"", "10.0.0.255\"", (20, 9), &["not a host's address"]);
    refused("vpc = \"blue\"\nmac", "vpc = \"red\"\nmac", (18, 7), &["no VPC \"red\"", "(blue)"]);
    refused("52:54:00:00:00:01", "53:54:00:00:00:01", (19, 7), &["group address", "one station"]);
    refused("10.0.0.0/24", "10.0.0.1/24", (11, 10), &["write 10.0.0.0/24"]);
    refused("10.0.0.254", "10.0.1.254", (12, 11), &["gateway 10.0.1.254"]);
    added(
        "[[subnet]]\nvpc = \"blue\"\nprefix = \"10.0.0.128/25\"\n",
        (25, 10),
        &["10.0.0.128/25 overlaps 10.0.0.0/24 (line 11)", "VPC blue"],
    );
    added("[[subnet]]\nvpc = \"blue\"\nprefix = \"0.0.0.0/0\"\n", (25, 10), &["overlaps 10.0.0.0/24"]);
    refused("port = \"lab\"", "port = \"bal\"", (21, 8), &["no trunk \"bal\"", "[[trunk]]"]);
    refused("vlan = 1", "vlan = 4095", (22, 8), &["VLAN 4095", "1..=4094"]);
    refused("vlan = 1", "", (21, 8), &["needs its VLAN"]);
    refused("port = \"lab\"", "port = { kind = \"null\" }", (22, 8), &["vlan = 1", "port of its own"]);
    let route = |to: &str| format!("vni = 100\nroutes = [{{ to = \"0.0.0.0/0\", {to} }}]");
    refused("vni = 100", &route("vpc = \"red\""), (9, 37), &["no VPC \"red\""]);
    refused("vni = 100", &route("vpc = \"blue\""), (9, 37), &["the VPC itself"]);
    refused("vni = 100", &route("vtep = \"172.16.0.3\""), (9, 10), &["both vtep and mac"]);
}

#[test]
pub(super) fn locations() {
    let location = |vni: u32, vip: &str, vtep: &str| {
        format!(
            "[[location]]\nvni = {vni}\nvip = \"{vip}\"\nmac = \"52:54:00:00:00:09\"\nvtep = \"{vtep}\"\n"
        )
    };
    added(&location(101, "10.0.0.9", "172.16.0.2"), (24, 7), &["no VPC with VNI 101", "[[vpc]]"]);
    added(&location(100, "10.0.0.9", "172.16.0.1"), (27, 8), &["VTEP 172.16.0.1 is our own (uplink up0)"]);
    added(&location(100, "10.0.0.9", "224.0.0.1"), (27, 8), &["224.0.0.1 is not a unicast"]);
    added(&location(100, "10.0.0.9", "fd00::2"), (27, 8), &["no uplink has an IPv6 address"]);
    added(&location(100, "10.0.0.1", "172.16.0.2"), (25, 7), &["that of vnic vm1"]);
    let twice = location(100, "10.0.0.9", "172.16.0.2").repeat(2);
    added(&twice, (30, 7), &["given twice (line 25)"]);
}

#[test]
pub(super) fn underlay() {
    let more = |key: &str| format!("addresses = [\"172.16.0.1/24\"]\n{key}");
    let uplink = |key: &str, column, words: &[&str]| {
        refused("addresses = [\"172.16.0.1/24\"]", &more(key), (6, column), words);
    };
    uplink("gateway = [\"172.16.1.254\"]", 12, &["gateway 172.16.1.254", "(172.16.0.0/24)"]);
    uplink("gateway = [\"172.16.0.1\"]", 12, &["own address"]);
    uplink("routes = [{ to = \"10.0.0.1/8\", via = \"172.16.0.9\" }]", 18, &["write 10.0.0.0/8"]);
    uplink("peers = [\"172.16.0.1\"]", 10, &["peer 172.16.0.1 is one of our own"]);
    uplink("host = \"isolate\"", 8, &["rules in the NIC", "\"punt\""]);
    uplink("host-tap = \"x\"", 12, &["host = \"punt\""]);
    uplink("vlan = 0", 8, &["VLAN 0"]);
    uplink("rx-queues = 0", 13, &["rx-queues is 0"]);
    uplink("mtu = 100", 7, &["mtu 100", "576"]);
    refused("172.16.0.1/24", "172.16.0.0/24", (5, 14), &["172.16.0.0"]);
    uplink("gateway = [\"172.16.0.9\", \"172.16.0.9\"]", 26, &["172.16.0.9 is listed twice"]);
    refused("172.16.0.1/24\"", "172.16.0.1/24\", \"172.16.0.1/24\"", (5, 31), &["172.16.0.1 is given twice"]);
}

#[test]
pub(super) fn failover_uplinks_of_one_address_are_alike() {
    let second = |address: &str, more: &str| {
        format!(
            "[[uplink]]\nname = \"up9\"\nport = {{ kind = \"null\" }}\naddresses = [\"{address}\"]\n{more}"
        )
    };
    Config::parse(&format!("{GOOD}{}", second("172.16.0.1/24", "metric = 7\n")), "test").unwrap();
    let words = |what: &'static str| [what, "uplink up0's too", "up9"];
    added(&second("172.16.0.1/25", ""), (26, 14), &words("the length of its prefix"));
    added(&second("172.16.0.1/24", "vlan = 4\n"), (26, 14), &words("vlan"));
    added(&second("172.16.0.1/24", "mtu = 1700\n"), (26, 14), &words("mtu"));
}

#[test]
pub(super) fn mtu_says_the_numbers() {
    let mtu = |value: u16| format!("addresses = [\"172.16.0.1/24\"]\nmtu = {value}");
    refused(
        "addresses = [\"172.16.0.1/24\"]",
        &mtu(1499),
        (17, 1),
        &["mtu 1450 and 50 bytes of tunnel over IPv4 make 1500", "mtu 1499", "to 1500", "to 1449"],
    );
    refused("172.16.0.1/24", "fd00::1/64", (16, 1), &["70 bytes of tunnel over IPv6 make 1520", "to 1430"]);
    let keep = GOOD.replace("vni = 100", "vni = 100\ninner-vlan = \"keep\"");
    said(&keep, (17, 1), &["54 bytes of tunnel over IPv4 with an inner VLAN tag make 1504"]);
}

#[test]
pub(super) fn ports() {
    let port = |spec: &str, column, words: &[&str]| {
        said(&format!("[[port]]\nname = \"p\"\nport = {spec}\n"), (3, column), words);
    };
    port(r#"{ kind = "tap", iface = "a,b" }"#, 32, &["port p: iface \"a,b\"", "comma"]);
    port(r#"{ kind = "tap", iface = "sixteen-letters-" }"#, 32, &["at most 15"]);
    port(r#"{ kind = "vhost-user", path = "/a,b" }"#, 38, &["path \"/a,b\"", "comma"]);
    port(r#"{ kind = "memif", socket = "/a", secret = "a\nb" }"#, 50, &["secret", "control character"]);
    port(r#"{ kind = "tap", iface = "t", queues = 0 }"#, 46, &["queues is 0"]);
    port(r#"{ kind = "pci", address = "01:00" }"#, 34, &["\"01:00\"", "0000:01:00.0"]);
    port(r#"{ kind = "pcap" }"#, 17, &["source or a sink"]);
    port(r#"{ kind = "pcap", iface = "e", infinite-rx = true }"#, 52, &["rx-pcap"]);
    port(r#"{ kind = "ring", name = "a", peer = "b" }"#, 44, &["\"b\" is no ring"]);
    port(r#"{ kind = "raw", vdev = "crypto_x" }"#, 31, &["net_ring0"]);
    let socket = "/x".repeat(60);
    port(&format!(r#"{{ kind = "vhost-user", path = "{socket}" }}"#), 38, &["120 bytes", "at most 107"]);
}

/// A port may not negotiate what the switch has to drop.
#[test]
pub(super) fn repair_mtu_super_frames_are_let_in_by_no_port() {
    for tso in ["tso=1", "queues=2,tso=1", "tso=yes"] {
        let text = format!(
            r#"[[port]]
name = "p"
port = {{ kind = "raw", vdev = "net_vhost7,iface=/run/v.sock,{tso}" }}"#
        );
        let error = Config::parse(&text, "test").unwrap_err().to_string();
        assert!(error.contains("super-frames") && error.contains("remove tso"), "{error}");
    }
    let text =
        "[[port]]\nname = \"p\"\nport = { kind = \"raw\", vdev = \"net_vhost7,iface=/run/v.sock,tso=0\" }";
    Config::parse(text, "test").unwrap();
}

#[test]
pub(super) fn process() {
    said("[workers]\ncores = [1, 2, 1]\n", (2, 16), &["core 1 is listed twice"]);
    said("[workers]\ncores = []\n", (2, 9), &["cores is empty"]);
    said("[workers]\ncores = [1]\ncount = 1\n", (3, 9), &["both cores and count"]);
    said("[workers]\ncount = 0\n", (2, 9), &["count is 0"]);
    said("[nft]\nentries = 0\n", (2, 11), &["entries 0"]);
    said("[vlt]\nentries = 0\n", (2, 11), &["entries 0"]);
    said("[vxlan]\nttl = 0\n", (2, 7), &["ttl is 0"]);
    said("[vxlan]\ndscp = 64\n", (2, 8), &["DSCP 64", "0..=63"]);
    said("[eal]\nfile-prefix = \"a b\"\n", (2, 15), &["file-prefix: \"a b\""]);
    said("[eal]\npci = [\"x,y=1\"]\n", (2, 8), &["\"x\" is not a PCI address"]);
    said("[rcft]\nentries = 1023\n", (2, 11), &["entries 1023", "1024..=8000000"]);
    said("[rcft]\nidle-timeout = \"0s\"\n", (2, 16), &["idle-timeout is 0", "\"10min\""]);
    said("[rcft]\nsilent-after = \"900ms\"\n", (2, 16), &["silent-after is below 1s", "\"30s\""]);
    said("[rcft]\nhalf-open-timeout = \"0s\"\n", (2, 21), &["half-open-timeout is 0", "\"5s\""]);
    let socket = format!("[api]\nsocket = \"/{}\"\n", "x".repeat(200));
    said(&socket, (2, 10), &["201 bytes", "at most 107"]);
    let socket =
        |length: usize, more: &str| format!("[api]\nsocket = \"/{}\"\n{more}", "x".repeat(length - 1));
    Config::parse(&socket(99, "group = \"ops\"\n"), "test").unwrap();
    said(&socket(100, ""), (2, 10), &["for upgrades", ".upgrade", "is 108 bytes long", "at most 107"]);
    said(
        &socket(103, "group = \"ops\"\n"),
        (2, 10),
        &["of its group", "-read", "is 108 bytes long", "at most 107"],
    );
}

#[test]
pub(super) fn quotas() {
    let rcft = |line: &str, column, words: &[&str]| said(&format!("[rcft]\n{line}\n"), (2, column), words);
    rcft("entries = 8000001", 11, &["entries 8000001", "1024..=8000000"]);
    rcft("quota = \"25% of\"", 9, &["\"25% of\" is not a quota", "\"25% of mlx5_0\""]);
    rcft("quota = \"0% of mlx5_0\"", 9, &["\"0% of mlx5_0\"", "above 0% to 100%"]);
    rcft("quota = -1", 9, &["-1 is not a number of queue pairs"]);
    rcft("quota = 0.5", 9, &["0.5", "a share such as \"25% of mlx5_0\""]);
    rcft("refuse = \"deny\"", 10, &["`deny`", "`drop`", "`reject`"]);
    rcft("count-opcodes = \"0xc4,0x64\"", 17, &["\"0x64\"", "0xc0 to 0xff", "\"0xc4,0xe0-0xff\""]);
    rcft("grace = 60", 9, &["60 has no unit"]);
    rcft("qouta = 1", 1, &["`qouta`", "`quota`", "`restart-grace`"]);
    rcft("quota = 1000001", 9, &["[rcft] quota 1000001", "1000000 queue pairs of [rcft] entries"]);
    refused("vlan = 1", "vlan = 1\nqp-quota = \"x\"", (23, 12), &["\"x\" is not a quota"]);
    refused("vlan = 1", "vlan = 1\nrefuse = 1", (23, 10), &["string"]);
    let more = "vlan = 1\nqp-quota = 2000\n[rcft]\nentries = 1024";
    refused("vlan = 1", more, (23, 12), &["vnic vm1: qp-quota 2000", "the 1024 queue pairs", "(line 25)"]);
}

#[test]
pub(super) fn quotas_of_vnics_go_before_the_default() {
    let text = GOOD.replace("vlan = 1", "vlan = 1\nqp-quota = 0\nrefuse = \"reject\"")
        + "[rcft]\nquota = \"12.5% of mlx5_0\"\n";
    let mut config = Config::parse(&text, "f").unwrap();
    assert_eq!(config.vnics[0].quota(&config.rcft), Some(&QuotaConfig::Count(0)));
    assert_eq!(config.vnics[0].refuse(&config.rcft), Refuse::Reject);
    let vnic = std::sync::Arc::make_mut(&mut config.vnics[0]);
    (vnic.qp_quota, vnic.refuse) = (None, None);
    let quota = config.vnics[0].quota(&config.rcft).unwrap();
    assert_eq!(quota.to_string(), "12.5% of mlx5_0");
    assert_eq!(quota.device().map(Name::as_str), Some("mlx5_0"));
    assert_eq!(config.vnics[0].refuse(&config.rcft), Refuse::Drop);
    config.rcft.quota = None;
    assert_eq!(config.vnics[0].quota(&config.rcft), None);
}

#[test]
pub(super) fn cores_of_this_machine() {
    let document = Document::parse("[workers]\ncores = [1, 7]\n", "f.toml").unwrap();
    assert_eq!(document.check_cores(&[0, 1, 7]), Ok(()));
    let error = document.check_cores(&[0, 1]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "f.toml:2:13: no worker can run on core 7; this process has the cores 0, 1: choose one of them"
    );
    let document = Document::parse("[workers]\ncount = 3\n", "f.toml").unwrap();
    let error = document.check_cores(&[0, 1]).unwrap_err();
    assert!(error.to_string().starts_with("f.toml:2:9: 3 workers do not fit"), "{error}");
}

#[test]
pub(super) fn a_config_without_text_is_checked_too() {
    let mut config = Config::parse(GOOD, "f").unwrap();
    assert!(config.validate().is_ok());
    std::sync::Arc::make_mut(&mut config.vnics[0]).vips.push("10.9.9.9".parse().unwrap());
    let error = config.validate().unwrap_err();
    assert!(error.to_string().starts_with("vnic vm1: VIP 10.9.9.9 is outside"), "{error}");
}

#[test]
pub(super) fn a_switch_has_one_device_for_rules() {
    let own = "port = { kind = \"tap\", iface = \"vm1\" }\noffload = \"rte-flow\"\n";
    let text = GOOD.replace("port = \"lab\"\nvlan = 1\n", own);
    Config::parse(&text, "f.toml").unwrap();
    let uplink = "addresses = [\"172.16.0.1/24\"]\n";
    let mixed = text.replace(uplink, &format!("{uplink}offload = \"simulated\"\n"));
    let errors = errors(&mixed);
    assert_eq!(errors.len(), 1, "{}", ConfigErrors(errors));
    for words in ["vnic[0]", "uplink[0]", "give all ports the same"] {
        assert!(errors[0].message.contains(words), "{}", errors[0]);
    }
}

#[test]
pub(super) fn ports_vhost_sockets_are_as_many_as_the_library_takes() {
    let config = |servers: usize, clients: usize| {
        let port = |n: usize| {
            let server = n < servers;
            format!(
                "[[port]]\nname = \"p{n}\"\nport = {{ kind = \"vhost-user\", path = \"/run/v{n}\", server = {server} }}\n"
            )
        };
        let text: String = (0..servers + clients).map(port).collect();
        Config::parse(&text, "test")
    };
    assert!(config(511, 1).is_ok() && config(0, 1023).is_ok(), "and none of them is one of DPDK's 32");
    let error = config(511, 2).unwrap_err().to_string();
    for word in [
        "p512",
        "1023 descriptors",
        "511 vhost-user sockets",
        "2 that it connects to",
        "need 1024",
        "server = false",
    ] {
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[test]
pub(super) fn ports_vhost_queues_are_as_many_as_the_library_knows() {
    let config = |queues: u16| {
        let port = format!("{{ kind = \"vhost-user\", path = \"/run/v\", queues = {queues} }}");
        Config::parse(&format!("[[port]]\nname = \"p\"\nport = {port}\n"), "test")
    };
    assert!(config(128).is_ok());
    let error = config(129).unwrap_err().to_string();
    for word in ["queues", "is 129", "128 pairs"] {
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[test]
pub(super) fn a_vhost_socket_is_given_away_by_the_end_that_makes_it() {
    let with = |more: &str| {
        let port = format!("port = {{ kind = \"vhost-user\", path = \"/run/v\"{more} }}\n");
        GOOD.replacen("port = \"lab\"\nvlan = 1\n", &port, 1)
    };
    for more in ["", ", owner = \"qemu\", group = \"107\", mode = \"0660\"", ", mode = \"600\""] {
        assert!(Config::parse(&with(more), "f.toml").is_ok(), "{more}");
    }
    let cases = [
        (", server = false, owner = \"qemu\"", "leave it out"),
        (", server = false, mode = \"0660\"", "leave it out"),
        (", mode = \"rw\"", "\"0660\""),
        (", mode = \"4755\"", "\"0660\""),
        (", mode = \"66\"", "\"0660\""),
        (", group = \"\"", "or a number"),
    ];
    for (more, words) in cases {
        let found = errors(&with(more));
        assert!(found.len() == 1 && found[0].message.contains(words), "{more}: {}", ConfigErrors(found));
    }
}

/// Peers that share memory with the switch unchecked are no tenants, unless the config trusts them; uplinks are the operator's.
#[test]
pub(super) fn repair_tenants_share_no_memory_unless_trusted() {
    let trunk = r#"port = { kind = "tap", iface = "lab0" }"#;
    let uplink = r#"port = { kind = "tap", iface = "up0" }"#;
    for spec in [
        r#"kind = "memif", socket = "/run/m""#,
        r#"kind = "virtio-user", path = "/run/v""#,
        r#"kind = "raw", vdev = "net_memif7,socket=/run/m""#,
        r#"kind = "raw", vdev = "net_virtio_user7,path=/run/v""#,
    ] {
        let with = |place: &str, more: &str| GOOD.replacen(place, &format!("port = {{ {spec}{more} }}"), 1);
        let vnic = |more: &str| {
            let text =
                GOOD.replacen("port = \"lab\"\nvlan = 1\n", &format!("port = {{ {spec}{more} }}\n"), 1);
            assert_ne!(text, GOOD);
            text
        };
        for text in [with(trunk, ""), vnic("")] {
            let found = errors(&text);
            assert_eq!(found.len(), 1, "{spec}: {}", ConfigErrors(found));
            for word in ["memory of the switch", "vhost-user", "trusted-peer = true"] {
                assert!(found[0].message.contains(word), "{}", found[0]);
            }
        }
        for text in [with(trunk, ", trusted-peer = true"), vnic(", trusted-peer = true"), with(uplink, "")] {
            assert!(text != GOOD && Config::parse(&text, "f.toml").is_ok(), "{text}");
        }
    }
}

#[test]
pub(super) fn repair_link_local_vips_are_of_nobodys_mac_but_ones_own() {
    let vips = |vip: &str| GOOD.replacen("\"10.0.0.1\"", &format!("\"10.0.0.1\", \"{vip}\""), 1);
    for good in ["fe80::1", "fe80::5054:ff:fe00:1"] {
        assert!(Config::parse(&vips(good), "f.toml").is_ok(), "{good}");
    }
    let words = ["follows from MAC 52:54:00:00:00:02", "52:54:00:00:00:01 is fe80::5054:ff:fe00:1"];
    said(&vips("fe80::5054:ff:fe00:2"), (20, 21), &words);
    let there = "[[location]]\nvni = 100\nvip = \"fe80::5054:ff:fe00:8\"\nmac = \"52:54:00:00:00:09\"\nvtep = \"172.16.0.2\"\n";
    added(there, (25, 7), &["follows from MAC 52:54:00:00:00:08"]);
}
