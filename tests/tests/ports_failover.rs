//! Uplinks that fail over: two of them have one VTEP address, the kernel's own vxlan device is at the other end, and a link is
//! taken away under traffic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::{Duration, Instant};

use tests::lab::{Lab, Remote, Tenant, UNDERLAY_MTU, interface_mac, vpc};
use tests::netns::cable;
use tests::runtime::port_count;
use tests::{Daemon, Family, Process, Workdir, pair, traffic, wait_for};

/// Between two echo requests.
const EVERY_MS: u32 = 2;
/// Nobody may be cut off for longer, on a machine that does other things besides. A turn of control is 20 ms.
const OUTAGE_MS: u32 = 1000;
const PATIENCE: Duration = Duration::from_secs(10);

/// A container of the switch and one behind the kernel's vxlan device, two cables between their hosts.
struct TwoLinks {
    daemon: Daemon,
    near: Tenant,
    far: Remote,
    dir: Workdir,
    lab: Lab,
}

/// How the second cable comes to the other host.
enum Underlay {
    /// Into the same bridge as the first one: one network.
    Bridged(Family),
    /// As a network of its own; the hosts' VTEP addresses are routed.
    Routed,
}

impl TwoLinks {
    /// `second` is the second uplink's metric.
    fn start(underlay: &Underlay, second: u32) -> TwoLinks {
        let family = match underlay {
            Underlay::Bridged(family) => *family,
            Underlay::Routed => Family::V4,
        };
        let lab = Lab::new(family);
        let addresses = match underlay {
            Underlay::Bridged(_) => bridge(&lab),
            Underlay::Routed => route(&lab),
        };
        let near = lab.cabled_tenant("near", "red", pair::MACS[0], &["10.0.0.1/24"]);
        let options = match underlay {
            Underlay::Bridged(Family::V6) => "dev up0 udp6zerocsumrx",
            Underlay::Bridged(Family::V4) => "dev up0",
            Underlay::Routed => "",
        };
        let far = lab.routed_remote("far", pair::VNIS[0], pair::MACS[2], &["10.0.0.2/24"], options);
        let uplinks = [("up0", 0), ("up1", second)].into_iter().zip(addresses).map(|((name, metric), addresses)| {
            format!(
                "[[uplink]]\nname = \"{name}\"\nport = {{ kind = \"veth\", iface = \"{name}\" }}\nmtu = {UNDERLAY_MTU}\n\
                 metric = {metric}\n{addresses}\n"
            )
        });
        let config = [
            uplinks.collect::<String>(),
            vpc("red", pair::VNIS[0], &["10.0.0.0/24"], ""),
            near.vnic_on("{ kind = \"veth\", iface = \"near\" }"),
            far.location(),
        ]
        .concat();
        let mut daemon = Daemon::start(&lab.host, &config);
        daemon.settled();
        let lab = TwoLinks { daemon, near, far, dir: Workdir::new("failover"), lab };
        traffic::ping(&lab.near.netns, "10.0.0.2", 100, 3);
        lab
    }

    /// Echo requests, one every [`EVERY_MS`].
    fn ping(&self, seconds: u32) -> Process {
        let (count, every) =
            ((seconds * 1000 / EVERY_MS).to_string(), format!("{}", f64::from(EVERY_MS) / 1000.0));
        let args = ["ping", "-n", "-q", "-i", &every, "-c", &count, "-W", "1", "10.0.0.2"];
        self.near.netns.spawn("ping", &args, &self.dir)
    }

    fn set_link(&self, link: Link, up: bool) {
        let word = if up { "up" } else { "down" };
        match link {
            Link::Near(name) => self.lab.host.ip(&format!("link set {name} {word}")),
            Link::Far(name) => self.lab.peer.ip(&format!("link set {name} {word}")),
        };
    }

    /// Waits for an uplink to be used or not.
    fn await_uplink(&self, name: &str, word: &str) {
        wait_for("the uplink to be noticed", PATIENCE, || {
            let shown = self.daemon.json("show uplink");
            let mut rows = shown.as_array().unwrap().iter();
            rows.any(|row| row["name"] == name && row["link"] == word).then_some(())
        });
    }

    fn sent(&self) -> [i64; 2] {
        ["up0", "up1"].map(|name| port_count(&self.daemon, name, "tx-packets"))
    }

    /// Takes a link away in the middle of echo requests and answers; how many milliseconds of them were lost.
    fn fail(&self, link: Link, then: impl FnOnce()) -> u32 {
        let mut ping = self.ping(3);
        std::thread::sleep(Duration::from_millis(1000));
        let before = self.decided();
        self.set_link(link, false);
        assert!(ping.exited().is_none(), "nobody was there to lose anything");
        then();
        assert!(ping.wait(PATIENCE).code().is_some());
        let lost = lost(&ping.output());
        assert_eq!(self.decided(), before, "flows lost what was known of them");
        lost * EVERY_MS
    }

    /// How often a flow was decided, at first and anew: as it is, for under way packets never let all counters stand still.
    fn decided(&self) -> [i64; 2] {
        ["/nft-misses", "/nft-stale"].map(|count| self.daemon.figure("show fwd stats all", count))
    }
}

/// An end of a cable.
#[derive(Clone, Copy)]
enum Link {
    /// The interface of the switch is taken down.
    Near(&'static str),
    /// The other end is: the switch's interface loses its carrier.
    Far(&'static str),
}

/// "2000 packets transmitted, 1987 received, ..."
fn lost(said: &str) -> u32 {
    let line = said.lines().find(|line| line.contains("packets transmitted")).expect(said);
    let number = |words: &str| -> u32 {
        let before = line.split(words).next().unwrap();
        before.rsplit([' ', ',']).find(|word| !word.is_empty()).unwrap().parse().unwrap()
    };
    number(" packets transmitted") - number(" received")
}

/// Both cables end in a bridge that has the other host's VTEP address. What the switch's uplinks have.
fn bridge(lab: &Lab) -> [String; 2] {
    let (peer, family) = (&lab.peer, lab.family());
    cable((&lab.host, "up1"), (peer, "u1"), UNDERLAY_MTU);
    let address = format!("{}/{}", family.remote_vtep(), family.prefix_len());
    for line in [
        &format!("addr del {address} dev up0"),
        "link set up0 down",
        "link set up0 name u0",
        &format!("link add up0 mtu {UNDERLAY_MTU} type bridge forward_delay 0"),
        "link set u0 master up0",
        "link set u1 master up0",
        "link set u0 up",
        "link set up0 up",
    ] {
        peer.ip(line);
    }
    let nodad = if family == Family::V6 { "nodad" } else { "" };
    peer.ip(&format!("addr add {address} dev up0 {nodad}"));
    let own = format!("{}/{}", family.local_vtep(), family.prefix_len());
    [(); 2].map(|()| format!("addresses = [\"{own}\"]\npeers = [\"{}\"]", family.remote_vtep()))
}

/// Each cable is a network; both hosts' VTEP addresses are reached by either.
fn route(lab: &Lab) -> [String; 2] {
    let (peer, family) = (&lab.peer, lab.family());
    cable((&lab.host, "up1"), (peer, "u1"), UNDERLAY_MTU);
    let (own, other) = (family.local_vtep(), family.remote_vtep());
    for line in [
        &format!("addr del {other}/{} dev up0", family.prefix_len()),
        "link set up0 down",
        "link set up0 name u0",
        "link set u0 up",
        "addr add 192.168.0.2/30 dev u0",
        "addr add 192.168.1.2/30 dev u1",
        "link set lo up",
        &format!("addr add {other}/32 dev lo"),
        &format!("route add {own}/32 nexthop via 192.168.0.1 nexthop via 192.168.1.1"),
    ] {
        peer.ip(line);
    }
    peer.sysctl(&[
        "net.ipv4.fib_multipath_hash_policy=1",
        "net.ipv4.conf.all.rp_filter=0",
        "net.ipv4.conf.all.ignore_routes_with_linkdown=1",
        "net.ipv4.conf.u0.ignore_routes_with_linkdown=1",
        "net.ipv4.conf.u1.ignore_routes_with_linkdown=1",
    ]);
    [0, 1].map(|n| {
        format!(
            "addresses = [\"192.168.{n}.1/30\", \"{own}/32\"]\ngateway = [\"192.168.{n}.2\"]\npeers = [\"{other}\"]"
        )
    })
}

/// The preferred uplink fails in both ways that links have, and comes back.
fn active_backup(family: Family, links: &[Link]) {
    let lab = TwoLinks::start(&Underlay::Bridged(family), 10);
    let before = lab.sent();
    traffic::ping(&lab.near.netns, "10.0.0.2", 100, 50);
    let after = lab.sent();
    assert!(
        after[0] - before[0] >= 50 && after[1] - before[1] < 20,
        "{before:?} {after:?}: the backup is used"
    );
    for &link in links {
        let outage = lab.fail(link, || lab.await_uplink("up0", "down"));
        println!("outage {outage} ms");
        assert!(outage < OUTAGE_MS, "{outage} ms without packets");
        // It comes and goes: nothing moves.
        for up in [true, false, true, false] {
            lab.set_link(link, up);
            std::thread::sleep(Duration::from_millis(150));
        }
        let before = lab.sent();
        traffic::ping(&lab.near.netns, "10.0.0.2", 100, 50);
        let after = lab.sent();
        assert!(
            after[1] - before[1] >= 50 && after[0] - before[0] < 20,
            "{before:?} {after:?}: the link came and went"
        );
        // It stays, and has its flows back.
        let mut ping = lab.ping(4);
        lab.set_link(link, true);
        lab.await_uplink("up0", "up");
        let before = lab.sent();
        ping.wait(PATIENCE);
        let (after, lost) = (lab.sent(), lost(&ping.output()) * EVERY_MS);
        println!("back after {lost} ms without packets");
        assert!(lost < OUTAGE_MS, "{lost} ms without packets");
        assert!(after[0] - before[0] > 100, "{before:?} {after:?}: the first uplink is used again");
    }
    // Nor is the backup ever taken for where the address is, or missed: it asks for its neighbours, too.
    let known = || lab.lab.peer.ip(&format!("neigh show {} dev up0", family.local_vtep()));
    let first = interface_mac(&lab.lab.host, "up0");
    assert!(known().contains(&first), "{} and not {first}", known());
    let outage = lab.fail(Link::Near("up1"), || lab.await_uplink("up1", "down"));
    assert!(outage < OUTAGE_MS, "{outage} ms without packets");
    assert!(known().contains(&first), "{} and not {first}", known());
    lab.set_link(Link::Near("up1"), true);
    lab.await_uplink("up1", "up");
    // TCP does not notice.
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            traffic::transfer_by(&["tcp"], &lab.near.netns, &lab.far.netns, "10.0.0.2", 100_000_000)
        });
        std::thread::sleep(Duration::from_millis(400));
        lab.set_link(Link::Near("up0"), false);
    });
    // Some 2 s here; one that stands still for its retransmission timer takes far longer.
    let took = start.elapsed();
    println!("TCP took {took:?}");
    assert!(took < Duration::from_secs(40), "100 MB took {took:?}");
    lab.await_uplink("up0", "down");
    let events = lab.daemon.ctl("show events");
    assert!(events.matches("uplink up0 has no link").count() > links.len(), "{events}");
    // Without any link everything is lost, and counted: the figures above could have been others.
    lab.set_link(Link::Near("up1"), false);
    lab.await_uplink("up1", "down");
    let mut ping = lab.ping(1);
    ping.wait(PATIENCE);
    assert!(lost(&ping.output()) * EVERY_MS > 500 && lab.daemon.drops("link-down") > 100);
    let TwoLinks { daemon, .. } = lab;
    daemon.assert_conserved();
    daemon.stop();
}

#[test]
fn failover_to_the_backup_and_back_over_ipv4() {
    active_backup(Family::V4, &[Link::Near("up0"), Link::Far("u0")]);
}

#[test]
fn failover_to_the_backup_and_back_over_ipv6() {
    active_backup(Family::V6, &[Link::Far("u0")]);
}

#[test]
fn failover_of_routed_uplinks_that_share_the_flows() {
    let lab = TwoLinks::start(&Underlay::Routed, 0);
    let before = lab.sent();
    // Many flows: each transfer has two, and so has each port.
    let flows = || {
        for _ in 0..12 {
            traffic::transfer_by(&["udp"], &lab.near.netns, &lab.far.netns, "10.0.0.2", 20_000);
        }
    };
    flows();
    let after = lab.sent();
    assert!(
        after.iter().zip(&before).all(|(after, before)| after - before > 20),
        "{before:?} {after:?}: both are used"
    );
    for (name, other, link) in [("up0", 1, Link::Near("up0")), ("up1", 0, Link::Far("u1"))] {
        let outage = lab.fail(link, || lab.await_uplink(name, "down"));
        println!("outage {outage} ms");
        assert!(outage < OUTAGE_MS, "{outage} ms without packets");
        let before = lab.sent();
        flows();
        let after = lab.sent();
        assert!(
            after[other] - before[other] > 100 && after[1 - other] - before[1 - other] < 20,
            "{before:?} {after:?}"
        );
        lab.set_link(link, true);
        lab.await_uplink(name, "up");
        traffic::ping(&lab.near.netns, "10.0.0.2", 100, 3);
    }
    let TwoLinks { daemon, .. } = lab;
    daemon.assert_conserved();
    daemon.stop();
}
