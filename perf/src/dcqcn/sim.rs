//! Senders before the switch's own token buckets ([`pipelines::qos`], the code that workers run), on a virtual clock.

use std::collections::VecDeque;
use std::sync::Arc;

use pipelines::Direction;
use pipelines::qos::{
    Class, Dhtb, Divider, NodeLimits, Offer, QueueLimits, RedProfile, TokenDecision, TrafficKind, Tree,
    TreeSize,
};

use super::LINK;
use super::reaction::{NotificationPoint, Parameters, ReactionPoint};
use super::tcp::{self, Tcp};
use crate::generator::choice::Dice;

/// Length of a step of the clock.
const STEP_NS: u64 = 1_000;
/// From the switch to the receiver, and from there to the sender.
const HALF_RTT_NS: u64 = 5_000;
/// Bytes of an RDMA packet's frame: 1024 of payload.
const RDMA_FRAME: u32 = 1082;
/// Length of a sample.
const SAMPLE_NS: u64 = 500_000;
/// Round trip of TCP's path, queues not counted.
const TCP_RTT_NS: u64 = 100_000;
/// How long a scenario lasts.
const LENGTH_NS: u64 = 300_000_000;
/// The most by which a seed moves the beginning of a sender.
pub const JITTER_NS: u64 = 2_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SenderKind {
    Rdma,
    Blind(f64),
    Tcp,
}

#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// vNIC; its number is its tenant's, too.
    pub vnic: u32,
    pub source: SenderKind,
    /// When it begins.
    pub from_ns: u64,
}

/// Limits of a part of the tree.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    Link(NodeLimits),
    Tenant(u32, NodeLimits),
    Class(u32, Class, NodeLimits),
}

#[derive(Clone, Debug)]
pub struct SimSetup {
    pub limits: Vec<Limit>,
    pub flows: Vec<Flow>,
    /// The chances of marks, and by how much each sender begins late, up to [`JITTER_NS`]; 0: nobody does.
    pub seed: u64,
}

/// What was seen of a sender.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// (seconds, bits per second that left the switch), one for each sample.
    pub rate: Vec<(f64, f64)>,
    /// (seconds, packets marked per second).
    pub marks: Vec<(f64, f64)>,
    /// (seconds, bytes that wait, or are owed, at the end of the sample) of its class.
    pub held: Vec<(f64, f64)>,
    pub dropped: u64,
    pub waited: u64,
    pub notified: u64,
    bytes: u64,
    marked: u64,
}

impl Trace {
    /// The mean rate from a time on, bits per second.
    pub fn mean_from(&self, seconds: f64) -> f64 {
        let late: Vec<f64> =
            self.rate.iter().filter(|point| point.0 >= seconds).map(|point| point.1).collect();
        late.iter().sum::<f64>() / late.len().max(1) as f64
    }
}

enum State {
    Rdma { rate: ReactionPoint, receiver: NotificationPoint, told: VecDeque<u64>, due_ns: u64 },
    Blind { rate: f64, due_ns: u64 },
    Tcp(Tcp),
}

/// Runs a scenario; a trace for each sender.
pub fn run(setup: &SimSetup) -> Vec<Trace> {
    let vnics = setup.flows.iter().map(|flow| flow.vnic + 1).max().unwrap_or(1);
    let tree = Arc::new(Tree::new(TreeSize { tenants: vnics, vnics }, &|_, _| {}));
    for limit in &setup.limits {
        let (node, limits) = match *limit {
            Limit::Link(limits) => (tree.link_node(Direction::Out), limits),
            Limit::Tenant(tenant, limits) => (tree.tenant_node(Direction::Out, tenant), limits),
            Limit::Class(vnic, class, limits) => {
                (tree.leaf_node(tree.leaf(Direction::Out, vnic, class)), limits)
            }
        };
        tree.set(node, &limits, 0);
    }
    (0..vnics).for_each(|vnic| tree.set_tenant(vnic, vnic));
    let start = 1_000_000_000;
    let begins: Vec<u64> = setup
        .flows
        .iter()
        .enumerate()
        .map(|(n, flow)| start + flow.from_ns + jitter(setup.seed, n as u64))
        .collect();
    let mut sim = Sim {
        divider: Divider::new(tree.clone()),
        dhtb: Dhtb::new(tree.clone(), 16_384, setup.seed.wrapping_mul(2) | 1),
        tree,
        states: setup.flows.iter().zip(&begins).map(|(flow, begins)| state(flow, *begins)).collect(),
        traces: vec![Trace::default(); setup.flows.len()],
        setup,
        red: RedProfile::default(),
        begins,
        now_ns: start,
    };
    let mut sampled = start;
    while sim.now_ns < start + LENGTH_NS {
        sim.step();
        if sim.now_ns >= sampled + SAMPLE_NS {
            sim.sample(start, sim.now_ns - sampled);
            sampled = sim.now_ns;
        }
    }
    sim.traces
}

/// By how much a seed lets a sender begin late.
fn jitter(seed: u64, sender: u64) -> u64 {
    let mut dice = Dice::new(seed.wrapping_sub(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(sender));
    if seed == 0 { 0 } else { dice.roll() % JITTER_NS }
}

fn state(flow: &Flow, begins: u64) -> State {
    match flow.source {
        SenderKind::Rdma => State::Rdma {
            rate: ReactionPoint::new(Parameters::default(), LINK as f64, begins),
            receiver: NotificationPoint::default(),
            told: VecDeque::new(),
            due_ns: begins,
        },
        SenderKind::Blind(rate) => State::Blind { rate, due_ns: begins },
        SenderKind::Tcp => State::Tcp(Tcp::new(TCP_RTT_NS)),
    }
}

struct Sim<'a> {
    setup: &'a SimSetup,
    red: RedProfile,
    tree: Arc<Tree>,
    dhtb: Dhtb<usize>,
    divider: Divider,
    states: Vec<State>,
    traces: Vec<Trace>,
    /// When each sender begins.
    begins: Vec<u64>,
    now_ns: u64,
}

impl Sim<'_> {
    fn step(&mut self) {
        self.now_ns += STEP_NS;
        for n in 0..self.states.len() {
            if self.now_ns < self.begins[n] {
                continue;
            }
            let now = self.now_ns;
            let (mut packets, tcp) = match &mut self.states[n] {
                State::Rdma { rate, told, due_ns, .. } => {
                    while told.front().is_some_and(|at| *at <= now) {
                        told.pop_front();
                        rate.notified(now);
                        self.traces[n].notified += 1;
                    }
                    rate.tick(now);
                    let packets = due(due_ns, rate.rate(), now);
                    rate.sent(packets * u64::from(RDMA_FRAME));
                    (packets, false)
                }
                State::Blind { rate, due_ns } => (due(due_ns, *rate, now), false),
                State::Tcp(tcp) => {
                    tcp.tick(now);
                    (u64::MAX, true)
                }
            };
            while packets > 0 {
                if tcp && !self.window_allows(n) {
                    break;
                }
                packets -= 1;
                self.offer(n);
            }
        }
        while let Some((n, _, marked)) = self.dhtb.release(&self.red, self.now_ns) {
            self.left(n, marked);
        }
        self.divider.tick(self.now_ns);
    }

    fn window_allows(&mut self, n: usize) -> bool {
        match &mut self.states[n] {
            State::Tcp(tcp) => tcp.send(),
            _ => true,
        }
    }

    fn frame(&self, n: usize) -> u32 {
        match self.states[n] {
            State::Tcp(_) => tcp::FRAME,
            _ => RDMA_FRAME,
        }
    }

    fn offer(&mut self, n: usize) {
        let (class, kind) = match self.states[n] {
            State::Tcp(_) => (Class::Tcp, TrafficKind::Tcp),
            _ => (Class::Rdma, TrafficKind::Rdma),
        };
        let leaf = self.tree.leaf(Direction::Out, self.setup.flows[n].vnic, class);
        let bytes = self.frame(n) + self.red.overhead;
        if self.dhtb.pays(leaf, u64::from(bytes), 0) {
            self.left(n, false);
            return;
        }
        let offer = Offer { bytes, tunnel: 0, buffers: 1, kind };
        match self.dhtb.ask(leaf, &offer, &self.red, self.now_ns) {
            TokenDecision::Send => self.left(n, false),
            TokenDecision::Mark => self.left(n, true),
            TokenDecision::Wait(wait) => {
                match self.dhtb.keep(leaf, n, offer, QueueLimits::default(), self.now_ns, wait) {
                    Ok(()) => self.traces[n].waited += 1,
                    Err(_) => self.lost(n),
                }
            }
        }
    }

    fn lost(&mut self, n: usize) {
        self.traces[n].dropped += 1;
        if let State::Tcp(tcp) = &mut self.states[n] {
            tcp.lost(self.now_ns);
        }
    }

    fn left(&mut self, n: usize, marked: bool) {
        let bytes = u64::from(self.frame(n) + self.red.overhead);
        self.traces[n].bytes += bytes;
        self.traces[n].marked += u64::from(marked);
        match &mut self.states[n] {
            State::Rdma { receiver, told, .. } => {
                let there = self.now_ns + HALF_RTT_NS;
                if marked && receiver.marked(&Parameters::default(), there) {
                    told.push_back(there + HALF_RTT_NS);
                }
            }
            State::Blind { .. } => {}
            State::Tcp(tcp) => tcp.left(self.now_ns),
        }
    }

    fn sample(&mut self, start: u64, length_ns: u64) {
        let (at, seconds) = ((self.now_ns - start) as f64 / 1e9, length_ns as f64 / 1e9);
        for n in 0..self.traces.len() {
            let class = if matches!(self.states[n], State::Tcp(_)) { Class::Tcp } else { Class::Rdma };
            let leaf = self.tree.leaf(Direction::Out, self.setup.flows[n].vnic, class);
            let debt = self.tree.view(self.tree.leaf_node(leaf), self.now_ns).debt;
            let held = f64::from(self.dhtb.depth(leaf).bytes) + debt as f64;
            let trace = &mut self.traces[n];
            trace.rate.push((at, trace.bytes as f64 * 8.0 / seconds));
            trace.marks.push((at, trace.marked as f64 / seconds));
            trace.held.push((at, held));
            (trace.bytes, trace.marked) = (0, 0);
        }
    }
}

fn due(due_ns: &mut u64, rate: f64, now_ns: u64) -> u64 {
    let gap = (f64::from(RDMA_FRAME) * 8e9 / rate.max(1.0)) as u64;
    // A sender that was held up does not catch up.
    *due_ns = (*due_ns).max(now_ns.saturating_sub(10 * STEP_NS));
    let mut packets = 0;
    while *due_ns <= now_ns {
        *due_ns += gap.max(1);
        packets += 1;
    }
    packets
}
