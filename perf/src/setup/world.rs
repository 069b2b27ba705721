//! The host of the slow path's measurement: one worker's overlay with two vNICs, an uplink and a remote station; no ports.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use pipelines::counters::PipelineCounters;
use pipelines::event::Events;
use pipelines::flat::FlatMap;
use pipelines::fragments::Fragments;
use pipelines::nft::NftParams;
use pipelines::overlay::{Overlay, OverlayConfig, OverlayParts};
use pipelines::qos::{Dhtb, Tree, TreeSize};
use pipelines::rcft::{Rcft, RcftParams, RcftShared};
use pipelines::snapshot::{
    Destination, Location, NO_PORT, PortIndex, PortRole, PortRow, Prefix, RouteTarget, Snapshot, Subnet,
    Uplink, Vnic, VnicRow, Vpc,
};
use pipelines::stage::tunnel::{TemplateSpec, TunnelEnds, template};
use pipelines::vlt::{Place, Vlt, VltWriter};
use pipelines::vtep::{Vtep, Vteps};
use wire::{HeapBuf, MacAddr, Vni};

use crate::live::testbed::{self, Station, station};

/// vNICs of this host.
pub const LOCAL: [Station; 2] = [station(1), station(2)];
/// A station of the same subnet at the other end of the tunnel.
pub use testbed::REMOTE;
/// The virtual router; behind it, by a route to the same tunnel, are all addresses from [`FAR`] on.
pub const ROUTER: MacAddr = MacAddr([2, 0, 0, 0, 0xff, 0xfe]);
/// The first of four million addresses.
pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 0);
/// VTEPs, ours first.
pub const VTEPS: [Station; 2] = [
    (MacAddr([2, 0, 0, 0, 0x77, 1]), Ipv4Addr::new(172, 16, 0, 1)),
    (MacAddr([2, 0, 0, 0, 0x77, 2]), Ipv4Addr::new(172, 16, 0, 2)),
];
/// The port of the uplink; those of the vNICs follow.
pub const UPLINK: PortIndex = 0;
/// The number of the VTEP at the other end.
const FAR_VTEP: u32 = 2;
/// Entries of either table: more than flows and queue pairs are made, so that nothing has to go for another.
const ENTRIES: u32 = 1 << 20;
const SEED: u64 = 0x5eed;

pub fn vni() -> Vni {
    Vni::truncated(testbed::VNI)
}

/// A worker's overlay and its configuration.
pub struct World {
    /// The configuration, without a limit of misses.
    pub snapshot: Snapshot,
    pub overlay: Overlay<HeapBuf>,
    pub counters: Arc<PipelineCounters>,
    _writer: VltWriter,
}

impl World {
    /// With empty tables. `None` if the table of locations had no room for the few there are.
    pub fn new() -> Option<Self> {
        let (vlt, mut writer) = Vlt::new(16);
        let mut snapshot = Snapshot::empty(vlt);
        snapshot.settings.miss_rate = 0;
        snapshot.settings.error_rate = 0;
        snapshot.settings.flood_rate = 0;
        snapshot.settings.miss_budget = 64;
        let roles = [PortRole::Uplink(0), PortRole::Vnic(0), PortRole::Vnic(1)];
        snapshot.ports = roles.map(|role| PortRow { role, partner: NO_PORT, ..PortRow::default() }).into();
        snapshot.uplinks.push(Some(Arc::new(uplink())));
        let vtep = Vtep::new(FAR_VTEP, false)?;
        snapshot.vteps = Vteps::new([(VTEPS[1].1.into(), vtep)], [(FAR_VTEP, testbed::VNI, 0)]);
        snapshot.vnis = FlatMap::new([(u128::from(testbed::VNI), 0)]);
        // One generation cell for each vNIC and two for the VPC.
        snapshot.cells = vec![1; 4];
        for (index, (mac, ip)) in LOCAL.into_iter().enumerate() {
            let index = index as u32;
            let port = 1 + index as PortIndex;
            snapshot.vnics.push(Some(Arc::new(Vnic {
                name: format!("vnic{index}"),
                index,
                vpc: 0,
                mac,
                vips: vec![ip.into()],
                learns: false,
                mtu: 1450,
                port,
                vlan: None,
                cell: index,
            })));
            let row =
                VnicRow { mac: mac.to_u64(), router_mac: ROUTER.to_u64(), v4: ip.to_bits(), ..VnicRow::FREE };
            snapshot.vnic_rows.push(VnicRow { vpc: 0, port, mtu: 1450, ..row });
            locate(&mut snapshot, &mut writer, (mac, ip), Place::Local { vnic: index })?;
        }
        snapshot.index_local_macs();
        locate(&mut snapshot, &mut writer, REMOTE, tunnel())?;
        let gateway = RouteTarget::Gateway { slot: writer.allocate(tunnel())?, mac: REMOTE.0 };
        snapshot.vpcs.push(Some(Arc::new(vpc(vec![(Prefix::new(FAR.into(), 10), gateway)]))));
        let counters = Arc::new(PipelineCounters::new(LOCAL.len()));
        Some(Self { snapshot, overlay: overlay(counters.clone()), counters, _writer: writer })
    }
}

fn locate(snapshot: &mut Snapshot, writer: &mut VltWriter, station: Station, place: Place) -> Option<()> {
    let (mac, ip) = station;
    let slot = writer.allocate(place)?;
    for destination in [Destination::Mac(mac), Destination::Ip(IpAddr::V4(ip))] {
        snapshot.locations.insert((0, destination), Location { slot, mac });
    }
    Some(())
}

fn uplink() -> Uplink {
    Uplink {
        name: "up".into(),
        port: UPLINK,
        mac: VTEPS[0].0.to_u64(),
        v4: vec![VTEPS[0].1],
        v6: Vec::new(),
        mtu: 1600,
        vlan: None,
        udp6_zero_checksum: false,
        punt: NO_PORT,
        punt_mtu: 1500,
    }
}

fn tunnel() -> Place {
    Place::Remote(template(&TemplateSpec {
        uplink: 0,
        src_mac: VTEPS[0].0,
        next_hop: VTEPS[1].0,
        vlan: None,
        ends: TunnelEnds::V4(VTEPS[0].1, VTEPS[1].1),
        ttl: 64,
        udp_port: 4789,
        vni: vni(),
        vtep: FAR_VTEP,
    }))
}

fn vpc(routes: Vec<(Prefix, RouteTarget)>) -> Vpc {
    let gateway = Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 254)));
    Vpc {
        name: "tenant".into(),
        index: 0,
        vni: vni(),
        router_mac: ROUTER,
        flood: false,
        keep_vlan: false,
        subnets: vec![Subnet { prefix: Prefix::new(LOCAL[0].1.into(), 24), gateway }],
        routes,
        vnics: vec![0, 1],
        flood_slots: Vec::new(),
        cell: 2,
        topology_cell: 3,
    }
}

/// As a worker of the daemon has it, with larger tables.
fn overlay(counters: Arc<PipelineCounters>) -> Overlay<HeapBuf> {
    let advise = |start, len| {
        // Without huge pages the figures are worse, and true for such a machine.
        let _ = pmd::hugepage::advise_range(start, len);
    };
    let config = OverlayConfig {
        nft: NftParams { entries: ENTRIES, idle_ticks: u32::MAX / 4, seed: SEED },
        vnics: LOCAL.len(),
        vpcs: 1,
    };
    let queue_pairs =
        RcftParams { entries: ENTRIES, vnics: LOCAL.len() as u32, workers: 1, seed: SEED.rotate_left(17) };
    let shared = RcftShared::new(queue_pairs, &advise);
    shared.set_times(6000, 6000, 600);
    let rcft = Rcft::new(shared, 0, &advise);
    let tree = Arc::new(Tree::new(TreeSize { tenants: 1, vnics: LOCAL.len() as u32 }, &advise));
    let dhtb = Dhtb::new(tree, 1024, SEED);
    let (fragments, events) = (Arc::new(Fragments::new(64, 5)), Events::new(64, 0));
    Overlay::new(&config, OverlayParts { fragments, rcft, dhtb, events, counters }, &advise)
}
