//! Senders of all kinds and several workers on a virtual clock.

use super::super::*;
use crate::direction::Direction;

pub const OVERHEAD: u32 = 24;
/// Time between two polls of the workers, unless said otherwise.
pub const STEP_NS: u64 = 2_000;
pub const GBIT: u64 = 1_000_000_000;

/// How a sender behaves.
#[derive(Clone, Copy, Debug)]
pub enum Manner {
    /// Keeps a few packets waiting at all times, as a TCP with data does.
    Greedy,
    /// Sends at this many bits per second whatever happens.
    Blind(u64),
    /// Sends at this rate for so many nanoseconds of each period.
    OnOff { rate: u64, on_ns: u64, period_ns: u64 },
    /// Has at most so many packets on the way, and hears of one that arrived after so many nanoseconds.
    Window { packets: u64, round_ns: u64 },
    /// Sends nothing.
    Silent,
}

#[derive(Clone, Debug)]
pub struct Sender {
    pub vnic: u32,
    pub class: Class,
    pub manner: Manner,
    pub kind: TrafficKind,
    /// Bytes of a frame.
    pub size: u32,
    pub worker: usize,
    pub due_ns: u64,
    /// Packets not heard of yet, and when those of them that were sent were.
    pub flying: u64,
    pub acks: std::collections::VecDeque<u64>,
    /// What passed, with overhead.
    pub sent: u64,
    pub marked: u64,
    pub dropped: u64,
    pub waited: u64,
}

impl Sender {
    pub fn new(vnic: u32, class: Class, manner: Manner) -> Self {
        let kind = if class == Class::Rdma { TrafficKind::Rdma } else { TrafficKind::Tcp };
        Self {
            vnic,
            class,
            manner,
            kind,
            size: 1500,
            worker: 0,
            due_ns: 0,
            flying: 0,
            acks: std::collections::VecDeque::new(),
            sent: 0,
            marked: 0,
            dropped: 0,
            waited: 0,
        }
    }

    pub fn sized(mut self, size: u32) -> Self {
        self.size = size;
        self
    }

    pub fn on(mut self, worker: usize) -> Self {
        self.worker = worker;
        self
    }
}

pub struct Sim {
    pub tree: Arc<Tree>,
    pub workers: Vec<Dhtb<usize>>,
    pub divider: Divider,
    pub senders: Vec<Sender>,
    pub red: RedProfile,
    pub limits: QueueLimits,
    /// Workers have their core for so long, then not.
    pub turns: Option<(u64, u64)>,
    /// Bytes of the tunnel's headers.
    pub tunnel: u32,
    /// How far the clock of each worker is ahead.
    pub ahead_ns: [u64; 4],
    pub step_ns: u64,
    pub now_ns: u64,
}

impl Sim {
    pub fn new(workers: usize, seed: u64) -> Self {
        let tree = Arc::new(Tree::new(TreeSize { tenants: 64, vnics: 128 }, &|_, _| {}));
        let workers = (0..workers).map(|n| Dhtb::new(tree.clone(), 8192, seed + n as u64)).collect();
        let (red, limits) = (RedProfile::default(), QueueLimits::default());
        let now_ns = 1_000_000_000 + seed % 1_000_000;
        Self {
            divider: Divider::new(tree.clone()),
            tree,
            workers,
            senders: Vec::new(),
            red,
            limits,
            turns: None,
            tunnel: 0,
            ahead_ns: [0; 4],
            step_ns: STEP_NS,
            now_ns,
        }
    }

    pub fn link(&self, ceil: u64) {
        let limits = NodeLimits { ceil, ..NodeLimits::FREE };
        self.tree.set(self.tree.link_node(Direction::Out), &limits, self.now_ns);
    }

    pub fn tenant(&self, tenant: u32, limits: NodeLimits) {
        self.tree.set(self.tree.tenant_node(Direction::Out, tenant), &limits, self.now_ns);
    }

    pub fn vnic(&self, vnic: u32, tenant: u32, limits: NodeLimits) {
        self.tree.set_tenant(vnic, tenant);
        self.tree.set(self.tree.vnic_node(Direction::Out, vnic), &limits, self.now_ns);
    }

    pub fn class(&self, vnic: u32, class: Class, limits: NodeLimits) {
        let leaf = self.tree.leaf(Direction::Out, vnic, class);
        self.tree.set(self.tree.leaf_node(leaf), &limits, self.now_ns);
    }

    pub fn sent(&mut self, n: usize, marked: bool) {
        let sender = &mut self.senders[n];
        sender.acks.push_back(self.now_ns);
        sender.sent += u64::from(sender.size + OVERHEAD);
        sender.marked += u64::from(marked);
    }

    pub fn offer(&mut self, n: usize) {
        let (worker, bytes, kind, vnic, class) = {
            let sender = &self.senders[n];
            (sender.worker, sender.size + OVERHEAD, sender.kind, sender.vnic, sender.class)
        };
        let leaf = self.tree.leaf(Direction::Out, vnic, class);
        if self.workers[worker].pays(leaf, u64::from(bytes), u64::from(self.tunnel)) {
            self.sent(n, false);
            return;
        }
        let offer = Offer { bytes, tunnel: self.tunnel, buffers: 1, kind };
        let now_ns = self.now_ns + self.ahead_ns[worker];
        match self.workers[worker].ask(leaf, &offer, &self.red, now_ns) {
            TokenDecision::Send => self.sent(n, false),
            TokenDecision::Mark => self.sent(n, true),
            TokenDecision::Wait(wait) => {
                match self.workers[worker].keep(leaf, n, offer, self.limits, now_ns, wait) {
                    Ok(()) => self.senders[n].waited += 1,
                    Err(_) => self.senders[n].dropped += 1,
                }
            }
        }
    }

    pub fn step(&mut self) {
        self.now_ns += self.step_ns;
        if self.turns.is_some_and(|(on, off)| self.now_ns % (on + off) >= on) {
            return;
        }
        for n in 0..self.senders.len() {
            let (manner, vnic, class, worker) = {
                let sender = &self.senders[n];
                (sender.manner, sender.vnic, sender.class, sender.worker)
            };
            let wire = u64::from(self.senders[n].size + OVERHEAD) * 8;
            let rate = match manner {
                Manner::Silent => continue,
                Manner::Greedy => {
                    let leaf = self.tree.leaf(Direction::Out, vnic, class);
                    let mut burst = 0;
                    while self.workers[worker].depth(leaf).packets < 20 && burst < 64 {
                        self.offer(n);
                        burst += 1;
                    }
                    continue;
                }
                Manner::Window { packets, round_ns } => {
                    let sender = &mut self.senders[n];
                    while sender.acks.front().is_some_and(|at| at + round_ns <= self.now_ns) {
                        sender.acks.pop_front();
                        sender.flying -= 1;
                    }
                    while self.senders[n].flying < packets {
                        self.senders[n].flying += 1;
                        self.offer(n);
                    }
                    continue;
                }
                Manner::Blind(rate) => rate,
                Manner::OnOff { rate, on_ns, period_ns } if self.now_ns % period_ns < on_ns => rate,
                Manner::OnOff { .. } => {
                    self.senders[n].due_ns = self.now_ns;
                    continue;
                }
            };
            let gap = (wire as f64 * 1e9 / rate as f64) as u64;
            self.senders[n].due_ns = self.senders[n].due_ns.max(self.now_ns - self.step_ns);
            while self.senders[n].due_ns < self.now_ns {
                self.senders[n].due_ns += gap.max(1);
                self.offer(n);
            }
        }
        for worker in 0..self.workers.len() {
            let now_ns = self.now_ns + self.ahead_ns[worker];
            while let Some((n, _, marked)) = self.workers[worker].release(&self.red, now_ns) {
                self.sent(n, marked);
            }
        }
        self.divider.tick(self.now_ns);
    }

    /// Runs for so many milliseconds; what each sender got, in bits per second.
    pub fn run(&mut self, ms: u64) -> Vec<f64> {
        let before: Vec<u64> = self.senders.iter().map(|sender| sender.sent).collect();
        let start = self.now_ns;
        while self.now_ns < start + ms * 1_000_000 {
            self.step();
        }
        let seconds = (self.now_ns - start) as f64 / 1e9;
        self.senders
            .iter()
            .zip(before)
            .map(|(sender, before)| (sender.sent - before) as f64 * 8.0 / seconds)
            .collect()
    }
}
