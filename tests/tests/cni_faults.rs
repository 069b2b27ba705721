//! The CNI plugin where something is wrong: half of an attachment gone, a config that cannot be, containers that nobody knows any more,
//! and a pod that wants to reach the host.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cni::{Host, Pod, address, answer, hear_each_other, held, with};
use tests::{traffic, wait_for};

#[test]
fn cni_half_done_is_finished_and_differences_are_found() {
    let host = Host::start();
    let network = host.network();
    let (a, b) = (Pod::new("a"), Pod::new("b"));
    let of_b = host.add(&b, &network);
    let of_a = host.add(&a, &network);
    let vnic = host.vnics().into_iter().find(|name| name.contains("pods.a")).unwrap();
    let end = of_a["interfaces"][1]["name"].as_str().unwrap();
    type Damage<'d> = (&'d str, &'d dyn Fn(), &'d str);
    let damages: [Damage<'_>; 7] = [
        ("an interface", &|| drop(host.lab.host.ip(&format!("link del {end}"))), "no interface eth0"),
        ("a vNIC", &|| drop(host.daemon.ctl(&format!("vnic del {vnic}"))), "no vNIC"),
        (
            "an address",
            &|| drop(a.netns.ip(&format!("addr del {}/24 dev eth0", address(&of_a, false)))),
            "no address",
        ),
        ("IPv6", &|| a.netns.sysctl(&["net.ipv6.conf.eth0.disable_ipv6=1"]), "no address fd00"),
        ("a route", &|| drop(a.netns.ip("route del default")), "no route to 0.0.0.0/0"),
        ("an MTU", &|| drop(a.netns.ip("link set eth0 mtu 1300")), "the MTU 1300, not 1400"),
        ("a link", &|| drop(a.netns.ip("link set eth0 down")), "eth0 is down"),
    ];
    for (what, damage, words) in damages {
        host.check(&a, &network, &of_a).result();
        damage();
        host.check(&a, &network, &of_a).failure(103, words);
        assert_eq!(host.add(&a, &network), of_a, "after {what} was gone");
        hear_each_other((&a, &of_a), (&b, &of_b));
    }
    // Another config is another attachment.
    host.ask("ADD", &a, &with(&network, json!({"mtu": 1300}))).failure(100, "mtu is 1400, not 1300");
    host.check(&a, &network, &of_a).result();
    for pod in [&a, &b] {
        host.del(pod, &network);
    }
    host.nothing_left(&[&a, &b]);
    host.daemon.stop();
}

/// What a pod sends to the MAC address of its veth's other end is the switch's alone: the host's own IP stack takes none of it.
#[test]
fn cni_the_host_is_out_of_reach() {
    let host = Host::start();
    let network = host.network();
    let pod = Pod::new("a");
    let result = host.add(&pod, &network);
    let end = result["interfaces"][1]["name"].as_str().unwrap();
    let (kernel, mac) = (&host.lab.host, tests::lab::interface_mac(&host.lab.host, end));
    assert!(kernel.ip(&format!("-o link show {end}")).contains("NOARP"));
    kernel.ip("addr add 10.0.0.77/32 dev lo");
    let heard = host.dir.path().join("heard");
    let write = format!("OPEN:{},creat,append", heard.display());
    let _server = kernel.spawn("server", &["socat", "-u", "UDP4-RECV:7777", &write], &host.dir);
    wait_for("the server to listen", Duration::from_secs(5), || {
        kernel.run(&["ss", "-lnuH"]).contains(":7777").then_some(())
    });
    pod.netns.ip(&format!("neigh replace 10.0.0.77 lladdr {mac} dev eth0"));
    let send = || pod.netns.run(&["sh", "-c", "echo word | socat -u - UDP4-SENDTO:10.0.0.77:7777"]);
    let hears = || fs::read_to_string(&heard).is_ok_and(|text| text.contains("word"));
    send();
    let filtered = || kernel.run(&["nstat", "-asz", "TcpExtIPReversePathFilter"]);
    wait_for("the host to drop it", Duration::from_secs(5), || {
        filtered()
            .lines()
            .any(|line| line.starts_with("TcpExtIPReversePathFilter") && !line.contains(" 0  "))
            .then_some(())
    });
    assert!(!hears());
    // It is the setting that does it.
    kernel.sysctl(&[&format!("net.ipv4.conf.{end}.rp_filter=0")]);
    wait_for("the host to hear it", Duration::from_secs(5), || {
        send();
        hears().then_some(())
    });
    kernel.ip("addr del 10.0.0.77/32 dev lo");
    host.del(&pod, &network);
    host.nothing_left(&[&pod]);
    host.daemon.stop();
}

#[test]
fn cni_errors_say_what_to_do() {
    let host = Host::start();
    let network = host.network();
    let (a, b) = (Pod::new("a"), Pod::new("b"));
    let of_a = host.add(&a, &network);
    let taken = json!({"runtimeConfig": {"ips": [address(&of_a, false)]}});
    let mac = json!({"runtimeConfig": {"mac": of_a["interfaces"][0]["mac"]}});
    for (more, code, words) in [
        (json!({"vpc": "green"}), 7, "no VPC \"green\""),
        (json!({"subnet": "10.1.0.0/24"}), 7, "no subnet 10.1.0.0/24"),
        (json!({"socket": "/nowhere/vswitch.sock"}), 11, "/nowhere/vswitch.sock"),
        (json!({"securitygroups": []}), 7, "securitygroups"),
        (json!({"cniVersion": "0.1.0"}), 1, "0.1.0"),
        (taken, 102, "somebody else's"),
        (mac, 100, "MAC"),
        (json!({"qos": {"outbound": {"ceil": "5 apples"}}}), 100, "apples"),
        (json!({"ipam": {"rangeStart": "10.0.0.254", "rangeEnd": "10.0.0.254"}}), 101, "10.0.0.0/24"),
    ] {
        host.ask("ADD", &b, &with(&network, more)).failure(code, words);
        assert_eq!((b.netns.interfaces(), host.vnics().len()), (vec!["lo".to_owned()], 1));
    }
    let path = b.path();
    let variables = [("CNI_CONTAINERID", "b"), ("CNI_IFNAME", "eth0"), ("CNI_NETNS", path.as_str())];
    let text = network.to_string();
    answer(host.spawn("ADD", &variables, b"{ no json")).failure(6, "no JSON");
    answer(host.spawn("ADD", &variables, &vec![b' '; (1 << 20) + 1])).failure(5, "longer than");
    answer(host.spawn("ADD", &variables[..2], text.as_bytes())).failure(4, "CNI_NETNS");
    answer(host.spawn("REMOVE", &variables, text.as_bytes())).failure(4, "REMOVE");
    let gone = [("CNI_CONTAINERID", "b"), ("CNI_IFNAME", "eth0"), ("CNI_NETNS", "/run/netns/nobody")];
    answer(host.spawn("ADD", &gone, text.as_bytes())).failure(3, "/run/netns/nobody");
    let file = [("CNI_CONTAINERID", "b"), ("CNI_IFNAME", "eth0"), ("CNI_NETNS", "/etc/hostname")];
    answer(host.spawn("ADD", &file, text.as_bytes())).failure(4, "/etc/hostname");
    // Somebody else's interface stays.
    b.netns.ip("link add eth0 type veth peer name other");
    host.ask("ADD", &b, &network).failure(104, "not ours");
    assert_eq!(b.netns.interfaces(), ["eth0", "lo", "other"]);
    let version = answer(host.spawn("VERSION", &[], br#"{"cniVersion":"1.0.0"}"#)).result();
    assert_eq!(version, json!({"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}));
    traffic::ping(&a.netns, "10.0.0.254", 56, 3);
    host.del(&a, &network);
    host.daemon.stop();
}

#[test]
fn cni_status_and_gc() {
    let mut host = Host::start();
    let network = host.network();
    let of_network =
        |command, config: &Value| answer(host.spawn(command, &[], config.to_string().as_bytes()));
    of_network("STATUS", &network).result();
    of_network("STATUS", &with(&network, json!({"vpc": "green"}))).failure(50, "green");
    of_network("STATUS", &with(&network, json!({"socket": "/nowhere"}))).failure(50, "/nowhere");
    of_network("GC", &network).failure(7, "valid-attachments");
    let others = with(&network, json!({"name": "pods.more"}));
    let (a, b, other) = (Pod::new("a"), Pod::new("b"), Pod::new("other"));
    let of_a = host.add(&a, &network);
    host.add(&b, &network);
    host.add(&other, &others);
    // One vNIC went already, and its veth is left.
    let c = Pod::new("c");
    host.add(&c, &network);
    let vnic = host.vnics().into_iter().find(|name| name.starts_with("cni-pods.c")).unwrap();
    host.daemon.ctl(&format!("vnic del {vnic}"));
    let valid = json!([{"containerID": a.id, "ifname": "eth0"}]);
    of_network("GC", &with(&network, json!({"cni.dev/valid-attachments": valid}))).result();
    host.check(&a, &network, &of_a).result();
    assert_eq!(
        (host.vnics().len(), b.netns.interfaces(), c.netns.interfaces().len()),
        (2, vec!["lo".to_owned()], 1)
    );
    let none = with(&network, json!({"cni.dev/valid-attachments": []}));
    of_network("GC", &none).result();
    // A plugin for addresses that takes the turn to change interfaces, which is nobody's while that plugin is asked.
    let text = "#!/bin/sh\nexec flock -n /run/vswitch-cni/$(stat -Lc %i /proc/self/ns/net).lock true\n";
    let plugin = host.dir.path().join("turns");
    fs::write(&plugin, text).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let folder = host.dir.path().display().to_string();
    let delegated = with(&none, json!({"ipam": {"type": "turns"}})).to_string();
    answer(host.spawn("GC", &[("CNI_PATH", folder.as_str())], delegated.as_bytes())).result();
    host.del(&other, &others);
    host.nothing_left(&[&a, &b, &c, &other]);
    // A switch to which nobody said anything.
    host.daemon.process().signal("TERM");
    host.daemon.assert_clean_end();
}

/// More pods than addresses, all at a time: each address has one owner, and who gets none is told so.
#[test]
fn cni_races_for_addresses_have_one_winner() {
    const ADDRESSES: usize = 12;
    let mut host = Host::start();
    let ipam = json!({"type": "vswitch", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.21"});
    let network = with(&host.network(), json!({"subnet": "10.0.0.0/24", "ipam": ipam}));
    let pods: Vec<_> = (0..ADDRESSES + 2).map(|n| Pod::new(&format!("p{n}"))).collect();
    let children: Vec<_> = pods.iter().map(|pod| host.spawn_for("ADD", pod, "eth0", &network)).collect();
    let (made, refused): (Vec<_>, Vec<_>) =
        children.into_iter().map(answer).partition(|answer| answer.success);
    let mut addresses: Vec<_> = made.into_iter().map(|answer| address(&answer.result(), false)).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!((addresses.len(), refused.len()), (ADDRESSES, 2));
    for answer in refused {
        answer.failure(101, "are taken");
    }
    assert_eq!(host.vnics().len(), ADDRESSES);
    for pod in &pods {
        host.del(pod, &network);
    }
    host.nothing_left(&pods.iter().collect::<Vec<_>>());
    // Nobody said anything.
    host.daemon.process().signal("TERM");
    host.daemon.assert_clean_end();
}

/// A plugin that is killed at any moment leaves nothing that the next call does not finish, or take away.
#[test]
fn cni_killed_plugins_are_followed_by_others() {
    let host = Host::start();
    let store = host.dir.path().join("host-local");
    let ranges = json!([[{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.100", "rangeEnd": "10.0.0.103"}]]);
    let ipam = json!({"type": "host-local", "ranges": ranges, "dataDir": store});
    let own = with(&host.network(), json!({"cniVersion": "1.0.0", "subnet": "10.0.0.0/24"}));
    let elsewhere = with(&own, json!({"ipam": ipam}));
    let pod = Pod::new("a");
    for after in (0..60).step_by(4).map(Duration::from_millis) {
        for network in [&own, &elsewhere] {
            let mut killed = host.spawn_for("ADD", &pod, "eth0", network);
            std::thread::sleep(after);
            killed.kill().unwrap();
            killed.wait().unwrap();
            if network == &elsewhere {
                // As runtimes do; the other plugin refuses what it chose and nobody heard of.
                host.del(&pod, network);
            }
            let result = host.add(&pod, network);
            host.check(&pod, network, &result).result();
            let mut killed = host.spawn_for("DEL", &pod, "eth0", network);
            std::thread::sleep(after);
            killed.kill().unwrap();
            killed.wait().unwrap();
            host.del(&pod, network);
            host.nothing_left(&[&pod]);
        }
    }
    assert_eq!(held(&store, "pods"), [""; 0]);
    let result = host.add(&pod, &own);
    traffic::ping(&pod.netns, result["ips"][0]["gateway"].as_str().unwrap(), 56, 3);
    host.del(&pod, &own);
    host.daemon.stop();
}

/// A switch that stands still is one that does not answer.
#[test]
fn cni_calls_have_deadlines() {
    let mut host = Host::start();
    let network = host.network();
    let (a, b) = (Pod::new("a"), Pod::new("b"));
    let of_a = host.add(&a, &network);
    host.daemon.process().signal("STOP");
    let began = Instant::now();
    let children =
        [("ADD", &b), ("DEL", &a)].map(|(command, pod)| host.spawn_for(command, pod, "eth0", &network));
    for child in children {
        answer(child).failure(11, "no answer within 10 s");
    }
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    host.daemon.process().signal("CONT");
    assert_eq!((host.add(&a, &network), b.netns.interfaces()), (of_a, vec!["lo".to_owned()]));
    host.add(&b, &network);
    traffic::ping(&b.netns, "10.0.0.254", 56, 3);
    for pod in [&a, &b] {
        host.del(pod, &network);
    }
    host.nothing_left(&[&a, &b]);
    host.daemon.stop();
}
