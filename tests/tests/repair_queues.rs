//! A guest that uses one of its port's two pairs of queues, stops reading, and is taken away.
//!
//! ```text
//!  red ──── switch (two workers) ══ up0 ══ peer
//!  guest ───┘ vhost-user, two pairs          another switch is the guest: virtio-user, one pair
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;
use tests::runtime::{TWO_WORKERS, port_count, received_by_workers};
use tests::{Daemon, Family, Scene, Workdir, wait_for};

const MAC: &str = "02:00:00:00:01:03";
const FRAMES: i64 = 200;
const ROUNDS: i64 = 5;

#[test]
fn repair_queues_that_a_guest_did_not_enable_lose_nothing_and_a_stuck_one_ends_by_name() {
    let dir = Workdir::new("guest");
    let path = dir.path().join("guest.sock").display().to_string();
    let vnic = format!(
        "{TWO_WORKERS}[[vnic]]\nname = \"guest\"\nvpc = \"red\"\nmac = \"{MAC}\"\nvips = [\"10.0.0.3\"]\n\
         port = {{ kind = \"vhost-user\", path = \"{path}\", queues = 2 }}\nqueues = 2\n"
    );
    let mut scene = Scene::start(Family::V4, "", &vnic);
    let mut guest = Daemon::start(
        &scene.lab.peer,
        &format!(
            "[[port]]\nname = \"nic\"\nport = {{ kind = \"virtio-user\", path = \"{path}\", server = false }}\n"
        ),
    );
    wait_for("the guest's link", Duration::from_secs(10), || {
        let ports = scene.daemon.json("port list");
        let row = ports.as_array()?.iter().find(|row| row["name"] == "guest")?.clone();
        (row["link"] == "up").then_some(())
    });
    // What comes from the tenant is one worker's, what comes out of the tunnel the other's; both have a queue of the port.
    let to = format!("ether={{'dst': '{MAC}'}}, dst='10.0.0.3'");
    let local = format!("[from_red(datagram('x', sport=n), {to}) for n in range(1000, {})]", 1000 + FRAMES);
    let far =
        format!("[tunnel(from_far(datagram('x', sport=n), {to})) for n in range(1000, {})]", 1000 + FRAMES);
    let workers = received_by_workers(&scene.daemon);
    let (before, heard) = (scene.daemon.counters(), port_count(&guest, "nic", "rx-packets"));
    for _ in 0..ROUNDS {
        assert_eq!(scene.outbound(std::slice::from_ref(&local)).sent, FRAMES);
        assert_eq!(scene.inbound(std::slice::from_ref(&far)).sent, FRAMES);
    }
    let all = 2 * ROUNDS * FRAMES;
    wait_for("every frame to reach the guest", Duration::from_secs(10), || {
        (port_count(&guest, "nic", "rx-packets") - heard == all).then_some(())
    });
    let moved = scene.daemon.counters().since(&before);
    assert!(!moved.keys().any(|path| path.starts_with("fwd.drops.")), "{moved:#?}");
    let each: Vec<i64> =
        received_by_workers(&scene.daemon).iter().zip(workers).map(|(now, then)| now - then).collect();
    assert_eq!(each, [all / 2, all / 2], "both workers had frames for it");

    // Frozen, it reads nothing: what waits is little, and has a name when the port goes.
    let before = scene.daemon.counters();
    guest.process().signal("STOP");
    let frames = format!("[from_red(datagram('x', sport=n), {to}) for n in range(1000, 4000)]");
    let flood = scene.outbound(&[&frames]);
    scene.daemon.ctl("vnic del guest");
    wait_for("nothing to be queued", Duration::from_secs(10), || {
        (scene.daemon.counters().get("fwd.queued") == 0).then_some(())
    });
    let after = scene.daemon.counters();
    let moved = after.since(&before);
    let dropped: i64 = moved.iter().filter(|(path, _)| path.starts_with("fwd.drops.")).map(|(_, n)| n).sum();
    assert_eq!(after.get("fwd.sent") - before.get("fwd.sent") + dropped, flood.sent, "{moved:#?}");
    assert!(dropped >= flood.sent - 2048, "the guest's rings hold a few hundred: {moved:#?}");
    scene.daemon.assert_conserved();
    // Red goes on as if nothing had been.
    let outcome = scene.outbound(&["[from_red(datagram('y', sport=2000 + n)) for n in range(100)]"]);
    assert_eq!((outcome.seen.len(), outcome.all_drops()), (100, Vec::new()));
    guest.process().signal("CONT");
    guest.stop_holding(1024);
    scene.stop();
}
