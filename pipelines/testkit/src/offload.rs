//! A host whose ports are on an e-switch: flows of its worker's NFT, and their chains.

use pipelines::Direction;
use pipelines::flow_key::FlowKey;
use pipelines::nft::NftEntry;
use pipelines::offload::translate::{
    Chain, FlowSelector, OffloadRefusal, Tables, TranslateOptions, Translator,
};
use pipelines::qos::{Class, NodeLimits, Tree};
use pipelines::snapshot::PortIndex;
use wire::Qpn;

use crate::World;

/// A world, its translator, and which of its ports are on the e-switch: port `n` as DPDK port `10 + n`.
pub struct Host {
    pub world: World,
    pub translator: Translator,
    pub options: TranslateOptions,
    pub ports: Vec<Option<u16>>,
}

/// The DPDK port of a port.
pub const fn dpdk(port: PortIndex) -> u16 {
    10 + port
}

/// What a translation reads.
fn tables<'a>(world: &'a World, ports: &'a [Option<u16>], options: &'a TranslateOptions) -> Tables<'a> {
    let tree = world.worker.overlay.dhtb().tree();
    Tables { snapshot: &world.snapshot, tree, ports, connections: Some(&world.shared.connections), options }
}

impl Host {
    /// What a translation reads.
    pub fn tables(&self) -> Tables<'_> {
        tables(&self.world, &self.ports, &self.options)
    }

    pub fn new(world: World) -> Self {
        let ports = (0..world.snapshot.ports.len() as PortIndex).map(|port| Some(dpdk(port))).collect();
        Self { world, translator: Translator::default(), options: TranslateOptions::default(), ports }
    }

    pub fn tree(&self) -> &Tree {
        self.world.worker.overlay.dhtb().tree()
    }

    /// Gives a class a ceiling of so many bits per second.
    pub fn limit(&self, direction: Direction, vnic: u32, class: Class, ceil: u64) {
        let tree = self.tree();
        let node = tree.leaf_node(tree.leaf(direction, vnic, class));
        tree.set(node, &NodeLimits { ceil, ..NodeLimits::FREE }, self.world.now.ns);
    }

    /// The NFT entries.
    pub fn entries(&self) -> Vec<NftEntry> {
        self.world.worker.overlay.nft().scan(0, 4096).0
    }

    /// Sends a frame in software; the key of the flow that it made.
    pub fn flow(&mut self, port: PortIndex, frame: &[u8]) -> FlowKey {
        let known: Vec<_> = self.entries().iter().map(|entry| entry.key).collect();
        self.world.pass(port, frame);
        let new = self.entries().into_iter().find(|entry| !known.contains(&entry.key));
        new.expect("a new flow").key
    }

    pub fn chain(&mut self, selector: FlowSelector) -> Result<Chain, OffloadRefusal> {
        let tables = tables(&self.world, &self.ports, &self.options);
        self.translator.chain(&tables, &selector)
    }
}

/// A flow as a whole.
pub fn whole(key: FlowKey) -> FlowSelector {
    FlowSelector { key, qpn: None, source_port: None }
}

/// A queue pair of a flow, with its source port.
pub fn pair(key: FlowKey, qpn: u32, source_port: u16) -> FlowSelector {
    FlowSelector { key, qpn: Some(Qpn::truncated(qpn)), source_port: Some(source_port) }
}
