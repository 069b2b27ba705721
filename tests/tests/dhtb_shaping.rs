//! Rates on real traffic: iperf3's TCP of two tenants through the switch to the kernel's vxlan, held to what the config and
//! `qos set` say. Rates are the switch's own bytes over the switch's own clock; how fast the machine is does not matter, as
//! all ceilings are far below it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;
use tests::lab::{Lab, Remote, Tenant, vpc};
use tests::rates::{Look, Node, Window};
use tests::{Daemon, Family, Netns, Process, Workdir, pair};

/// How long rates are measured, and how long after a change, by the switch's clock.
const WINDOW: Duration = Duration::from_secs(10);
const SETTLE: Duration = Duration::from_secs(2);
/// Bytes that each packet costs besides its own.
const OVERHEAD: i64 = 24;
/// The tunnel's headers over IPv4.
const TUNNEL: i64 = 50;

struct Hosts {
    daemon: Daemon,
    red: Tenant,
    blue: Tenant,
    red_far: Remote,
    blue_far: Remote,
    _lab: Lab,
}

/// The switch with tenants red and blue; `qos` is config, and each has further lines of its vNIC.
fn hosts(qos: &str, [red_line, blue_line]: [&str; 2]) -> Hosts {
    let lab = Lab::new(Family::V4);
    let red = lab.tenant("red", "red", pair::MACS[0], &pair::NEAR[..1]);
    let blue = lab.tenant("blue", "blue", pair::MACS[1], &pair::NEAR[..1]);
    let red_far = lab.remote("redfar", pair::VNIS[0], pair::MACS[2], &pair::FAR[..1], "");
    let blue_far = lab.remote("bluefar", pair::VNIS[1], pair::MACS[3], &pair::FAR[..1], "");
    let config = [
        lab.uplink(""),
        vpc("red", pair::VNIS[0], &["10.0.0.0/24"], ""),
        vpc("blue", pair::VNIS[1], &["10.0.0.0/24"], ""),
        red.vnic() + red_line + "\n",
        blue.vnic() + blue_line + "\n",
        red_far.location(),
        blue_far.location(),
        qos.to_owned(),
    ]
    .concat();
    let daemon = Daemon::start(&lab.host, &config);
    for tenant in [&red, &blue] {
        tenant.plug(&lab.host);
    }
    Hosts { daemon, red, blue, red_far, blue_far, _lab: lab }
}

/// iperf3's TCP from one machine to another, until it is dropped.
struct Flow {
    _client: Process,
    _server: Process,
}

impl Flow {
    #[track_caller]
    fn start(from: &Netns, to: &Netns, dir: &Workdir) -> Flow {
        let mut server = to.spawn("iperf3-server", &["iperf3", "-s", "--forceflush"], dir);
        server.wait_output("Server listening", Duration::from_secs(10));
        let client = from.spawn(
            "iperf3",
            &["iperf3", "-c", "10.0.0.2", "-C", "cubic", "-t", "600", "--forceflush"],
            dir,
        );
        Flow { _client: client, _server: server }
    }
}

/// Bytes that arrived for programs of a machine over its TCP connections.
#[track_caller]
fn received(machine: &Netns) -> u64 {
    let sockets = machine.run(&["ss", "-tinH", "state", "established"]);
    sockets
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("bytes_received:")?.parse::<u64>().ok())
        .sum()
}

/// Rates over a window, Mbit/s.
#[derive(Debug)]
struct Rates {
    red: f64,
    blue: f64,
    link: f64,
    /// Part of what red and blue paid for since the start that their programs got.
    goodput: [f64; 2],
    /// Of what the uplink's counters say, as vNICs pay for it.
    port: f64,
}

/// What the nodes let through in the next window.
#[track_caller]
fn rates(hosts: &Hosts) -> Rates {
    let [window] = &Window::over(&[&hosts.daemon], SETTLE, WINDOW)[..] else { panic!("one switch") };
    let [red, blue] = ["red", "blue"].map(|name| Node::vnic(name, "out"));
    let [packets, bytes] = window.sent();
    // A hole in a stream holds up what came behind it for a while: over all of the time, not a window.
    let goodput = [(&hosts.red_far, red), (&hosts.blue_far, blue)]
        .map(|(far, node)| received(&far.netns) as f64 / Look::take(&hosts.daemon).of(node, "drawn") as f64);
    Rates {
        red: window.rate(red),
        blue: window.rate(blue),
        link: window.rate(Node::link("out")),
        goodput,
        port: window.megabits(bytes + packets * OVERHEAD - packets * TUNNEL),
    }
}

/// How far off a rate may be, in percent.
const ERROR: f64 = 2.0;
/// Windows that are looked at: where the machine gives a worker or a TCP no core, a link stays idle.
const WINDOWS: u32 = 6;

/// What of a window is wanted: what it is, what it was, what it should be.
type Wanted = (&'static str, f64, f64);

/// A window in which all rates are as wanted. None of them may ever be exceeded.
#[track_caller]
fn steady<const N: usize>(hosts: &Hosts, wanted: impl Fn(&Rates) -> [Wanted; N]) -> Rates {
    for window in 1..=WINDOWS {
        let rates = rates(hosts);
        let mut good = true;
        for (what, rate, wanted) in wanted(&rates) {
            let error = (rate / wanted - 1.0) * 100.0;
            eprintln!("window {window}: {what}: {rate:.3}, wanted {wanted}, {error:+.2} %");
            assert!(
                error <= ERROR || what.contains("part"),
                "{what}: {rate:.3} is {error:+.2} % off {wanted}"
            );
            good &= error.abs() <= ERROR;
        }
        if good {
            return rates;
        }
    }
    panic!("not in {WINDOWS} windows");
}

/// Full segments are 1398 of 1488 bytes; some are sent twice, and some still wait.
#[track_caller]
fn goodput(what: &str, rates: &Rates) {
    eprintln!("{what}: goodput {:.3} of red's bytes, {:.3} of blue's", rates.goodput[0], rates.goodput[1]);
    assert!(rates.goodput.iter().all(|part| (0.80..0.95).contains(part)), "{what}: {:?}", rates.goodput);
}

fn flows(hosts: &Hosts, dir: &Workdir) -> [Flow; 2] {
    [
        Flow::start(&hosts.red.netns, &hosts.red_far.netns, dir),
        Flow::start(&hosts.blue.netns, &hosts.blue_far.netns, dir),
    ]
}

#[test]
fn dhtb_shaper_holds_vnics_to_their_ceilings() {
    let hosts = hosts("", ["qos = { out = { ceil = \"20Mbit\" } }", "qos = { out = { ceil = \"40Mbit\" } }"]);
    let dir = Workdir::new("shaping");
    let flows = flows(&hosts, &dir);
    let before = steady(&hosts, |rates| {
        [("red", rates.red, 20.0), ("blue", rates.blue, 40.0), ("the uplink's counters", rates.port, 60.0)]
    });
    goodput("first", &before);
    // Live, both ways.
    hosts.daemon.ctl("qos set vnic red out ceil 30Mbit");
    hosts.daemon.ctl("qos set vnic blue out ceil 10Mbit");
    steady(&hosts, |rates| {
        [("red", rates.red, 30.0), ("blue", rates.blue, 10.0), ("the uplink's counters", rates.port, 40.0)]
    });
    drop(flows);
    hosts.daemon.stop();
}

#[test]
fn dhtb_shaper_divides_the_link_by_weight() {
    let hosts = hosts("[qos]\nlink = { out = \"40Mbit\" }\n", ["", ""]);
    let dir = Workdir::new("shares");
    let flows = flows(&hosts, &dir);
    let part = |rates: &Rates| rates.red / (rates.red + rates.blue);
    let even =
        steady(&hosts, |rates| [("the link", rates.link, 40.0), ("red's part of 1:1", part(rates), 0.5)]);
    goodput("1:1", &even);
    hosts.daemon.ctl("qos set vpc blue out weight 3");
    steady(&hosts, |rates| [("the link", rates.link, 40.0), ("red's part of 1:3", part(rates), 0.25)]);
    hosts.daemon.ctl("qos set link out ceil 20Mbit");
    steady(&hosts, |rates| [("the link, lowered", rates.link, 20.0)]);
    drop(flows);
    hosts.daemon.stop();
}

/// When packets for a port came to a machine, microseconds.
#[track_caller]
fn arrivals(dump: &Process) -> Vec<u64> {
    let micros = |line: &str| {
        let (seconds, rest) = line.split_whitespace().next()?.split_once('.')?;
        Some(seconds.parse::<u64>().ok()? * 1_000_000 + rest.parse::<u64>().ok()?)
    };
    dump.output().lines().filter(|line| line.contains("UDP")).filter_map(micros).collect()
}

fn within(times: &[u64], from: u64, to: u64) -> f64 {
    (times.partition_point(|at| *at < to) - times.partition_point(|at| *at < from)) as f64
}

/// What one tenant leaves idle the other has after 10 ms, and gives back within 10 ms: seen on the wire, as a median, since
/// a worker may lose its core just then.
#[test]
fn dhtb_shaper_lends_and_returns_within_ten_milliseconds() {
    /// After the change; then so long is looked at.
    const SETTLED: u64 = 10_000;
    const LOOK: u64 = 60_000;
    let hosts = hosts("[qos]\nlink = { out = \"40Mbit\" }\nqueue-time = \"10ms\"\n", ["", ""]);
    let dir = Workdir::new("lending");
    let dump = |far: &Remote, name| {
        let args = ["tcpdump", "-Z", "root", "-tt", "-n", "-q", "-i", "eth0", "udp", "port", "7000"];
        let mut dump = far.netns.spawn(name, &args, &dir);
        dump.wait_output("listening on", Duration::from_secs(10));
        dump
    };
    let mut dumps = [dump(&hosts.red_far, "red-dump"), dump(&hosts.blue_far, "blue-dump")];
    let script = tests::script::path("bursts.py").display().to_string();
    let send = |from: &Tenant, name, on, off, rounds| {
        let args = [tests::script::PYTHON, &script, "10.0.0.2", "7000", "60", on, off, rounds];
        from.netns.spawn(name, &args, &dir)
    };
    let mut red = send(&hosts.red, "red-bursts", "9000", "0", "1");
    std::thread::sleep(Duration::from_millis(300));
    let mut blue = send(&hosts.blue, "blue-bursts", "250", "250", "15");
    for sender in [&mut blue, &mut red] {
        assert!(sender.wait(Duration::from_secs(60)).success(), "{}", sender.output());
    }
    for dump in &mut dumps {
        dump.signal("INT");
        dump.wait(Duration::from_secs(10));
    }
    let [red, blue] = dumps.each_ref().map(arrivals);
    let pauses: Vec<[u64; 2]> =
        blue.windows(2).filter(|pair| pair[1] - pair[0] > 100_000).map(|pair| [pair[0], pair[1]]).collect();
    assert!(pauses.len() >= 10, "{} pauses", pauses.len());
    let median = |counts: &mut dyn Iterator<Item = f64>| {
        let mut counts: Vec<f64> = counts.collect();
        counts.sort_by(f64::total_cmp);
        counts[counts.len() / 2]
    };
    // Datagrams of 1400 bytes cost the link 1516.
    let link = 40e6 / 8.0 / (1400.0 + 42.0 + (OVERHEAD + TUNNEL) as f64) * LOOK as f64 / 1e6;
    let after = |times: &[u64], at: u64| within(times, at + SETTLED, at + SETTLED + LOOK) / link;
    let shared = median(&mut pauses.iter().map(|[stop, _]| within(&red, stop - LOOK, *stop) / link));
    let lent = median(&mut pauses.iter().map(|[stop, _]| after(&red, *stop)));
    let returned = median(&mut pauses.iter().map(|[_, start]| after(&blue, *start)));
    eprintln!("of the link: red beside blue {shared:.3}, lent {lent:.3}, returned to blue {returned:.3}");
    assert!((0.45..0.55).contains(&shared), "{shared}");
    assert!((0.95..1.05).contains(&lent), "{lent}");
    assert!((0.475..0.6).contains(&returned), "{returned}");
    hosts.daemon.stop();
}
