//! A host with the switch and gobgpd, and one with FRR, a bridge and a vxlan device of the kernel.

use std::time::Duration;

use serde_json::Value;
use tests::api::Api;
use tests::bgp::{Frr, GRPC, Gobgpd, fdb};
use tests::lab::{Lab, TENANT_MTU, Tenant, UNDERLAY_MTU, vpc};
use tests::netns::cable;
use tests::{Daemon, Family, Netns, pair, traffic, wait_for};
use vswitch_api::v1::{Kind, Owner};

pub const PATIENCE: Duration = Duration::from_secs(20);
/// The ends of the BGP session, beside the underlay.
pub const BGP: [&str; 2] = ["192.168.255.1", "192.168.255.2"];
pub const VTEPS: [&str; 2] = ["172.16.0.1", "172.16.0.2"];
/// The station's, the near tenant's.
pub const STATION: &str = "10.0.0.2";
pub const NEAR: &str = "10.0.0.1";
/// The network of both, and one for prefixes.
pub const VNI: u32 = pair::VNIS[0];

pub struct Site {
    pub daemon: Daemon,
    pub gobgpd: Gobgpd,
    pub frr: Frr,
    pub near: Tenant,
    pub station: Netns,
    pub lab: Lab,
}

/// The config of the switch; `more` are further sections.
pub fn config(near: &Tenant, evpn: &str, network: &str, more: &str) -> String {
    let uplink = format!(
        "[[uplink]]\nname = \"up\"\nport = {{ kind = \"veth\", iface = \"up0\" }}\naddresses = [\"{}/24\"]\nmtu = {UNDERLAY_MTU}\n",
        VTEPS[0]
    );
    let control = format!("[control]\nevpn = {{ gobgpd = \"{GRPC}\"{evpn} }}\n");
    let near = near.vnic_on("{ kind = \"veth\", iface = \"near\" }");
    [control, uplink, vpc("red", VNI, &["10.0.0.0/24"], network), near, more.to_owned()].concat()
}

/// The cable of the BGP session: the switch has the underlay for itself.
#[track_caller]
pub fn lay_bgp(lab: &Lab) {
    cable((&lab.host, "bgp0"), (&lab.peer, "bgp0"), 1500);
    for (netns, address) in [(&lab.host, BGP[0]), (&lab.peer, BGP[1])] {
        netns.ip(&format!("addr add {address}/24 dev bgp0"));
    }
}

/// A bridge with a vxlan device, as FRR wants it.
#[track_caller]
pub fn lay_network(lab: &Lab, vni: u32) {
    let (peer, vtep) = (&lab.peer, VTEPS[1]);
    peer.ip(&format!("link add br{vni} mtu {TENANT_MTU} type bridge mcast_snooping 0"));
    peer.ip(&format!(
        "link add vx{vni} mtu {TENANT_MTU} type vxlan id {vni} dstport 4789 local {vtep} nolearning"
    ));
    peer.ip(&format!("link set vx{vni} master br{vni} addrgenmode none"));
    peer.run(&[
        "bridge",
        "link",
        "set",
        "dev",
        &format!("vx{vni}"),
        "neigh_suppress",
        "on",
        "learning",
        "off",
    ]);
    peer.ip(&format!("link set br{vni} up"));
    peer.ip(&format!("link set vx{vni} up"));
}

/// A station on the bridge of a network.
#[track_caller]
pub fn station(lab: &Lab, name: &str, mac: &str, address: &str) -> Netns {
    let station = Netns::new(name);
    cable((&station, "eth0"), (&lab.peer, name), TENANT_MTU);
    station.ip(&format!("link set eth0 address {mac}"));
    station.ip(&format!("addr add {address}/24 dev eth0"));
    lab.peer.ip(&format!("link set {name} master br{VNI}"));
    station
}

/// What a scenario has besides.
#[derive(Default)]
pub struct Besides<'a> {
    /// Further keys of `[control] evpn`, with a comma in front.
    pub evpn: &'a str,
    /// Further lines of the VPC.
    pub network: &'a str,
    /// Further sections of the switch's config.
    pub sections: &'a str,
    /// Lines of zebra's config; further ones of bgpd's, below its family and below `router bgp`.
    pub zebra: &'a str,
    pub family: &'a str,
    pub bgp: &'a str,
}

impl Site {
    /// The network alone.
    #[track_caller]
    pub fn start() -> Site {
        let lab = Lab::new(Family::V4);
        Self::start_in(lab, &Besides::default())
    }

    #[track_caller]
    pub fn start_in(lab: Lab, besides: &Besides<'_>) -> Site {
        lay_bgp(&lab);
        lay_network(&lab, VNI);
        // The bridge is a station, too: who speaks to it is known with its IP address.
        lab.peer.ip(&format!("addr add 10.0.0.102/24 dev br{VNI}"));
        lab.peer.sysctl(&[&format!("net.ipv4.conf.br{VNI}.arp_accept=1")]);
        let station = station(&lab, "far", pair::MACS[2], STATION);
        let near = lab.cabled_tenant("near", "red", pair::MACS[0], &["10.0.0.1/24"]);
        let gobgpd = Gobgpd::start(&lab.host, VTEPS[0], &[BGP[1]]);
        let frr = Frr::start(&lab.peer, VTEPS[1], BGP[0], besides.zebra, besides.family, besides.bgp);
        let text = config(&near, besides.evpn, besides.network, besides.sections);
        let daemon = Daemon::start_alone(&lab.host, &text);
        let site = Site { daemon, gobgpd, frr, near, station, lab };
        site.await_peer();
        site
    }

    /// The station says a word, so that its host knows where it is, and asks first, so that it is known with its IP address.
    #[track_caller]
    pub fn speak(&self) {
        self.station.ip("neigh flush dev eth0");
        traffic::ping(&self.station, "10.0.0.102", 56, 1);
    }

    pub fn evpn(&self) -> Value {
        self.daemon.json("show evpn")
    }

    #[track_caller]
    pub fn await_peer(&self) {
        wait_for("the session with FRR", PATIENCE, || {
            let shown = self.evpn();
            (shown["connected"] == true && shown["peers"][0]["state"] == "established").then_some(())
        });
    }

    /// Where the switch says that an address is; null when it does not know.
    pub fn place(&self, ip: &str) -> Value {
        self.row(ip)["where"].clone()
    }

    fn row(&self, ip: &str) -> Value {
        let shown = self.daemon.json("show vlt");
        let mut rows = shown["locations"].as_array().into_iter().flatten();
        rows.find(|row| row["vip"] == ip && row["vni"] == VNI).cloned().unwrap_or_default()
    }

    #[track_caller]
    pub fn await_place(&self, ip: &str, place: &str) {
        wait_for(&format!("{ip} to be at {place:?}"), PATIENCE, || {
            let row = self.row(ip);
            let known = &row["where"];
            // The other host answers for itself; those that are made up do not.
            let is_resolved = !place.ends_with(VTEPS[1]) || row["state"] == "resolved";
            (if place.is_empty() { known.is_null() } else { known == place && is_resolved }).then_some(())
        });
    }

    /// The kernel's entry for a MAC address behind the switch, as FRR makes it.
    #[track_caller]
    pub fn await_fdb(&self, mac: &str, there: bool) {
        let entry = format!("{mac} dst {}", VTEPS[0]);
        let device = format!("vx{VNI}");
        wait_for(&format!("the kernel to have {mac}: {there}"), PATIENCE, || {
            let known = fdb(&self.lab.peer, &device);
            let has = known.lines().any(|line| line.starts_with(&entry) && line.contains("extern_learn"));
            (has == there).then_some(())
        });
    }

    /// The sequence number with which gobgpd knows a MAC address behind a tunnel end point; none where it does not.
    #[track_caller]
    pub fn sequence(&self, mac: &str, vtep: &str) -> Option<u32> {
        let text = self.gobgpd.gobgp(&["global", "rib", "-a", "evpn", "-j"]);
        let rib: Value = serde_json::from_str(&text).unwrap_or_default();
        let paths = rib.as_object()?.values().filter_map(Value::as_array).flatten();
        let of_mac = paths.filter(|path| path["nlri"]["value"]["mac"] == mac);
        let numbers = of_mac.filter_map(|path| {
            let attributes = path["attrs"].as_array()?;
            let hop = attributes.iter().find_map(|attribute| attribute["nexthop"].as_str())?;
            let is_own = hop == vtep || (vtep == VTEPS[0] && path["neighbor-ip"].is_null());
            if !is_own {
                return None;
            }
            let communities = attributes.iter().filter(|attribute| attribute["type"] == 16);
            let mut communities = communities.filter_map(|of| of["value"].as_array()).flatten();
            let sequence = communities.find_map(|community| community["sequence"].as_u64());
            Some(u32::try_from(sequence.unwrap_or(0)).unwrap_or(u32::MAX))
        });
        numbers.max()
    }

    /// Who made the location of an address.
    #[track_caller]
    pub fn owner(&self, ip: &str) -> Owner {
        let mut api = Api::connect(self.daemon.socket());
        let entry =
            api.get(Kind::Location, &format!("{VNI} {ip}")).unwrap_or_else(|status| panic!("{status}"));
        entry.status.unwrap_or_default().owner()
    }

    #[track_caller]
    pub fn stop(mut self) {
        self.daemon.settled();
        self.daemon.stop();
    }
}
