//! What workers hold of the tree: bursts hold with it, nothing comes out of nothing, and paying together is paying.

use proptest::prelude::*;

use super::*;
use crate::direction::Direction;

const VNICS: u32 = 6;
const TENANTS: u32 = 2;
const START_NS: u64 = 5_000_000_000;
const TUNNEL: u32 = 50;

/// A packet, or several of one class at once, and how long after the last one.
#[derive(Clone, Debug)]
struct Ask {
    pause_ns: u64,
    worker: usize,
    vnic: u32,
    class: Class,
    sizes: Vec<u32>,
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let pause = prop_oneof![8 => Just(0u64), 8 => 0..5_000u64, 4 => 0..200_000u64, 1 => 0..20_000_000u64];
    let class = prop_oneof![Just(Class::Rdma), Just(Class::Tcp)];
    let sizes = prop::collection::vec(88..1_538u32, 1..12);
    let ask = (pause, 0..3usize, 0..VNICS, class, sizes)
        .prop_map(|(pause_ns, worker, vnic, class, sizes)| Ask { pause_ns, worker, vnic, class, sizes });
    prop::collection::vec(ask, 1..400)
}

/// The excess of what was sent over a rate, as a conformance test of a token bucket counts it (the dual of the bucket itself):
/// the most that any stretch of time had beyond what its rate brought.
#[derive(Default)]
struct Conformance {
    excess: f64,
    worst: f64,
    at_ns: u64,
}

impl Conformance {
    fn sent(&mut self, bytes: u64, rate: u64, now_ns: u64) {
        let earned = (now_ns - self.at_ns) as f64 * rate as f64 / 8e9;
        self.excess = (self.excess - earned).max(0.0) + bytes as f64;
        self.worst = self.worst.max(self.excess);
        self.at_ns = now_ns;
    }
}

struct Field {
    tree: Arc<Tree>,
    workers: Vec<Dhtb<()>>,
    now_ns: u64,
}

impl Field {
    fn new(workers: u64) -> Self {
        let tree = Arc::new(Tree::new(TreeSize { tenants: TENANTS, vnics: VNICS }, &|_, _| {}));
        for vnic in 0..VNICS {
            tree.set_tenant(vnic, vnic % TENANTS);
        }
        let workers = (0..workers).map(|seed| Dhtb::new(tree.clone(), 64, seed)).collect();
        Self { tree, workers, now_ns: START_NS }
    }

    fn ceil(&self, node: NodeId, rate: u64, burst: u64) {
        self.tree.set(node, &NodeLimits { ceil: rate, burst, ..NodeLimits::FREE }, self.now_ns);
    }

    /// The bytes, and those of tunnels, that are sent of a run as the stage pays for it: together, else one by one.
    fn run(&mut self, ask: &Ask) -> (u64, u64) {
        let leaf = self.tree.leaf(Direction::Out, ask.vnic, ask.class);
        let number = ask.worker % self.workers.len();
        let (worker, now_ns) = (&mut self.workers[number], self.now_ns);
        let bytes: u64 = ask.sizes.iter().map(|size| u64::from(*size)).sum();
        let tunnels = u64::from(TUNNEL) * ask.sizes.len() as u64;
        let paid = worker.pays(leaf, bytes, tunnels)
            || (ask.sizes.len() > 1 && worker.pays_together(leaf, bytes, tunnels, now_ns));
        if paid {
            return (bytes, tunnels);
        }
        let red = RedProfile::default();
        let mut sent = (0, 0);
        for size in &ask.sizes {
            let offer = Offer { bytes: *size, tunnel: TUNNEL, buffers: 1, kind: TrafficKind::Tcp };
            let is_sent = worker.pays(leaf, u64::from(*size), u64::from(TUNNEL))
                || worker.ask(leaf, &offer, &red, now_ns) == TokenDecision::Send;
            if is_sent {
                sent = (sent.0 + u64::from(*size), sent.1 + u64::from(TUNNEL));
            }
        }
        sent
    }

    fn held(&self, node: NodeId) -> u64 {
        self.workers.iter().map(|worker| worker.caches.held(node)).sum()
    }
}

proptest! {
    /// Whatever comes when, through whichever worker: no stretch of time has more of a node than its burst and what its rate
    /// brings meanwhile. What workers hold is part of the burst, however many classes a node has below it.
    #[test]
    fn dhtb_bursts_hold_with_what_workers_hold(
        asks in asks(),
        workers in 1..4u64,
        rates in (10_000_000..20_000_000_000u64, 10_000_000..20_000_000_000u64),
        bursts in (20_000..600_000u64, 20_000..600_000u64),
    ) {
        let mut field = Field::new(workers);
        let tenant = field.tree.tenant_node(Direction::Out, 1);
        field.ceil(tenant, rates.0, bursts.0);
        let vnic = field.tree.vnic_node(Direction::Out, 1);
        field.ceil(vnic, rates.1, bursts.1);
        let [mut of_tenant, mut of_vnic] = [Conformance::default(), Conformance::default()];
        for ask in asks {
            field.now_ns += ask.pause_ns;
            let (sent, _) = field.run(&ask);
            if ask.vnic % TENANTS == 1 {
                of_tenant.sent(sent, rates.0, field.now_ns);
            }
            if ask.vnic == 1 {
                of_vnic.sent(sent, rates.1, field.now_ns);
            }
        }
        // Costs of bytes are rounded down by a few millionths.
        prop_assert!(of_tenant.worst <= bursts.0 as f64 * 1.001 + 8.0, "tenant {} of {}", of_tenant.worst, bursts.0);
        prop_assert!(of_vnic.worst <= bursts.1 as f64 * 1.001 + 8.0, "vNIC {} of {}", of_vnic.worst, bursts.1);
    }

    /// What was drawn of a node was sent by somebody below it, or is held by a worker, and what is held is bounded.
    #[test]
    fn dhtb_what_is_drawn_is_sent_or_held(
        asks in asks(),
        workers in 1..4u64,
        limited in any::<bool>(),
        rate in 100_000_000..50_000_000_000u64,
    ) {
        let mut field = Field::new(workers);
        let link = field.tree.link_node(Direction::Out);
        if limited {
            field.ceil(link, rate, 0);
        }
        let mut sent = [0u64; VNICS as usize];
        let mut tunnels = 0;
        for ask in asks {
            field.now_ns += ask.pause_ns;
            let (bytes, of_tunnels) = field.run(&ask);
            sent[ask.vnic as usize] += bytes;
            tunnels += of_tunnels;
        }
        let view = |node| field.tree.view(node, field.now_ns);
        for (vnic, sent) in sent.iter().enumerate() {
            let node = field.tree.vnic_node(Direction::Out, vnic as u32);
            prop_assert_eq!(view(node).drawn, sent + field.held(node), "vNIC {}", vnic);
            let classes = Class::ALL.map(|class| field.tree.leaf_node(field.tree.leaf(Direction::Out, vnic as u32, class)));
            let drawn: u64 = classes.iter().map(|node| view(*node).drawn - field.held(*node)).sum();
            prop_assert_eq!(drawn, *sent, "classes of vNIC {}", vnic);
        }
        for tenant in 0..TENANTS {
            let node = field.tree.tenant_node(Direction::Out, tenant);
            let below: u64 = sent.iter().skip(tenant as usize).step_by(TENANTS as usize).sum();
            prop_assert_eq!(view(node).drawn, below + field.held(node), "tenant {}", tenant);
        }
        prop_assert_eq!(view(link).drawn, sent.iter().sum::<u64>() + tunnels + field.held(link));
        if limited {
            let quantum = u64::from(field.tree.node(link).quantum.load(Relaxed));
            prop_assert!(field.held(link) <= quantum, "{} of {}", field.held(link), quantum);
        }
    }
}

/// Who always has packets gets the whole rate, in runs that sometimes find tokens for all and sometimes for a few.
#[test]
fn dhtb_runs_get_the_whole_rate() {
    for workers in 1..4 {
        for rate in [100_000_000, GBIT, 10 * GBIT] {
            let mut field = Field::new(workers);
            field.ceil(field.tree.tenant_node(Direction::Out, 0), rate, 0);
            let mut bytes = 0;
            for step in 0..40_000u64 {
                field.now_ns += 5_000;
                for worker in 0..workers as usize {
                    let sizes = vec![1_538; 1 + (step % 12) as usize];
                    let ask = Ask { pause_ns: 0, worker, vnic: 2 * worker as u32, class: Class::Tcp, sizes };
                    let (sent, _) = field.run(&ask);
                    // Without what was saved up before.
                    bytes += if step >= 20_000 { sent } else { 0 };
                }
            }
            near(bytes as f64 * 8.0 / 0.1, rate as f64, 1.0);
        }
    }
}
