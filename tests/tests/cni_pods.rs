//! Pods by the CNI plugin: the real plugin is run as a container runtime runs it, and asks the real switch.
//!
//! ```text
//!  pod a ── eth0 ══ cni… ──┐
//!  pod b ── eth0 ══ cni… ──┤ switch
//!  ...                     │
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Daemon, Family, Lab, Netns, Workdir, binary, traffic, wait_for};

/// Where Debian has the plugins that addresses are delegated to.
const PLUGINS: &str = "/usr/lib/cni";
const PODS: usize = 100;
/// How long that many pods may take. On two cores with nothing else on them they take less than 10 s.
const PODS_LIMIT: Duration = Duration::from_secs(30);

fn networks() -> String {
    let vpc = |name: &str, vni: u32| {
        format!(
            "[[vpc]]\nname = \"{name}\"\nvni = {vni}\n\
             [[subnet]]\nvpc = \"{name}\"\nprefix = \"10.0.0.0/24\"\ngateway = \"10.0.0.254\"\n\
             [[subnet]]\nvpc = \"{name}\"\nprefix = \"fd00:1::/64\"\ngateway = \"fd00:1::ff\"\n"
        )
    };
    [vpc("red", 100), vpc("blue", 200)].concat()
}

/// A host with the switch, whose changes are saved.
struct Host {
    daemon: Daemon,
    lab: Lab,
    before: Vec<String>,
    dir: Workdir,
}

struct Pod {
    netns: Netns,
    id: String,
}

impl Pod {
    fn new(name: &str) -> Pod {
        Pod { netns: Netns::new(name), id: format!("{name}0123456789abcdef0123456789abcdef") }
    }

    fn path(&self) -> String {
        format!("/run/netns/{}", self.netns.name())
    }

    /// Packets that its interface got.
    fn heard(&self) -> u64 {
        let told = self.netns.run(&["cat", "/sys/class/net/eth0/statistics/rx_packets"]);
        told.trim().parse().unwrap()
    }
}

/// What the plugin answered.
#[derive(Debug, PartialEq)]
struct Answer {
    success: bool,
    told: Value,
}

impl Answer {
    #[track_caller]
    fn result(self) -> Value {
        assert!(self.success, "{:#}", self.told);
        self.told
    }

    #[track_caller]
    fn failure(self, code: u64, words: &str) {
        let told = &self.told;
        assert!(!self.success && told["code"] == code, "not {code}: {told:#}");
        assert!(told["msg"].as_str().unwrap().contains(words), "no {words:?}: {told:#}");
        assert!(!told["details"].as_str().unwrap().is_empty(), "it does not say what to do: {told:#}");
    }
}

fn answer(child: Child) -> Answer {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{text}");
    let told = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() };
    Answer { success: output.status.success(), told }
}

/// The first address of a result that is of this family.
fn address(result: &Value, is_ipv6: bool) -> String {
    let ips = result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap());
    let ip = ips.into_iter().find(|ip| ip.contains(':') == is_ipv6).unwrap();
    ip.split('/').next().unwrap().to_owned()
}

fn with(config: &Value, more: Value) -> Value {
    let mut config = config.clone();
    let Value::Object(more) = more else { panic!("{more}") };
    for (key, value) in more {
        config[key] = value;
    }
    config
}

impl Host {
    fn start() -> Host {
        let lab = Lab::new(Family::V4);
        let dir = Workdir::new("cni");
        let state = dir.path().join("state");
        let uplink = lab.uplink_on("{ kind = \"veth\", iface = \"up0\" }", "");
        let config = format!("[control]\nstate = \"{}\"\n{uplink}{}", state.display(), networks());
        let before = lab.host.interfaces();
        let daemon = Daemon::start(&lab.host, &config);
        Host { daemon, lab, before, dir }
    }

    /// A network of VPC `red`.
    fn network(&self) -> Value {
        json!({
            "cniVersion": "1.1.0", "name": "pods", "type": "vswitch-cni", "socket": self.daemon.socket(),
            "vpc": "red", "subnet": ["10.0.0.0/24", "fd00:1::/64"], "mtu": 1400,
        })
    }

    /// Runs the plugin with these variables besides its command.
    fn spawn(&self, command: &str, variables: &[(&str, &str)], config: &[u8]) -> Child {
        let program = binary::release("vswitch-cni").display().to_string();
        let mut plugin = self.lab.host.command(&[&program]);
        plugin.env("CNI_COMMAND", command).env("CNI_PATH", PLUGINS).envs(variables.iter().copied());
        let mut child =
            plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It may refuse what it is asked before it has read all of it.
        let _ = child.stdin.take().unwrap().write_all(config);
        child
    }

    fn spawn_for(&self, command: &str, pod: &Pod, interface: &str, config: &Value) -> Child {
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web";
        let (id, path) = (pod.id.as_str(), pod.path());
        let variables =
            [("CNI_CONTAINERID", id), ("CNI_IFNAME", interface), ("CNI_NETNS", &path), ("CNI_ARGS", args)];
        self.spawn(command, &variables, config.to_string().as_bytes())
    }

    fn ask(&self, command: &str, pod: &Pod, config: &Value) -> Answer {
        self.ask_as(command, pod, "eth0", config)
    }

    fn ask_as(&self, command: &str, pod: &Pod, interface: &str, config: &Value) -> Answer {
        answer(self.spawn_for(command, pod, interface, config))
    }

    #[track_caller]
    fn add(&self, pod: &Pod, config: &Value) -> Value {
        self.ask("ADD", pod, config).result()
    }

    fn check(&self, pod: &Pod, config: &Value, result: &Value) -> Answer {
        self.ask("CHECK", pod, &with(config, json!({"prevResult": result})))
    }

    #[track_caller]
    fn del(&self, pod: &Pod, config: &Value) {
        self.ask("DEL", pod, config).result();
    }

    fn vnics(&self) -> Vec<String> {
        let shown = self.daemon.json("show vnic");
        let name = |row: &Value| row["name"].as_str().unwrap().to_owned();
        shown.as_array().unwrap().iter().map(name).collect()
    }

    /// Nothing is there any more of any pod.
    #[track_caller]
    fn nothing_left(&self, pods: &[&Pod]) {
        assert_eq!(self.vnics(), [""; 0]);
        assert_eq!(self.lab.host.interfaces(), self.before);
        for pod in pods {
            assert_eq!(pod.netns.interfaces(), ["lo"]);
        }
    }
}

/// Both ways, over both families.
#[track_caller]
fn hear_each_other((one, its): (&Pod, &Value), (other, others): (&Pod, &Value)) {
    for is_ipv6 in [false, true] {
        traffic::ping(&one.netns, &address(others, is_ipv6), 1000, 3);
        traffic::ping(&other.netns, &address(its, is_ipv6), 56, 3);
    }
}

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

/// Addresses that a plugin of Debian's chose and holds.
fn held(store: &Path, network: &str) -> Vec<String> {
    let Ok(folder) = fs::read_dir(store.join(network)) else { return Vec::new() };
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("10.")).collect()
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
    // The very address that a pod of red has, and the user of the pod says which VPC it is in.
    let asked = json!({"cni": {"vpc": "blue", "ips": [address(&of_b, false), "fd00:1::77"]}});
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
    of_network("GC", &with(&network, json!({"cni.dev/valid-attachments": []}))).result();
    host.del(&other, &others);
    host.nothing_left(&[&a, &b, &c, &other]);
    // A switch to which nobody said anything.
    host.daemon.process().signal("TERM");
    host.daemon.assert_clean_end();
}

#[test]
fn cni_virtual_machines_have_sockets() {
    let mut host = Host::start();
    let network = with(&host.network(), json!({"port": "vhost-user", "socketFolder": host.dir.path()}));
    let vm = Pod::new("vm");
    let result = host.add(&vm, &network);
    let interface = &result["interfaces"][0];
    let socket = Path::new(interface["socketPath"].as_str().unwrap());
    assert!(socket.starts_with(host.dir.path()) && socket.exists(), "{result:#}");
    assert_eq!((&interface["name"], vm.netns.interfaces()), (&json!("eth0"), vec!["lo".to_owned()]));
    assert_eq!(host.add(&vm, &network), result);
    host.check(&vm, &network, &result).result();
    host.del(&vm, &network);
    assert!(!socket.exists());
    host.nothing_left(&[&vm]);
    host.daemon.process().signal("TERM");
    host.daemon.assert_clean_end();
}
