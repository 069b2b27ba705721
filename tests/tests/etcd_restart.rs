//! What hosts of a cluster keep of each other over a restart without etcd, who has an address and which objects there are after etcd was
//! emptied, what of an etcd that is full of garbage they take in, and groups that go while stations of other hosts are in them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::etcd::{Etcd, Fabric, GRACE, Host, LEASE, control, faults, place, wait_for_place};
use tests::lab::vpc;
use tests::steady::Ping;
use tests::{Daemon, Workdir, wait_for};

const RED: u32 = 100;
const SOON: Duration = Duration::from_secs(10);

/// How many stations of other hosts are in a group.
fn members(daemon: &Daemon) -> Option<u64> {
    let shown = daemon.json("show security-group web");
    let groups = shown.as_array().or_else(|| shown["groups"].as_array())?;
    groups.first()?["locations"].as_u64()
}

#[test]
fn etcd_a_group_goes_though_stations_of_other_hosts_are_in_it() {
    let (fabric, etcd) = (Fabric::new(), Etcd::start());
    let hosts: Vec<Host> = (1..3).map(|number| Host::new(&fabric, &etcd, number)).collect();
    let red: Vec<_> = hosts.iter().map(|host| host.container("red", 1, host.number as u8)).collect();
    let network = vpc("red", RED, &["10.0.0.0/16"], "");
    let group = "[[security-group]]\nname = \"web\"\nvpc = \"red\"\nrules = [{ direction = \"in\", protocol = \"icmp\" }]\n";
    let member = red[0].vnic("security-groups = [\"web\"]");
    let first = hosts[0].start(&etcd, &[&network, group, &member].concat());
    let second = hosts[1].start(&etcd, &[network, red[1].vnic("")].concat());
    wait_for_place(&second, RED, &red[0].address, Some("vtep 172.16.0.1"), SOON);
    wait_for_place(&first, RED, &red[1].address, Some("vtep 172.16.0.2"), SOON);
    let ping = Ping::start(&red[1].netns, &red[0].address);
    for _ in 0..3 {
        second.ctl("security-group add web vpc red");
        wait_for("the station to be in it", SOON, || (members(&second) == Some(1)).then_some(()));
        second.ctl("security-group del web");
        assert_eq!(place(&second, RED, &red[0].address).as_deref(), Some("vtep 172.16.0.1"));
        assert_eq!(faults(&second, "refused"), []);
    }
    // It is etcd's as before, and goes when its host says so.
    assert_eq!(ping.stop().0, 0, "packets were lost");
    first.ctl(&format!("vnic del {}", red[0].name));
    wait_for_place(&second, RED, &red[0].address, None, SOON);
    for daemon in [first, second] {
        daemon.assert_conserved();
        daemon.stop();
    }
}

#[test]
fn etcd_hosts_without_addresses_are_known_after_a_restart_without_etcd() {
    let (fabric, mut etcd) = (Fabric::new(), Etcd::start());
    let host = Host::new(&fabric, &etcd, 1);
    let red = host.container("red", 1, 1);
    let folder = Workdir::new("state");
    let state = format!("state = \"{}\"\n", folder.path().join("state").display());
    let body = [vpc("red", RED, &["10.0.0.0/16"], "flood = true"), red.vnic("")].concat();
    let mut daemon = Daemon::start_alone(&host.netns, &host.config(&etcd, &state, &body));
    let known = |daemon: &Daemon, host: u8| {
        let wanted = format!("172.16.0.{host} ");
        daemon.try_ctl("show neigh").is_ok_and(|text| text.contains(&wanted))
    };
    let become_known = |daemon: &Daemon, host: u8, wanted: bool| {
        wait_for(&format!("host {host} to be known: {wanted}"), SOON, || {
            (known(daemon, host) == wanted).then_some(())
        });
    };
    // Two hosts that have said nothing but that they take part.
    for number in [8, 9] {
        let key = format!("/vswitch/v1/vni/{RED}/h{number}");
        etcd.ctl(&["put", &key, &format!("\n\u{c}172.16.0.10{number}")]);
        become_known(&daemon, 100 + number, true);
    }
    // What is told last is written a second later.
    std::thread::sleep(Duration::from_secs(2));
    etcd.kill(0);
    daemon.process().signal("KILL");
    daemon.process().wait(SOON);
    daemon.restart(&host.netns);
    become_known(&daemon, 108, true);
    become_known(&daemon, 109, true);
    assert!(control(&daemon)["endpoint"].is_null());
    // One of them is gone when etcd is back.
    etcd.revive(0);
    etcd.wait_until_healthy();
    etcd.ctl(&["del", &format!("/vswitch/v1/vni/{RED}/h8")]);
    become_known(&daemon, 108, false);
    assert!(known(&daemon, 109));
    daemon.end();
}

/// A machine goes from the first host to the second while the first is down, and etcd is emptied before that, or after it. The first comes back
/// with what it had.
fn come_back_after_etcd_was_emptied(while_away: bool) {
    let (fabric, mut etcd) = (Fabric::new(), Etcd::start());
    // Generations of what is lost are above all those that come after it.
    for number in 0..200 {
        etcd.ctl(&["put", "/other", &number.to_string()]);
    }
    let hosts: Vec<Host> = (1..4).map(|number| Host::new(&fabric, &etcd, number)).collect();
    let red: Vec<_> = hosts.iter().map(|host| host.container("red", 1, host.number as u8)).collect();
    let moved = hosts[1].container("red", 1, 1);
    let network = vpc("red", RED, &["10.0.0.0/16"], "");
    let mut daemons: Vec<Daemon> = hosts
        .iter()
        .zip(&red)
        .map(|(host, container)| host.start(&etcd, &[network.clone(), container.vnic("")].concat()))
        .collect();
    let patience = SOON + GRACE + Duration::from_secs(LEASE);
    let lose_all = |etcd: &mut Etcd, names: &[String]| {
        etcd.kill(0);
        etcd.empty(0);
        etcd.revive(0);
        etcd.wait_until_healthy();
        wait_for("hosts to publish again", patience, || {
            let keys = etcd.ctl(&["get", "--keys-only", "--prefix", &format!("/vswitch/v1/vni/{RED}/")]);
            names.iter().all(|name| keys.contains(name)).then_some(())
        });
        assert!(etcd.revision() < 200);
    };
    wait_for_place(&daemons[2], RED, &moved.address, Some("vtep 172.16.0.1"), SOON);
    if !while_away {
        lose_all(&mut etcd, &[format!("/h1/{}", red[0].name)]);
    }
    daemons[0].process().signal("KILL");
    daemons[0].process().wait(SOON);
    wait_for_place(&daemons[1], RED, &moved.address, None, patience);
    daemons[1].ctl(&moved.add());
    wait_for_place(&daemons[2], RED, &moved.address, Some("vtep 172.16.0.2"), patience);
    if while_away {
        lose_all(&mut etcd, &[format!("/h2/{}", moved.name), format!("/h3/{}", red[2].name)]);
    }
    daemons[0].restart(&hosts[0].netns);
    wait_for("both claims to be known", patience, || {
        (faults(&daemons[2], "claimed-twice").len() == 1).then_some(())
    });
    assert_eq!(place(&daemons[2], RED, &moved.address).as_deref(), Some("vtep 172.16.0.2"));
    for daemon in daemons {
        daemon.end();
    }
}

#[test]
fn etcd_that_was_emptied_lets_the_later_claim_have_an_address() {
    come_back_after_etcd_was_emptied(false);
}

#[test]
fn etcd_that_was_emptied_meanwhile_gives_a_host_that_was_away_nothing_back() {
    come_back_after_etcd_was_emptied(true);
}

#[test]
fn etcd_that_was_emptied_takes_no_objects_off_the_hosts() {
    let (fabric, mut etcd) = (Fabric::new(), Etcd::start());
    let host = Host::new(&fabric, &etcd, 1);
    let folder = Workdir::new("state");
    let state = format!("state = \"{}\"\n", folder.path().join("state").display());
    let mut daemon = Daemon::start_alone(&host.netns, &host.config(&etcd, &state, ""));
    let shown = |daemon: &Daemon| daemon.ctl("show vpc").contains("blue");
    let kept = |daemon: &Daemon| faults(daemon, "etcd-gone-back");
    let (key, value) = ("/vswitch/v1/objects/blue", r#"{"vpc": {"name": "blue", "vni": 200}}"#);
    // Revisions of what is lost are above all those that come after it.
    for number in 0..200 {
        etcd.ctl(&["put", "/other", &number.to_string()]);
    }
    etcd.ctl(&["put", key, value]);
    wait_for("the object to come", SOON, || shown(&daemon).then_some(()));
    etcd.kill(0);
    etcd.empty(0);
    etcd.revive(0);
    etcd.wait_until_healthy();
    let patience = SOON + Duration::from_secs(LEASE);
    wait_for("the loss to be told", patience, || (kept(&daemon).len() == 1).then_some(()));
    assert!(shown(&daemon));
    // Nor does the process after this one.
    daemon.process().signal("KILL");
    daemon.process().wait(SOON);
    daemon.restart(&host.netns);
    wait_for("the loss to be told again", patience, || (kept(&daemon).len() == 1).then_some(()));
    assert!(shown(&daemon));
    // Said again, and taken away knowingly.
    etcd.ctl(&["put", key, value]);
    wait_for("the fault to go", SOON, || kept(&daemon).is_empty().then_some(()));
    assert!(shown(&daemon));
    etcd.ctl(&["del", key]);
    wait_for("the object to go", SOON, || (!shown(&daemon)).then_some(()));
    daemon.end();
}

#[test]
fn etcd_values_that_are_too_long_are_told_and_all_others_are_followed() {
    let (fabric, mut etcd) = (Fabric::new(), Etcd::start());
    let hosts: Vec<Host> = (1..3).map(|number| Host::new(&fabric, &etcd, number)).collect();
    let red: Vec<_> = hosts.iter().map(|host| host.container("red", 1, host.number as u8)).collect();
    let network = vpc("red", RED, &["10.0.0.0/16"], "");
    let start = |at: usize| hosts[at].start(&etcd, &[network.clone(), red[at].vnic("")].concat());
    let more = hosts[1].container("red", 2, 2);
    let first = start(0);
    // More than any message may have, in values of the most that etcd takes.
    let helper = tests::script::path("etcd_fill.py").display().to_string();
    let words =
        [tests::script::PYTHON, &helper, &etcd.endpoint(0), "bloat", &RED.to_string(), "50", "1450000"];
    etcd.netns.run(&words);
    // They are read by one that comes later, and by one that comes back.
    let second = start(1);
    wait_for_place(&second, RED, &red[0].address, Some("vtep 172.16.0.1"), SOON);
    etcd.kill(0);
    wait_for("etcd to be missed", SOON, || control(&first)["endpoint"].is_null().then_some(()));
    etcd.revive(0);
    etcd.wait_until_healthy();
    second.ctl(&more.add());
    wait_for_place(&first, RED, &more.address, Some("vtep 172.16.0.2"), 2 * SOON);
    for daemon in [&first, &second] {
        assert_eq!(control(daemon)["resyncs"], 0);
        wait_for("all of them to be told", SOON, || (faults(daemon, "unreadable").len() == 50).then_some(()));
        let told = faults(daemon, "unreadable");
        assert!(told.iter().all(|(_, text)| text.contains("none has more than 4096")), "{:?}", told[0]);
    }
    etcd.ctl(&["del", "--prefix", &format!("/vswitch/v1/vni/{RED}/b")]);
    for daemon in [first, second] {
        wait_for("them to be gone", SOON, || faults(&daemon, "unreadable").is_empty().then_some(()));
        daemon.end();
    }
}
