//! Changes to a running switch: SIGHUP and `config load` apply the difference while traffic goes on, what cannot be applied is
//! refused whole, what was changed at the console survives a kill, and a saved config loads as itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;
use tests::steady::{Flows, Ping, Stream};
use tests::{Daemon, Family, Lab, Tenant, lab, pair, runtime, traffic, wait_for};

const FLOWS: u32 = 8;

struct Reload {
    daemon: Daemon,
    one: Tenant,
    two: Tenant,
    third: Tenant,
    lab: Lab,
    /// The config it started with, without what the harness adds.
    base: String,
}

/// Two tenants of a VPC who talk all the time, and a third who is not plugged in yet.
fn start(more: &str) -> Reload {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    let one = lab.tenant("one", "red", pair::MACS[0], &["10.0.0.1/24"]);
    let two = lab.tenant("two", "red", pair::MACS[2], &["10.0.0.2/24"]);
    let third = lab.tenant("third", "red", "02:00:00:00:0a:03", &["10.0.0.3/24"]);
    let base =
        [more.to_owned(), lab.uplink(""), lab::vpc("red", 100, &["10.0.0.0/24"], ""), one.vnic(), two.vnic()]
            .concat();
    let mut daemon = Daemon::start(&lab.host, &base);
    one.plug(&lab.host);
    two.plug(&lab.host);
    traffic::ping(&one.netns, "10.0.0.2", 56, 3);
    daemon.settled();
    Reload { daemon, one, two, third, lab, base }
}

impl Reload {
    /// SIGHUP after a new config file; waits until the log says `word` once more.
    #[track_caller]
    fn hang_up(&mut self, body: &str, word: &str) {
        let count = |log: &str| log.matches(word).count();
        let before = count(&self.daemon.log());
        self.daemon.rewrite_config(body);
        self.daemon.process().signal("HUP");
        let what = format!("the log to say '{word}'");
        wait_for(&what, Duration::from_secs(15), || (count(&self.daemon.log()) > before).then_some(()));
    }

    /// The config with further sections.
    fn with(&self, more: &str) -> String {
        format!("{}{more}", self.base)
    }
}

const RELOADED: &str = "config reloaded";
const REFUSED: &str = "the config was not reloaded";

#[test]
fn runtime_reload_applies_the_difference_while_traffic_goes_on() {
    let mut r = start("");
    let before = runtime::standing(&mut r.daemon, &r.lab.host);
    let flows = Flows::start(&r.one.netns, &r.two.netns, "10.0.0.2", FLOWS);
    let stream = Stream::start(&r.two.netns, &r.one.netns, "10.0.0.1");
    let ping = Ping::start(&r.one.netns, "10.0.0.2");
    for round in 0..5 {
        // A vNIC, a VPC with a subnet, a location and a plain port come.
        let more = [
            r.third.vnic(),
            lab::vpc("green", 300, &["10.3.0.0/24"], ""),
            lab::location("172.16.0.2", 300, "02:00:00:00:0c:02", &["10.3.0.2"]),
            "[[port]]\nname = \"spare\"\nport = { kind = \"ring\" }\n".to_owned(),
        ]
        .concat();
        let more = r.with(&more);
        r.hang_up(&more, RELOADED);
        r.third.plug(&r.lab.host);
        traffic::ping(&r.third.netns, "10.0.0.1", 56, 3);
        assert!(r.daemon.ctl("show vlt 300").contains("10.3.0.2"));
        assert_eq!(runtime::port_row(&r.daemon, "spare")["state"], "started");
        // They go again, this time by hand.
        let file = r.daemon.config().display().to_string();
        let base = r.base.clone();
        r.daemon.rewrite_config(&base);
        r.daemon.ctl(&format!("config load {file}"));
        assert_eq!(r.third.netns.interfaces(), ["lo"], "round {round}");
        assert!(r.daemon.try_ctl("show vlt 300").is_err() || !r.daemon.ctl("show vlt").contains("10.3.0.2"));
    }
    assert_eq!(ping.stop().0, 0, "echoes were lost");
    assert!(stream.stop() > 0);
    assert!(flows.stop(FLOWS) > i64::from(FLOWS) * 50);
    runtime::assert_stands(&mut r.daemon, &r.lab.host, &before, "all reloads");
    r.daemon.stop();
}

#[test]
fn runtime_reload_follows_a_changed_vnic_and_mode() {
    let mut r = start("");
    // Another address of the same machine: its port stays, its old address is nobody's.
    let moved = r.base.replace("vips = [\"10.0.0.2\"]", "vips = [\"10.0.0.22\"]");
    r.hang_up(&moved, RELOADED);
    r.two.netns.ip("addr flush dev eth0");
    r.two.netns.ip("addr add 10.0.0.22/24 dev eth0");
    traffic::ping(&r.one.netns, "10.0.0.22", 56, 3);
    traffic::no_ping(&r.one.netns, "10.0.0.2");
    // A vNIC of another name on the same tap.
    let named = moved.replace("name = \"two\"", "name = \"second\"");
    r.hang_up(&named, RELOADED);
    let listed = r.daemon.ctl("port list");
    assert!(listed.contains("second"), "{listed}");
    assert_eq!(r.two.netns.interfaces(), ["lo"], "the tap was made anew");
    assert!(r.lab.host.interfaces().contains(&"two".to_owned()));
    // The forwarding mode is part of the config, too.
    r.hang_up(&format!("[forward]\nmode = \"io\"\n{named}"), RELOADED);
    assert_eq!(r.daemon.json("show fwd stats all")["mode"], "io");
    let base = r.base.clone();
    r.hang_up(&base, RELOADED);
    assert_eq!(r.daemon.json("show fwd stats all")["mode"], "overlay");
    r.two.plug(&r.lab.host);
    traffic::ping(&r.one.netns, "10.0.0.2", 56, 3);
    r.daemon.stop();
}

#[test]
fn runtime_reload_refuses_what_it_cannot_do_whole() {
    let mut r = start("");
    let before = runtime::standing(&mut r.daemon, &r.lab.host);
    let flows = Flows::start(&r.one.netns, &r.two.netns, "10.0.0.2", FLOWS);
    // Each comes with a good change in front of the bad one; words the refusal must say.
    let good = lab::vpc("green", 300, &["10.3.0.0/24"], "");
    let port = "[[port]]\nname = \"spare\"\nport = { kind = \"ring\" }\n";
    let cases: Vec<(String, Vec<&str>)> = vec![
        (r.with(&format!("{good}[[broken\n")), vec![":"]),
        (r.with(&format!("{good}{}", lab::vpc("other", 100, &[], ""))), vec!["100"]),
        (r.with(&format!("{good}[nft]\nentries = 1024\n")), vec!["[nft] entries", "restart"]),
        (r.with(&format!("{good}[vlt]\nentries = 1024\n")), vec!["[vlt] entries", "restart"]),
        (r.with(&format!("{good}[control]\nstate = \"/nonexistent/state\"\n")), vec!["[control]", "restart"]),
        (
            r.with(&format!("{good}[workers]\ncores = [0, 1]\nidle = \"sleep\"\n")),
            vec!["[workers]", "restart"],
        ),
        (
            r.with(&format!(
                "{good}{port}[[port]]\nname = \"zzz\"\nport = {{ kind = \"af-packet\", iface = \"up0\" }}\n"
            )),
            vec!["up0"],
        ),
    ];
    for (text, words) in &cases {
        r.hang_up(text, REFUSED);
        let log = r.daemon.log();
        let said = &log[log.rfind("ERROR").unwrap_or(0)..];
        let file = r.daemon.config().display().to_string();
        let error = r.daemon.try_ctl(&format!("config load {file}")).unwrap_err();
        for word in words {
            assert!(error.contains(word), "'{word}' is missing: {error}");
            assert!(said.contains(word), "'{word}' is missing in the log: {said}");
        }
        runtime::assert_stands(&mut r.daemon, &r.lab.host, &before, &error);
    }
    // A file that is not there, and one that is no file.
    for path in ["/nonexistent/vswitch.toml", "/dev/null", "/"] {
        let error = r.daemon.try_ctl(&format!("config load {path}")).unwrap_err();
        assert!(error.contains(path), "{error}");
    }
    runtime::assert_stands(&mut r.daemon, &r.lab.host, &before, "paths that lead nowhere");
    assert!(flows.stop(FLOWS) > 0);
    assert!(r.daemon.json("show drops").get("port-down").is_none());
    let base = r.base.clone();
    r.hang_up(&base, RELOADED);
    r.daemon.stop();
}

/// `[control] state` in a folder of the test's own.
fn with_state(dir: &tests::Workdir) -> (String, std::path::PathBuf) {
    let path = dir.path().join("state");
    (format!("[control]\nstate = \"{}\"\n", path.display()), path)
}

#[test]
fn runtime_reload_what_the_console_changed_is_there_after_a_kill() {
    let dir = tests::Workdir::new("state");
    let (control, state) = with_state(&dir);
    let mut r = start(&control);
    assert!(!state.exists(), "nothing was changed yet");
    r.daemon.ctl("vlt set 100 10.0.0.9 mac 02:00:00:00:0a:09 vtep 172.16.0.2");
    r.daemon.ctl("vpc add green vni 300");
    r.daemon.ctl("subnet add green 10.3.0.0/24");
    r.daemon.ctl("port attach spare ring");
    r.daemon.ctl("vnic add third vpc red mac 02:00:00:00:0a:03 vips 10.0.0.3 mtu 1450 port tap iface=third");
    let config = r.daemon.ctl("show config");
    assert!(state.exists());
    for round in 0..3 {
        r.daemon.process().signal("KILL");
        let status = r.daemon.process().wait(Duration::from_secs(10));
        assert!(!status.success());
        r.daemon.restart(&r.lab.host);
        assert_eq!(r.daemon.ctl("show config"), config, "round {round}");
        assert!(r.daemon.ctl("show vlt 100").contains("10.0.0.9"));
        assert_eq!(runtime::port_row(&r.daemon, "spare")["kind"], "ring");
        // The taps went with the process that was killed, and came again with the next.
        for tenant in [&r.one, &r.third] {
            tenant.plug(&r.lab.host);
        }
        traffic::ping(&r.third.netns, "10.0.0.1", 56, 3);
    }
    // What was removed stays removed, and a reload by file is kept as well.
    r.daemon.ctl("vnic del third");
    r.daemon.ctl("vlt del 100 10.0.0.9");
    let more = r.with(&lab::vpc("violet", 400, &["10.4.0.0/24"], ""));
    r.hang_up(&more, RELOADED);
    r.daemon.process().signal("KILL");
    r.daemon.process().wait(Duration::from_secs(10));
    r.daemon.restart(&r.lab.host);
    let now = r.daemon.ctl("show config");
    assert!(now.contains("violet") && !now.contains("third") && !now.contains("10.0.0.9"), "{now}");
    for tenant in [&r.one, &r.two] {
        tenant.plug(&r.lab.host);
    }
    traffic::ping(&r.one.netns, "10.0.0.2", 56, 3);
    r.daemon.settled();
    r.daemon.stop();
}

#[test]
fn runtime_reload_a_state_that_cannot_be_written_or_read_is_told() {
    let dir = tests::Workdir::new("state");
    let (control, state) = with_state(&dir);
    let mut r = start(&control);
    // A folder in the file's place: the change is made, and the console says that it will not last.
    std::fs::create_dir(&state).unwrap();
    let error = r.daemon.try_ctl("vpc add green vni 300").unwrap_err();
    assert!(error.contains(&state.display().to_string()) && error.contains("not saved"), "{error}");
    assert!(r.daemon.ctl("show vpc").contains("green"));
    std::fs::remove_dir(&state).unwrap();
    r.daemon.ctl("vpc add violet vni 400");
    let text = std::fs::read_to_string(&state).unwrap();
    assert!(text.contains("green") && text.contains("violet"), "one save saves all: {text}");
    traffic::ping(&r.one.netns, "10.0.0.2", 56, 3);
    // A state that is no config: the switch does not start on half of it, and says which file it is.
    r.daemon.process().signal("TERM");
    r.daemon.assert_clean_end();
    std::fs::write(&state, &text[..text.len() / 2]).unwrap();
    let (program, config) =
        (r.daemon.program().display().to_string(), r.daemon.config().display().to_string());
    let output = r.lab.host.try_run(&[&program, "run", "--config", &config]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(&state.display().to_string()), "{said}");
    assert!(!r.daemon.socket().exists(), "a switch that did not start leaves no socket");
}

/// The disk is full, and is freed: what came into force meanwhile is there after a restart.
fn saved_when_it_can_be(asked_again: bool) {
    let dir = tests::Workdir::new("unsaved");
    let (control, state) = with_state(&dir);
    let mut r = start(&control);
    std::fs::create_dir(&state).unwrap();
    for _ in 0..2 {
        let error = r.daemon.try_ctl("vpc add green vni 300").unwrap_err();
        assert!(error.contains("not saved"), "{error}");
    }
    std::fs::remove_dir(&state).unwrap();
    if asked_again {
        r.daemon.ctl("vpc add green vni 300");
        r.daemon.process().signal("KILL");
        r.daemon.process().wait(Duration::from_secs(10));
    } else {
        r.daemon.process().signal("TERM");
        r.daemon.assert_clean_end();
    }
    r.daemon.restart(&r.lab.host);
    assert!(r.daemon.ctl("show vpc").contains("green"));
    for tenant in [&r.one, &r.two] {
        tenant.plug(&r.lab.host);
    }
    traffic::ping(&r.one.netns, "10.0.0.2", 56, 3);
    r.daemon.settled();
    r.daemon.stop();
}

#[test]
fn runtime_reload_a_change_that_could_not_be_saved_is_saved_when_it_is_asked_for_again() {
    saved_when_it_can_be(true);
}

#[test]
fn runtime_reload_a_change_that_could_not_be_saved_is_saved_at_the_end() {
    saved_when_it_can_be(false);
}

#[test]
fn runtime_reload_a_saved_config_loads_as_itself() {
    let mut r = start("");
    r.daemon.ctl("vlt set 100 10.0.0.9 mac 02:00:00:00:0a:09 vtep 172.16.0.2");
    r.daemon.ctl("port attach spare ring");
    let before = runtime::standing(&mut r.daemon, &r.lab.host);
    let flows = Flows::start(&r.one.netns, &r.two.netns, "10.0.0.2", FLOWS);
    let path = |name: &str| r.daemon.dir().path().join(name);
    let (first, second) = (path("first.toml"), path("second.toml"));
    r.daemon.ctl(&format!("save {}", first.display()));
    r.daemon.ctl(&format!("config load {}", first.display()));
    runtime::assert_stands(&mut r.daemon, &r.lab.host, &before, "loading what was saved");
    r.daemon.ctl(&format!("save {}", second.display()));
    assert_eq!(std::fs::read(&first).unwrap(), std::fs::read(&second).unwrap());
    let (program, file) = (r.daemon.program().display().to_string(), first.display().to_string());
    tests::process::run(&[&program, "check", "--config", &file]);
    // What changed since is undone by it.
    r.daemon.ctl("vlt del 100 10.0.0.9");
    r.daemon.ctl("port detach spare");
    r.daemon.ctl("vpc add green vni 300");
    r.daemon.ctl(&format!("config load {}", first.display()));
    let now = runtime::standing(&mut r.daemon, &r.lab.host);
    assert_eq!(now.config, before.config);
    assert!(flows.stop(FLOWS) > 0, "traffic never noticed");
    assert!(
        r.daemon.try_ctl("save /nonexistent/folder/file").unwrap_err().contains("/nonexistent/folder/file")
    );
    r.daemon.stop();
}
