//! A start without all that the config names: the socket's folder of one vNIC and the interface of another are not there. The others carry
//! traffic from the beginning, and those two come up when there is what they want.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::os::unix::fs::FileTypeExt;
use std::time::Duration;

use tests::lab::{Lab, vpc};
use tests::{Daemon, Family, Workdir, pair, traffic, wait_for};

/// The longest pause between two attempts, and more.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn ports_that_are_not_there_at_the_start_come_up_later() {
    let dir = Workdir::new("absent");
    let folder = dir.path().join("later");
    let socket = folder.join("v.sock");
    let lab = Lab::new(Family::V4);
    let red = lab.cabled_tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let far = lab.remote("redfar", pair::VNIS[0], pair::MACS[2], &pair::FAR, "");
    let late = |name: &str, last: u8, port: &str| {
        format!(
            "[[vnic]]\nname = \"{name}\"\nvpc = \"red\"\nmac = \"02:00:00:00:0f:{last:02x}\"\nvips = [\"10.0.0.{last}\"]\nport = {port}\n"
        )
    };
    let config = [
        lab.uplink(""),
        vpc("red", pair::VNIS[0], &["10.0.0.0/24", "fd00:1::/64"], ""),
        far.location(),
        red.vnic_on("{ kind = \"veth\", iface = \"red\" }"),
        late("guest", 40, &format!("{{ kind = \"vhost-user\", path = \"{}\" }}", socket.display())),
        late("pod", 41, "{ kind = \"veth\", iface = \"pod0\" }"),
    ]
    .concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    traffic::ping(&red.netns, "10.0.0.2", 56, 3);
    let events = daemon.ctl("show events");
    let missing = folder.display().to_string();
    for (name, why) in [("guest", missing.as_str()), ("pod", "no interface \"pod0\"")] {
        let is_told = events.lines().any(|line| line.contains(name) && line.contains(why));
        assert!(is_told, "{name} is down for want of {why}:\n{events}");
    }
    // They are tried again, and nobody else is held up.
    traffic::transfer_by(&["tcp"], &red.netns, &far.netns, "10.0.0.2", 1_000_000);
    std::fs::create_dir(&folder).unwrap();
    lab.host.ip("link add pod0 type veth peer name pod1");
    lab.host.ip("link set pod0 up");
    lab.host.ip("link set pod1 up");
    wait_for("the socket", PATIENCE, || {
        std::fs::metadata(&socket).is_ok_and(|file| file.file_type().is_socket()).then_some(())
    });
    wait_for("the interface's port", PATIENCE, || {
        let events = daemon.ctl("show events");
        let last = events.lines().rfind(|line| line.contains("pod"))?;
        last.contains("up").then_some(())
    });
    traffic::ping(&red.netns, "10.0.0.2", 56, 3);
    lab.host.ip("link del pod0");
    daemon.assert_conserved();
    daemon.process().signal("TERM");
    daemon.assert_clean_end();
}
