//! Routes to a vNIC, with stock programs at both ends: a metadata server for each of two tenants, under the same addresses, and a
//! firewall that a prefix is routed to.
//!
//! ```text
//!  red1, meta-red (VIP)      ──┐                            ┌── red2
//!  blue1, meta-blue (allowed) ─┤ first ══ underlay ══ second ┤
//!                              ┘                            └── blue2
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::lab::{Lab, TENANT_MTU, Tenant};
use tests::process::Process;
use tests::{Counters, Daemon, Family, Netns, Workdir, pair, script, traffic, wait_for};

const LIMIT: Duration = Duration::from_secs(30);
/// Where every tenant finds its own metadata server.
const METADATA: [&str; 2] = ["169.254.169.254", "fd00:ec2::254"];
const SERVER: [&str; 2] = ["10.0.0.53/24", "fd00:1::53/64"];
const NEAR: [&str; 2] = ["10.0.0.1/24", "fd00:1::1/64"];
const FAR: [&str; 2] = ["10.0.0.2/24", "fd00:1::2/64"];
const GATEWAYS: [&str; 2] = ["10.0.0.254", "fd00:1::fe"];
/// MACs: the server, the tenant of the first host, that of the second.
const RED: [&str; 3] = ["02:00:00:00:0a:53", "02:00:00:00:0a:01", "02:00:00:00:0a:02"];
const BLUE: [&str; 3] = ["02:00:00:00:0b:53", "02:00:00:00:0b:01", "02:00:00:00:0b:02"];

fn veth(tenant: &Tenant, more: &str) -> String {
    let section = tenant.vnic_on(&format!("{{ kind = \"veth\", iface = \"{}\" }}", tenant.name));
    section.replacen("mac =", &format!("{more}mac ="), 1)
}

/// A VPC whose router leads to the metadata server by `target`; `more` are subnets of its own.
fn network(name: &str, vni: u32, target: &str, more: &str) -> String {
    let routes = METADATA.map(|address| {
        let len = if address.contains(':') { 128 } else { 32 };
        format!("{{ to = \"{address}/{len}\", {target} }}")
    });
    let subnets = [("10.0.0.0/24", GATEWAYS[0]), ("fd00:1::/64", GATEWAYS[1])].map(|(prefix, gateway)| {
        format!("[[subnet]]\nvpc = \"{name}\"\nprefix = \"{prefix}\"\ngateway = \"{gateway}\"\n")
    });
    let routes = routes.join(", ");
    format!("[[vpc]]\nname = \"{name}\"\nvni = {vni}\nroutes = [{routes}]\n{}{more}", subnets.concat())
}

fn default_routes(machine: &Netns) {
    for gateway in GATEWAYS {
        machine.ip(&format!("route add default via {gateway}"));
    }
}

/// Python's own web server under both addresses, with one page that says whose it is.
struct Web {
    _servers: [Process; 2],
    dir: Workdir,
}

impl Web {
    fn start(machine: &Netns, whose: &str) -> Web {
        let dir = Workdir::new("web");
        std::fs::create_dir(dir.path().join("root")).unwrap();
        std::fs::write(dir.path().join("root/whose"), whose).unwrap();
        let root = dir.path().join("root").display().to_string();
        let servers = METADATA.map(|address| {
            let args = [script::PYTHON, "-m", "http.server", "80", "--bind", address, "--directory", &root];
            machine.spawn(&format!("web-{}", address.replace(':', "-")), &args, &dir)
        });
        for address in METADATA {
            wait_for("the web server to listen", LIMIT, || {
                machine.run(&["ss", "-Hltn"]).contains(address).then_some(())
            });
        }
        Web { _servers: servers, dir }
    }

    /// Requests that it wrote down.
    fn requests(&self) -> usize {
        let logs = std::fs::read_dir(self.dir.path()).unwrap().flatten();
        let logs = logs.filter(|entry| entry.path().extension().is_some_and(|end| end == "log"));
        logs.map(|log| std::fs::read_to_string(log.path()).unwrap().matches("GET /whose").count()).sum()
    }
}

fn url(address: &str) -> String {
    if address.contains(':') {
        format!("http://[{address}]/whose")
    } else {
        format!("http://{address}/whose")
    }
}

/// What curl is answered; the error in its words where there is no answer.
fn fetch(machine: &Netns, address: &str) -> Result<String, String> {
    let output = machine.try_run(&["curl", "-sS", "--noproxy", "*", "--max-time", "5", &url(address)]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

#[track_caller]
fn all_fetch(clients: &[(&Tenant, &str)]) {
    for (client, whose) in clients {
        for address in METADATA {
            assert_eq!(
                fetch(&client.netns, address).as_deref(),
                Ok(*whose),
                "{} from {address}",
                client.name
            );
        }
    }
}

/// What was dropped since, but for groups that nobody floods to and what the underlay's kernels say for themselves.
fn dropped(daemon: &Daemon, before: &Counters) -> Vec<(String, i64)> {
    let moved = daemon.counters().since(before).into_iter();
    let drops = moved.filter_map(|(path, n)| Some((path.strip_prefix("fwd.drops.")?.to_owned(), n)));
    drops.filter(|(reason, _)| !["bum-disabled", "underlay-other"].contains(&reason.as_str())).collect()
}

fn moved(daemon: &Daemon, before: &Counters, name: &str) -> i64 {
    daemon.counters().get(&format!("fwd.{name}")) - before.get(&format!("fwd.{name}"))
}

fn route_of(daemon: &Daemon, vpc: &str, to: &str) -> serde_json::Value {
    let rows = daemon.json(&format!("show route {vpc}"));
    let row = rows.as_array().unwrap().iter().find(|row| row["to"] == to).cloned();
    row.unwrap_or_else(|| panic!("no route to {to}: {rows:#}"))
}

#[test]
fn services_routing_two_tenants_find_their_own_metadata_under_one_address() {
    let here = Lab::new(Family::V4);
    here.peer.ip("addr flush dev up0");
    let there = here.reversed();
    // Red's server has the addresses as VIPs, in subnets of their own; blue's is allowed them.
    let vips = [&SERVER[..], &["169.254.169.254/32", "fd00:ec2::254/128"]].concat();
    let red_meta = here.cabled_tenant("meta-red", "red", RED[0], &vips);
    let blue_meta = here.cabled_tenant("meta-blue", "blue", BLUE[0], &SERVER);
    METADATA.iter().for_each(|address| drop(blue_meta.netns.ip(&format!("addr add {address} dev eth0"))));
    let red1 = here.cabled_tenant("red1", "red", RED[1], &NEAR);
    let blue1 = here.cabled_tenant("blue1", "blue", BLUE[1], &NEAR);
    let red2 = there.cabled_tenant("red2", "red", RED[2], &FAR);
    let blue2 = there.cabled_tenant("blue2", "blue", BLUE[2], &FAR);
    for tenant in [&red_meta, &blue_meta, &red1, &blue1, &red2, &blue2] {
        default_routes(&tenant.netns);
    }
    let subnets = "[[subnet]]\nvpc = \"red\"\nprefix = \"169.254.169.0/24\"\n\
                   [[subnet]]\nvpc = \"red\"\nprefix = \"fd00:ec2::/64\"\n";
    // Who may ask for metadata and for nothing else.
    let group = "[[security-group]]\nname = \"narrow\"\nvpc = \"blue\"\ndefault-out = \"deny\"\nrules = [\n\
                 { direction = \"out\", protocol = \"tcp\", ports = \"80\", prefix = \"169.254.169.254/32\" },\n\
                 { direction = \"out\", protocol = \"tcp\", ports = \"80\", prefix = \"fd00:ec2::254/128\" },\n]\n";
    let allowed = METADATA.map(|address| format!("{{ ip = \"{address}\" }}")).join(", ");
    let locations = |lab: &Lab, vni, mac, addresses: &[&str]| {
        tests::lab::location(lab.remote_vtep(), vni, mac, addresses)
    };
    let [red, blue] = pair::VNIS;
    let first_config = [
        here.uplink(""),
        network("red", red, "vnic = \"meta-red\"", subnets),
        network("blue", blue, "vnic = \"meta-blue\"", ""),
        group.to_owned(),
        veth(&red_meta, ""),
        veth(&blue_meta, &format!("allowed = [{allowed}]\n")),
        veth(&red1, ""),
        veth(&blue1, "security-groups = [\"narrow\"]\n"),
        locations(&here, red, RED[2], &FAR),
        locations(&here, blue, BLUE[2], &FAR),
    ];
    let station = |mac: &str| format!("mac = \"{mac}\"");
    let second_config = [
        there.uplink(""),
        network("red", red, &station(RED[0]), subnets),
        network("blue", blue, &station(BLUE[0]), ""),
        veth(&red2, ""),
        veth(&blue2, ""),
        locations(&there, red, RED[0], &vips),
        locations(&there, red, RED[1], &NEAR),
        locations(&there, blue, BLUE[0], &SERVER),
        locations(&there, blue, BLUE[1], &NEAR),
    ];
    let mut first = Daemon::start_alone(&here.host, &first_config.concat());
    let mut second = Daemon::start(&there.host, &second_config.concat());
    first.wait_until_resolved();
    second.settled();
    let webs = [Web::start(&red_meta.netns, "red"), Web::start(&blue_meta.netns, "blue")];
    assert_eq!(route_of(&first, "red", "169.254.169.254/32")["vnic"], "meta-red");
    assert_eq!(route_of(&second, "red", "169.254.169.254/32")["state"], "resolved");

    let clients = [(&red1, "red"), (&red2, "red"), (&blue1, "blue"), (&blue2, "blue")];
    let (before, before_second) = (first.counters(), second.counters());
    all_fetch(&clients);
    assert_eq!(webs.each_ref().map(Web::requests), [4, 4]);
    // Of each fetch five packets at least go one way and four the other: here between vNICs, there through the tunnel.
    assert!(moved(&first, &before, "local") >= 4 * 9, "{}", moved(&first, &before, "local"));
    assert!(
        moved(&first, &before, "decapsulated") >= 4 * 5 && moved(&first, &before, "encapsulated") >= 4 * 4
    );
    assert!(moved(&second, &before_second, "encapsulated") >= 4 * 5);
    assert_eq!(dropped(&first, &before), []);
    assert_eq!(dropped(&second, &before_second), []);
    // Its group lets blue1 ask for that and for nothing else, not even of the same machine by its other address.
    let refused = fetch(&blue1.netns, "10.0.0.53").unwrap_err();
    assert!(refused.contains("timed out") || refused.contains("Timeout"), "{refused}");
    let drops = dropped(&first, &before);
    assert!(matches!(&drops[..], [(reason, 1..)] if reason == "security-out"), "{drops:?}");
    // To others there is nobody under such an address.
    let before = first.counters();
    assert!(!red1.netns.try_run(&["ping", "-n", "-c", "1", "-W", "1", "169.254.169.253"]).status.success());
    assert_eq!(dropped(&first, &before), [("martian".to_owned(), 1)]);

    // Red's server moves to the other host; whoever asks finds it there.
    first.ctl(&format!("vnic move meta-red vtep {}", here.remote_vtep()));
    here.host.ip(&format!("link set meta-red netns {}", there.host.name()));
    there.host.ip("link set meta-red up");
    let vips: Vec<&str> = vips.iter().map(|vip| vip.split('/').next().unwrap()).collect();
    second.ctl(&format!(
        "vnic add meta-red vpc red mac {} vips {} mtu {TENANT_MTU} port veth iface=meta-red",
        RED[0],
        vips.join(",")
    ));
    let shown = route_of(&first, "red", "169.254.169.254/32");
    assert_eq!((&shown["mac"], &shown["vnic"]), (&RED[0].into(), &serde_json::Value::Null), "{shown}");
    assert_eq!(route_of(&second, "red", "fd00:ec2::254/128")["vnic"], "meta-red");
    for client in [&red1, &red2] {
        for address in METADATA {
            wait_for("the server to answer from its new host", LIMIT, || {
                (fetch(&client.netns, address).as_deref() == Ok("red")).then_some(())
            });
        }
    }
    let (before, before_second) = (first.counters(), second.counters());
    all_fetch(&clients);
    assert!(moved(&second, &before_second, "local") >= 2 * 9);
    assert_eq!(dropped(&first, &before), []);
    assert_eq!(dropped(&second, &before_second), []);

    // It goes for good: its tenants are told so, and blue's go on.
    second.ctl("vnic del meta-red");
    there.host.ip("link del meta-red");
    for address in METADATA {
        let before = second.counters();
        let words =
            if address.contains(':') { "Address unreachable" } else { "Destination Host Unreachable" };
        let said = red2.netns.try_run(&["ping", "-n", "-c", "1", "-W", "1", address]);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.contains(words), "{said}");
        assert_eq!(dropped(&second, &before), [("no-location".to_owned(), 1)]);
        assert_eq!(moved(&second, &before, "originated"), 1);
    }
    assert_eq!(route_of(&second, "red", "169.254.169.254/32")["state"], "unreachable");
    all_fetch(&clients[2..]);
    drop(webs);
    second.stop();
    first.stop();
}

/// A firewall between two VPCs: a prefix is routed to its one vNIC, and the way back to its other one.
#[test]
fn services_routing_a_prefix_to_a_firewall() {
    let lab = Lab::new(Family::V4);
    let inside = lab.cabled_tenant("inside", "red", RED[1], &["10.0.0.1/24"]);
    let outside = lab.cabled_tenant("outside", "blue", BLUE[1], &["198.51.100.10/24"]);
    // One machine with a leg in either VPC, which forwards what is not its own.
    let firewall = lab.cabled_tenant("fw-in", "red", RED[2], &["10.0.0.2/24"]);
    tests::netns::cable((&firewall.netns, "eth1"), (&lab.host, "fw-out"), TENANT_MTU);
    firewall.netns.ip(&format!("link set eth1 address {}", BLUE[2]));
    firewall.netns.ip("addr add 198.51.100.1/24 dev eth1");
    firewall.netns.sysctl(&["net.ipv4.ip_forward=1", "net.ipv4.conf.all.send_redirects=0"]);
    inside.netns.ip("route add default via 10.0.0.254");
    outside.netns.ip("route add default via 198.51.100.254");
    let vpcs = "[[vpc]]\nname = \"red\"\nvni = 100\nroutes = [{ to = \"198.51.100.0/24\", vnic = \"fw-in\" }]\n\
                [[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\ngateway = \"10.0.0.254\"\n\
                [[vpc]]\nname = \"blue\"\nvni = 200\n\
                [[subnet]]\nvpc = \"blue\"\nprefix = \"198.51.100.0/24\"\ngateway = \"198.51.100.254\"\n";
    let out = format!(
        "[[vnic]]\nname = \"fw-out\"\nvpc = \"blue\"\nmac = \"{}\"\nvips = [\"198.51.100.1\"]\nguard = \"off\"\n\
         mtu = {TENANT_MTU}\nport = {{ kind = \"veth\", iface = \"fw-out\" }}\n",
        BLUE[2]
    );
    let config = [
        lab.uplink(""),
        vpcs.to_owned(),
        veth(&inside, ""),
        veth(&outside, ""),
        veth(&firewall, "guard = \"off\"\n"),
        out,
    ];
    let mut daemon = Daemon::start(&lab.host, &config.concat());
    daemon.settled();
    // The way back is not there yet: the firewall's word gets through, the answer does not.
    let before = daemon.counters();
    assert!(!inside.netns.try_run(&["ping", "-n", "-c", "1", "-W", "1", "198.51.100.10"]).status.success());
    assert_eq!(dropped(&daemon, &before), [("no-route".to_owned(), 1)]);
    let refused = daemon.try_ctl("route add blue 10.0.0.0/24 vnic fw-in").unwrap_err();
    assert!(refused.contains("in VPC red"), "{refused}");
    daemon.ctl("route add blue 10.0.0.0/24 vnic fw-out");
    let before = daemon.counters();
    traffic::ping(&inside.netns, "198.51.100.10", 56, 3);
    traffic::ping(&outside.netns, "10.0.0.1", 1400, 3);
    traffic::transfer(&inside.netns, &outside.netns, "198.51.100.10", 60_000);
    assert_eq!(dropped(&daemon, &before), []);
    let text =
        inside.netns.run(&["traceroute", "-n", "-q", "1", "-N", "1", "-w", "3", "-m", "4", "198.51.100.10"]);
    let hops: Vec<_> = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(hops, ["10.0.0.254", "10.0.0.2", "198.51.100.10"], "{text}");
    // What the firewall itself hands back to the router for there would come to it again: it goes no further.
    firewall.netns.ip("route add 198.51.100.77/32 via 10.0.0.254 dev eth0");
    let before = daemon.counters();
    assert!(!firewall.netns.try_run(&["ping", "-n", "-c", "1", "-W", "1", "198.51.100.77"]).status.success());
    assert_eq!(dropped(&daemon, &before), [("hairpin".to_owned(), 1)]);
    daemon.stop();
}
