//! Pods by the CNI plugin: the real plugin is run as a container runtime runs it, and asks the real switch.
//!
//! ```text
//!  pod a ── eth0 ══ cni… ──┐
//!  pod b ── eth0 ══ cni… ──┤ switch
//!  ...                     │
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::cni::{Host, PLUGINS, Pod, address, answer, hear_each_other, held, with};
use tests::{traffic, wait_for};

const PODS: usize = 100;
/// How long that many pods may take. On two cores they take 2 to 5 s.
const PODS_LIMIT: Duration = Duration::from_secs(30);

#[test]
fn cni_pods_come_stay_and_go() {
    let mut host = Host::start();
    let network = host.network();
    let (a, b) = (Pod::new("a"), Pod::new("b"));
    let (of_a, of_b) = (host.add(&a, &network), host.add(&b, &network));
    assert_eq!(host.add(&a, &network), of_a, "an attachment that is there is told again");
    assert_eq!(host.vnics().len(), 2);
    assert!(host.vnics().iter().all(|name| name.starts_with("cni-pods.")), "{:?}", host.vnics());
    let interface = &of_a["interfaces"][0];
    assert_eq!((&interface["mtu"], &interface["sandbox"]), (&json!(1400), &json!(a.path())));
    let link = a.netns.ip("-o link show eth0");
    assert!(link.contains("mtu 1400") && link.contains(interface["mac"].as_str().unwrap()), "{link}");
    for (family, gateway) in [("-4", "10.0.0.254"), ("-6", "fd00:1::ff")] {
        let routes = a.netns.ip(&format!("{family} route show default"));
        assert!(routes.contains(&format!("via {gateway} dev eth0")), "{routes}");
        traffic::ping(&a.netns, gateway, 56, 3);
    }
    hear_each_other((&a, &of_a), (&b, &of_b));
    host.check(&a, &network, &of_a).result();

    let process = host.daemon.process();
    process.signal("KILL");
    process.wait(Duration::from_secs(10));
    host.ask("ADD", &a, &network).failure(11, "does not answer");
    host.ask("DEL", &a, &network).failure(11, "does not answer");
    host.daemon.restart(&host.lab.host);
    wait_for("the vNICs to be up again", Duration::from_secs(10), || {
        host.check(&a, &network, &of_a).success.then_some(())
    });
    host.check(&b, &network, &of_b).result();
    assert_eq!(host.add(&a, &network), of_a);
    hear_each_other((&a, &of_a), (&b, &of_b));
    host.daemon.settled();

    host.del(&a, &network);
    host.del(&a, &network);
    // Of a container whose namespace is gone nobody says where it was.
    let variables = [("CNI_CONTAINERID", b.id.as_str()), ("CNI_IFNAME", "eth0")];
    answer(host.spawn("DEL", &variables, network.to_string().as_bytes())).result();
    host.nothing_left(&[&a, &b]);
    host.daemon.stop();
}

#[test]
fn cni_host_local_chooses_addresses() {
    assert!(
        Path::new(PLUGINS).join("host-local").is_file(),
        "containernetworking-plugins is missing: run scripts/bootstrap"
    );
    let host = Host::start();
    let store = host.dir.path().join("host-local");
    let ranges = json!([[{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.100", "rangeEnd": "10.0.0.109"}]]);
    let ipam = json!({
        "type": "host-local", "ranges": ranges, "dataDir": store, "routes": [{"dst": "10.9.0.0/16"}],
    });
    // Debian's plugins speak no 1.1.0.
    let network =
        with(&host.network(), json!({"cniVersion": "1.0.0", "subnet": "10.0.0.0/24", "ipam": ipam}));
    let (a, b) = (Pod::new("a"), Pod::new("b"));
    let (of_a, of_b) = (host.add(&a, &network), host.add(&b, &network));
    assert_eq!(host.add(&a, &network), of_a);
    for (pod, result) in [(&a, &of_a), (&b, &of_b)] {
        assert!(address(result, false).starts_with("10.0.0.10"), "{result:#}");
        host.check(pod, &network, result).result();
        let routes = pod.netns.ip("route show");
        assert!(routes.contains("10.9.0.0/16 via") && routes.contains("default via 10.0.0.254"), "{routes}");
    }
    // As a call that was killed before it leaves the pod.
    a.netns.ip("route del default");
    host.check(&a, &network, &of_a).failure(103, "no route to 0.0.0.0/0");
    assert_eq!(host.add(&a, &network), of_a);
    host.check(&a, &network, &of_a).result();
    traffic::ping(&a.netns, &address(&of_b, false), 56, 3);
    // Half of it gone: it begins anew, and leaves nothing of the first time.
    host.lab.host.ip(&format!("link del {}", of_a["interfaces"][1]["name"].as_str().unwrap()));
    let again = host.add(&a, &network);
    traffic::ping(&b.netns, &address(&again, false), 56, 3);
    assert_eq!(held(&store, "pods").len(), 2);
    // What the switch refuses is given back.
    let c = Pod::new("c");
    let refused = with(&network, json!({"securityGroups": ["nobody"]}));
    host.ask("ADD", &c, &refused).failure(100, "nobody");
    assert_eq!((held(&store, "pods").len(), c.netns.interfaces()), (2, vec!["lo".to_owned()]));
    host.ask("ADD", &c, &with(&network, json!({"ipam": {"type": "nobody"}})))
        .failure(7, "there is no plugin nobody");
    for pod in [&a, &b, &a] {
        host.del(pod, &network);
    }
    assert_eq!(held(&store, "pods"), [""; 0]);
    host.nothing_left(&[&a, &b, &c]);
    host.daemon.stop();
}

#[test]
fn cni_hundred_pods_at_a_time() {
    let mut host = Host::start();
    let network = with(
        &host.network(),
        json!({"ipam": {"type": "vswitch", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.130"}}),
    );
    let pods: Vec<_> = (0..PODS).map(|n| Pod::new(&format!("p{n}"))).collect();
    // As some runtimes have it: every pod's IPv6 is switched on, by a setting for which processes of a host contend.
    pods.iter().for_each(|pod| pod.netns.sysctl(&["net.ipv6.conf.default.disable_ipv6=1"]));
    let began = Instant::now();
    let children: Vec<_> = pods.iter().map(|pod| host.spawn_for("ADD", pod, "eth0", &network)).collect();
    let results: Vec<_> = children.into_iter().map(|child| answer(child).result()).collect();
    let took = began.elapsed();
    eprintln!("{PODS} pods were added in {:.1} s", took.as_secs_f32());
    assert!(took < PODS_LIMIT, "{PODS} pods took {took:?}");
    for is_ipv6 in [false, true] {
        let mut all: Vec<_> = results.iter().map(|result| address(result, is_ipv6)).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), PODS, "each has an address of its own");
    }
    for n in [1, PODS / 2, PODS - 1] {
        hear_each_other((&pods[0], &results[0]), (&pods[n], &results[n]));
    }
    host.daemon.settled();
    let began = Instant::now();
    let children: Vec<_> = pods.iter().map(|pod| host.spawn_for("DEL", pod, "eth0", &network)).collect();
    for child in children {
        answer(child).result();
    }
    eprintln!("{PODS} pods were deleted in {:.1} s", began.elapsed().as_secs_f32());
    host.nothing_left(&pods.iter().collect::<Vec<_>>());
    host.daemon.stop();
}

#[test]
fn cni_another_vpc_hears_nothing() {
    let host = Host::start();
    let red = host.network();
    let blue = with(&red, json!({"name": "others", "vpc": "blue"}));
    let (a, b, other) = (Pod::new("a"), Pod::new("b"), Pod::new("other"));
    let (of_a, of_b) = (host.add(&a, &red), host.add(&b, &red));
    // The very address that a pod of red has, one of IPv6 besides, and the user of the pod says which VPC it is in.
    let asked = json!({"cni": {"vpc": "blue", "ips": [address(&of_b, false)]}});
    let of_other = host.add(&other, &with(&blue, json!({"args": asked, "vpc": "red"})));
    assert_eq!(address(&of_other, false), address(&of_b, false));
    hear_each_other((&a, &of_a), (&b, &of_b));
    let before = other.heard();
    hear_each_other((&a, &of_a), (&b, &of_b));
    traffic::no_ping(&a.netns, &address(&of_other, true));
    traffic::no_ping(&other.netns, &address(&of_a, false));
    assert_eq!(other.heard(), before);
    // A second interface of a pod, in the other VPC.
    let second = with(&blue, json!({"defaultRoute": false}));
    let of_net1 = host.ask_as("ADD", &a, "net1", &second).result();
    a.netns.run(&["ping", "-n", "-c", "1", "-W", "3", "-I", "net1", &address(&of_other, true)]);
    traffic::ping(&b.netns, &address(&of_a, false), 56, 3);
    assert_eq!(of_net1["routes"], json!([]));
    host.ask_as("DEL", &a, "net1", &second).result();
    host.ask_as("ADD", &a, "net1", &blue).failure(104, "another route to 0.0.0.0/0");
    assert_eq!(a.netns.interfaces(), ["eth0", "lo"]);
    for (pod, network) in [(&a, &red), (&b, &red), (&other, &blue)] {
        host.del(pod, network);
    }
    host.nothing_left(&[&a, &b, &other]);
    host.daemon.stop();
}

#[test]
fn cni_virtual_machines_have_sockets() {
    let mut host = Host::start();
    let network = with(
        &host.network(),
        json!({"port": "vhost-user", "socketFolder": host.dir.path(), "socketMode": "0600"}),
    );
    let vm = Pod::new("vm");
    let result = host.add(&vm, &network);
    let interface = &result["interfaces"][0];
    let socket = Path::new(interface["socketPath"].as_str().unwrap());
    assert!(socket.starts_with(host.dir.path()) && socket.exists(), "{result:#}");
    assert_eq!((&interface["name"], vm.netns.interfaces()), (&json!("eth0"), vec!["lo".to_owned()]));
    assert_eq!(host.add(&vm, &network), result);
    host.check(&vm, &network, &result).result();
    // Earlier results do not name the socket.
    for version in ["0.4.0", "1.0.0"] {
        let earlier = with(&network, json!({"cniVersion": version}));
        let result = host.add(&vm, &earlier);
        assert_eq!(result["interfaces"][0].get("socketPath"), None, "{result:#}");
        host.check(&vm, &earlier, &result).result();
    }
    host.del(&vm, &network);
    assert!(!socket.exists());
    host.nothing_left(&[&vm]);
    host.daemon.process().signal("TERM");
    host.daemon.assert_clean_end();
}

/// Plugins of others read what ours answers, behind it in a chain; and ours passes on what those before it made.
#[test]
fn cni_chains_with_other_plugins() {
    let host = Host::start();
    let (a, b) = (Pod::new("a"), Pod::new("b"));
    for version in ["0.4.0", "1.0.0"] {
        let network = with(&host.network(), json!({"cniVersion": version}));
        let plain = json!({"cniVersion": version, "name": "pods", "type": "loopback"});
        let lo = host.ask_other("loopback", "ADD", &a, "lo", &plain).result();
        let result = host.add(&a, &with(&network, json!({"prevResult": lo})));
        let names: Vec<_> =
            result["interfaces"].as_array().unwrap().iter().map(|i| i["name"].clone()).collect();
        assert_eq!(names[..2], [json!("lo"), json!("eth0")], "{result:#}");
        let of_lo = lo["ips"].as_array().unwrap().len();
        assert_eq!(result["ips"][0]["address"], lo["ips"][0]["address"]);
        assert_eq!(
            (&result["ips"][0]["interface"], &result["ips"][of_lo]["interface"]),
            (&json!(0), &json!(1))
        );
        let tuning = json!({
            "cniVersion": version, "name": "pods", "type": "tuning", "prevResult": result,
            "sysctl": {"net.ipv4.conf.eth0.arp_filter": "1"},
        });
        let tuned = host.ask_other("tuning", "ADD", &a, "eth0", &tuning).result();
        assert_eq!((&tuned["ips"], &tuned["routes"]), (&result["ips"], &result["routes"]));
        host.ask_other("tuning", "CHECK", &a, "eth0", &with(&tuning, json!({"prevResult": tuned}))).result();
        host.check(&a, &network, &tuned).result();
        let of_b = host.add(&b, &network);
        traffic::ping(
            &b.netns,
            result["ips"][of_lo]["address"].as_str().unwrap().split('/').next().unwrap(),
            56,
            3,
        );
        traffic::ping(&a.netns, &address(&of_b, true), 56, 3);
        for pod in [&a, &b] {
            host.del(pod, &network);
        }
    }
    host.nothing_left(&[&a, &b]);
    host.daemon.stop();
}
