//! A whole Debian machine, with nothing set up but an interface that takes its addresses from the network, comes up by its stock
//! client from what the switch tells it, renews its leases, and keeps its addresses when the switch is killed and started again.
//!
//! ```text
//!  Debian (systemd, networkd or ifupdown) ──vhost-user── vswitch ──veth── other
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::path::Path;
use std::time::Duration;

use tests::guest::debian::{Client, Debian, Wanted};
use tests::guest::{self, site};
use tests::lab::{Lab, TENANT_MTU, vpc};
use tests::{Daemon, Family, Workdir, pair, wait_for};

const ADDRESSES: [&str; 2] = ["10.0.0.1/24", "fd00:1::1/128"];
const OTHER: [&str; 2] = ["10.0.0.2", "fd00:1::2"];
const ROUTERS: [&str; 2] = ["10.0.0.254", "fe80::5eff:fe00:64"];
const NAME_SERVERS: [&str; 2] = ["10.0.0.53", "fd00:1::35"];
/// Its client renews a lease at half of it. A machine that was kept from its processor for the other half starts anew.
const LEASE: u32 = 40;
const RENEWAL: Duration = Duration::from_secs(120);
const ECHO: u16 = 7;
const LIMIT: Duration = Duration::from_secs(30);

fn network() -> String {
    let [dns4, dns6] = NAME_SERVERS;
    vpc("red", pair::VNIS[0], &[], "")
        + &format!(
            "[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\ngateway = \"{}\"\n\
             dhcp = {{ lease = \"{LEASE}s\", dns = [\"{dns4}\"], domain = \"red.example\" }}\n\
             [[subnet]]\nvpc = \"red\"\nprefix = \"fd00:1::/64\"\n\
             dhcp = {{ lease = \"{LEASE}s\", dns = [\"{dns6}\"], domain = \"red.example\" }}\nra = {{}}\n",
            ROUTERS[0]
        )
}

fn vnic(socket: &Path) -> String {
    let vips = ADDRESSES.map(|address| address.split('/').next().unwrap_or("").to_owned());
    format!(
        "[[vnic]]\nname = \"debian\"\nvpc = \"red\"\nmac = \"{}\"\nvips = {vips:?}\nmtu = {TENANT_MTU}\n\
         port = {{ kind = \"vhost-user\", path = \"{}\" }}\n",
        pair::MACS[0],
        socket.display()
    )
}

fn count(daemon: &Daemon, name: &str) -> i64 {
    daemon.figure("show services debian", &format!("/0/{name}"))
}

/// Both leases are renewed, and the switch says so.
#[track_caller]
fn renews(machine: &Debian, daemon: &Daemon) {
    let before = count(daemon, "given");
    for address in ADDRESSES {
        machine.renews(address, RENEWAL);
    }
    assert!(count(daemon, "given") >= before + 2, "{}", daemon.ctl("show services debian"));
}

#[track_caller]
fn comes_up_renews_and_outlives_the_switch(client: Client) {
    if !guest::can_run() {
        return;
    }
    let say = tests::steps();
    let (lab, dir) = (Lab::new(Family::V4), Workdir::new("debian"));
    let socket = dir.path().join("debian.sock");
    let other = lab.cabled_tenant("other", "red", pair::MACS[1], &["10.0.0.2/24", "fd00:1::2/64"]);
    let port = "{ kind = \"veth\", iface = \"other\" }";
    let config = [lab.uplink(""), network(), vnic(&socket), other.vnic_on(port)].concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    let listen = format!("TCP6-LISTEN:{ECHO},ipv6only=0,reuseaddr,fork");
    let _echo = other.netns.spawn("echo", &["socat", &listen, "EXEC:/bin/cat"], &dir);
    wait_for("the echo to listen", LIMIT, || {
        other.netns.run(&["ss", "-ltnH"]).contains(&format!(":{ECHO} ")).then_some(())
    });

    let machine = Debian::boot(client, pair::MACS[0], &socket);
    say("the machine is there");
    for (address, router) in ADDRESSES.into_iter().zip(ROUTERS) {
        machine.comes_up(Wanted { address, router });
    }
    say("its addresses and routes came up");
    let routes = machine.guest.run("ip -4 route; ip -6 route");
    for prefix in ["10.0.0.0/24 dev eth0", "fd00:1::/64 dev eth0"] {
        assert!(routes.contains(prefix), "{prefix} is on the link: {routes}");
    }
    let told = machine.told();
    let host_name = match client {
        Client::Networkd => "HOSTNAME=debian",
        Client::Ifupdown => "option host-name \"debian\"",
    };
    for text in NAME_SERVERS.into_iter().chain([host_name, "red.example"]) {
        assert!(told.contains(text), "no {text}: {told}");
    }
    // networkd takes no MTU from DHCP unless it is told to, and leaves the interface at what it was.
    let link = match client {
        Client::Networkd => 1500,
        Client::Ifupdown => TENANT_MTU,
    };
    assert_eq!((machine.link_mtu(), machine.advertised_mtu()), (link, TENANT_MTU));
    if client == Client::Ifupdown {
        // networkd asks systemd-hostnamed, which asks polkit, which a server need not have.
        assert_eq!(machine.guest.run("hostname").trim(), "debian");
    }
    for address in OTHER {
        machine.talks_to(address, ECHO, 300_000);
    }
    say("it talks over IPv4 and IPv6");
    renews(&machine, &daemon);
    say("its leases were renewed");
    assert_eq!((count(&daemon, "refused"), count(&daemon, "declined")), (0, 0));
    assert!(count(&daemon, "advertised") >= 1);
    site::assert_no_drops_but(&daemon, &[]);

    let process = daemon.process();
    process.signal("KILL");
    process.wait(Duration::from_secs(10));
    daemon.restart(&lab.host);
    say("the switch was killed and answers again");
    renews(&machine, &daemon);
    say("its leases were renewed");
    for (address, router) in ADDRESSES.into_iter().zip(ROUTERS) {
        machine.comes_up(Wanted { address, router });
    }
    assert_eq!((count(&daemon, "refused"), count(&daemon, "declined")), (0, 0));
    for address in OTHER {
        machine.talks_to(address, ECHO, 300_000);
    }
    site::assert_no_drops_but(&daemon, &[]);
    machine.guest.off();
    daemon.stop();
}

#[test]
#[ignore = "takes minutes: scripts/test --full"]
fn services_debian_guest_by_networkd() {
    comes_up_renews_and_outlives_the_switch(Client::Networkd);
}

#[test]
#[ignore = "takes minutes: scripts/test --full"]
fn services_debian_guest_by_ifupdown() {
    comes_up_renews_and_outlives_the_switch(Client::Ifupdown);
}
