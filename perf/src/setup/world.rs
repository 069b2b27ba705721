//! The host of the slow path's measurement: one worker's overlay with two vNICs, an uplink and a remote station; no ports.

use std::net::Ipv4Addr;
use std::sync::Arc;

use pipelines::connections::WorkerConnections;
use pipelines::counters::PipelineCounters;
use pipelines::event::Events;
use pipelines::fragments::Fragments;
use pipelines::nft::NftParams;
use pipelines::overlay::{Overlay, OverlayConfig, OverlayParts};
use pipelines::qos::{Dhtb, Tree, TreeSize};
use pipelines::rcft::{Rcft, RcftParams, RcftShared};
use pipelines::snapshot::{Gateway, Prefix, RouteTarget};
use testkit::{A, B, R, Underlay, World, host_mac, host_v4};
use wire::{HeapBuf, Vni};

use crate::host::hugepages::advise;
use crate::live::testbed::{self, Station};

/// vNICs of this host.
pub const LOCAL: [Station; 2] = [(A.mac, A.v4), (B.mac, B.v4)];
/// A station of the same subnet at the other end of the tunnel.
pub const REMOTE: Station = (R.mac, R.v4);
/// The first of four million addresses behind the virtual router, by a route to the same tunnel.
pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 0);
/// Entries of either table: more than flows and queue pairs are made, so that nothing has to go for another.
const ENTRIES: u32 = 1 << 20;
const SEED: u64 = 0x5eed;

pub fn vni() -> Vni {
    Vni::truncated(testbed::VNI)
}

/// VTEPs, ours first.
pub fn vteps() -> [Station; 2] {
    [1, 2].map(|host| (host_mac(host), host_v4(host)))
}

/// A host with empty tables and without a limit of misses. `None` if its table of locations has no room.
pub fn world() -> Option<World> {
    let mut world = World::new(1, Underlay::default());
    let vpc = world.add_vpc(testbed::VNI);
    for station in [A, B] {
        world.add_vnic(vpc, station, None);
    }
    let tunnel = world.tunnel(vpc, 2);
    world.locate_station(vpc, R, tunnel);
    let slot = world.writer.allocate(tunnel)?;
    let gateway = Gateway { vtep: host_v4(2).into(), slot, mac: R.mac };
    let routes = vec![(Prefix::new(FAR.into(), 10), RouteTarget::Gateways(vec![gateway]))];
    world.vpc(vpc).set_routes(routes);
    let sizes = TableSizes { nft: ENTRIES, queue_pairs: ENTRIES, vnics: 64, tenants: 8, waiting: 1024 };
    world.worker.overlay = sizes.overlay(sizes.tree(), world.worker.counters.clone());
    Some(world)
}

/// How large the tables of a worker are.
#[derive(Debug, Clone, Copy)]
pub struct TableSizes {
    pub nft: u32,
    pub queue_pairs: u32,
    pub vnics: u32,
    pub tenants: u32,
    /// Packets that may wait for tokens.
    pub waiting: u32,
}

impl TableSizes {
    pub fn tree(&self) -> Arc<Tree> {
        Arc::new(Tree::new(TreeSize { tenants: self.tenants, vnics: self.vnics }, &advise))
    }

    /// An overlay as a worker of the daemon has it, in which nothing ages.
    pub fn overlay(&self, tree: Arc<Tree>, counters: Arc<PipelineCounters>) -> Overlay<HeapBuf> {
        let Self { nft: entries, queue_pairs, vnics, tenants, waiting } = *self;
        let config = OverlayConfig {
            nft: NftParams { entries, idle_ticks: u32::MAX / 4, seed: SEED },
            vnics: vnics as usize,
            vpcs: tenants as usize,
        };
        let seed = SEED.rotate_left(17);
        let shared = RcftShared::new(RcftParams { entries: queue_pairs, vnics, workers: 1, seed }, &advise);
        shared.set_times(6000, 6000, 600);
        let parts = OverlayParts {
            fragments: Arc::new(Fragments::new(64, 5)),
            connections: WorkerConnections::of_one(queue_pairs, vnics),
            rcft: Rcft::new(shared, 0, &advise),
            dhtb: Dhtb::new(tree, waiting, SEED),
            events: Events::new(64, 0),
            counters,
        };
        Overlay::new(&config, parts, &advise)
    }
}
