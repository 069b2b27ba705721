//! MTUs that change while ports run: by a reload, up and down, under traffic that never notices. What is then too long for somebody
//! on its way is answered with what fits, jumbo frames of several buffers and super-frames included.
//!
//! ```text
//!  red blue v101 v102 ── here (vswitch) ══ up0 ══ there (vswitch) ── far
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;
use tests::lab::{self, Lab, Tenant};
use tests::runtime::{assert_stands, port_count, port_row, standing};
use tests::steady::{Flows, Ping};
use tests::vhost::{FrontEnd, PLAIN, Station, datagram, number_of};
use tests::{Daemon, Family, Netns, Workdir, netns, pair, traffic, wait_for};

const SUBNETS: [&str; 2] = ["10.0.0.0/24", "fd00:1::/64"];
const BLUE: [&str; 2] = ["10.0.0.3/24", "fd00:1::3/64"];
/// More than fits into four buffers of the pool.
const JUMBO: u32 = 9000;
const FLOWS: u32 = 4;
const STATIONS: [Station; 2] = [Station(101), Station(102)];
const TCP_BYTES: u32 = 1_000_000;
/// Offered to whoever stands between a guest and the switch and tells the guest an MTU (VIRTIO 1.2 section 5.1.3).
const VIRTIO_NET_F_MTU: u64 = 1 << 3;

/// MTUs of the uplinks, of the vNICs here, and of the one there.
#[derive(Clone, Copy)]
struct Mtus {
    uplink: u32,
    red: u32,
    blue: u32,
    guests: u32,
    far: u32,
}

/// What the cables have.
const SMALL: Mtus = Mtus { uplink: 1600, red: 1450, blue: 1450, guests: 1450, far: 1450 };
const LARGE: Mtus = Mtus { uplink: JUMBO + 50, red: JUMBO, blue: JUMBO, guests: JUMBO, far: JUMBO };

struct Site {
    here: Daemon,
    there: Daemon,
    red: Tenant,
    blue: Tenant,
    far: Tenant,
    guests: [FrontEnd; 2],
    dir: Workdir,
    lab: Lab,
    other_lab: Lab,
}

fn vnic(tenant: &Tenant, mtu: u32) -> String {
    let text = tenant.vnic_on(&format!("{{ kind = \"veth\", iface = \"{}\" }}", tenant.name));
    text.replace("mtu = 1450", &format!("mtu = {mtu}"))
}

fn uplink(lab: &Lab, mtu: u32) -> String {
    lab.uplink_on("{ kind = \"veth\", iface = \"up0\" }", "").replace("mtu = 1600", &format!("mtu = {mtu}"))
}

fn guest(station: Station, dir: &Workdir, mtu: u32) -> String {
    station.vnic("red", dir.path()).replace("port =", &format!("mtu = {mtu}\nport ="))
}

/// The configs of both hosts.
fn configs(lab: &Lab, there: &Lab, tenants: [&Tenant; 3], dir: &Workdir, mtus: Mtus) -> [String; 2] {
    let [red, blue, far] = tenants;
    let vpc = lab::vpc("red", pair::VNIS[0], &SUBNETS, "");
    let at = |lab: &Lab, tenant: &Tenant, addresses: &[&str]| {
        lab::location(lab.remote_vtep(), pair::VNIS[0], &tenant.mac, addresses)
    };
    let here = [
        uplink(lab, mtus.uplink),
        vpc.clone(),
        vnic(red, mtus.red),
        vnic(blue, mtus.blue),
        STATIONS.map(|station| guest(station, dir, mtus.guests)).concat(),
        at(lab, far, &pair::FAR),
    ];
    let locations = [at(there, red, &pair::NEAR), at(there, blue, &BLUE)].concat();
    [here.concat(), [uplink(there, mtus.uplink), vpc, vnic(far, mtus.far), locations].concat()]
}

impl Site {
    fn start() -> Site {
        let lab = Lab::new(Family::V4);
        lab.peer.ip("addr flush dev up0");
        let other_lab = lab.reversed();
        let red = lab.cabled_tenant("red", "red", pair::MACS[0], &pair::NEAR);
        let blue = lab.cabled_tenant("blue", "red", pair::MACS[1], &BLUE);
        let far = other_lab.cabled_tenant("far", "red", pair::MACS[2], &pair::FAR);
        for (host, tenant) in [(&lab.host, &blue), (&other_lab.host, &far)] {
            // Their ends of the cables take jumbo frames whatever the vNIC's MTU is: what is too long reaches the switch.
            host.ip(&format!("link set {} mtu {JUMBO}", tenant.name));
        }
        let dir = Workdir::new("mtu");
        let [one, two] = configs(&lab, &other_lab, [&red, &blue, &far], &dir, SMALL);
        let mut here = Daemon::start_alone(&lab.host, &one);
        let there = Daemon::start(&lab.peer, &two);
        here.wait_until_resolved();
        let guests = STATIONS
            .map(|station| FrontEnd::ready(&station.socket(dir.path()), PLAIN | VIRTIO_NET_F_MTU).unwrap());
        for tenant in [&red, &blue, &far] {
            tenant.netns.ip(&format!("link set eth0 mtu {JUMBO}"));
        }
        Site { here, there, red, blue, far, guests, dir, lab, other_lab }
    }

    fn reload(&self, mtus: Mtus) {
        let tenants = [&self.red, &self.blue, &self.far];
        let configs = configs(&self.lab, &self.other_lab, tenants, &self.dir, mtus);
        for (daemon, config) in [&self.here, &self.there].into_iter().zip(configs) {
            daemon.rewrite_config(&config);
            daemon.ctl("config reload");
        }
        for tenant in [&self.red, &self.blue, &self.far] {
            forget(&tenant.netns);
        }
    }

    /// What the kernel says of an interface.
    fn interface_mtu(&self, iface: &str) -> u32 {
        let shown = self.lab.host.ip(&format!("-o link show {iface}"));
        shown.split("mtu ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap()
    }

    /// Both guests hear each other, on the connections that they have had from the beginning.
    fn guests_talk(&mut self, number: u32) {
        for (from, to) in [(0, 1), (1, 0)] {
            wait_for("a guest to be heard", Duration::from_secs(10), || {
                self.guests[from].send(&datagram(STATIONS[from], STATIONS[to], number)).ok()?;
                std::thread::sleep(Duration::from_millis(5));
                let frames = self.guests[to].receive().unwrap();
                frames.iter().any(|frame| number_of(frame) == Some(number)).then_some(())
            });
        }
    }
}

/// What fits passes, what is a byte longer is answered with what fits; and a jumbo frame by the sender's own port, where that has
/// an MTU of its own.
#[track_caller]
fn fits(from: &Netns, own: u32, to: [&str; 2], length: u32) {
    for address in to.map(bare) {
        for (length, answer) in [
            (length, None),
            (length + 1, Some(length)),
            (JUMBO, Some(if own < JUMBO { own } else { length })),
        ] {
            assert_eq!(traffic::ping_whole(from, address, length), answer, "{length} bytes to {address}");
            forget(from);
        }
    }
}

/// A machine forgets what it learned of ways.
fn forget(machine: &Netns) {
    machine.ip("-4 route flush cache");
    machine.ip("-6 route flush cache");
}

/// An address without the length of its prefix.
fn bare(address: &str) -> &str {
    address.split('/').next().unwrap()
}

/// What is too long even for the cable never leaves the machine; only what fits is tried.
#[track_caller]
fn passes(from: &Netns, to: &[&str], length: u32) {
    for address in to.iter().map(|address| bare(address)) {
        assert_eq!(traffic::ping_whole(from, address, length), None, "{length} bytes to {address}");
    }
}

/// Ports that were opened and closed so far, by the log.
fn opened(daemon: &Daemon) -> usize {
    daemon.log().matches("port attached").count() + daemon.log().matches("port detached").count()
}

#[test]
fn ports_mtu_changes_under_traffic_and_nobody_notices() {
    let mut site = Site::start();
    site.guests_talk(1);
    traffic::ping(&site.red.netns, "10.0.0.2", 56, 3);
    let names = ["up", "red", "blue", "v101", "v102"];
    let before = names.map(|name| port_row(&site.here, name));
    let opened_before = [opened(&site.here), opened(&site.there)];
    let ping = Ping::start(&site.blue.netns, "10.0.0.1");
    let far_ping = Ping::start(&site.far.netns, "fd00:1::1");
    let flows = Flows::start(&site.red.netns, &site.far.netns, "10.0.0.2", FLOWS);
    let counted = ["up", "red", "blue"].map(|name| port_count(&site.here, name, "rx-packets"));

    for round in 0..2 {
        // Up.
        site.reload(LARGE);
        assert_eq!((site.interface_mtu("up0"), site.interface_mtu("red")), (JUMBO + 50, JUMBO));
        passes(&site.red.netns, &BLUE, JUMBO);
        passes(&site.blue.netns, &pair::NEAR, JUMBO);
        passes(&site.red.netns, &pair::FAR, JUMBO);
        passes(&site.far.netns, &pair::NEAR, JUMBO);
        site.guests_talk(10 * round + 2);

        // Two MTUs in one VPC, on one host and on two: whoever sends too much is told, by its own port or by that at the end.
        site.reload(Mtus { blue: 1500, far: 4000, ..LARGE });
        fits(&site.red.netns, JUMBO, BLUE, 1500);
        fits(&site.blue.netns, 1500, pair::NEAR, 1500);
        fits(&site.red.netns, JUMBO, pair::FAR, 4000);
        fits(&site.far.netns, 4000, pair::NEAR, 4000);
        fits(&site.far.netns, 4000, BLUE, 1500);
        fits(&site.blue.netns, 1500, pair::FAR, 1500);
        if round == 0 {
            for (server, addresses) in [(&site.blue, BLUE), (&site.far, pair::FAR)] {
                for address in addresses.map(bare) {
                    traffic::transfer_by(&["tcp"], &site.red.netns, &server.netns, address, TCP_BYTES);
                }
            }
        }

        // And down to what it was.
        site.reload(SMALL);
        assert_eq!((site.interface_mtu("up0"), site.interface_mtu("red")), (1600, 1450));
        fits(&site.blue.netns, 1450, pair::NEAR, 1450);
        fits(&site.far.netns, 1450, BLUE, 1450);
        site.guests_talk(10 * round + 3);
    }

    assert_eq!(names.map(|name| port_row(&site.here, name)), before, "the ports are those of before");
    assert_eq!([opened(&site.here), opened(&site.there)], opened_before, "no port was opened or closed");
    for daemon in [&site.here, &site.there] {
        let events = daemon.ctl("show events");
        assert!(!events.contains("port-down") && !events.contains("is down"), "{events}");
    }
    for ping in [ping, far_ping] {
        let (lost, sent) = ping.stop();
        assert_eq!(lost, 0, "of {sent} echoes");
    }
    assert!(flows.stop(FLOWS) > 100);
    for (name, counted) in ["up", "red", "blue"].into_iter().zip(counted) {
        let now = port_count(&site.here, name, "rx-packets");
        assert!(now > counted && counted > 0, "{name} went on counting: {counted}, {now}");
    }
    let drops = site.here.json("show drops");
    assert!(drops.to_string().contains("mtu-exceeded"), "{drops}");
    let Site { here, there, guests, .. } = site;
    drop(guests);
    here.stop();
    there.stop();
}

/// What a port cannot have is refused before anything is touched; where a change fails later, MTUs are as they were.
#[test]
fn ports_mtu_that_cannot_be_had_is_refused_and_all_stays() {
    let lab = Lab::new(Family::V4);
    let red = lab.cabled_tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let blue = lab.cabled_tenant("blue", "red", pair::MACS[1], &BLUE);
    // An interface that takes no more than the one below it has.
    let other = Netns::new("other");
    netns::cable((&lab.host, "base"), (&other, "end"), 1500);
    lab.host.ip("link add link base name bound type macvlan mode bridge");
    lab.host.ip("link set bound mtu 1450 up");
    let on = |tenant: &str, kind: &str, iface: &str, mac: &str, vip: &str, mtu: u32| {
        format!(
            "[[vnic]]\nname = \"{tenant}\"\nvpc = \"red\"\nmac = \"{mac}\"\nvips = [\"{vip}\"]\nmtu = {mtu}\n\
             port = {{ kind = \"{kind}\", iface = \"{iface}\" }}\n"
        )
    };
    let config = |red_mtu: u32, bound: u32, blue_mtu: u32, more: &str| {
        [
            uplink(&lab, 9100),
            lab::vpc("red", pair::VNIS[0], &SUBNETS, ""),
            vnic(&red, red_mtu),
            on("bound", "af-packet", "bound", "02:00:00:00:0a:08", "10.0.0.8", bound),
            on("blue", "af-packet", "blue", &blue.mac, "10.0.0.3", blue_mtu),
            more.to_owned(),
        ]
        .concat()
    };
    let mut daemon = Daemon::start(&lab.host, &config(1450, 1450, 1450, ""));
    traffic::ping(&red.netns, "10.0.0.3", 56, 3);
    daemon.settled();
    let before = standing(&mut daemon, &lab.host);
    let links = || {
        ["red", "blue", "bound", "up0"].map(|iface| {
            let shown = lab.host.ip(&format!("-o link show {iface}"));
            shown.split("mtu ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().to_owned()
        })
    };
    let mtus = links();
    let opened_before = opened(&daemon);
    let ping = Ping::start(&red.netns, "10.0.0.3");
    let missing = "[[port]]\nname = \"missing\"\nport = { kind = \"veth\", iface = \"lo\" }\n";
    for (text, words) in [
        (config(9000, 1501, 1600, ""), ["bound", "set its MTU to 1501"]),
        (config(9000, 1500, 1900, missing), ["lo", "is no veth"]),
    ] {
        daemon.rewrite_config(&text);
        let error = daemon.try_ctl("config reload").unwrap_err();
        for word in words {
            assert!(error.contains(word), "'{word}' is missing: {error}");
        }
        assert_eq!(links(), mtus, "{error}");
        assert_stands(&mut daemon, &lab.host, &before, &error);
    }
    assert_eq!(opened(&daemon), opened_before, "no port was closed for what was refused");
    // What the frames of its rings hold it gets as it runs.
    daemon.rewrite_config(&config(1450, 1500, 1900, ""));
    daemon.ctl("config reload");
    assert_eq!(links(), [&mtus[0], "1900", "1500", &mtus[3]]);
    assert_eq!(opened(&daemon), opened_before);
    let (lost, sent) = ping.stop();
    assert_eq!(lost, 0, "of {sent} echoes");
    // For more it is made anew, and for more than the buffers hold that are there, it is not.
    daemon.rewrite_config(&config(8000, 1500, 8000, ""));
    daemon.ctl("config reload");
    assert_eq!(links(), ["8000", "8000", "1500", &mtus[3]]);
    assert_eq!(opened(&daemon), opened_before + 2);
    for tenant in [&red, &blue] {
        tenant.netns.ip("link set eth0 mtu 8000");
    }
    passes(&red.netns, &BLUE[..1], 8000);
    let opened_before = opened(&daemon);
    daemon.rewrite_config(&config(9000, 1500, 12_500, "").replace("mtu = 9100", "mtu = 20000"));
    let error = daemon.try_ctl("config reload").unwrap_err();
    assert!(error.contains("port blue") && error.contains("packet buffers of 16352 bytes"), "{error}");
    assert_eq!(links(), ["8000", "8000", "1500", &mtus[3]]);
    assert_eq!(opened(&daemon), opened_before);
    passes(&red.netns, &BLUE[..1], 8000);
    daemon.stop();
    assert_eq!(links(), ["1450", "1450", "1450", "1600"], "set back at the end");
}

/// A tap in its container's namespace gets its MTU there, and stays.
#[test]
fn ports_mtu_of_a_tap_follows_it_into_its_container() {
    let lab = Lab::new(Family::V4);
    let red = lab.cabled_tenant("red", "red", pair::MACS[0], &pair::NEAR);
    let tap = lab.tenant("tap", "red", pair::MACS[1], &BLUE);
    let config = |mtu: u32| {
        let tap = tap.vnic().replace("mtu = 1450", &format!("mtu = {mtu}"));
        [uplink(&lab, 9100), lab::vpc("red", pair::VNIS[0], &SUBNETS, ""), vnic(&red, mtu), tap].concat()
    };
    let mut daemon = Daemon::start(&lab.host, &config(1450));
    tap.plug(&lab.host);
    red.netns.ip("link set eth0 mtu 8000");
    traffic::ping(&red.netns, "10.0.0.3", 56, 3);
    daemon.settled();
    let before = (port_row(&daemon, "tap"), opened(&daemon));
    let ping = Ping::start(&tap.netns, "10.0.0.1");
    for mtu in [8000, 1450, 3000] {
        daemon.rewrite_config(&config(mtu));
        daemon.ctl("config reload");
        let shown = tap.netns.ip("-o link show eth0");
        assert!(shown.contains(&format!("mtu {mtu} ")), "{shown}");
        forget(&red.netns);
        forget(&tap.netns);
        passes(&tap.netns, &pair::NEAR, mtu);
        passes(&red.netns, &BLUE, mtu);
    }
    assert_eq!((port_row(&daemon, "tap"), opened(&daemon)), before);
    let (lost, sent) = ping.stop();
    assert_eq!(lost, 0, "of {sent} echoes");
    daemon.stop();
}
