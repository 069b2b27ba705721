use super::*;
use proptest::prelude::*;
use serde_json::json;

fn whole() -> Value {
    json!({"cniVersion": "1.0.0", "name": "blue", "type": "vswitch-cni", "vpc": "blue", "subnet": "10.0.0.0/24"})
}

fn read(more: &Value) -> Result<NetworkConfig> {
    let mut config = whole();
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    NetworkConfig::read(config.to_string().as_bytes())
}

#[test]
fn the_least_config_has_defaults() {
    let config = read(&json!({})).unwrap();
    assert_eq!((config.socket, config.port, config.mtu), (socket(), Port::Veth, None));
    assert!(read(&json!({"ipam": {"type": "vswitch"}})).is_ok_and(|config| !config.delegates()));
}

#[test]
fn all_keys_are_read() {
    let config = read(&json!({
        "socket": "/run/x.sock", "subnet": ["10.0.0.0/24", "fd00::/64"], "mtu": 1400, "securityGroups": ["web"],
        "qos": {"outbound": {"ceil": "1Gbit"}, "inbound": {"assured": "1Mbit", "weight": 2, "burst": "64KiB"}},
        "qpQuota": "25% of mlx5_0", "port": "vhost-user", "socketFolder": "/run/pods", "dns": {"nameservers": []},
        "ipam": {"type": "vswitch", "rangeStart": "10.0.0.10", "rangeEnd": ["10.0.0.20", "fd00::20"]},
        "args": {"cni": {"vpc": "red", "securityGroups": [], "qpQuota": 4, "ips": ["10.0.0.5/24"], "mac": "02:00:00:00:00:01"}, "other": 1},
        "capabilities": {"mac": true}, "runtimeConfig": {"mac": "02:00:00:00:00:02", "ips": ["fd00::5"], "other": 1},
        "cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"}], "cni.dev/attachments": [],
    }))
    .unwrap();
    assert_eq!(config.qp_quota.map(|quota| quota.to_string()).as_deref(), Some("25% of mlx5_0"));
    assert_eq!(config.args.cni.qp_quota, Some(QpQuota::Number(4)));
    assert_eq!(config.args.cni.ips.0, [Host("10.0.0.5".parse().unwrap())]);
    assert_eq!(config.valid_attachments.map(|valid| valid.len()), Some(1));
}

#[test]
fn what_cannot_be_is_refused_with_its_field() {
    for (more, field) in [
        (json!({"securitygroups": ["a"]}), "securitygroups: unknown field"),
        (json!({"name": "a/b"}), "name"),
        (json!({"name": 5}), "name"),
        (json!({"vpc": ""}), "vpc"),
        (json!({"socket": "run/x"}), "socket"),
        (json!({"subnet": "10.0.0.0"}), "subnet"),
        (json!({"subnet": "10.0.0.1/24"}), "subnet"),
        (json!({"subnet": []}), "subnet"),
        (json!({"subnet": ["10.0.0.0/24", "10.1.0.0/24"]}), "subnet"),
        (json!({"mtu": 70_000}), "mtu"),
        (json!({"mtu": 0}), "mtu"),
        (json!({"port": "tap"}), "port"),
        (json!({"port": "vhost-user"}), "socketFolder"),
        (json!({"socketFolder": "/run/x"}), "socketFolder"),
        (json!({"qos": {"outbound": {"ceiling": "1Gbit"}}}), "qos.outbound"),
        (json!({"ipam": {"type": "../host-local"}}), "ipam.type"),
        (json!({"ipam": {"rangeStart": "10.0.1.5"}}), "ipam.rangeStart"),
        (json!({"ipam": {"rangeStrat": "10.0.0.5"}}), "ipam.rangeStrat"),
        (json!({"ipam": {"type": "vswitch", "ranges": []}}), "ipam.ranges"),
        (json!({"args": {"cni": {"mac": "1:2"}}}), "args.cni.mac"),
        (json!({"args": {"cni": {"vpcs": "a"}}}), "args.cni"),
        (json!({"runtimeConfig": {"ips": ["10.0.0.300"]}}), "runtimeConfig.ips"),
    ] {
        let error = read(&more).unwrap_err();
        assert!(error.code == 7 && error.msg.starts_with(field), "{more}: {error}");
    }
}

#[test]
fn versions_are_told_apart() {
    for version in VERSIONS {
        assert!(read(&json!({"cniVersion": version})).is_ok());
    }
    for version in ["", "0.3.1", "2.0.0"] {
        assert_eq!(read(&json!({"cniVersion": version})).unwrap_err().code, 1);
    }
    assert_eq!(NetworkConfig::read(b"{").unwrap_err().code, 6);
    assert_eq!(read(&json!({})).unwrap().since("1.1.0", "GC").unwrap_err().code, 1);
    assert!(read(&json!({})).unwrap().since("0.4.0", "CHECK").is_ok());
}

/// The first JSON value of a text that has a `cniVersion`.
fn example(text: &str) -> Value {
    let key = text.find("\"cniVersion\"").unwrap();
    let from = text[..key].rfind('{').unwrap();
    serde_json::Deserializer::from_str(&text[from..]).into_iter::<Value>().next().unwrap().unwrap()
}

/// Those for Kubernetes are in `deploy_tests`.
#[test]
fn the_example_is_a_config() {
    let example = example(include_str!("../../../README.md"));
    let config = NetworkConfig::read(example.to_string().as_bytes()).unwrap();
    assert_eq!(example["type"], env!("CARGO_PKG_NAME"), "{config:?}");
}

proptest! {
    /// Whatever comes on standard input, and in any of its fields, is read or refused.
    #[test]
    fn any_config_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), key in 0usize..12, text in ".{0,40}", number in any::<i64>()) {
        let _ = NetworkConfig::read(&bytes);
        let keys = ["cniVersion", "name", "socket", "vpc", "subnet", "mtu", "qpQuota", "port", "ipam", "args", "runtimeConfig", "prevResult"];
        for value in [json!(text), json!(number), json!([text]), json!({ "ips": text, "cni": text, "type": text })] {
            let _ = read(&json!({ keys[key]: value }));
        }
    }
}
