//! What the NFT says is what the slow path would say now: for any configuration, any changes and any packets.
//!
//! A long-lived overlay forwards packets while its configuration changes. For each packet a fresh overlay, which
//! has never seen anything, forwards the same packet by the present configuration: the same bytes must leave by the
//! same ports, and the same drops be counted. Changes follow the rules in [`pipelines::snapshot`] and no others.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests, too

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use pipelines::Now;
use pipelines::decide::decide_from;
use pipelines::drops::DropReason;
use pipelines::flow_key::Scope;
use pipelines::nft::NONE;
use pipelines::snapshot::*;
use pipelines::vlt::Place;
use pipelines::vtep::router_mac;
use proptest::prelude::*;
use testkit::*;
use wire::build::Path;
use wire::{HeapBuf, MacAddr, Vni};

/// Stations by number; the last two are where nobody is until a change says so.
const STATIONS: usize = 7;
/// An address of the uplink that comes and goes.
const SECOND_VTEP: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 77);

fn station(n: usize) -> Station {
    let known = [A, B, C, R, S];
    known.get(n).copied().unwrap_or(Station {
        mac: MacAddr([2, 0, 0, 0, 1, 0x50 + n as u8]),
        v4: Ipv4Addr::new(10, 0, (n % 2) as u8, 0x50 + n as u8),
        v6: format!("fd00:{}::{n}", 1 + n % 2).parse().unwrap(),
        host: 3,
    })
}

#[derive(Clone, Debug)]
enum Step {
    Packet {
        from: usize,
        to: usize,
        kind: u8,
        sport: u16,
        tunnel: bool,
        ttl: u8,
        tos: u8,
    },
    /// A station's location appears (remote host), or moves there in place.
    Place {
        vpc: u32,
        station: usize,
        host: u8,
    },
    /// Moves to a vNIC of this host, in place.
    Bring {
        vpc: u32,
        station: usize,
    },
    Remove {
        vpc: u32,
        station: usize,
    },
    /// The MAC behind an address changes: new slots, old ones freed.
    NewMac {
        vpc: u32,
        station: usize,
        last: u8,
    },
    AddVnic {
        vpc: u32,
        station: usize,
    },
    RemoveVnic {
        index: usize,
    },
    Flood {
        vpc: u32,
        on: bool,
    },
    Route {
        vpc: u32,
        kind: u8,
    },
    Router {
        vpc: u32,
        last: u8,
    },
    Subnet {
        vpc: u32,
        wide: bool,
    },
    KeepVlan {
        vpc: u32,
        on: bool,
    },
    /// A second VTEP address, and with it a second MAC address of this host's routers.
    Vtep {
        on: bool,
    },
    Settings {
        ecn: u8,
        mtu: u16,
    },
    Time {
        ms: u32,
    },
}

struct Lab {
    world: World,
    /// vNIC indices that may be used again.
    free: Vec<usize>,
}

impl Lab {
    fn new(underlay: Underlay, entries: u32) -> Self {
        let mut world = lab(1, underlay);
        world.worker = TestWorker::new(entries, world.shared.clone(), 0);
        let blue = world.add_vpc(200);
        world.add_vnic(blue, A, None);
        world.add_vnic(blue, S, None);
        Self { world, free: Vec::new() }
    }

    fn destinations(station: Station) -> [Destination; 3] {
        [
            Destination::Mac(station.mac),
            Destination::Ip(station.v4.into()),
            Destination::Ip(station.v6.into()),
        ]
    }

    /// A location moves in place, or comes.
    fn put(&mut self, vpc: u32, station: Station, place: Place) {
        for destination in Self::destinations(station) {
            match self.world.snapshot.locations.get(&(vpc, destination)).copied() {
                Some(location) => self.world.writer.update(location.slot.slot, place),
                None => drop(self.world.locate(vpc, destination, station.mac, place)),
            }
        }
    }

    fn remove(&mut self, vpc: u32, station: Station) {
        for destination in Self::destinations(station) {
            self.world.forget(vpc, destination);
        }
    }

    fn vnic_of(&self, vpc: u32, mac: MacAddr) -> Option<u32> {
        self.world
            .snapshot
            .vnics
            .iter()
            .flatten()
            .find(|vnic| vnic.vpc == vpc && vnic.mac == mac)
            .map(|vnic| vnic.index)
    }

    fn change(&mut self, step: &Step) {
        match *step {
            Step::Packet { .. } => {}
            Step::Place { vpc, station: n, host } => {
                let place = self.world.tunnel(vpc, host);
                self.put(vpc, station(n), place);
            }
            Step::Bring { vpc, station: n } => {
                if let Some(vnic) = self.vnic_of(vpc, station(n).mac) {
                    self.put(vpc, station(n), Place::Local { vnic });
                }
            }
            Step::Remove { vpc, station: n } => self.remove(vpc, station(n)),
            Step::NewMac { vpc, station: n, last } => {
                let mac = MacAddr([2, 0, 0, 0, 3, last]);
                for destination in &Self::destinations(station(n))[1..] {
                    let Some(old) = self.world.snapshot.locations.get(&(vpc, *destination)).copied() else {
                        continue;
                    };
                    let place = self.world.snapshot.vlt.read(old.slot.slot).place;
                    self.world.forget(vpc, *destination);
                    self.world.locate(vpc, *destination, mac, place);
                }
            }
            Step::AddVnic { vpc, station: n } => self.add_vnic(vpc, station(n)),
            Step::RemoveVnic { index } => self.remove_vnic(index),
            Step::Flood { vpc, on } => {
                let row = self.world.vpc(vpc);
                row.flood = on;
                self.world.snapshot.touch_vpc(vpc);
            }
            Step::Route { vpc, kind } => self.route(vpc, kind),
            Step::Router { vpc, last } => {
                let mac = MacAddr([2, 0, 0, 0, 0xff, last]);
                self.world.vpc(vpc).router_mac = mac;
                let rows = self.world.snapshot.vnic_rows.iter_mut().filter(|row| row.vpc == vpc);
                rows.for_each(|row| row.router_mac = mac.to_u64());
                self.world.snapshot.touch_vpc(vpc);
                // Packets that other VPCs route here leave with this router's MAC.
                self.touch_peers(vpc);
            }
            Step::Subnet { vpc, wide } => {
                let gateway = Some(ip(if wide { "10.0.0.253" } else { "10.0.0.254" }));
                let prefix = Prefix::new(ip("10.0.0.0"), if wide { 16 } else { 24 });
                self.subnet(vpc, 0, Subnet { prefix, gateway, services: Services::NONE });
            }
            Step::KeepVlan { vpc, on } => {
                self.world.vpc(vpc).keep_vlan = on;
                let rows = self.world.snapshot.vnic_rows.iter_mut().filter(|row| row.vpc == vpc);
                rows.for_each(|row| row.keep_vlan = u8::from(on));
                self.world.snapshot.touch_vpc(vpc);
            }
            Step::Vtep { on } => {
                let v4 = &mut self.world.uplink().v4;
                v4.retain(|address| *address != SECOND_VTEP);
                if on {
                    v4.push(SECOND_VTEP);
                }
                (0..2).for_each(|vpc| self.world.snapshot.touch_vpc(vpc));
            }
            Step::Settings { ecn, mtu } => {
                use pipelines::ecn::EcnEncap::*;
                self.world.snapshot.settings.ecn_encap =
                    [Rfc6040, Rfc3168, Rfc6040Compat][usize::from(ecn % 3)];
                self.world.uplink().mtu = mtu;
            }
            Step::Time { ms } => self.world.now = Now::from_ns(self.world.now.ns + u64::from(ms) * 1_000_000),
        }
    }

    fn add_vnic(&mut self, vpc: u32, station: Station) {
        if self.vnic_of(vpc, station.mac).is_some() || self.world.snapshot.ports.len() > 40 {
            return;
        }
        self.remove(vpc, station);
        let Some(index) = self.free.pop() else {
            let (index, _) = self.world.add_vnic(vpc, station, None);
            self.world.snapshot.vnic_rows[index as usize].router_mac =
                self.world.vpc(vpc).router_mac.to_u64();
            return;
        };
        // An index that is used again keeps its port. What it meant before became stale when the vNIC went.
        let old = self.world.snapshot.vnic_rows[index];
        let cell = self.world.snapshot.cells.len() as u32;
        let (name, index32) = (format!("again{index}"), index as u32);
        let vips: Vec<IpAddr> = vec![station.v4.into(), station.v6.into()];
        let vnic = Vnic {
            name,
            index: index32,
            vpc,
            mac: station.mac,
            vips,
            learns: false,
            allowed: Vec::new(),
            guarded: true,
            mtu: 1500,
            port: old.port,
            vlan: None,
            group_set: 0,
            cell,
        };
        let (router_mac, keep_vlan) =
            (self.world.vpc(vpc).router_mac.to_u64(), u8::from(self.world.vpc(vpc).keep_vlan));
        let (v4, v6) = (u32::from(station.v4), u128::from(station.v6));
        let mac = station.mac.to_u64();
        self.world.snapshot.vnic_rows[index] =
            VnicRow { vpc, mac, router_mac, v4, v6, keep_vlan, mtu: 1500, ..old };
        self.world.snapshot.vnics[index] = Some(Arc::new(vnic));
        self.world.snapshot.index_local_macs();
        self.world.snapshot.bump(cell);
        self.world.vpc(vpc).vnics.push(index32);
        self.world.locate_station(vpc, station, Place::Local { vnic: index32 });
    }

    fn remove_vnic(&mut self, index: usize) {
        let Some(vnic) = self.world.snapshot.vnics.get(index).cloned().flatten() else { return };
        let port = vnic.port;
        self.world.vpc(vnic.vpc).vnics.retain(|&other| other as usize != index);
        self.world.snapshot.vnics[index] = None;
        self.world.snapshot.index_local_macs();
        self.world.snapshot.bump(vnic.cell);
        self.world.snapshot.touch_vpc(vnic.vpc);
        self.world.snapshot.vnic_rows[index] = VnicRow { port, ..VnicRow::FREE };
        // Locations that say it is here go; one that moved away stays.
        let vlt = self.world.snapshot.vlt.clone();
        let here = Place::Local { vnic: index as u32 };
        let gone: Vec<_> = self
            .world
            .snapshot
            .locations
            .iter()
            .filter(|(_, location)| vlt.read(location.slot.slot).place == here)
            .map(|(key, _)| *key)
            .collect();
        gone.into_iter().for_each(|(vpc, destination)| self.world.forget(vpc, destination));
        self.free.push(index);
    }

    fn route(&mut self, vpc: u32, kind: u8) {
        let everything = Prefix::new(ip("0.0.0.0"), 0);
        let longer = Prefix::new(ip("10.0.1.0"), 25);
        let routes = match kind {
            0 => Vec::new(),
            1 => vec![(everything, RouteTarget::Peer(1 - vpc))],
            2 => vec![(longer, RouteTarget::Blackhole), (everything, self.world.gateways(vpc, &[2, 3]))],
            // To stations that come, go, move, and send to there themselves.
            5 | 6 => {
                let one = RouteTarget::Station(station(usize::from(kind) - 5).mac);
                vec![(longer, one), (everything, RouteTarget::Station(station(3).mac))]
            }
            n => {
                let gateway = self.world.gateways(vpc, &[n]);
                vec![(longer, gateway.clone()), (everything, gateway)]
            }
        };
        self.world.vpc(vpc).set_routes(routes);
        // Half of the subnets out of the way, so that routes matter.
        let prefix = Prefix::new(ip(if kind == 0 { "10.0.1.0" } else { "10.7.1.0" }), 24);
        self.subnet(vpc, 1, Subnet { prefix, gateway: Some(ip("10.0.1.254")), services: Services::NONE });
    }

    fn subnet(&mut self, vpc: u32, at: usize, subnet: Subnet) {
        let mut subnets = self.world.vpc(vpc).subnets().to_vec();
        subnets[at] = subnet;
        self.world.vpc(vpc).set_subnets(subnets);
        self.world.snapshot.touch_vpc(vpc);
        // Whom this one hears of what other VPCs route here follows from its own routes.
        self.touch_peers(vpc);
    }

    /// To be called when what other VPCs decide of packets that they route here may be otherwise.
    fn touch_peers(&mut self, vpc: u32) {
        let vpcs = self.world.snapshot.vpcs.iter().flatten();
        let peers = vpcs.filter_map(|other| other.leads_to(vpc).then_some(other.index));
        let peers: Vec<u32> = peers.collect();
        peers.into_iter().for_each(|peer| self.world.snapshot.touch_vpc(peer));
    }

    fn frame(&self, step: &Step) -> Option<(PortIndex, Vec<u8>)> {
        let Step::Packet { from, to, kind, sport, tunnel, ttl, tos } = *step else { return None };
        // The packet comes from a vNIC that exists, or out of the tunnel of some VPC.
        let vnics: Vec<_> = self.world.snapshot.vnics.iter().flatten().collect();
        let vnic = if vnics.is_empty() { None } else { Some(vnics[from % vnics.len()]) };
        let tunnel = tunnel || vnic.is_none();
        let mut source = station(from % STATIONS);
        let mut vpc = (from % 2) as u32;
        if let Some(vnic) = vnic.filter(|_| !tunnel) {
            vpc = vnic.vpc;
            source.mac = vnic.mac;
            source.v4 = Ipv4Addr::from(self.world.snapshot.vnic_rows[vnic.index as usize].v4);
            source.v6 = self.world.snapshot.vnic_rows[vnic.index as usize].v6.into();
        }
        let target = station(to);
        let router = self.world.snapshot.vpc(vpc)?.router_mac;
        let mut path: Path = if kind & 1 == 0 { v4(source, target) } else { v6(source, target) };
        match kind >> 1 & 7 {
            0..=2 => {}
            5 if tunnel => {
                path.dst_mac = router_mac([host_v4(1), SECOND_VTEP][usize::from(sport % 2)].into())
            }
            3..=5 => path.dst_mac = router,
            6 => path.dst_mac = MacAddr::BROADCAST,
            _ => path.dst_mac = MacAddr([2, 0, 0, 0, 3, (sport % 4) as u8]),
        }
        path = path.with_ttl(ttl).with_tos(tos);
        if kind & 0x10 != 0 && sport % 3 == 0 {
            path = path.tagged(5);
        }
        let inner = match kind >> 5 {
            0 | 1 => path.tcp(sport, 80, 0x10, b"data"),
            2 | 3 => path.udp(sport, 53, &[0; 1500][..usize::from(sport % 3) * 700]),
            4 => path.roce(
                sport,
                wire::roce::Bth::new(0x0a, wire::Qpn::truncated(3), wire::Psn::truncated(0)),
                &[0; 32],
            ),
            5 => path.ethernet(0x88b5, &[1; 46]),
            6 => path.echo_request(sport, 1, b"ping"),
            _ => wire::build::control::arp_request((source.mac, source.v4), target.v4),
        };
        if !tunnel {
            return Some((vnic?.port, inner));
        }
        let vni = self.world.snapshot.vpc(vpc)?.vni;
        Some((
            UPLINK,
            outer(2, 1, self.world.underlay).with_tos(tos >> 4 & 3).vxlan(
                50_000,
                Vni::new(vni.get()).unwrap(),
                &inner,
            ),
        ))
    }

    /// Both ways at once: an error says where they differ.
    fn packet(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let Some((port, frame)) = self.frame(step) else { return Ok(()) };
        let drops = |worker: &TestWorker| -> Vec<u64> {
            DropReason::all().map(|reason| worker.counters.drops(reason)).collect()
        };
        let before = drops(&self.world.worker);
        let snapshot = &self.world.snapshot;
        let mine = self.world.worker.run(snapshot, self.world.now, port, vec![HeapBuf::new(&frame)]);
        let after = drops(&self.world.worker);
        let mut fresh = TestWorker::new(4, self.world.shared.clone(), 0);
        let theirs = fresh.run(snapshot, self.world.now, port, vec![HeapBuf::new(&frame)]);
        let bytes = |out: Vec<(PortIndex, HeapBuf)>| -> Vec<_> {
            out.into_iter().map(|(port, packet)| (port, packet.to_vec())).collect()
        };
        prop_assert_eq!(bytes(mine), bytes(theirs), "what leaves");
        let mine: Vec<u64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
        let names = |counts: &[u64]| -> Vec<&str> {
            DropReason::all()
                .zip(counts)
                .filter(|(_, count)| **count != 0)
                .map(|(reason, _)| reason.name())
                .collect()
        };
        prop_assert_eq!(names(&mine), names(&drops(&fresh)), "what is dropped");
        // The entry that was used says what the slow path says.
        let meta = &self.world.worker.burst.metas[0];
        if fresh.overlay.nft().stats().entries > 0 && meta.entry != NONE {
            let entry = self.world.worker.overlay.nft().entry(meta.entry);
            if entry.key == meta.key {
                prop_assert_eq!(entry.action, decide_from(snapshot, &meta.key, entry.action.source));
                let vnic = matches!(meta.key.scope(), Scope::Vnic(_));
                prop_assert_eq!(vnic, port != UPLINK);
            }
        }
        self.world.worker.overlay.idle(self.world.now);
        Ok(())
    }
}

fn packet() -> impl Strategy<Value = Step> {
    (
        0..8usize,
        0..STATIONS,
        any::<u8>(),
        0..4u16,
        prop::bool::weighted(0.3),
        prop_oneof![9 => Just(64u8), 1 => 0..3u8],
        any::<u8>(),
    )
        .prop_map(|(from, to, kind, sport, tunnel, ttl, tos)| Step::Packet {
            from,
            to,
            kind,
            sport,
            tunnel,
            ttl,
            tos,
        })
}

fn change() -> impl Strategy<Value = Step> {
    let (vpc, who) = (0..2u32, 0..STATIONS);
    prop_oneof![
        4 => (vpc.clone(), who.clone(), 2..6u8).prop_map(|(vpc, station, host)| Step::Place { vpc, station, host }),
        2 => (vpc.clone(), who.clone()).prop_map(|(vpc, station)| Step::Bring { vpc, station }),
        3 => (vpc.clone(), who.clone()).prop_map(|(vpc, station)| Step::Remove { vpc, station }),
        1 => (vpc.clone(), who.clone(), 0..4u8).prop_map(|(vpc, station, last)| Step::NewMac { vpc, station, last }),
        3 => (vpc.clone(), who).prop_map(|(vpc, station)| Step::AddVnic { vpc, station }),
        2 => (0..8usize).prop_map(|index| Step::RemoveVnic { index }),
        1 => (vpc.clone(), any::<bool>()).prop_map(|(vpc, on)| Step::Flood { vpc, on }),
        2 => (vpc.clone(), 0..7u8).prop_map(|(vpc, kind)| Step::Route { vpc, kind }),
        1 => (vpc.clone(), 0xf0..0xf3u8).prop_map(|(vpc, last)| Step::Router { vpc, last }),
        1 => (vpc.clone(), any::<bool>()).prop_map(|(vpc, wide)| Step::Subnet { vpc, wide }),
        1 => (vpc, any::<bool>()).prop_map(|(vpc, on)| Step::KeepVlan { vpc, on }),
        1 => any::<bool>().prop_map(|on| Step::Vtep { on }),
        1 => (any::<u8>(), prop_oneof![Just(1600u16), Just(700u16)]).prop_map(|(ecn, mtu)| Step::Settings { ecn, mtu }),
        1 => (0..40_000u32).prop_map(|ms| Step::Time { ms }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn differential_nft_equals_slow_path(
        underlay in 0..UNDERLAYS.len(),
        entries in prop_oneof![Just(4u32), Just(256u32)],
        steps in prop::collection::vec(prop_oneof![4 => packet(), 1 => change()], 1..250),
    ) {
        let mut lab = Lab::new(UNDERLAYS[underlay], entries);
        for step in &steps {
            lab.change(step);
            lab.packet(step)?;
        }
    }
}

/// An index that goes to a vNIC of another VPC with an address of before: nothing that was decided for the first holds.
#[test]
fn differential_reused_index_in_another_vpc() {
    let to_a = |kind| Step::Packet { from: 7, to: 0, kind, sport: 1, tunnel: false, ttl: 64, tos: 0 };
    let steps = [
        Step::RemoveVnic { index: 0 },
        Step::AddVnic { vpc: 1, station: 1 },
        to_a(151),
        Step::RemoveVnic { index: 2 },
        Step::AddVnic { vpc: 1, station: 2 },
        to_a(135),
    ];
    let mut lab = Lab::new(UNDERLAYS[0], 256);
    for step in &steps {
        lab.change(step);
        lab.packet(step).unwrap();
    }
}
