//! What others own, such as vNICs of pods, and config files: a saved file does not have it, a file that is loaded leaves it, and whoever
//! watches hears when something is somebody else's from now on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tests::api::{self, Api, NETWORKS, key};
use tests::cni::{Host, Pod, hear_each_other};
use tests::steady::Ping;
use tests::{Daemon, Netns, process};
use tonic::{Code, Status, Streaming};
use vswitch_api::v1::object::Spec;
use vswitch_api::v1::operation::Operation;
use vswitch_api::v1::watch_response::Event;
use vswitch_api::v1::*;

fn owner(entry: &Entry) -> Owner {
    Owner::try_from(entry.status.as_ref().unwrap().owner).unwrap()
}

fn create(api: &mut Api, spec: Spec, owner: Owner) -> Result<Entry, Status> {
    let request = CreateRequest { object: Some(api::object(spec)), owner: owner.into(), wait: true };
    Ok(api.runtime.block_on(api.objects.create(request))?.into_inner())
}

fn delete(api: &mut Api, kind: Kind, id: &str, owner: Owner) -> Result<(), Status> {
    let request = DeleteRequest { key: Some(key(kind, id)), owner: owner.into(), ..Default::default() };
    api.runtime.block_on(api.objects.delete(request)).map(|_| ())
}

fn null_vnic(name: &str, number: u8) -> Spec {
    Spec::Vnic(api::vnic(name, "red", number, port_spec::Kind::Null(port_spec::Null::default())))
}

fn blackhole(of: &str, to: &str) -> Spec {
    let route = VpcRoute { to: to.into(), blackhole: true, ..Default::default() };
    Spec::Route(Route { of: of.into(), route: Some(route) })
}

/// Whose everything is that is no section.
fn owners(api: &mut Api) -> BTreeMap<String, Owner> {
    let kinds = [Kind::Vpc, Kind::Subnet, Kind::Vnic, Kind::Location, Kind::Port, Kind::Route, Kind::Uplink];
    let all = kinds.iter().flat_map(|kind| api.list(*kind, 1000));
    all.map(|entry| (entry.key.clone().unwrap().id, owner(&entry))).collect()
}

fn named(all: &BTreeMap<String, Owner>, of: Owner) -> Vec<&str> {
    all.iter().filter(|(_, owner)| **owner == of).map(|(id, _)| id.as_str()).collect()
}

#[test]
fn ownership_a_saved_file_has_what_is_the_files_and_the_apis() {
    let host = Netns::new("host");
    let mut daemon = Daemon::start(&host, NETWORKS);
    let mut api = Api::connect(daemon.socket());
    for (spec, of) in [
        (null_vnic("vm", 1), Owner::Api),
        (null_vnic("pod", 2), Owner::Cni),
        (api::vpc("green", 300), Owner::Api),
        (blackhole("green", "10.8.0.0/16"), Owner::Api),
        (blackhole("red", "10.7.0.0/16"), Owner::Cni),
        (api::location(100, 9), Owner::Api),
        (api::location(100, 10), Owner::Cni),
    ] {
        create(&mut api, spec, of).unwrap();
    }
    // The API's route leads to the pod by its name, which a file without the pod cannot have.
    daemon.ctl("route add red 169.254.169.254/32 vnic pod");
    let file = daemon.dir().path().join("saved.toml");
    let (file, config) = (file.display().to_string(), daemon.ctl("show config"));
    let said = daemon.ctl(&format!("save {file}"));
    assert!(said.contains("3 objects that others own"), "{said}");
    let saved = std::fs::read_to_string(&file).unwrap();
    assert!(saved.starts_with("# Objects that others made") && saved.contains("3 of owner cni"), "{saved}");
    for (word, is_there) in
        [("\"vm\"", true), ("\"pod\"", false), ("10.8.0.0/16", true), ("10.7.0.0/16", false)]
    {
        assert_eq!(saved.contains(word), is_there, "{word}: {saved}");
    }
    process::run(&[&daemon.program().display().to_string(), "check", "--config", &file]);

    // In the same switch, loaded and read again: all are there, and what was the API's is the file's.
    let cni = ["100 10.0.0.10", "pod", "red 10.7.0.0/16"];
    for command in [format!("config load {file}"), "config reload".into(), format!("config load {file}")] {
        daemon.ctl(&command);
        let all = owners(&mut api);
        assert_eq!(named(&all, Owner::Cni), cni, "{command}");
        assert_eq!(named(&all, Owner::Api), [""; 0], "{command}");
        let files = ["100 10.0.0.9", "green", "green 10.8.0.0/16", "red 169.254.169.254/32", "vm"];
        assert!(files.iter().all(|id| all[*id] == Owner::File), "{command}: {all:?}");
    }
    let routes = daemon.json("show route red");
    let routes = routes.as_array().unwrap();
    let station = routes.iter().find(|row| row["to"] == "169.254.169.254/32").unwrap();
    assert_eq!(
        (&station["vnic"], &station["state"]),
        (&Value::from("pod"), &Value::from("local")),
        "{station}"
    );
    let lines = |text: &str| text.lines().filter(|line| !line.contains("169.254")).count();
    assert_eq!(lines(&daemon.ctl("show config")).abs_diff(lines(&config)), 0);
    // What the API makes now goes with the next load, what is the plugin's does not.
    create(&mut api, api::vpc("late", 400), Owner::Api).unwrap();
    create(&mut api, null_vnic("pod2", 3), Owner::Cni).unwrap();
    daemon.ctl(&format!("config load {file}"));
    let all = owners(&mut api);
    assert!(!all.contains_key("late") && all["pod2"] == Owner::Cni, "{all:?}");
    delete(&mut api, Kind::Vnic, "pod2", Owner::Cni).unwrap();

    // A file that does not go with what the plugin has is refused whole, by a load and by a reload.
    let refusals = [
        (
            saved.replace("name = \"red\"", "name = \"blue\"").replace("vpc = \"red\"", "vpc = \"blue\""),
            "10.7.0.0/16",
        ),
        (saved.replace("10.0.0.0/24", "10.1.0.0/24").replace("\"10.0.0.1\"", "\"10.1.0.1\""), "pod"),
        (saved.replace("\"10.0.0.1\"", "\"10.0.0.2\""), "VIP 10.0.0.2"),
        (saved.replace("name = \"vm\"", "name = \"pod\""), "owner cni"),
    ];
    let before = (owners(&mut api), daemon.ctl("show config"));
    let bad = format!("{file}.bad");
    for (text, word) in refusals {
        std::fs::write(&bad, &text).unwrap();
        let refused = daemon.try_ctl(&format!("config load {bad}")).unwrap_err();
        assert!(refused.contains(word), "{word:?} is not in: {refused}");
        assert_eq!((owners(&mut api), daemon.ctl("show config")), before, "{refused}");
    }
    // The plugin takes its own away as ever.
    delete(&mut api, Kind::Vnic, "pod", Owner::Cni).unwrap();

    // In a fresh switch: what was the file's and the API's, and the plugin makes its own anew.
    daemon.process().signal("TERM");
    daemon.process().wait(Duration::from_secs(10));
    std::fs::copy(&file, daemon.config()).unwrap();
    daemon.restart(&host);
    let mut api = Api::connect(daemon.socket());
    let all = owners(&mut api);
    assert!(all.values().all(|of| *of == Owner::File), "{all:?}");
    assert!(
        ["vm", "green", "green 10.8.0.0/16", "100 10.0.0.9"].iter().all(|id| all.contains_key(*id)),
        "{all:?}"
    );
    create(&mut api, null_vnic("pod", 2), Owner::Cni).unwrap();
    daemon.ctl("config reload");
    assert_eq!(owners(&mut api)["pod"], Owner::Cni);
    daemon.end();
}

/// Real pods hear each other while a saved file is loaded, and the plugin takes them away afterwards.
#[test]
fn ownership_of_pods_outlives_a_saved_file_that_is_loaded() {
    let mut host = Host::start();
    let network = host.network();
    let (a, b) = (Pod::new("a"), Pod::new("b"));
    let (of_a, of_b) = (host.add(&a, &network), host.add(&b, &network));
    hear_each_other((&a, &of_a), (&b, &of_b));
    let ping = Ping::start(&a.netns, &tests::cni::address(&of_b, false));
    let file = host.dir.path().join("saved.toml").display().to_string();
    for _ in 0..3 {
        host.daemon.ctl(&format!("save {file}"));
        assert!(!std::fs::read_to_string(&file).unwrap().contains("[[vnic]]"));
        host.daemon.ctl(&format!("config load {file}"));
        host.daemon.ctl("config reload");
    }
    assert_eq!(ping.stop().0, 0, "echoes were lost");
    host.check(&a, &network, &of_a).result();
    // With the saved file as its own the switch is killed, and goes on with the pods of its state file.
    std::fs::copy(&file, host.daemon.config()).unwrap();
    let process = host.daemon.process();
    process.signal("KILL");
    process.wait(Duration::from_secs(10));
    host.daemon.restart(&host.lab.host);
    tests::wait_for("the vNICs to be up again", Duration::from_secs(10), || {
        host.check(&a, &network, &of_a).success.then_some(())
    });
    hear_each_other((&a, &of_a), (&b, &of_b));
    host.daemon.settled();
    host.del(&a, &network);
    host.del(&b, &network);
    host.nothing_left(&[&a, &b]);
    host.daemon.stop();
}

/// What is told until an object of this id is: keys and owners.
fn told_until(api: &Api, watch: &mut Streaming<WatchResponse>, last: &str) -> Vec<(String, Owner, Object)> {
    let mut told = Vec::new();
    loop {
        match api.next(watch).event {
            Some(Event::Set(entry)) => {
                let id = entry.key.clone().unwrap().id;
                told.push((id.clone(), owner(&entry), entry.object.unwrap()));
                if id == last {
                    return told;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn ownership_that_changes_alone_is_told_to_those_who_watch() {
    let host = Netns::new("host");
    let daemon = Daemon::start(&host, NETWORKS);
    let mut api = Api::connect(daemon.socket());
    let of_file = "[[vpc]]\nname = \"green\"\nvni = 300\nroutes = [{ to = \"10.8.0.0/16\", blackhole = true }]\n\
        [[subnet]]\nvpc = \"green\"\nprefix = \"10.3.0.0/24\"\n\
        [[vnic]]\nname = \"vm\"\nvpc = \"red\"\nmac = \"02:00:00:00:01:01\"\nvips = [\"10.0.0.1\"]\nport = { kind = \"null\" }\n\
        [[location]]\nvni = 100\nvip = \"10.0.0.9\"\nmac = \"02:00:00:00:02:09\"\nvtep = \"172.16.0.2\"\n[rcft]\nquota = 7\n";
    let made = [
        api::vpc("green", 300),
        blackhole("green", "10.8.0.0/16"),
        api::subnet("green", "10.3.0.0/24"),
        null_vnic("vm", 1),
        null_vnic("other", 5),
        api::location(100, 9),
    ];
    for spec in made {
        create(&mut api, spec, Owner::Api).unwrap();
    }
    api.update(Spec::Rcft(Rcft { quota: Some("7".into()), ..Default::default() }), &["quota"]).unwrap();
    let mut watch = api.watch(&[]);
    let mut at_first = Vec::new();
    loop {
        match api.next(&mut watch).event {
            Some(Event::Set(entry)) => at_first.push(entry),
            Some(Event::Complete(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    let mark = |api: &mut Api, n: u32| {
        drop(create(api, api::vpc(&format!("mark{n}"), 900 + n), Owner::Api).unwrap())
    };

    // A file that says of objects what the API said: they are its own from then on, and nothing else is.
    daemon.rewrite_config(&format!("{NETWORKS}{of_file}"));
    daemon.ctl("config reload");
    mark(&mut api, 1);
    let told = told_until(&api, &mut watch, "mark1");
    let mut ids: Vec<(&str, Owner)> = told.iter().map(|(id, of, _)| (id.as_str(), *of)).collect();
    ids.sort();
    let file = |id| (id, Owner::File);
    let expected = ["", "100 10.0.0.9", "green", "green 10.3.0.0/24"].map(file);
    assert_eq!(ids, [&expected[..], &[("mark1", Owner::Api), file("vm")]].concat(), "{told:?}");
    for (id, _, object) in told.iter().filter(|(id, ..)| id != "mark1") {
        let is_it = |entry: &&Entry| {
            let before = entry.object.as_ref().and_then(|object| object.spec.as_ref());
            let kinds = before.zip(object.spec.as_ref());
            entry.key.as_ref().unwrap().id == *id
                && kinds.is_some_and(|(a, b)| std::mem::discriminant(a) == std::mem::discriminant(b))
        };
        let before = at_first.iter().find(is_it).unwrap();
        assert_eq!(before.object.as_ref(), Some(object), "{id} is as it was");
    }

    // A route alone: its VPC is told.
    create(&mut api, blackhole("red", "10.7.0.0/16"), Owner::Api).unwrap();
    mark(&mut api, 2);
    assert_eq!(told_until(&api, &mut watch, "mark2").len(), 2);
    let networks = NETWORKS.replacen(
        "vni = 100\n",
        "vni = 100\nroutes = [{ to = \"10.7.0.0/16\", blackhole = true }]\n",
        1,
    );
    daemon.rewrite_config(&format!("{networks}{of_file}"));
    daemon.ctl("config reload");
    mark(&mut api, 3);
    let told = told_until(&api, &mut watch, "mark3");
    assert_eq!(told.iter().map(|(id, ..)| id.as_str()).collect::<Vec<_>>(), ["red", "mark3"], "{told:?}");
    // Nothing is said of a reload that gives nothing to anybody.
    daemon.ctl("config reload");
    mark(&mut api, 4);
    assert_eq!(told_until(&api, &mut watch, "mark4").len(), 1);

    // One that goes and comes as it was in one change, of another owner.
    let gone = DeleteRequest { key: Some(key(Kind::Vnic, "other")), ..Default::default() };
    let come = CreateRequest {
        object: Some(api::object(null_vnic("other", 5))),
        owner: Owner::Cni.into(),
        ..Default::default()
    };
    api.apply(vec![Operation::Delete(gone), Operation::Create(come)], None).unwrap();
    mark(&mut api, 5);
    let told = told_until(&api, &mut watch, "mark5");
    let told: Vec<_> = told.iter().map(|(id, of, _)| (id.as_str(), *of)).collect();
    assert_eq!(told, [("other", Owner::Cni), ("mark5", Owner::Api)]);
    let refused = api.delete(Kind::Vnic, "other").unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    daemon.end();
}
