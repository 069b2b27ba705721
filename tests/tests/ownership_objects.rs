//! Objects belong to whoever made them: every pair of an owner and one who wants to change what is not his, and reloads and kills
//! in the middle of changes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tests::api::{self, Api, NETWORKS, key};
use tests::{Daemon, Netns, process};
use tonic::{Code, Status};
use vswitch_api::v1::object::Spec;
use vswitch_api::v1::operation::Operation;
use vswitch_api::v1::ports_client::PortsClient;
use vswitch_api::v1::tenants_client::TenantsClient;
use vswitch_api::v1::watch_response::Event;
use vswitch_api::v1::*;

const OWNERS: [(Owner, &str); 5] = [
    (Owner::File, "file"),
    (Owner::Api, "api"),
    (Owner::Etcd, "etcd"),
    (Owner::Evpn, "evpn"),
    (Owner::Cni, "cni"),
];
/// Those that clients can ask as.
const CLAIMS: [Owner; 2] = [Owner::Api, Owner::Cni];
/// Objects of a client at a time.
const MOST: usize = 30;
/// How many times the switch is killed.
const KILLS: usize = 6;

fn owner(entry: &Entry) -> Owner {
    Owner::try_from(entry.status.as_ref().unwrap().owner).unwrap()
}

fn create(api: &mut Api, spec: Spec, owner: Owner) -> Result<Entry, Status> {
    let request = CreateRequest { object: Some(api::object(spec)), owner: owner.into(), wait: false };
    Ok(api.runtime.block_on(api.objects.create(request))?.into_inner())
}

fn update(api: &mut Api, spec: Spec, owner: Owner, force: bool) -> Result<Entry, Status> {
    let object = Some(api::object(spec));
    let request = UpdateRequest { object, update_mask: None, owner: owner.into(), force, wait: false };
    Ok(api.runtime.block_on(api.objects.update(request))?.into_inner())
}

fn delete(api: &mut Api, kind: Kind, id: &str, owner: Owner, force: bool) -> Result<(), Status> {
    let request = DeleteRequest { key: Some(key(kind, id)), owner: owner.into(), force, wait: false };
    api.runtime.block_on(api.objects.delete(request)).map(|_| ())
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, words: &[&str]) {
    let status = result.unwrap_err();
    assert_eq!(status.code(), code, "{status:?}");
    for word in words {
        assert!(status.message().contains(word), "'{word}' is missing: {}", status.message());
    }
}

/// A VPC, a location in it and a route of it of each owner; the objects of all but the file are in a state file.
fn objects_of(word: &str, number: usize) -> String {
    let vni = 500 + number;
    format!(
        "[[vpc]]\nname = \"{word}\"\nvni = {vni}\nroutes = [{{ to = \"10.9.0.0/16\", blackhole = true }}]\n\
         [[location]]\nvni = {vni}\nvip = \"10.0.0.7\"\nmac = \"02:00:00:00:02:07\"\nvtep = \"172.16.0.2\"\n"
    )
}

fn vpc_of(word: &str, number: usize) -> Vpc {
    let to = "10.9.0.0/16".to_owned();
    let routes = vec![VpcRoute { to, blackhole: true, ..Default::default() }];
    Vpc { name: word.into(), vni: Some(500 + number as u32), routes, ..Default::default() }
}

fn location_of(number: usize) -> Spec {
    api::location(500 + number as u32, 7)
}

/// The body of the config file, with a state file beside it.
fn body(state: &std::path::Path, more: &str) -> String {
    format!("{NETWORKS}{}{more}\n[control]\nstate = \"{}\"\n", objects_of("file", 0), state.display())
}

#[test]
fn ownership_of_every_owner_is_respected_by_every_client() {
    let host = Netns::new("host");
    let dir = tests::Workdir::new("ownership");
    let state = dir.path().join("state");
    // As another run left it: all owners are in it, those too whose writers are no clients of the API.
    let mut saved = format!("{NETWORKS}{}", objects_of("file", 0));
    for (number, (_, word)) in OWNERS.iter().enumerate().skip(1) {
        saved.push_str(&objects_of(word, number));
    }
    saved.push_str("\n# Who made what, where it was neither the config file nor the API or the console:\n");
    for (number, (_, word)) in OWNERS.iter().enumerate().skip(2) {
        let vni = 500 + number;
        saved.push_str(&format!(
            "#@ {word} vpc {word}\n#@ {word} location {vni} 10.0.0.7\n#@ {word} route {word} 10.9.0.0/16\n"
        ));
    }
    std::fs::write(&state, &saved).unwrap();
    let mut daemon = Daemon::start(&host, &body(&state, ""));
    let mut api = Api::connect(daemon.socket());
    let all_owners = |api: &mut Api| {
        for (number, (of, word)) in OWNERS.iter().enumerate() {
            let location = format!("{} 10.0.0.7", 500 + number);
            for (kind, id) in [
                (Kind::Vpc, *word),
                (Kind::Location, &location),
                (Kind::Route, &format!("{word} 10.9.0.0/16")),
            ] {
                assert_eq!(owner(&api.get(kind, id).unwrap()), *of, "{kind:?} {id}");
            }
            assert!(api.list(Kind::Vpc, 10).iter().any(|entry| owner(entry) == *of));
        }
    };
    all_owners(&mut api);
    let mut watch = api.watch(&[Kind::Vpc]);
    let mut told = BTreeMap::new();
    while let Some(Event::Set(entry)) = api.next(&mut watch).event {
        told.insert(entry.key.clone().unwrap().id, owner(&entry));
    }
    assert!(OWNERS.iter().all(|(of, word)| told[*word] == *of), "{told:?}");

    let before = (daemon.ctl("show config"), daemon.ctl("show vlt"));
    let file = daemon.config().file_name().unwrap().to_string_lossy().into_owned();
    for (number, (of, word)) in OWNERS.into_iter().enumerate() {
        let place = if of == Owner::File { format!("{file}:") } else { format!("owner {word}") };
        let vpc = vpc_of(word, number);
        let (route, location) = (format!("{word} 10.9.0.0/16"), format!("{} 10.0.0.7", 500 + number));
        for claim in CLAIMS.into_iter().filter(|claim| *claim != of) {
            let words = [word, place.as_str()];
            // Made again, as it is and otherwise.
            let other = Vpc { flood: true, ..vpc.clone() };
            for spec in [Spec::Vpc(vpc.clone()), Spec::Vpc(other.clone()), location_of(number)] {
                assert_refused(create(&mut api, spec, claim), Code::AlreadyExists, &words[1..]);
            }
            // Changed.
            let refused = update(&mut api, Spec::Vpc(other), claim, false);
            assert_refused(refused, Code::FailedPrecondition, &words);
            // A change that changes nothing is none.
            update(&mut api, Spec::Vpc(vpc.clone()), claim, false).unwrap();
            // Taken away.
            for (kind, id) in [(Kind::Vpc, word), (Kind::Route, &route), (Kind::Location, &location)] {
                let refused = delete(&mut api, kind, id, claim, false);
                assert_refused(refused, Code::FailedPrecondition, &words[1..]);
                // And not in a batch with something of its own either.
                let gone = DeleteRequest {
                    key: Some(key(kind, id)),
                    owner: claim.into(),
                    ..DeleteRequest::default()
                };
                let batch = vec![api::creation(api::vpc("mine", 900)), Operation::Delete(gone)];
                assert_refused(api.apply(batch, None), Code::FailedPrecondition, &words[1..]);
            }
        }
        // An owner that asks like that may do all of it.
        if CLAIMS.contains(&of) {
            let other = Vpc { flood: true, ..vpc.clone() };
            assert_eq!(owner(&update(&mut api, Spec::Vpc(other), of, false).unwrap()), of);
            update(&mut api, Spec::Vpc(vpc.clone()), of, false).unwrap();
            delete(&mut api, Kind::Location, &location, of, false).unwrap();
            delete(&mut api, Kind::Vpc, word, of, false).unwrap();
            assert_eq!(owner(&create(&mut api, Spec::Vpc(vpc.clone()), of).unwrap()), of);
            create(&mut api, location_of(number), of).unwrap();
        }
        // A file that names what others made is refused whole, as it is and otherwise.
        for flood in ["", "flood = true\n"] {
            let more = objects_of(word, number).replacen("routes", &format!("{flood}routes"), 1);
            if of == Owner::File || of == Owner::Api && flood.is_empty() {
                continue;
            }
            daemon.rewrite_config(&body(&state, &format!("[[vpc]]\nname = \"new\"\nvni = 901\n{more}")));
            let refused = daemon.try_ctl("config reload").unwrap_err();
            for word in [word, "run time", &format!("{file}:")] {
                assert!(refused.contains(word), "'{word}' is missing: {refused}");
            }
            if of != Owner::Api {
                assert!(refused.contains(&format!("owner {word}")), "{refused}");
            }
        }
        daemon.rewrite_config(&body(&state, ""));
        daemon.ctl("config reload");
    }
    let same = |daemon: &Daemon| {
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&daemon.ctl("show config")), sorted(&before.0));
        assert_eq!(sorted(&daemon.ctl("show vlt")).len(), sorted(&before.1).len());
    };
    same(&daemon);
    all_owners(&mut api);

    // Names that no client can ask as.
    for claim in [Owner::File, Owner::Etcd, Owner::Evpn] {
        assert_refused(create(&mut api, api::vpc("x", 902), claim), Code::InvalidArgument, &["OWNER_CNI"]);
    }
    // An operator repairs what others made; it stays theirs.
    for (number, (of, word)) in OWNERS.into_iter().enumerate() {
        let other = Spec::Vpc(Vpc { flood: true, ..vpc_of(word, number) });
        assert_eq!(owner(&update(&mut api, other, Owner::Api, true).unwrap()), of);
    }
    // What went and comes again is whose who makes it.
    delete(&mut api, Kind::Location, "502 10.0.0.7", Owner::Api, true).unwrap();
    assert_eq!(owner(&create(&mut api, location_of(2), Owner::Cni).unwrap()), Owner::Cni);
    daemon.ctl("vlt del 502 10.0.0.7");
    assert_eq!(owner(&create(&mut api, location_of(2), Owner::Api).unwrap()), Owner::Api);
    delete(&mut api, Kind::Vpc, "evpn", Owner::Cni, true).unwrap();
    assert_eq!(owner(&create(&mut api, Spec::Vpc(vpc_of("evpn", 3)), Owner::Cni).unwrap()), Owner::Cni);
    let owners = |api: &mut Api| {
        let told = [Kind::Vpc, Kind::Location, Kind::Route].map(|kind| api.list(kind, 100));
        let told = told.iter().flatten();
        told.map(|entry| (entry.key.clone().unwrap().id, owner(entry))).collect::<BTreeMap<_, _>>()
    };
    let told = owners(&mut api);
    assert_eq!(told["evpn 10.9.0.0/16"], Owner::Cni);
    // All of it is there when the switch was killed.
    process::run(&["kill", "-KILL", &daemon.process().pid().to_string()]);
    daemon.process().wait(Duration::from_secs(10));
    daemon.restart(&host);
    let mut api = Api::connect(daemon.socket());
    assert_eq!(owners(&mut api), told);
    daemon.end();
}

/// Routes and rules that others gave to what the file has, and keys of sections: a reload and a restart leave them.
#[test]
fn ownership_within_objects_of_the_file_outlives_reloads_and_kills() {
    let host = Netns::new("host");
    let dir = tests::Workdir::new("ownership");
    let state = dir.path().join("state");
    let file = |routes: &str, more: &str| {
        format!(
            "[[vpc]]\nname = \"blue\"\nvni = 200\nroutes = [{routes}]\n\
             [[security-group]]\nname = \"web\"\nvpc = \"blue\"\nrules = [{{ direction = \"in\", protocol = \"tcp\", ports = \"80\" }}]\n\
             [rcft]\nquota = 500\n{more}[control]\nstate = \"{}\"\n",
            state.display()
        )
    };
    let of_file = "{ to = \"10.8.0.0/16\", blackhole = true }";
    let mut daemon = Daemon::start(&host, &format!("{NETWORKS}{}", file(of_file, "")));
    let mut api = Api::connect(daemon.socket());
    let route = |to: &str| {
        let route = VpcRoute { to: to.into(), blackhole: true, ..Default::default() };
        Spec::Route(Route { of: "blue".into(), route: Some(route) })
    };
    let rule = SecurityRule {
        direction: RuleDirection::In.into(),
        protocol: Some("tcp".into()),
        ports: Some("443".into()),
        ..Default::default()
    };
    create(&mut api, route("10.7.0.0/16"), Owner::Api).unwrap();
    create(&mut api, route("10.6.0.0/16"), Owner::Cni).unwrap();
    let rule = create(&mut api, Spec::Rule(Rule { of: "web".into(), rule: Some(rule) }), Owner::Api).unwrap();
    // The file's keys of a section are the file's, others are not.
    let refused = api.update(Spec::Rcft(Rcft { quota: Some("7".into()), ..Default::default() }), &["quota"]);
    assert_refused(refused, Code::FailedPrecondition, &["[rcft] quota", "owner file", "vswitch.toml"]);
    let idle = Rcft { idle_timeout: Some("77s".into()), ..Default::default() };
    api.update(Spec::Rcft(idle), &["idle_timeout"]).unwrap();
    let stands = |api: &mut Api, at: &str| {
        for (kind, id, of) in [
            (Kind::Route, "blue 10.8.0.0/16", Owner::File),
            (Kind::Route, "blue 10.7.0.0/16", Owner::Api),
            (Kind::Route, "blue 10.6.0.0/16", Owner::Cni),
            (Kind::Rule, &rule.key.as_ref().unwrap().id, Owner::Api),
        ] {
            let entry = api.get(kind, id).unwrap_or_else(|status| panic!("{at}: {id}: {status}"));
            assert_eq!(owner(&entry), of, "{at}: {id}");
        }
        let Some(Spec::Rcft(rcft)) = api.get(Kind::Rcft, "").unwrap().object.unwrap().spec else { panic!() };
        let (quota, idle) = (rcft.quota.unwrap(), rcft.idle_timeout.unwrap());
        assert_eq!((quota.as_str(), idle.as_str()), ("500", "77s"), "{at}");
    };
    stands(&mut api, "at first");
    daemon.ctl("config reload");
    stands(&mut api, "after a reload");
    // The file says something new of the same object.
    let more = format!("{of_file}, {{ to = \"10.5.0.0/16\", blackhole = true }}");
    daemon.rewrite_config(&format!("{NETWORKS}{}", file(&more, "")));
    daemon.ctl("config reload");
    stands(&mut api, "after a change of the file");
    assert_eq!(owner(&api.get(Kind::Route, "blue 10.5.0.0/16").unwrap()), Owner::File);
    daemon.rewrite_config(&format!("{NETWORKS}{}", file(of_file, "")));
    for _ in 0..2 {
        process::run(&["kill", "-KILL", &daemon.process().pid().to_string()]);
        daemon.process().wait(Duration::from_secs(10));
        daemon.restart(&host);
        api = Api::connect(daemon.socket());
        stands(&mut api, "after a kill");
        assert!(api.get(Kind::Route, "blue 10.5.0.0/16").is_err());
    }
    // It says something else of a route that others made.
    let more =
        format!("{of_file}, {{ to = \"10.7.0.0/16\", vtep = \"172.16.0.2\", mac = \"02:00:00:00:02:09\" }}");
    daemon.rewrite_config(&format!("{NETWORKS}{}", file(&more, "")));
    let refused = daemon.try_ctl("config reload").unwrap_err();
    assert!(refused.contains("10.7.0.0/16") && refused.contains("run time"), "{refused}");
    stands(&mut api, "after a collision");
    daemon.end();
}

/// The calls that take away or move what an object has are changes of it.
#[test]
fn ownership_is_respected_where_ports_are_detached_and_machines_moved() {
    let host = Netns::new("host");
    let dir = tests::Workdir::new("ownership");
    let state = dir.path().join("state");
    let file = "[[port]]\nname = \"of-file\"\nport = { kind = \"null\" }\n";
    let daemon = Daemon::start(&host, &body(&state, file));
    let mut api = Api::connect(daemon.socket());
    daemon.ctl("port attach of-api null");
    // A vNIC takes over the plain port of its name where whoever asks may have it; the same request again finds it done.
    let named = |name: &str| Vnic {
        name: name.into(),
        vpc: "red".into(),
        mac: "02:00:00:00:00:02".into(),
        vips: vec!["10.0.0.2".into()],
        behind: Some(vnic::Behind::Trunk(name.into())),
        ..Default::default()
    };
    for (port, owner, whose) in [
        ("of-file", Owner::Api, "vswitch.toml:"),
        ("of-file", Owner::Cni, "vswitch.toml:"),
        ("of-api", Owner::Cni, "owner api"),
    ] {
        let asked = create(&mut api, Spec::Vnic(named(port)), owner);
        assert_refused(asked, Code::FailedPrecondition, &[port, whose]);
    }
    for _ in 0..2 {
        create(&mut api, Spec::Vnic(named("of-api")), Owner::Api).unwrap();
    }
    daemon.ctl("vnic del of-api");
    daemon.ctl("port attach of-api null");
    daemon.ctl("config reload");
    // The locations of a network that its VPC would leave.
    let mine = |vni| Spec::Vpc(Vpc { name: "mine".into(), vni: Some(vni), ..Default::default() });
    create(&mut api, mine(600), Owner::Api).unwrap();
    create(&mut api, api::location(600, 7), Owner::Api).unwrap();
    let asked = update(&mut api, mine(601), Owner::Api, false);
    assert_refused(asked, Code::FailedPrecondition, &["location 600 10.0.0.7", "vlt del"]);
    delete(&mut api, Kind::Location, "600 10.0.0.7", Owner::Api, false).unwrap();
    update(&mut api, mine(601), Owner::Api, false).unwrap();
    let pod = Vnic {
        name: "pod".into(),
        vpc: "red".into(),
        mac: "02:00:00:00:00:01".into(),
        vips: vec!["10.0.0.1".into()],
        behind: Some(vnic::Behind::Port(PortSpec {
            kind: Some(port_spec::Kind::Null(port_spec::Null::default())),
        })),
        ..Default::default()
    };
    create(&mut api, Spec::Vnic(pod.clone()), Owner::Cni).unwrap();
    create(&mut api, api::location(100, 7), Owner::Cni).unwrap();
    let channel = api.channel.clone();
    let detach = |api: &mut Api, port: &str, owner: Owner, force| {
        let request = DetachPortRequest { port: port.into(), owner: owner.into(), force };
        api.runtime.block_on(PortsClient::new(channel.clone()).detach_port(request)).map(|_| ())
    };
    let go = |api: &mut Api, vnic: &str, owner: Owner, force| {
        let (vnic, vtep) = (vnic.into(), "172.16.0.9".into());
        let request = MoveVnicRequest { vnic, vtep, owner: owner.into(), force };
        api.runtime.block_on(TenantsClient::new(channel.clone()).move_vnic(request)).map(|_| ())
    };
    let Spec::Location(location) = api::location(100, 7) else { panic!() };
    let place = |api: &mut Api, owner: Owner, force| {
        let (vni, mac, vtep) = (100, location.mac.clone(), "172.16.0.9".into());
        let request = MoveLocationsRequest { vni, mac, vtep, owner: owner.into(), force };
        api.runtime.block_on(TenantsClient::new(channel.clone()).move_locations(request)).map(|_| ())
    };
    for (port, owner, whose) in [
        ("of-file", Owner::Api, "vswitch.toml:"),
        ("of-file", Owner::Cni, "vswitch.toml:"),
        ("up", Owner::Api, "vswitch.toml:"),
        ("pod", Owner::Api, "owner cni"),
        ("of-api", Owner::Cni, "owner api"),
    ] {
        assert_refused(detach(&mut api, port, owner, false), Code::FailedPrecondition, &[port, whose]);
    }
    assert_refused(go(&mut api, "pod", Owner::Api, false), Code::FailedPrecondition, &["pod", "owner cni"]);
    assert_refused(place(&mut api, Owner::Api, false), Code::FailedPrecondition, &["10.0.0.7", "owner cni"]);
    // Whoever made them may, and so may an operator, with `force` or at the console.
    place(&mut api, Owner::Cni, false).unwrap();
    place(&mut api, Owner::Api, true).unwrap();
    daemon.ctl(&format!("vlt move 100 {} vtep 172.16.0.2", location.mac));
    assert_eq!(owner(&api.get(Kind::Location, "100 10.0.0.7").unwrap()), Owner::Cni);
    go(&mut api, "pod", Owner::Cni, false).unwrap();
    assert_eq!(owner(&api.get(Kind::Location, "100 10.0.0.1").unwrap()), Owner::Cni);
    for owner in [Owner::Cni, Owner::Api] {
        create(&mut api, Spec::Vnic(pod.clone()), Owner::Cni).unwrap();
        detach(&mut api, "pod", owner, owner == Owner::Api).unwrap();
    }
    create(&mut api, Spec::Vnic(pod), Owner::Cni).unwrap();
    daemon.ctl("vnic move pod vtep 172.16.0.2");
    daemon.ctl("port detach of-file");
    daemon.ctl("config reload");
    detach(&mut api, "of-file", Owner::Api, true).unwrap();
    detach(&mut api, "of-api", Owner::Api, false).unwrap();
    daemon.end();
}

struct Failing<'f>(&'f AtomicBool);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Clients make and delete, the file is changed and read again all the while, and the switch is killed.
#[test]
fn ownership_reloads_beside_changes_lose_nothing_acknowledged() {
    let host = Netns::new("host");
    let dir = tests::Workdir::new("ownership");
    let state = dir.path().join("state");
    let control = format!("[control]\nstate = \"{}\"\n", state.display());
    let file = |round: usize| format!("{NETWORKS}[[vpc]]\nname = \"f{}\"\nvni = 300\n{control}", round % 3);
    let mut daemon = Daemon::start(&host, &file(0));
    let mut there: BTreeMap<String, Owner> = BTreeMap::new();
    let (mut round, mut next) = (0, 0);
    for kill in 0..KILLS {
        let (killed, failed) = (AtomicBool::new(false), AtomicBool::new(false));
        let socket = daemon.socket().to_owned();
        let pid = daemon.process().pid().to_string();
        let outcome = std::thread::scope(|scope| {
            // Clients would go on for ever if anything here failed.
            let _failing = Failing(&failed);
            let workers: Vec<_> = CLAIMS
                .into_iter()
                .enumerate()
                .map(|(at, claim)| {
                    let (killed, failed, socket) = (&killed, &failed, &socket);
                    let first = next;
                    let mut mine: Vec<String> =
                        there.iter().filter(|(_, of)| **of == claim).map(|(id, _)| id.clone()).collect();
                    scope.spawn(move || {
                        let mut api = Api::connect(socket);
                        for n in first.. {
                            assert!(!failed.load(Ordering::Acquire) || killed.load(Ordering::Acquire));
                            let vni = 1000 + 2 * n + at as u32;
                            let name = format!("v{vni}");
                            let done = if mine.len() > MOST || n % 3 == 2 && !mine.is_empty() {
                                let gone = mine.remove(0);
                                delete(&mut api, Kind::Vpc, &gone, claim, false).map_err(|e| (e, gone))
                            } else {
                                let made = create(&mut api, api::vpc(&name, vni), claim);
                                made.map(|_| mine.push(name.clone())).map_err(|e| (e, name))
                            };
                            if let Err((status, open)) = done {
                                assert!(killed.load(Ordering::Acquire), "a change was refused: {status:?}");
                                return (claim, mine, open, n);
                            }
                        }
                        unreachable!()
                    })
                })
                .collect();
            for _ in 0..5 {
                round += 1;
                daemon.rewrite_config(&file(round));
                daemon.ctl("config reload");
                assert!(daemon.ctl("show vpc").contains(&format!("f{}", round % 3)));
                std::thread::sleep(Duration::from_millis(40 + 30 * kill as u64));
            }
            killed.store(true, Ordering::Release);
            process::run(&["kill", "-KILL", &pid]);
            workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
        });
        daemon.process().wait(Duration::from_secs(10));
        daemon.restart(&host);
        let mut api = Api::connect(daemon.socket());
        let found: BTreeMap<String, Owner> = api
            .list(Kind::Vpc, 1000)
            .iter()
            .map(|entry| (entry.key.clone().unwrap().id, owner(entry)))
            .filter(|(id, _)| id.starts_with('v'))
            .collect();
        let open: Vec<&String> = outcome.iter().map(|(_, _, open, _)| open).collect();
        for (claim, mine, ..) in &outcome {
            for id in mine {
                assert_eq!(found.get(id), Some(claim), "kill {kill}: {id} was acknowledged");
            }
        }
        let all: Vec<&String> = outcome.iter().flat_map(|(_, mine, ..)| mine).collect();
        for id in found.keys() {
            assert!(all.contains(&id) || open.contains(&id), "kill {kill}: {id} was deleted and is back");
        }
        let files: Vec<_> =
            api.list(Kind::Vpc, 1000).into_iter().filter(|entry| owner(entry) == Owner::File).collect();
        assert_eq!(files.len(), 2, "red, and the one of the file as it is now: {files:?}");
        next = outcome.iter().map(|(.., n)| n + 1).max().unwrap();
        there = found;
    }
    eprintln!("{KILLS} kills, {round} reloads, {next} rounds of changes, {} VPCs", there.len());
    assert!(next > 50, "{next}");
    daemon.end();
}
