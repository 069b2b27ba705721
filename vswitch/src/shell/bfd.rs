//! `show bfd`: the sessions of bidirectional forwarding detection.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{Entry, Shell};
use crate::console::{Args, CommandError, Output, Table};

pub(super) fn commands() -> Vec<Entry> {
    vec![Entry {
        syntax: "show bfd",
        help: "BFD sessions of uplinks: state at both ends, whether the path is used, intervals and counts",
        run: show,
    }]
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn show(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let (switch, now) = (&shell.switch, Instant::now());
    let mut table = Table::new([
        "uplink",
        "peer",
        "hops",
        "state",
        "peer's",
        "path",
        "last reason",
        "interval ms",
        "detection ms",
        "for s",
        "ups",
        "heard",
        "sent",
    ]);
    let mut rows = Vec::new();
    for running in switch.bfd().sessions() {
        let (of, session) = (&running.of, &running.session);
        let uplink =
            switch.snapshot().uplink(of.uplink).map(|uplink| uplink.name.clone()).unwrap_or_default();
        let (remote, remote_reason) = session.remote_state();
        let has_peer = session.remote_discriminator() != 0;
        let remote = if has_peer { remote.name() } else { "silent" };
        let detection = session.detection_time().map(milliseconds);
        let path = if session.is_failed() { "left" } else { "used" };
        let age = now.saturating_duration_since(running.since).as_secs_f64();
        table.row([
            uplink.clone(),
            of.peer.to_string(),
            (if of.multihop { "several" } else { "one" }).to_owned(),
            session.state().name().to_owned(),
            remote.to_owned(),
            path.to_owned(),
            session.diagnostic().name().to_owned(),
            format!("{}", milliseconds(session.interval())),
            detection.map_or("-".into(), |time| format!("{time}")),
            format!("{age:.1}"),
            running.ups.to_string(),
            running.heard.to_string(),
            running.sent.to_string(),
        ]);
        rows.push(json!({
            "uplink": uplink, "peer": of.peer, "local": of.local, "multihop": of.multihop, "state": session.state().name(),
            "peer-state": remote, "path": path, "diagnostic": session.diagnostic().name(),
            "peer-diagnostic": remote_reason.name(), "interval-ms": milliseconds(session.interval()),
            "detection-ms": detection, "seconds": age, "ups": running.ups, "heard": running.heard, "sent": running.sent,
            "discriminator": of.discriminator, "peer-discriminator": session.remote_discriminator(),
        }));
    }
    Ok(Output::table(&table, json!(rows)))
}
