//! A device of our own that takes rules through templates and queues (`testdev`, net_eswitch), and what it says of itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pmd::{Eal, FlowEngine, FlowQueue, FlowQueues, Mempool, Port, PortConfig, StartedPort};
use rules::{Action, Attr, BackEnd, FlowRule, Item, ItemKind, RuleId, items};

use super::{eswitch_eal, pool, start, stop};

/// A rule of this group about this address, which leads on or ends the packet's way.
pub fn rule(group: u32, address: u32, to: Option<u32>) -> FlowRule {
    let end = to.map_or(Action::Drop, |group| Action::Jump { group });
    FlowRule {
        attr: Attr::transfer(group, 0),
        pattern: vec![Item::any(ItemKind::Eth), Item::with(items::ipv4::DST, address)],
        actions: vec![Action::Count, end],
    }
}

pub fn queues(depth: u32) -> FlowQueues {
    FlowQueues { depth, rules_per_table: 1000, ..FlowQueues::for_rules(100_000) }
}

pub struct Bed {
    pub eal: Eal,
    pub pool: Mempool,
}

/// A started uplink of an e-switch and its queue.
pub type Uplink = (StartedPort, Vec<pmd::RxQueue>, Vec<pmd::TxQueue>);

impl Bed {
    pub fn new() -> Self {
        let eal = eswitch_eal();
        let pool = pool(&eal, 4095);
        Self { eal, pool }
    }

    pub fn uplink(&self, args: &str, depth: u32) -> Uplink {
        self.uplink_with(args, queues(depth))
    }

    pub fn uplink_with(&self, args: &str, queues: FlowQueues) -> Uplink {
        self.start_with(Port::attach(&self.eal, "net_eswitch0", args).unwrap(), queues)
    }

    /// Starts the uplink again.
    pub fn start(&self, port: Port, depth: u32) -> Uplink {
        self.start_with(port, queues(depth))
    }

    fn start_with(&self, port: Port, queues: FlowQueues) -> Uplink {
        let config = PortConfig { flow_engine: FlowEngine::Async(queues), ..PortConfig::default() };
        start(port, &config, &self.pool)
    }

    /// Works with the flow queue of an uplink that is there for this time only. What is left in the device afterwards.
    pub fn run(&self, args: &str, depth: u32, work: impl FnOnce(&StartedPort, &mut FlowQueue)) -> Left {
        let (port, rx, tx) = self.uplink(args, depth);
        let mut queue = port.flow_queue(0).unwrap();
        work(&port, &mut queue);
        drop(queue);
        let mut left = Left::of(&port);
        if args.contains("profiles=1") {
            // The one for all meters stays until the port stops.
            left.profiles = left.profiles.saturating_sub(1);
        }
        stop(port, rx, tx).detach().unwrap();
        left
    }
}

/// What a device holds once its flow queue is gone, and what was done that no application may do: nothing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Left {
    pub rules: u64,
    pub tables: u64,
    pub templates: u64,
    pub meters: u64,
    pub profiles: u64,
    pub misused: u64,
    pub dangling_jumps: u64,
}

impl Left {
    fn of(port: &StartedPort) -> Self {
        Self {
            rules: count(port, "flow_rules"),
            tables: count(port, "flow_tables"),
            templates: count(port, "flow_templates"),
            meters: count(port, "flow_meters"),
            profiles: count(port, "flow_profiles"),
            misused: count(port, "flow_misused"),
            dangling_jumps: count(port, "flow_dangling_jumps"),
        }
    }
}

/// What the device counts.
pub fn count(port: &StartedPort, name: &str) -> u64 {
    let xstats: BTreeMap<String, u64> = port.xstats().unwrap().into_iter().collect();
    *xstats.get(name).unwrap_or_else(|| panic!("no {name} among {xstats:?}"))
}

/// Nothing was done that no application may do, and no packet could have met half a chain.
#[track_caller]
pub fn well_behaved(port: &StartedPort) {
    assert_eq!((count(port, "flow_misused"), count(port, "flow_dangling_jumps")), (0, 0));
}

/// Asks until the queue has answered for so many rules.
pub fn answers(queue: &mut FlowQueue, wanted: usize) -> BTreeMap<RuleId, bool> {
    let began = Instant::now();
    let mut results = Vec::new();
    while results.len() < wanted && began.elapsed() < Duration::from_secs(20) {
        queue.completed(&mut results);
    }
    assert_eq!(results.len(), wanted);
    results.into_iter().map(|(id, result)| (id, result.is_ok())).collect()
}
