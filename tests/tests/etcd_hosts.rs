//! Hosts that find each other by way of an etcd: what each publishes, what the others make of it, and what becomes of it all when etcd, a
//! host or a key is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::{Duration, Instant};

use tests::etcd::{Container, Etcd, Fabric, GRACE, Host, LEASE, control, faults, place, wait_for_place};
use tests::lab::vpc;
use tests::steady::{Flows, Ping};
use tests::{Daemon, traffic, wait_for};

const RED: u32 = 100;
const BLUE: u32 = 200;
/// Longer than any change takes to arrive, on whatever machine.
const SOON: Duration = Duration::from_secs(10);

fn networks() -> String {
    [vpc("red", RED, &["10.0.0.0/16"], ""), vpc("blue", BLUE, &["10.0.0.0/16"], "")].concat()
}

/// A cluster of three, with containers of red on all hosts and of blue on the first two.
struct Site {
    daemons: Vec<Daemon>,
    red: Vec<Container>,
    blue: Vec<Container>,
    hosts: Vec<Host>,
    etcd: Etcd,
    _fabric: Fabric,
}

impl Site {
    fn start() -> Self {
        let fabric = Fabric::new();
        let etcd = Etcd::start();
        let hosts: Vec<Host> = (1..4).map(|number| Host::new(&fabric, &etcd, number)).collect();
        let red: Vec<Container> =
            hosts.iter().map(|host| host.container("red", 1, host.number as u8)).collect();
        let blue: Vec<Container> =
            hosts[..2].iter().map(|host| host.container("blue", 1, host.number as u8)).collect();
        let daemons: Vec<Daemon> = hosts
            .iter()
            .map(|host| {
                let at = host.number - 1;
                let vnics =
                    [red.get(at), blue.get(at)].into_iter().flatten().map(|container| container.vnic(""));
                host.start(&etcd, &[networks(), vnics.collect()].concat())
            })
            .collect();
        let site = Self { daemons, red, blue, hosts, etcd, _fabric: fabric };
        site.wait_until_all_are_known();
        site
    }

    fn wait_until_all_are_known(&self) {
        for (at, daemon) in self.daemons.iter().enumerate() {
            for (to, container) in self.red.iter().enumerate().filter(|(to, _)| *to != at) {
                let there = format!("vtep {}", self.hosts[to].vtep());
                wait_for_place(daemon, RED, &container.address, Some(&there), SOON);
            }
        }
    }

    /// Everything ends well.
    fn stop(self) {
        for daemon in self.daemons {
            daemon.assert_conserved();
            daemon.stop();
        }
    }
}

/// The middle one of some times.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn etcd_three_hosts_find_each_other_and_forget_who_is_gone() {
    let mut site = Site::start();
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        traffic::ping(&site.red[from].netns, &site.red[to].address, 1400, 3);
    }
    traffic::transfer_by(&["tcp"], &site.red[0].netns, &site.red[2].netns, &site.red[2].address, 200_000);
    // The same addresses in blue are blue's; the third host has nothing there and watches nothing of it.
    traffic::ping(&site.blue[0].netns, &site.blue[1].address, 100, 3);
    assert_eq!(control(&site.daemons[2])["vnis"], serde_json::json!([RED]));
    assert_eq!(place(&site.daemons[2], BLUE, &site.blue[0].address), None);
    let hosts = site.daemons[0].json("show hosts");
    let names: Vec<&str> =
        hosts.as_array().unwrap().iter().map(|host| host["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["h1", "h2", "h3"], "{hosts}");
    assert!(
        site.daemons[0].ctl("cluster check").contains(": 0 faults"),
        "{}",
        site.daemons[0].ctl("cluster check")
    );

    // How long a change takes to be in use on the others.
    let ping = Ping::start(&site.red[0].netns, &site.red[1].address);
    let mut times = Vec::new();
    for turn in 0..10 {
        let more = site.hosts[0].container("red", 2, turn + 1);
        let there = format!("vtep {}", site.hosts[0].vtep());
        let began = Instant::now();
        site.daemons[0].ctl(&more.add());
        for daemon in &site.daemons[1..] {
            wait_for_place(daemon, RED, &more.address, Some(&there), SOON);
        }
        times.push(began.elapsed());
        site.daemons[0].ctl(&format!("vnic del {}", more.name));
        for daemon in &site.daemons[1..] {
            wait_for_place(daemon, RED, &more.address, None, SOON);
        }
    }
    let lags: Vec<i64> = site
        .daemons
        .iter()
        .map(|daemon| control(daemon)["lag-milliseconds"].as_f64().unwrap() as i64)
        .collect();
    eprintln!(
        "a vNIC was known on two other hosts after {:?} at the median, {:?} at the most, with two `vswitch ctl` in it; lags {lags:?} ms",
        median(times.clone()),
        times.iter().max().unwrap()
    );
    assert!(median(times) < Duration::from_secs(1));
    assert_eq!(ping.stop().0, 0, "packets were lost");

    // A machine that moves: the new host's publishing is the one update that there is.
    let mover = site.hosts[1].container("red", 3, 1);
    site.daemons[1].ctl(&mover.add());
    wait_for_place(&site.daemons[0], RED, &mover.address, Some("vtep 172.16.0.2"), SOON);
    wait_for_place(&site.daemons[2], RED, &mover.address, Some("vtep 172.16.0.2"), SOON);
    let stays = Ping::start(&site.red[2].netns, &site.red[0].address);
    let began = Instant::now();
    site.hosts[1].netns.ip(&format!("link set {} netns {}", mover.name, site.hosts[2].netns.name()));
    site.hosts[2].netns.ip(&format!("link set {} up", mover.name));
    site.daemons[2].ctl(&mover.add());
    while !site.red[0].netns.try_run(&["ping", "-n", "-c", "1", "-W", "1", &mover.address]).status.success() {
        assert!(began.elapsed() < SOON, "not reached: {}", site.daemons[0].ctl("show vlt"));
    }
    eprintln!("a container was reached {:?} after its cable was carried", began.elapsed());
    assert_eq!(place(&site.daemons[0], RED, &mover.address).as_deref(), Some("vtep 172.16.0.3"));
    site.daemons[1].ctl(&format!("vnic del {}", mover.name));
    wait_for_place(&site.daemons[1], RED, &mover.address, Some("vtep 172.16.0.3"), SOON);
    assert_eq!(stays.stop().0, 0, "others' packets were lost");

    // A host dies: it is believed for its lease and the grace, and then it is gone, and nobody else.
    let began = Instant::now();
    site.daemons[2].process().signal("KILL");
    site.daemons[2].process().wait(SOON);
    wait_for("the lease to end", SOON, || {
        let hosts = site.daemons[0].json("show hosts");
        let gone = hosts
            .as_array()
            .unwrap()
            .iter()
            .any(|host| host["name"] == "h3" && host["grace-seconds"].is_number());
        gone.then_some(())
    });
    assert_eq!(place(&site.daemons[0], RED, &site.red[2].address).as_deref(), Some("vtep 172.16.0.3"));
    wait_for_place(&site.daemons[0], RED, &site.red[2].address, None, SOON);
    assert!(began.elapsed() >= GRACE, "withdrawn after {:?}", began.elapsed());
    wait_for_place(&site.daemons[1], RED, &site.red[2].address, None, SOON);
    traffic::ping(&site.red[0].netns, &site.red[1].address, 100, 3);
    // It comes back.
    let netns = site.hosts.remove(2);
    site.daemons[2].restart(&netns.netns);
    wait_for_place(&site.daemons[0], RED, &site.red[2].address, Some("vtep 172.16.0.3"), SOON);
    traffic::ping(&site.red[2].netns, &site.red[0].address, 100, 3);
    for daemon in &site.daemons {
        assert_eq!(faults(daemon, "refused"), []);
        assert_eq!(faults(daemon, "unreadable"), []);
    }
    drop(mover);
    site.stop();
}

fn lose_etcd_for(time: Duration) {
    let mut site = Site::start();
    let flows = Flows::start(&site.red[0].netns, &site.red[1].netns, &site.red[1].address, 4);
    let ping = Ping::start(&site.blue[0].netns, &site.blue[1].address);
    site.etcd.kill(0);
    for daemon in &site.daemons {
        wait_for("etcd to be missed", SOON, || control(daemon)["endpoint"].is_null().then_some(()));
        assert!(daemon.ctl("show control").contains("what it said last holds"));
        assert!(daemon.ctl("show events").contains("etcd-lost"));
    }
    // A change here is for later, and nobody waits for it.
    let more = site.hosts[0].container("red", 2, 9);
    let began = Instant::now();
    site.daemons[0].ctl(&more.add());
    assert!(began.elapsed() < SOON);
    std::thread::sleep(time);
    for (at, daemon) in site.daemons.iter().enumerate() {
        for (to, container) in site.red.iter().enumerate().filter(|(to, _)| *to != at) {
            let there = format!("vtep {}", site.hosts[to].vtep());
            assert_eq!(place(daemon, RED, &container.address), Some(there));
        }
    }
    site.etcd.revive(0);
    site.etcd.wait_until_healthy();
    for daemon in &site.daemons[1..] {
        wait_for_place(
            daemon,
            RED,
            &more.address,
            Some("vtep 172.16.0.1"),
            SOON + Duration::from_secs(LEASE),
        );
        assert!(daemon.ctl("show events").contains("etcd-back"));
    }
    std::thread::sleep(GRACE + Duration::from_secs(LEASE));
    site.wait_until_all_are_known();
    drop(more);
    eprintln!("{} datagrams over a lost etcd, none of them lost", flows.stop_in_any_order(4));
    assert_eq!(ping.stop().0, 0, "packets were lost");
    site.stop();
}

#[test]
fn etcd_that_is_lost_costs_no_packet() {
    // Longer than leases and grace together.
    lose_etcd_for(GRACE + Duration::from_secs(LEASE + 2));
}

#[test]
#[ignore = "takes a minute and a half"]
fn etcd_that_is_lost_for_a_minute_costs_no_packet() {
    lose_etcd_for(Duration::from_secs(60));
}

#[test]
fn etcd_changes_that_were_compacted_are_found_by_difference() {
    let site = Site::start();
    let ping = Ping::start(&site.red[0].netns, &site.red[1].address);
    let (stays, goes) = (site.hosts[0].container("red", 2, 1), site.hosts[0].container("red", 2, 2));
    site.daemons[0].ctl(&goes.add());
    wait_for_place(&site.daemons[1], RED, &goes.address, Some("vtep 172.16.0.1"), SOON);
    // The second host is cut off from etcd, for less than its lease and the others' grace.
    site.etcd.netns.ip("link set h2 down");
    site.daemons[0].ctl(&format!("vnic del {}", goes.name));
    site.daemons[0].ctl(&stays.add());
    wait_for_place(&site.daemons[2], RED, &stays.address, Some("vtep 172.16.0.1"), SOON);
    assert_eq!(
        place(&site.daemons[1], RED, &goes.address).as_deref(),
        Some("vtep 172.16.0.1"),
        "it heard of nothing"
    );
    let revision = site.etcd.revision();
    site.etcd.ctl(&["compact", &revision.to_string()]);
    site.etcd.netns.ip("link set h2 up");
    wait_for_place(&site.daemons[1], RED, &stays.address, Some("vtep 172.16.0.1"), SOON);
    wait_for_place(&site.daemons[1], RED, &goes.address, None, SOON);
    site.wait_until_all_are_known();
    assert_eq!(ping.stop().0, 0, "packets were lost");
    drop((stays, goes));
    site.stop();
}

#[test]
fn etcd_the_later_of_two_hosts_has_an_address_and_both_say_so() {
    let mut site = Site::start();
    let ping = Ping::start(&site.red[1].netns, &site.red[0].address);
    // Another machine with the address of one that the first host has.
    let claimed = site.hosts[0].container("red", 2, 1);
    site.daemons[0].ctl(&claimed.add());
    wait_for_place(&site.daemons[2], RED, &claimed.address, Some("vtep 172.16.0.1"), SOON);
    // The second does not know it yet: it is cut off from etcd.
    site.etcd.netns.ip("link set h2 down");
    site.daemons[0].ctl(&format!("vnic del {}", claimed.name));
    wait_for_place(&site.daemons[2], RED, &claimed.address, None, SOON);
    let usurper = site.hosts[1].container("red", 2, 1);
    let add = usurper.add().replace("02:00:00:00:02:01", "02:00:00:00:02:99");
    site.daemons[1].ctl(&format!("vlt del {RED} {}", claimed.address));
    site.daemons[1].ctl(&add);
    site.daemons[0].ctl(&claimed.add());
    wait_for_place(&site.daemons[2], RED, &claimed.address, Some("vtep 172.16.0.1"), SOON);
    site.etcd.netns.ip("link set h2 up");
    // It is the later one.
    wait_for_place(&site.daemons[2], RED, &claimed.address, Some("vtep 172.16.0.2"), SOON);
    for daemon in &site.daemons[..2] {
        wait_for("it to be told", SOON, || daemon.ctl("show events").contains("claimed-twice").then_some(()));
        let told = faults(daemon, "claimed-twice");
        assert!(
            told.len() == 1 && told[0].1.contains("host h2, which has it as the later one, and by h1"),
            "{told:?}"
        );
    }
    // Who has none of the two learns of it when it has taken in both.
    wait_for("the third to be told", SOON, || {
        site.daemons[2].ctl("cluster check").contains("claimed-twice").then_some(())
    });
    let loser = site.daemons[0].ctl("cluster check");
    assert!(loser.contains(&format!("vNIC {} of this host has lost it", claimed.name)), "{loser}");
    assert!(!site.daemons[1].ctl("cluster check").contains("has lost it"));
    // The first comes back with what it had, and takes nothing back by that.
    let netns = &site.hosts[0].netns;
    let lost = ping.stop();
    assert_eq!(lost.0, 0, "packets were lost");
    // Made by hand, and so it is not there any more after a restart without a state file: it is added again as the later one would be,
    // and is one by its own restart only if nobody remembers when it first claimed it.
    site.daemons[0].ctl(&format!("vnic del {}", claimed.name));
    wait_for("the quarrel to end", SOON, || {
        faults(&site.daemons[1], "claimed-twice").is_empty().then_some(())
    });
    assert!(site.daemons[1].ctl("show events").contains("claimed-once"));
    site.daemons[0].process().signal("TERM");
    site.daemons[0].process().wait(SOON);
    site.daemons[0].restart(netns);
    site.wait_until_all_are_known();
    assert_eq!(place(&site.daemons[0], RED, &claimed.address).as_deref(), Some("vtep 172.16.0.2"));
    drop((claimed, usurper));
    site.stop();
}

#[test]
fn etcd_objects_reach_every_host_and_garbage_reaches_none() {
    let mut site = Site::start();
    let ping = Ping::start(&site.red[0].netns, &site.red[1].address);
    let put =
        |key: &str, value: &str| drop(site.etcd.ctl(&["put", &format!("/vswitch/v1/objects/{key}"), value]));
    // In the wrong order, with things among them that are none.
    put(
        "a-rule",
        r#"{"rule": {"of": "web", "rule": {"direction": "RULE_DIRECTION_IN", "protocol": "tcp", "ports": "80"}}}"#,
    );
    put("b-subnet", r#"{"subnet": {"vpc": "green", "prefix": "10.7.0.0/16"}}"#);
    put("c-garbage", "{\"vpc\": ");
    put("d-port", r#"{"port": {"name": "p", "port": {"null": {}}}}"#);
    put("e-vpc-of-the-file", r#"{"vpc": {"name": "red", "vni": 777}}"#);
    put("f-group", r#"{"security_group": {"name": "web", "vpc": "green"}}"#);
    put("g-vpc", r#"{"vpc": {"name": "green", "vni": 300}}"#);
    put("h-route", r#"{"route": {"of": "green", "route": {"to": "10.9.0.0/16", "blackhole": true}}}"#);
    for daemon in &site.daemons {
        wait_for("the objects to be there", SOON, || {
            (daemon.ctl("show security-group").contains("web")
                && daemon.ctl("show route green").contains("10.9.0.0/16"))
            .then_some(())
        });
        let told = faults(daemon, "object");
        let subjects: Vec<&str> = told.iter().map(|(subject, _)| subject.as_str()).collect();
        assert_eq!(subjects, ["c-garbage", "d-port", "e-vpc-of-the-file"], "{told:?}");
        assert!(told[1].1.contains("of one host") && told[2].1.contains("config file"), "{told:?}");
        assert!(daemon.ctl("show vpc").contains("green"));
        // It is etcd's, and nobody else's.
        let refused = daemon.try_ctl("config reload");
        assert!(refused.is_ok(), "{refused:?}");
        assert!(daemon.ctl("show vpc").contains("green"), "a reload of the file left it");
    }
    // A host that comes later gets them, too; keys that no host of the layout has are told of.
    site.etcd.ctl(&["put", &format!("/vswitch/v1/vni/{RED}/h9/evil"), "\u{1}garbage"]);
    site.etcd.ctl(&["put", &format!("/vswitch/v1/vni/{RED}/h9"), "no record"]);
    site.etcd.ctl(&["put", "/vswitch/v1/hosts/h9/too/deep", ""]);
    wait_for("the keys to be told of", SOON, || {
        (faults(&site.daemons[1], "unreadable").len() == 3).then_some(())
    });
    site.daemons[2].process().signal("TERM");
    site.daemons[2].process().wait(SOON);
    site.daemons[2].restart(&site.hosts[2].netns);
    wait_for("the objects to be there again", SOON, || {
        site.daemons[2].try_ctl("show route green").ok().filter(|said| said.contains("10.9.0.0/16"))
    });
    // They go as they came.
    site.etcd.ctl(&["del", "--prefix", "/vswitch/v1/objects/"]);
    for daemon in &site.daemons {
        wait_for("the objects to be gone", SOON, || {
            (!daemon.ctl("show vpc").contains("green")).then_some(())
        });
        assert!(!daemon.ctl("show security-group").contains("web"));
        assert_eq!(faults(daemon, "object"), []);
    }
    assert_eq!(ping.stop().0, 0, "packets were lost");
    site.stop();
}

#[test]
#[ignore = "fills an etcd with a hundred thousand vNICs"]
fn etcd_a_hundred_thousand_locations_of_a_thousand_hosts() {
    many_locations(1000, 100);
}

/// Bytes that came in by the management network so far.
fn heard(host: &Host) -> u64 {
    let text = host.netns.run(&["cat", "/sys/class/net/mgmt0/statistics/rx_bytes"]);
    text.trim().parse().unwrap()
}

fn resident(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find(|line| line.starts_with("VmRSS:")).unwrap().to_owned()
}

/// Hosts that are keys in etcd and nobody behind them, with so many vNICs each; then a thousand changes a second, in a network of this host
/// and in one that it has nothing in.
fn many_locations(hosts: usize, vnics: usize) {
    let fabric = Fabric::new();
    let etcd = Etcd::start();
    let host = Host::new(&fabric, &etcd, 1);
    let red = host.container("red", 1, 1);
    let helper = tests::script::path("etcd_fill.py").display().to_string();
    let fill = |words: &[&str]| {
        let endpoint = etcd.endpoint(0);
        let all = [&[tests::script::PYTHON, &helper, &endpoint][..], words].concat();
        etcd.netns.run(&all)
    };
    let (vni, other, count) = (RED.to_string(), BLUE.to_string(), hosts.to_string());
    fill(&["fill", &vni, &count, &vnics.to_string()]);
    // The stations of 172.16.0.0/12 are all on the link, and nobody answers for them.
    let uplink = format!("[vlt]\nentries = {}\n", hosts * vnics + 65_536)
        + &vpc("red", RED, &["10.0.0.0/8"], "")
        + &red.vnic("");
    let text = host.config(&etcd, "", &uplink).replace("172.16.0.1/24", "172.16.0.1/12");
    let began = Instant::now();
    let mut daemon = Daemon::start_alone(&host.netns, &text);
    let started = began.elapsed();
    wait_for("all locations", Duration::from_secs(200), || {
        (daemon.figure("show vlt 1", "/used") > (hosts * vnics) as i64).then_some(())
    });
    let loaded = began.elapsed();
    let memory = resident(daemon.process().pid());
    // Changes arrive a thousand a second.
    let dir = tests::Workdir::new("churn");
    let endpoint = etcd.endpoint(0);
    let [elsewhere, here] = [&other, &vni]
        .map(|vni| [tests::script::PYTHON, &helper, &endpoint, "churn", vni, &count, "1000", "10"]);
    // First where it has nothing: that does not reach it.
    let (before, began) = (heard(&host), Instant::now());
    etcd.netns.run(&elsewhere);
    let others = (heard(&host) - before) as f64 / began.elapsed().as_secs_f64();
    let (before_bytes, began) = (heard(&host), Instant::now());
    let mut churn = etcd.netns.spawn("churn", &here, &dir);
    let before = control(&daemon)["events"].as_i64().unwrap();
    let mut lags = Vec::new();
    while churn.exited().is_none() {
        lags.push(Duration::from_secs_f64(control(&daemon)["lag-milliseconds"].as_f64().unwrap() / 1e3));
        std::thread::sleep(Duration::from_millis(50));
    }
    let own = (heard(&host) - before_bytes) as f64 / began.elapsed().as_secs_f64();
    let after = control(&daemon);
    let events = after["events"].as_i64().unwrap() - before;
    eprintln!(
        "{} locations: the switch answered after {started:?} and had them all after {loaded:?}, {memory}; {events} changes within 10 s \
         were in use {:?} after they had come at the median, {} ms at the most",
        hosts * vnics,
        median(lags.clone()),
        after["longest-lag-milliseconds"]
    );
    eprintln!(
        "bytes a second to this host: {own:.0} with {:.0} changes a second in its network, {others:.0} with a thousand in another",
        events as f64 / 10.0
    );
    assert!(events > 1000, "{}", churn.output());
    // Its lease was renewed while it took everything in: it read all of it once.
    assert_eq!(after["connections"], 1, "{after}");
    assert!(
        others < own / 10.0,
        "{others:.0} bytes a second of a network that concerns it as little, {own:.0} of its own"
    );
    daemon.end();
}
