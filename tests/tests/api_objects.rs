//! A switch that programs drive: objects come, change and go by gRPC, and packets follow.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::api::{self, Api, NETWORKS, creation, deletion, problems};
use tests::{Daemon, Netns, wait_for};
use tonic::Code;
use vswitch_api::v1::object::Spec;
use vswitch_api::v1::watch_response::Event;
use vswitch_api::v1::*;

fn code<T: std::fmt::Debug>(result: Result<T, tonic::Status>, word: &str) -> Code {
    let status = result.unwrap_err();
    assert!(status.message().contains(word), "'{word}' is missing: {status:?}");
    status.code()
}

fn state(entry: &Entry) -> (State, &str) {
    let status = entry.status.as_ref().unwrap();
    (State::try_from(status.state.unwrap_or_default()).unwrap(), &status.reason)
}

fn owner(entry: &Entry) -> Owner {
    Owner::try_from(entry.status.as_ref().unwrap().owner).unwrap()
}

#[test]
fn api_two_vnics_are_made_talk_and_go() {
    let host = Netns::new("host");
    let daemon = Daemon::start(&host, NETWORKS);
    let mut api = Api::connect(daemon.socket());
    let mut watch = api.watch(&[Kind::Vnic]);
    assert!(matches!(api.next(&mut watch).event, Some(Event::Complete(true))), "there is none yet");

    // Created twice it is there once; another one of its name is refused with what differs.
    let one = api::tap_vnic("one", "red", 1);
    let first = api.create(Spec::Vnic(one.clone())).unwrap();
    let again = api.create(Spec::Vnic(one.clone())).unwrap();
    assert_eq!((first.revision, &first.object), (again.revision, &again.object), "nothing happened");
    assert_eq!(owner(&again), Owner::Api);
    let other = Vnic { mtu: Some(1300), ..one.clone() };
    let refused = api.create(Spec::Vnic(other)).unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert!(refused.message().contains("mtu is 1450, not 1300"), "{refused:?}");
    let [(word, ..)] = &problems(&refused)[..] else { panic!("{refused:?}") };
    assert_eq!(word, "ALREADY_EXISTS");
    api.create(Spec::Vnic(api::tap_vnic("two", "red", 2))).unwrap();

    // It is being attached, and then up; a watcher sees both.
    let mut seen = Vec::new();
    let up = |seen: &[(String, State)], name: &str| seen.contains(&(name.into(), State::Up));
    while !(up(&seen, "one") && up(&seen, "two")) {
        let Some(Event::Set(entry)) = api.next(&mut watch).event else { panic!("{seen:?}") };
        seen.push((entry.key.clone().unwrap().id, state(&entry).0));
    }
    assert_eq!(state(&api.get(Kind::Vnic, "one").unwrap()), (State::Up, ""));
    let (a, b) = (api::plug(&host, "one", 1), api::plug(&host, "two", 2));
    a.run(&["ping", "-c", "3", "-i", "0.2", "-W", "2", "10.0.0.2"]);

    // A field that changes; the rest stays.
    let bigger = Vnic { name: "one".into(), mtu: Some(1400), ..Default::default() };
    let entry = api.update(Spec::Vnic(bigger), &["mtu"]).unwrap();
    let Some(Spec::Vnic(told)) = entry.object.unwrap().spec else { panic!() };
    assert_eq!((told.mtu, told.mac, told.vips), (Some(1400), one.mac.clone(), one.vips.clone()));
    assert!(daemon.ctl("show vnic").contains("1400"));
    a.run(&["ping", "-c", "3", "-i", "0.2", "-W", "2", "10.0.0.2"]);
    assert_eq!(
        code(api.update(Spec::Vnic(Vnic { name: "none".into(), ..Default::default() }), &["mtu"]), "no vnic"),
        Code::NotFound
    );

    // What a person does is seen, too, and what goes.
    daemon.ctl("vnic del two");
    loop {
        match api.next(&mut watch).event {
            Some(Event::Gone(key)) => {
                assert_eq!(key, api::key(Kind::Vnic, "two"));
                break;
            }
            Some(Event::Set(entry)) => assert_eq!(entry.key.unwrap().id, "one"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(code(api.delete(Kind::Vnic, "two"), "no vnic"), Code::NotFound);
    api.delete(Kind::Vnic, "one").unwrap();
    assert!(api.list(Kind::Vnic, 10).is_empty());
    drop((a, b));
    daemon.assert_conserved();
    daemon.end();
}

#[test]
fn api_a_batch_is_carried_out_whole_or_not_at_all() {
    let host = Netns::new("host");
    let daemon = Daemon::start(&host, NETWORKS);
    let mut api = Api::connect(daemon.socket());
    let mut watch = api.watch(&[]);
    let mut told = Vec::new();
    loop {
        match api.next(&mut watch).event {
            Some(Event::Set(entry)) => told.push(entry),
            Some(Event::Complete(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(
        told.iter().any(|entry| entry.key == Some(api::key(Kind::Subnet, "red 10.0.0.0/24"))
            && owner(entry) == Owner::File)
    );
    let before = daemon.ctl("show config");
    let batch = || {
        vec![
            creation(api::vpc("blue", 200)),
            creation(api::subnet("blue", "10.0.0.0/24")),
            creation(Spec::SecurityGroup(SecurityGroup {
                name: "web".into(),
                vpc: "blue".into(),
                ..Default::default()
            })),
            creation(api::location(200, 7)),
            creation(api::location(200, 8)),
            creation(Spec::Rule(Rule {
                of: "web".into(),
                rule: Some(SecurityRule {
                    direction: RuleDirection::In.into(),
                    protocol: Some("tcp".into()),
                    ports: Some("80".into()),
                    ..Default::default()
                }),
            })),
            creation(Spec::Route(Route {
                of: "blue".into(),
                route: Some(VpcRoute { to: "10.9.0.0/16".into(), blackhole: true, ..Default::default() }),
            })),
        ]
    };
    // The last of them cannot be, by itself or by all of it together: nothing is left of the others.
    for (last, field, word) in [
        (creation(api::vpc("green", 1 << 24)), "operations[7].vpc.vni", "24 bits"),
        (deletion(Kind::Vnic, "nobody"), "operations[7].key.id", "no vnic"),
        (creation(api::vpc("green", 100)), "vpc[name=green].vni", "VNI 100"),
        (
            creation(api::subnet("purple", "10.5.0.0/24")),
            "subnet[vpc=purple,prefix=10.5.0.0/24].vpc",
            "purple",
        ),
        (creation(Spec::Vnic(api::tap_vnic("one", "pink", 1))), "vnic[name=one].vpc", "pink"),
    ] {
        let revision = api.list(Kind::Vpc, 10)[0].revision;
        let refused = api.apply(batch().into_iter().chain([last]).collect(), None).unwrap_err();
        let told = problems(&refused);
        assert!(
            told.iter().any(|(_, at, message)| at == field && message.contains(word)),
            "{field}, {word}: {refused:?}"
        );
        assert_eq!(daemon.ctl("show config"), before);
        assert_eq!(api.list(Kind::Vpc, 10)[0].revision, revision);
    }
    // With the revision of before it is refused when somebody else was faster.
    let old = api.list(Kind::Vpc, 10)[0].revision;
    daemon.ctl("vpc add amber vni 300");
    assert_eq!(code(api.apply(batch(), Some(old)), "look at what changed"), Code::Aborted);
    let done = api.apply(batch(), Some(old + 1)).unwrap();
    assert_eq!(done, old + 2);
    assert_eq!(api.apply(batch(), None).unwrap(), done, "the same again changes nothing");

    // All of it is there, and was told as one change.
    let mut came = Vec::new();
    while came.len() < 6 {
        let response = api.next(&mut watch);
        let Some(Event::Set(entry)) = response.event else { panic!("{response:?}") };
        came.push((response.revision, entry.key.unwrap().id));
    }
    came.sort();
    let ids: Vec<_> = came.iter().map(|(revision, id)| (*revision - old, id.as_str())).collect();
    assert_eq!(
        ids,
        [
            (1, "amber"),
            (2, "200 10.0.0.7"),
            (2, "200 10.0.0.8"),
            (2, "blue"),
            (2, "blue 10.0.0.0/24"),
            (2, "web")
        ]
    );
    assert_eq!(api.list(Kind::Rule, 10).len(), 1);
    let routes = api.list(Kind::Route, 10);
    assert_eq!(routes[0].key.as_ref().unwrap().id, "blue 10.9.0.0/16");
    assert!(
        daemon.ctl("show security-group web").contains("80") && daemon.ctl("show vlt").contains("10.0.0.8")
    );

    // Nothing that is needed goes; all at once it does.
    let rule = api.list(Kind::Rule, 10)[0].key.clone().unwrap().id;
    assert_eq!(code(api.delete(Kind::Vpc, "blue"), "blue"), Code::InvalidArgument);
    assert_eq!(code(api.delete(Kind::Qos, ""), "section"), Code::FailedPrecondition);
    api.apply(
        vec![
            deletion(Kind::Location, "200 10.0.0.7"),
            deletion(Kind::Rule, &rule),
            deletion(Kind::SecurityGroup, "web"),
            deletion(Kind::Subnet, "blue 10.0.0.0/24"),
            deletion(Kind::Vpc, "blue"),
            deletion(Kind::Vpc, "amber"),
        ],
        None,
    )
    .unwrap();
    assert_eq!(daemon.ctl("show config"), before);

    // Sections, which have fields and stay.
    let qos = Qos {
        link: Some(LinkRates { outbound: Some("1Gbit".into()), ..Default::default() }),
        ..Default::default()
    };
    api.update(Spec::Qos(qos), &["link.outbound"]).unwrap();
    assert!(daemon.ctl("show config").contains("1Gbit"));
    assert_eq!(
        code(
            api.update(Spec::Nft(Nft { entries: Some(4096), ..Default::default() }), &["entries"]),
            "restart"
        ),
        Code::FailedPrecondition
    );
    daemon.end();
}

#[test]
fn api_a_port_that_is_not_there_is_down_with_its_reason_and_comes_up() {
    let host = Netns::new("host");
    let daemon = Daemon::start(&host, NETWORKS);
    let mut api = Api::connect(daemon.socket());
    let veth = port_spec::Veth { iface: "pod0".into(), ..Default::default() };
    let asked = std::time::Instant::now();
    let entry = api.create(Spec::Vnic(api::vnic("pod", "red", 1, port_spec::Kind::Veth(veth)))).unwrap();
    // Nobody waits for the port, and nobody for those who do.
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    assert_ne!(state(&entry).0, State::Up);
    let mut watch = api.watch(&[Kind::Vnic]);
    let becomes = |api: &mut Api, wanted: State, word: &str| {
        wait_for(&format!("{wanted:?}: {word}"), Duration::from_secs(20), || {
            let entry = api.get(Kind::Vnic, "pod").unwrap();
            let (state, reason) = state(&entry);
            (state == wanted && reason.contains(word)).then_some(())
        });
    };
    becomes(&mut api, State::Down, "no interface \"pod0\"");
    host.ip("link add pod0 type veth peer name pod1");
    host.ip("link set pod0 up");
    host.ip("link set pod1 up");
    becomes(&mut api, State::Up, "");
    let mut told = Vec::new();
    while told.last() != Some(&State::Up) {
        match api.next(&mut watch).event {
            Some(Event::Set(entry)) => told.push(state(&entry).0),
            Some(Event::Complete(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    host.ip("link del pod0");
    becomes(&mut api, State::Down, "pod0");
    api.delete(Kind::Vnic, "pod").unwrap();
    daemon.end();
}
