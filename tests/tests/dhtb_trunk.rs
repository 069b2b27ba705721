//! Ten thousand vNICs with rates of their own, as VLANs of three trunk ports: the switch starts, answers about one of them,
//! holds it to its ceiling on real frames, takes changes and a reload, and needs no more memory than said here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use tests::{Agent, Daemon, Family, Lab, Netns, Process, Workdir, lab, netns, script, wait_for};

const VNICS: usize = 10_000;
const VPCS: usize = 10;
/// VLANs of a trunk, 1 to 4094.
const VLANS: usize = 4094;
const TRUNKS: usize = VNICS.div_ceil(VLANS);
/// Resident memory of the switch, all of it: 256 MiB of DPDK's included, as far as touched.
const MEMORY_MIB: u64 = 700;
/// What may come on top while control answers about everything, or reads a config of two megabytes.
const PEAK_MIB: u64 = 1_000;
/// Nodes of the tree that a vNIC has: itself and two classes, in both directions.
const NODES_PER_VNIC: usize = 6;
/// No scenario asserts on speed; this is only so that one that hangs is told from one that is slow.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long rates are measured.
const WINDOW: Duration = Duration::from_secs(5);
/// What a vNIC saves up at such ceilings, bytes.
const BURST: f64 = 131_072.0;
const FAR_MAC: &str = "02:00:00:ff:00:01";

/// Sends frames of some vNICs into a trunk by turns, so many a second.
const SENDER: &str = r#"
import socket, sys, time
from scapy.all import Dot1Q, Ether, IP, UDP, Raw
rate, who = int(sys.argv[1]), [arg.split(",") for arg in sys.argv[2:]]
frames = [
    bytes(Ether(src=mac, dst="02:00:00:ff:00:01") / Dot1Q(vlan=int(vlan))
          / IP(src=ip, dst="10.0.255.1") / UDP(sport=7, dport=8) / Raw(b"x" * 1000))
    for mac, vlan, ip in who
]
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("eth0", 0))
print("sending", flush=True)
due = time.monotonic()
while True:
    for frame in frames:
        wire.send(frame)
    due = max(due + len(frames) / rate, time.monotonic() - 0.1)
    time.sleep(max(0, due - time.monotonic()))
"#;

fn name(vnic: usize) -> String {
    format!("v{vnic}")
}

fn mac(vnic: usize) -> String {
    format!("02:00:00:00:{:02x}:{:02x}", vnic >> 8, vnic & 255)
}

/// Its address; the same one in each VPC.
fn address(vnic: usize) -> String {
    let host = vnic / VPCS + 1;
    format!("10.0.{}.{}", host >> 8, host & 255)
}

fn vlan(vnic: usize) -> usize {
    vnic % VLANS + 1
}

fn vni(vnic: usize) -> usize {
    100 + vnic % VPCS
}

/// What it may send, Mbit/s.
fn ceil(vnic: usize) -> usize {
    1 + vnic % 3
}

fn vnics(ceil: impl Fn(usize) -> usize) -> String {
    let mut text = String::new();
    for vnic in 0..VNICS {
        writeln!(
            text,
            "[[vnic]]\nname = \"{}\"\nvpc = \"p{}\"\nmac = \"{}\"\nvips = [\"{}\"]\nmtu = 1450\nport = \"t{}\"\nvlan = {}\n\
             qos = {{ out = {{ ceil = \"{}Mbit\", assured = \"100kbit\" }}, in = {{ ceil = \"5Mbit\", assured = \"50kbit\" }} }}",
            name(vnic),
            vnic % VPCS,
            mac(vnic),
            address(vnic),
            vnic / VLANS,
            vlan(vnic),
            ceil(vnic),
        )
        .unwrap();
    }
    text
}

struct Site {
    daemon: Daemon,
    machines: Vec<Netns>,
    /// All of the config but the vNICs.
    rest: String,
    dir: Workdir,
    lab: Lab,
}

fn start() -> Site {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    lab.peer.sysctl(&["net.ipv6.conf.all.disable_ipv6=1"]);
    let vtep = Family::V4.remote_vtep();
    let neighbour = format!("neighbours = [{{ ip = \"{vtep}\", mac = \"{}\" }}]", lab.peer_mac());
    let mut rest = lab.uplink(&neighbour) + "[qos]\nlink = \"10Gbit\"\n";
    let mut machines = Vec::new();
    for trunk in 0..TRUNKS {
        let machine = Netns::new(&format!("machine{trunk}"));
        netns::cable((&machine, "eth0"), (&lab.host, &format!("trunk{trunk}")), 1500);
        machines.push(machine);
        rest += &format!(
            "[[trunk]]\nname = \"t{trunk}\"\nport = {{ kind = \"af-packet\", iface = \"trunk{trunk}\" }}\n"
        );
    }
    for vpc in 0..VPCS {
        rest += &lab::vpc(&format!("p{vpc}"), 100 + vpc as u32, &["10.0.0.0/16"], "");
        rest += &lab::location(vtep, 100 + vpc as u32, FAR_MAC, &["10.0.255.1"]);
    }
    let began = Instant::now();
    let mut daemon = Daemon::start(&lab.host, &(rest.clone() + &vnics(ceil)));
    eprintln!("start with {VNICS} vNICs: {:?}", began.elapsed());
    daemon.settled();
    Site { daemon, machines, rest, dir: Workdir::new("trunks"), lab }
}

/// A number of `/proc/<pid>/status`, MiB.
fn status_mib(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap().trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// A vNIC's node, and the switch's clock.
fn look(daemon: &Daemon, vnic: usize) -> (Value, u64) {
    let answer = daemon.json(&format!("show qos vnic {}", name(vnic)));
    let nodes = answer["nodes"].as_array().expect("nodes");
    let is =
        |node: &&Value| node["level"] == "vnic" && node["direction"] == "out" && node["name"] == name(vnic);
    (nodes.iter().find(is).expect("the vNIC's node").clone(), answer["now-ns"].as_u64().expect("now-ns"))
}

/// Holds each of some vNICs to its ceiling (Mbit/s) while all of them have packets waiting.
///
/// What went through is at most what was saved up and what the ceiling gives in the time between the first question and
/// the last answer, however long a busy machine takes for them. How much less it is, is the machine's: a worker that was away
/// for longer than 50 ms does not make up for it at such rates, and here it shares its core with everything else.
fn assert_held<const N: usize>(daemon: &Daemon, wanted: [(usize, f64); N]) {
    for (vnic, _) in wanted {
        let waits = || look(daemon, vnic).0["waiting-packets"].as_u64().filter(|n| *n > 0);
        wait_for("packets to wait", PATIENCE, waits);
    }
    let before = wanted.map(|(vnic, _)| (Instant::now(), look(daemon, vnic)));
    std::thread::sleep(WINDOW);
    for (n, (vnic, ceil)) in wanted.into_iter().enumerate() {
        let (asked, start) = &before[n];
        let end = look(daemon, vnic);
        let longest = asked.elapsed().as_secs_f64();
        let drawn = |node: &Value| node["drawn"].as_u64().expect("drawn") as f64;
        let bytes = drawn(&end.0) - drawn(&start.0);
        let rate = bytes * 8e3 / (end.1 - start.1) as f64;
        eprintln!("{}: {rate:.4} Mbit/s of {ceil}, {:+.2} %", name(vnic), (rate / ceil - 1.0) * 100.0);
        let most = BURST + ceil * 1e6 / 8.0 * longest * 1.001;
        assert!(
            bytes <= most,
            "{}: {bytes} bytes in {longest} s, at most {most} at {ceil} Mbit/s",
            name(vnic)
        );
        assert!(rate > ceil / 20.0, "{}: {rate} of {ceil} Mbit/s", name(vnic));
    }
}

fn send(site: &Site, trunk: usize, vnics: &[usize]) -> Process {
    let who: Vec<String> =
        vnics.iter().map(|vnic| format!("{},{},{}", mac(*vnic), vlan(*vnic), address(*vnic))).collect();
    // Eight megabits a second each: over every ceiling here, and not much for one core.
    let rate = (1000 * vnics.len()).to_string();
    let mut args = vec![script::PYTHON, "-B", "-c", SENDER, &rate];
    args.extend(who.iter().map(String::as_str));
    let mut sender = site.machines[trunk].spawn("sender", &args, &site.dir);
    sender.wait_output("sending", PATIENCE);
    sender
}

/// A frame of each of these comes out in the tunnel of its own VPC.
fn passes(site: &Site, vnics: &[usize]) {
    let wires: Vec<(String, &Netns)> =
        site.machines.iter().enumerate().map(|(n, machine)| (format!("t{n}"), machine)).collect();
    let named: Vec<(&str, &Netns)> = wires.iter().map(|(name, machine)| (name.as_str(), *machine)).collect();
    let mut agent = Agent::start(&site.lab, &named, &[]);
    for &vnic in vnics {
        let frame = format!(
            "Ether(src='{}', dst='{FAR_MAC}')/Dot1Q(vlan={})/IP(src='{}', dst='10.0.255.1')/UDP(sport=7, dport=8)/Raw(b'hello')",
            mac(vnic),
            vlan(vnic),
            address(vnic)
        );
        // On a machine that is busy it comes out when nobody watches any more.
        let fact = wait_for("a frame to come out", PATIENCE, || {
            let exchange = agent.exchange(&format!("t{}", vnic / VLANS), &[&frame], &["peer"]);
            exchange.on("peer").last().cloned()
        });
        assert_eq!((&fact["vni"], &fact["inner"]["src"]), (&vni(vnic).into(), &mac(vnic).into()), "{fact}");
    }
}

#[test]
fn dhtb_trunk_ten_thousand_vnics_have_rates_of_their_own() {
    let mut site = start();
    let pid = site.daemon.process().pid();
    let (resident, peak) = (status_mib(pid, "VmRSS"), status_mib(pid, "VmHWM"));
    eprintln!("memory after the start: {resident} MiB, at most {peak} MiB");
    let began = Instant::now();
    let one = site.daemon.json("show qos vnic v9999");
    let one_took = began.elapsed();
    let began = Instant::now();
    let all = site.daemon.json("show qos");
    eprintln!("show qos vnic: {one_took:?}; show qos, as JSON: {:?}", began.elapsed());
    assert!(one_took < PATIENCE);
    assert_eq!(one["node-bytes"], 128);
    // Link, VPCs, vNICs and classes, both ways.
    assert_eq!(all["nodes"].as_array().unwrap().len(), 2 + 2 * VPCS + NODES_PER_VNIC * VNICS);
    let (node, _) = look(&site.daemon, 9999);
    assert_eq!((&node["ceil"], &node["assured"]), (&1_000_000.into(), &100_000.into()), "{node}");

    // One of each trunk, and two of the second.
    let vnics = [0, 4094, 4095, 9999];
    passes(&site, &vnics);
    let senders = [send(&site, 0, &[0]), send(&site, 1, &[4094, 4095]), send(&site, 2, &[9999])];
    assert_held(&site.daemon, vnics.map(|vnic| (vnic, ceil(vnic) as f64)));
    // One is changed, its neighbours are not.
    let began = Instant::now();
    site.daemon.ctl("qos set vnic v4095 out ceil 6Mbit");
    eprintln!("qos set: {:?}", began.elapsed());
    let error = site.daemon.try_ctl("qos set vnic v4095 out ceil 20Gbit").unwrap_err();
    assert!(error.contains("20Gbit") && error.contains("10Gbit"), "{error}");
    assert_held(&site.daemon, [(4094, ceil(4094) as f64), (4095, 6.0)]);
    drop(senders);

    // A config with other ceilings for all of them.
    site.daemon.rewrite_config(&(site.rest.clone() + &vnics_with_more()));
    let began = Instant::now();
    let answer = site.daemon.ctl("config reload");
    eprintln!("reload that changes {VNICS} ceilings: {:?} ({})", began.elapsed(), answer.trim());
    for vnic in [0, 5000, 9999] {
        assert_eq!(look(&site.daemon, vnic).0["ceil"], (ceil(vnic) + 1) * 1_000_000, "{}", name(vnic));
    }
    // What a reload has freed goes back to the kernel when workers have let go of it, too.
    let until = Instant::now() + PATIENCE;
    let resident = loop {
        let resident = status_mib(pid, "VmRSS");
        if resident <= MEMORY_MIB || Instant::now() >= until {
            break resident;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let (peak, tree) = (status_mib(pid, "VmHWM"), NODES_PER_VNIC * VNICS * 128);
    eprintln!(
        "memory at the end: {resident} MiB, at most {peak} MiB; the vNICs' nodes take {tree} bytes of it"
    );
    assert!(resident <= MEMORY_MIB, "{resident} MiB resident, more than {MEMORY_MIB}");
    assert!(peak <= PEAK_MIB, "{peak} MiB at the most, more than {PEAK_MIB}");
    wait_for("what waits to go", PATIENCE, || {
        (site.daemon.json("show qos vnic v0")["counters"]["waiting"] == 0).then_some(())
    });
    site.daemon.stop();
}

fn vnics_with_more() -> String {
    vnics(|vnic| ceil(vnic) + 1)
}
