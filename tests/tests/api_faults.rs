//! What objects cannot be together: a client is told which field of which object it is, and what to do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::api::{self, Api, NETWORKS, creation, problems};
use tests::{Daemon, Netns, wait_for};
use tonic::Code;
use vswitch_api::v1::object::Spec;
use vswitch_api::v1::*;

fn vnic(name: &str, number: u8) -> Vnic {
    api::vnic(name, "red", number, port_spec::Kind::Null(port_spec::Null::default()))
}

fn group(name: &str, vpc: &str) -> Spec {
    Spec::SecurityGroup(SecurityGroup { name: name.into(), vpc: vpc.into(), ..Default::default() })
}

#[test]
fn api_faults_of_several_objects_name_the_field_and_what_to_do() {
    let host = Netns::new("host");
    let daemon = Daemon::start(&host, NETWORKS);
    let mut api = Api::connect(daemon.socket());
    for spec in [Spec::Vnic(vnic("vm1", 1)), group("web", "red"), api::vpc("blue", 200), group("far", "blue")]
    {
        api.create(spec).unwrap();
    }
    let of = |change: fn(&mut Vnic)| {
        let mut vnic = vnic("vm2", 2);
        change(&mut vnic);
        vec![Spec::Vnic(vnic)]
    };
    let cases: Vec<(Vec<Spec>, &str, &str)> = vec![
        (
            of(|vnic| vnic.vips = vec!["10.0.0.2".into(), "10.0.0.1".into()]),
            "vnic[name=vm2].vips[1]",
            "choose another",
        ),
        (of(|vnic| vnic.mac = "02:00:00:00:01:01".into()), "vnic[name=vm2].mac", "choose another"),
        (of(|vnic| vnic.vips = vec!["10.9.0.2".into()]), "vnic[name=vm2].vips[0]", "choose one inside"),
        (of(|vnic| vnic.vpc = "green".into()), "vnic[name=vm2].vpc", "add a [[vpc]]"),
        (
            of(|vnic| vnic.security_groups = vec!["web".into(), "none".into()]),
            "vnic[name=vm2].security_groups[1]",
            "add a [[security-group]]",
        ),
        (
            of(|vnic| vnic.security_groups = vec!["far".into()]),
            "vnic[name=vm2].security_groups[0]",
            "name one of that",
        ),
        (of(|vnic| vnic.name = "up".into()), "vnic[name=up].name", "choose another name"),
        (of(|vnic| vnic.mtu = Some(9000)), "vnic[name=vm2].mtu", "lower the vNIC's"),
        (of(|vnic| vnic.qp_quota = Some("1000000000".into())), "vnic[name=vm2].qp_quota", "lower it"),
        (
            vec![api::subnet("red", "10.0.0.128/25")],
            "subnet[vpc=red,prefix=10.0.0.128/25].prefix",
            "choose another prefix",
        ),
        (
            vec![api::subnet("green", "10.0.0.0/24")],
            "subnet[vpc=green,prefix=10.0.0.0/24].vpc",
            "add a [[vpc]]",
        ),
        (vec![api::vpc("green", 100)], "vpc[name=green].vni", "choose another"),
        (vec![group("web2", "green")], "security_group[name=web2].vpc", "add a [[vpc]]"),
        (vec![api::location(100, 1)], "location[vni=100,vip=10.0.0.1].vip", "remove the vNIC first"),
        (vec![api::location(300, 1)], "location[vni=300,vip=10.0.0.1].vni", "choose another VNI"),
        // Among others in one change.
        (
            vec![
                api::vpc("green", 300),
                api::subnet("green", "10.3.0.0/24"),
                api::subnet("green", "10.3.0.0/25"),
            ],
            "subnet[vpc=green,prefix=10.3.0.0/25].prefix",
            "choose another prefix",
        ),
    ];
    for (specs, field, remedy) in cases {
        let status = match specs.len() {
            1 => api.create(specs.into_iter().next().unwrap()).unwrap_err(),
            _ => api.apply(specs.into_iter().map(creation).collect(), None).unwrap_err(),
        };
        let told = problems(&status);
        assert!(matches!(status.code(), Code::InvalidArgument | Code::FailedPrecondition), "{status:?}");
        let (_, _, message) =
            told.iter().find(|(_, told, _)| told == field).unwrap_or_else(|| panic!("{field}: {told:?}"));
        assert!(message.contains(remedy), "{field}: {remedy:?} is not in: {message}");
        assert!(status.message().contains(field), "{}", status.message());
    }
    // Several at once are all told.
    let mut two = vnic("vm2", 1);
    two.security_groups = vec!["none".into()];
    let mut fields: Vec<_> =
        problems(&api.create(Spec::Vnic(two)).unwrap_err()).into_iter().map(|told| told.1).collect();
    fields.sort();
    assert_eq!(fields, ["vnic[name=vm2].mac", "vnic[name=vm2].security_groups[0]", "vnic[name=vm2].vips[0]"]);
    // A file's are, too, beside the place in it.
    let file = daemon.dir().write("bad.toml", &format!("{NETWORKS}[[vpc]]\nname = \"green\"\nvni = 100\n"));
    let refused = daemon.try_ctl(&format!("config load {}", file.display())).unwrap_err();
    assert!(refused.contains("bad.toml:") && refused.contains("choose another"), "{refused}");
    daemon.end();
}

/// What a config may be, and this switch cannot do now: validation has nothing against it.
#[test]
fn api_faults_that_the_switch_finds_name_the_field_and_what_to_do() {
    let host = Netns::new("host");
    let daemon = Daemon::start(&host, NETWORKS);
    let mut api = Api::connect(daemon.socket());
    host.ip("link add h0 type veth peer name h1");
    ["h0", "h1"].iter().for_each(|end| drop(host.ip(&format!("link set {end} up"))));
    let on = |iface: &str, name, number| {
        let veth = port_spec::Veth { iface: iface.into(), ..Default::default() };
        Spec::Vnic(api::vnic(name, "red", number, port_spec::Kind::Veth(veth)))
    };
    api.create_and_wait(on("h0", "vm1", 1)).unwrap();
    api.create(api::vpc("blue", 200)).unwrap();
    api.create(api::subnet("blue", "10.0.0.0/24")).unwrap();
    api.create_and_wait(Spec::Vnic(Vnic { vpc: "blue".into(), ..vnic("vm3", 3) })).unwrap();
    // Under another name it is the same interface, which the config alone does not tell.
    for words in ["h0 down", "h0 name x0", "x0 up"] {
        host.ip(&format!("link set {words}"));
    }
    wait_for("vm1's link", Duration::from_secs(10), || {
        (!daemon.ctl("port list").contains("  down  ")).then_some(())
    });
    let (config, ports) = (daemon.ctl("show config"), daemon.ctl("port list"));
    let port = |name: &str, kind, rx_queues| {
        let port = Some(PortSpec { kind: Some(kind) });
        Spec::Port(Port { name: name.into(), port, rx_queues, ..Default::default() })
    };
    let raw = port_spec::Raw { vdev: "net_null7".into(), ..Default::default() };
    let nic = port_spec::Pci { address: "0000:01:00.0".into(), ..Default::default() };
    let mut share = vnic("vm2", 2);
    share.qp_quota = Some("5% of nosuch_0".into());
    let mut far = api::location(100, 9);
    if let Spec::Location(far) = &mut far {
        far.vtep = "192.0.2.1".into();
    }
    let cases = [
        (on("x0", "vm2", 2), Code::FailedPrecondition, "vnic[name=vm2].port.iface", "detach vm1 first"),
        (on("nosuch0", "vm2", 2), Code::FailedPrecondition, "vnic[name=vm2].port.iface", "`ip link` lists"),
        (
            port("greedy", port_spec::Kind::Raw(raw), Some(64)),
            Code::ResourceExhausted,
            "port[name=greedy].port",
            "give ports fewer queues",
        ),
        (
            port("nic", port_spec::Kind::Pci(nic), None),
            Code::FailedPrecondition,
            "port[name=nic].port",
            "restart",
        ),
        (Spec::Vnic(share), Code::FailedPrecondition, "vnic[name=vm2].qp_quota", "write a number"),
        (far, Code::FailedPrecondition, "location[vni=100,vip=10.0.0.9].vtep", "add a gateway"),
    ];
    for (spec, code, field, remedy) in cases {
        assert_refused(&api.create_and_wait(spec).unwrap_err(), code, field, remedy);
    }
    let table = Spec::Nft(Nft { entries: Some(32_768), ..Default::default() });
    let refused = api.update(table, &["entries"]).unwrap_err();
    assert_refused(&refused, Code::FailedPrecondition, "nft.entries", "restart it");
    let refused = api.delete(Kind::Vpc, "blue").unwrap_err();
    assert_refused(&refused, Code::FailedPrecondition, "key", "remove that first");
    // Nothing of what was refused stays, and a console is told the same in its own words.
    assert_eq!((daemon.ctl("show config"), daemon.ctl("port list")), (config, ports));
    let said = daemon.try_ctl("port attach nic pci address=0000:01:00.0").unwrap_err();
    assert!(said.contains("port nic is on the PCI bus") && !said.contains("port[name"), "{said}");
    host.ip("link del x0");
    daemon.end();
}

#[track_caller]
fn assert_refused(status: &tonic::Status, code: Code, field: &str, remedy: &str) {
    assert_eq!(status.code(), code, "{status:?}");
    let told = problems(status);
    let [(_, about, message)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(about, field, "{message}");
    assert!(message.contains(remedy), "{field}: {remedy:?} is not in: {message}");
}
