//! The example file is the schema's test: it is valid, and shows every key there is.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::{Deserialize, Deserializer, Visitor};
use serde::forward_to_deserialize_any;
use toml::de::{DeTable, DeValue};

use crate::config::document::{Document, SECTIONS};
use crate::config::*;

const EXAMPLE: &str = include_str!("../../../example.toml");

/// The example with all that is switched off by a bare `#` switched on.
pub(crate) fn all_on() -> String {
    let on = |line: &str| match line.strip_prefix('#') {
        Some(setting) if setting.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => {
            setting.to_owned()
        }
        _ => line.to_owned(),
    };
    EXAMPLE.lines().map(on).collect::<Vec<_>>().join("\n")
}

/// A deserializer that gives nothing but learns which keys a struct takes.
struct Keys<'k>(&'k mut BTreeSet<&'static str>);

impl<'de> Deserializer<'de> for Keys<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.extend(fields);
        Err(serde::de::Error::custom("only asked for its keys"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Self::Error> {
        panic!("a section that is no struct")
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn keys<'de, T: Deserialize<'de>>() -> BTreeSet<&'static str> {
    let mut keys = BTreeSet::new();
    assert!(T::deserialize(Keys(&mut keys)).is_err());
    assert!(!keys.is_empty());
    keys
}

/// The keys each table of the document uses, by path without indices; ports by `port:<kind>`.
fn used(table: &DeTable<'_>, path: &str, used_keys: &mut BTreeMap<String, BTreeSet<String>>) {
    let kind = table.get("kind").and_then(|kind| kind.get_ref().as_str().map(str::to_owned));
    let path = kind.map_or(path.to_owned(), |kind| format!("port:{kind}"));
    for (key, value) in table {
        used_keys.entry(path.clone()).or_default().insert(key.get_ref().to_string());
        let inner =
            if path.is_empty() { key.get_ref().to_string() } else { format!("{path}.{}", key.get_ref()) };
        match value.get_ref() {
            DeValue::Table(table) => used(table, &inner, used_keys),
            DeValue::Array(items) => {
                for item in items.iter().filter_map(|item| item.get_ref().as_table()) {
                    used(item, &inner, used_keys);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn example_is_valid_as_it_stands() {
    if let Err(errors) = Config::parse(EXAMPLE, "example.toml") {
        panic!("{errors}");
    }
}

#[test]
fn example_shows_every_key() {
    let text = all_on();
    if let Err(errors) = Document::read(&text, "example.toml, all on") {
        panic!("{errors}");
    }
    let mut shown = BTreeMap::new();
    used(DeTable::parse(&text).unwrap().get_ref(), "", &mut shown);

    let mut wanted: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    wanted.insert(String::new(), SECTIONS.iter().copied().collect());
    for (section, keys) in [
        ("eal", keys::<EalConfig>()),
        ("workers", keys::<WorkersConfig>()),
        ("forward", keys::<ForwardConfig>()),
        ("api", keys::<ApiConfig>()),
        ("control", keys::<ControlConfig>()),
        ("control.evpn", keys::<EvpnConfig>()),
        ("nft", keys::<NftConfig>()),
        ("vlt", keys::<VltConfig>()),
        ("vxlan", keys::<VxlanConfig>()),
        ("rdma", keys::<RdmaConfig>()),
        ("rcft", keys::<RcftConfig>()),
        ("qos", keys::<QosConfig>()),
        ("security", keys::<SecurityConfig>()),
        ("offload", keys::<OffloadConfig>()),
        ("offload.simulated", keys::<SimulatedConfig>()),
        ("vpc.qos", keys::<BothWays>()),
        ("vpc.qos.out", keys::<LimitsConfig>()),
        ("vnic.qos", keys::<VnicQos>()),
        ("uplink", keys::<UplinkConfig>()),
        ("uplink.bfd", keys::<BfdConfig>()),
        ("uplink.routes", keys::<UnderlayRoute>()),
        ("uplink.neighbours", keys::<StaticNeighbour>()),
        ("vpc", keys::<VpcConfig>()),
        ("vpc.routes", keys::<VpcRoute>()),
        ("vpc.routes.next-hops", keys::<GatewayConfig>()),
        ("subnet", keys::<SubnetConfig>()),
        ("security-group", keys::<SecurityGroupConfig>()),
        ("subnet.dhcp", keys::<DhcpConfig>()),
        ("subnet.ra", keys::<RaConfig>()),
        ("subnet.dhcp.routes", keys::<DhcpRoute>()),
        ("trunk", keys::<TrunkConfig>()),
        ("vnic", keys::<VnicConfig>()),
        ("location", keys::<LocationConfig>()),
        ("port", keys::<PortConfig>()),
    ] {
        wanted.insert(section.into(), keys);
    }
    for section in SECTIONS {
        assert!(wanted.contains_key(*section), "this test does not know section {section}");
    }
    for kind in PortSpec::KINDS {
        let mut keys = BTreeSet::from(["kind"]);
        assert!(PortSpec::read(kind, Keys(&mut keys)).is_err());
        wanted.insert(format!("port:{kind}"), keys);
    }
    for (path, keys) in wanted {
        let shown = shown.get(&path).cloned().unwrap_or_default();
        for key in keys {
            assert!(shown.contains(key), "example.toml does not show {path}.{key}");
        }
    }
}

#[test]
fn defaults_written_in_the_example_are_the_defaults() {
    let example = Config::parse(EXAMPLE, "example.toml").unwrap();
    let empty = Config::parse("", "empty").unwrap();
    assert_eq!(example.eal, empty.eal);
    assert_eq!(example.forward, empty.forward);
    assert_eq!(example.api, empty.api);
    assert_eq!(example.nft, empty.nft);
    assert_eq!(example.vlt, empty.vlt);
    assert_eq!(example.vxlan, empty.vxlan);
    assert_eq!(example.rdma, empty.rdma);
    assert_eq!(example.rcft, empty.rcft);
    assert_eq!(example.qos, empty.qos);
    assert_eq!(example.security, empty.security);
    assert_eq!(example.offload, empty.offload);
    assert_eq!(WorkersConfig { cores: None, ..example.workers }, empty.workers);
    let blue = &example.vpcs[0];
    assert_eq!(blue.router_mac().to_string(), "02:00:5e:00:00:64");
}
