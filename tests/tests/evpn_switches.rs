//! Two hosts with a switch and a gobgpd each, over an underlay of IPv6 or IPv4: all that one knows of the other came by BGP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use serde_json::Value;
use tests::bgp::{GRPC, Gobgpd};
use tests::lab::{Lab, Tenant, UNDERLAY_MTU, vpc};
use tests::netns::cable;
use tests::{Daemon, Family, pair, traffic, wait_for};

const PATIENCE: Duration = Duration::from_secs(20);
const BGP: [&str; 2] = ["192.168.255.1", "192.168.255.2"];
const VNI: u32 = pair::VNIS[0];
/// An address that nobody announces.
const UNKNOWN: &str = "10.0.0.50";

struct Hosts {
    daemons: [Daemon; 2],
    gobgpds: [Gobgpd; 2],
    tenants: [Tenant; 2],
    lab: Lab,
}

fn port(name: &str) -> String {
    format!("{{ kind = \"veth\", iface = \"{name}\" }}")
}

impl Hosts {
    /// `far` is the second tenant's section, made of its usual one.
    #[track_caller]
    fn start(family: Family, network: &str, far: impl Fn(String) -> String) -> Hosts {
        let lab = Lab::new(family);
        lab.peer.ip("addr flush dev up0");
        cable((&lab.host, "bgp0"), (&lab.peer, "bgp0"), 1500);
        for (netns, address) in [(&lab.host, BGP[0]), (&lab.peer, BGP[1])] {
            netns.ip(&format!("addr add {address}/24 dev bgp0"));
        }
        let near = lab.cabled_tenant("near", "red", pair::MACS[0], &pair::NEAR);
        let there = lab.reversed().cabled_tenant("far", "red", pair::MACS[2], &pair::FAR);
        let gobgpds = [
            Gobgpd::start(&lab.host, "192.0.2.1", &[BGP[1]]),
            Gobgpd::start(&lab.peer, "192.0.2.2", &[BGP[0]]),
        ];
        let config = |vtep: &str, vnic: String| {
            let prefix = family.prefix_len();
            [
                format!("[control]\nevpn = {{ gobgpd = \"{GRPC}\" }}\n"),
                format!(
                    "[[uplink]]\nname = \"up\"\nport = {}\naddresses = [\"{vtep}/{prefix}\"]\nmtu = {UNDERLAY_MTU}\n",
                    port("up0")
                ),
                vpc("red", VNI, &["10.0.0.0/24", "fd00:1::/64"], network),
                vnic,
            ]
            .concat()
        };
        let daemons = [
            Daemon::start_alone(&lab.host, &config(family.local_vtep(), near.vnic_on(&port("near")))),
            Daemon::start_alone(&lab.peer, &config(family.remote_vtep(), far(there.vnic_on(&port("far"))))),
        ];
        Hosts { daemons, gobgpds, tenants: [near, there], lab }
    }

    /// Where a host says that an address, or a MAC address without one, is.
    fn place(&self, host: usize, is: impl Fn(&Value) -> bool) -> Value {
        self.row(host, is)["where"].clone()
    }

    fn row(&self, host: usize, is: impl Fn(&Value) -> bool) -> Value {
        let shown = self.daemons[host].json("show vlt");
        let mut rows = shown["locations"].as_array().into_iter().flatten();
        rows.find(|row| is(row)).cloned().unwrap_or_default()
    }

    #[track_caller]
    fn await_address(&self, host: usize, ip: &str, place: &str) {
        wait_for(&format!("{ip} to be at {place}"), PATIENCE, || {
            let row = self.row(host, |row| row["vip"] == ip);
            let is_there = row["where"] == place && row["state"] == "resolved";
            (if place.is_empty() { row.is_null() } else { is_there }).then_some(())
        });
    }

    #[track_caller]
    fn stop(mut self) {
        self.daemons.iter_mut().for_each(Daemon::settled);
        let [near, far] = self.daemons;
        far.stop();
        near.stop();
        drop(self.gobgpds);
    }
}

fn learn(family: Family) {
    let hosts = Hosts::start(family, "", |vnic| vnic);
    let (here, there) = (format!("vtep {}", family.local_vtep()), format!("vtep {}", family.remote_vtep()));
    for (host, addresses, place) in [(0, pair::FAR, &there), (1, pair::NEAR, &here)] {
        for address in addresses {
            hosts.await_address(host, address.split('/').next().unwrap(), place);
        }
    }
    for inner in [Family::V4, Family::V6] {
        let [near, far] = pair::addresses(inner);
        for size in [56, 1400] {
            traffic::ping(&hosts.tenants[0].netns, far, size, 5);
            traffic::ping(&hosts.tenants[1].netns, near, size, 5);
        }
    }
    for daemon in &hosts.daemons {
        let shown = daemon.json("show evpn");
        assert_eq!(
            shown["announced"],
            serde_json::json!({ "stations": 2, "floods": 1, "prefixes": 0 }),
            "{shown}"
        );
        assert_eq!(shown["heard"], shown["announced"], "{shown}");
        assert_eq!(daemon.counters().get("fwd.copies"), 0, "nothing was flooded");
    }
    // A vNIC that changes its host, by commands on the two alone.
    hosts.daemons[1].ctl("vnic del far");
    hosts.await_address(0, "10.0.0.2", "");
    hosts.stop();
}

#[test]
fn evpn_switches_learn_from_each_other_over_ipv6() {
    learn(Family::V6);
}

#[test]
fn evpn_switches_learn_from_each_other_over_ipv4() {
    learn(Family::V4);
}

/// A vNIC without addresses is announced by its MAC address: what is for it goes there and is not flooded, and what is for everybody
/// goes to who takes part in the network.
#[test]
fn evpn_switches_know_stations_by_their_mac_addresses_alone() {
    let family = Family::V6;
    let hosts = Hosts::start(family, "flood = true", |vnic| {
        let vips = vnic.lines().find(|line| line.starts_with("vips")).unwrap().to_owned();
        vnic.replace(&vips, "vips = []\nguard = \"off\"")
    });
    let there = format!("vtep {}", family.remote_vtep());
    wait_for("the station to be known", PATIENCE, || {
        let place = hosts.place(0, |row| row["vip"] == "" && row["mac"] == pair::MACS[2]);
        (place == there).then_some(())
    });
    // Somebody else to flood to: the last place of a list gets the packet itself, which is no copy.
    let other = hosts.lab.cabled_tenant("other", "red", pair::MACS[1], &["10.0.0.9/24"]);
    hosts.daemons[0].ctl(&format!(
        "vnic add other vpc red mac {} vips 10.0.0.9 mtu 1450 port veth iface=other",
        other.mac
    ));
    hosts.tenants[1].netns.ip(&format!("addr add {UNKNOWN}/24 dev eth0"));
    traffic::ping(&hosts.tenants[0].netns, UNKNOWN, 100, 1);
    // It knows the MAC address now, and asks no more.
    hosts.tenants[0]
        .netns
        .ip(&format!("neigh replace {UNKNOWN} lladdr {} dev eth0 nud permanent", pair::MACS[2]));
    let before = hosts.daemons[0].counters().get("fwd.copies");
    assert!(before > 0, "the question was flooded");
    traffic::ping(&hosts.tenants[0].netns, UNKNOWN, 100, 50);
    assert_eq!(hosts.daemons[0].counters().get("fwd.copies"), before, "nothing else was");
    // Its vNIC goes, and the network with it: nobody is there to flood to.
    hosts.daemons[1].ctl("vnic del far");
    wait_for("the station to be forgotten", PATIENCE, || {
        let known = hosts.place(0, |row| row["mac"] == pair::MACS[2]);
        let heard = &hosts.daemons[0].json("show evpn")["heard"];
        (known.is_null() && heard["floods"] == 0).then_some(())
    });
    let before = hosts.daemons[0].counters().get("fwd.copies");
    traffic::no_ping(&hosts.tenants[0].netns, UNKNOWN);
    assert_eq!(hosts.daemons[0].counters().get("fwd.copies"), before);
    drop(other);
    hosts.stop();
}
