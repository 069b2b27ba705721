//! A config file that is read again, beside what was changed at run time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::{Daemon, Family, Lab, Workdir, lab};

#[test]
fn repair_reload_keeps_what_was_made_at_run_time() {
    let (lab, dir) = (Lab::new(Family::V4), Workdir::new("state"));
    lab.peer.ip("addr flush dev up0");
    let state = dir.path().join("state");
    let base = [
        format!("[control]\nstate = \"{}\"\n", state.display()),
        lab.uplink(""),
        lab::vpc("red", 100, &["10.0.0.0/24"], ""),
    ]
    .concat();
    let mut daemon = Daemon::start(&lab.host, &base);
    daemon.ctl("vpc add green vni 300");
    let violet = format!("{base}{}", lab::vpc("violet", 400, &["10.4.0.0/24"], ""));
    daemon.rewrite_config(&violet);
    daemon.ctl("config reload");
    let has = |daemon: &Daemon, name: &str| daemon.ctl("show vpc").contains(name);
    assert!(has(&daemon, "green") && has(&daemon, "violet") && has(&daemon, "red"));
    let saved = std::fs::read_to_string(&state).unwrap();
    assert!(saved.contains("green") && saved.contains("violet"), "{saved}");
    // What the file says now counts at a restart, too, and a reload is not refused after it.
    let hot = format!("[offload]\nhot-packets = 77\n{violet}");
    daemon.rewrite_config(&hot);
    daemon.process().signal("KILL");
    daemon.process().wait(Duration::from_secs(10));
    daemon.restart(&lab.host);
    assert!(has(&daemon, "green") && has(&daemon, "violet"));
    assert!(daemon.ctl("show config").contains("hot-packets = 77"));
    daemon.ctl("config reload");
    // Which were the file's is known after a restart: what goes out of it goes, the other stays.
    let hot_base = format!("[offload]\nhot-packets = 77\n{base}");
    daemon.rewrite_config(&hot_base);
    daemon.ctl("config reload");
    assert!(has(&daemon, "green") && !has(&daemon, "violet"));
    // What excludes something made at run time is refused, with both named.
    daemon.rewrite_config(&format!("{hot_base}{}", lab::vpc("other", 300, &[], "")));
    let error = daemon.try_ctl("config reload").unwrap_err();
    for word in ["green", "other", "line ", "run time"] {
        assert!(error.contains(word), "'{word}' is missing: {error}");
    }
    assert!(has(&daemon, "green") && !has(&daemon, "other"));
    // Another config whole.
    daemon.rewrite_config(&hot_base);
    daemon.ctl(&format!("config load {}", daemon.config().display()));
    assert!(!has(&daemon, "green"));
    daemon.process().signal("TERM");
    daemon.assert_clean_end();
}
