//! Rates on guests with soft-RoCE, which does not slow down when it is marked: the hard limit holds it, marks and
//! notifications go where they should, and TCP beside it keeps what it was promised.
//!
//! Rates are the switch's own bytes over its own clock; all ceilings are far below what emulated guests can do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use std::time::Duration;
use tests::guest::notify::{self, FRAME_LEN, Notifier};
use tests::guest::{self, Site, rdma, site, wire};
use tests::lab::{Lab, vpc};
use tests::rates::{Look, Node, Window};
use tests::{Daemon, Family, Workdir, wait_for};

/// The ceiling of each guest, Mbit/s.
const CEIL: f64 = 8.0;
/// How long a part of a measurement takes: in four of them a full burst of savings, 128 KiB, is less than 2 % of a ceiling.
const PART: Duration = Duration::from_secs(2);
/// Parts at least and at most.
const PARTS: [usize; 2] = [4, 12];
/// What passes before that, so that savings are spent.
const SETTLE: Duration = Duration::from_secs(2);
/// Bytes that each packet costs besides its own.
const OVERHEAD: i64 = 24;
/// The tunnel's headers over IPv4.
const TUNNEL: i64 = 50;

/// How far over its ceiling a rate may be all in all, in percent.
const OVER: f64 = 2.0;
/// As much for what goes out, some of which is a debt of up to 256 KiB.
const IN_DEBT: f64 = OVER + 3.3;
/// How far off it may be in the best part: guests and switch share two cores, and may be kept from them for a while.
const OFF: f64 = 15.0;

/// A rate, and what it should be.
struct Rate {
    what: &'static str,
    is: f64,
    wanted: f64,
    /// How far over it may be all in all, in percent. What others leave is no ceiling.
    over: Option<f64>,
}

/// How far off the rates are, in percent.
fn errors(rates: &[Rate]) -> Vec<f64> {
    rates.iter().map(|rate| (rate.is / rate.wanted - 1.0) * 100.0).collect()
}

/// Waits for a part in which all rates are near what they should be; all in all none is over what it may be.
#[track_caller]
fn near(switch: &Daemon, rates: impl Fn(&Window) -> Vec<Rate>) -> Window {
    let good = |part: &Window| errors(&rates(part)).iter().all(|error| error.abs() <= OFF);
    let mut parts = vec![Window::over(&[switch], SETTLE, PART).remove(0)];
    while parts.len() < PARTS[0] || !parts.iter().any(good) {
        let errors: Vec<Vec<f64>> = parts.iter().map(|part| errors(&rates(part))).collect();
        assert!(parts.len() < PARTS[1], "always off by more than {OFF} %: {errors:.2?}");
        let next = parts[parts.len() - 1].next(switch, PART);
        parts.push(next);
    }
    let whole = Window { start: parts[0].start.clone(), end: parts[parts.len() - 1].end.clone() };
    let found = rates(&whole);
    for (Rate { what, is, wanted, over }, error) in found.iter().zip(errors(&found)) {
        eprintln!("{what}: {is:.3} Mbit/s, wanted {wanted:.3}, {error:+.2} % in {} parts", parts.len());
        assert!(
            over.is_none_or(|over| error <= over),
            "{what}: {is:.3} Mbit/s is {error:+.2} % off {wanted}"
        );
    }
    whole
}

/// Mbit/s that went out by the uplink's own counters, as the link pays for them; vNICs pay for no `tunnel`.
fn sent(window: &Window, tunnel: i64) -> f64 {
    let [packets, bytes] = window.sent();
    window.megabits(bytes + packets * (OVERHEAD - tunnel))
}

/// b's rate, as the tree has it and as it went out.
fn rates_of_b(window: &Window) -> Vec<Rate> {
    let rate = |what, is, over| Rate { what, is, wanted: CEIL, over: Some(over) };
    vec![
        rate("b", window.rate(Node::vnic("b", "out")), OVER),
        rate("b, by the uplink's counters", sent(window, TUNNEL), IN_DEBT),
    ]
}

/// Waits until a class asks for more than it may have.
#[track_caller]
fn wait_over(switch: &Daemon, class: Node<'_>) {
    let before = Look::take(switch).of(class, "held-back");
    wait_for(&format!("{class:?} to be held back"), Duration::from_secs(60), || {
        (Look::take(switch).of(class, "held-back") > before + 10).then_some(())
    });
}

/// A guest's outgoing RDMA.
fn rdma_of(name: &str) -> Node<'_> {
    Node::class(name, "rdma", "out")
}

/// The one queue pair of a vNIC in a direction, as `show qp` has it by this number.
#[track_caller]
fn queue_pair(switch: &Daemon, vnic: &str, qpn: u32, way: &str) -> Value {
    let shown = switch.json(&format!("show qp {vnic} {qpn}"));
    let pairs = shown["queue-pairs"].as_array().into_iter().flatten();
    let mut rows = pairs.map(|pair| &pair[way]).filter(|row| row["qpn"] == qpn);
    let (Some(row), None) = (rows.next(), rows.next()) else { panic!("one {way} of {qpn}: {shown:#}") };
    row.clone()
}

/// CNPs that were counted for queue pairs of a vNIC, by direction and number.
#[track_caller]
fn counted(switch: &Daemon, vnic: &str) -> Vec<(String, u64, u64)> {
    let answer = switch.json(&format!("show rcft {vnic}"));
    let rows = answer["queue-pairs"].as_array().into_iter().flatten();
    let row = |row: &Value| {
        Some((row["direction"].as_str()?.to_owned(), row["qpn"].as_u64()?, row["cnp"].as_u64()?))
    };
    rows.filter_map(row).filter(|(.., cnp)| *cnp > 0).collect()
}

/// Not-ECT, soft-RoCE's own choice: nothing can be marked, and all of it waits.
#[track_caller]
fn unmarkable(site: &Site) {
    let [_, of_b] = &site.switches[..] else { panic!("two switches") };
    let path = rdma::Path::new(site, "b", "a", false);
    let writes = rdma::begin(&path, &rdma::perftest(&path, "ib_write_bw", 18515, 65536, 450));
    wait_over(of_b, rdma_of("b"));
    let window = near(of_b, rates_of_b);
    eprintln!("{} packets wait", window.end.of(rdma_of("b"), "waiting-packets"));
    assert_eq!(
        window.end.of(rdma_of("b"), "debt"),
        0,
        "what cannot be marked is not sent ahead of its tokens"
    );
    finish(&[(of_b, "b")], writes);
    assert_eq!(Look::take(of_b).counter("rdma-marked"), 0);
}

/// Raises ceilings beyond what guests can do so that a tool comes to its end, and sets them again.
#[track_caller]
fn finish(vnics: &[(&Daemon, &str)], tool: rdma::Running<'_>) {
    let set = |ceil: &str| {
        for (switch, vnic) in vnics {
            switch.ctl(&format!("qos set vnic {vnic} out ceil {ceil}"));
        }
    };
    set("1Gbit");
    tool.finish().assert_ok();
    set(&format!("{CEIL}Mbit"));
}

/// ECT: what is over the ceiling is marked, which soft-RoCE does not mind, so the hard limit holds it.
#[track_caller]
fn marked(site: &Site) {
    let [_, of_b] = &site.switches[..] else { panic!("two switches") };
    let path = rdma::Path::new(site, "b", "a", false);
    let dir = Workdir::new("marks");
    let inside = wire::Inside::start(site.guest("a"), "udp port 4791 and ip[1] & 3 == 3", 30_000, 80);
    let marks = || {
        let look = Look::take(of_b);
        assert_eq!(look.of(rdma_of("b"), "marked"), look.counter("rdma-marked"), "no other class has marks");
        look.counter("rdma-marked")
    };
    let before = marks();
    let writes = rdma::begin(&path, &rdma::perftest(&path, "ib_write_bw --tclass=2", 18515, 65536, 450));
    wait_over(of_b, rdma_of("b"));
    near(of_b, rates_of_b);
    finish(&[(of_b, "b")], writes);
    let seen = inside.stop(&dir.path().join("a.pcap"));
    let marked = marks() - before;
    eprintln!("{marked} were marked; seen in the guest:\n{seen}");
    // All that the guest sees, and data only.
    let ce = seen.kind("RC WRITE").ce;
    assert!(ce > 1000 && ce <= marked && seen.kind("").ce == ce, "{marked} were marked:\n{seen}");
}

/// ECT both ways at once, and a answers b's marks with CNPs, which have to pass a's own data.
#[track_caller]
fn notified(site: &Site) {
    let [of_a, of_b] = &site.switches[..] else { panic!("two switches") };
    let [a, b] = ["a", "b"].map(|name| site.guest(name));
    let path = rdma::Path::new(site, "b", "a", false);
    let dir = Workdir::new("notified");
    // Marked packets, CNPs, ACKs.
    let filter = "udp port 4791 and (ip[1] & 3 == 3 or udp[8] == 0x81 or udp[8] == 0x11)";
    let inside = wire::Inside::start(b, filter, 60_000, 80);
    let both = rdma::begin(&path, &rdma::perftest(&path, "ib_write_bw -b --tclass=2", 18515, 65536, 600));
    wait_over(of_a, rdma_of("a"));
    wait_over(of_b, rdma_of("b"));
    let qpn = rdma::peer_qpn(a);
    notify::prepare(site, "a", "b", qpn);
    let notifier = Notifier::start(a, 16);
    let windows = Window::over(&[of_a, of_b], SETTLE, PART * PARTS[0] as u32);
    wait_for("notifications of marks", Duration::from_secs(30), || {
        (counted(of_b, "b").iter().map(|(.., cnps)| cnps).sum::<u64>() >= 10).then_some(())
    });
    notifier.stop();
    // ACKs wait behind the data of their own queue pair, so either side may run short of what to send.
    for (window, vnic) in windows.iter().zip(["a", "b"]) {
        let rate = window.rate(Node::vnic(vnic, "out"));
        let times = window.moved(rdma_of(vnic), "held-back");
        eprintln!(
            "both ways, {vnic}: {rate:.3} Mbit/s, sent {:.3}, held back {times} times",
            sent(window, TUNNEL)
        );
        assert!(times > 0 && rate <= CEIL * (1.0 + OVER / 100.0), "{vnic}: {rate:.3} Mbit/s, {times} times");
    }
    finish(&[(of_a, "a"), (of_b, "b")], both);
    let seen = inside.stop(&dir.path().join("b.pcap"));
    eprintln!("seen in b:\n{seen}");
    assert!(seen.kind("RC WRITE").ce > 0, "a's data is over its rate:\n{seen}");
    // CNPs and ACKs come through beside it, unmarked though they are ECT.
    let cnps = seen.kind("CNP");
    assert!(cnps.packets >= 10 && cnps.icrc_wrong == 0 && cnps.icrc_unseen == 0, "{seen}");
    assert!(seen.kind("RC ACKNOWLEDGE").packets > 0, "{seen}");
    assert_eq!((cnps.ce, seen.kind("RC ACKNOWLEDGE").ce), (0, 0), "{seen}");
    // Counted where they go: toward b's queue pair at a's switch, to it at b's.
    let count = cnps.packets as u64;
    assert_eq!(counted(of_a, "a"), [("out".to_owned(), u64::from(qpn), count)]);
    assert_eq!(counted(of_b, "b"), [("in".to_owned(), u64::from(qpn), count)]);
    debited(site, qpn, count);
}

/// CNPs alone pay like everybody else.
#[track_caller]
fn debited(site: &Site, qpn: u32, before: u64) {
    const COUNT: u32 = 100;
    // What the worker still holds from when the ceiling was 1 Gbit/s, 16 KiB, goes with these.
    const FIRST: u32 = 200;
    let [of_a, of_b] = &site.switches[..] else { panic!("two switches") };
    let mut count = before;
    let mut send = |number: u32| {
        notify::send(site.guest("a"), number);
        count += u64::from(number);
        wait_for("the CNPs to arrive", Duration::from_secs(20), || {
            (queue_pair(of_b, "b", qpn, "in")["cnp"] == count).then_some(())
        });
        assert_eq!(queue_pair(of_a, "a", qpn, "out")["cnp"], count);
    };
    send(FIRST);
    let start = Look::take(of_a);
    send(COUNT);
    // What was sent ahead of tokens is drawn later, and tokens are drawn some packets at a time. The class has no ceiling of its own,
    // and may hold more than these packets cost from before its first share: the vNIC's ceiling is what they are held to.
    let (end, cost) = (Look::take(of_a), i64::from(COUNT) * (FRAME_LEN + OVERHEAD));
    let ahead = end.of(rdma_of("a"), "debt") - start.of(rdma_of("a"), "debt");
    let vnic = Node::vnic("a", "out");
    let paid = end.of(vnic, "drawn") - start.of(vnic, "drawn") + ahead;
    eprintln!("{COUNT} CNPs cost {cost} bytes, {vnic:?} paid {paid}");
    let most = QUANTUM + FRAME_LEN + OVERHEAD;
    assert!((paid - cost).abs() <= most, "{COUNT} CNPs cost {cost} bytes, {vnic:?} paid {paid}");
}

/// What a worker draws at a time at most: what the ceiling brings in 128 us, in bytes.
const QUANTUM: i64 = (CEIL * 128.0 / 8.0) as i64;

#[test]
fn dhtb_caps_guests_that_ignore_marks() {
    if !guest::can_run() {
        return;
    }
    let [mut a, mut b, _, _] = site::two_tenants();
    for vm in [&mut a, &mut b] {
        vm.more = format!("qos = {{ out = {{ ceil = \"{CEIL}Mbit\" }} }}\n");
    }
    // All that a queue pair of soft-RoCE has on its way, 128 packets, may wait: nothing need be dropped.
    let config = "[qos]\nqueue-time = \"1s\"\n".to_owned() + &site::vpcs("");
    let site = Site::start(Lab::new(Family::V4), &config, &[a], &[b]);
    unmarkable(&site);
    marked(&site);
    notified(&site);
    for switch in &site.switches {
        site::assert_no_drops_but(switch, &[]);
    }
    site.stop();
}

#[test]
fn dhtb_keeps_tcp_of_a_guest_beside_rdma_that_ignores_marks() {
    if !guest::can_run() {
        return;
    }
    // Of the link's 12 Mbit/s, blue's TCP has 6 before anything is shared, and half of the rest.
    const LINK: f64 = 12.0;
    const ASSURED: f64 = 6.0;
    let subnets = ["10.0.0.0/24", "fd00:1::/64"];
    let config = [
        format!("[qos]\nlink = {{ out = \"{LINK}Mbit\" }}\n"),
        vpc("red", 100, &subnets, ""),
        vpc("blue", 200, &subnets, &format!("qos = {{ out = {{ assured = \"{ASSURED}Mbit\" }} }}")),
    ];
    let [a, b, c, d] = site::two_tenants();
    let site = Site::start(Lab::new(Family::V4), &config.concat(), &[a, c], &[b, d]);
    let [_, sender] = &site.switches[..] else { panic!("two switches") };
    let red = rdma::Path::new(&site, "b", "a", false);
    let blue = rdma::Path::new(&site, "d", "c", false);
    let tcp = rdma::begin(&blue, &rdma::iperf3(&blue, 5201, 600));
    let writes = rdma::begin(&red, &rdma::perftest(&red, "ib_write_bw --tclass=2", 18515, 65536, 150));
    wait_over(sender, rdma_of("b"));
    wait_over(sender, Node::class("d", "tcp", "out"));
    let window = near(sender, |window| {
        let rate = |what, is, wanted, over| Rate { what, is, wanted, over };
        let [rdma, tcp] = ["b", "d"].map(|name| window.rate(Node::vnic(name, "out")));
        // The tunnel's headers aside, which the link alone pays for.
        let half = (rdma + tcp - ASSURED) / 2.0;
        vec![
            rate("the link", window.rate(Node::link("out")), LINK, Some(OVER)),
            rate("the link, by the uplink's counters", sent(window, 0), LINK, Some(IN_DEBT)),
            rate("TCP", tcp, ASSURED + half, None),
            rate("RDMA", rdma, half, None),
        ]
    });
    assert!(window.moved(rdma_of("b"), "held-back") > 0, "RDMA wants more");
    sender.ctl("qos set link out ceil none");
    writes.finish().assert_ok();
    assert!(tcp.goes_on());
    rdma::give_up(tcp);
    for switch in &site.switches {
        // What waited for longer than 100 ms at the link's rate, of either.
        site::assert_no_drops_but(switch, &["tcp-shaped", "rdma-overrun"]);
    }
    site.stop();
}
