//! Security groups under the kernel's TCP: what rules allow passes with its replies, nothing else does, and a rule that goes ends
//! what it admitted before the command returns.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::lab::{Lab, Remote, Tenant, location, vpc};
use tests::runtime::TWO_WORKERS;
use tests::steady::Stream;
use tests::{Daemon, Family, Netns, Process, Workdir, pair, traffic};

const PATIENCE: Duration = Duration::from_secs(10);
/// A vNIC that may send everything, and gets what these rules say.
const GROUPS: &str = "[[security-group]]\nname = \"web\"\nvpc = \"red\"\nrules = [\n\
     { direction = \"in\", protocol = \"tcp\", ports = \"5201\" },\n\
     { direction = \"in\", protocol = \"tcp\", ports = \"5301\", group = \"friends\" },\n\
     { direction = \"in\", protocol = \"icmpv6\", type = 128 },\n]\n\
     [[security-group]]\nname = \"friends\"\nvpc = \"red\"\n";

/// A container in a group, and a machine behind another host.
struct Guarded {
    daemon: Daemon,
    near: Tenant,
    far: Remote,
    dir: Workdir,
    lab: Lab,
}

impl Guarded {
    fn start() -> Guarded {
        let lab = Lab::new(Family::V4);
        let near = lab.cabled_tenant("near", "red", pair::MACS[0], &pair::NEAR);
        let far = lab.remote("far", pair::VNIS[0], pair::MACS[2], &pair::FAR, "");
        let vnic = near.vnic_on("{ kind = \"veth\", iface = \"near\" }");
        let config = [
            lab.uplink_on("{ kind = \"veth\", iface = \"up0\" }", ""),
            vpc("red", pair::VNIS[0], &["10.0.0.0/24", "fd00:1::/64"], ""),
            GROUPS.to_owned(),
            vnic.replacen("mac =", "security-groups = [\"web\"]\nmac =", 1),
            far.location(),
            TWO_WORKERS.to_owned(),
        ]
        .concat();
        let mut daemon = Daemon::start(&lab.host, &config);
        daemon.settled();
        Guarded { daemon, near, far, dir: Workdir::new("security"), lab }
    }

    /// A program that listens on a port of the container.
    fn listen(&self, port: u16) -> Process {
        let program = format!(
            "import socket\ns = socket.create_server(('10.0.0.1', {port}))\nprint('ready', flush=True)\n\
             while True:\n    c, _ = s.accept()\n    c.sendall(b'hello')\n    c.close()\n"
        );
        let mut server = self.near.netns.spawn("listen", &["python3", "-c", &program], &self.dir);
        server.wait_output("ready", PATIENCE);
        server
    }
}

/// True when somebody can open a connection to a port of the container within a second and hears its word.
fn connects(from: &Netns, port: u16) -> bool {
    let program = format!(
        "import socket\ns = socket.create_connection(('10.0.0.1', {port}), timeout=1)\ns.settimeout(1)\n\
         assert s.recv(5) == b'hello'\n"
    );
    from.try_run(&["python3", "-c", &program]).status.success()
}

/// TCP segments that a machine's kernel got so far.
fn segments(machine: &Netns) -> u64 {
    let text = machine.run(&["cat", "/proc/net/snmp"]);
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split_whitespace().position(|name| name == "InSegs").unwrap();
    values.split_whitespace().nth(at).unwrap().parse().unwrap()
}

#[test]
fn security_rules_admit_and_replies_need_none() {
    let lab = Guarded::start();
    let (near, far) = (&lab.near.netns, &lab.far.netns);
    // What the container asks for comes back.
    traffic::ping(near, "10.0.0.2", 56, 3);
    traffic::ping(near, "fd00:1::2", 56, 3);
    traffic::ping(far, "fd00:1::1", 56, 3);
    let before = lab.daemon.drops("security-in");
    traffic::no_ping(far, "10.0.0.1");
    assert_eq!(lab.daemon.drops("security-in"), before + 3, "each echo request is dropped by name");
    let _servers = [5201, 5301, 5401].map(|port| lab.listen(port));
    assert_eq!([5201, 5301, 5401].map(|port| connects(far, port)), [true, false, false]);
    let bytes = 300_000;
    traffic::transfer_by(&["tcp"], near, far, "10.0.0.2", bytes);
    let shown = lab.daemon.json("show connections near");
    let rows = shown["connections"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["protocol"] == "tcp" && row["opened-here"] == true), "{shown}");
    lab.daemon.assert_conserved();
    let Guarded { daemon, .. } = lab;
    daemon.stop();
}

#[test]
fn security_members_of_a_group_are_let_in_wherever_they_are() {
    let lab = Guarded::start();
    let far = &lab.far.netns;
    let _server = lab.listen(5301);
    assert!(!connects(far, 5301));
    let plain = lab.far.location();
    let text = std::fs::read_to_string(lab.daemon.config()).unwrap();
    let grouped = location(lab.lab.remote_vtep(), pair::VNIS[0], pair::MACS[2], &pair::FAR)
        .replace("vtep =", "groups = [\"friends\"]\nvtep =");
    assert!(text.contains(&plain), "{text}");
    std::fs::write(lab.daemon.config(), text.replace(&plain, &grouped)).unwrap();
    lab.daemon.ctl("config reload");
    assert!(connects(far, 5301), "a member now");
    std::fs::write(lab.daemon.config(), text).unwrap();
    lab.daemon.ctl("config reload");
    assert!(!connects(far, 5301), "and no more");
    let Guarded { daemon, .. } = lab;
    daemon.stop();
}

#[test]
fn security_a_rule_that_goes_ends_tcp_before_the_command_returns() {
    let lab = Guarded::start();
    let (near, far) = (&lab.near.netns, &lab.far.netns);
    let mut server = near.spawn("iperf3-server", &["iperf3", "-s", "--forceflush"], &lab.dir);
    server.wait_output("Server listening", PATIENCE);
    for round in 0..3 {
        let client = far.spawn("iperf3", &["iperf3", "-c", "10.0.0.1", "-t", "60", "--forceflush"], &lab.dir);
        let start = segments(near);
        tests::wait_for("the stream to run", PATIENCE, || (segments(near) > start + 2000).then_some(()));
        lab.daemon.ctl("security-group revoke web in tcp 5201");
        let then = segments(near);
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(segments(near), then, "round {round}: nothing is delivered any more");
        assert!(lab.daemon.drops("security-in") > 0);
        drop(client);
        lab.daemon.ctl("security-group allow web in tcp 5201");
        // The old connection stays ended: the server has to be free for a new one.
        drop(server);
        server = near.spawn("iperf3-server", &["iperf3", "-s", "--forceflush"], &lab.dir);
        server.wait_output("Server listening", PATIENCE);
    }
    drop(server);
    lab.daemon.assert_conserved();
    let Guarded { daemon, .. } = lab;
    daemon.stop();
}

#[test]
fn security_connections_outlive_a_restart_of_the_switch() {
    let mut lab = Guarded::start();
    let stream = Stream::start(&lab.near.netns, &lab.far.netns, "10.0.0.2");
    std::thread::sleep(Duration::from_millis(300));
    lab.daemon.process().signal("KILL");
    lab.daemon.process().wait(PATIENCE);
    lab.daemon.restart(&lab.lab.host);
    std::thread::sleep(Duration::from_secs(1));
    assert!(stream.stop() > 0);
    lab.daemon.settled();
    let Guarded { daemon, .. } = lab;
    daemon.stop();
}
