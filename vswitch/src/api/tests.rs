//! Messages against the config they stand for: whatever a config can say, a message can, and the other way round.

use proptest::prelude::*;
use prost::Message;
use toml::Value;
use tonic::Code;
use vswitch_api::v1::{self, Kind, object::Spec, port_spec};

use super::Role;
use super::index::Index;
use super::kinds::{self, Item};
use super::places;
use super::refusal::Problem;
use crate::config::tests::{example, round_trip};
use crate::config::{Config, Document};

/// All objects of a config.
fn items(config: &Config) -> Vec<Item> {
    let mut items: Vec<Item> =
        config.locations.iter().map(|location| kinds::location_item(location).unwrap()).collect();
    for kind in kinds::KINDS {
        let Some(place) = places::place(kind) else { continue };
        for id in place.ids(config) {
            let table = Index::default().get(config, kind, &id).unwrap().unwrap();
            items.push(Item { kind, id, table });
        }
    }
    items
}

/// Over the wire and back.
fn again(item: &Item) -> Result<Item, Problem> {
    let bytes = item.object()?.encode_to_vec();
    let (kind, message) = kinds::parts(&v1::Object::decode(bytes.as_slice()).unwrap())?;
    kinds::item(kind, &message)
}

fn object(spec: Spec) -> v1::Object {
    v1::Object { spec: Some(spec) }
}

fn vnic(change: impl FnOnce(&mut v1::Vnic)) -> v1::Object {
    let tap = port_spec::Tap { iface: "tap1".into(), ..Default::default() };
    let mut vnic = v1::Vnic {
        name: "vm1".into(),
        vpc: "blue".into(),
        mac: "52:54:00:00:00:01".into(),
        behind: Some(v1::vnic::Behind::Port(v1::PortSpec { kind: Some(port_spec::Kind::Tap(tap)) })),
        ..Default::default()
    };
    change(&mut vnic);
    object(Spec::Vnic(vnic))
}

fn read(object: &v1::Object) -> Result<Item, Problem> {
    let (kind, message) = kinds::parts(object)?;
    kinds::item(kind, &message)
}

/// Without what clients are never told.
fn untold(mut item: Item) -> Item {
    if let Some(Value::Table(port)) = item.table.get_mut("port") {
        port.remove("secret");
    }
    item
}

#[test]
fn every_key_of_the_example_has_a_field() {
    let config = Document::read(&example::all_on(), "example.toml").map(|document| document.config);
    let config = config.unwrap_or_else(|errors| panic!("{errors}"));
    let items = items(&config);
    for kind in kinds::KINDS {
        assert!(items.iter().any(|item| item.kind == kind), "the example has no {}", kinds::word(kind));
    }
    for item in items {
        assert_eq!(again(&item).unwrap(), untold(item));
    }
}

#[test]
fn what_is_left_out_has_the_default_of_the_config() {
    let item = read(&vnic(|_| {})).unwrap();
    assert_eq!((item.id.as_str(), item.table["mtu"].as_integer()), ("vm1", Some(1450)));
    let told = item.object().unwrap();
    let Some(Spec::Vnic(told)) = told.spec else { panic!("{told:?}") };
    assert_eq!((told.mtu, told.qos.is_none()), (Some(1450), true));
}

#[test]
fn problems_name_the_field_and_what_to_do() {
    let cases: Vec<(v1::Object, &str, &str)> = vec![
        (v1::Object { spec: None }, "object", "set one of its messages"),
        (vnic(|vnic| vnic.mac = "zz".into()), "vnic.mac", "six hex bytes"),
        (vnic(|vnic| vnic.vips = vec!["10.0.0.300".into()]), "vnic.vips[0]", "not an IP address"),
        (vnic(|vnic| vnic.guard = Some(77)), "vnic.guard", "GUARD_ON, GUARD_OFF"),
        (vnic(|vnic| vnic.guard = Some(0)), "vnic.guard", "leave it out"),
        (vnic(|vnic| vnic.mtu = Some(70_000)), "vnic.mtu", "70000"),
        (
            vnic(|vnic| vnic.behind = Some(v1::vnic::Behind::Port(v1::PortSpec { kind: None }))),
            "vnic.port",
            "no kind",
        ),
        (vnic(|vnic| vnic.behind = None), "vnic", "port"),
        (
            vnic(|vnic| {
                let ceil = Some("5 apples".into());
                let outbound = Some(v1::Limits { ceil, ..Default::default() });
                vnic.qos = Some(v1::VnicQos { outbound, ..Default::default() });
            }),
            "vnic.qos.outbound.ceil",
            "apples",
        ),
        (
            object(Spec::Vpc(v1::Vpc { name: "a".into(), vni: Some(1 << 24), ..Default::default() })),
            "vpc.vni",
            "24 bits",
        ),
        (
            object(Spec::Vxlan(v1::Vxlan { dscp: Some("64".into()), ..Default::default() })),
            "vxlan.dscp",
            "0..=63",
        ),
    ];
    for (object, field, word) in cases {
        let problem = read(&object).unwrap_err();
        assert_eq!(problem.code, Code::InvalidArgument, "{problem:?}");
        assert_eq!(
            (problem.field.as_str(), problem.message.contains(word)),
            (field, true),
            "{word}: {problem:?}"
        );
    }
    for (kind, id) in [(Kind::Unspecified as i32, ""), (99, "")] {
        assert!(kinds::kind_of(&v1::Key { kind, id: id.into() }).is_err());
    }
    for id in ["", "1", "1 x", "x 10.0.0.1", "16777216 10.0.0.1"] {
        assert!(kinds::location_of(id).is_err(), "{id}");
    }
}

#[test]
fn secrets_are_taken_and_kept_and_never_told() {
    let memif = |secret: Option<&str>, id| {
        let memif = port_spec::Memif {
            socket: "/run/m.sock".into(),
            id: Some(id),
            secret: secret.map(str::to_owned),
            ..Default::default()
        };
        let port = Some(v1::PortSpec { kind: Some(port_spec::Kind::Memif(memif)) });
        object(Spec::Port(v1::Port { name: "p".into(), port, ..Default::default() }))
    };
    let known = read(&memif(Some("hush-hush"), 1)).unwrap();
    assert!(known.table["port"]["secret"].as_str().is_some_and(|secret| secret == "hush-hush"));
    assert!(!format!("{:?}", known.object().unwrap()).contains("hush"));
    let other = read(&memif(Some("another"), 1)).unwrap();
    let differs = kinds::difference(&known, &other).unwrap();
    assert!(!differs.contains("hush") && !differs.contains("another"), "{differs}");
    let (kind, message) = kinds::parts(&memif(None, 2)).unwrap();
    let changed = kinds::item_with_secrets(kind, &message, &known).unwrap();
    assert_eq!(changed.table["port"]["secret"], known.table["port"]["secret"]);
    assert_eq!(changed.table["port"]["id"].as_integer(), Some(2));
}

#[test]
fn fields_are_set_by_their_paths() {
    let limits = |ceil: &str| Some(v1::Limits { ceil: Some(ceil.into()), ..Default::default() });
    let known = vnic(|vnic| {
        vnic.mtu = Some(1400);
        vnic.qos =
            Some(v1::VnicQos { outbound: limits("1Gbit"), inbound: limits("2Gbit"), ..Default::default() });
    });
    let known = read(&known).unwrap().message().unwrap();
    let (_, asked) = kinds::parts(&object(Spec::Vnic(v1::Vnic {
        name: "vm1".into(),
        vips: vec!["10.0.0.1".into()],
        qos: Some(v1::VnicQos { outbound: limits("3Gbit"), ..Default::default() }),
        ..Default::default()
    })))
    .unwrap();
    let mut fields = known.clone();
    let paths = ["mtu", "vips", "qos.outbound.ceil"].map(str::to_owned);
    super::bridge::set_fields(&mut fields, &asked, &paths).unwrap();
    let item = kinds::item(Kind::Vnic, &fields).unwrap();
    assert_eq!(item.table["mtu"].as_integer(), Some(1450), "left out: the default again");
    assert_eq!(item.table["vips"].as_array().map(Vec::len), Some(1));
    assert_eq!(item.table["qos"]["out"]["ceil"].as_str(), Some("3Gbit"));
    assert_eq!(item.table["qos"]["in"]["ceil"].as_str(), Some("2Gbit"), "not asked for");
    assert_eq!(item.table["mac"].as_str(), Some("52:54:00:00:00:01"), "nor this");
    for (path, word) in
        [("nothing", "has no field"), ("mtu.x", "no message"), ("qos.up", "has no field"), ("", "no field")]
    {
        let problem = super::bridge::set_fields(&mut known.clone(), &asked, &[path.into()]).unwrap_err();
        assert!(problem.message.contains(word), "{problem:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any valid config, object by object; and put together from them again.
    #[test]
    fn any_config_goes_over_the_wire_and_back(
        networks in round_trip::networks(),
        qos in round_trip::qos(),
        rcft in round_trip::rcft(),
    ) {
        let config = Config { qos, rcft, ..networks };
        let mut again_whole = Config::default();
        for item in items(&config) {
            let told = again(&item).unwrap();
            prop_assert_eq!(&told, &untold(item.clone()));
            if !kinds::is_inner(item.kind) {
                Index::default().set(&mut again_whole, item.kind, &item.id, item.table).unwrap();
            }
        }
        again_whole.locations.clone_from(&config.locations);
        let settings = Config { eal: config.eal.clone(), workers: config.workers.clone(), ..again_whole };
        prop_assert_eq!(&settings.vnics, &config.vnics);
        prop_assert_eq!((&settings.vpcs, &settings.security_groups), (&config.vpcs, &config.security_groups));
        prop_assert_eq!((&settings.uplinks, &settings.ports), (&config.uplinks, &config.ports));
    }

    /// Any bytes are an object, or refused.
    #[test]
    fn any_object_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 1u8..26) {
        // The bytes as the inside of an object of this kind.
        let mut framed = Vec::new();
        prost::encoding::encode_key(kind.into(), prost::encoding::WireType::LengthDelimited, &mut framed);
        prost::encoding::encode_varint(bytes.len() as u64, &mut framed);
        framed.extend(&bytes);
        for bytes in [bytes, framed] {
            if let Ok(object) = v1::Object::decode(bytes.as_slice()) {
                let _ = read(&object);
            }
        }
    }
}

#[tokio::test]
async fn those_who_look_leave_the_others_their_streams() {
    let (jobs, _) = tokio::sync::mpsc::channel(1);
    let control = super::Control::new(jobs);
    let mut held = Vec::new();
    let problem = loop {
        match control.watcher(Role::Reader) {
            Ok(place) => held.push(place),
            Err(problem) => break problem,
        }
    };
    assert_eq!((problem.code, held.len()), (Code::ResourceExhausted, super::WATCHERS));
    assert!(control.watcher(Role::Owner).is_ok());
    held.pop();
    assert!(control.watcher(Role::Reader).is_ok());
}
