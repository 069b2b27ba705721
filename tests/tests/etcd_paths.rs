//! Which packets pass between the hosts of a cluster: ways with a smaller MTU, whose routers say so or not, are found and named, and a
//! machine that answers falsely spoils nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use serde_json::Value;
use tests::etcd::{Container, Etcd, Fabric, Host, wait_for_place};
use tests::lab::{UNDERLAY_MTU, vpc};
use tests::steady::Ping;
use tests::{Daemon, Netns, Workdir, wait_for};

const RED: u32 = 100;
const SOON: Duration = Duration::from_secs(10);

/// Three hosts: the first and the third on one link, the second behind a router.
struct Site {
    daemons: Vec<Daemon>,
    red: Vec<Container>,
    _hosts: Vec<Host>,
    near: Fabric,
    router: Netns,
    _far: Fabric,
    etcd: Etcd,
}

impl Site {
    fn start(six: bool) -> Self {
        let (near, etcd) = (Fabric::new(), Etcd::start());
        let far = Fabric::named("far");
        let router = Netns::new("router");
        router.enable_ipv6();
        for (fabric, interface, net) in [(&near, "r1", 16), (&far, "r2", 17)] {
            fabric.join(&router, interface, "router");
            router.ip(&format!("addr add 172.{net}.0.254/24 dev {interface}"));
            router.ip(&format!("addr add fd00:{net}::254/64 dev {interface} nodad"));
        }
        router.sysctl(&["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
        let hosts: Vec<Host> = [(&near, 1), (&far, 2), (&near, 3)]
            .map(|(fabric, number)| Host::new(fabric, &etcd, number))
            .into_iter()
            .collect();
        let red: Vec<Container> =
            hosts.iter().map(|host| host.container("red", 1, host.number as u8)).collect();
        let daemons = hosts.iter().zip(&red).map(|(host, container)| {
            let body = [vpc("red", RED, &["10.0.0.0/16"], ""), container.vnic("")].concat();
            let net = if host.number == 2 { 17 } else { 16 };
            let (address, gateway) = match six {
                true => (format!("fd00:{net}::{}/64", host.number), format!("fd00:{net}::254")),
                false => (format!("172.{net}.0.{}/24", host.number), format!("172.{net}.0.254")),
            };
            let old = format!("[\"{}/24\"]", host.vtep());
            let new = format!("[\"{address}\"]\ngateway = [\"{gateway}\"]");
            Daemon::start_alone(&host.netns, &host.config(&etcd, "", &body).replace(&old, &new))
        });
        let daemons: Vec<Daemon> = daemons.collect();
        let site = Self { daemons, red, _hosts: hosts, near, router, _far: far, etcd };
        for (at, daemon) in site.daemons.iter().enumerate() {
            for to in (0..3).filter(|to| *to != at) {
                let net = if to == 1 { 17 } else { 16 };
                let vtep = match six {
                    true => format!("vtep fd00:{net}::{}", to + 1),
                    false => format!("vtep 172.{net}.0.{}", to + 1),
                };
                wait_for_place(daemon, RED, &site.red[to].address, Some(&vtep), SOON);
            }
        }
        site
    }
}

/// The faults of `cluster check` on a host: kind, host, text.
fn check(daemon: &Daemon) -> Vec<(String, String, String)> {
    // What is known of hosts is told a few times a second.
    let shown = wait_for("both others to be looked at", 3 * SOON, || {
        Some(daemon.json("cluster check")).filter(|shown| shown["paths"] == 2)
    });
    let text = |fault: &Value, key: &str| fault[key].as_str().unwrap_or_default().to_owned();
    let faults = shown["faults"].as_array().cloned().unwrap_or_default();
    faults.iter().map(|fault| (text(fault, "kind"), text(fault, "subject"), text(fault, "text"))).collect()
}

/// Waits until `cluster check` tells of these ways and of nothing else: host, and words of the text. A machine that others use, too, may lose
/// some packets of a check.
#[track_caller]
fn wait_for_faults(daemon: &Daemon, kind: &str, wanted: &[(&str, &[&str])]) {
    let mut found = Vec::new();
    let is_told = |found: &[(String, String, String)], host: &str, words: &[&str]| {
        let told = |fault: &&(String, String, String)| fault.0 == kind && fault.1 == host;
        found.iter().find(told).is_some_and(|(_, _, text)| words.iter().all(|word| text.contains(word)))
    };
    for _ in 0..5 {
        found = check(daemon);
        if found.len() == wanted.len() && wanted.iter().all(|(host, words)| is_told(&found, host, words)) {
            return;
        }
    }
    panic!("wanted {wanted:?}: {found:?}");
}

fn paths_are_probed(six: bool) {
    let site = Site::start(six);
    let others = Ping::start(&site.red[0].netns, &site.red[1].address);
    for daemon in &site.daemons {
        wait_for_faults(daemon, "path-mtu", &[]);
    }
    let first = &site.daemons[0];
    let router = if six { "fd00:16::254" } else { "172.16.0.254" };
    let needed = if six { 1520 } else { 1500 };
    // A link behind the router takes less, and the router says so.
    site.router.ip("link set r2 mtu 1400");
    let (says, need) = (format!("{router} says so"), format!("need {needed}"));
    wait_for_faults(first, "path-mtu", &[("h2", &["at most 1400 bytes", &says, &need, "mtu = 1400"])]);
    // The host behind it hears of nobody: its packets arrive, and the answers do not.
    let lost: &[&str] = &["at most 1400 bytes", "without a word"];
    wait_for_faults(&site.daemons[1], "path-mtu", &[("h1", lost), ("h3", lost)]);
    let vtep = if six { "fd00:17::2" } else { "172.17.0.2" };
    let shown = first.ctl(&format!("ping vtep {vtep}"));
    assert!(shown.contains("1400") && shown.contains("less") && shown.contains(router), "{shown}");

    // A bridge on the way to the third loses what is too large for it, and says nothing.
    site.near.netns().ip("link set h3 mtu 1350");
    let (named, silent): (&[&str], &[&str]) =
        (&["at most 1400 bytes", &says], &["at most 1350 bytes", "without a word"]);
    wait_for_faults(first, "path-mtu", &[("h2", named), ("h3", silent)]);

    // It is right again, and then one is cut off.
    site.near.netns().ip(&format!("link set h3 mtu {UNDERLAY_MTU}"));
    site.router.ip(&format!("link set r2 mtu {UNDERLAY_MTU}"));
    wait_for_faults(first, "path-mtu", &[]);
    site.near.netns().ip("link set h3 down");
    wait_for_faults(first, "unreachable-vtep", &[("h3", &["not even of 128 bytes"])]);
    site.near.netns().ip("link set h3 up");
    wait_for_faults(first, "path-mtu", &[]);
    assert_eq!(others.stop().0, 0, "packets of a tenant were lost");
    for daemon in site.daemons {
        daemon.assert_conserved();
        daemon.stop();
    }
}

#[test]
fn etcd_a_host_with_the_vtep_of_another_is_told_and_all_others_are_looked_at() {
    let site = Site::start(false);
    // It says that it is where the first one is.
    site.etcd.ctl(&["put", &format!("/vswitch/v1/vni/{RED}/h9"), "\n\u{a}172.16.0.1"]);
    let first = &site.daemons[0];
    wait_for_faults(first, "duplicate-vtep", &[("h9", &["172.16.0.1", "addresses of its own"])]);
    site.near.netns().ip("link set h3 down");
    wait_for("both to be told", 3 * SOON, || {
        let told = check(first);
        let has = |kind: &str, host: &str| told.iter().any(|fault| fault.0 == kind && fault.1 == host);
        (has("duplicate-vtep", "h9") && has("unreachable-vtep", "h3")).then_some(())
    });
    site.near.netns().ip("link set h3 up");
    for daemon in site.daemons {
        daemon.assert_conserved();
        daemon.stop();
    }
}

#[test]
fn etcd_mtu_of_every_way_between_hosts_is_found_over_ipv4() {
    paths_are_probed(false);
}

#[test]
fn etcd_mtu_of_every_way_between_hosts_is_found_over_ipv6() {
    paths_are_probed(true);
}

/// Answers to probes that were none, so far.
fn dropped(daemon: &Daemon) -> u64 {
    let stats = daemon.json("show fwd stats all");
    stats["drops"]["probe-unknown"].as_u64().unwrap_or_default()
}

#[test]
fn etcd_mtu_is_found_beside_a_machine_that_answers_falsely() {
    let site = Site::start(false);
    let daemon = &site.daemons[0];
    let others = Ping::start(&site.red[0].netns, &site.red[1].address);
    let liar = Netns::new("liar");
    site.near.join(&liar, "eth0", "liar");
    liar.ip("addr add 172.16.0.66/24 dev eth0");
    // Its kernel says who has the address, and nothing more.
    liar.sysctl(&["net.ipv4.icmp_echo_ignore_all=1"]);
    let dir = Workdir::new("liar");
    let script = tests::script::path("echo_liar.py").display().to_string();
    for storm in ["0", "1000"] {
        let words = [tests::script::PYTHON, &script, "eth0", "172.16.0.77", storm];
        let mut process = liar.spawn("liar", &words, &dir);
        wait_for("it to listen", SOON, || process.output().contains("ready").then_some(()));
        let before = dropped(daemon);
        // It may be slow to answer, with all that it has to say before.
        let shown = wait_for("its right answers to count", 3 * SOON, || {
            Some(daemon.json("ping vtep 172.16.0.66")).filter(|shown| shown[0]["state"] == "passes")
        });
        let path = &shown[0];
        assert_eq!(path["passes"].as_u64(), Some(u64::from(UNDERLAY_MTU)), "{shown}");
        assert!(path["stray"].as_u64().unwrap() > 0, "{shown}");
        assert!(dropped(daemon) > before, "{}", daemon.ctl("show fwd stats all"));
        process.signal("KILL");
        process.wait(SOON);
    }
    // Nobody answers there any more, nobody is at another address, and some are none.
    let silent = daemon.ctl("ping vtep 172.16.0.66");
    assert!(silent.contains("silent") && silent.contains("not even of 128 bytes"), "{silent}");
    let nobody = daemon.ctl("ping vtep 172.16.0.67");
    assert!(nobody.contains("no-next-hop"), "{nobody}");
    for (words, why) in [
        ("ping vtep 172.16.0.1", "of this switch itself"),
        ("ping vtep fd00:99::1", "no uplink has a route"),
        ("ping vtep here", "here"),
    ] {
        let refused = daemon.try_ctl(words).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    // Several who ask are answered one after another, and one that does not wait for its answer holds up nobody.
    let asking: Vec<_> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..4).map(|_| scope.spawn(|| check(daemon))).collect();
        asking.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(asking.iter().all(Vec::is_empty), "{asking:?}");
    assert_eq!(others.stop().0, 0, "packets of a tenant were lost");
    for daemon in site.daemons {
        daemon.assert_conserved();
        daemon.stop();
    }
}
