//! A host with an e-switch in front of its worker, into which flows are put and out of which they are taken between any two
//! packets.

use std::collections::HashMap;
use std::sync::Arc;

use pipelines::encap_hash::EncapHash;
use pipelines::offload::sim::{EncapHashKind, Eswitch, EswitchConfig, Fate};
use pipelines::offload::translate::{Chain, EntropySource, FlowSelector};
use pipelines::offload::{InstalledChain, RuleState, RuleStore};
use pipelines::snapshot::PortIndex;
use rules::mlx5::Nic;
use rules::{Action, BackEnd, Cause, FlowError, Usage};
use wire::HeapBuf;

use crate::host::*;

/// The host with an e-switch.
pub struct Mixed {
    pub host: Host,
    pub eswitch: Eswitch,
    pub store: RuleStore,
    pub chains: Vec<(FlowSelector, InstalledChain)>,
    /// What chains saw that are gone.
    counted: HashMap<FlowSelector, Usage>,
    now_ns: u64,
}

/// The outer source ports of an e-switch for rules of this kind: its own where they leave them to it.
fn encap_hash(entropy: EntropySource) -> EncapHashKind {
    match entropy {
        EntropySource::Hardware => EncapHashKind::Crc,
        EntropySource::Exact | EntropySource::HardwareButRoce => EncapHashKind::None,
    }
}

/// Has the rules of a host leave outer source ports to the e-switch or not, and its software follow that in what the
/// e-switch chooses: by what it was told, and by nothing of the e-switch's own.
pub fn choose_ports(host: &mut Host, entropy: EntropySource) {
    host.options.entropy = entropy;
    let config = EswitchConfig { encap_hash: encap_hash(entropy), ..EswitchConfig::default() };
    let mut eswitch = Eswitch::new(config);
    let learned = EncapHash::learn(4791, 7, |inner| eswitch.encap_source_port(inner)).ok();
    assert_eq!(learned.is_some(), entropy == EntropySource::Hardware);
    host.world.snapshot.encap_hash = learned.map(Arc::new);
}

impl Mixed {
    /// An e-switch that takes what a NIC takes. Rules come into force a quarter of a millisecond apart.
    pub fn new(host: Host, nic: Nic) -> Self {
        let config = EswitchConfig {
            refresh_ns: 0,
            insertion_rate: 4000,
            nic: Some(nic),
            encap_hash: encap_hash(host.options.entropy),
            ..EswitchConfig::default()
        };
        let (eswitch, store) = (Eswitch::new(config), RuleStore::default());
        Self { host, eswitch, store, chains: Vec::new(), counted: HashMap::new(), now_ns: 0 }
    }

    /// Offloads what is not refused, and is not there.
    pub fn offload(&mut self, selector: FlowSelector) -> bool {
        let selector = selector.canonical(&self.host.tables());
        if self.chains.iter().any(|(other, _)| *other == selector) {
            return false;
        }
        let Ok(chain) = self.host.chain(selector) else { return false };
        ascends(&chain);
        let installed = self
            .store
            .install(&mut self.eswitch, chain)
            .unwrap_or_else(|error| panic!("{selector:?}: {error}"));
        self.chains.push((selector, installed));
        true
    }

    pub fn withdraw(&mut self, index: usize) {
        let (selector, installed) = self.chains.remove(index);
        self.account(selector, installed);
    }

    fn account(&mut self, selector: FlowSelector, installed: InstalledChain) {
        let usage = self.store.remove(&mut self.eswitch, installed);
        let sum = self.counted.entry(selector).or_default();
        sum.packets += usage.packets;
        sum.bytes += usage.bytes;
    }

    /// After a change of topology: each chain anew, those that are refused now withdrawn. `at_once`: no packet may go
    /// where it went before, and chains do without hardware in between; else the new rules take over when they are in
    /// force.
    pub fn follow(&mut self, at_once: bool) {
        for (before, old) in std::mem::take(&mut self.chains) {
            let selector = before.canonical(&self.host.tables());
            let is_there = self.chains.iter().any(|(other, _)| *other == selector);
            let chain = self.host.chain(selector).ok().filter(|_| !is_there);
            let mut old = Some(old);
            if let Some(old) = old.take_if(|_| at_once || chain.is_none()) {
                self.account(before, old);
            }
            if let Some(chain) = chain {
                let new = self.store.install(&mut self.eswitch, chain).unwrap();
                while old.is_some() && self.store.state(&new) != RuleState::InForce {
                    self.wait(1);
                }
                self.chains.push((selector, new));
            }
            if let Some(old) = old {
                self.account(before, old);
            }
        }
    }

    /// Lets time go on.
    pub fn wait(&mut self, ms: u64) {
        self.now_ns += ms * 1_000_000;
        self.eswitch.advance(self.now_ns);
        self.store.poll(&mut self.eswitch);
    }

    /// One packet through the e-switch and, where that says so, the worker.
    pub fn pass(&mut self, port: PortIndex, frame: &[u8]) -> (Fate, Vec<(PortIndex, Vec<u8>)>) {
        let mut packet = HeapBuf::new(frame);
        let fate = self.eswitch.run(&mut packet, dpdk(port));
        let out = match fate {
            Fate::Out { port } => vec![(port - dpdk(0), packet.to_vec())],
            Fate::Software { port, .. } => {
                assert_eq!(packet.to_vec(), frame, "what comes to software is what came in");
                self.host.world.run(port - dpdk(0), vec![packet])
            }
            Fate::Dropped | Fate::Failed => panic!("{fate:?}"),
        };
        (fate, out)
    }

    /// What hardware counted of the flows for which `of` is true.
    pub fn hardware(&mut self, of: impl Fn(&FlowSelector) -> bool) -> (u64, u64) {
        let Self { chains, eswitch, store, counted, .. } = self;
        let installed =
            chains.iter().map(|(selector, chain)| (*selector, usage(store.query(eswitch, chain))));
        let all = installed.chain(counted.iter().map(|(selector, usage)| (*selector, *usage)));
        all.filter(|(selector, _)| of(selector))
            .fold((0, 0), |(packets, bytes), (_, usage)| (packets + usage.packets, bytes + usage.bytes))
    }
}

/// What a chain has seen; nothing before it is in force.
fn usage(result: Result<Usage, FlowError>) -> Usage {
    match result {
        Err(error) if error.cause == Cause::Again => Usage::default(),
        usage => usage.unwrap(),
    }
}

/// Rules lead to higher groups only: a queue takes them away by their groups, the lowest first.
pub fn ascends(chain: &Chain) {
    for rule in chain.rules() {
        for action in &rule.actions {
            if let Action::Jump { group } = action {
                assert!(*group > rule.attr.group, "{rule} leads back");
            }
        }
    }
}
