//! Whatever changed before, part by part: rates and quotas are those that a fresh start gives the same config.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use pipelines::Direction;
use pipelines::connections::Connections;
use pipelines::ledger::LedgerParams;
use pipelines::qos::{Class, NodeId, NodeLimits, Tree, TreeSize};
use pipelines::rcft::{LedgerLimits, RcftParams, RcftShared};
use proptest::prelude::*;

use super::testing::all;
use crate::config::{Config, Difference};
use crate::rdma;
use crate::switch::qos::QosControl;
use crate::switch::rcft::RcftControl;
use crate::topology::testing::Names;
use crate::topology::underlay::Neighbours;
use crate::topology::{Extent, Topology};

const VPCS: u8 = 3;
const VNICS: u8 = 5;
const PORTS: Names = Names(&["t"]);
/// Rates of a VPC or a vNIC.
const RATES: [&str; 6] = [
    "",
    "qos = { out = { ceil = \"8Mbit\" } }",
    "qos = { out = { assured = \"2Mbit\" }, in = { ceil = \"90Mbit\", burst = \"50kB\" } }",
    "qos = { in = { assured = \"3Mbit\", weight = 7 } }",
    "qos = { rdma = { out = { assured = \"1Mbit\", ceil = \"30Mbit\" } } }",
    "qos = { tcp = { in = { assured = \"4Mbit\" } }, out = { weight = 2 } }",
];
const LINKS: [&str; 3] = ["", "link = \"1Gbit\"", "link = { out = \"200Mbit\" }\ncontrol-rate = \"5%\""];
const RCFTS: [&str; 3] = ["", "new-rate = 9", "quota = 20\nidle-timeout = \"90s\""];
const QUOTAS: [&str; 4] = ["", "qp-quota = 3", "qp-quota = 100", "refuse = \"reject\""];

/// A VPC or a vNIC: whether it is there, and places in the lists above.
#[derive(Clone, Copy, Debug)]
struct Object {
    is_there: bool,
    vpc: u8,
    rates: usize,
    quota: usize,
}

#[derive(Clone, Debug)]
struct World {
    link: usize,
    rcft: usize,
    vpcs: [Object; VPCS as usize],
    vnics: [Object; VNICS as usize],
}

impl World {
    /// Nothing when the rates do not go together.
    fn config(&self) -> Option<Config> {
        let mut text = format!(
            "[qos]\n{}\n[rcft]\n{}\n[[trunk]]\nname = \"t\"\nport = {{ kind = \"null\" }}\n",
            LINKS[self.link], RCFTS[self.rcft]
        );
        for (n, vpc) in self.vpcs.iter().enumerate().filter(|(_, vpc)| vpc.is_there) {
            // Class limits are a vNIC's alone.
            let rates = RATES[vpc.rates % 4];
            let _ = write!(
                text,
                "[[vpc]]\nname = \"n{n}\"\nvni = {}\n{rates}\n[[subnet]]\nvpc = \"n{n}\"\nprefix = \"10.0.0.0/24\"\n",
                n + 1
            );
        }
        let there = |vnic: &&(usize, &Object)| vnic.1.is_there && self.vpcs[usize::from(vnic.1.vpc)].is_there;
        for (n, vnic) in self.vnics.iter().enumerate().filter(|vnic| there(&vnic)) {
            let (n, vpc) = (n + 1, vnic.vpc);
            let _ = write!(
                text,
                "[[vnic]]\nname = \"v{n}\"\nvpc = \"n{vpc}\"\nmac = \"02:00:00:00:00:0{n}\"\nvips = [\"10.0.0.{n}\"]\n\
                 port = \"t\"\nvlan = {n}\n{}\n{}\n",
                RATES[vnic.rates], QUOTAS[vnic.quota]
            );
        }
        Config::parse(&text, "test").ok()
    }
}

/// What control has set, by name.
#[derive(Debug, Default, PartialEq)]
struct Limits {
    nodes: BTreeMap<String, (NodeLimits, u64, u64, u32)>,
    queue_pairs: BTreeMap<String, (LedgerLimits, LedgerLimits)>,
}

struct Lab {
    topology: Topology,
    neighbours: Neighbours,
    qos: QosControl,
    rcft: RcftControl,
    config: Config,
}

impl Lab {
    fn new() -> Self {
        let rcft = RcftShared::new(RcftParams { entries: 4096, vnics: 64, workers: 1, seed: 7 }, &|_, _| {});
        let ways = LedgerParams { entries: 64, vnics: 64, workers: 1, seed: 7 };
        let ways = Arc::new(Connections::new(&ways, &|_, _| {}));
        Self {
            topology: Topology::new(64),
            neighbours: Neighbours::default(),
            qos: QosControl::new(Arc::new(Tree::new(TreeSize { tenants: 16, vnics: 64 }, &|_, _| {}))),
            rcft: RcftControl::new(rcft, ways, None),
            config: Config::default(),
        }
    }

    /// Goes over to a config as the switch does: only where it differs, unless it is to be looked at as a whole.
    fn go(&mut self, config: &Config, as_a_whole: bool) {
        let old = std::mem::replace(&mut self.config, config.clone());
        let difference = match as_a_whole {
            true => Difference::whole(&old, config),
            false => Difference::between(&old, config),
        };
        self.topology.follow(config, &Extent::of(&difference), &PORTS, &self.neighbours).unwrap();
        let before = self.topology.snapshot().clone();
        let after = self.topology.commit();
        let (gone, concerned) = all(&before, &after, &difference.new);
        let quotas = rdma::quotas(&difference.new, &rdma::Devices::default()).unwrap();
        self.rcft.configure(config, &quotas, &gone, &concerned);
        self.qos.configure(config, &gone, &concerned, &after, 0);
        self.topology.settle(&mut self.neighbours);
        let held: Vec<u32> = self.topology.held().collect();
        held.into_iter().for_each(|index| self.topology.let_go(index));
    }

    fn limits(&self) -> Limits {
        let (tree, snapshot) = (self.qos.tree(), self.topology.snapshot());
        let mut limits = Limits::default();
        let node = |node: NodeId| {
            let view = tree.view(node, 0);
            (self.qos.limits(node), view.assured, view.ceil, view.weight)
        };
        for direction in Direction::ALL {
            limits.nodes.insert(format!("link {direction:?}"), node(tree.link_node(direction)));
            for vpc in snapshot.vpcs.iter().flatten() {
                let name = format!("{} {direction:?}", vpc.name);
                limits.nodes.insert(name, node(tree.tenant_node(direction, vpc.index)));
            }
            for vnic in snapshot.vnics.iter().flatten() {
                let name = format!("{} {direction:?}", vnic.name);
                limits.nodes.insert(name.clone(), node(tree.vnic_node(direction, vnic.index)));
                for class in Class::ALL {
                    let leaf = tree.leaf_node(tree.leaf(direction, vnic.index, class));
                    limits.nodes.insert(format!("{name} {class:?}"), node(leaf));
                }
            }
        }
        for vnic in snapshot.vnics.iter().flatten() {
            let enforced = self.rcft.shared().ledger.limits(vnic.index);
            limits.queue_pairs.insert(vnic.name.clone(), (self.rcft.limits(vnic.index), enforced));
        }
        limits
    }
}

fn object() -> impl Strategy<Value = Object> {
    (any::<bool>(), 0..VPCS, 0..RATES.len(), 0..QUOTAS.len())
        .prop_map(|(is_there, vpc, rates, quota)| Object { is_there, vpc, rates, quota })
}

/// One thing of a world that becomes another, and which.
fn step() -> impl Strategy<Value = (usize, Object)> {
    (0..usize::from(2 + VPCS + VNICS), object())
}

proptest! {
    #[test]
    fn changes_by_part_end_where_a_fresh_start_begins(
        vpcs in prop::array::uniform3(object()),
        vnics in prop::array::uniform5(object()),
        steps in prop::collection::vec(step(), 1..25),
    ) {
        let mut world = World { link: 1, rcft: 0, vpcs, vnics };
        let (mut lab, mut parts) = (Lab::new(), 0);
        for (what, object) in steps {
            let before = world.clone();
            match what {
                0 => world.link = object.rates % LINKS.len(),
                1 => world.rcft = object.rates % RCFTS.len(),
                vpc if vpc < 2 + usize::from(VPCS) => world.vpcs[vpc - 2] = object,
                vnic => world.vnics[vnic - 2 - usize::from(VPCS)] = object,
            }
            let Some(config) = world.config() else {
                world = before;
                continue;
            };
            parts += usize::from(!Difference::between(&lab.config, &config).is_whole);
            lab.go(&config, false);
            let mut fresh = Lab::new();
            fresh.go(&config, true);
            prop_assert_eq!(lab.limits(), fresh.limits());
            prop_assert_eq!(lab.rcft.sums(), fresh.rcft.sums());
        }
        // Else there would have been nothing to see.
        prop_assume!(parts > 0);
    }
}
