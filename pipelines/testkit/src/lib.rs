//! A small world for tests of the pipeline: one host with an uplink, tenants, locations, and a sink that records.
//!
//! The two hosts of [`lab`] see each other's vNICs as remote. Every run checks the conservation law and that each
//! packet ended somewhere. Knows no DPDK; packets are [`HeapBuf`]s.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

pub mod fixture;
mod groups;
pub mod nic;
pub mod offload;
pub mod open;
mod routes;
mod shared;
mod stations;

use std::net::IpAddr;
use std::sync::Arc;

use pipelines::burst::Burst;
use pipelines::connections::WorkerConnections;
use pipelines::counters::PipelineCounters;
use pipelines::drops::DropReason;
use pipelines::flat::FlatMap;
use pipelines::next_hop::{BUCKETS, LinkSource, ResolvedHop};
use pipelines::nft::NftParams;
use pipelines::overlay::{Overlay, OverlayConfig, OverlayParts};
use pipelines::qos::{Dhtb, Divider, Tree, TreeSize};
use pipelines::rcft::Rcft;
use pipelines::snapshot::*;
use pipelines::stage::tunnel::{TemplateSpec, TunnelEnds, template};
use pipelines::vlt::{Place, SlotRef, Tunnel, Vlt, VltWriter};
use pipelines::vtep::{Vtep, Vteps};
use pipelines::{Now, Sink};
use wire::build::Path;
use wire::{HeapBuf, MacAddr, PacketBuf, Vni};

pub use groups::join_groups;
pub use shared::SharedTables;
pub use stations::*;

/// Records what leaves, and counts it as sent.
pub struct RecordingSink {
    pub sent: Vec<(PortIndex, HeapBuf)>,
    pub counters: Arc<PipelineCounters>,
}

impl Sink<HeapBuf> for RecordingSink {
    fn send(&mut self, port: PortIndex, packet: HeapBuf) {
        self.counters.sent.add(1);
        self.sent.push((port, packet));
    }
}

/// A worker that can run packets through a snapshot.
pub struct TestWorker {
    pub overlay: Overlay<HeapBuf>,
    pub out: RecordingSink,
    pub counters: Arc<PipelineCounters>,
    pub burst: Burst<HeapBuf>,
    /// Of the rates of this worker's tree; nobody but the test calls it.
    pub divider: Divider,
}

impl TestWorker {
    /// Worker `number` of those that share tables, with so many entries of its own flow table.
    pub fn new(entries: u32, shared: SharedTables, number: u32) -> Self {
        let SharedTables { fragments, connections, rcft, events } = shared;
        let counters = Arc::new(PipelineCounters::new(64));
        let config =
            OverlayConfig { nft: NftParams { entries, idle_ticks: 300, seed: 0x5eed }, vnics: 64, vpcs: 8 };
        let rcft = Rcft::new(rcft, number, &|_, _| {});
        let tree = Arc::new(Tree::new(TreeSize { tenants: 8, vnics: 64 }, &|_, _| {}));
        let (divider, dhtb) = (Divider::new(tree.clone()), Dhtb::new(tree, 1024, 0x5eed));
        let connections = WorkerConnections::new(connections, number);
        let parts = OverlayParts { fragments, connections, rcft, dhtb, events, counters: counters.clone() };
        let overlay = Overlay::new(&config, parts, &|_, _| {});
        let out = RecordingSink { sent: Vec::new(), counters: counters.clone() };
        Self { overlay, out, counters, burst: Burst::default(), divider }
    }

    /// Runs packets (one burst) and returns what left.
    pub fn run(
        &mut self,
        snapshot: &Snapshot,
        now: Now,
        port: PortIndex,
        packets: Vec<HeapBuf>,
    ) -> Vec<(PortIndex, HeapBuf)> {
        let rest = self.burst.fill(packets);
        assert!(rest.is_empty(), "more packets than a burst holds");
        self.overlay.run(snapshot, now, port, &mut self.burst, &mut self.out);
        assert_eq!(self.burst.pending, 0);
        assert!(self.burst.packets.iter().all(Option::is_none), "a packet was left behind");
        assert_eq!(self.counters.imbalance(), 0, "conservation");
        std::mem::take(&mut self.out.sent)
    }

    /// All counters, by name.
    pub fn all_counters(&self) -> Vec<(&'static str, u64)> {
        let drops = DropReason::all().map(|reason| (reason.name(), self.counters.drops(reason)));
        self.counters.scalars().into_iter().chain(drops).collect()
    }
}

/// One host.
pub struct World {
    pub host: u8,
    pub underlay: Underlay,
    pub snapshot: Snapshot,
    pub writer: VltWriter,
    pub worker: TestWorker,
    pub shared: SharedTables,
    pub now: Now,
    /// The config lists the other hosts' VTEPs.
    pub listed: bool,
}

impl World {
    /// A host with an uplink and nothing else.
    pub fn new(host: u8, underlay: Underlay) -> Self {
        let (vlt, mut writer) = Vlt::new(256);
        // The group of a host has its number.
        for host in 1..=u8::MAX {
            let hop = ResolvedHop { uplink: 0, mac: host_mac(host) };
            writer.set_group(u16::from(host), &[Some(hop); BUCKETS]);
        }
        let mut snapshot = Snapshot::empty(vlt);
        snapshot.ports.push(PortRow { role: PortRole::Uplink(0), partner: NO_PORT, ..PortRow::default() });
        snapshot.settings.miss_rate = 0;
        snapshot.settings.error_rate = 0;
        snapshot.settings.flood_rate = 0;
        snapshot.settings.miss_budget = 64;
        snapshot.uplinks.push(Some(Arc::new(Uplink {
            name: "up".into(),
            port: UPLINK,
            mac: host_mac(host).to_u64(),
            source: LinkSource::new(host_mac(host)),
            v4: vec![host_v4(host)],
            v6: vec![host_v6(host)],
            mtu: 1600,
            vlan: underlay.vlan,
            udp6_zero_checksum: underlay.zero_checksum6,
            silent: Vec::new(),
            punt: NO_PORT,
            punt_mtu: 1500,
        })));
        let shared = SharedTables::new(1);
        let worker = TestWorker::new(256, shared.clone(), 0);
        let mut world = Self {
            host,
            underlay,
            snapshot,
            writer,
            worker,
            shared,
            now: Now::from_ns(5_000_000_000),
            listed: false,
        };
        world.index_vteps();
        world
    }

    /// Makes every other host's VTEP known to every VPC, or listed in the config.
    pub fn index_vteps(&mut self) {
        let others =
            || (1..=9).filter(|&n| n != self.host).flat_map(|n| [host_v4(n).into(), host_v6(n).into()]);
        let listed = self.listed;
        let numbered = others().map(|vtep| (vtep, Vtep::new(vtep_number(vtep), listed).unwrap()));
        let vpcs = || self.snapshot.vpcs.iter().flatten();
        let networks =
            others().flat_map(|vtep| vpcs().map(move |vpc| (vtep_number(vtep), vpc.vni.get(), vpc.index)));
        self.snapshot.vteps = Vteps::new(numbered, networks);
    }

    pub fn uplink(&mut self) -> &mut Uplink {
        Arc::make_mut(self.snapshot.uplinks[0].as_mut().unwrap())
    }

    pub fn vpc(&mut self, index: u32) -> &mut Vpc {
        Arc::make_mut(self.snapshot.vpcs[index as usize].as_mut().unwrap())
    }

    fn new_cell(&mut self) -> u32 {
        self.snapshot.cells.push(1);
        self.snapshot.cells.len() as u32 - 1
    }

    fn new_port(&mut self, role: PortRole) -> PortIndex {
        self.snapshot.ports.push(PortRow { role, partner: NO_PORT, ..PortRow::default() });
        self.snapshot.ports.len() as PortIndex - 1
    }

    /// A VPC with the two subnets of the stations.
    pub fn add_vpc(&mut self, vni: u32) -> u32 {
        let index = self.snapshot.vpcs.len() as u32;
        let (cell, topology_cell) = (self.new_cell(), self.new_cell());
        let subnet = |prefix: &str, len, gateway: &str| Subnet {
            prefix: Prefix::new(prefix.parse().unwrap(), len),
            gateway: Some(gateway.parse().unwrap()),
            services: Services::NONE,
        };
        self.snapshot.vpcs.push(Some(Arc::new(Vpc {
            name: format!("vpc{vni}"),
            index,
            vni: Vni::new(vni).unwrap(),
            router_mac: ROUTER,
            flood: false,
            keep_vlan: false,
            table: Arc::new(RouteTable::new(
                vec![
                    subnet("10.0.0.0", 24, "10.0.0.254"),
                    subnet("10.0.1.0", 24, "10.0.1.254"),
                    subnet("fd00:1::", 64, "fd00:1::fe"),
                    subnet("fd00:2::", 64, "fd00:2::fe"),
                ],
                Vec::new(),
            )),
            vnics: Vec::new(),
            flood_slots: Vec::new(),
            cell,
            topology_cell,
        })));
        self.index_vnis();
        index
    }

    pub fn index_vnis(&mut self) {
        let vpcs = self.snapshot.vpcs.iter().flatten();
        self.snapshot.vnis = FlatMap::new(vpcs.map(|vpc| (u128::from(vpc.vni.get()), vpc.index)));
        self.index_vteps();
    }

    /// The tunnel to a host, for a VPC; its next hop is the host.
    pub fn tunnel(&self, vpc: u32, host: u8) -> Place {
        let ends = if self.underlay.v6 {
            TunnelEnds::V6(host_v6(self.host), host_v6(host))
        } else {
            TunnelEnds::V4(host_v4(self.host), host_v4(host))
        };
        Place::Remote(template(&TemplateSpec {
            group: u16::from(host),
            vlan: self.underlay.vlan,
            ends,
            ttl: 64,
            udp_port: 4789,
            vni: self.snapshot.vpc(vpc).unwrap().vni,
            vtep: vtep_number(if self.underlay.v6 { host_v6(host).into() } else { host_v4(host).into() }),
        }))
    }

    /// [`tunnel`](Self::tunnel) while nobody knows the MAC address of the next hop.
    pub fn unresolved(&self, vpc: u32, host: u8) -> Place {
        match self.tunnel(vpc, host) {
            Place::Remote(tunnel) => Place::Remote(Tunnel { group: 0, ..tunnel }),
            other => other,
        }
    }

    /// A place for an address, under a slot of its own.
    pub fn locate(&mut self, vpc: u32, destination: Destination, mac: MacAddr, place: Place) -> SlotRef {
        let slot = self.writer.allocate(place).unwrap();
        self.snapshot.locations.insert((vpc, destination), Location { slot, mac, groups: 0 });
        self.snapshot.touch_topology(vpc);
        slot
    }

    /// Where a station is: its MAC and addresses.
    pub fn locate_station(&mut self, vpc: u32, station: Station, place: Place) {
        self.locate(vpc, Destination::Mac(station.mac), station.mac, place);
        self.locate(vpc, Destination::Ip(station.v4.into()), station.mac, place);
        self.locate(vpc, Destination::Ip(station.v6.into()), station.mac, place);
    }

    /// Takes an address away: first from the snapshot, then from the VLT.
    pub fn forget(&mut self, vpc: u32, destination: Destination) {
        if let Some(location) = self.snapshot.locations.remove(&(vpc, destination)) {
            self.snapshot.touch_sources(vpc);
            self.writer.free(location.slot.slot);
        }
    }

    /// A vNIC on a port of its own, or with `trunk` on that one, under VLAN 100 + its index. Returns index, port.
    pub fn add_vnic(&mut self, vpc: u32, station: Station, trunk: Option<PortIndex>) -> (u32, PortIndex) {
        let index = self.snapshot.vnics.len() as u32;
        let port = match trunk {
            Some(port) => port,
            None => self.new_port(PortRole::Vnic(index)),
        };
        let cell = self.new_cell();
        let vlan = trunk.map(|_| 100 + index as u16);
        self.snapshot.vnics.push(Some(Arc::new(Vnic {
            name: format!("vnic{index}"),
            index,
            vpc,
            mac: station.mac,
            vips: vec![station.v4.into(), station.v6.into()],
            learns: true,
            allowed: Vec::new(),
            guarded: true,
            mtu: 1500,
            port,
            vlan,
            group_set: 0,
            cell,
        })));
        let keep_vlan = u8::from(self.vpc(vpc).keep_vlan);
        self.snapshot.vnic_rows.push(VnicRow {
            v6: u128::from(station.v6),
            mac: station.mac.to_u64(),
            router_mac: ROUTER.to_u64(),
            v4: u32::from(station.v4),
            vpc,
            port,
            vlan: vlan.unwrap_or(0),
            mtu: 1500,
            keep_vlan,
            more_vips: 0,
            guard: 0,
            group_set: 0,
        });
        self.snapshot.index_local_macs();
        self.vpc(vpc).vnics.push(index);
        self.locate_station(vpc, station, Place::Local { vnic: index });
        if trunk.is_some() {
            let on_it = self.snapshot.vnics.iter().flatten().filter(|vnic| vnic.port == port);
            let map = FlatMap::new(on_it.map(|vnic| (u128::from(vnic.vlan.unwrap()), vnic.index)));
            self.snapshot.trunks[0] = Arc::new(map);
        }
        (index, port)
    }

    pub fn add_trunk(&mut self) -> PortIndex {
        self.snapshot.trunks.push(Arc::new(FlatMap::default()));
        self.new_port(PortRole::Trunk(0))
    }

    /// A further port without a tenant, for the host's traffic.
    pub fn add_punt(&mut self) -> PortIndex {
        let port = self.new_port(PortRole::Punt(0));
        self.uplink().punt = port;
        port
    }

    /// Lets a VPC flood, to these hosts as well.
    pub fn flood(&mut self, vpc: u32, hosts: &[u8]) {
        let slots = hosts.iter().map(|&host| {
            let place = self.tunnel(vpc, host);
            self.writer.allocate(place).unwrap()
        });
        let slots = slots.collect();
        let vpc_row = self.vpc(vpc);
        vpc_row.flood = true;
        vpc_row.flood_slots = slots;
        self.snapshot.touch_vpc(vpc);
    }

    pub fn keep_vlan(&mut self, vpc: u32) {
        self.vpc(vpc).keep_vlan = true;
        let rows = self.snapshot.vnic_rows.iter_mut().filter(|row| row.vpc == vpc);
        rows.for_each(|row| row.keep_vlan = 1);
        self.snapshot.touch_vpc(vpc);
    }

    /// Runs packets and returns what left, as bytes.
    pub fn run(&mut self, port: PortIndex, packets: Vec<HeapBuf>) -> Vec<(PortIndex, Vec<u8>)> {
        let out = self.worker.run(&self.snapshot, self.now, port, packets);
        out.into_iter().map(|(port, packet)| (port, packet.to_vec())).collect()
    }

    /// Runs frames and asserts which counters move, by how much, and that no other one does. `received` and `sent`
    /// follow from the frames.
    #[track_caller]
    pub fn expect(
        &mut self,
        port: PortIndex,
        frames: &[Vec<u8>],
        moved: &[(&str, u64)],
    ) -> Vec<(PortIndex, Vec<u8>)> {
        self.expect_packets(port, frames.iter().map(|frame| HeapBuf::new(frame)).collect(), moved)
    }

    #[track_caller]
    pub fn expect_packets(
        &mut self,
        port: PortIndex,
        packets: Vec<HeapBuf>,
        moved: &[(&str, u64)],
    ) -> Vec<(PortIndex, Vec<u8>)> {
        let before = self.worker.all_counters();
        let received = packets.len() as u64;
        let out = self.run(port, packets);
        let after = self.worker.all_counters();
        let mut changes: Vec<_> = before.iter().zip(&after).map(|(b, a)| (b.0, a.1 - b.1)).collect();
        changes.retain(|change| change.1 != 0);
        let mut expected = vec![("received", received)];
        expected.retain(|change| change.1 != 0);
        if !out.is_empty() {
            expected.push(("sent", out.len() as u64));
        }
        expected.extend(moved);
        changes.sort_unstable();
        expected.sort_unstable();
        assert_eq!(changes, expected, "which counters moved");
        out
    }

    /// One frame in, one frame out.
    #[track_caller]
    pub fn one(&mut self, port: PortIndex, frame: &[u8], moved: &[(&str, u64)]) -> (PortIndex, Vec<u8>) {
        let mut out = self.expect(port, &[frame.to_vec()], moved);
        assert_eq!(out.len(), 1);
        out.remove(0)
    }

    /// Whatever of a burst leaves; no claim about counters.
    pub fn pass(&mut self, port: PortIndex, frame: &[u8]) -> Vec<(PortIndex, Vec<u8>)> {
        self.run(port, vec![HeapBuf::new(frame)])
    }
}

/// Counters of a packet that was encapsulated on a new flow.
pub const ENCAP: [(&str, u64); 2] = [("nft-misses", 1), ("encapsulated", 1)];
/// Counters of a packet that was decapsulated and delivered on a new flow.
pub const DECAP: [(&str, u64); 2] = [("nft-misses", 1), ("decapsulated", 1)];
/// Counters of a packet between two vNICs on a new flow.
pub const LOCAL: [(&str, u64); 2] = [("nft-misses", 1), ("local", 1)];

/// Host 1 or 2 with the stations: its own on ports 1, 2, ..., the others behind the tunnel. One VPC, VNI 100.
pub fn lab(host: u8, underlay: Underlay) -> World {
    lab_on(host, underlay, false)
}

/// [`lab`], its own stations on port 1 as VLANs 100, 101, ... if `trunk`.
pub fn lab_on(host: u8, underlay: Underlay, trunk: bool) -> World {
    let mut world = World::new(host, underlay);
    let vpc = world.add_vpc(100);
    let trunk = trunk.then(|| world.add_trunk());
    for station in [A, B, C, R, S] {
        if station.host == host {
            world.add_vnic(vpc, station, trunk);
        } else {
            let place = world.tunnel(vpc, station.host);
            world.locate_station(vpc, station, place);
        }
    }
    world
}

/// Host 1 of [`lab`] over plain IPv4.
pub fn plain() -> World {
    lab(1, Underlay::default())
}

/// The underlay path by which `from` sends to `to`.
pub fn outer(from: u8, to: u8, underlay: Underlay) -> Path {
    let path = if underlay.v6 {
        Path::v6((host_mac(from), host_v6(from)), (host_mac(to), host_v6(to)))
    } else {
        Path::v4((host_mac(from), host_v4(from)), (host_mac(to), host_v4(to)))
    };
    match underlay.vlan {
        Some(vlan) => path.tagged(vlan),
        None => path,
    }
}

/// A frame from host 2 to host 1 in VNI 100 over plain IPv4.
pub fn tunnelled(inner: &[u8]) -> Vec<u8> {
    outer(2, 1, Underlay::default()).vxlan(50_000, Vni::new(100).unwrap(), inner)
}

/// An address as the general kind.
pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Checks that a frame parses and that its IPv4 and L4 checksums are right.
#[track_caller]
pub fn sound(frame: &[u8]) -> wire::Headers {
    let headers = wire::parse::parse(frame, frame.len()).expect("a frame that parses");
    assert!(headers.ipv4_checksum_ok(frame), "IPv4 checksum");
    let verdict = wire::l4::verify(&headers, [frame]);
    assert_ne!(verdict, wire::l4::ChecksumVerdict::Bad, "L4 checksum");
    headers
}

/// Length of a packet, for those who have no trait in scope.
pub fn len(packet: &HeapBuf) -> usize {
    packet.len()
}
