//! Ports that change, come late, go away or are too many: no packet meets a port of somebody else, control goes on while a
//! port is waited for, and the switch runs with what there is, says what is not, and takes it in when it comes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tests::{Daemon, Family, Lab, Netns, Workdir, binary, lab, netns, pair, runtime, traffic, wait_for};

const PATIENCE: Duration = Duration::from_secs(30);

/// Packets that the switch has put into a tap of the host.
#[track_caller]
fn put_into(host: &Netns, tap: &str) -> i64 {
    let text = host.ip(&format!("-j -s link show {tap}"));
    let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON of ip");
    shown[0]["stats64"]["rx"]["packets"].as_i64().unwrap_or_else(|| panic!("no count in {text}"))
}

#[track_caller]
fn wait_state(daemon: &Daemon, port: &str, state: &str) -> serde_json::Value {
    wait_for(&format!("{port} to be {state}"), PATIENCE, || {
        let row = runtime::port_row(daemon, port);
        (row["state"] == state).then_some(row)
    })
}

/// An uplink changes its MTU, and so its device, in one reload with a vNIC that comes, and with a port whose peer does not.
#[test]
fn repair_reload_leaks_no_packet_into_a_new_port() {
    let lab = Lab::new(Family::V4);
    let red = lab.tenant("red", "red", pair::MACS[0], &["10.0.0.1/24"]);
    let far = lab.remote("far", 100, pair::MACS[1], &["10.0.0.2/24"], "");
    let uplink = lab.uplink("");
    let rest = [
        lab::vpc("red", 100, &["10.0.0.0/24"], ""),
        lab::vpc("blue", 200, &["10.0.0.0/24"], ""),
        red.vnic(),
        far.location(),
    ]
    .concat();
    let daemon = Daemon::start(&lab.host, &[runtime::TWO_WORKERS, &uplink, &rest].concat());
    red.plug(&lab.host);
    traffic::ping(&red.netns, "10.0.0.2", 56, 3);
    let dir = Workdir::new("flood");
    let pings: Vec<_> = (0..3)
        .map(|n| red.netns.spawn(&format!("ping{n}"), &["ping", "-f", "-q", "-s", "200", "10.0.0.2"], &dir))
        .collect();
    let aa = lab.tenant("aa", "blue", pair::MACS[2], &["10.0.0.9/24"]);
    let slow = format!(
        "[[port]]\nname = \"slow\"\nport = {{ kind = \"virtio-user\", path = \"{}\", server = true }}\n",
        daemon.dir().path().join("nobody.sock").display()
    );
    let reload = |text: &str| {
        daemon.rewrite_config(text);
        let began = Instant::now();
        daemon.ctl("config reload");
        began.elapsed()
    };
    for round in 0..4 {
        let mtu = if round % 2 == 0 { "mtu = 1500" } else { "mtu = 1600" };
        let changed = uplink.replace("mtu = 1600", mtu);
        let with_slow = if round > 1 { slow.as_str() } else { "" };
        let took = reload(&[runtime::TWO_WORKERS, &changed, &rest, &aa.vnic(), with_slow].concat());
        if round > 1 {
            assert!(took < Duration::from_secs(8), "a reload waits for a peer: {took:?}");
            // Pending, or down while it is tried again; and everybody is answered meanwhile.
            assert_ne!(runtime::port_row(&daemon, "slow")["state"], "started");
        }
        wait_for("the tunnel to work again", PATIENCE, || {
            let args = ["ping", "-c", "1", "-W", "1", "10.0.0.2"];
            red.netns.try_run(&args).status.success().then_some(())
        });
        assert_eq!(runtime::port_count(&daemon, "aa", "tx-packets"), 0, "round {round}");
        assert_eq!(put_into(&lab.host, "aa"), 0, "round {round}: somebody's packets came out of aa");
        // It goes, and its index with it.
        reload(&[runtime::TWO_WORKERS, &changed, &rest].concat());
    }
    drop(pings);
    let row = runtime::port_row(&daemon, "up");
    assert_eq!(row["state"], "started");
    daemon.stop();
}

/// The interface of a vNIC comes after the switch, is deleted, and comes again; a tap that is deleted is made anew.
#[test]
fn repair_a_port_that_is_not_there_is_down_and_comes_up() {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    let one = lab.tenant("one", "red", pair::MACS[0], &["10.0.0.1/24"]);
    let late = lab.tenant("late", "red", pair::MACS[2], &["10.0.0.2/24"]);
    let gone = "[[port]]\nname = \"nofolder\"\nport = { kind = \"vhost-user\", path = \"/nonexistent/folder/v.sock\", server = true }\n";
    let config = [
        lab.uplink(""),
        lab::vpc("red", 100, &["10.0.0.0/24"], ""),
        one.vnic(),
        late.vnic_on("{ kind = \"af-packet\", iface = \"late\" }"),
        gone.to_owned(),
    ]
    .concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    one.plug(&lab.host);
    let row = runtime::port_row(&daemon, "late");
    assert_eq!(row["state"], "down", "{row}");
    assert!(row["reason"].as_str().unwrap().contains("no interface \"late\""), "{row}");
    assert!(daemon.ctl("port list").contains("no interface"));
    let folder = runtime::port_row(&daemon, "nofolder");
    assert!(folder["reason"].as_str().unwrap().contains("/nonexistent/folder"), "{folder}");
    for round in 0..2 {
        netns::cable((&late.netns, "eth0"), (&lab.host, "late"), lab::TENANT_MTU);
        late.netns.ip(&format!("link set eth0 address {} up", late.mac));
        late.netns.ip("addr add 10.0.0.2/24 dev eth0");
        wait_state(&daemon, "late", "started");
        traffic::ping(&one.netns, "10.0.0.2", 56, 3);
        lab.host.ip("link del late");
        let row = wait_state(&daemon, "late", "down");
        assert!(row["reason"].as_str().unwrap().contains("late"), "{round}: {row}");
        // What is sent there has a name, and is not counted as sent.
        let (dropped, sent) = (daemon.drops("port-down"), daemon.counters());
        one.netns.ip(&format!("neigh replace 10.0.0.2 lladdr {} dev eth0", late.mac));
        traffic::no_ping(&one.netns, "10.0.0.2");
        assert!(daemon.drops("port-down") > dropped, "{round}: {}", daemon.ctl("show drops"));
        drop(sent);
    }
    let events = daemon.json("show events 100");
    let kinds: Vec<&str> = events["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["port"] == "late")
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert!(kinds.starts_with(&["port-down", "port-up", "port-down"]), "{kinds:?}");
    // The tap goes by a stranger's hand, where the switch cannot see its name; it is made anew.
    one.netns.ip("link del eth0");
    wait_for("the tap to be made anew", PATIENCE, || {
        lab.host.interfaces().contains(&"one".to_owned()).then_some(())
    });
    wait_state(&daemon, "one", "started");
    // A port that is down can be taken out, by its name.
    daemon.ctl("port detach nofolder");
    assert!(!daemon.ctl("port list").contains("nofolder"));
    // Without any of them the switch starts, too; and a reload that names one more goes on.
    let more =
        format!("{config}[[port]]\nname = \"zzz\"\nport = {{ kind = \"af-packet\", iface = \"nosuch0\" }}\n");
    daemon.rewrite_config(&more);
    daemon.ctl("config reload");
    assert_eq!(runtime::port_row(&daemon, "zzz")["state"], "down");
    daemon.settled();
    daemon.process().signal("TERM");
    daemon.assert_clean_end();
}

/// DPDK has room for so many ports: `check` and `run` say so in the same words, and up to there all of them work.
#[test]
fn repair_too_many_ports_are_refused_by_check_and_run_alike() {
    let (program, dir, host) = (binary::release("vswitch"), Workdir::new("many"), Netns::new("many"));
    let config = |count: u32| {
        let mut text = format!(
            "[eal]\nfile-prefix = \"many{}\"\n[api]\nsocket = \"{}\"\n",
            std::process::id(),
            dir.path().join("s").display()
        );
        text += "[[vpc]]\nname = \"red\"\nvni = 1\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/16\"\n";
        for n in 1..=count {
            let _ = write!(
                text,
                "[[vnic]]\nname = \"v{n}\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:{n:02x}\"\nvips = [\"10.0.0.{n}\"]\nport = {{ kind = \"vhost-user\", path = \"{}\", server = true }}\n",
                dir.path().join(format!("v{n}")).display()
            );
        }
        dir.write("many.toml", &text).display().to_string()
    };
    let program = program.display().to_string();
    let path = config(32);
    assert!(host.try_run(&[&program, "check", "--config", &path]).status.success());
    let path = config(50);
    let said = |verb: &str| {
        let output = host.try_run(&[&program, verb, "--config", &path]);
        assert!(!output.status.success(), "{verb} takes 50 ports");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let (check, run) = (said("check"), said("run"));
    assert_eq!(check, run);
    for word in ["v33", "50 ports", "32", "RTE_MAX_ETHPORTS", "trunk"] {
        assert!(check.contains(word), "'{word}' is missing: {check}");
    }
}
