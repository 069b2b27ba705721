//! A guest that migrates while it runs, into another process behind the same port or to another host. Connections that carry data all the time go on, and
//! every byte is right: those, too, that the switch wrote into the guest's memory while that was copied.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::{Duration, Instant};
use tests::guest::{self, Guest, Job, SCRIPT, Site, Vm, site};
use tests::lab::{Lab, location};
use tests::{Daemon, Family, wait_for};

const PATIENCE: Duration = Duration::from_secs(120);
/// Lines that must have come before something counts as going on, and how often the sender says how many it sent.
const SOME: u64 = 2000;
/// Bytes that wait in the guest for a reader, in pieces of 16 KiB.
const HELD: u64 = 2 << 20;

/// Lines with their number and a text, from one guest to another by TCP, as fast as an emulated machine bears beside a copy of it.
struct Stream<'s> {
    from: &'s Guest,
    to: &'s Guest,
    port: u16,
    sender: Job,
    receiver: Job,
}

impl<'s> Stream<'s> {
    #[track_caller]
    fn begin(from: &'s Guest, (to, address): (&'s Guest, &str), port: u16) -> Stream<'s> {
        let line = "sprintf(\"%09d 0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\", n)";
        let receiver = to.start(&format!(
            "socat -u TCP-LISTEN:{port},reuseaddr - | busybox awk '{{ n++; if ($0 != {line}) {{ \
             print \"line \" n \" came as \" substr($0, 1, 80); wrong = 1; exit }} \
             if (n % {SOME} == 0) {{ print n >\"/run/got-{port}\"; close(\"/run/got-{port}\") }} }} \
             END {{ print n + 0; exit wrong }}'"
        ));
        to.until(&format!("ss -Hltn 'sport = :{port}' | grep -q LISTEN"), SCRIPT);
        let sender = from.start(&format!(
            "busybox awk 'BEGIN {{ do {{ n++; print {line}; if (n % {SOME} == 0) {{ fflush(); system(\"usleep 50000\"); \
             stop = (getline x <\"/run/stop-{port}\") >= 0; close(\"/run/stop-{port}\") }} }} while (!stop); \
             print n >\"/run/sent-{port}\" }}' | socat -u - TCP:{address}:{port} && cat /run/sent-{port}"
        ));
        let stream = Stream { from, to, port, sender, receiver };
        stream.goes_on();
        stream
    }

    /// Lines that were checked where they came to.
    #[track_caller]
    fn checked(&self) -> u64 {
        let text = self.to.run(&format!("cat /run/got-{} 2>/dev/null || echo 0", self.port));
        text.trim().parse().unwrap_or(0)
    }

    /// Waits until some more have come.
    #[track_caller]
    fn goes_on(&self) {
        let before = self.checked();
        wait_for(&format!("lines on port {}", self.port), PATIENCE, || {
            if let Some(ended) = self.to.ended(&self.receiver, Duration::from_millis(1)) {
                panic!("the receiver on port {} has ended: {}", self.port, ended.output);
            }
            (self.checked() > before).then_some(())
        });
    }

    /// Ends it: all that was sent has come, in order and as it was sent.
    #[track_caller]
    fn finish(self) {
        self.from.run(&format!("touch /run/stop-{}", self.port));
        let sent = self.from.finish(self.sender, PATIENCE);
        let came = self.to.finish(self.receiver, PATIENCE);
        assert!(sent.ok() && came.ok(), "sent: {}\ncame: {}", sent.output, came.output);
        assert_eq!(sent.output, came.output, "lines on port {}", self.port);
        eprintln!("{} lines on port {}", came.output.trim(), self.port);
    }
}

/// Bytes without a pattern that wait in the guest's socket until its program reads them: nobody but the switch has touched the memory
/// that they are in.
struct Held<'s> {
    from: &'s Guest,
    to: &'s Guest,
    sender: Job,
    receiver: Job,
}

impl<'s> Held<'s> {
    #[track_caller]
    fn connect(from: &'s Guest, (to, address): (&'s Guest, &str)) -> Held<'s> {
        to.run("echo 16777216 >/proc/sys/net/core/rmem_max");
        let receiver = to.start(
            "socat -u TCP-LISTEN:7100,rcvbuf=6291456 - | \
             { until [ -e /run/read ]; do usleep 50000; done; busybox sha256sum; }",
        );
        to.until("ss -Hltn 'sport = :7100' | grep -q LISTEN", SCRIPT);
        from.run(&format!("dd if=/dev/urandom of=/run/held bs=16384 count={} 2>&1", HELD / 16384));
        let sender = from.start(&format!(
            "{{ until [ -e /run/send ]; do usleep 50000; done; i=0; while [ $i -lt {} ]; do \
             dd if=/run/held bs=16384 skip=$i count=1 2>/dev/null; usleep 20000; i=$((i+1)); done; }} | \
             socat -u - TCP:{address}:7100",
            HELD / 16384
        ));
        to.until("ss -Htn 'sport = :7100' | grep -q ESTAB", PATIENCE);
        Held { from, to, sender, receiver }
    }

    /// Sends them.
    #[track_caller]
    fn send(&self) {
        self.from.run("touch /run/send");
    }

    /// Whether they are where they wait. A pipe of 64 KiB is filled from there.
    #[track_caller]
    fn are_there(&self) -> bool {
        let enough = HELD - (96 << 10);
        let waiting = "ss -Htn 'sport = :7100' | busybox awk '{ print $2 }'";
        self.to.try_run(&format!("[ \"$({waiting})\" -ge {enough} ]"), SCRIPT).ok()
    }

    /// Has them read.
    #[track_caller]
    fn read(self) {
        let wanted = self.from.run("busybox sha256sum </run/held");
        self.to.run("touch /run/read");
        let (sent, came) = (self.from.finish(self.sender, PATIENCE), self.to.finish(self.receiver, PATIENCE));
        assert!(sent.ok() && came.ok(), "sent: {}\ncame: {}", sent.output, came.output);
        assert_eq!(
            came.output, wanted,
            "what the switch wrote while memory was copied is not what came to be there"
        );
    }
}

/// Migrates `m` to a socket under all of this. `switch_over` is done while the guest stands still.
#[track_caller]
fn migrate(
    site: &Site,
    socket: &std::path::Path,
    streams: &[Stream<'_>],
    held: Held<'_>,
    switch_over: impl FnOnce(),
) {
    let mut migration = site.guest("m").migrate(socket);
    migration.begin();
    held.send();
    wait_for("what waits for a reader", PATIENCE, || {
        migration.round();
        held.are_there().then_some(())
    });
    streams.iter().for_each(Stream::goes_on);
    eprintln!("round {} of copying, under traffic", migration.round());
    let began = Instant::now();
    migration.converge();
    switch_over();
    migration.complete();
    streams.iter().for_each(Stream::goes_on);
    eprintln!("from the last round to streams that go on: {:?}", began.elapsed());
    held.read();
}

/// The guest that migrates.
fn the_one() -> Vm {
    Vm::new("m", ("red", 100), "02:00:00:00:0a:03", &["10.0.0.3/24", "fd00:1::3/64"])
}

#[test]
#[ignore = "takes minutes: scripts/test --only guest, or --full"]
fn guest_vhost_migration_into_another_process() {
    if !guest::can_run() {
        return;
    }
    let [a, _, _, _] = site::two_tenants();
    let mut m = the_one();
    // A guest that does not announce itself: QEMU has the switch do so (VHOST_USER_SEND_RARP).
    m.nic = ",guest_announce=off".to_owned();
    let site = Site::start(Lab::new(Family::V4), &site::vpcs(""), &[a, m], &[]);
    let (a, m) = (site.guest("a"), site.guest("m"));
    let streams = [Stream::begin(a, (m, "10.0.0.3"), 7001), Stream::begin(m, (a, "10.0.0.1"), 7002)];
    let held = Held::connect(a, (m, "10.0.0.3"));
    // The new process waits on the port's own socket for the old one to go.
    migrate(&site, &site.socket("m"), &streams, held, || {});
    streams.into_iter().for_each(Stream::finish);
    site.stop();
}

#[test]
#[ignore = "takes minutes: scripts/test --only guest, or --full"]
fn guest_vhost_migration_to_another_host() {
    if !guest::can_run() {
        return;
    }
    let [a, _, _, _] = site::two_tenants();
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    let there = lab.reversed();
    let known = [(&a.mac, &a.addresses), (&the_one().mac, &the_one().addresses)].map(|(mac, addresses)| {
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        location(there.remote_vtep(), 100, mac, &addresses)
    });
    let config = there.uplink("") + &site::vpcs("") + &known.concat();
    let mut second = Daemon::start_alone(&there.host, &config);
    let site = Site::start(lab, &site::vpcs(""), &[a, the_one()], &[]);
    second.wait_until_resolved();
    let (first, vm) = (&site.switches[0], site.vm("m"));
    let (a, m) = (site.guest("a"), site.guest("m"));
    let streams = [Stream::begin(a, (m, "10.0.0.3"), 7001), Stream::begin(m, (a, "10.0.0.1"), 7002)];
    let held = Held::connect(a, (m, "10.0.0.3"));

    let socket = second.dir().path().join("m.sock");
    second.ctl(&format!("port attach m vhost-user path={}", socket.display()));
    migrate(&site, &socket, &streams, held, || {
        let vips = vm.vips().join(",");
        let said =
            second.ctl(&format!("vnic add m vpc red mac {} vips {vips} mtu {} port m", vm.mac, site::MTU));
        assert!(said.contains("moved here from"), "{said}");
        first.ctl(&format!("vnic move m vtep {}", Family::V4.remote_vtep()));
    });
    // All of it goes through the tunnel now.
    let before = [first, &second].map(|switch| switch.figure("show fwd stats all", "/encapsulated"));
    streams.iter().for_each(Stream::goes_on);
    let after = [first, &second].map(|switch| switch.figure("show fwd stats all", "/encapsulated"));
    assert!(after.iter().zip(&before).all(|(after, before)| after > before), "{before:?} {after:?}");
    streams.into_iter().for_each(Stream::finish);
    // A packet or two of each connection were on their way, or the first ones into the tunnel.
    for switch in [first, &second] {
        site::assert_no_drops_but(switch, &["no-location", "inner-source", "no-neighbour"]);
    }
    site.stop();
    second.stop();
}
