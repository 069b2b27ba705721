//! Many guests that stop reading, a port without a link and a tunnel at 1 Mbit/s are flooded by one container, while two others talk:
//! these lose nothing, and `show buffers` says who holds what.
//!
//! ```text
//!  red, blue ── veth ──┐
//!  noisy ───── veth ───┤            ├── ring: 20 guests that read nothing
//!                      switch (two workers, a pool as small as `check` allows)
//!  dark (no link) veth ┘            └══ up0 ══ peer
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use std::fmt::Write as _;
use std::time::Duration;
use tests::lab::{Lab, Tenant, location, vpc};
use tests::runtime::TWO_WORKERS;
use tests::steady::Flows;
use tests::{Daemon, Family, Workdir, binary, process, traffic, wait_for};

/// Guests that stopped reading.
const STOPPED: i64 = 20;
/// Packets that the ring of each holds.
const RING: i64 = 1023;
const LIMIT: Duration = Duration::from_secs(60);
const FLOWS: u32 = 8;

fn veth(tenant: &Tenant) -> String {
    tenant.vnic_on(&format!("{{ kind = \"veth\", iface = \"{}\" }}", tenant.name))
}

/// The guests: rings that nobody empties once their ports do not receive any more. Two have a queue for each worker; to the others one
/// worker hands over.
fn guests() -> String {
    let mut text = String::new();
    for n in 1..=STOPPED {
        let queues = if n > 2 { "queues = 1\n" } else { "" };
        writeln!(
            text,
            "[[vnic]]\nname = \"guest{n}\"\nvpc = \"red\"\nmac = \"02:00:00:00:01:{n:02x}\"\nvips = [\"10.0.0.{}\"]\n\
             mtu = 1450\nport = {{ kind = \"ring\" }}\n{queues}",
            100 + n
        )
        .unwrap();
    }
    text
}

/// What `check` says that the pool is to have, of a config whose pool is too small.
fn told_by_check(dir: &Workdir, config: &str) -> i64 {
    let path = dir.write(
        "small.toml",
        &format!("[eal]\nmbufs = 30000\nmemory = \"256MiB\"\nhuge-pages = \"never\"\n{config}"),
    );
    let program = binary::release("vswitch").display().to_string();
    let output = process::try_run(&[&program, "check", "--config", &path.display().to_string()]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success() && said.contains("note: 30000 packet buffers may be too few"), "{said}");
    let told = said.split("set [eal] mbufs = ").nth(1).and_then(|rest| rest.split(' ').next());
    told.and_then(|mbufs| mbufs.parse().ok()).unwrap_or_else(|| panic!("no remedy: {said}"))
}

fn number(value: &Value, name: &str) -> i64 {
    value[name].as_i64().unwrap_or_else(|| panic!("no number {name}: {value:#}"))
}

fn row<'b>(buffers: &'b Value, port: &str) -> &'b Value {
    let rows = buffers["ports"].as_array().unwrap();
    rows.iter().find(|row| row["port"] == port).unwrap_or_else(|| panic!("no port {port}: {buffers:#}"))
}

#[test]
fn ports_buffers_of_stopped_readers_leave_others_theirs() {
    let lab = Lab::new(Family::V4);
    let tenant = |name: &str, last: u32| {
        let (mac, address) = (format!("02:00:00:00:0a:{last:02x}"), format!("10.0.0.{last}/24"));
        lab.cabled_tenant(name, "red", &mac, &[&address])
    };
    let [red, blue, noisy] = [("red", 1), ("blue", 2), ("noisy", 3)].map(|(name, last)| tenant(name, last));
    let dark = tenant("dark", 4);
    let mut body = [
        lab.uplink_on("{ kind = \"veth\", iface = \"up0\" }", ""),
        vpc("red", 100, &["10.0.0.0/24"], ""),
        location(lab.remote_vtep(), 100, "02:00:00:00:0a:05", &["10.0.0.5"]),
        guests(),
        TWO_WORKERS.to_owned(),
    ]
    .concat();
    [&red, &blue, &noisy, &dark].into_iter().for_each(|tenant| body += &veth(tenant));
    let dir = Workdir::new("buffers");
    let mbufs = told_by_check(&dir, &body);
    let mut daemon = Daemon::start(&lab.host, &format!("{body}[eal]\nmbufs = {mbufs}\n"));
    daemon.ctl("qos set vnic noisy out ceil 1Mbit");
    dark.netns.ip("link set eth0 down");
    (1..=STOPPED).for_each(|n| {
        daemon.ctl(&format!("port stop guest{n}"));
    });
    daemon.settled();
    let at_start = daemon.json("show buffers");
    assert_eq!((number(&at_start, "size"), number(&at_start, "unaccounted")), (mbufs, 0), "{at_start:#}");
    assert_eq!(number(&at_start["need"], "total"), mbufs, "the start reckons as `check` does: {at_start:#}");
    assert!(!daemon.log().contains("too few"), "{}", daemon.log());
    assert!(number(&at_start, "long") > 0 && number(&at_start, "long-in-use") == 0, "{at_start:#}");

    let before = daemon.counters();
    let honest = Flows::start(&red.netns, &blue.netns, "10.0.0.2", FLOWS);
    let silent: Vec<String> = (1..=STOPPED)
        .map(|n| format!("10.0.0.{}", 100 + n))
        .chain(["10.0.0.4".into(), "10.0.0.5".into()])
        .collect();
    let script = tests::script::path("bursts.py").display().to_string();
    let flood = [tests::script::PYTHON, &script, &silent.join(","), "7000", "400", "5000", "0", "1"];
    let mut flood = noisy.netns.spawn("flood", &flood, &dir);
    // All rings are full while the flood goes on.
    let busy = wait_for("every stopped guest's ring to be full", LIMIT, || {
        let buffers = daemon.json("show buffers");
        let full = (1..=STOPPED).all(|n| number(row(&buffers, &format!("guest{n}")), "tx-rings") >= RING);
        full.then_some(buffers)
    });
    assert!(number(row(&busy, "noisy"), "shaped") > 0, "its packets wait for tokens: {busy:#}");
    assert_eq!(number(row(&busy, "dark"), "held"), 0, "nothing waits without a link: {busy:#}");
    assert!(number(&busy, "free") > mbufs / 4, "others find buffers: {busy:#}");
    assert!(flood.wait(LIMIT).success(), "{}", flood.output());
    traffic::ping(&red.netns, "10.0.0.2", 1400, 3);
    assert!(honest.stop_in_any_order(FLOWS) > 100);

    let quiet = wait_for("nothing to wait for ports", LIMIT, || {
        let buffers = daemon.json("show buffers");
        let waits = |row: &Value| {
            ["waiting", "handed-over", "shaped"].iter().map(|name| number(row, name)).sum::<i64>()
        };
        let waiting: i64 = buffers["ports"].as_array().unwrap().iter().map(waits).sum();
        (waiting == 0).then_some(buffers)
    });
    let held: i64 = quiet["ports"].as_array().unwrap().iter().map(|row| number(row, "held")).sum();
    let sum = number(&quiet, "free") + number(&quiet, "cached") + number(&quiet, "in-use");
    assert_eq!((number(&quiet, "in-use"), number(&quiet, "unaccounted"), sum), (held, 0, mbufs), "{quiet:#}");
    assert_eq!(number(&quiet, "long-in-use"), 0, "{quiet:#}");
    assert!((STOPPED * RING..=(STOPPED + 2) * RING).contains(&held), "{quiet:#}");
    let text = daemon.ctl("show buffers");
    for word in ["guest20", "not accounted for: 0", "at their busiest"] {
        assert!(text.contains(word), "{word}: {text}");
    }

    // Every loss has the name of what it was.
    let moved = daemon.counters().since(&before);
    let dropped = |reason: &str| {
        moved.iter().find(|(path, _)| **path == format!("fwd.drops.{reason}")).map_or(0, |(_, n)| *n)
    };
    for reason in ["tx-stalled", "link-down", "tcp-shaped"] {
        assert!(dropped(reason) > 0, "{reason}: {moved:#?}");
    }
    for reason in ["no-buffer", "shaper-full", "port-down"] {
        assert_eq!(dropped(reason), 0, "{reason}: {moved:#?}");
    }
    let drivers = daemon.json("show fwd stats all")["ports"].clone();
    assert_eq!(number(&drivers, "rx-nombuf"), 0, "{drivers:#}");

    // What the guests held comes back with their ports.
    (1..=STOPPED).for_each(|n| {
        daemon.ctl(&format!("vnic del guest{n}"));
    });
    daemon.stop();
}
