//! Rates of the config in the tree, and what they become when the config changes.

use super::*;
use crate::topology::Topology;
use crate::topology::testing::Names;
use crate::topology::underlay::Neighbours;
use pipelines::qos::{HardwareWork, TreeSize};

struct Lab {
    topology: Topology,
    neighbours: Neighbours,
    control: QosControl,
}

impl Lab {
    fn new() -> Self {
        let tree = Arc::new(Tree::new(TreeSize { tenants: 8, vnics: 8 }, &|_, _| {}));
        Self {
            topology: Topology::new(64),
            neighbours: Neighbours::default(),
            control: QosControl::new(tree),
        }
    }

    fn go(&mut self, link: &str, vpcs: &[(&str, &str)], vnics: &[(&str, &str, &str)]) {
        let mut text = format!("[qos]\n{link}\n[[trunk]]\nname = \"t\"\nport = {{ kind = \"null\" }}\n");
        for (n, (name, more)) in vpcs.iter().enumerate() {
            text += &format!("[[vpc]]\nname = \"{name}\"\nvni = {}\n{more}\n", n + 1);
            text += &format!("[[subnet]]\nvpc = \"{name}\"\nprefix = \"10.0.0.0/24\"\n");
        }
        for (n, (name, vpc, more)) in vnics.iter().enumerate() {
            let n = n + 1;
            text += &format!("[[vnic]]\nname = \"{name}\"\nvpc = \"{vpc}\"\nmac = \"02:00:00:00:00:0{n}\"\n");
            text += &format!("vips = [\"10.0.0.{n}\"]\nport = \"t\"\nvlan = {n}\n{more}\n");
        }
        let config = match Config::parse(&text, "f") {
            Ok(config) => config,
            Err(errors) => panic!("{errors}\n{text}"),
        };
        self.topology.rebuild(&config, &Names(&[]), &self.neighbours).unwrap();
        let before = self.topology.snapshot().clone();
        let snapshot = self.topology.commit();
        let (gone, concerned) = crate::switch::concerned::testing::all(&before, &snapshot, &config);
        self.control.configure(&config, &gone, &concerned, &snapshot, 0);
        self.topology.settle(&mut self.neighbours);
    }

    fn index(&self, vnic: &str) -> u32 {
        self.topology.snapshot().vnics.iter().flatten().find(|row| row.name == vnic).unwrap().index
    }

    /// (assured, ceil, weight) of a node as the tree has it, Mbit/s.
    fn seen(&self, node: NodeId) -> (u64, u64, u32) {
        let view = self.control.tree.view(node, 0);
        let megabits = |bits: u64| (bits as f64 / 1e6).round() as u64;
        (megabits(view.assured), megabits(view.ceil), view.weight)
    }

    /// Bytes of control packets that a vNIC may send at once.
    fn control_bytes(&self, vnic: &str) -> u64 {
        let tree = &self.control.tree;
        let leaf = tree.leaf(Direction::Out, self.index(vnic), Class::Rdma);
        // Long after whatever was sent before.
        let now = 1_000_000_000_000;
        (0..1_000_000).take_while(|_| tree.may_control(leaf, 100, now)).count() as u64 * 100
    }
}

#[test]
fn repair_dhtb_buckets_are_full_after_834_days_of_rest() {
    use pipelines::Direction;
    use pipelines::qos::Class;
    let mut lab = Lab::new();
    lab.go(
        "link = { out = \"1Gbit\" }",
        &[("a", "")],
        &[("va", "a", "qos = { out = { ceil = \"8Mbit\" } }")],
    );
    let tree = lab.control.tree.clone();
    let leaf = tree.leaf(Direction::Out, 0, Class::Rdma);
    tree.set_control_rate(Direction::Out, 0, 8_000_000, 0);
    let start = 1_000_000_000;
    while tree.may_control(leaf, 1_500, start) {}
    let day = 86_400_000_000_000;
    // All of them are passed within an hour of turns of 20 ms.
    for turn in 0..50 * 3_600 {
        lab.control.tend(start + day + turn * 20_000_000);
    }
    // The clock of buckets wraps after 2^56 ns; four hours before, the bucket would be in debt for four hours.
    assert!(tree.may_control(leaf, 1_500, start + (1 << 56) - 4 * 3_600_000_000_000));
}

#[test]
fn dhtb_every_node_gets_its_limits_and_loses_them() {
    let mut lab = Lab::new();
    let link = "link = { out = \"1Gbit\" }";
    lab.go(
        link,
        &[("a", "qos = { out = { ceil = \"600Mbit\", weight = 3 } }"), ("b", "")],
        &[
            ("v", "a", "qos = { in = { ceil = \"50Mbit\" }, rdma = { out = { assured = \"100Mbit\" } } }"),
            ("w", "a", "qos = { out = { assured = \"20Mbit\", weight = 5 } }"),
            ("x", "b", ""),
        ],
    );
    let tree = lab.control.tree.clone();
    let vnic = |lab: &Lab, name: &str, direction| lab.seen(tree.vnic_node(direction, lab.index(name)));
    assert_eq!(lab.seen(tree.link_node(Direction::Out)), (0, 1000, 1));
    assert_eq!(lab.seen(tree.link_node(Direction::In)), (0, 0, 1));
    // What its children are promised, a node has.
    let a = tree.tenant_of(lab.index("v"));
    assert_eq!(lab.seen(tree.tenant_node(Direction::Out, a)), (120, 600, 3));
    assert_eq!(vnic(&lab, "v", Direction::Out), (100, 0, 1));
    assert_eq!(vnic(&lab, "v", Direction::In), (0, 50, 1));
    assert_eq!(vnic(&lab, "w", Direction::Out), (20, 0, 5));
    let rdma = tree.leaf_node(tree.leaf(Direction::Out, lab.index("v"), Class::Rdma));
    assert_eq!(lab.seen(rdma), (100, 0, 1));
    assert_ne!(tree.tenant_of(lab.index("x")), a);
    // v moves to b, w goes; the link is free again.
    lab.go("", &[("a", ""), ("b", "qos = { out = { ceil = \"10Mbit\" } }")], &[("v", "b", "")]);
    assert_eq!(lab.seen(tree.link_node(Direction::Out)), (0, 0, 1));
    assert_eq!(lab.seen(tree.tenant_node(Direction::Out, a)), (0, 0, 1));
    assert_eq!(lab.seen(rdma), (0, 0, 1));
    assert_eq!(vnic(&lab, "v", Direction::In), (0, 0, 1));
    let b = tree.tenant_of(lab.index("v"));
    assert_ne!(a, b);
    assert_eq!(lab.seen(tree.tenant_node(Direction::Out, b)), (0, 10, 1));
    assert_eq!(lab.control.applied.len(), 1);
}

#[test]
fn dhtb_control_packets_have_a_part_of_the_nearest_ceiling() {
    let mut lab = Lab::new();
    let rates = "link = { out = \"100Gbit\" }\ncontrol-rate = \"10%\"";
    lab.go(
        rates,
        &[("a", ""), ("b", "qos = { out = { ceil = \"1Gbit\" } }")],
        &[("v", "a", ""), ("w", "b", ""), ("x", "b", "qos = { out = { ceil = \"500Mbit\" } }")],
    );
    let [v, w, x] = ["v", "w", "x"].map(|name| lab.control_bytes(name));
    // Ten milliseconds of a tenth of the rate (Tree::may_control).
    assert!(v.abs_diff(12_500_000) <= 12_500, "{v}");
    assert!(w.abs_diff(125_000) <= 200, "{w}");
    assert!(x.abs_diff(62_500) <= 200, "{x}");
    // The nearest one may be of its RDMA.
    lab.go("", &[("a", "")], &[("v", "a", "qos = { rdma = { out = { ceil = \"1Gbit\" } } }")]);
    assert!(lab.control_bytes("v") < 1_000_000);
    // Without any limit above it, a vNIC's control packets have none.
    lab.go("", &[("a", "")], &[("v", "a", "")]);
    assert_eq!(lab.control_bytes("v"), 100_000_000);
}

#[test]
fn dhtb_rates_are_measured_over_whole_seconds() {
    let mut lab = Lab::new();
    lab.go("link = \"1Gbit\"", &[("a", "")], &[("v", "a", "")]);
    let node = lab.control.tree.link_node(Direction::Out);
    for ms in (1_000..=1_900).step_by(20) {
        lab.control.tend(ms * 1_000_000);
    }
    assert_eq!(lab.control.rate(node), None);
    let tree = &lab.control.tree;
    let work = HardwareWork { bytes: 3_000_000, over_ns: 0, unread_ns: 0 };
    tree.debit(tree.leaf(Direction::Out, lab.index("v"), Class::Tcp), work, 1_950_000_000);
    pipelines::qos::Divider::new(tree.clone()).tick(1_960_000_000);
    lab.control.tend(2_500_000_000);
    // 24 Mbit in one and a half seconds.
    assert_eq!(lab.control.rate(node), Some(16e6));
    // Without a limit nothing is counted, and nothing is said of what was.
    lab.go("", &[("a", "")], &[("v", "a", "")]);
    lab.control.tend(2_600_000_000);
    assert_eq!(lab.control.rate(node), None);
}
