//! A port goes and another tenant's comes at once, which may get its index, while packets for the first are on their way through all
//! workers: none of them reaches the second.
//!
//! ```text
//!  one, two (red) -- flood of datagrams to leaving --.
//!  leaving  (red)  <- there in turn with             | switch, two workers
//!  other    (blue) <- this one, often with the index of the first
//!  steady, beside (blue): lose nothing meanwhile
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use tests::api::{self, Api, key};
use tests::lab::{Lab, Tenant, vpc};
use tests::runtime::TWO_WORKERS;
use tests::steady::Ping;
use tests::{Daemon, Family, Netns, Process, Workdir, script, wait_for};
use vswitch_api::v1::object::Spec;
use vswitch_api::v1::operation::Operation;
use vswitch_api::v1::*;

const ROUNDS: usize = 30;
const LIMIT: Duration = Duration::from_secs(30);
/// Datagrams, with a breath now and then: a port that closes waits for a grace period of the kernel's RCU (`packet_release`), which takes
/// half a minute where nothing lets the kernel's own threads run.
const FLOOD: &str = "import socket, sys, os, time\n\
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
    s.bind((sys.argv[3], 0))\n\
    n = 0\n\
    print('ready', flush=True)\n\
    while n % 64 or not os.path.exists(sys.argv[2]):\n\
    \x20   n += 1\n\
    \x20   if n % 64 == 0: time.sleep(0.0005)\n\
    \x20   try: s.sendto(b'marked' * 20, (sys.argv[1], 4000 + n % 16))\n\
    \x20   except OSError: pass\n";

fn vnic(name: &str, vpc: &str, number: u8) -> Vnic {
    let veth = port_spec::Veth { iface: name.into(), ..Default::default() };
    api::vnic(name, vpc, number, port_spec::Kind::Veth(veth))
}

fn mac(number: u8) -> String {
    format!("02:00:00:00:01:{number:02x}")
}

fn watch(machine: &Netns, name: &str, foreign: &str, until: &str, dir: &Workdir) -> Process {
    let helper = script::path("hostile.py").display().to_string();
    let mut process = machine.spawn(name, &[script::PYTHON, &helper, "watch", "eth0", until, foreign], dir);
    process.wait_output("ready", LIMIT);
    process
}

fn port_index(daemon: &Daemon, name: &str) -> Option<i64> {
    let shown = daemon.json("show port info all");
    shown.as_array().unwrap().iter().find(|row| row["name"] == name)?["id"].as_i64()
}

#[test]
fn ownership_of_a_ports_index_passes_only_when_every_worker_has_left_it() {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    let machine = |name: &str, vpc: &str, number: u8| {
        lab.cabled_tenant(name, vpc, &mac(number), &[&format!("10.0.0.{number}/24")])
    };
    let (one, two) = (machine("one", "red", 1), machine("two", "red", 2));
    let (leaving, other) = (machine("leaving", "red", 7), machine("other", "blue", 7));
    let (steady, beside) = (machine("steady", "blue", 3), machine("beside", "blue", 4));
    let veth =
        |tenant: &Tenant| tenant.vnic_on(&format!("{{ kind = \"veth\", iface = \"{}\" }}", tenant.name));
    let config = [
        lab.uplink_on("{ kind = \"veth\", iface = \"up0\" }", ""),
        vpc("red", 100, &["10.0.0.0/24"], ""),
        vpc("blue", 200, &["10.0.0.0/24"], "flood = true"),
        veth(&one),
        veth(&two),
        veth(&steady),
        veth(&beside),
        TWO_WORKERS.to_owned(),
    ]
    .concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    daemon.settled();
    let mut api = Api::connect(daemon.socket());
    let dir = Workdir::new("index");
    let until = dir.path().join("until").display().to_string();
    // Whoever sends them, they are for the red tenant's machine alone.
    let watchers: Vec<Process> = [1, 2]
        .map(|n| watch(&other.netns, &format!("watch-{n}"), &mac(n), &until, &dir))
        .into_iter()
        .collect();
    let senders: Vec<Process> = [(&one, "10.0.0.1"), (&two, "10.0.0.2")]
        .map(|(machine, own)| {
            machine.netns.ip(&format!("neigh replace 10.0.0.7 lladdr {} dev eth0 nud permanent", mac(7)));
            let args = [script::PYTHON, "-c", FLOOD, "10.0.0.7", &until, own];
            let mut process = machine.netns.spawn("flood", &args, &dir);
            process.wait_output("ready", LIMIT);
            process
        })
        .into_iter()
        .collect();
    // The blue tenants: one asks for the machine that comes and goes all the time, so that it hears something.
    let asking = beside.netns.spawn("ping", &["ping", "-q", "-i", "0.05", "10.0.0.7"], &dir);
    let ping = Ping::start(&steady.netns, "10.0.0.4");
    let came = |api: &mut Api, name: &str| {
        wait_for("the port to come", LIMIT, || {
            let entry = api.get(Kind::Vnic, name).ok()?;
            (entry.status?.state() == State::Up).then_some(())
        });
    };
    let mut shared = BTreeSet::new();
    let mut reused = 0;
    for round in 0..ROUNDS {
        api.create(Spec::Vnic(vnic("leaving", "red", 7))).unwrap();
        came(&mut api, "leaving");
        let of_leaving = port_index(&daemon, "leaving");
        std::thread::sleep(Duration::from_millis(20));
        // One goes and the other comes: as two changes with nothing between them, as one, and the other way about.
        match round % 3 {
            0 => {
                api.delete(Kind::Vnic, "leaving").unwrap();
                api.create(Spec::Vnic(vnic("other", "blue", 7))).unwrap();
            }
            1 => {
                let gone = DeleteRequest { key: Some(key(Kind::Vnic, "leaving")), ..Default::default() };
                let batch =
                    vec![Operation::Delete(gone), api::creation(Spec::Vnic(vnic("other", "blue", 7)))];
                api.apply(batch, None).unwrap();
            }
            _ => {
                daemon.ctl("vnic del leaving");
                api.create(Spec::Vnic(vnic("other", "blue", 7))).unwrap();
            }
        }
        came(&mut api, "other");
        let of_other = port_index(&daemon, "other");
        if of_other.is_some() && of_other == of_leaving {
            reused += 1;
            shared.insert(of_other);
        }
        std::thread::sleep(Duration::from_millis(20));
        api.delete(Kind::Vnic, "other").unwrap();
    }
    assert_eq!(ping.stop().0, 0, "a neighbour lost packets");
    std::fs::write(&until, "").unwrap();
    asking.signal("INT");
    let mut heard = 0;
    for mut watcher in watchers {
        watcher.wait(LIMIT);
        let text = watcher.output();
        let said: Value = serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap();
        assert_eq!(said["hostile"], 0, "packets of the red tenant came to the blue one: {said}");
        heard += said["frames"].as_i64().unwrap();
    }
    for mut sender in senders {
        sender.wait(LIMIT);
    }
    assert!(heard > 0, "the blue tenant's machine was never attached");
    assert!(reused > 0, "the index was never used again, so that nothing was shown");
    // Packets came to the red one while it was there, and on the way in when it was not.
    let rows = daemon.json("show drops");
    eprintln!(
        "{reused} of {ROUNDS} rounds with the same index {shared:?}; {heard} frames heard; drops {rows}"
    );
    drop(leaving);
    daemon.assert_conserved();
    daemon.process().signal("TERM");
    daemon.assert_clean_end();
}
